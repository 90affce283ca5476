//! Where and when threads run: affinity, scheduling class, and the I/O priority that belongs to it.
//!
//! Contract: calls change the scheduling of threads of this process only.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::host::proc;

/// A thread of this process, by the kernel's thread id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadId(pub u32);

/// The calling thread.
pub fn this_thread() -> ThreadId {
    ThreadId(rustix::thread::gettid().as_raw_nonzero().get() as u32)
}

/// The processor on which the calling thread runs now.
pub fn this_processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// A set of processors.
#[derive(Clone, Copy, Debug)]
pub struct Cpus(CpuSet);

impl Cpus {
    /// The processors on which the calling thread may run.
    pub fn of_this_thread() -> Option<Cpus> {
        sched_getaffinity(None::<Pid>).ok().map(Cpus)
    }

    /// One processor.
    pub fn only(cpu: usize) -> Cpus {
        let mut set = CpuSet::new();
        set.set(cpu);
        Cpus(set)
    }

    /// Any processor of the set that is not `cpu`.
    pub fn any_but(&self, cpu: usize) -> Option<usize> {
        (0..CpuSet::MAX_CPU).find(|&other| other != cpu && self.0.is_set(other))
    }

    /// Number of processors in the set.
    pub fn count(&self) -> u32 {
        self.0.count()
    }

    /// The set without `cpu`.
    pub fn without(mut self, cpu: usize) -> Cpus {
        self.0.unset(cpu);
        self
    }

    /// Restricts the calling thread to these processors.
    pub fn confine_this(&self) {
        // Where that is not allowed, it stays as it was.
        let _ = sched_setaffinity(None::<Pid>, &self.0);
    }

    /// Restricts a thread to these processors. False if that is not allowed, or the thread has
    /// ended.
    pub fn confine(&self, thread: ThreadId) -> bool {
        sched_setaffinity(Pid::from_raw(thread.0 as i32), &self.0).is_ok()
    }
}

fn set_class(thread: ThreadId, class: i32) -> bool {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one structure and changes the scheduling of one thread.
    unsafe { libc::sched_setscheduler(thread.0 as i32, class, &param) == 0 }
}

/// Makes the calling thread a normal one.
pub fn be_normal_class() {
    set_class(ThreadId(0), libc::SCHED_OTHER);
}

/// Whether the calling thread is a normal one.
pub fn is_normal_class() -> bool {
    // SAFETY: reads the class of the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_OTHER }
}

/// Makes a thread run only where no other thread wants to run (`SCHED_IDLE`, `sched(7)`). To the
/// scheduler its processor counts as idle.
pub fn make_idle_class(thread: ThreadId) -> bool {
    set_class(thread, libc::SCHED_IDLE)
}

/// Makes a thread a normal one again (`SCHED_OTHER`), with a short time slice.
pub fn make_normal_class(thread: ThreadId) -> bool {
    set_normal(thread, nice_of(thread))
}

/// The shortest slice that the kernel allows.
const SLICE_NS: u64 = 100_000;

/// Gives the calling thread a short time slice, if it is a normal thread: since Linux 6.12 it then
/// preempts a thread with a longer one as soon as it is woken, instead of waiting until that one
/// has used up its slice (about 3 ms). Its share of the processor is the same. Older kernels
/// ignore it (`sched_setattr(2)`).
pub fn shorten_slice() {
    if is_normal_class() {
        set_normal(this_thread(), nice_of(this_thread()));
    }
}

fn nice_of(thread: ThreadId) -> i32 {
    rustix::process::getpriority_process(Pid::from_raw(thread.0 as i32)).unwrap_or(0)
}

fn set_normal(thread: ThreadId, nice: i32) -> bool {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    attr.size = size_of::<libc::sched_attr>() as u32;
    attr.sched_policy = libc::SCHED_OTHER as u32;
    attr.sched_nice = nice;
    attr.sched_runtime = SLICE_NS;
    // SAFETY: reads one structure and changes the scheduling of one thread.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, thread.0, &attr, 0) == 0 };
    done || set_class(thread, libc::SCHED_OTHER)
}

