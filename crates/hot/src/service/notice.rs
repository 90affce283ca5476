//! When a process is notified of its active pages, and of which.
//!
//! Pages wait here until they are fetched, so a signal that is late, or arrives while an earlier
//! one is being handled, loses nothing. A range that was reported is reported again only when it
//! has become much hotter or some time has passed: what the process once left alone need not be
//! repeated in every pass.

use std::collections::BTreeMap;

use hiroma_units::EXTENT;

use super::protocol::Page;

/// A range that was reported is not reported again for this long …
const QUIET_NS: u64 = 10_000_000_000;
/// … unless this many more of its pages are active: a sixteenth.
const MUCH_MORE_PAGES: usize = 32;

fn range_of(page: &Page) -> u64 {
    page.address / EXTENT as u64
}

/// The notices of one process.
#[derive(Debug)]
pub struct Notice {
    pages_min: usize,
    overdue_ns: u64,
    /// By address.
    waiting: Vec<Page>,
    /// A signal was sent, and nothing was fetched since.
    announced: bool,
    handling_since_ns: Option<u64>,
    /// The process has fetched a part of what waits, and will fetch the rest.
    partly_taken: bool,
    overdue_said: bool,
    reported: BTreeMap<u64, Reported>,
}

#[derive(Debug)]
struct Reported {
    pages: usize,
    at_ns: u64,
}

impl Notice {
    /// The process is notified when at least `pages_min` pages are active, and is stuck when it
    /// handles them for longer than `overdue_ns`.
    pub fn new(pages_min: usize, overdue_ns: u64) -> Notice {
        Notice {
            pages_min: pages_min.max(1),
            overdue_ns,
            waiting: Vec::new(),
            announced: false,
            handling_since_ns: None,
            partly_taken: false,
            overdue_said: false,
            reported: BTreeMap::new(),
        }
    }

    /// Takes the active pages of a pass (by address), which replace those of the previous pass
    /// unless those are just being fetched. Returns of how many pages to notify the process, if it
    /// has to be notified.
    pub fn offer(&mut self, pages: &[Page], now_ns: u64) -> Option<u64> {
        if self.partly_taken {
            return None;
        }
        self.reported.retain(|_, reported| now_ns.saturating_sub(reported.at_ns) < QUIET_NS);
        self.waiting.clear();
        for range in pages.chunk_by(|a, b| range_of(a) == range_of(b)) {
            let known = self
                .reported
                .get(&range_of(&range[0]))
                .map_or(0, |reported| reported.pages + MUCH_MORE_PAGES);
            if range.len() > known {
                self.waiting.extend_from_slice(range);
            }
        }
        self.due()
    }

    /// Of how many pages to notify the process, if it has not been notified and there are enough.
    pub fn due(&self) -> Option<u64> {
        let quiet = self.announced || self.handling_since_ns.is_some();
        (!quiet && self.waiting.len() >= self.pages_min).then_some(self.waiting.len() as u64)
    }

    /// Records that the process was notified.
    pub fn announced(&mut self) {
        self.announced = true;
    }

    /// Removes at most `most` of the waiting pages, in order of address; a range is cut only if it
    /// does not fit alone. Returns them and how many are left.
    pub fn take(&mut self, most: usize, now_ns: u64) -> (Vec<Page>, usize) {
        let mut end = most.min(self.waiting.len());
        if end < self.waiting.len() && end > 0 {
            let cut = range_of(&self.waiting[end]);
            let begin = self.waiting[..end].partition_point(|page| range_of(page) < cut);
            if begin > 0 {
                end = begin;
            }
        }
        let taken: Vec<Page> = self.waiting.drain(..end).collect();
        if !taken.is_empty() {
            let since = *self.handling_since_ns.get_or_insert(now_ns);
            for range in taken.chunk_by(|a, b| range_of(a) == range_of(b)) {
                let reported = self
                    .reported
                    .entry(range_of(&range[0]))
                    .or_insert(Reported { pages: 0, at_ns: now_ns });
                // A range that was cut arrives in several pieces.
                let before = if reported.at_ns >= since { reported.pages } else { 0 };
                *reported = Reported { pages: before + range.len(), at_ns: now_ns };
            }
        }
        self.announced = false;
        self.partly_taken = self.handling_since_ns.is_some() && !self.waiting.is_empty();
        (taken, self.waiting.len())
    }

    /// The process has finished handling the pages that it fetched.
    pub fn handled(&mut self) {
        self.handling_since_ns = None;
        self.partly_taken = false;
        self.overdue_said = false;
    }

    /// Seconds for which the process has been handling pages, if that is too long; returned once.
    pub fn overdue_s(&mut self, now_ns: u64) -> Option<u64> {
        let passed = now_ns.saturating_sub(self.handling_since_ns?);
        if passed < self.overdue_ns || self.overdue_said {
            return None;
        }
        self.overdue_said = true;
        Some(passed / 1_000_000_000)
    }

