//! Resources that the server's process uses, as reported by the kernel.

use hiroma_sys::host::proc;
use std::fs;
use std::io;

use serde::Serialize;

/// Memory of a process, from `/proc/PID/smaps_rollup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// The part of it that is anonymous memory on huge pages.
    pub huge_bytes: u64,
}

/// Present memory of process `pid`.
pub fn memory(pid: u32) -> io::Result<Memory> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let field = |name| proc::value(&text, name).unwrap_or(0) << 10;
    // Pages of hugetlbfs are not included in the resident memory.
    let hugetlb = field("Private_Hugetlb:") + field("Shared_Hugetlb:");
    Ok(Memory {
        resident_bytes: field("Rss:") + hugetlb,
        huge_bytes: field("AnonHugePages:") + hugetlb,
    })
}

/// Processor time in nanoseconds that the threads of `pid` named `name` (all threads if empty) have
/// used. Threads that have ended are not counted: use this for servers with a fixed set of threads.
pub fn cpu_ns(pid: u32, name: &str) -> io::Result<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        let comm = fs::read_to_string(task.join("comm")).unwrap_or_default();
        if !name.is_empty() && comm.trim() != name {
            continue;
        }
        let stat = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        total += stat.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_used_time() {
        let pid = std::process::id();
        assert!(memory(pid).unwrap().resident_bytes > 1 << 16);
        let until = std::time::Instant::now();
        let mut sum = 0u64;
        while cpu_ns(pid, "").unwrap() == 0 && until.elapsed().as_secs() < 60 {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        assert!(cpu_ns(pid, "").unwrap() > 0);
        assert_eq!(cpu_ns(pid, "no such thread").unwrap(), 0);
        assert!(memory(u32::MAX).is_err());
    }
}
