//! Sectors in the memory of servers (`hiroma serve`).
//!
//! A process has one session with each server, a connection to each server for every channel, and
//! one more for control requests. Room is reserved on a server before it is used, so a write in
//! flight never meets a full server. A channel waits on an epoll descriptor, which also reports
//! when a connection becomes writable again and when to try to reconnect. While there are no
//! requests, a thread checks the control connections.

mod books;
mod channel;
mod link;
mod minder;
#[cfg(test)]
pub(crate) mod tests;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hiroma_far_wire::{
    CHUNK, ErrorCode, Introduction, Key, KeyError, Message, Purpose as LinkPurpose, SessionToken,
    SessionUsage, WireError, check_tenant,
};
use hiroma_policy::allocation::AllocationKind;
use hiroma_sys::transport::SHARED_MEMORY;
use hiroma_units::{Bytes, Loc};

use self::books::{Books, Leaving, RESERVE_CHUNKS};
use self::channel::{Requests, TcpChannel};
use self::link::{Link, Trouble};
use self::minder::Minding;
use super::space::FreezeId;
use super::{Channel, ForkGuard, Pulse, Purpose, Store, StoreError, StoreUsage};
use crate::config::{Allocation, StoreSpec, TransportChoice};

/// How long a server may take to answer when the store is opened; nothing is lost yet if it does
/// not.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(5);

/// The same where the content is elsewhere too, and for requests before a fork.
const REDUNDANT_ANSWER_MAX: Duration = Duration::from_millis(400);

/// Minimum time to wait for a server, whatever the user has set: an answer takes some time on a
/// healthy one too.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// Receives one line for the user, without a line end.
pub type LogLine = Arc<dyn Fn(&str) + Send + Sync>;

/// Called when the far memory on a server is lost for good.
pub type Lost = Arc<dyn Fn(&StoreError) + Send + Sync>;

/// How to reach the servers.
#[derive(Clone)]
pub struct TcpOptions {
    /// `[TENANT@]HOST:PORT` each.
    pub servers: Vec<String>,
    /// Bytes in a sector.
    pub sector_bytes: usize,
    /// Which server gets the next chunk.
    pub allocation: Allocation,
    /// How long to try to reconnect.
    pub timeout: Duration,
    /// Key that is shared with the servers.
    pub key_file: Option<PathBuf>,
    /// Addresses that were resolved before.
    pub resolved: Vec<(String, Vec<SocketAddr>)>,
    /// Called when connections are lost or restored.
    pub log: LogLine,
    /// Called if content is lost while no request would report the failure.
    pub lost: Lost,
    /// Its content is elsewhere too: no request waits for a server in the caller's thread, and
    /// failures are noticed sooner.
    pub is_redundant: bool,
    /// It was connected before, and the program goes on meanwhile.
    pub is_return: bool,
    /// Another store takes what these servers have no room for.
    pub is_followed: bool,
    /// What may carry the connections.
    pub transport: TransportChoice,
}

/// The store. See the module documentation.
pub struct TcpStore {
    shared: Arc<Shared>,
}

struct ServerAddr {
    text: String,
    addrs: Vec<SocketAddr>,
    /// As whom the client introduces itself there.
    introduction: Introduction,
}

/// The tenant that a server's address names, if any, and the address without it.
pub(super) fn split_tenant(server: &str) -> (&str, &str) {
    server.rsplit_once('@').unwrap_or(("", server))
}

/// State shared by all channels.
struct Shared {
    name: String,
    servers: Vec<ServerAddr>,
    key: Option<Key>,
    timeout: Duration,
    transport: TransportChoice,
    log: LogLine,
    lost: Lost,
    is_redundant: bool,
    is_return: bool,
    minding: Minding,
    books: Mutex<Books>,
    /// A control link to each server.
    controls: Mutex<Vec<Link>>,
    next_lane: AtomicU32,
    /// Counts forks, so that channels of the parent are recognized in the child.
    epoch: AtomicU64,
    /// The process whose connections these are.
    process: AtomicU32,
    /// Blocks of the program that have too few pieces, at all servers together.
    short_blocks: AtomicU64,
    /// Chunks that are to be given back.
    frees_waiting: AtomicUsize,
    /// The servers were told that the program has ended.
    left: AtomicBool,
    /// Connections for content that were made so far: over TCP, and in shared memory.
    carried: [AtomicU64; 2],
}

