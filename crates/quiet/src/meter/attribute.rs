//! Attributes stolen time: divides quanta, and what was read before and after, into parts that add
//! up.

use std::collections::BTreeMap;

use hiroma_sys::quiet::tasks::{Task, TaskKind};

use super::core::Seen;
use super::work::{add, scale};
use super::{Method, Quantum};

/// Where time went.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// Another task had the processor.
    Task(TaskKind),
    /// The meter's own measurements.
    Meter,
    /// Another task had the processor, and has ended since.
    GoneTask,
    Interrupts,
    /// The hypervisor gave the processor to another guest.
    Steal,
    /// One of these two; the kernel does not account them.
    InterruptsOrSteal,
    /// The program itself, reclaiming or compacting memory for its own allocation.
    DirectReclaim,
    DirectCompaction,
    /// The processor was idle: the program waited.
    Waiting,
    /// Nothing that the kernel knows of: a hypervisor that hides it, or the machine's firmware.
    Unseen,
}

impl Part {
    /// All parts; the index determines the code.
    const ALL: [Part; 15] = [
        Part::Task(TaskKind::Kswapd),
        Part::Task(TaskKind::Kcompactd),
        Part::Task(TaskKind::Khugepaged),
        Part::Task(TaskKind::Writeback),
        Part::Task(TaskKind::Kernel),
        Part::Task(TaskKind::Program),
        Part::Meter,
        Part::GoneTask,
        Part::Interrupts,
        Part::Steal,
        Part::InterruptsOrSteal,
        Part::DirectReclaim,
        Part::DirectCompaction,
        Part::Waiting,
        Part::Unseen,
    ];

    /// A number to send to another process, from 1; 0 is none.
    pub(crate) fn code(self) -> u64 {
        Part::ALL.iter().position(|&part| part == self).map_or(0, |at| at as u64 + 1)
    }

    pub(crate) fn from_code(code: u64) -> Option<Part> {
        Part::ALL.get(usize::try_from(code.checked_sub(1)?).ok()?).copied()
    }

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Part::Task(kind) => kind.name(),
            Part::Meter => "this meter",
            Part::GoneTask => "tasks that have ended",
            Part::Interrupts => "interrupts",
            Part::Steal => "hypervisor (steal)",
            Part::InterruptsOrSteal => "interrupts or hypervisor",
            Part::DirectReclaim => "direct reclaim in the program",
            Part::DirectCompaction => "direct compaction in the program",
            Part::Waiting => "waiting",
            Part::Unseen => "nothing the kernel knows of",
        }
    }

    /// Whether the cause is known.
    pub fn is_explained(self) -> bool {
        !matches!(self, Part::GoneTask | Part::InterruptsOrSteal | Part::Unseen)
    }
}

/// Measurements of one processor. Times are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CoreNoise {
    pub cpu: usize,
    pub quanta: u64,
    /// The length of a good quantum: nine tenths take longer.
    pub best_ns: u64,
    /// The whole time of the quanta; the stolen part; and the part lost because the work ran, but
    /// slower than in a good quantum.
    pub wall_ns: u64,
    pub stolen_ns: u64,
    pub slowed_ns: u64,
    /// Of `slowed_ns`: stalls of less than [`super::work::STALL_NS_MAX`] in which the kernel ran
    /// nothing else.
    pub stalled_ns: u64,
    /// Length relative to the best, in thousandths: median, 99th percentile and longest.
    pub p50_permille: u64,
    pub p99_permille: u64,
    pub max_permille: u64,
    /// They add up to `stolen_ns`.
    pub parts: BTreeMap<Part, u64>,
    /// The tasks that had the processor longest, by name: kernel threads, too.
    pub longest: Vec<(String, TaskKind, u64)>,
}

/// Number of tasks that are named.
const NAMED: usize = 5;

impl CoreNoise {
    /// The stolen time whose cause is known.
    pub fn explained_ns(&self) -> u64 {
        self.parts.iter().filter(|(part, _)| part.is_explained()).map(|(_, ns)| ns).sum()
    }
}

/// Threads that ran on a processor between two readings, and for how long.
///
/// The time of a task covers all processors, unless it is recorded `by_cpu`.
pub(super) fn ran_on(
    cpu: usize,
    before: &[Task],
    after: &[Task],
    by_cpu: bool,
) -> Vec<(Task, u64)> {
    let same = before.iter().filter(|task| !by_cpu || task.cpu == cpu);
    let earlier: BTreeMap<u32, u64> = same.map(|task| (task.tid, task.run_ns)).collect();
    let on_cpu = after.iter().filter(|task| task.cpu == cpu);
    let ran = on_cpu.map(|task| {
        (task.clone(), task.run_ns.saturating_sub(earlier.get(&task.tid).copied().unwrap_or(0)))
    });
    ran.filter(|&(_, ns)| ns > 0).collect()
}

