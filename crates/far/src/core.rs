//! The state of the pager: where each block is, and how much is local. All of it is protected by
//! one lock.

#[cfg(any(test, feature = "model"))]
mod copy;
mod in_frames;
mod small;

use std::collections::VecDeque;
use std::sync::Arc;

use hiroma_policy::clusters::Clusters;
use hiroma_policy::duplication::Duplication;
use hiroma_policy::neighbours::Neighbours;
use hiroma_policy::run_ahead::RunAhead;
use hiroma_policy::sharing::{Sharing, Waits};
use hiroma_policy::{
    Fifo, Granularity, Lru, Origin, Prefetcher, RegionHistory, Replacement, Staging,
};
use hiroma_sys::table::LazyTable;
use hiroma_sys::uffd::Message;
use hiroma_sys::vm::{Access, Advise, Reservation};
use hiroma_units::{BlockId, EXTENT, ExtentNo, Loc, PAGE, PAGES_PER_EXTENT};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::accessed::Accessed;
use crate::addresses::Addresses;
use crate::canary;
use crate::config::{BlockSize, Config, ReplacementKind};
use crate::control::{Counter, Stores};
use crate::error::PagerError;
use crate::extent::{CLUSTER_ORDER, Copy, Extent, Mode, flag};
use crate::frames::{Frame, Frames};
use crate::live::{Live, Path};
use crate::removal::{Coming, OwnRemoval};
use crate::store::Store;

/// What is being done with the content of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Being read from the store.
    Fetching,
    /// Moved out of the program, or prefetched and not yet mapped.
    Staged,
    /// Being compared and written back by the evictor.
    Writing,
}

/// A block in a frame.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub frame: Frame,
    pub phase: Phase,
    /// Distinguishes this stay in the frame from others of the same block.
    pub stamp: u32,
    /// The far copy is known to be identical.
    pub clean: bool,
    /// Prefetched and not touched since.
    pub prefetched: bool,
    /// A thread waits for it, or it is to be mapped as soon as it is fetched.
    pub map_when_ready: bool,
    /// It was touched (or mapped again) while it was being written: the frame is freed when the
    /// write ends.
    pub left: bool,
    /// It was discarded: the result of the request is ignored.
    pub doomed: bool,
    /// Part of a sequential stream.
    pub stream: bool,
    /// Fetched in order to be moved from compressed memory to the store behind it.
    pub drains: bool,
    /// Since it was staged, something of it was new to the store.
    pub written: bool,
}

/// Why a fault thread or a fetcher could not proceed immediately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Local memory is full; the evictor has been woken.
    Room,
    /// Another operation must end first.
    Busy,
}

/// A request to the prefetch thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    pub block: BlockId,
    pub map: bool,
    pub stream: bool,
    pub drains: bool,
}