impl TcpStore {
    /// Connects with all options.
    pub fn connect_with(options: TcpOptions) -> Result<TcpStore, StoreError> {
        let name = format!("tcp://{}", options.servers.join(","));
        let config = |reason: String| StoreError::Config { store: name.clone(), reason };
        let key = options.key_file.as_deref().map(read_key).transpose().map_err(config)?;
        let mut servers = Vec::new();
        for text in &options.servers {
            let known = options.resolved.iter().find(|(name, _)| name == text);
            let addrs = known
                .map_or_else(|| look_up(text), |(_, addrs)| Ok(addrs.clone()))
                .map_err(config)?;
            if addrs.is_empty() {
                return Err(config(format!("the name {text} stands for no address")));
            }
            let (tenant, address) = split_tenant(text);
            if text.contains('@') {
                check_tenant(tenant).map_err(|error| config(error.to_string()))?;
            }
            let introduction =
                Introduction { name: tenant.to_owned(), moves: options.is_redundant };
            servers.push(ServerAddr { text: format!("tcp://{address}"), addrs, introduction });
        }
        if servers.is_empty() {
            return Err(config("no server is named: write tcp://HOST:PORT".to_owned()));
        }
        TcpStore::connect_to(options, name, key, servers)
    }

    fn connect_to(
        options: TcpOptions,
        name: String,
        key: Option<Key>,
        servers: Vec<ServerAddr>,
    ) -> Result<TcpStore, StoreError> {
        let kind = match options.allocation {
            Allocation::Simple => AllocationKind::Simple,
            Allocation::RoundRobin => AllocationKind::RoundRobin,
        };
        let leaving = match (options.is_redundant, options.is_followed) {
            (true, _) => Leaving::Never,
            (false, true) => Leaving::Anywhere,
            (false, false) => Leaving::ToOthers,
        };
        let shared = Arc::new(Shared {
            books: Mutex::new(Books::new(servers.len(), options.sector_bytes, kind, leaving)),
            name,
            servers,
            key,
            timeout: options.timeout.max(TIMEOUT_MIN),
            transport: options.transport,
            log: options.log,
            lost: options.lost,
            is_redundant: options.is_redundant,
            is_return: options.is_return,
            minding: Minding::default(),
            controls: Mutex::default(),
            next_lane: AtomicU32::new(1),
            epoch: AtomicU64::new(0),
            process: AtomicU32::new(std::process::id()),
            short_blocks: AtomicU64::new(0),
            frees_waiting: AtomicUsize::new(0),
            left: AtomicBool::new(false),
            carried: [const { AtomicU64::new(0) }; 2],
        });
        shared.connect_controls(&[])?;
        minder::start(&shared)?;
        Ok(TcpStore { shared })
    }
}

pub(super) fn look_up(text: &str) -> Result<Vec<SocketAddr>, String> {
    split_tenant(text)
        .1
        .to_socket_addrs()
        .map(Iterator::collect)
        .map_err(|error| format!("cannot find the server {text}: {error}"))
}

/// Resolves the addresses of all servers of `stores`.
pub fn resolve(stores: &[StoreSpec]) -> Result<Vec<(String, Vec<SocketAddr>)>, StoreError> {
    let servers = stores.iter().flat_map(|store| match store {
        StoreSpec::Tcp { servers } => {
            servers.iter().map(|text| (format!("tcp://{text}"), text.clone())).collect()
        }
        StoreSpec::Redis(address) => vec![(address.shown(), address.server())],
        _ => Vec::new(),
    });
    let one = |(store, text): (String, String)| {
        let config = |reason| StoreError::Config { store, reason };
        look_up(&text).map_err(config).map(|addrs| (text, addrs))
    };
    servers.map(one).collect()
}

