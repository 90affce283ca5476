//! Work of known length in small chunks, with a reading of the clock after each: a chunk that takes
//! much longer was held up, and the gap is measured whatever the reason. Only then is the cause
//! determined.

use std::collections::BTreeMap;
use std::hint::black_box;

use hiroma_sys::cpu::now_ns;
use hiroma_sys::quiet::noise::{Owner, Probe, Sums};

use super::attribute::Part;

/// Length of a chunk. Reading the clock takes a fiftieth of it.
const CHUNK_NS: u64 = 1000;
/// Repetitions for the calibration of a chunk; the median counts.
const TRIES: usize = 2000;
/// A chunk that takes this many times as long was held up. With a smaller factor, another hardware
/// thread that starts to work would look the same.
const HELD_UP: u64 = 3;
/// Maximum cost of taking a processor away or giving it back, beyond what the tracepoints enclose.
const CHANGE_NS: u64 = 2000;
/// A gap below this in which nothing in the kernel ran is a stall; in a longer one the processor
/// was taken away.
pub const STALL_NS_MAX: u64 = 20_000;

/// What was taken from a stretch of work, in nanoseconds; the parts add up to `stolen_ns`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loss {
    pub stolen_ns: u64,
    pub parts: BTreeMap<Part, u64>,
    /// Not stolen: short stalls in which the kernel ran nothing else, for example a hypervisor's
    /// own interrupts, firmware, memory.
    pub stalled_ns: u64,
}

impl Loss {
    /// Adds another loss.
    pub fn add(&mut self, other: &Loss) {
        self.stolen_ns += other.stolen_ns;
        self.stalled_ns += other.stalled_ns;
        other.parts.iter().for_each(|(&part, &ns)| add(&mut self.parts, part, ns));
    }

    /// The part that took most.
    pub fn most(&self) -> Option<(Part, u64)> {
        self.parts.iter().max_by_key(|&(_, ns)| ns).map(|(&part, &ns)| (part, ns))
    }
}

/// Adds to a part, if `ns` is not 0.
pub(super) fn add(parts: &mut BTreeMap<Part, u64>, part: Part, ns: u64) {
    if ns > 0 {
        *parts.entry(part).or_insert(0) += ns;
    }
}

/// `value` x `by` / `over`; 0 if `over` is 0.
pub(super) fn scale(value: u64, by: u64, over: u64) -> u64 {
    (u128::from(value) * u128::from(by)).checked_div(u128::from(over)).unwrap_or(0) as u64
}

/// Each iteration depends on the previous one, so that it takes the same time wherever it runs.
fn turns(count: u64, seed: u64) -> u64 {
    (0..count).fold(seed, |value, _| {
        black_box(
            value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407),
        )
    })
}

/// The number of chunks in `ns` nanoseconds of work.
pub fn chunks_of(ns: u64) -> u64 {
    (ns / CHUNK_NS).max(1)
}

/// Does the work of one thread, which has to be confined to a processor.
pub struct Worker<'a> {
    cpu: usize,
    probe: Option<&'a Probe>,
    chunk_turns: u64,
    usual_ns: u64,
    at_ns: u64,
    sums: Sums,
}

