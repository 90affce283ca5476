//! Mappings that grow, shrink and move. The C library's `mremap` consists of calls to the pager and
//! a copy by the program (`Pager::resize`). A raw system call moves the pages that are in memory
//! and raises an event, which ends the program.

use hiroma_sys::uffd::Message;
use hiroma_units::{EXTENT, PAGE};

use super::program::Doing;
use super::{State, tell};
use crate::pager::PROT_RW;
use crate::service::Call;

/// A mapping: its first page, and its number of pages.
pub(super) type Mapping = (usize, usize);

/// The step of a thread that creates, resizes or unmaps its mapping.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Resize {
    /// Requests a mapping of this many pages, to which the present one is then copied.
    Place {
        pages: usize,
        alone: bool,
    },
    /// Requests this many pages in place.
    Extend(usize),
    /// Copies page by page to the new mapping; `done` pages are finished. `word` has been read and
    /// is to be written.
    Copy {
        to: Mapping,
        done: usize,
        word: Option<u64>,
    },
    /// Requests that the content of this part be forgotten. Then the part is zeroed as far as the
    /// answer requires, and closed.
    Forget(Mapping),
    Zeros(Mapping),
    Close(Mapping),
}

/// Pages for the mappings that are created one by one: the step in which the pager opens extents
/// for small ones, and some more.
pub const MAPPINGS_PAGES: usize = 20 * EXTENT / PAGE;
/// Maximum number of pages of a mapping.
const MAPPING_MAX: usize = 48;

impl State {
    /// Adds pages for mappings that are created later.
    pub fn map_later(&mut self, pages: usize) {
        self.pages.resize(pages, None);
        self.truth.resize(pages, 0);
        self.loose.resize(pages, false);
        self.foreign.resize(pages, false);
        self.maps = true;
    }

    /// The thread uses its mapping, or changes it.
    pub(super) fn begin_mapped(&mut self, at: usize) -> Doing {
        let Some((first, pages)) = self.threads[at].mapping else {
            return Doing::Resizes(Resize::Place {
                pages: 1 + self.random.below(MAPPING_MAX / 2),
                alone: self.random.one_in(2),
            });
        };
        let page = first + self.random.below(pages);
        match self.random.below(16) {
            0 if pages > 1 => {
                let kept = 1 + self.random.below(pages - 1);
                self.threads[at].mapping = Some((first, kept));
                Doing::Resizes(Resize::Forget((first + kept, pages - kept)))
            }
            1 => {
                self.threads[at].mapping = None;
                Doing::Resizes(Resize::Forget((first, pages)))
            }
            2 | 3 if pages < MAPPING_MAX => {
                Doing::Resizes(Resize::Extend(pages + 1 + self.random.below(MAPPING_MAX - pages)))
            }
            4..=9 => {
                self.next_word += 1;
                Doing::Touch(page, Some(self.next_word))
            }
            _ => Doing::Touch(page, None),
        }
    }

    /// One step of a thread that resizes its mapping.
    pub(super) fn resize(&mut self, at: usize, resize: Resize) {
        let next = match resize {
            Resize::Place { .. } | Resize::Extend(_) | Resize::Forget(_) | Resize::Close(_) => {
                return;
            }
            Resize::Copy { to, done, word } => {
                let (first, pages) = self.threads[at].mapping.expect("it is copied");
                if done == pages {
                    self.threads[at].mapping = Some(to);
                    Resize::Forget((first, pages))
                } else {
                    // The touch continues here when it has ended.
                    let (page, then) = match word {
                        None => (first + done, Resize::Copy { to, done, word: Some(0) }),
                        Some(word) => {
                            self.touch_next(
                                at,
                                to.0 + done,
                                Some(word),
                                Resize::Copy { to, done: done + 1, word: None },
                            );
                            return;
                        }
                    };
                    self.touch_next(at, page, None, then);
                    return;
                }
            }
            Resize::Zeros(part) => match self.threads[at].to_zero.pop() {
                Some(page) => {
                    self.touch_next(at, page, Some(0), resize);
                    return;
                }
                None => Resize::Close(part),
            },
        };
        self.threads[at].doing = Doing::Resizes(next);
    }

    fn touch_next(&mut self, at: usize, page: usize, write: Option<u64>, then: Resize) {
        self.threads[at].resize = Some(then);
        self.threads[at].doing = Doing::Touch(page, write);
    }

