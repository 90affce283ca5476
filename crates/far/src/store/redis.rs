//! Sectors in the memory of a Redis or Valkey server, which knows nothing of us.
//!
//! Each process has a random prefix for its keys, connections for reading and writing with a thread
//! each, and one more with a thread that makes, renews and deletes the keys ([`keeper`]). All keys
//! expire, so a client that dies leaves nothing. What a chunk is made of: see [`books`].
//!
//! Nothing that is lost there is read as something else: a string that is missing or has another
//! length is an error that ends the program, and so is a server that was restarted or replaced,
//! which is recognized by its `run_id`.
//!
//! Forks: the child reads the keys of its ancestors, whose expiry it renews too, and writes to keys
//! of its own.

pub mod address;
mod books;
mod keeper;
mod line;
mod pool;
#[cfg(test)]
mod tests;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hiroma_units::Bytes;
use redis::{ConnectionInfo, Value};

use self::address::RedisAddress;
use self::books::Books;
use self::line::{Facts, Failed};
use self::pool::{Pool, RedisChannel};
use self::tls::Tls;
use super::background::Background;
use super::space::FreezeId;
use super::tcp::{LogLine, Lost, look_up};
use super::{Channel, ForkGuard, Purpose, Store, StoreError, StoreUsage};

/// Expiry of keys, if nothing else is said: longer than a server may be silent.
const TTL: Duration = Duration::from_secs(60);
/// How long the server may take to answer when the store is opened.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long the end of the program waits for the server, twice at most.
const GOODBYE_MAX: Duration = Duration::from_secs(2);
/// The first version that has all commands that we need.
const VERSION_MIN: u32 = 5;
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// Bytes that the server uses for each byte of ours, in parts of 100.
const OVERHEAD: u64 = 105;

/// How to reach the server.
pub struct RedisOptions {
    pub address: RedisAddress,
    /// Bytes in a sector.
    pub sector_bytes: usize,
    /// How long to try to reconnect.
    pub timeout: Duration,
    /// Addresses that were resolved before.
    pub resolved: Vec<(String, Vec<SocketAddr>)>,
    /// Called when the connection is lost or restored.
    pub log: LogLine,
    /// Called if content is lost while no request would report the failure.
    pub lost: Lost,
}

/// The store. See the module documentation.
pub struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    /// How to connect, but for the address. It is read from the text once: that makes a hash map with
    /// random keys, and the threads of the store must not ask the C library for those.
    connection: ConnectionInfo,
    /// With TLS, what that needs.
    tls: Option<Tls>,
    addrs: Vec<SocketAddr>,
    timeout: Duration,
    ttl: Duration,
    log: LogLine,
    lost: Lost,
    /// The server's number of its own life.
    run_id: Mutex<String>,
    books: Mutex<Books>,
    /// Counts the keeper's attempts to make room; and why there will be no more.
    room: Mutex<(u64, Option<StoreError>)>,
    room_changed: Condvar,
    pool: Mutex<Option<Arc<Pool>>>,
    minding: Background,
    /// Somebody has said that the server does not answer.
    is_down: AtomicBool,
    /// Somebody has said that the server does not carry out commands for now.
    puts_off: AtomicBool,
    /// Counts forks.
    epoch: AtomicU64,
    /// The process whose connections these are.
    process: AtomicU32,
}

impl RedisStore {
    /// Connects, and refuses a server that could lose or delete content.
    pub fn connect(options: RedisOptions) -> Result<RedisStore, StoreError> {
        let RedisOptions { address, sector_bytes, timeout, resolved, log, lost } = options;
        let (name, server) = (address.shown(), address.server());
        let config = |reason: String| StoreError::Config { store: name.clone(), reason };
        let known = resolved.into_iter().find(|(text, _)| *text == server);
        let addrs =
            known.map_or_else(|| look_up(&server), |(_, addrs)| Ok(addrs)).map_err(config)?;
        let timeout = timeout.max(TIMEOUT_MIN);
        let ttl = address.ttl.unwrap_or_else(|| TTL.max(timeout * 2));
        let prefix = random_prefix().map_err(|error| config(format!("getrandom: {error}")))?;
        let size = address.size.map(|size| size.0);
        if size.is_some_and(|size| size < sector_bytes as u64) {
            return Err(config(format!("size={} leaves no room", size.unwrap_or(0))));
        }
        let connection = address.login().map_err(config)?;
        let tls = address.tls().map(|files| Tls::new(&address.host(), files));
        let tls = tls.transpose().map_err(config)?;
        let shared = Arc::new(Shared {
            name,
            connection,
            tls,
            addrs,
            timeout,
            ttl,
            log,
            lost,
            run_id: Mutex::default(),
            books: Mutex::new(Books::new(sector_bytes, size.unwrap_or(u64::MAX), prefix)),
            room: Mutex::default(),
            room_changed: Condvar::new(),
            pool: Mutex::new(None),
            minding: Background::default(),
            is_down: AtomicBool::new(false),
            puts_off: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            process: AtomicU32::new(std::process::id()),
        });
        let facts = shared.first_answer()?;
        shared.check(&facts)?;
        *shared.run_id.lock().unwrap_or_else(PoisonError::into_inner) =
            facts.text("run_id").unwrap_or_default().to_owned();
        shared.books().room_bytes = room_bytes(&facts);
        if size.is_none() && facts.number("maxmemory") == 0 {
            // Nothing else keeps it from taking all memory there.
            let mut books = shared.books();
            let (prefix, limit) = (books.prefixes[0].clone(), books.room_bytes);
            *books = Books::new(sector_bytes, limit, prefix);
            books.room_bytes = limit;
        }
        keeper::start(&shared)?;
        Ok(RedisStore { shared })
    }
}

