//! Who stole the time: quanta, and what was read before and after, made into parts that add up.

use std::collections::BTreeMap;

use hiroma_kernel::quiet::tasks::{Task, TaskKind};

use super::{Method, Quantum};

/// Where time went.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// Another task had the processor.
    Task(TaskKind),
    /// The meter's own looking around.
    Meter,
    /// Another task had the processor, and is not there any more to be asked.
    GoneTask,
    Interrupts,
    /// The hypervisor gave the processor to somebody else.
    Steal,
    /// One of these two; the kernel does not account them.
    InterruptsOrSteal,
}

impl Part {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Part::Task(kind) => kind.name(),
            Part::Meter => "this meter",
            Part::GoneTask => "tasks that have ended",
            Part::Interrupts => "interrupts",
            Part::Steal => "hypervisor (steal)",
            Part::InterruptsOrSteal => "interrupts or hypervisor",
        }
    }

    /// Whether somebody is named.
    pub fn is_explained(self) -> bool {
        !matches!(self, Part::GoneTask | Part::InterruptsOrSteal)
    }
}

/// What was measured on one processor. Times in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreNoise {
    pub cpu: usize,
    pub quanta: u64,
    /// The length of a good quantum: nine tenths take longer.
    pub best_ns: u64,
    /// The whole time of the quanta; what others had of it; and what was lost because the work ran, but slower than in a good quantum.
    pub wall_ns: u64,
    pub stolen_ns: u64,
    pub slowed_ns: u64,
    /// Length against the best, in thousandths: median, 99th percentile and longest.
    pub p50_permille: u64,
    pub p99_permille: u64,
    pub max_permille: u64,
    /// They add up to `stolen_ns`.
    pub parts: BTreeMap<Part, u64>,
    /// The programs that had the processor longest.
    pub programs: Vec<(String, u64)>,
}

/// Programs that are named.
const PROGRAMS: usize = 5;

impl CoreNoise {
    /// Of the stolen time, what can be put down to somebody.
    pub fn explained_ns(&self) -> u64 {
        self.parts.iter().filter(|(part, _)| part.is_explained()).map(|(_, ns)| ns).sum()
    }
}

/// Threads that ran on a processor between two readings, and how long.
pub(super) fn ran_on(cpu: usize, before: &[Task], after: &[Task]) -> Vec<(Task, u64)> {
    let earlier: BTreeMap<u32, u64> = before.iter().map(|task| (task.tid, task.run_ns)).collect();
    let on_cpu = after.iter().filter(|task| task.cpu == cpu);
    let ran = on_cpu.map(|task| (task.clone(), task.run_ns.saturating_sub(earlier.get(&task.tid).copied().unwrap_or(0))));
    ran.filter(|&(_, ns)| ns > 0).collect()
}

/// What others had of a quantum.
pub(super) fn stolen_ns(quantum: &Quantum) -> u64 {
    quantum.wall_ns.saturating_sub(quantum.cpu_ns)
}

/// What a quantum lost against a good one.
fn lost_ns(method: Method, quantum: &Quantum, good: u64) -> u64 {
    match method {
        Method::Fwq => quantum.wall_ns.saturating_sub(good),
        Method::Ftq => quantum.wall_ns - scale(quantum.wall_ns, quantum.units.min(good), good),
    }
}

/// The length of a good quantum, or the work in one. Not of the very best: where another hardware thread happens to be idle for a moment,
/// that one is twice as fast as any other.
fn good(method: Method, quanta: &[Quantum]) -> u64 {
    let mut values: Vec<u64> = match method {
        Method::Fwq => quanta.iter().map(|quantum| quantum.wall_ns).collect(),
        Method::Ftq => quanta.iter().map(|quantum| u64::MAX - quantum.units).collect(),
    };
    values.sort_unstable();
    let value = values.get(values.len() / 10).copied().unwrap_or(1);
    if method == Method::Fwq { value.max(1) } else { (u64::MAX - value).max(1) }
}

fn scale(value: u64, by: u64, over: u64) -> u64 {
    (u128::from(value) * u128::from(by)).checked_div(u128::from(over)).unwrap_or(0) as u64
}