/// What a quantum lost compared to a good one.
fn lost_ns(method: Method, quantum: &Quantum, good: u64) -> u64 {
    match method {
        Method::Fwq => quantum.wall_ns.saturating_sub(good),
        Method::Ftq => quantum.wall_ns - scale(quantum.wall_ns, quantum.units.min(good), good),
    }
}

/// The length of a good quantum, or the work in one. It is not the best quantum: while another
/// hardware thread happens to be idle for a moment, a quantum is twice as fast as any other.
fn good(method: Method, quanta: &[Quantum]) -> u64 {
    let mut values: Vec<u64> = match method {
        Method::Fwq => quanta.iter().map(|quantum| quantum.wall_ns).collect(),
        Method::Ftq => quanta.iter().map(|quantum| u64::MAX - quantum.units).collect(),
    };
    values.sort_unstable();
    let value = values.get(values.len() / 10).copied().unwrap_or(1);
    if method == Method::Fwq { value.max(1) } else { (u64::MAX - value).max(1) }
}

/// What was read besides the quanta of a processor: the tasks that ran there, and the times of
/// interrupts and steal.
pub(super) struct Beside {
    pub tasks: Vec<(Task, u64)>,
    pub times: (u64, u64),
    /// Whether BPF observed the causes of stolen time as they occurred.
    pub by_bpf: bool,
}

/// Attributes the losses of a processor to their causes.
pub(super) fn core_noise(cpu: usize, method: Method, seen: &Seen, beside: &Beside) -> CoreNoise {
    let quanta = &seen.quanta;
    let good = good(method, quanta);
    let (mut stolen, mut slower, mut wall) = (0, 0, 0);
    let mut ratios = Vec::with_capacity(quanta.len());
    for quantum in quanta {
        let lost = lost_ns(method, quantum, good);
        stolen += quantum.stolen_ns;
        slower += lost.saturating_sub(quantum.stolen_ns);
        wall += quantum.wall_ns;
        let useful = quantum.wall_ns.saturating_sub(lost).max(1);
        ratios.push(scale(quantum.wall_ns, 1000, useful));
    }
    ratios.sort_unstable();
    let at = |percent: usize| {
        ratios.get((ratios.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0)
    };
    let best_ns = if method == Method::Fwq {
        good
    } else {
        quanta.iter().map(|quantum| quantum.wall_ns).min().unwrap_or(0)
    };
    CoreNoise {
        cpu,
        quanta: quanta.len() as u64,
        best_ns,
        wall_ns: wall,
        stolen_ns: stolen,
        slowed_ns: slower,
        stalled_ns: seen.loss.stalled_ns,
        p50_permille: at(50),
        p99_permille: at(99),
        max_permille: at(100),
        parts: if beside.by_bpf {
            with_steal(&seen.loss.parts, beside.times.1)
        } else {
            from_books(stolen, seen.waited_ns, beside)
        },
        longest: longest(&beside.tasks),
    }
}

/// The hypervisor reports only the sum of what it took (`/proc/stat`): that much of the unexplained
/// time is attributed to it.
fn with_steal(parts: &BTreeMap<Part, u64>, steal_ns: u64) -> BTreeMap<Part, u64> {
    let mut parts = parts.clone();
    let unseen = parts.remove(&Part::Unseen).unwrap_or(0);
    let steal = steal_ns.min(unseen);
    add(&mut parts, Part::Steal, steal);
    add(&mut parts, Part::Unseen, unseen - steal);
    parts
}

/// Without BPF: from the tasks that ran meanwhile, and the kernel's accounting for the rest.
fn from_books(stolen: u64, waited: u64, beside: &Beside) -> BTreeMap<Part, u64> {
    let mut parts = split_waits(waited, &beside.tasks);
    let off = stolen.saturating_sub(waited);
    let (interrupts, steal) = beside.times;
    if interrupts + steal == 0 {
        add(&mut parts, Part::InterruptsOrSteal, off);
    } else {
        let share = scale(off, steal, interrupts + steal);
        add(&mut parts, Part::Steal, share);
        add(&mut parts, Part::Interrupts, off - share);
    }
    parts
}

/// Divides the waiting time among the tasks that ran. They may have run for longer: there were
/// pauses between quanta.
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
    // Rounding errors are not attributed to ended tasks.
    let rounding = if whole > waited { ran.keys().next().copied() } else { None };
    add(&mut ran, rounding.unwrap_or(Part::GoneTask), rest);
    ran
}

/// Name of the threads that run quanta: the time they use is not stolen from them.
pub(super) const METER_THREAD: &str = "hiroma-quantum";

fn is_meter_thread(task: &Task) -> bool {
    task.name == METER_THREAD
}

