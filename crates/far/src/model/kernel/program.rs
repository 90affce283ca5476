//! The program: the operations of its threads on its memory.

use hiroma_sys::uffd::Message;
use hiroma_units::PAGE;

use super::remap::{Mapping, Resize};
use super::{Page, State, tell};
use crate::service::Call;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Doing {
    Nothing,
    /// Touches a page; `Some`: writes this word.
    Touch(usize, Option<u64>),
    /// Waits for the page of such a touch.
    Waits(usize, Option<u64>),
    /// `madvise(MADV_DONTNEED)` by a system call: its event is queued.
    Told(usize, usize),
    /// The event was read.
    MayDiscard(usize, usize),
    /// Pages up to the third value have been dropped.
    Discards(usize, usize, usize),
    /// A discard by the C library's function: the pager must be called.
    Asks(usize, usize),
    /// The pager has answered; the program has to zero some pages.
    Zeros(usize, usize),
    /// Creates, resizes or unmaps its mapping.
    Resizes(Resize),
    /// Has moved memory by a raw system call, and waits for a page that no longer exists.
    Moved,
    /// Has mapped something over its memory by a raw system call, and waits until the event is read.
    Unmaps(usize, usize),
    /// Is about to fork.
    Forks,
}

pub(super) struct Thread {
    pub doing: Doing,
    /// The discard that it has called the pager for, if any, and the pages that it has to zero
    /// itself.
    pub asked: Option<(usize, usize)>,
    /// Its system call is `MADV_FREE`.
    pub frees: bool,
    pub to_zero: Vec<usize>,
    pub first: usize,
    pub pages: usize,
    /// Its own mapping, and the step of a resize that continues after the current touch.
    pub mapping: Option<Mapping>,
    pub resize: Option<Resize>,
    /// It touches pages that must be in memory when it forks.
    pub forks: bool,
}

impl Thread {
    /// An idle thread with these places.
    pub fn new(first: usize, pages: usize) -> Thread {
        let doing = Doing::Nothing;
        Thread {
            doing,
            asked: None,
            frees: false,
            to_zero: Vec::new(),
            first,
            pages,
            mapping: None,
            resize: None,
            forks: false,
        }
    }
}

impl State {
    /// One step of one thread of the program.
    pub fn step(&mut self) {
        let at = self.random.below(self.threads.len());
        self.step_of(at);
    }

    pub fn step_of(&mut self, at: usize) {
        match self.threads[at].doing {
            Doing::Nothing if self.is_ending => {}
            Doing::Nothing => self.begin(at),
            Doing::Touch(page, write) => self.touch(at, page, write),
            Doing::Waits(..)
            | Doing::Told(..)
            | Doing::Asks(..)
            | Doing::Moved
            | Doing::Unmaps(..)
            | Doing::Forks => {}
            Doing::Resizes(resize) => self.resize(at, resize),
            Doing::MayDiscard(from, to) => {
                self.changing -= 1;
                self.threads[at].doing = Doing::Discards(from, to, from);
            }
            Doing::Discards(from, to, done) => {
                let upto = (done + 1 + self.random.below(6)).min(to);
                let frees = self.threads[at].frees;
                for place in done..upto {
                    let page = self.used[place];
                    match &mut self.pages[page] {
                        Some(there) if frees => there.lazy = true,
                        there => *there = None,
                    }
                    tell(page, format_args!("given up for the program, freed lazily: {frees}"));
                }
                if upto == to {
                    if frees {
                        self.loosen(from, to);
                    } else {
                        self.forget(from, to);
                    }
                    self.threads[at].doing = self.after_discard(from, to);
                } else {
                    self.threads[at].doing = Doing::Discards(from, to, upto);
                }
            }
            Doing::Zeros(from, to) => match self.threads[at].to_zero.pop() {
                Some(page) => self.threads[at].doing = Doing::Touch(page, Some(0)),
                None => {
                    self.forget(from, to);
                    self.threads[at].doing = Doing::Nothing;
                    self.threads[at].asked = None;
                }
            },
        }
    }

    /// Most of the time, discarded memory is used again soon.
    fn after_discard(&mut self, from: usize, to: usize) -> Doing {
        let page = self.used[from + self.random.below(to - from)];
        match self.random.below(3) {
            _ if self.is_ending => Doing::Nothing,
            0 => Doing::Nothing,
            1 => Doing::Touch(page, None),
            _ => {
                self.next_word += 1;
                Doing::Touch(page, Some(self.next_word))
            }
        }
    }

    fn forget(&mut self, from: usize, to: usize) {
        for place in from..to {
            self.truth[self.used[place]] = 0;
            self.loose[self.used[place]] = false;
            tell(self.used[place], "discarded");
        }
        self.discards += 1;
    }

    fn loosen(&mut self, from: usize, to: usize) {
        for place in from..to {
            self.loose[self.used[place]] = true;
        }
        self.discards += 1;
    }

