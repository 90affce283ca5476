//! The store `compressed`: sectors in this machine's memory, compressed with LZ4, or with Zstandard
//! where room is scarce.
//!
//! A sector of up to 16 KiB is one object; a larger one is stored as pieces of 16 KiB and an object
//! that lists them. An object as large as its piece contains it uncompressed, because it compresses
//! badly. A smaller one contains the compressed length in two bytes, and then the compressed bytes.
//!
//! Compression and decompression run in the calling thread, outside every lock, so threads that
//! fetch never wait for one that evicts. The memory is private: after a fork, parent and child each
//! have all of it, and nothing needs to be done.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hiroma_policy::sharing;
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::host::memory;
use hiroma_units::{Bytes, Loc};

use super::packer::{HEADER, IS_ZSTD, Packer};
use super::slab::{OBJECT_BYTES_MAX, Slabs, SlabsFull};
use super::{
    Balance, Channel, Completion, ForkGuard, Purpose, Store, StoreError, StoreUsage, Token,
};

const NAME: &str = "compressed";
/// A store within the local limit accepts content that compresses to this many sixteenths: the
/// program makes better use of the rest of the room.
const SIXTEENTHS_MAX: usize = 12;
/// A program that has less than this for its working set does nothing but fetch.
const UNCOMPRESSED_BYTES_MIN: u64 = 24 << 20;
/// After this many bytes of one write, it is decided how well it compresses.
const JUDGED_BYTES: usize = 64 << 10;
/// Zstandard compresses if no store follows, or if more than the initial share was worth it: it
/// reduces the memory of programs to 10 to 45 %, LZ4 to 18 to 55 %, and takes two to four times as
/// long (`benches/codecs.rs`). A store beside the limit has its capacity anyway, and uses LZ4 until
/// one part in `SCARCE_PART` of it is in use.
const SCARCE_PART: u64 = 2;

/// Compressed memory. See the module documentation.
pub struct CompressedStore {
    shared: Arc<Shared>,
}

struct Shared {
    slabs: Slabs,
    sector_bytes: usize,
    /// Bytes that are compressed as one unit.
    piece_bytes: usize,
    /// Larger results are stored uncompressed: decompression takes several times as long as
    /// copying, and an eighth of the room is not worth that.
    packed_bytes_max: usize,
    /// Its memory is a part of the local limit (`within_limit`), and other stores accept what does
    /// not compress (`rejects`).
    within_limit: bool,
    rejects: bool,
    /// The local limit, and the share of it in parts of `sharing::PARTS`.
    limit_bytes: AtomicU64,
    parts: AtomicU64,
    sectors: AtomicU64,
}

impl CompressedStore {
    /// A store whose memory is a part of the local limit of `limit_bytes`. `rejects`: another store
    /// accepts content that does not compress.
    pub fn within(
        sector_bytes: usize,
        limit_bytes: u64,
        rejects: bool,
    ) -> Result<CompressedStore, StoreError> {
        // Address space for limits that are set later.
        let capacity_bytes = (memory::machine().0 / 2).max(limit_bytes / 2);
        let mut store = CompressedStore::sized(sector_bytes, capacity_bytes, limit_bytes / 2)?;
        let shared = Arc::get_mut(&mut store.shared).expect("it is not shared yet");
        shared.within_limit = true;
        shared.rejects = rejects;
        store.set_local_limit(limit_bytes);
        Ok(store)
    }

    /// A store of at most `capacity_bytes` of memory for sectors of `sector_bytes`.
    pub fn new(sector_bytes: usize, capacity_bytes: u64) -> Result<CompressedStore, StoreError> {
        CompressedStore::sized(sector_bytes, capacity_bytes, capacity_bytes)
    }