/// State of one pager.
pub struct Core {
    pub live: Arc<Live>,
    pub arena: Arc<Reservation>,
    pub store: Arc<dyn Store>,
    /// An extent of zeros, to copy from.
    pub zeros: Reservation,
    pub extents: LazyTable<Extent>,
    pub addresses: Addresses,
    pub regions: std::collections::BTreeMap<usize, RegionHistory>,
    pub frames: Frames,
    pub blocks: FxHashMap<BlockId, Block>,
    /// Staged blocks, oldest first, that are to be compared and written back.
    pub probation: VecDeque<(BlockId, u32)>,
    /// Staged blocks that are known to differ from the far copy.
    pub differing: VecDeque<(BlockId, u32)>,
    /// Staged blocks that are known to be identical to the far copy.
    pub clean: VecDeque<(BlockId, u32)>,
    /// Staged blocks that are to be written to the store behind compressed memory.
    pub drained: VecDeque<(BlockId, u32)>,
    pub drain: crate::drain::Drain,
    pub departures: crate::demote::Departures,
    /// Bytes of the staged blocks in `clean`.
    pub clean_bytes: usize,
    pub staged_bytes: usize,
    pub resident_bytes: usize,
    pub limit: usize,
    #[cfg(any(test, feature = "model"))]
    pub room_of_test: Option<usize>,
    /// Size of the largest block for which a fault waits because there is no room.
    pub wanted_bytes: usize,
    /// Small blocks that were given a frame since the last huge one.
    pub small_since_huge: u32,
    pub replacement: Box<dyn Replacement>,
    /// Victims that the policy has given up already, the next one last.
    pub victims: Vec<BlockId>,
    pub prefetcher: Prefetcher,
    pub granularity: Granularity,
    pub runs: RunAhead,
    /// The same of sectors that are zero and need no fetching.
    pub zero_runs: RunAhead,
    pub clusters: Clusters,
    pub neighbours: Neighbours,
    pub staging: Staging,
    pub sharing: Sharing,
    pub duplication: Duplication,
    pub copies: crate::copies::Copies,
    pub lost: crate::lost::Lost,
    /// Time that faults waited for compressed memory (`near`), and for the store behind it.
    pub near: Waits,
    pub behind: Waits,
    pub fetch_queue: VecDeque<Ahead>,
    /// Extents whose page tables are to be freed.
    pub reclaim_queue: Vec<u32>,
    /// Parts of sectors that were discarded while the sector was not resident: zeroed when the
    /// sector is faulted in. Byte ranges within the sector.
    pub overlay: FxHashMap<BlockId, Vec<(usize, usize)>>,
    /// Removals of whole extents that the pager itself caused, so that their events are ignored.
    pub own_removals: Vec<OwnRemoval>,
    /// The program has unmapped managed memory, or mapped over it, by raw system calls.
    pub is_mapped_over: bool,
    /// Ranges that the kernel has yet to discard for the program.
    pub coming: Coming,
    /// Ranges that the kernel is currently discarding for a call of the program.
    pub discarding: Vec<(usize, usize)>,
    /// The page of the last fault on a mapped page, and the number of such faults in a row.
    pub stuck: (usize, u32),
    /// Faults that fault threads other than the first have put off.
    pub handed_over: Vec<crate::answer::Fault>,
    /// Messages that were read by a thread other than a fault thread.
    pub pending: Vec<Message>,
    /// Ranges whose waiters are to be woken after the lock is released: a woken thread may run
    /// immediately in place of the one that woke it, which must not hold the lock then.
    pub wakes: Vec<(usize, usize)>,
    /// Requests in flight at the store.
    pub in_flight: usize,
    /// A fork is in progress.
    pub forking: Option<crate::fork::Forking>,
    /// Everything is to be evicted.
    pub evict_everything: bool,
    /// Forks since the first thread last checked.
    pub new_forks: Vec<crate::life::Fork>,
    /// Connections to the pagers of the processes that this one descends from, which keep for it
    /// what was far when they forked.
    pub lineage: Vec<std::os::fd::OwnedFd>,
    /// Number of forks so far.
    pub forks_made: u64,
    /// A victim was put off because the kernel was busy with it.
    pub put_off: bool,
    /// Number of times in a row that the kernel returned EAGAIN.
    pub refusals: u32,
    /// No new request may start: the process is about to fork.
    pub quiesce: bool,
    pub forked: bool,
    pub sector_order: u8,
    pub fixed: Option<u32>,
    pub prefetch: bool,
    pub key: Arc<crate::content::Key>,
    pub stamp: u32,
    /// Fresh extents since the evictor last checked: whether zeroed frames are worth preparing.
    pub fresh_demand: u32,
    /// Resident blocks that could not be evicted when that was tried: locked, pinned, or in memory
    /// that the pager must not move.
    pub held: FxHashSet<BlockId>,
    pub held_bytes: usize,
    /// Size of the pager's tables and heap when they were last counted.
    pub tables_bytes: usize,
    /// The limit to which the pager last reported to have yielded.
    pub yielded: usize,
    pub hard_limit: bool,
    /// Bytes of the tables of extents.
    extent_tables: usize,
    pub far_sectors: usize,
    resident_blocks: usize,
    pub recorder: crate::recorder::Recorder,
    pub accessed: Accessed,
}

fn replacement(kind: ReplacementKind) -> Box<dyn Replacement> {
    match kind {
        ReplacementKind::Lru => Box::new(Lru::new()),
        ReplacementKind::Fifo => Box::new(Fifo::new()),
    }
}

