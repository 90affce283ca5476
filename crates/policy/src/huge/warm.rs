//! Whether the memory of a huge page is made ready before a range is collapsed into it.
//!
//! A hypervisor reclaims memory that its guest leaves free (free page reporting, Linux 5.7), and
//! backs it again at the first touch, which takes milliseconds for 2 MiB. The kernel first touches
//! a huge page during the collapse, with the process's `mmap_lock` held. So the service takes a
//! free huge page before, touches it, and frees it: the next huge page that is allocated is the
//! same one. Where memory is backed already, this is unnecessary work.

const MS: u64 = 1_000_000;
/// Touching 2 MiB that are backed takes less.
const QUICK_NS: u64 = MS;
/// A collapse that is not delayed takes less.
const SLOW_NS: u64 = 2 * MS;
/// This many in a row are not chance.
const IN_A_ROW: u32 = 8;
/// After a slow collapse memory is backed in part only, and this many must be quick. Equal to the
/// number of durations in [`super::Stall`], for which two slow ones are too many.
const IN_A_ROW_AFTER_SLOW: u32 = super::stall::KEPT as u32;
/// Collapses for which making ready is suspended where it does not help.
const PAUSE: u32 = 256;

/// What was measured so far, and the resulting state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warming {
    state: State,
    /// How often in a row making ready was quick, and the number at which it is suspended.
    quick: u32,
    quick_enough: u32,
    /// How often in a row making ready was slow and the collapse was slow too: the kernel takes its
    /// pages from elsewhere.
    useless: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Wanted,
    /// Until a collapse is slow.
    NotNeeded,
    /// For this many collapses.
    Paused(u32),
}

impl Default for Warming {
    /// Begins with making ready: the first collapses should not be the ones that find out.
    fn default() -> Warming {
        Warming { state: State::Wanted, quick: 0, quick_enough: IN_A_ROW, useless: 0 }
    }
}

impl Warming {
    /// Whether memory should be made ready before the next collapse.
    pub fn is_wanted(&self) -> bool {
        self.state == State::Wanted
    }

    /// Records a collapse, and the time of making ready before it, if that was done.
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
    fn warming_continues_while_it_helps() {
        assert!(after(Warming::default(), 10_000, 7 * MS, MS / 2).is_wanted());
    }

    #[test]
    fn backed_memory_stops_warming_until_slow_collapse() {
        let backed = after(Warming::default(), 7, MS / 5, MS / 2);
        assert!(backed.is_wanted());
        let backed = after(backed, 1000, MS / 5, MS / 2);
        assert!(!backed.is_wanted());
        let slow = after(backed, 1, 0, 8 * MS);
        assert!(slow.is_wanted());
        // Now more quick ones are required.
        assert!(after(slow.clone(), 127, MS / 5, MS / 2).is_wanted());
        assert!(!after(slow, 128, MS / 5, MS / 2).is_wanted());
    }

    #[test]
    fn partly_backed_memory_does_not_stall_managing() {
        // Every tenth huge page is not backed: then a collapse takes 12 ms without making ready;
        // with it, making ready takes that time.
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
    fn useless_warming_pauses() {
        let mut paused = after(Warming::default(), 8, 7 * MS, 8 * MS);
        let mut collapses = 0;
        while !paused.is_wanted() {
            paused.note(None, 8 * MS);
            collapses += 1;
        }
        assert_eq!(collapses, PAUSE + 1);
        // An occasional slow collapse is no reason to suspend.
        let mut mixed = Warming::default();
        for turn in 0..1000 {
            mixed.note(Some(7 * MS), if turn % 4 == 0 { 8 * MS } else { MS });
            assert!(mixed.is_wanted());
        }
    }
}
