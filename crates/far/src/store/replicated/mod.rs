//! Several servers of which none matters: each block is in several of them, as copies, or cut into
//! pieces of which not all are needed.
//!
//! The decisions are those of [`hiroma_policy::redundancy`]; this is what carries them out. A
//! location that this store hands out is the number of a block in the table, and stays while the
//! block's pieces move. Each server is a [`TcpStore`] of its own, a *member*.
//!
//! No thread of the pager waits for a server that another one can stand in for: a read that takes
//! longer than usual is sent to a second member, a write is complete without a member that does not
//! answer, and what it should have had is made again elsewhere ([`keeper`]).

mod assemble;
mod books;
mod channel;
mod code;
mod keeper;
mod reads;
mod roster;
#[cfg(test)]
mod tests;
mod words;
mod writes;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hiroma_policy::redundancy::{Member, Members, Scheme};
use hiroma_units::Loc;

use self::books::Books;
use self::channel::ReplicatedChannel;
use self::code::Code;
use self::roster::Roster;
use super::background::Background;
use super::tcp::{LogLine, TcpOptions, TcpStore};
use super::{Channel, ForkGuard, Purpose, Store, StoreError, StoreUsage};
use crate::content::Key;

/// Maximum number of servers: a thread waits for one descriptor of each.
pub const SERVERS_MAX: usize = 16;

/// The store. See the module documentation.
pub struct ReplicatedStore {
    shared: Arc<Shared>,
}

/// State shared by all channels and the keeper.
struct Shared {
    name: String,
    sector_bytes: usize,
    scheme: Scheme,
    code: Code,
    roster: Mutex<Roster>,
    log: LogLine,
    /// Of checksums, by which a block that changed is told from the right one.
    key: Key,
    timeout: Duration,
    /// Another store takes what there is no room for.
    is_followed: bool,
    books: Mutex<Books>,
    /// Counts changes of the members, for channels to follow.
    changes: AtomicU64,
    keeping: Background,
    /// Counts forks, so that channels of the parent are recognized in the child.
    epoch: AtomicU64,
    process: AtomicU32,
    /// Times of this store begin here.
    start: Instant,
    left: AtomicBool,
}

/// Where the servers are.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// What servers share ([`crate::Config::domains`]).
    pub domains: Vec<(String, String)>,
    /// Where members are listed that have joined since ([`crate::config::MEMBERS_FILE`]).
    pub members_file: Option<PathBuf>,
    /// Only servers on this machine may be used.
    pub is_only_here: bool,
    /// Other processes of the run use these servers already: as few as have everything will do.
    pub has_begun: bool,
    /// Another store takes what these servers have no room for.
    pub is_followed: bool,
}

impl ReplicatedStore {
    /// Connects to all servers of `options`, each of which becomes a member. Those that cannot be
    /// reached are left out until they answer, where the others are enough.
    pub fn connect(
        options: &TcpOptions,
        scheme: Scheme,
        place: &Place,
    ) -> Result<ReplicatedStore, StoreError> {
        let name = format!("tcp://{}", options.servers.join(","));
        check(&name, options.servers.len(), scheme)?;
        let code = Code::new(scheme, options.sector_bytes);
        let key = Key::random().map_err(|error| StoreError::Io {
            store: name.clone(),
            doing: "making a key",
            source_text: error.to_string(),
        })?;
        let base = TcpOptions {
            sector_bytes: code.piece_bytes(),
            log: Arc::new(|_| {}),
            lost: Arc::new(|_| {}),
            is_redundant: true,
            ..options.clone()
        };
        let file = place.members_file.clone();
        let mut roster = Roster::new(base, &place.domains, file, place.is_only_here);
        let mut books = Books::new(scheme, options.sector_bytes);
        reach_all(&mut roster, &mut books, place.has_begun, scheme, &options.log)?;
        let shared = Arc::new(Shared {
            name,
            sector_bytes: options.sector_bytes,
            scheme,
            code,
            roster: Mutex::new(roster),
            log: options.log.clone(),
            key,
            timeout: options.timeout,
            is_followed: place.is_followed,
            books: Mutex::new(books),
            changes: AtomicU64::new(1),
            keeping: Background::default(),
            epoch: AtomicU64::new(0),
            process: AtomicU32::new(std::process::id()),
            start: Instant::now(),
            left: AtomicBool::new(false),
        });
        keeper::start(&shared)?;
        Ok(ReplicatedStore { shared })
    }
}

/// Connects to all servers of the roster. Fails if fewer answer than a block has pieces; in a run
/// that has begun, than it needs.
fn reach_all(
    roster: &mut Roster,
    books: &mut Books,
    has_begun: bool,
    scheme: Scheme,
    log: &LogLine,
) -> Result<(), StoreError> {
    let least = if has_begun { scheme.needed() } else { scheme.pieces() };
    let (mut reached, mut absent) = (0, Vec::new());
    for number in roster.numbers() {
        let server = roster.get(number);
        // Beside enough others, one that is silent is not waited for long.
        let is_return = has_begun && reached >= least;
        let options = TcpOptions { is_return, ..server.options.clone() };
        match TcpStore::connect_with(options) {
            Ok(store) => {
                books.join(0, number, server.label, Arc::new(store));
                reached += 1;
            }
            Err(error @ (StoreError::Absent { .. } | StoreError::Unreachable { .. })) => {
                absent.push((number, error));
            }
            Err(error) => return Err(error),
        }
    }
    if reached < least && !absent.is_empty() {
        return Err(absent.swap_remove(0).1);
    }
    for (number, error) in absent {
        roster.was_missed(number);
        books.vacant_servers.push(number);
        // The others of a run have said so.
        if !has_begun {
            log(&format!("{error}; the program begins without it"));
        }
    }
    Ok(())
}

