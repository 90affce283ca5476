//! What a fault fetches beside the block that it needs: `fetch_beside` in `fault.rs` of the pager.

use hiroma_policy::neighbours::GROUP;
use hiroma_policy::run_ahead::Run;
use hiroma_units::BlockId;

use crate::costs::Reason;

use super::{EXTENT, Ours};

/// Blocks at `at..end`, at most `most` pages with the faulted block.
struct Beside {
    at: u64,
    end: u64,
    most: u64,
    reason: Reason,
}

impl Ours<'_> {
    /// Begins to fetch the blocks behind a faulted one, where faults follow each other in order, or
    /// those beside it in its cluster or group. They take their room now.
    pub(super) fn begin_beside(&mut self, block: BlockId) -> (Vec<BlockId>, Reason) {
        let mut begun = Vec::new();
        if self.options.fixed.is_some() || block.is_huge() {
            return (begun, Reason::Block);
        }
        let first = block.page();
        let alone = Run { sectors: 1, down: false };
        let run = if self.options.rules.runs { self.runs.on_fault(first) } else { alone };
        let room = self.reserve().max(0) as u64 / 2;
        let Beside { mut at, end, most, reason } = self.choose_beside(block, run);
        let most = most.min(room);
        let pages = block.pages() as u64;
        let (mut count, mut start, mut last) = (pages, first, first + pages);
        while at < end && count < most {
            let next = self.block_ahead(at, end);
            at = next.page() + next.pages() as u64;
            if !self.is_far(next) || !self.fits(next) {
                continue;
            }
            self.note_size(next);
            if !self.make_room(next.pages() as u64) {
                break;
            }
            self.enter(next, true);
            begun.push(next);
            (start, last) = (start.min(next.page()), last.max(at));
            count += next.pages() as u64;
        }
        if self.options.rules.runs {
            self.runs.fetched(start, last, count as usize, run.down);
        }
        (begun, reason)
    }

    fn choose_beside(&mut self, block: BlockId, run: Run) -> Beside {
        let Run { sectors: wanted, down } = run;
        let first = block.page();
        let nothing = Beside { at: first, end: first, most: 0, reason: Reason::Block };
        if wanted > 1 {
            self.neighbours.forget(first);
            self.clusters.forget_sample(first);
            let (wanted, extent_start) = (wanted as u64, first / EXTENT * EXTENT);
            let (at, end) = if down {
                ((first + 1).saturating_sub(wanted).max(extent_start), first)
            } else {
                (first + block.pages() as u64, (first + 2 * wanted).min(extent_start + EXTENT))
            };
            Beside { at, end, most: wanted, reason: Reason::Run }
        } else if self.clusters.is_sample(first) {
            nothing
        } else if let Some(cluster) = self.rest_of_cluster(block) {
            let pages = cluster.pages() as u64;
            let end = cluster.page() + pages;
            Beside { at: cluster.page(), end, most: pages, reason: Reason::Cluster }
        } else if block.order() == 0 && self.options.rules.groups {
            let group = first / GROUP * GROUP;
            match self.neighbours.on_fault(first, self.room) {
                Some(used) => Beside {
                    at: group + used.start,
                    end: group + used.end,
                    most: GROUP,
                    reason: Reason::Group,
                },
                None => {
                    let far = self.far_around(first, GROUP);
                    self.neighbours.open(first, far);
                    nothing
                }
            }
        } else {
            nothing
        }
    }
}
