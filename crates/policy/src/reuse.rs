//! How much more local memory would have kept a block: one half of a miss-ratio curve, sampled
//! while the program runs.
//!
//! Far blocks are in a list in the order of their eviction (ghosts: only their numbers). A block
//! that is fetched is at some depth in the list, and that many more bytes of local memory, with the
//! same choice of victims, would have kept it. So the depths of all fetches show how many of them
//! each larger size would have avoided. They say nothing about smaller sizes: hits in local memory
//! are not observable.
//!
//! Only a sample of the sectors is in the list, chosen by their numbers (SHARDS: Waldspurger et
//! al., FAST 2015, with a fixed number of samples: when the list is full, the rate is halved and
//! half of the sample is removed). Unlike there, the sample is stratified: of each aligned group of
//! `2^n` sectors exactly one is in it, selected by hashes. That reduces the variance, and the
//! sampled sectors of a large block are found without checking each of its sectors.

/// Places in the list; at most half of them are in use, so that it is seldom renumbered.
const SLOTS: usize = 8192;
/// Maximum number of sectors in the list.
pub const SAMPLE_MAX: usize = SLOTS / 2;
/// Maximum number of sectors of one block in the list: looking up each of them takes 36 ns.
const OF_ONE_MAX: usize = 64;
/// Entries of the index, which is never more than half full.
const INDEX: usize = 2 * SAMPLE_MAX;
const EMPTY: u16 = u16::MAX;

/// The list of a process: 50 KiB, allocated when the first block is evicted.
#[derive(Default)]
pub struct Reuse {
    /// The sector in each place, in the order of eviction.
    slots: Vec<u32>,
    /// Which places have a sector.
    used: Vec<u64>,
    /// Places by hash of the sector, open addressing.
    index: Vec<u16>,
    /// The next place.
    head: usize,
    count: usize,
    /// One of `2^shift` sectors is in the sample.
    shift: u32,
}

/// What is known about a fetched block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depth {
    /// Sectors that were evicted after the part of the block that was evicted first, including that
    /// one; none if its eviction was not seen.
    pub sectors: Option<u64>,
    /// Number of fetches that this one represents.
    pub weight: u64,
}

impl Reuse {
    /// Sectors that one in the sample represents.
    pub fn rate(&self) -> u64 {
        1 << self.shift
    }

    /// Estimated number of sectors that were evicted and not fetched since.
    pub fn sectors(&self) -> u64 {
        self.count as u64 * self.rate()
    }

    /// Size of its tables in bytes.
    pub fn metadata_bytes(&self) -> usize {
        self.slots.capacity() * 4 + self.used.capacity() * 8 + self.index.capacity() * 2
    }

    /// A block is evicted: `sectors` sectors from `first` on; a power of two, naturally aligned.
    /// Those without content (`has_content`) are never fetched.
    pub fn left(&mut self, first: u64, sectors: u64, has_content: impl Fn(u64) -> bool) {
        if self.slots.is_empty() {
            (self.slots, self.used, self.index) =
                (vec![0; SLOTS], vec![0; SLOTS / 64], vec![EMPTY; INDEX]);
        }
        if (sectors >> self.shift) as usize > OF_ONE_MAX {
            self.shift = sectors.ilog2() - OF_ONE_MAX.ilog2();
            self.renumber();
        }
        while self.count + (sectors >> self.shift).max(1) as usize > SAMPLE_MAX {
            self.shift += 1;
            self.renumber();
        }
        let shift = self.shift;
        each_sampled(first, sectors, shift, |sector| {
            self.take(sector);
            if !has_content(sector.into()) {
                return;
            }
            if self.head == SLOTS {
                self.renumber();
            }
            self.slots[self.head] = sector;
            self.used[self.head / 64] |= 1 << (self.head % 64);
            self.note(sector, self.head);
            (self.head, self.count) = (self.head + 1, self.count + 1);
        });
    }

