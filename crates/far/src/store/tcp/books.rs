//! Which server has which sector, and how much room is left there.
//!
//! Every chunk of local sector space has a *home*: a chunk of one server, identified by a number
//! that is used only once. So a `Free` that is sent late, or twice, can never affect newer content.

use std::time::{Duration, Instant};

use hiroma_far_wire::{CHUNK, SPACE_SHIFT, SessionToken, SessionUsage};
use hiroma_policy::allocation::{AllocationKind, Allocator};
use hiroma_units::Loc;

use crate::store::space::{ChunkNo, FreezeId, Space, chunk_of, offset_in_chunk};

/// Maximum number of free chunks on a server that are kept for reuse.
const SPARE_CHUNKS_MAX: usize = 16;
/// More room is requested when no more than this many reserved chunks are left.
const LOW_CHUNKS: u32 = 16;
/// Number of chunks to request at a time.
pub const RESERVE_CHUNKS: u32 = 64;
/// A server that was full is retried after this time.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// Location of a chunk of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Home {
    server: u16,
    /// 0: our own session; otherwise one that we attached (an ancestor's).
    space: u16,
    chunk: u32,
}

/// What becomes of blocks in a server that is to be emptied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// Whoever uses the store makes them again elsewhere.
    Never,
    /// They are moved to other servers that have room.
    ToOthers,
    /// The same; and a store that follows takes the rest.
    Anywhere,
}

/// State of one server.
#[derive(Default)]
pub struct ServerBook {
    /// Our session there.
    pub token: Option<SessionToken>,
    /// Sessions of our ancestors there, and the spaces as which they are attached.
    pub attached: Vec<(u16, SessionToken)>,
    /// Chunks that are reserved for us and not used yet.
    reserved: u32,
    /// Chunks that were in use before, for reuse.
    spare: Vec<u32>,
    /// Chunks to give back.
    frees: Vec<u32>,
    /// Number of freed chunks that the server has not confirmed yet.
    frees_under_way: u32,
    /// Number of the next chunk that has never been used.
    next_chunk: u32,
    /// More room has been requested.
    asked: bool,
    full_since: Option<Instant>,
    usage: SessionUsage,
    /// It is being emptied: it gets nothing, and what is there is moved.
    is_left: bool,
    /// It was emptied, and does not answer any more: nothing is asked of it.
    pub is_gone: bool,
    /// Which of the server's addresses opened our session, or our ancestors': others may lead to other
    /// servers.
    pub addr: Option<usize>,
    /// How long the server keeps our session without a sign of life, if it says so.
    pub lease: Option<Duration>,
}

/// The state of all servers.
pub struct Books {
    pub space: Space,
    homes: Vec<Option<Home>>,
    pub servers: Vec<ServerBook>,
    allocator: Allocator,
    leaving: Leaving,
    /// Number of forks between the first process and this one.
    generation: u16,
}

/// A run of adjacent sectors on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub server: usize,
    pub addr: u64,
    /// Offset in the buffer.
    pub at: usize,
    pub len: usize,
}

/// Why sectors could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// All servers are full.
    Full,
    /// Room must be requested from this server first.
    Ask(usize),
}

impl Books {
    pub fn new(
        servers: usize,
        sector_bytes: usize,
        kind: AllocationKind,
        leaving: Leaving,
    ) -> Books {
        Books {
            space: Space::new(sector_bytes, u64::MAX),
            homes: Vec::new(),
            servers: std::iter::repeat_with(ServerBook::default).take(servers).collect(),
            allocator: Allocator::new(kind),
            leaving,
            generation: 0,
        }
    }

    /// Allocates one sector for each entry of `locs`. All or nothing.
    pub fn allocate(&mut self, locs: &mut [Loc]) -> Result<(), Short> {
        if self.space.allocate(locs).is_err() {
            return Err(Short::Full);
        }
        match self.house(locs) {
            Ok(()) => return Ok(()),
            Err(short) => {
                self.free(locs);
                if short != Short::Full {
                    return Err(short);
                }
            }
        }
        // There is no room for a new chunk, but the sectors may fit into the gaps of others.
        for done in 0..locs.len() {
            let sector = &mut locs[done..=done];
            if self.space.allocate(sector).is_err() || self.house(sector).is_err() {
                self.free(&locs[..=done]);
                return Err(Short::Full);
            }
        }
        Ok(())
    }

