//! Whether an extent moves as a whole (huge mode) or sector by sector (small mode): the rent-or-buy
//! problem, decided for each extent while the program runs.
//!
//! A whole extent costs as much as some dozens of single sectors. A program that streams through it
//! should buy immediately; one that reads single words here and there should rent sectors for ever;
//! for all other programs the answer is not known in advance. Buying by mistake costs one extent,
//! renting by mistake costs hundreds of faults. So past use decides, and an extent that was used as
//! a whole is rented only after buying it proved bad repeatedly.
//! - An extent is **bought** if it had content in at least three quarters of its sectors when it
//!   was evicted for the first time, if its bucket overflowed (below), or if the program requested
//!   it. It is fetched whole.
//! - A bought extent gets a **strike** when a fault refaults it before local memory has turned over
//!   once, and when it was evicted after a fault had fetched it whole and it was never touched
//!   while it waited for its write-back. Residences that began with a stream or with a prefetch
//!   give no strike of the second kind: streams pass once by nature. A fault on a far extent that
//!   is not thrashing removes a strike.
//! - A bought extent that thrashes with all `MOST_STRIKES` strikes already against it is
//!   **rented**: it is fetched in sectors. One bad turn gives two strikes at most, the first only
//!   one, so that at least two refaults are served whole before; random use of more than local
//!   memory ends in sectors after four or five.
//! - Once in a while a bought extent is rented as a **trial**: whether the bucket buys it again shows
//!   how much of a whole extent the program uses, which cannot be seen while it is local as a
//!   whole. Where few are bought, all extents of the region are rented. Otherwise random use of a
//!   large region would fetch each of its extents several times.
//! - The small faults of a rented extent are counted in a **bucket**, which leaks one fault for
//!   every N other faults, where N is the number of extents that fit into local memory. It fills
//!   only while all extents that are faulting at the time would fit into local memory: then the
//!   rest of the extent is bought. Each strike doubles the price.
//! - An extent that was touched repeatedly while it was staged, or of which accessed bits show that
//!   few pages are in use, is **broken up** when it is next to
//!   be evicted: it continues in sectors, and is rented. One touch of 2 MiB says nothing about the
//!   rest, and an extent that stays local for a few words takes the place of hundreds of sectors
//!   that are used as much. Where most sectors of the extents that were broken up before turned out
//!   to be in use, a region's extents stay whole.
//! - In compressed memory nothing is bought: a sector costs little more by itself than as a part of
//!   an extent, and [`crate::run_ahead`] fetches several at a time.
//! - Every other far extent is rented at first. A fault inside a stream fetches the whole extent,
//!   whatever its history, and empties the bucket.

/// How an extent moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// As one block of 2 MiB.
    Huge,
    /// In sectors.
    Small,
}

/// History of one extent. All zeros: no history yet.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, zerocopy::FromZeros)]
pub struct ExtentHistory {
    /// Fault clock at the last small fault, coarse.
    fault_tick: u16,
    /// Inflow clock at its last eviction in huge mode, coarse.
    evict_tick: u16,
    /// Small faults in the bucket, in `LEVEL` parts.
    level: u16,
    /// `BOUGHT`, `EVICTED`, `PAID`, and the strikes.
    flags: u8,
    reserved: u8,
}

impl ExtentHistory {
    /// The program stated that it will use the extent from end to end: it is fetched whole.
    pub fn hint_dense(&mut self) {
        self.flags = BOUGHT;
    }

    /// The program stated that it will use single places of the extent: it is fetched in sectors,
    /// and buying it is expensive.
    pub fn hint_sparse(&mut self) {
        self.flags = MOST_STRIKES << STRIKES_SHIFT;
    }
}

/// The extent was bought (or proved useful as a whole): its next far fault is served whole.
const BOUGHT: u8 = 1;
/// `evict_tick` is valid.
const EVICTED: u8 = 2;
/// A fault fetched it whole, outside of any stream: its eviction shows whether that was worth it.
const PAID: u8 = 4;
/// It was rented to find out whether it would be bought.
const TRIAL: u8 = 1 << 5;
const STRIKES_SHIFT: u32 = 3;
const STRIKES: u8 = 3 << STRIKES_SHIFT;
const MOST_STRIKES: u8 = 3;
/// Fractions of a fault in which the bucket is counted.
const LEVEL: u64 = 64;
/// Coarse ticks of both clocks in one turnover of local memory; 16 bits hold a thousand turnovers.
const TICKS: u64 = 64;

