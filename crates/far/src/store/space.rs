//! Allocation of the sectors of a flat address space: pure bookkeeping for stores that have one (a
//! file, a server's memory).
//!
//! The space is managed in chunks of 2 MiB, each with as many whole sectors as it has room for, so
//! that related sectors are adjacent, and free space can be given back in large pieces. Where the
//! size of sectors is a power of two, sector `n` is at byte `n * sector_bytes`.
//! - a request for a whole chunk gets a free chunk, contiguous, while there is one;
//! - smaller requests fill the chunk that was used last, then the lowest one that has room, then a
//!   new one; addresses stay low and chunks at the end drain;
//! - a chunk that becomes empty is reported, so that a file can punch a hole and a server can
//!   release memory.
//!
//! Forks: [`Space::freeze`] protects every chunk with content from being written to or reused until
//! [`Space::thaw`]; sectors that are freed in it meanwhile are free only then. In the child,
//! [`Space::seal`] excludes all of these chunks from allocation until they are empty (they are the
//! parent's; new content goes elsewhere).

use std::collections::BTreeSet;

use hiroma_units::{EXTENT, Loc};

use super::bit_set::BitSet;

/// Bytes in a chunk. A sector is never larger.
pub const CHUNK_BYTES: usize = EXTENT;
/// Maximum number of sectors in one space: the range of a [`Loc`].
const SECTORS_MAX: u64 = 1 << Loc::STORE_BITS;

/// Number of a chunk; it starts at byte `n * CHUNK_BYTES`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChunkNo(pub u32);

/// The space has fewer free sectors than were requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// One fork's freeze of the chunks of that moment; to be passed to [`Space::thaw`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreezeId(u64);

/// A run of adjacent sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first sector.
    pub first: Loc,
    /// Number of sectors.
    pub sectors: usize,
}

/// Splits a list of sectors into the longest contiguous runs, in the order of the list, each at
/// most `sectors_max` long.
pub fn runs(locs: &[Loc], sectors_max: usize) -> impl Iterator<Item = Run> + '_ {
    let mut rest = locs;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let follows =
            |(index, loc): (usize, &Loc)| loc.0 as u64 == u64::from(first.0) + index as u64;
        let sectors =
            rest.iter().enumerate().take(sectors_max).take_while(|&pair| follows(pair)).count();
        rest = &rest[sectors..];
        Some(Run { first, sectors })
    })
}

/// Smallest sector: a piece of one that was cut.
const SECTOR_MIN: usize = 128;

/// The chunk that contains `loc`, for sectors of `sector_bytes`.
pub fn chunk_of(loc: Loc, sector_bytes: usize) -> ChunkNo {
    ChunkNo(loc.0 / (CHUNK_BYTES / sector_bytes) as u32)
}

/// Where `loc` begins in its chunk.
pub fn offset_in_chunk(loc: Loc, sector_bytes: usize) -> usize {
    loc.0 as usize % (CHUNK_BYTES / sector_bytes) * sector_bytes
}

#[derive(Clone, Default)]
struct Chunk {
    /// Sectors in use.
    live: u16,
    /// Sectors that were freed while the chunk was frozen.
    held: u16,
    /// Number of forks that freeze it.
    frozen: u16,
    /// It existed before this process was forked.
    sealed: bool,
    /// It is empty, but its owner has not finished giving it back.
    withheld: bool,
    /// It gets no more sectors until it is empty.
    barred: bool,
}

/// The allocator. See the module documentation.
#[derive(Clone)]
pub struct Space {
    sector_bytes: usize,
    per_chunk: usize,
    words_per_chunk: usize,
    limit_sectors: u64,
    chunks: Vec<Chunk>,
    /// One bit for each sector of `chunks`: in use, or beyond the limit.
    used: Vec<u64>,
    /// Chunks that are empty and of full length.
    empty: BitSet,
    /// Chunks with room that are not in `empty`.
    partial: BitSet,
    /// The chunk that served the last small request.
    current: Option<usize>,
    live: u64,
    held: u64,
    occupied_chunks: usize,
    freezes: Vec<(FreezeId, BitSet)>,
    next_freeze: u64,
}

