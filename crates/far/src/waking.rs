//! What a fault costs in addition to the pager's own work: the fault thread has to be woken, and
//! then the faulting thread. The kernel does not report how long that takes for a given fault. So
//! it is measured once, with some empty faults, and added to the measured part of each.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use hiroma_sys::cpu::{self, Cpus};
use hiroma_sys::uffd::{Features, Uffd, Watch};
use hiroma_sys::vm::{self, Access, Reservation};
use hiroma_sys::wait;
use hiroma_units::{Nanos, PAGE};
use serde::{Deserialize, Serialize};

/// The two wakeups in the course of a fault, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Halves {
    /// From the touch until the fault thread, which was asleep, has read the message.
    pub until_read_ns: u64,
    /// From the wakeup until the faulting thread continues.
    pub until_on_ns: u64,
}

/// The costs of wakeups on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Costs {
    /// Both threads on one processor.
    pub together: Halves,
    /// On two processors.
    pub apart: Halves,
}

/// Number of words in the control page.
pub const WORDS: usize = 4;

impl Costs {
    /// Encodes them for the control page.
    pub fn to_words(self) -> [u64; WORDS] {
        [
            self.together.until_read_ns,
            self.together.until_on_ns,
            self.apart.until_read_ns,
            self.apart.until_on_ns,
        ]
    }

    /// Decodes them. Returns None if they were not measured.
    pub fn of_words(words: [u64; WORDS]) -> Option<Costs> {
        let halves = |at: usize| Halves { until_read_ns: words[at], until_on_ns: words[at + 1] };
        (words != [0; WORDS]).then(|| Costs { together: halves(0), apart: halves(2) })
    }

    /// Measures them with some empty faults, in a few milliseconds. Returns None if that is not
    /// possible here.
    pub fn measure() -> Option<Costs> {
        let here = cpu::this_processor();
        let other = Cpus::of_this_thread()?.any_but(here);
        let together = measure_on(here, here)?;
        let apart = other.map_or(Some(together), |other| measure_on(here, other))?;
        Some(Costs { together, apart })
    }
}

/// Empty faults for one figure; the first ones are for warming up.
const FAULTS: usize = 19;
const WARMING_UP: usize = 4;
/// A fault that has not arrived after this time will not arrive.
const PATIENCE_MS: i64 = 200;

/// Measures with the faulting thread on one processor and the answering thread on another. Both are
/// new threads, which end here.
fn measure_on(program: usize, pager: usize) -> Option<Halves> {
    let memory = Arc::new(Reservation::new(FAULTS * PAGE, PAGE, Access::ReadWrite).ok()?);
    let uffd = Uffd::open(Features::default()).ok()?;
    uffd.register(memory.base(), memory.len(), Watch::Missing).ok()?;
    let read_at: Arc<[AtomicU64; 2]> = Arc::default();
    let (touched, times) = (memory.clone(), read_at.clone());
    let faulting = thread::Builder::new().stack_size(128 << 10).spawn(move || {
        cpu::stay_on(program);
        let (mut until_read, mut until_on) = (Vec::new(), Vec::new());
        for page in 0..FAULTS {
            // Meanwhile the answering thread goes to sleep again.
            let start = cpu::now_ns();
            while cpu::now_ns() - start < 20_000 {
                std::hint::spin_loop();
            }
            let before = cpu::now_ns();
            vm::touch(touched.base() + page * PAGE, 1);
            let after = cpu::now_ns();
            until_read.push(times[0].load(Ordering::Acquire).saturating_sub(before));
            until_on.push(after.saturating_sub(times[1].load(Ordering::Acquire)));
        }
        Halves {
            until_read_ns: median(&mut until_read[WARMING_UP..]),
            until_on_ns: median(&mut until_on[WARMING_UP..]),
        }
    });
    let faulting = faulting.ok()?;
    let answering = thread::Builder::new()
        .stack_size(128 << 10)
        .spawn(move || answer(&uffd, &memory, pager, &read_at));
    // If the answering thread could not be started, the descriptor was dropped with its closure,
    // and the pages are no longer registered.
    let answered = answering.is_ok_and(|thread| thread.join().is_ok_and(|all| all));
    faulting.join().ok().filter(|_| answered)
}

