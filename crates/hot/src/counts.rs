//! A count for each page of a 2 MiB range.
//!
//! Counts are bit-sliced: one set of bits for the lowest digit of all counts, one for the second
//! digit, and so on. Adding a set of pages is an addition with carry; comparing all counts with a
//! number takes one step per digit. Both process 64 pages at a time.

use hiroma_units::PAGES_PER_EXTENT;

use crate::bits::{self, PageBits};

const DIGITS: usize = 8;

/// 512 counts of at most 255.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts([PageBits; DIGITS]);

impl Counts {
    /// Increments the counts of `pages`. A count of 255 wraps to 0; halve before that happens.
    #[inline(always)]
    pub fn add(&mut self, pages: &PageBits) {
        let mut carry = *pages;
        for digit in &mut self.0 {
            if bits::is_empty(&carry) {
                break;
            }
            let next = bits::and(digit, &carry);
            for (word, carry) in digit.iter_mut().zip(&carry) {
                *word ^= carry;
            }
            carry = next;
        }
    }

    /// Halves all counts, rounding down.
    #[inline(always)]
    pub fn halve(&mut self) {
        self.0.rotate_left(1);
        self.0[DIGITS - 1] = bits::NONE;
    }

    /// Sets all counts to 0.
    pub fn clear(&mut self) {
        *self = Counts::default();
    }

    /// The count of page `page` of the range.
    pub fn get(&self, page: usize) -> u8 {
        let digit = |at: usize| (self.0[at][page / 64] >> (page % 64) & 1) as u8;
        (0..DIGITS).map(|at| digit(at) << at).sum()
    }

    /// All counts, by page.
    pub fn iter(&self) -> impl Iterator<Item = u8> {
        (0..PAGES_PER_EXTENT).map(|page| self.get(page))
    }

    /// The sum of the counts of `pages`.
    #[inline(always)]
    pub fn sum_of(&self, pages: &PageBits) -> u32 {
        let mut sum = 0;
        for (at, digit) in self.0.iter().enumerate() {
            sum += u32::from(bits::count(&bits::and(digit, pages))) << at;
        }
        sum
    }

    /// Sets the counts of `pages` to `count`, and all others to 0.
    #[inline(always)]
    pub fn set(&mut self, pages: &PageBits, count: u8) {
        for (at, digit) in self.0.iter_mut().enumerate() {
            *digit = if count >> at & 1 == 1 { *pages } else { bits::NONE };
        }
    }

    /// The sum of all counts.
    pub fn sum(&self) -> u64 {
        self.0.iter().enumerate().map(|(at, digit)| u64::from(bits::count(digit)) << at).sum()
    }

    /// The pages with a count of at least `least`.
    #[inline(always)]
    pub fn at_least(&self, least: u16) -> PageBits {
        if least >> DIGITS != 0 {
            return bits::NONE;
        }
        // From the highest digit down: among counts whose digits are equal so far, the first digit
        // that differs decides.
        let (mut more, mut equal) = (bits::NONE, bits::ALL);
        for (at, digit) in self.0.iter().enumerate().rev() {
            if least >> at & 1 == 1 {
                equal = bits::and(&equal, digit);
            } else {
                let ahead = bits::and(&equal, digit);
                more = bits::or(&more, &ahead);
                equal = bits::without(&equal, digit);
            }
        }
        bits::or(&more, &equal)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_match_a_naive_per_page_count(
            steps in proptest::collection::vec((any::<[u64; 8]>(), any::<[u64; 8]>(), any::<bool>()), 0..250), least in 0u16..300,
        ) {
            let (mut counts, mut single) = (Counts::default(), [0u8; PAGES_PER_EXTENT]);
            for (pages, others, halve) in steps {
                // Include more than half of the pages, so that counts become large.
                let pages = bits::or(&pages, &others);
                counts.add(&pages);
                for (page, count) in single.iter_mut().enumerate() {
                    *count += (pages[page / 64] >> (page % 64) & 1) as u8;
                }
                if halve && single[0] > 100 {
                    counts.halve();
                    single.iter_mut().for_each(|count| *count /= 2);
                }
            }
            prop_assert_eq!(counts.iter().collect::<Vec<u8>>(), single.to_vec());
            prop_assert_eq!(counts.sum(), single.iter().map(|&count| u64::from(count)).sum::<u64>());
            let first: u32 = single[..64].iter().map(|&count| u32::from(count)).sum();
            prop_assert_eq!(counts.sum_of(&[u64::MAX, 0, 0, 0, 0, 0, 0, 0]), first);
            let hot = counts.at_least(least);
            for (page, &count) in single.iter().enumerate() {
                prop_assert_eq!(hot[page / 64] >> (page % 64) & 1 == 1, u16::from(count) >= least);
            }
            counts.set(&hot, 5);
            prop_assert_eq!(counts.sum(), 5 * u64::from(bits::count(&hot)));
            prop_assert_eq!(counts.at_least(5), hot);
        }
    }
}
