//! One thread's access to the servers: a link to each, and the requests in flight on them.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hiroma_far_wire::{Message, Purpose as LinkPurpose, SessionToken};
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::{fds, vm};
use hiroma_units::Loc;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::Shared;
use super::books::{Piece, RESERVE_CHUNKS, Short};
use super::link::{Ask, Link};
use crate::store::{Channel, Completion, Condition, Purpose, StoreError, Token};

/// Interval of the checks of links without requests, in polls.
const IDLE_TURN: u32 = 64;
/// Interval at which a channel has to be polled while all links are up, and while one is down.
const TICK: Duration = Duration::from_secs(1);
const TICK_DOWN: Duration = Duration::from_millis(20);
/// Requests are sent at the next `poll`, in one call; this many of them, or this many bytes, are
/// sent immediately, so that the servers can already work on them.
const TOGETHER: usize = 32;
const TOGETHER_BYTES: usize = 128 << 10;
/// How long to wait for room that was given back on another channel.
const FREES_PATIENCE: Duration = Duration::from_millis(200);

/// The requests of one channel.
#[derive(Default)]
pub struct Requests {
    slots: Vec<Option<Request>>,
    vacant: Vec<usize>,
    done: Vec<Completion>,
    finished: usize,
    /// Stands for the buffers of abandoned requests: takes what arrives for them, and is sent in
    /// the place of what they had left to send.
    scratch: Vec<u8>,
}

struct Request {
    token: Token,
    buf: FrameBuf,
    parts_left: usize,
    error: Option<StoreError>,
    /// Its caller has taken the buffer back: what still arrives goes to `Requests::scratch`.
    abandoned: bool,
}

impl Requests {
    fn add(&mut self, token: Token, buf: FrameBuf, parts: usize) -> usize {
        let request =
            Some(Request { token, buf, parts_left: parts, error: None, abandoned: false });
        match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot] = request;
                slot
            }
            None => {
                self.slots.push(request);
                self.slots.len() - 1
            }
        }
    }

    fn get(&mut self, request: usize) -> &mut Request {
        self.slots[request].as_mut().expect("a part belongs to a request that is under way")
    }

    /// A part of a request's buffer, to receive into.
    pub fn target(&mut self, request: usize, at: usize, len: usize) -> &mut [u8] {
        if self.get(request).abandoned {
            return &mut self.scratch[at..at + len];
        }
        &mut self.get(request).buf.bytes_mut()[at..at + len]
    }

    /// A part of a request's buffer, to send.
    pub fn source(&self, request: usize, at: usize, len: usize) -> &[u8] {
        let request =
            self.slots[request].as_ref().expect("a part belongs to a request that is under way");
        let bytes = if request.abandoned { &self.scratch } else { request.buf.bytes() };
        &bytes[at..at + len]
    }

    /// Takes the buffer of a request back. The request completes as usual, with an empty buffer.
    fn abandon(&mut self, token: Token) -> Option<FrameBuf> {
        let request = self.slots.iter_mut().flatten().find(|request| request.token == token)?;
        let empty = vm::lend(request.buf.addr(), 0);
        let buf = std::mem::replace(&mut request.buf, empty);
        request.abandoned = true;
        if self.scratch.len() < buf.len() {
            self.scratch.resize(buf.len(), 0);
        }
        Some(buf)
    }

    /// One part has ended; with the last one, the request completes.
    pub fn part_done(&mut self, number: usize, result: Result<(), StoreError>) {
        let request = self.get(number);
        request.parts_left -= 1;
        if let Err(error) = result {
            request.error.get_or_insert(error);
        }
        if request.parts_left == 0 {
            let Request { token, buf, error, .. } = self.slots[number].take().expect("just used");
            self.vacant.push(number);
            self.done.push(Completion { token, buf, result: error.map_or(Ok(()), Err) });
            self.finished += 1;
        }
    }

    /// Number of requests that have finished so far.
    pub fn finished(&self) -> usize {
        self.finished
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.vacant.len() + self.done.len()
    }
}

