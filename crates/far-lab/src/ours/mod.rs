//! This project's policies, driven as the pager drives them: staging, write-back, modes of extents,
//! prefetch.
//!
//! The decisions are those of `hiroma-policy`. The code here does with pages of a trace what
//! `hiroma-far` does with memory, step by step and with the same constants. What depends on time
//! alone is simplified: a write-back ends immediately, prefetched blocks arrive before the next
//! fault, and the evictor is never late. Content is not known: a page that was written counts as
//! changed.

mod beside;
mod evict;
mod fault;
mod fresh;
mod small;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use hiroma_policy::clusters::Clusters;
use hiroma_policy::granularity::{ExtentHistory, Granularity, RegionHistory};
use hiroma_policy::neighbours::Neighbours;
use hiroma_policy::run_ahead::RunAhead;
use hiroma_policy::{
    Fifo, Lru, Mode, Origin, PageBits, PrefetchRequest, Prefetcher, Replacement, Staging,
};
use hiroma_units::{BlockId, ExtentNo, PAGES_PER_EXTENT};
use rustc_hash::FxHashMap;

use crate::costs::{Costs, PolicyOutcome, Reason};
use crate::trace::{StepKind, Trace};

/// Options with which the pager is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Blocks of `1 << order` pages; none: decided while running.
    pub fixed: Option<u8>,
    pub prefetch: bool,
    pub fifo: bool,
    /// Accessed bits are read this many times while local memory turns over once; 0: never.
    pub scans: u32,
    /// The store is compressed memory, where single pages are never worth a whole extent.
    pub near: bool,
    /// Rules for what moves with a page, where its extent does not move whole. Not where `fixed`.
    pub rules: Rules,
}

/// The rules for what moves with a page, each of which can be switched off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Clusters of 32 KiB, from accessed bits.
    pub clusters: bool,
    /// Groups of up to 64 KiB, from samples.
    pub groups: bool,
    /// Faults that follow each other fetch ahead.
    pub runs: bool,
    /// First touches map zeros ahead.
    pub zeros: bool,
}

impl Rules {
    pub const ALL: Rules = Rules { clusters: true, groups: true, runs: true, zeros: true };
    pub const NONE: Rules = Rules { clusters: false, groups: false, runs: false, zeros: false };
}

/// How often the pager reads accessed bits.
pub const SCANS: u32 = 8;

impl Options {
    /// Blocks of one size, without prefetch.
    pub const fn plain(order: u8) -> Options {
        Options {
            fixed: Some(order),
            prefetch: false,
            fifo: false,
            scans: 0,
            near: true,
            rules: Rules::NONE,
        }
    }

    /// The default: `--block auto`, with accessed bits.
    pub const AUTO: Options = Options {
        fixed: None,
        prefetch: true,
        fifo: false,
        scans: SCANS,
        near: true,
        rules: Rules::ALL,
    };

    /// `--block auto --no-accessed-bits`.
    pub const AUTO_BLIND: Options = Options { scans: 0, ..Options::AUTO };
}

/// Runs a trace with room for `capacity` pages.
pub fn simulate(trace: &Trace, capacity: usize, options: Options, costs: &Costs) -> PolicyOutcome {
    Ours::new(trace, capacity, options, costs).run()
}

/// Mapped into the program.
const MAPPED: u8 = 1;
/// Touched since it became local.
const USED: u8 = 2;
/// Written since it became local.
const DIRTY: u8 = 4;
/// There is a copy in the store.
const FAR: u8 = 8;
/// Fetched from the store.
const CAME: u8 = 16;
/// Touched since it was last discarded.
const ALIVE: u8 = 32;
/// Touched since accessed bits were last cleared.
const ACCESSED: u8 = 64;

const EXTENT: u64 = PAGES_PER_EXTENT as u64;

#[derive(Clone, Default)]
struct Extent {
    history: ExtentHistory,
    mode: Option<Mode>,
    rescues: u8,
    broken_stagings: u8,
    born_fresh: bool,
    /// In huge mode, and mapped.
    resident: bool,
    /// Mapped by small pages, so that each has its accessed bit.
    by_pages: bool,
    /// Pages of its small blocks that are mapped.
    resident_small: u16,
    in_frames: u16,
    alive: u16,
}

