//! Which key holds which sector, and which keys exist.
//!
//! A chunk of 2 MiB of sectors is two strings, whose lengths are such that little is lost to the
//! size classes of the server's allocator: a string of a power of two and its header takes 25 %
//! more than its length (measured: 26 %; two strings as here: 3 %). A string for each sector takes
//! 29 % more, is slower (writes 0.5 instead of 0.7 GB/s, reads 0.5 instead of 0.8 GB/s on
//! loopback), and has 256 times as many expiries to renew.
//!
//! The strings of a chunk are made in full length before it is used, so the server is asked for
//! room before a write starts. Each has one byte more than its sectors: a write to a string that
//! does not exist any more returns another length. A chunk's number is used only once, so what is
//! deleted late or twice never affects newer content.

use std::ops::Range;
use std::time::{Duration, Instant};

use hiroma_units::Loc;

use crate::store::space::{CHUNK_BYTES, ChunkNo, FreezeId, Space, chunk_of, runs};

/// What fits with header and marker into the size class of 1.75 MiB of the server's allocator.
const FIRST_PART_MAX: usize = (7 << 18) - 64;
/// Empty chunks that are kept for reuse.
const SPARE_MAX: usize = 16;
/// Chunks are made when no more than this many are left, that many at a time.
const LOW: usize = 4;
const MAKE: usize = 8;
/// A server that was full is asked again after this time.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// A chunk in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// Number of the prefix of its keys: the last one is our own, the others are our ancestors'.
    pub prefix: u16,
    pub number: u32,
}

/// A part of one string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub home: Home,
    pub part: u8,
    /// Offset in the string.
    pub offset: usize,
    /// Offset in the buffer.
    pub at: usize,
    pub len: usize,
}

/// Why sectors could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// There is no room, or the server has refused more.
    Full,
    /// Chunks must be made first.
    Make,
}

pub struct Books {
    pub space: Space,
    homes: Vec<Option<Home>>,
    pub prefixes: Vec<String>,
    /// Chunks that exist and are empty.
    ready: Vec<u32>,
    /// Chunks to delete.
    frees: Vec<u32>,
    /// Chunks of ours that exist, and their maximum.
    existing: usize,
    existing_max: usize,
    next_number: u32,
    full_since: Option<Instant>,
    /// Forks whose children may still read our chunks.
    forks: usize,
    /// Bytes that the server could still take, as it has said.
    pub room_bytes: u64,
}

impl Books {
    pub fn new(sector_bytes: usize, limit_bytes: u64, prefix: String) -> Books {
        Books {
            space: Space::new(sector_bytes, limit_bytes),
            homes: Vec::new(),
            prefixes: vec![prefix],
            ready: Vec::new(),
            frees: Vec::new(),
            existing: 0,
            existing_max: (limit_bytes / CHUNK_BYTES as u64).max(1).min(u64::from(u32::MAX))
                as usize,
            next_number: 0,
            full_since: None,
            forks: 0,
            room_bytes: 0,
        }
    }

    /// Where a chunk is divided into its strings.
    pub fn parts(&self) -> impl Iterator<Item = (u8, Range<usize>)> + use<> {
        let sector = self.space.sector_bytes();
        let cut = FIRST_PART_MAX / sector * sector;
        [(0, 0..cut), (1, cut..CHUNK_BYTES)].into_iter().filter(|(_, range)| !range.is_empty())
    }

    /// Allocates one sector for each entry of `locs`. All or nothing.
    pub fn allocate(&mut self, locs: &mut [Loc]) -> Result<(), Short> {
        if self.space.allocate(locs).is_ok() {
            match self.house(locs) {
                Ok(()) => return Ok(()),
                Err(short) => {
                    self.free(locs);
                    if short != Short::Full {
                        return Err(short);
                    }
                }
            }
        }
        // There is no room for a new chunk, but the sectors may fit into the gaps of others.
        for done in 0..locs.len() {
            let sector = &mut locs[done..=done];
            if self.space.allocate(sector).is_err() {
                self.free(&locs[..done]);
                return Err(Short::Full);
            }
            if let Err(short) = self.house(&locs[done..=done]) {
                self.free(&locs[..=done]);
                return Err(short);
            }
        }
        Ok(())
    }

    /// Finds homes for the chunks of `locs` that have none.
    fn house(&mut self, locs: &[Loc]) -> Result<(), Short> {
        let own = self.own();
        let mut last = None;
        for &loc in locs {
            let chunk = chunk_of(loc, self.space.sector_bytes());
            if last.replace(chunk) == Some(chunk) {
                continue;
            }
            let index = chunk.0 as usize;
            if index >= self.homes.len() {
                self.homes.resize(index + 1, None);
            }
            // A home of an ancestor can only be stale: the space never fills such a chunk.
            if self.homes[index].is_none_or(|home| home.prefix != own) {
                self.homes[index] = None;
                let Some(number) = self.ready.pop() else {
                    return Err(if self.is_full() { Short::Full } else { Short::Make });
                };
                self.homes[index] = Some(Home { prefix: own, number });
            }
        }
        Ok(())
    }

    fn own(&self) -> u16 {
        self.prefixes.len() as u16 - 1
    }

    fn is_full(&self) -> bool {
        self.existing >= self.existing_max
            || self.full_since.is_some_and(|since| since.elapsed() < FULL_PAUSE)
    }

    /// Frees sectors. Returns whether there is something to delete.
    pub fn free(&mut self, locs: &[Loc]) -> bool {
        let mut released = Vec::new();
        self.space.free(locs, &mut released);
        self.release(&released)
    }

