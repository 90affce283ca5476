//! Removals that the kernel reports: distinguishes the pager's own from the program's, and records
//! the ranges that the kernel has yet to discard. Pure, but for the flag that the evictor sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hiroma_units::BlockId;

use crate::addresses::IntervalSet;

/// A removal that the pager has requested from the kernel, until the kernel has finished it.
#[derive(Clone, Debug)]
pub struct OwnRemoval {
    pub start: usize,
    pub end: usize,
    /// End of the range whose events have been read. The kernel reports each mapping separately, in
    /// address order; mappings that look the same stay separate after a fork.
    pub seen_to: usize,
    /// Other events inside the range: the program's, or repetitions.
    pub others: Vec<(usize, usize)>,
    /// Set once the kernel has dropped the pages.
    pub is_over: Arc<AtomicBool>,
}

impl OwnRemoval {
    pub fn new(start: usize, end: usize) -> OwnRemoval {
        OwnRemoval { start, end, seen_to: start, others: Vec::new(), is_over: Arc::default() }
    }

    /// Whether an event of this range means that the kernel is dropping its pages.
    pub fn is_dropping(&self, start: usize, end: usize) -> bool {
        self.start <= start && end == self.end && !self.is_over.load(Ordering::Acquire)
    }

    /// Records an event inside the range.
    pub fn saw(&mut self, start: usize, end: usize) {
        if start == self.seen_to {
            self.seen_to = end;
        } else {
            self.others.push((start, end));
        }
    }

    /// After the kernel has finished: the ranges that the program removed. If a mapping was split
    /// after its event, the kernel reports the rest again, mapping by mapping up to the end
    /// (`madvise_dontneed_free`, Linux 4.11 and later).
    pub fn of_the_program(mut self) -> Vec<(usize, usize)> {
        let mut from = self.end;
        while let Some(again) = self.others.iter().rposition(|&(_, end)| end == from) {
            from = self.others.remove(again).0;
        }
        if from == self.start {
            // Our removal was reported from its start a second time, so the first report was the
            // program's.
            self.others.push((self.start, self.seen_to));
        }
        self.others
    }
}

/// Ranges that the kernel was about to discard when it sent the event. There is no notice when it
/// has done so, nor whether it drops the pages immediately (`MADV_DONTNEED`) or at any later time
/// unless they are written before (`MADV_FREE`). So resident pages stay in place for a while: if
/// they were staged before the kernel dropped them, old content would survive; if the pager dropped
/// them, a write could be lost.
#[derive(Clone, Default)]
pub struct Coming {
    recent: IntervalSet,
    older: IntervalSet,
    /// Ranges that the kernel may still drop, no matter how long ago the event was: until the
    /// memory has been evicted or its content has been replaced.
    droppable: IntervalSet,
    /// Victims that were skipped.
    aside: Vec<BlockId>,
    aside_bytes: usize,
}

impl Coming {
    pub fn insert(&mut self, start: usize, end: usize) {
        self.recent.insert(start, end);
        self.let_drop(start, end);
    }

    /// The kernel may drop the content of `start..end` from now on, and is right to do so at any
    /// time.
    pub fn let_drop(&mut self, start: usize, end: usize) {
        self.droppable.insert(start, end);
    }

    /// Whether the kernel may drop a part of `start..end` at any time (`MADV_FREE`): touching it
    /// could cause a fault that waits for the pager itself.
    pub fn may_drop(&self, start: usize, end: usize) -> bool {
        self.droppable.touches(start, end)
    }

    /// The content of `start..end` is new from now on; earlier events do not apply to it.
    pub fn renew(&mut self, start: usize, end: usize) {
        if self.droppable.touches(start, end) {
            self.droppable.remove(start, end);
        }
    }

    /// Whether a part of `start..end` must stay in place.
    pub fn touches(&self, start: usize, end: usize) -> bool {
        self.recent.touches(start, end) || self.older.touches(start, end)
    }

    /// The kernel has discarded the range.
    pub fn remove(&mut self, start: usize, end: usize) {
        self.recent.remove(start, end);
        self.older.remove(start, end);
        self.droppable.remove(start, end);
    }

    /// Records a victim that has to wait.
    pub fn pass_over(&mut self, block: BlockId) {
        self.aside.push(block);
        self.aside_bytes += block.bytes();
    }

    /// Bytes of the victims that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.aside_bytes
    }

    /// Whether there are ranges that must stay in place.
    pub fn waits(&self) -> bool {
        !self.recent.is_empty() || !self.older.is_empty()
    }

    /// Ends the waiting of the older ranges. To be called some time after the previous call, if the
    /// threads that were about to act then have acted since: ranges stay for that long at least.
    pub fn age(&mut self) {
        self.older = std::mem::take(&mut self.recent);
    }

    /// Takes the skipped victims, to be retried.
    pub fn take_aside(&mut self) -> Vec<BlockId> {
        self.aside_bytes = 0;
        std::mem::take(&mut self.aside)
    }
}

#[cfg(test)]
mod tests {
    use super::{Coming, OwnRemoval};

    #[test]
    fn announced_discards_stay_for_one_whole_turn() {
        let mut coming = Coming::default();
        coming.insert(10, 20);
        assert!(coming.touches(19, 30) && !coming.touches(20, 30));
        coming.age();
        coming.insert(40, 50);
        assert!(coming.touches(10, 11) && coming.touches(40, 41));
        coming.age();
        assert!(!coming.touches(10, 20) && coming.touches(49, 60));
        coming.remove(40, 45);
        assert!(!coming.touches(40, 45) && coming.touches(45, 46));
        coming.age();
        assert!(!coming.touches(0, 100));
        // Freed lazily, it may be dropped at any time, until its content is replaced.
        assert!(coming.may_drop(10, 11) && coming.may_drop(45, 46) && !coming.may_drop(40, 45));
        coming.renew(0, 48);
        assert!(!coming.may_drop(10, 20) && coming.may_drop(48, 49));
    }

    #[test]
    fn own_remove_events_are_told_from_program_events() {
        let told = |events: &[(usize, usize)]| {
            let mut own = OwnRemoval::new(0, 512);
            events.iter().for_each(|&(start, end)| own.saw(start, end));
            own.of_the_program()
        };
        assert_eq!(told(&[(0, 512)]), []);
        assert_eq!(told(&[(0, 174), (174, 175), (175, 512)]), []);
        // Split while the kernel waited for the event to be read.
        assert_eq!(told(&[(0, 512), (174, 175), (175, 512)]), []);
        assert_eq!(told(&[(0, 512), (174, 175), (174, 175), (175, 512)]), [(174, 175)]);
        assert_eq!(told(&[(0, 512), (20, 30)]), [(20, 30)]);
        assert_eq!(told(&[(20, 30), (0, 512)]), [(20, 30)]);
        assert_eq!(told(&[(0, 20), (0, 512)]), [(0, 20)]);
        assert_eq!(told(&[(0, 512), (0, 512)]), [(0, 512)]);
        assert_eq!(told(&[(0, 174), (174, 175), (174, 175), (175, 512)]), [(174, 175)]);
    }
}
