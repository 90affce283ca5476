//! The kernel's swap device: a page that is swapped out is not in memory but still exists, and a
//! touch swaps it in without involving the pager.

use hiroma_sys::uffd::Stop;

use super::{State, tell};

impl State {
    /// The kernel needs memory: it swaps out adjacent pages. Pages that were freed lazily are
    /// dropped, not swapped.
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

    /// The reason why a page of the program does not move, if there is one.
    pub(super) fn keeps(&mut self, page: usize) -> Option<Stop> {
        match self.pages.get(page).copied().flatten()? {
            there if there.shared || there.in_huge => Some(Stop::Busy),
            there if there.swapped => self.swap_keeps(),
            _ => None,
        }
    }

    /// The reason why a swapped-out page does not move, if there is one: it is in the swap cache
    /// and locked, or it is part of a larger folio.
    pub(super) fn swap_keeps(&mut self) -> Option<Stop> {
        match self.random.below(12) {
            0 => Some(Stop::Again),
            1 => Some(Stop::Busy),
            _ => None,
        }
    }

    /// Whether a page of the staging area has been swapped out by the time it is moved.
    pub(super) fn is_swapped_in_staging(&mut self) -> bool {
        self.has_swap && self.random.one_in(4)
    }
}
