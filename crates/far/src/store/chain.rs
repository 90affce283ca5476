//! Several stores as one: a sector goes to the first one that has room for it. The two upper bits
//! of a `Loc` identify the member.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hiroma_sys::frame::FrameBuf;
use hiroma_units::{Bytes, Loc};

use super::{
    Balance, Channel, Completion, ForkGuard, Purpose, Store, StoreError, StoreUsage, Tier, Token,
};

/// Maximum number of stores in a chain.
pub const MEMBERS_MAX: usize = 1 << (u32::BITS - Loc::STORE_BITS);
/// A member that was full is retried after this many bytes were freed in it,
const RETRY_FREED_BYTES: u64 = 256 << 10;
/// or after this many writes that skipped it (a server may have more room now for other reasons).
const RETRY_WRITES: u32 = 256;
const INNER_MASK: u32 = (1 << Loc::STORE_BITS) - 1;
/// Number of locations that are translated at a time.
const BATCH: usize = 64;

/// Stores, in the order in which they are filled.
pub struct ChainStore {
    shared: Arc<Shared>,
}

struct Shared {
    members: Vec<Member>,
    sector_bytes: usize,
    /// Number of stores that are compressed memory within the local limit: 1 if the first one is.
    near: usize,
}

struct Member {
    store: Arc<dyn Store>,
    /// It was full at the last attempt.
    is_shut: AtomicBool,
    passed_by: AtomicU32,
    freed_bytes: AtomicU64,
}

impl ChainStore {
    /// A chain of one to four stores.
    pub fn new(stores: Vec<Arc<dyn Store>>, sector_bytes: usize) -> Result<ChainStore, StoreError> {
        if !(1..=MEMBERS_MAX).contains(&stores.len()) {
            let reason = format!("{} stores were named: use one to {MEMBERS_MAX}", stores.len());
            return Err(StoreError::Config { store: "--store".to_owned(), reason });
        }
        let near = usize::from(stores[0].balance().is_some());
        let member = |store| Member {
            store,
            is_shut: AtomicBool::new(false),
            passed_by: AtomicU32::new(0),
            freed_bytes: AtomicU64::new(0),
        };
        Ok(ChainStore {
            shared: Arc::new(Shared {
                members: stores.into_iter().map(member).collect(),
                sector_bytes,
                near,
            }),
        })
    }
}

impl Member {
    /// Whether an attempt is worthwhile.
    fn is_open(&self) -> bool {
        !self.is_shut.load(Ordering::Relaxed)
            || self.passed_by.fetch_add(1, Ordering::Relaxed) % RETRY_WRITES == RETRY_WRITES - 1
    }

    fn shut(&self) {
        self.freed_bytes.store(0, Ordering::Relaxed);
        self.is_shut.store(true, Ordering::Relaxed);
    }

    fn reopen(&self) {
        if self.is_shut.load(Ordering::Relaxed) {
            self.is_shut.store(false, Ordering::Relaxed);
        }
    }

    fn note_freed(&self, bytes: u64) {
        if self.is_shut.load(Ordering::Relaxed)
            && self.freed_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes >= RETRY_FREED_BYTES
        {
            self.is_shut.store(false, Ordering::Relaxed);
        }
    }
}

fn member_of(loc: Loc) -> usize {
    (loc.0 >> Loc::STORE_BITS) as usize
}

fn inner(loc: Loc) -> Loc {
    Loc(loc.0 & INNER_MASK)
}

/// Number of locations at the start of `locs` that are in the same member.
fn same_member(locs: &[Loc]) -> usize {
    locs.iter().take_while(|&&loc| member_of(loc) == member_of(locs[0])).count()
}

