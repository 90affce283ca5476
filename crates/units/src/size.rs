//! Sizes in bytes, in their text form for users.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Prints with binary units (`1.5GiB`), parses `4096`, `4K`, `512M`, `1G`, `2T`,
/// `1.5G`, with or without `iB`/`B`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bytes(pub u64);

/// A size that may be relative to the available memory: `1G` or `25%`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SizeSpec {
    /// A number of bytes.
    Bytes(Bytes),
    /// A share of the whole, in hundredths of a percent.
    Percent(u32),
}

/// Why a text is not a size. The message states the valid forms.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseSizeError {
    /// No number at the start, or no valid unit after it.
    #[error(
        "`{0}` is not a size: write a number and a unit, like 512M, 1G or 1.5G (units are K, M, G, T; binary)"
    )]
    Malformed(String),
    /// Below zero, or zero where that is not useful.
    #[error("`{0}` is not a usable size: it must be greater than zero")]
    NotPositive(String),
    /// More than 2^63 bytes.
    #[error("`{0}` is too large: the largest size is 8388607T")]
    TooLarge(String),
    /// A percentage outside 0 to 100.
    #[error("`{0}` is not a share of memory: write a percentage above 0% and up to 100%")]
    Percentage(String),
}

impl FromStr for Bytes {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let trimmed = text.trim();
        let malformed = || ParseSizeError::Malformed(text.to_owned());
        let digits_end =
            trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits_end);
        if number.is_empty() {
            let negative = trimmed
                .strip_prefix('-')
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            return Err(if negative {
                ParseSizeError::NotPositive(text.to_owned())
            } else {
                malformed()
            });
        }
        let unit = unit.trim().to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
        let shift = match unit {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(malformed()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let too_large = || ParseSizeError::TooLarge(text.to_owned());
        let parse = |part: &str| {
            if part.is_empty() { Ok(0) } else { part.parse::<u64>().map_err(|_| too_large()) }
        };
        let whole = u128::from(parse(whole)?) << shift;
        let fraction_digits = &fraction[..fraction.len().min(9)];
        let fraction = (u128::from(parse(fraction_digits)?) << shift)
            / 10u128.pow(fraction_digits.len() as u32);
        let bytes = whole + fraction;
        match u64::try_from(bytes) {
            Ok(bytes) if bytes < 1 << 63 => Ok(Bytes(bytes)),
            _ => Err(too_large()),
        }
    }
}

impl FromStr for SizeSpec {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let Some(number) = text.trim().strip_suffix('%') else {
            let bytes: Bytes = text.parse()?;
            return if bytes.0 == 0 {
                Err(ParseSizeError::NotPositive(text.to_owned()))
            } else {
                Ok(SizeSpec::Bytes(bytes))
            };
        };
        let share: f64 =
            number.trim().parse().map_err(|_| ParseSizeError::Percentage(text.to_owned()))?;
        let hundredths = (share * 100.0).round();
        if (1.0..=10_000.0).contains(&hundredths) {
            Ok(SizeSpec::Percent(hundredths as u32))
        } else {
            Err(ParseSizeError::Percentage(text.to_owned()))
        }
    }
}

impl SizeSpec {
    /// The size in bytes, relative to a whole of `total`.
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            SizeSpec::Bytes(bytes) => bytes,
            SizeSpec::Percent(hundredths) => {
                Bytes((u128::from(total.0) * u128::from(hundredths) / 10_000) as u64)
            }
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = 0;
        while unit + 1 < UNITS.len() && self.0 >> (10 * (unit + 1)) != 0 {
            unit += 1;
        }
        let scaled = self.0 as f64 / (1u64 << (10 * unit)) as f64;
        if unit == 0 || scaled.fract() == 0.0 {
            write!(f, "{scaled:.0}{}", UNITS[unit])
        } else {
            write!(f, "{scaled:.1}{}", UNITS[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_units() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("1.5G", 3 << 29),
            ("512MiB", 512 << 20),
            ("2TB", 2 << 40),
            (" 7 M ", 7 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused_with_a_reason() {
        use ParseSizeError::*;
        assert!(matches!("0".parse::<SizeSpec>(), Err(NotPositive(_))));
        assert!(matches!("-1".parse::<SizeSpec>(), Err(NotPositive(_))));
        assert!(matches!("1Q".parse::<SizeSpec>(), Err(Malformed(_))));
        assert!(matches!("".parse::<SizeSpec>(), Err(Malformed(_))));
        assert!(matches!("G".parse::<SizeSpec>(), Err(Malformed(_))));
        assert!(matches!("1..5G".parse::<SizeSpec>(), Err(TooLarge(_) | Malformed(_))));
        assert!(matches!("99999999T".parse::<SizeSpec>(), Err(TooLarge(_))));
        for text in ["0%", "101%", "-5%", "x%", "%"] {
            assert!(matches!(text.parse::<SizeSpec>(), Err(Percentage(_))), "{text}");
        }
    }

    #[test]
    fn a_percentage_is_of_the_whole() {
        assert_eq!("25%".parse::<SizeSpec>().unwrap().of(Bytes(1 << 30)), Bytes(1 << 28));
        assert_eq!("0.5%".parse::<SizeSpec>().unwrap().of(Bytes(20_000)), Bytes(100));
    }

    #[test]
    fn sizes_print_in_the_largest_unit_that_fits() {
        assert_eq!(Bytes(1 << 30).to_string(), "1GiB");
        assert_eq!(Bytes(3 << 29).to_string(), "1.5GiB");
        assert_eq!(Bytes(100).to_string(), "100B");
    }
}