/// Which sectors move in clusters, as far as that can be known.
fn clusters(live: &Live) -> Clusters {
    let mut clusters = Clusters::default();
    if live.board.is_none() {
        clusters.give_up();
    }
    clusters
}

/// The staging area, registered where pages move.
fn frames(sector_order: u8, has_clusters: bool, live: &Live) -> Result<Frames, PagerError> {
    let orders = [sector_order, CLUSTER_ORDER];
    let frames = Frames::new(&orders[..1 + usize::from(has_clusters)], live.path == Path::Full)
        .map_err(PagerError::io("reserving the staging area"))?;
    if let Some(staging) = &live.staging {
        frames.register(staging).map_err(PagerError::io("registering the staging area"))?;
    }
    Ok(frames)
}

impl Core {
    /// An empty state for the arena.
    pub fn new(
        config: &Config,
        live: Arc<Live>,
        arena: Arc<Reservation>,
        store: Arc<dyn Store>,
        key: crate::content::Key,
    ) -> Result<Core, PagerError> {
        let sector_order = sector_order(config.block);
        let sectors = PAGES_PER_EXTENT >> sector_order;
        let limit = config.local_limit_bytes as usize;
        let table = PagerError::io("reserving tables");
        let extents = LazyTable::new(arena.len() / EXTENT).map_err(table)?;
        let frames = frames(sector_order, config.block == BlockSize::Auto, &live)?;
        let fixed = match config.block {
            BlockSize::Auto => None,
            BlockSize::Fixed(bytes) => Some(bytes),
        };
        live.page.set(Counter::LimitBytes, limit as u64);
        let mut prefetcher = Prefetcher::new(16);
        prefetcher.set_ahead_max_pages(ahead_pages(limit));
        Ok(Core {
            zeros: zeros()?,
            addresses: Addresses::new(arena.base(), arena.len()),
            regions: std::collections::BTreeMap::new(),
            extents,
            frames,
            blocks: FxHashMap::with_capacity_and_hasher(448, Default::default()),
            probation: VecDeque::with_capacity(512),
            differing: VecDeque::with_capacity(128),
            clean: VecDeque::with_capacity(512),
            drained: VecDeque::new(),
            drain: crate::drain::Drain::default(),
            departures: crate::demote::Departures::new(&*store),
            clean_bytes: 0,
            staged_bytes: 0,
            resident_bytes: 0,
            limit,
            #[cfg(any(test, feature = "model"))]
            room_of_test: None,
            wanted_bytes: 0,
            small_since_huge: 0,
            replacement: replacement(config.replacement),
            victims: Vec::new(),
            prefetcher,
            staging: Staging::new(),
            sharing: Sharing::new(),
            duplication: Duplication::default(),
            copies: crate::copies::Copies::default(),
            lost: crate::lost::Lost::new(config),
            near: Waits::default(),
            behind: Waits::default(),
            runs: RunAhead::new(sectors as u64),
            zero_runs: RunAhead::new(sectors as u64),
            clusters: clusters(&live),
            neighbours: Neighbours::default(),
            granularity: Granularity::new(sectors as u16, 48, (limit / EXTENT) as u32),
            fetch_queue: VecDeque::with_capacity(256),
            reclaim_queue: Vec::new(),
            overlay: FxHashMap::default(),
            own_removals: Vec::new(),
            is_mapped_over: false,
            coming: Coming::default(),
            discarding: Vec::new(),
            handed_over: Vec::with_capacity(64),
            pending: Vec::with_capacity(64),
            stuck: (0, 0),
            wakes: Vec::with_capacity(64),
            in_flight: 0,
            forking: None,
            evict_everything: false,
            new_forks: Vec::new(),
            lineage: Vec::new(),
            forks_made: 0,
            put_off: false,
            refusals: 0,
            quiesce: false,
            forked: false,
            sector_order,
            fixed,
            prefetch: config.prefetch,
            key: Arc::new(key),
            stamp: 0,
            fresh_demand: 0,
            held: FxHashSet::default(),
            held_bytes: 0,
            tables_bytes: 0,
            yielded: 0,
            hard_limit: config.hard_limit,
            extent_tables: 0,
            far_sectors: 0,
            resident_blocks: 0,
            recorder: Default::default(),
            accessed: Accessed::default(),
            live,
            arena,
            store,
        })
    }