impl Space {
    /// An empty space of at most `limit_bytes` (rounded down to whole sectors).
    pub fn new(sector_bytes: usize, limit_bytes: u64) -> Space {
        assert!(
            (SECTOR_MIN..=CHUNK_BYTES).contains(&sector_bytes),
            "not a sector size: {sector_bytes}"
        );
        let per_chunk = CHUNK_BYTES / sector_bytes;
        Space {
            sector_bytes,
            per_chunk,
            words_per_chunk: per_chunk.div_ceil(64),
            limit_sectors: (limit_bytes / sector_bytes as u64).min(SECTORS_MAX),
            chunks: Vec::new(),
            used: Vec::new(),
            empty: BitSet::default(),
            partial: BitSet::default(),
            current: None,
            live: 0,
            held: 0,
            occupied_chunks: 0,
            freezes: Vec::new(),
            next_freeze: 0,
        }
    }

    /// Allocates one sector for each entry of `out`. All or nothing.
    pub fn allocate(&mut self, out: &mut [Loc]) -> Result<(), NoRoom> {
        self.allocate_preferring(out, &BTreeSet::new())
    }

    /// Like `allocate`; of the empty chunks, those in `preferred` are used first.
    pub fn allocate_preferring(
        &mut self,
        out: &mut [Loc],
        preferred: &BTreeSet<u32>,
    ) -> Result<(), NoRoom> {
        let mut done = 0;
        while done < out.len() {
            let end = out.len().min(done + self.per_chunk);
            if self.allocate_piece(&mut out[done..end], preferred).is_err() {
                self.free(&out[..done], &mut Vec::new());
                return Err(NoRoom);
            }
            done = end;
        }
        Ok(())
    }

    /// Allocates sectors in the gaps of chunks for which `is_usable` holds, and in those of them
    /// that are empty. All or nothing.
    pub fn allocate_among(
        &mut self,
        out: &mut [Loc],
        is_usable: impl Fn(ChunkNo) -> bool,
    ) -> Result<(), NoRoom> {
        // Whole chunks serve large requests better, so they are the last ones that are broken up.
        let open = self.partial.iter().chain(self.empty.iter());
        let mut missing = out.len() as u64;
        let mut chosen = Vec::new();
        for index in open.filter(|&index| is_usable(ChunkNo(index as u32))) {
            if missing == 0 {
                break;
            }
            let room = self.chunk_len(index) - usize::from(self.chunks[index].live);
            missing = missing.saturating_sub(room as u64);
            chosen.push(index);
        }
        if missing > 0 {
            return Err(NoRoom);
        }
        let mut done = 0;
        for index in chosen {
            done += self.take(index, &mut out[done..]);
        }
        Ok(())
    }

    /// An empty chunk of full length that exists.
    fn an_empty_one(&self, preferred: &BTreeSet<u32>) -> Option<usize> {
        let mut preferred = preferred.iter().map(|&chunk| chunk as usize);
        preferred.find(|&chunk| self.empty.contains(chunk)).or_else(|| self.empty.first())
    }

    /// Allocates at most a chunk. All or nothing.
    fn allocate_piece(&mut self, out: &mut [Loc], preferred: &BTreeSet<u32>) -> Result<(), NoRoom> {
        if out.len() == self.per_chunk {
            let empty = self.an_empty_one(preferred);
            if let Some(chunk) = empty.or_else(|| self.grow(self.per_chunk)) {
                self.take(chunk, out);
                return Ok(());
            }
        }
        let mut done = 0;
        while done < out.len() {
            let current = self.current.filter(|&chunk| self.partial.contains(chunk));
            let chunk = current
                .or_else(|| self.partial.first())
                .or_else(|| self.an_empty_one(preferred))
                .or_else(|| self.grow(1));
            let Some(chunk) = chunk else {
                self.free(&out[..done], &mut Vec::new());
                return Err(NoRoom);
            };
            done += self.take(chunk, &mut out[done..]);
            self.current = Some(chunk);
        }
        Ok(())
    }

    /// Frees sectors. Chunks that become empty are appended to `released`; they may be allocated
    /// again from then on. A caller that gives their memory back outside its lock calls
    /// [`Space::withhold`] before it releases the lock.
    pub fn free(&mut self, locs: &[Loc], released: &mut Vec<ChunkNo>) {
        for loc in locs {
            let (index, bit) = (loc.0 as usize / self.per_chunk, loc.0 as usize % self.per_chunk);
            let word = &mut self.used[index * self.words_per_chunk + bit / 64];
            assert!(
                *word >> (bit % 64) & 1 == 1,
                "sector {} was freed although it is not in use",
                loc.0
            );
            *word &= !(1 << (bit % 64));
            let chunk = &mut self.chunks[index];
            chunk.live -= 1;
            self.live -= 1;
            if chunk.frozen > 0 {
                chunk.held += 1;
                self.held += 1;
                continue;
            }
            self.settle(index, released);
        }
    }

