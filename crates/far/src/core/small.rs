//! Blocks of extents in small mode: single sectors, or clusters of them.
//!
//! While any sector of a cluster is local, all of it moves in the same size. The size is chosen
//! anew for the first fault after that. Far copies belong to sectors, whatever size they had when
//! they left.

use hiroma_policy::Origin;
use hiroma_policy::clusters::{CLUSTER, Moves};
use hiroma_units::{BlockId, PAGE, PAGES_PER_EXTENT};

use super::Core;
use crate::extent::{CLUSTER_BITS, CLUSTER_ORDER, Copy, flag};
use crate::mover::PutIn;

impl Core {
    /// Whether sectors can form clusters.
    fn has_clusters(&self) -> bool {
        self.fixed.is_none() && self.sector_order == 0
    }

    /// The small block that contains `page` of the arena.
    pub fn small_block(&self, page: u64) -> BlockId {
        let number = (page / PAGES_PER_EXTENT as u64) as usize;
        let sector = (page % PAGES_PER_EXTENT as u64) as usize >> self.sector_order;
        let is_cluster = self.has_clusters() && self.extents[number].is_cluster(sector);
        let order = if is_cluster { CLUSTER_ORDER } else { self.sector_order };
        BlockId::new(page >> order << order, order)
    }

    /// The cluster that contains `page` of the arena, as one block.
    fn cluster(&self, page: u64) -> Option<BlockId> {
        let block = BlockId::new(page >> CLUSTER_ORDER << CLUSTER_ORDER, CLUSTER_ORDER);
        self.has_clusters().then_some(block)
    }

    /// Whether nothing of the cluster that contains `page` is local, in any size.
    pub fn is_cluster_away(&self, page: u64) -> bool {
        let cluster = BlockId::new(page >> CLUSTER_ORDER << CLUSTER_ORDER, CLUSTER_ORDER);
        let extent = self.extent(cluster);
        let is_framed = || {
            self.blocks.contains_key(&cluster)
                || (0..cluster.pages() as u64)
                    .any(|at| self.blocks.contains_key(&BlockId::new(cluster.page() + at, 0)))
        };
        extent.resident_in_cluster(cluster.page_in_extent()) == 0
            && (extent.in_frames == 0 || !is_framed())
    }

    /// Whether a small block may become local: it has the size in which its cluster moves now, or
    /// nothing of its cluster is local.
    pub fn fits(&self, block: BlockId) -> bool {
        block == self.small_block(block.page())
            || self.has_clusters() && self.is_cluster_away(block.page())
    }

    /// A block becomes local: its cluster moves in this size from now on.
    pub fn settle_size(&mut self, block: BlockId) {
        if block.is_huge() || block == self.small_block(block.page()) {
            return;
        }
        // Two blocks with a sector in common would each have a copy of it, with different content.
        assert!(self.fits(block), "{block:?} overlaps a local block");
        let extent = self.extent_mut(block);
        let tables = extent.table_bytes();
        extent.set_cluster(block.page_in_extent(), block.order() == CLUSTER_ORDER);
        self.extent_tables = self.extent_tables + self.extent(block).table_bytes() - tables;
    }

    /// Chooses the block to be made local for a fault in an extent in small mode.
    pub fn choose_small(&mut self, page: u64, known: bool) -> BlockId {
        let block = self.small_block(page);
        let Some(cluster) = self.cluster(page) else { return self.least_block(page) };
        let is_away = self.is_cluster_away(page);
        if is_away && self.is_broken(cluster.extent_no().0 as usize) {
            let block = self.least_block(page);
            self.settle_size(block);
            return block;
        }
        if known && (!is_away || block == cluster) {
            // A retried fault keeps the size that it was given.
            return block;
        }
        let is_fresh = self.extent(cluster).copy(page as usize % PAGES_PER_EXTENT) == Copy::None;
        if is_fresh && !self.is_resident(block) {
            self.clusters.on_fresh_fault(page);
        }
        let is_worth = if is_fresh {
            is_away && self.clusters.creates_whole(page)
        } else {
            self.moves_whole(page, is_away)
        };
        if !is_away {
            return block;
        }
        let is_whole = is_worth && self.is_plain_block(cluster);
        let block = if is_whole { cluster } else { BlockId::new(page, 0) };
        self.settle_size(block);
        block
    }

    /// Whether a fault on a far sector moves all of its cluster; it may where that `is_away`.
    fn moves_whole(&mut self, page: u64, is_away: bool) -> bool {
        match self.clusters.on_fault(page, is_away, (self.room() / PAGE) as u64) {
            Moves::Whole => true,
            Moves::Alone => false,
            Moves::AsSample => {
                let far = self.far_around(page, CLUSTER);
                self.clusters.open_sample(page, far as u8);
                false
            }
        }
    }

    /// Whether some of what is far of an extent could not be read when it was fetched together.
    pub fn is_broken(&self, extent: usize) -> bool {
        self.extents[extent].has(flag::BROKEN)
    }

    /// Whether all of a block is mapped, and plain memory.
    pub fn is_plain_block(&self, block: BlockId) -> bool {
        self.addresses.is_plain(self.addr(block), self.addr(block) + block.bytes())
    }

    /// The small block that contains a sector of an extent.
    pub fn small_at(&self, extent: usize, sector: usize) -> BlockId {
        let first = (extent * PAGES_PER_EXTENT) as u64;
        self.small_block(first + ((sector as u64) << self.sector_order))
    }