    /// A block is fetched. None: it is not in the sample.
    pub fn came(&mut self, first: u64, sectors: u64) -> Option<Depth> {
        let (shift, mut deepest, mut any) = (self.shift, None, false);
        each_sampled(first, sectors, shift, |sector| {
            any = true;
            // Its own sectors that were evicted later were removed from the list, or are still to
            // be counted; the first one evicted counts all of them.
            let depth = self.position(sector).map(|place| (self.later(place) << shift) + 1);
            deepest = deepest.max(depth);
        });
        each_sampled(first, sectors, shift, |sector| {
            self.take(sector);
        });
        any.then_some(Depth { sectors: deepest, weight: (self.rate() / sectors).max(1) })
    }

    /// A far sector no longer exists, or became local without having been fetched.
    pub fn forget(&mut self, first: u64, sectors: u64) {
        if self.count > 0 {
            each_sampled(first, sectors, self.shift, |sector| {
                self.take(sector);
            });
        }
    }

    /// Sectors in places after this one.
    fn later(&self, place: usize) -> u64 {
        let (word, bit) = (place / 64, place % 64);
        let rest: u32 = self.used[word + 1..self.head.div_ceil(64).max(word + 1)]
            .iter()
            .map(|word| word.count_ones())
            .sum();
        u64::from((self.used[word] >> bit >> 1).count_ones() + rest)
    }

    fn position(&self, sector: u32) -> Option<usize> {
        self.entry(sector).map(|entry| self.index[entry] as usize)
    }

    fn entry(&self, sector: u32) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        let mut entry = home(sector);
        while self.index[entry] != EMPTY {
            if self.slots[self.index[entry] as usize] == sector {
                return Some(entry);
            }
            entry = (entry + 1) % INDEX;
        }
        None
    }

    fn note(&mut self, sector: u32, place: usize) {
        let mut entry = home(sector);
        while self.index[entry] != EMPTY {
            entry = (entry + 1) % INDEX;
        }
        self.index[entry] = place as u16;
    }

    /// Removes a sector from the list.
    fn take(&mut self, sector: u32) -> Option<usize> {
        let mut hole = self.entry(sector)?;
        let place = self.index[hole] as usize;
        self.used[place / 64] &= !(1 << (place % 64));
        self.count -= 1;
        // Entries behind the hole that would not be found any more move up.
        let mut entry = (hole + 1) % INDEX;
        while self.index[entry] != EMPTY {
            let wanted = home(self.slots[self.index[entry] as usize]);
            if (entry + INDEX - wanted) % INDEX >= (entry + INDEX - hole) % INDEX {
                self.index[hole] = self.index[entry];
                hole = entry;
            }
            entry = (entry + 1) % INDEX;
        }
        self.index[hole] = EMPTY;
        Some(place)
    }

    /// Closes the gaps in the list, and drops sectors that are no longer in the sample.
    fn renumber(&mut self) {
        let (mut to, shift) = (0, self.shift);
        self.index.fill(EMPTY);
        for from in 0..self.head {
            let sector = self.slots[from];
            if self.used[from / 64] >> (from % 64) & 1 == 1 && is_sampled(sector.into(), 0, shift) {
                self.slots[to] = sector;
                self.note(sector, to);
                to += 1;
            }
        }
        self.used.fill(0);
        (0..to).for_each(|place| self.used[place / 64] |= 1 << (place % 64));
        (self.head, self.count) = (to, to);
    }
}

