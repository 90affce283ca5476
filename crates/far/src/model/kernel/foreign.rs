//! Memory that the program maps over its own by a raw system call. It is the kernel's: its faults
//! reach nobody, and the kernel moves its pages for whoever asks.

use hiroma_sys::uffd::Message;
use hiroma_units::PAGE;

use super::program::Doing;
use super::{Page, State, tell};

impl State {
    /// Maps adjacent pages anew. `None`: this program does not do that.
    pub(super) fn map_over(&mut self, from: usize, to: usize) -> Option<Doing> {
        if !self.maps_over {
            return None;
        }
        let pages = self.used[from]..self.used[to - 1] + 1;
        for page in pages.clone() {
            self.pages[page] = None;
            (self.truth[page], self.loose[page]) = (0, false);
            self.foreign[page] = true;
            tell(page, "mapped over");
        }
        let (start, end) = (self.addr(from), self.addr(to - 1) + PAGE);
        // Unlike the events before it, this one does not keep pages from moving out: that concerns
        // the staging area's descriptor.
        self.messages.push_back(Message::Unmap { start, end });
        // Threads whose pages these are find them mapped.
        self.wake(start, end - start);
        Some(Doing::Unmaps(start, end))
    }

    /// An access to such a page, or one of the pager.
    pub(super) fn fill_foreign(&mut self, page: usize) {
        if self.is_foreign(page) && self.pages[page].is_none() {
            self.pages[page] = Some(Page::new(0));
        }
    }

    pub(super) fn is_foreign(&self, page: usize) -> bool {
        self.foreign.get(page).is_some_and(|&foreign| foreign)
    }

    /// Whether a part of these places was mapped over.
    pub(super) fn touches_foreign(&self, from: usize, to: usize) -> bool {
        self.used[from..to].iter().any(|&page| self.is_foreign(page))
    }

    pub(super) fn unmapping_was_read(&mut self, start: usize, end: usize) {
        for thread in &mut self.threads {
            if thread.doing == Doing::Unmaps(start, end) {
                thread.doing = Doing::Nothing;
            }
        }
    }
}
