//! Advice for this machine after watching it for some seconds: the cheapest remedy first.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use hiroma_sys::cpu::now_ns;
use hiroma_sys::host::memory;
use hiroma_sys::quiet::affinity::{self, show_list};
use hiroma_sys::quiet::memory::{Counters, MemoryInfo};
use hiroma_sys::quiet::mounts::{NetworkMount, network_mounts};
use hiroma_sys::quiet::reclaim::Mechanism;
use hiroma_sys::quiet::tasks::{self, CpuTimes, TaskKind};

use crate::daemon::{Lock, Pins};
use crate::error::QuietError;
use crate::fillers::{Filler, Fillers};
use crate::groups::{self, Groups};

/// A lower fill rate does not matter.
const FILL_BYTES_S_MIN: u64 = 32 << 20;
/// Free memory that lasts for longer than this is no concern.
const LASTS_S: u64 = 60;
/// A processor that is idle for this share, in thousandths, has room for reclaim.
const SPARE_PERMILLE: u64 = 500;
/// A process that moves this share of all bytes, in thousandths, is named.
const NAMED_PERMILLE: u64 = 300;

/// What was observed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Evidence {
    pub seconds: u64,
    /// How often kswapd ran, and its processor time in thousandths of a processor.
    pub kswapd_runs: u64,
    pub kswapd_permille: u64,
    /// Allocations that had to reclaim directly.
    pub direct_reclaims: u64,
    pub fill_bytes_s: u64,
    /// Of the fill rate, what arrived in folios of 2 MiB.
    pub large_bytes_s: u64,
    pub free_bytes: u64,
    /// Largest first; only those that this user may inspect.
    pub fillers: Vec<Filler>,
    /// Whether that is all of them.
    pub sees_all_programs: bool,
    /// Network mounts, and the bytes per second that each moves.
    pub network: Vec<(NetworkMount, u64)>,
    /// Idle time of each processor, in thousandths.
    pub idle_permille: Vec<(usize, u64)>,
    /// Where kswapd may run; empty if no kswapd is visible.
    pub kswapd_cpus: Vec<usize>,
    pub can_reclaim: bool,
    /// Control groups that reached limits of their own, and how often; most first.
    pub groups: Vec<(PathBuf, u64)>,
}

/// A remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Remedy {
    /// Nothing has to be done.
    Nothing,
    /// Start the program that fills the cache with `hiroma quiet run`.
    Run(Filler),
    /// Keep kswapd on these processors, which have time to spare.
    PinKswapd(Vec<usize>),
    /// Reclaim early, off the processors on which programs run: all others have time to spare.
    Serve(Vec<usize>),
    /// A control group reclaims because its own limit is too low.
    RaiseLimit(PathBuf),
    /// Neither a spare processor nor early reclaim is available: only less cache helps.
    LessCache,
}

struct Books {
    counters: Counters,
    times: Vec<CpuTimes>,
    kswapd_ns: u64,
    network: Vec<NetworkMount>,
    groups: Groups,
    at_ns: u64,
}

impl Books {
    fn read() -> Result<Books, QuietError> {
        let counters = MemoryInfo::read(Path::new("/")).map_err(QuietError::Machine)?.counters;
        let kswapds = tasks::reclaimers().into_iter().filter(|task| task.kind == TaskKind::Kswapd);
        Ok(Books {
            counters,
            times: tasks::cpu_times().map_err(QuietError::Machine)?,
            kswapd_ns: kswapds.map(|task| task.run_ns).sum(),
            network: network_mounts(),
            groups: Groups::read(),
            at_ns: now_ns(),
        })
    }
}

/// Watches the machine for `duration`. `progress` is called several times a second; if it returns
/// `false`, watching ends and the result covers the time so far.
pub fn watch(
    duration: Duration,
    progress: &mut dyn FnMut(Duration) -> bool,
) -> Result<Evidence, QuietError> {
    let before = Books::read()?;
    let mut fillers = Fillers::default();
    fillers.look();
    loop {
        let passed = Duration::from_nanos(now_ns() - before.at_ns);
        if passed >= duration || !progress(passed) {
            break;
        }
        thread::sleep((duration - passed).min(Duration::from_millis(200)));
        fillers.look();
    }
    Ok(evidence(&before, &Books::read()?, &fillers))
}

