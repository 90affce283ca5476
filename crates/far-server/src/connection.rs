//! One connection: reads requests, moves bytes between socket and pool, replies.
//!
//! Payloads are never stored in an intermediate buffer, except by the transport. On connections that may write, headers are
//! received without any byte after them; a payload is received directly into the pool, together
//! with the next header. A connection for reads receives many requests in one call, and must not
//! write.

mod sharing;

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hiroma_far_wire::{
    ErrorCode, Frame, HEADER_BYTES, Header, Kind, MAX_PAYLOAD, Message, Purpose, ServerEvent,
    ServerSession, WireError,
};
use hiroma_sys::hugepool::PoolRange;
use hiroma_sys::sockets;
use hiroma_sys::transport::offer::Offer;
use hiroma_sys::transport::tcp::Tcp;
use hiroma_sys::transport::{Awaited, Transport};

use crate::Server;
use crate::activity::{Refused, RequestKind};
use crate::chunk::{Place, range};
use crate::ending::{self, End, Loss};
use crate::registry::Guest;
use crate::rings::Place as RingsPlace;
use crate::seat::Seat;
use crate::session::{Lane, Session};
use crate::stream::send_both;
use crate::tenant::Tenant;

/// Time within which a peer must authenticate.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an older connection of the same lane may take to end.
const LANE_PATIENCE: Duration = Duration::from_secs(5);
/// How long to poll for the next request before sleeping: a wake-up costs about as much.
const SPIN_TIME: Duration = Duration::from_micros(60);
/// Maximum credit for spinning, which is earned by spins and waits that were short.
const SPIN_CREDIT_MAX: i32 = 16;
/// Replies that are held back while more requests are pending.
const HELD_BYTES_MAX: usize = 64 * HEADER_BYTES;
/// The buffer of replies is not kept larger than this.
const TX_KEPT_MAX: usize = 64 << 10;

/// Bytes that are copied in one turn.
const PIECE: usize = 256 << 10;

/// Runs one connection until it ends.
pub fn run(server: &Arc<Server>, stream: Arc<TcpStream>, peer: SocketAddr, guest: &Guest) {
    let wire = ServerSession::new(server.key.clone(), sockets::random());
    let mut connection = Connection {
        server,
        transport: Box::new(Tcp(Arc::clone(&stream))),
        stream,
        offer: None,
        rings: None,
        wire,
        rx: [0; 2048],
        rx_start: 0,
        rx_end: 0,
        rx_max: 0,
        tx: Vec::with_capacity(2 * HELD_BYTES_MAX),
        credit: 0,
        seat: Seat::new(),
        id: 0,
        serving: None,
        deadline: Some(Instant::now() + HANDSHAKE_TIMEOUT),
    };
    match connection.serve(peer, guest) {
        Err(End::Wire(error)) => {
            server.activity.refused(Refused::of(error.code()));
            (server.log)(&format!("{peer}: connection ended: {error}"));
            let farewell = connection.wire.farewell(&error);
            connection.tx.extend_from_slice(&farewell);
            connection.part_with();
        }
        Err(End::TurnedAway | End::Closed | End::Broken(_)) if guest.is_turned_away() => {
            server.activity.refused(Refused::Connections);
            (server.log)(&format!("turned {peer} away: others wait, and it showed no key yet"));
            let farewell = ending::no_place(connection.wire.version());
            connection.tx.extend_from_slice(&farewell);
            connection.part_with();
        }
        _ => {}
    }
    let _ = connection.stream.shutdown(std::net::Shutdown::Both);
}

struct Connection<'a> {
    server: &'a Arc<Server>,
    /// How it began; its end is the connection's.
    stream: Arc<TcpStream>,
    /// What carries it.
    transport: Box<dyn Transport>,
    /// The client may come to take rings.
    offer: Option<Offer>,
    /// It is in shared memory.
    rings: Option<RingsPlace<'a>>,
    wire: ServerSession,
    rx: [u8; 2048],
    rx_start: usize,
    rx_end: usize,
    /// Maximum number of bytes to receive in one call; 0: only the frame that is arriving.
    rx_max: usize,
    /// Replies that were not sent yet.
    tx: Vec<u8>,
    credit: i32,
    seat: Seat,
    /// The request that is being served.
    id: u64,
    /// Its kind, and when its header had arrived.
    serving: Option<(RequestKind, Instant)>,
    /// The time by which the peer must authenticate, until it has.
    deadline: Option<Instant>,
}

