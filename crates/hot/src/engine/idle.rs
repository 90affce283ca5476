//! Whether a processor has time to spare.

use crate::machine;

/// How often the processors are looked at, at most: idle time is counted in ticks of 10 ms.
const LOOK_NS: u64 = 300_000_000;
/// With this part of one processor idle, in thousandths, there is time to spare.
const SPARE_PERMILLE: u64 = 300;

/// The last look. Until there are two, all processors count as busy.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Idle {
    last: Option<(u64, u64)>,
    has_spare: bool,
}

impl Idle {
    /// Whether a processor had time to spare lately.
    pub(super) fn has_spare(&mut self, now_ns: u64) -> bool {
        if self.last.is_none_or(|(at_ns, _)| now_ns >= at_ns + LOOK_NS) {
            if let Some(idle_ns) = machine::idle_ns() {
                self.note(now_ns, idle_ns);
            }
        }
        self.has_spare
    }

    fn note(&mut self, now_ns: u64, idle_ns: u64) {
        if let Some((at_ns, before_ns)) = self.last.replace((now_ns, idle_ns)) {
            let (passed, idle) = (now_ns - at_ns, idle_ns.saturating_sub(before_ns));
            self.has_spare =
                u128::from(idle) * 1000 >= u128::from(passed) * u128::from(SPARE_PERMILLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_to_spare_is_known_after_two_looks() {
        let mut idle = Idle::default();
        idle.note(0, 5_000);
        assert!(!idle.has_spare);
        idle.note(1_000, 5_400);
        assert!(idle.has_spare);
        idle.note(2_000, 5_500);
        assert!(!idle.has_spare);
    }
}
