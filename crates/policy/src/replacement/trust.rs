//! Whether blocks of streams are needed only once.
//!
//! Most streams pass once, and dropping what is behind them protects what else is in use. A program
//! that passes over the same arrays repeatedly looks like a stream too, and needs what it has left
//! behind. The [`Ghosts`] of the blocks that were evicted early show which of the two applies. The
//! sample is always treated as a stream, so that a wrong decision is detected either way.

use hiroma_units::BlockId;

use super::ghosts::Ghosts;

/// At most one block in this many is in the sample.
const SAMPLE_MIN: u64 = 16;
/// Sampled evictions before the ghosts are judged.
const JUDGED: u32 = 64;
/// More than one block needed again in this many evicted ones is too much; fewer than half of that
/// restores trust.
const LEAVERS_PER_GHOST: u32 = 8;

/// The sample, and the conclusion from it.
pub struct Trust {
    ghosts: Ghosts,
    trusted: bool,
}

impl Trust {
    /// Initially, streams are trusted to pass once.
    pub fn new() -> Self {
        Trust { ghosts: Ghosts::new(SAMPLE_MIN), trusted: true }
    }

    /// Blocks of a stream per block that is treated as part of a stream.
    pub fn divisor(&self) -> u64 {
        if self.trusted { 1 } else { self.ghosts.sample() }
    }

    /// Whether a block of a stream is treated as such.
    pub fn is_passing(&self, block: BlockId) -> bool {
        self.trusted || self.ghosts.is_in_sample(block)
    }

    /// A block of a stream is staged in its turn, ahead of others.
    pub fn left(&mut self, block: BlockId) {
        self.ghosts.left(block);
    }

    /// `pages` were evicted. `resident_pages`: number of resident pages.
    pub fn passed(&mut self, pages: u64, resident_pages: u64) {
        self.ghosts.passed(pages);
        let (leavers, wanted) = self.ghosts.counts();
        if leavers < JUDGED {
            return;
        }
        if wanted * LEAVERS_PER_GHOST > leavers {
            self.trusted = false;
        } else if wanted * 2 * LEAVERS_PER_GHOST < leavers {
            self.trusted = true;
        }
        self.ghosts.count_anew(resident_pages);
    }

    /// A block is needed that was not resident. `kept_pages`: what is kept longer than streams.
    pub fn wanted(&mut self, block: BlockId, kept_pages: u64) {
        self.ghosts.wanted(block, kept_pages);
    }

    pub fn metadata_bytes(&self) -> usize {
        self.ghosts.metadata_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes over `pages` pages repeatedly; each is evicted `kept` pages later.
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
    fn cycle_that_fits_memory_is_not_trusted() {
        let mut trust = Trust::new();
        pass(&mut trust, 8_000, 10_000, 4);
        assert!(!trust.trusted && trust.divisor() == SAMPLE_MIN);
        let passing = (0..16_000).filter(|&page| trust.is_passing(BlockId::new(page, 0))).count();
        assert!((800..1200).contains(&passing), "a sixteenth: {passing}");
        pass(&mut trust, 50_000, 10_000, 2);
        assert!(trust.trusted, "nothing came back in time");
    }

    #[test]
    fn stream_longer_than_memory_is_trusted() {
        let mut trust = Trust::new();
        pass(&mut trust, 20_000, 10_000, 5);
        assert!(trust.trusted);
    }

    #[test]
    fn the_sample_gets_thinner_as_memory_grows() {
        let mut trust = Trust::new();
        pass(&mut trust, 400_000, 1_000_000, 3);
        assert!(!trust.trusted);
        assert_eq!(trust.divisor(), 512);
    }
}
