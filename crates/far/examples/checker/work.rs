//! The operations of one thread.

mod kernel;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use hiroma_far::{Advice, PagerError};

use crate::page::{self, Page, Wrong};
use crate::words::{LINE, LINE_WORDS, PAGE_LINES, Random, VERSIONS};
use crate::{Checker, PAGE};

/// Operations and their weights.
pub const OPS: [(&str, usize); 18] = [
    ("write", 2500),
    ("verify", 2500),
    ("write_lines", 900),
    ("verify_lines", 900),
    ("discard", 400),
    ("refresh", 200),
    ("protect", 300),
    ("file", 300),
    ("pipe", 300),
    ("futex", 300),
    ("pin", 60),
    ("advise", 150),
    ("map", 200),
    ("unmap", 200),
    ("resize", 250),
    ("own", 1200),
    ("evict_all", 1),
    ("fork", 4),
];

/// Mappings of one thread.
#[derive(Default)]
pub struct Own {
    pub maps: Vec<Map>,
}

/// A mapping whose content is known.
pub struct Map {
    pub addr: usize,
    pub index: u64,
    pub versions: Vec<AtomicU32>,
}

impl Map {
    pub fn pages(&self) -> usize {
        self.versions.len() / PAGE_LINES
    }

    pub fn page(&self, number: usize) -> Page<'_> {
        let index = self.index + (number * PAGE / 8) as u64;
        Page {
            addr: self.addr + number * PAGE,
            index,
            versions: &self.versions[number * PAGE_LINES..(number + 1) * PAGE_LINES],
        }
    }

    fn bytes(&self) -> usize {
        self.pages() * PAGE
    }

    /// Keeps the pages from `page` on and returns those before it.
    fn split(&mut self, page: usize) -> Map {
        let rest = self.versions.split_off(page * PAGE_LINES);
        let head = Map {
            addr: self.addr,
            index: self.index,
            versions: std::mem::replace(&mut self.versions, rest),
        };
        self.addr += page * PAGE;
        self.index += (page * PAGE / 8) as u64;
        head
    }
}

pub struct Worker<'a> {
    pub checker: &'a Checker,
    pub thread: usize,
    pub random: Random,
    pub version: u32,
    pub op: usize,
    maps_made: u64,
    file: i32,
    pipe: [i32; 2],
    pub child: Option<crate::child::Child>,
}

const ALL: Range<usize> = 0..PAGE_LINES;

