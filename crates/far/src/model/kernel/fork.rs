//! Forks: the child gets a copy of the memory, shared until either process writes, and only the
//! thread that forked.

use super::program::{Doing, Thread};
use super::{Page, State, tell};
use crate::model::random::Random;

impl State {
    /// Shares all memory with a child.
    pub fn fork(&mut self) {
        self.forked = true;
        for page in self.pages.iter_mut().flatten() {
            page.shared = true;
            page.in_huge = self.random.one_in(4);
        }
    }

    /// A thread is about to fork. Returns the thread, and pages that must be in memory in both
    /// processes.
    pub fn begin_fork(&mut self) -> Option<(usize, [usize; 2])> {
        let at = self.threads.iter().position(|thread| thread.doing == Doing::Nothing)?;
        let (first, pages) = (self.threads[at].first, self.threads[at].pages);
        let keep = [(); 2].map(|()| self.used[first + self.random.below(pages)]);
        (self.threads[at].forks, self.threads[at].doing) = (true, Doing::Forks);
        Some((at, keep))
    }

    /// The thread that is about to fork touches a page.
    pub fn touch_before_fork(&mut self, at: usize, page: usize) {
        self.threads[at].doing = Doing::Touch(page, None);
    }

    /// Whether that touch has ended.
    pub fn is_forking(&self, at: usize) -> bool {
        self.threads[at].doing == Doing::Forks
    }

    /// The thread has forked, or has given up.
    pub fn end_fork(&mut self, at: usize) {
        (self.threads[at].forks, self.threads[at].doing) = (false, Doing::Nothing);
    }

    /// Address of a page.
    pub fn addr_of(&self, page: usize) -> usize {
        self.base + page * hiroma_units::PAGE
    }

    /// Chooses adjacent pages that are zeros in a child.
    pub fn choose_wiped(&mut self) -> (usize, usize) {
        let place = self.random.below(self.used.len());
        let mut to = place + 1;
        while to < self.used.len() && to < place + 12 && self.used[to] == self.used[to - 1] + 1 {
            to += 1;
        }
        self.wiped = Some((self.used[place], self.used[to - 1] + 1));
        (self.addr(place), self.addr_of(self.used[to - 1] + 1))
    }

    /// The child of thread `at`, at this moment.
    pub fn child(&mut self, at: usize, number: usize) -> State {
        self.fork();
        let half = self.used.len() / 2;
        let mut threads = vec![Thread::new(0, half), Thread::new(half, half)];
        threads[0].mapping = self.threads[at].mapping;
        let mut child = State {
            used: self.used.clone(),
            pages: self.pages.clone(),
            truth: self.truth.clone(),
            loose: self.loose.clone(),
            threads,
            next_word: self.next_word + ((number as u64) << 40),
            has_events: self.has_events,
            maps: self.maps,
            forked: true,
            ..State::idle(Random::new(self.random.next()), self.base, self.has_swap)
        };
        // The child's memory is not registered yet, so nothing is protected in it.
        child.pages.iter_mut().flatten().for_each(|page| (page.protected, page.busy) = (false, 0));
        self.leave_half_done(&mut child);
        child
    }

    /// Discards that other threads had not finished are not finished in the child. Pages that are
    /// to be zeros in the child become zeros.
    fn leave_half_done(&self, child: &mut State) {
        for thread in &self.threads {
            let range = match thread.doing {
                Doing::MayDiscard(from, to) | Doing::Discards(from, to, _) => Some((from, to)),
                _ => thread.asked,
            };
            let (from, to) = range.unwrap_or((0, 0));
            self.used[from..to].iter().for_each(|&page| child.loose[page] = true);
        }
        let (from, to) = self.wiped.unwrap_or((0, 0));
        for page in from..to {
            (child.pages[page], child.truth[page], child.loose[page]) = (None, 0, false);
            tell(page, "wiped in the child");
        }
    }

    /// Copies the holes of the parent's staging area; `place` translates their addresses.
    pub fn holes_of(&mut self, parent: &State, place: impl Fn(usize) -> Option<usize>) {
        self.holes = parent.holes.iter().filter_map(|&addr| place(addr)).collect();
    }

    /// Something touches pages in the child before it has a pager, and `is_zero` ones are missing:
    /// the kernel fills them.
    pub fn touch_early(&mut self, is_zero: impl Fn(usize) -> bool) {
        for _ in 0..self.random.below(4) {
            let page = self.used[self.random.below(self.used.len())];
            if self.pages[page].is_none() && !self.is_foreign(page) && is_zero(page) {
                self.pages[page] = Some(Page::new(0));
                tell(page, "touched before the child has a pager");
            }
        }
    }

    /// The C library touches these pages in the child before it has a pager: the kernel fills
    /// missing ones with zeros.
    pub fn touch_kept(&mut self, keep: &[usize]) {
        for &page in keep {
            if self.pages[page].is_none() && self.truth[page] != 0 && !self.loose[page] {
                self.blame(format!(
                    "page {page} is read as zeros in a child that has no pager yet"
                ));
            }
        }
    }
}
