//! The evictor: keeps memory available ahead of need. It stages victims, compares staged blocks
//! with their far copies, writes back those that differ, and frees frames.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hiroma_sys::frame::FrameBuf;
use hiroma_sys::lock::Lock;
use hiroma_sys::vm;
use hiroma_sys::wait;
use hiroma_units::{BlockId, EXTENT, Loc};

use crate::config::LOCAL_MIN;
use crate::control::Counter;
use crate::core::Core;
use crate::discard::By;
use crate::extent::{Copy, flag};
use crate::fatal;
use crate::fetch::lost;
use crate::live::Live;
use crate::removal::OwnRemoval;
use crate::starved::Progress;
use crate::store::{Channel, Completion, StoreError, Tier, Token};
use crate::writeback::Job;

/// The evictor thread.
pub struct Evicting {
    core: Arc<Lock<Core>>,
    live: Arc<Live>,
    channel: Box<dyn Channel>,
    jobs: Vec<Job>,
    idle: Vec<usize>,
    completions: Vec<Completion>,
    freed: Vec<Loc>,
    /// Writes for which the store turned out to have no room.
    refused: Vec<(Token, FrameBuf)>,
    /// Since when that is so, until they have succeeded.
    refused_since: Vec<(Token, Instant)>,
    chosen: Vec<usize>,
    /// Jobs that have ended and are not committed yet.
    ended: Vec<usize>,
    /// When limits, statistics and children were last checked.
    tended: Instant,
    /// When blocks that could not be evicted were last retried.
    tried_held: Instant,
    /// Whether threads that were about to discard memory have done so.
    progress: Progress,
    /// Consecutive rounds without progress.
    fruitless: u32,
    /// A victim was put off in the last round.
    put_off: bool,
}

/// Blocks chosen for each hold of the lock, so that it is never held for long.
const BATCH: usize = 8;
/// A requested limit takes effect after this time at the latest.
const TEND_EVERY: Duration = Duration::from_millis(50);
/// Pages that the kernel was busy with are retried after this time.
const PUT_OFF: Duration = Duration::from_micros(500);
/// Blocks that could not be evicted are retried after this time.
const TRY_HELD_AGAIN: Duration = Duration::from_secs(1);
/// How long a write waits for room. A server frees 2 s after a process was killed what it had there.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);
/// A store that has no room is tried again after this time.
const ROOM_RETRY: Duration = Duration::from_millis(5);
/// A wait for room that takes longer is reported.
const TOLD_AFTER: Duration = Duration::from_millis(500);
/// Maximum bytes of write-backs in flight.
const UNDER_WAY_MAX: usize = 8 * EXTENT;

/// The write of a job's sectors from `sector` on: each one under way has a token of its own.
fn token_of(job: usize, sector: usize) -> Token {
    Token((job as u64) << 16 | sector as u64)
}

fn job_of(token: Token) -> usize {
    (token.0 >> 16) as usize
}

fn sector_of(token: Token) -> usize {
    (token.0 & 0xffff) as usize
}