impl<'a> Worker<'a> {
    pub fn new(checker: &'a Checker, thread: usize) -> Worker<'a> {
        let random = Random::new(checker.options.seed, thread as u64);
        Worker {
            checker,
            thread,
            random,
            version: 0,
            op: 0,
            maps_made: 0,
            file: page::memory_file(),
            pipe: page::pipe(),
            child: None,
        }
    }

    pub fn run(mut self) {
        let weights = OPS.map(|(name, weight)| {
            if self.checker.options.without.iter().any(|w| w == name) { 0 } else { weight }
        });
        let total: usize = weights.iter().sum();
        while std::time::Instant::now() < self.checker.end {
            let mut pick = self.random.below(total);
            self.op = weights
                .iter()
                .position(|&weight| {
                    let here = pick < weight;
                    pick = pick.wrapping_sub(weight);
                    here
                })
                .expect("pick is below the total");
            let progress = &self.checker.progress[self.thread];
            progress.op.store(self.op, Ordering::Relaxed);
            progress.counts[self.op].fetch_add(1, Ordering::Relaxed);
            if OPS[self.op].0 == "fork" {
                crate::child::fork(&mut self);
            } else {
                let _gate = self.checker.gate.read().unwrap();
                self.step();
            }
            crate::child::reap(&mut self, false);
            progress.done.fetch_add(1, Ordering::Relaxed);
        }
        crate::child::reap(&mut self, true);
        let _gate = self.checker.gate.read().unwrap();
        self.op = 1;
        self.verify_mine();
        self.checker.progress[self.thread].op.store(usize::MAX, Ordering::Relaxed);
    }

    fn step(&mut self) {
        match OPS[self.op].0 {
            "write" => self.write_run(),
            "verify" => self.verify_run(),
            "write_lines" => {
                let (page, lines) = self.some_lines();
                let version = self.next_version();
                self.check(&page, page.verify(lines.clone()));
                page.write(lines, version);
            }
            "verify_lines" => {
                let (page, lines) = self.some_lines();
                self.check(&page, page.verify(lines));
            }
            "discard" => {
                let page = self.some_page();
                self.did("discard", page.addr, self.checker.pager.discard(page.addr, PAGE));
                page.expect_zeros();
                self.check_sometimes(&page);
            }
            "refresh" => self.refresh(),
            "protect" => self.protect(),
            "file" => self.through_file(),
            "pipe" => self.through_pipe(),
            "futex" => self.futex(),
            "pin" => {
                let page = self.some_page();
                self.did("pin", page.addr, self.checker.pager.pin(page.addr, PAGE));
                self.check(&page, page.verify(ALL));
                let version = self.next_version();
                page.write(ALL, version);
                self.check(&page, page.verify(ALL));
                self.did("unpin", page.addr, self.checker.pager.unpin(page.addr, PAGE));
            }
            "advise" => {
                let page = self.some_page();
                let pages = self
                    .random
                    .skewed(600)
                    .min(self.checker.pages - (page.addr - self.checker.base) / PAGE);
                let advice = [
                    Advice::WillNeed,
                    Advice::Cold,
                    Advice::Sequential,
                    Advice::Random,
                    Advice::Normal,
                ][self.random.below(5)];
                // Some of it may not be mapped.
                let _ = self.checker.pager.advise(page.addr, pages * PAGE, advice);
            }
            "map" => self.map(),
            "unmap" => self.unmap(),
            "resize" => self.resize(),
            "own" => self.use_own(),
            "evict_all" => self.did("evict_all", 0, self.checker.pager.evict_all()),
            other => unreachable!("{other}"),
        }
    }

    pub fn next_version(&mut self) -> u32 {
        // Occasionally, zeros are written; otherwise versions of this thread only grow.
        self.version += 1;
        assert!(self.version < VERSIONS, "too long a run for the versions");
        if self.random.once_in(24) { 0 } else { self.version }
    }

    fn at(&self, addr: usize) {
        self.checker.progress[self.thread].addr.store(addr, Ordering::Relaxed);
    }

    fn did(&self, what: &str, addr: usize, result: Result<(), PagerError>) {
        if let Err(error) = result {
            self.checker.fail(&self.name(), &format!("{what} of {addr:#x} was refused: {error}"));
        }
    }

    pub fn name(&self) -> String {
        format!("thread {} in {} (process {})", self.thread, OPS[self.op].0, std::process::id())
    }

    pub fn check(&self, page: &Page, result: Result<(), Wrong>) {
        let Err(Wrong { addr, expected, found, what }) = result else { return };
        let picture = page.picture();
        let again = page
            .verify((addr % PAGE) / LINE..(addr % PAGE) / LINE + 1)
            .map_or("still", |()| "RIGHT NOW ON THE SECOND LOOK, not");
        let (base, _) = self.checker.pager.arena();
        let text = format!(
            "{what}\n  at {addr:#x} (extent {}, page {}, line {}): expected {expected:#018x}, found {found:#018x}, {again} wrong\n  lines of the page: {picture}",
            (addr - base) >> 21,
            (addr - base) >> 12 & 511,
            (addr % PAGE) / LINE
        );
        let recent = self.checker.pager.recent(addr);
        if !recent.is_empty() {
            let _ = std::fs::write(
                format!("/tmp/recent.{}", std::process::id()),
                format!("{text}\n{recent}"),
            );
        }
        self.checker.fail(&self.name(), &text);
    }

    fn check_sometimes(&mut self, page: &Page) {
        if self.random.once_in(2) {
            self.check(page, page.verify(ALL));
        }
    }

    /// Number of the `n`-th page of the shared zone that belongs to this thread alone.
    fn page_number(&self, n: usize) -> usize {
        self.checker.line_pages + n * self.checker.options.threads + self.thread
    }

    fn my_pages(&self) -> usize {
        (self.checker.pages - self.checker.line_pages) / self.checker.options.threads
    }

    fn some_page(&mut self) -> Page<'a> {
        let n = self.random.below(self.my_pages());
        let page = self.checker.page(self.page_number(n));
        self.at(page.addr);
        page
    }

    /// Four lines of a page that other threads write to as well.
    fn some_lines(&mut self) -> (Page<'a>, Range<usize>) {
        let groups = self.checker.line_pages * PAGE_LINES / 4;
        let group = self.random.below(groups / self.checker.options.threads)
            * self.checker.options.threads
            + self.thread;
        let page = self.checker.page(group * 4 / PAGE_LINES);
        self.at(page.addr);
        (page, group * 4 % PAGE_LINES..group * 4 % PAGE_LINES + 4)
    }

    fn some_range(&mut self) -> Range<usize> {
        if self.random.once_in(2) {
            return ALL;
        }
        let start = self.random.below(PAGE_LINES);
        start..start + self.random.below(PAGE_LINES - start) + 1
    }