    /// Excludes an empty chunk from allocation until [`Space::reopen`]. Returns false if it is not
    /// empty.
    pub fn withhold(&mut self, chunk: ChunkNo) -> bool {
        let index = chunk.0 as usize;
        if !self.chunks.get(index).is_some_and(|chunk| chunk.live == 0 && chunk.frozen == 0) {
            return false;
        }
        self.chunks[index].withheld = true;
        self.classify(index);
        true
    }

    /// Undoes [`Space::withhold`].
    pub fn reopen(&mut self, chunk: ChunkNo) {
        self.chunks[chunk.0 as usize].withheld = false;
        self.classify(chunk.0 as usize);
    }

    /// Excludes a chunk with content from allocation until it is empty, or not any more.
    pub fn bar(&mut self, chunk: ChunkNo, is_barred: bool) {
        let index = chunk.0 as usize;
        self.chunks[index].barred = is_barred && self.chunks[index].live > 0;
        self.classify(index);
    }

    /// Protects every chunk with content until [`Space::thaw`].
    pub fn freeze(&mut self) -> FreezeId {
        let id = FreezeId(self.next_freeze);
        self.next_freeze += 1;
        let mut kept = BitSet::default();
        for index in 0..self.chunks.len() {
            let chunk = &mut self.chunks[index];
            if chunk.live > 0 || chunk.frozen > 0 {
                chunk.frozen += 1;
                kept.insert(index);
                self.classify(index);
            }
        }
        self.freezes.push((id, kept));
        id
    }

    /// Ends a freeze. Chunks that are empty now are appended to `released`. A freeze from before a
    /// [`Space::seal`] is ignored.
    pub fn thaw(&mut self, id: FreezeId, released: &mut Vec<ChunkNo>) {
        let Some(position) = self.freezes.iter().position(|(known, _)| *known == id) else {
            return;
        };
        let (_, kept) = self.freezes.swap_remove(position);
        for index in kept.iter() {
            let chunk = &mut self.chunks[index];
            chunk.frozen -= 1;
            if chunk.frozen == 0 {
                self.held -= u64::from(std::mem::take(&mut chunk.held));
                self.settle(index, released);
            }
        }
    }

    /// To be called in the child of a fork: the existing content is the parent's. It can be read
    /// and freed. New sectors are allocated from other chunks, for which the limit is raised. The
    /// parent's freezes are forgotten.
    pub fn seal(&mut self) {
        self.seal_within(u64::MAX);
    }

    /// Like `seal`; nothing new lies beyond `most_bytes`.
    pub fn seal_within(&mut self, most_bytes: u64) {
        self.freezes.clear();
        self.held = 0;
        self.current = None;
        let mut sealed_chunks = 0;
        for index in 0..self.chunks.len() {
            let end = index * CHUNK_BYTES + self.chunk_len(index) * self.sector_bytes;
            let chunk = &mut self.chunks[index];
            let was_kept = chunk.frozen > 0;
            (chunk.frozen, chunk.held, chunk.withheld) = (0, 0, end as u64 > most_bytes);
            chunk.barred = false;
            if chunk.live > 0 {
                chunk.sealed = true;
                sealed_chunks += 1;
            } else if was_kept {
                chunk.sealed = false;
                self.occupied_chunks -= 1;
            }
            self.classify(index);
        }
        let wanted_sectors = self.limit_sectors + sealed_chunks * self.per_chunk as u64;
        self.raise_limit((wanted_sectors * self.sector_bytes as u64).min(most_bytes));
        // Chunks that exist have the length that they had.
        let most_sectors = most_bytes / self.sector_bytes as u64;
        let existing_sectors = (self.chunks.len() * self.per_chunk) as u64;
        self.limit_sectors = self.limit_sectors.min(most_sectors.max(existing_sectors));
    }