    fn begin(&mut self, at: usize) {
        if self.maps && self.random.one_in(3) {
            self.threads[at].doing = self.begin_mapped(at);
            return;
        }
        let Thread { first, pages, .. } = self.threads[at];
        // Some pages are used more than others.
        let span = if self.random.one_in(3) { pages } else { pages.div_ceil(4) };
        let place = first + self.random.below(span);
        let page = self.used[place];
        let kind = self.random.below(24);
        self.threads[at].doing = match kind {
            0..=10 => {
                self.next_word += 1;
                // Some pages are all zeros, which the store treats as a different kind of content.
                let word = if self.random.one_in(8) { 0 } else { self.next_word };
                Doing::Touch(page, Some(word))
            }
            11..=19 => Doing::Touch(page, None),
            // A page of any thread.
            20 => Doing::Touch(self.used[self.random.next() as usize % self.used.len()], None),
            _ => {
                // Adjacent pages only: a range of addresses.
                let mut to = place + 1;
                let most = place + 1 + self.random.below(20);
                while to < most && to < first + pages && self.used[to] == self.used[to - 1] + 1 {
                    to += 1;
                }
                if self.touches_foreign(place, to) {
                    return;
                }
                if kind == 23 {
                    if let Some(unmaps) = self.map_over(place, to) {
                        self.threads[at].doing = unmaps;
                        return;
                    }
                }
                (place..to).for_each(|place| {
                    tell(self.used[place], format_args!("thread {at} begins to discard, {kind}"))
                });
                // Without events the pager does not learn of raw system calls:
                // docs/internals/far-memory.md.
                if kind > 21 || !self.has_events {
                    Doing::Asks(place, to)
                } else {
                    self.messages.push_back(Message::Remove {
                        start: self.addr(place),
                        end: self.addr(to - 1) + PAGE,
                    });
                    self.changing += 1;
                    self.threads[at].frees = self.random.one_in(2);
                    Doing::Told(place, to)
                }
            }
        };
    }

    pub(super) fn addr(&self, place: usize) -> usize {
        self.base + self.used[place] * PAGE
    }

    fn touch(&mut self, at: usize, page: usize, write: Option<u64>) {
        if self.is_unmapped(page) {
            // The end of a program that races with its own system call.
            self.threads[at].doing = Doing::Nothing;
            return;
        }
        self.fill_foreign(page);
        match &mut self.pages[page] {
            Some(there) if write.is_none() || !there.protected => {
                self.touched += 1;
                let found = there.word;
                if let Some(word) = write {
                    *there = Page::new(word);
                    tell(page, format_args!("thread {at} writes {word:#x}"));
                    self.truth[page] = word;
                    self.loose[page] = false;
                } else {
                    there.swapped = false;
                    let discards = |thread: &Thread| match thread.doing {
                        Doing::Told(from, to)
                        | Doing::MayDiscard(from, to)
                        | Doing::Discards(from, to, _) => Some((from, to)),
                        Doing::Asks(from, to) => Some((from, to)),
                        _ => thread.asked,
                    };
                    let may_be_zero = self
                        .threads
                        .iter()
                        .filter_map(discards)
                        .any(|(from, to)| self.used[from..to].contains(&page));
                    if self.loose[page] && found == 0 {
                        (self.truth[page], self.loose[page]) = (0, false);
                    }
                    if found != self.truth[page] && !(may_be_zero && found == 0) {
                        self.blame(format!(
                            "page {page} holds {found:#x} where {:#x} was written",
                            self.truth[page]
                        ));
                    }
                }
                if let Some(resize) = self.threads[at].resize.take() {
                    return self.resize_on(at, resize, found);
                }
                if self.threads[at].forks {
                    self.threads[at].doing = Doing::Forks;
                    return;
                }
                let asked = self.threads[at].asked;
                self.threads[at].doing =
                    asked.map_or(Doing::Nothing, |(from, to)| Doing::Zeros(from, to));
            }
            _ => self.fault(at, page, write),
        }
    }

    /// A thread that waits for an answer of the pager, and its call.
    pub fn asked(&self) -> Option<(usize, Call)> {
        self.threads.iter().enumerate().find_map(|(at, thread)| match thread.doing {
            Doing::Asks(from, to) => {
                Some((at, Call::Discard { start: self.addr(from), end: self.addr(to - 1) + PAGE }))
            }
            Doing::Resizes(resize) => self.call_of(at, resize).map(|call| (at, call)),
            _ => None,
        })
    }

    /// The pager has answered: the program itself zeroes these parts.
    pub fn answered(&mut self, at: usize, result: usize, to_zero: &[(usize, usize)]) {
        if let Doing::Resizes(resize) = self.threads[at].doing {
            return self.resized(at, resize, result, to_zero);
        }
        let Doing::Asks(from, to) = self.threads[at].doing else { unreachable!("asked just now") };
        for place in from..to {
            let addr = self.addr(place);
            if to_zero.iter().any(|&(start, end)| start <= addr && addr < end) {
                let page = self.used[place];
                self.threads[at].to_zero.push(page);
                continue;
            }
            if let Some(there) = self.pages[self.used[place]] {
                // The program need not zero it, so it must be zero, or not in memory.
                if there.word != 0 {
                    self.blame(format!(
                        "page {} was discarded and holds {:#x}",
                        self.used[place], there.word
                    ));
                }
            }
        }
        self.threads[at].asked = Some((from, to));
        self.threads[at].doing = Doing::Zeros(from, to);
    }

    /// Whether the kernel has yet to drop pages for the program.
    pub fn is_discarding(&self) -> bool {
        self.threads.iter().any(|thread| {
            matches!(thread.doing, Doing::Told(..) | Doing::MayDiscard(..) | Doing::Discards(..))
        })
    }

    /// Every page is read once more, by its owner.
    pub fn read_all(&mut self, round: usize) -> bool {
        let mut any = false;
        for at in 0..self.threads.len() {
            let Thread { first, pages, doing, .. } = self.threads[at];
            if doing != Doing::Nothing {
                continue;
            }
            let of_mapping = self.threads[at]
                .mapping
                .filter(|&(_, mapped)| (pages..pages + mapped).contains(&round));
            let page = if round < pages {
                Some(self.used[first + round])
            } else {
                of_mapping.map(|(start, _)| start + round - pages)
            };
            if let Some(page) = page {
                self.threads[at].doing = Doing::Touch(page, None);
                any = true;
            }
        }
        any
    }
}
