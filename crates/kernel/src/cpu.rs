//! Where threads run: affinity, priority, names.

use std::fs::File;
use std::io::Read;

use rustix::thread::{CpuSet, Pid, sched_setaffinity};

/// The processor on which thread `tid` of this process last ran, from `/proc/self/task/TID/stat` (field 39).
pub fn last_cpu_of(tid: u32, buf: &mut [u8; 512]) -> Option<usize> {
    let mut path = [0u8; 40];
    let path = task_path(tid, &mut path)?;
    let mut file = File::open(path).ok()?;
    let got = file.read(buf).ok()?;
    let text = std::str::from_utf8(&buf[..got]).ok()?;
    // The name in field 2 may contain anything, also spaces; it ends with the last parenthesis.
    let rest = &text[text.rfind(')')? + 2..];
    rest.split(' ').nth(36)?.parse().ok()
}

fn task_path(tid: u32, buf: &mut [u8; 40]) -> Option<&str> {
    use std::io::Write;
    let mut cursor = &mut buf[..];
    write!(cursor, "/proc/self/task/{tid}/stat").ok()?;
    let left = cursor.len();
    let used = 40 - left;
    std::str::from_utf8(&buf[..used]).ok()
}

/// Ties the calling thread to one processor. False where that is not allowed.
pub fn stay_on(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None::<Pid>, &set).is_ok()
}

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_found_where_it_was_tied() {
        let allowed = rustix::thread::sched_getaffinity(None::<Pid>).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap();
        std::thread::spawn(move || {
            assert!(stay_on(cpu));
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            assert_eq!(last_cpu_of(tid, &mut [0; 512]), Some(cpu));
        })
        .join()
        .unwrap();
    }
}
