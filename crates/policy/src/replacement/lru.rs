//! Least recently used, as far as a pager can observe.
//!
//! Use is visible in the staging area: a block that is touched there was used, one that is not was
//! not. Where accessed bits can be read, blocks that were used are passed over ([`Used`]). So this
//! is LRU by second chance, in segments (like 2Q, SLRU and S3-FIFO), counted in
//! bytes because the sizes of blocks differ by 512 to 1:
//!
//! - `stream`: blocks of streams, waited for or prefetched. They are evicted first, once the stream
//!   is a little way past them, while few of them are needed again soon ([`Trust`]).
//! - `recent`: blocks that became resident for any other reason and have not proved anything yet.
//!   They are evicted next, while they have more than their share of the bytes, so that one pass
//!   over much data cannot push out what is used repeatedly.
//! - `frequent`: blocks that were touched while they were staged. Blocks for which this occurred at
//!   least twice go round again without being staged, once or twice: staging them would most likely
//!   only cost a fault. For each page evicted from here 2 to 32 are evicted from `recent`: blocks
//!   that were in use once and no longer are must not stay for ever. The ratio depends on which of
//!   the two are needed again sooner ([`Ghosts`]).
//! - `cold`: blocks that were hinted not to be needed; they are evicted before all others.

use hiroma_units::{BlockId, ExtentNo, PAGES_PER_EXTENT};
use rustc_hash::FxHashSet;

use super::ghosts::Ghosts;
use super::queue::{Queue, share};
use super::trust::Trust;
use super::used::Used;
use super::{Hint, Origin, PageBits, Replacement, scattered};

/// Share of the bytes (of 256) that recent blocks, those of streams included, may keep against
/// frequent ones.
const RECENT_SHARE: u8 = 64;
/// Share of the bytes (of 256) by which streams are ahead of the blocks that they leave behind:
/// more than the eighth that is prefetched, so that nothing is evicted before it was due to be
/// used.
const STREAM_SHARE: u8 = 40;
/// Pages evicted from the recent blocks for each one from the frequent blocks: initial value,
/// minimum and maximum.
const RECENT_PER_FREQUENT: i64 = 8;
const RECENT_PER_FREQUENT_MIN: i64 = 2;
const RECENT_PER_FREQUENT_MAX: i64 = 32;
/// Sampled blocks of each kind that were evicted before their ghosts are judged.
const JUDGED: u32 = 32;
/// Maximum of blocks that one call passes over, because they have laps left or were accessed;
/// bounds the time of a call.
const PASSED_PER_CALL: u32 = 64;

/// Second-chance LRU in segments; see the module's head.
pub struct Lru {
    cold: Queue,
    stream: Queue,
    recent: Queue,
    frequent: Queue,
    heat: Heat,
    used: Used,
    trust: Trust,
    recent_share: u8,
    /// Pages evicted from `recent`, minus `recent_per_frequent` times those evicted from
    /// `frequent`.
    owed_pages: i64,
    recent_per_frequent: i64,
    recent_ghosts: Ghosts,
    frequent_ghosts: Ghosts,
}

impl Default for Lru {
    fn default() -> Self {
        Lru::with_recent_share(RECENT_SHARE)
    }
}

impl Lru {
    /// A policy without blocks, with the usual share (a quarter) for recent ones.
    pub fn new() -> Self {
        Lru::default()
    }

    /// A policy in which recent blocks may keep `recent_share`/256 of the bytes.
    pub fn with_recent_share(recent_share: u8) -> Self {
        let (cold, stream, recent, frequent) = <(Queue, Queue, Queue, Queue)>::default();
        Lru {
            cold,
            stream,
            recent,
            frequent,
            heat: Heat::new(),
            used: Used::default(),
            trust: Trust::new(),
            recent_share,
            owed_pages: 0,
            recent_per_frequent: RECENT_PER_FREQUENT,
            recent_ghosts: Ghosts::new(1),
            frequent_ghosts: Ghosts::new(1),
        }
    }

    fn pages(&self) -> u64 {
        self.stream.pages() + self.recent.pages() + self.frequent.pages()
    }

    /// Whether enough pages were evicted from `recent` that the oldest frequent block is next.
    fn is_frequent_due(&self) -> bool {
        self.frequent
            .peek()
            .is_some_and(|block| self.owed_pages >= self.recent_per_frequent * block.pages() as i64)
    }

