//! The arms: which noise, where kswapd runs, and which remedy is applied.

use super::load::Way;

/// Processors on which kswapd may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kswapd {
    Free,
    /// The application's: the constructed worst case.
    App,
    Spare,
}

/// Remedy against the noise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remedy {
    None,
    /// `hiroma quiet serve` on the spare processor; kswapd stays where the arm puts it.
    Daemon,
    /// `hiroma quiet serve --app-cpus`, which moves kswapd too.
    DaemonAndPin,
    /// `vm.watermark_scale_factor` at its maximum.
    WatermarkScale,
    /// `vm.min_free_kbytes` of 1 GiB.
    MinFree,
    /// The reader runs in a control group with little memory.
    Cgroup,
    /// The load is started by `hiroma quiet run`.
    QuietRun,
}

/// One arm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arm {
    /// Key in the figures.
    pub key: &'static str,
    pub name: &'static str,
    pub group: Group,
    pub way: Option<Way>,
    pub kswapd: Kswapd,
    pub remedy: Remedy,
    /// The application allocates and frees memory in each step.
    pub alloc: bool,
}

/// Experiments that `--only` can select.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub enum Group {
    Small,
    Large,
    Alloc,
    Write,
    Peers,
    /// Hot files, before and after a stream.
    Hot,
    /// Throughput of a reader without a rate limit.
    Stream,
    /// The daemon while nothing happens.
    Idle,
    /// A reader of a file over NFS.
    Nfs,
}

const fn arm(
    key: &'static str,
    name: &'static str,
    group: Group,
    way: Option<Way>,
    kswapd: Kswapd,
    remedy: Remedy,
) -> Arm {
    Arm { key, name, group, way, kswapd, remedy, alloc: false }
}

const fn alloc(key: &'static str, name: &'static str, way: Option<Way>, remedy: Remedy) -> Arm {
    Arm { key, name, group: Group::Alloc, way, kswapd: Kswapd::App, remedy, alloc: true }
}

const SMALL: Option<Way> = Some(Way::Small);
const LARGE: Option<Way> = Some(Way::Large);

/// In the order in which they run in a round: arms that are compared are neighbours.
pub const ARMS: [Arm; 31] = [
    arm("direct", "direct I/O", Group::Small, Some(Way::Direct), Kswapd::App, Remedy::None),
    arm("quiet", "quiet", Group::Small, None, Kswapd::Free, Remedy::None),
    arm(
        "small_app",
        "order 0, kswapd on the application's core",
        Group::Small,
        SMALL,
        Kswapd::App,
        Remedy::None,
    ),
    arm("small_app_daemon", "the same, daemon", Group::Small, SMALL, Kswapd::App, Remedy::Daemon),
    arm(
        "small_app_full",
        "the same, daemon that also moves kswapd",
        Group::Small,
        SMALL,
        Kswapd::App,
        Remedy::DaemonAndPin,
    ),
    arm("small_free", "order 0, kswapd free", Group::Small, SMALL, Kswapd::Free, Remedy::None),
    arm("small_free_daemon", "the same, daemon", Group::Small, SMALL, Kswapd::Free, Remedy::Daemon),
    arm(
        "small_spare",
        "order 0, kswapd on the spare core",
        Group::Small,
        SMALL,
        Kswapd::Spare,
        Remedy::None,
    ),
    arm(
        "small_spare_daemon",
        "the same, daemon",
        Group::Small,
        SMALL,
        Kswapd::Spare,
        Remedy::Daemon,
    ),
    arm("large_quiet", "quiet, again", Group::Large, None, Kswapd::Free, Remedy::None),
    arm(
        "large_app",
        "large folios, kswapd on the application's core",
        Group::Large,
        LARGE,
        Kswapd::App,
        Remedy::None,
    ),
    arm("large_app_daemon", "the same, daemon", Group::Large, LARGE, Kswapd::App, Remedy::Daemon),
    arm(
        "large_app_full",
        "the same, daemon that also moves kswapd",
        Group::Large,
        LARGE,
        Kswapd::App,
        Remedy::DaemonAndPin,
    ),
    arm("large_free", "large folios, kswapd free", Group::Large, LARGE, Kswapd::Free, Remedy::None),
    arm(
        "large_spare",
        "large folios, kswapd on the spare core",
        Group::Large,
        LARGE,
        Kswapd::Spare,
        Remedy::None,
    ),
    alloc("alloc_quiet", "allocating, quiet", None, Remedy::None),
    alloc(
        "alloc_app",
        "allocating, order 0, kswapd on the application's core",
        SMALL,
        Remedy::None,
    ),
    alloc("alloc_app_daemon", "the same, daemon", SMALL, Remedy::Daemon),
    arm(
        "write_app",
        "writer, kswapd on the application's core",
        Group::Write,
        Some(Way::Write),
        Kswapd::App,
        Remedy::None,
    ),
    arm(
        "write_app_daemon",
        "the same, daemon",
        Group::Write,
        Some(Way::Write),
        Kswapd::App,
        Remedy::Daemon,
    ),
    arm(
        "write_quiet_run",
        "the same, writer under quiet run",
        Group::Write,
        Some(Way::Write),
        Kswapd::App,
        Remedy::QuietRun,
    ),
    arm("nfs_quiet", "quiet, again", Group::Nfs, None, Kswapd::Free, Remedy::None),
    arm(
        "nfs_app",
        "file over NFS, kswapd on the application's core",
        Group::Nfs,
        Some(Way::Nfs),
        Kswapd::App,
        Remedy::None,
    ),
    arm(
        "nfs_app_daemon",
        "the same, daemon",
        Group::Nfs,
        Some(Way::Nfs),
        Kswapd::App,
        Remedy::Daemon,
    ),
    arm("peers_quiet", "quiet, again", Group::Peers, None, Kswapd::Free, Remedy::None),
    arm(
        "quiet_run",
        "application's core, reader under quiet run",
        Group::Peers,
        LARGE,
        Kswapd::App,
        Remedy::QuietRun,
    ),
    arm(
        "watermark_scale",
        "large folios, application's core, watermark_scale_factor 1000",
        Group::Peers,
        LARGE,
        Kswapd::App,
        Remedy::WatermarkScale,
    ),
    arm(
        "min_free",
        "large folios, application's core, min_free_kbytes 1 GiB",
        Group::Peers,
        LARGE,
        Kswapd::App,
        Remedy::MinFree,
    ),
    arm(
        "cgroup",
        "large folios, application's core, reader in a control group of 256 MiB",
        Group::Peers,
        LARGE,
        Kswapd::App,
        Remedy::Cgroup,
    ),
    arm(
        "dontcache",
        "application's core, reader with RWF_DONTCACHE",
        Group::Peers,
        Some(Way::DontCache),
        Kswapd::App,
        Remedy::None,
    ),
    arm(
        "fadvise",
        "application's core, reader with fadvise DONTNEED",
        Group::Peers,
        Some(Way::Fadvise),
        Kswapd::App,
        Remedy::None,
    ),
];

