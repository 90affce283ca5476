//! What fork does to the state, for a model: a child's memory has the parent's tables.

use hiroma_policy::Origin;
use hiroma_units::{BlockId, ExtentNo};

use crate::core::Core;

impl Core {
    /// Copies the tables and the blocks in frames into `child`, which is empty.
    pub fn copy_to(&self, child: &mut Core) {
        for extent in 0..self.extents.len() {
            child.extents[extent] = self.extents[extent].clone();
        }
        self.frames.copy_to(&mut child.frames);
        child.addresses = self.addresses.clone();
        child.regions = self.regions.clone();
        child.blocks = self.blocks.clone();
        (child.probation, child.differing, child.clean) =
            (self.probation.clone(), self.differing.clone(), self.clean.clone());
        (child.drained, child.drain, child.departures) =
            (self.drained.clone(), self.drain.clone(), self.departures.clone());
        (child.clean_bytes, child.staged_bytes, child.resident_bytes) =
            (self.clean_bytes, self.staged_bytes, self.resident_bytes);
        (child.limit, child.room_of_test, child.wanted_bytes) =
            (self.limit, self.room_of_test, self.wanted_bytes);
        child.small_since_huge = self.small_since_huge;
        (child.prefetcher, child.granularity, child.staging) =
            (self.prefetcher.clone(), self.granularity.clone(), self.staging.clone());
        (child.sharing, child.duplication, child.copies) =
            (self.sharing.clone(), self.duplication.clone(), self.copies.clone());
        (child.fetch_queue, child.reclaim_queue) =
            (self.fetch_queue.clone(), self.reclaim_queue.clone());
        (child.runs, child.clusters) = (self.runs.clone(), self.clusters.clone());
        child.overlay = self.overlay.clone();
        child.is_mapped_over = self.is_mapped_over;
        (child.own_removals, child.coming, child.discarding) =
            (self.own_removals.clone(), self.coming.clone(), self.discarding.clone());
        (child.stuck, child.pending, child.in_flight) =
            (self.stuck, self.pending.clone(), self.in_flight);
        (child.evict_everything, child.forks_made, child.put_off) =
            (self.evict_everything, self.forks_made, self.put_off);
        (child.quiesce, child.forked, child.stamp, child.key) =
            (self.quiesce, self.forked, self.stamp, self.key.clone());
        (child.held, child.held_bytes) = (self.held.clone(), self.held_bytes);
        (child.extent_tables, child.far_sectors, child.resident_blocks) =
            (self.extent_tables, self.far_sectors, self.resident_blocks);
        self.admit_all(child);
    }

    /// A model does not depend on the order of eviction: the child's policy learns which blocks are
    /// resident, but not which were touched.
    fn admit_all(&self, child: &mut Core) {
        for extent in 0..self.extents.len() {
            let whole = BlockId::extent(ExtentNo(extent as u32));
            let mut at = 0;
            let small = std::iter::from_fn(|| self.next_small(extent, &mut at));
            for block in small.chain([whole]) {
                if self.is_resident(block) {
                    child.replacement.admitted(block, Origin::Demand);
                }
            }
        }
    }
}
