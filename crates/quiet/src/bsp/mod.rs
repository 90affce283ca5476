//! A bulk synchronous parallel program: every rank does the same work in a step, then all wait for
//! the last one. A delay of one rank delays all, so this shows what noise costs (Petrini, Kerbyson,
//! Pakin, "The case of the missing supercomputer performance", SC 2003).
//!
//! Ranks are threads, one on each processor, of one process or of several that meet over TCP after
//! each step ([`link`]), also on several machines. For each step it records how long it took, which
//! rank arrived last, and what had delayed that one.

pub mod link;
pub mod picture;
mod rank;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use hiroma_sys::cpu::now_ns;
use hiroma_sys::quiet::noise::{MemoryEvents, Probe};

use crate::meter::work::Loss;
use crate::meter::{Gate, Part, Source};
use link::Link;

/// Maximum number of steps: each takes 64 bytes in the recording.
pub const STEPS_MAX: u64 = 4_000_000;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// One rank on each.
    pub cpus: Vec<usize>,
    /// Number of steps and duration; the run ends when either is reached.
    pub steps: u64,
    pub duration: Duration,
    /// Duration of the work of a step without disturbance.
    pub step: Duration,
    /// Work in a chunk of a microsecond, in turns ([`crate::meter::work`]), from an earlier
    /// recording, so that the two can be compared; if none, it is calibrated.
    pub chunk_turns: Option<u64>,
    /// Memory that each rank allocates, touches and frees in each step.
    pub alloc_bytes: usize,
    /// Use BPF if permitted.
    pub bpf: bool,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BspError {
    #[error("no processor to run on: name some with --cpus")]
    NoCpus,
    #[error("processor {cpu} cannot be used: {source}; see `taskset -p $$` for those that can")]
    Cpu { cpu: usize, source: io::Error },
    #[error("{alloc_bytes} bytes for each rank: {source}: choose a smaller --alloc")]
    Memory { alloc_bytes: usize, source: io::Error },
    #[error("{peer}: {reason}")]
    Peer { peer: SocketAddr, reason: String },
    #[error("{address}: {source}: choose another address")]
    Address { address: String, source: io::Error },
    #[error("interrupted before the first step was done")]
    Nothing,
}

/// A rank: its process, in order of joining, and its thread in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Rank {
    pub process: u32,
    pub thread: u32,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// From the end of the previous step to the end of this one.
    pub ns: u64,
    pub last: Rank,
    /// What was taken from the last rank's time, and what took most of it.
    pub stolen_ns: u64,
    pub by: Option<Part>,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Recording {
    pub steps: Vec<Step>,
    /// Losses of this process's ranks.
    pub losses: Vec<Loss>,
    /// Ranks of all processes.
    pub ranks: u32,
    pub step_work_ns: u64,
    /// The maximum over this process's ranks.
    pub chunk_turns: u64,
    pub source: Source,
    pub memory: Option<MemoryEvents>,
}

/// State shared by the ranks of this process.
struct Shared<'a> {
    options: &'a Options,
    stop: &'a AtomicBool,
    gate: Gate,
    arrived: AtomicUsize,
    /// Steps completed by all ranks.
    done: AtomicU64,
    /// There is no further step.
    ended: AtomicBool,
    /// A rank cannot go on.
    quit: AtomicBool,
    chunk_turns: AtomicU64,
    finish: Mutex<Finish>,
}

/// State of the work that the last rank of a step does for all.
struct Finish {
    link: Option<Link>,
    steps: Vec<Step>,
    began_ns: u64,
    released_ns: u64,
    failed: Option<BspError>,
}

