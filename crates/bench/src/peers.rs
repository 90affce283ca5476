//! The alternatives to far memory: swap to compressed memory (zram) or to a file, under the memory
//! limit of a control group.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use hiroma_sys::host::cgroup::memory_controller;
use hiroma_sys::host::proc;
use rustix::process::{Pid, Signal, kill_process};

use super::undo::{Guard, Undo};

/// Directories with the tools of util-linux, for users whose `PATH` lacks the system directories.
pub const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";
/// Higher than that of any other swap area, so that a limited program swaps to ours.
const PRIORITY: &str = "32000";
/// Memory that a limited program gets beyond the local limit for its text, stack, libraries and
/// page tables, which our own limit does not include either.
pub const ALLOWANCE_BYTES: u64 = 8 << 20;

/// A peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SwapKind {
    Zram,
    File,
}

impl SwapKind {
    /// Name in keys and tables.
    pub fn name(self) -> &'static str {
        match self {
            SwapKind::Zram => "zram",
            SwapKind::File => "swap file",
        }
    }
}

/// A private swap area, made once and switched on for the time of a run.
pub struct SwapArea {
    path: PathBuf,
    /// Its properties: algorithm, file system.
    pub description: String,
    // Dropped last: the device or file is removed after swapping to it has ended.
    _made: Guard,
}

/// Keeps swapping on until dropped.
pub struct SwapOn(#[allow(dead_code, reason = "held for its drop")] Guard);

/// A control group with a memory limit, removed when dropped.
pub struct Cgroup {
    path: PathBuf,
    _made: Guard,
}

/// Number of pages that the machine has read from and written to swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapTraffic {
    pub pages_in: u64,
    pub pages_out: u64,
}

/// Why peers cannot be measured here; none if they can.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("swap peers are skipped: they need root (run the bench with sudo)".into());
    }
    if let Err(error) = memory_controller() {
        return Some(format!("swap peers are skipped: {error:#}"));
    }
    None
}

impl SwapArea {
    /// Makes a swap area for `bytes`.
    pub fn make(kind: SwapKind, bytes: u64) -> Result<SwapArea> {
        let (path, description, made) = match kind {
            SwapKind::Zram => make_zram(bytes)?,
            SwapKind::File => make_file(bytes)?,
        };
        system("mkswap", &[path.as_os_str()])?;
        Ok(SwapArea { path, description, _made: made })
    }

    /// Memory that it takes now; 0 for a file.
    pub fn memory_bytes(&self) -> u64 {
        let device = self.path.file_name().unwrap_or_default();
        // The third field of mm_stat is mem_used_total
        // (Documentation/admin-guide/blockdev/zram.rst).
        let stat = fs::read_to_string(Path::new("/sys/block").join(device).join("mm_stat"))
            .unwrap_or_default();
        stat.split_whitespace().nth(2).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// Starts swapping to it.
    pub fn switch_on(&self) -> Result<SwapOn> {
        let guard = Guard::new(Undo::SwapOff(self.path.clone()));
        if let Err(error) =
            system("swapon", &["-p".as_ref(), PRIORITY.as_ref(), self.path.as_os_str()])
        {
            guard.disarm();
            return Err(error);
        }
        Ok(SwapOn(guard))
    }
}

fn make_zram(bytes: u64) -> Result<(PathBuf, String, Guard)> {
    if !Path::new("/sys/class/zram-control").exists() {
        // The module is not loaded, or zram is built in: loading it is harmless either way.
        let _ = Command::new("modprobe")
            .env("PATH", SYSTEM_PATH)
            .args(["zram", "num_devices=0"])
            .stderr(Stdio::null())
            .status();
    }
    let id = fs::read_to_string("/sys/class/zram-control/hot_add")
        .context("no zram here: this kernel has no /sys/class/zram-control (modprobe zram)")?;
    let id: u32 = id.trim().parse().context("reading the number of a new zram device")?;
    let made = Guard::new(Undo::ZramRemove(id));
    let dir = PathBuf::from(format!("/sys/block/zram{id}"));
    let _ = fs::write(dir.join("comp_algorithm"), "lz4");
    let algorithms = fs::read_to_string(dir.join("comp_algorithm")).unwrap_or_default();
    let algorithm = algorithms
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or("unknown", |(name, _)| name);
    fs::write(dir.join("disksize"), bytes.to_string())
        .with_context(|| format!("setting the size of zram{id} to {bytes}"))?;
    let device = PathBuf::from(format!("/dev/zram{id}"));
    ensure!(
        device.exists(),
        "the kernel made zram{id}, but {} is not there: is devtmpfs mounted on /dev?",
        device.display()
    );
    Ok((device, format!("zram with {algorithm}"), made))
}

fn make_file(bytes: u64) -> Result<(PathBuf, String, Guard)> {
    let path = PathBuf::from(format!("/var/tmp/hiroma-bench-{}.swap", std::process::id()));
    let made = Guard::new(Undo::FileRemove(path.clone()));
    let file = {
        use std::os::unix::fs::OpenOptionsExt;
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("creating {}", path.display()))?
    };
    let room = rustix::fs::fstatvfs(&file)?;
    let free = room.f_bavail * room.f_frsize;
    ensure!(
        free > bytes + (1 << 30),
        "{} has only {} MiB free, {} MiB and a reserve of 1 GiB are needed",
        path.display(),
        free >> 20,
        bytes >> 20
    );
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).with_context(
        || {
            format!(
                "allocating {} MiB for {}: does this file system support swap files?",
                bytes >> 20,
                path.display()
            )
        },
    )?;
    file.sync_all()?;
    Ok((path, "swap file in /var/tmp".to_owned(), made))
}