/// History of one region (one mapping of the program). All zeros: no history yet.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RegionHistory {
    /// Share of sectors with content at first eviction, of 65,536; moving average.
    filled: u16,
    /// Extents in that average, saturating.
    samples: u16,
    /// Fresh extents since the last probe.
    since_probe: u8,
    /// Extents that were broken up and judged, saturating.
    broken: u8,
    /// Share of their sectors that turned out to be in use, of 256; moving average.
    broken_use: u8,
    /// Extents that were kept whole since the last probe.
    since_break: u8,
    /// Bought extents that were rented to find out, and those of them that the bucket bought again;
    /// older ones count less.
    trials: u8,
    trials_bought: u8,
    /// Whole fetches since the last trial.
    since_trial: u8,
    /// Bought extents are rented: few of those that were tried are used as a whole.
    in_vain: bool,
    /// Inflow clock at the last judgement of the trials, coarse.
    judged_tick: u16,
}

/// One whole fetch in this many is a trial: before the region was judged, and after.
const TRIAL_EVERY: u8 = 8;
const TRIAL_EVERY_JUDGED: u8 = 32;
/// Trials before they are judged, at the earliest after one turnover of local memory. Buying is in
/// vain where fewer than one in this many was bought.
const TRIALS_MIN: u8 = 4;
const BOUGHT_ONE_IN: u8 = 3;

/// First evictions before a region is judged.
const MIN_SAMPLES: u16 = 4;
/// In a region that is considered sparse, one fresh extent in this many is huge, to check whether
/// the region still is sparse.
const PROBE_EVERY: u8 = 32;
/// A region is sparse when less than this (of 65,536) has content at the first eviction.
const SPARSE_BELOW: u16 = 1 << 14;
/// An extent with at least this share (of 65,536) of content at its first eviction was used as a
/// whole.
const DENSE_FROM: u64 = 3 << 14;
/// Where fewer extents than this are local at a time, none is fetched whole: room for one is hard
/// to make, and takes the room of many sectors.
const LEAST_EXTENTS: u64 = 16;
/// An extent that was rescued this many times in one residence is broken up.
const BREAK_UP_AFTER: u8 = 3;
/// An extent of which at least this many pages are known to be in use is broken up to keep them.
/// Fewer are fetched again sooner than all others are evicted one by one.
const USED_PAGES_MIN: usize = 100;
/// Sectors of a broken extent that are staged before it is judged.
pub const JUDGED_STAGINGS: u8 = 128;
/// Broken extents before a region is judged, and the use (of 256) from which its extents are
/// considered to be in use as a whole.
const MIN_BROKEN: u8 = 2;
const DENSE_USE: u8 = 192;
/// Weight of a new extent in the moving average: one part in `1 << AVERAGE_SHIFT`.
const AVERAGE_SHIFT: u32 = 2;

/// Decides the mode of extents. See the module's head.
#[derive(Clone, Debug)]
pub struct Granularity {
    sectors_per_extent: u64,
    buy_after_faults: u64,
    local_extents: u64,
    /// Faults so far.
    faults: u64,
    /// Sectors that came into local memory so far.
    inflow: u64,
}

impl Granularity {
    /// `sectors_per_extent` sectors make an extent. After `buy_after_faults` small faults in a
    /// burst the rest is bought (about the cost of fetching 2 MiB divided by that of a sector; 48
    /// is usual). `local_extents` extents fit into local memory.
    pub fn new(sectors_per_extent: u16, buy_after_faults: u16, local_extents: u32) -> Self {
        let mut granularity = Granularity {
            sectors_per_extent: u64::from(sectors_per_extent.max(1)),
            buy_after_faults: u64::from(buy_after_faults.max(1)),
            local_extents: 1,
            faults: 0,
            inflow: 0,
        };
        granularity.set_local_extents(local_extents);
        granularity
    }

    /// The local limit changed.
    pub fn set_local_extents(&mut self, n: u32) {
        self.local_extents = u64::from(n.max(1));
    }

    /// Sectors came into local memory without a fault of their own (prefetch).
    pub fn on_inflow(&mut self, sectors: u32) {
        self.inflow += u64::from(sectors);
    }

