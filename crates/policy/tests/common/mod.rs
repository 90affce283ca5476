//! A small pager without memory: it drives the policies like the real one, and counts what a
//! program would have waited for.
#![allow(dead_code)] // Each test file uses its own part.

use std::collections::{BTreeMap, VecDeque};

use hiroma_policy::{
    ExtentHistory, Granularity, Mode, Origin, PrefetchRequest, Prefetcher, RegionHistory,
    Replacement,
};
use hiroma_units::{BlockId, ExtentNo};

/// Pages per sector (8 KiB), and sectors per extent.
pub const SECTOR_PAGES: u64 = 2;
pub const SECTORS: u64 = 512 / SECTOR_PAGES;
pub const EXTENT_PAGES: u64 = 512;

/// SplitMix64: a generator with the same results everywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }
}

/// What the program waited for, and what was moved.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    pub touches: u64,
    /// Faults that waited for a whole extent, and for a sector.
    pub huge_fetches: u64,
    pub small_fetches: u64,
    /// Rests of extents fetched after small faults.
    pub bought: u64,
    /// Prefetched blocks, in sectors and in number; faults on those that were left unmapped.
    pub prefetched_sectors: u64,
    pub prefetched: u64,
    pub marker_faults: u64,
    pub rescues: u64,
    pub fresh: u64,
    pub fetched_sectors: u64,
    pub evicted_sectors: u64,
}

impl Stats {
    /// Time that the program waits, in microseconds, with the costs of a loopback store.
    pub fn waited_us(&self) -> u64 {
        (self.huge_fetches + self.bought) * 400
            + self.small_fetches * 18
            + (self.marker_faults + self.rescues) * 8
            + self.fresh * 10
    }

