//! Fetches blocks from the store into frames, and maps them into the program. The fault threads use
//! this for blocks that are needed now, the prefetch thread for those that will be.

use std::sync::Arc;
use std::time::Duration;

use hiroma_policy::Origin;
use hiroma_policy::clusters::CLUSTER;
use hiroma_sys::lock::Lock;
use hiroma_sys::{vm, wait};
use hiroma_units::{BlockId, EXTENT, Loc, Nanos, PAGE};

use crate::canary;
use crate::content;
use crate::control::Counter;
use crate::core::{Ahead, Core, Phase, Wait};
use crate::extent::{Copy, Mode, flag};
use crate::fatal;
use crate::live::{Live, Path};
use crate::lost::{Began, Spared};
use crate::mover::PutIn;
use crate::store::{Channel, Completion, StoreError, Token};
use crate::trace::Moved;

/// Reads in flight on one channel, and what is needed to complete them.
pub struct Fetcher {
    /// The fault thread that it fetches for; None if it prefetches.
    index: Option<usize>,
    channel: Box<dyn Channel>,
    jobs: Vec<Job>,
    idle: Vec<usize>,
    completions: Vec<Completion>,
    done: Vec<usize>,
}

/// Maximum bytes of one read of sectors: data is verified while it is still in the processor's
/// cache.
const READ_MAX: usize = 256 << 10;

/// One block that is being fetched. The buffers are reused for later blocks.
#[derive(Default)]
struct Job {
    block: Option<BlockId>,
    addr: usize,
    /// Address of the block in the program.
    home: usize,
    stamp: u32,
    sector_bytes: usize,
    key: Option<Arc<content::Key>>,
    /// Runs of sectors that are read in one request: first sector in the block, and the range
    /// (first, end) of its entries in `locs`.
    runs: Vec<(usize, usize, usize)>,
    locs: Vec<Loc>,
    /// Checksums of the sectors to read, in the order of `locs`: sector in the block, sum.
    sums: Vec<(usize, u64)>,
    /// Sectors that consist of one repeated word.
    words: Vec<(usize, u64)>,
    pending: usize,
    /// Why it could not be read.
    failed: Option<String>,
    /// When the program began to wait for it, if it does.
    since: Option<Began>,
    /// How more local memory would have affected this fetch.
    spared: Spared,
}

impl Fetcher {
    pub fn new(channel: Box<dyn Channel>, index: Option<usize>) -> Fetcher {
        Fetcher {
            index,
            channel,
            jobs: Vec::new(),
            idle: Vec::new(),
            completions: Vec::with_capacity(64),
            done: Vec::with_capacity(64),
        }
    }

    /// Whether any fetch is in flight.
    pub fn is_busy(&self) -> bool {
        self.idle.len() < self.jobs.len()
    }

    /// Number of blocks in flight.
    pub fn under_way(&self) -> usize {
        self.jobs.len() - self.idle.len()
    }

    /// The fault that has waited longest for one of the blocks, and since when.
    pub fn oldest(&self) -> Option<(Nanos, usize)> {
        let waiting = self.jobs.iter().filter(|job| job.block.is_some());
        waiting.filter_map(|job| Some((job.since?.read, job.home))).min_by_key(|&(since, _)| since)
    }

    /// Descriptors that become readable when a read completes.
    pub fn wait_fds(&self) -> Vec<i32> {
        self.channel.wait_fds()
    }

    /// Records the fetch of a far block in the state; `submit` starts it, without the lock.
    pub fn begin(
        &mut self,
        core: &mut Core,
        ahead: Ahead,
        since: Option<Began>,
    ) -> Result<usize, Wait> {
        let Ahead { block, map, stream, drains } = ahead;
        if core.quiesce {
            return Err(Wait::Busy);
        }
        let Some((frame, zero)) = core.take_frame_for(block, false) else {
            core.live.evict_bell.ring();
            return Err(Wait::Room);
        };
        let stamp = core.enter(block, frame, Phase::Fetching);
        let entry = core.blocks.get_mut(&block).expect("just entered");
        (entry.map_when_ready, entry.stream, entry.drains) = (map, stream, drains);
        core.in_flight += 1;
        let index = self.idle.pop().unwrap_or_else(|| {
            self.jobs.push(Job::default());
            self.jobs.len() - 1
        });
        self.jobs[index].prepare(core, block, core.frames.addr(frame), stamp, zero);
        self.jobs[index].since = since;
        core.trace(Moved::In, block, self.jobs[index].sums.iter().map(|&(sector, _)| sector));
        self.jobs[index].spared = if drains { None } else { core.note_came(block) };
        Ok(index)
    }