    fn sized(
        sector_bytes: usize,
        capacity_bytes: u64,
        expected_bytes: u64,
    ) -> Result<CompressedStore, StoreError> {
        let piece_bytes = sector_bytes.min(OBJECT_BYTES_MAX);
        let slabs = Slabs::new(capacity_bytes, expected_bytes, piece_bytes).map_err(|error| {
            StoreError::Io {
                store: NAME.to_owned(),
                doing: "reserving address space",
                source_text: error.to_string(),
            }
        })?;
        if slabs.capacity_bytes() == 0 {
            let reason = format!(
                "{} is too little: give it at least 256K, as in compressed:1G",
                Bytes(capacity_bytes)
            );
            return Err(StoreError::Config { store: NAME.to_owned(), reason });
        }
        let packed_bytes_max = piece_bytes - piece_bytes / 8;
        Ok(CompressedStore {
            shared: Arc::new(Shared {
                slabs,
                sector_bytes,
                piece_bytes,
                packed_bytes_max,
                within_limit: false,
                rejects: false,
                limit_bytes: AtomicU64::new(0),
                parts: AtomicU64::new(sharing::BEGIN),
                sectors: AtomicU64::new(0),
            }),
        })
    }
}

impl Store for CompressedStore {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn open_near(&self) -> Option<Box<dyn Channel>> {
        self.open(Purpose::Write).ok()
    }

    fn takes_now(&self) -> bool {
        !self.shared.slabs.is_exhausted()
    }

    fn open(&self, _purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let packer = Packer::new(self.shared.piece_bytes);
        Ok(Box::new(CompressedChannel { shared, packer, ready: Vec::new() }))
    }

    fn free(&self, locs: &[Loc]) {
        let shared = &self.shared;
        shared.sectors.fetch_sub(locs.len() as u64, Ordering::Relaxed);
        if shared.pieces() == 1 {
            shared.slabs.free(locs.iter().copied());
        } else {
            locs.iter().for_each(|&loc| shared.free_pieces(loc));
        }
    }

    fn usage(&self) -> StoreUsage {
        let Shared { slabs, sector_bytes, sectors, .. } = &*self.shared;
        StoreUsage {
            far_bytes: sectors.load(Ordering::Relaxed) * *sector_bytes as u64,
            stored_bytes: slabs.used_bytes(),
            capacity_bytes: slabs.capacity_bytes(),
            metadata_bytes: slabs.metadata_bytes(),
            local_bytes: slabs.used_bytes(),
            ..StoreUsage::default()
        }
    }

    fn local_bytes(&self) -> u64 {
        if self.shared.within_limit {
            self.shared.slabs.used_bytes() + self.shared.slabs.metadata_bytes()
        } else {
            0
        }
    }

    fn is_within_limit(&self, _loc: Loc) -> bool {
        self.shared.within_limit
    }

    fn is_packed(&self, _loc: Loc) -> bool {
        true
    }

    fn set_local_limit(&self, bytes: u64) {
        self.shared.limit_bytes.store(bytes, Ordering::Relaxed);
        self.shared.allow();
    }

    fn balance(&self) -> Option<Balance> {
        self.shared.within_limit.then(|| Balance {
            near_bytes: self.usage().far_bytes,
            packed_bytes: self.shared.slabs.object_bytes_in_use(),
            is_full: !self.shared.slabs.may_grow(),
        })
    }

    fn begin_drain(&self) -> bool {
        // The pieces of a large sector can be in any slab: its location does not show which slabs
        // it occupies.
        self.shared.rejects && self.shared.pieces() == 1 && self.shared.slabs.close_excess()
    }

    fn takes_near(&self) -> bool {
        self.shared.rejects && !self.shared.slabs.is_exhausted()
    }

    fn is_to_leave(&self, loc: Loc) -> bool {
        self.shared.rejects && self.shared.slabs.is_closed(loc)
    }

    fn set_share(&self, parts: u64) {
        self.shared.parts.store(parts, Ordering::Relaxed);
        self.shared.allow();
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        Ok(Box::new(CopiedByTheKernel))
    }
}

/// Private memory is in both processes without further action.
struct CopiedByTheKernel;