impl Store for ChainStore {
    fn name(&self) -> String {
        self.shared.name()
    }

    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        let channels = self
            .shared
            .members
            .iter()
            .map(|member| member.store.open(purpose))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(ChainChannel {
            shared: Arc::clone(&self.shared),
            channels,
            inner_locs: Vec::new(),
            splits: Vec::new(),
            parts: 0,
        }))
    }

    // Locations in the first member are the same in the chain.
    fn open_near(&self) -> Option<Box<dyn Channel>> {
        self.shared.members[0].store.open_near()
    }

    fn takes_now(&self) -> bool {
        self.shared.members[0].store.takes_now()
    }

    fn free(&self, locs: &[Loc]) {
        let mut rest = locs;
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(same_member(rest).min(BATCH));
            let mut inner_locs = [Loc(0); BATCH];
            inner_locs.iter_mut().zip(batch).for_each(|(to, &from)| *to = inner(from));
            let member = &self.shared.members[member_of(batch[0])];
            member.store.free(&inner_locs[..batch.len()]);
            member.note_freed((batch.len() * self.shared.sector_bytes) as u64);
            rest = after;
        }
    }

    fn usage(&self) -> StoreUsage {
        self.shared.usage()
    }

    fn keeps_for_children(&self) -> bool {
        self.shared.members.iter().any(|member| member.store.keeps_for_children())
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.shared.members.iter().flat_map(|member| member.store.descriptors()).collect()
    }

    fn local_bytes(&self) -> u64 {
        self.shared.members.iter().map(|member| member.store.local_bytes()).sum()
    }

    fn set_local_limit(&self, bytes: u64) {
        self.shared.members.iter().for_each(|member| member.store.set_local_limit(bytes));
    }

    fn balance(&self) -> Option<Balance> {
        self.shared.members.first()?.store.balance()
    }

    fn is_within_limit(&self, loc: Loc) -> bool {
        // The member accepts the location with the chain's bits.
        self.shared.members[member_of(loc)].store.is_within_limit(loc)
    }

    fn is_packed(&self, loc: Loc) -> bool {
        self.shared.members[member_of(loc)].store.is_packed(inner(loc))
    }

    fn is_behind(&self, loc: Loc) -> bool {
        member_of(loc) > 0
    }

    fn begin_drain(&self) -> bool {
        // All of them, since each then selects what to move.
        self.shared.members.iter().filter(|member| member.store.begin_drain()).count() > 0
    }

    fn takes_near(&self) -> bool {
        self.shared.members.len() > 1 && self.shared.members[0].store.takes_near()
    }

    fn is_to_leave(&self, loc: Loc) -> bool {
        self.shared.members[member_of(loc)].store.is_to_leave(inner(loc))
    }

    fn set_share(&self, parts: u64) {
        let first = &self.shared.members[0];
        first.store.set_share(parts);
        first.reopen();
    }

    fn room_patience(&self) -> Option<Duration> {
        self.shared.members.iter().filter_map(|member| member.store.room_patience()).max()
    }

    fn leave(&self) {
        self.shared.members.iter().for_each(|member| member.store.leave());
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        let guards = self
            .shared
            .members
            .iter()
            .map(|member| member.store.prepare_fork())
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(Guards(guards)))
    }
}

/// One guard for each member.
struct Guards(Vec<Box<dyn ForkGuard>>);

impl ForkGuard for Guards {
    fn adopt(&self) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|guard| guard.adopt())
    }
}

impl Shared {
    fn name(&self) -> String {
        self.members.iter().map(|member| member.store.name()).collect::<Vec<_>>().join(",")
    }

    fn usage(&self) -> StoreUsage {
        self.members.iter().map(|member| member.store.usage()).fold(
            StoreUsage::default(),
            |sum, usage| StoreUsage {
                far_bytes: sum.far_bytes + usage.far_bytes,
                stored_bytes: sum.stored_bytes + usage.stored_bytes,
                capacity_bytes: sum.capacity_bytes.saturating_add(usage.capacity_bytes),
                metadata_bytes: sum.metadata_bytes + usage.metadata_bytes,
                local_bytes: sum.local_bytes + usage.local_bytes,
                server_bytes: sum.server_bytes + usage.server_bytes,
                tcp_connections: sum.tcp_connections + usage.tcp_connections,
                shared_connections: sum.shared_connections + usage.shared_connections,
                short_bytes: sum.short_bytes + usage.short_bytes,
                recopied_bytes: sum.recopied_bytes + usage.recopied_bytes,
            },
        )
    }

    /// No store takes any more. Says of each what it has, and why it takes no more if it says so.
    fn full(&self, errors: impl Iterator<Item = StoreError>) -> StoreError {
        let of_one = |error| match error {
            StoreError::Full { store, used, capacity } => format!("{store}: {used} of {capacity}"),
            StoreError::Rejected { store } => format!("{store}: for what compresses"),
            other => other.to_string(),
        };
        let each: Vec<String> = errors.map(of_one).collect();
        let usage = self.usage();
        StoreError::Full {
            store: format!("{} [{}]", self.name(), each.join("; ")),
            used: Bytes(usage.stored_bytes),
            capacity: Bytes(usage.capacity_bytes),
        }
    }
}

