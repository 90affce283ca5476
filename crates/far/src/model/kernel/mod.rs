//! A kernel and a program for tests: the program's memory is a table of one word per page, and
//! every call of the pager may be refused, cut short, or interrupted by other threads of the
//! program.
//!
//! It preserves these properties of the real kernel (userfaultfd(2), `mm/userfaultfd.c` of Linux
//! 6.18): an event blocks its thread until it is read, and moves are refused until that thread
//! runs; discarded pages are dropped later, page by page; a woken thread retries its access; if a
//! thread is woken before its fault was read, the message is gone.

mod calls;
mod events;
mod foreign;
mod fork;
mod program;
mod remap;
mod swap;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use hiroma_sys::uffd::{Message, Outcome, Stop};
use hiroma_sys::vm;
use hiroma_units::PAGE;

use super::random::Random;
use program::{Doing, Thread};
pub use remap::MAPPINGS_PAGES;

/// A page that exists. Its content is `word` in the first half and `!word` in the second; zero is
/// zero throughout.
#[derive(Clone, Copy, Debug)]
struct Page {
    word: u64,
    protected: bool,
    /// Shared with a forked child: cannot be moved until it is written.
    shared: bool,
    /// In a huge page that was shared: cannot be moved until that is split.
    in_huge: bool,
    /// Pinned for I/O: the number of calls that will find it busy.
    busy: usize,
    /// Not written since `MADV_FREE`: may be dropped at any time.
    lazy: bool,
    /// On the kernel's swap device.
    swapped: bool,
}

impl Page {
    /// A page of the program's own, in memory.
    fn new(word: u64) -> Page {
        Page {
            word,
            protected: false,
            shared: false,
            in_huge: false,
            busy: 0,
            lazy: false,
            swapped: false,
        }
    }
}

/// Pages of the arena.
pub const ARENA_PAGES: usize = 4096;

pub struct State {
    pub random: Random,
    base: usize,
    /// Pages that the program uses, as page numbers in the arena.
    used: Vec<usize>,
    pages: Vec<Option<Page>>,
    /// The expected content of each page.
    truth: Vec<u64>,
    /// Pages that may read as zeros until they are written.
    loose: Vec<bool>,
    /// Pages over which the program has mapped something else.
    foreign: Vec<bool>,
    /// It does that. (What a child finds there is not modelled.)
    pub maps_over: bool,
    threads: Vec<Thread>,
    messages: VecDeque<Message>,
    /// Number of events whose threads have not continued.
    changing: usize,
    next_word: u64,
    /// Addresses in the staging area without a page.
    holes: HashSet<usize>,
    /// The pager's own removal that waits to be read.
    own: Option<(usize, usize)>,
    pub has_events: bool,
    /// The kernel swaps.
    has_swap: bool,
    /// Threads create mappings of their own.
    maps: bool,
    /// The range that was moved out of the arena by a system call that bypassed the C library.
    pub moved: Option<(usize, usize)>,
    /// There is, or was, a child.
    forked: bool,
    /// Pages that are zeros in a child.
    wiped: Option<(usize, usize)>,
    pub is_ending: bool,
    pub wrong: Option<String>,
    touched: u64,
    discards: u64,
    remaps: u64,
}

/// The result of putting a page into the program.
enum Filled {
    Page { protected: bool, swapped: bool },
    Hole,
    Stopped(Stop),
}

/// The implementation of the trait.
pub struct Model {
    state: Arc<Mutex<State>>,
    number: usize,
}

thread_local!(
    /// Makes the fault thread of each process of this schedule read its messages.
    pub static PUMPS: std::cell::RefCell<Vec<std::rc::Rc<dyn Fn()>>> =
        const { std::cell::RefCell::new(Vec::new()) };
);

/// The page of HIROMA_PAGE, whose events are printed.
fn told() -> Option<usize> {
    static TOLD: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    *TOLD.get_or_init(|| std::env::var("HIROMA_PAGE").ok()?.parse().ok())
}

fn tell(page: usize, what: impl std::fmt::Display) {
    if told() == Some(page) {
        eprintln!("page {page}: {what}");
    }
}

