//! The search for the resident limit at which the total of an arm is the target. Pure: totals in,
//! limits out.

use super::cells::Attempt;

/// A total counts as the target if it differs by at most this share of it,
const TOLERANCE_PERCENT: u64 = 3;
/// or by this amount: the minimum of a process, and what the kernel charges in advance.
const TOLERANCE_BYTES: u64 = 2 << 20;
/// After this number of runs the nearest limit is used.
pub const TRIES_MAX: usize = 5;
/// A limit whose predicted total exceeds the target by more than this is not tried: that run would
/// be the slowest of all.
const FORESEEN_PERCENT: f64 = 108.0;

/// The target and the bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The wanted total.
    pub target: u64,
    /// The total of the native run.
    pub native: u64,
    /// The smallest limit that the arm accepts.
    pub least: u64,
    /// Whether evicted memory stays in memory, compressed, in addition to the limit.
    pub beside: bool,
    /// Whether the limit may be above the target: the memory in use stays below our limit.
    pub above: bool,
}

/// Maximum limit in percent of the target.
const ABOVE_PERCENT: u64 = 130;

/// The next step of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Run with this limit.
    Try(u64),
    /// The search ends with this limit.
    Found(u64),
    /// Even with the smallest limit it takes this number of bytes.
    DoesNotFit(u64),
    /// This attempt failed although it had the target's memory or more: with less it would not do
    /// better.
    Failed(usize),
}

impl Search {
    /// Whether a total counts as the target.
    pub fn is_target(&self, total: u64) -> bool {
        total.abs_diff(self.target) <= (self.target * TOLERANCE_PERCENT / 100).max(TOLERANCE_BYTES)
    }

    /// The next step after these attempts.
    pub fn next(&self, tries: &[(u64, Attempt)]) -> Next {
        if let Some(at) = tries.iter().position(|(_, ran)| {
            ran.end.is_some() && (ran.total_bytes > self.target || self.is_target(ran.total_bytes))
        }) {
            return Next::Failed(at);
        }
        // The first run has everything resident: it is the fastest, and shows what the rest takes.
        let Some(&(last, ref ran)) = tries.last() else {
            return Next::Try(self.target.max(self.least));
        };
        if let Some((limit, _)) = tries.iter().find(|(_, ran)| self.is_target(ran.total_bytes)) {
            return Next::Found(*limit);
        }
        if last <= self.least && ran.total_bytes > self.target {
            return Next::DoesNotFit(ran.total_bytes);
        }
        let foreseen = self.foreseen(last, ran.total_bytes);
        if tries.len() == 1 && foreseen > self.target as f64 * FORESEEN_PERCENT / 100.0 {
            return Next::DoesNotFit(foreseen as u64);
        }
        // With the maximum limit it takes less than the target: it does not need more.
        if (last >= self.most() || (last >= self.target && self.native <= self.target))
            && ran.total_bytes < self.target
        {
            return if ran.end.is_some() {
                Next::Failed(tries.len() - 1)
            } else {
                Next::Found(last)
            };
        }
        if tries.len() >= TRIES_MAX {
            return self.nearest(tries);
        }
        let next = self.between(tries);
        if tries.iter().any(|&(limit, _)| limit == next) {
            self.nearest(tries)
        } else {
            Next::Try(next)
        }
    }

    fn most(&self) -> u64 {
        if self.above { self.target * ABOVE_PERCENT / 100 } else { self.target }
    }

    /// The predicted total with the smallest limit, after the one run with `limit` that took
    /// `total`: it is smaller the better the memory compresses.
    fn foreseen(&self, limit: u64, total: u64) -> f64 {
        let (limit, total) = (limit as f64, total as f64);
        total - self.slope(limit, total) * (limit - self.least as f64)
    }

    /// Slope of the total over the limit: where evicted memory is compressed in addition to the
    /// limit, that of the line through the native run.
    fn slope(&self, limit: f64, total: f64) -> f64 {
        let native = self.native as f64;
        if self.beside && native > limit {
            ((native - total) / (native - limit)).clamp(0.05, 1.0)
        } else {
            1.0
        }
    }

    /// Limit on the line through the two attempts nearest to the target; through one attempt and
    /// the native run if all are on one side.
    fn between(&self, tries: &[(u64, Attempt)]) -> u64 {
        let points = || tries.iter().map(|(limit, ran)| (*limit as f64, ran.total_bytes as f64));
        let target = self.target as f64;
        let under =
            points().filter(|&(_, total)| total <= target).max_by(|a, b| a.1.total_cmp(&b.1));
        let over = points().filter(|&(_, total)| total > target).min_by(|a, b| a.1.total_cmp(&b.1));
        let (least, most) = (self.least as f64, self.most() as f64);
        let limit = match (under, over) {
            (Some(under), Some(over)) => {
                let share = (target - under.1) / (over.1 - under.1);
                let limit = under.0 + share * (over.0 - under.0);
                // Never chooses a known point again.
                let (low, high) = (under.0.min(over.0), under.0.max(over.0));
                limit.clamp(low + (high - low) * 0.05, high - (high - low) * 0.05)
            }
            (Some(one), None) | (None, Some(one)) => {
                one.0 - (one.1 - target) / self.slope(one.0, one.1)
            }
            (None, None) => target,
        };
        limit.clamp(least.min(most), most) as u64
    }