struct ChainChannel {
    shared: Arc<Shared>,
    channels: Vec<Box<dyn Channel>>,
    /// Locations in the member's own form.
    inner_locs: Vec<Loc>,
    /// Reads from more than one member.
    splits: Vec<Split>,
    /// Parts of reads that were started so far.
    parts: u64,
}

/// Set in the token of a part of a read, never in that of a caller: each request under way on a
/// channel has a token of its own.
const PART: u64 = 1 << 63;

/// A read whose buffer was split because its sectors are in several members. Its parts are
/// identified by the addresses of their buffers.
struct Split {
    token: Token,
    addr: usize,
    len: usize,
    parts: Vec<FrameBuf>,
    parts_missing: usize,
    result: Result<(), StoreError>,
}

impl ChainChannel {
    /// Reads from the single member that contains all `locs`.
    fn read_from_one(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        self.inner_locs.clear();
        self.inner_locs.extend(locs.iter().map(|&loc| inner(loc)));
        self.channels[member_of(locs[0])].read(token, &self.inner_locs, buf);
    }

    /// Writes to one member. Returns the buffer if the member is full or fails.
    fn offer(
        &mut self,
        member: usize,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        match self.channels[member].write(token, buf, locs) {
            Ok(()) => {
                for loc in locs {
                    assert!(loc.0 <= INNER_MASK, "a store keeps to its bits of a place");
                    loc.0 |= (member as u32) << Loc::STORE_BITS;
                }
                self.shared.members[member].reopen();
                Ok(())
            }
            Err((buf, error)) => {
                if matches!(error, StoreError::Full { .. }) {
                    self.shared.members[member].shut();
                }
                Err((buf, error))
            }
        }
    }

    /// Writes to the first of some members that has room.
    fn write_among(
        &mut self,
        members: std::ops::Range<usize>,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        let mut buf = buf;
        let mut is_open = [false; MEMBERS_MAX];
        is_open
            .iter_mut()
            .zip(&self.shared.members)
            .skip(members.start)
            .take(members.len())
            .for_each(|(is_open, member)| *is_open = member.is_open());
        let mut full = Vec::new();
        // Members that were full are retried only if no other one has room.
        for wanted in [true, false] {
            for member in members.clone().filter(|&member| is_open[member] == wanted) {
                match self.offer(member, token, buf, locs) {
                    Ok(()) => return Ok(()),
                    Err((
                        back,
                        error @ (StoreError::Full { .. }
                        | StoreError::Rejected { .. }
                        | StoreError::NoCopy { .. }
                        | StoreError::TooFewPieces { .. }),
                    )) => {
                        buf = back;
                        full.push((member, error));
                    }
                    Err(failed) => return Err(failed),
                }
            }
        }
        full.sort_by_key(|&(member, _)| member);
        Err((buf, self.shared.full(full.into_iter().map(|(_, error)| error))))
    }

    /// Returns a completion to pass on; `None` if it is a part of a split read that is not
    /// finished.
    fn put_together(&mut self, done: Completion) -> Option<Completion> {
        let addr = done.buf.addr();
        let Some(index) = self
            .splits
            .iter()
            .position(|split| (split.addr..split.addr + split.len).contains(&addr))
        else {
            return Some(done);
        };
        let split = &mut self.splits[index];
        split.parts.push(done.buf);
        split.parts_missing -= 1;
        if split.result.is_ok() {
            split.result = done.result;
        }
        if split.parts_missing > 0 {
            return None;
        }
        let Split { token, mut parts, result, .. } = self.splits.swap_remove(index);
        parts.sort_by_key(FrameBuf::addr);
        let buf = parts.into_iter().reduce(FrameBuf::join).expect("at least two parts");
        Some(Completion { token, buf, result })
    }
}

