//! The noise meter: work of known length on every processor at once, and where its time went when it took longer.
//!
//! Fixed work quantum (FWQ): the same work again and again, its time is measured; fixed time quantum (FTQ): the same time again and
//! again, the work done in it is counted. Both as defined by Sottile and Minnich, "Analysis of microbenchmarks for performance tuning
//! of clusters" (Cluster 2004), and in LLNL's FTQ/FWQ benchmarks.
//!
//! A quantum's loss is split by what every kernel accounts exactly: time in which another task had the processor (`run_delay` of
//! `/proc/PID/schedstat`), time in which the processor was taken from the task altogether (elapsed, less processor time, less that
//! wait: interrupts and, where the hypervisor says so, steal), and time in which it ran, but slower.

mod attribute;
mod core;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use hiroma_kernel::cpu::now_ns;
use hiroma_kernel::quiet::memory::MemoryInfo;
use hiroma_kernel::quiet::tasks::{self, CpuTimes, Task, TaskKind};

pub use attribute::{CoreNoise, Part};
pub use core::Quantum;

/// How often the reclaiming threads are looked at.
const SAMPLE: Duration = Duration::from_millis(100);

/// Counters of `/proc/vmstat` that tell what the kernel did meanwhile.
pub const EVENTS: [(&str, &str); 12] = [
    ("pageoutrun", "kswapd ran"),
    ("pgscan_kswapd", "pages kswapd looked at"),
    ("pgsteal_kswapd", "pages kswapd reclaimed"),
    ("allocstall_normal", "allocations that reclaimed themselves (normal zone)"),
    ("allocstall_movable", "allocations that reclaimed themselves (movable)"),
    ("pgscan_direct", "pages they looked at"),
    ("pgsteal_proactive", "pages reclaimed on request"),
    ("compact_daemon_wake", "kcompactd woke"),
    ("compact_stall", "allocations that compacted themselves"),
    ("pgpgin", "KiB read from devices"),
    ("pgpgout", "KiB written to devices"),
    ("nr_written", "pages written back"),
];

/// Which quantum is fixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// The work.
    Fwq,
    /// The time.
    Ftq,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    pub cpus: Vec<usize>,
    pub duration: Duration,
    pub quantum: Duration,
    pub method: Method,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    #[error("no processor to measure on: name some with --cpus")]
    NoCpus,
    #[error("processor {cpu} cannot be used: {source}; see `taskset -p $$` for those that can")]
    Cpu { cpu: usize, source: io::Error },
    #[error("the kernel does not say how long threads wait (/proc/thread-self/schedstat: {0}): it needs CONFIG_SCHED_INFO")]
    NoSchedstat(io::Error),
    #[error("interrupted before there was anything to show")]
    Nothing,
}