fn longest(tasks: &[(Task, u64)]) -> Vec<(String, TaskKind, u64)> {
    let mut by_name: BTreeMap<(&str, TaskKind), u64> = BTreeMap::new();
    let others =
        tasks.iter().filter(|(task, _)| !is_meter_thread(task) && task.tid != std::process::id());
    others.for_each(|(task, ns)| {
        *by_name.entry((task.name.as_str(), task.kind)).or_insert(0) += ns;
    });
    let mut named: Vec<(String, TaskKind, u64)> =
        by_name.into_iter().map(|((name, kind), ns)| (name.to_owned(), kind, ns)).collect();
    named.sort_by_key(|&(_, _, ns)| std::cmp::Reverse(ns));
    named.truncate(NAMED);
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::work::Loss;

    fn quantum(wall_ns: u64, stolen_ns: u64) -> Quantum {
        Quantum { start_ns: 0, wall_ns, stolen_ns, units: 1 }
    }

    fn seen(quanta: &[Quantum], waited_ns: u64, parts: &[(Part, u64)]) -> Seen {
        let loss = Loss {
            stolen_ns: parts.iter().map(|(_, ns)| ns).sum(),
            parts: parts.iter().copied().collect(),
            stalled_ns: 0,
        };
        Seen { quanta: quanta.to_vec(), waited_ns, loss, ..Seen::default() }
    }

    fn task(name: &str, kind: TaskKind, ns: u64) -> (Task, u64) {
        (Task { tid: 1, name: name.to_owned(), kind, run_ns: ns, cpu: 0 }, ns)
    }

    #[test]
    fn loss_without_bpf_is_waiting_or_being_away() {
        let quanta = [quantum(1000, 0), quantum(1900, 800), quantum(1200, 0)];
        let beside = Beside {
            tasks: vec![task("kswapd0", TaskKind::Kswapd, 400)],
            times: (10, 30),
            by_bpf: false,
        };
        let noise =
            core_noise(0, Method::Fwq, &seen(&quanta, 500, &[(Part::Unseen, 800)]), &beside);
        let expected = [
            (Part::Task(TaskKind::Kswapd), 400),
            (Part::GoneTask, 100),
            (Part::Interrupts, 75),
            (Part::Steal, 225),
        ];
        assert_eq!(noise.parts, expected.into_iter().collect());
        assert_eq!((noise.stolen_ns, noise.explained_ns(), noise.slowed_ns), (800, 700, 300));
        assert_eq!((noise.p50_permille, noise.max_permille), (1200, 1900));
    }

    #[test]
    fn bpf_names_tasks_and_steal_covers_the_rest() {
        let quanta = [quantum(1000, 0), quantum(1900, 900)];
        let parts = [(Part::DirectReclaim, 500), (Part::Unseen, 400)];
        let noise = |steal| {
            let beside = Beside { tasks: Vec::new(), times: (0, steal), by_bpf: true };
            core_noise(0, Method::Fwq, &seen(&quanta, 0, &parts), &beside)
        };
        assert_eq!(
            noise(300).parts,
            [(Part::DirectReclaim, 500), (Part::Steal, 300), (Part::Unseen, 100)]
                .into_iter()
                .collect()
        );
        assert_eq!(
            (noise(300).explained_ns(), noise(0).explained_ns(), noise(10_000).explained_ns()),
            (800, 500, 900)
        );
    }

    #[test]
    fn parts_round_trip_between_processes() {
        for part in Part::ALL {
            assert_eq!(Part::from_code(part.code()), Some(part));
        }
        assert_eq!(
            (Part::from_code(0), Part::from_code(16), Part::from_code(u64::MAX)),
            (None, None, None)
        );
    }

    #[test]
    fn waits_are_split_among_longer_running_tasks() {
        let tasks = [task("a", TaskKind::Program, 3000), task("kswapd0", TaskKind::Kswapd, 1000)];
        let parts = split_waits(402, &tasks);
        assert_eq!(parts.values().sum::<u64>(), 402);
        assert!(
            parts[&Part::Task(TaskKind::Program)] >= 301 && !parts.contains_key(&Part::GoneTask)
        );
    }

    #[test]
    fn fixed_time_loss_is_the_missing_work() {
        let quanta = [
            Quantum { units: 100, ..quantum(1000, 0) },
            Quantum { units: 75, ..quantum(1000, 240) },
        ];
        let beside = Beside { tasks: Vec::new(), times: (0, 0), by_bpf: false };
        let noise = core_noise(0, Method::Ftq, &seen(&quanta, 240, &[]), &beside);
        // Of two quanta, the best tenth is the better one.
        assert_eq!((noise.stolen_ns, noise.slowed_ns), (240, 10));
        assert_eq!(noise.parts, [(Part::GoneTask, 240)].into_iter().collect());
    }
}
