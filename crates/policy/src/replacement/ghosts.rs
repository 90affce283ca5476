//! Tracks evicted blocks: a sample of them is remembered. Those that are needed again before local
//! memory has turned over once would still be resident if they had been treated like all others.

use hiroma_units::BlockId;

use super::scattered;

/// Number of remembered blocks, as a shift.
const SLOTS_SHIFT: u32 = 12;
/// Evicted pages per tick of the clock.
const TICK_PAGES: u64 = 16;

/// See the module's head.
pub struct Ghosts {
    /// Tag and tick, 16 bits each; 0 is empty.
    slots: Box<[u32]>,
    /// Pages that were evicted.
    clock_pages: u64,
    /// One block in this many is in the sample; a power of two.
    sample: u64,
    sample_min: u64,
    leavers: u32,
    wanted: u32,
}

impl Ghosts {
    /// At most one block in `sample_min`, a power of two, is in the sample.
    pub fn new(sample_min: u64) -> Self {
        Ghosts {
            slots: vec![0; 1 << SLOTS_SHIFT].into(),
            clock_pages: 0,
            sample: sample_min,
            sample_min,
            leavers: 0,
            wanted: 0,
        }
    }

    /// One block in this many is in the sample.
    pub fn sample(&self) -> u64 {
        self.sample
    }

    /// Whether a block is in the sample.
    pub fn is_in_sample(&self, block: BlockId) -> bool {
        hash(block) & (self.sample - 1) == 0
    }

    /// Sampled blocks that were evicted, and those of them that were needed again in time.
    pub fn counts(&self) -> (u32, u32) {
        (self.leavers, self.wanted)
    }

    /// Resets the counts. `resident_pages`: number of resident pages.
    pub fn count_anew(&mut self, resident_pages: u64) {
        (self.leavers, self.wanted) = (0, 0);
        // Half of the slots are enough for one turnover.
        self.sample =
            (resident_pages >> (SLOTS_SHIFT - 1)).next_power_of_two().max(self.sample_min);
    }

    /// A block is evicted.
    pub fn left(&mut self, block: BlockId) {
        if self.is_in_sample(block) {
            let hash = hash(block);
            self.slots[slot(hash)] = tag(hash) << 16 | self.tick();
            self.leavers += 1;
        }
    }

    /// `pages` were evicted, of these blocks or others.
    pub fn passed(&mut self, pages: u64) {
        self.clock_pages += pages;
    }

    /// A block is needed that was not resident. It is in time if fewer than `kept_pages` were
    /// evicted since.
    pub fn wanted(&mut self, block: BlockId, kept_pages: u64) {
        if !self.is_in_sample(block) {
            return;
        }
        let hash = hash(block);
        let slot = &mut self.slots[slot(hash)];
        let entry = std::mem::take(slot);
        if entry >> 16 != tag(hash) {
            *slot = entry;
            return;
        }
        let age = (self.tick().wrapping_sub(entry) & 0xffff) as u64 * TICK_PAGES;
        self.wanted += u32::from(age < kept_pages);
    }

    fn tick(&self) -> u32 {
        (self.clock_pages / TICK_PAGES) as u32 & 0xffff
    }

    pub fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.slots)
    }
}

/// Low bits for the sample, high bits for the slot, the next for the tag.
fn hash(block: BlockId) -> u64 {
    scattered(block) >> 4
}

fn slot(hash: u64) -> usize {
    (hash >> (60 - SLOTS_SHIFT)) as usize
}

/// Never 0.
fn tag(hash: u64) -> u32 {
    (hash >> (60 - SLOTS_SHIFT - 16)) as u32 & 0xffff | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refaults_within_one_turnover_count() {
        let mut ghosts = Ghosts::new(1);
        (0..10).for_each(|page| ghosts.left(BlockId::new(page, 0)));
        ghosts.passed(100);
        ghosts.wanted(BlockId::new(0, 0), 200);
        ghosts.wanted(BlockId::new(0, 0), 200);
        ghosts.wanted(BlockId::new(11, 0), 200);
        assert_eq!(ghosts.counts(), (10, 1));
        ghosts.passed(200);
        ghosts.wanted(BlockId::new(1, 0), 200);
        assert_eq!(ghosts.counts(), (10, 1));
        ghosts.count_anew(1 << 20);
        assert_eq!((ghosts.counts(), ghosts.sample()), ((0, 0), 512));
    }
}
