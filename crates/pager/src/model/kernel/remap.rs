//! Mappings that grow, shrink and move. `mremap` of the C library is made of calls of the pager and
//! of a copy by the program (`Pager::resize`); past the C library the kernel moves what is in
//! memory and tells of it, which is the end of the program.

use hiroma_kernel::uffd::Message;
use hiroma_units::{EXTENT, PAGE};

use super::program::Doing;
use super::{State, tell};
use crate::pager::PROT_RW;
use crate::service::Call;

/// A mapping, as its first page and how many it has.
pub(super) type Mapping = (usize, usize);

/// A thread that makes, resizes or gives up its mapping.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Resize {
    /// Asks for a mapping of so many pages; what is mapped is copied there then.
    Place {
        pages: usize,
        alone: bool,
    },
    /// Asks for so many pages in place.
    Extend(usize),
    /// Copies page by page to the new mapping; so many are done. The word has been read and is to
    /// be written.
    Copy {
        to: Mapping,
        done: usize,
        word: Option<u64>,
    },
    /// Asks for the content of this part to be forgotten; then it is zeroed, as far as the answer
    /// says, and given back.
    Forget(Mapping),
    Zeros(Mapping),
    Close(Mapping),
}

/// Pages of the mappings that are made one by one: what the pager opens for small ones at a time,
/// and some more.
pub const MAPPINGS_PAGES: usize = 20 * EXTENT / PAGE;
/// Pages that a mapping has at most.
const MAPPING_MAX: usize = 48;

impl State {
    /// Room for the pages of mappings that come later.
    pub fn map_later(&mut self, pages: usize) {
        self.pages.resize(pages, None);
        self.truth.resize(pages, 0);
        self.loose.resize(pages, false);
        self.maps = true;
    }

    /// The thread does something with its mapping, or to it.
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
                    // The touch comes back here.
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

    /// A touch has ended in the middle of it, which found `word`.
    pub(super) fn resize_on(&mut self, at: usize, resize: Resize, found: u64) {
        let next = match resize {
            Resize::Copy { to, done, word: Some(_) } => {
                Resize::Copy { to, done, word: Some(found) }
            }
            other => other,
        };
        self.threads[at].doing = Doing::Resizes(next);
    }

    /// What a thread that resizes asks of the pager.
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
            Resize::Forget(part) => Some(Call::Forget { start: range(part).0, end: range(part).1 }),
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

    /// A thread moves a part of its memory past the C library, out of the arena. What is in memory
    /// goes along at once; the call waits until its event was read.
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

    /// Whether nothing is mapped at a page any more.
    pub(super) fn is_unmapped(&self, page: usize) -> bool {
        let addr = self.base + page * PAGE;
        self.moved.is_some_and(|(start, end)| start <= addr && addr < end)
    }
}
