//! Lists that a page is in at most one of, linked through tables: every operation takes the same
//! short time.

/// Several lists over the pages `0..pages`.
pub(crate) struct Links {
    next: Vec<u32>,
    prev: Vec<u32>,
    len: Vec<usize>,
    pages: usize,
}

impl Links {
    /// `lists` empty lists.
    pub(crate) fn new(pages: usize, lists: usize) -> Links {
        let places: Vec<u32> = (0..(pages + lists) as u32).collect();
        Links { next: places.clone(), prev: places, len: vec![0; lists], pages }
    }

    fn head(&self, list: usize) -> u32 {
        (self.pages + list) as u32
    }

    pub(crate) fn len(&self, list: usize) -> usize {
        self.len[list]
    }

    pub(crate) fn push_front(&mut self, list: usize, page: u32) {
        let (head, first) = (self.head(list), self.next[self.head(list) as usize]);
        (self.prev[page as usize], self.next[page as usize]) = (head, first);
        (self.next[head as usize], self.prev[first as usize]) = (page, page);
        self.len[list] += 1;
    }

    /// Removes a page from the list that it is in.
    pub(crate) fn remove(&mut self, list: usize, page: u32) {
        let (before, after) = (self.prev[page as usize], self.next[page as usize]);
        (self.next[before as usize], self.prev[after as usize]) = (after, before);
        self.len[list] -= 1;
    }

    pub(crate) fn back(&self, list: usize) -> Option<u32> {
        (self.len[list] > 0).then(|| self.prev[self.head(list) as usize])
    }

    pub(crate) fn pop_back(&mut self, list: usize) -> Option<u32> {
        let page = self.back(list)?;
        self.remove(list, page);
        Some(page)
    }

    /// The page nearer to the front; none at the front.
    pub(crate) fn towards_front(&self, page: u32) -> Option<u32> {
        Some(self.prev[page as usize]).filter(|&page| (page as usize) < self.pages)
    }

    /// All of a list, from the back.
    pub(crate) fn iter_from_back(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.back(list), |&page| self.towards_front(page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_move_between_lists_and_keep_their_order() {
        let mut links = Links::new(10, 2);
        (0..5).for_each(|page| links.push_front(0, page));
        links.remove(0, 2);
        links.push_front(1, 2);
        assert_eq!(links.iter_from_back(0).collect::<Vec<_>>(), [0, 1, 3, 4]);
        assert_eq!((links.pop_back(1), links.pop_back(1), links.len(0)), (Some(2), None, 4));
        assert_eq!((links.towards_front(4), links.towards_front(1)), (None, Some(3)));
    }
}