    /// When [`Notice::overdue_s`] has to be called again.
    pub fn overdue_at_ns(&self) -> Option<u64> {
        self.handling_since_ns
            .filter(|_| !self.overdue_said)
            .map(|since| since.saturating_add(self.overdue_ns))
    }

    /// The number of pages that wait to be fetched.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Ranges among them with at least `pages` active pages.
    pub fn waiting_ranges(&self, pages: usize) -> u64 {
        self.waiting
            .chunk_by(|a, b| range_of(a) == range_of(b))
            .filter(|range| range.len() >= pages)
            .count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;
    const OVERDUE_NS: u64 = 10 * S;

    fn page(range: u64, number: u64) -> Page {
        Page { address: range * EXTENT as u64 + number * 4096, count: 3, reserved: 0 }
    }

    fn pages(range: u64, count: u64) -> Vec<Page> {
        (0..count).map(|number| page(range, number)).collect()
    }

    #[test]
    fn one_signal_until_fetched_and_none_while_handling() {
        let mut notice = Notice::new(3, OVERDUE_NS);
        assert_eq!(notice.offer(&pages(1, 2), 0), None);
        assert_eq!(notice.offer(&pages(1, 3), 0), Some(3));
        notice.announced();
        assert_eq!(notice.offer(&pages(1, 4), S), None);
        let (taken, left) = notice.take(100, 2 * S);
        assert_eq!((taken.len(), left), (4, 0));
        // Pages that become active meanwhile are not lost: they wait until the process is done.
        assert_eq!(notice.offer(&pages(2, 9), 3 * S), None);
        notice.handled();
        assert_eq!(notice.due(), Some(9));
    }

    #[test]
    fn unhandled_pages_are_announced_again_only_when_hotter() {
        let mut notice = Notice::new(1, OVERDUE_NS);
        notice.offer(&pages(1, 100), 0);
        notice.take(1000, 0);
        notice.handled();
        assert_eq!(notice.offer(&pages(1, 110), S), None);
        assert_eq!(notice.offer(&pages(1, 140), S), Some(140));
        assert_eq!(notice.offer(&pages(1, 100), S + QUIET_NS), Some(100));
    }

    #[test]
    fn small_buffer_gets_whole_ranges() {
        let mut notice = Notice::new(1, OVERDUE_NS);
        let all = [pages(1, 10), pages(2, 10), pages(3, 30)].concat();
        notice.offer(&all, 0);
        assert_eq!(notice.take(15, 0).0, pages(1, 10));
        // A pass that ends meanwhile does not change what is being fetched.
        assert_eq!(notice.offer(&all, 1), None);
        assert_eq!(notice.take(25, 0).0, pages(2, 10));
        // The third range fits in no buffer: it is split.
        assert_eq!(notice.take(25, 0), (all[20..45].to_vec(), 5));
        assert_eq!(notice.take(0, 0), (vec![], 5));
        assert_eq!(notice.take(usize::MAX, 0), (all[45..].to_vec(), 0));
        notice.handled();
        assert_eq!(notice.offer(&pages(3, 30), S), None);
    }

    #[test]
    fn overdue_process_is_reported_once() {
        let mut notice = Notice::new(1, OVERDUE_NS);
        notice.offer(&pages(1, 1), 0);
        assert_eq!(notice.overdue_at_ns(), None);
        notice.take(1, S);
        assert_eq!(notice.overdue_at_ns(), Some(S + OVERDUE_NS));
        assert_eq!(notice.overdue_s(2 * S), None);
        assert_eq!(notice.overdue_s(20 * S), Some(19));
        assert_eq!(notice.overdue_s(30 * S), None);
        notice.handled();
        assert_eq!(notice.overdue_at_ns(), None);
    }

    proptest! {
        #[test]
        fn every_page_is_returned_once_for_any_buffer(
            counts in proptest::collection::vec(1u64..60, 1..12), buffers in proptest::collection::vec(1usize..100, 1..6),
        ) {
            let all: Vec<Page> = counts.iter().enumerate().flat_map(|(range, &count)| pages(range as u64 * 3, count)).collect();
            let mut notice = Notice::new(1, OVERDUE_NS);
            notice.offer(&all, 5);
            let (mut seen, mut turn) = (Vec::new(), 0);
            while notice.waiting() > 0 {
                let (taken, left) = notice.take(buffers[turn % buffers.len()], 5);
                prop_assert!(!taken.is_empty());
                seen.extend(taken);
                prop_assert_eq!(left, all.len() - seen.len());
                turn += 1;
            }
            prop_assert_eq!(seen, all.clone());
            notice.handled();
            prop_assert_eq!(notice.offer(&all, 6), None);
        }
    }
}