/// Where sectors are, and the checksums of their content.
fn stored(copies: &[Copy]) -> impl Iterator<Item = (Loc, u64)> + '_ {
    copies.iter().filter_map(|copy| match *copy {
        Copy::Stored { loc, sum } => Some((loc, sum)),
        _ => None,
    })
}

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
            refused: Vec::new(),
            refused_since: Vec::new(),
            chosen: Vec::with_capacity(BATCH),
            ended: Vec::with_capacity(BATCH),
            tended: Instant::now(),
            tried_held: Instant::now(),
            progress: Progress::default(),
            fruitless: 0,
            put_off: false,
        }
    }

    pub fn run(mut self) {
        self.live.yielding.i_work_beside_it();
        self.live.yielding.evictor_runs(true);
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

    /// Without the lock: compares the chosen blocks with their far copies, and writes those that
    /// differ.
    pub fn write_chosen(&mut self) {
        let mut chosen = std::mem::take(&mut self.chosen);
        for index in chosen.drain(..) {
            self.jobs[index].compare();
            self.write(index);
        }
        self.chosen = chosen;
        self.commit();
    }

    fn rest(&mut self) {
        let is_bell_awaited = self.channel.in_flight() == 0 && !std::mem::take(&mut self.put_off);
        self.live.yielding.evictor_runs(false);
        if self.channel.in_flight() > 0 {
            wait::readable(&self.channel.wait_fds(), 1);
        } else if is_bell_awaited {
            self.live.evict_bell.wait(TEND_EVERY);
        } else {
            std::thread::sleep(PUT_OFF);
        }
        if is_bell_awaited {
            self.tend();
            if self.fruitless > 0 {
                // What is needed is not available now; an immediate retry would only keep the lock
                // from others.
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        self.live.yielding.evictor_runs(true);
    }

    /// Periodic work: requested limits, statistics.
    fn tend(&mut self) {
        self.tended = Instant::now();
        let tries_again = self.tried_held.elapsed() > TRY_HELD_AGAIN;
        let have_acted = tries_again && {
            let waits = self.core.lock().coming.waits();
            self.progress.have_acted(waits)
        };
        let mut core = self.core.lock();
        if let Some(limit) = self.live.page.requested_limit().filter(|&limit| limit >= LOCAL_MIN.0)
        {
            core.set_limit(limit as usize);
        }
        core.publish_slow();
        let extents = core.room() / EXTENT;
        core.granularity.set_local_extents(extents as u32);
        let (rescues, fetches) =
            (self.live.page.get(Counter::FaultsStaged), self.live.page.get(Counter::FaultsFetched));
        core.staging.observe(rescues, fetches);
        core.begin_drain();
        core.share_out(rescues);
        if tries_again {
            self.tried_held = Instant::now();
            core.try_again(have_acted);
        }
    }

    /// Under the lock: stages victims, drops memory that exceeds the limit, and chooses staged
    /// blocks to compare and write.
    pub fn choose(&mut self) -> bool {
        let shared = self.core.clone();
        let mut guard = shared.lock_politely();
        let core = &mut *guard;
        if core.quiesce {
            return false;
        }
        core.exchange_accessed();
        let mut moved = core.stage_victims(&shared);
        self.put_off = std::mem::take(&mut core.put_off);
        core.catch_up();
        core.trim_staged();
        let over = if core.evict_everything {
            core.local()
        } else {
            core.local().saturating_sub(core.room())
        };
        if over > 0 {
            moved |= core.frames.drop_spare(over, None) > 0 || core.drop_clean();
            core.publish();
        }
        while self.chosen.len() < BATCH
            && self.under_way_bytes(core) < UNDER_WAY_MAX
            && (core.reserve() < (2 * core.reserve_target()) as isize || core.evict_everything)
        {
            let next = core.differing.pop_front().or_else(|| core.probation.pop_front());
            let Some((block, stamp)) = next else { break };
            moved |= self.choose_one(core, block, stamp);
        }
        while self.chosen.len() < BATCH {
            let Some((block, stamp)) = core.drained.pop_front() else { break };
            moved |= self.choose_one(core, block, stamp);
        }
        moved |= core.drain_some();
        moved |= core.demote_some();
        moved |= core.give_up_some();
        if !moved {
            moved = core.zero_frame_ahead();
        }
        moved
    }

    /// Chooses a staged block to compare and write, if it still waits for that.
    fn choose_one(&mut self, core: &mut Core, block: BlockId, stamp: u32) -> bool {
        let Some((frame, drains)) = core.take_for_writing(block, stamp) else { return false };
        let index = self.idle.pop().unwrap_or_else(|| {
            self.jobs.push(Job::default());
            self.jobs.len() - 1
        });
        self.jobs[index].prepare(core, block, stamp, core.frames.addr(frame));
        self.jobs[index].tier =
            if drains { Some(Tier::Behind) } else { core.promotes(block).then_some(Tier::Near) };
        self.chosen.push(index);
        true
    }

    fn under_way_bytes(&self, core: &Core) -> usize {
        (self.jobs.len() - self.idle.len())
            * if core.fixed.is_none() { EXTENT / 8 } else { core.sector_bytes() }
    }

    /// Starts the writes of the sectors that differ.
    fn write(&mut self, index: usize) {
        let job = &mut self.jobs[index];
        let block = job.block.expect("a job in use has a block");
        let sectors = job.copies.len();
        let sector_bytes = block.bytes() / sectors;
        let stored = |copy: &Copy| matches!(copy, Copy::Stored { .. });
        let differing =
            (0..sectors).filter(|&at| job.changed[at] && stored(&job.copies[at])).count();
        // If many sectors differ, all are written, so that the block is contiguous and can be
        // fetched in one read. Content that must be written anyway goes to any store that accepts
        // it.
        job.tier = job.tier.filter(|&tier| tier == Tier::Behind || differing == 0);
        let all = differing * 4 > sectors || job.tier.is_some();
        job.pending = 1;
        let mut at = 0;
        let mut locs = [Loc(0); 512];
        while let Some((from, end)) = self.jobs[index].next_to_write(at, all) {
            let Job { addr, tier, .. } = self.jobs[index];
            let buf = vm::lend(addr + from * sector_bytes, (end - from) * sector_bytes);
            let locs = &mut locs[..end - from];
            let token = token_of(index, from);
            let written = match tier {
                Some(tier) => match self.channel.write_to(tier, token, buf, locs) {
                    // The block stays in its present store.
                    Err((_, StoreError::Full { .. })) if differing == 0 => break,
                    other => other,
                },
                None => self.channel.write(token, buf, locs),
            };
            match written {
                Ok(()) => {}
                Err((buf, StoreError::Full { .. })) => {
                    self.write_late(token, buf, locs, Instant::now())
                }
                Err((_, error)) => lost(&error),
            }
            let job = &mut self.jobs[index];
            job.pending += 1;
            job.written += (end - from) * sector_bytes;
            job.wrote(from, locs);
            at = end;
        }
        self.ended(index);
    }

    /// Starts a write when the store has room again: other processes end, a server returns,
    /// write-backs that complete free what they replace, and a new limit gives more. It waits since
    /// `start`.
    fn write_late(&mut self, token: Token, mut buf: FrameBuf, locs: &mut [Loc], start: Instant) {
        let patience = match fatal::is_model() {
            true => Duration::ZERO,
            false => self.core.lock().store.room_patience().unwrap_or(ROOM_PATIENCE),
        };
        let mut is_told = false;
        loop {
            match self.channel.write(token, buf, locs) {
                Ok(()) => return,
                Err((_, error @ StoreError::Full { .. })) if start.elapsed() >= patience => {
                    lost(&error)
                }
                Err((back, error @ StoreError::Full { .. })) => {
                    if !is_told && start.elapsed() > TOLD_AFTER {
                        is_told = true;
                        let seconds = patience.as_secs();
                        fatal::warn(&format!("{error}. Waiting up to {seconds} s for room"));
                    }
                    buf = back;
                }
                Err((_, error)) => lost(&error),
            }
            if self.tended.elapsed() > TEND_EVERY {
                self.tend();
            }
            if !self.collect() {
                std::thread::sleep(ROOM_RETRY);
            }
        }
    }

    pub fn poll(&mut self) -> bool {
        let any = self.collect();
        while let Some((token, buf)) = self.refused.pop() {
            self.write_again(token, buf);
        }
        any
    }

    /// Processes the writes that have completed, and keeps those that were refused.
    fn collect(&mut self) -> bool {
        if self.channel.in_flight() == 0 {
            return false;
        }
        self.channel.poll(&mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        let any = !completions.is_empty();
        for Completion { token, buf, result } in completions.drain(..) {
            match result {
                Ok(()) => {
                    self.refused_since.retain(|&(refused, _)| refused != token);
                    self.ended(job_of(token));
                }
                Err(StoreError::Full { .. }) => self.refused.push((token, buf)),
                Err(error) => lost(&error),
            }
        }
        self.completions = completions;
        self.commit();
        any
    }

    /// Some file systems find out only while they write that there is no space. The frame still has
    /// the content, and another store may have room.
    fn write_again(&mut self, token: Token, buf: FrameBuf) {
        let (index, from) = (job_of(token), sector_of(token));
        let job = &mut self.jobs[index];
        let block = job.block.expect("a job in use has a block");
        let run = from..from + buf.len() / (block.bytes() / job.copies.len());
        let mut locs: Vec<Loc> = stored(&job.copies[run.clone()]).map(|(loc, _)| loc).collect();
        assert_eq!(locs.len(), run.len(), "only what is stored is written");
        let core = self.core.lock_politely();
        // Nothing refers to these locations: the recorded copies are still the former ones.
        core.store.free(&locs);
        let (first, _) = core.sector_range(block);
        let recorded: Vec<Copy> =
            run.clone().map(|at| core.extent(block).copy(first + at)).collect();
        drop(core);
        if stored(&recorded).map(|(_, sum)| sum).eq(stored(&job.copies[run.clone()]).map(|s| s.1)) {
            // It was to move to another store only, and stays in its present one.
            job.copies[run.clone()].copy_from_slice(&recorded);
            job.changed[run].fill(false);
            job.written -= buf.len();
            return self.ended(index);
        }
        let known = self.refused_since.iter().find(|(refused, _)| *refused == token);
        let since = known.map_or_else(Instant::now, |&(_, since)| since);
        if known.is_none() {
            self.refused_since.push((token, since));
        }
        self.write_late(token, buf, &mut locs, since);
        self.jobs[index].wrote(from, &locs);
    }

    /// One part of a job has ended.
    fn ended(&mut self, index: usize) {
        self.jobs[index].pending -= 1;
        if self.jobs[index].pending == 0 {
            self.ended.push(index);
        }
    }

    /// The blocks of the jobs that have ended are clean. One hold of the lock for all: the fault
    /// thread waits for each.
    fn commit(&mut self) {
        if self.ended.is_empty() {
            return;
        }
        let mut core = self.core.lock_politely();
        for index in self.ended.drain(..) {
            self.jobs[index].commit(&mut core, &mut self.freed);
            core.in_flight -= 1;
            self.idle.push(index);
        }
        if !self.freed.is_empty() {
            core.store.free(&self.freed);
            self.freed.clear();
        }
        core.publish();
        core.live.wake_fault_thread_if_waiting();
    }

    /// Frees the page tables of extents that are to become huge again, and lets their faults
    /// continue.
    pub fn reclaim_page_tables(&mut self) -> bool {
        let mut guard = self.core.lock();
        let core = &mut *guard;
        if core.quiesce {
            return false;
        }
        let Some(extent) = core.next_reclaim() else { return false };
        // With several mappings, its pages move one by one, and the page table may stay. It also
        // stays in a program that maps over its memory by raw system calls: one between here and
        // the kernel's lock could not be seen, and its new pages would be dropped.
        if !core.extents[extent].has(flag::MIXED) && !core.is_mapped_over {
            // A child forked meanwhile would wait forever for the removal that is in progress here.
            core.in_flight += 1;
            let start = core.arena.base() + extent * EXTENT;
            core.recorder.note("reclaim", extent as u64 * 512, 0, 0);
            let own = OwnRemoval::new(start, start + EXTENT);
            let is_over = own.is_over.clone();
            core.own_removals.push(own);
            drop(guard);
            // Without the lock: the kernel waits until the fault thread has read the event.
            let _ = self.live.memory.discard(start, EXTENT);
            is_over.store(true, Ordering::Release);
            guard = self.core.lock();
            guard.in_flight -= 1;
            guard.recorder.note("reclaimed", extent as u64 * 512, 0, 0);
            let place = guard.own_removals.iter().position(|own| own.start == start);
            let own = place.map(|place| guard.own_removals.swap_remove(place));
            // Faults on the extent still wait.
            for (from, to) in own.map_or_else(Vec::new, OwnRemoval::of_the_program) {
                let _ = guard.forget(from, to, By::Kernel);
            }
        }
        // If it stays, the next move finds it again.
        guard.extents[extent].set(flag::PAGE_TABLE, false);
        guard.extents[extent].set(flag::RECLAIMING, false);
        drop(guard);
        self.live.wake_fault_thread();
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::config::parse_stores;
    use crate::discard::tests::{expect_filled, fill};
    use crate::{Config, Pager};

    /// Mounts a file system on `dir` that cannot reserve blocks, so that it is found full only by
    /// writes; false without the right to.
    fn mount_ext2(image: &Path, dir: &Path) -> bool {
        File::create(image).unwrap().set_len(12 << 20).unwrap();
        let run = |command: &mut Command| {
            let output = command.output();
            output.is_ok_and(|output| output.status.success())
        };
        run(Command::new("mke2fs").args(["-q", "-t", "ext2", "-m", "0"]).arg(image))
            && run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(dir))
    }

    #[test]
    fn what_a_store_refuses_while_it_writes_goes_to_the_next() {
        let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
        let dir = scratch.path().join("mounted");
        std::fs::create_dir(&dir).unwrap();
        if !mount_ext2(&scratch.path().join("image"), &dir) {
            hiroma_testkit::skip!(Machine, "no ext2 file system can be mounted here");
            return;
        }
        let stores = parse_stores(&format!("file:{}:64M,compressed:64M", dir.display())).unwrap();
        let config = Config { local_limit_bytes: 16 << 20, stores, ..Config::default() };
        let pager = Pager::start(config).unwrap();
        // Its file has no name, and goes with its last descriptor.
        Command::new("umount").arg("-l").arg(&dir).status().unwrap();
        let addr = pager.map(20 * EXTENT, EXTENT).unwrap();
        (0..20).for_each(|extent| fill(addr + extent * EXTENT));
        pager.evict_all().unwrap();
        (0..20).for_each(|extent| expect_filled(addr + extent * EXTENT));
        pager.stop();
    }
}
