//! One connection to one server: never blocks, sends directly from the pager's frames and receives
//! directly into them, and reconnects when it breaks.
//!
//! Requests are answered in the order in which they were sent, so one queue is sufficient: its
//! front part waits for answers, its back part has not been sent yet. When the connection breaks,
//! all of it is sent again on the next one. That is safe, because writes are idempotent and the
//! server ends the older connection of a lane before it accepts requests from the newer one.

mod greeting;
mod part;
mod rings;
mod trouble;

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hiroma_far_wire::{
    ClientEvent, ClientSession, Frame, HEADER_BYTES, MAX_BODY, Message, Purpose, SessionToken,
    WireError,
};
use hiroma_sys::transport::Transport;

pub use self::part::Ask;
use self::part::Part;
use self::rings::Stage;
pub use self::trouble::Trouble;
use super::Shared;
use super::channel::Requests;
use crate::store::StoreError;

/// First and longest pause between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long one attempt to connect may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// How long a server may be silent before the user is told.
const SILENCE: Duration = Duration::from_secs(5);
/// If a link was not checked for this long, the reason is that this process was stopped (or its
/// machine was).
const STOOD_STILL: Duration = Duration::from_secs(2);
/// Maximum number of frames in one send call.
const BATCH: usize = 16;

enum State {
    Down {
        since: Instant,
        retry_at: Instant,
        pause: Duration,
    },
    Connecting {
        stream: TcpStream,
        since: Instant,
        attempt: Instant,
        pause: Duration,
    },
    /// Connected; authenticating, or opening the session.
    Greeting {
        stream: TcpStream,
        wire: Box<ClientSession>,
        since: Instant,
        attempt: Instant,
        pause: Duration,
        stage: Stage,
    },
    Up {
        transport: Box<dyn Transport>,
        wire: Box<ClientSession>,
    },
    Dead(StoreError),
}

/// See the module documentation.
pub struct Link {
    shared: Arc<Shared>,
    server: usize,
    lane: u32,
    purpose: Purpose,
    token: SessionToken,
    state: State,
    parts: VecDeque<Part>,
    /// Number of `parts` that have been sent.
    sent: usize,
    /// Bytes of the next part that have been sent.
    sent_bytes: usize,
    next_id: u64,
    /// Bytes of the greeting's control frames that have not been sent.
    greeting: Vec<u8>,
    /// Bytes that were received together with other data.
    stash: Vec<u8>,
    /// Received bytes of the payload that is arriving.
    received: usize,
    /// The socket accepted less than there was to send.
    blocked: bool,
    last_progress: Instant,
    /// When the server last sent something.
    heard: Instant,
    last_look: Instant,
    /// When the first of `parts` was queued.
    busy_since: Instant,
    /// Why the last attempt to connect failed.
    failure: Option<String>,
    /// Attempts to connect since it was up, and which address the last one was for.
    attempts: usize,
    addr: usize,
    /// The last attempt reached a server.
    was_accepted: bool,
    heads: Vec<u8>,
    /// Answers to control frames, with the ids of those.
    pub answers: VecDeque<(u64, Message)>,
    /// The socket has changed: a waiter that watches it must be updated.
    pub changed: bool,
    /// The user has been told that this server does not answer.
    announced: bool,
    /// It has been connected before.
    was_up: bool,
    /// Shared memory has failed here.
    stays_with_tcp: bool,
}

impl Link {
    pub fn new(shared: &Arc<Shared>, server: usize, purpose: Purpose, token: SessionToken) -> Link {
        let now = Instant::now();
        Link {
            lane: shared.next_lane(),
            shared: Arc::clone(shared),
            server,
            purpose,
            token,
            state: State::Down { since: now, retry_at: now, pause: PAUSE_MIN },
            parts: VecDeque::new(),
            sent: 0,
            sent_bytes: 0,
            next_id: 1,
            greeting: Vec::new(),
            stash: Vec::new(),
            received: 0,
            blocked: false,
            last_progress: now,
            heard: now,
            last_look: now,
            busy_since: now,
            failure: None,
            attempts: 0,
            addr: 0,
            was_accepted: false,
            heads: Vec::new(),
            answers: VecDeque::new(),
            changed: false,
            announced: false,
            was_up: false,
            stays_with_tcp: false,
        }
    }

