//! The store `file:DIR`: one sparse file that has no name, read and written past the page cache where the file system allows it.
//!
//! Sectors lie where [`Space`] puts them. The blocks of a chunk are reserved before it is first written, so that a full disk is
//! known when a write starts and another store can take it; chunks that become empty are punched out of the file again,
//! except for a few that are kept for the next to come.
//!
//! Forks: the child goes on reading the parent's file, in which nothing of before the fork changes until the parent's guard is
//! dropped, and makes a file of its own for what it writes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hiroma_kernel::frame::FrameBuf;
use hiroma_kernel::uring::{Direction, Finished, Piece};
use hiroma_units::{Bytes, Loc};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, StatxFlags, fallocate, fcntl_getfl, fcntl_setfl, fstatvfs, ftruncate, openat, statx,
    unlinkat,
};
use rustix::io::Errno;

use super::file_io::{Mover, Pool};
use super::space::{CHUNK_BYTES, ChunkNo, FreezeId, Space, chunk_of, runs};
use super::{Channel, Completion, ForkGuard, Purpose, Store, StoreError, StoreUsage, Token};

/// Empty chunks that keep their blocks on disk.
const WARM_CHUNKS_MAX: usize = 32;

/// One file as a store. See the module's text.
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
    /// The file system can reserve blocks.
    can_reserve: AtomicBool,
}

struct Books {
    space: Space,
    /// The file of this process is the last one, the others are of its ancestors.
    files: Vec<Arc<File>>,
    chunks: Vec<ChunkHome>,
    /// Empty chunks of our own file that still have their blocks.
    warm: BTreeSet<u32>,
}

/// Where a chunk is.
#[derive(Clone, Copy, Default)]
struct ChunkHome {
    /// One more than the number of its file; 0: none yet.
    file: u16,
    /// Its blocks are reserved.
    reserved: bool,
}

impl FileStore {
    /// A store in `dir` of at most `capacity_bytes`; without that, of what is free there, less a twentieth.
    pub fn new(dir: &Path, sector_bytes: usize, capacity_bytes: Option<u64>) -> Result<FileStore, StoreError> {
        FileStore::with_engine(dir, sector_bytes, capacity_bytes, true)
    }

    /// The same; without `use_ring`, with threads although io_uring may be allowed.
    pub fn with_engine(dir: &Path, sector_bytes: usize, capacity_bytes: Option<u64>, use_ring: bool) -> Result<FileStore, StoreError> {
        let name = format!("file:{}", dir.display());
        let config = |reason: String| StoreError::Config { store: name.clone(), reason };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, dir, flags, Mode::empty())
            .map_err(|error| config(format!("it cannot be used ({error}): name a directory that exists, as in file:/var/tmp")))?;
        let capacity_bytes = match capacity_bytes {
            Some(bytes) => bytes,
            None => free_bytes(&dir)
                .map_err(|error| config(format!("its free space is not known ({error}): say how much to use, as in file:/var/tmp:20G")))?,
        };
        let space = Space::new(sector_bytes, capacity_bytes);
        if space.limit_bytes() == 0 {
            return Err(config(format!("there is room for {} only: free some, or name another directory", Bytes(capacity_bytes))));
        }
        let file = create(&dir, space.limit_bytes())
            .map_err(|error| config(format!("no file can be made there ({error}): name a directory that you may write to")))?;
        let books = Books { space, files: vec![Arc::new(file)], chunks: Vec::new(), warm: BTreeSet::new() };
        let shared = Shared {
            name,
            sector_bytes,
            dir,
            books: Mutex::new(books),
            use_ring,
            pool: Mutex::new(None),
            can_reserve: AtomicBool::new(true),
        };
        Ok(FileStore { shared: Arc::new(shared) })
    }
}

/// What is free for us in the file system of `dir`, less a twentieth.
fn free_bytes(dir: &OwnedFd) -> io::Result<u64> {
    let stat = fstatvfs(dir)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize) / 20 * 19)
}

/// Makes a sparse file of `len` bytes that has no name, for direct IO if possible.
fn create(dir: &OwnedFd, len: u64) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    let unnamed = |extra: OFlags| openat(dir, ".", OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE | OFlags::EXCL | extra, mode);
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

