//! Of how many pieces a block consists.

use std::fmt;
use std::str::FromStr;

/// Maximum number of copies of a block.
pub const COPIES_MAX: usize = 8;
/// Maximum number of pieces of a block.
pub const PIECES_MAX: usize = 16;

/// A block consists of [`Scheme::pieces`], at a member each, of which any [`Scheme::needed`] give
/// it back. With copies one is needed, and each is the block; otherwise it is cut into as many
/// pieces as are needed, and the others, the *parity*, are computed from these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Scheme {
    data: u8,
    parity: u8,
}

/// Why pieces cannot be so many.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemeError {
    /// It is not `K+M`.
    #[error(
        "`{0}` is not K+M: write how many pieces to cut blocks into and how many more to compute, as in 4+1"
    )]
    Syntax(String),
    /// No data or no parity.
    #[error("{0}: at least one piece of data and one of parity are needed, as in 4+1")]
    Zero(String),
    /// More than [`PIECES_MAX`].
    #[error("{text}: a block has at most {PIECES_MAX} pieces, and these are {pieces}")]
    Pieces { text: String, pieces: usize },
    /// No copy, or more than [`COPIES_MAX`].
    #[error("{0} is not possible: use 1 to {COPIES_MAX}")]
    Copies(usize),
}

impl Scheme {
    /// Each block is in one place.
    pub const ONE: Scheme = Scheme { data: 1, parity: 0 };

    /// Each block is in `copies` places.
    pub fn copies(copies: usize) -> Result<Scheme, SchemeError> {
        match copies {
            1..=COPIES_MAX => Ok(Scheme { data: 1, parity: copies as u8 - 1 }),
            _ => Err(SchemeError::Copies(copies)),
        }
    }

    /// Pieces of data, and of parity.
    pub fn parts(self) -> (usize, usize) {
        (usize::from(self.data), usize::from(self.parity))
    }

    /// Number of pieces that a block should have.
    pub fn pieces(self) -> usize {
        usize::from(self.data) + usize::from(self.parity)
    }

    /// Number of pieces that give a block back.
    pub fn needed(self) -> usize {
        usize::from(self.data)
    }

    /// Whether a piece is only a part of a block.
    pub fn is_cut(self) -> bool {
        self.data > 1
    }
}

impl FromStr for Scheme {
    type Err = SchemeError;

    /// Parses `K+M`.
    fn from_str(text: &str) -> Result<Scheme, SchemeError> {
        let number = |part: &str| {
            let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| part.parse::<usize>().unwrap_or(usize::MAX))
        };
        let parts =
            text.split_once('+').and_then(|(data, parity)| Some((number(data)?, number(parity)?)));
        let Some((data, parity)) = parts else { return Err(SchemeError::Syntax(text.to_owned())) };
        let pieces = data.saturating_add(parity);
        if data == 0 || parity == 0 {
            return Err(SchemeError::Zero(text.to_owned()));
        }
        if pieces > PIECES_MAX {
            return Err(SchemeError::Pieces { text: text.to_owned(), pieces });
        }
        Ok(Scheme { data: data as u8, parity: parity as u8 })
    }
}

/// `K+M`, or `N copies`.
impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_cut() {
            return write!(f, "{}+{}", self.data, self.parity);
        }
        match self.pieces() {
            1 => f.write_str("1 copy"),
            copies => write!(f, "{copies} copies"),
        }
    }
}

/// A set of pieces of a block, by index.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Indices(u16);

impl Indices {
    /// The first `count`.
    pub fn first(count: usize) -> Indices {
        (0..count).collect()
    }

    /// Adds an index.
    pub fn insert(&mut self, index: usize) {
        self.0 |= 1 << index;
    }

    /// Whether it is in the set.
    pub fn contains(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }

    /// Number of indices.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are not in `other`.
    pub fn without(self, other: Indices) -> Indices {
        Indices(self.0 & !other.0)
    }

    /// The indices, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        (0..PIECES_MAX).filter(move |&index| self.contains(index))
    }
}

impl FromIterator<usize> for Indices {
    fn from_iter<I: IntoIterator<Item = usize>>(indices: I) -> Indices {
        let mut set = Indices::default();
        indices.into_iter().for_each(|index| set.insert(index));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_k_plus_m() {
        let scheme: Scheme = "4+1".parse().unwrap();
        assert_eq!((scheme.pieces(), scheme.needed(), scheme.is_cut()), (5, 4, true));
        assert_eq!(scheme.to_string(), "4+1");
        assert_eq!("1+1".parse(), Scheme::copies(2), "one of two pieces that are alike");
        assert_eq!(Scheme::copies(2).unwrap().to_string(), "2 copies");
        assert_eq!("12+4".parse::<Scheme>().unwrap().pieces(), 16);
    }

    #[test]
    fn impossible_schemes_are_refused_in_words() {
        let why = |text: &str| text.parse::<Scheme>().unwrap_err().to_string();
        for text in ["", "4", "+", "4+", "+1", "4+1+1", "-4+1", "4+ 1", "a+b", "4-1"] {
            assert!(why(text).contains("is not K+M"), "{text}: {}", why(text));
        }
        for text in ["0+1", "4+0", "0+0"] {
            assert!(why(text).contains("at least one piece"), "{text}: {}", why(text));
        }
        for text in ["16+1", "8+9", "99999999999999999999+1"] {
            assert!(why(text).contains("at most 16 pieces"), "{text}: {}", why(text));
        }
        assert!(Scheme::copies(0).is_err() && Scheme::copies(9).is_err());
    }
}