/// See [`Channel`].
pub struct TcpChannel {
    shared: Arc<Shared>,
    purpose: Purpose,
    epoch: u64,
    links: Vec<Link>,
    requests: Requests,
    pieces: Vec<Piece>,
    /// Number of requests that were started since the last `pump`, and their bytes.
    unsent: (usize, usize),
    waiter: Option<Waiter>,
    tick: Duration,
    polls: u32,
    last_tick: Instant,
}

/// The descriptors to wait on for a channel. If descriptors are scarce there is no waiter: the
/// threads wait for the sockets themselves, and poll again soon in any case.
struct Waiter {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Readable when a request has finished although no socket becomes readable.
    bell: OwnedFd,
    bell_rung: Cell<bool>,
}

/// Data of the epoll entries that are not links.
const TIMER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

impl Waiter {
    fn open() -> rustix::io::Result<Waiter> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Waiter { epoll, timer, bell, bell_rung: Cell::new(false) })
    }

    fn watch(&self, link: &Link) {
        let Some((socket, blocked)) = link.socket() else { return };
        let flags = if blocked {
            epoll::EventFlags::IN | epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::IN
        };
        let data = epoll::EventData::new_u64(link.server() as u64);
        if epoll::modify(&self.epoll, socket, data, flags).is_err() {
            let _ = epoll::add(&self.epoll, socket, data, flags);
        }
    }

    fn tick_is_over(&self) {
        let mut expirations = [0u8; 8];
        let _ = rustix::io::read(&self.timer, &mut expirations);
    }

    fn set_tick(&self, tick: Duration) {
        let spec =
            Timespec { tv_sec: tick.as_secs() as i64, tv_nsec: i64::from(tick.subsec_nanos()) };
        let _ = timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: spec, it_value: spec },
        );
    }

    fn ring(&self) {
        if !self.bell_rung.get() {
            self.bell_rung.set(rustix::io::write(&self.bell, &1u64.to_ne_bytes()).is_ok());
        }
    }

    fn was_heard(&self) {
        if self.bell_rung.take() {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.bell, &mut count);
        }
    }
}

impl TcpChannel {
    /// Connects to every server, and waits until that has succeeded.
    pub fn open(shared: &Arc<Shared>, purpose: Purpose) -> Result<TcpChannel, StoreError> {
        let waiter = if fds::are_few() { None } else { Waiter::open().ok() };
        let link_purpose =
            if purpose == Purpose::Read { LinkPurpose::Read } else { LinkPurpose::Write };
        let tokens: Vec<_> = shared.books().servers.iter().map(|server| server.token).collect();
        let mut links = Vec::new();
        for (server, token) in tokens.into_iter().enumerate() {
            if shared.books().servers[server].is_gone {
                let mut link = Link::new(shared, server, link_purpose, SessionToken::NEW);
                link.do_without();
                links.push(link);
                continue;
            }
            let token = token.ok_or_else(|| {
                shared.io_error("opening a channel", "the store is not connected")
            })?;
            links.push(Link::new(shared, server, link_purpose, token));
        }
        let mut channel = TcpChannel {
            shared: Arc::clone(shared),
            purpose,
            epoch: shared.epoch.load(Ordering::SeqCst),
            links,
            requests: Requests::default(),
            pieces: Vec::new(),
            unsent: (0, 0),
            waiter,
            tick: Duration::ZERO,
            polls: 0,
            last_tick: Instant::now(),
        };
        if shared.is_redundant {
            // Its user asks others meanwhile.
            channel.pump();
            return Ok(channel);
        }
        for link in &mut channel.links {
            link.push_control(Message::Ping, true);
        }
        channel.wait_for(|channel| {
            channel.links.iter().all(|link| !link.answers.is_empty() || link.death().is_some())
        });
        channel.links.iter_mut().for_each(|link| link.answers.clear());
        let is_needed = |link: &&Link| !shared.books().servers[link.server()].is_gone;
        match channel.links.iter().filter(is_needed).find_map(Link::death) {
            Some(error) => Err(error.clone()),
            None => Ok(channel),
        }
    }