    pub fn server(&self) -> usize {
        self.server
    }

    /// The session that it belongs to; [`SessionToken::NEW`] until the server has assigned one.
    pub fn token(&self) -> SessionToken {
        self.token
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    pub fn is_broken(&self) -> bool {
        !matches!(self.state, State::Up { .. } | State::Dead(_))
    }

    /// The version of the protocol, while it is up.
    pub fn version(&self) -> Option<u16> {
        if let State::Up { wire, .. } = &self.state { Some(wire.version()) } else { None }
    }

    /// The error, if it has failed for good.
    pub fn death(&self) -> Option<&StoreError> {
        if let State::Dead(error) = &self.state { Some(error) } else { None }
    }

    /// Why the last attempt to connect failed, once all addresses of the server have been tried.
    pub fn failure(&self) -> Option<&str> {
        let tried_all = self.attempts >= self.shared.servers[self.server].addrs.len();
        self.failure.as_deref().filter(|_| tried_all)
    }

    /// Whether the last attempt to connect failed only after a server had accepted it.
    pub fn was_accepted(&self) -> bool {
        self.was_accepted
    }

    /// Whether the present attempt to connect is not the first one.
    pub fn has_failed(&self) -> bool {
        self.was_up || self.failure.is_some()
    }

    /// Why it is down, and when its server last sent something.
    pub fn news(&self) -> (Option<&str>, Instant) {
        (self.failure.as_deref().filter(|_| self.is_broken()), self.heard)
    }

    /// Whether frames wait to be sent or answered.
    pub fn is_busy(&self) -> bool {
        !self.parts.is_empty()
    }

    /// The socket, if there is one, and whether it must become writable before the link can
    /// proceed.
    pub fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.state {
            State::Connecting { stream, .. } => Some((stream.as_fd(), true)),
            State::Greeting { stream, .. } => Some((stream.as_fd(), !self.greeting.is_empty())),
            State::Up { transport, .. } => {
                let for_room = self.blocked && transport.is_socket_writable_when_ready();
                Some((transport.socket(), for_room))
            }
            State::Down { .. } | State::Dead(_) => None,
        }
    }

    /// Called before a sleep until the socket is ready. False: there is something to do already.
    pub fn may_sleep(&self) -> bool {
        match &self.state {
            State::Up { transport, .. } if self.is_busy() => transport.may_sleep(self.blocked),
            _ => true,
        }
    }

    /// How long what was sent has waited without anything arriving.
    pub fn silent_for(&self) -> Duration {
        if self.is_busy() { self.last_progress.elapsed() } else { Duration::ZERO }
    }

    /// Queues a frame, and returns its id.
    pub fn push(&mut self, addr: u64, len: usize, ask: Ask) -> u64 {
        if self.parts.is_empty() {
            self.last_progress = Instant::now();
            self.busy_since = self.last_progress;
        }
        let id = self.next_id;
        self.parts.push_back(Part { id, addr, len, ask });
        self.next_id += 1;
        id
    }

    /// Queues a control frame, and returns its id.
    pub fn push_control(&mut self, message: Message, keep_answer: bool) -> u64 {
        let (addr, len) =
            if let Message::Free { addr, len } = message { (addr, len as usize) } else { (0, 0) };
        self.push(addr, len, Ask::Control { message, keep_answer })
    }

    /// Its server was emptied and is gone: it is not connected to any more.
    pub fn do_without(&mut self) {
        let store = self.shared.servers[self.server].text.clone();
        self.state = State::Dead(StoreError::Unreachable { store, waited: Duration::ZERO });
        self.changed = true;
    }

    /// Ends the session. The answer is not waited for, and the server is expected to close the
    /// connection.
    pub fn say_goodbye(&mut self) {
        if self.is_up() {
            self.push_control(Message::Bye, false);
            let _ = self.send(&Requests::default());
        }
    }

