//! Which chunks of the server's memory are used by which session.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use hiroma_far_wire::CHUNK;
use hiroma_policy::lending::share::{Grant, Lent, grant, grant_while_short};
use hiroma_sys::hugepool::{HugePool, PoolRange};

use crate::chunk::Chunk;
use crate::session::lock;
use crate::spill::{Filed, Spill};
use crate::tenant::Tenant;
use crate::turns::{Turn, Turns};

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
    /// Weights of the tenants that have sessions.
    weights: AtomicU64,
    turns: Turns,
    /// Chunks on loan.
    listed: Mutex<HashMap<u64, Weak<Chunk>>>,
    next_id: AtomicU64,
    /// For chunks that there is no memory for.
    spill: Option<Spill>,
    start: Instant,
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
    /// them without clearing. There is an entry for each session that is there.
    warm: BTreeMap<u64, Vec<u32>>,
    used: usize,
    reserved: usize,
    /// Chunks whose content is in the file.
    filed: usize,
    /// Chunks that may have memory.
    allowed: usize,
    /// Memory is short: no free chunk keeps any.
    is_short: bool,
    /// How often it has become short.
    shortages: u64,
}

/// Usage of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Chunks that contain data, in memory.
    pub used: usize,
    /// The same, in the file.
    pub filed: usize,
    /// Chunks reserved for sessions.
    pub reserved: usize,
    /// Total number of chunks.
    pub total: usize,
}

impl PoolUsage {
    /// Chunks that can be lent.
    pub fn free(&self) -> usize {
        self.total - self.used - self.filed - self.reserved
    }
}

impl Pool {
    pub fn new(chunks: usize, spill: Option<Spill>) -> io::Result<Arc<Pool>> {
        let books = Books {
            cold: Vec::new(),
            ready: Vec::new(),
            preparing: None,
            untouched: 0,
            warm: BTreeMap::new(),
            used: 0,
            reserved: 0,
            filed: 0,
            allowed: chunks,
            is_short: false,
            shortages: 0,
        };
        Ok(Arc::new(Pool {
            memory: HugePool::new(chunks * CHUNK)?,
            books: Mutex::new(books),
            taken: Condvar::new(),
            total: chunks,
            closed: AtomicBool::new(false),
            weights: AtomicU64::new(0),
            turns: Turns::new(),
            listed: Mutex::default(),
            next_id: AtomicU64::new(0),
            spill,
            start: Instant::now(),
        }))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn usage(&self) -> PoolUsage {
        let Books { used, reserved, filed, allowed, .. } = *self.books();
        PoolUsage { used, filed, reserved, total: allowed.max(used + reserved) + filed }
    }

    /// Time since the start.
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    pub fn spill(&self) -> io::Result<&Spill> {
        self.spill.as_ref().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Chunks with memory: those on loan, and free ones that have kept or got theirs.
    pub fn resident(&self) -> usize {
        let books = self.books();
        books.used + books.ready.len() + books.warm.values().map(Vec::len).sum::<usize>()
    }

    /// So many chunks may have memory from now on. If memory is short, free ones give theirs up.
    pub fn allow(&self, chunks: usize, is_short: bool) {
        let mut books = self.books();
        books.shortages += u64::from(is_short && !books.is_short);
        (books.allowed, books.is_short) = (chunks.min(self.total), is_short);
        if !is_short {
            self.taken.notify_all();
            return;
        }
        drop(books);
        self.discard_each(|books| {
            books.ready.pop().or_else(|| books.warm.values_mut().find_map(Vec::pop))
        });
    }

    /// Discards the content of free chunks, with the lock held for each: a free chunk that is in no list
    /// would be missing for those whose reservations count on it.
    fn discard_each(&self, mut next: impl FnMut(&mut Books) -> Option<u32>) {
        loop {
            let mut books = self.books();
            let Some(number) = next(&mut books) else { return };
            self.discard(number);
            books.cold.push(number);
        }
    }

    pub fn is_short(&self) -> bool {
        self.books().is_short
    }

    /// Chunks on loan that are in memory, or those that are in the file; the longest unused first.
    pub fn by_age(&self, in_memory: bool) -> Vec<Arc<Chunk>> {
        let mut chunks: Vec<_> = lock(&self.listed).values().filter_map(Weak::upgrade).collect();
        chunks.retain(|chunk| chunk.is_in_memory.load(Ordering::SeqCst) == in_memory);
        chunks.sort_by_cached_key(|chunk| (chunk.used_ms(), chunk.id));
        chunks
    }

    /// The content of a chunk on loan is in the file now.
    pub fn went_to_file(&self, number: u32) {
        self.discard(number);
        let mut books = self.books();
        books.used -= 1;
        books.filed += 1;
        books.cold.push(number);
    }

    /// Memory for a chunk whose content is in the file.
    pub fn number_for_filed(&self) -> Option<u32> {
        let mut books = self.books();
        if books.used + books.reserved >= books.allowed {
            return None;
        }
        let number = books.cold.pop().or_else(|| books.bare(self.total))?;
        books.used += 1;
        books.filed -= 1;
        Some(number)
    }

    /// The content could not be brought back.
    pub fn number_unused(&self, number: u32) {
        self.went_to_file(number);
    }

    /// A chunk in the file is not needed any more.
    pub fn forget(&self, filed: &Filed) {
        if let Ok(spill) = self.spill() {
            spill.forget(filed);
        }
        self.books().filed -= 1;
    }

    pub fn unlist(&self, id: u64) {
        lock(&self.listed).remove(&id);
    }

    /// Lends no more chunks than are reserved, or lends others again.
    pub fn set_closed(&self, closed: bool) {
        self.closed.store(closed, Ordering::SeqCst);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Waits for a tenant's turn to copy.
    pub fn turn<'a>(&self, tenant: &'a Tenant) -> Turn<'a> {
        self.turns.take(tenant, self.weights.load(Ordering::Relaxed), self.now_ms())
    }

    /// A session of a tenant begins.
    pub fn enter(&self, tenant: &Tenant) {
        let _books = self.books();
        if tenant.sessions.fetch_add(1, Ordering::SeqCst) == 0 {
            self.weights.fetch_add(u64::from(tenant.weight), Ordering::SeqCst);
        }
    }

    /// A session of a tenant has ended, with so many chunks set aside.
    pub fn leave(&self, tenant: &Tenant, reserved: usize) {
        let mut books = self.books();
        books.reserved -= reserved;
        tenant.reserved.fetch_sub(reserved, Ordering::SeqCst);
        if tenant.sessions.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.weights.fetch_sub(u64::from(tenant.weight), Ordering::SeqCst);
        }
    }

