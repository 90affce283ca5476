//! The daemon: one thread that answers the socket and, in between, steps the processes that are
//! due.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use hiroma_policy::huge::shares::{Shares, Use, by_weight};
use hiroma_sys::cpu::now_ns;
use hiroma_sys::notify;
use hiroma_units::{EXTENT, PAGES_PER_EXTENT};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::UCred;
use rustix::process::{PidfdFlags, pidfd_open};
use zerocopy::IntoBytes;

use super::metrics::Metrics;
use super::notice::Notice;
use super::protocol::{
    HandlingResult, Header, Kind, Mode, PAGES_MAX, Registration, VERSION, cut, receive, refuse,
    send,
};
use super::select::Selector;
use super::socket::{answers, bound};
use super::subject::{catches, has_ended, permitted, pid_of};
use super::watch::{Open, Watch};
use crate::error::HotError;

/// Ranges that a process gives up in one round of shares: splitting 16 and making 16 takes about
/// ten milliseconds.
const SHARE_STEP: u64 = 16;
/// How often shares are recomputed.
const SHARES_INTERVAL_NS: u64 = 500_000_000;
/// A chosen process that cannot be managed, or whose managing has stopped by itself, is tried again after this time.
pub(super) const RETRY_NS: u64 = 600_000_000_000;
/// A call of a function of a program that takes longer is reported: the limit for it is 0.5 ms.
pub const CALL_NS_MAX: u64 = 100_000_000;

/// Receives the messages for the administrator.
pub type Log = Box<dyn FnMut(&str)>;

/// Options of the daemon.
pub struct ServiceOptions {
    /// The socket.
    pub path: PathBuf,
    /// Ranges of 2 MiB that may be huge for all processes together.
    pub budget_ranges: u64,
    /// Share of one processor for all tracking together, in millionths.
    pub cpu_ppm: u64,
    /// The same for all collapses of completely present ranges.
    pub collapse_ppm: u64,
    /// A process that handles pages for longer than this is reported as stuck.
    pub overdue_ns: u64,
    /// Processes that are managed although they do not register.
    pub selector: Option<Selector>,
    /// What is served to Prometheus, if anything is.
    pub metrics: Option<Metrics>,
    pub log: Log,
}

/// The usual [`ServiceOptions::overdue_ns`]: 10 s.
pub const OVERDUE_NS: u64 = 10_000_000_000;

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("another daemon serves {} already: processes can register with it, or stop it first", .0.display())]
    Taken(PathBuf),
    #[error("{} is there and is no socket: remove it, or choose another with --socket", .0.display())]
    NoSocket(PathBuf),
    #[error("cannot listen on {}: {source}", .path.display())]
    Listen { path: PathBuf, source: io::Error },
}

/// The daemon.
pub struct Daemon {
    pub(super) options: ServiceOptions,
    pub(super) open: Open,
    pub(super) listener: OwnedFd,
    /// When connections are accepted again, after that has failed.
    pub(super) accept_at_ns: Option<u64>,
    /// Held while the daemon runs. The file is never removed: without it two daemons could hold
    /// "the" lock.
    lock: File,
    pub(super) peers: BTreeMap<u64, Peer>,
    /// Processes that were chosen by rules; numbered like the peers.
    pub(super) chosen: BTreeMap<u64, Member>,
    pub(super) choose_at_ns: u64,
    pub(super) next_id: u64,
    shares: Shares,
    shares_at_ns: u64,
}

/// A connection, and the process that is registered through it.
pub(super) struct Peer {
    pub(super) socket: OwnedFd,
    pub(super) credentials: UCred,
    pub(super) member: Option<Member>,
}

pub(super) struct Member {
    pub(super) pid: u32,
    pub(super) pidfd: OwnedFd,
    pub(super) wish: Registration,
    event: Option<OwnedFd>,
    pub(super) watch: Box<dyn Watch>,
    pub(super) notice: Notice,
    next_ns: u64,
    pub(super) share: u64,
    /// Chosen by rules, not registered.
    pub(super) is_chosen: bool,
    pub(super) outcome: HandlingResult,
    pub(super) signals: u64,
}

