//! A store elsewhere whose content only this process can read or change unnoticed.
//!
//! Every sector is encrypted and authenticated (AES-256-GCM, or ChaCha20-Poly1305 on processors
//! without AES instructions) under a random key that never leaves the process. The nonce is a
//! counter of writes, and nonce and tag stay here, in a table by location: a sector in the store is
//! as long as it was. Whatever comes back must be what was last written to that location, so a
//! sector that was changed, that belongs elsewhere, or that is older is an error.
//!
//! What the store still learns is in `docs/internals/sealing.md`.
//!
//! Forks: a child writes under a new key, because parent and child count their writes separately. It
//! inherits the older keys and the table.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hiroma_sys::frame::FrameBuf;
use hiroma_sys::table::LazyTable;
use hiroma_sys::vm;
use hiroma_units::Loc;
use ring::aead::{
    AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey,
};
use rustc_hash::FxHashMap;

use super::spares::Spares;
use super::{
    Channel, Completion, Condition, ForkGuard, Pulse, Purpose, Store, StoreError, StoreUsage, Token,
};

/// Bits of a nonce that count the writes under one key. The bits above them number the keys.
const COUNT_BITS: u32 = 48;
/// A chain of more forks is refused, and so are more writes under one key (an exbibyte of pages).
const KEYS_MAX: usize = 1 << (u64::BITS - COUNT_BITS);
const WRITES_MAX: u64 = 1 << COUNT_BITS;
/// Locations that a store can assign.
const LOCS_MAX: usize = 1 << Loc::STORE_BITS;
/// Locations for each sector that the program can have: those from before a fork stay in use until the
/// parent has ended, and the child's are others.
const LOCS_PER_SECTOR: usize = 8;

/// See the module's head.
pub struct SealedStore {
    inner: Arc<dyn Store>,
    shared: Arc<Shared>,
}

/// What opens the sector at one location. All zeros: nothing was written there.
#[derive(zerocopy::FromZeros)]
#[repr(C)]
struct Slip {
    /// Number of the key, and number of the write under it, from 1.
    nonce: AtomicU64,
    tag: [AtomicU64; 2],
}

struct Shared {
    name: String,
    sector_bytes: usize,
    /// The last one is in use.
    keys: RwLock<Vec<LessSafeKey>>,
    writes: AtomicU64,
    slips: LazyTable<Slip>,
    /// The locations in use are below it.
    locs_end: AtomicU32,
    spare_bytes: AtomicU64,
}

impl SealedStore {
    /// Seals what goes to `inner`, of a program that has at most `arena_bytes` of memory.
    pub fn new(
        inner: Arc<dyn Store>,
        sector_bytes: usize,
        arena_bytes: u64,
    ) -> Result<SealedStore, StoreError> {
        let name = inner.name();
        let failed = |doing| {
            let store = name.clone();
            move |error: io::Error| StoreError::Io { store, doing, source_text: error.to_string() }
        };
        let key = random_key().map_err(failed("making a key"))?;
        let sectors = (arena_bytes / sector_bytes as u64) as usize;
        let locs = sectors.saturating_mul(LOCS_PER_SECTOR).min(LOCS_MAX);
        let slips = LazyTable::new(locs).map_err(failed("reserving a table"))?;
        let shared = Shared {
            sector_bytes,
            keys: RwLock::new(vec![key]),
            writes: AtomicU64::new(0),
            slips,
            locs_end: AtomicU32::new(0),
            spare_bytes: AtomicU64::new(0),
            name,
        };
        Ok(SealedStore { inner, shared: Arc::new(shared) })
    }
}

/// The algorithm that is fast here.
fn algorithm() -> &'static Algorithm {
    #[cfg(target_arch = "x86_64")]
    let has_aes = is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    if has_aes { &AES_256_GCM } else { &CHACHA20_POLY1305 }
}

fn random_key() -> io::Result<LessSafeKey> {
    let mut bytes = [0; 32];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let key = UnboundKey::new(algorithm(), &bytes[..got]).map_err(|_| io::ErrorKind::UnexpectedEof);
    bytes.fill(0);
    Ok(LessSafeKey::new(key?))
}