/// Puts the losses of a processor down to whoever took the time. `tasks` ran there meanwhile, `times` are those of interrupts and steal.
pub(super) fn core_noise(cpu: usize, method: Method, quanta: &[Quantum], tasks: &[(Task, u64)], times: (u64, u64)) -> CoreNoise {
    let good = good(method, quanta);
    let (mut stolen, mut waited, mut off, mut slower, mut wall) = (0, 0, 0, 0, 0);
    let mut ratios = Vec::with_capacity(quanta.len());
    for quantum in quanta {
        let (lost, taken) = (lost_ns(method, quantum, good), stolen_ns(quantum));
        let wait = quantum.wait_ns.min(taken);
        (stolen, waited, off) = (stolen + taken, waited + wait, off + taken - wait);
        slower += lost.saturating_sub(taken);
        wall += quantum.wall_ns;
        let useful = quantum.wall_ns.saturating_sub(lost).max(1);
        ratios.push(scale(quantum.wall_ns, 1000, useful));
    }
    ratios.sort_unstable();
    let at = |percent: usize| ratios.get((ratios.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0);
    let mut parts = split_waits(waited, tasks);
    let (interrupts, steal) = times;
    if interrupts + steal == 0 {
        add(&mut parts, Part::InterruptsOrSteal, off);
    } else {
        let share = scale(off, steal, interrupts + steal);
        add(&mut parts, Part::Steal, share);
        add(&mut parts, Part::Interrupts, off - share);
    }
    let best_ns = if method == Method::Fwq { good } else { quanta.iter().map(|quantum| quantum.wall_ns).min().unwrap_or(0) };
    let (p50_permille, p99_permille, max_permille) = (at(50), at(99), at(100));
    let quanta = quanta.len() as u64;
    let programs = programs(tasks);
    CoreNoise {
        cpu,
        quanta,
        best_ns,
        wall_ns: wall,
        stolen_ns: stolen,
        slowed_ns: slower,
        p50_permille,
        p99_permille,
        max_permille,
        parts,
        programs,
    }
}

fn add(parts: &mut BTreeMap<Part, u64>, part: Part, ns: u64) {
    if ns > 0 {
        *parts.entry(part).or_insert(0) += ns;
    }
}

/// Divides the time that was waited among those who ran. They may have run longer than we waited: there were pauses between quanta.
fn split_waits(waited: u64, tasks: &[(Task, u64)]) -> BTreeMap<Part, u64> {
    let own = std::process::id();
    let mut ran: BTreeMap<Part, u64> = BTreeMap::new();
    for (task, ns) in tasks.iter().filter(|(task, _)| !is_meter_thread(task)) {
        add(&mut ran, if task.tid == own { Part::Meter } else { Part::Task(task.kind) }, *ns);
    }
    let whole: u64 = ran.values().sum();
    if whole > waited {
        ran.values_mut().for_each(|ns| *ns = scale(*ns, waited, whole));
    }
    let rest = waited - ran.values().sum::<u64>();
    // What rounding lost is no task that has gone.
    let rounding = if whole > waited { ran.keys().next().copied() } else { None };
    add(&mut ran, rounding.unwrap_or(Part::GoneTask), rest);
    ran
}

/// Name of the threads that run quanta: what they use is not stolen from them.
pub(super) const METER_THREAD: &str = "hiroma-quantum";

fn is_meter_thread(task: &Task) -> bool {
    task.name == METER_THREAD
}

fn programs(tasks: &[(Task, u64)]) -> Vec<(String, u64)> {
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    let others = tasks.iter().filter(|(task, _)| !is_meter_thread(task) && task.tid != std::process::id());
    others.for_each(|(task, ns)| *by_name.entry(&task.name).or_insert(0) += ns);
    let mut named: Vec<(String, u64)> = by_name.into_iter().map(|(name, ns)| (name.to_owned(), ns)).collect();
    named.sort_by_key(|&(_, ns)| std::cmp::Reverse(ns));
    named.truncate(PROGRAMS);
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantum(wall_ns: u64, cpu_ns: u64, wait_ns: u64) -> Quantum {
        Quantum { start_ns: 0, wall_ns, cpu_ns, wait_ns, units: 1 }
    }

    fn task(name: &str, kind: TaskKind, ns: u64) -> (Task, u64) {
        (Task { tid: 1, name: name.to_owned(), kind, run_ns: ns, cpu: 0 }, ns)
    }

    #[test]
    fn a_loss_is_put_down_to_waiting_being_away_and_running_slower() {
        let quanta = [quantum(1000, 1000, 0), quantum(1900, 1100, 500), quantum(1200, 1200, 0)];
        let kswapd = [task("kswapd0", TaskKind::Kswapd, 400)];
        let noise = core_noise(0, Method::Fwq, &quanta, &kswapd, (10, 30));
        let expected = [(Part::Task(TaskKind::Kswapd), 400), (Part::GoneTask, 100), (Part::Interrupts, 75), (Part::Steal, 225)];
        assert_eq!(noise.parts, expected.into_iter().collect());
        assert_eq!((noise.stolen_ns, noise.explained_ns(), noise.slowed_ns), (800, 700, 300));
        assert_eq!((noise.p50_permille, noise.max_permille), (1200, 1900));
    }

    #[test]
    fn those_who_ran_longer_than_we_waited_share_the_wait() {
        let tasks = [task("a", TaskKind::Program, 3000), task("kswapd0", TaskKind::Kswapd, 1000)];
        let parts = split_waits(402, &tasks);
        assert_eq!(parts.values().sum::<u64>(), 402);
        assert!(parts[&Part::Task(TaskKind::Program)] >= 301 && !parts.contains_key(&Part::GoneTask));
    }

    #[test]
    fn with_fixed_time_the_work_that_is_missing_is_the_loss() {
        let quanta = [Quantum { units: 100, ..quantum(1000, 1000, 0) }, Quantum { units: 75, ..quantum(1000, 760, 240) }];
        let noise = core_noise(0, Method::Ftq, &quanta, &[], (0, 0));
        // Of two quanta both are good or neither: the tenth is the better one.
        assert_eq!((noise.stolen_ns, noise.slowed_ns), (240, 10));
        assert_eq!(noise.parts, [(Part::GoneTask, 240)].into_iter().collect());
    }
}