    pub fn since(&self, before: &Stats) -> Stats {
        Stats {
            touches: self.touches - before.touches,
            huge_fetches: self.huge_fetches - before.huge_fetches,
            small_fetches: self.small_fetches - before.small_fetches,
            bought: self.bought - before.bought,
            prefetched_sectors: self.prefetched_sectors - before.prefetched_sectors,
            prefetched: self.prefetched - before.prefetched,
            marker_faults: self.marker_faults - before.marker_faults,
            rescues: self.rescues - before.rescues,
            fresh: self.fresh - before.fresh,
            fetched_sectors: self.fetched_sectors - before.fetched_sectors,
            evicted_sectors: self.evicted_sectors - before.evicted_sectors,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Resident,
    /// Fetched but not mapped: a touch is a fault.
    Unmapped,
    Staged,
}

#[derive(Default)]
struct Extent {
    used: bool,
    was_fresh: bool,
    mode: Option<Mode>,
    /// Sectors resident or staged, in small mode.
    local: u64,
    rescues: u8,
    history: ExtentHistory,
    /// Sectors written at least once.
    written: std::collections::BTreeSet<u64>,
}

pub struct Model<R: Replacement> {
    pub replacement: R,
    pub prefetcher: Option<Prefetcher>,
    pub granularity: Granularity,
    pub region: RegionHistory,
    pub stats: Stats,
    /// Every answer of the policies, in order, as text; only if requested.
    pub log: Option<String>,
    limit_sectors: u64,
    staging_sectors: u64,
    resident: u64,
    staged: u64,
    extents: BTreeMap<u64, Extent>,
    blocks: BTreeMap<BlockId, Place>,
    staging: VecDeque<BlockId>,
    requests: Vec<PrefetchRequest>,
}

impl<R: Replacement> Model<R> {
    /// A program with `local_extents` of local memory, an eighth of it for staging (one extent
    /// where the policy ignores rescues).
    pub fn new(replacement: R, local_extents: u64, prefetch: bool) -> Self {
        let limit_sectors = local_extents * SECTORS;
        let staging_sectors =
            if replacement.gives_second_chances() { limit_sectors / 8 } else { SECTORS };
        Model {
            replacement,
            prefetcher: prefetch.then(|| {
                let mut prefetcher = Prefetcher::new(16);
                prefetcher.set_ahead_max_pages(local_extents * EXTENT_PAGES / 8);
                prefetcher
            }),
            granularity: Granularity::new(SECTORS as u16, 48, local_extents as u32),
            region: RegionHistory::default(),
            stats: Stats::default(),
            log: None,
            limit_sectors,
            staging_sectors,
            resident: 0,
            staged: 0,
            extents: BTreeMap::new(),
            blocks: BTreeMap::new(),
            staging: VecDeque::new(),
            requests: Vec::new(),
        }
    }

    fn note(&mut self, text: std::fmt::Arguments) {
        if let Some(log) = &mut self.log {
            log.push_str(&text.to_string());
            log.push('\n');
        }
    }

    pub fn mode(&self, extent: u64) -> Option<Mode> {
        self.extents.get(&extent)?.mode
    }

    /// Number of extents in huge and in small mode; far extents are in neither.
    pub fn modes(&self) -> (usize, usize) {
        let count = |mode| self.extents.values().filter(|extent| extent.mode == Some(mode)).count();
        (count(Mode::Huge), count(Mode::Small))
    }

    /// Evicts everything, as between a warm-up and a measurement.
    pub fn evict_all(&mut self) {
        let blocks: Vec<BlockId> = self.blocks.keys().copied().collect();
        blocks.into_iter().for_each(|block| self.stage(block));
        while let Some(block) = self.staging.pop_front() {
            self.write_back(block);
        }
        self.replacement.compact(&mut |_| false);
    }

    /// The program touches `page`.
    pub fn touch(&mut self, page: u64) {
        self.stats.touches += 1;
        let block = self.block_of(page);
        match self.blocks.get(&block) {
            Some(Place::Resident) => {}
            Some(Place::Unmapped) => {
                self.blocks.insert(block, Place::Resident);
                self.stats.marker_faults += 1;
                self.replacement.hinted(block, hiroma_policy::Hint::Hot);
                if let Some(prefetcher) = &mut self.prefetcher {
                    prefetcher.used(page);
                }
                let extent = self.extents.get_mut(&(page / EXTENT_PAGES)).unwrap();
                self.granularity.on_streamed(&mut extent.history, &mut self.region);
                self.follow(page, block.pages() as u16);
            }
            Some(Place::Staged) => {
                self.stats.rescues += 1;
                self.staging.retain(|&staged| staged != block);
                self.blocks.insert(block, Place::Resident);
                self.staged -= sectors(block);
                self.resident += sectors(block);
                let extent = self.extents.get_mut(&(page / EXTENT_PAGES)).unwrap();
                extent.rescues = extent.rescues.saturating_add(1);
                self.replacement.admitted(block, Origin::Rescued);
            }
            None => self.fault(page),
        }
        let extent = self.extents.get_mut(&(page / EXTENT_PAGES)).unwrap();
        extent.written.insert(page / SECTOR_PAGES);
        self.make_room();
        assert!(
            self.resident + self.staged <= self.limit_sectors,
            "{} + {} of {}",
            self.resident,
            self.staged,
            self.limit_sectors
        );
    }

    /// Sectors of the given extents in local memory: resident, staged.
    pub fn local_sectors(&self, extents: std::ops::Range<u64>) -> (u64, u64) {
        let (mut resident, mut staged) = (0, 0);
        for (block, place) in self
            .blocks
            .iter()
            .filter(|(block, _)| extents.contains(&u64::from(block.extent_no().0)))
        {
            *(if *place == Place::Staged { &mut staged } else { &mut resident }) += sectors(*block);
        }
        (resident, staged)
    }

    fn block_of(&self, page: u64) -> BlockId {
        match self.mode(page / EXTENT_PAGES) {
            Some(Mode::Huge) => huge(page),
            _ => sector(page),
        }
    }

    fn fault(&mut self, page: u64) {
        let number = page / EXTENT_PAGES;
        let is_stream =
            self.prefetcher.as_ref().is_some_and(|prefetcher| prefetcher.is_stream(page));
        let mut extent = self.extents.remove(&number).unwrap_or_default();
        let origin = if is_stream { Origin::Stream } else { Origin::Demand };
        if !extent.used {
            extent.used = true;
            extent.was_fresh = true;
            let mode =
                self.granularity.on_fresh_fault(&mut extent.history, &mut self.region, is_stream);
            extent.mode = Some(mode);
            self.stats.fresh += 1;
            self.extents.insert(number, extent);
            let block = self.block_of(page);
            self.install(
                block,
                if is_stream { Origin::Stream } else { Origin::Fresh },
                Place::Resident,
            );
        } else if extent.mode.is_none() {
            let is_local =
                |number: u64| self.extents.get(&number).is_some_and(|extent| extent.mode.is_some());
            let is_beside = number > 0 && is_local(number - 1) || is_local(number + 1);
            let (history, region) = (&mut extent.history, &mut self.region);
            let mode = self.granularity.on_far_fault(history, region, is_stream, is_beside);
            extent.mode = Some(mode);
            self.extents.insert(number, extent);
            self.note(format_args!("fault {page}: {mode:?}"));
            let block = self.block_of(page);
            *(if mode == Mode::Huge {
                &mut self.stats.huge_fetches
            } else {
                &mut self.stats.small_fetches
            }) += 1;
            self.stats.fetched_sectors += sectors(block);
            self.install(block, origin, Place::Resident);
        } else {
            // Missing sector of an extent in small mode. Untouched ones of a fresh extent are
            // zeros.
            let fresh = extent.was_fresh && !extent.written.contains(&(page / SECTOR_PAGES));
            let buy = self.granularity.on_small_fault(&mut extent.history, &mut self.region);
            self.extents.insert(number, extent);
            self.note(format_args!("sector {page}: {}", if buy { "buy" } else { "rent" }));
            *(if fresh { &mut self.stats.fresh } else { &mut self.stats.small_fetches }) += 1;
            if buy {
                self.buy(page);
            } else {
                self.stats.fetched_sectors += 1;
                self.install(sector(page), origin, Place::Resident);
            }
        }
        let unit = self.block_of(page).pages() as u16;
        self.follow(page, unit);
    }

    /// The whole extent becomes one block.
    fn buy(&mut self, page: u64) {
        let first = page / EXTENT_PAGES * EXTENT_PAGES;
        for at in (first..first + EXTENT_PAGES).step_by(SECTOR_PAGES as usize) {
            let block = sector(at);
            match self.blocks.remove(&block) {
                Some(Place::Staged) => self.staged -= 1,
                Some(_) => self.resident -= 1,
                None => self.stats.fetched_sectors += 1,
            }
            self.staging.retain(|&staged| staged != block);
        }
        let extent = self.extents.get_mut(&(page / EXTENT_PAGES)).unwrap();
        (extent.mode, extent.local) = (Some(Mode::Huge), 0);
        self.stats.bought += 1;
        self.install(huge(page), Origin::Demand, Place::Resident);
    }

    fn install(&mut self, block: BlockId, origin: Origin, place: Place) {
        self.room_for(sectors(block));
        self.blocks.insert(block, place);
        self.resident += sectors(block);
        if !block.is_huge() {
            self.extents.get_mut(&u64::from(block.extent_no().0)).unwrap().local += 1;
        }
        self.replacement.admitted(block, origin);
    }

    /// Reports a fault to the prefetcher and executes its requests.
    fn follow(&mut self, page: u64, unit: u16) {
        let Some(prefetcher) = &mut self.prefetcher else { return };
        let mut requests = std::mem::take(&mut self.requests);
        requests.clear();
        let budget = (self.limit_sectors / 4 * SECTOR_PAGES / u64::from(unit)).min(64);
        prefetcher.on_fault(page, unit, budget as usize, &mut requests);
        for request in &requests {
            self.note(format_args!(
                "fetch {} {} {}",
                request.page, request.unit, request.leave_unmapped
            ));
            self.prefetch(request);
        }
        self.requests = requests;
    }

    fn prefetch(&mut self, request: &PrefetchRequest) {
        let Some(extent) = self.extents.get_mut(&(request.page / EXTENT_PAGES)) else { return };
        match extent.mode {
            Some(Mode::Huge) => return,
            None if request.unit == EXTENT_PAGES as u16 => extent.mode = Some(Mode::Huge),
            None => extent.mode = Some(Mode::Small),
            Some(Mode::Small) => {}
        }
        let block = self.block_of(request.page);
        if self.blocks.contains_key(&block) {
            return;
        }
        self.stats.prefetched += 1;
        self.stats.prefetched_sectors += sectors(block);
        self.stats.fetched_sectors += sectors(block);
        self.granularity.on_inflow(sectors(block) as u32);
        self.install(
            block,
            Origin::Prefetch,
            if request.leave_unmapped { Place::Unmapped } else { Place::Resident },
        );
    }

    /// Writes staged blocks back until `more` sectors fit, staging more where needed.
    fn room_for(&mut self, more: u64) {
        while self.resident + self.staged + more > self.limit_sectors {
            if self.staging.is_empty() {
                self.stage_one();
            }
            let block = self.staging.pop_front().expect("something can leave");
            self.write_back(block);
        }
    }

    /// Keeps the staging area full when memory is.
    fn make_room(&mut self) {
        while self.resident + self.staged + SECTORS > self.limit_sectors
            && self.staged + SECTORS <= self.staging_sectors.max(SECTORS)
        {
            self.stage_one();
        }
    }

    fn stage_one(&mut self) {
        loop {
            let block =
                self.replacement.next_victim().expect("what is resident is known to the policy");
            if matches!(self.blocks.get(&block), Some(Place::Resident | Place::Unmapped)) {
                self.note(format_args!("victim {} {}", block.page(), block.order()));
                self.stage(block);
                return;
            }
        }
    }

    fn stage(&mut self, block: BlockId) {
        match self.blocks.insert(block, Place::Staged) {
            Some(Place::Staged) => return,
            Some(Place::Unmapped) => {
                if let Some(prefetcher) = &mut self.prefetcher {
                    prefetcher.wasted(block.page());
                }
            }
            _ => {}
        }
        self.resident -= sectors(block);
        self.staged += sectors(block);
        self.staging.push_back(block);
    }

    fn write_back(&mut self, block: BlockId) {
        self.blocks.remove(&block);
        self.staged -= sectors(block);
        self.stats.evicted_sectors += sectors(block);
        let extent = self.extents.get_mut(&u64::from(block.extent_no().0)).unwrap();
        if block.is_huge() {
            let written = extent.written.len() as u16;
            self.granularity.on_huge_evicted(
                &mut extent.history,
                &mut self.region,
                extent.was_fresh,
                written,
                extent.rescues,
            );
            (extent.was_fresh, extent.rescues, extent.mode) = (false, 0, None);
        } else {
            extent.local -= 1;
            if extent.local == 0 {
                (extent.was_fresh, extent.mode) = (false, None);
            }
        }
    }
}

pub fn sectors(block: BlockId) -> u64 {
    block.pages() as u64 / SECTOR_PAGES
}

pub fn huge(page: u64) -> BlockId {
    BlockId::extent(ExtentNo((page / EXTENT_PAGES) as u32))
}

pub fn sector(page: u64) -> BlockId {
    BlockId::new(page & !(SECTOR_PAGES - 1), SECTOR_PAGES.trailing_zeros() as u8)
}
