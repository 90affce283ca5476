//! From a socket to a session: connecting, authenticating, and opening (or resuming) the session.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hiroma_far_wire::{
    ClientEvent, ClientSession, Frame, HEADER_BYTES, INTRODUCTION_VERSION, MAX_BODY, Message,
    WireError,
};
use hiroma_sys::sockets;
use hiroma_sys::transport::Transport;
use hiroma_sys::transport::tcp::Tcp;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, getrlimit};

use super::rings::Stage;
use super::{ATTEMPT_MAX, Link, PAUSE_MIN, State, Trouble};
use crate::store::StoreError;
use crate::store::tcp::{ServerAddr, Shared};

impl Shared {
    /// What the client says of itself before it opens a session, if there is anything to say.
    fn introduction(&self, server: usize, version: u16) -> Result<Option<Message>, Trouble> {
        let ServerAddr { text, introduction, .. } = &self.servers[server];
        if version >= INTRODUCTION_VERSION {
            return Ok(Some(Message::Introduce(introduction.clone())));
        }
        if introduction.name.is_empty() {
            return Ok(None);
        }
        let reason = format!(
            "it speaks version {version} of the protocol, which has no names of tenants: use the same release of hiroma there, or leave the name {} out",
            introduction.name
        );
        Err(Trouble::Fatal(StoreError::Refused { store: text.clone(), reason }))
    }
}

/// What a refusal by the server at one of the addresses means. Once there is a session, another address
/// of the name may be that of another server, which knows nothing of it.
pub(super) fn refusal(shared: &Shared, server: usize, addr: usize, error: &WireError) -> Trouble {
    let opened = shared.books().servers[server].addr;
    match shared.refusal(server, error) {
        Trouble::Fatal(_) if opened.is_some_and(|opened| opened != addr) => {
            let there = shared.servers[server].addrs[addr];
            Trouble::Broken(format!("another server answers at {there}: {error}"))
        }
        trouble => trouble,
    }
}

