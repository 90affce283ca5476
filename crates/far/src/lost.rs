//! What waiting for far memory costs the program, and how much of it more local memory would spare.
//! Collected where blocks are evicted, fetched and waited for, and published in the control page.
//! `hiroma_policy::{reuse, loss}` explain the numbers.

use hiroma_policy::loss::{Busiest, Covered, bucket, extra_limit};
use hiroma_policy::reuse::Reuse;
use hiroma_sys::cpu;
use hiroma_units::{BlockId, Nanos};

use crate::config::Config;
use crate::control::{RANGE_BYTES, Waited};
use crate::core::Core;
use crate::extent::Copy;
use crate::waking::{self, Costs};

/// The state for these statistics.
#[derive(Default)]
pub struct Lost {
    pub costs: Option<Costs>,
    reuse: Reuse,
    covered: Covered,
    busiest: Busiest,
    /// Threads that wait for a block that is being fetched for another thread's fault, or
    /// prefetched.
    late: Vec<(BlockId, Began)>,
}

/// When a fault happened, when the fault thread read its message, and when it could begin to answer
/// it: before that, there was no room, or another operation had to end.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    pub began: Nanos,
    pub read: Nanos,
    pub answered: Nanos,
}

/// How more local memory would affect a fetch: the bucket, and the number of fetches that this one
/// represents. None: not in the sample.
pub type Spared = Option<(usize, u64)>;

impl Lost {
    pub fn new(config: &Config) -> Lost {
        Lost { costs: config.waking, ..Lost::default() }
    }

    /// Bytes of its tables.
    pub fn metadata_bytes(&self) -> usize {
        self.reuse.metadata_bytes()
    }
}

impl Core {
    fn sectors_of(&self, block: BlockId) -> (u64, u64) {
        (block.page() >> self.sector_order, (block.pages() >> self.sector_order).max(1) as u64)
    }

    /// Bytes of the program that are in a store and not local, estimated.
    pub fn absent_bytes(&self) -> u64 {
        self.lost.reuse.sectors() * self.sector_bytes() as u64
    }

    /// A block has left local memory.
    pub fn note_left(&mut self, block: BlockId) {
        let (first, sectors) = self.sectors_of(block);
        let at = self.sector_range(block).0 as u64;
        let extent = &self.extents[block.extent_no().0 as usize];
        let has_content = |sector: u64| {
            !matches!(extent.copy((at + sector - first) as usize), Copy::None | Copy::Pattern(0))
        };
        self.lost.reuse.left(first, sectors, has_content);
    }

    /// A block is being fetched. Returns how more local memory would have affected that.
    pub fn note_came(&mut self, block: BlockId) -> Spared {
        let (first, sectors) = self.sectors_of(block);
        let far_sectors = self.lost.reuse.sectors();
        let depth = self.lost.reuse.came(first, sectors)?;
        let sector_bytes = self.sector_bytes() as u64;
        // The memory that is reserved for blocks in transit takes the place of some of the copies.
        let packed_bytes =
            self.store.local_bytes().saturating_sub(2 * self.reserve_target() as u64);
        let extra = depth
            .sectors
            .map(|kept| extra_limit(kept * sector_bytes, packed_bytes, far_sectors * sector_bytes));
        let bucket = bucket(extra);
        self.live.page.add_fetched(bucket, block.bytes() as u64 * depth.weight);
        let kept = depth.sectors.map(|kept| kept * sector_bytes);
        self.sharing
            .on_fetch(hiroma_policy::loss::bucket(kept), block.bytes() as u64 * depth.weight);
        Some((bucket, depth.weight))
    }

    /// A far sector no longer exists.
    pub fn note_forgotten(&mut self, sector_page: u64) {
        self.lost.reuse.forget(sector_page >> self.sector_order, 1);
    }

    /// A block that had been evicted is local again, as zeros that no store had to provide.
    pub fn note_zeros(&mut self, block: BlockId) {
        let (first, sectors) = self.sectors_of(block);
        self.lost.reuse.forget(first, sectors);
    }

    /// A thread that waited for a fault continues now, or will as soon as the lock is released.
    /// Returns how long it waited from when the fault could be answered, and the time since the
    /// fault was read.
    pub fn note_wait(&mut self, kind: Waited, at: Began, addr: usize) -> (Nanos, Nanos) {
        let now = Nanos(cpu::now_ns());
        let end = Nanos(now.0 + waking::until_on(self.lost.costs, self.live.yielding.is_on()).0);
        let wait = end.since(at.began);
        let page = &self.live.page;
        let latency = now.since(at.read);
        page.record_latency(latency);
        let idle = at.answered.since(at.read);
        page.record_wait(wait);
        page.add_waited(Waited::Room, idle.0);
        page.add_waited(kind, wait.since(idle).0);
        if kind != Waited::FirstTouch {
            page.add_waited(Waited::AnyFar, self.lost.covered.add(at.began.0, end.0));
            self.note_range(addr);
        }
        (wait.since(idle), latency)
    }

    fn note_range(&mut self, addr: usize) {
        let start = addr as u64 / RANGE_BYTES * RANGE_BYTES;
        let (entry, is_new) = self.lost.busiest.add(start);
        let mapping = if is_new { Some(self.region_of(addr) as u64) } else { None };
        self.live.page.set_range(entry, start, mapping, self.lost.busiest.count(entry));
    }

    /// A thread waits for a block that is already being fetched.
    pub fn note_late(&mut self, block: BlockId, at: Began) {
        self.lost.late.push((block, at));
    }

    /// A block could not be fetched: threads that wait for it fault again.
    pub fn note_not_come(&mut self, block: BlockId, drains: bool) {
        self.lost.late.retain(|&(other, _)| other != block);
        if !drains {
            self.note_left(block);
        }
    }

    /// A block has been fetched: the threads that wait for it continue. `first`: the fault that it
    /// was fetched for.
    pub fn note_arrived(
        &mut self,
        block: BlockId,
        first: Option<Began>,
        spared: Spared,
    ) -> Option<Nanos> {
        let addr = self.addr(block);
        let mut wait_ns = 0;
        let waited = first.map(|at| {
            let (wait, latency) = self.note_wait(Waited::Fetched, at, addr);
            wait_ns = wait.0;
            latency
        });
        while let Some(place) = self.lost.late.iter().position(|&(other, _)| other == block) {
            let (_, at) = self.lost.late.swap_remove(place);
            wait_ns += self.note_wait(Waited::Fetched, at, addr).0.0;
        }
        if let Some((bucket, weight)) = spared.filter(|_| wait_ns > 0) {
            self.live.page.add_fetch_wait(bucket, wait_ns * weight);
        }
        waited
    }
}
