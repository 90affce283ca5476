//! The store `file:DIR`: one unnamed sparse file, read and written with direct I/O if the file
//! system supports it.
//!
//! [`Space`] determines where sectors are. The blocks of a chunk are reserved before it is first
//! written, so that a full disk is detected when a write starts and another store can take it.
//! Chunks that become empty are punched out of the file again, except for a few that are kept for
//! reuse.
//!
//! Forks: the child continues to read the parent's file, in which no content from before the fork
//! changes until the parent's guard is dropped, and creates a file of its own for its writes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hiroma_sys::frame::FrameBuf;
use hiroma_sys::uring::{Direction, Finished, Piece};
use hiroma_units::{Bytes, Loc};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, StatxFlags, fallocate, fcntl_getfl, fcntl_setfl,
    fstatvfs, ftruncate, openat, statx, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::clerk::Clerk;
use super::file_io::{self, Mover, Pool};
use super::space::{CHUNK_BYTES, ChunkNo, FreezeId, Space, chunk_of, runs};
use super::{Channel, Completion, ForkGuard, Purpose, Store, StoreError, StoreUsage, Token};

/// Maximum number of empty chunks that keep their blocks on disk.
const WARM_CHUNKS_MAX: usize = 32;

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
}

struct Books {
    space: Space,
    /// The last one is the file of this process, the others are those of its ancestors.
    files: Vec<Arc<File>>,
    chunks: Vec<ChunkHome>,
    /// Empty chunks of our own file that still have their blocks.
    warm: BTreeSet<u32>,
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
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, dir, flags, Mode::empty()).map_err(|error| {
            config(format!(
                "it cannot be used ({error}): name a directory that exists, as in file:/var/tmp"
            ))
        })?;
        let capacity_bytes = match capacity_bytes {
            Some(bytes) => bytes,
            None => free_bytes(&dir)
                .map_err(|error| config(format!("its free space is not known ({error}): say how much to use, as in file:/var/tmp:20G")))?,
        };
        let allowed = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
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
        let books =
            Books { space, files: vec![Arc::new(file)], chunks: Vec::new(), warm: BTreeSet::new() };
        let shared = Shared {
            name,
            sector_bytes,
            dir,
            books: Mutex::new(books),
            use_ring,
            pool: Mutex::new(None),
            clerk: Mutex::new(None),
            can_reserve: AtomicBool::new(true),
        };
        Ok(FileStore { shared: Arc::new(shared) })
    }
}

/// A smaller limit on the size of files is not accepted.
const FILE_BYTES_MIN: u64 = 64 << 20;

/// Free space for us in the file system of `dir`, less a twentieth.
fn free_bytes(dir: &OwnedFd) -> io::Result<u64> {
    let stat = fstatvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize) / 20 * 19)
}

/// Creates an unnamed sparse file of `len` bytes, for direct I/O if possible.
fn create(dir: &OwnedFd, len: u64) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let unnamed = |extra: OFlags| {
        openat(
            dir,
            ".",
            OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE | OFlags::EXCL | extra,
            mode,
        )
    };
    let file = unnamed(OFlags::DIRECT)
        .or_else(|_| unnamed(OFlags::empty()))
        .or_else(|_| create_and_unlink(dir, OFlags::DIRECT))
        .or_else(|_| create_and_unlink(dir, OFlags::empty()))?;
    if !takes_pages(&file) {
        fcntl_setfl(&file, fcntl_getfl(&file)? & !OFlags::DIRECT)?;
    }
    ftruncate(&file, len)?;
    Ok(file.into())
}

/// For file systems without unnamed files.
fn create_and_unlink(dir: &OwnedFd, extra: OFlags) -> rustix::io::Result<OwnedFd> {
    let name = format!(".hiroma-{}-{:x}", std::process::id(), hiroma_sys::cpu::now_ns());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | extra;
    let file = openat(dir, &name, flags, Mode::RUSR | Mode::WUSR);
    // If O_DIRECT is refused, the file may have been created all the same.
    let _ = unlinkat(dir, &name, AtFlags::empty());
    file
}

