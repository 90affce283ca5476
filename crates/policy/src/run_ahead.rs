//! How many sectors one fault fetches, in extents that move sector by sector.
//!
//! A fault costs several times as much as a sector that comes with another, but a sector that nobody
//! needs takes the place of one that somebody does. So a fault fetches one sector, and one that
//! continues where the last one in its extent ended fetches twice as many as that, upwards or
//! downwards: stacks, garbage collectors and sorts walk to lower addresses as often. What is fetched
//! in vain is at most as much as was used before it. Faults at random hit the place where the last
//! one ended once in hundreds.
//!
//! Where fewer than half of the runs are continued, the program has few walks, or short ones. A run
//! then begins after three faults in a row, not after one.

/// Most sectors that one fault fetches.
pub const RUN_MAX: usize = 32;
/// Sectors between the end of a run and the fault that still continues it: those may be resident.
const GAP_MAX: u64 = 8;
/// Faults in a row before a run begins, where few runs are continued.
const PROVED: u8 = 3;
/// Runs after which older ones count half.
const JUDGED_MAX: u32 = 64;
/// Extents with faults at about the same time that are told apart.
const SLOTS: usize = 512;

/// What a fault fetches: `sectors` with the faulted one, which is the first of them, or with
/// `down` the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub sectors: usize,
    pub down: bool,
}

/// The last run in an extent: its sectors are `first..next`.
#[derive(Clone, Copy, Debug)]
struct Slot {
    first: u64,
    next: u64,
    sectors: u32,
    down: bool,
    /// Faults in a row that continued the one before them.
    in_row: u8,
}

/// No run.
const NONE: Slot = Slot { first: 0, next: u64::MAX, sectors: 0, down: false, in_row: 0 };

/// The runs of all extents. See the module's head.
#[derive(Clone, Debug)]
pub struct RunAhead {
    slots: Vec<Slot>,
    sectors_per_extent: u64,
    /// The same of the last fault.
    in_row: u8,
    /// Runs of several sectors, and those of them that the next fault in the extent continued.
    judged: u32,
    continued: u32,
}

impl RunAhead {
    /// For extents of so many sectors.
    pub fn new(sectors_per_extent: u64) -> RunAhead {
        RunAhead {
            slots: vec![NONE; SLOTS],
            sectors_per_extent: sectors_per_extent.max(1),
            in_row: 0,
            judged: 0,
            continued: 0,
        }
    }

    fn slot(&mut self, sector: u64) -> &mut Slot {
        &mut self.slots[(sector / self.sectors_per_extent) as usize % SLOTS]
    }

    /// A fault on a far sector, numbered through all extents. Returns what to fetch.
    pub fn on_fault(&mut self, sector: u64) -> Run {
        let last = *self.slot(sector);
        let run = RunAhead::continues(last, sector);
        self.in_row = if run.is_some() { last.in_row.saturating_add(1) } else { 0 };
        if last.sectors > 1 {
            self.judge(run.is_some());
        }
        match run {
            Some(down) if self.in_row < PROVED && self.continued * 2 < self.judged => {
                Run { sectors: 1, down }
            }
            Some(down) => Run { sectors: (last.sectors as usize * 2).clamp(1, RUN_MAX), down },
            None => Run { sectors: 1, down: false },
        }
    }

    fn judge(&mut self, is_continued: bool) {
        if self.judged >= JUDGED_MAX {
            (self.judged, self.continued) = (self.judged / 2, self.continued / 2);
        }
        self.judged += 1;
        self.continued += u32::from(is_continued);
    }

    /// Whether a fault continues a run, and if it does, whether downwards.
    fn continues(last: Slot, sector: u64) -> Option<bool> {
        // A single sector has no direction yet.
        let may_turn = last.sectors <= 1;
        if sector >= last.next && sector - last.next <= GAP_MAX && (may_turn || !last.down) {
            Some(false)
        } else if sector < last.first
            && last.first - 1 - sector <= GAP_MAX
            && (may_turn || last.down)
        {
            Some(true)
        } else {
            None
        }
    }

