//! The noise meter: runs work of known length on every processor at the same time, and attributes
//! the time when it took longer.
//!
//! Fixed work quantum (FWQ): the same work is repeated, and its time is measured; fixed time
//! quantum (FTQ): the same time is repeated, and the work done in it is counted. Both as defined by
//! Sottile and Minnich, "Analysis of microbenchmarks for performance tuning of clusters" (Cluster
//! 2004), and in LLNL's FTQ/FWQ benchmarks.
//!
//! The work is done in chunks of a microsecond, so that the meter measures when it stood still, and
//! for how long, whatever the reason ([`work`]). The cause: with BPF, the tracepoints of the
//! scheduler, of interrupts and of memory management, gap by gap. Without: time in which another
//! task had the processor (`run_delay` of `/proc/PID/schedstat`), and the tasks that ran meanwhile;
//! the rest is interrupts and, where the hypervisor reports it, steal (`/proc/stat`). Time lost
//! although the work ran is reported separately.

mod attribute;
mod core;
pub mod work;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use hiroma_sys::cpu::now_ns;
use hiroma_sys::quiet::memory::{MemoryInfo, Pressure, pressure};
use hiroma_sys::quiet::noise::{MemoryEvents, Probe, Ran};
use hiroma_sys::quiet::tasks::{self, CpuTimes, Task, TaskKind};

use crate::groups::Groups;
pub use attribute::{CoreNoise, Part};
pub use core::{Detail, Quantum};

/// How often the reclaiming threads are sampled.
const SAMPLE: Duration = Duration::from_millis(100);

/// Counters of `/proc/vmstat` that show what the kernel did meanwhile.
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

/// Options of a measurement.
#[derive(Clone, Debug)]
pub struct Options {
    pub cpus: Vec<usize>,
    pub duration: Duration,
    pub quantum: Duration,
    pub method: Method,
    /// Use BPF if permitted.
    pub bpf: bool,
}

/// How the causes of stolen time were determined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The kernel's tracepoints, gap by gap.
    Bpf,
    /// The kernel's accounting, over the whole measurement; with the reason for it.
    Books(String),
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    #[error("no processor to measure on: name some with --cpus")]
    NoCpus,
    #[error("processor {cpu} cannot be used: {source}; see `taskset -p $$` for those that can")]
    Cpu { cpu: usize, source: io::Error },
    #[error(
        "the kernel does not say how long threads wait (/proc/thread-self/schedstat: {0}): it needs CONFIG_SCHED_INFO"
    )]
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

/// All results of a measurement.
#[derive(Clone, Debug)]
pub struct Recording {
    pub method: Method,
    /// Times of the monotonic clock.
    pub began_ns: u64,
    pub ended_ns: u64,
    pub cores: Vec<CoreNoise>,
    /// Every quantum, by core as in `cores`.
    pub quanta: Vec<Vec<Quantum>>,
    /// Quanta that lost much, and what took the time, by core as in `cores`.
    pub details: Vec<Vec<Detail>>,
    pub source: Source,
    /// Why kswapd woke, and what reclaimed directly; with BPF.
    pub memory: Option<MemoryEvents>,
    pub samples: Vec<Sample>,
    /// By how much the counters of [`EVENTS`] increased.
    pub events: Vec<(&'static str, u64)>,
    /// Control groups that often reached limits of their own, and how often; most first.
    pub groups: Vec<(PathBuf, u64)>,
}

/// Readings before and after.
struct Books {
    tasks: Vec<Task>,
    times: Vec<CpuTimes>,
    memory: Option<MemoryInfo>,
    events: Option<MemoryEvents>,
    pressure: Option<Pressure>,
    groups: Groups,
}

impl Books {
    /// With a probe, the tasks are those that it has seen.
    fn read(probe: Option<&Probe>) -> Books {
        let memory = MemoryInfo::read(Path::new("/")).ok();
        let of_probe = |probe: &Probe| {
            let task = |ran: Ran| Task {
                tid: ran.tid,
                name: ran.name,
                kind: ran.kind,
                run_ns: ran.ns,
                cpu: ran.cpu,
            };
            probe.ran().into_iter().map(task).collect()
        };
        let tasks = probe.map_or_else(tasks::all, of_probe);
        Books {
            tasks,
            times: tasks::cpu_times().unwrap_or_default(),
            memory,
            events: probe.map(Probe::memory_events),
            pressure: pressure(Path::new("/")),
            groups: Groups::read(),
        }
    }
}

/// Threads meet here before they start.
#[derive(Default)]
pub(crate) struct Gate {
    there: AtomicUsize,
    is_open: AtomicBool,
    is_off: AtomicBool,
}

impl Gate {
    /// Polling interval.
    const LOOK: Duration = Duration::from_millis(1);

