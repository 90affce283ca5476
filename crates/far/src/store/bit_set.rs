//! A set of small numbers.

/// A run is searched in this many words.
const RUN_WORDS: usize = 64;

/// A set of small numbers that finds its smallest quickly.
#[derive(Clone, Default)]
pub struct BitSet {
    words: Vec<u64>,
    /// One bit for each word: not zero.
    summary: Vec<u64>,
}

impl BitSet {
    pub fn contains(&self, index: usize) -> bool {
        self.words.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    pub fn insert(&mut self, index: usize) {
        self.set(index, true);
    }

    pub fn set(&mut self, index: usize, present: bool) {
        let number = index / 64;
        if number >= self.words.len() {
            if !present {
                return;
            }
            self.words.resize(number + 1, 0);
            self.summary.resize(number / 64 + 1, 0);
        }
        let word = &mut self.words[number];
        *word = *word & !(1 << (index % 64)) | u64::from(present) << (index % 64);
        let summary = &mut self.summary[number / 64];
        *summary = *summary & !(1 << (number % 64)) | u64::from(*word != 0) << (number % 64);
    }

    pub fn first(&self) -> Option<usize> {
        let (upper, summary) = self.summary.iter().enumerate().find(|(_, word)| **word != 0)?;
        let number = upper * 64 + summary.trailing_zeros() as usize;
        Some(number * 64 + self.words[number].trailing_zeros() as usize)
    }

    /// The first of `count` (at most 64) numbers in a row, all in the set and all below `end`. Only
    /// the numbers of one word are considered at a time, and of [`RUN_WORDS`] words that are not
    /// empty.
    pub fn run(&self, count: usize, end: usize) -> Option<usize> {
        let words = self.words[..self.words.len().min(end.div_ceil(64))].iter().enumerate();
        let mut words = words.filter(|&(_, &word)| word != 0).take(RUN_WORDS);
        words.find_map(|(number, &word)| {
            let runs = (1..count).fold(word, |runs, shift| runs & word >> shift);
            let at = number * 64 + runs.trailing_zeros() as usize;
            (runs != 0 && at + count <= end).then_some(at)
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let bits = |(number, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| number * 64 + bit)
        };
        self.words.iter().enumerate().flat_map(bits)
    }

    pub fn bytes(&self) -> usize {
        (self.words.capacity() + self.summary.capacity()) * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_found_within_a_word() {
        let mut set = BitSet::default();
        (0..200).filter(|at| at % 7 != 0 && *at != 64).for_each(|at| set.insert(at));
        assert_eq!(set.run(1, 200), Some(1));
        assert_eq!(set.run(6, 200), Some(1));
        assert_eq!(set.run(6, 6), None);
        assert_eq!(set.run(7, 200), None);
        (70..78).for_each(|at| set.insert(at));
        assert_eq!(set.run(12, 200), Some(65));
        set.set(72, false);
        assert_eq!(set.run(12, 200), None);
    }
}