/// `hiroma:` and 128 random bits.
fn random_prefix() -> io::Result<String> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(format!("hiroma:{:032x}:", u128::from_ne_bytes(bytes)))
}

/// Bytes of ours that the server can still take: of its `maxmemory`, or else half of what its
/// machine has beside it.
fn room_bytes(facts: &Facts) -> u64 {
    let used = facts.number("used_memory");
    let room = match facts.number("maxmemory") {
        0 => facts.number("total_system_memory").saturating_sub(used) / 2,
        most => most.saturating_sub(used),
    };
    room / OVERHEAD * 100
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects for the first time.
    fn first_answer(&self) -> Result<Facts, StoreError> {
        match line::open(self, FIRST_ANSWER_MAX.min(self.timeout)) {
            Ok((_, facts)) => Ok(facts),
            Err(Failed::Fatal(error)) => Err(error),
            Err(Failed::Broken(reason)) => {
                let port = if self.tls.is_some() { ", with TLS at this port" } else { "" };
                Err(self.refused(format!(
                    "cannot connect ({reason}); start redis-server there{port}, or leave this store out"
                )))
            }
            Err(Failed::PutOff(said)) => {
                Err(self.refused(format!("it says {said}: try again when that is over")))
            }
        }
    }

    /// Whether the server is of use.
    fn check(&self, facts: &Facts) -> Result<(), StoreError> {
        let refused = |reason: &str| Err(self.refused(reason.to_owned()));
        let version = facts.text("redis_version").unwrap_or_default();
        let major = version.split('.').next().and_then(|number| number.parse::<u32>().ok());
        if major.is_some_and(|major| major < VERSION_MIN) {
            return Err(self.refused(format!(
                "it is Redis {version}, and {VERSION_MIN}.0 or later is needed (CLIENT ID)"
            )));
        }
        if facts.text("loading").is_some_and(|loading| loading != "0") {
            return refused("it is still loading its data: try again when it is done");
        }
        if facts.text("cluster_enabled") == Some("1") || facts.text("redis_mode") == Some("cluster")
        {
            return refused(
                "it is part of a Redis Cluster, which is not supported: name servers that are not, several as --store redis://A,redis://B",
            );
        }
        if facts.text("redis_mode") == Some("sentinel") {
            return refused("it is a sentinel, not a server: name the server itself");
        }
        if facts.text("role").is_some_and(|role| role != "master") {
            return refused("it is a replica, which cannot be written to: name its primary");
        }
        match facts.text("maxmemory_policy") {
            Some("noeviction") => Ok(()),
            Some(policy) => Err(self.refused(format!(
                "its maxmemory-policy is {policy}, so it may delete what this program keeps there: `redis-cli config set maxmemory-policy noeviction`, or another server"
            ))),
            None => refused(
                "it does not say what it does when its memory is full (maxmemory_policy in INFO memory): allow the user the command INFO",
            ),
        }
    }

    /// Whether it is still the server that has our content.
    fn is_same(&self, facts: &Facts) -> Result<(), StoreError> {
        let known = self.run_id.lock().unwrap_or_else(PoisonError::into_inner);
        if facts.text("run_id") == Some(&known) {
            return Ok(());
        }
        Err(self.io(
            "coming back to the server",
            "it was restarted, or another one answers: what the program kept there is gone",
        ))
    }

    fn refused(&self, reason: String) -> StoreError {
        StoreError::Refused { store: self.name.clone(), reason }
    }

    fn io(&self, doing: &'static str, text: &str) -> StoreError {
        StoreError::Io { store: self.name.clone(), doing, source_text: text.to_owned() }
    }

    fn silent(&self, waited: Duration, reason: &str) -> StoreError {
        let text = format!(
            "no answer for {waited:?} ({reason}): is redis-server still running there? (--store-timeout sets how long to wait)"
        );
        self.io("waiting for the server", &text)
    }

    fn put_off(&self, waited: Duration, said: &str) -> StoreError {
        let text = format!(
            "for {waited:?} the server has said {said} (--store-timeout sets how long to wait)"
        );
        self.io("waiting for the server", &text)
    }

    /// A string of ours does not exist any more.
    fn missing(&self) -> StoreError {
        let text = format!(
            "keys of this program are gone: they were deleted or evicted there, or this machine was cut off or stopped for longer than their expiry of {:?} (redis://HOST?ttl=TIME sets it)",
            self.ttl
        );
        self.io("looking for what was stored", &text)
    }

    fn unexpected(&self, doing: &'static str, value: Option<Value>) -> StoreError {
        match value {
            Some(Value::ServerError(error)) => {
                let details = error.details().unwrap_or_default();
                self.io(doing, &format!("the server says: {} {details}", error.code()))
            }
            _ => self.io(doing, "the server gave an answer of the wrong kind"),
        }
    }

    fn full(&self, books: &Books) -> StoreError {
        let (used, capacity) = (Bytes(books.space.occupied_bytes()), Bytes(books.capacity_bytes()));
        StoreError::Full { store: self.name.clone(), used, capacity }
    }

    /// The keeper has tried to make room, or cannot any more.
    fn note_room(&self, failure: Option<StoreError>) {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        room.0 += 1;
        if failure.is_some() {
            room.1 = failure;
        }
        self.room_changed.notify_all();
    }

    /// Waits until the keeper has tried to make room.
    fn wait_for_room(&self) -> Result<(), StoreError> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, start) = (room.0, Instant::now());
        while room.0 == before && room.1.is_none() {
            self.minding.goes_on();
            self.minding.ring();
            if start.elapsed() > self.timeout {
                return Err(self.silent(self.timeout, "no room was made"));
            }
            let waited = self.room_changed.wait_timeout(room, Duration::from_millis(20));
            room = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !self.books().has_work() {
                // It was made before we began to wait.
                break;
            }
        }
        room.1.clone().map_or(Ok(()), Err)
    }

    fn pool(self: &Arc<Self>) -> io::Result<Arc<Pool>> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        let started = Arc::new(Pool::start(self)?);
        *pool = Some(Arc::clone(&started));
        Ok(started)
    }
}

