//! The memory of a simulated machine: where pages are, and what the kernel does when memory runs
//! short.

use hiroma_policy::reclaim::observe::HUGE_ORDER;
use hiroma_policy::reclaim::{Node, ORDERS, Zone, pages};

use super::{KSWAPD_PS, MachineConfig, MachineOutcome, STEP_NS};

/// The kernel spares active pages while inactive ones are at least this part of the cache.
const INACTIVE_PART: u64 = 16;
/// Pages that an allocating program reclaims at a time (`SWAP_CLUSTER_MAX`).
const DIRECT_PAGES: u64 = 32;
const LARGE_PAGES: u64 = 1 << HUGE_ORDER;

struct ZoneState {
    managed: u64,
    min: u64,
    low: u64,
    high: u64,
    reserve: u64,
    free: u64,
    /// Of the free pages, those in blocks of 2 MiB.
    free_large: u64,
    /// Of the used pages, those of files, and of these those in folios of 2 MiB.
    file: u64,
    file_large: u64,
}

pub(super) struct Memory {
    zones: Vec<ZoneState>,
    hot_wanted: u64,
    active: u64,
    inactive: u64,
    held: u64,
    stolen: u64,
    missed: u64,
    kswapd_scanned: u64,
    direct_scanned: u64,
    kswapd_awake: bool,
    /// Pages that kswapd still has to reclaim for a large block that was not available.
    kswapd_large: u64,
}

impl Memory {
    pub(super) fn new(config: &MachineConfig) -> Memory {
        let zones = config.zones.iter().map(|zone| ZoneState {
            managed: pages(zone.bytes),
            min: pages(zone.min_bytes),
            low: pages(zone.low_bytes),
            high: pages(zone.high_bytes),
            reserve: pages(zone.reserve_bytes),
            free: pages(zone.bytes),
            free_large: pages(zone.bytes) * config.large_free_permille / 1000,
            file: 0,
            file_large: 0,
        });
        let mut memory = Memory {
            zones: zones.collect(),
            hot_wanted: pages(config.hot_bytes),
            active: 0,
            inactive: 0,
            held: 0,
            stolen: 0,
            missed: 0,
            kswapd_scanned: 0,
            direct_scanned: 0,
            kswapd_awake: false,
            kswapd_large: 0,
        };
        let mut nothing = MachineOutcome::default();
        memory.allocate(pages(config.anon_bytes), &mut nothing);
        memory.fill(pages(config.cold_bytes), false, &mut nothing);
        let hot = memory.fill(memory.hot_wanted, false, &mut nothing);
        memory.inactive -= hot;
        memory.active = hot;
        memory
    }

    pub(super) fn free_pages(&self) -> u64 {
        self.zones.iter().map(|zone| zone.free).sum()
    }

    /// Adds `count` pages of files to the cache. Returns how many of them found room.
    pub(super) fn fill(&mut self, count: u64, large: bool, outcome: &mut MachineOutcome) -> u64 {
        let mut left = count;
        while left > 0 {
            let (took, in_block) = self.take(left, large, outcome);
            if took.is_empty() {
                break;
            }
            for (at, some) in took {
                self.zones[at].file += some;
                self.zones[at].file_large += if in_block { some } else { 0 };
                self.inactive += some;
                left -= some;
            }
        }
        count - left
    }

    /// Allocates `count` pages to programs. Returns how many were available.
    pub(super) fn allocate(&mut self, count: u64, outcome: &mut MachineOutcome) -> u64 {
        let mut left = count;
        while left > 0 {
            let (took, _) = self.take(left, false, outcome);
            if took.is_empty() {
                break;
            }
            left -= took.iter().map(|&(_, some)| some).sum::<u64>();
        }
        self.held += count - left;
        count - left
    }

    /// Takes up to `count` free pages as the page allocator does: above the low watermarks, and
    /// kswapd is woken when the first zone has no more; otherwise down to the min watermarks;
    /// otherwise the program reclaims directly. Also returns whether they came in blocks of 2 MiB.
    fn take(
        &mut self,
        count: u64,
        large: bool,
        outcome: &mut MachineOutcome,
    ) -> (Vec<(usize, u64)>, bool) {
        if large {
            let block = self.zones.iter().position(|zone| {
                zone.free_large >= LARGE_PAGES && zone.free > zone.low + zone.reserve
            });
            if let Some(at) = block {
                let zone = &mut self.zones[at];
                let some = count.min(zone.free_large).min(zone.free - zone.low - zone.reserve);
                zone.free -= some;
                zone.free_large -= some;
                return (vec![(at, some)], true);
            }
            if self.zones.iter().any(|zone| zone.free > zone.low + zone.reserve) {
                self.wake_kswapd(outcome, true);
            }
        }
        // The kernel does this before it continues with a smaller zone.
        if self.zones.first().is_some_and(|zone| zone.free <= zone.low + zone.reserve) {
            self.wake_kswapd(outcome, false);
        }
        if let Some(took) = self.take_above(count, |zone| zone.low) {
            return (vec![took], false);
        }
        if let Some(took) = self.take_above(count.min(DIRECT_PAGES), |zone| zone.min) {
            return (vec![took], false);
        }
        outcome.direct_reclaims += 1;
        self.direct_scanned += DIRECT_PAGES;
        if self.reclaim(DIRECT_PAGES, outcome) == 0 {
            outcome.out_of_memory += 1;
            return (Vec::new(), false);
        }
        (self.take_above(count.min(DIRECT_PAGES), |zone| zone.min).into_iter().collect(), false)
    }