    /// Protects what exists for a child.
    pub fn freeze(&mut self) -> FreezeId {
        self.forks += 1;
        self.space.freeze()
    }

    /// Ends a freeze. Returns whether there is something to delete.
    pub fn thaw(&mut self, freeze: FreezeId) -> bool {
        self.forks = self.forks.saturating_sub(1);
        let mut released = Vec::new();
        self.space.thaw(freeze, &mut released);
        self.release(&released)
    }

    fn release(&mut self, released: &[ChunkNo]) -> bool {
        let own = self.own();
        for chunk in released {
            match self.homes.get_mut(chunk.0 as usize).and_then(Option::take) {
                Some(home) if home.prefix == own && self.ready.len() < SPARE_MAX => {
                    self.ready.push(home.number);
                }
                Some(home) if home.prefix == own => self.frees.push(home.number),
                _ => {}
            }
        }
        !self.frees.is_empty()
    }

    /// Locates the sectors at `locs`, in as few pieces as possible.
    pub fn pieces(&self, locs: &[Loc]) -> Vec<Piece> {
        let sector = self.space.sector_bytes();
        let per_chunk = self.space.sectors_per_chunk();
        let (mut out, mut at) = (Vec::new(), 0);
        for run in runs(locs, usize::MAX) {
            let (mut first, mut left) = (run.first.0 as usize, run.sectors);
            while left > 0 {
                let sectors = left.min(per_chunk - first % per_chunk);
                let home = self.homes[first / per_chunk].expect("a sector in use has a home");
                let start = first % per_chunk * sector;
                let wanted = start..start + sectors * sector;
                for (part, range) in self.parts() {
                    let (from, to) = (wanted.start.max(range.start), wanted.end.min(range.end));
                    if from < to {
                        let (offset, len) = (from - range.start, to - from);
                        out.push(Piece { home, part, offset, at, len });
                        at += len;
                    }
                }
                (first, left) = (first + sectors, left - sectors);
            }
        }
        out
    }

    /// To be called in the child of a fork: all content is the parent's.
    pub fn become_child(&mut self, prefix: String) {
        self.space.seal();
        self.prefixes.push(prefix);
        self.ready.clear();
        self.frees.clear();
        (self.existing, self.next_number, self.forks, self.full_since) = (0, 0, 0, None);
    }

    /// The name of a string.
    pub fn key(&self, home: Home, part: u8) -> String {
        format!("{}{}.{part}", self.prefixes[usize::from(home.prefix)], home.number)
    }

    /// A chunk of ours.
    pub fn ours(&self, number: u32) -> Home {
        Home { prefix: self.own(), number }
    }

    /// Takes the chunks to delete now.
    pub fn take_frees(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.frees)
    }

    /// They could not be deleted now.
    pub fn put_back_frees(&mut self, numbers: &[u32]) {
        self.frees.extend(numbers);
    }

    /// They are deleted.
    pub fn freed(&mut self, chunks: usize) {
        self.existing -= chunks;
        self.full_since = None;
    }

    /// The numbers of chunks to make now.
    pub fn numbers_to_make(&mut self) -> Range<u32> {
        let room = self.existing_max.saturating_sub(self.existing);
        let count = if self.ready.len() > LOW || self.is_full() { 0 } else { room.min(MAKE) };
        let first = self.next_number;
        self.next_number = first.checked_add(count as u32).expect("fewer than 2^32 chunks");
        first..self.next_number
    }

    /// Some were made; fewer than asked for if the server is full.
    pub fn made(&mut self, numbers: &[u32], is_full: bool) {
        self.ready.extend(numbers);
        self.existing += numbers.len();
        self.full_since = is_full.then(Instant::now);
    }

    /// Whether there is something for the keeper to do.
    pub fn has_work(&self) -> bool {
        !self.frees.is_empty()
            || self.ready.len() <= LOW && !self.is_full() && self.existing < self.existing_max
    }

    /// All chunks that have to stay: ours, and those of our ancestors that we may read.
    pub fn kept(&self) -> Vec<Home> {
        let ready = self.ready.iter().map(|&number| self.ours(number));
        self.homes.iter().flatten().copied().chain(ready).collect()
    }

    /// What to delete when the program ends: nothing that a child may still read.
    pub fn leftovers(&mut self) -> Vec<Home> {
        let frees = std::mem::take(&mut self.frees);
        let own = self.own();
        let kept = if self.forks == 0 {
            self.kept().into_iter().filter(|home| home.prefix == own).collect()
        } else {
            let ready = std::mem::take(&mut self.ready);
            ready.iter().map(|&number| self.ours(number)).collect::<Vec<_>>()
        };
        kept.into_iter().chain(frees.iter().map(|&number| self.ours(number))).collect()
    }

    /// Whether the server has content of ours or of an ancestor.
    pub fn holds_something(&self) -> bool {
        self.homes.iter().any(Option::is_some)
    }

    /// Maximum of bytes that could be stored, as far as known.
    pub fn capacity_bytes(&self) -> u64 {
        let made = (self.ready.len() * CHUNK_BYTES) as u64;
        let most = self.space.occupied_bytes() + made + self.room_bytes;
        most.min(self.space.limit_bytes()).max(self.space.occupied_bytes())
    }

    /// Bytes of the tables.
    pub fn metadata_bytes(&self) -> u64 {
        self.space.metadata_bytes() + (self.homes.capacity() * size_of::<Option<Home>>()) as u64
    }
}