    /// Waits until the gate is opened. Returns false if the start is cancelled.
    pub fn pass(&self) -> bool {
        self.there.fetch_add(1, Ordering::AcqRel);
        while !self.is_open.load(Ordering::Acquire) {
            thread::sleep(Gate::LOOK);
        }
        !self.is_off.load(Ordering::Acquire)
    }

    /// Cancels the start because a thread is missing: releases the threads that wait.
    pub fn give_up(&self) {
        self.is_off.store(true, Ordering::Release);
        self.open();
    }

    /// Waits until `threads` threads have arrived.
    pub fn wait_for(&self, threads: usize) {
        while self.there.load(Ordering::Acquire) < threads {
            thread::sleep(Gate::LOOK);
        }
    }

    pub fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }
}

/// The probe, or why there is none.
fn probe(options: &Options) -> Result<Probe, String> {
    match options.bpf {
        true => Probe::open(&options.cpus).map_err(|error| error.to_string()),
        false => Err("it was not wanted".to_owned()),
    }
}

/// Measures. `progress` is called several times a second with the time passed; if it returns
/// `false`, the measurement ends and the result covers the time so far.
pub fn measure(
    options: &Options,
    progress: &mut dyn FnMut(Duration) -> bool,
) -> Result<Recording, MeterError> {
    if options.cpus.is_empty() {
        return Err(MeterError::NoCpus);
    }
    tasks::Waited::of_this_thread().map_err(MeterError::NoSchedstat)?;
    let probe = probe(options);
    match probe {
        Ok(probe) => measure_with(options, Some(&probe), Source::Bpf, progress),
        Err(why) => measure_with(options, None, Source::Books(why), progress),
    }
}

fn measure_with(
    options: &Options,
    probe: Option<&Probe>,
    source: Source,
    progress: &mut dyn FnMut(Duration) -> bool,
) -> Result<Recording, MeterError> {
    let (stop, start) = (AtomicBool::new(false), Gate::default());
    thread::scope(|scope| {
        let spawn = |&cpu: &usize| {
            let (stop, start) = (&stop, &start);
            let thread = thread::Builder::new().name(attribute::METER_THREAD.to_owned());
            let run = move || core::run(cpu, options, probe, stop, start);
            thread.spawn_scoped(scope, run).map_err(|source| MeterError::Cpu { cpu, source })
        };
        let threads = options.cpus.iter().map(spawn).collect::<Result<Vec<_>, _>>();
        // The threads that did start must not wait forever.
        let threads = threads.inspect_err(|_| start.give_up())?;
        // Reading all of /proc at every sample would be noise of its own.
        let reclaimers: Vec<u32> = tasks::reclaimers().iter().map(|task| task.tid).collect();
        start.wait_for(threads.len());
        let before = Books::read(probe);
        start.open();
        let began_ns = now_ns();
        let mut samples = Vec::new();
        let mut last = run_by_kind(&reclaimers);
        loop {
            thread::sleep(SAMPLE);
            let passed = Duration::from_nanos(now_ns() - began_ns);
            let now = run_by_kind(&reclaimers);
            let run_ns = now
                .iter()
                .map(|(&kind, &run)| {
                    (kind, run.saturating_sub(last.get(&kind).copied().unwrap_or(0)))
                })
                .collect();
            samples.push(Sample { at_ns: now_ns(), run_ns });
            last = now;
            if !progress(passed)
                || passed >= options.duration
                || threads.iter().any(thread::ScopedJoinHandle::is_finished)
            {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let ended_ns = now_ns();
        let seen =
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(MeterError::Nothing)));
        let seen = seen.collect::<Result<Vec<_>, _>>()?;
        let after = Books::read(probe);
        if seen.iter().any(|seen| seen.quanta.is_empty()) {
            return Err(MeterError::Nothing);
        }
        let cores = options.cpus.iter().zip(&seen).map(|(&cpu, seen)| {
            let times = times_between(cpu, &before.times, &after.times);
            let tasks = attribute::ran_on(cpu, &before.tasks, &after.tasks, probe.is_some());
            attribute::core_noise(
                cpu,
                options.method,
                seen,
                &attribute::Beside { tasks, times, by_bpf: probe.is_some() },
            )
        });
        let cores = cores.collect();
        let memory = after.events.map(|events| events.since(&before.events.unwrap_or_default()));
        let events = events_between(&before, &after);
        let (quanta, details) = seen.into_iter().map(|seen| (seen.quanta, seen.details)).unzip();
        Ok(Recording {
            method: options.method,
            began_ns,
            ended_ns,
            cores,
            quanta,
            details,
            source,
            memory,
            samples,
            events,
            groups: after.groups.often_since(&before.groups),
        })
    })
}

fn run_by_kind(threads: &[u32]) -> BTreeMap<TaskKind, u64> {
    let mut run = BTreeMap::new();
    for task in threads.iter().filter_map(|&tid| tasks::one(tid)) {
        *run.entry(task.kind).or_insert(0) += task.run_ns;
    }
    run
}