    /// Reserves up to `asked` chunks for a tenant.
    pub fn reserve(&self, asked: usize, tenant: &Tenant) -> usize {
        if self.is_closed() {
            return 0;
        }
        let mut books = self.books();
        let Grant::Chunks(granted) = self.grant(&books, asked, tenant) else {
            return 0;
        };
        books.reserved += granted as usize;
        tenant.reserved.fetch_add(granted as usize, Ordering::SeqCst);
        granted as usize
    }

    fn grant(&self, books: &Books, asked: usize, tenant: &Tenant) -> Grant {
        let (asked, holding) = (asked as u64, tenant.holding());
        // There are addresses for no more, whatever the disk would take.
        let addresses = self.total - books.used - books.reserved;
        if books.is_short && self.spill.is_some() && addresses > 0 {
            let asked = asked.min(addresses as u64);
            return grant_while_short(asked, &holding, tenant.held_then(books.shortages) as u64);
        }
        grant(asked, &holding, &self.lent(books))
    }

    fn lent(&self, books: &Books) -> Lent {
        let left = books.allowed.saturating_sub(books.used + books.reserved);
        let total = books.allowed + books.filed;
        Lent {
            total: total as u64,
            left: left as u64,
            weights: self.weights.load(Ordering::SeqCst),
        }
    }

