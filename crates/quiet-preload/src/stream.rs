//! Detects whether a descriptor is read or written as a stream, and what may be dropped behind it.
//! Pure.

use std::ops::Range;

/// A file smaller than this is left alone.
pub const SMALL: u64 = 8 << 20;
/// A sequential run of this many bytes is a stream.
pub const RUN: u64 = 1 << 20;
/// The amount that is dropped at a time.
pub const WINDOW: u64 = 8 << 20;
const PAGE: u64 = 4096;
const BLOCKS: usize = 2048;

/// The blocks of a file that had cached pages before the program started.
#[derive(Clone, Debug)]
pub struct CachedBlocks {
    /// A block is a window, doubled this many times.
    doubled: u32,
    bits: [u64; BLOCKS / 64],
}

impl CachedBlocks {
    /// No block is kept.
    pub const fn none() -> CachedBlocks {
        CachedBlocks { doubled: 0, bits: [0; BLOCKS / 64] }
    }

    /// Calls `cached` for each block of a file of `size` bytes.
    pub fn look(size: u64, mut cached: impl FnMut(Range<u64>) -> bool) -> CachedBlocks {
        let mut kept = CachedBlocks::none();
        while size.div_ceil(kept.block()) > BLOCKS as u64 {
            kept.doubled += 1;
        }
        let block = kept.block();
        for index in 0..size.div_ceil(block) {
            let start = index * block;
            if cached(start..(start + block).min(size)) {
                kept.bits[index as usize / 64] |= 1 << (index % 64);
            }
        }
        kept
    }

    fn block(&self) -> u64 {
        WINDOW << self.doubled
    }

    fn has(&self, index: u64) -> bool {
        self.bits.get((index / 64) as usize).is_some_and(|bits| bits & (1 << (index % 64)) != 0)
    }

    /// The parts of a range that may be dropped.
    pub fn others(&self, range: Range<u64>, mut drop: impl FnMut(Range<u64>)) {
        let (mut at, block) = (range.start, self.block());
        while at < range.end {
            let end = ((at / block + 1) * block).min(range.end);
            if !self.has(at / block) {
                drop(at..end);
            }
            at = end;
        }
    }
}

/// One direction of one descriptor.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Where the stream's next access begins, and the furthest offset reached.
    next: u64,
    high: u64,
    run: u64,
    /// Where the stream began, and where the part begins that was not dropped yet.
    began: u64,
    dropped: u64,
    /// The file was used twice: the program may use it again.
    again: bool,
}

impl Stream {
    /// A stream without accesses.
    pub const fn new() -> Stream {
        Stream { next: 0, high: 0, run: 0, began: 0, dropped: 0, again: false }
    }

    /// To be called before an access at `offset`. Returns whether it belongs to a stream.
    pub fn begin(&mut self, offset: u64) -> bool {
        if offset != self.next {
            self.again |= offset < self.high && self.run >= RUN;
            self.run = 0;
            (self.began, self.dropped, self.next) = (offset, offset, offset);
        }
        !self.again && self.run >= RUN
    }

    /// The access advanced by `bytes`. Returns what can be dropped behind it, in whole pages.
    pub fn passed(&mut self, bytes: u64) -> Option<Range<u64>> {
        self.next = self.next.saturating_add(bytes);
        self.run = self.run.saturating_add(bytes);
        self.high = self.high.max(self.next);
        if self.again || self.run < RUN || self.next - self.dropped < WINDOW {
            return None;
        }
        self.rest()
    }

    /// What is behind the stream and was not dropped yet, in whole pages, and the last window of
    /// what was: a large folio is dropped only when all of it is behind. None if it is not a
    /// stream.
    pub fn rest(&mut self) -> Option<Range<u64>> {
        let (start, end) = (self.dropped.next_multiple_of(PAGE), self.next / PAGE * PAGE);
        let again = start.saturating_sub(WINDOW).max(self.began.next_multiple_of(PAGE));
        if self.again || self.run < RUN || start >= end {
            return None;
        }
        self.dropped = end;
        Some(again..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sequential_read_is_dropped_behind() {
        let mut stream = Stream::new();
        let mut dropped: u64 = 0;
        for at in (0..64 << 20).step_by(128 << 10) {
            assert_eq!(stream.begin(at), at >= RUN);
            if let Some(range) = stream.passed(128 << 10) {
                assert_eq!(range.start, dropped.saturating_sub(WINDOW));
                dropped = range.end;
            }
        }
        assert_eq!(dropped, 64 << 20);
    }

    #[test]
    fn file_read_again_is_no_longer_dropped() {
        let mut stream = Stream::new();
        for at in [0, 1 << 20, 2 << 20, 0] {
            stream.begin(at);
            stream.passed(1 << 20);
        }
        for at in 1..100 {
            assert!(!stream.begin(at << 20));
            assert_eq!(stream.passed(1 << 20), None);
        }
        assert_eq!(stream.rest(), None);
    }

    #[test]
    fn reading_the_header_first_is_not_rereading() {
        let mut stream = Stream::new();
        stream.begin(0);
        stream.passed(4096);
        for at in 0..20 {
            assert_eq!(stream.begin(at << 20), at > 0, "{at}");
            stream.passed(1 << 20);
        }
    }

    #[test]
    fn blocks_that_were_cached_are_kept() {
        let size = 100 << 20;
        let kept = CachedBlocks::look(size, |range| range.start == 16 << 20);
        let mut dropped = Vec::new();
        kept.others(4096..40 << 20, |range| dropped.push(range));
        assert_eq!(
            dropped,
            [4096..8 << 20, 8 << 20..16 << 20, 24 << 20..32 << 20, 32 << 20..40 << 20]
        );
        // The number of blocks is limited, however large the file is.
        let mut asked = 0;
        CachedBlocks::look(1 << 50, |_| {
            asked += 1;
            true
        })
        .others(0..1 << 50, |range| panic!("{range:?}"));
        assert!(asked <= BLOCKS);
    }

    proptest! {
        #[test]
        fn only_passed_bytes_are_dropped(steps in prop::collection::vec((0u64..5, 1u64..3_000_000), 1..200)) {
            let mut stream = Stream::new();
            let (mut at, mut passed) = (0u64, Vec::new());
            for (jump, bytes) in steps {
                at = if jump == 0 { at + 5_000_000 } else { at };
                stream.begin(at);
                passed.push(at..at + bytes);
                at += bytes;
                if let Some(range) = stream.passed(bytes) {
                    prop_assert!(range.start % PAGE == 0 && range.end % PAGE == 0 && range.start < range.end);
                    // The range is covered by accesses that follow each other without a gap.
                    let covered: u64 = passed.iter().map(|one| one.end.min(range.end).saturating_sub(one.start.max(range.start))).sum();
                    prop_assert_eq!(covered, range.end - range.start);
                }
            }
        }
    }
}
