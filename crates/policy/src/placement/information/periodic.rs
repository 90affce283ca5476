//! At fixed intervals, whether anything changed or not.

use super::Information;

/// Informs peers every `period_ns`.
#[derive(Clone, Debug)]
pub struct Periodic {
    period_ns: u64,
    next_ns: u64,
}

impl Periodic {
    /// First message at `first_ns`: nodes should not all send at the same time.
    pub fn new(period_ns: u64, first_ns: u64) -> Self {
        Periodic { period_ns: period_ns.max(1), next_ns: first_ns }
    }
}

impl Information for Periodic {
    fn free_changed(&mut self, _: u32) -> bool {
        false
    }

    fn tick(&mut self, now_ns: u64) -> bool {
        if now_ns < self.next_ns {
            return false;
        }
        // After several missed periods, one message is sent.
        self.next_ns += ((now_ns - self.next_ns) / self.period_ns + 1) * self.period_ns;
        true
    }

    fn deadline_ns(&self) -> Option<u64> {
        Some(self.next_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_once_per_period_and_not_early() {
        let mut periodic = Periodic::new(100, 30);
        let spoken: Vec<u64> = (0..400).filter(|&now| periodic.tick(now)).collect();
        assert_eq!(spoken, [30, 130, 230, 330]);
    }

    #[test]
    fn missed_periods_report_once_and_keep_phase() {
        let mut periodic = Periodic::new(100, 30);
        assert!(periodic.tick(777));
        assert!(!periodic.tick(778));
        assert_eq!(periodic.deadline_ns(), Some(830));
    }
}