    /// The block to be fetched for `page` together with those before it, of a run that reaches to
    /// `end`.
    pub fn block_ahead(&self, page: u64, end: u64) -> BlockId {
        let is_whole = |cluster: &BlockId| {
            cluster.page() == page
                && page + cluster.pages() as u64 <= end
                && self.is_cluster_away(page)
                && self.is_plain_block(*cluster)
                && !self.is_broken(cluster.extent_no().0 as usize)
        };
        self.cluster(page).filter(is_whole).unwrap_or_else(|| self.least_block(page))
    }

    /// The cluster around a sector, if what is far of it is worth fetching with the sector.
    pub fn rest_of_cluster(&self, sector: BlockId) -> Option<BlockId> {
        let is_whole = sector.order() == 0 && self.clusters.moves_whole(sector.page());
        is_whole.then(|| self.cluster(sector.page())).flatten()
    }

    /// The small block of an extent at `sector`, which becomes the first one behind it.
    pub fn next_small(&self, extent: usize, sector: &mut usize) -> Option<BlockId> {
        let block = (*sector < self.sectors()).then(|| self.small_at(extent, *sector))?;
        *sector += self.sector_range(block).1;
        Some(block)
    }

    /// Fresh sectors from `first` on were mapped.
    pub fn admit_fresh(&mut self, first: BlockId, count: usize, origin: Origin) {
        let end = first.page() + (count * first.pages()) as u64;
        let mut page = first.page();
        while page < end {
            let cluster = self.cluster(page).filter(|cluster| {
                cluster.page() == page
                    && page + cluster.pages() as u64 <= end
                    && self.clusters.creates_whole(page)
            });
            let block = cluster.unwrap_or(BlockId::new(page, first.order()));
            self.admit(block, origin);
            page += block.pages() as u64;
        }
    }

    /// The block of the sector at `page`, or the larger one that is local.
    pub fn least_block(&self, page: u64) -> BlockId {
        let block = self.small_block(page);
        if block.order() != self.sector_order && self.is_cluster_away(page) {
            BlockId::new(page, self.sector_order)
        } else {
            block
        }
    }

    /// A sector has been mapped. If that completes its cluster, or all that misses are zeros, and if
    /// it is worth moving as one block, it does from now on.
    pub fn merge(&mut self, sector: BlockId) {
        let Some(cluster) = self.cluster(sector.page()).filter(|_| sector.order() == 0) else {
            return;
        };
        let first = cluster.page_in_extent();
        if self.extent(cluster).is_cluster(first)
            || !self.clusters.moves_whole(sector.page())
            || self.clusters.is_sample(sector.page())
        {
            return;
        }
        let missing = !self.extent(cluster).resident_in_cluster(first) & CLUSTER_BITS;
        let sector_at = |at: usize| BlockId::new(cluster.page() + at as u64, 0);
        let is_zero = |at: usize| self.extent(cluster).copy(first + at) == Copy::None;
        let can = (0..cluster.pages()).all(|at| {
            !self.blocks.contains_key(&sector_at(at)) && (missing >> at & 1 == 0 || is_zero(at))
        });
        let bytes = missing.count_ones() as usize * sector.bytes();
        if !can
            || self.blocks.contains_key(&cluster)
            || !self.is_plain_block(cluster)
            || !self.has_room_for(bytes)
        {
            return;
        }
        for at in (0..cluster.pages()).filter(|at| missing >> at & 1 == 1) {
            match self.put_zeros(self.addr(sector_at(at)), sector.bytes()) {
                PutIn::Done => self.admit(sector_at(at), Origin::Fresh),
                PutIn::Gone => return,
            }
        }
        for at in 0..cluster.pages() {
            self.set_resident(sector_at(at), false);
        }
        self.admit(cluster, Origin::Demand);
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.local() + bytes <= self.room()
    }

    /// Lets a resident extent continue in small mode: what of it is used, or not used, as a whole
    /// moves in clusters.
    pub fn admit_pieces(&mut self, extent: BlockId) {
        let (mut page, end) = (extent.page(), extent.page() + extent.pages() as u64);
        while page < end {
            let cluster = self.cluster(page).filter(|&cluster| {
                let used = self.replacement.used_pages(cluster);
                self.clusters.moves_whole(page) && (used == 0 || used >= cluster.pages() / 2)
            });
            let block = cluster.unwrap_or(BlockId::new(page, self.sector_order));
            self.admit(block, Origin::Demand);
            page += block.pages() as u64;
        }
    }

    /// The resident clusters of an extent whose sectors are to move one by one do so, except those
    /// that the evictor is still reading.
    pub fn break_clusters(&mut self, extent: usize) {
        let mut at = 0;
        while let Some(block) = self.next_small(extent, &mut at) {
            if block.order() != self.sector_order
                && self.is_resident(block)
                && !self.blocks.contains_key(&block)
            {
                self.break_cluster(block);
            }
        }
    }

    /// A resident cluster that can no longer move as one block, or should not: its sectors move one
    /// by one.
    pub fn break_cluster(&mut self, cluster: BlockId) {
        self.set_resident(cluster, false);
        for page in cluster.page()..cluster.page() + cluster.pages() as u64 {
            self.admit(BlockId::new(page, 0), Origin::Demand);
        }
    }
}