    fn write_run(&mut self) {
        let first = self.random.below(self.my_pages());
        let count = self.random.skewed(48).min(self.my_pages() - first);
        let version = self.next_version();
        let look = self.random.once_in(2);
        for n in first..first + count {
            let page = self.checker.page(self.page_number(n));
            self.at(page.addr);
            let lines = self.some_range();
            if look {
                self.check(&page, page.verify(lines.clone()));
            }
            page.write(lines, version);
        }
    }

    fn verify_run(&mut self) {
        let first = self.random.below(self.my_pages());
        let count = self.random.skewed(96).min(self.my_pages() - first);
        let back = self.random.once_in(2);
        for n in 0..count {
            let page = self.checker.page(self.page_number(if back {
                first + count - 1 - n
            } else {
                first + n
            }));
            self.at(page.addr);
            let lines = self.some_range();
            self.check(&page, page.verify(lines));
        }
    }

    fn refresh(&mut self) {
        let page = self.some_page();
        let (pager, both) = (&self.checker.pager, libc::PROT_READ | libc::PROT_WRITE);
        if self.random.once_in(2) {
            self.did("refresh", page.addr, pager.refresh(page.addr, PAGE, both));
        } else {
            self.did("refresh to none", page.addr, pager.refresh(page.addr, PAGE, libc::PROT_NONE));
            self.did("protect after refresh", page.addr, pager.protect(page.addr, PAGE, both));
        }
        page.expect_zeros();
        self.check_sometimes(&page);
    }

    fn protect(&mut self) {
        let page = self.some_page();
        let pager = &self.checker.pager;
        if self.random.once_in(2) {
            self.did("protect none", page.addr, pager.protect(page.addr, PAGE, libc::PROT_NONE));
            (0..self.random.below(50)).for_each(|_| std::thread::yield_now());
        } else {
            self.did("protect read", page.addr, pager.protect(page.addr, PAGE, libc::PROT_READ));
            self.check(&page, page.verify(ALL));
        }
        self.did(
            "protect both",
            page.addr,
            pager.protect(page.addr, PAGE, libc::PROT_READ | libc::PROT_WRITE),
        );
        self.check_sometimes(&page);
    }

    /// The kernel has read managed memory (`out`) or written it, through a file or a pipe.
    fn compare(&self, page: &Page, lines: &Range<usize>, bytes: &[u8]) {
        let expected = page.expected(lines.clone());
        let wrong = expected.chunks(8).zip(bytes.chunks(8)).position(|(a, b)| a != b);
        if let Some(at) = wrong {
            let found = u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
            self.check(page, Err(page.wrong(lines.start * LINE_WORDS + at, found)));
        }
    }

    fn moved(&self, what: &str, addr: usize, got: isize, wanted: usize) {
        if got != wanted as isize {
            let error = std::io::Error::last_os_error();
            self.checker.fail(
                &self.name(),
                &format!("{what} of {wanted} bytes at {addr:#x} gave {got} ({error})"),
            );
        }
    }

    /// Maximum number of pages that this thread maps for itself.
    fn budget(&self) -> usize {
        (self.checker.options.region / 4 / PAGE / self.checker.options.threads).clamp(4, 4096)
    }

    fn map(&mut self) {
        let checker = self.checker;
        let mut own = checker.own[self.thread].lock().unwrap();
        let room = self.budget().saturating_sub(own.maps.iter().map(Map::pages).sum());
        if room == 0 {
            return;
        }
        let pages = if self.random.once_in(3) {
            self.random.below(room) + 1
        } else {
            self.random.skewed(room.min(64))
        };
        let align = PAGE << self.random.below(4);
        let reserve = self.random.once_in(3);
        let mapped = if reserve {
            checker.pager.reserve(pages * PAGE, align)
        } else {
            checker.pager.map(pages * PAGE, align)
        };
        let addr = mapped.unwrap_or_else(|error| {
            checker.fail(&self.name(), &format!("map of {pages} pages: {error}"))
        });
        if addr % align != 0
            || !checker.pager.contains(addr)
            || !checker.pager.contains(addr + pages * PAGE - 1)
        {
            checker.fail(
                &self.name(),
                &format!("map of {pages} pages aligned to {align} gave {addr:#x}"),
            );
        }
        if reserve {
            self.did(
                "protect after reserve",
                addr,
                checker.pager.protect(addr, pages * PAGE, libc::PROT_READ | libc::PROT_WRITE),
            );
        }
        self.maps_made += 1;
        let index = 1 << 35 | (self.thread as u64) << 29 | (self.maps_made & 255) << 21;
        let map = Map {
            addr,
            index,
            versions: (0..pages * PAGE_LINES).map(|_| AtomicU32::new(0)).collect(),
        };
        let look = self.random.below(pages);
        self.check(&map.page(look), map.page(look).verify(ALL));
        own.maps.push(map);
    }