/// For file systems that know no unnamed files.
fn create_and_unlink(dir: &OwnedFd, extra: OFlags) -> rustix::io::Result<OwnedFd> {
    let name = format!(".hiroma-{}-{:x}", std::process::id(), hiroma_kernel::cpu::now_ns());
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | extra;
    let file = openat(dir, &name, flags, Mode::RUSR | Mode::WUSR);
    // Where O_DIRECT is refused the file may have been made all the same.
    let _ = unlinkat(dir, &name, AtFlags::empty());
    file
}

/// Whether direct IO of pages works, as far as the kernel (Linux 6.1) can tell.
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

    fn open(&self, _purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let mover = shared.mover().map_err(|error| shared.io("opening a channel", &error))?;
        Ok(Box::new(FileChannel { shared, mover, pieces: Vec::new(), finished: Vec::new(), writes: Vec::new() }))
    }

    fn free(&self, locs: &[Loc]) {
        let mut books = self.shared.books();
        let mut released = Vec::new();
        books.space.free(locs, &mut released);
        self.shared.retire(books, &released);
    }

    fn usage(&self) -> StoreUsage {
        let books = self.shared.books();
        let tables = books.chunks.capacity() * size_of::<ChunkHome>();
        StoreUsage {
            far_bytes: books.space.live_bytes(),
            stored_bytes: books.space.kept_bytes(),
            capacity_bytes: books.space.limit_bytes(),
            metadata_bytes: books.space.metadata_bytes() + tables as u64,
            local_bytes: 0,
        }
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        let freeze = self.shared.books().space.freeze();
        Ok(Box::new(Frozen { shared: Arc::clone(&self.shared), freeze }))
    }
}

/// A fork that reads what was there before it.
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
        self.shared.retire(books, &released);
    }
}