fn read_key(path: &Path) -> Result<Key, String> {
    let content = std::fs::read(path)
        .map_err(|error| format!("cannot read the key file {}: {error}", path.display()))?;
    Key::from_file_content(&content).map_err(|error| format!("{}: {error}", path.display()))
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn controls(&self) -> MutexGuard<'_, Vec<Link>> {
        self.controls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was made.
    fn note_transport(&self, purpose: LinkPurpose, transport: &str) {
        if purpose != LinkPurpose::Control {
            let is_shared = transport == SHARED_MEMORY;
            self.carried[usize::from(is_shared)].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn next_lane(&self) -> u32 {
        self.next_lane.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether other threads may be waiting for this one: the store was in use before a fork, or
    /// is opened again.
    fn has_begun(&self) -> bool {
        self.epoch.load(Ordering::SeqCst) > 0 || self.is_return
    }

    /// Opens a session with every server and reserves the first room.
    fn connect_controls(
        self: &Arc<Self>,
        attached: &[Vec<(u16, SessionToken)>],
    ) -> Result<(), StoreError> {
        let mut controls = Vec::new();
        for (server, addr) in self.servers.iter().enumerate() {
            let mut link = Link::new(self, server, LinkPurpose::Control, SessionToken::NEW);
            if self.books().servers[server].is_gone {
                link.do_without();
                controls.push(link);
                continue;
            }
            for &(space, token) in attached.get(server).into_iter().flatten() {
                link.push_control(Message::Attach { token, space }, true);
            }
            link.push_control(Message::Reserve { chunks: RESERVE_CHUNKS }, true);
            let start = Instant::now();
            while link.is_busy() {
                drive(&mut link);
                let most = if self.is_redundant && self.has_begun() {
                    REDUNDANT_ANSWER_MAX
                } else {
                    FIRST_ANSWER_MAX
                };
                let gave_up = start.elapsed() > most.min(self.timeout);
                // A server that is full of newcomers turns some away, who may come again.
                let is_final = gave_up || !link.was_accepted();
                let failure =
                    link.failure().filter(|_| is_final).or(gave_up.then_some("no answer"));
                if let (Some(failure), false) = (failure, link.is_up()) {
                    let reason = format!(
                        "cannot connect to {}: {failure}; start `hiroma serve` there, or leave this server out",
                        addr.text
                    );
                    return Err(StoreError::Absent { store: self.name.clone(), reason });
                }
            }
            if let Some(error) = link.death() {
                return Err(error.clone());
            }
            for (_, answer) in link.answers.drain(..) {
                if let Message::Error { text, .. } = answer {
                    return Err(StoreError::Refused { store: addr.text.clone(), reason: text });
                }
            }
            self.books().servers[server].token = Some(link.token());
            controls.push(link);
        }
        *self.controls() = controls;
        Ok(())
    }

    /// Sends a control request to a server and waits for the answer.
    fn call(&self, server: usize, message: Message) -> Result<Message, StoreError> {
        let mut controls = self.controls();
        let Some(link) = controls.get_mut(server) else {
            // It has said goodbye.
            let store = self.servers[server].text.clone();
            return Err(StoreError::Unreachable { store, waited: Duration::ZERO });
        };
        // A server that was waited for in vain is not waited for again until it has answered.
        let silent = |link: &Link| self.is_redundant && link.silent_for() > REDUNDANT_ANSWER_MAX;
        let unreachable = |link: &Link| {
            let store = self.servers[server].text.clone();
            StoreError::Unreachable { store, waited: link.silent_for() }
        };
        drive(link);
        if silent(link) {
            return Err(unreachable(link));
        }
        // Answers to what was given up come late.
        link.answers.clear();
        let id = link.push_control(message, true);
        while !link.answers.iter().any(|(of, _)| *of == id) && link.death().is_none() {
            drive(link);
            if silent(link) {
                return Err(unreachable(link));
            }
        }
        match (link.answers.pop_back().filter(|(of, _)| *of == id), link.death()) {
            (Some((_, Message::Error { code, text })), _) => {
                Err(self.request_failed(server, false, code, &text))
            }
            (Some((_, answer)), _) => Ok(answer),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => unreachable!("the loop ends with an answer or without a link"),
        }
    }

    /// Updates the books after the answer to a control frame.
    fn note_answer(&self, server: usize, question: &Message, answer: &Message) {
        let mut books = self.books();
        let book = &mut books.servers[server];
        match (question, answer) {
            (Message::Reserve { .. }, Message::Granted { chunks, usage }) => {
                book.granted(*chunks, *usage)
            }
            (Message::Reserve { .. }, _) => {
                let is_draining = book.is_draining();
                book.granted(0, SessionUsage { is_draining, ..SessionUsage::default() });
            }
            (Message::Free { .. }, _) => book.freed(),
            (_, Message::UsageReply { usage }) => book.told(*usage),
            _ => {}
        }
        self.frees_waiting.fetch_add(book.give_up_spares(), Ordering::Relaxed);
        books.look_at_drains();
    }

    /// Gives empty chunks back to the server of a link that is up.
    fn give_back(&self, link: &mut Link) {
        if self.frees_waiting.load(Ordering::Relaxed) == 0 || !link.is_up() {
            return;
        }
        for chunk in self.books().servers[link.server()].take_frees() {
            self.frees_waiting.fetch_sub(1, Ordering::Relaxed);
            link.push_control(
                Message::Free { addr: u64::from(chunk) * CHUNK as u64, len: CHUNK as u32 },
                false,
            );
        }
    }

    /// A control frame will never be answered.
    fn note_no_answer(&self, server: usize, question: &Message) {
        let mut books = self.books();
        match question {
            Message::Reserve { .. } => books.servers[server].not_granted(),
            Message::Free { .. } => books.servers[server].freed(),
            _ => {}
        }
    }

    fn io_error(&self, doing: &'static str, text: &str) -> StoreError {
        StoreError::Io { store: self.name.clone(), doing, source_text: text.to_owned() }
    }

    fn broken_protocol(&self, server: usize, what: &str) -> StoreError {
        StoreError::Io {
            store: self.servers[server].text.clone(),
            doing: "talking to the server",
            source_text: what.to_owned(),
        }
    }

    /// What a wire error means for the connection.
    fn refusal(&self, server: usize, error: &WireError) -> Trouble {
        let store = self.servers[server].text.clone();
        match error {
            WireError::Told { code: ErrorCode::NoSession, text } => {
                Trouble::Fatal(StoreError::Io {
                    store,
                    doing: "coming back to the server",
                    source_text: format!(
                        "it was restarted, or gave this program up for lost: what the program kept there is gone ({text})"
                    ),
                })
            }
            WireError::Told { code: ErrorCode::TooMany, text } => Trouble::Broken(text.clone()),
            WireError::Key(KeyError::Needed)
            | WireError::Key(_)
            | WireError::Told { .. }
            | WireError::NoCommonVersion { .. } => {
                Trouble::Fatal(StoreError::Refused { store, reason: error.to_string() })
            }
            other => Trouble::Fatal(StoreError::Refused { store, reason: other.to_string() }),
        }
    }

    fn request_failed(
        &self,
        server: usize,
        write: bool,
        code: ErrorCode,
        text: &str,
    ) -> StoreError {
        let store = self.servers[server].text.clone();
        match code {
            ErrorCode::Full => self.full(),
            ErrorCode::NoSession => StoreError::Refused { store, reason: text.to_owned() },
            _ => StoreError::Answered {
                store,
                doing: if write { "writing" } else { "reading" },
                source_text: text.to_owned(),
            },
        }
    }

    /// If a server gives no more because of a quota: whose.
    fn quota_reason(&self) -> Option<String> {
        let at = self.books().servers.iter().position(books::ServerBook::is_at_quota)?;
        let ServerAddr { text, introduction, .. } = &self.servers[at];
        Some(match introduction.name.as_str() {
            "" => format!("the quota that {text} gives this machine is used up"),
            name => format!("the quota of tenant {name} at {text} is used up"),
        })
    }

    fn full(&self) -> StoreError {
        let books = self.books();
        let (used, capacity) = (Bytes(books.space.occupied_bytes()), Bytes(books.capacity_bytes()));
        drop(books);
        let reason = self.quota_reason().map_or(String::new(), |reason| format!(" ({reason})"));
        StoreError::Full { store: format!("{}{reason}", self.name), used, capacity }
    }
}

/// Advances a control link, waiting briefly for its socket.
fn drive(link: &mut Link) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    link.pump(&mut Requests::default(), true);
    if link.is_busy() && link.death().is_none() {
        let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = match link.socket() {
            Some((socket, blocked)) => {
                let flags = if blocked { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                poll(&mut [PollFd::new(&socket, flags)], Some(&timeout))
            }
            None => poll(&mut [], Some(&timeout)),
        };
    }
}

impl Store for TcpStore {
    fn name(&self) -> String {
        self.shared.name.clone()
    }

    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        Ok(Box::new(TcpChannel::open(&self.shared, purpose)?))
    }

    fn free(&self, locs: &[Loc]) {
        let given_back = self.shared.books().free(locs);
        self.shared.frees_waiting.fetch_add(given_back, Ordering::Relaxed);
    }

    fn keeps_for_children(&self) -> bool {
        true
    }

    fn usage(&self) -> StoreUsage {
        self.shared.minding.thread.goes_on();
        let books = self.shared.books();
        StoreUsage {
            far_bytes: books.space.live_bytes(),
            stored_bytes: books.space.occupied_bytes(),
            capacity_bytes: books.capacity_bytes(),
            metadata_bytes: books.metadata_bytes(),
            server_bytes: books.space.occupied_bytes(),
            tcp_connections: self.shared.carried[0].load(Ordering::Relaxed),
            shared_connections: self.shared.carried[1].load(Ordering::Relaxed),
            ..StoreUsage::default()
        }
    }

    fn pulse(&self) -> Option<Pulse> {
        let is_draining = self.shared.books().servers.iter().any(books::ServerBook::is_draining);
        Some(Pulse { is_draining, ..self.shared.minding.pulse() })
    }

    fn tell_short(&self, blocks: u64) {
        self.shared.short_blocks.store(blocks, Ordering::Relaxed);
    }

    fn full_because(&self) -> Option<String> {
        self.shared.quota_reason()
    }

    fn awaits_room(&self) -> bool {
        self.shared.books().servers.iter().any(books::ServerBook::is_asked)
    }

    fn begin_drain(&self) -> bool {
        self.shared.books().are_some_to_leave()
    }

    fn is_to_leave(&self, loc: Loc) -> bool {
        self.shared.books().is_to_leave(loc)
    }

    fn leave(&self) {
        if self.shared.process.load(Ordering::SeqCst) == std::process::id() {
            self.shared.minding.thread.stop();
            self.shared.left.store(true, Ordering::SeqCst);
            // They refer to what they are in.
            let controls = std::mem::take(&mut *self.shared.controls());
            controls.into_iter().for_each(|mut link| link.say_goodbye());
        }
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        self.shared.minding.thread.stand_still();
        for server in 0..self.shared.servers.len() {
            let is_gone = || self.shared.books().servers[server].is_gone;
            if is_gone() {
                continue;
            }
            match self.shared.call(server, Message::Fork) {
                // It was emptied, and ended while it was asked.
                Err(_) if is_gone() => {}
                answer => drop(answer?),
            }
        }
        let freeze = self.shared.books().space.freeze();
        Ok(Box::new(TcpFork { shared: Arc::clone(&self.shared), freeze }))
    }
}

impl Drop for TcpStore {
    /// Says goodbye, so that the servers free the memory immediately. Does nothing in a child that
    /// did not adopt the store: the connections are the parent's.
    fn drop(&mut self) {
        self.leave();
    }
}

struct TcpFork {
    shared: Arc<Shared>,
    freeze: FreezeId,
}

impl ForkGuard for TcpFork {
    fn adopt(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        shared.process.store(std::process::id(), Ordering::SeqCst);
        shared.frees_waiting.store(0, Ordering::SeqCst);
        shared.carried.iter().for_each(|count| count.store(0, Ordering::SeqCst));
        shared.left.store(false, Ordering::SeqCst);
        // The connections remain the parent's; their descriptor numbers are invalid here, or refer
        // to other files.
        std::mem::take(&mut *shared.controls()).into_iter().for_each(std::mem::forget);
        let attached = {
            let mut books = shared.books();
            if books.become_child() > hiroma_far_wire::MAX_SPACES {
                return Err(shared
                    .io_error("adopting the store after a fork", "too many generations of forks"));
            }
            books.servers.iter().map(|server| server.attached.clone()).collect::<Vec<_>>()
        };
        shared.connect_controls(&attached)?;
        minder::start(shared)
    }
}

impl Drop for TcpFork {
    fn drop(&mut self) {
        let given_back = self.shared.books().thaw(self.freeze);
        self.shared.frees_waiting.fetch_add(given_back, Ordering::Relaxed);
    }
}
