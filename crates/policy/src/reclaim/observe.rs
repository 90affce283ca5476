//! What is known of the machine at one time. Levels and counters in pages of 4 KiB, as the kernel
//! shows them.

/// Orders of free blocks that the page allocator keeps apart: 0 (4 KiB) to 10 (4 MiB).
pub const ORDERS: usize = 11;

/// The order of a transparent huge page: 2 MiB.
pub const HUGE_ORDER: usize = 9;

/// One zone (`/proc/zoneinfo`, `/proc/buddyinfo`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Zone {
    /// All that the page allocator has in it, free or not.
    pub managed_pages: u64,
    pub free_pages: u64,
    pub min_pages: u64,
    /// Below it, an allocation wakes kswapd.
    pub low_pages: u64,
    /// kswapd sleeps again above it.
    pub high_pages: u64,
    /// What ordinary allocations must leave for those that can be served from this zone only
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
    /// File cache that was not used lately, and that was (levels).
    pub inactive_file_pages: u64,
    pub active_file_pages: u64,
    /// Of the file cache, what lies in blocks of 2 MiB (level; `nr_file_hugepages`).
    pub large_file_pages: u64,
    /// Of the file cache, what is not on its device yet, and what is on its way (levels).
    pub dirty_pages: u64,
    pub writeback_pages: u64,
    /// Memory that giving back file cache is no answer to: anonymous, shared, the kernel's own
    /// (level).
    pub held_pages: u64,
    /// File pages that reclaim took, whoever called it (counter).
    pub stolen_file_pages: u64,
    /// File pages that were dropped behind streams on our request (counter).
    pub dropped_file_pages: u64,
    /// File pages that came back so soon that they belonged to the working set:
    /// `workingset_activate_file` (counter). The plain refaults would not do: a file larger than
    /// memory that is read in a loop makes them without any harm.
    pub missed_file_pages: u64,
    /// Pages that kswapd and that allocating threads themselves looked at (counters).
    pub kswapd_scanned_pages: u64,
    pub direct_scanned_pages: u64,
}

/// The machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Observation {
    pub nodes: Vec<Node>,
    /// How much of the processors that reclaim may run on was idle since the last observation, in
    /// millionths.
    pub idle_ppm: u64,
    /// Time in which all threads that were not idle waited for memory (counter; "full" of
    /// `/proc/pressure/memory`). 0 where it is not known.
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

    /// Of the pages above a watermark, those in blocks of at least `order`.
    fn above_in_blocks(&self, watermark: u64, order: usize) -> u64 {
        let above = self.above(watermark);
        // The counts of blocks were read at another moment: where any block does, the exact count
        // of pages is the better one.
        if order == 0 { above } else { above.min(self.in_blocks(order)) }
    }
}

impl Node {
    /// The zone that counts: the largest. Allocations begin there, and before they go on to a
    /// smaller one (which keeps much for others) the kernel wakes kswapd: with 2.4 GiB free in
    /// `DMA32` it was at work all the time (Linux 6.18).
    fn main_zone(&self) -> Option<&Zone> {
        self.zones.iter().max_by_key(|zone| zone.managed_pages)
    }

    /// Pages above the low watermark: when there are none any more, kswapd wakes.
    pub fn above_low(&self) -> u64 {
        self.main_zone().map_or(0, |zone| zone.above(zone.low_pages))
    }

    /// Pages above the high watermark in blocks of at least `order`.
    pub fn above_high(&self, order: usize) -> u64 {
        self.main_zone().map_or(0, |zone| zone.above_in_blocks(zone.high_pages, order))
    }

    /// File cache, used lately or not.
    pub fn file_pages(&self) -> u64 {
        self.inactive_file_pages.saturating_add(self.active_file_pages)
    }

    /// Inactive file cache that can be dropped without writing.
    pub fn clean_inactive_pages(&self) -> u64 {
        self.inactive_file_pages
            .saturating_sub(self.dirty_pages)
            .saturating_sub(self.writeback_pages)
    }
}
