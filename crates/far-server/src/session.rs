//! One client's memory and its connections.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hiroma_far_wire::{CHUNK, ErrorCode, MAX_SPACES, SPACE_SHIFT, SessionToken, SessionUsage};
use hiroma_sys::tcp_info;

use hiroma_units::Bytes;

use crate::chunk::Chunk;
use crate::pool::Pool;
use crate::tenant::Tenant;

/// Locks a mutex. After a panic the value is still consistent, because no lock is held over
/// anything that can panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The chunks of one session. Other sessions can keep them alive by attaching them.
pub struct Memory {
    pool: Arc<Pool>,
    owner: u64,
    chunks: Mutex<HashMap<u64, Arc<Chunk>>>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        lock(&self.chunks).clear();
        self.pool.cool(self.owner);
    }
}

/// Requests of one session.
#[derive(Default)]
pub struct Counters {
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
}

/// One connection of a session.
pub struct Lane {
    socket: Arc<TcpStream>,
    /// It goes on in shared memory.
    is_shared: AtomicBool,
    ended: Mutex<bool>,
    signal: Condvar,
}

impl Lane {
    pub fn new(socket: Arc<TcpStream>) -> Arc<Lane> {
        Arc::new(Lane {
            socket,
            is_shared: AtomicBool::new(false),
            ended: Mutex::new(false),
            signal: Condvar::new(),
        })
    }