impl<'a> Connection<'a> {
    fn serve(&mut self, peer: SocketAddr, guest: &Guest) -> Result<(), End> {
        sockets::tune(&self.stream)?;
        sockets::probe_often(&self.stream)?;
        sockets::bear_silence(&self.stream, self.server.registry.silence())?;
        self.stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
        self.stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
        let (token, number, purpose) = loop {
            match self.next_event()? {
                ServerEvent::Send(bytes) => self.tx.extend_from_slice(&bytes),
                ServerEvent::Open(Frame {
                    id,
                    message: Message::Open { token, lane, purpose },
                }) => {
                    self.id = id;
                    break (token, lane, purpose);
                }
                ServerEvent::Query(Frame { id, message: Message::Query { len } }) => {
                    guest.is_known()?;
                    self.id = id;
                    self.query(len as usize)?;
                }
                ServerEvent::Open(frame)
                | ServerEvent::Request(frame)
                | ServerEvent::Query(frame) => {
                    return Err(WireError::Unexpected {
                        kind: frame.message.kind(),
                        expected: "an open",
                    }
                    .into());
                }
            }
        };
        guest.is_known()?;
        self.deadline = None;
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        let lane = Lane::new(Arc::clone(&self.stream));
        let who = self.wire.introduction();
        let session = match self.server.registry.open(token, who, peer, &self.server.log) {
            Ok(session) => session,
            Err(reason) => {
                self.refuse(ErrorCode::NoSession, &reason);
                return Ok(());
            }
        };
        let result = match session.enter(number, &lane, LANE_PATIENCE) {
            Ok(()) => {
                let lease_ms = self.server.registry.lease().as_millis() as u32;
                let (token, usage) = (session.token, session.usage());
                self.say(&Message::Opened { token, usage, lease_ms });
                self.rx_max = if purpose == Purpose::Read { self.rx.len() } else { 0 };
                self.serve_session(&session, &lane, purpose)
            }
            Err(code) => {
                self.refuse(code, "an older connection of this client is still busy");
                Ok(())
            }
        };
        if matches!(result, Err(End::Bye)) {
            self.server.registry.goodbye(&session);
        }
        let kept = self.server.registry.kept_after(Loss::of(&result, &self.stream));
        session.leave(number, &lane, kept);
        drop(session);
        self.server.registry.sweep(&self.server.log);
        result
    }

    fn serve_session(
        &mut self,
        session: &Session,
        lane: &Lane,
        purpose: Purpose,
    ) -> Result<(), End> {
        loop {
            let frame = self.next_request()?;
            self.id = frame.id;
            match frame.message {
                Message::Read { addr, len } => self.read(session, addr, len)?,
                Message::Write { addr, len } => {
                    if purpose == Purpose::Read {
                        return Err(WireError::Unexpected {
                            kind: Kind::Write,
                            expected: "a read",
                        }
                        .into());
                    }
                    self.write(session, addr, len as usize)?;
                }
                Message::Free { addr, len } => match session.free(addr, len as usize) {
                    Ok(()) => self.say(&Message::Ack),
                    Err(code) => self.fail(code, "no chunks of yours start there"),
                },
                Message::Reserve { chunks } => {
                    let mut granted = session.reserve(chunks as usize);
                    if granted == 0 && chunks > 0 && !session.usage().is_at_quota {
                        self.server.registry.make_room(&self.server.log);
                        granted = session.reserve(chunks as usize);
                    }
                    if granted == 0 && chunks > 0 {
                        let is_at_quota = session.usage().is_at_quota;
                        self.server.activity.refused(if is_at_quota {
                            Refused::Quota
                        } else {
                            Refused::Full
                        });
                        if is_at_quota && session.tell_quota() {
                            (self.server.log)(&format!(
                                "{}: {}",
                                session.called(),
                                session.quota_reached()
                            ));
                        }
                    }
                    self.say(&Message::Granted { chunks: granted as u32, usage: session.usage() });
                }
                Message::Attach { token, space } => {
                    let attached = self
                        .server
                        .registry
                        .memory(token)
                        .and_then(|memory| session.attach(space, memory));
                    match attached {
                        Ok(()) => self.say(&Message::Ack),
                        Err(ErrorCode::TooMany) => self.fail(
                            ErrorCode::TooMany,
                            "too many generations of forks: no more can be attached",
                        ),
                        Err(code) => self
                            .fail(code, "the session to attach is gone, and its content with it"),
                    }
                }
                Message::Fork => {
                    session.expect_child();
                    self.say(&Message::Ack);
                }
                Message::Usage => self.say(&Message::UsageReply { usage: session.usage() }),
                Message::Ping => self.say(&Message::Ack),
                Message::Tell { short_blocks } => {
                    session.was_told(short_blocks);
                    self.say(&Message::Ack);
                }
                Message::AskRings => self.offer_rings(),
                Message::TakeRings => self.take_rings(lane, purpose)?,
                Message::Bye => return Err(End::Bye),
                other => {
                    return Err(WireError::Unexpected {
                        kind: other.kind(),
                        expected: "a request",
                    }
                    .into());
                }
            }
        }
    }