    /// Starts the reads of a job.
    pub fn submit(&mut self, index: usize) {
        let job = &mut self.jobs[index];
        for &(sector, word) in &job.words {
            vm::fill(job.addr + sector * job.sector_bytes, job.sector_bytes, word);
        }
        job.pending = job.runs.len();
        for (run, &(sector, from, to)) in job.runs.iter().enumerate() {
            let buf =
                vm::lend(job.addr + sector * job.sector_bytes, (to - from) * job.sector_bytes);
            self.channel.read(Token((index as u64) << 16 | run as u64), &job.locs[from..to], buf);
        }
        if job.pending == 0 {
            self.done.push(index);
        }
    }

    /// Advances the reads and finishes the fetches that are complete. Returns true if there were
    /// any.
    pub fn poll(&mut self, core: &Lock<Core>) -> bool {
        if self.channel.in_flight() > 0 {
            self.channel.poll(&mut self.completions);
        }
        for Completion { token, result, .. } in self.completions.drain(..) {
            let job = &mut self.jobs[(token.0 >> 16) as usize];
            let why = match result {
                Ok(()) => job.verify(token.0 as usize & 0xffff).err().map(str::to_owned),
                Err(error) => Some(ending(&error)),
            };
            job.failed = job.failed.take().or(why);
            job.pending -= 1;
            if job.pending == 0 {
                self.done.push((token.0 >> 16) as usize);
            }
        }
        if self.done.is_empty() {
            return false;
        }
        let mut core = core.lock_eagerly();
        while let Some(index) = self.done.pop() {
            let is_fault = self.jobs[index].since.is_some();
            self.jobs[index].finish(&mut core);
            if let Some(thread) = self.index.filter(|_| is_fault) {
                core.live.yielding.gives(thread);
            }
            self.idle.push(index);
        }
        true
    }
}

impl Job {
    fn prepare(&mut self, core: &Core, block: BlockId, addr: usize, stamp: u32, zero: bool) {
        let (first, count) = core.sector_range(block);
        let extent = core.extent(block);
        (self.block, self.addr, self.stamp) = (Some(block), addr, stamp);
        (self.sector_bytes, self.home) = (core.sector_bytes(), core.addr(block));
        self.key.get_or_insert_with(|| core.key.clone());
        self.runs.clear();
        self.locs.clear();
        self.sums.clear();
        self.words.clear();
        for sector in 0..count {
            match extent.copy(first + sector) {
                Copy::None if zero => {}
                Copy::None => self.words.push((sector, 0)),
                Copy::Pattern(word) => self.words.push((sector, word)),
                Copy::Stored { loc, sum } => {
                    match self.runs.last_mut() {
                        Some((start, from, to))
                            if *start + (*to - *from) == sector
                                && (*to - *from + 1) * self.sector_bytes <= READ_MAX =>
                        {
                            *to += 1;
                        }
                        _ => self.runs.push((sector, self.locs.len(), self.locs.len() + 1)),
                    }
                    self.locs.push(loc);
                    self.sums.push((sector, sum));
                }
            }
        }
    }

