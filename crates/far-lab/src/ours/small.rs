//! Blocks of extents in small mode: single sectors, or clusters of them. `core/small.rs` of the pager.

use hiroma_policy::Origin;
use hiroma_policy::clusters::{CLUSTER, Moves};
use hiroma_units::BlockId;

use super::{EXTENT, FAR, MAPPED, Ours};

pub(super) const CLUSTER_ORDER: u8 = CLUSTER.ilog2() as u8;

impl Ours<'_> {
    /// Whether sectors can form clusters.
    pub(super) fn has_clusters(&self) -> bool {
        self.options.fixed.is_none() && self.options.rules.clusters
    }

    /// The small block that contains `page`.
    pub(super) fn small_block(&self, page: u64) -> BlockId {
        let is_cluster = self.has_clusters() && self.whole[(page / CLUSTER) as usize];
        let order = if is_cluster { CLUSTER_ORDER } else { self.order };
        BlockId::new(page >> order << order, order)
    }

    fn cluster_of(page: u64) -> BlockId {
        BlockId::new(page / CLUSTER * CLUSTER, CLUSTER_ORDER)
    }

    fn cluster(&self, page: u64) -> Option<BlockId> {
        self.has_clusters().then(|| Self::cluster_of(page))
    }

    /// Whether nothing of the cluster that contains `page` is local, in any size.
    fn is_cluster_away(&self, page: u64) -> bool {
        let cluster = Self::cluster_of(page);
        let is_framed = || {
            self.blocks.contains_key(&cluster)
                || (0..CLUSTER)
                    .any(|at| self.blocks.contains_key(&BlockId::new(cluster.page() + at, 0)))
        };
        self.count(cluster, MAPPED) == 0
            && (self.extents[cluster.extent_no().0 as usize].in_frames == 0 || !is_framed())
    }

    /// Whether a small block may become local.
    pub(super) fn fits(&self, block: BlockId) -> bool {
        block == self.small_block(block.page())
            || self.has_clusters() && self.is_cluster_away(block.page())
    }

    /// A block becomes local: its cluster moves in this size from now on.
    pub(super) fn settle_size(&mut self, block: BlockId) {
        if block.is_huge() || block == self.small_block(block.page()) {
            return;
        }
        assert!(self.fits(block), "{block:?} overlaps a local block");
        self.whole[(block.page() / CLUSTER) as usize] = block.order() == CLUSTER_ORDER;
    }

    /// Chooses the block to be made local for a fault in an extent in small mode.
    pub(super) fn choose_small(&mut self, page: u64) -> BlockId {
        let block = self.small_block(page);
        let Some(cluster) = self.cluster(page) else { return block };
        let is_away = self.is_cluster_away(page);
        let is_fresh = self.flags[page as usize] & FAR == 0;
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
        let is_whole = is_worth && self.is_plain(cluster);
        let block = if is_whole { cluster } else { BlockId::new(page, 0) };
        self.settle_size(block);
        block
    }

    fn moves_whole(&mut self, page: u64, is_away: bool) -> bool {
        match self.clusters.on_fault(page, is_away, self.room) {
            Moves::Whole => true,
            Moves::Alone => false,
            Moves::AsSample => {
                let far = self.far_around(page, CLUSTER);
                self.clusters.open_sample(page, far as u8);
                false
            }
        }
    }

    /// Whether all of a block is mapped by the program.
    pub(super) fn is_plain(&self, block: BlockId) -> bool {
        self.trace.plain[Self::pages(block)].iter().all(|&plain| plain)
    }

    /// The block to be fetched for `page` together with those before it, of a run that reaches to
    /// `end`.
    pub(super) fn block_ahead(&self, page: u64, end: u64) -> BlockId {
        let is_whole = |cluster: &BlockId| {
            cluster.page() == page
                && page + CLUSTER <= end
                && self.is_cluster_away(page)
                && self.is_plain(*cluster)
        };
        self.cluster(page).filter(is_whole).unwrap_or_else(|| self.least_block(page))
    }

    /// The cluster around a sector, if what is far of it is worth fetching with the sector.
    pub(super) fn rest_of_cluster(&self, sector: BlockId) -> Option<BlockId> {
        let is_whole = sector.order() == 0 && self.clusters.moves_whole(sector.page());
        is_whole.then(|| self.cluster(sector.page())).flatten()
    }

    /// The block of the sector at `page`, or the larger one that is local.
    fn least_block(&self, page: u64) -> BlockId {
        let block = self.small_block(page);
        if block.order() != self.order && self.is_cluster_away(page) {
            BlockId::new(page, self.order)
        } else {
            block
        }
    }

    /// Whether a small block is in the store alone.
    pub(super) fn is_far(&self, block: BlockId) -> bool {
        !self.is_resident(block)
            && !self.blocks.contains_key(&block)
            && self.count(block, FAR) > 0
            && self.is_plain(block)
    }

    /// Which sectors of the aligned group of `size` around a far one are far, and can come one by one.
    pub(super) fn far_around(&self, sector: u64, size: u64) -> u16 {
        let start = sector / size * size;
        let is_far = |at: &u64| {
            let block = self.least_block(start + at);
            start + at == sector || block.order() == 0 && self.is_far(block)
        };
        (0..size).filter(is_far).fold(0, |far, at| far | 1 << at)
    }

    /// Fresh sectors from `first` on were mapped.
    pub(super) fn admit_fresh(&mut self, first: u64, count: u64, origin: Origin) {
        let (mut page, end) = (first, first + count);
        while page < end {
            let cluster = self.cluster(page).filter(|cluster| {
                cluster.page() == page && page + CLUSTER <= end && self.clusters.creates_whole(page)
            });
            let block = cluster.unwrap_or(BlockId::new(page, self.order));
            self.admit(block, origin);
            page += block.pages() as u64;
        }
    }

    /// A sector has been mapped. If that completes its cluster, or all that misses are zeros, and if
    /// it is worth moving as one block, it does from now on.
    pub(super) fn merge(&mut self, sector: BlockId) {
        let Some(cluster) = self.cluster(sector.page()).filter(|_| sector.order() == 0) else {
            return;
        };
        let page = sector.page();
        if self.whole[(page / CLUSTER) as usize]
            || !self.clusters.moves_whole(page)
            || self.clusters.is_sample(page)
        {
            return;
        }
        let sector_at = |at: u64| BlockId::new(cluster.page() + at, 0);
        let is_missing = |at: &u64| self.flags[(cluster.page() + at) as usize] & MAPPED == 0;
        let missing: Vec<u64> = (0..CLUSTER).filter(is_missing).collect();
        let is_zero = |&at: &u64| self.flags[(cluster.page() + at) as usize] & FAR == 0;
        let can = (0..CLUSTER).all(|at| !self.blocks.contains_key(&sector_at(at)))
            && missing.iter().all(is_zero);
        if !can
            || self.blocks.contains_key(&cluster)
            || !self.is_plain(cluster)
            || self.local() + missing.len() as u64 > self.room
        {
            return;
        }
        self.outcome.time_ns += self.costs.fresh_more_ns * missing.len() as u64;
        for at in missing {
            self.admit(sector_at(at), Origin::Fresh);
        }
        (0..CLUSTER).for_each(|at| self.set_resident(sector_at(at), false));
        self.admit(cluster, Origin::Demand);
    }

    /// Lets a resident extent continue in small mode: what of it is used, or not used, as a whole
    /// moves in clusters.
    pub(super) fn admit_pieces(&mut self, extent: BlockId) {
        let (mut page, end) = (extent.page(), extent.page() + EXTENT);
        while page < end {
            let cluster = self.cluster(page).filter(|&cluster| {
                let used = self.replacement.used_pages(cluster);
                self.clusters.moves_whole(page) && (used == 0 || used >= cluster.pages() / 2)
            });
            let block = cluster.unwrap_or(BlockId::new(page, self.order));
            self.admit(block, Origin::Demand);
            page += block.pages() as u64;
        }
    }

    /// The resident clusters of an extent move sector by sector from now on.
    pub(super) fn break_clusters(&mut self, number: usize) {
        let first = number as u64 * EXTENT;
        for page in (first..first + EXTENT).step_by(CLUSTER as usize) {
            let block = self.small_block(page);
            if block.order() == CLUSTER_ORDER && self.is_resident(block) {
                self.break_cluster(block);
            }
        }
    }

    /// The sectors of a resident cluster move one by one from now on.
    pub(super) fn break_cluster(&mut self, cluster: BlockId) {
        self.set_resident(cluster, false);
        for page in cluster.page()..cluster.page() + CLUSTER {
            self.admit(BlockId::new(page, 0), Origin::Demand);
        }
    }
}
