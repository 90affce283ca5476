//! Input of the measurements: memory that compresses to about a half, and texts to sort.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use hiroma_sys::workload::Region;
use hiroma_units::{PAGE, Rng};

const PAGE_WORDS: usize = PAGE / 8;

/// Content of page `number`: one half random, the other half a short text repeated, about as
/// compressible as typical data.
pub fn page(number: u64, words: &mut [u64; PAGE_WORDS]) {
    let mut random = Rng::new(number);
    let (noise, text) = words.split_at_mut(PAGE_WORDS / 2);
    noise.fill_with(|| random.next_u64());
    for (index, word) in text.iter_mut().enumerate() {
        *word = 0x2020_2020_6665_6465 + number.wrapping_mul(8) + (index % 4) as u64;
    }
}

/// Sum of the words of page `number`, wrapping.
pub fn page_sum(number: u64) -> u64 {
    let mut words = [0; PAGE_WORDS];
    page(number, &mut words);
    words.iter().fold(0, |sum, &word| sum.wrapping_add(word))
}

/// Fills whole pages from byte `offset` on and returns the sum of their words. Pages are numbered
/// by their position in the region.
pub fn fill(region: &Region, offset: usize, len: usize) -> u64 {
    let mut words = [0; PAGE_WORDS];
    let mut sum = 0u64;
    for at in (offset..offset + len).step_by(PAGE) {
        page((at / PAGE) as u64, &mut words);
        region.write(at, &words);
        sum = words.iter().fold(sum, |sum, &word| sum.wrapping_add(word));
    }
    sum
}

/// Writes random numbers of nine digits, one per line: ten bytes a line, as in the paper's sort.
pub fn numbers(path: &Path, lines: u64) -> io::Result<()> {
    let mut random = Rng::new(14);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for _ in 0..lines {
        let mut number = 100_000_000 + random.below_u64(900_000_000);
        let mut line = *b"000000000\n";
        for digit in line[..9].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        out.write_all(&line)?;
    }
    out.flush()
}

/// Writes lines of 70 random letters: the text is most of the memory that sort uses, and all of it
/// is read in random order.
pub fn long_lines(path: &Path, lines: u64) -> io::Result<()> {
    let mut random = Rng::new(70);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut line = [b'\n'; 71];
    for _ in 0..lines {
        for letters in line[..70].chunks_mut(7) {
            let mut bits = random.next_u64();
            for letter in letters {
                *letter = b'a' + (bits % 26) as u8;
                bits /= 26;
            }
        }
        out.write_all(&line)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_memory_matches_the_reported_sum() {
        let region = Region::map(8 * PAGE).unwrap();
        let sum = fill(&region, 2 * PAGE, 5 * PAGE);
        assert_eq!(region.sum(0, region.len()), sum);
        assert_eq!(region.sum(3 * PAGE, PAGE), page_sum(3));
        assert_ne!(page_sum(3), page_sum(4));
    }

    #[test]
    fn texts_have_the_requested_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        numbers(&path, 1000).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!((text.len(), text.lines().count()), (10_000, 1000));
        assert!(text.lines().all(|line| {
            line.parse::<u64>().is_ok_and(|number| (100_000_000..1_000_000_000).contains(&number))
        }));
        long_lines(&path, 100).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().count() == 100
                && text
                    .lines()
                    .all(|line| line.len() == 70 && line.bytes().all(|b| b.is_ascii_lowercase()))
        );
    }

    #[test]
    fn random_numbers_stay_below_their_bound() {
        let mut random = Rng::new(0);
        assert!((0..10_000).all(|_| random.below_u64(7) < 7));
    }
}