    /// Verifies the sectors of a run against their checksums.
    fn verify(&self, run: usize) -> Result<(), &'static str> {
        let (_, from, to) = self.runs[run];
        let key = self.key.as_ref().expect("a job in use has a key");
        for &(sector, sum) in &self.sums[from..to] {
            let buf = vm::lend(self.addr + sector * self.sector_bytes, self.sector_bytes);
            // Data that the kernel copied here in large pieces may have bypassed the processor's
            // cache.
            let sum_of = if to - from > 1 { content::checksum_cold } else { content::checksum };
            // Canary "verify what comes": bytes that changed in the store are accepted.
            if sum_of(key, buf.bytes()) != sum && !canary::is_broken("verify what comes") {
                return Err(
                    "a block came back from its store with other bytes than were sent there (checksum wrong). The program was ended \
                     rather than given wrong data. Check the memory of the machines, the disk, and the network in between",
                );
            }
        }
        Ok(())
    }

    /// Maps the block, stages it, or drops it.
    fn finish(&mut self, core: &mut Core) {
        let block = self.block.take().expect("a job in use has a block");
        core.in_flight -= 1;
        if let Some(why) = self.failed.take().filter(|_| !core.blocks[&block].doomed) {
            return self.give_up(core, block, &why);
        }
        if !core.blocks[&block].drains {
            core.count(Counter::FetchedBytes, self.locs.len() * self.sector_bytes);
            core.accessed.working_set.fetched(block);
        }
        core.recorder.note("fetched", block.page(), self.locs.len(), self.words.len());
        let changed = core.apply_overlay(block, self.addr);
        let entry = core.blocks[&block];
        debug_assert_eq!(entry.stamp, self.stamp);
        // Before the thread is woken: if both share a processor, the woken thread runs immediately,
        // and the measured time would include its work.
        let waited = core.note_arrived(block, self.since, self.spared);
        if entry.doomed {
            let entry = core.leave(block);
            core.frames.put_full(entry.frame);
            let (first, count) = core.sector_range(block);
            let mut freed = Vec::new();
            (first..first + count)
                .for_each(|sector| core.set_copy(block, sector, Copy::None, &mut freed));
            core.store.free(&freed);
            core.gone_away(block);
            // Threads that wait for the block fault again, and get zeros.
            core.wake_after(block);
            core.live.wake_fault_thread();
        } else if entry.map_when_ready {
            let origin = if entry.stream {
                Origin::Stream
            } else if entry.prefetched {
                Origin::Prefetch
            } else {
                Origin::Demand
            };
            if let Some(waited) = waited {
                // The first sector decides for all: sectors that were written together are stored
                // together.
                let is_behind = self.locs.first().is_some_and(|&loc| core.store.is_behind(loc));
                if is_behind { &mut core.behind } else { &mut core.near }.add(waited.0);
            }
            core.map_in(block, origin);
            core.give_up_copies(block);
        } else {
            let entry = core.blocks.get_mut(&block).expect("on the books");
            entry.phase = Phase::Staged;
            core.staged_bytes += block.bytes();
            if entry.drains {
                core.drain_fetched(block, self.stamp);
            } else if changed {
                core.probation.push_back((block, self.stamp));
            } else {
                core.mark_clean(block);
            }
        }
        core.publish();
        core.mind_reserve();
    }

    /// The block cannot be read. That ends the program only if a thread waits for it and it is a
    /// single sector. Otherwise it stays far: threads that touch it fault again, and get the sector
    /// that they need alone.
    fn give_up(&self, core: &mut Core, block: BlockId, why: &str) {
        let is_single = core.sector_range(block).1 == 1;
        if is_single && self.since.is_some() {
            fatal::die(why);
        }
        core.recorder.note("not read", block.page(), block.pages(), self.since.is_some() as usize);
        if !is_single {
            core.extent_mut(block).set(flag::BROKEN, true);
        }
        let entry = core.leave(block);
        core.frames.put_full(entry.frame);
        core.note_not_come(block, entry.drains);
        if entry.drains {
            core.drain.failed();
            core.note_departure(block);
        }
        core.settle(block.extent_no().0 as usize);
        core.wake_after(block);
        core.live.wake_fault_thread();
        core.publish();
        core.mind_reserve();
    }
}

impl Core {
    /// Maps a block that is in a frame into the program.
    pub fn map_in(&mut self, block: BlockId, origin: Origin) {
        let entry = self.leave(block);
        let addr = self.frames.addr(entry.frame);
        self.apply_overlay(block, addr);
        match self.put_in(block, entry.frame) {
            PutIn::Done => {
                self.admit(block, origin);
                self.merge(block);
            }
            PutIn::Gone => self.settle(block.extent_no().0 as usize),
        }
    }

    /// Whether a small block is in a store alone, in plain memory.
    pub fn is_far(&self, block: BlockId) -> bool {
        let (first, count) = self.sector_range(block);
        !self.is_resident(block)
            && !self.blocks.contains_key(&block)
            && (first..first + count)
                .any(|at| !matches!(self.extent(block).copy(at), Copy::None | Copy::Pattern(0)))
            && self.is_plain_block(block)
    }

    /// Which sectors of the aligned group of `size` around a far one are far, and can come one by one.
    pub fn far_around(&self, sector: u64, size: u64) -> u16 {
        let start = sector / size * size;
        let is_far = |at: &u64| {
            let block = self.least_block(start + at);
            start + at == sector || block.order() == 0 && self.is_far(block)
        };
        (0..size).filter(is_far).fold(0, |far, at| far | 1 << at)
    }