    /// A fault on a far extent, no part of which is resident or staged. Returns the mode in which
    /// the extent is fetched. `is_beside`: an extent right before or behind it is local, so the fault
    /// may be one of the first of a stream, for which a trial would be expensive.
    pub fn on_far_fault(
        &mut self,
        state: &mut ExtentHistory,
        region: &mut RegionHistory,
        is_stream: bool,
        is_beside: bool,
    ) -> Mode {
        let thrashing = state.flags & EVICTED != 0
            && self.inflow_since(state) < self.local_extents * self.sectors_per_extent;
        let bought = state.flags & BOUGHT != 0;
        self.faults += 1;
        if self.local_extents < LEAST_EXTENTS {
            // The few that fit would push each other out, even where each is read from end to end.
            state.flags &= !(BOUGHT | EVICTED | PAID);
            self.inflow += 1;
            return Mode::Small;
        }
        if is_stream {
            state.level = 0;
            state.flags &= !PAID;
            self.inflow += self.sectors_per_extent;
            return Mode::Huge;
        }
        // One bad turn proves little (the first extents of a stream look like it), and renting by
        // mistake is the more expensive mistake.
        let worn_out = thrashing && state.strikes() == MOST_STRIKES;
        state.set_strikes(if bought && thrashing {
            state.strikes() + 1
        } else {
            state.strikes().saturating_sub(1)
        });
        if bought && !worn_out && self.is_trial(region, is_beside) {
            state.flags = state.flags & !(BOUGHT | EVICTED | PAID) | TRIAL;
            self.inflow += 1;
            self.rent(state);
            return Mode::Small;
        }
        if bought && !worn_out {
            state.flags |= PAID;
            self.inflow += self.sectors_per_extent;
            return Mode::Huge;
        }
        state.flags &= !(BOUGHT | EVICTED | PAID);
        self.inflow += 1;
        self.rent(state);
        Mode::Small
    }

    /// As [`Granularity::on_far_fault`], for an extent in compressed memory. A sector waits for little
    /// more than two context switches there, so a whole extent saves little, and where it takes the
    /// place of sectors in use it costs many times as much: only a stream fetches it whole.
    pub fn on_near_fault(&mut self, state: &mut ExtentHistory, is_stream: bool) -> Mode {
        self.faults += 1;
        let is_whole = is_stream && self.local_extents >= LEAST_EXTENTS;
        state.flags &= if is_whole { !PAID } else { !(EVICTED | PAID) };
        if is_whole {
            state.level = 0;
            self.inflow += self.sectors_per_extent;
            return Mode::Huge;
        }
        self.inflow += 1;
        self.rent(state);
        Mode::Small
    }

    /// Whether a bought extent of the region is to be rented, to find out or because buying is in
    /// vain there.
    fn is_trial(&self, region: &mut RegionHistory, is_beside: bool) -> bool {
        let turned = u64::from(self.inflow_tick().wrapping_sub(region.judged_tick)) >= TICKS;
        if turned && region.trials >= TRIALS_MIN {
            region.in_vain = region.trials_bought < region.trials / BOUGHT_ONE_IN;
            (region.trials, region.trials_bought) = (region.trials / 2, region.trials_bought / 2);
            region.judged_tick = self.inflow_tick();
        }
        let every = if region.judged_tick == 0 { TRIAL_EVERY } else { TRIAL_EVERY_JUDGED };
        region.since_trial = region.since_trial.saturating_add(1);
        let is_trial = region.in_vain || region.since_trial >= every && !is_beside;
        if is_trial {
            region.since_trial = 0;
            region.trials = region.trials.saturating_add(1);
        }
        is_trial
    }

    /// A fault on a missing sector of an extent in small mode. True: fetch the rest of the extent
    /// now; from here on it is huge.
    pub fn on_small_fault(
        &mut self,
        state: &mut ExtentHistory,
        region: &mut RegionHistory,
    ) -> bool {
        self.faults += 1;
        self.inflow += 1;
        self.rent(state);
        let buy =
            self.local_extents >= LEAST_EXTENTS && u64::from(state.level) >= self.price(state);
        if buy {
            if state.flags & TRIAL != 0 {
                region.trials_bought = region.trials_bought.saturating_add(1);
            }
            state.level = 0;
            state.flags = state.flags & !TRIAL | BOUGHT | PAID;
            self.inflow += self.sectors_per_extent;
        }
        buy
    }

    /// A block that was fetched ahead of a stream was used, in an extent in small mode: a trial has
    /// shown that the extent is used as a whole, without the faults that would have bought it.
    pub fn on_streamed(&self, state: &mut ExtentHistory, region: &mut RegionHistory) {
        if state.flags & TRIAL != 0 {
            state.flags = state.flags & !TRIAL | BOUGHT;
            region.trials_bought = region.trials_bought.saturating_add(1);
        }
    }

