//! Times, in their text form for users.

use std::time::Duration;

/// Longest accepted time: a year, which is in effect unlimited.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Why a text is not a time. The message states the valid forms.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParseTimeError {
    /// No number, or no valid unit after it.
    #[error(
        "`{0}` is not a time: write a number and a unit (us, ms, s, m, h), like 500us, 1.5s or 5m"
    )]
    Malformed(String),
    /// More than a year.
    #[error("`{0}` is too long: the longest time is a year")]
    TooLong(String),
}

/// Parses a time: `500us`, `5ms`, `1.5s`, `5m`, `1h`, or several of these in a row. A whole number
/// alone means seconds.
///
/// # Errors
/// The text is not a time, or the time is more than a year.
pub fn parse_time(text: &str) -> Result<Duration, ParseTimeError> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return parse_time(&format!("{seconds}s"));
    }
    match humantime::parse_duration(text.trim()) {
        Ok(time) if time <= LONGEST => Ok(time),
        Ok(_) | Err(humantime::DurationError::NumberOverflow) => {
            Err(ParseTimeError::TooLong(text.to_owned()))
        }
        Err(_) => Err(ParseTimeError::Malformed(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_units() {
        for (text, nanos) in [
            ("500us", 500_000),
            ("5ms", 5_000_000),
            ("30s", 30_000_000_000),
            ("30", 30_000_000_000),
            ("1.5s", 1_500_000_000),
            (" 5m ", 300_000_000_000),
            ("1m30s", 90_000_000_000),
            ("0s", 0),
        ] {
            assert_eq!(parse_time(text).unwrap().as_nanos(), nanos, "{text}");
        }
    }

    #[test]
    fn invalid_times_are_refused_with_an_example() {
        for text in ["", "s", ".", " ", "-1s", "1.5.5s", "one hour", "5 parsecs", "\u{ff13}0s"] {
            let error = parse_time(text).unwrap_err();
            assert_eq!(error, ParseTimeError::Malformed(text.to_owned()));
            assert!(error.to_string().contains("like 500us"));
        }
        for text in ["400days", "9999999999999s", "99999999999999999999h"] {
            assert_eq!(parse_time(text), Err(ParseTimeError::TooLong(text.to_owned())));
        }
    }
}
