//! Which part of a file is behind a stream: read or written while it was watched, and not needed
//! any more as far as is known.

use std::ops::Range;

/// This much next to the position is left alone: it may be read again soon, or is not written back
/// yet.
const WINDOW_BYTES: u64 = 8 << 20;
/// What is further behind was dropped some observations ago, or its device is slower than any
/// interval.
const LAG_BYTES: u64 = 256 << 20;
/// Position and bytes moved are read one after the other, and calls under way are counted in only
/// one of them.
const SLACK_BYTES: u64 = 16 << 20;
/// A file that moves by less between observations is not worth a call.
const MOVED_BYTES_MIN: u64 = 1 << 20;

/// The position of an open file, from observation to observation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Position at the first observation, or after a jump: what is before was not read while it was
    /// watched.
    first: u64,
    last: u64,
    /// It moved back: parts are read again, so the cached pages are needed.
    again: bool,
}

impl Stream {
    /// First observation, at this position.
    pub fn new(position: u64) -> Stream {
        Stream { first: position, last: position, again: false }
    }

    /// The file is at `position` now, and the processes that have it open have moved `moved` bytes
    /// through system calls since the last observation. Returns what can be dropped; each part is
    /// returned twice in the course of observations, because data that was written is only on its
    /// device the second time.
    pub fn look(&mut self, position: u64, moved: u64) -> Option<Range<u64>> {
        let step = position.checked_sub(self.last);
        match step {
            None => self.again = true,
            Some(step) if step > moved.saturating_add(SLACK_BYTES) => self.first = position,
            Some(_) => {}
        }
        self.last = position;
        if self.again || step.is_none_or(|step| step < MOVED_BYTES_MIN) {
            return None;
        }
        let end = position.checked_sub(WINDOW_BYTES)?;
        let start = self.first.max(end.saturating_sub(LAG_BYTES));
        (start < end).then_some(start..end)
    }

    /// Whether it moved back.
    pub fn is_read_again(&self) -> bool {
        self.again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn watched_stream_is_dropped_behind_its_window() {
        let mut stream = Stream::new(100 * MIB);
        assert_eq!(stream.look(104 * MIB, 4 * MIB), None);
        assert_eq!(stream.look(120 * MIB, 16 * MIB), Some(100 * MIB..112 * MIB));
        assert_eq!(stream.look(120 * MIB, 0), None);
        // Once more, for data that was not written back.
        assert_eq!(stream.look(140 * MIB, 20 * MIB), Some(100 * MIB..132 * MIB));
        assert_eq!(stream.look(1140 * MIB, 1000 * MIB), Some(876 * MIB..1132 * MIB));
    }

    #[test]
    fn jump_restarts_dropping_and_step_back_stops_it() {
        let mut stream = Stream::new(0);
        assert_eq!(stream.look(500 * MIB, 10 * MIB), None);
        assert_eq!(stream.look(520 * MIB, 20 * MIB), Some(500 * MIB..512 * MIB));
        assert_eq!(stream.look(100 * MIB, 20 * MIB), None);
        assert!(stream.is_read_again());
        assert_eq!(stream.look(600 * MIB, 500 * MIB), None);
    }

    proptest! {
        /// Only what was passed while it was watched is dropped.
        #[test]
        fn only_passed_bytes_are_dropped(start in 0..4096u64, steps in prop::collection::vec((0..4096u64, 0..4096u64), 1..30)) {
            let mut stream = Stream::new(start * MIB);
            let (mut passed, mut last): (Vec<Range<u64>>, u64) = (Vec::new(), start);
            for (position, moved) in steps {
                if position >= last && position - last <= moved + SLACK_BYTES / MIB {
                    passed.push(last..position);
                }
                last = position;
                if let Some(range) = stream.look(position * MIB, moved * MIB) {
                    for at in (range.start / MIB)..(range.end / MIB) {
                        prop_assert!(passed.iter().any(|passed| passed.contains(&at)), "{at}");
                    }
                    prop_assert!(range.end + WINDOW_BYTES <= position * MIB);
                }
            }
        }
    }
}