fn evidence(before: &Books, after: &Books, fillers: &Fillers) -> Evidence {
    let ns = (after.at_ns - before.at_ns).max(1);
    let per_s = |amount: u64| (u128::from(amount) * 1_000_000_000 / u128::from(ns)) as u64;
    let permille = |part_ns: u64| (u128::from(part_ns) * 1000 / u128::from(ns)) as u64;
    let grown = |name: &str| after.counters.get(name).saturating_sub(before.counters.get(name));
    let files = |books: &Books| {
        books.counters.get("nr_inactive_file") + books.counters.get("nr_active_file")
    };
    let page = rustix::param::page_size() as u64;
    let stalls = ["allocstall_normal", "allocstall_movable", "allocstall_dma32", "allocstall_dma"];
    let idle = after.times.iter().filter_map(|now| {
        let then = before.times.iter().find(|then| then.cpu == now.cpu)?;
        Some((now.cpu, permille(now.idle_ns.saturating_sub(then.idle_ns)).min(1000)))
    });
    let kswapds = tasks::reclaimers().into_iter().filter(|task| task.kind == TaskKind::Kswapd);
    Evidence {
        seconds: ns / 1_000_000_000,
        kswapd_runs: grown("pageoutrun"),
        kswapd_permille: permille(after.kswapd_ns.saturating_sub(before.kswapd_ns)),
        direct_reclaims: stalls.iter().map(|name| grown(name)).sum(),
        fill_bytes_s: per_s(
            (files(after) + grown("pgsteal_file")).saturating_sub(files(before)) * page,
        ),
        large_bytes_s: per_s(grown("nr_file_hugepages") << 21),
        free_bytes: memory::free().0,
        fillers: fillers.largest_first(per_s),
        sees_all_programs: rustix::process::geteuid().is_root(),
        network: network(&before.network, &after.network)
            .into_iter()
            .map(|(mount, bytes)| (mount, per_s(bytes)))
            .collect(),
        idle_permille: idle.collect(),
        kswapd_cpus: kswapds.filter_map(|task| affinity::of(task.tid).ok()).flatten().collect(),
        can_reclaim: Mechanism::probe(Path::new("/"), &[0]).is_ok(),
        groups: after.groups.since(&before.groups),
    }
}

/// What each mount has moved between two readings.
fn network(before: &[NetworkMount], after: &[NetworkMount]) -> Vec<(NetworkMount, u64)> {
    let bytes = |mount: &NetworkMount| mount.read_bytes.saturating_add(mount.written_bytes);
    let one = |mount: &NetworkMount| {
        let then = before
            .iter()
            .find(|then| (&then.device, &then.place) == (&mount.device, &mount.place))?;
        Some((mount.clone(), bytes(mount).saturating_sub(bytes(then))))
    };
    after.iter().filter_map(one).collect()
}

impl Evidence {
    fn is_reclaiming(&self) -> bool {
        self.kswapd_runs > 0 || self.direct_reclaims > 0
    }

    /// Processors that have room for reclaim: at most the idlest half of all, and at most two; the
    /// rest is left to programs.
    fn spare(&self) -> Vec<usize> {
        let mut idle: Vec<(usize, u64)> =
            self.idle_permille.iter().copied().filter(|one| one.1 >= SPARE_PERMILLE).collect();
        idle.sort_by_key(|&(cpu, permille)| (std::cmp::Reverse(permille), std::cmp::Reverse(cpu)));
        idle.truncate((self.idle_permille.len() / 2).min(2));
        let mut cpus: Vec<usize> = idle.into_iter().map(|one| one.0).collect();
        cpus.sort_unstable();
        cpus
    }

    /// The remedies, the cheapest first.
    pub fn remedies(&self) -> Vec<Remedy> {
        let lasts_s = self.free_bytes.checked_div(self.fill_bytes_s).unwrap_or(u64::MAX);
        let soon = self.fill_bytes_s >= FILL_BYTES_S_MIN && lasts_s < LASTS_S;
        let limited = self.groups.iter().filter(|(_, hits)| *hits >= groups::HITS_MIN);
        let limited: Vec<Remedy> =
            limited.map(|(path, _)| Remedy::RaiseLimit(path.clone())).take(groups::NAMED).collect();
        if !self.is_reclaiming() && !soon {
            return if limited.is_empty() { vec![Remedy::Nothing] } else { limited };
        }
        let moved: u64 = self.fillers.iter().map(|filler| filler.bytes_s).sum();
        let named = |filler: &&Filler| {
            filler.bytes_s >= FILL_BYTES_S_MIN && filler.bytes_s * 1000 >= moved * NAMED_PERMILLE
        };
        let mut remedies: Vec<Remedy> =
            self.fillers.iter().filter(named).cloned().map(Remedy::Run).collect();
        let spare = self.spare();
        if !spare.is_empty() && self.kswapd_cpus.iter().any(|cpu| !spare.contains(cpu)) {
            remedies.push(Remedy::PinKswapd(spare.clone()));
        }
        if self.can_reclaim && !spare.is_empty() {
            let cpus = self.idle_permille.iter().map(|one| one.0);
            remedies.push(Remedy::Serve(cpus.filter(|cpu| !spare.contains(cpu)).collect()));
        }
        remedies.extend(limited);
        if remedies.is_empty() {
            remedies.push(Remedy::LessCache);
        }
        remedies
    }

