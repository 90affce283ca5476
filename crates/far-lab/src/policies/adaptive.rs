//! ARC: pages used once and pages used twice share memory, depending on which of the two were
//! evicted too soon.

use super::Policy;
use crate::links::Links;

const ONCE: usize = 0;
const TWICE: usize = 1;
const GHOSTS_ONCE: usize = 2;
const GHOSTS_TWICE: usize = 3;
const NOWHERE: u8 = 4;

/// ARC as described by Megiddo and Modha.
pub struct Arc {
    links: Links,
    list: Vec<u8>,
    capacity: usize,
    /// Part of memory intended for pages that were used once.
    target: usize,
}

impl Arc {
    pub fn new(pages: usize, capacity: usize) -> Arc {
        Arc {
            links: Links::new(pages, 4),
            list: vec![NOWHERE; pages],
            capacity: capacity.max(1),
            target: 0,
        }
    }

    fn place(&self, page: u32) -> usize {
        self.list[page as usize].into()
    }

    fn put(&mut self, list: usize, page: u32) {
        self.list[page as usize] = list as u8;
        self.links.push_front(list, page);
    }

    fn drop_ghost(&mut self, list: usize) {
        if let Some(page) = self.links.pop_back(list) {
            self.list[page as usize] = NOWHERE;
        }
    }

    fn adapt(&mut self, incoming: u32) {
        let (once, twice) = (self.links.len(GHOSTS_ONCE), self.links.len(GHOSTS_TWICE));
        match self.place(incoming) {
            GHOSTS_ONCE => self.target = (self.target + (twice / once).max(1)).min(self.capacity),
            GHOSTS_TWICE => self.target = self.target.saturating_sub((once / twice).max(1)),
            _ => {}
        }
    }
}

impl Policy for Arc {
    fn hit(&mut self, _at: usize, page: u32) {
        self.links.remove(self.place(page), page);
        self.put(TWICE, page);
    }

    fn evict(&mut self, incoming: u32) -> u32 {
        self.adapt(incoming);
        let is_known = self.place(incoming) != usize::from(NOWHERE);
        if !is_known && self.links.len(ONCE) == self.capacity {
            let page = self.links.pop_back(ONCE).expect("memory that is full has pages");
            self.list[page as usize] = NOWHERE;
            return page;
        }
        let once = self.links.len(ONCE);
        let from_once = once > 0
            && (once > self.target || once == self.target && self.place(incoming) == GHOSTS_TWICE);
        let (from, to) = if from_once || self.links.len(TWICE) == 0 {
            (ONCE, GHOSTS_ONCE)
        } else {
            (TWICE, GHOSTS_TWICE)
        };
        let page = self.links.pop_back(from).expect("memory that is full has pages");
        self.put(to, page);
        page
    }

    fn admit(&mut self, _at: usize, page: u32) {
        let place = self.place(page);
        if place != usize::from(NOWHERE) {
            self.links.remove(place, page);
        }
        self.put(if place == usize::from(NOWHERE) { ONCE } else { TWICE }, page);
        while self.links.len(ONCE) + self.links.len(GHOSTS_ONCE) > self.capacity
            && self.links.len(GHOSTS_ONCE) > 0
        {
            self.drop_ghost(GHOSTS_ONCE);
        }
        while (0..4).map(|list| self.links.len(list)).sum::<usize>() > 2 * self.capacity
            && self.links.len(GHOSTS_TWICE) > 0
        {
            self.drop_ghost(GHOSTS_TWICE);
        }
    }

    fn forget(&mut self, page: u32) {
        self.links.remove(self.place(page), page);
        self.list[page as usize] = NOWHERE;
    }
}
