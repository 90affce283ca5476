//! The quanta of one processor.

use std::sync::atomic::{AtomicBool, Ordering};

use hiroma_sys::quiet::affinity;
use hiroma_sys::quiet::noise::{Probe, name_of};
use hiroma_sys::quiet::tasks::Waited;

use super::work::{Loss, Worker, chunks_of};
use super::{Gate, MeterError, Method, Options};

/// Maximum number of quanta; reaching it ends the measurement.
const QUANTA_MAX: usize = 4_000_000;
/// For quanta that lost more than this, the cause is recorded, for at most [`DETAILS_MAX`] of them.
const DETAIL_NS_MIN: u64 = 20_000;
const DETAILS_MAX: usize = 100_000;

/// One quantum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quantum {
    pub start_ns: u64,
    /// Elapsed time, and the stolen part of it.
    pub wall_ns: u64,
    pub stolen_ns: u64,
    /// Work done, in a unit that is the same throughout.
    pub units: u64,
}

/// What took the time of a quantum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Detail {
    pub quantum: Quantum,
    pub loss: Loss,
    /// The task that had the processor longest without interruption, and for how long; none without
    /// BPF, or if no task had it.
    pub longest: Option<(String, u64)>,
}

/// Results of one processor's thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub quanta: Vec<Quantum>,
    pub loss: Loss,
    pub details: Vec<Detail>,
    /// Of the stolen time, the time in which another task ran; without BPF.
    pub waited_ns: u64,
}

/// Prepares the thread on `cpu`: confines it and registers it with the probe.
fn ready(cpu: usize, probe: Option<&Probe>) -> Result<Option<Waited>, MeterError> {
    affinity::confine(0, &[cpu]).map_err(|source| MeterError::Cpu { cpu, source })?;
    match probe {
        Some(probe) => probe
            .measure_this_thread()
            .map(|()| None)
            .map_err(|source| MeterError::Cpu { cpu, source }),
        None => Waited::of_this_thread().map(Some).map_err(MeterError::NoSchedstat),
    }
}

/// Measures on `cpu` until stopped. Passes `start` in any case.
pub(super) fn run(
    cpu: usize,
    options: &Options,
    probe: Option<&Probe>,
    stop: &AtomicBool,
    start: &Gate,
) -> Result<Seen, MeterError> {
    let waited = ready(cpu, probe);
    let mut worker = Worker::new(cpu, probe, None);
    let quantum_ns = options.quantum.as_nanos() as u64;
    let work = chunks_of(quantum_ns);
    let room =
        ((options.duration.as_nanos() as u64 / quantum_ns.max(1)) as usize + 1).min(QUANTA_MAX);
    let mut seen = Seen { details: Vec::with_capacity(room.min(DETAILS_MAX)), ..Seen::default() };
    // Written once, so that its pages are resident before they matter.
    seen.quanta = vec![Quantum { start_ns: 1, ..Quantum::default() }; room];
    if !start.pass() {
        return Err(MeterError::Nothing);
    }
    let waited = waited?;
    let wait =
        || waited.as_ref().map_or(Ok(0), |waited| waited.ns().map_err(MeterError::NoSchedstat));
    let mut done = 0;
    let mut wait_before = wait()?;
    if let Some(probe) = probe {
        probe.take_longest(cpu);
    }
    while done < seen.quanta.len() && !stop.load(Ordering::Relaxed) {
        let mut loss = Loss::default();
        let start_ns = worker.begin();
        let (end_ns, units) = match options.method {
            Method::Fwq => (worker.work(work, &mut loss), 1),
            Method::Ftq => {
                let units = worker.work_until(start_ns + quantum_ns, &mut loss);
                (worker.at_ns(), units)
            }
        };
        let quantum =
            Quantum { start_ns, wall_ns: end_ns - start_ns, stolen_ns: loss.stolen_ns, units };
        seen.quanta[done] = quantum;
        done += 1;
        let wait_now = wait()?;
        seen.waited_ns += (wait_now - wait_before).min(quantum.stolen_ns);
        wait_before = wait_now;
        if quantum.stolen_ns + loss.stalled_ns > 0 {
            seen.loss.add(&loss);
        }
        if quantum.stolen_ns >= DETAIL_NS_MIN && seen.details.len() < seen.details.capacity() {
            let longest = probe
                .and_then(|probe| probe.take_longest(cpu))
                .map(|(ns, name)| (name_of(&name), ns));
            seen.details.push(Detail { quantum, loss, longest });
        }
    }
    seen.quanta.truncate(done);
    Ok(seen)
}