    /// First touch in an extent that was never used.
    pub fn on_fresh_fault(
        &mut self,
        state: &mut ExtentHistory,
        region: &mut RegionHistory,
        is_stream: bool,
    ) -> Mode {
        *state = ExtentHistory::default();
        self.faults += 1;
        if self.local_extents < LEAST_EXTENTS {
            self.inflow += 1;
            return Mode::Small;
        }
        let sparse = region.samples >= MIN_SAMPLES && region.filled < SPARSE_BELOW;
        if sparse && !is_stream {
            region.since_probe += 1;
            if region.since_probe < PROBE_EVERY {
                self.inflow += 1;
                self.rent(state);
                return Mode::Small;
            }
            region.since_probe = 0;
        }
        self.inflow += self.sectors_per_extent;
        Mode::Huge
    }

    /// The extent was evicted in huge mode. `nonzero_sectors` sectors are not a repeated word
    /// (known and used only at the first eviction after being fresh; if 0, nothing is learnt). It
    /// was rescued from staging `rescues` times during this residence.
    pub fn on_huge_evicted(
        &mut self,
        state: &mut ExtentHistory,
        region: &mut RegionHistory,
        was_fresh: bool,
        nonzero_sectors: u16,
        rescues: u8,
    ) {
        state.flags |= EVICTED;
        state.evict_tick = self.inflow_tick();
        if state.flags & PAID != 0 && rescues == 0 {
            // Never touched in all the time that it waited for its write-back: too expensive by
            // itself.
            state.set_strikes(state.strikes() + 1);
        }
        state.flags &= !PAID;
        // Without content, it was mapped ahead of a stream and not reached: that says nothing about
        // the region.
        if was_fresh && nonzero_sectors > 0 {
            let filled = (u64::from(nonzero_sectors) << 16) / self.sectors_per_extent;
            region.sample(filled.min(u64::from(u16::MAX)) as u16);
            if filled >= DENSE_FROM && state.strikes() == 0 {
                // Written from end to end: that was a use of the whole. (A fresh extent has strikes
                // by `hint_sparse` only.)
                state.flags |= BOUGHT;
            }
        }
    }

    /// An extent in huge mode is to be evicted. It was rescued `rescues` times in this residence,
    /// and `used_pages` of its pages are known to have been accessed lately. True: it continues in
    /// sectors.
    pub fn breaks_up(
        &self,
        state: &mut ExtentHistory,
        region: &mut RegionHistory,
        rescues: u8,
        used_pages: usize,
    ) -> bool {
        let rescues_min = if self.local_extents < LEAST_EXTENTS { 1 } else { BREAK_UP_AFTER };
        if rescues < rescues_min && used_pages < USED_PAGES_MIN {
            return false;
        }
        if region.broken >= MIN_BROKEN && region.broken_use >= DENSE_USE {
            region.since_break += 1;
            if region.since_break < PROBE_EVERY {
                return false;
            }
            region.since_break = 0;
        }
        state.flags &= !(BOUGHT | EVICTED | PAID);
        true
    }

    /// Of the first `JUDGED_STAGINGS` sectors of a broken extent that were staged, `rescues` were
    /// touched there.
    pub fn on_broken_judged(&self, region: &mut RegionHistory, rescues: u8) {
        let used = (u32::from(rescues) * 256 / u32::from(JUDGED_STAGINGS)).min(255) as i32;
        let old = i32::from(region.broken_use);
        region.broken_use = if region.broken == 0 { used } else { old + ((used - old) >> 1) } as u8;
        region.broken = region.broken.saturating_add(1);
    }

    /// Adds one fault to the bucket, after the leak.
    fn rent(&self, state: &mut ExtentHistory) {
        let tick = self.fault_tick();
        let gap_faults = u64::from(tick.wrapping_sub(state.fault_tick)) * self.faults_per_tick();
        let leak = gap_faults * LEVEL / self.local_extents;
        state.level =
            (u64::from(state.level).saturating_sub(leak) + LEVEL).min(u64::from(u16::MAX)) as u16;
        state.fault_tick = tick;
    }

    fn price(&self, state: &ExtentHistory) -> u64 {
        ((self.buy_after_faults * LEVEL) << state.strikes()).min(u64::from(u16::MAX))
    }

    fn faults_per_tick(&self) -> u64 {
        (self.local_extents / TICKS).max(1)
    }

