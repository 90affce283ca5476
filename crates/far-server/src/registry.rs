//! All sessions of a server, and the handling of those whose client is gone.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use hiroma_far_wire::{CHUNK, ErrorCode, Introduction, SessionToken, SessionUsage};
use hiroma_sys::sockets;
use hiroma_units::Bytes;

use crate::ending::{End, Loss, Parting};
use crate::pool::Pool;
use crate::session::{Memory, Session, lock};
use crate::spill::Spill;
use crate::tenant::{Quotas, Tenant};
use crate::{Log, Server};

/// How long the memory of a client that may come back is spared at most when others need it, who
/// wait 5 s for room.
const SPARED_MAX: Duration = Duration::from_secs(3);
/// How often sessions without a client are checked.
const TEND_INTERVAL: Duration = Duration::from_millis(100);
/// If nobody has looked for this long, the reason is that this process stood still, and the time
/// does not count as the clients'.
const STOOD_STILL: Duration = Duration::from_secs(1);
/// The shortest time after which a connection without any sign of life says something: an idle one
/// has one each second.
pub const LEASE_MIN: Duration = Duration::from_secs(2);
/// A network that fails is repaired within this time more often than a machine is gone for good: the
/// last copy of somebody's data must not be freed for the first.
pub const SILENCE: Duration = Duration::from_secs(30);
/// How long a child that was announced may take to come, after its parent has said goodbye.
const CHILD_PATIENCE: Duration = Duration::from_secs(10);
/// Sessions that have ended are remembered, to say why they are gone.
const ENDED_MAX: usize = 1024;

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
    /// Of these, in shared memory.
    pub shared_connections: usize,
    /// The name that it gave; empty if it gave none.
    pub tenant: String,
    /// The number of its tenant.
    pub tenant_number: u64,
    /// Whether it can move what it has here elsewhere.
    pub moves: bool,
    /// How many of its blocks have fewer pieces than they should, at all servers together, if it keeps
    /// several and has said so.
    pub short_blocks: Option<u64>,
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
    /// Of these, bytes in the file, because the machine needs its memory.
    pub spilled_bytes: u64,
    /// The machine needs its memory.
    pub is_short: bool,
    /// Bytes reserved for clients.
    pub reserved_bytes: u64,
    /// One for each client.
    pub sessions: Vec<SessionStats>,
    /// One for each tenant that has a session or memory.
    pub tenants: Vec<TenantStats>,
}

/// Usage of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantStats {
    /// Numbered from 1.
    pub number: u64,
    /// Its name; the address of its machine, if its clients gave none.
    pub name: String,
    /// Whether its clients gave a name.
    pub is_named: bool,
    /// Sessions that it has.
    pub sessions: usize,
    /// Bytes in chunks with its data.
    pub used_bytes: u64,
    /// Bytes reserved for it.
    pub reserved_bytes: u64,
    /// What it may have at most.
    pub quota_bytes: Option<u64>,
    /// Its share when memory is short, in relation to others.
    pub weight: u32,
}

/// All sessions of a server.
pub struct Registry {
    pool: Arc<Pool>,
    lease: Duration,
    silence: Duration,
    quotas: Quotas,
    pub parting: Parting,
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
    guests: BTreeMap<u64, Arc<TcpStream>>,
    /// By whether they have a name of their own, and their name.
    tenants: BTreeMap<(bool, String), Weak<Tenant>>,
    ended: VecDeque<(SessionToken, Instant)>,
    /// Guests that are not authenticated, and whether they were turned away.
    strangers: BTreeMap<u64, Arc<AtomicBool>>,
    next_number: u64,
    next_tenant: u64,
    next_guest: u64,
}

/// One connection, counted while this exists.
pub struct Guest {
    server: Arc<Server>,
    number: u64,
    turned_away: Arc<AtomicBool>,
}

