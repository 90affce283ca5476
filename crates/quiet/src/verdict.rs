//! What a recording comes to, in one sentence: how much was stolen, by whom, and what would help.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hiroma_sys::quiet::tasks::TaskKind;

use crate::meter::{CoreNoise, Part, Recording};

/// A smaller share of the time, in millionths, is no reason to do anything.
const LITTLE_PPM: u64 = 1_000;

/// Those who steal time, as far as the remedy differs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Thief {
    Reclaim,
    Programs,
    Hypervisor,
    Kernel,
    /// Interrupts or the hypervisor: not told apart.
    Unknown,
}

impl Thief {
    fn of(part: Part) -> Option<Thief> {
        Some(match part {
            Part::Task(TaskKind::Kswapd | TaskKind::Kcompactd)
            | Part::DirectReclaim
            | Part::DirectCompaction => Thief::Reclaim,
            Part::Task(TaskKind::Program) | Part::GoneTask => Thief::Programs,
            Part::Steal | Part::Unseen => Thief::Hypervisor,
            Part::InterruptsOrSteal => Thief::Unknown,
            Part::Task(TaskKind::Khugepaged | TaskKind::Writeback | TaskKind::Kernel)
            | Part::Interrupts => Thief::Kernel,
            // Without the meter there would be neither.
            Part::Meter | Part::Waiting => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Thief::Reclaim => "reclaim (kswapd, kcompactd, and programs that reclaim themselves)",
            Thief::Programs => "other programs",
            Thief::Hypervisor => "the hypervisor or the firmware",
            Thief::Kernel => "interrupts and kernel threads",
            Thief::Unknown => "interrupts or the hypervisor",
        }
    }

    /// What would give the time back.
    fn remedy(self) -> &'static str {
        match self {
            Thief::Reclaim => {
                "`hiroma quiet serve` reclaims before the kernel has to, and `hiroma quiet advise` names who fills the memory"
            }
            Thief::Programs => {
                "give the work processors of its own (taskset, cpuset), or start fewer programs"
            }
            Thief::Hypervisor => "only another host or a larger share of this one",
            Thief::Kernel => {
                "move interrupts to other processors (/proc/irq/N/smp_affinity), or isolate some (isolcpus, nohz_full)"
            }
            Thief::Unknown => {
                "not known before they are told apart, which root can do (sudo hiroma quiet measure)"
            }
        }
    }
}

/// The sentence.
pub fn verdict(recording: &Recording) -> String {
    verdict_of(&recording.cores, &recording.groups)
}

/// What would give the time back.
fn remedy(thief: Thief, groups: &[(PathBuf, u64)]) -> String {
    match (thief, groups.first()) {
        // A daemon cannot do anything about that.
        (Thief::Reclaim, Some((path, hits))) => format!(
            "raise the limit of the control group {}, which it reached {hits} times",
            path.display()
        ),
        _ => thief.remedy().to_owned(),
    }
}

fn verdict_of(cores: &[CoreNoise], groups: &[(PathBuf, u64)]) -> String {
    let wall_ns: u64 = cores.iter().map(|core| core.wall_ns).sum();
    let share = |ns: u64| format!("{:.2} %", ns as f64 * 100.0 / wall_ns.max(1) as f64);
    let mut by_thief: BTreeMap<Thief, u64> = BTreeMap::new();
    let mut by_program: BTreeMap<&str, u64> = BTreeMap::new();
    for core in cores {
        for (&part, &ns) in &core.parts {
            if let Some(thief) = Thief::of(part) {
                *by_thief.entry(thief).or_default() += ns;
            }
        }
        for (name, kind, ns) in &core.longest {
            if *kind == TaskKind::Program {
                *by_program.entry(name).or_default() += ns;
            }
        }
    }
    let stolen_ns: u64 = by_thief.values().sum();
    let Some((&thief, &most_ns)) = by_thief.iter().max_by_key(|(_, ns)| **ns) else {
        return "Nothing was stolen.".to_owned();
    };
    let reclaim_ns = by_thief.get(&Thief::Reclaim).copied().unwrap_or(0);
    let stolen = share(stolen_ns);
    if stolen_ns.saturating_mul(1_000_000) < wall_ns.saturating_mul(LITTLE_PPM) {
        return format!("{stolen} of the time was stolen: nothing has to be done.");
    }
    let program = by_program.iter().max_by_key(|(_, ns)| **ns).map(|(name, _)| *name);
    let named = match (thief, program) {
        (Thief::Programs, Some(name)) => format!("{}, first of all `{name}`", thief.name()),
        _ => thief.name().to_owned(),
    };
    let reclaim = match (thief, reclaim_ns) {
        (Thief::Reclaim, _) => String::new(),
        (_, 0) => "; none of it is reclaim".to_owned(),
        (_, ns) => format!("; {} is reclaim", share(ns)),
    };
    format!(
        "{stolen} of the time was stolen, {} of it by {named}{reclaim}. What would give back up to {}: {}.",
        share(most_ns),
        share(most_ns),
        remedy(thief, groups)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(parts: &[(Part, u64)]) -> CoreNoise {
        CoreNoise {
            cpu: 0,
            quanta: 1,
            best_ns: 1,
            wall_ns: 1_000_000_000,
            stolen_ns: parts.iter().map(|&(_, ns)| ns).sum(),
            slowed_ns: 0,
            stalled_ns: 0,
            p50_permille: 1000,
            p99_permille: 1000,
            max_permille: 1000,
            parts: parts.iter().copied().collect(),
            longest: vec![
                ("kworker/0:1".to_owned(), TaskKind::Kernel, 9),
                ("dd".to_owned(), TaskKind::Program, 5),
            ],
        }
    }

    #[test]
    fn reclaim_is_named_with_its_remedy() {
        let cores = [core(&[
            (Part::Task(TaskKind::Kswapd), 30_000_000),
            (Part::DirectReclaim, 10_000_000),
            (Part::Steal, 5_000_000),
        ])];
        let said = verdict_of(&cores, &[]);
        assert!(
            said.starts_with("4.50 % of the time was stolen, 4.00 % of it by reclaim"),
            "{said}"
        );
        assert!(said.contains("hiroma quiet serve"), "{said}");
        let said = verdict_of(&cores, &[("/app".into(), 700)]);
        assert!(said.contains("control group /app") && !said.contains("quiet serve"), "{said}");
    }

    #[test]
    fn noise_without_reclaim_is_said_to_be_so() {
        let said = verdict_of(&[core(&[(Part::Task(TaskKind::Program), 80_000_000)])], &[]);
        assert!(said.contains("`dd`; none of it is reclaim") && said.contains("taskset"), "{said}");
        let said = verdict_of(
            &[core(&[(Part::Steal, 80_000_000), (Part::DirectReclaim, 1_000_000)])],
            &[],
        );
        assert!(said.contains("hypervisor") && said.contains("0.10 % is reclaim"), "{said}");
        // Without BPF, on a kernel that does not account interrupts.
        let said = verdict_of(&[core(&[(Part::InterruptsOrSteal, 80_000_000)])], &[]);
        assert!(said.contains("root can do") && !said.contains("another host"), "{said}");
    }

    #[test]
    fn little_noise_needs_nothing() {
        assert!(
            verdict_of(&[core(&[(Part::Interrupts, 100_000)])], &[])
                .ends_with("nothing has to be done.")
        );
        assert_eq!(verdict_of(&[core(&[(Part::Meter, 100_000)])], &[]), "Nothing was stolen.");
    }
}