/// A block that is staged.
#[derive(Clone, Copy)]
struct Entry {
    stamp: u32,
    clean: bool,
    prefetched: bool,
    stream: bool,
}

struct Ours<'a> {
    trace: &'a Trace,
    costs: &'a Costs,
    options: Options,
    order: u8,
    /// Room, in pages like everything here.
    room: u64,
    flags: Vec<u8>,
    /// Why pages were fetched last.
    reasons: Vec<Reason>,
    /// The clusters that move as one block, while any of their pages are local.
    whole: Vec<bool>,
    extents: Vec<Extent>,
    regions: FxHashMap<u32, RegionHistory>,
    blocks: FxHashMap<BlockId, Entry>,
    probation: VecDeque<(BlockId, u32)>,
    clean: VecDeque<(BlockId, u32)>,
    victims: Vec<BlockId>,
    resident: u64,
    resident_blocks: usize,
    staged: u64,
    clean_pages: u64,
    wanted: u64,
    small_since_huge: u32,
    stamp: u32,
    replacement: Box<dyn Replacement>,
    prefetcher: Prefetcher,
    granularity: Granularity,
    clusters: Clusters,
    neighbours: Neighbours,
    runs: RunAhead,
    zero_runs: RunAhead,
    staging: Staging,
    requests: Vec<PrefetchRequest>,
    rescues: u64,
    fetches: u64,
    /// Pages staged since accessed bits were last read.
    staged_since: u64,
    /// Modelled time of the program's own work, and the time at which statistics were last
    /// evaluated.
    own_ns: u64,
    tended_ns: u64,
    /// Small faults since `dense_since_ns`; last, the time until which the fault thread is quiet.
    dense: u32,
    dense_since_ns: u64,
    quiet_until_ns: u64,
    outcome: PolicyOutcome,
}

/// Pages that may be prefetched ahead: an eighth.
const AHEAD_SHARE: u64 = 8;
/// Time of a load or store without far memory.
const REFERENCE_PS: u64 = 400;