    pub fn shut(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub fn set_shared(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    /// Whether it goes on in shared memory.
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    pub fn set_ended(&self) {
        *lock(&self.ended) = true;
        self.signal.notify_all();
    }

    /// Whether the lane's thread has completed its last request; waits up to `patience` for that.
    fn wait_ended(&self, patience: Duration) -> bool {
        let guard = lock(&self.ended);
        let (guard, _) = self
            .signal
            .wait_timeout_while(guard, patience, |ended| !*ended)
            .unwrap_or_else(PoisonError::into_inner);
        *guard
    }
}

/// The part of a session that changes with its connections.
#[derive(Default)]
pub struct Presence {
    pub lanes: HashMap<u32, Arc<Lane>>,
    /// Lanes that are being opened.
    pub opening: usize,
    /// The time since which there has been no connection.
    pub alone_since: Option<Instant>,
    /// How long it is kept from then on: the most that the end of any connection justifies.
    pub kept: Duration,
    /// The client sent `Bye`.
    pub said_bye: bool,
    /// Children that were announced and have not attached the memory yet.
    pub forks_due: usize,
    /// It is no longer listed and accepts no connections.
    pub closed: bool,
}

/// A client has not said how many of its blocks have too few pieces.
const NOT_TOLD: u64 = u64::MAX;

/// One client of the server.
pub struct Session {
    pub number: u64,
    pub token: SessionToken,
    pub peer: String,
    pub tenant: Arc<Tenant>,
    /// Its client can move what it has here elsewhere.
    pub moves: bool,
    pub memory: Arc<Memory>,
    pub presence: Mutex<Presence>,
    pub counters: Counters,
    attached: Mutex<Vec<(u16, Arc<Memory>)>>,
    reserved: AtomicUsize,
    quota_told: AtomicBool,
    /// Blocks of its client that have too few pieces; [`NOT_TOLD`] if it has not said so.
    short_blocks: AtomicU64,
    /// Its client is asked to move what it has here elsewhere.
    pub is_to_move: AtomicBool,
    pool: Arc<Pool>,
}

impl Session {
    pub fn new(
        number: u64,
        token: SessionToken,
        peer: String,
        (tenant, moves): (Arc<Tenant>, bool),
        pool: &Arc<Pool>,
    ) -> Arc<Session> {
        pool.enter(&tenant);
        pool.keep_warm(number);
        let memory =
            Arc::new(Memory { pool: Arc::clone(pool), owner: number, chunks: Mutex::default() });
        Arc::new(Session {
            number,
            token,
            peer,
            tenant,
            moves,
            memory,
            presence: Mutex::new(Presence { opening: 1, ..Presence::default() }),
            counters: Counters::default(),
            attached: Mutex::default(),
            reserved: AtomicUsize::new(0),
            quota_told: AtomicBool::new(false),
            short_blocks: AtomicU64::new(NOT_TOLD),
            is_to_move: AtomicBool::new(false),
            pool: Arc::clone(pool),
        })
    }

    /// Its client says how many of its blocks have too few pieces.
    pub fn was_told(&self, short_blocks: u64) {
        self.short_blocks.store(short_blocks.min(NOT_TOLD - 1), Ordering::Relaxed);
    }

    /// What it has said last.
    pub fn short_blocks(&self) -> Option<u64> {
        Some(self.short_blocks.load(Ordering::Relaxed)).filter(|&told| told != NOT_TOLD)
    }

    /// Why it gets nothing more.
    pub fn quota_reached(&self) -> String {
        let quota = Bytes((self.tenant.quota.unwrap_or(0) * CHUNK) as u64);
        format!("the quota of tenant {}, {quota}, is used up", self.tenant.name)
    }

    /// Whether the log has to be told that it has reached its quota: once.
    pub fn tell_quota(&self) -> bool {
        !self.quota_told.swap(true, Ordering::SeqCst)
    }

    /// What the log calls its client.
    pub fn called(&self) -> String {
        match self.tenant.given_name() {
            "" => format!("client {} ({})", self.number, self.peer),
            name => format!("client {} of {name} ({})", self.number, self.peer),
        }
    }

    /// Makes `lane` the connection of number `number`. An older one of the same number is ended
    /// first, and its last request is complete when this returns: nothing of it can arrive after
    /// what the new one sends.
    pub fn enter(
        &self,
        number: u32,
        lane: &Arc<Lane>,
        patience: Duration,
    ) -> Result<(), ErrorCode> {
        let older = {
            let mut presence = lock(&self.presence);
            presence.opening -= 1;
            presence.alone_since = None;
            presence.kept = Duration::ZERO;
            presence.lanes.insert(number, Arc::clone(lane))
        };
        let Some(older) = older else { return Ok(()) };
        older.shut();
        if older.wait_ended(patience) { Ok(()) } else { Err(ErrorCode::TooMany) }
    }

    /// Removes a connection that has ended. If it was the last one, the session is kept for `kept`,
    /// or for longer because of one that ended before.
    pub fn leave(&self, number: u32, lane: &Arc<Lane>, kept: Duration) {
        lane.set_ended();
        let mut presence = lock(&self.presence);
        if presence.lanes.get(&number).is_some_and(|present| Arc::ptr_eq(present, lane)) {
            presence.lanes.remove(&number);
            if presence.alone_since.is_none() {
                presence.kept = presence.kept.max(kept);
            }
        }
        if presence.lanes.is_empty() && presence.opening == 0 {
            presence.alone_since.get_or_insert_with(Instant::now);
        }
    }

    /// A child of the client will attach the memory.
    pub fn expect_child(&self) {
        lock(&self.presence).forks_due += 1;
    }

    /// Whether nothing has arrived on any of its connections for this long.
    pub fn is_silent(&self, limit: Duration) -> bool {
        let presence = lock(&self.presence);
        let is_silent = |lane: &Arc<Lane>| {
            tcp_info::silence(&lane.socket).is_ok_and(|silence| silence >= limit)
        };
        presence.opening == 0
            && !presence.lanes.is_empty()
            && presence.lanes.values().all(is_silent)
    }

    /// Ends all connections, which have been silent for too long; the next sweep ends the session.
    /// Returns whether they had not been ended before.
    pub fn end_alone(&self) -> bool {
        let mut presence = lock(&self.presence);
        presence.lanes.values().for_each(|lane| lane.shut());
        presence.kept = Duration::ZERO;
        presence.alone_since.replace(Instant::now()).is_none()
    }

    /// Open connections.
    pub fn lanes(&self) -> usize {
        lock(&self.presence).lanes.len()
    }

    /// Of these, in shared memory.
    pub fn shared_lanes(&self) -> usize {
        lock(&self.presence).lanes.values().filter(|lane| lane.is_shared()).count()
    }

    /// Ends all connections.
    pub fn shut(&self) {
        lock(&self.presence).lanes.values().for_each(|lane| lane.shut());
    }

    /// Reserves chunks for this session; returns how many.
    pub fn reserve(&self, asked: usize) -> usize {
        let granted = self.pool.reserve(asked, &self.tenant);
        self.reserved.fetch_add(granted, Ordering::SeqCst);
        granted
    }

    /// The chunk that contains `addr` and the offset in it, for reading.
    pub fn find(&self, addr: u64, len: usize) -> Result<(Arc<Chunk>, usize), ErrorCode> {
        let (space, chunk, at) = split(addr, len)?;
        let find = |memory: &Memory| lock(&memory.chunks).get(&chunk).cloned();
        let found = match space {
            0 => find(&self.memory),
            _ => lock(&self.attached)
                .iter()
                .find(|(number, _)| *number == space)
                .and_then(|(_, memory)| find(memory)),
        };
        found.map(|chunk| (chunk, at)).ok_or(ErrorCode::BadAddress)
    }

    /// The same for writing: the chunk is taken from the pool if necessary. Attached memory cannot
    /// be written.
    pub fn find_or_take(&self, addr: u64, len: usize) -> Result<(Arc<Chunk>, usize), ErrorCode> {
        let (space, number, at) = split(addr, len)?;
        if space != 0 {
            return Err(ErrorCode::BadAddress);
        }
        let mut chunks = lock(&self.memory.chunks);
        if let Some(chunk) = chunks.get(&number) {
            return Ok((Arc::clone(chunk), at));
        }
        let set_aside = self
            .reserved
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1))
            .is_ok();
        let taken = self.pool.take(self.number, &self.tenant, set_aside);
        let chunk = taken.map_err(|_| ErrorCode::Full)?;
        chunks.insert(number, Arc::clone(&chunk));
        Ok((chunk, at))
    }

