//! Which sectors a write gets, and whether their blocks are reserved on disk before.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use hiroma_sys::uring::Piece;
use hiroma_units::Loc;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{Books, ChunkHome, Part, Shared};
use crate::store::StoreError;
use crate::store::space::{CHUNK_BYTES, ChunkNo, NoRoom};

/// Maximum number of empty chunks that keep their blocks on disk.
pub const WARM_CHUNKS_MAX: usize = 32;
/// A file system that had no space is asked for more after this time.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// What became of an attempt to reserve the blocks of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    Yes,
    /// Not now; whether there is space will show when it is written.
    NotNow,
    /// This file system cannot do that.
    Never,
    /// There is no space.
    Full,
}

impl Reserved {
    pub fn failed_with(error: Errno) -> Reserved {
        match error {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Reserved::Full,
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL => Reserved::Never,
            _ => Reserved::NotNow,
        }
    }
}

fn is_recent(when: Option<Instant>) -> bool {
    when.is_some_and(|when| when.elapsed() < FULL_PAUSE)
}

impl Books {
    /// Allocates sectors, in empty chunks that still have their blocks before others.
    fn allocate(&mut self, locs: &mut [Loc]) -> Result<(), NoRoom> {
        self.space.allocate_preferring(locs, &self.warm)
    }

    /// Allocates sectors that need no more blocks. All or nothing.
    fn allocate_reserved(&mut self, locs: &mut [Loc]) -> Result<(), NoRoom> {
        let (chunks, own) = (&self.chunks, self.files.len());
        self.space.allocate_among(locs, |chunk| {
            let home = chunks.get(chunk.0 as usize);
            home.is_some_and(|home| usize::from(home.file) == own && home.reserved)
        })?;
        let bare = self.settle_in(locs);
        debug_assert!(bare.is_empty(), "{bare:?} are not reserved");
        Ok(())
    }
}

impl Shared {
    /// Allocates sectors and reserves their blocks.
    pub fn allocate(
        self: &Arc<Self>,
        locs: &mut [Loc],
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StoreError> {
        let mut books = self.books();
        if is_recent(books.no_space) {
            return Err(self.full(&books, true));
        }
        if is_recent(books.no_blocks) && books.allocate_reserved(locs).is_ok() {
            books.pieces(locs, pieces);
            return Ok(());
        }
        if books.allocate(locs).is_err() {
            // Chunks that are being punched out are withheld meanwhile, but they are room all the
            // same.
            drop(books);
            self.settle_clerk();
            books = self.books();
            if books.allocate(locs).is_err() {
                return Err(self.full(&books, false));
            }
        }
        let bare = books.settle_in(locs);
        if !bare.is_empty() && self.can_reserve.load(Ordering::Relaxed) {
            books = self.reserve_all(books, bare, locs)?;
        }
        books.pieces(locs, pieces);
        Ok(())
    }

    /// Reserves the blocks of the chunks `bare`, in which `locs` are. If there is no space, `locs`
    /// are allocated elsewhere.
    fn reserve_all<'a>(
        self: &'a Arc<Self>,
        books: MutexGuard<'a, Books>,
        bare: Vec<ChunkNo>,
        locs: &mut [Loc],
    ) -> Result<MutexGuard<'a, Books>, StoreError> {
        let own = books.files.last().expect("a file of our own").clone();
        drop(books);
        // Another thread may do the same for a chunk at the same time, which is harmless.
        let clerk = self.clerk().map_err(|error| self.io("starting a thread", &error))?;
        let results = clerk.ask(move || {
            let mut is_full = false;
            let one = |chunk| {
                let result = if is_full { Reserved::Full } else { reserve(&own, chunk) };
                is_full |= result == Reserved::Full;
                (chunk, result)
            };
            bare.into_iter().map(one).collect::<Vec<_>>()
        });
        let mut books = self.books();
        for &(chunk, result) in &results {
            match result {
                Reserved::Yes => books.chunks[chunk.0 as usize].reserved = true,
                // Then a full disk is only detected when a write fails.
                Reserved::Never => self.can_reserve.store(false, Ordering::Relaxed),
                Reserved::NotNow | Reserved::Full => {}
            }
        }
        if results.iter().all(|&(_, result)| result != Reserved::Full) {
            return Ok(books);
        }
        books.no_blocks = Some(Instant::now());
        let mut released = Vec::new();
        books.space.free(locs, &mut released);
        Shared::retire(self, books, &released);
        let mut books = self.books();
        match books.allocate_reserved(locs) {
            Ok(()) => Ok(books),
            Err(NoRoom) => Err(self.full(&books, true)),
        }
    }

    /// A write has failed for want of space: the store counts as full for a while, so that another
    /// one takes what comes.
    pub fn no_space_for_a_write(&self) -> StoreError {
        let mut books = self.books();
        books.no_space = Some(Instant::now());
        self.full(&books, true)
    }

    /// Handles chunks that became empty: keeps some with their blocks, and punches the last ones
    /// out of the file.
    pub fn retire(shared: &Arc<Shared>, mut books: MutexGuard<'_, Books>, released: &[ChunkNo]) {
        let own = books.files.len() as u16;
        for chunk in released {
            let home = &mut books.chunks[chunk.0 as usize];
            if home.file == own && home.reserved {
                books.warm.insert(chunk.0);
            } else if home.file == own && !shared.can_reserve.load(Ordering::Relaxed) {
                // Blocks that were allocated by a write count as reserved too.
                home.reserved = true;
                books.warm.insert(chunk.0);
            } else {
                *home = ChunkHome::default();
            }
        }
        if books.warm.len() <= WARM_CHUNKS_MAX {
            return;
        }
        let mut cold = Vec::new();
        while books.warm.len() > WARM_CHUNKS_MAX / 2 {
            let chunk = ChunkNo(books.warm.pop_last().expect("more than none"));
            if books.space.withhold(chunk) {
                cold.push(chunk);
            }
        }
        let part = books.files.last().expect("a file of our own").clone();
        drop(books);
        let with = Arc::clone(shared);
        let punch = move || with.punch(&part, &cold);
        match shared.clerk() {
            Ok(clerk) => clerk.leave(punch),
            // No thread can be started: punching here would wait for this thread's own writes. The
            // blocks stay withheld.
            Err(_) => drop(punch),
        }
    }

    /// Gives the blocks of chunks back to the file system.
    fn punch(&self, own: &Part, cold: &[ChunkNo]) {
        for neighbours in cold.chunk_by(|upper, lower| lower.0 + 1 == upper.0) {
            let (first, chunks) = (neighbours[neighbours.len() - 1], neighbours.len());
            let offset = own.base + u64::from(first.0) * CHUNK_BYTES as u64;
            let len = (chunks * CHUNK_BYTES) as u64;
            // If the file system cannot do that, the blocks stay until they are reused.
            let _ = fallocate(
                &own.file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                offset,
                len,
            );
        }
        let mut books = self.books();
        for &chunk in cold {
            books.chunks[chunk.0 as usize] = ChunkHome::default();
            books.space.reopen(chunk);
        }
    }
}

/// Reserves the blocks of a chunk.
fn reserve(own: &Part, chunk: ChunkNo) -> Reserved {
    let offset = own.base + u64::from(chunk.0) * CHUNK_BYTES as u64;
    loop {
        match fallocate(&own.file, FallocateFlags::KEEP_SIZE, offset, CHUNK_BYTES as u64) {
            Err(Errno::INTR) => {}
            Err(error) => return Reserved::failed_with(error),
            Ok(()) => return Reserved::Yes,
        }
    }
}