    /// The next request of the session; the one before it has been served.
    fn next_request(&mut self) -> Result<Frame, End> {
        if let Some((kind, start)) = self.serving.take() {
            self.server.activity.served(kind, start);
        }
        let ServerEvent::Request(frame) = self.next_event()? else {
            return Err(WireError::Unexpected { kind: Kind::Open, expected: "a request" }.into());
        };
        self.serving = Some((RequestKind::of(&frame.message), Instant::now()));
        Ok(frame)
    }

    /// Answers one query.
    fn query(&mut self, len: usize) -> Result<(), End> {
        let mut asked = Vec::with_capacity(len);
        while asked.len() < len {
            if self.rx_start == self.rx_end {
                let max = (len - asked.len()).min(self.rx.len());
                let received =
                    self.receive(|connection, wait| connection.receive_bytes(0, max, wait))?;
                (self.rx_start, self.rx_end) = (0, received);
            }
            let take = (self.rx_end - self.rx_start).min(len - asked.len());
            asked.extend_from_slice(&self.rx[self.rx_start..self.rx_start + take]);
            self.rx_start += take;
            self.wire.inbound().payload_received(take);
        }
        let start = Instant::now();
        let Some(answers) = &self.server.answers else {
            self.fail(ErrorCode::Other(0), "this server answers no queries: it is no member");
            return Ok(());
        };
        let mut answer = answers(&asked);
        if answer.is_empty() || answer.len() > MAX_PAYLOAD {
            answer = br#"{"error":"the answer does not fit a frame"}"#.to_vec();
        }
        self.say(&Message::QueryReply { len: answer.len() as u32 });
        self.flush_with(&answer)?;
        self.server.activity.served(RequestKind::Query, start);
        // The next query has as much time as the first one had.
        self.deadline = Some(Instant::now() + HANDSHAKE_TIMEOUT);
        Ok(())
    }

    fn read(&mut self, session: &Session, addr: u64, len: u32) -> Result<(), End> {
        let (chunk, at) = match session.find(addr, len as usize) {
            Ok(found) => found,
            Err(code) => {
                self.fail(code, "nothing is stored there");
                return Ok(());
            }
        };
        let place = chunk.place();
        let filed = match &*place {
            Place::Memory(_) => None,
            Place::File(filed) => Some(chunk.read_filed(filed, at, len as usize)),
            Place::Lost => Some(Err(io::ErrorKind::InvalidData.into())),
        };
        let filed = match filed.transpose() {
            Ok(filed) => filed,
            Err(error) => {
                drop(place);
                self.fail_disk(&error);
                return Ok(());
            }
        };
        session.counters.reads.fetch_add(1, Ordering::Relaxed);
        session.counters.read_bytes.fetch_add(u64::from(len), Ordering::Relaxed);
        self.server.activity.sent(len as usize);
        let header =
            Header { version: self.wire.version(), kind: Kind::ReadReply, id: self.id, addr, len };
        self.tx.extend_from_slice(&header.encode());
        match (&*place, filed) {
            (Place::Memory(number), _) => {
                self.send_with(&session.tenant, *number, at, len as usize)?
            }
            (_, Some(bytes)) => {
                drop(place);
                self.flush_with(&bytes)?;
            }
            (_, None) => unreachable!("only content in memory is sent from there"),
        }
        self.seat.answered(len);
        Ok(())
    }