    /// Frees chunks. Missing ones are no error: the request may have been sent twice.
    pub fn free(&self, addr: u64, len: usize) -> Result<(), ErrorCode> {
        if addr >> SPACE_SHIFT != 0 || addr % CHUNK as u64 != 0 {
            return Err(ErrorCode::BadAddress);
        }
        let first = addr / CHUNK as u64;
        let freed: Vec<_> = {
            let mut chunks = lock(&self.memory.chunks);
            (first..first + (len / CHUNK) as u64)
                .filter_map(|number| chunks.remove(&number))
                .collect()
        };
        drop(freed);
        Ok(())
    }

    /// Makes `memory` readable as space `space`.
    pub fn attach(&self, space: u16, memory: Arc<Memory>) -> Result<(), ErrorCode> {
        if space == 0 || space > MAX_SPACES {
            return Err(ErrorCode::TooMany);
        }
        let mut attached = lock(&self.attached);
        attached.retain(|(number, _)| *number != space);
        attached.push((space, memory));
        Ok(())
    }

    /// Chunks that it has.
    pub fn chunks(&self) -> usize {
        lock(&self.memory.chunks).len()
    }

    /// Usage of the session.
    pub fn usage(&self) -> SessionUsage {
        let pool = self.pool.usage();
        let free = pool.free();
        let under_quota = self.tenant.under_quota();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SessionUsage {
            used_chunks: lock(&self.memory.chunks).len() as u64,
            reserved_chunks: self.reserved.load(Ordering::SeqCst) as u64,
            free_chunks: under_quota.map_or(free, |left| left.min(free)) as u64,
            total_chunks: pool.total as u64,
            reads: count(&self.counters.reads),
            writes: count(&self.counters.writes),
            read_bytes: count(&self.counters.read_bytes),
            written_bytes: count(&self.counters.written_bytes),
            is_draining: self.pool.is_closed() || self.is_to_move.load(Ordering::SeqCst),
            is_at_quota: under_quota == Some(0),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.pool.leave(&self.tenant, self.reserved.swap(0, Ordering::SeqCst));
    }
}

/// Space, number of the chunk, and offset in it.
fn split(addr: u64, len: usize) -> Result<(u16, u64, usize), ErrorCode> {
    let space = (addr >> SPACE_SHIFT) as u16;
    let inner = addr & ((1 << SPACE_SHIFT) - 1);
    let at = (inner % CHUNK as u64) as usize;
    if len > CHUNK - at {
        return Err(ErrorCode::BadAddress);
    }
    Ok((space, inner / CHUNK as u64, at))
}
