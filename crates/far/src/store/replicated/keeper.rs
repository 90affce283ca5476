//! A thread that watches the members, makes pieces again of blocks that have too few, and takes
//! servers in that have come back.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use hiroma_policy::redundancy::{Indices, Members};
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::wait;
use hiroma_units::{Bytes, Loc};

use super::Shared;
use super::books::Books;
use super::channel::ReplicatedChannel;
use super::roster::Server;
use super::words::{self, Few};
use crate::store::tcp::{TcpOptions, TcpStore};
use crate::store::{Channel, Completion, Purpose, StoreError, Token};

/// Interval of the looks at the members.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Interval of questions about room, and of attempts to reach servers that are gone.
const ROOM_EVERY: Duration = Duration::from_millis(500);
const JOIN_EVERY: Duration = Duration::from_secs(1);
/// Interval of searches for blocks with too few pieces although none is known of.
const SEARCH_EVERY: Duration = Duration::from_secs(5);
/// Bytes that are made again at a time: what a request of the program waits for at most.
const BATCH_BYTES: usize = 64 << 10;
/// Blocks that nobody takes pieces of, after which a search gives others the lock.
const SKIPPED_MAX: usize = 16 << 10;
/// The user is told that the servers have no room when that has lasted for this long.
const FEW_FOR: Duration = Duration::from_secs(2);

/// Starts the keeper of this process: in the first one, and in each child that adopts the store.
pub fn start(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let (kept, epoch) = (Arc::clone(shared), shared.epoch.load(SeqCst));
    let work = move || {
        let mut keeper = Keeper::new(&kept);
        while !kept.keeping.is_stopping() && kept.epoch.load(SeqCst) == epoch {
            let pause = kept.keeping.round(LOOK_EVERY, || keeper.round());
            if !pause.is_zero() {
                keeper.rest(pause);
            }
        }
    };
    shared
        .keeping
        .start(c"hiroma-keeper", work)
        .map_err(|error| shared.io_error("starting a thread", &error.to_string()))
}

/// Blocks that are being made again.
struct Batch {
    blocks: Vec<(u32, u32)>,
    /// Who has pieces of them, and the pieces that nobody has.
    holders: Members,
    missing: Indices,
}

/// What a search has found.
enum Found {
    /// Blocks in `Keeper::found`: who has pieces of them, and the pieces that nobody has.
    Blocks(Members, Indices),
    /// Nothing yet: it goes on after this time.
    Later(Duration),
    /// There is nothing more.
    End,
}

struct Keeper {
    shared: Arc<Shared>,
    channel: ReplicatedChannel,
    buf: Option<FrameBuf>,
    batch: Option<Batch>,
    /// Where the search goes on; none: there is nothing to search for.
    cursor: Option<u32>,
    /// Blocks with no more pieces than this are searched for first.
    left_max: usize,
    /// Bytes made again since everything last had all pieces, and whether this search made any.
    made_bytes: u64,
    is_progress: bool,
    /// This search has found blocks of which nobody takes the missing pieces now.
    is_stuck: bool,
    /// Blocks that could not be read, to be tried again one by one when there is nothing else to
    /// search for, and when there were last some.
    retries: Vec<u32>,
    retried: Instant,
    /// Since when searches find nothing else, and whether the user knows.
    stuck_since: Option<Instant>,
    is_told_of_few: bool,
    searched: Instant,
    asked_room: Instant,
    joined: Instant,
    join_pause: Duration,
    /// Counts attempts to reach servers that are gone.
    turn: u32,
    found: Vec<u32>,
    completions: Vec<Completion>,
}