    /// Sectors in an extent.
    pub fn sectors(&self) -> usize {
        PAGES_PER_EXTENT >> self.sector_order
    }

    /// Bytes in a sector.
    pub fn sector_bytes(&self) -> usize {
        PAGE << self.sector_order
    }

    /// Wakes the threads that wait for a block, after the lock is released.
    pub fn wake_after(&mut self, block: BlockId) {
        self.wakes.push((self.addr(block), block.bytes()));
    }

    /// Address of a block in the program.
    pub fn addr(&self, block: BlockId) -> usize {
        self.arena.base() + block.offset()
    }

    /// The first sector of a block within its extent, and its number of sectors.
    pub fn sector_range(&self, block: BlockId) -> (usize, usize) {
        (block.page_in_extent() >> self.sector_order, (block.pages() >> self.sector_order).max(1))
    }

    /// The block that contains `page` of the arena, in `mode`.
    pub fn block_of(&self, page: u64, mode: Mode) -> BlockId {
        if mode == Mode::Huge {
            BlockId::extent(ExtentNo((page / PAGES_PER_EXTENT as u64) as u32))
        } else {
            self.small_block(page)
        }
    }

    pub fn extent(&self, block: BlockId) -> &Extent {
        &self.extents[block.extent_no().0 as usize]
    }

    pub fn extent_mut(&mut self, block: BlockId) -> &mut Extent {
        &mut self.extents[block.extent_no().0 as usize]
    }

    /// Bytes of managed memory that are local.
    pub fn local(&self) -> usize {
        self.resident_bytes + self.frames.bytes()
    }

    /// Publishes the values that change with every move.
    pub fn publish(&self) {
        let page = &self.live.page;
        page.set_max(Counter::LocalBytes, Counter::LocalBytesMax, self.local() as u64);
        page.set(Counter::ResidentBytes, self.resident_bytes as u64);
        page.set(Counter::StagedBytes, self.staged_bytes as u64);
        page.set(
            Counter::BufferBytes,
            (self.frames.bytes() - self.staged_bytes.min(self.frames.bytes())) as u64,
        );
        page.set_max(
            Counter::FarBytes,
            Counter::FarBytesMax,
            (self.far_sectors * self.sector_bytes()) as u64,
        );
    }

    /// Publishes the values that are more expensive to compute.
    pub fn publish_slow(&mut self) {
        let usage = self.store.usage();
        let page = &self.live.page;
        page.set(Counter::StoredBytes, usage.stored_bytes);
        page.set(Counter::StoreCapacityBytes, usage.capacity_bytes);
        page.set_stores(Stores {
            compressed_bytes: usage.local_bytes,
            file_bytes: usage.stored_bytes.saturating_sub(usage.local_bytes + usage.server_bytes),
            server_bytes: usage.server_bytes,
            tcp_connections: usage.tcp_connections,
            shared_connections: usage.shared_connections,
            short_bytes: usage.short_bytes,
            recopied_bytes: usage.recopied_bytes,
        });
        page.set(Counter::MappedBytes, self.addresses.mapped.bytes() as u64);
        let tables = self.extent_tables
            + self.frames.metadata_bytes()
            + self.replacement.metadata_bytes()
            + self.lost.metadata_bytes()
            + self.departures.metadata_bytes()
            + self.accessed.working_set.metadata_bytes()
            + self.clusters.metadata_bytes()
            + self.blocks.capacity() * (size_of::<(BlockId, Block)>() + 1)
            + (self.probation.capacity()
                + self.differing.capacity()
                + self.clean.capacity()
                + self.drained.capacity())
                * size_of::<(BlockId, u32)>()
            + self.extents.resident_bytes();
        page.set(Counter::MetadataBytes, usage.metadata_bytes + tables as u64);
        // The heap contains the tables, except those that are mappings of their own.
        self.tables_bytes =
            crate::hooks::heap_bytes().map_or(tables, |heap| heap + self.extents.resident_bytes());
    }

