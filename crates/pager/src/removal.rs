//! Removals that the kernel tells of: the pager's own told from the program's, and what the kernel
//! is still to act on. Pure.

use hiroma_units::BlockId;

use crate::addresses::IntervalSet;

/// A removal that the pager has asked the kernel for, until the kernel is done with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnRemoval {
    pub start: usize,
    pub end: usize,
    /// So far its events have been read. The kernel tells of each mapping by itself, in the order
    /// of addresses; mappings that look the same stay apart after a fork.
    pub seen_to: usize,
    /// Other events inside it: the program's, or repetitions.
    pub others: Vec<(usize, usize)>,
}

impl OwnRemoval {
    pub fn new(start: usize, end: usize) -> OwnRemoval {
        OwnRemoval { start, end, seen_to: start, others: Vec::new() }
    }

    /// Takes note of an event inside it.
    pub fn saw(&mut self, start: usize, end: usize) {
        if start == self.seen_to {
            self.seen_to = end;
        } else {
            self.others.push((start, end));
        }
    }

    /// Once the kernel is done: what the program removed. Where a mapping was split after its
    /// event, the kernel tells of the rest again, mapping by mapping up to the end
    /// (`madvise_dontneed_free`, Linux 4.11 and later).
    pub fn of_the_program(mut self) -> Vec<(usize, usize)> {
        let mut from = self.end;
        while let Some(again) = self.others.iter().rposition(|&(_, end)| end == from) {
            from = self.others.remove(again).0;
        }
        if from == self.start {
            // Ours was told from its start a second time: what had passed for it was the program's.
            self.others.push((self.start, self.seen_to));
        }
        self.others
    }
}

/// Ranges that the kernel was about to discard when it told us. Nobody hears when it has done so,
/// nor whether it drops the pages at once (`MADV_DONTNEED`) or when it likes, unless they are
/// written before (`MADV_FREE`): what is resident there stays where it is for a while. Staged
/// before the kernel came, old content would live on; dropped by us, a write would be lost.
#[derive(Clone, Default)]
pub struct Coming {
    recent: IntervalSet,
    older: IntervalSet,
    /// What the kernel may still drop, however long ago it was told: until the memory has left, or
    /// its content has come anew.
    droppable: IntervalSet,
    /// Victims that were passed over.
    aside: Vec<BlockId>,
    aside_bytes: usize,
}

impl Coming {
    pub fn insert(&mut self, start: usize, end: usize) {
        self.recent.insert(start, end);
        self.let_drop(start, end);
    }

    /// The kernel may drop what is at `start..end` from now on, which is right whenever it does.
    pub fn let_drop(&mut self, start: usize, end: usize) {
        self.droppable.insert(start, end);
    }

    /// Whether the kernel may drop any of `start..end` at any time (`MADV_FREE`): to touch it could
    /// be a fault that waits for us.
    pub fn may_drop(&self, start: usize, end: usize) -> bool {
        self.droppable.touches(start, end)
    }

    /// What is at `start..end` from now on is not what the kernel was told of.
    pub fn renew(&mut self, start: usize, end: usize) {
        if self.droppable.touches(start, end) {
            self.droppable.remove(start, end);
        }
    }

    /// Whether any of `start..end` is to stay.
    pub fn touches(&self, start: usize, end: usize) -> bool {
        self.recent.touches(start, end) || self.older.touches(start, end)
    }

    /// The kernel has come.
    pub fn remove(&mut self, start: usize, end: usize) {
        self.recent.remove(start, end);
        self.older.remove(start, end);
        self.droppable.remove(start, end);
    }

    /// A victim that has to wait.
    pub fn pass_over(&mut self, block: BlockId) {
        self.aside.push(block);
        self.aside_bytes += block.bytes();
    }

    /// Bytes of the victims that wait.
    pub fn waiting_bytes(&self) -> usize {
        self.aside_bytes
    }

    /// Whether there are ranges that stay.
    pub fn waits(&self) -> bool {
        !self.recent.is_empty() || !self.older.is_empty()
    }

    /// To be called a while after the last time, if who was about to act then has acted since:
    /// ranges stay for that long at least.
    pub fn age(&mut self) {
        self.older = std::mem::take(&mut self.recent);
    }

    /// The victims that were passed over, to be tried again.
    pub fn take_aside(&mut self) -> Vec<BlockId> {
        self.aside_bytes = 0;
        std::mem::take(&mut self.aside)
    }
}

#[cfg(test)]
mod tests {
    use super::{Coming, OwnRemoval};

    #[test]
    fn what_the_kernel_was_about_to_discard_stays_for_one_whole_turn() {
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
        // Freed lazily, it may go at any time, until something else is there.
        assert!(coming.may_drop(10, 11) && coming.may_drop(45, 46) && !coming.may_drop(40, 45));
        coming.renew(0, 48);
        assert!(!coming.may_drop(10, 20) && coming.may_drop(48, 49));
    }

    #[test]
    fn events_of_a_removal_of_ours_are_told_from_the_programs() {
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
