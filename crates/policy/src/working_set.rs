//! How many more fetches a smaller local memory would need.
//!
//! Faults show what more memory would avoid ([`crate::reuse`]), not what less would cost: accesses
//! to resident pages are invisible. Where accessed bits are read repeatedly, they show it: a page
//! that was idle for `n` reads and is accessed now would have been fetched, if memory kept only
//! pages with fewer idle reads (Denning, *The Working Set Model for Program Behavior*, 1968).

use hiroma_units::{BlockId, ExtentNo, PAGES_PER_EXTENT};
use rustc_hash::FxHashMap;

use crate::PageBits;
use crate::replacement::words_of;

/// Idle reads are counted up to one less than this.
const AGES: usize = 8;
const WORDS: usize = PAGES_PER_EXTENT / 64;
/// Pages that were accessed between the last two reads may be accessed any number of times: what it
/// costs to be without them is not known.
const KNOWN_FROM_AGE: usize = 1;
/// A block counts as at most this many pages: a touch of a larger one is no reason to keep all of
/// it, and one bit stands for all pages of a huge page.
const PAGES_MAX: usize = 16;
/// Fetched pages before the counts say anything.
const FETCHED_MIN: u64 = 512;

/// Idle ages of the resident pages. See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct WorkingSet {
    extents: FxHashMap<ExtentNo, Ages>,
    /// Pages by age before a read, and those of them that were accessed; older ones count less.
    pages: [u64; AGES],
    accessed: [u64; AGES],
    fetched: u64,
}

/// Of each page of an extent: whether it was resident at the last read, and its age in three bits.
#[derive(Clone, Copy, Debug, Default)]
struct Ages {
    known: PageBits,
    age: [PageBits; 3],
}

impl WorkingSet {
    /// A block became resident. `is_rescued`: it was next to be evicted, and was touched.
    pub fn admitted(&mut self, block: BlockId, is_rescued: bool) {
        let Some(ages) = self.extents.get_mut(&block.extent_no()) else { return };
        words_of(block).for_each(|(word, mask)| ages.known[word] &= !mask);
        if is_rescued {
            let pages = block.pages().min(PAGES_MAX) as u64;
            self.pages[AGES - 1] += pages;
            self.accessed[AGES - 1] += pages;
        }
    }

    /// A block was fetched.
    pub fn fetched(&mut self, block: BlockId) {
        self.fetched += block.pages().min(PAGES_MAX) as u64;
    }

    /// The accessed bits of `extent` since the last read, and which of its pages are resident.
    pub fn read(&mut self, extent: ExtentNo, accessed: &PageBits, resident: &PageBits) {
        let ages = self.extents.entry(extent).or_default();
        let is_huge = [accessed, resident].iter().all(|bits| **bits == [u64::MAX; WORDS]);
        let share = if is_huge { (PAGES_PER_EXTENT / PAGES_MAX) as u64 } else { 1 };
        for word in 0..resident.len() {
            let known = ages.known[word] & resident[word];
            let used = accessed[word] & resident[word];
            let [low, mid, high] = ages.age.map(|plane| plane[word]);
            for age in 0..AGES {
                let select =
                    |plane: u64, bit: usize| if age >> bit & 1 == 1 { plane } else { !plane };
                let of_age = known & select(low, 0) & select(mid, 1) & select(high, 2);
                self.pages[age] += u64::from(of_age.count_ones());
                self.accessed[age] += u64::from((of_age & used).count_ones()) / share;
            }
            self.pages[0] += u64::from((resident[word] & !known).count_ones());
            let (oldest, idle) = (low & mid & high, known & !used);
            ages.age[0][word] = (!low | oldest) & idle;
            ages.age[1][word] = (mid ^ low | oldest) & idle;
            ages.age[2][word] = (high ^ (mid & low) | oldest) & idle;
            ages.known[word] = resident[word];
        }
    }

    /// All extents of a request were read.
    pub fn end_read(&mut self) {
        if self.fetched > 4 * FETCHED_MIN {
            self.fetched /= 2;
            self.pages.iter_mut().chain(&mut self.accessed).for_each(|count| *count /= 2);
        }
    }

    /// Drops extents without resident pages.
    pub fn retain(&mut self, has_resident: impl Fn(ExtentNo) -> bool) {
        self.extents.retain(|&extent, _| has_resident(extent));
    }

    /// What is known now, for a local memory of `resident_bytes`.
    pub fn growth(&self, resident_bytes: u64) -> Option<Growth> {
        let pages: u64 = self.pages.iter().sum();
        if self.fetched < FETCHED_MIN || pages == 0 {
            return None;
        }
        let wide = |value: u64| u128::from(value);
        let part = |age: usize| wide(resident_bytes) * wide(self.pages[age]) / wide(pages);
        let added = |age: usize| wide(self.accessed[age]) * 1_000_000 / wide(self.fetched);
        Some(Growth {
            bytes: std::array::from_fn(|age| part(age) as u64),
            added_ppm: std::array::from_fn(|age| added(age) as u64),
        })
    }

