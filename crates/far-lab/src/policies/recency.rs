//! Least recently used, exactly and by generations.

use super::Policy;
use crate::links::Links;

/// Exact LRU.
pub struct Lru {
    links: Links,
}

impl Lru {
    pub fn new(pages: usize) -> Lru {
        Lru { links: Links::new(pages, 1) }
    }
}

impl Policy for Lru {
    fn hit(&mut self, _at: usize, page: u32) {
        self.links.remove(0, page);
        self.links.push_front(0, page);
    }

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

/// Generations as in the multi-generational LRU of Linux, without its tiers: pages enter the
/// youngest of up to four; a used page at the end of the oldest moves to the youngest; when only
/// two generations are left, a new one begins and takes all pages that were used since the last
/// check.
pub struct Generations {
    links: Links,
    list: Vec<u8>,
    used: Vec<bool>,
    oldest: u64,
    youngest: u64,
}

const LISTS: u64 = 4;
const LEAST: u64 = 2;

impl Generations {
    pub fn new(pages: usize) -> Generations {
        Generations {
            links: Links::new(pages, LISTS as usize),
            list: vec![0; pages],
            used: vec![false; pages],
            oldest: 0,
            youngest: 1,
        }
    }

    fn place(&mut self, page: u32, generation: u64) {
        self.list[page as usize] = (generation % LISTS) as u8;
        self.used[page as usize] = false;
        self.links.push_front((generation % LISTS) as usize, page);
    }

    fn begin_generation(&mut self) {
        self.youngest += 1;
        let lists = (self.oldest..self.youngest).map(|generation| (generation % LISTS) as usize);
        let used: Vec<u32> = lists
            .flat_map(|list| self.links.iter_from_back(list))
            .filter(|&page| self.used[page as usize])
            .collect();
        for page in used {
            self.links.remove(self.list[page as usize].into(), page);
            self.place(page, self.youngest);
        }
    }
}

impl Policy for Generations {
    fn hit(&mut self, _at: usize, page: u32) {
        self.used[page as usize] = true;
    }

    fn evict(&mut self, _incoming: u32) -> u32 {
        loop {
            let oldest = (self.oldest % LISTS) as usize;
            let is_last = self.youngest - self.oldest < LEAST;
            match self.links.back(oldest) {
                _ if is_last => self.begin_generation(),
                None => self.oldest += 1,
                Some(page) => {
                    self.links.remove(oldest, page);
                    if !self.used[page as usize] {
                        return page;
                    }
                    self.place(page, self.youngest);
                }
            }
        }
    }

    fn admit(&mut self, _at: usize, page: u32) {
        self.place(page, self.youngest);
    }

    fn forget(&mut self, page: u32) {
        self.links.remove(self.list[page as usize].into(), page);
    }
}
