//! All sessions of a server, and the handling of those whose client is gone.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use hiroma_far_wire::{CHUNK, ErrorCode, SessionToken, SessionUsage};
use hiroma_sys::sockets;
use hiroma_units::Bytes;

use crate::pool::Pool;
use crate::session::{Memory, Session, lock};
use crate::{Log, Server};

/// How often sessions without a client are checked.
const TEND_INTERVAL: Duration = Duration::from_millis(200);

/// Usage and requests of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionStats {
    /// Numbered from 1.
    pub number: u64,
    /// Peer address of its first connection.
    pub peer: String,
    /// Open connections; 0 means that the session waits for its client to reconnect.
    pub connections: usize,
    /// Memory and requests.
    pub usage: SessionUsage,
}

/// Usage of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStats {
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes in chunks that contain data.
    pub used_bytes: u64,
    /// Bytes reserved for clients.
    pub reserved_bytes: u64,
    /// One for each client.
    pub sessions: Vec<SessionStats>,
}

/// All sessions of a server.
pub struct Registry {
    pool: Arc<Pool>,
    grace: Duration,
    listed: Mutex<Listed>,
    stopping: AtomicBool,
    bell: Condvar,
}

#[derive(Default)]
struct Listed {
    sessions: BTreeMap<SessionToken, Arc<Session>>,
    /// Memory of every session, listed or only attached by others.
    memories: HashMap<SessionToken, Weak<Memory>>,
    /// Sockets of all connections, to shut them down.
    guests: BTreeMap<u64, TcpStream>,
    strangers: usize,
    next_number: u64,
    next_guest: u64,
}

/// One connection, counted while this exists.
pub struct Guest {
    server: Arc<Server>,
    number: u64,
    known: AtomicBool,
}

impl Registry {
    pub fn new(chunks: usize, grace: Duration) -> io::Result<Registry> {
        Ok(Registry {
            pool: Pool::new(chunks)?,
            grace,
            listed: Mutex::default(),
            stopping: AtomicBool::new(false),
            bell: Condvar::new(),
        })
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// A new session, or the one that `token` identifies. It counts as present until its first
    /// connection has entered.
    pub fn open(
        &self,
        token: SessionToken,
        peer: &str,
        log: &Log,
    ) -> Result<Arc<Session>, ErrorCode> {
        let mut listed = lock(&self.listed);
        if token == SessionToken::NEW {
            listed.next_number += 1;
            let session = Session::new(
                listed.next_number,
                SessionToken(sockets::random()),
                peer.to_owned(),
                &self.pool,
            );
            listed.memories.insert(session.token, Arc::downgrade(&session.memory));
            listed.sessions.insert(session.token, Arc::clone(&session));
            log(&format!("client {} ({peer}) has come", session.number));
            return Ok(session);
        }
        let session = listed.sessions.get(&token).ok_or(ErrorCode::NoSession)?;
        let mut presence = lock(&session.presence);
        if presence.closed || presence.said_bye {
            return Err(ErrorCode::NoSession);
        }
        presence.opening += 1;
        presence.alone_since = None;
        drop(presence);
        Ok(Arc::clone(session))
    }

    /// The memory of another session, for a child of its client.
    pub fn memory(&self, token: SessionToken) -> Result<Arc<Memory>, ErrorCode> {
        let listed = lock(&self.listed);
        if let Some(session) = listed.sessions.get(&token) {
            let mut presence = lock(&session.presence);
            presence.forks_due = presence.forks_due.saturating_sub(1);
        }
        listed.memories.get(&token).and_then(Weak::upgrade).ok_or(ErrorCode::NoSession)
    }

    /// The client of `session` no longer needs it.
    pub fn goodbye(&self, session: &Session) {
        lock(&session.presence).said_bye = true;
        session.shut();
    }

    /// Frees sessions that will not be used again: those that ended with a `Bye` immediately, the
    /// others after the grace period.
    pub fn sweep(&self, log: &Log) {
        let mut gone = Vec::new();
        {
            let mut listed = lock(&self.listed);
            listed.sessions.retain(|_, session| {
                let mut presence = lock(&session.presence);
                let Some(since) = presence.alone_since else { return true };
                let done = presence.said_bye && presence.forks_due == 0;
                let expired = since.elapsed() >= self.grace;
                if done || expired {
                    presence.closed = true;
                    gone.push(Arc::clone(session));
                }
                !presence.closed
            });
            listed.memories.retain(|_, memory| memory.strong_count() > 0);
        }
        for session in gone {
            let usage = session.usage();
            let held = Bytes(usage.used_chunks * CHUNK as u64);
            let (read, written) = (Bytes(usage.read_bytes), Bytes(usage.written_bytes));
            log(&format!(
                "client {} ({}) has gone: {held} freed, {read} read, {written} written",
                session.number, session.peer
            ));
        }
    }

    /// Makes room by ending sessions whose client disconnected without a `Bye`, the oldest first,
    /// until a chunk is free.
    pub fn make_room(&self, log: &Log) {
        loop {
            let usage = self.pool.usage();
            if usage.used + usage.reserved < usage.total || self.pool.is_closed() {
                return;
            }
            let oldest = {
                let listed = lock(&self.listed);
                let alone = |session: &Arc<Session>| {
                    let presence = lock(&session.presence);
                    presence.alone_since.filter(|_| presence.forks_due == 0 && !presence.closed)
                };
                let candidates =
                    listed.sessions.values().filter_map(|session| Some((alone(session)?, session)));
                candidates.min_by_key(|(since, _)| *since).map(|(_, session)| Arc::clone(session))
            };
            let Some(session) = oldest else { return };
            log(&format!(
                "client {} ({}) went without a goodbye; its memory is needed",
                session.number, session.peer
            ));
            let mut presence = lock(&session.presence);
            if presence.alone_since.is_some() {
                presence.said_bye = true;
            }
            drop(presence);
            drop(session);
            self.sweep(log);
        }
    }

    /// Main function of the thread that manages sessions without a client.
    pub fn tend(&self, log: &Log) {
        while !self.stopping.load(Ordering::SeqCst) {
            let listed = lock(&self.listed);
            drop(
                self.bell
                    .wait_timeout(listed, TEND_INTERVAL)
                    .unwrap_or_else(PoisonError::into_inner),
            );
            self.sweep(log);
        }
    }

    /// Ends all connections.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for socket in lock(&self.listed).guests.values() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        self.bell.notify_all();
    }

