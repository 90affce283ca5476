//! When the next round may run: a token bucket of processor time.
//!
//! A tracker is limited by two of them: one for the time that it takes itself, one for what it
//! costs the program.

/// Cost for a program of clearing the accessed bit of a page that it uses: the next touch has to
/// walk the page tables and write the bit, both with little overlap with other work. An estimate on
/// the safe side: measured at 0.1 to 0.2 us (`hiroma bench huge --only slowdown`, random touches,
/// virtual machine).
pub const BURDEN_PER_PAGE_NS: u64 = 200;

/// Limits work to a share of one processor, with a credit at the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    share_ppm: u64,
    burst_ns: u64,
    /// Processor time that may be spent; negative when more was spent than was available.
    credit_ns: i64,
    last_ns: u64,
}

impl Pace {
    /// `share_ppm` millionths of a processor (10,000 is 1 %), with an initial and maximum credit of
    /// `burst_ns`.
    pub fn new(share_ppm: u64, burst_ns: u64, now_ns: u64) -> Pace {
        Pace {
            share_ppm: share_ppm.clamp(1, 1_000_000),
            burst_ns,
            credit_ns: burst_ns.min(i64::MAX as u64) as i64,
            last_ns: now_ns,
        }
    }

    /// Changes the share; credit and debt stay.
    pub fn set_share(&mut self, share_ppm: u64) {
        self.share_ppm = share_ppm.clamp(1, 1_000_000);
    }

    /// Deducts work that took `cpu_ns`.
    pub fn spend(&mut self, cpu_ns: u64) {
        self.credit_ns = self.credit_ns.saturating_sub(cpu_ns.min(i64::MAX as u64) as i64);
    }

    /// The earliest time for more work: `now_ns` while there is credit.
    pub fn next_ns(&mut self, now_ns: u64) -> u64 {
        let passed = now_ns.saturating_sub(self.last_ns);
        let earned = u128::from(passed) * u128::from(self.share_ppm) / 1_000_000;
        // Amounts that round down to zero are not lost: the clock of the bucket does not advance
        // until there is something to add.
        if earned > 0 {
            self.last_ns = now_ns;
        }
        let full = self.burst_ns.min(i64::MAX as u64) as i64;
        self.credit_ns =
            self.credit_ns.saturating_add(earned.min(i64::MAX as u128) as i64).min(full);
        if self.credit_ns >= 0 {
            return now_ns;
        }
        let wait =
            u128::from(self.credit_ns.unsigned_abs()) * 1_000_000 / u128::from(self.share_ppm);
        now_ns.saturating_add(wait.min(u128::from(u64::MAX)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beyond_credit_waits_by_share() {
        let mut pace = Pace::new(10_000, 5_000_000, 0);
        pace.spend(5_000_000);
        assert_eq!(pace.next_ns(0), 0);
        pace.spend(1_000_000);
        assert_eq!(pace.next_ns(0), 100_000_000);
        assert_eq!(pace.next_ns(100_000_000), 100_000_000);
    }

    #[test]
    fn share_holds_in_the_long_run() {
        let mut pace = Pace::new(10_000, 0, 0);
        let (mut now, mut spent) = (0, 0);
        while now < 100_000_000_000 {
            pace.spend(2_000_000);
            spent += 2_000_000;
            now = pace.next_ns(now).max(now + 1);
        }
        assert!(spent <= 1_004_000_000, "{spent}");
    }
}