    /// The attempt that came nearest without exceeding the target; if all exceeded it, the
    /// smallest.
    fn nearest(&self, tries: &[(u64, Attempt)]) -> Next {
        let under = tries
            .iter()
            .enumerate()
            .filter(|(_, (_, ran))| ran.total_bytes <= self.target)
            .max_by_key(|(_, (_, ran))| ran.total_bytes);
        match under {
            Some((at, (_, ran))) if ran.end.is_some() => Next::Failed(at),
            Some((_, &(limit, _))) => Next::Found(limit),
            None => {
                Next::DoesNotFit(tries.iter().map(|(_, ran)| ran.total_bytes).min().unwrap_or(0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cells::End;
    use super::*;

    const MB: u64 = 1_000_000;

    fn run(search: Search, total: impl Fn(u64) -> Attempt) -> (Next, usize) {
        let mut tries = Vec::new();
        loop {
            match search.next(&tries) {
                Next::Try(limit) => tries.push((limit, total(limit))),
                end => return (end, tries.len()),
            }
        }
    }

    fn took(total_bytes: u64) -> Attempt {
        Attempt { total_bytes, ..Attempt::default() }
    }

    #[test]
    fn compressed_memory_beside_the_limit_lowers_it() {
        for percent in [25, 40, 60, 100] {
            let search = Search {
                target: 200 * MB,
                native: 400 * MB,
                least: 16 * MB,
                beside: true,
                above: false,
            };
            let (end, tries) =
                run(search, |limit| took(limit + (400 * MB - limit) * percent / 100));
            if percent >= 60 {
                assert!(
                    matches!(end, Next::DoesNotFit(total) if total > 200 * MB),
                    "{percent}: {end:?}"
                );
                continue;
            }
            let Next::Found(limit) = end else { panic!("{percent}: {end:?}") };
            assert!(
                search.is_target(limit + (400 * MB - limit) * percent / 100) && tries <= 3,
                "{percent}: {limit} after {tries}"
            );
        }
    }

    #[test]
    fn overhead_beside_limit_is_found_in_two_runs() {
        let search = Search {
            target: 100 * MB,
            native: 200 * MB,
            least: 16 * MB,
            beside: false,
            above: false,
        };
        let (end, tries) = run(search, |limit| took(limit + 9 * MB));
        assert!(
            matches!(end, Next::Found(limit) if (88 * MB..=94 * MB).contains(&limit)) && tries == 2,
            "{end:?} {tries}"
        );
        assert_eq!(run(search, took), (Next::Found(100 * MB), 1));
        // It never needs all of it.
        assert_eq!(run(search, |_| took(60 * MB)), (Next::Found(100 * MB), 1));
        // It needs all of it, and the memory in use stays below the limit.
        let search = Search { above: true, ..search };
        let (end, tries) = run(search, |limit| took(limit * 9 / 10));
        assert!(
            matches!(end, Next::Found(limit) if search.is_target(limit * 9 / 10)) && tries == 2,
            "{end:?} {tries}"
        );
        assert_eq!(
            run(Search { native: 50 * MB, ..search }, |_| took(50 * MB)),
            (Next::Found(100 * MB), 1)
        );
    }

    #[test]
    fn failure_above_target_is_not_retried_with_less() {
        let search = Search {
            target: 100 * MB,
            native: 200 * MB,
            least: 16 * MB,
            beside: false,
            above: false,
        };
        let failed =
            |total_bytes, end| Attempt { total_bytes, end: Some(end), ..Attempt::default() };
        assert_eq!(run(search, |limit| failed(limit + 20 * MB, End::Killed)), (Next::Failed(0), 1));
        // With less, it is given more first.
        let (end, tries) =
            run(Search { above: true, ..search }, |limit| failed(limit * 9 / 10, End::Stopped));
        assert_eq!((end, tries), (Next::Failed(1), 2));
    }

    #[test]
    fn unresponsive_arm_ends_the_search() {
        let search = Search {
            target: 100 * MB,
            native: 200 * MB,
            least: 16 * MB,
            beside: true,
            above: false,
        };
        let (end, tries) = run(search, |_| took(150 * MB));
        assert!(
            matches!(end, Next::DoesNotFit(total) if total == 150 * MB) && tries <= TRIES_MAX,
            "{end:?}"
        );
    }
}