impl Keeper {
    fn new(shared: &Arc<Shared>) -> Keeper {
        let now = Instant::now();
        let bytes = BATCH_BYTES.max(shared.sector_bytes);
        Keeper {
            shared: Arc::clone(shared),
            channel: ReplicatedChannel::open(shared, Purpose::Write),
            buf: Some(FrameBuf::leak(bytes)),
            batch: None,
            cursor: None,
            left_max: shared.scheme.needed(),
            made_bytes: 0,
            is_progress: false,
            is_stuck: false,
            retries: Vec::new(),
            retried: now,
            stuck_since: None,
            is_told_of_few: false,
            searched: now,
            asked_room: now,
            joined: now,
            join_pause: JOIN_EVERY,
            turn: 0,
            found: Vec::new(),
            completions: Vec::new(),
        }
    }

    /// One look at everything. Returns how long to rest.
    fn round(&mut self) -> Duration {
        self.look();
        self.channel.poll(&mut self.completions);
        for done in std::mem::take(&mut self.completions) {
            self.came(done);
        }
        if self.batch.is_some() {
            return Duration::from_millis(1);
        }
        self.make_again()
    }

    /// Sleeps without a lock, until there is something to do.
    fn rest(&self, pause: Duration) {
        if self.batch.is_some() && !self.shared.keeping.is_still() {
            wait::readable(&self.channel.wait_fds(), pause.as_millis().max(1) as i64);
        } else {
            self.shared.keeping.rest(pause);
        }
    }

    fn look(&mut self) {
        let now_ns = self.shared.now_ns();
        let (closing, vacant) = {
            let mut books = self.shared.books();
            books.take_pulses(now_ns);
            if self.asked_room.elapsed() > ROOM_EVERY {
                self.asked_room = Instant::now();
                books.take_room();
            }
            (std::mem::take(&mut books.closing), books.vacant_servers.clone())
        };
        self.shared.tick();
        drop(closing);
        if self.joined.elapsed() > self.join_pause {
            let start = Instant::now();
            let new = self.shared.roster().read(&vacant);
            if !vacant.is_empty() || !new.is_empty() {
                self.take_in(new);
            }
            // A machine that is gone does not even refuse. Most of the time is for what is to be made
            // again, and forks wait for this thread.
            self.joined = Instant::now();
            self.join_pause = JOIN_EVERY.max(20 * start.elapsed());
        }
    }

    /// Tries to reach servers that are new, and one that is gone: each that answers is a new member.
    fn take_in(&mut self, new: Vec<usize>) {
        let now_ns = self.shared.now_ns();
        let vacant: Vec<usize> = {
            let mut books = self.shared.books();
            new.iter().for_each(|&server| books.bans.forget(server));
            books.vacant_servers.retain(|server| !new.contains(server));
            let is_free = |server: &&usize| !books.bans.has(**server, now_ns);
            books.vacant_servers.iter().filter(is_free).copied().collect()
        };
        self.turn = self.turn.wrapping_add(1);
        let gone = self.shared.roster().next_to_try(&vacant, self.turn);
        self.shared.books().vacant_servers.retain(|&server| Some(server) != gone);
        for server in new.into_iter().chain(gone) {
            let Server { options, label, is_new, .. } = self.shared.roster().get(server).clone();
            let options = TcpOptions { is_return: true, ..options };
            let joined = TcpStore::connect_with(options).is_ok_and(|store| {
                let now_ns = self.shared.now_ns();
                let mut books = self.shared.books();
                books.rebuilding = true;
                books.join(now_ns, server, label, Arc::new(store))
            });
            if joined {
                self.shared.note_change();
                self.shared.roster().was_reached(server);
                let name = self.shared.server_name(server);
                (self.shared.log)(&if is_new {
                    format!("{name} has joined the pool, and is used")
                } else {
                    format!("{name} is back, empty, and is used again")
                });
            } else {
                self.shared.books().vacant_servers.push(server);
            }
        }
    }

