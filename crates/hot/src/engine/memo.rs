//! What is remembered about ranges apart from their heat, and how much of the budget they take.

use hiroma_units::EXTENT;

use super::Engine;
use crate::bits;
use crate::machine;

/// A range whose collapse the kernel refused this often is left alone until one refusal is
/// forgotten.
const REFUSALS_MAX: u8 = 3;
/// It is left alone as long as it is mapped.
const REFUSED_FOR_GOOD: u8 = u8::MAX;
/// One refusal of each range is forgotten after this time: reasons pass.
const FORGET_NS: u64 = 600_000_000_000;
/// With fewer free huge pages on the machine, cold ranges are split although that frees no memory.
const SCARCE_HUGE_PAGES: u64 = 64;
/// With room for fewer ranges the budget is what limits huge pages; with more it is as if there
/// were none.
const ROOM_RANGES: u64 = 64;

/// What is remembered about a range apart from its heat.
#[derive(Clone, Copy, Default)]
pub(super) struct Memo {
    /// We made it huge.
    pub(super) ours: bool,
    /// How often the kernel refused to make it huge.
    refusals: u8,
    /// Checks in a row that found it cold while huge.
    pub(super) cold_checks: u8,
    /// It was split to check its pages.
    pub(super) checked: bool,
    /// It was touched when it was last watched as a huge page.
    pub(super) in_use: bool,
    /// Pages that collapsing has added to the process's memory and that were not seen to be freed
    /// again.
    pub(super) added_pages: u16,
    /// It was split for a trial.
    pub(super) is_split: bool,
    /// Pages that it lacked right after that.
    pub(super) lacked: u16,
    /// Surveys for which it is left out because other processes map pages of it.
    pub(super) shared: u8,
}

impl Memo {
    /// Whether a collapse may be tried.
    pub(super) fn is_open(&self) -> bool {
        self.refusals < REFUSALS_MAX && self.shared == 0
    }

    /// The kernel refused to make it huge.
    pub(super) fn refuse(&mut self) {
        if self.refusals < REFUSALS_MAX {
            self.refusals += 1;
        }
    }

    /// Once it is on small pages, it is not made huge again.
    pub(super) fn refuse_for_good(&mut self) {
        self.refusals = REFUSED_FOR_GOOD;
    }

    fn forget_refusal(&mut self) {
        if self.refusals <= REFUSALS_MAX {
            self.refusals = self.refusals.saturating_sub(1);
        }
    }

    /// It was split to check its pages; what is known of its collapses stays.
    pub(super) fn was_checked(&self) -> Memo {
        let Memo { added_pages, refusals, .. } = *self;
        Memo { checked: true, added_pages, refusals, ..Memo::default() }
    }

    /// It is on small pages, although nobody here has split it.
    fn is_small(&mut self) {
        // A trial knows what it has split.
        if self.ours && !self.is_split {
            (self.ours, self.in_use, self.cold_checks, self.checked) = (false, false, 0, false);
        }
    }
}

impl Engine {
    /// Ranges that we made huge and that still are.
    pub(super) fn huge_ranges(&self) -> u64 {
        self.memos.values().filter(|memo| memo.ours).count() as u64
    }

    /// Whether the budget limits huge pages now, or soon will.
    pub(super) fn is_tight(&self) -> bool {
        self.exceeds_budget(self.wanted_ranges + ROOM_RANGES)
    }

    /// Whether the budget has no room for another range.
    pub(super) fn is_budget_used(&self) -> bool {
        self.exceeds_budget(1)
    }

    /// Whether what is huge and `more` ranges exceed the budget. Nothing is counted without one.
    fn exceeds_budget(&self, more: u64) -> bool {
        let budget_bytes = self.options.settings.budget_bytes;
        budget_bytes != u64::MAX
            && (self.huge_ranges() + more).saturating_mul(EXTENT as u64) > budget_bytes
    }

    /// Whether a huge page that is not needed is missing elsewhere.
    pub(super) fn is_scarce(&self) -> bool {
        self.is_tight() || machine::free_huge_pages() < SCARCE_HUGE_PAGES
    }

    /// Ranges of ours that the last window showed on small pages: the process has freed pages of
    /// them, or the kernel has split them. They are judged like others again.
    pub(super) fn note_small(&mut self) {
        if self.options.dry_run || !self.tracker.tells_pages_apart() {
            return;
        }
        // A range that changes while it is read looks empty.
        let known = |view: &&crate::tracker::RangeView| !bits::is_empty(&view.present);
        for view in self.views.iter().filter(known).filter(|view| !view.huge) {
            if let Some(memo) = self.memos.get_mut(&view.range) {
                memo.is_small();
            }
        }
    }

    /// The same for ranges in which nothing is mapped: those that are not among the pass's.
    pub(super) fn note_freed(&mut self) {
        if self.options.dry_run || !self.tracker.tells_pages_apart() {
            return;
        }
        for (range, memo) in self.memos.iter_mut().filter(|(_, memo)| memo.ours) {
            if self.pass.ranges.binary_search(range).is_err() {
                memo.is_small();
            }
        }
    }

    /// Forgets a refusal of each range, if it is time.
    pub(super) fn forget_refusals(&mut self, now_ns: u64) {
        if now_ns >= self.accounts.forget_at_ns {
            self.accounts.forget_at_ns = now_ns.saturating_add(FORGET_NS);
            self.memos.values_mut().for_each(Memo::forget_refusal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_pass_unless_they_are_for_good() {
        let mut memo = Memo::default();
        (0..5).for_each(|_| memo.refuse());
        assert!(!memo.is_open());
        memo.forget_refusal();
        assert!(memo.is_open());
        memo.refuse();
        assert!(!memo.is_open());
        memo.refuse_for_good();
        (0..300).for_each(|_| memo.forget_refusal());
        assert!(!memo.is_open() && !memo.was_checked().is_open());
    }

    #[test]
    fn what_a_trial_has_split_is_not_lost() {
        let ours = Memo { ours: true, in_use: true, added_pages: 7, ..Memo::default() };
        let mut lost = ours;
        lost.is_small();
        assert!(!lost.ours && !lost.in_use && lost.added_pages == 7);
        let mut tried = Memo { is_split: true, ..ours };
        tried.is_small();
        assert!(tried.ours);
    }
}
