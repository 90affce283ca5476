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
        let mut done = 0;
        while done < out.len() {
            let end = out.len().min(done + self.per_chunk);
            if self.allocate_piece(&mut out[done..end]).is_err() {
                self.free(&out[..done], &mut Vec::new());
                return Err(NoRoom);
            }
            done = end;
        }
        Ok(())
    }

    /// Allocates at most a chunk. All or nothing.
    fn allocate_piece(&mut self, out: &mut [Loc]) -> Result<(), NoRoom> {
        if out.len() == self.per_chunk {
            if let Some(chunk) = self.empty.first().or_else(|| self.grow(self.per_chunk)) {
                self.take(chunk, out);
                return Ok(());
            }
        }
        let mut done = 0;
        while done < out.len() {
            let current = self.current.filter(|&chunk| self.partial.contains(chunk));
            let chunk = current
                .or_else(|| self.partial.first())
                .or_else(|| self.empty.first())
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
        self.freezes.clear();
        self.held = 0;
        self.current = None;
        let mut sealed_chunks = 0;
        for index in 0..self.chunks.len() {
            let chunk = &mut self.chunks[index];
            let was_kept = chunk.frozen > 0;
            (chunk.frozen, chunk.held, chunk.withheld) = (0, 0, false);
            if chunk.live > 0 {
                chunk.sealed = true;
                sealed_chunks += 1;
            } else if was_kept {
                chunk.sealed = false;
                self.occupied_chunks -= 1;
            }
            self.classify(index);
        }
        self.raise_limit(
            (self.limit_sectors + sealed_chunks * self.per_chunk as u64) * self.sector_bytes as u64,
        );
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
            chunk.sealed = false;
            self.occupied_chunks -= 1;
            released.push(ChunkNo(index as u32));
        }
        self.classify(index);
    }

    fn classify(&mut self, index: usize) {
        let len = self.chunk_len(index);
        let Chunk { live, frozen, sealed, withheld, .. } = self.chunks[index];
        let open = frozen == 0 && !sealed && !withheld;
        let is_empty = open && live == 0 && len == self.per_chunk;
        self.empty.set(index, is_empty);
        self.partial.set(index, open && !is_empty && usize::from(live) < len);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn take(space: &mut Space, sectors: usize) -> Option<Vec<Loc>> {
        let mut locs = vec![Loc(u32::MAX); sectors];
        space.allocate(&mut locs).ok().map(|()| locs)
    }

    #[test]
    fn whole_chunk_is_aligned_after_small_requests() {
        let mut space = Space::new(8192, 64 << 20);
        take(&mut space, 3).unwrap();
        let locs = take(&mut space, 256).unwrap();
        assert_eq!(
            runs(&locs, usize::MAX).collect::<Vec<_>>(),
            [Run { first: Loc(256), sectors: 256 }]
        );
        assert_eq!(take(&mut space, 2).unwrap(), [Loc(3), Loc(4)]);
    }

    #[test]
    fn sectors_of_any_size_lie_in_one_chunk() {
        let mut space = Space::new(1376, 64 << 20);
        let locs = take(&mut space, 3000).unwrap();
        for loc in &locs {
            assert!(offset_in_chunk(*loc, 1376) + 1376 <= CHUNK_BYTES);
        }
        let chunks: BTreeSet<u32> = locs.iter().map(|&loc| chunk_of(loc, 1376).0).collect();
        assert_eq!(chunks.into_iter().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(
            (chunk_of(Loc(1523), 1376), chunk_of(Loc(1524), 1376)),
            (ChunkNo(0), ChunkNo(1))
        );
        assert_eq!(offset_in_chunk(Loc(1525), 1376), 1376);
    }

    #[test]
    fn emptied_chunk_is_reported_once_and_reused() {
        let mut space = Space::new(1 << 20, 4 << 20);
        let (first, second) = (take(&mut space, 2).unwrap(), take(&mut space, 2).unwrap());
        assert_eq!(take(&mut space, 1), None);
        let mut released = Vec::new();
        space.free(&first, &mut released);
        assert_eq!(released, [ChunkNo(0)]);
        assert_eq!(space.occupied_bytes(), 2 << 20);
        assert_eq!(take(&mut space, 2).unwrap(), first);
        space.free(&second[..1], &mut released);
        assert_eq!(released.len(), 1);
    }

    #[test]
    fn a_withheld_chunk_is_not_handed_out() {
        let mut space = Space::new(1 << 20, 4 << 20);
        let locs = take(&mut space, 4).unwrap();
        assert!(!space.withhold(ChunkNo(1)));
        space.free(&locs, &mut Vec::new());
        assert!(space.withhold(ChunkNo(0)));
        assert_eq!((take(&mut space, 2).unwrap()[0], take(&mut space, 1)), (Loc(2), None));
        space.reopen(ChunkNo(0));
        assert_eq!(take(&mut space, 2).unwrap()[0], Loc(0));
    }

    #[test]
    fn a_request_that_does_not_fit_takes_nothing() {
        let mut space = Space::new(4096, (2 << 20) + 8 * 4096);
        assert_eq!(take(&mut space, 512 + 9), None);
        assert_eq!((space.live_bytes(), space.occupied_bytes()), (0, 0));
        assert_eq!(take(&mut space, 512 + 8).unwrap().len(), 520);
        assert_eq!(take(&mut space, 1), None);
        space.raise_limit((2 << 20) + 9 * 4096);
        assert_eq!(take(&mut space, 1).unwrap(), [Loc(520)]);
    }

    #[test]
    fn frozen_chunk_is_untouched_until_all_forks_end() {
        let mut space = Space::new(8192, 64 << 20);
        let before = take(&mut space, 2).unwrap();
        let (first, second) = (space.freeze(), space.freeze());
        let mut released = Vec::new();
        space.free(&before, &mut released);
        assert_eq!((space.live_bytes(), space.kept_bytes()), (0, 2 * 8192));
        assert!(take(&mut space, 4).unwrap().iter().all(|loc| loc.0 >= 256));
        space.thaw(first, &mut released);
        assert!(released.is_empty());
        space.thaw(second, &mut released);
        assert_eq!((released, space.kept_bytes()), (vec![ChunkNo(0)], 4 * 8192));
    }

    #[test]
    fn inherited_chunks_are_untouched_until_empty() {
        let mut space = Space::new(8192, 4 << 20);
        let before = take(&mut space, 300).unwrap();
        let freeze = space.freeze();
        space.seal();
        assert_eq!(space.limit_bytes(), 8 << 20);
        let own = take(&mut space, 200).unwrap();
        assert!(own.iter().all(|loc| loc.0 >= 512));
        let mut released = Vec::new();
        space.thaw(freeze, &mut released);
        space.free(&before[..256], &mut released);
        assert_eq!(released, [ChunkNo(0)]);
        assert!(take(&mut space, 256).is_some_and(|locs| locs[0] == Loc(0)));
    }

    #[test]
    #[should_panic(expected = "not in use")]
    fn double_free_panics() {
        let mut space = Space::new(8192, 4 << 20);
        let locs = take(&mut space, 2).unwrap();
        space.free(&[locs[0], locs[0]], &mut Vec::new());
    }

    #[derive(Clone, Debug)]
    enum Op {
        Take(usize),
        Free { from: usize, count: usize },
        Freeze,
        Thaw(usize),
        Raise(u64),
        Seal,
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            8 => prop_oneof![1usize..20, Just(64), Just(1), 1usize..150].prop_map(Op::Take),
            8 => (0usize..1000, 1usize..100).prop_map(|(from, count)| Op::Free { from, count }),
            1 => Just(Op::Freeze),
            2 => (0usize..8).prop_map(Op::Thaw),
            1 => (0u64..1000).prop_map(Op::Raise),
            1 => Just(Op::Seal),
        ];
        proptest::collection::vec(op, 1..120)
    }

    /// The naive model: which sectors are in use, and which are frozen or sealed.
    #[derive(Default)]
    struct Model {
        live: BTreeSet<u32>,
        /// Chunks of each freeze.
        freezes: BTreeMap<u64, BTreeSet<u32>>,
        sealed: BTreeSet<u32>,
    }

    impl Model {
        fn chunks_with_content(&self, per_chunk: u32) -> BTreeSet<u32> {
            let frozen = self.freezes.values().flatten().copied();
            self.live.iter().map(|sector| sector / per_chunk).chain(frozen).collect()
        }
    }

    fn sector() -> impl Strategy<Value = usize> {
        prop_oneof![4 => (12u32..22).prop_map(|shift| 1usize << shift), 1 => (8usize..4096).prop_map(|units| 16 * units)]
    }

    proptest! {
        #[test]
        fn space_matches_a_naive_map(ops in ops(), sector in sector(), limit_sectors in 1u64..400) {
            let per_chunk = (CHUNK_BYTES / sector) as u32;
            let mut space = Space::new(sector, limit_sectors * sector as u64);
            let mut model = Model::default();
            let mut ids = Vec::new();
            for op in ops {
                let before = model.chunks_with_content(per_chunk);
                let mut released = Vec::new();
                match op {
                    Op::Take(count) => match take(&mut space, count) {
                        Some(locs) => for loc in locs {
                            let chunk = loc.0 / per_chunk;
                            prop_assert!(u64::from(loc.0) < space.limit_bytes() / sector as u64);
                            prop_assert!(model.freezes.values().all(|kept| !kept.contains(&chunk)) && !model.sealed.contains(&chunk));
                            prop_assert!(model.live.insert(loc.0));
                        },
                        None => {
                            let usable = (0..(space.limit_bytes() / sector as u64) as u32).filter(|sector| {
                                let chunk = sector / per_chunk;
                                !model.live.contains(sector) && !model.sealed.contains(&chunk) && model.freezes.values().all(|kept| !kept.contains(&chunk))
                            });
                            prop_assert!(usable.count() < count, "there was room for {count}");
                        }
                    },
                    Op::Free { from, count } => {
                        let victims: Vec<Loc> = model.live.iter().copied().cycle().skip(from % model.live.len().max(1)).take(count.min(model.live.len())).map(Loc).collect();
                        victims.iter().for_each(|loc| { model.live.remove(&loc.0); });
                        space.free(&victims, &mut released);
                    }
                    Op::Freeze => {
                        model.freezes.insert(ids.len() as u64, before.clone());
                        ids.push(space.freeze());
                    }
                    Op::Thaw(index) => if let Some(&id) = ids.get(index) {
                        model.freezes.remove(&(index as u64));
                        space.thaw(id, &mut released);
                    },
                    Op::Raise(sectors) => space.raise_limit(sectors * sector as u64),
                    Op::Seal => {
                        model.freezes.clear();
                        model.sealed = model.chunks_with_content(per_chunk);
                        space.seal();
                    }
                }
                let after = model.chunks_with_content(per_chunk);
                model.sealed.retain(|chunk| after.contains(chunk));
                if !matches!(op, Op::Seal) {
                    let gone: Vec<u32> = before.difference(&after).copied().collect();
                    let mut reported: Vec<u32> = released.iter().map(|chunk| chunk.0).collect();
                    reported.sort_unstable();
                    prop_assert_eq!(reported, gone);
                }
                prop_assert_eq!(space.live_bytes(), model.live.len() as u64 * sector as u64);
                prop_assert_eq!(space.occupied_bytes(), after.len() as u64 * CHUNK_BYTES as u64);
                prop_assert!(space.kept_bytes() >= space.live_bytes() && space.kept_bytes() <= space.occupied_bytes());
            }
        }
    }
}