    /// Bytes of its tables.
    pub fn metadata_bytes(&self) -> usize {
        self.extents.capacity() * (size_of::<(ExtentNo, Ages)>() + 1)
    }
}

/// Additional fetches with less local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Resident bytes by idle age, and the fetches that they avoid, in millionths of all fetches.
    bytes: [u64; AGES],
    added_ppm: [u64; AGES],
}

impl Growth {
    /// Fetches that are added if local memory is smaller by `bytes`, in millionths of all fetches.
    /// None: that reaches pages that are always in use.
    pub fn added_ppm(&self, bytes: u64) -> Option<u64> {
        let (mut left, mut added) = (bytes, 0);
        for age in (KNOWN_FROM_AGE..AGES).rev() {
            let taken = left.min(self.bytes[age]);
            let part = u128::from(self.added_ppm[age]) * u128::from(taken);
            added += part.checked_div(u128::from(self.bytes[age])).unwrap_or(0) as u64;
            left -= taken;
        }
        (left == 0).then_some(added)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: ExtentNo = ExtentNo(3);

    fn bits(pages: std::ops::Range<usize>) -> PageBits {
        let mut bits = PageBits::default();
        pages.for_each(|page| bits[page / 64] |= 1 << (page % 64));
        bits
    }

    /// Reads in each of which `accessed(read)` was accessed, while 100 pages were fetched.
    fn after(reads: usize, accessed: impl Fn(usize) -> PageBits) -> WorkingSet {
        let mut set = WorkingSet::default();
        for read in 0..reads {
            set.read(EXTENT, &accessed(read), &bits(0..512));
            (0..100).for_each(|page| set.fetched(BlockId::new(page, 0)));
            set.end_read();
        }
        set
    }

    #[test]
    fn what_is_always_used_is_never_to_spare() {
        let growth = after(32, |_| bits(0..384)).growth(512 << 10).unwrap();
        // A quarter is idle, and costs nothing.
        assert_eq!(growth.added_ppm(100 << 10), Some(0));
        assert_eq!(growth.added_ppm(200 << 10), None);
    }

    #[test]
    fn turns_cost_what_they_touch() {
        // An eighth of the pages in turn: each page is accessed after seven idle reads.
        let turn = |read: usize| bits(read % 8 * 64..(read % 8 + 1) * 64);
        let growth = after(64, turn).growth(512 << 10).unwrap();
        // All accesses are to the oldest eighth; without it each of them is a fetch: 64 for 100.
        let added = growth.added_ppm(64 << 10).unwrap();
        assert!((600_000..=680_000).contains(&added), "{added}");
        let twice = growth.added_ppm(128 << 10).unwrap();
        assert!((added..added + 10_000).contains(&twice), "{twice}");
    }

    #[test]
    fn rescued_blocks_were_the_oldest_and_fetched_ones_are_new() {
        let mut set = after(32, |_| bits(0..0));
        let before = set.growth(512 << 10).unwrap().added_ppm(8 << 10).unwrap();
        (0..64).for_each(|page| set.admitted(BlockId::new(3 * 512 + page, 0), true));
        let rescued = set.growth(512 << 10).unwrap().added_ppm(8 << 10).unwrap();
        assert!(before == 0 && rescued > 0, "{before} {rescued}");
        (64..128).for_each(|page| set.admitted(BlockId::new(3 * 512 + page, 0), false));
        let accessed = set.accessed;
        set.read(EXTENT, &bits(64..128), &bits(0..512));
        assert_eq!(set.accessed, accessed, "the first access is what fetched them");
    }

    #[test]
    fn ages_match_counters_for_each_page() {
        let mut random = crate::placement::Rng::new(5);
        let (mut set, mut ages) = (WorkingSet::default(), [None; 512]);
        let (mut pages, mut accessed_by_age) = ([0; AGES], [0; AGES]);
        for _ in 0..200 {
            let resident: PageBits = std::array::from_fn(|_| random.next_u64() | random.next_u64());
            let accessed: PageBits = std::array::from_fn(|_| random.next_u64() & random.next_u64());
            set.read(EXTENT, &accessed, &resident);
            for (page, age) in ages.iter_mut().enumerate() {
                let is = |bits: &PageBits| bits[page / 64] >> (page % 64) & 1 == 1;
                if !is(&resident) {
                    *age = None;
                    continue;
                }
                pages[age.unwrap_or(0)] += 1;
                accessed_by_age[age.unwrap_or(0)] += u64::from(age.is_some() && is(&accessed));
                let older = age.map_or(0, |age: usize| (age + 1).min(AGES - 1));
                *age = Some(if is(&accessed) { 0 } else { older });
            }
        }
        assert_eq!((set.pages, set.accessed), (pages, accessed_by_age));
    }

    #[test]
    fn little_or_nothing_known_says_nothing() {
        assert_eq!(WorkingSet::default().growth(1 << 20), None);
        assert_eq!(after(3, |_| bits(0..8)).growth(1 << 20), None);
    }
}