impl<'a> Worker<'a> {
    /// Calibrates the work of a chunk, unless it is given in turns to make runs comparable. With
    /// `probe`, the causes of losses are determined; the calling thread has to be registered with
    /// it.
    pub fn new(cpu: usize, probe: Option<&'a Probe>, chunk_turns: Option<u64>) -> Worker<'a> {
        let mut worker =
            Worker { cpu, probe, chunk_turns: 1, usual_ns: 1, at_ns: 0, sums: Sums::default() };
        let usual = |count: u64| {
            let one = |_| {
                let start = now_ns();
                black_box(turns(count, start));
                (now_ns() - start).max(1)
            };
            let mut times: Vec<u64> = (0..TRIES).map(one).collect();
            *times.select_nth_unstable(TRIES / 2).1
        };
        worker.chunk_turns =
            chunk_turns.unwrap_or_else(|| CHUNK_NS * CHUNK_NS / usual(CHUNK_NS)).max(1);
        worker.usual_ns = usual(worker.chunk_turns);
        worker.begin();
        worker
    }

    /// When the clock was last read.
    pub fn at_ns(&self) -> u64 {
        self.at_ns
    }

    /// Turns of a chunk.
    pub fn chunk_turns(&self) -> u64 {
        self.chunk_turns
    }

    /// Starts measuring. Returns the time.
    pub fn begin(&mut self) -> u64 {
        if let Some(probe) = self.probe {
            self.sums = probe.sums(self.cpu);
        }
        self.at_ns = now_ns();
        self.at_ns
    }

    /// Works; losses are added to `loss`. Returns the time.
    pub fn work(&mut self, chunks: u64, loss: &mut Loss) -> u64 {
        for _ in 0..chunks {
            black_box(turns(self.chunk_turns, self.at_ns));
            self.look(self.usual_ns, loss);
        }
        self.at_ns
    }

    /// Works until `end_ns`, and returns the number of chunks done.
    pub fn work_until(&mut self, end_ns: u64, loss: &mut Loss) -> u64 {
        let mut chunks = 0;
        while self.at_ns < end_ns {
            black_box(turns(self.chunk_turns, self.at_ns));
            self.look(self.usual_ns, loss);
            chunks += 1;
        }
        chunks
    }

    /// Reads the clock after something that usually takes `usual_ns`.
    pub fn look(&mut self, usual_ns: u64, loss: &mut Loss) {
        let now = now_ns();
        let took = now - self.at_ns;
        self.at_ns = now;
        if took > HELD_UP * usual_ns {
            self.held_up(took - usual_ns, loss);
        }
    }

    #[cold]
    fn held_up(&mut self, gap_ns: u64, loss: &mut Loss) {
        let seen =
            self.probe.map_or(Sums::default(), |probe| probe.sums(self.cpu).since(&self.sums));
        split(gap_ns, &seen, loss);
        // Determining the cause is not part of the work.
        self.begin();
    }
}

fn part_of(owner: Owner) -> Part {
    match owner {
        Owner::Task(kind) => Part::Task(kind),
        Owner::Meter => Part::Meter,
        Owner::Idle => Part::Waiting,
        Owner::Interrupt | Owner::SoftInterrupt => Part::Interrupts,
        Owner::DirectReclaim => Part::DirectReclaim,
        Owner::DirectCompaction => Part::DirectCompaction,
    }
}

/// Divides a gap among the owners that had the processor in it. Switching there and back counts as
/// theirs. A longer rest without an owner is a stall, or, if it is long, [`Part::Unseen`].
fn split(gap_ns: u64, had: &Sums, loss: &mut Loss) {
    let known = had.others_ns();
    let rest = gap_ns.saturating_sub(known);
    let is_theirs = known > 0 && rest <= had.changes * CHANGE_NS;
    let (to_share, unseen) = if is_theirs || rest == 0 { (gap_ns, 0) } else { (known, rest) };
    let mut left = to_share;
    let mut last = Part::Unseen;
    for (owner, ns) in had.owners() {
        let share = scale(to_share, ns, known);
        last = part_of(owner);
        add(&mut loss.parts, last, share);
        left -= share;
    }
    // The rounding error.
    add(&mut loss.parts, last, left);
    loss.stolen_ns += to_share;
    if unseen < STALL_NS_MAX {
        loss.stalled_ns += unseen;
    } else {
        loss.stolen_ns += unseen;
        add(&mut loss.parts, Part::Unseen, unseen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroma_sys::quiet::tasks::TaskKind;

    fn divided(gap_ns: u64, had: Sums) -> (Vec<(Part, u64)>, u64) {
        let mut loss = Loss::default();
        split(gap_ns, &had, &mut loss);
        assert_eq!(loss.parts.values().sum::<u64>(), loss.stolen_ns);
        assert_eq!(loss.stolen_ns + loss.stalled_ns, gap_ns);
        (loss.parts.into_iter().collect(), loss.stalled_ns)
    }

    #[test]
    fn gap_is_attributed_to_tasks_seen_in_it() {
        let kswapd = Owner::Task(TaskKind::Kswapd);
        let had = |ns: &[(Owner, u64)], changes| Sums::of(ns, changes);
        // Switching there and back counts as the owner's.
        assert_eq!(
            divided(5000, had(&[(kswapd, 3000)], 2)),
            (vec![(Part::Task(TaskKind::Kswapd), 5000)], 0)
        );
        // A tick does not explain milliseconds.
        let tick = had(&[(Owner::Interrupt, 4000)], 2);
        assert_eq!(
            divided(5_000_000, tick),
            (vec![(Part::Interrupts, 4000), (Part::Unseen, 4_996_000)], 0)
        );
        assert_eq!(divided(14_000, tick), (vec![(Part::Interrupts, 4000)], 10_000));
        // More than the gap: scaled down.
        let both = had(&[(kswapd, 3000), (Owner::SoftInterrupt, 1000)], 4);
        assert_eq!(
            divided(2001, both),
            (vec![(Part::Task(TaskKind::Kswapd), 1500), (Part::Interrupts, 501)], 0)
        );
        assert_eq!(divided(7000, Sums::default()), (vec![], 7000));
        assert_eq!(divided(700_000, Sums::default()), (vec![(Part::Unseen, 700_000)], 0));
    }

    #[test]
    fn work_takes_time_and_losses_add_up() {
        let mut worker = Worker::new(0, None, None);
        let mut loss = Loss::default();
        let start = worker.begin();
        let chunks = chunks_of(2_000_000);
        assert!(worker.work(chunks, &mut loss) > start);
        assert_eq!(loss.parts.values().sum::<u64>(), loss.stolen_ns);
        let mut both = loss.clone();
        both.add(&loss);
        assert_eq!(both.stolen_ns, 2 * loss.stolen_ns);
        assert!(worker.work_until(now_ns() + 1_000_000, &mut loss) > 0);
    }
}
