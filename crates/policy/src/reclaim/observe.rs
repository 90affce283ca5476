//! What is known about the machine at one time. Levels and counters are in pages of 4 KiB, as the
//! kernel reports them.

/// Orders of free blocks that the page allocator distinguishes: 0 (4 KiB) to 10 (4 MiB).
pub const ORDERS: usize = 11;

/// The order of a transparent huge page: 2 MiB.
pub const HUGE_ORDER: usize = 9;

/// One zone (`/proc/zoneinfo`, `/proc/buddyinfo`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Zone {
    /// All pages that the page allocator manages, free or not.
    pub managed_pages: u64,
    pub free_pages: u64,
    pub min_pages: u64,
    /// An allocation below it wakes kswapd.
    pub low_pages: u64,
    /// Above it, kswapd sleeps again.
    pub high_pages: u64,
    /// Pages that ordinary allocations must leave for those that can be served from this zone only
    /// (`lowmem_reserve`, "protection").
    pub reserve_pages: u64,
    /// Free blocks by order.
    pub free_blocks: [u64; ORDERS],
}

/// One node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    pub id: u32,
    pub zones: Vec<Zone>,
    /// File cache that was not used lately, and that was used lately (levels).
    pub inactive_file_pages: u64,
    pub active_file_pages: u64,
    /// Part of the file cache in blocks of 2 MiB (level; `nr_file_hugepages`).
    pub large_file_pages: u64,
    /// Parts of the file cache that are not written back yet, and under write-back (levels).
    pub dirty_pages: u64,
    pub writeback_pages: u64,
    /// Memory that reclaiming file cache does not free: anonymous, shared, the kernel's own
    /// (level).
    pub held_pages: u64,
    /// File pages that were reclaimed, by any caller (counter).
    pub stolen_file_pages: u64,
    /// File pages that were dropped behind streams on our request (counter).
    pub dropped_file_pages: u64,
    /// File pages that were refaulted so soon that they belonged to the working set:
    /// `workingset_activate_file` (counter). Plain refaults are not suitable: a file larger than
    /// memory that is read in a loop causes them without any harm.
    pub missed_file_pages: u64,
    /// Pages scanned by kswapd, and by allocating threads themselves (counters).
    pub kswapd_scanned_pages: u64,
    pub direct_scanned_pages: u64,
}

/// The machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Observation {
    pub nodes: Vec<Node>,
    /// Idle share since the last observation of the processors that reclaim may run on, in
    /// millionths.
    pub idle_ppm: u64,
    /// Time in which all threads that were not idle waited for memory (counter; "full" of
    /// `/proc/pressure/memory`). 0 if not known.
    pub stalled_ns: u64,
}

impl Zone {
    /// Pages above a watermark that ordinary allocations may take.
    fn above(&self, watermark: u64) -> u64 {
        self.free_pages.saturating_sub(watermark.saturating_add(self.reserve_pages))
    }

    /// Free pages in blocks of at least `order`.
    fn in_blocks(&self, order: usize) -> u64 {
        self.free_blocks
            .iter()
            .enumerate()
            .skip(order)
            .map(|(order, &blocks)| blocks.saturating_mul(1 << order))
            .fold(0, u64::saturating_add)
    }

    /// Pages above a watermark in blocks of at least `order`.
    fn above_in_blocks(&self, watermark: u64, order: usize) -> u64 {
        let above = self.above(watermark);
        // The counts of blocks were read at another time: where any block will do, the exact count
        // of pages is better.
        if order == 0 { above } else { above.min(self.in_blocks(order)) }
    }
}

impl Node {
    /// The zone that counts: the largest. Allocations begin there, and before the kernel goes on to
    /// a smaller one (which reserves much for others) it wakes kswapd: with 2.4 GiB free in
    /// `DMA32`, kswapd ran all the time (Linux 6.18).
    fn main_zone(&self) -> Option<&Zone> {
        self.zones.iter().max_by_key(|zone| zone.managed_pages)
    }

    /// Pages above the low watermark: when there are none left, kswapd wakes.
    pub fn above_low(&self) -> u64 {
        self.main_zone().map_or(0, |zone| zone.above(zone.low_pages))
    }

    /// Pages above the high watermark in blocks of at least `order`.
    pub fn above_high(&self, order: usize) -> u64 {
        self.main_zone().map_or(0, |zone| zone.above_in_blocks(zone.high_pages, order))
    }

    /// File cache, recently used or not.
    pub fn file_pages(&self) -> u64 {
        self.inactive_file_pages.saturating_add(self.active_file_pages)
    }

    /// Inactive file cache that can be dropped without write-back.
    pub fn clean_inactive_pages(&self) -> u64 {
        self.inactive_file_pages
            .saturating_sub(self.dirty_pages)
            .saturating_sub(self.writeback_pages)
    }
}