    /// The evidence as text, one item per line.
    pub fn lines(&self) -> Vec<String> {
        let mib = |bytes: u64| bytes >> 20;
        let mut lines = vec![
            format!(
                "kswapd ran {} times within {} s and took {}.{} % of a processor; {} allocations had to reclaim by themselves",
                self.kswapd_runs,
                self.seconds,
                self.kswapd_permille / 10,
                self.kswapd_permille % 10,
                self.direct_reclaims
            ),
            format!(
                "the file cache fills at {} MiB/s ({} MiB/s in folios of 2 MiB); {} MiB are free",
                mib(self.fill_bytes_s),
                mib(self.large_bytes_s),
                mib(self.free_bytes)
            ),
        ];
        let idle =
            self.idle_permille.iter().map(|(cpu, permille)| format!("{cpu}: {} %", permille / 10));
        lines.push(format!("idle processors: {}", idle.collect::<Vec<_>>().join(", ")));
        for filler in self.fillers.iter().filter(|filler| filler.bytes_s >= 1 << 20).take(3) {
            lines.push(format!(
                "{} (process {}) moves {} MiB/s from and to devices",
                filler.name,
                filler.pid,
                mib(filler.bytes_s)
            ));
        }
        if !self.sees_all_programs {
            lines.push(
                "what programs of other users move is not seen: run this as root for that"
                    .to_owned(),
            );
        }
        for (path, hits) in self.groups.iter().take(groups::NAMED) {
            lines.push(format!(
                "the control group {} reached its own limit {hits} times: it reclaims whatever the machine has free",
                path.display()
            ));
        }
        for (mount, bytes_s) in self.network.iter().filter(|one| one.1 >= 1 << 20) {
            let share = (bytes_s * 100).checked_div(self.fill_bytes_s).unwrap_or(0).min(100);
            let NetworkMount { device, place, .. } = mount;
            lines.push(format!(
                "{device} on {place} moves {} MiB/s over the network: up to {share} % of what fills the cache",
                mib(*bytes_s)
            ));
        }
        lines
    }
}

impl Remedy {
    /// The remedy as text, with the command.
    pub fn describe(&self) -> String {
        match self {
            Remedy::Nothing => "nothing has to be done: the kernel does not reclaim, and is not about to".to_owned(),
            Remedy::Run(Filler { pid, name, .. }) => {
                format!("start {name} (process {pid}) so that it leaves the cache alone: hiroma quiet run -- {name} ...")
            }
            Remedy::PinKswapd(cpus) => {
                let list = show_list(cpus);
                format!("keep kswapd on processors {list}, which have time to spare: sudo hiroma quiet advise --apply")
            }
            Remedy::Serve(cpus) => {
                let list = show_list(cpus);
                format!("reclaim before the kernel has to: sudo hiroma quiet serve --app-cpus {list}")
            }
            Remedy::RaiseLimit(path) => {
                let group = path.display();
                format!(
                    "raise the limit of the control group {group}, or run what is in it with far memory: hiroma run --local SIZE -- ...; no daemon can help inside a group"
                )
            }
            Remedy::LessCache => {
                "no processor has time to spare, and no program stands out: early reclaim would only move the cost. Run what fills \
                                  the cache with `hiroma quiet run`, or at another time"
                    .to_owned()
            }
        }
    }
}

/// Applies the remedies that can be applied immediately. They last until `hiroma quiet restore`, or
/// the next daemon. Returns what was done.
pub fn apply(remedies: &[Remedy], state: &Path) -> Result<Vec<String>, QuietError> {
    let Some(cpus) = remedies
        .iter()
        .find_map(|remedy| if let Remedy::PinKswapd(cpus) = remedy { Some(cpus) } else { None })
    else {
        return Ok(Vec::new());
    };
    let lock = Lock::take(state)?;
    crate::daemon::restore(state, &lock)?;
    let kswapds = tasks::reclaimers().into_iter().filter(|task| task.kind == TaskKind::Kswapd);
    pin(kswapds.map(|task| (task.tid, task.name)).collect(), cpus, state)
}