    /// Reduces evictions of the kind of which more are needed again.
    fn balance(&mut self, left_pages: u64, resident_pages: u64) {
        self.recent_ghosts.passed(left_pages);
        self.frequent_ghosts.passed(left_pages);
        let ((recent, recent_wanted), (frequent, frequent_wanted)) =
            (self.recent_ghosts.counts(), self.frequent_ghosts.counts());
        if recent < JUDGED || frequent < JUDGED {
            return;
        }
        let wide = |count: u32| u64::from(count);
        let (recent_regret, frequent_regret) =
            (wide(recent_wanted) * wide(frequent), wide(frequent_wanted) * wide(recent));
        if frequent_regret * 2 > recent_regret {
            self.recent_per_frequent = (self.recent_per_frequent * 2).min(RECENT_PER_FREQUENT_MAX);
        } else if frequent_regret * 4 < recent_regret {
            self.recent_per_frequent = (self.recent_per_frequent / 2).max(RECENT_PER_FREQUENT_MIN);
        }
        self.recent_ghosts.count_anew(resident_pages);
        self.frequent_ghosts.count_anew(resident_pages);
    }

    /// The next block in the order of eviction, without regard to laps.
    fn pop(&mut self) -> Option<BlockId> {
        let pages = self.pages();
        let unproved = self.recent.pages() + self.stream.pages();
        if self.recent.pages() > 0
            && unproved > share(pages, self.recent_share)
            && !self.is_frequent_due()
        {
            let block = self.recent.pop()?;
            self.owed_pages += block.pages() as i64;
            self.recent_ghosts.left(block);
            return Some(block);
        }
        if let Some(block) = self.frequent.pop() {
            let paid = self.recent_per_frequent * block.pages() as i64;
            self.owed_pages =
                (self.owed_pages - paid).max(-self.recent_per_frequent * PAGES_PER_EXTENT as i64);
            return Some(block);
        }
        self.owed_pages = 0;
        self.recent.pop().or_else(|| self.stream.pop())
    }

    /// The oldest block of a stream, if the stream is far enough past it. That it was accessed is
    /// no reason to keep it.
    fn pop_passed(&mut self) -> Option<BlockId> {
        if self.stream.pages() * self.trust.divisor() <= share(self.pages(), STREAM_SHARE) {
            return None;
        }
        let block = self.stream.pop()?;
        self.trust.left(block);
        self.used.forget(block);
        Some(block)
    }

    /// The next victim; skips blocks with laps left, and those that were accessed.
    fn choose(&mut self) -> Option<BlockId> {
        if let Some(block) = self.cold.pop() {
            return Some(block);
        }
        for _ in 0..PASSED_PER_CALL {
            let passed = self.pop_passed();
            let block = passed.or_else(|| self.pop())?;
            if passed.is_none() && self.used.take(block) {
                self.frequent.push(block);
                continue;
            }
            if !self.heat.take_lap(block) {
                if self.heat.was_rescued(block) {
                    self.frequent_ghosts.left(block);
                }
                return Some(block);
            }
            self.frequent.push(block);
        }
        self.pop_passed().or_else(|| self.pop())
    }
}

impl Replacement for Lru {
    fn admitted(&mut self, block: BlockId, origin: Origin) {
        if origin == Origin::Rescued {
            self.heat.rescued(block);
            self.frequent.push(block);
            return;
        }
        self.heat.forget(block);
        self.trust.wanted(block, self.pages() - self.stream.pages());
        self.recent_ghosts.wanted(block, self.pages());
        self.frequent_ghosts.wanted(block, self.pages());
        match origin {
            Origin::Stream | Origin::Prefetch if self.trust.is_passing(block) => {
                self.stream.push(block)
            }
            _ => self.recent.push(block),
        }
    }

    fn hinted(&mut self, block: BlockId, hint: Hint) {
        match hint {
            Hint::Hot => self.heat.grant_lap(block),
            Hint::Cold => {
                self.heat.forget(block);
                self.cold.push(block);
            }
        }
    }

    fn accessed(&mut self, extent: ExtentNo, pages: &PageBits) {
        self.used.add(extent, pages);
    }

    fn used_pages(&self, block: BlockId) -> usize {
        self.used.count(block)
    }

    fn blurred(&mut self) -> Option<ExtentNo> {
        self.used.blurred()
    }

    fn next_victim(&mut self) -> Option<BlockId> {
        let victim = self.choose();
        let (left, resident) = (victim.map_or(0, BlockId::pages) as u64, self.pages());
        self.trust.passed(left, resident);
        self.balance(left, resident);
        victim
    }

    fn put_back(&mut self, block: BlockId) {
        if self.heat.was_rescued(block) {
            self.frequent.push(block)
        } else {
            self.recent.push(block)
        }
    }

    fn len(&self) -> usize {
        self.cold.len() + self.stream.len() + self.recent.len() + self.frequent.len()
    }

    fn compact(&mut self, resident: &mut dyn FnMut(BlockId) -> bool) {
        let mut seen = FxHashSet::default();
        for queue in [&mut self.cold, &mut self.frequent, &mut self.recent, &mut self.stream] {
            queue.retain(&mut seen, resident);
        }
        self.used.retain(&seen.iter().map(|block| block.extent_no()).collect());
    }

