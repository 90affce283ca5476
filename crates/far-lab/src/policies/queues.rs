//! Policies of queues: FIFO, CLOCK, S3-FIFO, SIEVE.

use super::Policy;
use crate::links::Links;

/// First in, first out.
pub struct Fifo {
    links: Links,
}

impl Fifo {
    pub fn new(pages: usize) -> Fifo {
        Fifo { links: Links::new(pages, 1) }
    }
}

impl Policy for Fifo {
    fn hit(&mut self, _at: usize, _page: u32) {}

    fn evict(&mut self, _incoming: u32) -> u32 {
        self.links.pop_back(0).expect("memory that is full has pages")
    }

    fn admit(&mut self, _at: usize, page: u32) {
        self.links.push_front(0, page);
    }

    fn forget(&mut self, page: u32) {
        self.links.remove(0, page);
    }
}

/// First in, first out, with a second chance for what was used.
pub struct Clock {
    links: Links,
    used: Vec<bool>,
}

impl Clock {
    pub fn new(pages: usize) -> Clock {
        Clock { links: Links::new(pages, 1), used: vec![false; pages] }
    }
}

impl Policy for Clock {
    fn hit(&mut self, _at: usize, page: u32) {
        self.used[page as usize] = true;
    }

    fn evict(&mut self, _incoming: u32) -> u32 {
        loop {
            let page = self.links.pop_back(0).expect("memory that is full has pages");
            if !std::mem::take(&mut self.used[page as usize]) {
                return page;
            }
            self.links.push_front(0, page);
        }
    }

    fn admit(&mut self, _at: usize, page: u32) {
        self.used[page as usize] = false;
        self.links.push_front(0, page);
    }

    fn forget(&mut self, page: u32) {
        self.links.remove(0, page);
    }
}

/// SIEVE: a hand moves from the oldest to the newest, evicts what was not used, and leaves used
/// pages in place.
pub struct Sieve {
    links: Links,
    used: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    pub fn new(pages: usize) -> Sieve {
        Sieve { links: Links::new(pages, 1), used: vec![false; pages], hand: None }
    }
}

impl Policy for Sieve {
    fn hit(&mut self, _at: usize, page: u32) {
        self.used[page as usize] = true;
    }

    fn evict(&mut self, _incoming: u32) -> u32 {
        let mut page =
            self.hand.or_else(|| self.links.back(0)).expect("memory that is full has pages");
        while std::mem::take(&mut self.used[page as usize]) {
            page = self
                .links
                .towards_front(page)
                .or_else(|| self.links.back(0))
                .expect("memory that is full has pages");
        }
        self.hand = self.links.towards_front(page);
        self.links.remove(0, page);
        page
    }

    fn admit(&mut self, _at: usize, page: u32) {
        self.used[page as usize] = false;
        self.links.push_front(0, page);
    }

    fn forget(&mut self, page: u32) {
        if self.hand == Some(page) {
            self.hand = self.links.towards_front(page);
        }
        self.links.remove(0, page);
    }
}

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOSTS: usize = 2;
const NOWHERE: u8 = 3;
/// Part of memory for the small queue.
const SMALL_SHARE: usize = 10;
const USES_MAX: u8 = 3;

/// S3-FIFO: a small queue for new pages, a main queue with second chances, and ghosts of pages
/// evicted from the small one.
pub struct S3Fifo {
    links: Links,
    list: Vec<u8>,
    uses: Vec<u8>,
    small_max: usize,
    ghosts_max: usize,
}

impl S3Fifo {
    pub fn new(pages: usize, capacity: usize) -> S3Fifo {
        let small_max = (capacity / SMALL_SHARE).max(1);
        S3Fifo {
            links: Links::new(pages, 3),
            list: vec![NOWHERE; pages],
            uses: vec![0; pages],
            small_max,
            ghosts_max: capacity.saturating_sub(small_max).max(1),
        }
    }

    fn put(&mut self, list: usize, page: u32) {
        self.list[page as usize] = list as u8;
        self.links.push_front(list, page);
    }
}

impl Policy for S3Fifo {
    fn hit(&mut self, _at: usize, page: u32) {
        let uses = &mut self.uses[page as usize];
        *uses = (*uses + 1).min(USES_MAX);
    }

    fn evict(&mut self, _incoming: u32) -> u32 {
        loop {
            let from_small = self.links.len(SMALL) >= self.small_max || self.links.len(MAIN) == 0;
            let list = if from_small { SMALL } else { MAIN };
            let page = self.links.pop_back(list).expect("memory that is full has pages");
            let uses = &mut self.uses[page as usize];
            if from_small && *uses > 1 {
                *uses = 0;
                self.put(MAIN, page);
            } else if from_small {
                self.put(GHOSTS, page);
                if self.links.len(GHOSTS) > self.ghosts_max {
                    let oldest = self.links.pop_back(GHOSTS).expect("there are more than none");
                    self.list[oldest as usize] = NOWHERE;
                }
                return page;
            } else if *uses > 0 {
                *uses -= 1;
                self.put(MAIN, page);
            } else {
                self.list[page as usize] = NOWHERE;
                return page;
            }
        }
    }

    fn admit(&mut self, _at: usize, page: u32) {
        self.uses[page as usize] = 0;
        if usize::from(self.list[page as usize]) == GHOSTS {
            self.links.remove(GHOSTS, page);
            self.put(MAIN, page);
        } else {
            self.put(SMALL, page);
        }
    }

    fn forget(&mut self, page: u32) {
        self.links.remove(self.list[page as usize].into(), page);
        self.list[page as usize] = NOWHERE;
    }
}
