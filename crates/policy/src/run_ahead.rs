//! How many sectors one fault fetches, in extents that move sector by sector.
//!
//! A fault costs several times as much as a sector that comes with another, but a sector that nobody
//! needs takes the place of one that somebody does. So a fault fetches one sector, and one that
//! continues where the last one in its extent ended fetches twice as many as that. What is fetched
//! in vain is at most as much as was used before it. Faults at random hit the place where the last
//! one ended once in hundreds.

/// Most sectors that one fault fetches.
pub const RUN_MAX: usize = 32;
/// Sectors between the end of a run and the fault that still continues it: those may be resident.
const GAP_MAX: u64 = 8;
/// Extents with faults at about the same time that are told apart.
const SLOTS: usize = 512;

/// Where the last run in an extent ended, and its length.
#[derive(Clone, Copy, Debug)]
struct Slot {
    next: u64,
    sectors: u32,
}

/// The runs of all extents. See the module's head.
#[derive(Clone, Debug)]
pub struct RunAhead {
    slots: Vec<Slot>,
    sectors_per_extent: u64,
}

impl RunAhead {
    /// For extents of so many sectors.
    pub fn new(sectors_per_extent: u64) -> RunAhead {
        let slots = vec![Slot { next: u64::MAX, sectors: 0 }; SLOTS];
        RunAhead { slots, sectors_per_extent: sectors_per_extent.max(1) }
    }

    fn slot(&mut self, sector: u64) -> &mut Slot {
        &mut self.slots[(sector / self.sectors_per_extent) as usize % SLOTS]
    }

    /// A fault on a far sector, numbered through all extents. Returns how many sectors to fetch,
    /// with this one.
    pub fn on_fault(&mut self, sector: u64) -> usize {
        let Slot { next, sectors } = *self.slot(sector);
        let continues = sector >= next && sector - next <= GAP_MAX;
        if continues { (sectors as usize * 2).clamp(1, RUN_MAX) } else { 1 }
    }

    /// That fault fetched `sectors` sectors, the last of them right before `next`.
    pub fn fetched(&mut self, next: u64, sectors: usize) {
        // A run that ends with its extent continues in the one behind it.
        *self.slot(next) = Slot { next, sectors: sectors as u32 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults until `end`, where all of what is fetched is used. Returns the number of faults.
    fn walk(runs: &mut RunAhead, start: u64, end: u64) -> usize {
        let (mut at, mut faults) = (start, 0);
        while at < end {
            let count = runs.on_fault(at);
            at += count as u64;
            runs.fetched(at, count);
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
    fn several_walks_at_a_time_are_told_apart() {
        let mut runs = RunAhead::new(512);
        let mut places = [10_000u64, 20_000, 30_000];
        let faults = (0..60).map(|turn| {
            let at = &mut places[turn % 3];
            let count = runs.on_fault(*at);
            *at += count as u64;
            runs.fetched(*at, count);
            count
        });
        assert!(faults.skip(18).all(|count| count == RUN_MAX));
    }

    #[test]
    fn random_faults_fetch_little_more_than_they_need() {
        let (mut runs, mut seed) = (RunAhead::new(512), 1u64);
        let fetched: usize = (0..100_000)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let sector = (seed >> 33) % 100_000;
                let count = runs.on_fault(sector);
                runs.fetched(sector + count as u64, count);
                count
            })
            .sum();
        assert!(fetched < 104_000, "{fetched}");
    }

    #[test]
    fn a_walk_that_ends_starts_small_elsewhere() {
        let mut runs = RunAhead::new(512);
        walk(&mut runs, 0, 400);
        assert_eq!(runs.on_fault(300), 1);
    }
}
