//! Whether a fault moves one sector, or the aligned *cluster* of sectors around it as one block.
//!
//! A cluster costs one fault, one copy and one eviction, where its sectors one by one cost several
//! of each; but what nobody needs of it takes the place of something that somebody does. Which of
//! both is better differs between programs, and between the parts of one program's memory.
//!
//! Where accessed bits can be read, they say it: of the pages that were used between two reads, how
//! much likelier is a page to be one of them if another page of its cluster is? That is the
//! *intraclass correlation*: 0 if single words are used at random, however many, and 1 if all of a
//! cluster is used or nothing. It does not depend on the size in which pages move now, as numbers
//! of faults would. It is measured for each extent, and within all of them for those of which too
//! little is known.
//!
//! Pages that have come since the bits before them were requested say nothing. Where whole clusters
//! come and go faster than accessed bits are read, that is nearly all of them, and what was known
//! stays, right or wrong. So it is checked by faults too: now and then a cluster that would move
//! whole is a [sample](crate::samples), and its sectors move one by one. Where hardly any sector of
//! samples is needed beside the first, nothing moves whole until accessed bits say so again.

use hiroma_units::{BlockId, ExtentNo, PAGES_PER_EXTENT};
use rustc_hash::FxHashMap;

use crate::replacement::{PageBits, words_of};
use crate::samples::{Sample, Samples};

/// Sectors of a cluster.
pub const CLUSTER: u64 = 8;
/// Pairs of pages in one cluster that must have been seen for an estimate, usually.
const PAIRS_MIN: u32 = 192;
/// Resident pages that an estimate is made of, at most: older ones count half.
const EXTENT_PAGES_MAX: u64 = 2048;
const ALL_PAIRS_MAX: i64 = 1 << 14;
/// Share of used pages, of 1024, that says nothing about clusters.
const HOT: u64 = 960;
/// Clusters move whole where the correlation, of 256, is at least this.
const WORTH: i64 = 128;
/// Where fewer than one in so many resident pages could be judged, what is known ages.
const SIGHT_MIN_PART: u64 = 8;
/// Samples that are open at a time, and closed ones of which a verdict is made.
const SAMPLES_OPEN: usize = 256;
const SAMPLES_MIN: u32 = 24;
/// One fault in so many that would move a cluster opens a sample, at first; each verdict for
/// clusters doubles it.
const SAMPLE_EVERY: u32 = 16;
const SAMPLE_EVERY_MAX: u32 = 1024;
/// Nothing moves whole where fewer than one in so many sectors of samples are needed.
const NEEDED_MIN_PART: u32 = 8;
/// Clusters that a sample lasts, at most.
const WINDOW_MAX: u64 = 4096;
/// First touches that a first touch is compared with.
const RECENT: usize = 16;
/// First touches that are remembered, at most: older ones count half.
const FRESH_MAX: u32 = 512;

/// How pages were used between reads of accessed bits.
#[derive(Clone, Copy, Default, Debug)]
struct Use {
    /// Pages that were resident between two reads, and how many of them were used.
    resident: u64,
    used: u64,
    /// For each used page, the other pages of its cluster, and how many of them were used.
    beside: u64,
    used_beside: u64,
}

impl Use {
    /// Of the pages of one extent.
    fn new(used: &PageBits, resident: &PageBits) -> Use {
        let mut seen = Use::default();
        for (used, resident) in used.iter().zip(resident) {
            for (used, resident) in used.to_le_bytes().into_iter().zip(resident.to_le_bytes()) {
                let (used, resident) =
                    (u64::from(used.count_ones()), u64::from(resident.count_ones()));
                seen.resident += resident;
                seen.used += used;
                seen.beside += used * resident.saturating_sub(1);
                seen.used_beside += used * used.saturating_sub(1);
            }
        }
        seen
    }