/// Refuses schemes for which there are not enough servers.
fn check(name: &str, servers: usize, scheme: Scheme) -> Result<(), StoreError> {
    let pieces = scheme.pieces();
    let option = match scheme.is_cut() {
        true => format!("--parity {scheme}"),
        false => format!("--copies {pieces}"),
    };
    let reason = if pieces > servers {
        format!(
            "{option} needs {pieces} servers, and {servers} {} named: name more, or ask for fewer {}",
            if servers == 1 { "is" } else { "are" },
            if scheme.is_cut() { "pieces" } else { "copies" }
        )
    } else if servers > SERVERS_MAX {
        format!("{servers} servers are named: with {option}, use up to {SERVERS_MAX}")
    } else {
        return Ok(());
    };
    Err(StoreError::Config { store: name.to_owned(), reason })
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        // Not zero: that is the time before the first event.
        self.start.elapsed().as_nanos() as u64 + 1
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn server_name(&self, server: usize) -> String {
        format!("tcp://{}", self.roster().get(server).address())
    }

    /// The members have changed: channels look at them before their next request.
    fn note_change(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// Looks at the health of the members, and says what has changed.
    fn tick(&self) {
        let lines = {
            let mut books = self.books();
            let (lines, changed) = books.tick(self.now_ns(), |server| self.server_name(server));
            if changed {
                self.note_change();
                self.keeping.ring();
            }
            lines
        };
        lines.iter().for_each(|line| (self.log)(line));
    }

    /// A block is lost.
    fn unreadable(&self, reason: String) -> StoreError {
        let store = self.name.clone();
        match self.scheme.is_cut() {
            true => StoreError::TooFewPieces { store, reason },
            false => StoreError::NoCopy { store, reason },
        }
    }

    fn io_error(&self, doing: &'static str, text: &str) -> StoreError {
        StoreError::Io { store: self.name.clone(), doing, source_text: text.to_owned() }
    }
}

impl Store for ReplicatedStore {
    fn name(&self) -> String {
        format!("{} ({})", self.shared.name, self.shared.scheme)
    }

    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        Ok(Box::new(ReplicatedChannel::open(&self.shared, purpose)))
    }

    fn free(&self, locs: &[Loc]) {
        self.shared.books().free(locs);
    }

    fn keeps_for_children(&self) -> bool {
        true
    }

    fn usage(&self) -> StoreUsage {
        if self.shared.keeping.goes_on() {
            self.shared.keeping.ring();
        }
        self.shared.books().usage()
    }

    fn begin_drain(&self) -> bool {
        self.shared.books().overflows
    }

    fn is_to_leave(&self, loc: Loc) -> bool {
        self.shared.books().is_to_leave(loc.0)
    }

    /// Servers that do not answer may come back, with room.
    fn room_patience(&self) -> Option<Duration> {
        let books = self.shared.books();
        let is_away = books.pool.up().len() < books.pool.living().len();
        is_away.then_some(self.shared.timeout)
    }

    fn leave(&self) {
        if self.shared.process.load(SeqCst) == std::process::id() {
            self.shared.left.store(true, SeqCst);
            self.shared.keeping.stop();
            let stores = self.shared.books().stores();
            stores.iter().for_each(|(_, store)| store.leave());
        }
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        self.shared.keeping.stand_still();
        let start = Instant::now();
        let (mut guards, mut absent) = (Vec::new(), Members::default());
        let stores = self.shared.books().stores();
        for (member, store) in stores {
            let without = Members(absent.0 | 1 << member.0);
            loop {
                match store.prepare_fork() {
                    Ok(guard) => guards.push((member, guard)),
                    // What others have too need not be preserved here: the child does without it,
                    // and this process, whose session goes on, waits for it as ever.
                    Err(_) if self.shared.books().are_needless(without) => absent = without,
                    Err(error) if start.elapsed() > self.shared.timeout => return Err(error),
                    Err(_) => {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                }
                break;
            }
        }
        Ok(Box::new(ReplicatedFork { shared: Arc::clone(&self.shared), guards, absent }))
    }
}

impl Drop for ReplicatedStore {
    fn drop(&mut self) {
        self.leave();
    }
}

struct ReplicatedFork {
    shared: Arc<Shared>,
    guards: Vec<(Member, Box<dyn ForkGuard>)>,
    /// Members that the child does without.
    absent: Members,
}

impl ForkGuard for ReplicatedFork {
    fn adopt(&self) -> Result<(), StoreError> {
        let shared = &self.shared;
        shared.epoch.fetch_add(1, SeqCst);
        shared.process.store(std::process::id(), SeqCst);
        shared.left.store(false, SeqCst);
        shared.note_change();
        {
            let mut books = shared.books();
            self.absent.iter().for_each(|member| books.pool.died(member));
            books.become_child();
        }
        for (member, guard) in &self.guards {
            if let Err(error) = guard.adopt() {
                let mut books = shared.books();
                if !books.are_needless(Members(1 << member.0)) {
                    return Err(error);
                }
                books.pool.died(*member);
                // Its threads and connections are the parent's, or half made.
                std::mem::forget(books.take_store(*member));
            }
        }
        keeper::start(shared)
    }
}