/// Prints the pager's notes about the extent of that page.
pub fn tell_extent(page: u64, what: impl std::fmt::Display) {
    if told().is_some_and(|told| told / 512 == page as usize / 512) {
        eprintln!("    {page}: {what}");
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Model {
    /// The kernel of the process with that number.
    pub fn new(state: Arc<Mutex<State>>, number: usize) -> Model {
        Model { state, number }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Puts pages into the program, one by one. `take` receives each word and its address, and
    /// decides what becomes of the page.
    fn fill(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        mut take: impl FnMut(&mut State, u64, usize) -> Filled,
    ) -> Outcome {
        let mut state = self.state();
        for done in (0..len).step_by(PAGE) {
            if state.refuses() {
                return ended(done, len, Stop::Again);
            }
            let page = state.page(dst + done);
            if page >= state.pages.len() {
                continue;
            }
            if state.is_unmapped(page) || state.is_foreign(page) {
                return ended(done, len, Stop::NotThere);
            }
            if state.pages[page].is_some() {
                return ended(done, len, Stop::Exists);
            }
            let word = state.decode(src + done);
            match take(&mut state, word, src + done) {
                Filled::Page { protected, swapped } => {
                    tell(page, format_args!("comes in: {word:#x}"));
                    state.pages[page] = Some(Page { protected, swapped, ..Page::new(word) });
                }
                Filled::Hole => {}
                Filled::Stopped(stop) => return ended(done, len, stop),
            }
        }
        ended(len, len, Stop::Again)
    }
}

impl State {
    /// A program with `threads` threads on `pages` pages, in runs whose starts are `stride` pages
    /// apart.
    pub fn new(seed: u64, base: usize, threads: usize, pages: usize, stride: usize) -> State {
        let mut random = Random::new(seed);
        let has_swap = random.one_in(2);
        let run = 4 + random.below(24);
        let stride = stride.min(ARENA_PAGES / (pages / run + 1)).max(run);
        let used: Vec<usize> = (0..pages).map(|page| page / run * stride + page % run).collect();
        let all = used.last().expect("some") + 1;
        let share = pages / threads;
        let threads = (0..threads).map(|at| Thread::new(at * share, share)).collect();
        State {
            used,
            pages: vec![None; all],
            truth: vec![0; all],
            loose: vec![false; all],
            foreign: vec![false; all],
            threads,
            ..State::idle(random, base, has_swap)
        }
    }

    /// A program without pages and threads.
    fn idle(random: Random, base: usize, has_swap: bool) -> State {
        State {
            random,
            base,
            used: Vec::new(),
            pages: Vec::new(),
            truth: Vec::new(),
            loose: Vec::new(),
            foreign: Vec::new(),
            maps_over: false,
            threads: Vec::new(),
            messages: VecDeque::new(),
            changing: 0,
            next_word: 0x0101_0000_0000_0000,
            holes: HashSet::new(),
            own: None,
            has_events: true,
            has_swap,
            maps: false,
            moved: None,
            forked: false,
            wiped: None,
            is_ending: false,
            wrong: None,
            touched: 0,
            discards: 0,
            remaps: 0,
        }
    }

    fn page(&self, addr: usize) -> usize {
        (addr - self.base) / PAGE
    }

    fn blame(&mut self, what: String) {
        if self.wrong.is_none() {
            self.wrong = Some(what);
        }
    }

    /// The kernel needs memory: it drops lazily freed pages that were not written since.
    pub(super) fn reclaim(&mut self) {
        for (page, there) in self.pages.iter_mut().enumerate() {
            if there.is_some_and(|there| there.lazy) {
                *there = None;
                tell(page, "reclaimed");
            }
        }
    }

    /// Other threads of the program may run.
    fn disturb(&mut self) {
        while self.random.one_in(5) {
            self.step();
        }
        if self.random.one_in(400) {
            self.reclaim();
        }
        if self.has_swap && self.random.one_in(40) {
            self.swap_out();
        }
    }

    /// Whether the kernel returns EAGAIN.
    fn refuses(&mut self) -> bool {
        self.disturb();
        if self.changing > 0 {
            // It only returns EAGAIN while the others can run.
            (0..4).for_each(|_| self.step());
            return true;
        }
        self.random.one_in(40)
    }

    fn decode(&mut self, from: usize) -> u64 {
        let buf = vm::lend(from, PAGE);
        let word =
            |at: usize| u64::from_ne_bytes(buf.bytes()[at..at + 8].try_into().expect("eight"));
        let (first, last) = (word(0), word(PAGE - 8));
        let whole = if first == 0 { last == 0 } else { last == !first };
        if !whole || word(PAGE / 2 - 8) != first || word(PAGE / 2) != last {
            self.blame(format!("a page was torn: {first:#x} and {last:#x}"));
        }
        first
    }

    /// Whether every thread has finished its operation.
    pub fn is_idle(&self) -> bool {
        self.threads.iter().all(|thread| thread.doing == Doing::Nothing) && self.messages.is_empty()
    }

    pub fn describe(&self) -> String {
        format!("{:?}", self.threads.iter().map(|thread| thread.doing).collect::<Vec<_>>())
    }

    /// Number of events of the kinds that a schedule should have: touches, discards, mappings
    /// created or extended.
    pub fn sums(&self) -> [u64; 3] {
        [self.touched, self.discards, self.remaps]
    }

    pub fn present(&self) -> usize {
        let managed = self.pages.iter().zip(&self.foreign).filter(|&(_, foreign)| !foreign);
        managed.filter(|(page, _)| page.is_some()).count()
    }
}

/// Writes a page's bytes.
fn encode(word: u64, to: usize) {
    vm::fill(to, PAGE / 2, word);
    vm::fill(to + PAGE / 2, PAGE / 2, if word == 0 { 0 } else { !word });
}

/// If the kernel did nothing, it returns the reason; if it did a part, it returns EAGAIN for the
/// rest.
fn ended(done: usize, len: usize, stop: Stop) -> Outcome {
    let stop = if done == 0 { stop } else { Stop::Again };
    Outcome { done, stop: (done < len).then_some(stop) }
}