    fn add(&mut self, more: Use) {
        self.resident += more.resident;
        self.used += more.used;
        self.beside += more.beside;
        self.used_beside += more.used_beside;
        if self.resident > EXTENT_PAGES_MAX {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.resident /= 2;
        self.used /= 2;
        self.beside /= 2;
        self.used_beside /= 2;
    }

    /// The share of the resident pages that were used, of 1024.
    fn usual(&self) -> u64 {
        self.used * 1024 / self.resident.max(1)
    }
}

/// Of how many pages beside used ones more were used than usual, and how many more could have been.
#[derive(Clone, Copy, Default, Debug)]
struct Excess {
    used: i64,
    possible: i64,
}

impl Excess {
    fn of(seen: Use, usual: u64) -> Excess {
        let [used, beside, usual] =
            [seen.used_beside, seen.beside, usual].map(|count| count as i64);
        Excess { used: used * 1024 - beside * usual, possible: beside * (1024 - usual) }
    }

    /// The correlation, of 256. None if less is known than from so many pairs.
    fn correlation(&self, pairs_min: u32) -> Option<i64> {
        (self.possible >= 1024 * i64::from(pairs_min)).then(|| self.used * 256 / self.possible)
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Known {
    seen: Use,
    /// None: like the others.
    is_worth: Option<bool>,
}

fn count(pages: &PageBits) -> u64 {
    pages.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// In what size a fault on a far sector is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moves {
    /// All of its cluster.
    Whole,
    /// The sector.
    Alone,
    /// The sector, and a sample of its cluster is to be opened ([`Clusters::open_sample`]).
    AsSample,
}

/// Closed samples since the last verdict.
#[derive(Clone, Copy, Default, Debug)]
struct Checked {
    samples: u32,
    /// Sectors that were far beside the first, and those of them that were needed.
    far: u32,
    needed: u32,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Clusters {
    pairs_min: u32,
    all: Excess,
    is_worth: bool,
    samples: Samples,
    sample_every: u32,
    checked: Checked,
    extents: FxHashMap<ExtentNo, Known>,
    /// Pages that became resident since the last request for their bits, and between that and the
    /// one before. Their accessed bits are set by that.
    admitted: FxHashMap<ExtentNo, [PageBits; 2]>,
    /// The clusters of the last first touches.
    recent: [u64; RECENT],
    next: usize,
    fresh: u32,
    near: u32,
}

impl Default for Clusters {
    fn default() -> Clusters {
        Clusters::new(PAIRS_MIN)
    }
}

impl Clusters {
    /// Decides as soon as it has seen so many pairs of pages in one cluster.
    pub fn new(pairs_min: u32) -> Clusters {
        Clusters {
            pairs_min,
            all: Excess::default(),
            is_worth: true,
            samples: Samples::new(SAMPLES_OPEN),
            sample_every: SAMPLE_EVERY,
            checked: Checked::default(),
            extents: FxHashMap::default(),
            admitted: FxHashMap::default(),
            recent: [u64::MAX / 2; RECENT],
            next: 0,
            fresh: 16,
            near: 12,
        }
    }

    /// Accessed bits cannot be read: sectors move one by one, which is never much too expensive.
    pub fn give_up(&mut self) {
        self.is_worth = false;
        self.extents.clear();
    }

    /// A block became resident.
    pub fn admitted(&mut self, block: BlockId) {
        let [bits, _] = self.admitted.entry(block.extent_no()).or_default();
        words_of(block).for_each(|(word, mask)| bits[word] |= mask);
    }

    /// Accessed bits of an extent were requested. They are read, and cleared, at any moment until
    /// the answer, so what comes meanwhile is not judged by this answer nor by the next one.
    pub fn asked(&mut self, extent: ExtentNo) {
        if let Some(admitted) = self.admitted.get_mut(&extent) {
            *admitted = [PageBits::default(), admitted[0]];
        }
    }

    /// Accessed bits of an extent that moves in small blocks were read. Returns whether its sectors
    /// are to move one by one.
    pub fn read(&mut self, extent: ExtentNo, used: &PageBits, resident: &PageBits) -> bool {
        let [late, early] = self.admitted.get(&extent).copied().unwrap_or_default();
        let present = count(resident);
        let resident: PageBits = std::array::from_fn(|at| resident[at] & !late[at] & !early[at]);
        let used = std::array::from_fn(|at| used[at] & resident[at]);
        let seen = Use::new(&used, &resident);
        let state = self.extents.entry(extent).or_default();
        if seen.resident * SIGHT_MIN_PART < present {
            state.seen.halve();
            state.is_worth = None;
        }
        state.seen.add(seen);
        let usual = state.seen.usual();
        let excess = Excess::of(seen, usual);
        self.all.used += excess.used;
        self.all.possible += excess.possible;
        if self.all.possible > 1024 * ALL_PAIRS_MAX {
            (self.all.used, self.all.possible) = (self.all.used / 2, self.all.possible / 2);
        }
        let known = Excess::of(state.seen, usual).correlation(self.pairs_min);
        // Where pages come and go, and those that stay were all used, they stayed because of that.
        let is_hot = usual >= HOT && state.seen.used >= u64::from(self.pairs_min);
        if let Some(correlation) = known.or(is_hot.then_some(0)) {
            state.is_worth = Some(correlation >= WORTH);
        }
        if let Some(correlation) = self.all.correlation(self.pairs_min) {
            self.is_worth = correlation >= WORTH;
        }
        state.is_worth == Some(false)
    }

    /// A fault on a far sector. `is_away`: nothing of its cluster is local, so its size may be
    /// chosen. `local_sectors`: how many sectors fit into local memory.
    pub fn on_fault(&mut self, sector: u64, is_away: bool, local_sectors: u64) -> Moves {
        let (cluster, at) = (sector / CLUSTER, sector % CLUSTER);
        for sample in self.samples.on_fault(cluster, (local_sectors / CLUSTER).min(WINDOW_MAX)) {
            self.check(sample);
        }
        if let Some(sample) = self.samples.of(cluster) {
            sample.used |= 1 << at;
            Moves::Alone
        } else if !is_away || !self.moves_whole(sector) {
            Moves::Alone
        } else if self.samples.is_chosen(cluster, self.sample_every) {
            Moves::AsSample
        } else {
            Moves::Whole
        }
    }

    /// Opens a sample of the cluster of the sector that faulted last. `far`: the sectors of the
    /// cluster that are far (bit 0: the first).
    pub fn open_sample(&mut self, sector: u64, far: u8) {
        self.samples.open(sector / CLUSTER, sector % CLUSTER, far.into());
    }

    /// Whether the cluster of a sector is a sample.
    pub fn is_sample(&mut self, sector: u64) -> bool {
        self.samples.of(sector / CLUSTER).is_some()
    }

    /// Faults in the cluster of a sector are answered by other means.
    pub fn forget_sample(&mut self, sector: u64) {
        self.samples.forget(sector / CLUSTER);
    }

    fn check(&mut self, sample: Sample) {
        let beside = sample.far & !(1 << sample.at);
        self.checked.samples += 1;
        self.checked.far += beside.count_ones();
        self.checked.needed += (beside & sample.used).count_ones();
        if self.checked.samples < SAMPLES_MIN {
            return;
        }
        let Checked { far, needed, .. } = std::mem::take(&mut self.checked);
        if needed * NEEDED_MIN_PART < far {
            self.is_worth = false;
            self.all = Excess::default();
            self.extents.clear();
            self.sample_every = SAMPLE_EVERY;
        } else {
            self.sample_every = (2 * self.sample_every).min(SAMPLE_EVERY_MAX);
        }
    }

    /// A first touch of a sector.
    pub fn on_fresh_fault(&mut self, sector: u64) {
        let cluster = sector / CLUSTER;
        let is_near = self.recent.iter().any(|&recent| recent.abs_diff(cluster) <= 1);
        self.recent[self.next] = cluster;
        self.next = (self.next + 1) % RECENT;
        (self.fresh, self.near) = (self.fresh + 1, self.near + u32::from(is_near));
        if self.fresh > FRESH_MAX {
            (self.fresh, self.near) = (self.fresh / 2, self.near / 2);
        }
    }

    /// Whether a first touch is to create a whole cluster.
    pub fn creates_whole(&self, sector: u64) -> bool {
        self.near * 3 >= self.fresh && self.moves_whole(sector)
    }

    /// Whether the cluster of a sector moves as one block.
    pub fn moves_whole(&self, sector: u64) -> bool {
        let extent = ExtentNo((sector / PAGES_PER_EXTENT as u64) as u32);
        self.extents.get(&extent).and_then(|state| state.is_worth).unwrap_or(self.is_worth)
    }

    /// Bytes of its tables.
    pub fn metadata_bytes(&self) -> usize {
        self.extents.capacity() * (size_of::<(ExtentNo, Known)>() + 1)
            + self.admitted.capacity() * (size_of::<(ExtentNo, [PageBits; 2])>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hiroma_units::Rng;

    const ALL: PageBits = [u64::MAX; PAGES_PER_EXTENT / 64];

    /// Each page with a probability of `share` of 256, independently of its neighbours.
    fn single(numbers: &mut Rng, share: u64) -> PageBits {
        std::array::from_fn(|_| {
            (0..64).fold(0, |word, at| word | u64::from(numbers.next_u64() % 256 < share) << at)
        })
    }

    /// Each cluster with a probability of `share` of 256.
    fn whole(numbers: &mut Rng, share: u64) -> PageBits {
        let starts = single(numbers, share).map(|word| word & 0x0101_0101_0101_0101);
        starts.map(|word| word * 0xff)
    }

    fn first_of(extent: u32) -> u64 {
        u64::from(extent) * PAGES_PER_EXTENT as u64
    }

    #[test]
    fn single_words_move_alone_however_many_are_used() {
        for share in [16, 64, 128, 200] {
            let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(share));
            for round in 0..40 {
                let used = single(&mut numbers, share);
                clusters.read(ExtentNo(round % 4), &used, &ALL);
            }
            assert!((0..5).all(|extent| !clusters.moves_whole(first_of(extent))), "{share}");
        }
    }

    #[test]
    fn what_is_used_in_clusters_moves_in_clusters_however_much_is_used() {
        for share in [8, 64, 128, 200] {
            let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(share));
            for round in 0..40 {
                let used = whole(&mut numbers, share);
                assert!(!clusters.read(ExtentNo(round % 4), &used, &ALL));
            }
            assert!((0..5).all(|extent| clusters.moves_whole(first_of(extent))), "{share}");
        }
    }

    #[test]
    fn resident_pages_alone_are_judged() {
        // Of each cluster two pages are resident, and both are used or none.
        let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(1));
        for _ in 0..40 {
            let resident = [0x1818_1818_1818_1818; PAGES_PER_EXTENT / 64];
            clusters.read(ExtentNo(0), &whole(&mut numbers, 64), &resident);
        }
        assert!(clusters.moves_whole(0));
    }

    #[test]
    fn parts_of_memory_are_told_apart() {
        let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(2));
        for _ in 0..20 {
            clusters.read(ExtentNo(0), &single(&mut numbers, 64), &ALL);
            clusters.read(ExtentNo(1), &whole(&mut numbers, 64), &ALL);
        }
        assert!(!clusters.moves_whole(first_of(0)) && clusters.moves_whole(first_of(1)));
    }

    #[test]
    fn extents_that_are_used_more_than_others_are_no_sign_of_clusters() {
        let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(3));
        for _ in 0..20 {
            clusters.read(ExtentNo(0), &single(&mut numbers, 220), &ALL);
            clusters.read(ExtentNo(1), &single(&mut numbers, 6), &ALL);
        }
        assert!(!clusters.moves_whole(first_of(2)));
    }

