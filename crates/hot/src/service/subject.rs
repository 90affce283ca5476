//! The process that a request is about: whether the requester may register it, and what it is.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::UCred;
use rustix::process::Pid;

use super::protocol::Registration;

/// The process that `wish` is about, if the requester may register it: itself; without a signal,
/// any process of the same user; for root, any process.
pub fn permitted(credentials: &UCred, wish: &Registration) -> Result<u32, (Errno, String)> {
    let own = credentials.pid.as_raw_nonzero().get() as u32;
    if wish.pid == 0 || wish.pid == own {
        return Ok(own);
    }
    if wish.signal != 0 {
        return Err((
            Errno::PERM,
            format!(
                "signals go only to who asks: process {} cannot be registered with one by process {own}",
                wish.pid
            ),
        ));
    }
    let status = fs::read_to_string(format!("/proc/{}/status", wish.pid));
    let status = status.map_err(|_| (Errno::SRCH, format!("there is no process {}", wish.pid)))?;
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let same = uids.split_whitespace().all(|uid| uid.parse() == Ok(credentials.uid.as_raw()));
    if same || credentials.uid.is_root() {
        return Ok(wish.pid);
    }
    Err((
        Errno::PERM,
        format!("process {} belongs to another user: only root may register it", wish.pid),
    ))
}

pub fn pid_of(pid: u32) -> Result<Pid, Errno> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// Whether a process has a handler for a signal (`SigCgt` in `/proc/PID/status`).
pub fn catches(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

pub fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}