    /// A chunk for session `owner`, from its reservation if `reserved`. Its content is zeros or the
    /// owner's own data.
    pub fn take(
        self: &Arc<Self>,
        owner: u64,
        tenant: &Arc<Tenant>,
        reserved: bool,
    ) -> Result<Arc<Chunk>, Grant> {
        let (number, foreign) = {
            let mut books = self.books();
            if reserved {
                books.reserved -= 1;
                tenant.reserved.fetch_sub(1, Ordering::SeqCst);
            } else if self.is_closed() {
                return Err(Grant::Full);
            } else {
                match self.grant(&books, 1, tenant) {
                    Grant::Chunks(_) => {}
                    refused => return Err(refused),
                }
            }
            books.used += 1;
            tenant.used.fetch_add(1, Ordering::SeqCst);
            books.pick(owner, self.total)
        };
        self.taken.notify_one();
        if foreign {
            self.discard(number);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let chunk = Arc::new(Chunk::new(Arc::clone(self), id, number, owner, Arc::clone(tenant)));
        lock(&self.listed).insert(id, Arc::downgrade(&chunk));
        Ok(chunk)
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

    /// Free chunks of a session keep their memory from now on.
    pub fn keep_warm(&self, owner: u64) {
        self.books().warm.entry(owner).or_default();
    }

    /// Discards the content of a session's free chunks when the session is gone, and of those that
    /// somebody still holds, when they are free.
    pub fn cool(&self, owner: u64) {
        self.discard_each(|books| {
            let next = books.warm.get_mut(&owner).and_then(Vec::pop);
            if next.is_none() {
                books.warm.remove(&owner);
            }
            next
        });
    }

    fn discard(&self, number: u32) {
        let range = PoolRange { at: number as usize * CHUNK, len: CHUNK };
        self.memory.discard(range).expect("the kernel takes back memory of our own mapping");
    }

    pub fn give_back(&self, number: u32, owner: u64) {
        {
            let mut books = self.books();
            let is_short = books.is_short;
            let warm = books.warm.get_mut(&owner);
            if let Some(warm) = warm.filter(|warm| warm.len() < WARM_CHUNKS_MAX && !is_short) {
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
        let has_room = self.used + self.reserved + self.ready.len() < self.allowed;
        if self.ready.len() < READY_CHUNKS && has_room && !self.is_short {
            self.preparing = self.bare(total);
        }
        self.preparing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{Place, range};
    use crate::tenant::Quotas;

    fn tenant(name: &str, quotas: &Quotas) -> Arc<Tenant> {
        Tenant::new(1, name, [127, 0, 0, 1].into(), quotas)
    }

    fn number(chunk: &Chunk) -> u32 {
        let Place::Memory(number) = *chunk.place() else { panic!("not in memory") };
        number
    }

    #[test]
    fn pool_never_lends_more_chunks_than_it_has() {
        let pool = Pool::new(4, None).unwrap();
        let who = tenant("", &Quotas::default());
        let take = |owner, reserved| pool.take(owner, &who, reserved).ok();
        pool.enter(&who);
        assert_eq!(pool.reserve(10, &who), 2);
        let first = [take(1, true).unwrap(), take(1, true).unwrap()];
        let rest = [take(2, false).unwrap(), take(2, false).unwrap()];
        assert!(take(1, false).is_none() && pool.reserve(1, &who) == 0);
        drop(rest);
        assert_eq!(pool.usage(), PoolUsage { used: 2, filed: 0, reserved: 0, total: 4 });
        assert_eq!(pool.reserve(1, &who), 1);
        let last = take(3, false).unwrap();
        assert!(take(3, false).is_none(), "one is set aside");
        pool.leave(&who, 1);
        pool.enter(&who);
        drop((first, last));
        assert_eq!(who.held(), 0);
        assert_eq!(pool.usage(), PoolUsage { used: 0, filed: 0, reserved: 0, total: 4 });
        assert_eq!(pool.reserve(1, &who), 1);
        pool.set_closed(true);
        assert!(take(1, false).is_none() && pool.reserve(1, &who) == 0, "nothing new");
        drop(take(1, true).expect("what was promised"));
        pool.set_closed(false);
        assert!(take(1, false).is_some());
    }

    #[test]
    fn tenant_has_its_quota_and_leaves_others_their_share() {
        let pool = Pool::new(32, None).unwrap();
        let bytes = [("small".to_owned(), 3 * CHUNK as u64 + 1)].into();
        let quotas = Quotas { bytes, ..Quotas::default() };
        let (small, greedy) = (tenant("small", &quotas), tenant("greedy", &quotas));
        pool.enter(&small);
        pool.enter(&greedy);
        assert_eq!(pool.reserve(10, &small), 3);
        assert_eq!(pool.reserve(10, &small), 0);
        assert_eq!(pool.take(1, &small, false).err(), Some(Grant::Quota));
        let mut chunks = vec![pool.take(1, &small, true).unwrap()];
        assert_eq!((small.held(), small.under_quota()), (3, Some(0)));
        pool.leave(&small, 2);
        pool.enter(&small);
        assert_eq!(small.under_quota(), Some(2));
        let all = std::iter::from_fn(|| pool.take(2, &greedy, false).ok());
        chunks.extend(all);
        assert_eq!(greedy.held(), 29, "two of 32 are for others");
        chunks.push(pool.take(1, &small, false).unwrap());
        drop(chunks);
        assert_eq!((small.held(), greedy.held(), pool.usage().used), (0, 0, 0));
    }

    #[test]
    fn prepared_chunks_are_lent_like_others() {
        let (pool, stopping) = (Pool::new(2 * READY_CHUNKS, None).unwrap(), AtomicBool::new(false));
        let who = tenant("", &Quotas::default());
        pool.enter(&who);
        let take = || pool.take(1, &who, false);
        std::thread::scope(|scope| {
            scope.spawn(|| pool.keep_ready(&stopping));
            for _ in 0..20 {
                pool.keep_warm(1);
                let lent: Vec<Arc<Chunk>> =
                    (0..2 * READY_CHUNKS).map(|_| take().unwrap()).collect();
                let mut numbers: Vec<u32> = lent.iter().map(|chunk| number(chunk)).collect();
                numbers.sort_unstable();
                numbers.dedup();
                assert!(numbers.len() == 2 * READY_CHUNKS && take().is_err(), "each is lent once");
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
        let pool = Pool::new(1, None).unwrap();
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let who = tenant("", &Quotas::default());
        pool.enter(&who);
        pool.keep_warm(1);
        let first = pool.take(1, &who, false).unwrap();
        ours.write_all(b"secret").unwrap();
        pool.memory.receive(theirs.as_fd(), range(number(&first), 0, 6), &mut [], true).unwrap();
        drop(first);
        let mut seen = [0; 6];
        for (owner, expected) in [(1, b"secret"), (2, &[0; 6])] {
            let chunk = pool.take(owner, &who, false).unwrap();
            pool.memory.send(theirs.as_fd(), b"", range(number(&chunk), 0, 6), true).unwrap();
            ours.read_exact(&mut seen).unwrap();
            assert_eq!(&seen, expected);
        }
    }

    #[test]
    fn chunks_that_outlive_their_session_keep_no_memory() {
        let pool = Pool::new(4, None).unwrap();
        let who = tenant("", &Quotas::default());
        pool.enter(&who);
        pool.keep_warm(1);
        let mut chunks: Vec<_> = (0..3).map(|_| pool.take(1, &who, false).unwrap()).collect();
        drop(chunks.pop());
        assert_eq!(pool.resident(), 3, "for its next request");
        // Others may hold chunks when the session ends: whoever writes them to the file.
        pool.cool(1);
        assert_eq!(pool.resident(), 2);
        drop(chunks);
        assert_eq!((pool.resident(), pool.usage().used), (0, 0));
        assert!(pool.books().warm.is_empty());
        let all: Vec<_> = (0..4).map(|_| pool.take(2, &who, false)).collect();
        assert!(all.iter().all(Result::is_ok), "all can be lent");
    }

    #[test]
    fn content_moves_to_the_file_and_back_while_it_is_on_loan() {
        let spill = Spill::open(std::path::Path::new("/var/tmp"), None).unwrap();
        let pool = Pool::new(8, Some(spill)).unwrap();
        let who = tenant("", &Quotas::default());
        pool.enter(&who);
        let chunks: Vec<_> = (0..4).map(|_| pool.take(1, &who, false).unwrap()).collect();
        let content = |seed: usize| vec![seed as u8 + 1; CHUNK];
        for (seed, chunk) in chunks.iter().enumerate() {
            chunk.write(0, &content(seed)).unwrap();
        }
        // One is in use, so it stays where it is.
        let in_use = chunks[0].place();
        assert!(!chunks[0].to_file().unwrap());
        drop(in_use);
        pool.allow(2, true);
        let newcomer = tenant("new", &Quotas::default());
        pool.enter(&newcomer);
        assert!(pool.take(2, &newcomer, false).is_err(), "nothing new");
        drop(pool.take(1, &who, false).expect("a little more for who has something"));
        for chunk in &pool.by_age(true)[..2] {
            assert!(chunk.to_file().unwrap() && !chunk.to_file().unwrap());
        }
        assert_eq!(pool.usage(), PoolUsage { used: 2, filed: 2, reserved: 0, total: 4 });
        assert_eq!((pool.resident(), who.held()), (2, 4), "it is the tenant's as before");
        assert_eq!(
            chunks.iter().filter(|chunk| chunk.is_in_memory.load(Ordering::SeqCst)).count(),
            2
        );
        for (seed, chunk) in chunks.iter().enumerate() {
            chunk.write(4096, &[0xaa; 4096]).unwrap();
            let mut expected = content(seed);
            expected[4096..8192].fill(0xaa);
            let bytes = match &*chunk.place() {
                Place::File(filed) => chunk.read_filed(filed, 0, CHUNK).unwrap(),
                Place::Memory(number) => {
                    let mut bytes = vec![0; CHUNK];
                    pool.memory.copy_out(range(*number, 0, CHUNK), &mut bytes).unwrap();
                    bytes
                }
                Place::Lost => panic!("lost"),
            };
            assert!(bytes == expected, "chunk {seed}");
        }
        let filed = pool.by_age(false);
        assert!(!filed[0].to_memory().unwrap(), "there is no room");
        pool.allow(8, false);
        assert!(filed.iter().all(|chunk| chunk.to_memory().unwrap()));
        assert_eq!(pool.usage(), PoolUsage { used: 4, filed: 0, reserved: 0, total: 8 });
        assert!(filed[0].to_file().unwrap());
        drop((filed, chunks));
        assert_eq!(pool.usage(), PoolUsage { used: 0, filed: 0, reserved: 0, total: 8 });
        assert_eq!(who.held(), 0);
    }
}