    /// A touch in the middle of a resize has ended; it found `word`.
    pub(super) fn resize_on(&mut self, at: usize, resize: Resize, found: u64) {
        let next = match resize {
            Resize::Copy { to, done, word: Some(_) } => {
                Resize::Copy { to, done, word: Some(found) }
            }
            other => other,
        };
        self.threads[at].doing = Doing::Resizes(next);
    }

    /// The call that a resizing thread makes to the pager.
    pub(super) fn call_of(&self, at: usize, resize: Resize) -> Option<Call> {
        let addr = |page: usize| self.base + page * PAGE;
        let range = |(first, pages): Mapping| (addr(first), addr(first + pages));
        match resize {
            Resize::Place { pages, alone } => {
                Some(Call::Place { len: pages * PAGE, align: PAGE, alone, prot: PROT_RW })
            }
            Resize::Extend(pages) => {
                let mapping = self.threads[at].mapping.expect("it is made longer");
                let (start, end) = range(mapping);
                Some(Call::Extend { start, end, new_end: start + pages * PAGE })
            }
            Resize::Forget(part) => Some(Call::Unmap { start: range(part).0, end: range(part).1 }),
            Resize::Close(part) => Some(Call::Close { start: range(part).0, end: range(part).1 }),
            Resize::Copy { .. } | Resize::Zeros(_) => None,
        }
    }

    /// The pager has answered such a call.
    pub(super) fn resized(
        &mut self,
        at: usize,
        resize: Resize,
        result: usize,
        to_zero: &[(usize, usize)],
    ) {
        self.threads[at].doing = match resize {
            // No addresses are left, in a process that has other threads' mappings from before a
            // fork.
            Resize::Place { .. } if result == usize::MAX => Doing::Nothing,
            Resize::Place { pages, .. } => {
                let to = (self.page(result), pages);
                self.begins(to.0, pages);
                if self.threads[at].mapping.is_none() {
                    self.threads[at].mapping = Some(to);
                    Doing::Nothing
                } else {
                    Doing::Resizes(Resize::Copy { to, done: 0, word: None })
                }
            }
            Resize::Extend(pages) if result == 1 => {
                let (first, before) = self.threads[at].mapping.expect("it is made longer");
                self.begins(first + before, pages - before);
                self.threads[at].mapping = Some((first, pages));
                Doing::Nothing
            }
            Resize::Extend(pages) => {
                Doing::Resizes(Resize::Place { pages, alone: self.random.one_in(2) })
            }
            Resize::Forget(_) if result == 1 => Doing::Nothing,
            Resize::Forget(part) => {
                let pages = to_zero
                    .iter()
                    .flat_map(|&(start, end)| self.page(start)..self.page(end))
                    .collect();
                self.threads[at].to_zero = pages;
                Doing::Resizes(Resize::Zeros(part))
            }
            Resize::Close(_) | Resize::Copy { .. } | Resize::Zeros(_) => Doing::Nothing,
        };
    }

    /// New pages are zeros.
    fn begins(&mut self, first: usize, pages: usize) {
        for page in first..first + pages {
            (self.truth[page], self.loose[page]) = (0, false);
            tell(page, "mapped");
        }
        self.remaps += 1;
    }

    /// A thread moves a part of its memory out of the arena by a raw system call. The pages in
    /// memory move immediately; the call waits until its event has been read.
    pub fn move_away(&mut self) {
        let Some(at) = self.threads.iter().position(|thread| thread.doing == Doing::Nothing) else {
            return;
        };
        let first = self.threads[at].first;
        let mut to = first + 1;
        while to < first + self.threads[at].pages && self.used[to] == self.used[to - 1] + 1 {
            to += 1;
        }
        let (start, len) = (self.addr(first), (to - first) * PAGE);
        (first..to).for_each(|place| self.pages[self.used[place]] = None);
        self.moved = Some((start, start + len));
        self.messages.push_back(Message::Remap { from: start, to: start + (1 << 40), len });
        self.changing += 1;
        self.threads[at].doing = Doing::Moved;
    }

    /// Whether a page is no longer mapped.
    pub(super) fn is_unmapped(&self, page: usize) -> bool {
        let addr = self.base + page * PAGE;
        self.moved.is_some_and(|(start, end)| start <= addr && addr < end)
    }
}
