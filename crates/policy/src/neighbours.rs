//! Which neighbours of a faulted sector are worth fetching with it, where faults follow no order.
//!
//! Objects that were allocated together are often used together: a fault on one page of them is
//! followed by faults on the pages beside it, in any order. Whether that is so, and how far it
//! reaches, differs between programs, so it is measured: one fault in [`SAMPLE_EVERY`] opens a
//! *sample* of the group of [`GROUP`] sectors around it. Until a sample closes, faults in its group
//! fetch single sectors, so each neighbour that is needed shows itself by a fault. The other faults
//! fetch the largest aligned block of 2, 4, 8 or 16 sectors of which two thirds of each doubling
//! were needed.
//!
//! What is lost is bounded: a sample costs at most [`GROUP`] faults, and a program that changes its
//! ways is followed after a few dozen samples.

use crate::samples::{Sample, Samples};

/// Sectors of a group: the most that one fault fetches.
pub const GROUP: u64 = 16;
/// Doublings of a single sector up to a group.
const LEVELS: usize = GROUP.ilog2() as usize;
/// One fault in this many opens a sample.
const SAMPLE_EVERY: u32 = 16;
/// Samples that are open at a time.
const SLOTS: usize = 1024;
/// Faults for which a sample stays open, at most. Neighbours that are needed later than that would
/// not stay local for it in most cases.
const WINDOW_MAX: u64 = 4096;
/// Neighbours seen in closed samples before their use is judged; older ones count half when twice
/// as many as `SEEN_MAX` were seen.
const SEEN_MIN: u32 = 24;
const SEEN_MAX: u32 = 256;

/// The sectors of a group that a fault fetches, as a range of positions in it.
pub type Block = std::ops::Range<u64>;

/// Neighbours by doubling: far when a sample was opened, and needed before it closed.
#[derive(Clone, Copy, Default, Debug)]
struct Use {
    seen: u32,
    needed: u32,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Neighbours {
    samples: Samples,
    uses: [Use; LEVELS],
    level: usize,
}

impl Default for Neighbours {
    fn default() -> Neighbours {
        Neighbours { samples: Samples::new(SLOTS), uses: [Use::default(); LEVELS], level: 0 }
    }
}

/// The aligned block of 2^`level` positions around `at`.
fn block(at: u64, level: usize) -> Block {
    let start = at >> level << level;
    start..start + (1 << level)
}

/// The positions of a block as bits.
fn bits(block: Block) -> u16 {
    block.fold(0, |bits, at| bits | 1 << at)
}

impl Neighbours {
    /// A fault on a far sector, numbered through all extents. `local_sectors`: how many sectors fit
    /// into local memory. Returns the positions to fetch, with this one; none if a sample is to be
    /// opened ([`Neighbours::open`]) and only this one fetched.
    pub fn on_fault(&mut self, sector: u64, local_sectors: u64) -> Option<Block> {
        let (group, at) = (sector / GROUP, sector % GROUP);
        let window = (local_sectors / 8).min(WINDOW_MAX);
        for sample in self.samples.on_fault(group, window) {
            self.learn(sample);
        }
        if let Some(sample) = self.samples.of(group) {
            sample.used |= 1 << at;
            return Some(block(at, 0));
        }
        let is_sample = self.samples.is_chosen(group, SAMPLE_EVERY);
        (!is_sample).then(|| block(at, self.level))
    }

    /// Opens a sample of the group of the sector that faulted last. `far`: the positions of the
    /// group that are far (bit 0: the first sector).
    pub fn open(&mut self, sector: u64, far: u16) {
        self.samples.open(sector / GROUP, sector % GROUP, far);
    }

    /// A fault in this group is answered by other means: its sample would see too little.
    pub fn forget(&mut self, sector: u64) {
        self.samples.forget(sector / GROUP);
    }

    fn learn(&mut self, sample: Sample) {
        for (level, uses) in self.uses.iter_mut().enumerate() {
            let added = bits(block(sample.at, level + 1)) & !bits(block(sample.at, level));
            uses.seen += (sample.far & added).count_ones();
            uses.needed += (sample.far & sample.used & added).count_ones();
            if uses.seen >= 2 * SEEN_MAX {
                (uses.seen, uses.needed) = (uses.seen / 2, uses.needed / 2);
            }
        }
        let is_worth = |uses: &&Use| uses.seen >= SEEN_MIN && 3 * uses.needed >= 2 * uses.seen;
        self.level = self.uses.iter().take_while(is_worth).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudorandom numbers below `end`.
    fn random(seed: &mut u64, end: u64) -> u64 {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) % end
    }

    /// Uses all sectors of `objects` blocks of `size` sectors, at random places, in an order that
    /// is not theirs. Returns fetched sectors and faults.
    fn use_objects(neighbours: &mut Neighbours, size: u64, objects: u64) -> (u64, u64) {
        let (mut seed, mut fetched, mut faults) = (7, 0, 0);
        for _ in 0..objects {
            let first = random(&mut seed, 1 << 24) * GROUP;
            let mut far = u16::MAX;
            for at in (0..size).rev() {
                if far >> at & 1 == 1 {
                    let block = neighbours.on_fault(first + at, 1 << 20).unwrap_or_else(|| {
                        neighbours.open(first + at, far);
                        block(at, 0)
                    });
                    fetched += u64::from((far & bits(block.clone())).count_ones());
                    far &= !bits(block);
                    faults += 1;
                }
            }
        }
        (fetched, faults)
    }

    #[test]
    fn objects_of_several_sectors_come_with_few_faults() {
        for size in [2, 4, 8, 16] {
            let mut neighbours = Neighbours::default();
            use_objects(&mut neighbours, size, 10_000);
            let (fetched, faults) = use_objects(&mut neighbours, size, 10_000);
            assert!(faults < 10_000 * 2, "{size}: {faults} faults");
            assert!(fetched < 10_000 * size * 11 / 10, "{size}: {fetched} fetched");
        }
    }

    #[test]
    fn single_sectors_come_alone() {
        let mut neighbours = Neighbours::default();
        let (fetched, _) = use_objects(&mut neighbours, 1, 50_000);
        assert_eq!(fetched, 50_000);
    }

    #[test]
    fn program_that_changes_its_ways_is_followed() {
        let mut neighbours = Neighbours::default();
        use_objects(&mut neighbours, 16, 20_000);
        use_objects(&mut neighbours, 1, 20_000);
        let (fetched, _) = use_objects(&mut neighbours, 1, 10_000);
        assert_eq!(fetched, 10_000);
    }
}
