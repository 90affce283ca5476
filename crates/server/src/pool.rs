//! Who has which chunk of the server's memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hiroma_kernel::hugepool::{HugePool, PoolRange};
use hiroma_wire::CHUNK;

/// Free chunks of one session that keep their memory, for the next time it needs one.
const WARM_CHUNKS_MAX: usize = 64;

/// The memory of a server.
pub struct Pool {
    pub memory: HugePool,
    books: Mutex<Books>,
    total: usize,
}

struct Books {
    /// Chunks that have no memory behind them.
    cold: Vec<u32>,
    /// Chunks from here on have never been used.
    untouched: u32,
    /// Chunks that were given back by a session and still hold its bytes: only that session may get them as they are.
    warm: BTreeMap<u64, Vec<u32>>,
    used: usize,
    reserved: usize,
}

/// One chunk on loan; it goes back when this is dropped.
pub struct Chunk {
    pool: Arc<Pool>,
    number: u32,
    owner: u64,
}

/// What of the pool is where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Chunks that hold something.
    pub used: usize,
    /// Chunks set aside for sessions.
    pub reserved: usize,
    /// All of them.
    pub total: usize,
}

impl Pool {
    pub fn new(chunks: usize) -> io::Result<Arc<Pool>> {
        let books = Books { cold: Vec::new(), untouched: 0, warm: BTreeMap::new(), used: 0, reserved: 0 };
        Ok(Arc::new(Pool { memory: HugePool::new(chunks * CHUNK)?, books: Mutex::new(books), total: chunks }))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn usage(&self) -> PoolUsage {
        let books = self.books();
        PoolUsage { used: books.used, reserved: books.reserved, total: self.total }
    }

    /// Sets aside up to `asked` chunks: at most half of what is left (but one if there is one), so that others get something too.
    pub fn reserve(&self, asked: usize) -> usize {
        let mut books = self.books();
        let left = self.total - books.used - books.reserved;
        let granted = asked.min(left.div_ceil(2));
        books.reserved += granted;
        granted
    }

    /// Gives back what was set aside and not used.
    pub fn unreserve(&self, chunks: usize) {
        self.books().reserved -= chunks;
    }

    /// A chunk for session `owner`, out of what was set aside for it if `reserved`. Its content is zeros or the owner's own.
    pub fn take(self: &Arc<Self>, owner: u64, reserved: bool) -> Option<Chunk> {
        let (number, foreign) = {
            let mut books = self.books();
            if reserved {
                books.reserved -= 1;
            } else if books.used + books.reserved >= self.total {
                return None;
            }
            books.used += 1;
            books.pick(owner, self.total)
        };
        let chunk = Chunk { pool: Arc::clone(self), number, owner };
        if foreign {
            self.memory.discard(chunk.range(0, CHUNK)).expect("the kernel takes back memory of our own mapping");
        }
        Some(chunk)
    }

    /// Forgets the content of a session's free chunks: it is gone.
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
    /// A free chunk (there is one), and whether it still holds somebody else's bytes.
    fn pick(&mut self, owner: u64, total: usize) -> (u32, bool) {
        if let Some(number) = self.warm.get_mut(&owner).and_then(Vec::pop) {
            return (number, false);
        }
        if let Some(number) = self.cold.pop() {
            return (number, false);
        }
        if (self.untouched as usize) < total {
            self.untouched += 1;
            return (self.untouched - 1, false);
        }
        let number = self.warm.values_mut().find_map(Vec::pop);
        (number.expect("the counts say that a chunk is free"), true)
    }
}

impl Chunk {
    /// A stretch of the chunk.
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
    fn no_more_chunks_are_lent_than_there_are() {
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
    }

    #[test]
    fn a_session_never_sees_what_another_one_left() {
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