    /// Adds `amount` to a counter.
    pub fn count(&self, counter: Counter, amount: usize) {
        self.live.page.add(counter, amount as u64);
    }

    /// Whether a block is mapped into the program.
    pub fn is_resident(&self, block: BlockId) -> bool {
        let extent = self.extent(block);
        match extent.mode {
            Mode::Away => false,
            Mode::Huge => block.is_huge() && extent.has(flag::RESIDENT),
            Mode::Small => {
                block == self.small_block(block.page())
                    && extent.is_resident(self.sector_range(block).0)
            }
        }
    }

    /// Records whether a block is mapped into the program, and updates the accounts.
    pub fn set_resident(&mut self, block: BlockId, on: bool) {
        debug_assert_ne!(self.is_resident(block), on, "{block:?}");
        // If a sector counted as its whole extent, the rest of the extent would never be fetched:
        // it would read as zeros instead of its content.
        let fitting = if block.is_huge() { Mode::Huge } else { Mode::Small };
        assert_eq!(self.extent(block).mode, fitting, "{block:?}");
        self.recorder.note("resident: on, pages", block.page(), on as usize, block.pages());
        let (sector, count) = self.sector_range(block);
        let huge = self.extent(block).mode == Mode::Huge;
        let extent = self.extent_mut(block);
        let tables = extent.table_bytes();
        if huge {
            extent.set(flag::RESIDENT, on);
        } else {
            extent.set_resident(sector, count, on);
            extent.set(flag::PAGE_TABLE, true);
        }
        self.extent_tables = self.extent_tables + self.extent(block).table_bytes() - tables;
        if on {
            self.resident_bytes += block.bytes();
            self.resident_blocks += 1;
            self.list_for_accessed(block);
            if self.live.board.is_some() && !block.is_huge() {
                self.clusters.admitted(block);
            }
        } else {
            self.resident_bytes -= block.bytes();
            self.resident_blocks -= 1;
            if !self.held.is_empty() && self.held.remove(&block) {
                self.held_bytes -= block.bytes();
            }
        }
    }

    /// A block became resident; notifies the policy.
    pub fn admit(&mut self, block: BlockId, origin: Origin) {
        self.settle_size(block);
        self.set_resident(block, true);
        if !self.overlay.is_empty() {
            // What was discarded is zero now; an overlay that stayed would erase later writes.
            self.forget_overlay(block);
        }
        self.replacement.admitted(block, origin);
        if self.live.board.is_some() {
            self.accessed.working_set.admitted(block, origin == Origin::Rescued);
        }
        if self.replacement.len() > 4 * self.resident_blocks + 4096 {
            let mut replacement = std::mem::replace(&mut self.replacement, Box::new(Fifo::new()));
            replacement.compact(&mut |block| self.is_resident(block));
            self.replacement = replacement;
        }
    }

    /// Sets the far copy of a sector; the location of the previous one is pushed to `freed`.
    pub fn set_copy(&mut self, block: BlockId, sector: usize, copy: Copy, freed: &mut Vec<Loc>) {
        let sectors = self.sectors();
        let page =
            block.page() - block.page_in_extent() as u64 + ((sector as u64) << self.sector_order);
        match copy {
            Copy::None => {
                self.note_forgotten(page);
                self.recorder.note("copy none", page, 0, 0);
            }
            Copy::Pattern(word) => self.recorder.note("copy pattern", page, word as usize, 0),
            Copy::Stored { loc, .. } => self.recorder.note("copy stored", page, loc.0 as usize, 0),
        }
        let extent = self.extent_mut(block);
        let tables = extent.table_bytes();
        let before = extent.set_copy(sector, sectors, copy);
        self.extent_tables = self.extent_tables + self.extent(block).table_bytes() - tables;
        self.far_sectors += usize::from(matches!(copy, Copy::Stored { .. }));
        if let Some(loc) = before {
            self.far_sectors -= 1;
            freed.push(loc);
        }
    }

    /// If the far copy of an extent is contiguous now, its locations need no table.
    pub fn compact_places(&mut self, block: BlockId) {
        let extent = self.extent_mut(block);
        let tables = extent.table_bytes();
        extent.compact();
        self.extent_tables = self.extent_tables + self.extent(block).table_bytes() - tables;
    }

