//! The first thread of the pager, which lives as long as the program does. It detects that the
//! program has ended or executed another one, hands descriptors to the pagers of forked children,
//! and preserves the store's content that those children may still read. It takes no part in
//! answering faults.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use hiroma_sys::host::proc;
use hiroma_sys::lock::Lock;
use hiroma_sys::{cpu, helper, network, uffd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open, test_kill_process};

use crate::accessed;
use crate::control::{ControlPage, PAGER_EXTENSION};
use crate::core::Core;
use crate::elsewhere;
use crate::fatal;
use crate::host;
use crate::inherit::{self, Heir, Legacy, Listener};
use crate::live::Live;
use crate::store::ForkGuard;

/// Interval of its checks.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a forked child has to ask for its descriptors, unless one is found that has not asked.
const CLAIM_WITHIN: Duration = Duration::from_secs(60);
/// How long the pager stays after the program's end for children that have not asked yet, unless one
/// is found.
const LINGER: Duration = Duration::from_secs(5);
/// How long a child may wait for a descriptor before that is reported.
const WAIT_SILENT: Duration = Duration::from_secs(5);
/// Consecutive checks that must find other memory in the program's process.
const GONE_LOOKS: u32 = 3;

/// A fork whose child may still read the store's content of that time.
pub struct Fork {
    pub number: u64,
    pub guard: Box<dyn ForkGuard>,
    pub since: Instant,
}

/// A child that has received its descriptors; the connection ends with it.
struct Child {
    heir: Heir,
    _guard: Box<dyn ForkGuard>,
}

/// The first thread.
pub struct Life {
    core: Arc<Lock<Core>>,
    live: Arc<Live>,
    listener: Option<Listener>,
    program: Option<OwnedFd>,
    runner: Option<u32>,
    control_page: Option<PathBuf>,
    forks: Vec<Fork>,
    children: Vec<Child>,
    gone_looks: u32,
    /// Since when a child has been waiting for a descriptor, and whether that was reported.
    waits_since: Option<Instant>,
    told_of_wait: bool,
}

impl Life {
    pub fn new(
        core: Arc<Lock<Core>>,
        live: Arc<Live>,
        listener: Option<Listener>,
        config: &crate::Config,
    ) -> Life {
        let program = Pid::from_raw(host::program() as i32).filter(|_| helper::is_here());
        Life {
            core,
            listener,
            program: program.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            runner: config.runner,
            control_page: config
                .control_dir
                .as_ref()
                .map(|dir| ControlPage::path(dir, host::program_in_proc())),
            forks: Vec::new(),
            children: Vec::new(),
            gone_looks: 0,
            waits_since: None,
            told_of_wait: false,
            live,
        }
    }

    /// Returns when the program has ended, or the pager was stopped.
    pub fn run(mut self) {
        while !self.live.stopping() && !self.look() {}
        if helper::is_here() {
            // In order: a program that the process executes from now on has no pager to lose.
            self.live.page.set_pager(0);
            self.linger();
            let core = self.core.lock();
            let store = core.store.clone();
            drop(core);
            store.leave();
            self.tidy();
        }
    }

    /// Waits a while for events, and handles them. Returns true if the program has ended.
    fn look(&mut self) -> bool {
        if self.wait(LOOK_EVERY) || self.has_executed() {
            return true;
        }
        self.take_forks();
        false
    }