    /// Finds homes for the chunks of `locs` that have none.
    fn house(&mut self, locs: &[Loc]) -> Result<(), Short> {
        let mut last = None;
        for &loc in locs {
            let chunk = chunk_of(loc, self.space.sector_bytes());
            if last == Some(chunk) {
                continue;
            }
            last = Some(chunk);
            let index = chunk.0 as usize;
            if index >= self.homes.len() {
                self.homes.resize(index + 1, None);
            }
            if self.homes[index].is_none_or(|home| home.space != 0) {
                // A home in an ancestor's memory can only be stale: the space never fills such a
                // chunk.
                self.homes[index] = None;
                self.homes[index] = Some(self.new_home()?);
            }
        }
        Ok(())
    }

    fn new_home(&mut self) -> Result<Home, Short> {
        let room: Vec<u32> = self.servers.iter().map(ServerBook::room).collect();
        let mut allocator = self.allocator.clone();
        let server = allocator.choose(&room).ok_or(Short::Full)?;
        let chunk = self.servers[server].take_chunk().ok_or(Short::Ask(server))?;
        self.allocator = allocator;
        Ok(Home { server: server as u16, space: 0, chunk })
    }

    /// Frees sectors. Returns how many chunks are to be given back to servers as a result.
    pub fn free(&mut self, locs: &[Loc]) -> usize {
        let mut released = Vec::new();
        self.space.free(locs, &mut released);
        self.release(&released)
    }

    /// Ends a freeze. Returns how many chunks are to be given back to servers as a result.
    pub fn thaw(&mut self, freeze: FreezeId) -> usize {
        let mut released = Vec::new();
        self.space.thaw(freeze, &mut released);
        self.release(&released)
    }

    fn release(&mut self, released: &[ChunkNo]) -> usize {
        let mut given_back = 0;
        for chunk in released {
            let Some(home) = self.homes.get_mut(chunk.0 as usize).and_then(Option::take) else {
                continue;
            };
            if home.space != 0 {
                continue;
            }
            let server = &mut self.servers[usize::from(home.server)];
            server.full_since = None;
            if server.spare.len() < SPARE_CHUNKS_MAX && !server.is_draining() {
                server.spare.push(home.chunk);
            } else {
                server.frees.push(home.chunk);
                server.frees_under_way += 1;
                given_back += 1;
            }
        }
        given_back
    }

    /// Locates the sectors at `locs`, in as few pieces as possible.
    pub fn pieces(&self, locs: &[Loc], out: &mut Vec<Piece>) -> Result<(), Loc> {
        let sector = self.space.sector_bytes();
        for (index, &loc) in locs.iter().enumerate() {
            let home =
                self.homes.get(chunk_of(loc, sector).0 as usize).copied().flatten().ok_or(loc)?;
            let inner = u64::from(home.chunk) * CHUNK as u64 + offset_in_chunk(loc, sector) as u64;
            let addr = u64::from(home.space) << SPACE_SHIFT | inner;
            let server = usize::from(home.server);
            match out.last_mut() {
                Some(last)
                    if last.server == server
                        && last.addr + last.len as u64 == addr
                        && addr % CHUNK as u64 != 0 =>
                {
                    last.len += sector;
                }
                _ => out.push(Piece { server, addr, at: index * sector, len: sector }),
            }
        }
        Ok(())
    }

    /// To be called in the child of a fork: all content is the parent's, and is read through
    /// attached sessions from now on.
    pub fn become_child(&mut self) -> u16 {
        self.generation += 1;
        self.space.seal();
        for home in self.homes.iter_mut().flatten().filter(|home| home.space == 0) {
            home.space = self.generation;
        }
        for server in &mut self.servers {
            let parent = server.token.take();
            let mut attached = std::mem::take(&mut server.attached);
            attached.extend(parent.map(|token| (self.generation, token)));
            *server = ServerBook {
                attached,
                usage: server.usage,
                is_left: server.is_left,
                is_gone: server.is_gone,
                addr: server.addr,
                ..ServerBook::default()
            };
        }
        self.generation
    }

    /// Decides which servers are being emptied: those that are to be, if there is room elsewhere. To
    /// be called when a server has said how it is.
    pub fn look_at_drains(&mut self) {
        let has_room = |book: &ServerBook| {
            let room = u64::from(book.reserved) + book.spare.len() as u64 + book.usage.free_chunks;
            !book.is_draining() && !book.is_gone && room > 0
        };
        let is_room = match self.leaving {
            Leaving::Never => false,
            Leaving::ToOthers => self.servers.iter().any(has_room),
            Leaving::Anywhere => true,
        };
        for server in 0..self.servers.len() {
            let book = &mut self.servers[server];
            let is_left = book.is_draining() && is_room;
            if std::mem::replace(&mut book.is_left, is_left) == is_left {
                continue;
            }
            for (index, home) in self.homes.iter().enumerate() {
                if home.is_some_and(|at| at.space == 0 && usize::from(at.server) == server) {
                    self.space.bar(ChunkNo(index as u32), is_left);
                }
            }
        }
    }