    /// Advances everything as far as possible without waiting. Finished transfers go to `requests`.
    pub fn pump(&mut self, requests: &mut Requests, look_at_idle: bool) {
        // Servers close the connections of a client that has said goodbye: threads that have not
        // noticed yet must not treat that as a loss.
        if self.shared.left.load(Ordering::SeqCst) {
            return;
        }
        if matches!(self.state, State::Dead(_)) {
            self.fail_all(requests);
            return;
        }
        if look_at_idle {
            self.forgive_standstill();
        }
        if self.is_broken() && self.is_done_without() {
            self.do_without();
            return self.fail_all(requests);
        }
        let result = self.pump_state(requests, look_at_idle);
        match result {
            Ok(()) => {}
            Err(Trouble::Fatal(error)) => self.die(error, requests),
            Err(Trouble::Broken(reason)) => self.break_off(&reason, requests),
        }
    }

    /// Whether the server was emptied and does not answer any more. Whoever waits for it finds out:
    /// while the program forks, nobody else looks.
    fn is_done_without(&self) -> bool {
        let mut books = self.shared.books();
        books.servers[self.server].is_gone
            || self.has_failed() && books.is_done_without(self.server)
    }

    /// Time in which this process was stopped does not count as the server's: the server may have
    /// been stopped too.
    fn forgive_standstill(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.last_look) > STOOD_STILL {
            (self.last_progress, self.busy_since) = (now, now);
        }
        self.last_look = now;
    }

    fn pump_state(&mut self, requests: &mut Requests, look_at_idle: bool) -> Result<(), Trouble> {
        if matches!(self.state, State::Up { .. }) {
            return self.pump_up(requests, look_at_idle);
        }
        let now = Instant::now();
        if let State::Down { retry_at, .. } = self.state {
            if now < retry_at {
                return Ok(());
            }
            self.connect(now)?;
        }
        if let State::Connecting { .. } | State::Greeting { .. } = &self.state {
            self.greet(now)?;
        }
        if matches!(self.state, State::Up { .. }) {
            self.pump_up(requests, look_at_idle)
        } else {
            Ok(())
        }
    }

    fn pump_up(&mut self, requests: &mut Requests, look_at_idle: bool) -> Result<(), Trouble> {
        if let (true, State::Up { transport, .. }) = (look_at_idle, &mut self.state) {
            transport.look();
        }
        self.send(requests)?;
        if self.sent > 0 || look_at_idle || !self.stash.is_empty() {
            self.receive(requests)?;
        }
        if look_at_idle && self.is_busy() {
            self.look_for_silence()?;
        }
        Ok(())
    }

    /// A server that keeps the connection but does not answer is not waited for forever, nor
    /// without a message.
    fn look_for_silence(&mut self) -> Result<(), Trouble> {
        let (waited, patience) = (self.last_progress.elapsed(), self.shared.timeout);
        let text = &self.shared.servers[self.server].text;
        if waited > SILENCE.min(patience / 2) && !self.announced {
            self.announced = true;
            (self.shared.log)(&format!("{text} does not answer; waiting for up to {patience:?}"));
        }
        if waited > patience {
            return Err(Trouble::Fatal(StoreError::Unreachable {
                store: text.clone(),
                waited: Duration::from_secs(waited.as_secs()),
            }));
        }
        Ok(())
    }

    fn send(&mut self, requests: &Requests) -> Result<(), Trouble> {
        let State::Up { transport, wire } = &mut self.state else { return Ok(()) };
        self.blocked = false;
        while self.sent < self.parts.len() {
            let batch = self.parts.range(self.sent..).take(BATCH);
            let mut heads_end = [0; BATCH];
            self.heads.clear();
            for (part, end) in batch.clone().zip(&mut heads_end) {
                part.encode(wire.version(), &mut self.heads);
                *end = self.heads.len();
            }
            let head_of = |index: usize| {
                index.checked_sub(1).map_or(0, |before| heads_end[before])..heads_end[index]
            };
            let mut slices: [IoSlice<'_>; 2 * BATCH] = [IoSlice::new(&[]); 2 * BATCH];
            let mut skip = self.sent_bytes;
            for (index, part) in batch.clone().enumerate() {
                for (slice, bytes) in slices[2 * index..]
                    .iter_mut()
                    .zip([&self.heads[head_of(index)], part.payload(requests)])
                {
                    let skipped = skip.min(bytes.len());
                    skip -= skipped;
                    *slice = IoSlice::new(&bytes[skipped..]);
                }
            }
            let mut taken = match transport.send(&slices[..2 * batch.len()], false) {
                Ok(0) => {
                    return Err(Trouble::Broken("the connection takes no more bytes".to_owned()));
                }
                Ok(taken) => taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            for (index, part) in batch.enumerate() {
                let left = head_of(index).len() + part.payload(requests).len() - self.sent_bytes;
                if taken < left {
                    self.sent_bytes += taken;
                    break;
                }
                taken -= left;
                self.sent_bytes = 0;
                self.sent += 1;
            }
        }
        Ok(())
    }

    /// Receives until the socket is empty or a request has finished.
    fn receive(&mut self, requests: &mut Requests) -> Result<(), Trouble> {
        let finished_before = requests.finished();
        loop {
            self.take_stash(requests)?;
            if requests.finished() > finished_before {
                return Ok(());
            }
            let front = self.front_read();
            let State::Up { transport, wire } = &mut self.state else { return Ok(()) };
            let missing = wire.missing();
            let mut head = [0; HEADER_BYTES + MAX_BODY];
            let mut tail = [0; HEADER_BYTES];
            // The front of the queue determines where the next payload belongs, before its header
            // has arrived.
            let target = match front {
                // What follows an error belongs to the next request: this one ends with it.
                _ if wire.inbound().is_in_body() => &mut [],
                Some((request, at, len)) => {
                    requests.target(request, at + self.received, len - self.received)
                }
                None => &mut [],
            };
            let target_len = target.len();
            let mut slices = [
                IoSliceMut::new(&mut head[..missing]),
                IoSliceMut::new(target),
                IoSliceMut::new(&mut tail),
            ];
            let received = match transport.receive(&mut slices, false) {
                Ok(0) => {
                    return Err(Trouble::Broken("the server closed the connection".to_owned()));
                }
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            self.last_progress = Instant::now();
            self.heard = self.last_progress;
            self.announce_return();
            let of_head = received.min(missing);
            let of_target = (received - of_head).min(target_len);
            let of_tail = received - of_head - of_target;
            self.settle(&head[..of_head], of_target, &tail[..of_tail], requests)?;
        }
    }

    /// Processes received bytes: the end of a frame's head, then bytes that are already where the
    /// front read expects its payload, then more.
    fn settle(
        &mut self,
        head: &[u8],
        in_place: usize,
        tail: &[u8],
        requests: &mut Requests,
    ) -> Result<(), Trouble> {
        let place = self.front_read().map(|(request, at, _)| (request, at + self.received));
        self.feed(head, requests)?;
        let State::Up { wire, .. } = &mut self.state else { return Ok(()) };
        if in_place > 0 && wire.inbound().payload_left() > 0 {
            wire.inbound().payload_received(in_place);
            self.received += in_place;
            self.finish_read(requests);
        } else if in_place > 0 {
            // Not the expected payload but an error, whose text is now in the frame.
            let (request, at) =
                place.expect("bytes were received into the buffer of the front read");
            self.stash.extend_from_slice(requests.target(request, at, in_place));
        }
        self.stash.extend_from_slice(tail);
        Ok(())
    }

    fn announce_return(&mut self) {
        if std::mem::take(&mut self.announced) {
            (self.shared.log)(&format!(
                "{} is back; going on",
                self.shared.servers[self.server].text
            ));
        }
    }

    /// The request, offset and length of the read that is to be answered next, if it is one.
    fn front_read(&self) -> Option<(usize, usize, usize)> {
        match self.parts.front() {
            Some(&Part { ask: Ask::Transfer { request, at, write: false }, len, .. })
                if self.sent > 0 =>
            {
                Some((request, at, len))
            }
            _ => None,
        }
    }

    fn take_stash(&mut self, requests: &mut Requests) -> Result<(), Trouble> {
        if self.stash.is_empty() {
            return Ok(());
        }
        let stash = std::mem::take(&mut self.stash);
        self.feed(&stash, requests)
    }

    /// Processes bytes that are not in their destination yet.
    fn feed(&mut self, bytes: &[u8], requests: &mut Requests) -> Result<(), Trouble> {
        let mut used = 0;
        while used < bytes.len() {
            let State::Up { wire, .. } = &mut self.state else { return Ok(()) };
            let due = wire.inbound().payload_left().min(bytes.len() - used);
            if due > 0 {
                wire.inbound().payload_received(due);
                let (request, at, _) = self
                    .front_read()
                    .expect("a payload is announced only to the read that asked for it");
                requests
                    .target(request, at + self.received, due)
                    .copy_from_slice(&bytes[used..used + due]);
                self.received += due;
                used += due;
                self.finish_read(requests);
                continue;
            }
            let (taken, event) = wire
                .receive(&bytes[used..])
                .map_err(|error| self.shared.refusal(self.server, &error))?;
            used += taken;
            match event {
                Some(ClientEvent::Frame(frame)) => self.answer(frame, requests)?,
                Some(_) => {
                    return Err(Trouble::Fatal(
                        self.shared.broken_protocol(self.server, "a greeting came twice"),
                    ));
                }
                None => {}
            }
        }
        Ok(())
    }

    fn finish_read(&mut self, requests: &mut Requests) {
        let State::Up { wire, .. } = &mut self.state else { return };
        if wire.inbound().payload_left() == 0 {
            self.received = 0;
            let part = self.pop();
            if let Ask::Transfer { request, .. } = part.ask {
                requests.part_done(request, Ok(()));
            }
        }
    }

    fn pop(&mut self) -> Part {
        self.sent -= 1;
        self.parts.pop_front().expect("a part that was sent is in the queue")
    }

    /// Handles one frame; if it is a `ReadReply`, its payload is still to arrive.
    fn answer(&mut self, frame: Frame, requests: &mut Requests) -> Result<(), Trouble> {
        let Frame { id, message } = frame;
        if let (0, Message::Error { code, text }) = (id, &message) {
            let error = WireError::Told { code: *code, text: text.clone() };
            return Err(self
                .shared
                .refusal(self.server, &error)
                .into_fatal(&self.shared, self.server));
        }
        let front = self.parts.front().filter(|part| self.sent > 0 && part.id == id);
        let Some(front) = front else {
            return Err(Trouble::Fatal(
                self.shared.broken_protocol(self.server, "an answer came to no request"),
            ));
        };
        match (&front.ask, message) {
            (Ask::Transfer { write: false, .. }, Message::ReadReply { addr, len })
                if addr == front.addr && len as usize == front.len =>
            {
                self.received = 0;
            }
            (Ask::Transfer { request, write: true, .. }, Message::Ack) => {
                requests.part_done(*request, Ok(()));
                self.pop();
            }
            (Ask::Transfer { request, write, .. }, Message::Error { code, text }) => {
                let error = self.shared.request_failed(self.server, *write, code, &text);
                requests.part_done(*request, Err(error));
                self.pop();
            }
            (Ask::Control { .. }, message) => {
                let Part { id, ask: Ask::Control { message: question, keep_answer }, .. } =
                    self.pop()
                else {
                    unreachable!("just looked at")
                };
                self.shared.note_answer(self.server, &question, &message);
                if keep_answer {
                    self.answers.push_back((id, message));
                }
            }
            _ => {
                return Err(Trouble::Fatal(
                    self.shared.broken_protocol(self.server, "an answer does not fit its request"),
                ));
            }
        }
        Ok(())
    }
}
