//! Whether the memory of a huge page is to be made ready before a range is collapsed into it.
//!
//! A hypervisor takes back what its guest leaves free (free page reporting, Linux 5.7), and gives
//! it again at the first touch, in milliseconds for 2 MiB. The kernel first touches a huge page
//! while it collapses, under the process's lock on its mappings; so whoever collapses takes a free
//! huge page himself before, touches it, and lets it go: the next one to be had is the same one.
//! Where memory is backed already that is work for nothing.

const MS: u64 = 1_000_000;
/// To touch 2 MiB that are backed takes less.
const QUICK_NS: u64 = MS;
/// A collapse that is not held up takes less.
const SLOW_NS: u64 = 2 * MS;
/// So many in a row are no accident.
const IN_A_ROW: u32 = 8;
/// Once a collapse was slow, memory is backed in part: so many have to be quick then. As many as
/// [`super::Stall`] looks back, for which two slow ones are too many.
const IN_A_ROW_AFTER_SLOW: u32 = super::stall::KEPT as u32;
/// For so many collapses it is let be where it does not help.
const PAUSE: u32 = 256;

/// What was seen so far, and what follows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warming {
    state: State,
    /// Times in a row that making ready was quick, and after how many it is let be.
    quick: u32,
    quick_enough: u32,
    /// Times in a row that it was not, and the collapse took as long nevertheless: the kernel takes
    /// its pages from elsewhere.
    useless: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Wanted,
    /// Until a collapse is slow.
    NotNeeded,
    /// For so many collapses.
    Paused(u32),
}

impl Default for Warming {
    /// Begins with making ready: the first collapses should not be those that find out.
    fn default() -> Warming {
        Warming { state: State::Wanted, quick: 0, quick_enough: IN_A_ROW, useless: 0 }
    }
}

impl Warming {
    /// Whether memory should be made ready before the next collapse.
    pub fn is_wanted(&self) -> bool {
        self.state == State::Wanted
    }

    /// Takes note of a collapse, and of how long making ready took before it, if that was done.
    pub fn note(&mut self, warm_ns: Option<u64>, collapse_ns: u64) {
        match (self.state, warm_ns) {
            (State::Wanted, Some(warm_ns)) => self.judge(warm_ns, collapse_ns),
            (State::NotNeeded, _) if collapse_ns > SLOW_NS => {
                *self = Warming { quick_enough: IN_A_ROW_AFTER_SLOW, ..Warming::default() };
            }
            (State::Paused(left), _) => {
                self.state = left.checked_sub(1).map_or(State::Wanted, State::Paused)
            }
            _ => {}
        }
    }

    fn judge(&mut self, warm_ns: u64, collapse_ns: u64) {
        let quick = warm_ns < QUICK_NS;
        let useless = !quick && collapse_ns > SLOW_NS && collapse_ns > warm_ns / 2;
        self.quick = if quick { self.quick + 1 } else { 0 };
        self.useless = if useless { self.useless + 1 } else { 0 };
        let next = match () {
            () if self.quick >= self.quick_enough => State::NotNeeded,
            () if self.useless >= IN_A_ROW => State::Paused(PAUSE),
            () => return,
        };
        *self = Warming { state: next, ..Warming::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(mut warming: Warming, times: u32, warm_ns: u64, collapse_ns: u64) -> Warming {
        for _ in 0..times {
            let warm_ns = warming.is_wanted().then_some(warm_ns);
            warming.note(warm_ns, collapse_ns);
        }
        warming
    }

    #[test]
    fn as_long_as_it_helps_it_goes_on() {
        assert!(after(Warming::default(), 10_000, 7 * MS, MS / 2).is_wanted());
    }

    #[test]
    fn where_memory_is_backed_it_ends_and_a_slow_collapse_brings_it_back() {
        let backed = after(Warming::default(), 7, MS / 5, MS / 2);
        assert!(backed.is_wanted());
        let backed = after(backed, 1000, MS / 5, MS / 2);
        assert!(!backed.is_wanted());
        let slow = after(backed, 1, 0, 8 * MS);
        assert!(slow.is_wanted());
        // Now it takes longer to be sure.
        assert!(after(slow.clone(), 127, MS / 5, MS / 2).is_wanted());
        assert!(!after(slow, 128, MS / 5, MS / 2).is_wanted());
    }

    #[test]
    fn memory_that_is_backed_in_part_does_not_stall_managing() {
        // Every tenth huge page is not backed: without making ready a collapse takes 12 ms then,
        // with it that is in making ready.
        let (mut warming, mut stall) = (Warming::default(), super::super::Stall::new(10 * MS));
        for turn in 1..5000 {
            let extra = if turn % 10 == 0 { 12 * MS } else { 0 };
            let warm_ns = warming.is_wanted().then_some(MS / 5 + extra);
            let collapse_ns = if warm_ns.is_some() { MS / 2 } else { MS / 2 + extra };
            warming.note(warm_ns, collapse_ns);
            stall.note(collapse_ns);
            assert!(!stall.is_stalled(), "{turn}");
        }
    }

    #[test]
    fn where_it_does_not_help_it_is_let_be_for_a_while() {
        let mut paused = after(Warming::default(), 8, 7 * MS, 8 * MS);
        let mut collapses = 0;
        while !paused.is_wanted() {
            paused.note(None, 8 * MS);
            collapses += 1;
        }
        assert_eq!(collapses, PAUSE + 1);
        // Now and then one that was slow all the same is no reason.
        let mut mixed = Warming::default();
        for turn in 0..1000 {
            mixed.note(Some(7 * MS), if turn % 4 == 0 { 8 * MS } else { MS });
            assert!(mixed.is_wanted());
        }
    }
}
