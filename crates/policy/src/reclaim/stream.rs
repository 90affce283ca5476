//! Which part of a file lies behind a stream: read or written while it was watched, and not needed
//! any more as far as can be told.

use std::ops::Range;

/// So much next to the position is left: read again soon, or not on its device yet.
const WINDOW_BYTES: u64 = 8 << 20;
/// What lies further behind was dropped some looks ago, or its device is slower than any look.
const LAG_BYTES: u64 = 256 << 20;
/// Position and bytes moved are read one after the other, and calls under way are in the one and
/// not in the other.
const SLACK_BYTES: u64 = 16 << 20;
/// A file that moves by less between looks is not worth a call.
const MOVED_BYTES_MIN: u64 = 1 << 20;

/// The position of an open file, from look to look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Where it was when it was seen first, or came to by a jump: what lies before was not read
    /// while it was watched.
    first: u64,
    last: u64,
    /// It went back: somebody reads parts of it again, and needs what is cached.
    again: bool,
}

impl Stream {
    /// Seen first at this position.
    pub fn new(position: u64) -> Stream {
        Stream { first: position, last: position, again: false }
    }

    /// It is at `position` now, and whoever has it open has moved `moved` bytes through system
    /// calls since the last look. What can be dropped: twice in the course of looks, as data that
    /// was written is on its device at the second time only.
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

    /// Whether it went back.
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
    fn what_was_streamed_while_watched_is_dropped_but_for_the_window() {
        let mut stream = Stream::new(100 * MIB);
        assert_eq!(stream.look(104 * MIB, 4 * MIB), None);
        assert_eq!(stream.look(120 * MIB, 16 * MIB), Some(100 * MIB..112 * MIB));
        assert_eq!(stream.look(120 * MIB, 0), None);
        // Once more, for what was not on its device.
        assert_eq!(stream.look(140 * MIB, 20 * MIB), Some(100 * MIB..132 * MIB));
        assert_eq!(stream.look(1140 * MIB, 1000 * MIB), Some(876 * MIB..1132 * MIB));
    }

    #[test]
    fn after_a_jump_only_what_follows_and_after_a_step_back_nothing() {
        let mut stream = Stream::new(0);
        assert_eq!(stream.look(500 * MIB, 10 * MIB), None);
        assert_eq!(stream.look(520 * MIB, 20 * MIB), Some(500 * MIB..512 * MIB));
        assert_eq!(stream.look(100 * MIB, 20 * MIB), None);
        assert!(stream.is_read_again());
        assert_eq!(stream.look(600 * MIB, 500 * MIB), None);
    }

    proptest! {
        /// Nothing is dropped that was not passed by while it was watched.
        #[test]
        fn only_what_was_passed_by_is_dropped(start in 0..4096u64, steps in prop::collection::vec((0..4096u64, 0..4096u64), 1..30)) {
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
