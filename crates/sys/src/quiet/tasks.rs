//! Which tasks used the processors: `/proc/PID/schedstat`, `/proc/stat`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use crate::host::proc;

/// Duration of a tick of `/proc/stat` and `/proc/PID/stat` (`USER_HZ`), the same on every supported
/// Linux architecture.
const TICK_NS: u64 = 10_000_000;

/// The kind of a thread, as far as its name shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TaskKind {
    Kswapd,
    Kcompactd,
    Khugepaged,
    /// Worker threads that write back dirty pages.
    Writeback,
    /// Other kernel threads.
    Kernel,
    Program,
}

/// One thread and the processor time that it has used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    pub tid: u32,
    pub name: String,
    pub kind: TaskKind,
    pub run_ns: u64,
    /// The processor on which it last ran.
    pub cpu: usize,
}

/// Times of one processor since boot (`/proc/stat`; in steps of 10 ms).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuTimes {
    pub cpu: usize,
    pub idle_ns: u64,
    pub interrupts_ns: u64,
    pub steal_ns: u64,
}

impl TaskKind {
    /// The kind, by the name of a thread and whether it is a kernel thread.
    pub fn of(name: &str, is_kernel: bool) -> TaskKind {
        match name {
            _ if !is_kernel => TaskKind::Program,
            _ if name.starts_with("kswapd") => TaskKind::Kswapd,
            _ if name.starts_with("kcompactd") => TaskKind::Kcompactd,
            _ if name.starts_with("khugepaged") => TaskKind::Khugepaged,
            _ if name.starts_with("kworker") && name.contains("flush") => TaskKind::Writeback,
            _ => TaskKind::Kernel,
        }
    }

    /// A name for users.
    pub fn name(self) -> &'static str {
        match self {
            TaskKind::Kswapd => "kswapd",
            TaskKind::Kcompactd => "kcompactd",
            TaskKind::Khugepaged => "khugepaged",
            TaskKind::Writeback => "writeback",
            TaskKind::Kernel => "other kernel threads",
            TaskKind::Program => "other programs",
        }
    }
}

/// Fields of `/proc/PID/stat`: name, whether it is a kernel thread (`PF_KTHREAD`), the processor it
/// last ran on.
fn parse_stat(text: &str) -> Option<(String, bool, usize)> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let flags: u64 = proc::field(text, proc::FLAGS)?;
    Some((proc::name(text)?.to_owned(), flags & PF_KTHREAD != 0, proc::field(text, proc::CPU)?))
}

/// First two fields of `/proc/PID/schedstat`: processor time, and time spent waiting for a
/// processor while able to run.
pub fn parse_schedstat(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_whitespace().map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}

fn task(dir: &str, tid: u32) -> Option<Task> {
    let (name, is_kernel, cpu) = parse_stat(&fs::read_to_string(format!("{dir}/stat")).ok()?)?;
    let (run_ns, _) = parse_schedstat(&fs::read_to_string(format!("{dir}/schedstat")).ok()?)?;
    Some(Task { tid, kind: TaskKind::of(&name, is_kernel), name, run_ns, cpu })
}

/// Current values of thread `tid`; none if it has ended, or the kernel has no such statistics.
pub fn one(tid: u32) -> Option<Task> {
    task(&format!("/proc/{tid}"), tid)
}

pub(super) fn numbers_in(dir: &str) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// All visible threads of the machine.
pub fn all() -> Vec<Task> {
    let of_process = |pid: u32| {
        let dir = format!("/proc/{pid}/task");
        numbers_in(&dir).into_iter().filter_map(move |tid| task(&format!("{dir}/{tid}"), tid))
    };
    numbers_in("/proc").into_iter().flat_map(of_process).collect()
}

/// The kernel threads that reclaim and compact.
pub fn reclaimers() -> Vec<Task> {
    let wanted = |task: &Task| {
        matches!(task.kind, TaskKind::Kswapd | TaskKind::Kcompactd | TaskKind::Khugepaged)
    };
    numbers_in("/proc").into_iter().filter_map(one).filter(wanted).collect()
}

/// A thread's own waiting time, to be read repeatedly.
#[derive(Debug)]
pub struct Waited(File);

impl Waited {
    /// For the calling thread. Fails if the kernel has no `CONFIG_SCHED_INFO`.
    pub fn of_this_thread() -> io::Result<Waited> {
        let waited = Waited(File::open("/proc/thread-self/schedstat")?);
        waited.ns()?;
        Ok(waited)
    }

    /// Nanoseconds in which the thread was runnable but other tasks had its processor.
    pub fn ns(&self) -> io::Result<u64> {
        let mut buffer = [0u8; 96];
        let got = self.0.read_at(&mut buffer, 0)?;
        let text = std::str::from_utf8(&buffer[..got]).unwrap_or_default();
        parse_schedstat(text)
            .map(|(_, wait)| wait)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}

/// Parses lines `cpuN` of `/proc/stat`.
pub fn parse_cpu_times(text: &str) -> Vec<CpuTimes> {
    let line = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split_whitespace();
        let cpu = fields.next()?.parse().ok()?;
        let ticks: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        let ns = |at: usize| ticks.get(at).copied().unwrap_or(0).saturating_mul(TICK_NS);
        Some(CpuTimes {
            cpu,
            idle_ns: ns(3) + ns(4),
            interrupts_ns: ns(5) + ns(6),
            steal_ns: ns(7),
        })
    };
    text.lines().filter(|line| !line.starts_with("cpu ")).filter_map(line).collect()
}

/// Times of every processor.
pub fn cpu_times() -> io::Result<Vec<CpuTimes>> {
    Ok(parse_cpu_times(&fs::read_to_string("/proc/stat")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_threads_are_recognised_and_cannot_be_faked() {
        let kswapd = "45 (kswapd0) S 2 0 0 0 -1 10619968 0 0 0 0 0 0 0 0 20 0 1 0 33 0 0 18446744073709551615 \
                      0 0 0 0 0 0 0 2147483647 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0";
        let (name, is_kernel, cpu) = parse_stat(kswapd).unwrap();
        assert_eq!((name.as_str(), is_kernel, cpu), ("kswapd0", true, 1));
        assert_eq!(TaskKind::of(&name, is_kernel), TaskKind::Kswapd);
        assert_eq!(TaskKind::of("kworker/u8:3-flush-254:0", true), TaskKind::Writeback);
        assert_eq!(TaskKind::of("kswapd0", false), TaskKind::Program);
        assert_eq!(parse_stat("1 (a) b) S 1"), None);
    }

    #[test]
    fn cpu_times_are_in_ticks() {
        let text = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu1 1 2 3\nintr 5\n";
        let times = parse_cpu_times(text);
        assert_eq!(
            times[0],
            CpuTimes {
                cpu: 0,
                idle_ns: 450_000_000,
                interrupts_ns: 130_000_000,
                steal_ns: 80_000_000
            }
        );
        assert_eq!(times[1], CpuTimes { cpu: 1, ..CpuTimes::default() });
    }

    #[test]
    fn this_thread_is_among_all_and_waits_forward() {
        let own = crate::cpu::this_thread().0;
        assert!(all().iter().any(|task| task.tid == own && task.kind == TaskKind::Program));
        let waited = Waited::of_this_thread().unwrap();
        let before = waited.ns().unwrap();
        assert!(waited.ns().unwrap() >= before);
        assert!(!cpu_times().unwrap().is_empty());
    }
}