const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_CLASS_SHIFT: u32 = 13;
/// The best-effort class, its middle level.
const IOPRIO_USUAL: libc::c_int = 2 << IOPRIO_CLASS_SHIFT | 4;

/// The I/O class of a thread (`ioprio_get(2)`). 0: it has none of its own, and its scheduling class
/// decides (1 is real time, 2 best effort, 3 idle).
pub fn io_class(thread: ThreadId) -> u32 {
    // SAFETY: reads the I/O priority of a thread.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, thread.0) };
    // If it cannot be read, it is unknown.
    u32::try_from(priority).unwrap_or(0) >> IOPRIO_CLASS_SHIFT
}

/// Gives the calling thread the usual I/O priority, whatever its scheduling class will be: a thread
/// of the idle class without an I/O priority of its own reads in the idle I/O class, which
/// `mq-deadline` and `bfq` serve only when there is nothing else to do. What the user chose
/// (`ionice(1)`, `chrt(1)`) stays.
pub fn keep_io_class() {
    if io_class(this_thread()) == 0 && is_normal_class() {
        // SAFETY: changes the I/O priority of the calling thread.
        unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_USUAL) };
    }
}

/// Makes io_uring's workers of this process normal threads: they inherit the class of the thread
/// that first needed them.
pub fn raise_ring_workers() {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let is_worker = std::fs::read(thread.path().join("comm"))
            .is_ok_and(|name| name.starts_with(b"iou-wrk"));
        if let (true, Some(number)) =
            (is_worker, thread.file_name().to_str().and_then(|number| number.parse().ok()))
        {
            make_normal_class(ThreadId(number));
        }
    }
}

/// Whether the calling thread is a normal one, and a thread of the idle class could be made a
/// normal one again: that needs `RLIMIT_NICE` of at least 20 or `CAP_SYS_NICE` (`sched(7)`). If
/// not, the calling thread stays in the idle class.
pub fn may_raise_from_idle() -> bool {
    is_normal_class() && make_idle_class(this_thread()) && make_normal_class(this_thread())
}

/// The processor on which thread `tid` of process `pid` last ran. Never allocates.
pub fn last_cpu_of(pid: u32, tid: u32, buf: &mut [u8; 512]) -> Option<usize> {
    let mut path = [0u8; 48];
    let path = task_path(pid, tid, &mut path)?;
    let mut file = File::open(path).ok()?;
    let got = file.read(buf).ok()?;
    proc::field(std::str::from_utf8(&buf[..got]).ok()?, proc::CPU)
}

fn task_path(pid: u32, tid: u32, buf: &mut [u8; 48]) -> Option<&str> {
    use std::io::Write;
    let mut cursor = &mut buf[..];
    write!(cursor, "/proc/{pid}/task/{tid}/stat").ok()?;
    let left = cursor.len();
    let used = 48 - left;
    std::str::from_utf8(&buf[..used]).ok()
}

/// Binds the calling thread to one processor. False if that is not allowed.
pub fn stay_on(cpu: usize) -> bool {
    Cpus::only(cpu).confine(this_thread())
}

/// Nanoseconds of CLOCK_MONOTONIC, which C programs can read too. May be called in a handler.
pub fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of processor time that the calling thread has used.
pub fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_class_does_not_make_io_wait() {
        std::thread::spawn(|| {
            keep_io_class();
            assert!(make_idle_class(this_thread()));
            assert_eq!(io_class(this_thread()), 2);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn pinned_thread_runs_on_its_cpu() {
        let allowed = Cpus::of_this_thread().unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.0.is_set(cpu)).unwrap();
        assert_eq!(allowed.without(cpu).count(), allowed.count() - 1);
        std::thread::spawn(move || {
            assert!(stay_on(cpu));
            assert_eq!(last_cpu_of(std::process::id(), this_thread().0, &mut [0; 512]), Some(cpu));
        })
        .join()
        .unwrap();
    }
}