    /// Queues the requests of the prefetch policy that make sense: blocks that are neither local
    /// nor on the way, in plain memory, while the queue is not full.
    pub fn prefetch(&mut self, requests: &[hiroma_policy::PrefetchRequest]) {
        for request in requests {
            let page = request.page;
            let extent = page as usize * PAGE / EXTENT;
            if extent >= self.extents.len() || self.fetch_queue.len() >= 512 {
                continue;
            }
            let wanted =
                if request.unit as usize * PAGE == EXTENT { Mode::Huge } else { Mode::Small };
            let mode = match self.extents[extent].mode {
                Mode::Away => self.possible_mode(extent, wanted),
                mode => mode,
            };
            let block = match mode {
                Mode::Small => self.block_ahead(page, page / CLUSTER * CLUSTER + CLUSTER),
                _ => self.block_of(page, mode),
            };
            let is_queued = self.fetch_queue.back().is_some_and(|ahead| ahead.block == block);
            let addr = self.addr(block);
            if !is_queued
                && !self.blocks.contains_key(&block)
                && !self.is_resident(block)
                && self.addresses.is_plain(addr, addr + 1)
            {
                self.fetch_queue.push_back(Ahead {
                    block,
                    map: !request.leave_unmapped,
                    stream: true,
                    drains: false,
                });
            }
        }
        if !self.fetch_queue.is_empty() {
            self.live.fetch_bell.ring();
        }
    }

    /// The mode that an extent can be in if `wanted` is preferred.
    pub fn possible_mode(&self, extent: usize, wanted: Mode) -> Mode {
        match self.fixed {
            Some(bytes) if (bytes as usize) < EXTENT => return Mode::Small,
            _ => {}
        }
        if self.extents[extent].has(flag::MIXED) || self.is_broken(extent) {
            return Mode::Small;
        }
        if self.fixed.is_some() { Mode::Huge } else { wanted }
    }
}

/// The prefetch thread: fetches the blocks that the policy requested while there is room to spare.
pub struct Prefetching {
    core: Arc<Lock<Core>>,
    live: Arc<Live>,
    fetcher: Fetcher,
}

/// Maximum bytes of prefetches in flight.
const UNDER_WAY_MAX: usize = 4 * EXTENT;

impl Prefetching {
    pub fn new(core: Arc<Lock<Core>>, live: Arc<Live>, channel: Box<dyn Channel>) -> Prefetching {
        Prefetching { core, live, fetcher: Fetcher::new(channel, None) }
    }

    pub fn run(mut self) {
        self.live.yielding.i_work_beside_it();
        let mut submitted = Vec::with_capacity(64);
        while !self.live.stopping() {
            if !self.turn(&mut submitted) {
                if self.fetcher.is_busy() {
                    wait::readable(&self.fetcher.wait_fds(), 1);
                } else {
                    self.live.fetch_bell.wait(Duration::from_millis(200));
                }
            }
        }
    }

    /// Does the pending work. Returns false if there was none.
    pub fn turn(&mut self, submitted: &mut Vec<usize>) -> bool {
        self.start(submitted);
        let started = !submitted.is_empty();
        for index in submitted.drain(..) {
            self.fetcher.submit(index);
        }
        self.fetcher.poll(&self.core) || started
    }

    fn start(&mut self, submitted: &mut Vec<usize>) {
        let shared = self.core.clone();
        let mut guard = shared.lock_politely();
        let core = &mut *guard;
        while let Some(&ahead) = core.fetch_queue.front() {
            if core.quiesce || self.fetcher.under_way() + submitted.len() >= 64 {
                return;
            }
            let bytes = ahead.block.bytes();
            if (self.fetcher.under_way() * bytes >= UNDER_WAY_MAX && self.fetcher.under_way() > 0)
                || core.reserve() < (core.reserve_target() / 4 + bytes) as isize
            {
                if !self.fetcher.is_busy() {
                    // No room to spare: by the time there is, these requests are out of date.
                    core.forget_ahead();
                    core.live.evict_bell.ring();
                }
                return;
            }
            core.fetch_queue.pop_front();
            self.start_one(core, ahead, submitted);
            core.catch_up();
        }
    }

