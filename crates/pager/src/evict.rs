//! The evictor: keeps memory to be had ahead of need. It stages victims, compares staged blocks with their far copies, writes what
//! differs, and gives frames free.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hiroma_kernel::lock::Lock;
use hiroma_kernel::vm;
use hiroma_kernel::wait;
use hiroma_policy::Origin;
use hiroma_policy::duplication::Held;
use hiroma_policy::granularity::JUDGED_STAGINGS;
use hiroma_policy::sharing::Seen;
use hiroma_units::{BlockId, EXTENT, Loc, PAGE};

use crate::canary;
use crate::content;
use crate::control::Counter;
use crate::core::{Block, Core, LIMIT_MIN, Phase, ahead_pages};
use crate::discard::By;
use crate::extent::{Copy, Mode, flag};
use crate::fetch::lost;
use crate::live::{Live, Path};
use crate::mover::TakeOut;
use crate::removal::OwnRemoval;
use crate::store::{Balance, Channel, Completion, StoreError, Tier, Token};
use crate::trace::Moved;

/// The evictor thread.
pub struct Evicting {
    core: Arc<Lock<Core>>,
    live: Arc<Live>,
    channel: Box<dyn Channel>,
    jobs: Vec<Job>,
    idle: Vec<usize>,
    completions: Vec<Completion>,
    freed: Vec<Loc>,
    chosen: Vec<usize>,
    /// When limits, statistics and children were last looked at.
    tended: Instant,
    /// When what could not leave was last tried.
    tried_held: Instant,
    /// Rounds in which nothing could be done.
    fruitless: u32,
    /// A victim was put off in the last round.
    put_off: bool,
}

/// One block on its way out. Its buffers are used again for later blocks.
#[derive(Default)]
struct Job {
    block: Option<BlockId>,
    stamp: u32,
    addr: usize,
    /// The far copies as the books have them; then as they shall be.
    copies: Vec<Copy>,
    /// Which of these are new.
    changed: Vec<bool>,
    /// Where it goes even if it is the same.
    tier: Option<Tier>,
    pending: usize,
    written: usize,
    pattern: usize,
}

/// Blocks taken from the books at a time: the lock is never held long.
const BATCH: usize = 8;
/// Limits that were asked for are in force after so long at the latest.
const TEND_EVERY: Duration = Duration::from_millis(50);
/// Victims looked at for one that can be staged, and victims that cannot leave.
const TRIES: usize = 4;
const HELD_MAX: usize = 256;
/// Most blocks that leave at a time because too much is staged.
const TRIMS_MAX: usize = 256;
/// What the kernel was busy with is tried again after so long.
const PUT_OFF: Duration = Duration::from_micros(500);
/// What could not leave is tried again after so long.
const TRY_HELD_AGAIN: Duration = Duration::from_secs(1);
/// Blocks that the fault thread stages and compares at a time, and how many that differ it collects before it calls the evictor.
const HERE_MAX: usize = 3;
const DIFFERING_MAX: usize = 64;
/// Bytes of write-backs under way.
const UNDER_WAY_MAX: usize = 8 * EXTENT;

impl Evicting {
    pub fn new(core: Arc<Lock<Core>>, live: Arc<Live>, channel: Box<dyn Channel>) -> Evicting {
        Evicting {
            core,
            live,
            channel,
            jobs: Vec::new(),
            idle: Vec::new(),
            completions: Vec::with_capacity(64),
            freed: Vec::with_capacity(1024),
            chosen: Vec::with_capacity(BATCH),
            tended: Instant::now(),
            tried_held: Instant::now(),
            fruitless: 0,
            put_off: false,
        }
    }

    pub fn run(mut self) {
        self.live.quiet.i_work_beside_it();
        self.live.quiet.evictor_runs(true);
        while !self.live.stopping() {
            let mut moved = self.poll();
            moved |= self.choose();
            self.write_chosen();
            moved |= self.reclaim_page_tables();
            self.fruitless = if moved { 0 } else { self.fruitless + 1 };
            if self.tended.elapsed() > TEND_EVERY {
                self.tend();
            }
            if !moved {
                self.rest();
            }
        }
    }