/// Processor time of kinds of threads between two samples.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    pub at_ns: u64,
    pub run_ns: BTreeMap<TaskKind, u64>,
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct Recording {
    pub method: Method,
    /// Of the monotonic clock.
    pub began_ns: u64,
    pub ended_ns: u64,
    pub cores: Vec<CoreNoise>,
    /// Every quantum, by core as in `cores`.
    pub quanta: Vec<Vec<Quantum>>,
    pub samples: Vec<Sample>,
    /// What the counters of [`EVENTS`] grew by.
    pub events: Vec<(&'static str, u64)>,
}

/// What is read before and after.
struct Books {
    tasks: Vec<Task>,
    times: Vec<CpuTimes>,
    memory: Option<MemoryInfo>,
}

impl Books {
    fn read() -> Books {
        let memory = MemoryInfo::read(Path::new("/")).ok();
        Books { tasks: tasks::all(), times: tasks::cpu_times().unwrap_or_default(), memory }
    }
}

/// Measures. `progress` is called some times a second with what has passed; when it answers `false`, what there is so far is the result.
pub fn measure(options: &Options, progress: &mut dyn FnMut(Duration) -> bool) -> Result<Recording, MeterError> {
    if options.cpus.is_empty() {
        return Err(MeterError::NoCpus);
    }
    tasks::Waited::of_this_thread().map_err(MeterError::NoSchedstat)?;
    let stop = Arc::new(AtomicBool::new(false));
    let start = Arc::new(Barrier::new(options.cpus.len() + 1));
    let spawn = |&cpu: &usize| {
        let (options, stop, start) = (options.clone(), Arc::clone(&stop), Arc::clone(&start));
        let thread = thread::Builder::new().name(attribute::METER_THREAD.to_owned());
        thread.spawn(move || core::run(cpu, &options, &stop, &start)).map_err(|source| MeterError::Cpu { cpu, source })
    };
    let threads = options.cpus.iter().map(spawn).collect::<Result<Vec<_>, _>>()?;
    // Looking through all of /proc at every sample would be noise of its own.
    let reclaimers: Vec<u32> = tasks::reclaimers().iter().map(|task| task.tid).collect();
    let before = Books::read();
    start.wait();
    let began_ns = now_ns();
    let mut samples = Vec::new();
    let mut last = run_by_kind(&reclaimers);
    loop {
        thread::sleep(SAMPLE);
        let passed = Duration::from_nanos(now_ns() - began_ns);
        let now = run_by_kind(&reclaimers);
        let run_ns = now.iter().map(|(&kind, &run)| (kind, run.saturating_sub(last.get(&kind).copied().unwrap_or(0)))).collect();
        samples.push(Sample { at_ns: now_ns(), run_ns });
        last = now;
        if !progress(passed) || passed >= options.duration || threads.iter().any(thread::JoinHandle::is_finished) {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let ended_ns = now_ns();
    let quanta = threads.into_iter().map(|thread| thread.join().unwrap_or(Err(MeterError::Nothing)));
    let quanta = quanta.collect::<Result<Vec<_>, _>>()?;
    let after = Books::read();
    if quanta.iter().any(Vec::is_empty) {
        return Err(MeterError::Nothing);
    }
    let cores = options.cpus.iter().zip(&quanta).map(|(&cpu, quanta)| {
        let tasks = attribute::ran_on(cpu, &before.tasks, &after.tasks);
        attribute::core_noise(cpu, options.method, quanta, &tasks, times_between(cpu, &before.times, &after.times))
    });
    let cores = cores.collect();
    Ok(Recording { method: options.method, began_ns, ended_ns, cores, quanta, samples, events: events_between(&before, &after) })
}

fn run_by_kind(threads: &[u32]) -> BTreeMap<TaskKind, u64> {
    let mut run = BTreeMap::new();
    for task in threads.iter().filter_map(|&tid| tasks::one(tid)) {
        *run.entry(task.kind).or_insert(0) += task.run_ns;
    }
    run
}

/// What interrupts and the hypervisor took of a processor.
fn times_between(cpu: usize, before: &[CpuTimes], after: &[CpuTimes]) -> (u64, u64) {
    let of = |times: &[CpuTimes]| times.iter().find(|times| times.cpu == cpu).copied().unwrap_or_default();
    let (before, after) = (of(before), of(after));
    (after.interrupts_ns.saturating_sub(before.interrupts_ns), after.steal_ns.saturating_sub(before.steal_ns))
}

fn events_between(before: &Books, after: &Books) -> Vec<(&'static str, u64)> {
    let (Some(before), Some(after)) = (&before.memory, &after.memory) else { return Vec::new() };
    let grown = |name| after.counters.get(name).saturating_sub(before.counters.get(name));
    EVENTS.iter().filter(|(name, _)| after.counters.has(name)).map(|&(name, title)| (title, grown(name))).collect()
}

impl Recording {
    /// How long it took in fact.
    pub fn duration_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.began_ns).max(1)
    }

    /// The share of each stretch of time that others had, for each core, in millionths; `columns` stretches.
    pub fn timeline_ppm(&self, columns: usize) -> Vec<Vec<u64>> {
        let columns = columns.max(1) as u64;
        let column = |at_ns: u64| (at_ns.saturating_sub(self.began_ns).saturating_mul(columns) / self.duration_ns()).min(columns - 1);
        let line = |quanta: &Vec<Quantum>| {
            let mut sums = vec![(0, 0); columns as usize];
            for quantum in quanta {
                let (wall, taken) = &mut sums[column(quantum.start_ns) as usize];
                *wall += quantum.wall_ns;
                *taken += attribute::stolen_ns(quantum);
            }
            sums.into_iter().map(|(wall, taken): (u64, u64)| taken.saturating_mul(1_000_000).checked_div(wall).unwrap_or(0)).collect()
        };
        self.quanta.iter().map(line).collect()
    }

    /// Of how many quanta others had how much: below 1 us, below 2, below 4, and so on, over all cores; as long as the longest needs.
    pub fn histogram(&self) -> Vec<u64> {
        let mut counts = Vec::new();
        for quanta in &self.quanta {
            for quantum in quanta {
                let taken_us = attribute::stolen_ns(quantum) / 1000;
                let bin = (u64::BITS - taken_us.leading_zeros()) as usize;
                counts.resize(counts.len().max(bin + 1), 0);
                counts[bin] += 1;
            }
        }
        counts
    }

    /// Stolen time of all cores, and how much of it can be put down to somebody.
    pub fn stolen_and_explained_ns(&self) -> (u64, u64) {
        self.cores.iter().fold((0, 0), |(stolen, explained), core| (stolen + core.stolen_ns, explained + core.explained_ns()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(method: Method) -> Options {
        let cpus = hiroma_kernel::quiet::affinity::of(0).unwrap();
        Options { cpus: cpus[..1].to_vec(), duration: Duration::from_millis(300), quantum: Duration::from_millis(1), method }
    }

    #[test]
    fn both_methods_account_for_all_time_that_was_lost() {
        for method in [Method::Fwq, Method::Ftq] {
            let recording = measure(&short(method), &mut |_| true).unwrap();
            let core = &recording.cores[0];
            assert!(core.quanta > 0);
            assert_eq!(core.parts.values().sum::<u64>(), core.stolen_ns, "{core:?}");
            assert!(core.explained_ns() <= core.stolen_ns);
        }
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let nothing = Options { cpus: vec![], ..short(Method::Fwq) };
        assert!(matches!(measure(&nothing, &mut |_| true), Err(MeterError::NoCpus)));
        let absent = Options { cpus: vec![1023], ..short(Method::Fwq) };
        assert!(matches!(measure(&absent, &mut |_| true), Err(MeterError::Cpu { cpu: 1023, .. })));
    }
}