fn nonce_of(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Shared {
    fn error(&self, doing: &'static str, reason: &str) -> StoreError {
        StoreError::Io { store: self.name.clone(), doing, source_text: reason.to_owned() }
    }

    /// Encrypts sectors in place. Returns the number of the first one's nonce; the others follow it.
    fn seal(&self, bytes: &mut [u8], tags: &mut Vec<Tag>) -> Result<u64, StoreError> {
        let sectors = bytes.len() / self.sector_bytes;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let first = self.writes.fetch_add(sectors as u64, Ordering::Relaxed) + 1;
        if first + sectors as u64 >= WRITES_MAX {
            return Err(self.error("sealing", "the key was used for too many writes"));
        }
        let first = (keys.len() as u64 - 1) << COUNT_BITS | first;
        tags.clear();
        let key = &keys[keys.len() - 1];
        for (number, sector) in (first..).zip(bytes.chunks_exact_mut(self.sector_bytes)) {
            let tag = key
                .seal_in_place_separate_tag(nonce_of(number), Aad::empty(), sector)
                .map_err(|_| self.error("sealing", "the block is too long"))?;
            tags.push(tag);
        }
        Ok(first)
    }

    /// Remembers what opens the sectors that were written. Returns false if the table is too small,
    /// which it is only where address space is limited.
    fn note(&self, locs: &[Loc], first: u64, tags: &[Tag]) -> bool {
        if locs.iter().any(|loc| loc.0 as usize >= self.slips.len()) {
            return false;
        }
        for ((number, loc), tag) in (first..).zip(locs).zip(tags) {
            let slip = &self.slips[loc.0 as usize];
            let (low, high) = tag.as_ref().split_at(8);
            for (to, half) in slip.tag.iter().zip([low, high]) {
                let half = half.try_into().expect("tags have 16 bytes");
                to.store(u64::from_ne_bytes(half), Ordering::Relaxed);
            }
            // Ordered with the reads of other threads by the pager's lock, through which they learn
            // of the location.
            slip.nonce.store(number, Ordering::Relaxed);
            self.locs_end.fetch_max(loc.0 + 1, Ordering::Relaxed);
        }
        true
    }

    /// Decrypts sectors in place, if they are what was last written to their locations.
    fn open(&self, locs: &[Loc], bytes: &mut [u8]) -> Result<(), StoreError> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        for (loc, sector) in locs.iter().zip(bytes.chunks_exact_mut(self.sector_bytes)) {
            let slip = &self.slips[loc.0 as usize];
            let number = slip.nonce.load(Ordering::Relaxed);
            let mut tag = [0; 16];
            for (to, half) in tag.chunks_exact_mut(8).zip(&slip.tag) {
                to.copy_from_slice(&half.load(Ordering::Relaxed).to_ne_bytes());
            }
            keys[(number >> COUNT_BITS) as usize]
                .open_in_place_separate_tag(nonce_of(number), Aad::empty(), tag.into(), sector, 0..)
                .map_err(|_| StoreError::Changed { store: self.name.clone() })?;
        }
        Ok(())
    }
}

impl Store for SealedStore {
    fn name(&self) -> String {
        self.shared.name.clone()
    }

    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        Ok(Box::new(SealedChannel {
            inner: self.inner.open(purpose)?,
            spares: Spares::default(),
            shared: Arc::clone(&self.shared),
            reads: FxHashMap::default(),
            writes: FxHashMap::default(),
            failed: Vec::new(),
            idle: Vec::new(),
            tags: Vec::new(),
        }))
    }

    fn free(&self, locs: &[Loc]) {
        self.inner.free(locs);
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.inner.descriptors()
    }

    fn keeps_for_children(&self) -> bool {
        self.inner.keeps_for_children()
    }

    fn pulse(&self) -> Option<Pulse> {
        self.inner.pulse()
    }

    fn begin_drain(&self) -> bool {
        self.inner.begin_drain()
    }

    fn is_to_leave(&self, loc: Loc) -> bool {
        self.inner.is_to_leave(loc)
    }

    fn awaits_room(&self) -> bool {
        self.inner.awaits_room()
    }

    fn room_patience(&self) -> Option<Duration> {
        self.inner.room_patience()
    }

    fn leave(&self) {
        self.inner.leave();
    }

    fn usage(&self) -> StoreUsage {
        let usage = self.inner.usage();
        let slips = u64::from(self.shared.locs_end.load(Ordering::Relaxed));
        let own_bytes =
            slips * size_of::<Slip>() as u64 + self.shared.spare_bytes.load(Ordering::Relaxed);
        StoreUsage { metadata_bytes: usage.metadata_bytes + own_bytes, ..usage }
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        if self.shared.keys.read().unwrap_or_else(PoisonError::into_inner).len() >= KEYS_MAX {
            return Err(self.shared.error("forking", "there are too many generations of children"));
        }
        Ok(Box::new(SealedGuard {
            inner: self.inner.prepare_fork()?,
            shared: Arc::clone(&self.shared),
        }))
    }
}