    fn take_above(
        &mut self,
        count: u64,
        watermark: impl Fn(&ZoneState) -> u64,
    ) -> Option<(usize, u64)> {
        let at = self.zones.iter().position(|zone| zone.free > watermark(zone) + zone.reserve)?;
        let zone = &mut self.zones[at];
        let some = count.min(zone.free - watermark(zone) - zone.reserve);
        zone.free -= some;
        zone.free_large = zone.free_large.min(zone.free);
        Some((at, some))
    }

    fn wake_kswapd(&mut self, outcome: &mut MachineOutcome, for_large: bool) {
        if for_large && self.kswapd_large == 0 {
            self.kswapd_large = LARGE_PAGES * 8;
        }
        if !self.kswapd_awake {
            self.kswapd_awake = true;
            outcome.kswapd_wakes += 1;
            outcome.kswapd_wakes_large += u64::from(for_large);
        }
    }

    /// Runs kswapd for one step: until the first zone is above its high watermark, and it has
    /// reclaimed for the missing large block.
    pub(super) fn run_kswapd(&mut self, outcome: &mut MachineOutcome) {
        if !self.kswapd_awake {
            return;
        }
        let some = self.reclaim(STEP_NS * 1000 / KSWAPD_PS, outcome);
        self.kswapd_scanned += some.max(1);
        self.kswapd_large = self.kswapd_large.saturating_sub(some);
        outcome.kswapd_ns += STEP_NS;
        let balanced = self.zones.first().is_some_and(|zone| zone.free > zone.high + zone.reserve);
        if balanced && self.kswapd_large == 0 || some == 0 {
            self.kswapd_awake = false;
            self.kswapd_large = 0;
        }
    }

    /// Reclaims up to `count` pages of files, inactive ones first.
    pub(super) fn reclaim(&mut self, count: u64, outcome: &mut MachineOutcome) -> u64 {
        let spared = self.active / INACTIVE_PART;
        let from_inactive = count.min(self.inactive.saturating_sub(spared));
        let from_active = (count - from_inactive).min(self.active);
        self.inactive -= from_inactive;
        self.active -= from_active;
        outcome.hot_missed_pages += from_active;
        self.stolen += from_inactive + from_active;
        self.give_back(from_inactive + from_active);
        from_inactive + from_active
    }

    /// Drops files, as their owner does.
    pub(super) fn drop_cold(&mut self, count: u64) {
        let count = count.min(self.inactive);
        self.inactive -= count;
        self.give_back(count);
    }

    /// Frees file pages, from every zone in proportion to its file pages.
    fn give_back(&mut self, count: u64) {
        let whole: u64 = self.zones.iter().map(|zone| zone.file).sum();
        let mut left = count.min(whole);
        let last = self.zones.len() - 1;
        for at in 0..=last {
            let zone = &mut self.zones[at];
            let share = (u128::from(count) * u128::from(zone.file))
                .div_ceil(u128::from(whole.max(1))) as u64;
            let some = share.min(left).min(zone.file);
            let large = (u128::from(some) * u128::from(zone.file_large))
                .checked_div(u128::from(zone.file))
                .unwrap_or(0) as u64;
            zone.file -= some;
            zone.file_large -= large;
            zone.free += some;
            zone.free_large += large;
            left -= some;
        }
    }

    /// Joins up to `count` free pages into large blocks. Returns false if none are left to join.
    pub(super) fn compact(&mut self, count: u64) -> bool {
        let mut left = count;
        for zone in &mut self.zones {
            let some = left.min(zone.free - zone.free_large);
            zone.free_large += some;
            left -= some;
        }
        left == 0
    }

    /// Files in use are read repeatedly: lost pages are read back immediately.
    pub(super) fn reread_hot(&mut self, outcome: &mut MachineOutcome) {
        let lost = self.hot_wanted.saturating_sub(self.active);
        let back = self.fill(lost, false, outcome);
        self.inactive -= back.min(self.inactive);
        self.active += back;
        self.missed += back;
    }

    /// What the daemon observes.
    pub(super) fn look(&self) -> Node {
        let zones = self.zones.iter().map(|zone| {
            let mut free_blocks = [0; ORDERS];
            free_blocks[HUGE_ORDER] = zone.free_large / LARGE_PAGES;
            free_blocks[0] = zone.free - free_blocks[HUGE_ORDER] * LARGE_PAGES;
            Zone {
                managed_pages: zone.managed,
                free_pages: zone.free,
                min_pages: zone.min,
                low_pages: zone.low,
                high_pages: zone.high,
                reserve_pages: zone.reserve,
                free_blocks,
            }
        });
        Node {
            id: 0,
            zones: zones.collect(),
            inactive_file_pages: self.inactive,
            active_file_pages: self.active,
            large_file_pages: self.zones.iter().map(|zone| zone.file_large).sum(),
            dirty_pages: 0,
            writeback_pages: 0,
            held_pages: self.held,
            stolen_file_pages: self.stolen,
            dropped_file_pages: 0,
            missed_file_pages: self.missed,
            kswapd_scanned_pages: self.kswapd_scanned,
            direct_scanned_pages: self.direct_scanned,
        }
    }
}
