//! The store `file:DIR`: one unnamed sparse file, read and written with direct I/O if the file
//! system supports it.
//!
//! [`Space`] determines where sectors are. The blocks of a chunk are reserved before it is first
//! written, so that a full disk is detected when a write starts and another store can take it.
//! Chunks that become empty are punched out of the file again, except for a few that are kept for
//! reuse.
//!
//! Forks: the child continues to read the parent's file, in which no content from before the fork
//! changes until the parent's guard is dropped, and creates a file of its own for its writes. Where
//! it cannot (Landlock, a directory that was removed), it writes to a part of the parent's that
//! nobody else uses. That is returned to the file system when the last of them has ended.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hiroma_sys::frame::FrameBuf;
use hiroma_sys::scratch;
use hiroma_sys::shared::SharedWords;
use hiroma_sys::uring::{Direction, Finished, Piece};
use hiroma_units::{Bytes, Loc};
use rustix::fs::{fstatvfs, ftruncate};
use rustix::process::{Resource, getrlimit};

use super::clerk::Clerk;
use super::file_io::{self, Mover, Pool};
use super::space::{CHUNK_BYTES, ChunkNo, FreezeId, Space, chunk_of, runs};
use super::{Channel, Completion, ForkGuard, Purpose, Store, StoreError, StoreUsage, Token};

mod blocks;

/// One file as a store. See the module documentation.
pub struct FileStore {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    sector_bytes: usize,
    dir: OwnedFd,
    books: Mutex<Books>,
    use_ring: bool,
    pool: Mutex<Option<Arc<Pool>>>,
    /// Reserves and frees blocks.
    clerk: Mutex<Option<Arc<Clerk>>>,
    /// The file system can reserve blocks.
    can_reserve: AtomicBool,
    /// The processes that write to a part of another's file, ever: in one word of all that come of
    /// a fork, so that no two have the same part.
    parts: Arc<SharedWords>,
    /// Bytes of a part.
    part_bytes: u64,
}

struct Books {
    space: Space,
    /// The last one is the file of this process, the others are those of its ancestors.
    files: Vec<Part>,
    chunks: Vec<ChunkHome>,
    /// Empty chunks of our own file that still have their blocks.
    warm: BTreeSet<u32>,
    /// When the file system last had no blocks for a chunk.
    no_blocks: Option<Instant>,
    /// When the file system last had no space for a write that had begun.
    no_space: Option<Instant>,
}

/// The part of a file that one process writes to: all of it from `base` on, or what is before the
/// next process's.
#[derive(Clone)]
struct Part {
    file: Arc<File>,
    base: u64,
}

/// The location of a chunk.
#[derive(Clone, Copy, Default)]
struct ChunkHome {
    /// The number of its file plus one; 0: none yet.
    file: u16,
    /// Its blocks are reserved.
    reserved: bool,
}

impl FileStore {
    /// A store in `dir` of at most `capacity_bytes`; without that, of the free space there, less a
    /// twentieth.
    pub fn new(
        dir: &Path,
        sector_bytes: usize,
        capacity_bytes: Option<u64>,
    ) -> Result<FileStore, StoreError> {
        FileStore::with_engine(dir, sector_bytes, capacity_bytes, true)
    }

    /// Like `new`; without `use_ring`, it uses threads even if io_uring is allowed.
    pub fn with_engine(
        dir: &Path,
        sector_bytes: usize,
        capacity_bytes: Option<u64>,
        use_ring: bool,
    ) -> Result<FileStore, StoreError> {
        let name = format!("file:{}", dir.display());
        let config = |reason: String| StoreError::Config { store: name.clone(), reason };
        let dir = scratch::directory(dir).map_err(|error| {
            config(format!(
                "it cannot be used ({error}): name a directory that exists, as in file:/var/tmp"
            ))
        })?;
        let capacity_bytes = match capacity_bytes {
            Some(bytes) => bytes,
            None => free_bytes(&dir)
                .map_err(|error| config(format!("its free space is not known ({error}): say how much to use, as in file:/var/tmp:20G")))?,
        };
        let allowed = file_bytes_max();
        if allowed < FILE_BYTES_MIN.min(capacity_bytes) {
            return Err(config(format!(
                "a file may have {} here (ulimit -f), which is too little for far memory: ulimit -f unlimited, or another store (--store compressed, --store tcp://HOST)",
                Bytes(allowed)
            )));
        }
        let capacity_bytes = capacity_bytes.min(allowed);
        let space = Space::new(sector_bytes, capacity_bytes);
        if space.limit_bytes() == 0 {
            return Err(config(format!(
                "there is room for {} only: free some, or name another directory",
                Bytes(capacity_bytes)
            )));
        }
        let file = create(&dir, space.limit_bytes()).map_err(|error| {
            config(format!(
                "no file can be made there ({error}): name a directory that you may write to"
            ))
        })?;
        let parts = SharedWords::inherited(1)
            .map_err(|error| config(format!("no memory for its books ({error})")))?;
        let part_bytes = space.limit_bytes().next_multiple_of(CHUNK_BYTES as u64);
        let books = Books {
            space,
            files: vec![Part { file: Arc::new(file), base: 0 }],
            chunks: Vec::new(),
            warm: BTreeSet::new(),
            no_blocks: None,
            no_space: None,
        };
        let shared = Shared {
            name,
            sector_bytes,
            dir,
            books: Mutex::new(books),
            use_ring,
            pool: Mutex::new(None),
            clerk: Mutex::new(None),
            can_reserve: AtomicBool::new(true),
            parts: Arc::new(parts),
            part_bytes,
        };
        Ok(FileStore { shared: Arc::new(shared) })
    }
}