/// Why a peer is dropped.
enum Leaves {
    /// It closed the connection, or ended.
    Itself,
    /// The daemon ended the connection for this reason.
    Because(String),
}

impl Daemon {
    /// Starts to listen. A socket left by a daemon that was killed is replaced.
    pub fn start(options: ServiceOptions, open: Open) -> Result<Daemon, ServeError> {
        let path = options.path.clone();
        let failed = |source: io::Error| ServeError::Listen { path: path.clone(), source };
        let mut lock_path = path.clone().into_os_string();
        lock_path.push(".lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(ServeError::Taken(path)),
            other => other.map_err(|errno| failed(errno.into()))?,
        }
        match fs::symlink_metadata(&path) {
            Ok(found) if !found.file_type().is_socket() => return Err(ServeError::NoSocket(path)),
            Ok(_) if answers(&path) => return Err(ServeError::Taken(path)),
            Ok(_) => fs::remove_file(&path).map_err(failed)?,
            Err(_) => {}
        }
        let listener = bound(&path).map_err(failed)?;
        let shares = Shares::new(SHARE_STEP);
        Ok(Daemon {
            options,
            open,
            listener,
            accept_at_ns: None,
            lock,
            peers: BTreeMap::new(),
            chosen: BTreeMap::new(),
            choose_at_ns: 0,
            next_id: 0,
            shares,
            shares_at_ns: 0,
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.options.path
    }

    /// Serves until `stop` is readable.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            let now = now_ns();
            self.choose(now);
            self.step_members(now);
            let listens = if self.accepts(now) { PollFlags::IN } else { PollFlags::empty() };
            let wait_ns = self.next_ns(now).saturating_sub(now_ns()).min(60_000_000_000);
            let timeout = Timespec {
                tv_sec: (wait_ns / 1_000_000_000) as i64,
                tv_nsec: (wait_ns % 1_000_000_000) as i64,
            };
            let mut fds = vec![
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(&self.listener, listens),
            ];
            let mut ids = Vec::new();
            for (&id, peer) in &self.peers {
                fds.push(PollFd::new(&peer.socket, PollFlags::IN));
                ids.push(id);
                if let Some(member) = &peer.member {
                    fds.push(PollFd::new(&member.pidfd, PollFlags::IN));
                    ids.push(id);
                }
            }
            for (&id, member) in &self.chosen {
                fds.push(PollFd::new(&member.pidfd, PollFlags::IN));
                ids.push(id);
            }
            match poll(&mut fds, Some(&timeout)) {
                Err(Errno::INTR) => continue,
                other => drop(other?),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return Ok(());
            }
            if ready[1] {
                self.accept(now);
            }
            let mut ready_ids: Vec<u64> = ids
                .into_iter()
                .zip(&ready[2..])
                .filter(|&(_, &ready)| ready)
                .map(|(id, _)| id)
                .collect();
            ready_ids.dedup();
            for id in ready_ids {
                match self.chosen.contains_key(&id) {
                    true => self.let_go(id, Leaves::Itself),
                    false => self.answer(id),
                }
            }
        }
    }

    pub(super) fn log(&mut self, line: &str) {
        (self.options.log)(line);
    }

    /// Answers all requests that a peer has sent.
    fn answer(&mut self, id: u64) {
        loop {
            let Some(peer) = self.peers.get(&id) else { return };
            if peer.member.as_ref().is_some_and(|member| has_ended(&member.pidfd)) {
                return self.let_go(id, Leaves::Itself);
            }
            let header = match receive(peer.socket.as_fd(), &mut []) {
                Ok((header, _, _)) => header,
                Err(Errno::WOULDBLOCK) => return,
                Err(Errno::PROTO) => {
                    let _ = refuse(&peer.socket, Errno::PROTO, "this is not a message of ours");
                    return self.let_go(id, Leaves::Because("it sent nonsense".to_owned()));
                }
                Err(_) => return self.let_go(id, Leaves::Itself),
            };
            if let Err(errno) = self.answer_one(id, &header) {
                // It does not receive its answers: waiting for it would block all others.
                return self.let_go(
                    id,
                    Leaves::Because(format!(
                        "it does not take its answers: {}",
                        io::Error::from(errno)
                    )),
                );
            }
        }
    }

