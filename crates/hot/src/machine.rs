//! State of the machine: free huge pages, and the settings of transparent huge pages.

use std::fs;
use std::io;

use hiroma_sys::host::proc;
use hiroma_sys::hot::target::{Advice, Span, Target};
use hiroma_sys::quiet::tasks::cpu_times;
use hiroma_sys::vm::{Access, Reservation};
use hiroma_units::{EXTENT, PAGE};

/// Order of a 2 MiB block in `/proc/buddyinfo`.
const HUGE_ORDER: usize = 9;

/// Huge pages that can be made without moving other memory first (`/proc/buddyinfo`: free blocks of
/// at least 2 MiB), and half of the rest of the free memory, which compaction can join.
pub fn free_huge_pages() -> u64 {
    let ready = fs::read_to_string("/proc/buddyinfo").map_or(0, |text| ready_blocks(&text));
    let free_bytes =
        fs::read_to_string("/proc/meminfo").map_or(0, |text| kib(&text, "MemFree:") * 1024);
    let rest = (free_bytes / EXTENT as u64).saturating_sub(ready);
    ready + rest / 2
}

fn ready_blocks(buddyinfo: &str) -> u64 {
    let of_zone = |line: &str| -> u64 {
        let counts = line.split_whitespace().skip(4).enumerate().skip(HUGE_ORDER);
        counts.map(|(order, count)| count.parse::<u64>().unwrap_or(0) << (order - HUGE_ORDER)).sum()
    };
    buddyinfo.lines().map(of_zone).sum()
}

/// The number after `name` in text of the form of `/proc/meminfo` or `/proc/PID/status`, usually in
/// KiB.
pub fn kib(text: &str, name: &str) -> u64 {
    proc::value(text, name).unwrap_or(0)
}

/// How long ago a process began that started `started` clock ticks after boot.
pub fn age_ns(started: u64) -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    now_ns.saturating_sub(started.saturating_mul(proc::tick_ns()))
}

/// Idle time of all processors together since the machine started, in clock ticks: differences over
/// less than some tenths of a second say little. None: unknown.
pub fn idle_ns() -> Option<u64> {
    Some(cpu_times().ok()?.iter().map(|times| times.idle_ns).sum())
}

/// Bytes of anonymous memory that process `pid` has resident (`RssAnon`).
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    Ok(kib(&fs::read_to_string(format!("/proc/{pid}/status"))?, "RssAnon:") * 1024)
}

/// The command line of process `pid`; its short name if it has none.
pub fn command_of(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
    let name = || {
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .map_or(String::new(), |name| name.trim().to_owned())
    };
    if line.is_empty() { name() } else { line.chars().take(200).collect() }
}

/// Why process `pid` cannot have huge pages at all; none if it can.
pub fn huge_pages_refused(pid: u32) -> io::Result<Option<String>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    if status
        .lines()
        .any(|line| line.strip_prefix("THP_enabled:").is_some_and(|rest| rest.trim() == "0"))
    {
        let why = "it, or who started it, has switched them off with prctl(PR_SET_THP_DISABLE); start it without that".to_owned();
        return Ok(Some(why));
    }
    Ok(None)
}

/// The machine's setting of transparent huge pages: `always`, `madvise` or `never`.
pub fn thp_setting() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    text.split_once('[')?.1.split_once(']').map(|(chosen, _)| chosen.to_owned())
}

/// Whether transparent huge pages are set to `never`: the user does not want any then, even where
/// the kernel would still collapse.
pub fn is_never() -> bool {
    pretended("thp-never") || thp_setting().as_deref() == Some("never")
}

/// Environment variable with which tests pretend properties of this machine, separated by commas:
/// `thp-never`, `no-collapse`, `calm` (memory is not short), and `no-` followed by the name of a tracker backend.
const PRETEND: &str = "HIROMA_HOT_PRETEND";

pub(crate) fn pretended(what: &str) -> bool {
    std::env::var(PRETEND).is_ok_and(|list| list.split(',').any(|item| item == what))
}

/// Why the machine makes no huge pages on request (`MADV_COLLAPSE`, Linux 6.1), tried on memory of
/// our own; none if it does. The kernel would also collapse with transparent huge pages set to
/// `never` (Linux 6.18), but the setting shows that the user does not want that.
pub fn collapse_refused() -> Option<String> {
    let setting = if pretended("thp-never") { Some("never".to_owned()) } else { thp_setting() };
    let attempt = || match pretended("no-collapse") {
        true => Err(rustix::io::Errno::INVAL.into()),
        false => collapse_own(),
    };
    refusal(setting.as_deref(), attempt)
}

fn collapse_own() -> io::Result<()> {
    let memory = Reservation::new(EXTENT, EXTENT, Access::ReadWrite)?;
    hiroma_sys::vm::zero(memory.base(), PAGE);
    let ourselves = Target::open(std::process::id())?;
    ourselves
        .advise(&[Span { start: memory.base() as u64, len: EXTENT as u64 }], Advice::Collapse)
        .map(drop)
}

fn refusal(setting: Option<&str>, attempt: impl FnOnce() -> io::Result<()>) -> Option<String> {
    match setting {
        None => {
            return Some(
                "this kernel has no transparent huge pages (CONFIG_TRANSPARENT_HUGEPAGE)"
                    .to_owned(),
            );
        }
        Some("never") => {
            let mended = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
            return Some(format!(
                "transparent huge pages are switched off on this machine: {mended}"
            ));
        }
        Some(_) => {}
    }
    let error = attempt().err()?;
    Some(match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::INVAL) => {
            "this kernel cannot collapse on request: Linux 6.1 or newer is needed (MADV_COLLAPSE)"
                .to_owned()
        }
        _ => format!("collapsing memory of our own failed: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_blocks_of_all_zones_are_summed() {
        let text = "Node 0, zone      DMA      1      1      1      1      1      1      1      1      1      1      2 \n\
                    Node 0, zone   Normal      9      9      9      9      9      9      9      9      9      3     10 \n";
        assert_eq!(ready_blocks(text), 1 + 4 + 3 + 20);
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_bytes(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn each_reason_not_to_collapse_is_distinguished() {
        use rustix::io::Errno;
        let with = |setting, result: Result<(), Errno>| {
            refusal(setting, || result.map_err(io::Error::from))
        };
        assert_eq!(with(Some("madvise"), Ok(())), None);
        assert!(with(Some("never"), Ok(())).unwrap().contains("echo madvise"));
        assert!(with(None, Ok(())).unwrap().contains("CONFIG_TRANSPARENT_HUGEPAGE"));
        assert!(with(Some("always"), Err(Errno::INVAL)).unwrap().contains("Linux 6.1 or newer"));
        assert!(with(Some("always"), Err(Errno::NOMEM)).unwrap().contains("memory of our own"));
    }
}
