//! Telling the events of the pager's own removals from the program's. Pure.

/// A removal that the pager has asked the kernel for, until the kernel is done with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnRemoval {
    pub start: usize,
    pub end: usize,
    /// So far its events have been read. The kernel tells of each mapping by itself, in the order of addresses; mappings that look the
    /// same stay apart after a fork.
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

    /// Once the kernel is done: what the program removed. Where a mapping was split after its event, the kernel tells of the rest
    /// again, mapping by mapping up to the end (`madvise_dontneed_free`, Linux 4.11 and later).
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

#[cfg(test)]
mod tests {
    use super::OwnRemoval;

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
