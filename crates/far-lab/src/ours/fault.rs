//! Handling of a fault: `fault.rs` and `fetch.rs` of the pager.

use hiroma_policy::clusters::CLUSTER;
use hiroma_policy::{Mode, Origin, PrefetchRequest};
use hiroma_units::BlockId;

use crate::costs::Reason;

use super::{ALIVE, CAME, DIRTY, EXTENT, FAR, Ours, USED};

/// This many small faults within such a span are dense; last, how long without a fault they are
/// considered dense.
const DENSE_FAULTS: u32 = 24;
const DENSE_SPAN_NS: u64 = 8_000_000;
const CALM_NS: u64 = 40_000_000;
const TEND_NS: u64 = 50_000_000;

impl Ours<'_> {
    pub(super) fn on_fault(&mut self, page: u64) {
        let number = (page / EXTENT) as usize;
        let mode = match self.extents[number].mode {
            Some(mode) => mode,
            None => self.choose_mode(number, page),
        };
        let block = match mode {
            Mode::Small => self.choose_small(page),
            Mode::Huge => self.block_of(page, mode),
        };
        match self.blocks.get(&block).copied() {
            Some(entry) => self.on_staged(block, entry.prefetched),
            None => self.on_missing(block, page, mode),
        }
        if mode == Mode::Small {
            self.on_small();
        }
    }

    /// Work after the program continues. Its access comes first: where few blocks fit, the block
    /// that was fetched may be evicted again here.
    pub(super) fn after_fault(&mut self) {
        self.scan();
        if self.is_quiet() {
            self.evict_here();
        }
        self.mind_reserve();
        if self.now_ns() - self.tended_ns > TEND_NS {
            self.tended_ns = self.now_ns();
            self.granularity.set_local_extents((self.room / EXTENT) as u32);
            self.staging.observe(self.rescues, self.fetches);
        }
    }

    fn on_small(&mut self) {
        let now = self.now_ns();
        if now - self.dense_since_ns > DENSE_SPAN_NS {
            (self.dense, self.dense_since_ns) = (0, now);
        }
        self.dense += 1;
        if self.dense >= DENSE_FAULTS || self.is_quiet() {
            self.quiet_until_ns = now + CALM_NS;
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.now_ns() < self.quiet_until_ns
    }

    fn choose_mode(&mut self, number: usize, page: u64) -> Mode {
        let stream = self.prefetcher.is_stream(page);
        let fresh =
            self.flags[number * 512..number * 512 + 512].iter().all(|&flags| flags & FAR == 0);
        let is_local = |number: usize| self.extents.get(number).is_some_and(|e| e.mode.is_some());
        let is_beside = number > 0 && is_local(number - 1) || is_local(number + 1);
        let extent = &mut self.extents[number];
        let history = &mut extent.history;
        let region = self.regions.entry(self.trace.regions[number]).or_default();
        let mode = match (self.options.fixed, fresh) {
            (Some(order), _) if order < 9 => Mode::Small,
            (Some(_), _) => Mode::Huge,
            (None, true) if !stream => Mode::Small,
            (None, true) => self.granularity.on_fresh_fault(history, region, stream),
            (None, false) if self.options.near => self.granularity.on_near_fault(history, stream),
            (None, false) => self.granularity.on_far_fault(history, region, stream, is_beside),
        };
        if mode == Mode::Huge && fresh {
            extent.born_fresh = true;
        }
        extent.mode = Some(mode);
        mode
    }

    fn on_staged(&mut self, block: BlockId, prefetched: bool) {
        self.outcome.staged(self.costs);
        if prefetched {
            if let Some(entry) = self.blocks.get_mut(&block) {
                (entry.prefetched, entry.stream) = (false, true);
            }
            self.prefetcher.used(block.page());
            if !block.is_huge() {
                let number = block.extent_no().0 as usize;
                let region = self.regions.entry(self.trace.regions[number]).or_default();
                self.granularity.on_streamed(&mut self.extents[number].history, region);
            }
            self.consult(block, block.page());
        } else {
            self.rescues += 1;
        }
        let extent = self.extent(block);
        extent.rescues = extent.rescues.saturating_add(u8::from(!prefetched));
        self.leave(block);
        self.admit(block, if prefetched { Origin::Stream } else { Origin::Rescued });
        self.merge(block);
    }

    fn on_missing(&mut self, block: BlockId, page: u64, mode: Mode) {
        let far = self.count(block, FAR);
        let stream = self.prefetcher.is_stream(page);
        self.consult(block, page);
        if far > 0 {
            self.fetches += 1;
            self.outcome.local_pages_at_fetches += self.local();
            let number = block.extent_no().0 as usize;
            if mode == Mode::Small && self.options.fixed.is_none() && !self.options.near {
                let region = self.regions.entry(self.trace.regions[number]).or_default();
                if self.granularity.on_small_fault(&mut self.extents[number].history, region) {
                    self.buy_rest(block);
                }
            }
        }
        if far == 0 {
            return self.map_zeros(block, stream);
        }
        self.take_room(block);
        self.enter(block, false);
        let (beside, reason) = self.begin_beside(block);
        let more: u64 = beside.iter().map(|&block| self.count(block, FAR)).sum();
        self.outcome.fetch(self.costs, far + more);
        // What the program waits for is mapped last.
        for &block in beside.iter().rev() {
            self.leave(block);
            self.arrive(block, None, reason);
            self.admit(block, Origin::Prefetch);
            self.merge(block);
        }
        self.leave(block);
        let is_cluster = self.options.fixed.is_none() && !block.is_huge();
        let reason = if is_cluster { Reason::Cluster } else { Reason::Block };
        self.arrive(block, Some(page), reason);
        self.admit(block, if stream { Origin::Stream } else { Origin::Demand });
        self.merge(block);
    }

    /// Pages of a block were fetched from the store, for a fault on `faulted` if there was one.
    fn arrive(&mut self, block: BlockId, faulted: Option<u64>, reason: Reason) {
        for page in Self::pages(block) {
            let flags = &mut self.flags[page];
            *flags = *flags & (FAR | ALIVE) | if *flags & FAR != 0 { CAME } else { 0 };
            if *flags & FAR != 0 {
                let reason = if faulted == Some(page as u64) { Reason::Fault } else { reason };
                self.reasons[page] = reason;
                self.outcome.came_by[reason as usize] += 1;
            }
        }
        debug_assert_eq!(self.count(block, DIRTY | USED), 0);
    }

    fn consult(&mut self, block: BlockId, page: u64) {
        if self.options.prefetch {
            let room = self.reserve().max(0) as usize / 2;
            let budget = (room / block.pages()).min(64);
            self.prefetcher.on_fault(page, block.pages() as u16, budget, &mut self.requests);
        }
    }

    fn buy_rest(&mut self, block: BlockId) {
        let start = block.page() - block.page_in_extent() as u64;
        for page in (start..start + EXTENT).step_by(1 << self.order) {
            if self.flags[page as usize] & FAR != 0 {
                self.requests.push(PrefetchRequest {
                    page,
                    unit: 1 << self.order,
                    leave_unmapped: false,
                });
            }
        }
    }

    /// Blocks requested at the last fault arrive before this one, and after the program has
    /// continued.
    pub(super) fn prefetch(&mut self) {
        let requests = std::mem::take(&mut self.requests);
        self.fetch_each_ahead(&requests);
        self.requests = requests;
        self.requests.clear();
    }

    fn fetch_each_ahead(&mut self, requests: &[PrefetchRequest]) {
        for request in requests {
            let number = (request.page / EXTENT) as usize;
            if number >= self.extents.len() {
                continue;
            }
            let wanted = if u64::from(request.unit) == EXTENT { Mode::Huge } else { Mode::Small };
            let fixed =
                self.options.fixed.map(|order| if order < 9 { Mode::Small } else { Mode::Huge });
            let mode = self.extents[number].mode.unwrap_or(fixed.unwrap_or(wanted));
            let block = match mode {
                Mode::Small => {
                    let cluster_end = (request.page | (CLUSTER - 1)) + 1;
                    self.block_ahead(request.page, cluster_end)
                }
                Mode::Huge => self.block_of(request.page, mode),
            };
            if self.blocks.contains_key(&block)
                || self.is_resident(block)
                || !block.is_huge() && !self.fits(block)
            {
                continue;
            }
            if self.reserve() < (self.reserve_target() / 4) as i64 + block.pages() as i64 {
                // No room to spare: by the time there is, the request is outdated.
                return;
            }
            self.fetch_ahead(block, mode, !request.leave_unmapped);
        }
    }

    fn fetch_ahead(&mut self, block: BlockId, mode: Mode, map: bool) {
        let number = block.extent_no().0 as usize;
        self.extents[number].mode = Some(mode);
        let far = self.count(block, FAR);
        if far > 0 && self.take_room(block) {
            self.outcome.ahead(self.costs, far);
            self.granularity.on_inflow((block.pages() >> self.order) as u32);
            self.arrive(block, None, Reason::Ahead);
            if map {
                self.admit(block, Origin::Stream);
                self.merge(block);
            } else {
                self.enter(block, true);
                self.mark_clean(block);
            }
        } else if far == 0 && map && mode == Mode::Huge && self.take_room(block) {
            self.outcome.time_ns += self.costs.fresh_more_ns * EXTENT;
            self.extents[number].born_fresh = true;
            self.admit(block, Origin::Stream);
        }
        self.settle(number);
    }
}