/// A smaller limit on the size of files is not accepted.
const FILE_BYTES_MIN: u64 = 64 << 20;

/// How long a file may be that this process writes.
fn file_bytes_max() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Free space for us in the file system of `dir`, less a twentieth.
fn free_bytes(dir: &OwnedFd) -> io::Result<u64> {
    let stat = fstatvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize) / 20 * 19)
}

/// Creates an unnamed sparse file of `len` bytes, for direct I/O if possible.
fn create(dir: &OwnedFd, len: u64) -> io::Result<File> {
    let file = scratch::create(dir, true)?;
    ftruncate(&file, len)?;
    Ok(file.into())
}

impl Store for FileStore {
    fn name(&self) -> String {
        self.shared.name.clone()
    }

    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let mover =
            shared.mover(purpose).map_err(|error| shared.io("opening a channel", &error))?;
        Ok(Box::new(FileChannel {
            shared,
            mover,
            pieces: Vec::new(),
            finished: Vec::new(),
            writes: Vec::new(),
        }))
    }

    fn free(&self, locs: &[Loc]) {
        let mut books = self.shared.books();
        let mut released = Vec::new();
        books.space.free(locs, &mut released);
        Shared::retire(&self.shared, books, &released);
    }

    fn usage(&self) -> StoreUsage {
        let books = self.shared.books();
        let tables = books.chunks.capacity() * size_of::<ChunkHome>();
        StoreUsage {
            far_bytes: books.space.live_bytes(),
            stored_bytes: books.space.kept_bytes(),
            capacity_bytes: books.space.limit_bytes(),
            metadata_bytes: books.space.metadata_bytes() + tables as u64,
            ..StoreUsage::default()
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let files =
            self.shared.books().files.iter().map(|part| part.file.as_raw_fd()).collect::<Vec<_>>();
        std::iter::once(self.shared.dir.as_raw_fd()).chain(files).collect()
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        // If the clerk had a lock at the fork, it would be locked forever in the child.
        self.shared.settle_clerk();
        let freeze = self.shared.books().space.freeze();
        Ok(Box::new(Frozen { shared: Arc::clone(&self.shared), freeze }))
    }
}

/// A fork that reads the content from before it.
struct Frozen {
    shared: Arc<Shared>,
    freeze: FreezeId,
}

impl ForkGuard for Frozen {
    fn adopt(&self) -> Result<(), StoreError> {
        // The threads are the parent's, and so is what their locks protect.
        if let Some(pool) = self.shared.pool.lock().unwrap_or_else(PoisonError::into_inner).take() {
            std::mem::forget(pool);
        }
        if let Some(clerk) = self.shared.clerk.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            std::mem::forget(clerk);
        }
        let mut books = self.shared.books();
        // The parent's chunks are not for us to write to, but they count in a limited file too.
        let allowed = file_bytes_max();
        books.space.seal_within(allowed);
        let own = match create(&self.shared.dir, books.space.limit_bytes().min(allowed)) {
            Ok(file) => Part { file: Arc::new(file), base: 0 },
            Err(error) => self
                .shared
                .part_of_parents(&books, allowed)
                .ok_or_else(|| self.shared.io("making a file for a child process", &error))?,
        };
        books.files.push(own);
        for chunk in std::mem::take(&mut books.warm) {
            books.chunks[chunk as usize] = ChunkHome::default();
        }
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let mut books = self.shared.books();
        let mut released = Vec::new();
        books.space.thaw(self.freeze, &mut released);
        Shared::retire(&self.shared, books, &released);
    }
}

impl Books {
    /// Locates the bytes of `locs`, in as few pieces as possible.
    fn pieces(&self, locs: &[Loc], out: &mut Vec<Piece>) {
        let sector_bytes = self.space.sector_bytes();
        let per_chunk = self.space.sectors_per_chunk();
        let mut start = 0;
        for run in runs(locs, usize::MAX) {
            let (mut first, mut left) = (run.first.0 as usize, run.sectors);
            while left > 0 {
                let sectors = left.min(per_chunk - first % per_chunk);
                let home = self.chunks[first / per_chunk];
                let Part { file, base } = &self.files[usize::from(home.file) - 1];
                let (offset, len) = (base + (first * sector_bytes) as u64, sectors * sector_bytes);
                match out.last_mut() {
                    Some(last)
                        if Arc::ptr_eq(&last.file, file)
                            && last.offset + last.len as u64 == offset
                            && last.start + last.len == start =>
                    {
                        last.len += len;
                    }
                    _ => out.push(Piece { file: Arc::clone(file), offset, start, len }),
                }
                (first, left, start) = (first + sectors, left - sectors, start + len);
            }
        }
    }