    /// Whether the process has forked since the channel was opened: its connections are the
    /// parent's.
    fn is_stale(&self) -> bool {
        self.epoch != self.shared.epoch.load(Ordering::Relaxed)
    }

    fn stale_error(&self) -> StoreError {
        self.shared.io_error("using a channel", "it was opened before this process was forked off")
    }

    /// Pumps until `done` returns true.
    fn wait_for(&mut self, done: impl Fn(&Self) -> bool) {
        loop {
            self.pump();
            if done(self) {
                return;
            }
            if !self.links.iter().all(Link::may_sleep) {
                continue;
            }
            let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = match &self.waiter {
                Some(waiter) => {
                    poll(&mut [PollFd::new(&waiter.epoll, PollFlags::IN)], Some(&timeout))
                }
                None => {
                    let flags = |blocked| {
                        if blocked { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
                    };
                    let sockets = self.links.iter().filter_map(Link::socket);
                    let mut polled: Vec<_> = sockets
                        .map(|(socket, blocked)| PollFd::from_borrowed_fd(socket, flags(blocked)))
                        .collect();
                    poll(&mut polled, Some(&timeout))
                }
            };
        }
    }

    fn pump(&mut self) {
        self.polls = self.polls.wrapping_add(1);
        self.unsent = (0, 0);
        let look_at_idle = self.polls % IDLE_TURN == 0 || self.last_tick.elapsed() >= self.tick;
        self.give_back();
        let mut down = false;
        for link in &mut self.links {
            if link.is_busy() || look_at_idle {
                let was = link.socket().map(|(socket, blocked)| (socket.as_raw_fd(), blocked));
                link.pump(&mut self.requests, look_at_idle);
                let is = link.socket().map(|(socket, blocked)| (socket.as_raw_fd(), blocked));
                if was != is || link.changed {
                    link.changed = false;
                    if let Some(waiter) = &self.waiter {
                        waiter.watch(link);
                    }
                }
            }
            down |= link.is_broken();
        }
        if look_at_idle {
            self.set_tick(if down { TICK_DOWN } else { TICK.min(self.shared.timeout / 4) });
        } else if down && self.tick != TICK_DOWN {
            self.set_tick(TICK_DOWN);
        }
    }

    /// Gives empty chunks back, on the links that are up.
    fn give_back(&mut self) {
        self.links.iter_mut().for_each(|link| self.shared.give_back(link));
    }

    fn set_tick(&mut self, tick: Duration) {
        self.last_tick = Instant::now();
        let changed = std::mem::replace(&mut self.tick, tick) != tick;
        if let Some(waiter) = &self.waiter {
            waiter.tick_is_over();
            if changed {
                waiter.set_tick(tick);
            }
        }
    }

    /// Allocates sectors for `locs`, and requests room from servers if necessary.
    fn allocate(&mut self, locs: &mut [Loc]) -> Result<(), StoreError> {
        let mut deadline = None;
        loop {
            let short = {
                let mut books = self.shared.books();
                match books.allocate(locs) {
                    Ok(()) => {
                        self.pieces.clear();
                        let homed = books.pieces(locs, &mut self.pieces);
                        homed
                            .unwrap_or_else(|loc| panic!("sector {} was just given a home", loc.0));
                        return Ok(());
                    }
                    Err(short) => short,
                }
            };
            match short {
                Short::Ask(server) if self.shared.is_redundant => {
                    if self.shared.books().servers[server].ask_now() {
                        self.give_back();
                        let ask = Message::Reserve { chunks: RESERVE_CHUNKS };
                        self.links[server].push_control(ask, false);
                    }
                    return Err(self.shared.full());
                }
                Short::Full if self.shared.is_redundant => return Err(self.shared.full()),
                Short::Ask(server) => self.ask_for_room(server)?,
                Short::Full => {
                    // Chunks that were given back may not have reached the servers yet.
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + FREES_PATIENCE);
                    let coming =
                        self.shared.books().servers.iter().any(|server| server.frees_under_way());
                    if !coming || Instant::now() > deadline {
                        return Err(self.shared.full());
                    }
                    self.pump();
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Requests room from `server` and waits for its answer, while all other requests continue.
    fn ask_for_room(&mut self, server: usize) -> Result<(), StoreError> {
        self.give_back();
        self.links[server].answers.clear();
        self.links[server].push_control(Message::Reserve { chunks: RESERVE_CHUNKS }, true);
        self.wait_for(|channel| {
            !channel.links[server].answers.is_empty() || channel.links[server].death().is_some()
        });
        self.links[server].answers.clear();
        self.links[server].death().cloned().map_or(Ok(()), Err)
    }

    fn start(&mut self, token: Token, buf: FrameBuf, write: bool) {
        let wanted: usize = self.pieces.iter().map(|piece| piece.len).sum();
        assert!(
            wanted == buf.len() && wanted > 0,
            "a buffer of {} bytes for sectors of {wanted}",
            buf.len()
        );
        let request = self.requests.add(token, buf, self.pieces.len());
        let pieces = std::mem::take(&mut self.pieces);
        for piece in &pieces {
            self.links[piece.server].push(
                piece.addr,
                piece.len,
                Ask::Transfer { request, at: piece.at, write },
            );
        }
        self.pieces = pieces;
        self.unsent = (self.unsent.0 + 1, self.unsent.1 + wanted);
        if self.unsent.0 >= TOGETHER || self.unsent.1 >= TOGETHER_BYTES {
            self.pump();
            self.ring_if_done();
        }
    }

    /// Makes the descriptor readable if a request has finished without a socket becoming readable.
    fn ring_if_done(&mut self) {
        if let (false, Some(waiter)) = (self.requests.done.is_empty(), &self.waiter) {
            waiter.ring();
        }
    }
}

impl Channel for TcpChannel {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        self.pieces.clear();
        let known = self.shared.books().pieces(locs, &mut self.pieces);
        let error = match known {
            Err(loc) => Some(
                self.shared.io_error("reading", &format!("sector {} was never written", loc.0)),
            ),
            Ok(()) if self.is_stale() => Some(self.stale_error()),
            Ok(()) => None,
        };
        if let Some(error) = error {
            self.requests.done.push(Completion { token, buf, result: Err(error) });
            return self.ring_if_done();
        }
        self.start(token, buf, false);
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        if self.is_stale() {
            return Err((buf, self.stale_error()));
        }
        if self.purpose == Purpose::Read {
            return Err((buf, self.shared.io_error("writing", "the channel was opened for reads")));
        }
        if let Err(error) = self.allocate(locs) {
            self.ring_if_done();
            return Err((buf, error));
        }
        let mut books = self.shared.books();
        for link in self.links.iter_mut() {
            if books.servers[link.server()].should_ask() {
                link.push_control(Message::Reserve { chunks: RESERVE_CHUNKS }, false);
            }
        }
        drop(books);
        self.start(token, buf, true);
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        if !self.is_stale() {
            self.pump();
        }
        if let Some(waiter) = &self.waiter {
            waiter.was_heard();
        }
        out.append(&mut self.requests.done);
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        match &self.waiter {
            Some(waiter) => {
                if !self.links.iter().all(Link::may_sleep) {
                    waiter.ring();
                }
                vec![waiter.epoll.as_fd().as_raw_fd()]
            }
            None => self
                .links
                .iter()
                .filter_map(Link::socket)
                .map(|(socket, _)| socket.as_raw_fd())
                .collect(),
        }
    }

    fn in_flight(&self) -> usize {
        self.requests.in_flight()
    }

    fn abandon(&mut self, token: Token) -> Option<FrameBuf> {
        self.requests.abandon(token)
    }

    fn condition(&self) -> Condition {
        if self.links.iter().any(|link| link.death().is_some()) {
            Condition::Dead
        } else if self.links.iter().any(|link| link.is_broken() && link.has_failed()) {
            Condition::CutOff
        } else {
            Condition::Up
        }
    }
}