    fn metadata_bytes(&self) -> usize {
        let queues = [&self.cold, &self.stream, &self.recent, &self.frequent];
        size_of::<Self>()
            + queues.iter().map(|queue| queue.metadata_bytes()).sum::<usize>()
            + self.heat.slots.len() * size_of::<u16>()
            + self.used.metadata_bytes()
            + self.trust.metadata_bytes()
            + self.recent_ghosts.metadata_bytes()
            + self.frequent_ghosts.metadata_bytes()
    }
}

/// How often blocks were rescued, and how many laps they have left: two bits each.
///
/// A table without chains: a block that maps to another's slot replaces it, and the other is
/// treated as never rescued, which costs it a second chance and no more. A block keeps its slot
/// while it is staged, where it has no entry in a queue.
struct Heat {
    slots: Box<[u16]>,
    /// Slots in use.
    used: usize,
}

const HEAT_BITS_MIN: u32 = 10;
const HEAT_BITS_MAX: u32 = 17;
const MOST_RESCUES: u16 = 3;

impl Heat {
    fn new() -> Self {
        Heat { slots: vec![0; 1 << HEAT_BITS_MIN].into_boxed_slice(), used: 0 }
    }

    /// The slot of `block`, and the tag that identifies the block there.
    fn place(&self, block: BlockId) -> (usize, u16) {
        let hash = scattered(block);
        let slot = hash >> (64 - self.slots.len().trailing_zeros());
        (slot as usize, (hash >> (48 - HEAT_BITS_MAX)) as u16 & 0xfff0)
    }

    /// Rescues and laps of `block`.
    fn get(&self, block: BlockId) -> (u16, u16) {
        let (slot, tag) = self.place(block);
        let value = self.slots[slot];
        if value & 0xfff0 == tag { (value >> 2 & 3, value & 3) } else { (0, 0) }
    }

    fn set(&mut self, block: BlockId, rescues: u16, laps: u16) {
        let (slot, tag) = self.place(block);
        let value = if (rescues, laps) == (0, 0) { 0 } else { tag | rescues << 2 | laps };
        self.used = self.used + usize::from(value != 0) - usize::from(self.slots[slot] != 0);
        self.slots[slot] = value;
        // Growing would need information about the old entries that is not stored: they are
        // forgotten, seven times at most.
        if self.used > self.slots.len() / 2 && self.slots.len() < 1 << HEAT_BITS_MAX {
            *self = Heat { slots: vec![0; 2 * self.slots.len()].into_boxed_slice(), used: 0 };
        }
    }

    fn was_rescued(&self, block: BlockId) -> bool {
        self.get(block).0 > 0
    }

    fn rescued(&mut self, block: BlockId) {
        let rescues = (self.get(block).0 + 1).min(MOST_RESCUES);
        self.set(block, rescues, rescues - 1);
    }

    fn grant_lap(&mut self, block: BlockId) {
        let (rescues, laps) = self.get(block);
        self.set(block, rescues, laps.max(1));
    }

    fn take_lap(&mut self, block: BlockId) -> bool {
        let (rescues, laps) = self.get(block);
        if laps > 0 {
            self.set(block, rescues, laps - 1);
        }
        laps > 0
    }

