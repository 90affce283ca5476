//! Another process: its identity, and advice on its memory.
//!
//! Contract: `process_madvise` is called with `MADV_COLD` and `MADV_COLLAPSE` only. Neither changes
//! the content of the target's memory.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use hiroma_units::EXTENT;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use crate::host::proc;

/// The maximum number of pieces that the kernel accepts in one call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Maximum number of bytes in one call. The kernel ignores what is beyond 2 GiB less a page
/// (`MAX_RW_COUNT`), without an error.
const CALL_BYTES_MAX: u64 = 1 << 30;

/// Flags of a task (`include/linux/sched.h`, since 2.6).
const PF_EXITING: u32 = 0x4;
const PF_KTHREAD: u32 = 0x20_0000;

/// Advice on another process's memory (`process_madvise(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// `MADV_COLD` (Linux 5.4): clears the accessed bits of pages that no other process maps, and
    /// flushes the translations. For a part of a huge page it splits that page.
    Cold,
    /// `MADV_COLLAPSE` (Linux 6.1): collapses whole 2 MiB ranges into huge pages, synchronously.
    Collapse,
}

/// A range of the target's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub start: u64,
    pub len: u64,
}

/// A process, referenced by a pidfd, so that its number cannot come to mean another process.
#[derive(Debug)]
pub struct Target {
    pid: u32,
    pidfd: OwnedFd,
    started: u64,
}

impl Target {
    /// Opens process `pid`. `ESRCH` if there is none.
    pub fn open(pid: u32) -> io::Result<Target> {
        let number = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or(io::Error::from_raw_os_error(libc::ESRCH))?;
        let pidfd = pidfd_open(number, PidfdFlags::empty())?;
        let started = started_at(pid).ok_or(io::Error::from_raw_os_error(libc::ESRCH))?;
        let target = Target { pid, pidfd, started };
        // It may have ended, and its number been reused, between the two calls.
        if target.is_alive() { Ok(target) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its start time, in clock ticks since boot (`/proc/PID/stat`, field 22): together with the
    /// process id it identifies a process.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// The pidfd: readable when the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether it is still running.
    pub fn is_alive(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        !matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
    }

    /// Whether it has ended or is about to: its memory may be gone before [`Target::is_alive`]
    /// returns false.
    pub fn is_ending(&self) -> bool {
        !self.is_alive() || flags(self.pid).is_none_or(|flags| flags & PF_EXITING != 0)
    }

    /// Gives advice on `spans` (page aligned) as far as the kernel accepts it. Returns the number
    /// of bytes before the first that it refused; fails with that error if nothing was accepted.
    pub fn advise(&self, spans: &[Span], advice: Advice) -> io::Result<u64> {
        let advice = match advice {
            Advice::Cold => libc::MADV_COLD,
            Advice::Collapse => libc::MADV_COLLAPSE,
        };
        let mut taken = 0;
        for spans in calls(spans) {
            let wanted: u64 = spans.iter().map(|span| span.len).sum();
            let pieces: Vec<libc::iovec> = spans
                .iter()
                .map(|span| libc::iovec {
                    iov_base: std::ptr::without_provenance_mut(span.start as usize),
                    iov_len: span.len as usize,
                })
                .collect();
            // SAFETY: the kernel reads `pieces`; the addresses in it are the target's and are not
            // dereferenced here. Both kinds of advice preserve content.
            let done = unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    self.pidfd.as_raw_fd(),
                    pieces.as_ptr(),
                    pieces.len(),
                    advice,
                    0,
                )
            };
            match u64::try_from(done) {
                Ok(done) => {
                    taken += done;
                    if done < wanted {
                        break;
                    }
                }
                Err(_) if taken > 0 => break,
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(taken)
    }
}

/// `spans`, divided into the pieces and calls that the kernel accepts.
fn calls(spans: &[Span]) -> Vec<Vec<Span>> {
    let mut calls: Vec<Vec<Span>> = Vec::new();
    let mut room = 0;
    for span in spans {
        let (mut start, end) = (span.start, span.start + span.len);
        loop {
            if room == 0 || calls.last().is_none_or(|call| call.len() == PIECES_MAX) {
                calls.push(Vec::new());
                room = CALL_BYTES_MAX;
            }
            let mut len = (end - start).min(room);
            if len < end - start {
                // A huge page of which a call covers a part only would be split.
                let cut = (start + len) / EXTENT as u64 * EXTENT as u64;
                len = cut.saturating_sub(start);
                room = len;
                if len == 0 {
                    continue;
                }
            }
            calls.last_mut().expect("just pushed").push(Span { start, len });
            (start, room) = (start + len, room - len);
            // An empty span is passed on all the same: the caller wants to know whether it has
            // permission.
            if start == end {
                break;
            }
        }
    }
    calls
}

/// Start time of process `pid`, in clock ticks.
pub fn started_at(pid: u32) -> Option<u64> {
    proc::field(&proc::stat(pid)?, proc::STARTED)
}

/// Whether process `pid` is a kernel thread. False for one that does not exist.
pub fn is_kernel_thread(pid: u32) -> bool {
    flags(pid).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

fn flags(pid: u32) -> Option<u32> {
    proc::field(&proc::stat(pid)?, proc::FLAGS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn advice_is_split_into_calls_within_kernel_limits() {
        let span = |start, len| Span { start, len };
        let lens = |spans: &[Span]| {
            calls(spans)
                .iter()
                .map(|call| call.iter().map(|span| span.len).collect())
                .collect::<Vec<Vec<u64>>>()
        };
        let (gib, huge) = (CALL_BYTES_MAX, EXTENT as u64);
        assert_eq!(lens(&[]), Vec::<Vec<u64>>::new());
        assert_eq!(lens(&[span(0, 0)]), [[0]]);
        assert_eq!(
            lens(&[span(4096, 8192), span(1 << 40, gib)]),
            [vec![8192, gib - huge], vec![huge]]
        );
        assert_eq!(
            calls(&[span(4096, 2 * gib + 4096)]).concat(),
            [span(4096, gib - 4096), span(gib, gib), span(2 * gib, 8192)]
        );
        // No room up to the end of the first huge page: the next call has it whole.
        assert_eq!(
            lens(&[span(0, gib - 4096), span(1 << 40, huge)]),
            [vec![gib - 4096], vec![huge]]
        );
        let many: Vec<Span> = (0..2500).map(|at| span(at * 8192, 4096)).collect();
        assert_eq!(
            (lens(&many).iter().map(Vec::len).collect::<Vec<_>>(), calls(&many).concat()),
            (vec![1024, 1024, 452], many)
        );
    }

    #[test]
    fn exited_process_is_detected() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let target = Target::open(child.id()).unwrap();
        assert!(target.is_alive() && !target.is_ending());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!target.is_alive() && target.is_ending());
        assert_eq!(Target::open(child.id()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(Target::open(u32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn kernel_thread_is_not_a_process() {
        assert!(!is_kernel_thread(std::process::id()));
        assert!(!is_kernel_thread(u32::MAX));
        // In a container it is not.
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
            assert!(is_kernel_thread(2));
        } else {
            hiroma_testkit::skip!(Machine, "process 2 is not the kernel's here");
        }
    }

    #[test]
    fn advice_on_unmapped_range_is_refused_harmlessly() {
        let target = Target::open(std::process::id()).unwrap();
        let nowhere = Span { start: 0x1000, len: 0x1000 };
        assert!(target.advise(&[nowhere], Advice::Cold).is_err());
        assert!(target.is_alive());
    }
}