    /// A block of an extent is no longer local. If it was the last one, the extent may change its
    /// mode.
    pub fn gone_away(&mut self, block: BlockId) {
        let number = block.extent_no();
        if !self.extents[number.0 as usize].is_away() {
            return;
        }
        let fresh = self.extents[number.0 as usize].has(flag::BORN_FRESH);
        if block.is_huge() && self.fixed.is_none() {
            let nonzero = (0..self.sectors())
                .filter(|&sector| {
                    matches!(self.extents[number.0 as usize].copy(sector), Copy::Stored { .. })
                })
                .count();
            let region = self.region_of(self.addr(block));
            let extent = &mut self.extents[number.0 as usize];
            let region = self.regions.entry(region).or_default();
            self.granularity.on_huge_evicted(
                &mut extent.history,
                region,
                fresh,
                nonzero as u16,
                extent.rescues,
            );
        }
        self.settle(number.0 as usize);
    }

    /// Lets an extent change its mode if nothing of it is local.
    pub fn settle(&mut self, extent: usize) {
        let extent = &mut self.extents[extent];
        if !extent.is_away() {
            return;
        }
        extent.mode = Mode::Away;
        (extent.rescues, extent.broken_stagings) = (0, 0);
        extent.set(flag::BORN_FRESH, false);
        if extent.far_sectors() == 0 {
            extent.set(flag::BROKEN, false);
        }
        self.extent_tables -= extent.table_bytes();
        extent.shrink();
        self.extent_tables += extent.table_bytes();
    }

    /// The start address of the mapping that contains an address.
    pub fn region_of(&self, addr: usize) -> usize {
        self.regions.range(..=addr).next_back().map_or(self.arena.base(), |(&start, _)| start)
    }

    /// Runs `work` for an extent that has been given a mode but has nothing local yet. Making room
    /// may drop the last block of the extent; that must not let it change its mode, or blocks of
    /// both modes would overlap.
    pub fn keeping_mode<R>(&mut self, block: BlockId, work: impl FnOnce(&mut Core) -> R) -> R {
        let (mode, flags) = (self.extent(block).mode, self.extent(block).flags);
        let result = work(self);
        // Canary "one mode": an extent whose last block was dropped meanwhile may change its mode.
        if !canary::is_broken("one mode") {
            let extent = self.extent_mut(block);
            (extent.mode, extent.flags) = (mode, flags);
        }
        result
    }

    /// The next extent whose page table can be freed. Skips extents in which the kernel is
    /// discarding something for the program, because the events of the two could not be
    /// distinguished.
    pub fn next_reclaim(&mut self) -> Option<usize> {
        let base = self.arena.base();
        let is_free = |&extent: &u32| {
            let start = base + extent as usize * EXTENT;
            !self.discarding.iter().any(|&(from, to)| from < start + EXTENT && start < to)
        };
        let place = self.reclaim_queue.iter().rposition(is_free)?;
        Some(self.reclaim_queue.remove(place) as usize)
    }
}

/// An extent of zeros.
fn zeros() -> Result<Reservation, PagerError> {
    let zeros = Reservation::new(EXTENT, EXTENT, Access::ReadWrite)
        .map_err(PagerError::io("reserving zeros"))?;
    let _ = zeros.advise(zeros.base(), EXTENT, Advise::NoHuge);
    Ok(zeros)
}

/// Pages that may be prefetched ahead of the program, at a limit of `limit` bytes.
pub fn ahead_pages(limit: usize) -> u64 {
    (limit / PAGE / 8) as u64
}

/// Sector size for a choice of block size, as a power of two of pages.
pub fn sector_order(block: BlockSize) -> u8 {
    match block {
        BlockSize::Fixed(bytes) if (bytes as usize) < EXTENT => {
            (bytes as usize / PAGE).trailing_zeros() as u8
        }
        // One page: where programs use single scattered pages, larger sectors fill local memory
        // with unused data. Streams move in whole extents, and tables are 0.3 % of the far bytes.
        _ => 0,
    }
}
