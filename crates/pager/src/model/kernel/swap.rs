//! The kernel's swap device: what it takes is not in memory and there all the same, and comes back
//! on a touch that nobody is asked about.

use hiroma_kernel::uffd::Stop;

use super::{State, tell};

impl State {
    /// The kernel needs memory: pages that lie together leave it. What was freed lazily is dropped,
    /// not swapped.
    pub(super) fn swap_out(&mut self) {
        let place = self.random.below(self.used.len());
        let count = 1 + self.random.below(24);
        for at in place..(place + count).min(self.used.len()) {
            let page = self.used[at];
            if let Some(there) =
                self.pages[page].as_mut().filter(|there| !there.lazy && there.busy == 0)
            {
                there.swapped = true;
                tell(page, "swapped out");
            }
        }
    }

    /// Why a page of the program does not move, if it does not.
    pub(super) fn keeps(&mut self, page: usize) -> Option<Stop> {
        match self.pages.get(page).copied().flatten()? {
            there if there.shared || there.in_huge => Some(Stop::Busy),
            there if there.swapped => self.swap_keeps(),
            _ => None,
        }
    }

    /// Why a page that was swapped out does not move, if it does not: it is in the swap cache,
    /// where somebody has it locked, or it is part of a larger folio.
    pub(super) fn swap_keeps(&mut self) -> Option<Stop> {
        match self.random.below(12) {
            0 => Some(Stop::Again),
            1 => Some(Stop::Busy),
            _ => None,
        }
    }

    /// Whether a page of the staging area was swapped out by the time at which it moves.
    pub(super) fn is_swapped_in_staging(&mut self) -> bool {
        self.has_swap && self.random.one_in(4)
    }
}