    /// Searches for blocks with too few pieces, and begins to make some again. Returns how long to rest.
    fn make_again(&mut self) -> Duration {
        let now_ns = self.shared.now_ns();
        let shared = Arc::clone(&self.shared);
        let mut books = shared.books();
        self.begin_search(&mut books);
        if self.cursor.is_none() {
            books.pacer.works(false);
            return LOOK_EVERY;
        }
        let next_ns = books.pacer.next_ns();
        if next_ns > now_ns {
            return Duration::from_nanos(next_ns - now_ns).min(LOOK_EVERY);
        }
        let (holders, missing) = match self.find(&mut books, now_ns) {
            Found::Blocks(holders, missing) => (holders, missing),
            Found::Later(pause) => return pause,
            Found::End => {
                drop(books);
                self.search_ended();
                return Duration::ZERO;
            }
        };
        books.pacer.works(true);
        let blocks = books.begin_again(&self.found);
        drop(books);
        let locs: Vec<Loc> = blocks.iter().map(|&(block, _)| Loc(block)).collect();
        let Some(buf) = self.buf.as_ref().filter(|_| !locs.is_empty()) else {
            return LOOK_EVERY;
        };
        let lent = hiroma_sys::vm::lend(buf.addr(), locs.len() * shared.sector_bytes);
        self.batch = Some(Batch { blocks, holders, missing });
        self.channel.start_read(READ, &locs, lent);
        Duration::ZERO
    }

    /// Begins a search, where there is a reason for one. A loss begins it anew; writes that were
    /// completed with fewer pieces wait for the end of the last one, and where nobody had room, for
    /// the next one that is due anyway.
    fn begin_search(&mut self, books: &mut Books) {
        let elapsed = self.searched.elapsed();
        let is_wanted = books.has_short_writes && !self.is_stuck || elapsed > SEARCH_EVERY;
        // Blocks that cannot be read keep nobody waiting.
        let is_over = self.cursor.is_none() || self.cursor == Some(END) && !self.retries.is_empty();
        if std::mem::take(&mut books.rebuilding) || is_over && is_wanted {
            self.searched = Instant::now();
            (self.is_stuck, books.has_short_writes) = (false, false);
            (self.cursor, self.left_max) = (Some(0), self.shared.scheme.needed());
        }
    }

    /// Goes on with the search, past blocks of which nobody takes the missing pieces now.
    fn find(&mut self, books: &mut Books, now_ns: u64) -> Found {
        let pieces = self.shared.scheme.pieces();
        let good = books.pool.good();
        let sources = Members(good.0 | books.pool.draining().0);
        let most = self.buf.as_ref().map_or(1, FrameBuf::len) / self.shared.sector_bytes;
        let mut skipped = 0;
        while let Some(cursor) = self.cursor {
            self.found.clear();
            let (left_max, found) = (self.left_max, &mut self.found);
            let skip = |block| books.is_unreadable(block);
            let next = books.table.missing(cursor, (good, sources), left_max, most, skip, found);
            self.cursor = next;
            if self.found.is_empty() && next.is_none() {
                if self.left_max + 1 < pieces {
                    (self.cursor, self.left_max) = (Some(0), self.left_max + 1);
                } else {
                    self.find_unreadable(books, (good, sources));
                }
            }
            let Some(&first) = self.found.first() else { break };
            // What was found last is made before the search ends.
            self.cursor = self.cursor.or(Some(END));
            let left = books.table.row(first).at(good);
            let holders = left.members();
            if books.pool.target(now_ns, 0, holders).is_some() {
                return Found::Blocks(holders, Indices::first(pieces).without(left.indices()));
            }
            self.is_stuck = true;
            skipped += self.found.len();
            if skipped > SKIPPED_MAX {
                return Found::Later(LOOK_EVERY);
            }
        }
        if self.cursor.is_none() { Found::End } else { Found::Later(Duration::ZERO) }
    }

    /// Finds one of the blocks that could not be read: each is tried now and then, when everything
    /// else that can be made again was.
    fn find_unreadable(&mut self, books: &mut Books, (good, sources): (Members, Members)) {
        if self.retries.is_empty() && self.retried.elapsed() > SEARCH_EVERY {
            self.retried = Instant::now();
            self.retries.extend(books.unreadable.keys());
        }
        let pieces = self.shared.scheme.pieces();
        while let Some(block) = self.retries.pop() {
            if books.is_unreadable(block) && books.table.is_missing(block, (good, sources), pieces)
            {
                self.found.push(block);
                return;
            }
            // It was freed, or became readable; what is only away is found again.
            books.unreadable.remove(&block);
        }
    }