impl Store for RedisStore {
    fn name(&self) -> String {
        self.shared.name.clone()
    }

    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        let channel = RedisChannel::open(&self.shared, purpose)
            .map_err(|error| self.shared.io("opening a channel", &error.to_string()))?;
        Ok(Box::new(channel))
    }

    fn free(&self, locs: &[hiroma_units::Loc]) {
        self.shared.minding.goes_on();
        let has_work = self.shared.books().free(locs);
        if has_work {
            self.shared.minding.ring();
        }
    }

    fn keeps_for_children(&self) -> bool {
        true
    }

    fn usage(&self) -> StoreUsage {
        self.shared.minding.goes_on();
        let books = self.shared.books();
        StoreUsage {
            far_bytes: books.space.live_bytes(),
            stored_bytes: books.space.occupied_bytes(),
            capacity_bytes: books.capacity_bytes(),
            metadata_bytes: books.metadata_bytes(),
            server_bytes: books.space.occupied_bytes(),
            ..StoreUsage::default()
        }
    }

    fn leave(&self) {
        if self.shared.process.load(SeqCst) == std::process::id() {
            // A write that comes after the end would make its string again.
            let pool = self.shared.pool.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(pool) = pool {
                pool.end(GOODBYE_MAX);
            }
            self.shared.minding.stop();
        }
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        self.shared.minding.stand_still();
        if let Some(pool) = &*self.shared.pool.lock().unwrap_or_else(PoisonError::into_inner) {
            pool.settle();
        }
        let freeze = self.shared.books().freeze();
        Ok(Box::new(RedisFork { shared: Arc::clone(&self.shared), freeze }))
    }
}

impl Drop for RedisStore {
    /// Deletes the keys. Does nothing in a child that did not adopt the store.
    fn drop(&mut self) {
        self.leave();
    }
}

struct RedisFork {
    shared: Arc<Shared>,
    freeze: FreezeId,
}

impl ForkGuard for RedisFork {
    fn adopt(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        shared.epoch.fetch_add(1, SeqCst);
        shared.process.store(std::process::id(), SeqCst);
        // The threads are the parent's, and so are their connections.
        if let Some(pool) = shared.pool.lock().unwrap_or_else(PoisonError::into_inner).take() {
            std::mem::forget(pool);
        }
        let prefix = random_prefix()
            .map_err(|error| shared.io("adopting the store after a fork", &error.to_string()))?;
        shared.books().become_child(prefix);
        keeper::start(shared)
    }
}

impl Drop for RedisFork {
    fn drop(&mut self) {
        let has_work = self.shared.books().thaw(self.freeze);
        if has_work {
            self.shared.minding.ring();
        }
    }
}