fn system(program: &str, args: &[&std::ffi::OsStr]) -> Result<()> {
    let output =
        Command::new(program).env("PATH", SYSTEM_PATH).args(args).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {program} (package util-linux)"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

impl Cgroup {
    /// Makes a private group, limited to `bytes` of memory and with unlimited swap.
    pub fn make(bytes: u64) -> Result<Cgroup> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (root, second) = memory_controller()?;
        if second {
            let control = root.join("cgroup.subtree_control");
            let enabled = fs::read_to_string(&control).unwrap_or_default();
            if !enabled.split_whitespace().any(|name| name == "memory") {
                fs::write(&control, "+memory")
                    .context("enabling the memory controller for new control groups")?;
            }
        }
        let path = root.join(format!("hiroma-bench-{}-{number}", std::process::id()));
        let made = Guard::new(Undo::CgroupRemove(path.clone()));
        fs::create_dir(&path)
            .with_context(|| format!("making the control group {}", path.display()))?;
        let limit = path.join(if second { "memory.max" } else { "memory.limit_in_bytes" });
        fs::write(&limit, bytes.to_string())
            .with_context(|| format!("setting {}", limit.display()))?;
        Ok(Cgroup { path, _made: made })
    }

    /// Path of the group's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Present memory of the group, without the page cache of files, which is reclaimed when its
    /// room is needed.
    pub fn memory_bytes(&self) -> u64 {
        let files = ["memory.current", "memory.usage_in_bytes"];
        let text = files.iter().find_map(|name| fs::read_to_string(self.path.join(name)).ok());
        let all: u64 = text.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let stat = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        all.saturating_sub(word_after(&stat, "active_file") + word_after(&stat, "inactive_file"))
    }

    /// Kills the remaining processes of the group, and waits until they are gone.
    pub fn clear(&self) {
        for _ in 0..300 {
            let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
            let left: Vec<_> =
                text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect();
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Number of times that the kernel killed a process of the group because memory ran out.
    pub fn kills(&self) -> u64 {
        let text = ["memory.events", "memory.oom_control"]
            .iter()
            .find_map(|name| fs::read_to_string(self.path.join(name)).ok());
        word_after(&text.unwrap_or_default(), "oom_kill")
    }
}

/// Compressed memory in front of every swap area of the machine (zswap), switched off when dropped.
pub struct Zswap {
    /// Its properties.
    pub description: String,
    /// Whether the kernel charges compressed data to the control group, as it does with version 2.
    charged: bool,
    _settings: Vec<Guard>,
}

impl Zswap {
    /// Switches it on, with the algorithm that zram uses here.
    pub fn switch_on() -> Result<Zswap> {
        let dir = Path::new("/sys/module/zswap/parameters");
        ensure!(
            dir.join("enabled").exists(),
            "no zswap here: this kernel has no {}",
            dir.display()
        );
        let (_, charged) = memory_controller()?;
        let mut settings = Vec::new();
        let mut set = |name: &str, value: &str| -> Result<()> {
            let path = dir.join(name);
            let before = fs::read_to_string(&path)?.trim().to_owned();
            settings.push(Guard::new(Undo::FileWrite(path.clone(), before)));
            fs::write(&path, value)
                .with_context(|| format!("writing {value} to {}", path.display()))
        };
        // A kernel without this algorithm keeps its present one.
        let _ = set("compressor", "lz4");
        set("enabled", "Y")?;
        let algorithm = fs::read_to_string(dir.join("compressor")).unwrap_or_default();
        Ok(Zswap {
            description: format!("zswap with {}", algorithm.trim()),
            charged,
            _settings: settings,
        })
    }

    /// Memory that it takes now, beyond what the control group counts.
    pub fn memory_bytes(&self) -> u64 {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = proc::value(&text, "Zswap:");
        if self.charged { 0 } else { kib.unwrap_or(0) << 10 }
    }
}

/// Makes the kernel reclaim everything in a group, including the swap cache.
pub fn reclaim(cgroup: &Path) {
    // Both report failure when memory remains, which the caller checks in its own way.
    let second = cgroup.join("memory.reclaim");
    if second.exists() {
        let _ = fs::write(second, "1T");
    } else {
        let _ = fs::write(cgroup.join("memory.force_empty"), "0");
    }
}

fn word_after(text: &str, key: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    value.unwrap_or(0)
}

impl SwapTraffic {
    /// Traffic since the machine was booted.
    pub fn now() -> SwapTraffic {
        let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        SwapTraffic {
            pages_in: word_after(&text, "pswpin"),
            pages_out: word_after(&text, "pswpout"),
        }
    }

    /// Traffic from `earlier` to `self`.
    pub fn since(self, earlier: SwapTraffic) -> SwapTraffic {
        SwapTraffic {
            pages_in: self.pages_in - earlier.pages_in,
            pages_out: self.pages_out - earlier.pages_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_full_name() {
        let text = "pswpin 12\npswpout 7\noom_kill_disable 0\nunder_oom 1\noom_kill 3\n";
        assert_eq!(
            (word_after(text, "pswpin"), word_after(text, "oom_kill"), word_after(text, "swp")),
            (12, 3, 0)
        );
    }

    #[test]
    fn swap_area_and_cgroup_leave_nothing_behind() {
        if let Some(reason) = obstacle() {
            hiroma_testkit::skip!(Machine, "{reason}");
            return;
        }
        let swaps = || fs::read_to_string("/proc/swaps").unwrap();
        let devices = || {
            fs::read_dir("/sys/block")
                .unwrap()
                .filter(|entry| {
                    entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("zram")
                })
                .count()
        };
        let before = (swaps(), devices());
        let settings =
            fs::read_to_string("/sys/module/zswap/parameters/enabled").unwrap_or_default();
        for kind in [SwapKind::Zram, SwapKind::File] {
            let area = match SwapArea::make(kind, 16 << 20) {
                Ok(area) => area,
                Err(reason) => {
                    hiroma_testkit::skip!(Machine, "{reason:#}");
                    continue;
                }
            };
            let on = area.switch_on().unwrap();
            assert!(swaps().contains(area.path.to_str().unwrap()));
            drop(on);
            let path = area.path.clone();
            drop(area);
            assert!(kind == SwapKind::Zram || !path.exists());
        }
        match Zswap::switch_on() {
            Ok(zswap) => {
                let enabled =
                    || fs::read_to_string("/sys/module/zswap/parameters/enabled").unwrap();
                assert_eq!(enabled().trim(), "Y");
                drop(zswap);
                assert_eq!(enabled(), settings);
            }
            Err(reason) => hiroma_testkit::skip!(Machine, "{reason:#}"),
        }
        let cgroup = Cgroup::make(8 << 20).unwrap();
        let path = cgroup.path().to_owned();
        assert_eq!((path.exists(), cgroup.kills()), (true, 0));
        drop(cgroup);
        assert!(!path.exists());
        assert_eq!((swaps(), devices()), before);
    }
}