impl Books {
    /// Where the bytes of `locs` are, in as few pieces as possible.
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
                        if Arc::ptr_eq(&last.file, file) && last.offset + last.len as u64 == offset && last.start + last.len == start =>
                    {
                        last.len += len;
                    }
                    _ => out.push(Piece { file: Arc::clone(file), offset, start, len }),
                }
                (first, left, start) = (first + sectors, left - sectors, start + len);
            }
        }
    }

    /// Notes that `locs` were allocated; the chunks among them that have no blocks yet.
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
            if home.file == 0 {
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

    fn mover(&self) -> io::Result<Mover> {
        if self.use_ring {
            if let Ok(mover) = Mover::ring() {
                return Ok(mover);
            }
        }
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.is_none() {
            *pool = Some(Arc::new(Pool::start()?));
        }
        Mover::threads(Arc::clone(pool.as_ref().expect("just made")))
    }

    /// Takes sectors and reserves their blocks.
    fn allocate(&self, locs: &mut [Loc], pieces: &mut Vec<Piece>) -> Result<(), StoreError> {
        let mut books = self.books();
        if books.space.allocate(locs).is_err() {
            return Err(self.full(&books, false));
        }
        let bare = books.settle_in(locs);
        books.pieces(locs, pieces);
        if bare.is_empty() || !self.can_reserve.load(Ordering::Relaxed) {
            return Ok(());
        }
        let file = Arc::clone(books.files.last().expect("a file of our own"));
        drop(books);
        // Another thread may do the same for a chunk at the same time, which does no harm.
        let reserved = bare.iter().take_while(|chunk| self.reserve(&file, **chunk).is_ok()).count();
        let mut books = self.books();
        bare[..reserved].iter().for_each(|chunk| books.chunks[chunk.0 as usize].reserved = true);
        if reserved == bare.len() {
            return Ok(());
        }
        let error = self.full(&books, true);
        let mut released = Vec::new();
        books.space.free(locs, &mut released);
        self.retire(books, &released);
        pieces.clear();
        Err(error)
    }

    /// Reserves the blocks of a chunk; an error only if there are none left.
    fn reserve(&self, file: &File, chunk: ChunkNo) -> Result<(), Errno> {
        let offset = u64::from(chunk.0) * CHUNK_BYTES as u64;
        loop {
            match fallocate(file, FallocateFlags::KEEP_SIZE, offset, CHUNK_BYTES as u64) {
                Err(Errno::INTR) => {}
                Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(error),
                Err(_) => {
                    // Then a full disk shows only when a write fails, which ends the program.
                    self.can_reserve.store(false, Ordering::Relaxed);
                    return Ok(());
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Deals with chunks that became empty: keeps some with their blocks, and punches the last ones out of the file.
    fn retire(&self, mut books: MutexGuard<'_, Books>, released: &[ChunkNo]) {
        let own = books.files.len() as u16;
        for chunk in released {
            let home = &mut books.chunks[chunk.0 as usize];
            if home.file == own && home.reserved {
                books.warm.insert(chunk.0);
            } else if home.file == own && !self.can_reserve.load(Ordering::Relaxed) {
                // Blocks that came by being written are blocks too.
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
        for neighbours in cold.chunk_by(|upper, lower| lower.0 + 1 == upper.0) {
            let (first, chunks) = (neighbours[neighbours.len() - 1], neighbours.len());
            let (offset, len) = (u64::from(first.0) * CHUNK_BYTES as u64, (chunks * CHUNK_BYTES) as u64);
            // Where the file system cannot, the blocks stay until they are used again.
            let _ = fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len);
        }
        let mut books = self.books();
        for chunk in cold {
            books.chunks[chunk.0 as usize] = ChunkHome::default();
            books.space.reopen(chunk);
        }
    }

    fn full(&self, books: &Books, is_disk_full: bool) -> StoreError {
        let store = if is_disk_full { format!("{} (no space is left on its file system)", self.name) } else { self.name.clone() };
        StoreError::Full { store, used: Bytes(books.space.kept_bytes()), capacity: Bytes(books.space.limit_bytes()) }
    }

    fn io(&self, doing: &'static str, error: &io::Error) -> StoreError {
        StoreError::Io { store: self.name.clone(), doing, source_text: format!("{error}; `dmesg` may say more about the disk") }
    }
}

struct FileChannel {
    shared: Arc<Shared>,
    mover: Mover,
    pieces: Vec<Piece>,
    finished: Vec<Finished>,
    /// Tokens of writes under way, for messages.
    writes: Vec<Token>,
}

impl Channel for FileChannel {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        assert_eq!(buf.len(), locs.len() * self.shared.sector_bytes, "the buffer is as long as the sectors");
        self.shared.books().pieces(locs, &mut self.pieces);
        self.mover.start(token.0, Direction::Read, buf, &mut self.pieces);
    }

    fn write(&mut self, token: Token, buf: FrameBuf, locs: &mut [Loc]) -> Result<(), (FrameBuf, StoreError)> {
        assert_eq!(buf.len(), locs.len() * self.shared.sector_bytes, "the buffer is as long as the sectors");
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
            let write = self.writes.iter().position(|&write| write == token).map(|index| self.writes.swap_remove(index));
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
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;
    use crate::store::model::{buf_with, check, check_concurrently, content, ops, read_now, wait, write_now};

    /// A directory of a real disk, and one of a file system in memory.
    fn dirs() -> [tempfile::TempDir; 2] {
        ["/var/tmp", "/dev/shm"].map(|dir| tempfile::tempdir_in(dir).unwrap())
    }

    fn store(sector_bytes: usize, capacity_bytes: u64) -> FileStore {
        FileStore::new(Path::new("/var/tmp"), sector_bytes, Some(capacity_bytes)).unwrap()
    }

    fn blocks_bytes(store: &FileStore) -> u64 {
        store.shared.books().files.last().unwrap().metadata().unwrap().blocks() * 512
    }

    /// What fork does to a store: the same open files, and memory of its own.
    fn forked(parent: &FileStore) -> FileStore {
        let books = parent.shared.books();
        let (files, chunks, warm) = (books.files.clone(), books.chunks.clone(), books.warm.clone());
        let shared = Shared {
            name: parent.shared.name.clone(),
            sector_bytes: parent.shared.sector_bytes,
            dir: parent.shared.dir.try_clone().unwrap(),
            books: Mutex::new(Books { space: books.space.clone(), files, chunks, warm }),
            use_ring: parent.shared.use_ring,
            pool: Mutex::new(None),
            can_reserve: AtomicBool::new(true),
        };
        FileStore { shared: Arc::new(shared) }
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_refused_with_advice() {
        let error = FileStore::new(Path::new("/nowhere/at/all"), 8192, None).err().unwrap();
        assert!(error.to_string().contains("name a directory that exists"), "{error}");
        let error = FileStore::new(Path::new("/proc"), 8192, Some(1 << 20)).err().unwrap();
        assert!(error.to_string().contains("may write to"), "{error}");
        let error = FileStore::new(Path::new("/var/tmp"), 8192, Some(100)).err().unwrap();
        assert!(error.to_string().contains("100B only"), "{error}");
    }

    #[test]
    fn nothing_is_left_in_the_directory_even_while_it_is_in_use() {
        for dir in dirs() {
            let store = FileStore::new(dir.path(), 8192, Some(1 << 20)).unwrap();
            let mut channel = store.open(Purpose::Write).unwrap();
            write_now(&mut *channel, &content(3, 8192), 1).unwrap();
            let _named = create_and_unlink(&store.shared.dir, OFlags::empty()).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn neighbouring_sectors_are_moved_in_one_piece() {
        let store = store(8192, 64 << 20);
        let (mut locs, mut pieces) = (vec![Loc(0); 700], Vec::new());
        store.shared.allocate(&mut locs, &mut pieces).unwrap();
        assert_eq!(pieces.len(), 1);
        pieces.clear();
        store.shared.books().pieces(&[locs[3], locs[4], locs[9], locs[8]], &mut pieces);
        let lens: Vec<usize> = pieces.iter().map(|piece| piece.len).collect();
        assert_eq!(lens, [16384, 8192, 8192]);
    }

    #[test]
    fn many_requests_under_way_at_once_all_complete() {
        for use_ring in [true, false] {
            let store = FileStore::with_engine(Path::new("/var/tmp"), 4096, Some(64 << 20), use_ring).unwrap();
            let mut channel = store.open(Purpose::Write).unwrap();
            let mut all = Vec::new();
            for index in 0..500 {
                let mut locs = [Loc(0)];
                channel.write(Token(index), buf_with(&content(index * 4 + 3, 4096)), &mut locs).unwrap();
                all.push(locs[0]);
            }
            assert_eq!(channel.in_flight(), 500);
            let mut bufs = Vec::new();
            while channel.in_flight() > 0 {
                bufs.extend(wait(&mut *channel).into_iter().map(|done| (done.result.unwrap(), done.buf).1));
            }
            for (index, mut buf) in bufs.into_iter().enumerate() {
                buf.bytes_mut().fill(0);
                channel.read(Token(index as u64), &all[index..=index], buf);
            }
            while channel.in_flight() > 0 {
                for done in wait(&mut *channel) {
                    assert!(done.buf.bytes() == content(done.token.0 * 4 + 3, 4096));
                }
            }
        }
    }

    #[test]
    fn emptied_chunks_are_punched_out_of_the_file() {
        let store = store(64 << 10, 256 << 20);
        let mut channel = store.open(Purpose::Write).unwrap();
        let locs: Vec<Loc> = (0..80).flat_map(|seed| write_now(&mut *channel, &content(seed, 2 << 20), 32).unwrap()).collect();
        assert!(blocks_bytes(&store) >= 160 << 20);
        store.free(&locs[..2400]);
        assert!(blocks_bytes(&store) <= (WARM_CHUNKS_MAX as u64 + 5 + 1) << 21, "{} bytes are left", blocks_bytes(&store));
        assert_eq!(read_now(&mut *channel, &locs[2400..2560], 64 << 10).unwrap().len(), 160 << 16);
        let again = write_now(&mut *channel, &content(99, 2 << 20), 32).unwrap();
        assert!(read_now(&mut *channel, &again, 64 << 10).unwrap() == content(99, 2 << 20));
    }

    #[test]
    fn after_a_fork_both_sides_keep_what_there_was_and_write_apart() {
        let parent = store(8192, 16 << 20);
        let mut channel = parent.open(Purpose::Write).unwrap();
        let before = write_now(&mut *channel, &content(3, 8192 * 100), 100).unwrap();
        let guard = parent.prepare_fork().unwrap();
        let child = forked(&parent);
        let freeze = child.shared.books().space.freeze();
        let adopted = Frozen { shared: Arc::clone(&child.shared), freeze };
        adopted.adopt().unwrap();
        let mut child_channel = child.open(Purpose::Read).unwrap();

        // The parent replaces all it has, and fills the room it has left; the child does as much.
        parent.free(&before);
        let mut parents = Vec::new();
        while let Some(locs) = write_now(&mut *channel, &content(7, 8192 * 10), 10) {
            parents.push(locs);
        }
        let childs: Vec<_> = (0..50).map(|seed| (seed, write_now(&mut *child_channel, &content(seed, 8192 * 10), 10).unwrap())).collect();
        assert!(read_now(&mut *child_channel, &before, 8192).unwrap() == content(3, 8192 * 100));
        for (seed, locs) in &childs {
            assert!(read_now(&mut *child_channel, locs, 8192).unwrap() == content(*seed, 8192 * 10));
        }
        for locs in &parents {
            assert!(read_now(&mut *channel, locs, 8192).unwrap() == content(7, 8192 * 10));
        }
        child.free(&before);
        drop((adopted, child_channel, child));
        assert!(write_now(&mut *channel, &content(7, 8192 * 10), 10).is_none());
        drop(guard);
        assert!(write_now(&mut *channel, &content(7, 8192 * 10), 10).is_some());
    }

    /// A file system in memory of 8 MiB that goes away with the value; `None` without the right to mount.
    struct TinyDisk(PathBuf);

    impl TinyDisk {
        fn mount() -> Option<TinyDisk> {
            let dir = tempfile::tempdir().unwrap().keep();
            let output = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "hiroma-test"]).arg(&dir).output();
            match output {
                Ok(output) if output.status.success() => return Some(TinyDisk(dir)),
                Ok(output) => println!("skipped: mounting is not allowed here: {}", String::from_utf8_lossy(&output.stderr).trim()),
                Err(error) => println!("skipped: there is no mount command here: {error}"),
            }
            std::fs::remove_dir(dir).unwrap();
            None
        }
    }

    impl Drop for TinyDisk {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
            let _ = std::fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn a_full_disk_is_told_when_a_write_starts_and_loses_nothing() {
        let Some(disk) = TinyDisk::mount() else { return };
        let store = FileStore::new(&disk.0, 8192, Some(64 << 20)).unwrap();
        let mut channel = store.open(Purpose::Write).unwrap();
        let mut written = Vec::new();
        let error = loop {
            let (bytes, mut locs) = (content(written.len() as u64 * 4 + 3, 64 << 10), [Loc(0); 8]);
            match channel.write(Token(0), buf_with(&bytes), &mut locs) {
                Ok(()) => wait(&mut *channel).pop().unwrap().result.unwrap(),
                Err((buf, error)) => {
                    assert!(buf.bytes() == bytes);
                    break error;
                }
            }
            written.push((locs, bytes));
        };
        assert!(matches!(error, StoreError::Full { .. }) && error.to_string().contains("no space is left on its file system"), "{error}");
        assert!(written.len() >= 96, "{} of 128 writes fit", written.len());
        assert_eq!(store.usage().far_bytes, written.len() as u64 * 65536);
        for (locs, bytes) in &written {
            assert!(read_now(&mut *channel, locs, 8192).unwrap() == *bytes);
        }
        store.free(&written[0].0);
        assert!(write_now(&mut *channel, &written[1].1, 8).is_some(), "what was freed is used again");
    }

    #[test]
    fn without_a_capacity_most_of_the_free_space_is_used() {
        let Some(disk) = TinyDisk::mount() else { return };
        let store = FileStore::new(&disk.0, 8192, None).unwrap();
        assert!((7 << 20..8 << 20).contains(&store.usage().capacity_bytes), "{:?}", store.usage());
    }

    #[test]
    fn threads_with_channels_of_their_own_do_not_disturb_each_other() {
        for use_ring in [true, false] {
            for dir in dirs() {
                check_concurrently(&FileStore::with_engine(dir.path(), 8192, Some(16 << 20), use_ring).unwrap(), 8192, 3, 200);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn it_holds_what_a_naive_map_holds(ops in ops(20, 60), shift in 12u32..18, capacity in 1u64..16, use_ring: bool) {
            for dir in dirs() {
                check(&FileStore::with_engine(dir.path(), 1 << shift, Some(capacity << 20), use_ring).unwrap(), 1 << shift, &ops);
            }
        }
    }
}
