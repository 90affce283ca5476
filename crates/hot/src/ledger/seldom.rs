//! Entries that would fill a ledger if each were written: they are summed, or left out.

use super::Entry;

/// Minimum time between two entries about what tracking cost, or about the budget.
const PAUSE_MS: u64 = 60_000;

/// What tracking cost since the last entry about it.
#[derive(Debug, Default)]
pub(super) struct Tracking {
    at_ms: u64,
    window_ns: u64,
    rounds: u64,
    clear_ns: u64,
    scan_ns: u64,
    count_ns: u64,
    is_written: bool,
    written_ms: Option<u64>,
}

/// The last entry about the budget, and a later one that was not written yet: shares of the daemon
/// change all the time.
#[derive(Debug, Default)]
pub(super) struct Budget {
    bytes: u64,
    written_ms: Option<u64>,
    waiting: Option<u64>,
}

impl Tracking {
    pub(super) fn none() -> Tracking {
        Tracking { is_written: true, ..Tracking::default() }
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        let Entry::Tracking { at_ms, rounds, clear_ns, scan_ns, count_ns, window_ns } = *entry
        else {
            return;
        };
        (self.at_ms, self.window_ns, self.is_written) = (at_ms, window_ns, false);
        self.rounds += rounds;
        self.clear_ns += clear_ns;
        self.scan_ns += scan_ns;
        self.count_ns += count_ns;
    }

    /// The sum, if an entry is due, or if it is the last.
    pub(super) fn due(&mut self, is_last: bool) -> Option<Entry> {
        let is_time = self.written_ms.is_none_or(|last| self.at_ms >= last + PAUSE_MS);
        if self.is_written || !is_time && !is_last {
            return None;
        }
        let Tracking { at_ms, window_ns, rounds, clear_ns, scan_ns, count_ns, .. } = *self;
        *self = Tracking { is_written: true, written_ms: Some(at_ms), ..Tracking::default() };
        Some(Entry::Tracking { at_ms, rounds, clear_ns, scan_ns, count_ns, window_ns })
    }
}

impl Budget {
    pub(super) fn change(&mut self, bytes: u64) {
        self.waiting = Some(bytes);
    }

    /// The bytes to write, if an entry is due: the first, and then those that differ by more than a
    /// quarter.
    pub(super) fn due(&mut self, now_ms: u64) -> Option<u64> {
        let bytes = self.waiting?;
        if let Some(last) = self.written_ms {
            if bytes.abs_diff(self.bytes) <= self.bytes / 4 {
                self.waiting = None;
                return None;
            }
            (now_ms >= last + PAUSE_MS).then_some(())?;
        }
        *self = Budget { bytes, written_ms: Some(now_ms), waiting: None };
        Some(bytes)
    }
}