    /// Returns true if the program has ended.
    fn wait(&mut self, timeout: Duration) -> bool {
        let mut fds = Vec::with_capacity(2 + self.children.len());
        fds.extend(self.program.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let listener = fds.len();
        let sockets = self.listener.iter().flat_map(Listener::sockets);
        fds.extend(sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        let children = fds.len();
        fds.extend(
            self.children
                .iter()
                .map(|child| PollFd::from_borrowed_fd(child.heir.as_fd(), PollFlags::IN)),
        );
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as i64 };
        if poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
            return false;
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if is_ready[listener..children].contains(&true) && !self.hand_over() {
            self.without_descriptors();
        }
        if is_ready[children..].contains(&true) {
            // Under the lock: if a fork copied a lock of the store that is taken here, the child
            // could never take it.
            let _core = self.core.lock();
            let mut ready = is_ready[children..].iter().copied().chain(std::iter::repeat(false));
            self.children.retain(|_| ready.next() != Some(true));
        }
        listener > 0 && is_ready[0]
    }

    /// Whether the program's process executes another program now.
    fn has_executed(&mut self) -> bool {
        if !helper::is_here() {
            return false;
        }
        // What is read from other memory is certain; not so what is asked of threads that end.
        if matches!(helper::shares_memory(host::program(), &self.live.mark), Ok(Some(false))) {
            return true;
        }
        let gone = match shares_memory(&self.live.mark) {
            Ok(shared) => !shared,
            // Not readable: another program with other rights, or the same one, which forbade it.
            Err(_) => {
                vm_bytes(host::program()).is_some_and(|bytes| bytes < self.live.arena_bytes / 2)
            }
        };
        self.gone_looks = if gone { self.gone_looks + 1 } else { 0 };
        self.gone_looks >= GONE_LOOKS
    }

    fn take_forks(&mut self) {
        if self.forks.iter().any(|fork| fork.since.elapsed() >= CLAIM_WITHIN)
            && has_child_to_come(&self.live.mark)
        {
            self.forks.iter_mut().for_each(|fork| fork.since = Instant::now());
        }
        let mut core = self.core.lock();
        self.forks.append(&mut core.new_forks);
        self.forks.retain(|fork| fork.since.elapsed() < CLAIM_WITHIN);
    }

    /// There is no descriptor for a child's connection. It waits until another child has ended; if
    /// there is no other, it would wait forever.
    fn without_descriptors(&mut self) {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if self.children.is_empty() {
            fatal::warn(&format!(
                "`ulimit -n` allows {most} open files, which are too few to fork: raise it, or use another store"
            ));
            let _ = self.listener.as_mut().map(Listener::turn_away);
            let _core = self.core.lock();
            return self.forks.clear();
        }
        self.forks.iter_mut().for_each(|fork| fork.since = Instant::now());
        let waits_since = *self.waits_since.get_or_insert_with(Instant::now);
        if waits_since.elapsed() > WAIT_SILENT && !std::mem::replace(&mut self.told_of_wait, true) {
            let text = format!(
                "a forked child waits until another one ends: `ulimit -n` allows {most} open files, raise it for more"
            );
            fatal::warn(&text);
        }
        std::thread::sleep(LOOK_EVERY);
    }

    /// Returns false if there is no descriptor for the next child.
    fn hand_over(&mut self) -> bool {
        loop {
            let (heir, number) = match self.listener.as_ref().map(Listener::accept) {
                Some(Ok(asks)) => asks,
                Some(Err(Errno::MFILE)) => return false,
                _ => return true,
            };
            self.waits_since = None;
            // A fork is recorded before the core's lock is released, so the forks that are taken
            // after the request include the requesting child's.
            self.take_forks();
            let Some(place) = self.forks.iter().position(|fork| fork.number == number) else {
                continue;
            };
            let fork = self.forks.swap_remove(place);
            let (numbers, lineage) = self.what_descendants_need();
            // If descriptors are scarce, these are opened only now, as far as possible; most
            // children can do without them.
            let device = if uffd::device().is_none() { uffd::open_device() } else { None };
            let network = if network::kept().is_none() { network::open_ours() } else { None };
            let legacy = Legacy {
                device: device.as_ref().map(AsRawFd::as_raw_fd).or_else(uffd::device),
                network: network.as_ref().map(AsRawFd::as_raw_fd).or_else(network::kept),
                numbers,
                lineage,
            };
            match heir.give(&legacy) {
                Ok(()) => self.children.push(Child { heir, _guard: fork.guard }),
                Err(_) => {
                    // A fork must not copy a lock of the store that is held.
                    let _core = self.core.lock();
                    drop(fork);
                }
            }
        }
    }

    /// The store's descriptors, and the connections to pagers that keep content for descendants.
    fn what_descendants_need(&self) -> (Vec<RawFd>, Vec<RawFd>) {
        let mut core = self.core.lock();
        core.lineage.retain(inherit::is_kept);
        let numbers = core.store.descriptors();
        let is_needed = !numbers.is_empty() || core.store.keeps_for_children();
        let lineage = core.lineage.iter().filter(|_| is_needed).map(AsRawFd::as_raw_fd);
        let lineage = lineage.collect();
        (numbers, lineage)
    }

    /// Waits for children that have just been forked and need what only this process has.
    fn linger(&mut self) {
        let mut since = Instant::now();
        // The program has ended; its pidfd would end each wait immediately.
        self.program = None;
        self.take_forks();
        while !self.forks.is_empty() && since.elapsed() < LINGER {
            self.wait(LOOK_EVERY);
            if since.elapsed() >= LINGER && has_child_to_come(&self.live.mark) {
                since = Instant::now();
            }
        }
    }

    /// Removes what is left in the control directory and is of no use any more: the socket and the
    /// board of a program that has ended (one that it executed has its own under these names), and
    /// everything else if no other process removes it.
    fn tidy(&self) {
        if let (Some(page), Some(runner)) = (&self.control_page, self.runner) {
            // From elsewhere `hiroma run` is not seen; `/proc` may have been mounted since the start.
            let is_last =
                page.parent().is_some_and(elsewhere::has_runs_numbers) && !is_running(runner);
            if is_last || host::has_program_ended() {
                let _ = std::fs::remove_file(page.with_extension("socket"));
                let _ = std::fs::remove_file(page.with_extension(accessed::BOARD_EXTENSION));
            }
            if is_last {
                let _ = std::fs::remove_file(page.with_extension(PAGER_EXTENSION));
                let _ = std::fs::remove_file(page);
                if let Some(dir) = page.parent() {
                    let _ = std::fs::remove_file(dir.join("preload.so"));
                    let _ = std::fs::remove_file(dir.join(elsewhere::PROC_LINK));
                    let _ = std::fs::remove_file(dir.join(crate::config::EXECUTED_FILE));
                    let _ = std::fs::remove_file(dir.join(accessed::BELL_FILE));
                    let _ = std::fs::remove_dir(dir);
                }
            }
        }
    }
}

/// Whether a process runs: one that has ended stays in the kernel's list until its parent has
/// waited for it.
fn is_running(pid: u32) -> bool {
    let state = proc::stat(pid).and_then(|stat| proc::field(&stat, proc::STATE));
    state.is_some_and(|state: char| !"ZX".contains(state))
}

/// Whether a forked child has not asked yet, because it has been stopped since: it has a copy of the
/// mark, which it clears when it asks. False if that cannot be seen.
fn has_child_to_come(mark: &AtomicU64) -> bool {
    let known = [host::program(), std::process::id()];
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut others = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| !known.contains(pid));
    others.any(|pid| matches!(helper::shares_memory(pid, mark), Ok(Some(true))))
}

/// Whether the program still has this memory. Its first thread may have ended before the others.
pub(crate) fn shares_memory(mark: &AtomicU64) -> std::io::Result<bool> {
    let program = host::program();
    if let Some(shares) = helper::shares_memory(program, mark)? {
        return Ok(shares);
    }
    let threads = match std::fs::read_dir(format!("/proc/{program}/task")) {
        Ok(threads) => threads.flatten(),
        // No descriptor is available for it: use what can be found out without one.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            return Ok(
                Pid::from_raw(program as i32).is_some_and(|pid| test_kill_process(pid).is_ok())
            );
        }
        Err(_) => return Ok(false),
    };
    let mut threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(threads.any(|thread| matches!(helper::shares_memory(thread, mark), Ok(Some(true)))))
}

/// Size of the address space of a process, which any user may read.
fn vm_bytes(pid: u32) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    text.split(' ').next()?.parse::<usize>().ok().map(|pages| pages * hiroma_units::PAGE)
}

/// A word that no other program has at the same address by chance.
pub fn random_mark() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes) | 1,
        _ => cpu::now_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
    }
}
