//! Which chunks of the server's memory are used by which session.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use hiroma_far_wire::CHUNK;
use hiroma_sys::hugepool::{HugePool, PoolRange};

/// Free chunks of one session that keep their memory, for its next request.
const WARM_CHUNKS_MAX: usize = 64;
/// Free chunks that are populated in advance: populating one can take milliseconds, in a virtual
/// machine ten of them, and a client that writes waits for all of it.
const READY_CHUNKS: usize = 32;

/// The memory of a server.
pub struct Pool {
    pub memory: HugePool,
    books: Mutex<Books>,
    /// Signalled when a ready chunk was taken.
    taken: Condvar,
    total: usize,
    /// No chunk is lent any more.
    closed: AtomicBool,
}

struct Books {
    /// Chunks that are not populated.
    cold: Vec<u32>,
    /// Populated chunks of zeros.
    ready: Vec<u32>,
    /// The chunk that is being populated. It may be taken all the same.
    preparing: Option<u32>,
    /// Chunks from here on have never been used.
    untouched: u32,
    /// Chunks that were freed by a session and still contain its data: only that session may get
    /// them without clearing.
    warm: BTreeMap<u64, Vec<u32>>,
    used: usize,
    reserved: usize,
}

/// One chunk on loan; it is returned on drop.
pub struct Chunk {
    pool: Arc<Pool>,
    number: u32,
    owner: u64,
}

/// Usage of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Chunks that contain data.
    pub used: usize,
    /// Chunks reserved for sessions.
    pub reserved: usize,
    /// Total number of chunks.
    pub total: usize,
}