fn pin(
    threads: Vec<(u32, String)>,
    cpus: &[usize],
    state: &Path,
) -> Result<Vec<String>, QuietError> {
    let mut pins = Pins::new(state);
    let mut lines = Vec::new();
    for (tid, name) in threads {
        match pins.confine(tid, &name, cpus) {
            Ok(()) => lines.push(format!("{name} is confined to processors {}", show_list(cpus))),
            Err(reason) => return Err(QuietError::NoMechanism(reason)),
        }
    }
    pins.keep();
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn busy() -> Evidence {
        Evidence {
            seconds: 5,
            kswapd_runs: 40,
            fill_bytes_s: 900 << 20,
            free_bytes: 200 << 20,
            fillers: vec![
                Filler { pid: 7, name: "cp".to_owned(), bytes_s: 800 << 20 },
                Filler { pid: 8, name: "x".to_owned(), bytes_s: 9 },
            ],
            idle_permille: vec![(0, 20), (1, 100), (2, 30), (3, 900)],
            kswapd_cpus: vec![0, 1, 2, 3],
            can_reclaim: true,
            ..Evidence::default()
        }
    }

    #[test]
    fn remedies_order_cache_filler_then_kswapd_then_daemon() {
        let remedies = busy().remedies();
        let Remedy::Run(filler) = &remedies[0] else { panic!("{remedies:?}") };
        assert_eq!(filler.name, "cp");
        assert_eq!(remedies[1..], [Remedy::PinKswapd(vec![3]), Remedy::Serve(vec![0, 1, 2])]);
        assert!(remedies[2].describe().ends_with("quiet serve --app-cpus 0-2"), "{remedies:?}");
        let lines = busy().lines();
        assert!(lines[3].contains("cp (process 7) moves 800 MiB/s"), "{lines:?}");
        assert!(lines[4].contains("run this as root"), "{lines:?}");
        let pinned = Evidence { kswapd_cpus: vec![3], fillers: Vec::new(), ..busy() };
        assert_eq!(pinned.remedies(), [Remedy::Serve(vec![0, 1, 2])]);
    }

    #[test]
    fn busy_processors_are_reported() {
        let all = Evidence { idle_permille: vec![(0, 0), (1, 10)], fillers: Vec::new(), ..busy() };
        assert_eq!(all.remedies(), [Remedy::LessCache]);
        assert!(Remedy::LessCache.describe().contains("no processor has time to spare"));
        // A single processor is never reserved for reclaim.
        assert_eq!(
            Evidence { idle_permille: vec![(0, 900)], fillers: Vec::new(), ..busy() }.remedies(),
            [Remedy::LessCache]
        );
    }

    #[test]
    fn quiet_machine_needs_nothing_unless_memory_is_low() {
        let calm = Evidence { kswapd_runs: 0, free_bytes: 100 << 30, ..busy() };
        assert_eq!(calm.remedies(), [Remedy::Nothing]);
        assert_ne!(Evidence { free_bytes: 1 << 30, ..calm }.remedies(), [Remedy::Nothing]);
    }

    #[test]
    fn network_file_systems_are_named_as_cache_fillers() {
        let mount = |place: &str, read_bytes| NetworkMount {
            device: "host:/srv".to_owned(),
            place: place.to_owned(),
            read_bytes,
            written_bytes: 5,
        };
        // One was mounted in between: what it moved is unknown.
        let moved = network(&[mount("/a", 100)], &[mount("/a", 900), mount("/b", 9)]);
        assert_eq!(moved, [(mount("/a", 900), 800)]);
        let seen =
            Evidence { network: vec![(mount("/a", 0), 450 << 20), (mount("/b", 0), 9)], ..busy() };
        let lines = seen.lines();
        assert!(
            lines
                .last()
                .unwrap()
                .contains("host:/srv on /a moves 450 MiB/s over the network: up to 50 %"),
            "{lines:?}"
        );
    }

    #[test]
    fn watching_ends_when_told() {
        let mut asked = 0;
        let seen = watch(Duration::from_secs(60), &mut |_| {
            asked += 1;
            asked < 3
        });
        assert!(!seen.unwrap().idle_permille.is_empty());
    }

    #[test]
    fn applied_remedies_stay_until_restored() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let all = affinity::of(child.id()).unwrap();
        let done = pin(vec![(child.id(), "stand-in".to_owned())], &all[..1], dir.path());
        let (confined, lock) = (affinity::of(child.id()), Lock::take(dir.path()).unwrap());
        let restored = crate::daemon::restore(dir.path(), &lock);
        let back = affinity::of(child.id());
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(done.unwrap().len(), 1);
        assert_eq!(confined.unwrap(), all[..1]);
        assert_eq!((restored.unwrap().len(), back.unwrap()), (1, all));
    }
}