    #[test]
    fn pages_that_have_just_come_say_nothing() {
        let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(4));
        for _ in 0..40 {
            let mut used = single(&mut numbers, 40);
            // A whole cluster has come, and all of its accessed bits are set by that.
            clusters.asked(ExtentNo(0));
            for _ in 0..16 {
                let sector = numbers.next_u64() % 64 * CLUSTER;
                clusters.admitted(BlockId::new(sector, 3));
                used[sector as usize / 64] |= 0xff << (sector % 64);
            }
            clusters.read(ExtentNo(0), &used, &ALL);
        }
        assert!(!clusters.moves_whole(0));
    }

    #[test]
    fn pages_that_come_while_bits_are_read_say_nothing() {
        let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(8));
        let mut late = PageBits::default();
        for _ in 0..40 {
            // What came after the bits were read last time has its bits set this time.
            let used = single(&mut numbers, 40);
            let used = std::array::from_fn(|at| used[at] | late[at]);
            clusters.asked(ExtentNo(0));
            late = PageBits::default();
            for _ in 0..16 {
                let sector = numbers.next_u64() % 64 * CLUSTER;
                clusters.admitted(BlockId::new(sector, 3));
                late[sector as usize / 64] |= 0xff << (sector % 64);
            }
            clusters.read(ExtentNo(0), &used, &ALL);
        }
        assert!(!clusters.moves_whole(0));
    }

    /// Faults on `needed` sectors of a cluster, for so many clusters at random, of which a hundred
    /// fit into local memory. Returns the number of faults.
    fn fault(clusters: &mut Clusters, numbers: &mut Rng, needed: u64, count: u64) -> u64 {
        let mut faults = 0;
        for _ in 0..count {
            let first = numbers.next_u64() % (1 << 20) * CLUSTER;
            for at in 0..needed {
                faults += 1;
                match clusters.on_fault(first + at, at == 0, 100 * CLUSTER) {
                    Moves::Whole => break,
                    Moves::Alone => {}
                    Moves::AsSample => clusters.open_sample(first + at, 0xff),
                }
            }
        }
        faults
    }

    #[test]
    fn what_is_never_judged_is_checked_by_faults() {
        let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(7));
        // It was seen that clusters are used whole.
        for round in 0..40 {
            clusters.read(ExtentNo(round % 4), &whole(&mut numbers, 64), &ALL);
        }
        // Now they come and go faster than bits are read.
        assert!(clusters.moves_whole(0));
        fault(&mut clusters, &mut numbers, 1, 1000);
        assert!(!clusters.moves_whole(0) && !clusters.moves_whole(first_of(9)));
        // Then pages stay longer, and it is seen again.
        for round in 0..40 {
            clusters.read(ExtentNo(round % 4), &whole(&mut numbers, 64), &ALL);
        }
        assert!(clusters.moves_whole(0));
    }

    #[test]
    fn checks_of_clusters_that_are_needed_cost_little() {
        let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(9));
        let first = fault(&mut clusters, &mut numbers, CLUSTER, 20_000);
        let second = fault(&mut clusters, &mut numbers, CLUSTER, 20_000);
        assert!(clusters.moves_whole(0));
        assert!(first < 20_000 * 11 / 10 && second < 20_000 * 102 / 100, "{first}, {second}");
    }

    #[test]
    fn runs_through_samples_say_nothing() {
        let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(10));
        for _ in 0..5000 {
            let sector = numbers.next_u64() % (1 << 20);
            if clusters.on_fault(sector, true, 100 * CLUSTER) == Moves::AsSample {
                clusters.open_sample(sector, 0xff);
                assert!(clusters.is_sample(sector));
                clusters.forget_sample(sector);
            }
        }
        assert!(clusters.moves_whole(0));
    }

    #[test]
    fn survivors_of_heavy_traffic_say_nothing() {
        let mut clusters = Clusters::default();
        for _ in 0..20 {
            let stayed = [0x0101_0001_0100_0101; PAGES_PER_EXTENT / 64];
            clusters.read(ExtentNo(0), &stayed, &stayed);
            let both = [0x0300_0300_0000_0003; PAGES_PER_EXTENT / 64];
            clusters.read(ExtentNo(0), &both, &both);
        }
        assert!(!clusters.moves_whole(0));
    }

    #[test]
    fn program_that_changes_its_ways_is_followed() {
        let (mut clusters, mut numbers) = (Clusters::default(), Rng::new(5));
        for _ in 0..3 {
            (0..12).for_each(|_| {
                clusters.read(ExtentNo(0), &single(&mut numbers, 64), &ALL);
            });
            assert!(!clusters.moves_whole(0));
            (0..12).for_each(|_| {
                clusters.read(ExtentNo(0), &whole(&mut numbers, 64), &ALL);
            });
            assert!(clusters.moves_whole(0));
        }
    }

    #[test]
    fn first_touches_in_order_create_clusters() {
        let mut clusters = Clusters::default();
        (0..500).for_each(|at| clusters.on_fresh_fault(at * 2));
        assert!(clusters.creates_whole(0));
        let mut numbers = Rng::new(6);
        (0..1000).for_each(|_| clusters.on_fresh_fault(numbers.next_u64() % (1 << 20)));
        assert!(!clusters.creates_whole(0));
    }
}
