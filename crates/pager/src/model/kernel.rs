//! A kernel and a program that exist in a test only: the program's memory is a table of words, one for each page, and every call of the
//! pager may be refused, cut short, or met by other threads of the program in its middle.
//!
//! What it keeps of the real one (userfaultfd(2), `mm/userfaultfd.c` of Linux 6.18): an event holds its thread until it was read, and moves
//! are refused until that thread runs; what is discarded goes later, page by page; a woken thread tries again; a thread that is woken before
//! its fault was read leaves no message.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use hiroma_kernel::uffd::{Message, Outcome, Stop};
use hiroma_kernel::vm;
use hiroma_policy::placement::Rng;
use hiroma_units::PAGE;

use crate::memory::Memory;

/// Random numbers of a schedule.
pub struct Random(Rng);

thread_local! {
    /// Decisions that a fuzzer has made; the generator goes on where they end.
    pub static TAPE: RefCell<VecDeque<u8>> = const { RefCell::new(VecDeque::new()) };
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Rng::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, n: usize) -> usize {
        let told = TAPE.with(|tape| tape.borrow_mut().pop_front());
        (told.map_or_else(|| self.next(), u64::from) % n as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A page that is in memory. Its content is `word` in the first half and `!word` in the second; zero is zero throughout.
#[derive(Clone, Copy, Debug)]
struct Page {
    word: u64,
    protected: bool,
    /// With a forked child: not to be moved until it is written.
    shared: bool,
    /// In a huge page that was shared: not to be moved until that is split.
    in_huge: bool,
    /// Pinned for I/O: so many calls find it busy.
    busy: usize,
    /// Not written since `MADV_FREE`: may be gone at any time.
    lazy: bool,
}

/// The arena has so many.
pub const ARENA_PAGES: usize = 4096;

/// What a thread of the program is about.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Doing {
    Nothing,
    /// Touches a page; `Some`: writes this word.
    Touch(usize, Option<u64>),
    /// The same; waits for the page.
    Waits(usize, Option<u64>),
    /// `madvise(MADV_DONTNEED)` by a system call: its event is queued.
    Told(usize, usize),
    /// The event was read.
    MayDiscard(usize, usize),
    /// Pages up to the third are gone.
    Discards(usize, usize, usize),
    /// The same by the C library's function: the pager is to be asked.
    Asks(usize, usize),
    /// The pager has answered; some pages are left to the program to zero.
    Zeros(usize, usize),
}

struct Thread {
    doing: Doing,
    /// The discard that it is in the middle of, where it asked the pager, and the pages that it has to zero itself.
    asked: Option<(usize, usize)>,
    /// Its system call is `MADV_FREE`.
    frees: bool,
    to_zero: Vec<usize>,
    first: usize,
    pages: usize,
}

pub struct State {
    pub random: Random,
    base: usize,
    /// Pages that the program uses, as numbers in the arena.
    used: Vec<usize>,
    pages: Vec<Option<Page>>,
    /// What each page holds, if nothing goes wrong.
    truth: Vec<u64>,
    /// Pages that may as well be zeros, until they are written.
    loose: Vec<bool>,
    threads: Vec<Thread>,
    messages: VecDeque<Message>,
    /// Events whose threads have not gone on.
    changing: usize,
    next_word: u64,
    /// Addresses in the staging area where nothing is.
    holes: HashSet<usize>,
    /// Removal of the pager's own that waits to be read.
    own: Option<(usize, usize)>,
    pub has_events: bool,
    pub is_ending: bool,
    pub wrong: Option<String>,
    /// How often things happened that a schedule should have.
    pub touched: u64,
    pub discards: u64,
}

/// What became of a page on its way into the program.
enum Filled {
    Page,
    Hole,
    Stopped(Stop),
}

/// The model behind the trait.
pub struct Model {
    state: Arc<Mutex<State>>,
}

thread_local!(
    /// Lets the fault thread of this schedule read.
    pub static PUMP: std::cell::RefCell<Option<Box<dyn Fn()>>> = const { std::cell::RefCell::new(None) };
);

/// The page that HIROMA_PAGE names: what happens to it is told.
fn told() -> Option<usize> {
    static TOLD: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    *TOLD.get_or_init(|| std::env::var("HIROMA_PAGE").ok()?.parse().ok())
}

fn tell(page: usize, what: impl std::fmt::Display) {
    if told() == Some(page) {
        eprintln!("page {page}: {what}");
    }
}

/// Tells what the pager notes of the extent of that page.
pub fn tell_extent(page: u64, what: impl std::fmt::Display) {
    if told().is_some_and(|told| told / 512 == page as usize / 512) {
        eprintln!("    {page}: {what}");
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Model {
    pub fn new(state: Arc<Mutex<State>>) -> Model {
        Model { state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Puts pages into the program, one by one; `take` is given each word and where it lies, and says what becomes of the page.
    fn fill(&self, dst: usize, src: usize, len: usize, mut take: impl FnMut(&mut State, u64, usize) -> Filled) -> Outcome {
        let mut state = self.state();
        for done in (0..len).step_by(PAGE) {
            if state.refuses() {
                return ended(done, len, Stop::Again);
            }
            let page = state.page(dst + done);
            if page >= state.pages.len() {
                continue;
            }
            if state.pages[page].is_some() {
                return ended(done, len, Stop::Exists);
            }
            let word = state.decode(src + done);
            match take(&mut state, word, src + done) {
                Filled::Page => {
                    tell(page, format_args!("comes in: {word:#x}"));
                    state.pages[page] = Some(Page { word, protected: false, shared: false, in_huge: false, busy: 0, lazy: false });
                }
                Filled::Hole => {}
                Filled::Stopped(stop) => return ended(done, len, stop),
            }
        }
        ended(len, len, Stop::Again)
    }
}

impl State {
    /// A program with `threads` threads on `pages` pages, in runs that lie `stride` pages apart.
    pub fn new(seed: u64, base: usize, threads: usize, pages: usize, stride: usize) -> State {
        let mut random = Random::new(seed);
        let run = 4 + random.below(24);
        let stride = stride.min(ARENA_PAGES / (pages / run + 1)).max(run);
        let used: Vec<usize> = (0..pages).map(|page| page / run * stride + page % run).collect();
        let all = used.last().expect("some") + 1;
        let share = pages / threads;
        let threads = (0..threads)
            .map(|at| Thread { doing: Doing::Nothing, asked: None, frees: false, to_zero: Vec::new(), first: at * share, pages: share })
            .collect();
        State {
            random,
            base,
            used,
            pages: vec![None; all],
            truth: vec![0; all],
            loose: vec![false; all],
            threads,
            messages: VecDeque::new(),
            changing: 0,
            next_word: 0x0101_0000_0000_0000,
            holes: HashSet::new(),
            own: None,
            has_events: true,
            is_ending: false,
            wrong: None,
            touched: 0,
            discards: 0,
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
            Doing::Waits(..) | Doing::Told(..) | Doing::Asks(..) => {}
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

    /// What was discarded is used again soon, most times.
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

    /// The kernel needs memory: it takes pages that nobody has written since they were given up.
    fn reclaim(&mut self) {
        for (page, there) in self.pages.iter_mut().enumerate() {
            if there.is_some_and(|there| there.lazy) {
                *there = None;
                tell(page, "reclaimed");
            }
        }
    }

    fn begin(&mut self, at: usize) {
        let Thread { first, pages, .. } = self.threads[at];
        // Some pages are in use more than others.
        let span = if self.random.one_in(3) { pages } else { pages.div_ceil(4) };
        let place = first + self.random.below(span);
        let page = self.used[place];
        self.threads[at].doing = match self.random.below(24) {
            0..=10 => {
                self.next_word += 1;
                // Some pages are one word throughout; so far as the store is concerned, that is another kind.
                let word = if self.random.one_in(8) { 0 } else { self.next_word };
                Doing::Touch(page, Some(word))
            }
            11..=19 => Doing::Touch(page, None),
            // Somebody else's.
            20 => Doing::Touch(self.used[self.random.next() as usize % self.used.len()], None),
            kind => {
                // Neighbours only: a range of addresses.
                let mut to = place + 1;
                let most = place + 1 + self.random.below(20);
                while to < most && to < first + pages && self.used[to] == self.used[to - 1] + 1 {
                    to += 1;
                }
                (place..to).for_each(|place| tell(self.used[place], format_args!("thread {at} begins to discard, {kind}")));
                // Without events the pager learns nothing of system calls past the C library: docs/far-memory.md.
                if kind > 21 || !self.has_events {
                    Doing::Asks(place, to)
                } else {
                    self.messages.push_back(Message::Remove { start: self.addr(place), end: self.addr(to - 1) + PAGE });
                    self.changing += 1;
                    self.threads[at].frees = self.random.one_in(2);
                    Doing::Told(place, to)
                }
            }
        };
    }

    fn addr(&self, place: usize) -> usize {
        self.base + self.used[place] * PAGE
    }

    fn touch(&mut self, at: usize, page: usize, write: Option<u64>) {
        match &mut self.pages[page] {
            Some(there) if write.is_none() || !there.protected => {
                self.touched += 1;
                if let Some(word) = write {
                    *there = Page { word, protected: false, shared: false, in_huge: false, busy: 0, lazy: false };
                    tell(page, format_args!("thread {at} writes {word:#x}"));
                    self.truth[page] = word;
                    self.loose[page] = false;
                } else {
                    let found = there.word;
                    let discards = |thread: &Thread| match thread.doing {
                        Doing::Told(from, to) | Doing::MayDiscard(from, to) | Doing::Discards(from, to, _) => Some((from, to)),
                        Doing::Asks(from, to) => Some((from, to)),
                        _ => thread.asked,
                    };
                    let may_be_zero = self.threads.iter().filter_map(discards).any(|(from, to)| self.used[from..to].contains(&page));
                    if self.loose[page] && found == 0 {
                        (self.truth[page], self.loose[page]) = (0, false);
                    }
                    if found != self.truth[page] && !(may_be_zero && found == 0) {
                        self.blame(format!("page {page} holds {found:#x} where {:#x} was written", self.truth[page]));
                    }
                }
                let asked = self.threads[at].asked;
                self.threads[at].doing = asked.map_or(Doing::Nothing, |(from, to)| Doing::Zeros(from, to));
            }
            _ => self.fault(at, page, write),
        }
    }

    fn fault(&mut self, at: usize, page: usize, write: Option<u64>) {
        let protected = self.pages[page].is_some();
        tell(page, format_args!("thread {at} faults, write {write:x?}, protected {protected}"));
        self.messages.push_back(Message::Fault {
            addr: self.base + page * PAGE,
            write: write.is_some(),
            write_protect: protected,
            thread: at as u32 + 1,
        });
        self.threads[at].doing = Doing::Waits(page, write);
    }

    /// Other threads of the program run, or not.
    fn disturb(&mut self) {
        while self.random.one_in(5) {
            self.step();
        }
        if self.random.one_in(400) {
            self.reclaim();
        }
    }

    /// Whether the kernel tells its caller to come again.
    fn refuses(&mut self) -> bool {
        self.disturb();
        if self.changing > 0 {
            // It is only told to come again while the others can run.
            (0..4).for_each(|_| self.step());
            return true;
        }
        self.random.one_in(40)
    }

    fn decode(&mut self, from: usize) -> u64 {
        let buf = vm::lend(from, PAGE);
        let word = |at: usize| u64::from_ne_bytes(buf.bytes()[at..at + 8].try_into().expect("eight"));
        let (first, last) = (word(0), word(PAGE - 8));
        let whole = if first == 0 { last == 0 } else { last == !first };
        if !whole || word(PAGE / 2 - 8) != first || word(PAGE / 2) != last {
            self.blame(format!("a page was torn: {first:#x} and {last:#x}"));
        }
        first
    }

    /// Threads that the pager has to answer: what they asked for, in addresses.
    pub fn asked(&self) -> Option<(usize, usize, usize)> {
        self.threads.iter().enumerate().find_map(|(at, thread)| match thread.doing {
            Doing::Asks(from, to) => Some((at, self.addr(from), self.addr(to - 1) + PAGE)),
            _ => None,
        })
    }

    /// The pager has answered: these parts the program zeroes itself.
    pub fn answered(&mut self, at: usize, to_zero: &[(usize, usize)]) {
        let Doing::Asks(from, to) = self.threads[at].doing else { unreachable!("asked just now") };
        for place in from..to {
            let addr = self.addr(place);
            if to_zero.iter().any(|&(start, end)| start <= addr && addr < end) {
                let page = self.used[place];
                self.threads[at].to_zero.push(page);
                continue;
            }
            if let Some(there) = self.pages[self.used[place]] {
                // Not the program's to zero, so it must be zero, or away.
                if there.word != 0 {
                    self.blame(format!("page {} was discarded and holds {:#x}", self.used[place], there.word));
                }
            }
        }
        self.threads[at].asked = Some((from, to));
        self.threads[at].doing = Doing::Zeros(from, to);
    }

    /// Whether the kernel is to drop something for the program.
    pub fn is_discarding(&self) -> bool {
        self.threads.iter().any(|thread| matches!(thread.doing, Doing::Told(..) | Doing::MayDiscard(..) | Doing::Discards(..)))
    }

    /// Whether every thread has done what it began.
    pub fn is_idle(&self) -> bool {
        self.threads.iter().all(|thread| thread.doing == Doing::Nothing) && self.messages.is_empty()
    }

    pub fn describe(&self) -> String {
        format!("{:?}", self.threads.iter().map(|thread| thread.doing).collect::<Vec<_>>())
    }

    /// Every page is read once more, by its owner.
    pub fn read_all(&mut self, round: usize) -> bool {
        let mut any = false;
        for at in 0..self.threads.len() {
            let Thread { first, pages, doing, .. } = self.threads[at];
            if round < pages && doing == Doing::Nothing {
                self.threads[at].doing = Doing::Touch(self.used[first + round], None);
                any = true;
            }
        }
        any
    }

    /// All that is in memory is shared with a child.
    pub fn fork(&mut self) {
        for page in self.pages.iter_mut().flatten() {
            page.shared = true;
            page.in_huge = self.random.one_in(4);
        }
    }

    pub fn present(&self) -> usize {
        self.pages.iter().flatten().count()
    }
}

/// Writes a page's bytes.
fn encode(word: u64, to: usize) {
    vm::fill(to, PAGE / 2, word);
    vm::fill(to + PAGE / 2, PAGE / 2, if word == 0 { 0 } else { !word });
}

/// The kernel says why it did nothing; if it did something, that the rest is to be tried again.
fn ended(done: usize, len: usize, stop: Stop) -> Outcome {
    let stop = if done == 0 { stop } else { Stop::Again };
    Outcome { done, stop: (done < len).then_some(stop) }
}

impl Memory for Model {
    fn move_out(&self, dst: usize, src: usize, len: usize) -> Outcome {
        let mut state = self.state();
        for done in (0..len).step_by(PAGE) {
            if state.refuses() {
                return ended(done, len, Stop::Again);
            }
            let page = state.page(src + done);
            if state.random.one_in(40 + 8 * len / PAGE) {
                let calls = 1 + state.random.below(4);
                state.pages.get_mut(page).into_iter().flatten().for_each(|there| there.busy = calls);
            }
            if let Some(there) = state.pages.get_mut(page).into_iter().flatten().find(|there| there.busy > 0) {
                there.busy -= 1;
                return ended(done, len, Stop::Busy);
            }
            match state.pages.get(page).copied().flatten() {
                Some(there) if there.shared || there.in_huge => return ended(done, len, Stop::Busy),
                Some(there) => {
                    encode(there.word, dst + done);
                    state.holes.remove(&(dst + done));
                    tell(page, format_args!("moved out: {:#x}", there.word));
                    state.pages[page] = None;
                }
                None => {
                    vm::zero(dst + done, PAGE);
                    state.holes.insert(dst + done);
                }
            }
        }
        ended(len, len, Stop::Again)
    }

    fn move_in(&self, dst: usize, src: usize, len: usize, holes: bool) -> Outcome {
        self.fill(dst, src, len, |state, word, from| {
            if state.holes.contains(&from) && word == 0 {
                return if holes { Filled::Hole } else { Filled::Stopped(Stop::NotThere) };
            }
            // What has left the frame is a hole there.
            vm::zero(from, PAGE);
            state.holes.insert(from);
            Filled::Page
        })
    }

    fn copy_in(&self, dst: usize, src: usize, len: usize) -> Outcome {
        self.fill(dst, src, len, |_, _, _| Filled::Page)
    }

    fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Stop> {
        let mut state = self.state();
        if state.refuses() {
            return Err(Stop::Again);
        }
        let (first, last) = (state.page(start), state.page(start + len));
        let last = last.min(state.pages.len());
        for number in first.min(last)..last {
            if let Some(page) = &mut state.pages[number] {
                page.protected = on;
                tell(number, format_args!("protected: {on}"));
            }
        }
        Ok(())
    }

    fn copy_page_out(&self, dst: usize, src: usize) {
        let mut state = self.state();
        state.disturb();
        let page = state.page(src);
        tell(page, format_args!("copied out: {:?}", state.pages.get(page)));
        match state.pages.get(page).copied().flatten() {
            Some(there) => encode(there.word, dst),
            None => vm::zero(dst, PAGE),
        }
    }

    fn discard(&self, start: usize, len: usize) -> io::Result<()> {
        let mut state = self.state();
        if state.has_events {
            state.messages.push_back(Message::Remove { start, end: start + len });
            state.changing += 1;
            state.own = Some((start, start + len));
            while state.own.is_some() {
                state.disturb();
                drop(state);
                PUMP.with(|pump| pump.borrow().as_ref().expect("a schedule runs")());
                state = self.state();
            }
            state.disturb();
        }
        for addr in (start..start + len).step_by(PAGE) {
            let page = state.page(addr);
            if page >= state.pages.len() {
                break;
            }
            state.disturb();
            state.pages[page] = None;
            tell(page, "dropped for the pager");
        }
        Ok(())
    }

    fn is_empty(&self, start: usize, len: usize) -> bool {
        let mut state = self.state();
        state.disturb();
        let (first, last) = (state.page(start), state.page(start + len).min(state.pages.len()));
        state.pages.get(first..last).is_none_or(|pages| pages.iter().all(Option::is_none))
    }

    fn unshare(&self, addr: usize) {
        let mut state = self.state();
        let page = state.page(addr);
        match &mut state.pages[page] {
            Some(there) => there.shared = false,
            None => state.blame(format!("page {page} was touched by the pager and is not there: it would wait for itself")),
        }
    }

    fn split(&self, addr: usize) {
        let mut state = self.state();
        let page = state.page(addr);
        if let Some(there) = &mut state.pages[page] {
            there.in_huge = false;
        }
    }

    fn protection(&self, _addr: usize) -> Option<(usize, i32)> {
        None
    }

    fn protect(&self, _start: usize, _len: usize, _prot: i32) -> io::Result<()> {
        Ok(())
    }

    fn wake(&self, start: usize, len: usize) {
        let mut state = self.state();
        let (first, last) = (state.page(start), state.page(start + len - 1));
        for at in 0..state.threads.len() {
            if let Doing::Waits(page, write) = state.threads[at].doing {
                if first <= page && page <= last {
                    state.threads[at].doing = Doing::Touch(page, write);
                    tell(page, format_args!("thread {at} is woken"));
                    let thread = at as u32 + 1;
                    state.messages.retain(|message| !matches!(message, Message::Fault { thread: of, .. } if *of == thread));
                }
            }
        }
    }

    fn has_messages(&self) -> bool {
        !self.state().messages.is_empty()
    }

    fn read(&self, out: &mut Vec<Message>) -> io::Result<()> {
        let mut state = self.state();
        for _ in 0..1 + state.random.below(4) {
            let Some(message) = state.messages.pop_front() else { break };
            out.push(message);
            if let Message::Remove { start, end } = message {
                (state.page(start)..state.page(end)).for_each(|page| tell(page, "its removal is read"));
            }
            if let Message::Remove { start, end } = message {
                if state.own == Some((start, end)) {
                    // The pager's thread goes on at once.
                    state.own = None;
                    state.changing -= 1;
                } else {
                    let base = state.base;
                    let used = std::mem::take(&mut state.used);
                    for thread in &mut state.threads {
                        if let Doing::Told(from, to) = thread.doing {
                            if base + used[from] * PAGE == start && base + used[to - 1] * PAGE + PAGE == end {
                                thread.doing = Doing::MayDiscard(from, to);
                            }
                        }
                    }
                    state.used = used;
                }
            }
        }
        state.disturb();
        Ok(())
    }
}
