//! Short mappings that were left to the kernel.
//!
//! Most programs have few of them, and a short mapping costs the pager as much as a long one. But
//! some keep all of their data in them (Ruby maps its heap in pages of 16 KiB), and some let one grow
//! with `mremap`. So these mappings are remembered: once they are [`FEW`] together, further ones are
//! managed; and one that becomes long is moved to managed memory.
//!
//! The table knows anonymous private mappings for reading and writing. What is done to a part of one
//! takes that part out, so that what is in the table is certain. Each mapping is one word, which a
//! child of a fork has whole, and no lock is involved.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use hiroma_units::PAGE;
use libc::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE};

use crate::classify::{MANAGED_MIN, MapCall};

/// So many bytes of short mappings are left to the kernel.
pub const FEW: usize = 2 << 20;
/// Mappings that are remembered: fewer are not [`FEW`] together.
const SLOTS: usize = FEW / PAGE;
/// Bits of a number of pages, which is less than that of [`MANAGED_MIN`].
const PAGES_BITS: u32 = 8;

/// See the module's head.
pub struct Small {
    /// Number of the first page, and number of pages, in the lower bits. 0: vacant.
    words: [AtomicU64; SLOTS],
    bytes: AtomicUsize,
}

/// The mappings of this process.
pub static SMALL: Small = Small::new();

/// The word of a range of whole pages.
fn word(range: &Range<usize>) -> u64 {
    ((range.start / PAGE) as u64) << PAGES_BITS | (range.len() / PAGE) as u64
}

fn range(word: u64) -> Range<usize> {
    let start = (word >> PAGES_BITS) as usize * PAGE;
    start..start + (word & ((1 << PAGES_BITS) - 1)) as usize * PAGE
}

/// Whether the kernel's answer to this call is a mapping that the table is about.
fn is_small(call: &MapCall) -> bool {
    let MapCall { len, prot, flags, .. } = *call;
    len > 0
        && len < MANAGED_MIN
        && prot == PROT_READ | PROT_WRITE
        && flags & !libc::MAP_NORESERVE & !libc::MAP_POPULATE == MAP_PRIVATE | MAP_ANONYMOUS
}

impl Small {
    const fn new() -> Small {
        Small { words: [const { AtomicU64::new(0) }; SLOTS], bytes: AtomicUsize::new(0) }
    }

    /// The shortest mapping that is managed.
    pub fn managed_min(&self) -> usize {
        if self.bytes.load(Relaxed) < FEW { MANAGED_MIN } else { PAGE }
    }

    /// The kernel has made a mapping.
    pub fn mapped(&self, call: &MapCall, start: usize) {
        if call.flags & libc::MAP_FIXED != 0 {
            self.changed(start, call.len);
        } else if is_small(call) {
            self.insert(start..start + call.len.next_multiple_of(PAGE));
        }
    }

    fn insert(&self, mapping: Range<usize>) {
        for slot in &self.words {
            let new = word(&mapping);
            if slot.load(Relaxed) == 0 && slot.compare_exchange(0, new, Relaxed, Relaxed).is_ok() {
                self.bytes.fetch_add(mapping.len(), Relaxed);
                return;
            }
        }
        // Threads that map at the same time.
        self.bytes.fetch_max(FEW, Relaxed);
    }

    /// This range is about to be unmapped, replaced or protected.
    pub fn changed(&self, start: usize, len: usize) {
        let Some(end) = len.checked_next_multiple_of(PAGE).and_then(|len| start.checked_add(len))
        else {
            return;
        };
        if start == end || self.bytes.load(Relaxed) == 0 {
            return;
        }
        for slot in &self.words {
            let old = slot.load(Relaxed);
            let mapping = range(old);
            if old == 0 || mapping.end <= start || end <= mapping.start {
                continue;
            }
            // Of two parts that are left, the first.
            let left = if start > mapping.start {
                mapping.start..start
            } else {
                end.min(mapping.end)..mapping.end
            };
            let new = if left.is_empty() { 0 } else { word(&left) };
            if slot.compare_exchange(old, new, Relaxed, Relaxed).is_ok() {
                self.forget(mapping.len() - left.len());
            }
        }
    }