impl ForkGuard for CopiedByTheKernel {
    fn adopt(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl Shared {
    fn allow(&self) {
        if self.within_limit {
            self.slabs.allow(self.share_bytes());
        }
    }

    /// How much of the local limit may be compressed: if another store follows, the share, less of
    /// a small limit; otherwise nearly all.
    fn share_bytes(&self) -> u64 {
        let limit_bytes = self.limit_bytes.load(Ordering::Relaxed);
        let uncompressed = limit_bytes.saturating_sub(UNCOMPRESSED_BYTES_MIN);
        if self.rejects {
            let share = limit_bytes / sharing::PARTS * self.parts.load(Ordering::Relaxed);
            return share.min(uncompressed.max(limit_bytes / 8));
        }
        // The program ends when it is full: little uncompressed room is better than that.
        (limit_bytes / 4 * 3).max(uncompressed.min(limit_bytes / 8 * 7))
    }

    /// Whether room is worth more than time.
    fn is_scarce(&self) -> bool {
        if self.rejects {
            return self.parts.load(Ordering::Relaxed) > sharing::BEGIN;
        }
        self.within_limit || self.slabs.used_bytes() > self.slabs.capacity_bytes() / SCARCE_PART
    }

    fn pieces(&self) -> usize {
        self.sector_bytes / self.piece_bytes
    }

    /// Stores one sector.
    fn put(&self, sector: &[u8], packer: &mut Packer) -> Result<Loc, SlabsFull> {
        if self.pieces() == 1 {
            return self.put_piece(sector, packer);
        }
        let mut list = Vec::with_capacity(self.pieces() * 4);
        for piece in sector.chunks_exact(self.piece_bytes) {
            match self.put_piece(piece, packer) {
                Ok(loc) => list.extend(loc.0.to_le_bytes()),
                Err(full) => {
                    self.slabs.free(list_entries(&list));
                    return Err(full);
                }
            }
        }
        match self.slabs.allocate(list.len(), OBJECT_BYTES_MAX) {
            Ok(loc) => {
                self.slabs.write(loc, &list);
                Ok(loc)
            }
            Err(full) => {
                self.slabs.free(list_entries(&list));
                Err(full)
            }
        }
    }

    fn put_piece(&self, piece: &[u8], packer: &mut Packer) -> Result<Loc, SlabsFull> {
        if let Some(len) = packer.pack(piece, self.packed_bytes_max) {
            let loc = self.slabs.allocate(len, self.piece_bytes - 1)?;
            self.slabs.write(loc, &packer.scratch[..len]);
            packer.stored += self.slabs.object_bytes(loc);
            Ok(loc)
        } else {
            let loc = self.slabs.allocate(self.piece_bytes, self.piece_bytes)?;
            self.slabs.write(loc, piece);
            packer.stored += self.piece_bytes;
            Ok(loc)
        }
    }

    /// Reads one sector.
    fn get(&self, loc: Loc, sector: &mut [u8], packer: &mut Packer) -> Result<(), StoreError> {
        if self.pieces() == 1 {
            return self.get_piece(loc, sector, packer);
        }
        let list = self.list(loc);
        sector
            .chunks_exact_mut(self.piece_bytes)
            .zip(list_entries(&list))
            .try_for_each(|(piece, loc)| self.get_piece(loc, piece, packer))
    }

    fn get_piece(&self, loc: Loc, piece: &mut [u8], packer: &mut Packer) -> Result<(), StoreError> {
        let object_bytes = self.slabs.object_bytes(loc);
        if object_bytes == self.piece_bytes {
            self.slabs.read(loc, piece);
            return Ok(());
        }
        let mut header = [0; HEADER];
        self.slabs.read(loc, &mut header);
        let header = u16::from_le_bytes(header);
        let packed = HEADER + usize::from(header & !IS_ZSTD);
        if packed <= object_bytes {
            self.slabs.read(loc, &mut packer.scratch[..packed]);
            if packer.unpack(packed, header & IS_ZSTD != 0, piece) == Some(self.piece_bytes) {
                return Ok(());
            }
        }
        let source_text =
            format!("the content at {} is damaged; is this machine's memory sound?", loc.0);
        Err(StoreError::Io { store: NAME.to_owned(), doing: "unpacking a sector", source_text })
    }

    fn list(&self, loc: Loc) -> Vec<u8> {
        let mut list = vec![0; self.pieces() * 4];
        self.slabs.read(loc, &mut list);
        list
    }

    fn free_pieces(&self, loc: Loc) {
        self.slabs.free(list_entries(&self.list(loc)).chain([loc]));
    }

    fn full(&self) -> StoreError {
        let (used, capacity) = (Bytes(self.slabs.used_bytes()), Bytes(self.slabs.capacity_bytes()));
        StoreError::Full { store: NAME.to_owned(), used, capacity }
    }
}

fn list_entries(list: &[u8]) -> impl Iterator<Item = Loc> + '_ {
    list.chunks_exact(4).map(|entry| Loc(u32::from_le_bytes(entry.try_into().unwrap())))
}

struct CompressedChannel {
    shared: Arc<Shared>,
    packer: Packer,
    /// Completed, but not collected yet.
    ready: Vec<Completion>,
}

impl Channel for CompressedChannel {
    fn read(&mut self, token: Token, locs: &[Loc], mut buf: FrameBuf) {
        assert_eq!(
            buf.len(),
            locs.len() * self.shared.sector_bytes,
            "the buffer is as long as the sectors"
        );
        let sectors = buf.bytes_mut().chunks_exact_mut(self.shared.sector_bytes);
        let result = sectors
            .zip(locs)
            .try_for_each(|(sector, &loc)| self.shared.get(loc, sector, &mut self.packer));
        self.ready.push(Completion { token, buf, result });
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        let shared = &self.shared;
        assert_eq!(
            buf.len(),
            locs.len() * shared.sector_bytes,
            "the buffer is as long as the sectors"
        );
        if shared.slabs.is_exhausted() {
            return Err((buf, shared.full()));
        }
        self.packer.stored = 0;
        self.packer.is_dense = shared.is_scarce();
        for (index, sector) in buf.bytes().chunks_exact(shared.sector_bytes).enumerate() {
            let put = shared.put(sector, &mut self.packer);
            let done = index + usize::from(put.is_ok());
            // Once enough of it is known: not after the first sector of many.
            let known = done * shared.sector_bytes >= buf.len().min(JUDGED_BYTES);
            let packs = self.packer.stored <= done * shared.sector_bytes / 16 * SIXTEENTHS_MAX;
            let error = match put {
                Ok(loc) => {
                    locs[index] = loc;
                    if packs || !known || !shared.rejects {
                        continue;
                    }
                    StoreError::Rejected { store: NAME.to_owned() }
                }
                Err(SlabsFull) => shared.full(),
            };
            for &loc in &locs[..done] {
                if shared.pieces() == 1 {
                    shared.slabs.free([loc])
                } else {
                    shared.free_pieces(loc)
                }
            }
            return Err((buf, error));
        }
        shared.sectors.fetch_add(locs.len() as u64, Ordering::Relaxed);
        self.ready.push(Completion { token, buf, result: Ok(()) });
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.ready);
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn in_flight(&self) -> usize {
        self.ready.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::model::{check, check_concurrently, content, ops, read_now, write_now};

    fn write_until_full(store: &CompressedStore, sector_bytes: usize, seed: u64) -> usize {
        let mut channel = store.open(Purpose::Write).unwrap();
        (0..)
            .take_while(|&index| {
                write_now(&mut *channel, &content(seed + 4 * index, sector_bytes), 1).is_some()
            })
            .count()
    }

    #[test]
    fn compressible_content_shrinks_and_random_hardly_grows() {
        for sector_bytes in [4 << 10, 8 << 10, 16 << 10, 64 << 10, 2 << 20] {
            let raw_count = (32 << 20) / sector_bytes;
            let store = CompressedStore::new(sector_bytes, 32 << 20).unwrap();
            let random = write_until_full(&store, sector_bytes, 3);
            assert!(
                random * 100 >= raw_count * 93,
                "{random} of {raw_count} random sectors of {sector_bytes} fit"
            );
            let store = CompressedStore::new(sector_bytes, 32 << 20).unwrap();
            let packed = write_until_full(&store, sector_bytes, 1);
            assert!(
                packed * 10 > raw_count * 15,
                "{packed} sectors of {sector_bytes} where {raw_count} fit unpacked"
            );
        }
    }

    #[test]
    fn compression_resumes_after_incompressible_content() {
        let store = CompressedStore::new(8192, 4 << 20).unwrap();
        let mut channel = store.open(Purpose::Write).unwrap();
        for seed in [3, 7, 1, 0, 4, 5, 9, 11, 1] {
            let loc = write_now(&mut *channel, &content(seed, 8192), 1).unwrap()[0];
            assert_eq!(
                store.shared.slabs.object_bytes(loc) == 8192,
                seed % 4 == 3,
                "content {seed}"
            );
            assert!(read_now(&mut *channel, &[loc], 8192).unwrap() == content(seed, 8192));
        }
    }

    /// Digits in random order: entropy coding compresses them, matching does not.
    fn digits(seed: u64, len: usize) -> Vec<u8> {
        let mut random = hiroma_units::Rng::new(seed);
        (0..len).map(|_| b'0' + random.below(10) as u8).collect()
    }

    #[test]
    fn scarce_memory_raises_compression_effort() {
        let store = CompressedStore::new(4096, 4 << 20).unwrap();
        let mut channel = store.open(Purpose::Write).unwrap();
        let mut written = Vec::new();
        while let Some(locs) = write_now(&mut *channel, &digits(written.len() as u64, 4096), 1) {
            written.push(locs[0]);
        }
        // LZ4 alone does not compress such content.
        assert!(written.len() > (4 << 20) / 4096 * 5 / 4, "{}", written.len());
        for (seed, &loc) in written.iter().enumerate() {
            assert!(
                read_now(&mut *channel, &[loc], 4096).unwrap() == digits(seed as u64, 4096),
                "{seed}"
            );
        }
    }

    #[test]
    fn tables_take_less_than_a_thousandth() {
        let store = CompressedStore::new(8192, 64 << 20).unwrap();
        write_until_full(&store, 8192, 1);
        let usage = store.usage();
        assert!(usage.metadata_bytes * 1000 < usage.far_bytes, "{usage:?}");
    }

    #[test]
    fn full_store_accepts_writes_after_frees() {
        let store = CompressedStore::new(4096, 1 << 20).unwrap();
        let mut channel = store.open(Purpose::Write).unwrap();
        let locs: Vec<Loc> = std::iter::from_fn(|| write_now(&mut *channel, &content(3, 4096), 1))
            .flatten()
            .collect();
        assert_eq!(locs.len(), 256);
        let before = store.usage();
        assert!(write_now(&mut *channel, &content(3, 64 << 10), 16).is_none());
        assert_eq!(store.usage(), before, "a refused write leaves nothing behind");
        store.free(&locs[100..140]);
        assert!(write_now(&mut *channel, &content(3, 64 << 10), 16).is_some());
        assert_eq!(read_now(&mut *channel, &locs[..1], 4096).unwrap(), content(3, 4096));
    }

    #[test]
    fn damaged_content_is_an_error() {
        let store = CompressedStore::new(8192, 1 << 20).unwrap();
        let mut channel = store.open(Purpose::Write).unwrap();
        let locs = write_now(&mut *channel, &content(1, 8192), 1).unwrap();
        store.shared.slabs.write(locs[0], &[0xff; 64]);
        let error = read_now(&mut *channel, &locs, 8192).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
    }

    #[test]
    fn capacity_below_one_slab_is_refused() {
        let error = CompressedStore::new(8192, 100).err().unwrap();
        assert!(error.to_string().contains("at least 256K"), "{error}");
    }

    #[test]
    fn threads_with_own_channels_do_not_interfere() {
        for sector_bytes in [4096, 8192, 32768] {
            check_concurrently(
                &CompressedStore::new(sector_bytes, 8 << 20).unwrap(),
                sector_bytes,
                4,
                400,
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn store_matches_a_naive_map(ops in ops(20, 120), shift in 12u32..18, capacity in 1u64..16) {
            check(&CompressedStore::new(1 << shift, capacity << 18).unwrap(), 1 << shift, &ops);
        }
    }
}