/// Answers faults with zeros. When it ends, the descriptor is closed, and faults need no answer any
/// more.
fn answer(uffd: &Uffd, memory: &Reservation, cpu: usize, times: &[AtomicU64; 2]) -> bool {
    let Ok(zeros) = Reservation::new(PAGE, PAGE, Access::ReadWrite) else { return false };
    cpu::stay_on(cpu);
    let mut messages = Vec::with_capacity(16);
    for page in 0..FAULTS {
        while messages.is_empty() {
            if wait::readable(&[uffd.as_fd().as_raw_fd()], PATIENCE_MS) == 0
                || uffd.read(&mut messages, usize::MAX).is_err()
            {
                return false;
            }
        }
        times[0].store(cpu::now_ns(), Ordering::Release);
        messages.clear();
        let addr = memory.base() + page * PAGE;
        if uffd.copy_quietly(addr, zeros.base(), PAGE).stop.is_some() {
            return false;
        }
        times[1].store(cpu::now_ns(), Ordering::Release);
        uffd.wake(addr, PAGE);
    }
    true
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Estimates when the threads whose faults are read began to wait.
#[derive(Default)]
pub struct Estimate {
    costs: Option<Costs>,
    /// When messages were read the last time, and the time before.
    read: Nanos,
    read_before: Nanos,
    /// The thread that was answered last, and when.
    answered: (u32, Nanos),
    slept: bool,
    slept_before: bool,
}

/// Maximum of the fault thread's work that a fault can have waited for: anything longer is
/// unreported sleep.
const QUEUED_MAX: Nanos = Nanos(1_000_000);

impl Estimate {
    pub fn new(costs: Option<Costs>) -> Estimate {
        Estimate { costs, slept: true, ..Estimate::default() }
    }

    /// The fault thread goes to sleep.
    pub fn sleeps(&mut self) {
        self.slept = true;
    }

    /// The queued messages have been read at `now`.
    pub fn reads(&mut self, now: Nanos) {
        self.read_before = std::mem::replace(&mut self.read, now);
        self.slept_before = std::mem::take(&mut self.slept);
    }

    /// When `thread`, whose fault was among the messages, began to wait. `together`: on the fault
    /// thread's processor.
    ///
    /// A fault thread that has not slept was working when the fault happened, at any moment since
    /// its previous read, or since it woke this thread: half of that time is the best estimate. On
    /// one processor neither works while the other does.
    pub fn began(&self, thread: u32, together: bool) -> Nanos {
        let costs = self.costs.unwrap_or_default();
        let before = match (together, self.slept_before) {
            (true, _) => costs.together.until_read_ns,
            (false, true) => costs.apart.until_read_ns,
            (false, false) => {
                let earliest =
                    if self.answered.0 == thread { self.answered.1 } else { self.read_before };
                self.read.since(earliest).0.min(QUEUED_MAX.0) / 2
            }
        };
        Nanos(self.read.0.saturating_sub(before))
    }

    /// `thread` was answered at `now`.
    pub fn answers(&mut self, thread: u32, now: Nanos) {
        self.answered = (thread, now);
    }
}

/// How long it takes until a woken thread continues.
pub fn until_on(costs: Option<Costs>, together: bool) -> Nanos {
    let costs = costs.unwrap_or_default();
    Nanos(if together { costs.together.until_on_ns } else { costs.apart.until_on_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_costs_something_on_this_machine() {
        let costs = Costs::measure().expect("tests of the pager need userfaultfd");
        for half in costs.to_words() {
            assert!((100..1_000_000_000).contains(&half), "{costs:?}");
        }
        assert_eq!(Costs::of_words(costs.to_words()), Some(costs));
        assert_eq!(Costs::of_words([0; WORDS]), None);
    }

    #[test]
    fn fault_wait_depends_on_sleeping_or_busy_thread() {
        let apart = Halves { until_read_ns: 500, until_on_ns: 600 };
        let together = Halves { until_read_ns: 50, until_on_ns: 60 };
        let costs = Some(Costs { together, apart });
        let mut estimate = Estimate::new(costs);
        estimate.reads(Nanos(10_000));
        assert_eq!(estimate.began(1, false), Nanos(9_500));
        estimate.answers(1, Nanos(10_200));
        // Not asleep in between: half of the time since.
        estimate.reads(Nanos(10_300));
        assert_eq!(estimate.began(1, false), Nanos(10_250));
        assert_eq!(estimate.began(2, false), Nanos(10_150));
        assert_eq!(estimate.began(1, true), Nanos(10_250));
        estimate.sleeps();
        estimate.reads(Nanos(20_000));
        assert_eq!(estimate.began(1, false), Nanos(19_500));
        assert_eq!(
            (until_on(costs, false), until_on(costs, true), until_on(None, true)),
            (Nanos(600), Nanos(60), Nanos(0))
        );
    }
}