impl Pool {
    pub fn new(chunks: usize) -> io::Result<Arc<Pool>> {
        let books = Books {
            cold: Vec::new(),
            ready: Vec::new(),
            preparing: None,
            untouched: 0,
            warm: BTreeMap::new(),
            used: 0,
            reserved: 0,
        };
        Ok(Arc::new(Pool {
            memory: HugePool::new(chunks * CHUNK)?,
            books: Mutex::new(books),
            taken: Condvar::new(),
            total: chunks,
            closed: AtomicBool::new(false),
        }))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn usage(&self) -> PoolUsage {
        let books = self.books();
        PoolUsage { used: books.used, reserved: books.reserved, total: self.total }
    }

    /// Lends no more chunks than are reserved, or lends others again.
    pub fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Reserves up to `asked` chunks: at most half of what is left (but one if there is one), so
    /// that other sessions get some too.
    pub fn reserve(&self, asked: usize) -> usize {
        if self.is_closed() {
            return 0;
        }
        let mut books = self.books();
        let left = self.total - books.used - books.reserved;
        let granted = asked.min(left.div_ceil(2));
        books.reserved += granted;
        granted
    }

    /// Releases chunks that were reserved and not used.
    pub fn unreserve(&self, chunks: usize) {
        self.books().reserved -= chunks;
    }

    /// A chunk for session `owner`, from its reservation if `reserved`. Its content is zeros or the
    /// owner's own data.
    pub fn take(self: &Arc<Self>, owner: u64, reserved: bool) -> Option<Chunk> {
        let (number, foreign) = {
            let mut books = self.books();
            if reserved {
                books.reserved -= 1;
            } else if self.is_closed() || books.used + books.reserved >= self.total {
                return None;
            }
            books.used += 1;
            books.pick(owner, self.total)
        };
        self.taken.notify_one();
        let chunk = Chunk { pool: Arc::clone(self), number, owner };
        if foreign {
            self.memory
                .discard(chunk.range(0, CHUNK))
                .expect("the kernel takes back memory of our own mapping");
        }
        Some(chunk)
    }

    /// Populates some free chunks in advance, until `stopping` is set and [`Pool::wake`] was
    /// called.
    pub fn keep_ready(&self, stopping: &AtomicBool) {
        let mut books = self.books();
        while !stopping.load(Ordering::SeqCst) {
            let Some(number) = books.begin_preparing(self.total) else {
                books = self.taken.wait(books).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(books);
            // Not supported by kernels before 5.14; the chunk then gets its memory when it is
            // filled.
            let _ = self.memory.populate(PoolRange { at: number as usize * CHUNK, len: CHUNK });
            books = self.books();
            let ready = books.preparing.take();
            books.ready.extend(ready);
        }
    }

    /// Makes [`Pool::keep_ready`] check whether it must stop.
    pub fn wake(&self) {
        let _books = self.books();
        self.taken.notify_all();
    }

    /// Discards the content of a session's free chunks when the session is gone.
    pub fn cool(&self, owner: u64) {
        let warm = self.books().warm.remove(&owner).unwrap_or_default();
        for &number in &warm {
            self.discard(number);
        }
        self.books().cold.extend(warm);
    }

    fn discard(&self, number: u32) {
        let range = PoolRange { at: number as usize * CHUNK, len: CHUNK };
        self.memory.discard(range).expect("the kernel takes back memory of our own mapping");
    }

    fn give_back(&self, number: u32, owner: u64) {
        {
            let mut books = self.books();
            let warm = books.warm.entry(owner).or_default();
            if warm.len() < WARM_CHUNKS_MAX {
                warm.push(number);
                books.used -= 1;
                return;
            }
        }
        self.discard(number);
        let mut books = self.books();
        books.cold.push(number);
        books.used -= 1;
    }
}

impl Books {
    /// A free chunk (there is one), and whether it still contains data of another session.
    fn pick(&mut self, owner: u64, total: usize) -> (u32, bool) {
        if let Some(number) = self.warm.get_mut(&owner).and_then(Vec::pop) {
            return (number, false);
        }
        let zeros = self.ready.pop().or_else(|| self.bare(total)).or_else(|| self.preparing.take());
        if let Some(number) = zeros {
            return (number, false);
        }
        let number = self.warm.values_mut().find_map(Vec::pop);
        (number.expect("the counts say that a chunk is free"), true)
    }

    /// A free chunk that is not populated.
    fn bare(&mut self, total: usize) -> Option<u32> {
        self.cold.pop().or_else(|| {
            let number = self.untouched;
            self.untouched += u32::from((number as usize) < total);
            (self.untouched > number).then_some(number)
        })
    }

    /// A chunk to be populated, if there are too few ready ones.
    fn begin_preparing(&mut self, total: usize) -> Option<u32> {
        if self.ready.len() < READY_CHUNKS {
            self.preparing = self.bare(total);
        }
        self.preparing
    }
}

impl Chunk {
    /// A range of the chunk.
    pub fn range(&self, at: usize, len: usize) -> PoolRange {
        assert!(at <= CHUNK && len <= CHUNK - at, "outside the chunk");
        PoolRange { at: self.number as usize * CHUNK + at, len }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.pool.give_back(self.number, self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_never_lends_more_chunks_than_it_has() {
        let pool = Pool::new(4).unwrap();
        assert_eq!(pool.reserve(10), 2);
        let first = [pool.take(1, true).unwrap(), pool.take(1, true).unwrap()];
        let rest = [pool.take(2, false).unwrap(), pool.take(2, false).unwrap()];
        assert!(pool.take(1, false).is_none() && pool.reserve(1) == 0);
        drop(rest);
        assert_eq!(pool.usage(), PoolUsage { used: 2, reserved: 0, total: 4 });
        assert_eq!(pool.reserve(1), 1);
        let last = pool.take(3, false).unwrap();
        assert!(pool.take(3, false).is_none(), "one is set aside");
        pool.unreserve(1);
        drop((first, last));
        assert_eq!(pool.usage(), PoolUsage { used: 0, reserved: 0, total: 4 });
        assert_eq!(pool.reserve(1), 1);
        pool.set_closed(true);
        assert!(pool.take(1, false).is_none() && pool.reserve(1) == 0, "nothing new");
        drop(pool.take(1, true).expect("what was promised"));
        pool.set_closed(false);
        assert!(pool.take(1, false).is_some());
    }

    #[test]
    fn prepared_chunks_are_lent_like_others() {
        let (pool, stopping) = (Pool::new(2 * READY_CHUNKS).unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| pool.keep_ready(&stopping));
            for _ in 0..20 {
                let lent: Vec<Chunk> =
                    (0..2 * READY_CHUNKS).map(|_| pool.take(1, false).unwrap()).collect();
                let mut numbers: Vec<u32> = lent.iter().map(|chunk| chunk.number).collect();
                numbers.sort_unstable();
                numbers.dedup();
                assert!(
                    numbers.len() == 2 * READY_CHUNKS && pool.take(1, false).is_none(),
                    "each is lent once"
                );
                drop(lent);
                pool.cool(1);
            }
            stopping.store(true, Ordering::SeqCst);
            pool.wake();
        });
    }

    #[test]
    fn session_never_sees_data_of_another() {
        use std::io::{Read, Write};
        use std::os::fd::AsFd;
        let pool = Pool::new(1).unwrap();
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let first = pool.take(1, false).unwrap();
        ours.write_all(b"secret").unwrap();
        pool.memory.receive(theirs.as_fd(), first.range(0, 6), &mut [], true).unwrap();
        drop(first);
        let mut seen = [0; 6];
        for (owner, expected) in [(1, b"secret"), (2, &[0; 6])] {
            let chunk = pool.take(owner, false).unwrap();
            pool.memory.send(theirs.as_fd(), b"", chunk.range(0, 6)).unwrap();
            ours.read_exact(&mut seen).unwrap();
            assert_eq!(&seen, expected);
        }
    }
}