    fn forget(&mut self, block: BlockId) {
        if self.get(block) != (0, 0) {
            self.set(block, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(page: u64) -> BlockId {
        BlockId::new(page, 0)
    }

    fn drain(lru: &mut Lru) -> Vec<u64> {
        std::iter::from_fn(|| lru.next_victim()).map(BlockId::page).collect()
    }

    #[test]
    fn rescued_blocks_outlive_others() {
        let mut lru = Lru::new();
        lru.admitted(block(0), Origin::Rescued);
        (1..8).for_each(|page| lru.admitted(block(page), Origin::Demand));
        assert_eq!(drain(&mut lru).last(), Some(&0));
        (10..14).for_each(|page| lru.admitted(block(page), Origin::Rescued));
        (20..24).for_each(|page| lru.admitted(block(page), Origin::Fresh));
        let first: Vec<u64> = (0..4).filter_map(|_| lru.next_victim()).map(BlockId::page).collect();
        assert_eq!(first, [20, 21, 22, 10], "recent blocks keep their share against frequent ones");
    }

    /// A thousand pages of each kind. Those of a kind that is wanted are needed again as soon as
    /// they are evicted; others take the place of the rest.
    fn ratio_after(wanted_frequent: bool, wanted_recent: bool) -> i64 {
        let mut lru = Lru::new();
        (0..1000).for_each(|page| lru.admitted(block(page), Origin::Rescued));
        (1000..2000).for_each(|page| lru.admitted(block(page), Origin::Fresh));
        for turn in 1..20_000 {
            let victim = lru.next_victim().unwrap();
            let is_frequent = lru.heat.was_rescued(victim);
            if if is_frequent { wanted_frequent } else { wanted_recent } {
                lru.admitted(victim, Origin::Demand);
            }
            lru.admitted(
                block(2000 + turn),
                if is_frequent { Origin::Rescued } else { Origin::Fresh },
            );
        }
        lru.recent_per_frequent
    }

    #[test]
    fn list_with_more_refaults_is_evicted_less() {
        assert_eq!(ratio_after(true, false), RECENT_PER_FREQUENT_MAX);
        assert_eq!(ratio_after(false, true), RECENT_PER_FREQUENT_MIN);
        assert_eq!(ratio_after(false, false), RECENT_PER_FREQUENT);
    }

    #[test]
    fn streams_are_dropped_behind_but_not_at_once() {
        let mut lru = Lru::new();
        (0..32).for_each(|page| lru.admitted(block(page), Origin::Demand));
        (100..102).for_each(|page| lru.admitted(block(page), Origin::Stream));
        assert_eq!(lru.next_victim(), Some(block(0)), "the stream is not past its distance yet");
        (102..106).for_each(|page| lru.admitted(block(page), Origin::Stream));
        assert_eq!(lru.next_victim(), Some(block(100)));
    }

    #[test]
    fn twice_rescued_block_skips_staging_once() {
        let mut lru = Lru::with_recent_share(0);
        for _ in 0..2 {
            lru.admitted(block(1), Origin::Rescued);
            assert_eq!(lru.pop(), Some(block(1)));
        }
        lru.frequent.push(block(1));
        (2..5).for_each(|page| lru.admitted(block(page), Origin::Rescued));
        assert_eq!(drain(&mut lru), [2, 3, 4, 1]);
    }

    #[test]
    fn evicted_block_starts_over() {
        let mut lru = Lru::new();
        (0..4).for_each(|_| lru.heat.rescued(block(1)));
        lru.admitted(block(1), Origin::Demand);
        assert!(!lru.heat.take_lap(block(1)) && !lru.heat.was_rescued(block(1)));
    }

    #[test]
    fn rescue_table_grows_with_rescued_blocks() {
        let mut heat = Heat::new();
        for page in 0..100_000 {
            heat.rescued(block(page));
            if page % 1000 == 0 {
                assert_eq!(heat.used, heat.slots.iter().filter(|&&slot| slot != 0).count());
            }
        }
        assert_eq!(heat.slots.len(), 1 << HEAT_BITS_MAX);
        assert!((99_000..100_000).filter(|&page| heat.was_rescued(block(page))).count() > 600);
        (0..100_000).for_each(|page| heat.forget(block(page)));
        assert_eq!(heat.used, 0, "what is forgotten leaves its slot");
    }

    #[test]
    fn accessed_blocks_get_one_second_chance() {
        let mut lru = Lru::new();
        (0..4).for_each(|page| lru.admitted(block(page), Origin::Demand));
        lru.accessed(ExtentNo(0), &[0b0101, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(drain(&mut lru), [1, 3, 0, 2]);
        (0..512).for_each(|page| lru.admitted(block(page), Origin::Demand));
        lru.accessed(ExtentNo(0), &[u64::MAX; 8]);
        assert!(lru.next_victim().is_some());
        assert_eq!(drain(&mut lru).len(), 511);
    }

    #[test]
    fn hints_move_a_block_to_either_end() {
        let mut lru = Lru::new();
        (0..4).for_each(|page| lru.admitted(block(page), Origin::Fresh));
        lru.hinted(block(0), Hint::Hot);
        lru.hinted(block(3), Hint::Cold);
        assert_eq!(drain(&mut lru), [3, 1, 2, 3, 0]);
    }

    #[test]
    fn laps_never_prevent_finding_a_victim() {
        let mut lru = Lru::new();
        for page in 0..1000 {
            (0..3).for_each(|_| lru.heat.rescued(block(page)));
            lru.frequent.push(block(page));
        }
        assert!(lru.next_victim().is_some());
    }

    #[test]
    fn compacting_drops_stale_and_repeated_entries() {
        let mut lru = Lru::new();
        for _ in 0..100 {
            (0..4).for_each(|page| lru.admitted(block(page), Origin::Fresh));
            lru.admitted(block(9), Origin::Stream);
        }
        assert_eq!(lru.len(), 500);
        lru.compact(&mut |block| block.page() != 2);
        assert_eq!(lru.len(), 4);
        let mut left = drain(&mut lru);
        left.sort_unstable();
        assert_eq!(left, [0, 1, 3, 9]);
    }
}