    fn fault_tick(&self) -> u16 {
        (self.faults / self.faults_per_tick()) as u16
    }

    fn sectors_per_tick(&self) -> u64 {
        (self.local_extents * self.sectors_per_extent / TICKS).max(1)
    }

    fn inflow_tick(&self) -> u16 {
        (self.inflow / self.sectors_per_tick()) as u16
    }

    /// Sectors that came into local memory since the extent was evicted.
    fn inflow_since(&self, state: &ExtentHistory) -> u64 {
        u64::from(self.inflow_tick().wrapping_sub(state.evict_tick)) * self.sectors_per_tick()
    }
}

impl ExtentHistory {
    /// How often buying it proved bad.
    fn strikes(self) -> u8 {
        (self.flags & STRIKES) >> STRIKES_SHIFT
    }

    fn set_strikes(&mut self, strikes: u8) {
        self.flags = self.flags & !STRIKES | strikes.min(MOST_STRIKES) << STRIKES_SHIFT;
    }
}

impl RegionHistory {
    fn sample(&mut self, filled: u16) {
        if self.samples == 0 {
            self.filled = filled;
        } else {
            let (old, new) = (i32::from(self.filled), i32::from(filled));
            self.filled = (old + ((new - old) >> AVERAGE_SHIFT)) as u16;
        }
        self.samples = self.samples.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeatedly_rescued_extent_is_split_and_rented() {
        let mut granularity = Granularity::new(512, 48, 64);
        let (mut state, mut region) = (ExtentHistory::default(), RegionHistory::default());
        state.hint_dense();
        assert!(!granularity.breaks_up(&mut state, &mut region, 2, 0));
        assert_eq!(granularity.on_far_fault(&mut state, &mut region, false, false), Mode::Huge);
        assert!(granularity.breaks_up(&mut state, &mut region, 3, 0));
        assert_eq!(granularity.on_far_fault(&mut state, &mut region, false, false), Mode::Small);
        assert!(!granularity.breaks_up(&mut state, &mut region, 0, 99));
        assert!(granularity.breaks_up(&mut state, &mut region, 0, 100));
        granularity.set_local_extents(8);
        assert!(granularity.breaks_up(&mut state, &mut region, 1, 0));
    }

    #[test]
    fn region_with_fully_used_extents_splits_only_probes() {
        let granularity = Granularity::new(512, 48, 64);
        let (mut state, mut region) = (ExtentHistory::default(), RegionHistory::default());
        (0..2).for_each(|_| granularity.on_broken_judged(&mut region, 120));
        let broken =
            (0..96).filter(|_| granularity.breaks_up(&mut state, &mut region, 3, 0)).count();
        assert_eq!(broken, 3);
        (0..8).for_each(|_| granularity.on_broken_judged(&mut region, 10));
        assert!(granularity.breaks_up(&mut state, &mut region, 3, 0));
    }

    /// Faults in turn on bought extents of a region, each of which is evicted at once after `uses`
    /// faults in small mode. Returns the number of whole fetches and of small faults.
    fn use_extents(region: &mut RegionHistory, extents: usize, uses: usize) -> (usize, usize) {
        let mut granularity = Granularity::new(512, 48, 64);
        let mut states = vec![ExtentHistory { flags: BOUGHT, ..Default::default() }; extents];
        let (mut whole, mut small) = (0, 0);
        for state in states.iter_mut() {
            if granularity.on_far_fault(state, region, false, false) == Mode::Huge {
                whole += 1;
                continue;
            }
            let is_rented = |_: &usize| !granularity.on_small_fault(state, region);
            small += 1 + (1..uses).take_while(is_rented).count();
        }
        (whole, small)
    }

    #[test]
    fn region_used_at_random_is_rented_after_trials() {
        let mut region = RegionHistory::default();
        let (whole, small) = use_extents(&mut region, 300, 1);
        assert!(whole < 80 && small > 220, "{whole} whole fetches");
    }

    #[test]
    fn region_used_as_a_whole_stays_bought() {
        let mut region = RegionHistory::default();
        let (whole, small) = use_extents(&mut region, 300, 512);
        assert!(whole > 270 && small < 30 * 48, "{whole} whole fetches, {small} small faults");
    }

    #[test]
    fn histories_are_small_and_start_at_zero() {
        assert!(size_of::<ExtentHistory>() <= 8 && size_of::<RegionHistory>() <= 14);
    }
}