    /// Lets the space grow to `limit_bytes`. It never shrinks.
    pub fn raise_limit(&mut self, limit_bytes: u64) {
        let limit_sectors = (limit_bytes / self.sector_bytes as u64).min(SECTORS_MAX);
        if limit_sectors <= self.limit_sectors {
            return;
        }
        let last = self.chunks.len().wrapping_sub(1);
        let old_len = if self.chunks.is_empty() { 0 } else { self.chunk_len(last) };
        self.limit_sectors = limit_sectors;
        if !self.chunks.is_empty() {
            for bit in old_len..self.chunk_len(last) {
                self.used[last * self.words_per_chunk + bit / 64] &= !(1 << (bit % 64));
            }
            self.classify(last);
        }
    }

    /// Bytes in a sector.
    pub fn sector_bytes(&self) -> usize {
        self.sector_bytes
    }

    /// Sectors in a chunk.
    pub fn sectors_per_chunk(&self) -> usize {
        self.per_chunk
    }

    /// Maximum of bytes in use.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_sectors * self.sector_bytes as u64
    }

    /// Bytes in sectors that are in use.
    pub fn live_bytes(&self) -> u64 {
        self.live * self.sector_bytes as u64
    }

    /// Like `live_bytes`, including the sectors that were freed but are kept for a fork.
    pub fn kept_bytes(&self) -> u64 {
        (self.live + self.held) * self.sector_bytes as u64
    }

    /// Bytes of the chunks with content: what a store that gives back whole chunks occupies.
    pub fn occupied_bytes(&self) -> u64 {
        (self.occupied_chunks * CHUNK_BYTES) as u64
    }

    /// Bytes of the tables.
    pub fn metadata_bytes(&self) -> u64 {
        let freezes: usize = self.freezes.iter().map(|(_, set)| set.bytes()).sum();
        let tables = self.chunks.capacity() * size_of::<Chunk>() + self.used.capacity() * 8;
        (tables + self.empty.bytes() + self.partial.bytes() + freezes) as u64
    }

    /// Number of sectors of chunk `index` that are below the limit.
    fn chunk_len(&self, index: usize) -> usize {
        (self.limit_sectors - (index * self.per_chunk) as u64).min(self.per_chunk as u64) as usize
    }

    /// Adds one more chunk, if it has at least `sectors_min` sectors.
    fn grow(&mut self, sectors_min: usize) -> Option<usize> {
        let index = self.chunks.len();
        if ((index * self.per_chunk) as u64) >= self.limit_sectors
            || self.chunk_len(index) < sectors_min
        {
            return None;
        }
        self.chunks.push(Chunk::default());
        self.used.resize(self.chunks.len() * self.words_per_chunk, 0);
        for bit in self.chunk_len(index)..self.per_chunk {
            self.used[index * self.words_per_chunk + bit / 64] |= 1 << (bit % 64);
        }
        self.classify(index);
        Some(index)
    }

    /// Allocates free sectors of chunk `index`, in ascending order, until `out` or the chunk is
    /// full. Returns how many.
    fn take(&mut self, index: usize, out: &mut [Loc]) -> usize {
        let mut done = 0;
        let words = &mut self.used[index * self.words_per_chunk..][..self.words_per_chunk];
        for (number, word) in words.iter_mut().enumerate() {
            while done < out.len() && *word != u64::MAX {
                let bit = number * 64 + word.trailing_ones() as usize;
                if bit >= self.per_chunk {
                    break;
                }
                *word |= 1 << (bit % 64);
                out[done] = Loc((index * self.per_chunk + bit) as u32);
                done += 1;
            }
        }
        let chunk = &mut self.chunks[index];
        self.occupied_chunks += usize::from(chunk.live == 0);
        chunk.live += done as u16;
        self.live += done as u64;
        self.classify(index);
        done
    }

    /// After frees in a chunk that is not frozen: reports it if it is empty, and updates the free
    /// sets.
    fn settle(&mut self, index: usize, released: &mut Vec<ChunkNo>) {
        let chunk = &mut self.chunks[index];
        if chunk.live == 0 {
            (chunk.sealed, chunk.barred) = (false, false);
            self.occupied_chunks -= 1;
            released.push(ChunkNo(index as u32));
        }
        self.classify(index);
    }

    fn classify(&mut self, index: usize) {
        let len = self.chunk_len(index);
        let Chunk { live, frozen, sealed, withheld, barred, .. } = self.chunks[index];
        let open = frozen == 0 && !sealed && !withheld && !barred;
        let is_empty = open && live == 0 && len == self.per_chunk;
        self.empty.set(index, is_empty);
        self.partial.set(index, open && !is_empty && usize::from(live) < len);
    }
}

#[cfg(test)]
mod tests;