/// Whether direct I/O of pages works, as far as the kernel (Linux 6.1) reports that.
fn takes_pages(file: &OwnedFd) -> bool {
    match statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let page = 1..=hiroma_units::PAGE as u32;
            page.contains(&stat.stx_dio_mem_align) && page.contains(&stat.stx_dio_offset_align)
        }
        _ => true,
    }
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
            self.shared.books().files.iter().map(|file| file.as_raw_fd()).collect::<Vec<_>>();
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
        books.space.seal();
        let file = create(&self.shared.dir, books.space.limit_bytes())
            .map_err(|error| self.shared.io("making a file for a child process", &error))?;
        books.files.push(Arc::new(file));
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
                let file = &self.files[usize::from(home.file) - 1];
                let (offset, len) = ((first * sector_bytes) as u64, sectors * sector_bytes);
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

    /// Allocates sectors and reserves their blocks.
    fn allocate(
        self: &Arc<Self>,
        locs: &mut [Loc],
        pieces: &mut Vec<Piece>,
    ) -> Result<(), StoreError> {
        let mut books = self.books();
        if books.space.allocate(locs).is_err() {
            // Chunks that are being punched out are withheld meanwhile, but they are room all the
            // same.
            drop(books);
            self.settle_clerk();
            books = self.books();
            if books.space.allocate(locs).is_err() {
                return Err(self.full(&books, false));
            }
        }
        let bare = books.settle_in(locs);
        books.pieces(locs, pieces);
        if bare.is_empty() || !self.can_reserve.load(Ordering::Relaxed) {
            return Ok(());
        }
        let file = Arc::clone(books.files.last().expect("a file of our own"));
        drop(books);
        // Another thread may do the same for a chunk at the same time, which is harmless.
        let (shared, chunks) = (Arc::clone(self), bare.clone());
        let clerk = self.clerk().map_err(|error| self.io("starting a thread", &error))?;
        let reserved = clerk.ask(move || {
            chunks.iter().take_while(|chunk| shared.reserve(&file, **chunk).is_ok()).count()
        });
        let mut books = self.books();
        bare[..reserved].iter().for_each(|chunk| books.chunks[chunk.0 as usize].reserved = true);
        if reserved == bare.len() {
            return Ok(());
        }
        let error = self.full(&books, true);
        let mut released = Vec::new();
        books.space.free(locs, &mut released);
        Shared::retire(self, books, &released);
        pieces.clear();
        Err(error)
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

    /// Reserves the blocks of a chunk. Fails only if there are none left.
    fn reserve(&self, file: &File, chunk: ChunkNo) -> Result<(), Errno> {
        let offset = u64::from(chunk.0) * CHUNK_BYTES as u64;
        loop {
            match fallocate(file, FallocateFlags::KEEP_SIZE, offset, CHUNK_BYTES as u64) {
                Err(Errno::INTR) => {}
                Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(error),
                Err(_) => {
                    // Then a full disk is only detected when a write fails, which ends the program.
                    self.can_reserve.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Handles chunks that became empty: keeps some with their blocks, and punches the last ones
    /// out of the file.
    fn retire(shared: &Arc<Shared>, mut books: MutexGuard<'_, Books>, released: &[ChunkNo]) {
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
        let file = Arc::clone(books.files.last().expect("a file of our own"));
        drop(books);
        let with = Arc::clone(shared);
        let punch = move || with.punch(&file, &cold);
        match shared.clerk() {
            Ok(clerk) => clerk.leave(punch),
            // No thread can be started: punching here would wait for this thread's own writes. The
            // blocks stay withheld.
            Err(_) => drop(punch),
        }
    }

    /// Gives the blocks of chunks back to the file system.
    fn punch(&self, file: &File, cold: &[ChunkNo]) {
        for neighbours in cold.chunk_by(|upper, lower| lower.0 + 1 == upper.0) {
            let (first, chunks) = (neighbours[neighbours.len() - 1], neighbours.len());
            let (offset, len) =
                (u64::from(first.0) * CHUNK_BYTES as u64, (chunks * CHUNK_BYTES) as u64);
            // If the file system cannot do that, the blocks stay until they are reused.
            let _ = fallocate(
                file,
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
                Some(libc::ENOSPC | libc::EDQUOT) => self.shared.full(&self.shared.books(), true),
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
