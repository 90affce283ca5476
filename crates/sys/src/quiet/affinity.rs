//! The processors on which threads may run, kernel threads included, and their nice value.

use std::io;

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Parses a list of processors in the kernel's format: `0-3,8`. None if it is malformed, or names
/// more than there can be.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Formats a list in the kernel's format.
pub fn show_list(cpus: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let shown =
        runs.iter().map(
            |&(first, last)| {
                if first == last { first.to_string() } else { format!("{first}-{last}") }
            },
        );
    shown.collect::<Vec<_>>().join(",")
}

/// Processors on which thread `pid` may run; 0 is the calling thread.
pub fn of(pid: u32) -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(pid as i32))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Restricts thread `pid` (0: the calling one) to these processors. `EINVAL`: a kernel thread that
/// is bound to its processor, or none of the processors exists. `EPERM`: a thread of another user.
pub fn confine(pid: u32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    Ok(sched_setaffinity(Pid::from_raw(pid as i32), &set)?)
}

/// Sets the nice value of this process (`nice(2)`): 0 to 19.
pub fn be_nice(nice: i32) -> io::Result<()> {
    Ok(setpriority_process(None, nice)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_use_the_kernel_format() {
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("3,1-2,2"), Some(vec![1, 2, 3]));
        assert_eq!(parse_list(""), Some(vec![]));
        for bad in ["a", "2-1", "0-99999999", "-1", "1-"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
        assert_eq!(show_list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn confined_thread_runs_on_its_cpus() {
        std::thread::spawn(|| {
            let all = of(0).unwrap();
            confine(0, &all[..1]).unwrap();
            assert_eq!(of(0).unwrap(), all[..1]);
            assert!(confine(0, &[]).is_err());
        })
        .join()
        .unwrap();
    }
}