    fn search_ended(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut books = shared.books();
        let is_progress = std::mem::take(&mut self.is_progress);
        let is_unreadable = !books.unreadable.is_empty();
        self.stuck_since = match (self.is_stuck || is_unreadable) && !is_progress {
            true => self.stuck_since.or(Some(Instant::now())),
            false => None,
        };
        let has_made = self.made_bytes > 0 || self.is_told_of_few || books.is_told_short;
        books.overflows = false;
        books.dismiss_needless(shared.now_ns());
        if !has_made && books.short == 0 && !self.is_stuck {
            return;
        }
        let census = books.count_short();
        // A member that is only silent may be back in a moment.
        let are_sure = books.pool.takers() == books.pool.good();
        books.overflows =
            shared.is_followed && self.is_stuck && !is_progress && are_sure && census.short() > 0;
        if census.gone() + census.short() > 0 {
            // Some were being written when the search came by.
            books.rebuilding |= is_progress;
            // Otherwise too few servers are there, which was said of each that was lost.
            let are_full = books.pool.takers().len() >= shared.scheme.pieces();
            drop(books);
            let is_long = self.stuck_since.is_some_and(|since| since.elapsed() >= FEW_FOR);
            if is_long && are_full && census.short() > 0 && !self.is_told_of_few {
                self.is_told_of_few = true;
                let short = Bytes(census.short() * shared.sector_bytes as u64);
                let why = match shared.is_followed {
                    _ if is_unreadable => Few::Unreadable,
                    true => Few::Moved,
                    false => Few::NoRoom,
                };
                let few = words::few(shared.scheme, &shared.name, short, census.least(), why);
                (shared.log)(&few);
            }
            return;
        }
        books.is_told_short = false;
        drop(books);
        if has_made {
            (self.made_bytes, self.is_told_of_few) = (0, false);
            (shared.log)(&words::whole(shared.scheme, &shared.name));
        }
    }

    /// A step of a batch has ended.
    fn came(&mut self, done: Completion) {
        let Some(batch) = self.batch.take() else { return };
        let bytes = batch.blocks.len() * self.shared.sector_bytes;
        if done.token == READ && done.result.is_ok() {
            {
                let mut books = self.shared.books();
                batch.blocks.iter().for_each(|(block, _)| _ = books.unreadable.remove(block));
            }
            let blocks = batch.blocks.clone();
            let lent = hiroma_sys::vm::lend(done.buf.addr(), bytes);
            let begun = self.channel.write_again(WRITE, lent, blocks, batch.holders, batch.missing);
            if begun.is_ok() {
                self.batch = Some(batch);
                return;
            }
            self.is_stuck = true;
        }
        let now_ns = self.shared.now_ns();
        let mut books = self.shared.books();
        if done.token == READ && done.result.is_err() {
            // Those that cannot be read are known now. The others are found again.
            if !batch.blocks.iter().any(|&(block, _)| books.is_unreadable(block)) {
                books.unreadable.extend(batch.blocks.iter().copied());
            }
            if batch.blocks.len() > 1 {
                self.cursor = batch.blocks.first().map(|&(block, _)| block);
            }
        }
        books.ended_again(&batch.blocks);
        if done.token == WRITE && done.result.is_ok() {
            self.made_bytes += bytes as u64;
            books.recopied_bytes += bytes as u64;
            self.is_progress = true;
        }
        books.pacer.spend(now_ns, bytes as u64);
    }
}

/// Where a search is that has found everything.
const END: u32 = u32::MAX;
const READ: Token = Token(0);
const WRITE: Token = Token(1);