    /// Records that `locs` were allocated. Returns the chunks among them that have no blocks yet.
    fn settle_in(&mut self, locs: &[Loc]) -> Vec<ChunkNo> {
        let mut bare = Vec::new();
        let mut previous = None;
        for &loc in locs {
            let chunk = chunk_of(loc, self.space.sector_bytes());
            if previous.replace(chunk) == Some(chunk) {
                continue;
            }
            self.warm.remove(&chunk.0);
            if self.chunks.len() <= chunk.0 as usize {
                self.chunks.resize(chunk.0 as usize + 1, ChunkHome::default());
            }
            let home = &mut self.chunks[chunk.0 as usize];
            if usize::from(home.file) != self.files.len() {
                // An entry for an ancestor's file can only be stale: the space never fills such a
                // chunk.
                *home = ChunkHome { file: self.files.len() as u16, reserved: false };
            }
            if !home.reserved {
                bare.push(chunk);
            }
        }
        bare
    }
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part of the parent's file for a child that can make none, if files may be that long.
    fn part_of_parents(&self, books: &Books, allowed: u64) -> Option<Part> {
        let number = self.parts.words()[0].fetch_add(1, Ordering::Relaxed) + 1;
        let base = number.checked_mul(self.part_bytes)?;
        let end = base.checked_add(self.part_bytes)?;
        let file = Arc::clone(&books.files.last()?.file);
        (end <= allowed.min(i64::MAX as u64)).then_some(Part { file, base })
    }

    fn mover(&self, purpose: Purpose) -> io::Result<Mover> {
        if self.use_ring && purpose == Purpose::Read {
            if let Ok(mover) = Mover::ring() {
                return Ok(mover);
            }
        }
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.is_none() {
            let threads = if self.use_ring { file_io::WRITERS } else { file_io::ALL };
            *pool = Some(Arc::new(Pool::start(threads)?));
        }
        Mover::threads(Arc::clone(pool.as_ref().expect("just made")))
    }

    fn clerk(&self) -> io::Result<Arc<Clerk>> {
        let mut clerk = self.clerk.lock().unwrap_or_else(PoisonError::into_inner);
        if clerk.is_none() {
            *clerk = Some(Arc::new(Clerk::start()?));
        }
        Ok(Arc::clone(clerk.as_ref().expect("just made")))
    }

    /// Waits until the clerk is idle.
    fn settle_clerk(&self) {
        let clerk = self.clerk.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(clerk) = clerk {
            clerk.settle();
        }
    }

    fn full(&self, books: &Books, is_disk_full: bool) -> StoreError {
        let store = if is_disk_full {
            format!("{} (no space is left on its file system)", self.name)
        } else {
            self.name.clone()
        };
        StoreError::Full {
            store,
            used: Bytes(books.space.kept_bytes()),
            capacity: Bytes(books.space.limit_bytes()),
        }
    }

    fn io(&self, doing: &'static str, error: &io::Error) -> StoreError {
        StoreError::Io {
            store: self.name.clone(),
            doing,
            source_text: format!("{error}; `dmesg` may say more about the disk"),
        }
    }
}

struct FileChannel {
    shared: Arc<Shared>,
    mover: Mover,
    pieces: Vec<Piece>,
    finished: Vec<Finished>,
    /// Tokens of writes in flight, for messages.
    writes: Vec<Token>,
}

impl Channel for FileChannel {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        assert_eq!(
            buf.len(),
            locs.len() * self.shared.sector_bytes,
            "the buffer is as long as the sectors"
        );
        self.shared.books().pieces(locs, &mut self.pieces);
        self.mover.start(token.0, Direction::Read, buf, &mut self.pieces);
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        assert_eq!(
            buf.len(),
            locs.len() * self.shared.sector_bytes,
            "the buffer is as long as the sectors"
        );
        if let Err(error) = self.shared.allocate(locs, &mut self.pieces) {
            return Err((buf, error));
        }
        self.writes.push(token);
        self.mover.start(token.0, Direction::Write, buf, &mut self.pieces);
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        self.mover.reap(&mut self.finished);
        for Finished { token, buf, result } in self.finished.drain(..) {
            let token = Token(token);
            let write = self
                .writes
                .iter()
                .position(|&write| write == token)
                .map(|index| self.writes.swap_remove(index));
            let result = result.map_err(|error| match error.raw_os_error() {
                Some(libc::ENOSPC | libc::EDQUOT) => self.shared.no_space_for_a_write(),
                _ => self.shared.io(if write.is_some() { "writing" } else { "reading" }, &error),
            });
            out.push(Completion { token, buf, result });
        }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        vec![self.mover.fd()]
    }

    fn in_flight(&self) -> usize {
        self.mover.in_flight()
    }
}

#[cfg(test)]
mod tests;