    fn start_one(&mut self, core: &mut Core, ahead: Ahead, submitted: &mut Vec<usize>) {
        let block = ahead.block;
        let number = block.extent_no().0 as usize;
        if core.blocks.contains_key(&block)
            || core.is_resident(block)
            || core.extents[number].has(flag::RECLAIMING)
            || !block.is_huge() && !core.fits(block)
        {
            return;
        }
        let mode = if block.is_huge() { Mode::Huge } else { Mode::Small };
        match core.extents[number].mode {
            Mode::Away => {
                // It was requested while the extent was in the other mode (a part of it was
                // protected then).
                if core.possible_mode(number, mode) != mode
                    || mode == Mode::Huge && core.needs_reclaim(number)
                {
                    return;
                }
                core.extents[number].mode = mode;
                core.recorder.note("mode by prefetch", number as u64 * 512, mode as usize, 0);
            }
            now if now != mode => return,
            _ => {}
        }
        let (first, count) = core.sector_range(block);
        let far = (first..first + count).any(|sector| {
            !matches!(core.extents[number].copy(sector), Copy::None | Copy::Pattern(0))
        });
        if far {
            let begun = self.fetcher.begin(core, ahead, None);
            if let Ok(index) = begun {
                if !ahead.drains {
                    core.blocks.get_mut(&block).expect("just begun").prefetched = true;
                    core.granularity.on_inflow(count as u32);
                    core.count(Counter::Prefetches, 1);
                }
                submitted.push(index);
                return;
            }
            if ahead.drains {
                core.note_departure(block);
            }
        } else if ahead.map && mode == Mode::Huge {
            // Fresh memory ahead of a stream of first touches is mapped before it is touched.
            core.map_zeros_ahead(block);
        }
        core.settle(number);
    }
}

impl Core {
    /// Whether the extent's page table must be freed before a huge page can be moved in.
    pub fn needs_reclaim(&self, extent: usize) -> bool {
        self.live.path == Path::Full && self.extents[extent].has(flag::PAGE_TABLE)
    }

    fn map_zeros_ahead(&mut self, block: BlockId) {
        let addr = self.addr(block);
        if !self.addresses.is_plain(addr, addr + EXTENT) {
            return;
        }
        let Some((frame, zero)) = self.take_frame_for(block, true) else { return };
        if !zero {
            vm::zero(self.frames.addr(frame), block.bytes());
        }
        match self.put_in(block, frame) {
            PutIn::Done => {
                self.extent_mut(block).set(flag::BORN_FRESH, true);
                self.admit(block, Origin::Stream);
                self.count(Counter::Prefetches, 1);
            }
            PutIn::Gone => {}
        }
        self.publish();
    }
}

/// Ends the program because a store has failed.
pub fn lost(error: &StoreError) -> ! {
    fatal::die(&ending(error))
}

fn ending(error: &StoreError) -> String {
    format!("{error}. The program's far memory is lost, so it was ended")
}

#[cfg(test)]
mod tests {
    use hiroma_policy::PrefetchRequest;
    use hiroma_units::{BlockId, EXTENT, PAGE};

    use crate::config::{BlockSize, parse_stores};
    use crate::core::Ahead;
    use crate::discard::tests::{expect_filled, fill};
    use crate::{Config, Pager};

    #[test]
    fn piecewise_fetch_does_not_complete_the_extent() {
        let stores = parse_stores("compressed:64M").unwrap();
        let block = BlockSize::Fixed(EXTENT as u32);
        let pager = Pager::start(Config {
            local_limit_bytes: 16 << 20,
            stores,
            block,
            ..Config::default()
        })
        .unwrap();
        let addr = pager.map(EXTENT, EXTENT).unwrap();
        fill(addr);
        pager.evict_all().unwrap();

        let first = ((addr - pager.arena().0) / PAGE) as u64;
        let mut core = pager.core.lock();
        let block = BlockId::new(first + 14, core.sector_order);
        core.fetch_queue.push_back(Ahead { block, map: true, stream: true, drains: false });
        core.live.fetch_bell.ring();
        drop(core);
        while !pager.core.lock().fetch_queue.is_empty() || pager.core.lock().in_flight > 0 {
            std::thread::yield_now();
        }

        // Requested in the present mode, the whole extent is fetched.
        pager.core.lock().prefetch(&[PrefetchRequest {
            page: first + 14,
            unit: 2,
            leave_unmapped: false,
        }]);
        expect_filled(addr);
        pager.stop();
    }
}