impl Shared<'_> {
    fn finish(&self) -> MutexGuard<'_, Finish> {
        // A thread that panicked while it held the lock has ended the run; the data is consistent.
        self.finish.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the other ranks after a step with `loss`. Returns whether there is another step.
    fn meet(&self, thread: u32, loss: &Loss) -> bool {
        let step = self.done.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.options.cpus.len() {
            self.arrived.store(0, Ordering::Release);
            let goes_on = self.finish().step(self, thread, loss);
            self.ended.store(!goes_on, Ordering::Release);
            self.done.store(step + 1, Ordering::Release);
        }
        let mut turns = 0;
        while self.done.load(Ordering::Acquire) == step {
            turns += 1;
            // Normally a rank has a processor of its own; otherwise the rank that it waits for may
            // need this processor.
            if turns % YIELD_EVERY == 0 {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
        !self.ended.load(Ordering::Acquire)
    }
}

/// Iterations of a waiting rank between two yields.
const YIELD_EVERY: u32 = 1000;

impl Finish {
    /// All ranks of this process have arrived, `thread` last. Meets the other processes. Returns
    /// whether there is another step.
    fn step(&mut self, shared: &Shared, thread: u32, loss: &Loss) -> bool {
        let most = loss.most().map(|(part, _)| part);
        let mut step =
            Step { ns: 0, last: Rank { process: 0, thread }, stolen_ns: loss.stolen_ns, by: most };
        let enough = self.steps.len() as u64 + 1 >= shared.options.steps
            || now_ns() - self.began_ns >= shared.options.duration.as_nanos() as u64
            || shared.stop.load(Ordering::Relaxed)
            || shared.quit.load(Ordering::Relaxed);
        let goes_on = match &mut self.link {
            None => !enough,
            Some(link) => match link.meet(&mut step, enough, shared.stop) {
                Ok(goes_on) => goes_on,
                Err(error) => {
                    self.failed = Some(error);
                    return false;
                }
            },
        };
        let now = now_ns();
        step.ns = now - self.released_ns;
        self.released_ns = now;
        self.steps.push(step);
        goes_on
    }
}

/// Runs the program. With a link it is part of a run over several processes, with the options of
/// the process that was joined.
pub fn run(
    options: &Options,
    link: Option<Link>,
    stop: &AtomicBool,
) -> Result<Recording, BspError> {
    if options.cpus.is_empty() {
        return Err(BspError::NoCpus);
    }
    let (probe, source) = match options.bpf.then(|| Probe::open(&options.cpus)) {
        Some(Ok(probe)) => (Some(probe), Source::Bpf),
        Some(Err(error)) => (None, Source::Books(error.to_string())),
        None => (None, Source::Books("it was not wanted".to_owned())),
    };
    let probe = probe.as_ref();
    let ranks = link.as_ref().map_or(options.cpus.len() as u32, Link::ranks);
    // Reserve room for every step, so that no step has to wait for memory.
    let by_time =
        options.duration.as_nanos() as u64 / (options.step.as_nanos() as u64).max(1) * 2 + 16;
    let room = options.steps.min(by_time).min(STEPS_MAX) as usize;
    let finish =
        Finish { link, steps: Vec::with_capacity(room), began_ns: 0, released_ns: 0, failed: None };
    let shared = Shared {
        options,
        stop,
        gate: Gate::default(),
        arrived: AtomicUsize::new(0),
        done: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        quit: AtomicBool::new(false),
        chunk_turns: AtomicU64::new(0),
        finish: Mutex::new(finish),
    };
    let (losses, memory) = thread::scope(|scope| {
        let spawn = |(thread, &cpu): (usize, &usize)| {
            let shared = &shared;
            let builder = thread::Builder::new().name(format!("hiroma-rank-{thread}"));
            let run = move || rank::run(thread as u32, cpu, probe, shared);
            builder.spawn_scoped(scope, run).map_err(|source| BspError::Cpu { cpu, source })
        };
        let threads = options.cpus.iter().enumerate().map(spawn).collect::<Result<Vec<_>, _>>();
        let threads = threads.inspect_err(|_| shared.gate.give_up())?;
        shared.gate.wait_for(threads.len());
        let before = probe.map(Probe::memory_events);
        {
            let mut finish = shared.finish();
            (finish.began_ns, finish.released_ns) = (now_ns(), now_ns());
        }
        shared.gate.open();
        let losses =
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(BspError::Nothing)));
        let losses = losses.collect::<Result<Vec<Loss>, BspError>>()?;
        let memory = probe.map(|probe| probe.memory_events().since(&before.unwrap_or_default()));
        Ok::<_, BspError>((losses, memory))
    })?;
    let chunk_turns = shared.chunk_turns.into_inner();
    let finish = shared.finish.into_inner().unwrap_or_else(PoisonError::into_inner);
    match finish.failed {
        Some(error) => Err(error),
        None if finish.steps.is_empty() => Err(BspError::Nothing),
        None => {
            let step_work_ns = options.step.as_nanos() as u64;
            Ok(Recording {
                steps: finish.steps,
                losses,
                ranks,
                step_work_ns,
                chunk_turns,
                source,
                memory,
            })
        }
    }
}