impl<'a> Ours<'a> {
    fn new(trace: &'a Trace, capacity: usize, options: Options, costs: &'a Costs) -> Ours<'a> {
        let room = capacity.max(64) as u64;
        let order = options.fixed.filter(|&order| order < 9).unwrap_or(0);
        let mut prefetcher = Prefetcher::new(16);
        prefetcher.set_ahead_max_pages(room / AHEAD_SHARE);
        let mut clusters = Clusters::default();
        if options.scans == 0 {
            clusters.give_up();
        }
        let replacement: Box<dyn Replacement> =
            if options.fifo { Box::new(Fifo::new()) } else { Box::new(Lru::new()) };
        Ours {
            trace,
            costs,
            options,
            order,
            room,
            flags: vec![0; trace.arena_pages],
            reasons: vec![Reason::Fault; trace.arena_pages],
            whole: vec![false; trace.arena_pages >> small::CLUSTER_ORDER],
            extents: vec![Extent::default(); trace.arena_pages / PAGES_PER_EXTENT],
            regions: FxHashMap::default(),
            blocks: FxHashMap::default(),
            probation: VecDeque::new(),
            clean: VecDeque::new(),
            victims: Vec::new(),
            resident: 0,
            resident_blocks: 0,
            staged: 0,
            clean_pages: 0,
            wanted: 0,
            small_since_huge: 0,
            stamp: 0,
            replacement,
            prefetcher,
            granularity: Granularity::new((EXTENT >> order) as u16, 48, (room / EXTENT) as u32),
            clusters,
            neighbours: Neighbours::default(),
            runs: RunAhead::new(EXTENT >> order),
            zero_runs: RunAhead::new(EXTENT >> order),
            staging: Staging::new(),
            requests: Vec::new(),
            rescues: 0,
            fetches: 0,
            staged_since: 0,
            own_ns: 0,
            tended_ns: 0,
            dense: 0,
            dense_since_ns: 0,
            quiet_until_ns: 0,
            outcome: PolicyOutcome::default(),
        }
    }

    fn run(mut self) -> PolicyOutcome {
        let native_ns = self.trace.header.references * REFERENCE_PS / 1000;
        let steps = self.trace.steps.len().max(1) as u64;
        for (at, step) in self.trace.steps.iter().enumerate() {
            let page = step.page() as usize;
            if step.what() == StepKind::Discard {
                self.discard(page);
                continue;
            }
            let is_there = self.flags[page] & MAPPED != 0;
            if !is_there {
                self.own_ns = (u128::from(native_ns) * at as u128 / u128::from(steps)) as u64;
                self.fault_in(page);
            }
            self.touch(page, step.what());
            if !is_there {
                self.after_fault();
            }
        }
        (0..self.flags.len()).for_each(|page| self.count_wasted(page));
        self.outcome
    }

    /// Reads and clears accessed bits, if that is due.
    fn scan(&mut self) {
        if self.options.scans == 0 || self.staged_since < self.room / u64::from(self.options.scans)
        {
            return;
        }
        self.staged_since = 0;
        while let Some(extent) = self.replacement.blurred() {
            self.extents[extent.0 as usize].by_pages = true;
        }
        for number in 0..self.extents.len() {
            let extent = &self.extents[number];
            if !extent.resident && extent.resident_small == 0 {
                continue;
            }
            self.take_accessed(number);
        }
    }

    /// Takes the accessed bits of an extent since the last call.
    fn take_accessed(&mut self, number: usize) {
        let (mut bits, mut resident) = (PageBits::default(), PageBits::default());
        let flags = &mut self.flags[number * PAGES_PER_EXTENT..][..PAGES_PER_EXTENT];
        for (page, flags) in flags.iter_mut().enumerate() {
            let mapped = u64::from(*flags & MAPPED != 0);
            resident[page / 64] |= mapped << (page % 64);
            bits[page / 64] |= (mapped & u64::from(*flags & ACCESSED != 0)) << (page % 64);
            *flags &= !ACCESSED;
        }
        // The processor has one bit for a huge page.
        let extent = &self.extents[number];
        let is_huge = extent.resident;
        if is_huge && !extent.by_pages && bits != PageBits::default() {
            bits = [u64::MAX; PAGES_PER_EXTENT / 64];
        }
        let no = ExtentNo(number as u32);
        self.clusters.asked(no);
        self.replacement.accessed(no, &bits);
        if !is_huge && self.has_clusters() && self.clusters.read(no, &bits, &resident) {
            self.break_clusters(number);
        }
    }

    fn fault_in(&mut self, page: usize) {
        self.prefetch();
        // A prefetched block may be the one that the program waits for.
        if self.flags[page] & MAPPED == 0 {
            self.on_fault(page as u64);
        }
    }

    /// The program reads or writes a mapped page.
    fn touch(&mut self, page: usize, what: StepKind) {
        let flags = &mut self.flags[page];
        self.extents[page / PAGES_PER_EXTENT].alive += u16::from(*flags & ALIVE == 0);
        *flags |= ALIVE | USED | ACCESSED | if what == StepKind::Write { DIRTY } else { 0 };
    }

    fn now_ns(&self) -> u64 {
        self.own_ns + self.outcome.time_ns
    }

    fn block_of(&self, page: u64, mode: Mode) -> BlockId {
        match mode {
            Mode::Huge => BlockId::extent(ExtentNo((page / EXTENT) as u32)),
            Mode::Small => self.small_block(page),
        }
    }

    fn extent(&mut self, block: BlockId) -> &mut Extent {
        &mut self.extents[block.extent_no().0 as usize]
    }

    fn pages(block: BlockId) -> std::ops::Range<usize> {
        block.page() as usize..block.page() as usize + block.pages()
    }

    fn count(&self, block: BlockId, flag: u8) -> u64 {
        self.flags[Self::pages(block)].iter().filter(|&&flags| flags & flag != 0).count() as u64
    }

    fn is_resident(&self, block: BlockId) -> bool {
        let extent = &self.extents[block.extent_no().0 as usize];
        match extent.mode {
            None => false,
            Some(Mode::Huge) => block.is_huge() && extent.resident,
            Some(Mode::Small) => {
                block == self.small_block(block.page())
                    && self.flags[block.page() as usize] & MAPPED != 0
            }
        }
    }

    fn set_resident(&mut self, block: BlockId, on: bool) {
        let pages = block.pages() as u64;
        for flags in &mut self.flags[Self::pages(block)] {
            // Moving a page in sets its accessed bit.
            *flags = if on { *flags | MAPPED | ACCESSED } else { *flags & !MAPPED };
        }
        if on && !block.is_huge() && self.options.scans > 0 && self.has_clusters() {
            self.clusters.admitted(block);
        }
        let extent = self.extent(block);
        if block.is_huge() {
            extent.resident = on;
            extent.by_pages &= on;
        } else {
            let pages = pages as u16;
            extent.resident_small =
                if on { extent.resident_small + pages } else { extent.resident_small - pages };
        }
        self.resident = self.resident + if on { pages } else { 0 } - if on { 0 } else { pages };
        self.resident_blocks = self.resident_blocks + usize::from(on) - usize::from(!on);
    }

    fn admit(&mut self, block: BlockId, origin: Origin) {
        self.settle_size(block);
        self.set_resident(block, true);
        self.replacement.admitted(block, origin);
        if self.replacement.len() > 4 * self.resident_blocks + 4096 {
            let mut replacement = std::mem::replace(&mut self.replacement, Box::new(Fifo::new()));
            replacement.compact(&mut |block| self.is_resident(block));
            self.replacement = replacement;
        }
    }

    /// Its extent keeps its mode meanwhile.
    fn keeping_mode<R>(&mut self, block: BlockId, work: impl FnOnce(&mut Self) -> R) -> R {
        let Extent { mode, born_fresh, .. } = *self.extent(block);
        let result = work(self);
        let extent = self.extent(block);
        (extent.mode, extent.born_fresh) = (mode, born_fresh);
        result
    }

    fn enter(&mut self, block: BlockId, prefetched: bool) -> u32 {
        self.settle_size(block);
        self.stamp = self.stamp.wrapping_add(1);
        self.blocks.insert(
            block,
            Entry { stamp: self.stamp, clean: false, prefetched, stream: prefetched },
        );
        self.extent(block).in_frames += 1;
        self.staged += block.pages() as u64;
        self.stamp
    }

    fn leave(&mut self, block: BlockId) -> Option<Entry> {
        let entry = self.blocks.remove(&block)?;
        self.extent(block).in_frames -= 1;
        self.staged -= block.pages() as u64;
        self.clean_pages -= if entry.clean { block.pages() as u64 } else { 0 };
        Some(entry)
    }

    fn mark_clean(&mut self, block: BlockId) {
        let Some(entry) = self.blocks.get_mut(&block) else { return };
        entry.clean = true;
        self.clean.push_back((block, entry.stamp));
        self.clean_pages += block.pages() as u64;
    }

    fn settle(&mut self, number: usize) {
        let extent = &mut self.extents[number];
        if !extent.resident && extent.in_frames == 0 && extent.resident_small == 0 {
            (extent.mode, extent.rescues, extent.broken_stagings, extent.born_fresh) =
                (None, 0, 0, false);
        }
    }

    /// The program no longer needs the content of a page. A block without any content is unmapped.
    fn discard(&mut self, page: usize) {
        let number = page / PAGES_PER_EXTENT;
        self.count_wasted(page);
        let before = self.flags[page];
        self.flags[page] = before & MAPPED;
        self.extents[number].alive -= u16::from(before & ALIVE != 0);
        let Some(mode) = self.extents[number].mode else { return };
        let mut block = self.block_of(page as u64, mode);
        if !block.is_huge() && block.order() != self.order && self.is_resident(block) {
            self.break_cluster(block);
            block = self.block_of(page as u64, mode);
        }
        let is_empty = if block.is_huge() {
            self.extents[number].alive == 0
        } else {
            self.count(block, ALIVE) == 0
        };
        if !is_empty {
            return;
        }
        if self.is_resident(block) {
            self.set_resident(block, false);
        } else {
            self.leave(block);
        }
        self.settle(number);
    }

    /// A page leaves: it may have been fetched in vain.
    fn count_wasted(&mut self, page: usize) {
        if self.flags[page] & (CAME | USED) == CAME {
            self.outcome.wasted += 1;
            self.outcome.wasted_by[self.reasons[page] as usize] += 1;
        }
    }
}
