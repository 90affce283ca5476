//! A set of small numbers.

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