/// What interrupts and the hypervisor took from a processor.
fn times_between(cpu: usize, before: &[CpuTimes], after: &[CpuTimes]) -> (u64, u64) {
    let of = |times: &[CpuTimes]| {
        times.iter().find(|times| times.cpu == cpu).copied().unwrap_or_default()
    };
    let (before, after) = (of(before), of(after));
    (
        after.interrupts_ns.saturating_sub(before.interrupts_ns),
        after.steal_ns.saturating_sub(before.steal_ns),
    )
}

fn events_between(before: &Books, after: &Books) -> Vec<(&'static str, u64)> {
    let waited = before.pressure.zip(after.pressure).map(|(before, after)| {
        let (some_us, full_us) = (
            after.some_us.saturating_sub(before.some_us),
            after.full_us.saturating_sub(before.full_us),
        );
        [
            ("microseconds in which a thread waited for memory (pressure, some)", some_us),
            ("in which all did (pressure, full)", full_us),
        ]
    });
    let (Some(before), Some(after)) = (&before.memory, &after.memory) else { return Vec::new() };
    let grown = |name| after.counters.get(name).saturating_sub(before.counters.get(name));
    let counted = EVENTS
        .iter()
        .filter(|(name, _)| after.counters.has(name))
        .map(|&(name, title)| (title, grown(name)));
    counted.chain(waited.into_iter().flatten()).collect()
}

impl Recording {
    /// The actual duration.
    pub fn duration_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.began_ns).max(1)
    }

    /// The stolen share of each of `columns` intervals, for each core, in millionths.
    pub fn timeline_ppm(&self, columns: usize) -> Vec<Vec<u64>> {
        let columns = columns.max(1) as u64;
        let column = |at_ns: u64| {
            (at_ns.saturating_sub(self.began_ns).saturating_mul(columns) / self.duration_ns())
                .min(columns - 1)
        };
        let line = |quanta: &Vec<Quantum>| {
            let mut sums = vec![(0, 0); columns as usize];
            for quantum in quanta {
                let (wall, taken) = &mut sums[column(quantum.start_ns) as usize];
                *wall += quantum.wall_ns;
                *taken += quantum.stolen_ns;
            }
            sums.into_iter()
                .map(|(wall, taken): (u64, u64)| {
                    taken.saturating_mul(1_000_000).checked_div(wall).unwrap_or(0)
                })
                .collect()
        };
        self.quanta.iter().map(line).collect()
    }

    /// Number of quanta by stolen time: below 1 us, below 2, below 4, and so on, over all cores, up
    /// to the longest.
    pub fn histogram(&self) -> Vec<u64> {
        let mut counts = Vec::new();
        for quanta in &self.quanta {
            for quantum in quanta {
                let taken_us = quantum.stolen_ns / 1000;
                let bin = (u64::BITS - taken_us.leading_zeros()) as usize;
                counts.resize(counts.len().max(bin + 1), 0);
                counts[bin] += 1;
            }
        }
        counts
    }

    /// Stolen time of all cores, and how much of it has a known cause.
    pub fn stolen_and_explained_ns(&self) -> (u64, u64) {
        self.cores.iter().fold((0, 0), |(stolen, explained), core| {
            (stolen + core.stolen_ns, explained + core.explained_ns())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(method: Method) -> Options {
        let cpus = hiroma_sys::quiet::affinity::of(0).unwrap();
        Options {
            cpus: cpus[..1].to_vec(),
            duration: Duration::from_millis(300),
            quantum: Duration::from_millis(1),
            method,
            bpf: true,
        }
    }

    #[test]
    fn both_methods_account_for_all_lost_time() {
        for (method, bpf) in [(Method::Fwq, true), (Method::Ftq, true), (Method::Fwq, false)] {
            let recording = measure(&Options { bpf, ..short(method) }, &mut |_| true).unwrap();
            assert!(bpf || matches!(recording.source, Source::Books(_)));
            assert_eq!(recording.memory.is_some(), recording.source == Source::Bpf);
            let core = &recording.cores[0];
            assert!(core.quanta > 0);
            assert_eq!(core.parts.values().sum::<u64>(), core.stolen_ns, "{core:?}");
            assert!(core.explained_ns() <= core.stolen_ns);
        }
    }

    #[test]
    fn unmeasurable_options_are_refused() {
        let nothing = Options { cpus: vec![], ..short(Method::Fwq) };
        assert!(matches!(measure(&nothing, &mut |_| true), Err(MeterError::NoCpus)));
        let absent = Options { cpus: vec![1023], ..short(Method::Fwq) };
        assert!(matches!(measure(&absent, &mut |_| true), Err(MeterError::Cpu { cpu: 1023, .. })));
    }
}