    /// Content that was moved to the disk cannot be read or written there.
    fn fail_disk(&mut self, error: &io::Error) {
        (self.server.log)(&format!("the disk of moved memory: {error}"));
        self.fail(ErrorCode::Other(0), &format!("the server had moved this to its disk: {error}"));
    }

    /// Sends what is held back and then a range of a chunk in memory.
    fn send_with(&mut self, tenant: &Tenant, number: u32, at: usize, len: usize) -> io::Result<()> {
        let (mut head, mut done) = (0, 0);
        let pool = self.server.registry.pool();
        while head < self.tx.len() || done < len {
            let turn = pool.turn(tenant);
            let (left, is_free) = (len - done, turn.is_free());
            let range = range(number, at + done, if is_free { left } else { left.min(PIECE) });
            let sent = self.transport.send_from(&self.tx[head..], &pool.memory, range, is_free);
            drop(turn);
            let sent = match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.transport.wait(Awaited::Room)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let of_head = sent.min(self.tx.len() - head);
            head += of_head;
            done += sent - of_head;
        }
        self.tx.clear();
        Ok(())
    }

    fn write(&mut self, session: &Session, addr: u64, len: usize) -> Result<(), End> {
        let mut found = session.find_or_take(addr, len);
        if found.as_ref().is_err_and(|code| *code == ErrorCode::Full) {
            self.server.registry.make_room(&self.server.log);
            found = session.find_or_take(addr, len);
        }
        let (chunk, at) = match found {
            Ok(found) => found,
            Err(code) => {
                self.skip(len)?;
                let reason = match code {
                    ErrorCode::Full if session.usage().is_at_quota => session.quota_reached(),
                    ErrorCode::Full => "the server's memory is full".to_owned(),
                    _ => "a write must stay inside a chunk of its own session".to_owned(),
                };
                self.fail(code, &reason);
                return Ok(());
            }
        };
        let place = chunk.place();
        if let Place::Memory(number) = *place {
            self.receive_into(&session.tenant, number, at, len)?;
            drop(place);
        } else {
            drop(place);
            let bytes = self.receive_vec(len)?;
            if let Err(error) = chunk.write(at, &bytes) {
                self.fail_disk(&error);
                return Ok(());
            }
        }
        session.counters.writes.fetch_add(1, Ordering::Relaxed);
        session.counters.written_bytes.fetch_add(len as u64, Ordering::Relaxed);
        self.server.activity.received(len);
        self.say(&Message::Ack);
        Ok(())
    }