struct SealedGuard {
    inner: Box<dyn ForkGuard>,
    shared: Arc<Shared>,
}

impl ForkGuard for SealedGuard {
    fn adopt(&self) -> Result<(), StoreError> {
        self.inner.adopt()?;
        let key =
            random_key().map_err(|error| self.shared.error("making a key", &error.to_string()))?;
        self.shared.keys.write().unwrap_or_else(PoisonError::into_inner).push(key);
        self.shared.writes.store(0, Ordering::Relaxed);
        Ok(())
    }
}

struct SealedChannel {
    inner: Box<dyn Channel>,
    shared: Arc<Shared>,
    /// Memory for what is on its way to the store.
    spares: Spares,
    reads: FxHashMap<Token, Vec<Loc>>,
    /// The callers' buffers; an abandoned one is empty.
    writes: FxHashMap<Token, FrameBuf>,
    /// Writes that cannot be opened again.
    failed: Vec<Token>,
    /// Lists of locations, for reuse.
    idle: Vec<Vec<Loc>>,
    tags: Vec<Tag>,
}

impl SealedChannel {
    /// Seals a copy of `buf`. The caller's buffer is not changed: the program may want it back.
    fn seal(&mut self, buf: &FrameBuf) -> Result<(FrameBuf, u64), StoreError> {
        let before = self.spares.bytes();
        let mut copy = self.spares.take(buf.len()).map_err(|error| {
            self.shared.error("reserving memory for sealed blocks", &error.to_string())
        })?;
        let grown_bytes = (self.spares.bytes() - before) as u64;
        self.shared.spare_bytes.fetch_add(grown_bytes, Ordering::Relaxed);
        copy.bytes_mut().copy_from_slice(buf.bytes());
        match self.shared.seal(copy.bytes_mut(), &mut self.tags) {
            Ok(first) => Ok((copy, first)),
            Err(error) => {
                self.spares.put(copy);
                Err(error)
            }
        }
    }

    fn finish(&mut self, done: &mut Completion) {
        if let Some(locs) = self.reads.remove(&done.token) {
            // An abandoned read has no buffer any more.
            if done.result.is_ok() && !done.buf.is_empty() {
                done.result = self.shared.open(&locs, done.buf.bytes_mut());
            }
            self.idle.push(locs);
        } else if let Some(buf) = self.writes.remove(&done.token) {
            self.spares.put(std::mem::replace(&mut done.buf, buf));
            if let Some(at) = self.failed.iter().position(|&token| token == done.token) {
                self.failed.swap_remove(at);
                done.result = Err(self.shared.error(
                    "sealing",
                    "the table of blocks is full: allow more address space (ulimit -v), or use --seal off",
                ));
            }
        } else {
            // What is not known cannot be opened.
            let unknown = self.shared.error("opening", "two requests had one token");
            done.result = std::mem::replace(&mut done.result, Ok(())).and(Err(unknown));
        }
    }
}

impl Channel for SealedChannel {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        let mut kept = self.idle.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(locs);
        let other = self.reads.insert(token, kept);
        debug_assert!(other.is_none(), "{token:?} is under way");
        self.inner.read(token, locs, buf);
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        let (copy, first) = match self.seal(&buf) {
            Ok(sealed) => sealed,
            Err(error) => return Err((buf, error)),
        };
        let started = self.inner.write(token, copy, locs);
        match started {
            Ok(()) => {
                if !self.shared.note(locs, first, &self.tags) {
                    self.failed.push(token);
                }
                let other = self.writes.insert(token, buf);
                debug_assert!(other.is_none(), "{token:?} is under way");
                Ok(())
            }
            Err((copy, error)) => {
                self.spares.put(copy);
                Err((buf, error))
            }
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        let before = out.len();
        self.inner.poll(out);
        for done in &mut out[before..] {
            self.finish(done);
        }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn abandon(&mut self, token: Token) -> Option<FrameBuf> {
        match self.writes.get_mut(&token) {
            // What is under way is the copy.
            Some(buf) => {
                let empty = vm::lend(buf.addr(), 0);
                Some(std::mem::replace(buf, empty))
            }
            None => self.inner.abandon(token),
        }
    }

    fn condition(&self) -> Condition {
        self.inner.condition()
    }
}

impl Drop for SealedChannel {
    fn drop(&mut self) {
        self.shared.spare_bytes.fetch_sub(self.spares.bytes() as u64, Ordering::Relaxed);
    }
}