impl Channel for ChainChannel {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        debug_assert!(token.0 & PART == 0, "{token:?} is one of a part");
        if same_member(locs) == locs.len() {
            return self.read_from_one(token, locs, buf);
        }
        let mut split = Split {
            token,
            addr: buf.addr(),
            len: buf.len(),
            parts: Vec::new(),
            parts_missing: 0,
            result: Ok(()),
        };
        let (mut locs, mut buf) = (locs, buf);
        while !locs.is_empty() {
            let (some, after) = locs.split_at(same_member(locs));
            let (part, rest) = buf.split_at(some.len() * self.shared.sector_bytes);
            self.parts += 1;
            self.read_from_one(Token(PART | self.parts), some, part);
            split.parts_missing += 1;
            (locs, buf) = (after, rest);
        }
        self.splits.push(split);
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        self.write_among(0..self.channels.len(), token, buf, locs)
    }

    fn write_to(
        &mut self,
        tier: Tier,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        let members = match tier {
            Tier::Near => 0..1,
            Tier::Behind => self.shared.near..self.channels.len(),
        };
        self.write_among(members, token, buf, locs)
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        let before = out.len();
        for (channel, member) in self.channels.iter_mut().zip(&self.shared.members) {
            let since = out.len();
            channel.poll(out);
            // It has begun a write that it has no room for: the next one goes elsewhere.
            if out[since..].iter().any(|done| matches!(done.result, Err(StoreError::Full { .. }))) {
                member.shut();
            }
        }
        if self.splits.is_empty() {
            return;
        }
        for done in out.split_off(before) {
            out.extend(self.put_together(done));
        }
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.channels
            .iter()
            .filter(|channel| channel.in_flight() > 0)
            .flat_map(|channel| channel.wait_fds())
            .collect()
    }

    fn in_flight(&self) -> usize {
        let requests: usize = self.channels.iter().map(|channel| channel.in_flight()).sum();
        let parts: usize = self.splits.iter().map(|split| split.parts_missing).sum();
        requests - parts + self.splits.len()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::store::compressed::CompressedStore;
    use crate::store::faulty::{FaultyStore, Plan};
    use crate::store::file::FileStore;
    use crate::store::model::{check, check_concurrently, content, ops, read_now, write_now};

    fn compressed(sector_bytes: usize, capacity_bytes: u64) -> Arc<dyn Store> {
        Arc::new(CompressedStore::new(sector_bytes, capacity_bytes).unwrap())
    }

    fn file(sector_bytes: usize, capacity_bytes: u64) -> Arc<dyn Store> {
        Arc::new(FileStore::new(Path::new("/dev/shm"), sector_bytes, Some(capacity_bytes)).unwrap())
    }

    fn write_all(channel: &mut dyn Channel) -> Vec<(u64, Loc)> {
        (0..)
            .map_while(|seed| {
                write_now(channel, &content(seed * 4 + 3, 8192), 1)
                    .map(|locs| (seed * 4 + 3, locs[0]))
            })
            .collect()
    }

    #[test]
    fn stores_fill_in_order_and_all_are_readable() {
        let stores =
            vec![compressed(8192, 1 << 20), file(8192, 1 << 20), compressed(8192, 512 << 10)];
        let chain = ChainStore::new(stores, 8192).unwrap();
        let mut channel = chain.open(Purpose::Write).unwrap();
        let written = write_all(&mut *channel);
        let members: Vec<usize> = written.iter().map(|(_, loc)| member_of(*loc)).collect();
        assert_eq!(members, [vec![0; 128], vec![1; 128], vec![2; 64]].concat());
        for &(seed, loc) in &written {
            assert!(read_now(&mut *channel, &[loc], 8192).unwrap() == content(seed, 8192));
        }
        let error = match channel.write(Token(0), FrameBuf::leak(8192), &mut [Loc(0)]) {
            Err((_, error)) => error,
            Ok(()) => panic!("it was full"),
        };
        assert!(
            error
                .to_string()
                .starts_with("compressed,file:/dev/shm,compressed [compressed: 1MiB of 1MiB; file:/dev/shm: 1MiB of 1MiB; compressed: 512KiB of 512KiB] is full (2.5MiB of 2.5MiB"),
            "{error}"
        );
    }

    #[test]
    fn read_across_members_is_reassembled() {
        let chain =
            ChainStore::new(vec![compressed(8192, 256 << 10), file(8192, 1 << 20)], 8192).unwrap();
        let mut channel = chain.open(Purpose::Read).unwrap();
        let written = write_all(&mut *channel);
        let mixed: Vec<(u64, Loc)> = [0, 1, 60, 2, 61, 62, 3].map(|index| written[index]).to_vec();
        let locs: Vec<Loc> = mixed.iter().map(|&(_, loc)| loc).collect();
        let expected: Vec<u8> = mixed.iter().flat_map(|&(seed, _)| content(seed, 8192)).collect();
        channel.read(Token(5), &locs, FrameBuf::leak(expected.len()));
        assert_eq!(channel.in_flight(), 1);
        let done = crate::store::model::wait(&mut *channel);
        assert!(done.len() == 1 && done[0].token == Token(5) && done[0].buf.bytes() == expected);
    }

    #[test]
    fn failed_part_fails_read_and_returns_whole_buffer() {
        let plan = Plan { fail_operation: Some(34), ..Plan::default() };
        let faulty: Arc<dyn Store> = Arc::new(FaultyStore::new(compressed(8192, 256 << 10), plan));
        let chain = ChainStore::new(vec![faulty, file(8192, 1 << 20)], 8192).unwrap();
        let mut channel = chain.open(Purpose::Read).unwrap();
        // 32 fit into the first store and the next write is refused there, so its 34th operation is
        // the first read.
        let written: Vec<Loc> = write_some(&mut *channel, 40);
        channel.read(Token(5), &[written[39], written[0], written[38]], FrameBuf::leak(3 * 8192));
        let done = crate::store::model::wait(&mut *channel).pop().unwrap();
        assert!(matches!(done.result, Err(StoreError::Io { .. })) && done.buf.len() == 3 * 8192);
    }

    fn write_some(channel: &mut dyn Channel, count: u64) -> Vec<Loc> {
        (0..count)
            .map(|seed| write_now(channel, &content(seed * 4 + 3, 8192), 1).unwrap()[0])
            .collect()
    }

    #[test]
    fn full_member_is_retried_after_enough_frees() {
        let chain =
            ChainStore::new(vec![compressed(8192, 1 << 20), file(8192, 4 << 20)], 8192).unwrap();
        let mut channel = chain.open(Purpose::Write).unwrap();
        let mut locs: Vec<Loc> = write_some(&mut *channel, 130);
        assert_eq!((member_of(locs[127]), member_of(locs[128])), (0, 1));
        chain.free(&locs.drain(..40).collect::<Vec<_>>());
        assert_eq!(member_of(write_some(&mut *channel, 1)[0]), 0);
    }

    #[test]
    fn errors_other_than_full_are_not_masked() {
        let plan = Plan { fail_operation: Some(1), ..Plan::default() };
        let faulty: Arc<dyn Store> = Arc::new(FaultyStore::new(compressed(8192, 1 << 20), plan));
        let chain = ChainStore::new(vec![faulty, file(8192, 1 << 20)], 8192).unwrap();
        let mut channel = chain.open(Purpose::Write).unwrap();
        assert!(matches!(
            channel.write(Token(0), FrameBuf::leak(8192), &mut [Loc(0)]),
            Err((_, StoreError::Io { .. }))
        ));
    }

    #[test]
    fn too_many_stores_are_refused() {
        let stores = (0..5).map(|_| compressed(8192, 1 << 20)).collect();
        let error = ChainStore::new(stores, 8192).err().unwrap();
        assert!(error.to_string().contains("use one to 4"), "{error}");
    }

    #[test]
    fn threads_with_own_channels_do_not_interfere() {
        let chain =
            ChainStore::new(vec![compressed(8192, 1 << 20), file(8192, 16 << 20)], 8192).unwrap();
        check_concurrently(&chain, 8192, 4, 300);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn store_matches_a_naive_map(ops in ops(20, 100), shift in 12u32..17, small in 1u64..8, seed: u64) {
            let sector_bytes = 1 << shift;
            let plan = Plan { delay_polls_max: 3, seed, ..Plan::default() };
            let delayed: Arc<dyn Store> = Arc::new(FaultyStore::new(file(sector_bytes, small << 19), plan));
            let stores = vec![compressed(sector_bytes, small << 18), delayed, compressed(sector_bytes, 8 << 20)];
            check(&ChainStore::new(stores, sector_bytes).unwrap(), sector_bytes, &ops);
        }
    }
}