/// Which half of a group of `2^level` sectors contains the sampled one.
fn half(group: u64, level: u32) -> u64 {
    let mixed = (group << 6 | u64::from(level)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 63
}

/// Whether the group of `2^from` sectors that `sector` belongs to contains the sampled one of its
/// group of `2^to`.
fn is_sampled(sector: u64, from: u32, to: u32) -> bool {
    (from + 1..=to).all(|level| sector >> (level - 1) & 1 == half(sector >> level, level))
}

/// Calls `act` for the sectors of a block that are in the sample, in order.
fn each_sampled(first: u64, sectors: u64, shift: u32, mut act: impl FnMut(u32)) {
    let order = sectors.trailing_zeros();
    let top = order.min(shift);
    if !is_sampled(first, top, shift) {
        return;
    }
    for group in first >> top..(first + sectors) >> top {
        act((1..=top).rev().fold(group, |group, level| group << 1 | half(group, level)) as u32);
    }
}

/// Where the search for a sector begins.
fn home(sector: u32) -> usize {
    (u64::from(sector).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize % INDEX
}

#[cfg(test)]
mod tests {
    use hiroma_units::Rng;

    use super::*;

    /// The list by definition: every sector, newest last.
    #[derive(Default)]
    struct Exact {
        list: Vec<u64>,
    }

    impl Exact {
        fn left(&mut self, first: u64, sectors: u64) {
            self.forget(first, sectors);
            self.list.extend(first..first + sectors);
        }

        fn came(&mut self, first: u64, sectors: u64) -> Option<u64> {
            let place =
                self.list.iter().position(|sector| (first..first + sectors).contains(sector));
            let depth = place.map(|place| (self.list.len() - place) as u64);
            self.forget(first, sectors);
            depth
        }

        fn forget(&mut self, first: u64, sectors: u64) {
            self.list.retain(|sector| !(first..first + sectors).contains(sector));
        }
    }

    /// A local memory of `local` sectors with LRU replacement in front of both lists, driven by
    /// `trace`. Returns the sectors fetched by exact depth, and by estimated depth.
    fn run(local: usize, trace: impl Iterator<Item = u64>) -> (Vec<u64>, Vec<(u64, u64)>, Reuse) {
        let (mut recent, mut exact, mut reuse) =
            (std::collections::VecDeque::new(), Exact::default(), Reuse::default());
        let (mut depths, mut estimates) = (Vec::new(), Vec::new());
        for sector in trace {
            if let Some(place) = recent.iter().rposition(|&other| other == sector) {
                recent.remove(place);
            } else if let Some(depth) = exact.came(sector, 1) {
                depths.push(depth);
                if let Some(Depth { sectors, weight }) = reuse.came(sector, 1) {
                    estimates.push((sectors.expect("what left was seen"), weight));
                }
            }
            recent.push_back(sector);
            if recent.len() > local {
                let victim = recent.pop_front().unwrap();
                exact.left(victim, 1);
                reuse.left(victim, 1, |_| true);
            }
        }
        (depths, estimates, reuse)
    }

    /// The maximum error in avoided fetches, at any size, per 10,000 fetches.
    fn worst_error(depths: &[u64], estimates: &[(u64, u64)]) -> u64 {
        let total: u64 = estimates.iter().map(|&(_, weight)| weight).sum();
        let deepest = *depths.iter().max().unwrap();
        let points = (1..=200).map(|point| deepest * point / 200);
        let errors = points.map(|size| {
            let truth = depths.iter().filter(|&&depth| depth <= size).count() as u64 * 10_000
                / depths.len() as u64;
            let spared: u64 = estimates
                .iter()
                .filter(|&&(depth, _)| depth <= size)
                .map(|&(_, weight)| weight)
                .sum();
            truth.abs_diff(spared * 10_000 / total)
        });
        errors.max().unwrap()
    }

    #[test]
    fn depths_are_exact_while_all_sectors_fit() {
        let mut random = Rng::new(1);
        let (mut exact, mut reuse) = (Exact::default(), Reuse::default());
        for _ in 0..20_000 {
            let (order, kind) = (random.below_u64(6), random.below_u64(10));
            let sectors = 1 << order;
            let first = random.below_u64(2048 / sectors) * sectors;
            match kind {
                0..5 => {
                    exact.left(first, sectors);
                    reuse.left(first, sectors, |_| true);
                }
                5..9 => assert_eq!(
                    reuse.came(first, sectors),
                    Some(Depth { sectors: exact.came(first, sectors), weight: 1 })
                ),
                _ => {
                    exact.forget(first, sectors);
                    reuse.forget(first, sectors);
                }
            }
            assert_eq!(reuse.sectors(), exact.list.len() as u64);
        }
    }

    /// The bound that `docs/internals/far-memory.md` states: 5 % of the fetches, at any size. The
    /// error is random by nature; these seeds stay within the bound.
    #[test]
    fn sampling_error_is_at_most_five_percent() {
        // Some sectors more often than others; several times what the list can contain.
        for seed in 1..=4 {
            let mut random = Rng::new(seed);
            let skewed = (0..50_000).map(move |_| {
                let octave = 1 << random.below_u64(14);
                (octave + random.below_u64(octave)).wrapping_mul(7919) % 20_000
            });
            let (depths, estimates, reuse) = run(500, skewed);
            assert!(reuse.rate() >= 2, "{}", reuse.rate());
            let error = worst_error(&depths, &estimates);
            assert!(
                error < 500,
                "seed {seed}: {error}, {} of {} fetches",
                estimates.len(),
                depths.len()
            );
        }
    }

    #[test]
    fn cycle_is_avoided_as_a_whole() {
        let (size, local) = (20_000u64, 2000);
        let (depths, estimates, _) = run(local, (0..2 * size).map(|at| at % size));
        let expected = size - local as u64;
        assert!(depths.iter().all(|&depth| depth == expected));
        for (depth, _) in estimates {
            assert!(depth.abs_diff(expected) * 100 < 2 * expected, "{depth} instead of {expected}");
        }
    }

    #[test]
    fn exactly_one_sector_per_group_is_sampled() {
        for shift in 0..13 {
            let single: Vec<u64> =
                (0..1 << 13).filter(|&sector| is_sampled(sector, 0, shift)).collect();
            assert_eq!(single.len(), 1 << (13 - shift));
            assert!(
                single.iter().enumerate().all(|(group, &sector)| sector >> shift == group as u64)
            );
            let mut in_blocks = Vec::new();
            (0..16).for_each(|block| {
                each_sampled(block * 512, 512, shift, |sector| in_blocks.push(u64::from(sector)))
            });
            assert_eq!(single, in_blocks);
        }
    }

    #[test]
    fn memory_is_bounded_for_any_list_length() {
        let mut reuse = Reuse::default();
        assert_eq!(reuse.metadata_bytes(), 0);
        for extent in 0..4000 {
            reuse.left(extent * 512, 512, |_| true);
        }
        assert!(reuse.metadata_bytes() <= 64 << 10);
        assert!(reuse.sectors().abs_diff(4000 * 512) < 4000 * 512 / 100, "{}", reuse.sectors());
        let depth = reuse.came(1000 * 512, 512).unwrap();
        assert_eq!(depth.weight, (reuse.rate() / 512).max(1));
        assert!(depth.sectors.unwrap().abs_diff(3000 * 512) < 3000 * 512 / 50, "{depth:?}");
    }

    #[test]
    fn sectors_without_content_take_no_room() {
        let mut reuse = Reuse::default();
        reuse.left(0, 64, |sector| sector < 40);
        reuse.left(64, 64, |_| false);
        assert_eq!(reuse.sectors(), 40);
        assert_eq!(reuse.came(10, 1).unwrap().sectors, Some(30));
        reuse.left(0, 64, |_| false);
        assert_eq!(reuse.sectors(), 0);
    }

    #[test]
    fn block_never_seen_leaving_has_no_depth() {
        let mut reuse = Reuse::default();
        assert_eq!(reuse.came(5, 1), Some(Depth { sectors: None, weight: 1 }));
        reuse.left(7, 1, |_| true);
        reuse.forget(7, 1);
        assert_eq!(reuse.came(7, 1), Some(Depth { sectors: None, weight: 1 }));
    }
}
