//! Processors with time to spare, for reclaim that is not told which ones programs need.
//!
//! Where `--app-cpus` is not given, the daemon's thread stays on processors that were idle for half
//! of the last second. A program that computes without a break keeps its processor to itself then,
//! as far as there is another one. Where none is idle, the thread may run on all.

use hiroma_sys::cpu::now_ns;
use hiroma_sys::quiet::affinity;
use hiroma_sys::quiet::tasks::{self, CpuTimes};

use super::Log;

/// How often the processors are looked at, at most.
const LOOK_NS: u64 = 1_000_000_000;
/// A processor that is idle for this share, in thousandths, has time to spare.
const SPARE_PERMILLE: u64 = 500;

/// Keeps this thread on processors with time to spare.
pub struct Spare {
    all: Vec<usize>,
    now: Vec<usize>,
    times: Vec<CpuTimes>,
    looked_ns: u64,
    has_told: bool,
}

impl Spare {
    /// Chooses among the processors `all`.
    pub fn new(all: Vec<usize>) -> Spare {
        Spare { now: all.clone(), all, times: Vec::new(), looked_ns: 0, has_told: false }
    }

    /// To be called before reclaim: moves this thread if other processors have time to spare now.
    pub fn mind(&mut self, log: &mut Log) {
        let now = now_ns();
        if self.all.len() < 2 || now.saturating_sub(self.looked_ns) < LOOK_NS {
            return;
        }
        let Ok(times) = tasks::cpu_times() else { return };
        let passed_ns = now - self.looked_ns;
        let before = std::mem::replace(&mut self.times, times);
        self.looked_ns = now;
        if before.is_empty() {
            return;
        }
        let spare = spare(&self.all, &before, &self.times, passed_ns);
        if spare.is_empty() && !self.has_told {
            self.has_told = true;
            log(
                "no processor is idle for half of the time: reclaim takes its time from programs, which is what kswapd would do later",
            );
        }
        let wanted = if spare.is_empty() { self.all.clone() } else { spare };
        if wanted != self.now && affinity::confine(0, &wanted).is_ok() {
            self.now = wanted;
        }
    }
}

/// Those of `all` that were idle for long enough between two readings.
fn spare(all: &[usize], before: &[CpuTimes], after: &[CpuTimes], passed_ns: u64) -> Vec<usize> {
    let idle_ns = |times: &[CpuTimes], cpu: usize| {
        times.iter().find(|times| times.cpu == cpu).map(|times| times.idle_ns)
    };
    let is_spare = |&cpu: &usize| {
        let (Some(before), Some(after)) = (idle_ns(before, cpu), idle_ns(after, cpu)) else {
            return false;
        };
        u128::from(after.saturating_sub(before)) * 1000
            >= u128::from(passed_ns) * u128::from(SPARE_PERMILLE)
    };
    all.iter().copied().filter(is_spare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_processors_are_chosen() {
        let times = |idle: [u64; 3]| -> Vec<CpuTimes> {
            let of = |(cpu, idle_ns)| CpuTimes { cpu, idle_ns, ..CpuTimes::default() };
            idle.into_iter().enumerate().map(of).collect()
        };
        let (before, after) = (times([0, 100, 200]), times([900, 150, 700]));
        assert_eq!(spare(&[0, 1, 2], &before, &after, 1000), [0, 2]);
        assert_eq!(spare(&[1], &before, &after, 1000), [0usize; 0]);
        assert_eq!(spare(&[0, 7], &before, &after, 1000), [0]);
    }
}
