//! Whether blocks of streams are left behind for good.
//!
//! To pass once is what most streams do, and to drop behind them keeps what else is in use. A program that goes over the same arrays again
//! and again looks like a stream too, and needs what it has left behind. Which of the two holds shows in ghosts: a sample of the blocks that
//! left early is remembered, and those that are wanted back before local memory has turned over once would still be there if their
//! stream had been treated as any other use. The sample is always treated as a stream, so that a wrong turn is found out either way.

use hiroma_units::BlockId;

use super::scattered;

/// Blocks that are remembered, as a shift.
const SLOTS_SHIFT: u32 = 12;
/// One of so many blocks is in the sample, at least.
const SAMPLE_MIN: u64 = 16;
/// Sampled blocks that have left before their ghosts say something.
const JUDGED: u32 = 64;
/// Of so many that left, one that is wanted back is too much; half as many are well.
const LEAVERS_PER_GHOST: u32 = 8;
/// Pages in a tick of the clock of leaving.
const TICK_PAGES: u64 = 16;

/// The sample, and what it says.
pub struct Trust {
    /// Tag and tick, 16 bits each; 0 is empty.
    slots: Box<[u32]>,
    /// Pages that have left.
    clock_pages: u64,
    /// One of so many blocks is in the sample; a power of two.
    sample: u64,
    leavers: u32,
    ghosts: u32,
    trusted: bool,
}

impl Trust {
    /// Streams are trusted to pass once.
    pub fn new() -> Self {
        Trust { slots: vec![0; 1 << SLOTS_SHIFT].into(), clock_pages: 0, sample: SAMPLE_MIN, leavers: 0, ghosts: 0, trusted: true }
    }

    /// Blocks in a stream for each that is treated as such.
    pub fn divisor(&self) -> u64 {
        if self.trusted { 1 } else { self.sample }
    }

    /// Whether a block of a stream is treated as such.
    pub fn is_passing(&self, block: BlockId) -> bool {
        self.trusted || self.is_sampled(hash(block))
    }

    /// A block of a stream is staged in its turn, ahead of others.
    pub fn left(&mut self, block: BlockId) {
        let hash = hash(block);
        if self.is_sampled(hash) {
            self.slots[slot(hash)] = tag(hash) << 16 | self.tick();
            self.leavers += 1;
        }
    }

    /// `pages` have left. `resident_pages`: how many there are.
    pub fn passed(&mut self, pages: u64, resident_pages: u64) {
        self.clock_pages += pages;
        if self.leavers < JUDGED {
            return;
        }
        if self.ghosts * LEAVERS_PER_GHOST > self.leavers {
            self.trusted = false;
        } else if self.ghosts * 2 * LEAVERS_PER_GHOST < self.leavers {
            self.trusted = true;
        }
        (self.leavers, self.ghosts) = (0, 0);
        // Half of the slots are enough for a turnover.
        self.sample = (resident_pages >> (SLOTS_SHIFT - 1)).next_power_of_two().max(SAMPLE_MIN);
    }

    /// A block is wanted that was not resident. `kept_pages`: what is kept longer than streams.
    pub fn wanted(&mut self, block: BlockId, kept_pages: u64) {
        let hash = hash(block);
        if !self.is_sampled(hash) {
            return;
        }
        let slot = &mut self.slots[slot(hash)];
        let entry = std::mem::take(slot);
        if entry >> 16 != tag(hash) {
            *slot = entry;
            return;
        }
        let age = (self.tick().wrapping_sub(entry) & 0xffff) as u64 * TICK_PAGES;
        self.ghosts += u32::from(age < kept_pages);
    }

    fn tick(&self) -> u32 {
        (self.clock_pages / TICK_PAGES) as u32 & 0xffff
    }

    fn is_sampled(&self, hash: u64) -> bool {
        hash & (self.sample - 1) == 0
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

    /// Passes over `pages` pages in turn, of which each leaves `kept` pages later.
    fn pass(trust: &mut Trust, pages: u64, kept: u64, rounds: u64) {
        for at in 0..pages * rounds {
            trust.wanted(BlockId::new(at % pages, 0), kept);
            if at >= kept / 4 {
                trust.left(BlockId::new((at - kept / 4) % pages, 0));
                trust.passed(1, kept);
            }
        }
    }

    #[test]
    fn a_stream_that_comes_round_while_it_could_be_resident_is_not_trusted() {
        let mut trust = Trust::new();
        pass(&mut trust, 8_000, 10_000, 4);
        assert!(!trust.trusted && trust.divisor() == SAMPLE_MIN);
        let passing = (0..16_000).filter(|&page| trust.is_passing(BlockId::new(page, 0))).count();
        assert!((800..1200).contains(&passing), "a sixteenth: {passing}");
        pass(&mut trust, 50_000, 10_000, 2);
        assert!(trust.trusted, "nothing came back in time");
    }

    #[test]
    fn a_stream_that_is_longer_than_memory_is_trusted() {
        let mut trust = Trust::new();
        pass(&mut trust, 20_000, 10_000, 5);
        assert!(trust.trusted);
    }

    #[test]
    fn the_sample_gets_thinner_as_memory_grows() {
        let mut trust = Trust::new();
        pass(&mut trust, 400_000, 1_000_000, 3);
        assert_eq!(trust.sample, 512);
        assert!(!trust.trusted);
    }
}