    /// That fault fetched `sectors` sectors of `first..next`.
    pub fn fetched(&mut self, first: u64, next: u64, sectors: usize, down: bool) {
        // A run that ends with its extent continues in the one beside it.
        let ahead = if down { first.saturating_sub(1) } else { next };
        let in_row = self.in_row;
        *self.slot(ahead) = Slot { first, next, sectors: sectors as u32, down, in_row };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault of which all is fetched. Returns the number of sectors.
    fn fetch(runs: &mut RunAhead, at: u64) -> usize {
        let Run { sectors, down } = runs.on_fault(at);
        let first = if down { (at + 1).saturating_sub(sectors as u64) } else { at };
        runs.fetched(first, first + sectors as u64, sectors, down);
        sectors
    }

    /// Faults until `end`, where all of what is fetched is used. Returns the number of faults.
    fn walk(runs: &mut RunAhead, start: u64, end: u64) -> usize {
        let (mut at, mut faults) = (start, 0);
        while at < end {
            at += fetch(runs, at) as u64;
            faults += 1;
        }
        faults
    }

    /// The same downwards, from `start` to `end`.
    fn walk_down(runs: &mut RunAhead, start: u64, end: u64) -> usize {
        let (mut at, mut faults) = (start, 0);
        while at > end {
            at = at.saturating_sub(fetch(runs, at) as u64);
            faults += 1;
        }
        faults
    }

    #[test]
    fn walks_double_their_runs_across_extents() {
        let mut runs = RunAhead::new(512);
        assert_eq!(walk(&mut runs, 100, 100 + 31), 5);
        let mut runs = RunAhead::new(512);
        assert!(walk(&mut runs, 0, 4096) <= 5 + 4096 / RUN_MAX);
    }

    #[test]
    fn walks_down_do_the_same() {
        let mut runs = RunAhead::new(512);
        assert_eq!(walk_down(&mut runs, 200, 200 - 31), 5);
        let mut runs = RunAhead::new(512);
        // The first sector of an extent may be fetched alone: a single sector is noted in its own.
        assert!(walk_down(&mut runs, 5000, 5000 - 4096) <= 6 + 4096 / RUN_MAX);
    }

    #[test]
    fn a_run_that_turns_starts_small() {
        let mut runs = RunAhead::new(512);
        walk(&mut runs, 100, 131);
        assert_eq!(runs.on_fault(114), Run { sectors: 1, down: false });
    }

    #[test]
    fn several_walks_at_a_time_are_told_apart() {
        for down in [false, true] {
            let mut runs = RunAhead::new(512);
            let mut places = [10_000u64, 20_000, 30_000];
            let faults = (0..60).map(|turn| {
                let at = &mut places[turn % 3];
                let count = fetch(&mut runs, *at);
                *at = if down { *at - count as u64 } else { *at + count as u64 };
                count
            });
            assert!(faults.skip(18).all(|count| count == RUN_MAX));
        }
    }

    #[test]
    fn random_faults_fetch_little_more_than_they_need() {
        let (mut runs, mut seed) = (RunAhead::new(512), 1u64);
        let fetched: usize = (0..100_000)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                fetch(&mut runs, (seed >> 33) % 100_000)
            })
            .sum();
        assert!(fetched < 106_000, "{fetched}");
    }

    #[test]
    fn where_walks_are_short_a_run_begins_later() {
        let mut runs = RunAhead::new(512);
        // Pairs of neighbours.
        let pairs = |runs: &mut RunAhead| -> usize {
            (0..200u64).map(|pair| fetch(runs, pair * 1000) + fetch(runs, pair * 1000 + 1)).sum()
        };
        pairs(&mut runs);
        // Another fault in the same extents shows that the runs ended.
        (0..200).for_each(|pair| _ = fetch(&mut runs, pair * 1000 + 200));
        assert!(pairs(&mut runs) < 410);
        // A long walk still doubles, and many of them are trusted again.
        assert!(walk(&mut runs, 500_000, 504_096) <= 12 + 4096 / RUN_MAX);
        assert_eq!(walk(&mut runs, 600_100, 600_131), 5);
    }

    #[test]
    fn a_walk_that_ends_starts_small_elsewhere() {
        let mut runs = RunAhead::new(512);
        walk(&mut runs, 0, 400);
        assert_eq!(runs.on_fault(300).sectors, 1);
    }
}
