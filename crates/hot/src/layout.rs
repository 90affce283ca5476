//! Where a process's own memory is, divided into 2 MiB ranges.

use hiroma_sys::hot::maps::Vma;
use hiroma_sys::hot::target::Span;
use hiroma_units::{EXTENT, PAGE};

use crate::bits::{self, PageBits};

const RANGE: u64 = EXTENT as u64;

/// The spans that are tracked: private anonymous memory, sorted by address. Adjacent spans are
/// separate mappings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    spans: Vec<Span>,
}

impl Layout {
    /// The private anonymous memory among `maps`, which are sorted by address.
    pub fn of(maps: &[Vma]) -> Layout {
        let ours = |vma: &&Vma| vma.anonymous && vma.writable && !vma.shared;
        Layout {
            spans: maps
                .iter()
                .filter(ours)
                .map(|vma| Span { start: vma.start, len: vma.end - vma.start })
                .collect(),
        }
    }

    /// The spans.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Whether one mapping covers all of `range`, so that it can be huge.
    pub fn holds_whole(&self, range: u64) -> bool {
        let (start, end) = (range * RANGE, (range + 1) * RANGE);
        let after = self.spans.partition_point(|span| span.start <= start);
        self.spans[..after].last().is_some_and(|span| end <= span.start + span.len)
    }

    /// Whether any part of `range` is tracked.
    pub fn holds_part(&self, range: u64) -> bool {
        let (start, end) = (range * RANGE, (range + 1) * RANGE);
        let after = self.spans.partition_point(|span| span.start < end);
        self.spans[..after].last().is_some_and(|span| span.start + span.len > start)
    }

    /// The pages of `range` that are tracked.
    pub fn pages_of(&self, range: u64) -> PageBits {
        if self.holds_whole(range) {
            return bits::ALL;
        }
        let mut pages = bits::NONE;
        let mut parts = Vec::new();
        self.parts_of(&[range], &mut parts);
        for part in &parts {
            pages = bits::or(&pages, &pages_in(range, part));
        }
        pages
    }

    /// Appends the tracked parts of `ranges` (ascending). Adjacent parts of one mapping are joined.
    pub fn parts_of(&self, ranges: &[u64], out: &mut Vec<Span>) {
        let Some(&lowest) = ranges.first() else { return };
        let mut at = self.spans.partition_point(|span| span.start + span.len <= lowest * RANGE);
        let mut next = 0;
        while next < ranges.len() {
            let first = next;
            while next + 1 < ranges.len() && ranges[next + 1] == ranges[next] + 1 {
                next += 1;
            }
            let (start, end) = (ranges[first] * RANGE, (ranges[next] + 1) * RANGE);
            next += 1;
            while at < self.spans.len() && self.spans[at].start + self.spans[at].len <= start {
                at += 1;
            }
            for span in self.spans[at..].iter().take_while(|span| span.start < end) {
                let (from, to) = (span.start.max(start), (span.start + span.len).min(end));
                out.push(Span { start: from, len: to - from });
            }
        }
    }
}

/// The pages of `range` that are in `span`.
pub fn pages_in(range: u64, span: &Span) -> PageBits {
    let page_at = |address: u64| {
        (address.clamp(range * RANGE, (range + 1) * RANGE) - range * RANGE) / PAGE as u64
    };
    let mut pages = bits::NONE;
    for page in page_at(span.start)..page_at(span.start + span.len) {
        pages[page as usize / 64] |= 1 << (page % 64);
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(spans: &[(u64, u64)]) -> Layout {
        let maps: Vec<Vma> = spans
            .iter()
            .map(|&(start, end)| Vma {
                start,
                end,
                writable: true,
                shared: false,
                anonymous: true,
                name: String::new(),
            })
            .collect();
        Layout::of(&maps)
    }

    #[test]
    fn range_shared_by_two_mappings_cannot_be_huge() {
        let layout = layout(&[(RANGE / 2, 3 * RANGE), (3 * RANGE, 4 * RANGE + 4096)]);
        let whole: Vec<bool> = (0..6).map(|range| layout.holds_whole(range)).collect();
        assert_eq!(whole, [false, true, true, true, false, false]);
        let part: Vec<bool> = (0..6).map(|range| layout.holds_part(range)).collect();
        assert_eq!(part, [true, true, true, true, true, false]);
    }

    #[test]
    fn span_pages_are_found_in_each_range() {
        let span = Span { start: RANGE + RANGE / 2, len: RANGE };
        let low = [u64::MAX, u64::MAX, u64::MAX, u64::MAX, 0, 0, 0, 0];
        let high = [0, 0, 0, 0, u64::MAX, u64::MAX, u64::MAX, u64::MAX];
        assert_eq!(
            (0..4).map(|range| pages_in(range, &span)).collect::<Vec<_>>(),
            [bits::NONE, high, low, bits::NONE]
        );
    }

    #[test]
    fn adjacent_ranges_merge_and_edges_are_clipped() {
        let layout = layout(&[(RANGE / 2, 3 * RANGE), (5 * RANGE, 6 * RANGE)]);
        let mut parts = Vec::new();
        layout.parts_of(&[0, 1, 2, 4, 5], &mut parts);
        assert_eq!(layout.pages_of(0), [0, 0, 0, 0, u64::MAX, u64::MAX, u64::MAX, u64::MAX]);
        assert_eq!((layout.pages_of(1), layout.pages_of(4)), (bits::ALL, bits::NONE));
        assert_eq!(
            parts,
            [Span { start: RANGE / 2, len: 5 * RANGE / 2 }, Span { start: 5 * RANGE, len: RANGE }]
        );
    }
}
