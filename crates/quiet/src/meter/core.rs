//! One processor's part: the quanta.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use hiroma_kernel::cpu::{now_ns, thread_ns};
use hiroma_kernel::quiet::affinity;
use hiroma_kernel::quiet::tasks::Waited;

use super::{MeterError, Method, Options};

/// Turns of the loop that are done between two looks at the clock in a fixed time.
const TURNS_PER_UNIT: u64 = 1000;
/// How often the speed of the loop is tried; the fastest counts.
const TRIES: usize = 50;
/// So many quanta are kept at most; what would come later ends the measurement.
const QUANTA_MAX: usize = 4_000_000;

/// One quantum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quantum {
    pub start_ns: u64,
    /// Elapsed, and of that on the processor, and of that waiting for it.
    pub wall_ns: u64,
    pub cpu_ns: u64,
    pub wait_ns: u64,
    /// Work done, in units that are the same throughout.
    pub units: u64,
}

/// The work: each turn needs the one before, so that it takes the same time wherever it runs.
fn turns(count: u64, seed: u64) -> u64 {
    (0..count).fold(seed, |value, _| black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)))
}

/// Turns in a nanosecond, times 1024.
fn speed() -> u64 {
    const TURNS: u64 = 100_000;
    let one = |_| {
        let start = now_ns();
        black_box(turns(TURNS, start));
        (now_ns() - start).max(1)
    };
    let best = (0..TRIES).map(one).min().unwrap_or(1);
    (TURNS * 1024 / best).max(1)
}

/// Measures on `cpu` until told to stop. Meets the others at `start` in any case.
pub(super) fn run(cpu: usize, options: &Options, stop: &AtomicBool, start: &Barrier) -> Result<Vec<Quantum>, MeterError> {
    let ready = affinity::confine(0, &[cpu]).map_err(|source| MeterError::Cpu { cpu, source });
    let ready = ready.and_then(|()| Waited::of_this_thread().map_err(MeterError::NoSchedstat));
    let quantum_ns = options.quantum.as_nanos() as u64;
    let work = if ready.is_ok() { (quantum_ns * speed() / 1024).max(1) } else { 0 };
    let room = (options.duration.as_nanos() as u64 / quantum_ns.max(1)) as usize + 1;
    // Written once, so that its pages are there before they matter.
    let mut quanta = vec![Quantum { start_ns: 1, ..Quantum::default() }; room.min(QUANTA_MAX)];
    start.wait();
    let waited = ready?;
    let mut done = 0;
    let mut wait_before = waited.ns().map_err(MeterError::NoSchedstat)?;
    while done < quanta.len() && !stop.load(Ordering::Relaxed) {
        let cpu_before = thread_ns();
        let start_ns = now_ns();
        let units = match options.method {
            Method::Fwq => {
                black_box(turns(work, start_ns));
                1
            }
            Method::Ftq => work_until(start_ns + quantum_ns),
        };
        let wall_ns = now_ns() - start_ns;
        let cpu_ns = thread_ns() - cpu_before;
        let wait = waited.ns().map_err(MeterError::NoSchedstat)?;
        quanta[done] = Quantum { start_ns, wall_ns, cpu_ns, wait_ns: wait - wait_before, units };
        wait_before = wait;
        done += 1;
    }
    quanta.truncate(done);
    Ok(quanta)
}

fn work_until(end_ns: u64) -> u64 {
    let mut units = 0;
    while now_ns() < end_ns {
        black_box(turns(TURNS_PER_UNIT, units));
        units += 1;
    }
    units
}