impl Recording {
    /// Length of a step: `permille`/1000 of all steps took at most this.
    pub fn step_ns(&self, permille: usize) -> u64 {
        let mut all: Vec<u64> = self.steps.iter().map(|step| step.ns).collect();
        all.sort_unstable();
        let at = (all.len() * permille).div_ceil(1000).saturating_sub(1);
        all.get(at).copied().unwrap_or(0)
    }

    /// Time of all steps.
    pub fn total_ns(&self) -> u64 {
        self.steps.iter().map(|step| step.ns).sum()
    }

    /// Stolen time of this process's ranks, and how much of it has a known cause.
    pub fn stolen_and_explained_ns(&self) -> (u64, u64) {
        let explained = |loss: &Loss| {
            loss.parts.iter().filter(|(part, _)| part.is_explained()).map(|(_, ns)| ns).sum::<u64>()
        };
        self.losses
            .iter()
            .fold((0, 0), |(stolen, sum), loss| (stolen + loss.stolen_ns, sum + explained(loss)))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use hiroma_sys::quiet::affinity;

    fn options(steps: u64) -> Options {
        let cpus = affinity::of(0).unwrap();
        Options {
            cpus,
            steps,
            duration: Duration::from_secs(60),
            step: Duration::from_micros(200),
            chunk_turns: None,
            alloc_bytes: 0,
            bpf: true,
        }
    }

    #[test]
    fn all_steps_run_and_record_the_last_rank() {
        for alloc_bytes in [0, 256 << 10] {
            let options = Options { alloc_bytes, ..options(50) };
            let recording = run(&options, None, &AtomicBool::new(false)).unwrap();
            assert_eq!((recording.steps.len(), recording.losses.len()), (50, options.cpus.len()));
            assert!(
                recording.steps.iter().all(|step| (step.last.thread as usize) < options.cpus.len()
                    && step.last.process == 0)
            );
            assert!(
                recording.step_ns(500) <= recording.step_ns(990)
                    && recording.step_ns(1000) <= recording.total_ns()
            );
            let (stolen, explained) = recording.stolen_and_explained_ns();
            assert!(explained <= stolen);
            assert_eq!(recording.memory.is_some(), recording.source == Source::Bpf);
        }
    }

    #[test]
    fn time_and_a_signal_end_it() {
        let short = Options { duration: Duration::from_millis(1), ..options(STEPS_MAX) };
        assert!(
            (run(&short, None, &AtomicBool::new(false)).unwrap().steps.len() as u64) < STEPS_MAX
        );
        assert_eq!(run(&options(STEPS_MAX), None, &AtomicBool::new(true)).unwrap().steps.len(), 1);
        let none = Options { cpus: vec![], ..options(1) };
        assert!(matches!(run(&none, None, &AtomicBool::new(false)), Err(BspError::NoCpus)));
        let absent = Options { cpus: vec![1023], ..options(1) };
        assert!(matches!(
            run(&absent, None, &AtomicBool::new(false)),
            Err(BspError::Cpu { cpu: 1023, .. })
        ));
    }

    #[test]
    fn processes_join_over_tcp_with_shared_options() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let one = Options { cpus: options(1).cpus[..1].to_vec(), ..options(30) };
        let stop = AtomicBool::new(false);
        let (first, others) = thread::scope(|scope| {
            let (one, stop) = (&one, &stop);
            let first = scope.spawn(move || {
                let link = Link::listen(&listener, 3, one, stop).unwrap();
                run(one, Some(link), stop)
            });
            let join = move || {
                let mut options =
                    Options { steps: 1, step: Duration::from_millis(9), ..one.clone() };
                let link = Link::join(address, &mut options, stop).unwrap();
                assert_eq!((options.steps, options.step), (one.steps, one.step));
                run(&options, Some(link), stop)
            };
            let others = [scope.spawn(join), scope.spawn(join)];
            (first.join().unwrap().unwrap(), others.map(|other| other.join().unwrap().unwrap()))
        });
        assert_eq!((first.steps.len(), first.ranks), (30, 3));
        for other in &others {
            assert_eq!((other.steps.len(), other.ranks), (30, 3));
            let last = |recording: &Recording| {
                recording.steps.iter().map(|step| (step.last, step.by)).collect::<Vec<_>>()
            };
            assert_eq!(last(other), last(&first));
        }
    }
}