    /// Waits until the threads of all connections have ended.
    pub fn wait_until_idle(&self) {
        let listed = lock(&self.listed);
        let still_busy = |listed: &mut Listed| {
            listed.guests.values().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
            !listed.guests.is_empty()
        };
        let waited = self.bell.wait_timeout_while(listed, Duration::from_secs(10), still_busy);
        let (mut listed, _) = waited.unwrap_or_else(PoisonError::into_inner);
        listed.sessions.clear();
    }

    pub fn stats(&self) -> ServerStats {
        let usage = self.pool.usage();
        let listed = lock(&self.listed);
        let mut sessions: Vec<_> = listed
            .sessions
            .values()
            .map(|session| SessionStats {
                number: session.number,
                peer: session.peer.clone(),
                connections: lock(&session.presence).lanes.len(),
                usage: session.usage(),
            })
            .collect();
        sessions.sort_by_key(|session| session.number);
        ServerStats {
            capacity_bytes: (usage.total * CHUNK) as u64,
            used_bytes: (usage.used * CHUNK) as u64,
            reserved_bytes: (usage.reserved * CHUNK) as u64,
            sessions,
        }
    }
}

impl Guest {
    /// Counts a new connection, unless there are too many.
    pub fn admit(
        server: &Arc<Server>,
        socket: TcpStream,
        connections_max: usize,
        strangers_max: usize,
    ) -> Option<Guest> {
        let registry = &server.registry;
        let mut listed = lock(&registry.listed);
        if listed.guests.len() >= connections_max
            || listed.strangers >= strangers_max
            || registry.stopping.load(Ordering::SeqCst)
        {
            return None;
        }
        let number = listed.next_guest;
        listed.next_guest += 1;
        listed.strangers += 1;
        listed.guests.insert(number, socket);
        Some(Guest { server: Arc::clone(server), number, known: AtomicBool::new(false) })
    }

    /// Records that the connection is authenticated.
    pub fn is_known(&self) {
        if !self.known.swap(true, Ordering::SeqCst) {
            lock(&self.server.registry.listed).strangers -= 1;
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.is_known();
        lock(&self.server.registry.listed).guests.remove(&self.number);
        self.server.registry.bell.notify_all();
    }
}