impl Arm {
    /// The arm that this one is compared with: the nearest quiet one of the same round.
    pub fn baseline(&self) -> &'static str {
        match self.group {
            Group::Alloc => "alloc_quiet",
            Group::Large => "large_quiet",
            Group::Nfs => "nfs_quiet",
            Group::Peers => "peers_quiet",
            _ => "quiet",
        }
    }

    /// Whether the page cache is filled before the arm begins. Not if its reader does not use the
    /// cache: then kswapd would have no reason to run.
    pub fn wants_full(&self) -> bool {
        matches!(self.way, Some(Way::Small | Way::Large | Way::Write | Way::Nfs))
            && self.remedy != Remedy::QuietRun
    }

    /// Whether the daemon runs.
    pub fn has_daemon(&self) -> bool {
        matches!(self.remedy, Remedy::Daemon | Remedy::DaemonAndPin)
    }
}

/// The wanted arms, with the arms that they are compared with.
pub fn with_baselines(is_wanted: impl Fn(&Arm) -> bool) -> Vec<Arm> {
    let wanted: Vec<&Arm> = ARMS.iter().filter(|arm| is_wanted(arm)).collect();
    let is_baseline = |arm: &Arm| wanted.iter().any(|wanted| wanted.baseline() == arm.key);
    ARMS.iter().filter(|arm| is_wanted(arm) || is_baseline(arm)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_has_unique_name_and_baseline() {
        for (index, arm) in ARMS.iter().enumerate() {
            assert!(ARMS.iter().skip(index + 1).all(|other| other.key != arm.key), "{}", arm.key);
            let baseline = ARMS.iter().find(|other| other.key == arm.baseline()).unwrap();
            assert!(
                baseline.way.is_none()
                    && baseline.remedy == Remedy::None
                    && baseline.alloc == arm.alloc,
                "{}",
                arm.key
            );
        }
        let write: Vec<&str> =
            with_baselines(|arm| arm.group == Group::Write).iter().map(|arm| arm.key).collect();
        assert_eq!(write, ["quiet", "write_app", "write_app_daemon", "write_quiet_run"]);
        assert_eq!(
            (with_baselines(|_| false).len(), with_baselines(|_| true).len()),
            (0, ARMS.len())
        );
    }
}