    fn unmap(&mut self) {
        let mut own = self.checker.own[self.thread].lock().unwrap();
        if own.maps.is_empty() {
            return;
        }
        let which = self.random.below(own.maps.len());
        let mut map = own.maps.swap_remove(which);
        self.at(map.addr);
        if self.random.once_in(2) {
            // Only a part of it: the head, the middle or the end.
            let first = self.random.below(map.pages());
            let count = self.random.below(map.pages() - first) + 1;
            let head = map.split(first);
            let middle = map.split(count);
            own.maps.extend([head, map].into_iter().filter(|part| part.pages() > 0));
            map = middle;
        }
        if self.random.once_in(3) {
            // The next mapping there must be usable all the same.
            let prot = if self.random.once_in(2) { libc::PROT_NONE } else { libc::PROT_READ };
            self.did(
                "protect before unmap",
                map.addr,
                self.checker.pager.protect(map.addr, map.bytes(), prot),
            );
        }
        self.did("unmap", map.addr, self.checker.pager.unmap(map.addr, map.bytes()));
    }

    fn resize(&mut self) {
        let mut own = self.checker.own[self.thread].lock().unwrap();
        if own.maps.is_empty() {
            return;
        }
        let room = self.budget().saturating_sub(own.maps.iter().map(Map::pages).sum());
        let which = self.random.below(own.maps.len());
        let map = &mut own.maps[which];
        let (old, may_move) = (map.pages(), !self.random.once_in(4));
        let new = (self.random.below(old + room) + 1).min(4096);
        if (map.index & ((1 << 21) - 1)) / 512 + new as u64 > 4096 {
            return; // The words of the map have no more numbers.
        }
        self.at(map.addr);
        match self.checker.pager.resize(map.addr, old * PAGE, new * PAGE, may_move) {
            Ok(addr) if addr != map.addr && (!may_move || new < old) => {
                self.checker.fail(
                    &self.name(),
                    &format!(
                        "resize of {:#x} from {old} to {new} pages moved it to {addr:#x}",
                        map.addr
                    ),
                );
            }
            Ok(addr) => {
                map.addr = addr;
                map.versions.resize_with(new * PAGE_LINES, || AtomicU32::new(0));
                let count = self.random.skewed(new);
                (new - count..new).for_each(|n| self.check(&map.page(n), map.page(n).verify(ALL)));
            }
            Err(error) if may_move || new <= old => {
                self.checker.fail(
                    &self.name(),
                    &format!("resize of {:#x} from {old} to {new} pages: {error}", map.addr),
                );
            }
            Err(_) => {}
        }
    }

    fn use_own(&mut self) {
        let own = self.checker.own[self.thread].lock().unwrap();
        if own.maps.is_empty() {
            return;
        }
        let map = &own.maps[self.random.below(own.maps.len())];
        let first = self.random.below(map.pages());
        let count = self.random.skewed(512).min(map.pages() - first);
        let pages = || (first..first + count).map(|n| map.page(n));
        match self.random.below(8) {
            0 => {
                self.did(
                    "discard",
                    map.page(first).addr,
                    self.checker.pager.discard(map.page(first).addr, count * PAGE),
                );
                pages().for_each(|page| page.expect_zeros());
            }
            1 => {
                let both = libc::PROT_READ | libc::PROT_WRITE;
                self.did(
                    "refresh",
                    map.page(first).addr,
                    self.checker.pager.refresh(map.page(first).addr, count * PAGE, both),
                );
                pages().for_each(|page| page.expect_zeros());
            }
            2..5 => {
                let version = self.next_version();
                for page in pages() {
                    self.at(page.addr);
                    page.write(ALL, version);
                }
            }
            _ => {
                for page in pages() {
                    self.at(page.addr);
                    self.check(&page, page.verify(ALL));
                }
            }
        }
    }

    /// Verifies all memory of this thread.
    pub fn verify_mine(&self) {
        for n in 0..self.my_pages() {
            let page = self.checker.page(self.page_number(n));
            self.at(page.addr);
            self.check(&page, page.verify(ALL));
        }
        let own = self.checker.own[self.thread].lock().unwrap();
        self.verify_maps(&own);
    }

    pub fn verify_maps(&self, own: &Own) {
        for map in &own.maps {
            for n in 0..map.pages() {
                self.at(map.page(n).addr);
                self.check(&map.page(n), map.page(n).verify(ALL));
            }
        }
    }
}