    /// Takes this mapping out, if it is known.
    pub fn take(&self, start: usize, len: usize) -> bool {
        let Some(len) = len.checked_next_multiple_of(PAGE).filter(|&len| len < MANAGED_MIN) else {
            return false;
        };
        let wanted = word(&(start..start + len));
        let taken = len > 0
            && self
                .words
                .iter()
                .any(|slot| slot.compare_exchange(wanted, 0, Relaxed, Relaxed).is_ok());
        if taken {
            self.forget(len);
        }
        taken
    }

    /// A mapping that was taken out is there again.
    pub fn put_back(&self, start: usize, len: usize) {
        self.insert(start..start + len.next_multiple_of(PAGE));
    }

    fn forget(&self, bytes: usize) {
        let less = |all: usize| Some(all.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Relaxed, Relaxed, less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: MapCall = MapCall {
        addr: 0,
        len: 8 * PAGE,
        prot: PROT_READ | PROT_WRITE,
        flags: MAP_PRIVATE | MAP_ANONYMOUS,
    };

    fn known(small: &Small) -> Vec<(usize, usize)> {
        let words = small.words.iter().map(|word| word.load(Relaxed));
        let known: Vec<_> = words.filter(|&word| word != 0).map(range).collect();
        assert_eq!(known.iter().map(|range| range.len()).sum::<usize>(), small.bytes.load(Relaxed));
        known.into_iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn parts_that_change_are_taken_out() {
        let small = Small::new();
        let at = |page: usize| (100 + page) * PAGE;
        small.mapped(&CALL, at(0));
        small.changed(at(3), 0);
        assert_eq!(known(&small), [(at(0), at(8))]);
        small.changed(at(0), 2 * PAGE);
        small.changed(at(7), 20 * PAGE);
        assert_eq!(known(&small), [(at(2), at(7))]);
        small.changed(at(4), 1);
        assert_eq!(known(&small), [(at(2), at(4))]);
        assert!(!small.take(at(2), PAGE) && !small.take(at(3), PAGE));
        assert!(small.take(at(2), 2 * PAGE - 7) && known(&small).is_empty());
        small.put_back(at(2), 2 * PAGE);
        small.mapped(&MapCall { flags: CALL.flags | libc::MAP_FIXED, ..CALL }, at(0));
        assert!(known(&small).is_empty());
    }

    #[test]
    fn other_mappings_are_not_remembered() {
        let small = Small::new();
        for call in [
            MapCall { len: MANAGED_MIN, ..CALL },
            MapCall { prot: PROT_READ, ..CALL },
            MapCall { prot: CALL.prot | libc::PROT_EXEC, ..CALL },
            MapCall { flags: MAP_PRIVATE, ..CALL },
            MapCall { flags: libc::MAP_SHARED | MAP_ANONYMOUS, ..CALL },
            MapCall { flags: CALL.flags | libc::MAP_STACK, ..CALL },
            MapCall { flags: CALL.flags | libc::MAP_32BIT, ..CALL },
        ] {
            small.mapped(&call, 1 << 30);
        }
        assert!(known(&small).is_empty());
    }

    #[test]
    fn many_are_managed_until_they_are_few_again() {
        let small = Small::new();
        let at = |number: usize| (1 << 30) + number * 16 * PAGE;
        let all = FEW / CALL.len;
        for number in 0..all {
            assert_eq!(small.managed_min(), MANAGED_MIN);
            small.mapped(&CALL, at(number));
        }
        assert_eq!(small.managed_min(), PAGE);
        small.changed(at(0), CALL.len);
        assert_eq!(small.managed_min(), MANAGED_MIN);
    }

    #[test]
    fn as_many_as_can_be_remembered_are_not_few() {
        let small = Small::new();
        for number in 0..SLOTS {
            assert_eq!(small.managed_min(), MANAGED_MIN);
            small.mapped(&MapCall { len: PAGE, ..CALL }, (1 << 30) + number * 2 * PAGE);
        }
        assert_eq!(small.managed_min(), PAGE);
    }
}