    fn answer_one(&mut self, id: u64, header: &Header) -> Result<(), Errno> {
        let now = now_ns();
        if header.version != VERSION {
            let socket = &self.peers[&id].socket;
            let text = format!(
                "this daemon speaks version {VERSION} and not {}: install one Hiroma",
                header.version
            );
            return refuse(socket, Errno::PROTONOSUPPORT, &text);
        }
        match Kind::of(header.kind) {
            Some(Kind::Register) => {
                let answer = self.register(id, header);
                let peer = &self.peers[&id];
                match (answer, &peer.member) {
                    (Ok(()), Some(member)) => {
                        let backend = member.watch.backend();
                        let welcome = Header::new(Kind::Welcome, [member.share, 0, 0, 0, 0, 0]);
                        send(
                            peer.socket.as_fd(),
                            &welcome,
                            cut(&backend).as_bytes(),
                            member.event.as_ref().map(AsFd::as_fd),
                        )?;
                        let line =
                            format!("process {} registered, tracked by {backend}", member.pid);
                        self.log(&line);
                        Ok(())
                    }
                    (Err((errno, reason)), _) => {
                        refuse(&peer.socket, errno, &reason)?;
                        let line = format!(
                            "process {} was refused: {reason}",
                            peer.credentials.pid.as_raw_nonzero()
                        );
                        self.log(&line);
                        Ok(())
                    }
                    (Ok(()), None) => refuse(&peer.socket, Errno::INVAL, "not registered"),
                }
            }
            Some(Kind::Fetch) => {
                let Some(peer) = self.peers.get_mut(&id) else { return Ok(()) };
                let Some(member) = &mut peer.member else {
                    return refuse(&peer.socket, Errno::INVAL, "register first");
                };
                let most = usize::try_from(header.args[0]).unwrap_or(PAGES_MAX).min(PAGES_MAX);
                let (pages, left) = member.notice.take(most, now);
                let answer = Header::new(
                    Kind::Pages,
                    [pages.len() as u64, left as u64, member.may_collapse(), 0, 0, 0],
                );
                send(peer.socket.as_fd(), &answer, pages.as_bytes(), None)
            }
            Some(Kind::Handled) => self.handled(id, &HandlingResult::from_header(header)),
            Some(Kind::Status) => {
                // An argument that older clients leave zero asks for JSON.
                let text = if header.args[0] == 1 { self.status_json() } else { self.status() };
                send(
                    self.peers[&id].socket.as_fd(),
                    &Header::new(Kind::Text, [0; 6]),
                    cut(&text).as_bytes(),
                    None,
                )
            }
            _ => refuse(
                &self.peers[&id].socket,
                Errno::INVAL,
                &format!("{} is not a request", header.kind),
            ),
        }
    }

    fn handled(&mut self, id: u64, outcome: &HandlingResult) -> Result<(), Errno> {
        let Some(peer) = self.peers.get_mut(&id) else { return Ok(()) };
        let Some(member) = &mut peer.member else {
            return refuse(&peer.socket, Errno::INVAL, "register first");
        };
        member.notice.handled();
        let sum = &mut member.outcome;
        sum.collapsed = sum.collapsed.saturating_add(outcome.collapsed);
        sum.compacted = sum.compacted.saturating_add(outcome.compacted);
        sum.left = sum.left.saturating_add(outcome.left);
        sum.failed = sum.failed.saturating_add(outcome.failed);
        sum.call_ns_max = sum.call_ns_max.max(outcome.call_ns_max);
        let pid = member.pid;
        send(peer.socket.as_fd(), &Header::new(Kind::Done, [0; 6]), &[], None)?;
        if outcome.call_ns_max > CALL_NS_MAX {
            let ms = outcome.call_ns_max / 1_000_000;
            self.log(&format!(
                "process {pid}: a function of it took {ms} ms where it was asked for 0.5 ms"
            ));
        }
        Ok(())
    }