impl Link {
    /// Starts to connect.
    pub(super) fn connect(&mut self, now: Instant) -> Result<(), Trouble> {
        let State::Down { since, pause, .. } = self.state else { return Ok(()) };
        let addrs = &self.shared.servers[self.server].addrs;
        // Several addresses of one name are tried in turn, first the one of our session.
        let first = self.shared.books().servers[self.server].addr.unwrap_or(0);
        self.addr = (first + self.attempts) % addrs.len();
        let addr = addrs[self.addr];
        self.attempts += 1;
        (self.failure, self.was_accepted) = (None, false);
        let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
            .map_err(|errno| self.no_socket(errno))?;
        let connected: rustix::io::Result<()> = match addr {
            SocketAddr::V4(addr) => rustix::net::connect(&socket, &addr),
            SocketAddr::V6(addr) => rustix::net::connect(&socket, &addr),
        };
        match connected {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let stream = TcpStream::from(socket);
        sockets::tune(&stream)?;
        self.changed = true;
        self.state = State::Connecting { stream, since, attempt: now, pause };
        Ok(())
    }

    /// If there are too few descriptors for a first connection, waiting does not help.
    fn no_socket(&self, errno: Errno) -> Trouble {
        if errno != Errno::MFILE || self.was_up {
            return Trouble::Broken(errno.to_string());
        }
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let reason = format!(
            "`ulimit -n` allows {most} open files, which are too few for the connections to {} server(s): raise it, or use another store",
            self.shared.servers.len()
        );
        Trouble::Fatal(StoreError::Config { store: self.shared.name.clone(), reason })
    }

    /// Waits for the connection, authenticates, and opens the session.
    pub(super) fn greet(&mut self, now: Instant) -> Result<(), Trouble> {
        let (State::Connecting { attempt, .. } | State::Greeting { attempt, .. }) = &self.state
        else {
            return Ok(());
        };
        let attempt = *attempt;
        if let State::Connecting { stream, .. } = &self.state {
            if let Some(error) = stream.take_error()? {
                return Err(error.into());
            }
            if stream.peer_addr().is_ok() {
                let (wire, hello) =
                    ClientSession::start(self.shared.key.clone(), sockets::random());
                (self.greeting, self.stash, self.received) = (hello, Vec::new(), 0);
                let State::Connecting { stream, since, attempt, pause } = self.take_state() else {
                    return Ok(());
                };
                self.state = State::Greeting {
                    stream,
                    wire: Box::new(wire),
                    since,
                    attempt,
                    pause,
                    stage: Stage::Opening,
                };
                (self.changed, self.was_accepted) = (true, true);
            }
        }
        while let State::Greeting { stream, wire, .. } = &mut self.state {
            while !self.greeting.is_empty() {
                match (&*stream).write(&self.greeting) {
                    Ok(sent) => drop(self.greeting.drain(..sent)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // The server may have sent the reason before it closed.
                    Err(_) => break,
                }
            }
            let mut bytes = [0; HEADER_BYTES + MAX_BODY];
            let missing = wire.missing();
            let received = match (&*stream).read(&mut bytes[..missing]) {
                Ok(0) => {
                    return Err(Trouble::Broken(
                        "the server closed the connection while being greeted".to_owned(),
                    ));
                }
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let (_, event) = wire
                .receive(&bytes[..received])
                .map_err(|error| refusal(&self.shared, self.server, self.addr, &error))?;
            match event {
                None => {}
                Some(ClientEvent::Send(bytes)) => self.greeting.extend_from_slice(&bytes),
                Some(ClientEvent::Ready) => {
                    let version = wire.version();
                    let introduction = self.shared.introduction(self.server, version)?;
                    let open =
                        Message::Open { token: self.token, lane: self.lane, purpose: self.purpose };
                    for message in introduction.into_iter().chain([open]) {
                        message.encode(version, 0, &mut self.greeting);
                    }
                }
                Some(ClientEvent::Frame(frame)) => self.greeted(frame)?,
            }
        }
        if !matches!(self.state, State::Up { .. }) && now.duration_since(attempt) > ATTEMPT_MAX {
            return Err(Trouble::Broken(
                "the server accepts connections but does not answer".to_owned(),
            ));
        }
        Ok(())
    }

    /// Handles an answer to what was said after the greeting.
    fn greeted(&mut self, frame: Frame) -> Result<(), Trouble> {
        match &self.state {
            State::Greeting { stage: Stage::Opening, .. } => self.opened(frame),
            _ => self.go_on_with_rings(frame.message),
        }
    }

    fn opened(&mut self, frame: Frame) -> Result<(), Trouble> {
        match frame.message {
            Message::Opened { token, usage, lease_ms } => {
                self.token = token;
                let mut books = self.shared.books();
                let book = &mut books.servers[self.server];
                book.told(usage);
                book.addr = Some(self.addr);
                book.lease = (lease_ms > 0).then(|| Duration::from_millis(u64::from(lease_ms)));
            }
            Message::Error { code, text } => {
                let error = WireError::Told { code, text };
                return Err(refusal(&self.shared, self.server, self.addr, &error));
            }
            other => {
                let error = WireError::Unexpected { kind: other.kind(), expected: "a session" };
                return Err(refusal(&self.shared, self.server, self.addr, &error));
            }
        }
        self.attempts = 0;
        if self.ask_for_rings() {
            return Ok(());
        }
        let State::Greeting { stream, wire, .. } = self.take_state() else { return Ok(()) };
        self.go_up(Box::new(Tcp(Arc::new(stream))), wire);
        Ok(())
    }

    /// The connection can be used.
    pub(super) fn go_up(&mut self, transport: Box<dyn Transport>, wire: Box<ClientSession>) {
        self.shared.note_transport(self.purpose, transport.name());
        (self.sent, self.sent_bytes, self.received, self.blocked) = (0, 0, 0, false);
        self.stash.clear();
        self.state = State::Up { transport, wire };
        // Another socket may have to be watched.
        self.changed = true;
        self.was_up = true;
        self.last_progress = Instant::now();
        self.heard = self.last_progress;
        self.announce_return();
    }

    /// Takes the state, to build the next one from its parts.
    pub(super) fn take_state(&mut self) -> State {
        let now = Instant::now();
        std::mem::replace(
            &mut self.state,
            State::Down { since: now, retry_at: now, pause: PAUSE_MIN },
        )
    }
}