impl Registry {
    pub fn new(
        chunks: usize,
        (lease, silence): (Duration, Duration),
        quotas: Quotas,
        spill: Option<Spill>,
    ) -> io::Result<Registry> {
        Ok(Registry {
            pool: Pool::new(chunks, spill)?,
            lease,
            silence: silence.max(lease).max(LEASE_MIN),
            quotas,
            parting: Parting::default(),
            listed: Mutex::default(),
            stopping: AtomicBool::new(false),
            bell: Condvar::new(),
        })
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How long a session is kept after its connections were closed.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How long a session is kept while nothing arrives on any connection.
    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// A new session, or the one that `token` identifies. It counts as present until its first
    /// connection has entered.
    pub fn open(
        &self,
        token: SessionToken,
        who: &Introduction,
        peer: SocketAddr,
        log: &Log,
    ) -> Result<Arc<Session>, String> {
        if token == SessionToken::NEW {
            let session = self.open_new(who, peer);
            // Only now: whoever logs may have to wait.
            log(&format!("{} has come", session.called()));
            return Ok(session);
        }
        let listed = lock(&self.listed);
        let Some(session) = listed.sessions.get(&token) else {
            return Err(listed.why_gone(token));
        };
        let mut presence = lock(&session.presence);
        if presence.closed || presence.said_bye {
            drop(presence);
            return Err(listed.why_gone(token));
        }
        presence.opening += 1;
        presence.alone_since = None;
        drop(presence);
        Ok(Arc::clone(session))
    }

    fn open_new(&self, who: &Introduction, peer: SocketAddr) -> Arc<Session> {
        let mut listed = lock(&self.listed);
        listed.next_number += 1;
        let tenant = listed.tenant(&who.name, peer, &self.quotas);
        let session = Session::new(
            listed.next_number,
            SessionToken(sockets::random()),
            peer.to_string(),
            (tenant, who.moves),
            &self.pool,
        );
        listed.memories.insert(session.token, Arc::downgrade(&session.memory));
        listed.sessions.insert(session.token, Arc::clone(&session));
        session
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

    /// What is left of the lease when a session is ended, so that its memory is free when the lease
    /// has run out.
    fn patience(&self) -> Duration {
        self.lease - self.lease / 8
    }

    /// The same for one whose connections are silent.
    fn silence_limit(&self) -> Duration {
        self.silence - self.silence / 8
    }

    /// How long a session is kept whose last connection ended so.
    pub fn kept_after(&self, loss: Loss) -> Duration {
        match loss {
            Loss::Closed => self.patience(),
            Loss::Network(silent) => {
                self.silence_limit().saturating_sub(silent).max(self.patience())
            }
            Loss::Forgotten => self.silence_limit(),
        }
    }

    /// Frees sessions that will not be used again: those that ended with a `Bye` immediately, the
    /// others when their lease has run out.
    pub fn sweep(&self, log: &Log) {
        let mut gone = Vec::new();
        {
            let mut listed = lock(&self.listed);
            let Listed { sessions, ended, .. } = &mut *listed;
            sessions.retain(|&token, session| {
                let mut presence = lock(&session.presence);
                let Some(since) = presence.alone_since else { return !presence.closed };
                let done = presence.said_bye && presence.forks_due == 0;
                let patience =
                    if presence.said_bye { self.lease.max(CHILD_PATIENCE) } else { presence.kept };
                if done || since.elapsed() >= patience {
                    presence.closed = true;
                    gone.push((Arc::clone(session), done));
                    ended.truncate(ENDED_MAX - 1);
                    ended.push_front((token, Instant::now()));
                }
                !presence.closed
            });
            listed.memories.retain(|_, memory| memory.strong_count() > 0);
            listed.tenants.retain(|_, tenant| tenant.strong_count() > 0);
        }
        for (session, done) in gone {
            let usage = session.usage();
            let held = Bytes(usage.used_chunks * CHUNK as u64);
            let (read, written) = (Bytes(usage.read_bytes), Bytes(usage.written_bytes));
            let how = if done { "has gone" } else { "has vanished, and its lease has run out" };
            log(&format!(
                "{} {how}: {held} freed, {read} read, {written} written",
                session.called()
            ));
        }
    }

    /// Ends the connections of clients whose machine gives no sign of life: it is gone, or cut off.
    fn end_silent(&self, log: &Log) {
        let limit = self.silence_limit();
        let sessions: Vec<_> = lock(&self.listed).sessions.values().cloned().collect();
        for session in sessions {
            if session.is_silent(limit) && session.end_alone() {
                log(&format!("{} gives no sign of life", session.called()));
            }
        }
    }

    /// Time in which this server stood still is not counted.
    fn forgive_standstill(&self) {
        for session in lock(&self.listed).sessions.values() {
            let mut presence = lock(&session.presence);
            presence.alone_since = presence.alone_since.map(|_| Instant::now());
        }
    }

    /// Asks one more client that can to move what it has here elsewhere: the one that has most.
    /// Returns which one.
    pub fn ask_to_move(&self) -> Option<Arc<Session>> {
        let sessions: Vec<_> = lock(&self.listed).sessions.values().cloned().collect();
        let can = |session: &&Arc<Session>| {
            session.moves && !session.is_to_move.load(Ordering::SeqCst) && session.chunks() > 0
        };
        let most = sessions.iter().filter(can).max_by_key(|session| session.chunks())?;
        most.is_to_move.store(true, Ordering::SeqCst);
        Some(Arc::clone(most))
    }

    /// There is memory again: nobody has to move.
    pub fn stop_moves(&self) {
        for session in lock(&self.listed).sessions.values() {
            session.is_to_move.store(false, Ordering::SeqCst);
        }
    }

    /// Makes room by ending sessions whose client disconnected without a `Bye`, the oldest first,
    /// until a chunk is free. One that may just be connecting again is spared.
    pub fn make_room(&self, log: &Log) {
        loop {
            let usage = self.pool.usage();
            if usage.free() > 0 || self.pool.is_closed() {
                return;
            }
            let oldest = {
                let listed = lock(&self.listed);
                let alone = |session: &Arc<Session>| {
                    let presence = lock(&session.presence);
                    presence.alone_since.filter(|since| {
                        let is_late = since.elapsed() >= (presence.kept / 2).min(SPARED_MAX);
                        is_late && presence.forks_due == 0 && !presence.closed
                    })
                };
                let candidates =
                    listed.sessions.values().filter_map(|session| Some((alone(session)?, session)));
                candidates.min_by_key(|(since, _)| *since).map(|(_, session)| Arc::clone(session))
            };
            let Some(session) = oldest else { return };
            log(&format!("{} went without a goodbye; its memory is needed", session.called()));
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
        let (mut looked, mut awake_since) = (Instant::now(), Instant::now());
        while !self.stopping.load(Ordering::SeqCst) {
            if looked.elapsed() > STOOD_STILL {
                awake_since = Instant::now();
                self.forgive_standstill();
            }
            looked = Instant::now();
            if awake_since.elapsed() >= self.silence {
                self.end_silent(log);
            }
            let listed = lock(&self.listed);
            drop(
                self.bell
                    .wait_timeout(listed, TEND_INTERVAL)
                    .unwrap_or_else(PoisonError::into_inner),
            );
            self.sweep(log);
            self.parting.close_old();
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
                tenant: session.tenant.given_name().to_owned(),
                tenant_number: session.tenant.number,
                moves: session.moves,
                short_blocks: session.short_blocks(),
                connections: session.lanes(),
                shared_connections: session.shared_lanes(),
                usage: session.usage(),
            })
            .collect();
        sessions.sort_by_key(|session| session.number);
        let tenants = listed.tenants.values().filter_map(Weak::upgrade);
        let tenants = tenants.map(|tenant| tenant.stats()).collect();
        ServerStats {
            capacity_bytes: (usage.total * CHUNK) as u64,
            used_bytes: ((usage.used + usage.filed) * CHUNK) as u64,
            spilled_bytes: (usage.filed * CHUNK) as u64,
            is_short: self.pool.is_short(),
            reserved_bytes: (usage.reserved * CHUNK) as u64,
            sessions,
            tenants,
        }
    }
}

impl Listed {
    /// The tenant of a new session.
    fn tenant(&mut self, name: &str, peer: SocketAddr, quotas: &Quotas) -> Arc<Tenant> {
        let key = (!name.is_empty(), Tenant::name_of(name, peer.ip()));
        if let Some(tenant) = self.tenants.get(&key).and_then(Weak::upgrade) {
            return tenant;
        }
        self.next_tenant += 1;
        let tenant = Tenant::new(self.next_tenant, name, peer.ip(), quotas);
        self.tenants.insert(key, Arc::downgrade(&tenant));
        tenant
    }

    /// Why there is no session with this token.
    fn why_gone(&self, token: SessionToken) -> String {
        match self.ended.iter().find(|(ended, _)| *ended == token) {
            Some((_, at)) => format!(
                "the server gave this client up {:.1} s ago, when its lease had run out without a sign of life: its content is gone",
                at.elapsed().as_secs_f64()
            ),
            None => {
                "the server does not have this session (any more): its content is gone".to_owned()
            }
        }
    }
}

impl Guest {
    /// Counts a new connection, unless there are too many. Among strangers a newcomer is worth more
    /// than the one that has waited longest for its own key: that one is turned away.
    pub fn admit(
        server: &Arc<Server>,
        socket: Arc<TcpStream>,
        connections_max: usize,
        strangers_max: usize,
    ) -> Option<Guest> {
        let registry = &server.registry;
        let mut listed = lock(&registry.listed);
        if listed.guests.len() >= connections_max || registry.stopping.load(Ordering::SeqCst) {
            return None;
        }
        if listed.strangers.len() >= strangers_max {
            if let Some((oldest, turned_away)) = listed.strangers.pop_first() {
                turned_away.store(true, Ordering::SeqCst);
                if let Some(socket) = listed.guests.get(&oldest) {
                    // Its thread wakes, and tells it.
                    let _ = socket.shutdown(Shutdown::Read);
                }
            }
        }
        let number = listed.next_guest;
        listed.next_guest += 1;
        let turned_away = Arc::new(AtomicBool::new(false));
        listed.strangers.insert(number, Arc::clone(&turned_away));
        listed.guests.insert(number, socket);
        Some(Guest { server: Arc::clone(server), number, turned_away })
    }

    /// Records that the connection is authenticated, unless its place was given to another one.
    pub fn is_known(&self) -> Result<(), End> {
        lock(&self.server.registry.listed).strangers.remove(&self.number);
        if self.is_turned_away() { Err(End::TurnedAway) } else { Ok(()) }
    }

    /// Whether its place was given to another one.
    pub fn is_turned_away(&self) -> bool {
        self.turned_away.load(Ordering::SeqCst)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut listed = lock(&self.server.registry.listed);
        listed.strangers.remove(&self.number);
        listed.guests.remove(&self.number);
        drop(listed);
        self.server.registry.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::session::Lane;

    const QUIET: fn(&str) = |_| {};

    fn registry(chunks: usize) -> Registry {
        let times = (Duration::from_secs(2), SILENCE);
        Registry::new(chunks, times, Quotas::default(), None).unwrap()
    }

    /// A session with one connection.
    fn session(registry: &Registry) -> (Arc<Session>, Arc<Lane>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, who) = (stream.peer_addr().unwrap(), Introduction::default());
        let log: Log = Arc::new(QUIET);
        let session = registry.open(SessionToken::NEW, &who, peer, &log).unwrap();
        let lane = Lane::new(Arc::new(stream));
        session.enter(1, &lane, Duration::ZERO).unwrap();
        (session, lane)
    }

    /// Whether it is still listed when it has been alone for this long.
    fn is_kept(registry: &Registry, session: &Session, alone: Duration) -> bool {
        let since = Instant::now().checked_sub(alone).unwrap();
        lock(&session.presence).alone_since = Some(since);
        registry.sweep(&(Arc::new(QUIET) as Log));
        lock(&registry.listed).sessions.contains_key(&session.token)
    }

    #[test]
    fn failures_of_the_network_leave_a_session_its_silence_limit() {
        let s = Duration::from_secs;
        let kept_until = |loss: Loss| {
            let registry = registry(4);
            let (session, lane) = session(&registry);
            session.leave(1, &lane, registry.kept_after(loss));
            let kept = (1..60).take_while(|&alone| is_kept(&registry, &session, s(alone)));
            kept.last().unwrap_or(0)
        };
        assert_eq!(kept_until(Loss::Closed), 1);
        assert_eq!(kept_until(Loss::Network(s(17))), 9);
        assert_eq!(kept_until(Loss::Network(s(60))), 1, "never less than after a close");
        assert_eq!(kept_until(Loss::Forgotten), 26);
    }

    #[test]
    fn the_most_patient_end_of_several_counts_until_the_client_is_back() {
        let registry = registry(4);
        let (session, first) = session(&registry);
        let second = session_lane(&session, 2);
        session.leave(1, &first, registry.kept_after(Loss::Forgotten));
        session.leave(2, &second, registry.kept_after(Loss::Closed));
        assert!(is_kept(&registry, &session, Duration::from_secs(20)));
        let third = session_lane(&session, 1);
        session.leave(1, &third, registry.kept_after(Loss::Closed));
        assert!(!is_kept(&registry, &session, Duration::from_secs(2)));
    }

    fn session_lane(session: &Session, number: u32) -> Arc<Lane> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let lane = Lane::new(Arc::new(stream));
        lock(&session.presence).opening += 1;
        session.enter(number, &lane, Duration::ZERO).unwrap();
        lane
    }

    #[test]
    fn room_is_not_made_of_a_client_that_has_just_gone() {
        let registry = registry(1);
        let (session, lane) = session(&registry);
        drop(session.find_or_take(0, 4096).unwrap());
        session.leave(1, &lane, registry.kept_after(Loss::Closed));
        let log: Log = Arc::new(QUIET);
        registry.make_room(&log);
        assert_eq!(registry.pool.usage().free(), 0);
        let since = Instant::now().checked_sub(registry.patience() / 2).unwrap();
        lock(&session.presence).alone_since = Some(since);
        drop(session);
        registry.make_room(&log);
        assert_eq!(registry.pool.usage().free(), 1);
    }
}