    /// Without the lock: compares what was chosen with its far copies, and writes what differs.
    pub fn write_chosen(&mut self) {
        let mut chosen = std::mem::take(&mut self.chosen);
        for index in chosen.drain(..) {
            self.jobs[index].compare(&self.core);
            self.write(index);
        }
        self.chosen = chosen;
    }

    fn rest(&mut self) {
        if self.channel.in_flight() > 0 {
            wait::readable(&self.channel.wait_fds(), 1);
            return;
        }
        if std::mem::take(&mut self.put_off) {
            std::thread::sleep(PUT_OFF);
            return;
        }
        self.live.quiet.evictor_runs(false);
        self.live.evict_bell.wait(TEND_EVERY);
        self.live.quiet.evictor_runs(true);
        self.tend();
        if self.fruitless > 0 {
            // What is wanted cannot be had now; trying at once again would only keep the lock from others.
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// What is due now and then: limits that were asked for, statistics.
    fn tend(&mut self) {
        self.tended = Instant::now();
        let mut core = self.core.lock();
        if let Some(limit) = self.live.page.requested_limit().filter(|&limit| limit >= LIMIT_MIN) {
            core.set_limit(limit as usize);
        }
        core.publish_slow();
        let extents = core.room() / EXTENT;
        core.granularity.set_local_extents(extents as u32);
        let (rescues, fetches) = (self.live.page.get(Counter::FaultsStaged), self.live.page.get(Counter::FaultsFetched));
        core.staging.observe(rescues, fetches);
        core.begin_drain();
        core.share_out(rescues);
        if self.tried_held.elapsed() > TRY_HELD_AGAIN {
            self.tried_held = Instant::now();
            core.try_again();
        }
    }

    /// Under the lock: stages victims, drops what is too much, and chooses staged blocks to compare and write.
    pub fn choose(&mut self) -> bool {
        let shared = self.core.clone();
        let mut guard = shared.lock_politely();
        let core = &mut *guard;
        if core.quiesce {
            return false;
        }
        let mut moved = core.stage_victims(&shared);
        self.put_off = std::mem::take(&mut core.put_off);
        core.catch_up();
        core.trim_staged();
        let over = if core.evict_everything { core.local() } else { core.local().saturating_sub(core.room()) };
        if over > 0 {
            moved |= core.frames.drop_spare(over, None) > 0 || core.drop_clean();
            core.publish();
        }
        while self.chosen.len() < BATCH
            && self.under_way_bytes(core) < UNDER_WAY_MAX
            && (core.reserve() < (2 * core.reserve_target()) as isize || core.evict_everything)
        {
            let next = match core.differing.pop_front() {
                None if core.is_cared_for() => None,
                None => core.probation.pop_front(),
                some => some,
            };
            let Some((block, stamp)) = next else { break };
            moved |= self.choose_one(core, block, stamp);
        }
        while self.chosen.len() < BATCH {
            let Some((block, stamp)) = core.drained.pop_front() else { break };
            moved |= self.choose_one(core, block, stamp);
        }
        moved |= core.drain_some();
        if !moved {
            moved = core.zero_frame_ahead();
        }
        moved
    }

    /// Chooses a staged block to compare and write, if it is still waiting for that.
    fn choose_one(&mut self, core: &mut Core, block: BlockId, stamp: u32) -> bool {
        let Some(entry) = core.awaiting_write(block, stamp) else { return false };
        entry.phase = Phase::Writing;
        let (frame, drains) = (entry.frame, entry.drains);
        core.staged_bytes -= block.bytes();
        core.in_flight += 1;
        let index = self.idle.pop().unwrap_or_else(|| {
            self.jobs.push(Job::default());
            self.jobs.len() - 1
        });
        self.jobs[index].prepare(core, block, stamp, core.frames.addr(frame));
        self.jobs[index].tier = if drains { Some(Tier::Behind) } else { core.promotes(block).then_some(Tier::Near) };
        self.chosen.push(index);
        true
    }

    fn under_way_bytes(&self, core: &Core) -> usize {
        (self.jobs.len() - self.idle.len()) * if core.fixed.is_none() { EXTENT / 8 } else { core.sector_bytes() }
    }

    /// Starts the writes of what differs.
    fn write(&mut self, index: usize) {
        let job = &mut self.jobs[index];
        let block = job.block.expect("a job in use has a block");
        let sectors = job.copies.len();
        let sector_bytes = block.bytes() / sectors;
        let stored = |copy: &Copy| matches!(copy, Copy::Stored { .. });
        let differing = (0..sectors).filter(|&at| job.changed[at] && stored(&job.copies[at])).count();
        // Where much differs, all is written, so that the block lies in one piece and comes back in one.
        // What has to be written anyway goes to whoever takes it.
        job.tier = job.tier.filter(|&tier| tier == Tier::Behind || differing == 0);
        let all = differing * 4 > sectors || job.tier.is_some();
        let due = |job: &Job, at: usize| (all || job.changed[at]) && stored(&job.copies[at]);
        job.pending = 1;
        let mut at = 0;
        let mut locs = [Loc(0); 512];
        while at < sectors {
            if !due(job, at) {
                at += 1;
                continue;
            }
            let end = (at..sectors).find(|&end| !due(job, end)).unwrap_or(sectors);
            let buf = vm::lend(job.addr + at * sector_bytes, (end - at) * sector_bytes);
            let locs = &mut locs[..end - at];
            let written = match job.tier {
                Some(tier) => match self.channel.write_to(tier, Token(index as u64), buf, locs) {
                    // It stays where it is.
                    Err((_, StoreError::Full { .. })) if differing == 0 => break,
                    Err((buf, StoreError::Full { .. })) => self.channel.write(Token(index as u64), buf, locs),
                    other => other,
                },
                None => self.channel.write(Token(index as u64), buf, locs),
            };
            match written {
                Ok(()) => job.pending += 1,
                Err((_, error)) => lost(&error),
            }
            job.written += (end - at) * sector_bytes;
            for (offset, &new) in locs.iter().enumerate() {
                if let Copy::Stored { loc, .. } = &mut job.copies[at + offset] {
                    *loc = new;
                }
                job.changed[at + offset] = true;
            }
            at = end;
        }
        self.ended(index);
    }

    pub fn poll(&mut self) -> bool {
        if self.channel.in_flight() == 0 {
            return false;
        }
        self.channel.poll(&mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        let any = !completions.is_empty();
        for Completion { token, result, .. } in completions.drain(..) {
            if let Err(error) = result {
                lost(&error);
            }
            self.ended(token.0 as usize);
        }
        self.completions = completions;
        any
    }

    /// One part of a job has ended; with the last, the block is clean.
    fn ended(&mut self, index: usize) {
        self.jobs[index].pending -= 1;
        if self.jobs[index].pending > 0 {
            return;
        }
        // Completions of a channel that answers at once are still to be collected; they belong to jobs that have ended by then.
        let mut core = self.core.lock_politely();
        self.jobs[index].commit(&mut core, &mut self.freed);
        if !self.freed.is_empty() {
            core.store.free(&self.freed);
            self.freed.clear();
        }
        core.in_flight -= 1;
        core.publish();
        core.live.wake_fault_thread_if_waiting();
        drop(core);
        self.idle.push(index);
    }

    /// Gives back page tables of extents that are to be huge again, and lets their faults go on.
    pub fn reclaim_page_tables(&mut self) -> bool {
        let mut guard = self.core.lock();
        let core = &mut *guard;
        if core.quiesce {
            return false;
        }
        let Some(extent) = core.next_reclaim() else { return false };
        // Several mappings: its pages move one by one, and the page table may stay.
        if !core.extents[extent].has(flag::MIXED) {
            // A child forked in between would wait for ever for what is being given back here.
            core.in_flight += 1;
            let start = core.arena.base() + extent * EXTENT;
            core.recorder.note("reclaim", extent as u64 * 512, 0, 0);
            core.own_removals.push(OwnRemoval::new(start, start + EXTENT));
            drop(guard);
            // Without the lock: the kernel waits until the fault thread has read the event.
            let _ = self.live.memory.discard(start, EXTENT);
            guard = self.core.lock();
            guard.in_flight -= 1;
            guard.recorder.note("reclaimed", extent as u64 * 512, 0, 0);
            let place = guard.own_removals.iter().position(|own| own.start == start);
            let own = place.map(|place| guard.own_removals.swap_remove(place));
            // Faults on the extent still wait.
            for (from, to) in own.map_or_else(Vec::new, OwnRemoval::of_the_program) {
                let _ = guard.forget(from, to, By::Kernel);
            }
            guard.extents[extent].set(flag::PAGE_TABLE, false);
        }
        guard.extents[extent].set(flag::RECLAIMING, false);
        drop(guard);
        self.live.wake_fault_thread();
        true
    }
}

impl Job {
    fn prepare(&mut self, core: &Core, block: BlockId, stamp: u32, addr: usize) {
        let (first, count) = core.sector_range(block);
        let extent = core.extent(block);
        (self.block, self.stamp, self.addr) = (Some(block), stamp, addr);
        (self.pending, self.written, self.pattern, self.tier) = (0, 0, 0, None);
        self.copies.clear();
        self.copies.extend((first..first + count).map(|sector| extent.copy(sector)));
        self.changed.clear();
        self.changed.resize(count, false);
    }

    /// Finds out what differs from the far copies. The content cannot change meanwhile: it is out of the program.
    fn compare(&mut self, core: &Lock<Core>) {
        let key = core.lock().key.clone();
        let block = self.block.expect("a job in use has a block");
        let buf = vm::lend(self.addr, block.bytes());
        let sector_bytes = block.bytes() / self.copies.len();
        for (at, bytes) in buf.bytes().chunks_exact(sector_bytes).enumerate() {
            let now = match content::repeated_word(bytes) {
                Some(0) if self.copies[at] == Copy::None => Copy::None,
                Some(word) => Copy::Pattern(word),
                None => {
                    let sum = content::checksum_cold(&key, bytes);
                    match self.copies[at] {
                        Copy::Stored { loc, sum: before } if before == sum => Copy::Stored { loc, sum },
                        _ => Copy::Stored { loc: Loc(0), sum },
                    }
                }
            };
            self.changed[at] = match (now, self.copies[at]) {
                // Canary "clean by content": what has a far copy counts as unchanged.
                (Copy::Stored { .. }, Copy::Stored { .. }) if canary::is_broken("clean by content") => false,
                (Copy::Stored { sum, .. }, Copy::Stored { sum: before, .. }) => sum != before,
                (now, before) => now != before,
            };
            if matches!(now, Copy::Pattern(_) | Copy::None) {
                self.pattern += sector_bytes;
            }
            self.copies[at] = now;
        }
    }

    /// Writes down where the far copies are, and what becomes of the block.
    fn commit(&mut self, core: &mut Core, freed: &mut Vec<Loc>) {
        let block = self.block.take().expect("a job in use has a block");
        let entry = core.blocks[&block];
        debug_assert_eq!((entry.stamp, entry.phase), (self.stamp, Phase::Writing));
        core.recorder.note("commit", block.page(), entry.left as usize | (entry.doomed as usize) << 1, self.written);
        let (first, _) = core.sector_range(block);
        for (at, &copy) in self.copies.iter().enumerate().filter(|&(at, _)| self.changed[at]) {
            if entry.doomed {
                freed.extend(match copy {
                    Copy::Stored { loc, .. } => Some(loc),
                    _ => None,
                });
            } else {
                core.set_copy(block, first + at, copy, freed);
            }
        }
        if block.is_huge() && self.changed.iter().all(|&changed| changed) {
            core.compact_places(block);
        }
        core.count(Counter::WrittenBytes, self.written);
        let written = self.copies.iter().zip(&self.changed).map(|(copy, &changed)| changed && matches!(copy, Copy::Stored { .. }));
        core.trace(Moved::Out, block, written.enumerate().filter_map(|(at, written)| written.then_some(at)));
        core.count(Counter::PatternBytes, self.pattern);
        if self.tier == Some(Tier::Near) {
            core.drain.offered(self.changed.contains(&true));
        }
        let drains = self.tier == Some(Tier::Behind);
        if entry.doomed || entry.left || drains {
            let entry = core.leave(block);
            core.frames.put_full(entry.frame);
            if drains && !self.changed.contains(&true) {
                core.drain.refused();
            }
            core.settle(block.extent_no().0 as usize);
            core.wake_after(block);
            core.live.wake_fault_thread();
            return;
        }
        let entry = core.blocks.get_mut(&block).expect("on the books");
        entry.phase = Phase::Staged;
        core.staged_bytes += block.bytes();
        core.mark_clean(block);
        if core.local() > core.room() {
            core.drop_clean();
            core.frames.drop_spare(core.local().saturating_sub(core.room()), None);
        }
    }
}

impl Core {
    /// Changes the local limit.
    pub fn set_limit(&mut self, bytes: usize) {
        if bytes != self.limit {
            self.limit = bytes;
            self.store.set_local_limit(bytes as u64);
            self.prefetcher.set_ahead_max_pages(ahead_pages(bytes));
            self.live.page.set(Counter::LimitBytes, bytes as u64);
            self.live.evict_bell.ring();
        }
    }

    /// Gives compressed memory more of the limit or less, by what was waited for. `rescues`: staged blocks that were touched so far.
    fn share_out(&mut self, rescues: u64) {
        let Some(Balance { near_bytes, packed_bytes, behind_bytes, is_full }) = self.store.balance() else { return };
        let (near, behind, staged_bytes) = (self.near, self.behind, self.staged_bytes as u64);
        let limit_bytes = self.limit as u64;
        let seen = Seen { near, behind, rescues, staged_bytes, near_bytes, packed_bytes, behind_bytes, limit_bytes, is_full };
        let held = Held { resident_bytes: self.resident_bytes as u64, staged_bytes, near_bytes, packed_bytes };
        self.duplication.observe(rescues, near.count, &held);
        // On the way from one share to another the numbers say nothing of either.
        if !self.is_draining() {
            if let Some(parts) = self.sharing.observe(&seen) {
                self.store.set_share(parts);
            }
        }
    }

    /// Moves victims out of the program until enough is staged, or until there is enough to be had.
    fn stage_victims(&mut self, lock: &Lock<Core>) -> bool {
        let mut moved = false;
        let (mut tries, mut held) = (0, 0);
        while tries < TRIES && held < HELD_MAX {
            if moved && lock.is_wanted() {
                break;
            }
            let to_come = self.reserve() + (self.staged_bytes - self.clean_bytes) as isize;
            let scarce = to_come < (2 * self.reserve_target()) as isize;
            let nearly_full = self.reserve() < (2 * self.reserve_target()) as isize;
            if !(scarce || nearly_full && self.staged_bytes < self.stage_target() || self.evict_everything) || self.is_cared_for() {
                break;
            }
            let Some(block) = self.next_victim() else { break };
            let waiting_bytes = self.coming.waiting_bytes();
            let staged = self.stage(block);
            moved |= staged;
            let holds = self.held.contains(&block) || self.coming.waiting_bytes() > waiting_bytes;
            (tries, held) = (tries + usize::from(!holds), held + usize::from(holds));
        }
        if moved || held > 0 {
            self.publish();
        }
        // There are more behind those that cannot leave now.
        self.put_off |= held >= HELD_MAX;
        moved
    }

    /// The next resident block that the policy gives up. What left by itself may still be on the policy's lists, thousands in a row.
    fn next_victim(&mut self) -> Option<BlockId> {
        loop {
            let block = self.replacement.next_victim()?;
            // Canary "stale entries": what is not resident is taken out all the same.
            if self.is_resident(block) && !self.held.contains(&block) || canary::is_broken("stale entries") {
                return Some(block);
            }
        }
    }

    /// What is staged and clean beyond its share leaves for good: room that is free is as quick to have, and costs no faults to watch.
    fn trim_staged(&mut self) {
        if self.replacement.gives_second_chances() {
            let target = self.stage_target();
            let mut trims = 0..TRIMS_MAX;
            while self.staged_bytes > target && trims.next().is_some() && self.drop_clean() {}
        }
    }

    /// The evictor's work on small blocks, done by the fault thread while it is quiet: on the processor of the program's only busy
    /// thread, where no other has to be interrupted for each page that moves. What has to be written is left to the evictor.
    pub fn evict_here(&mut self) {
        self.trim_staged();
        // While the evictor runs, each page that moves interrupts its processor.
        let quarters = if self.live.quiet.does_evictor_run() { 3 } else { 6 };
        let enough = (self.reserve_target() * quarters / 4) as isize;
        for _ in 0..HERE_MAX {
            if self.quiesce || self.forked || self.reserve() >= enough {
                return;
            }
            let to_come = self.reserve() + (self.staged_bytes - self.clean_bytes) as isize;
            if to_come < 2 * enough || self.staged_bytes < self.stage_target() {
                if let Some(block) = self.next_victim() {
                    self.stage(block);
                }
            }
            while let Some((block, stamp)) = self.probation.pop_front() {
                if self.awaiting_write(block, stamp).is_none() {
                    continue;
                }
                if !block.is_huge() && !self.promotes(block) && self.is_unchanged(block) {
                    self.mark_clean(block);
                } else {
                    self.differing.push_back((block, stamp));
                    if self.differing.len() >= DIFFERING_MAX || block.is_huge() {
                        self.live.evict_bell.ring();
                    }
                }
                break;
            }
        }
    }

    /// Whether the fault thread evicts, and keeps up.
    fn is_cared_for(&self) -> bool {
        self.live.quiet.is_on()
            && !self.forked
            && !self.evict_everything
            && self.local() <= self.room()
            && self.reserve() > (self.reserve_target() / 2) as isize
    }

    /// A staged block of which it is not known yet whether it differs from its far copy.
    fn awaiting_write(&mut self, block: BlockId, stamp: u32) -> Option<&mut Block> {
        self.blocks.get_mut(&block).filter(|entry| entry.stamp == stamp && entry.phase == Phase::Staged && !entry.clean)
    }

    /// Whether a staged block is as its far copy.
    fn is_unchanged(&self, block: BlockId) -> bool {
        let buf = vm::lend(self.frames.addr(self.blocks[&block].frame), block.bytes());
        let (first, count) = self.sector_range(block);
        let extent = self.extent(block);
        buf.bytes().chunks_exact(block.bytes() / count).enumerate().all(|(at, bytes)| match extent.copy(first + at) {
            Copy::Stored { sum, .. } => content::checksum_cold(&self.key, bytes) == sum,
            Copy::Pattern(word) => content::repeated_word(bytes) == Some(word),
            Copy::None => false,
        })
    }

    /// Moves one block out of the program.
    pub fn stage(&mut self, block: BlockId) -> bool {
        let addr = self.addr(block);
        if self.blocks.contains_key(&block) {
            self.replacement.put_back(block);
            return false;
        }
        let (pinned, end) = (&self.addresses.pinned, addr + block.bytes());
        if self.coming.touches(addr, end) {
            return self.is_gone_for_kernel(block);
        }
        if pinned.touches(addr, end) {
            // One locked page is no reason to hold two megabytes.
            if block.is_huge() && self.sector_order < 9 && !pinned.covers(addr, end) {
                self.break_up(block, flag::PAGE_TABLE);
                return true;
            }
            self.hold(block);
            return false;
        }
        if block.is_huge() && self.fixed.is_none() {
            let region = self.region_of(addr);
            let extent = &mut self.extents[block.extent_no().0 as usize];
            if self.granularity.breaks_up(&mut extent.history, self.regions.entry(region).or_default(), extent.rescues) {
                self.break_up(block, flag::PAGE_TABLE);
                let extent = self.extent_mut(block);
                (extent.rescues, extent.broken_stagings) = (0, 1);
                return true;
            }
        }
        let Some(frame) = self.frames.take_empty(block.order()) else {
            self.replacement.put_back(block);
            return false;
        };
        match self.take_out(block, frame) {
            TakeOut::Done => {
                if self.extent(block).has(flag::HOLES) {
                    // Freed lazily (MADV_FREE) and not written since, a page could be dropped in its frame too.
                    vm::touch(self.frames.addr(frame), block.bytes());
                }
                self.set_resident(block, false);
                let stamp = self.enter(block, frame, Phase::Staged);
                self.probation.push_back((block, stamp));
                self.judge_broken(block);
                return true;
            }
            TakeOut::Unmovable => self.hold(block),
            TakeOut::Mixed if block.is_huge() && self.sector_order < 9 => self.break_up(block, flag::MIXED),
            TakeOut::Mixed => self.hold(block),
            TakeOut::Later => {
                self.put_off = true;
                self.replacement.put_back(block);
            }
            TakeOut::Gone => {
                self.set_resident(block, false);
                self.settle(block.extent_no().0 as usize);
            }
        }
        self.frames.put_empty(frame);
        false
    }

    /// A resident extent that can no longer move as one, or shall not, goes on in small mode. `why`: the flag that says why.
    pub fn break_up(&mut self, block: BlockId, why: u8) {
        let number = block.extent_no().0 as usize;
        let start = block.page();
        self.set_resident(block, false);
        let extent = &mut self.extents[number];
        extent.mode = Mode::Small;
        extent.set(why, true);
        self.count(Counter::ModeChanges, 1);
        for sector in 0..self.sectors() {
            let piece = BlockId::new(start + ((sector as u64) << self.sector_order), self.sector_order);
            self.admit(piece, Origin::Demand);
        }
    }

    /// A piece was staged: of a broken extent, how many of the first ones were touched meanwhile says whether breaking it up was worth it.
    fn judge_broken(&mut self, block: BlockId) {
        let extent = self.extent_mut(block);
        if extent.broken_stagings == 0 {
            return;
        }
        extent.broken_stagings += 1;
        if extent.broken_stagings <= JUDGED_STAGINGS {
            return;
        }
        extent.broken_stagings = 0;
        let rescues = extent.rescues;
        let region = self.region_of(self.addr(block));
        self.granularity.on_broken_judged(self.regions.entry(region).or_default(), rescues);
    }

    /// While there is time: a zeroed frame for the next first touch.
    fn zero_frame_ahead(&mut self) -> bool {
        if self.fresh_demand == 0 || self.live.path != Path::Full || self.frames.zeroed_extents() >= 4 {
            self.fresh_demand = 0;
            return false;
        }
        if self.room() < self.local() + 4 * EXTENT + self.reserve_target() {
            return false;
        }
        self.fresh_demand -= 1;
        let Some(frame) = self.frames.take_empty(9) else { return false };
        self.frames.gained(frame);
        vm::zero(self.frames.addr(frame), PAGE);
        self.frames.put_zeroed(frame);
        self.publish();
        true
    }
}