    /// Registers the requesting process, or another process on its behalf.
    fn register(&mut self, id: u64, header: &Header) -> Result<(), (Errno, String)> {
        let wish = Registration::from_header(header).map_err(|reason| (Errno::INVAL, reason))?;
        let peer = &self.peers[&id];
        if peer.member.is_some() {
            return Err((Errno::ALREADY, "this connection is registered already".to_owned()));
        }
        let pid = permitted(&peer.credentials, &wish)?;
        let mut registered = self.peers.values().filter_map(|peer| peer.member.as_ref());
        if registered.any(|member| member.pid == pid) {
            return Err((Errno::BUSY, format!("process {pid} is registered already")));
        }
        // What a process asks for itself is more than a rule that fits it.
        self.chosen.retain(|_, member| member.pid != pid);
        let gone = |_| (Errno::SRCH, format!("process {pid} has ended"));
        let pidfd = pidfd_open(pid_of(pid).map_err(gone)?, PidfdFlags::empty()).map_err(gone)?;
        let event = match wish.eventfd {
            true => Some(
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .map_err(|errno| (errno, format!("no eventfd: {}", io::Error::from(errno))))?,
            ),
            false => None,
        };
        let watch = (self.open)(&Registration { pid, ..wish })
            .map_err(|error| (errno_of(&error), error.to_string()))?;
        let now = now_ns();
        let notice = Notice::new(wish.pages_min as usize, self.options.overdue_ns);
        let member = Member { event, ..Member::new(pid, pidfd, wish, watch, notice, now) };
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.member = Some(member);
        }
        self.share_out(now);
        Ok(())
    }

    /// Closes a connection, and ends its watch.
    fn let_go(&mut self, id: u64, why: Leaves) {
        let member = match self.chosen.remove(&id) {
            Some(member) => Some(member),
            None => self.peers.remove(&id).and_then(|peer| peer.member),
        };
        if let Some(member) = member {
            let line = match &why {
                Leaves::Itself if has_ended(&member.pidfd) => {
                    format!("process {} has ended", member.pid)
                }
                Leaves::Itself => format!("process {} has left", member.pid),
                Leaves::Because(reason) => format!("process {} is let go: {reason}", member.pid),
            };
            self.log(&line);
            if let (Leaves::Because(reason), Some(selector)) = (&why, &mut self.options.selector) {
                selector.refuse(member.pid, RETRY_NS, reason);
            }
            drop(member);
            self.share_out(now_ns());
        }
    }

    /// Steps the processes that are due, and notifies processes of new pages.
    fn step_members(&mut self, now: u64) {
        let mut over: Vec<(u64, Leaves)> = Vec::new();
        let mut lines = Vec::new();
        let registered = self.peers.iter_mut();
        let registered = registered.filter_map(|(&id, peer)| Some((id, peer.member.as_mut()?)));
        let chosen = self.chosen.iter_mut().map(|(&id, member)| (id, member));
        for (id, member) in registered.chain(chosen) {
            if member.next_ns <= now {
                match member.watch.step(now) {
                    Ok((next_ns, new)) => {
                        member.next_ns = next_ns;
                        if new {
                            member.notice.offer(&member.watch.active_pages(), now);
                        }
                    }
                    Err(reason) => {
                        over.push((id, Leaves::Because(reason)));
                        continue;
                    }
                }
            }
            member.tell();
            if let Some(seconds) = member.notice.overdue_s(now) {
                lines.push(format!(
                    "process {} has been handling pages for {seconds} s: a function of it blocks",
                    member.pid
                ));
            }
        }
        lines.iter().for_each(|line| self.log(line));
        for (id, why) in over {
            self.let_go(id, why);
        }
        if now >= self.shares_at_ns {
            self.share_out(now);
        }
    }

    /// Recomputes the shares of the budget and of the processor time.
    pub(super) fn share_out(&mut self, now: u64) {
        self.shares_at_ns = now + SHARES_INTERVAL_NS;
        let uses: Vec<(u64, Use)> =
            self.members().map(|(id, member)| (id, member.use_of_huge_pages())).collect();
        let weights: Vec<u64> = self.members().map(|(_, member)| member.watch.weight()).collect();
        let cpu_ppm = by_weight(self.options.cpu_ppm, &weights);
        let collapse_ppm = by_weight(self.options.collapse_ppm, &weights);
        let shares = self.shares.round(self.options.budget_ranges, &uses);
        for (at, (id, share)) in shares.into_iter().enumerate() {
            let registered = self.peers.get_mut(&id).and_then(|peer| peer.member.as_mut());
            let Some(member) = registered.or(self.chosen.get_mut(&id)) else { continue };
            let most = if member.wish.budget_bytes == 0 {
                u64::MAX
            } else {
                member.wish.budget_bytes / EXTENT as u64
            };
            member.share = share.min(most);
            member.watch.set_budget_ranges(if member.wish.mode == Mode::Managed {
                member.share
            } else {
                0
            });
            member.watch.set_cpu_ppm(cpu_ppm[at]);
            member.watch.set_collapse_ppm(collapse_ppm[at]);
        }
        self.update_metrics();
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (u64, &Member)> {
        let registered =
            self.peers.iter().filter_map(|(&id, peer)| Some((id, peer.member.as_ref()?)));
        registered.chain(self.chosen.iter().map(|(&id, member)| (id, member)))
    }

    /// When the next action is due.
    fn next_ns(&self, now: u64) -> u64 {
        let due =
            |member: &Member| member.next_ns.min(member.notice.overdue_at_ns().unwrap_or(u64::MAX));
        self.members()
            .map(|(_, member)| due(member).min(self.shares_at_ns))
            .chain(self.options.selector.as_ref().map(|_| self.choose_at_ns))
            .chain(self.accept_at_ns.filter(|&at_ns| at_ns > now))
            .min()
            .unwrap_or(u64::MAX)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.options.path);
        // Closing is not enough: a child that is just being started may hold a copy until it execs.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

impl Member {
    pub(super) fn new(
        pid: u32,
        pidfd: OwnedFd,
        wish: Registration,
        watch: Box<dyn Watch>,
        notice: Notice,
        next_ns: u64,
    ) -> Member {
        let outcome = HandlingResult::default();
        Member {
            pid,
            pidfd,
            wish,
            event: None,
            watch,
            notice,
            next_ns,
            share: 0,
            is_chosen: false,
            outcome,
            signals: 0,
        }
    }

    /// Ranges that a process in notified mode may still make huge itself.
    fn may_collapse(&self) -> u64 {
        match self.wish.mode {
            Mode::Managed => 0,
            Mode::Notified => self.share.saturating_sub(self.outcome.collapsed),
        }
    }

    /// The huge pages that the daemon made, or that the process reported.
    pub(super) fn use_of_huge_pages(&self) -> Use {
        match self.wish.mode {
            Mode::Managed => self.watch.use_of_huge_pages(),
            Mode::Notified => Use {
                active: self.outcome.collapsed,
                wanted: self.notice.waiting_ranges(PAGES_PER_EXTENT / 4),
                idle: 0,
            },
        }
    }

    /// Sends the signal and writes to the eventfd, if there are new pages.
    fn tell(&mut self) {
        let Some(count) = self.notice.due() else { return };
        let mut told = false;
        if let Some(event) = &self.event {
            told |= rustix::io::write(event, &count.to_ne_bytes()).is_ok();
        }
        // A process that has executed another program (exec) no longer has a handler, and the
        // signal would kill it.
        if self.wish.signal != 0 && catches(self.pid, self.wish.signal) {
            told |= notify::queue(self.pidfd.as_fd(), self.wish.signal, count).is_ok();
        }
        if told {
            self.notice.announced();
            self.signals += 1;
        }
    }
}

fn errno_of(error: &HotError) -> Errno {
    match error {
        HotError::Gone { .. } | HotError::NoProcess { .. } | HotError::KernelThread { .. } => {
            Errno::SRCH
        }
        HotError::NotPermitted { .. } => Errno::PERM,
        HotError::Managed { .. } => Errno::BUSY,
        HotError::NoBackend { .. } | HotError::Backend { .. } | HotError::NoHugePages { .. } => {
            Errno::NOSYS
        }
        _ => Errno::IO,
    }
}