    /// Whether a server that is being emptied has anything.
    pub fn are_some_to_leave(&self) -> bool {
        let is_left = |server: usize| self.servers[server].is_left;
        (0..self.servers.len()).any(|server| is_left(server) && self.holds_something(server))
    }

    /// Whether a sector is in a server that is being emptied.
    pub fn is_to_leave(&self, loc: Loc) -> bool {
        let chunk = chunk_of(loc, self.space.sector_bytes());
        let home = self.homes.get(chunk.0 as usize).copied().flatten();
        home.is_some_and(|home| self.servers[usize::from(home.server)].is_left)
    }

    /// A server that was emptied does not answer any more: it is done without from now on.
    pub fn is_done_without(&mut self, server: usize) -> bool {
        let is_so = self.servers[server].is_left && !self.holds_something(server);
        self.servers[server].is_gone |= is_so;
        is_so
    }

    /// Whether a server has content of ours or of an ancestor.
    pub fn holds_something(&self, server: usize) -> bool {
        self.homes.iter().flatten().any(|home| usize::from(home.server) == server)
    }

    /// Maximum of bytes that could be stored, as far as the servers have reported.
    pub fn capacity_bytes(&self) -> u64 {
        let chunks = |server: &ServerBook| {
            u64::from(server.reserved)
                + server.spare.len() as u64
                + u64::from(server.frees_under_way)
                + server.usage.free_chunks
        };
        self.space.occupied_bytes() + self.servers.iter().map(chunks).sum::<u64>() * CHUNK as u64
    }

    /// Bytes of the tables.
    pub fn metadata_bytes(&self) -> u64 {
        self.space.metadata_bytes() + (self.homes.capacity() * size_of::<Option<Home>>()) as u64
    }
}

impl ServerBook {
    /// Number of available chunks, as far as known; 1 if the server has to be asked.
    fn room(&self) -> u32 {
        if self.is_left || self.is_gone {
            return 0;
        }
        let at_hand = self.reserved + self.spare.len() as u32;
        let full = self.full_since.is_some_and(|since| since.elapsed() < FULL_PAUSE);
        if at_hand > 0 { at_hand } else { u32::from(!full) }
    }

    fn take_chunk(&mut self) -> Option<u32> {
        if let Some(chunk) = self.spare.pop() {
            return Some(chunk);
        }
        self.reserved = self.reserved.checked_sub(1)?;
        self.next_chunk = self
            .next_chunk
            .checked_add(1)
            .expect("fewer than 2^32 chunks are used in a session's life");
        Some(self.next_chunk - 1)
    }

    /// Whether it is time to request more room, if that has not been done.
    pub fn should_ask(&mut self) -> bool {
        if self.is_left || self.is_gone {
            return false;
        }
        let low = self.reserved <= LOW_CHUNKS && self.spare.len() < SPARE_CHUNKS_MAX / 2;
        let ask =
            low && !self.asked && self.full_since.is_none_or(|since| since.elapsed() >= FULL_PAUSE);
        self.asked |= ask;
        ask
    }

    /// Whether a request for more room is to be sent: one is not under way yet.
    pub fn ask_now(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// Whether a request for more room is under way.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// The server has reserved `chunks` more.
    pub fn granted(&mut self, chunks: u32, usage: SessionUsage) {
        self.asked = false;
        self.reserved += chunks;
        self.usage = usage;
        self.full_since = (chunks == 0).then(Instant::now);
    }

    /// The request for more room will not be answered.
    pub fn not_granted(&mut self) {
        self.asked = false;
    }

    /// The server is to be emptied.
    pub fn is_draining(&self) -> bool {
        self.usage.is_draining
    }

    /// Our tenant may have no more there.
    pub fn is_at_quota(&self) -> bool {
        self.usage.is_at_quota
    }

    /// Gives back what is kept for later, if the server is to be emptied. Returns how many chunks are
    /// to be given back as a result.
    pub fn give_up_spares(&mut self) -> usize {
        if !self.is_draining() {
            return 0;
        }
        self.frees_under_way += self.spare.len() as u32;
        self.frees.extend_from_slice(&self.spare);
        self.spare.drain(..).len()
    }

    /// The server has reported how full it is.
    pub fn told(&mut self, usage: SessionUsage) {
        self.usage = usage;
    }

    /// Takes the chunks to give back now.
    pub fn take_frees(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.frees)
    }

    /// The server has confirmed a freed chunk.
    pub fn freed(&mut self) {
        self.frees_under_way -= 1;
        self.full_since = None;
    }

    /// Whether the server will have freed chunks soon.
    pub fn frees_under_way(&self) -> bool {
        self.frees_under_way > 0
    }
}