    /// Receives a payload that does not go to the pool.
    fn receive_vec(&mut self, len: usize) -> Result<Vec<u8>, End> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let rest = &mut bytes[done..];
            let received = self.receive(|connection, wait| {
                connection.transport.receive(&mut [IoSliceMut::new(rest)], wait)
            })?;
            self.wire.inbound().payload_received(received);
            done += received;
        }
        Ok(bytes)
    }

    /// Receives a payload, and as much of the next header as is available.
    fn receive_into(
        &mut self,
        tenant: &Tenant,
        number: u32,
        at: usize,
        len: usize,
    ) -> Result<(), End> {
        debug_assert!(
            self.rx_start == self.rx_end,
            "a connection that may write receives no byte of a payload with a header"
        );
        let mut done = 0;
        while done < len {
            let range = range(number, at + done, len - done);
            let received =
                self.receive(|connection, wait| connection.receive_payload(tenant, range, wait))?;
            let of_payload = received.min(len - done);
            self.wire.inbound().payload_received(of_payload);
            done += of_payload;
            (self.rx_start, self.rx_end) = (0, received - of_payload);
        }
        Ok(())
    }

    fn receive_payload(
        &mut self,
        tenant: &Tenant,
        range: PoolRange,
        wait: bool,
    ) -> io::Result<usize> {
        let pool = self.server.registry.pool();
        loop {
            let turn = pool.turn(tenant);
            if turn.is_free() {
                let head = &mut self.rx[..HEADER_BYTES];
                return self.transport.receive_to(&pool.memory, range, head, wait);
            }
            let piece = PoolRange { len: range.len.min(PIECE), ..range };
            // The next header follows the last bytes only.
            let tail = if piece == range { HEADER_BYTES } else { 0 };
            let tail = &mut self.rx[..tail];
            let received = self.transport.receive_to(&pool.memory, piece, tail, false);
            drop(turn);
            let is_early = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            if !wait || !received.as_ref().is_err_and(is_early) {
                return received;
            }
            self.transport.wait(Awaited::Bytes)?;
        }
    }

    /// Receives and discards a payload that has no destination.
    fn skip(&mut self, len: usize) -> Result<(), End> {
        let mut left = len;
        while left > 0 {
            let max = left.min(self.rx.len());
            let received =
                self.receive(|connection, wait| connection.receive_bytes(0, max, wait))?;
            self.wire.inbound().payload_received(received);
            left -= received;
        }
        Ok(())
    }

    fn receive_bytes(&mut self, from: usize, to: usize, wait: bool) -> io::Result<usize> {
        self.transport.receive(&mut [IoSliceMut::new(&mut self.rx[from..to])], wait)
    }

    /// Receives what is available without waiting; if nothing is, sends what is held back and
    /// waits, first spinning for a moment if that has paid lately.
    fn receive(
        &mut self,
        mut attempt: impl FnMut(&mut Self, bool) -> io::Result<usize>,
    ) -> Result<usize, End> {
        if self.tx.len() > HELD_BYTES_MAX {
            self.flush()?;
        }
        let mut try_once = |connection: &mut Self, wait| loop {
            match attempt(connection, wait) {
                Ok(0) => return Err(End::Closed),
                Ok(received) => return Ok(Some(received)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !wait => {
                    return Ok(None);
                }
                Err(error) => return Err(End::from(error)),
            }
        };
        if let Some(received) = try_once(self, false)? {
            return Ok(received);
        }
        self.flush()?;
        let start = Instant::now();
        if self.credit > 0 && !self.seat.is_beside_client(self.transport.is_beside_peer()) {
            while start.elapsed() < SPIN_TIME {
                std::thread::yield_now();
                if let Some(received) = try_once(self, false)? {
                    self.credit = (self.credit + 1).min(SPIN_CREDIT_MAX);
                    return Ok(received);
                }
            }
            self.credit -= 4;
        }
        if self.credit <= 0 {
            self.seat.come_home();
        }
        let received = try_once(self, true)?;
        if start.elapsed() < 2 * SPIN_TIME {
            self.credit = (self.credit + 1).min(SPIN_CREDIT_MAX);
        }
        received.ok_or(End::Closed)
    }

    fn next_event(&mut self) -> Result<ServerEvent, End> {
        loop {
            if self.rx_start == self.rx_end {
                let max = self.wire.missing().max(self.rx_max).min(self.rx.len());
                let received =
                    self.receive(|connection, wait| connection.receive_bytes(0, max, wait))?;
                (self.rx_start, self.rx_end) = (0, received);
            }
            if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(End::Closed);
            }
            let (used, event) = self.wire.receive(&self.rx[self.rx_start..self.rx_end])?;
            self.rx_start += used;
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.tx.is_empty() {
            self.flush_with(&[])?;
        }
        Ok(())
    }

    /// Sends what is held back and then `bytes`.
    fn flush_with(&mut self, bytes: &[u8]) -> io::Result<()> {
        send_both(&mut *self.transport, &self.tx, bytes)?;
        self.tx.clear();
        self.tx.shrink_to(TX_KEPT_MAX);
        Ok(())
    }

    fn say(&mut self, message: &Message) {
        message.encode(self.wire.version(), self.id, &mut self.tx);
    }

    fn fail(&mut self, code: ErrorCode, text: &str) {
        self.server.activity.refused(Refused::of(code));
        self.say(&Message::Error { code, text: text.to_owned() });
    }

    /// Refuses the purpose of the connection.
    fn refuse(&mut self, code: ErrorCode, text: &str) {
        self.fail(code, text);
        self.part_with();
    }

    /// Sends what is held back, and nothing after it.
    fn part_with(&mut self) {
        if self.rings.is_some() {
            // What is in the ring stays there for the client, whatever becomes of the server.
            let _ = self.transport.send(&[IoSlice::new(&self.tx)], false);
        } else {
            ending::part_with(&self.stream, &self.tx);
        }
        self.tx.clear();
    }
}
