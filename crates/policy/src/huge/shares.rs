//! How a budget of huge pages is divided among processes.
//!
//! The paper (section 3.2) names the problem: the process that starts first takes all huge pages,
//! and later ones get none. Here a process's *use* counts, not what it has: the budget goes by
//! max-min fairness to ranges that are hot, whether they are huge already or not. Idle huge pages
//! are kept only with what remains of the budget. So idle processes give way, and a process that
//! becomes active again gets its share back. (Idle memory tax: Waldspurger, "Memory resource
//! management in VMware ESX Server", OSDI 2002, section 5.)

use std::collections::BTreeMap;

/// A process's use of huge pages, in ranges of 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Use {
    /// Ranges that were made huge and are in use.
    pub active: u64,
    /// Hot ranges that are not huge yet.
    pub wanted: u64,
    /// Ranges that were made huge and are idle.
    pub idle: u64,
}

/// Divides `budget` ranges; returns one share for each of `uses`, in their order. The shares add up
/// to at most the budget, and no process gets more than it can use. A remainder that does not
/// divide goes to the first.
pub fn fair_shares(budget: u64, uses: &[Use]) -> Vec<u64> {
    let demands: Vec<u64> =
        uses.iter().map(|each| each.active.saturating_add(each.wanted)).collect();
    let mut shares = fill_evenly(budget, &demands);
    let left = budget - shares.iter().sum::<u64>();
    let idle: Vec<u64> = uses.iter().map(|each| each.idle).collect();
    for (share, kept) in shares.iter_mut().zip(fill_evenly(left, &idle)) {
        *share += kept;
    }
    shares
}

/// Divides `total` by `weights`. Nobody gets nothing.
pub fn by_weight(total: u64, weights: &[u64]) -> Vec<u64> {
    let weight = |&weight: &u64| u128::from(weight.max(1));
    let all: u128 = weights.iter().map(weight).sum();
    let part = |each: &u64| (u128::from(total) * weight(each) / all) as u64;
    weights.iter().map(|each| part(each).max(1)).collect()
}

/// Adds an equal part of what is left of the budget to every share, so that a process that finds
/// new hot ranges need not wait for a round.
fn add_room(budget: u64, shares: &mut [u64]) {
    let left = budget.saturating_sub(shares.iter().sum());
    let part = left / (shares.len() as u64).max(1);
    shares.iter_mut().for_each(|share| *share += part);
}

/// Max-min fairness: every process gets the same, but not more than it demands.
fn fill_evenly(budget: u64, demands: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|&at| (demands[at], at));
    let mut shares = vec![0; demands.len()];
    let mut left = budget;
    for (done, &at) in order.iter().enumerate() {
        // Processes that could not get a whole part more come last, and the first of them get the
        // remainder.
        let level = left / (order.len() - done) as u64;
        if demands[at] > level {
            let rest = &order[done..];
            let mut over = left % rest.len() as u64;
            let mut rest: Vec<usize> = rest.to_vec();
            rest.sort_unstable();
            for at in rest {
                let extra = u64::from(over > 0 && demands[at] > level);
                shares[at] = level + extra;
                over -= extra;
            }
            return shares;
        }
        shares[at] = demands[at];
        left -= demands[at];
    }
    shares
}

/// Shares that change at a bounded rate: splitting a huge page and making another costs time in
/// both processes.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Maximum number of ranges that a process gives up in one round.
    step: u64,
    last: BTreeMap<u64, u64>,
}

impl Shares {
    /// Every process gives up at most `step` ranges (at least 1) in a round.
    pub fn new(step: u64) -> Shares {
        Shares { step: step.max(1), last: BTreeMap::new() }
    }

    /// The shares of this round, by process, in the order of `uses`: the fair ones, and room for
    /// more where no other process needs it. A process that is not among them has exited, and its
    /// share is free immediately.
    pub fn round(&mut self, budget: u64, uses: &[(u64, Use)]) -> Vec<(u64, u64)> {
        let plain: Vec<Use> = uses.iter().map(|&(_, each)| each).collect();
        let targets = fair_shares(budget, &plain);
        // What cannot be taken in this round stays; only a smaller budget takes more than a step.
        let kept: Vec<u64> = uses
            .iter()
            .zip(&targets)
            .map(|(&(id, each), &target)| {
                let holds = each
                    .active
                    .saturating_add(each.idle)
                    .min(self.last.get(&id).copied().unwrap_or(0));
                holds.saturating_sub(self.step).saturating_sub(target)
            })
            .collect();
        // Processes that give way still have huge pages, which limits the growth of the others.
        let held = fill_evenly(budget, &kept);
        let left = budget - held.iter().sum::<u64>();
        let paid = fill_evenly(left, &targets);
        let mut sums: Vec<u64> = held.iter().zip(&paid).map(|(held, paid)| held + paid).collect();
        add_room(budget, &mut sums);
        let shares: Vec<(u64, u64)> =
            uses.iter().zip(sums).map(|(&(id, _), share)| (id, share)).collect();
        self.last = shares.iter().copied().collect();
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn busy(active: u64, wanted: u64) -> Use {
        Use { active, wanted, idle: 0 }
    }

    #[test]
    fn late_arrivals_get_an_equal_share() {
        assert_eq!(fair_shares(100, &[busy(100, 0), busy(0, 80)]), [50, 50]);
        assert_eq!(fair_shares(100, &[busy(100, 0), busy(0, 30)]), [70, 30]);
        assert_eq!(fair_shares(10, &[busy(0, 9), busy(0, 9), busy(0, 9)]), [4, 3, 3]);
        assert_eq!(fair_shares(0, &[busy(5, 5)]), [0]);
        assert_eq!(fair_shares(7, &[]), [0u64; 0]);
    }

    #[test]
    fn weights_divide_all_and_leave_nobody_out() {
        assert_eq!(by_weight(100, &[1, 3]), [25, 75]);
        assert_eq!(by_weight(100, &[0, 0]), [50, 50]);
        assert_eq!(by_weight(100, &[u64::MAX, 1]), [99, 1]);
        assert_eq!(by_weight(100, &[]), [0u64; 0]);
    }

    #[test]
    fn idle_processes_keep_only_surplus() {
        let idle = Use { active: 10, wanted: 0, idle: 90 };
        assert_eq!(fair_shares(100, &[idle, busy(0, 100)]), [10, 90]);
        assert_eq!(fair_shares(100, &[idle, busy(0, 20)]), [80, 20]);
    }

    #[test]
    fn idle_process_yields_gradually_and_recovers() {
        let mut shares = Shares::new(16);
        assert_eq!(shares.round(100, &[(1, busy(0, 100))]), [(1, 100)]);
        // The second starts, the first becomes idle.
        let mut second = 0;
        for _ in 0..6 {
            let first = 100 - second;
            let round = shares.round(
                100,
                &[(1, Use { active: 0, wanted: 0, idle: first }), (2, busy(second, 100 - second))],
            );
            assert!(round[0].1 + 16 >= first && round[0].1 + round[1].1 <= 100, "{round:?}");
            second = round[1].1;
        }
        assert!(second >= 90, "{second}");
        // The first becomes active again.
        let mut first = 100 - second;
        for _ in 0..6 {
            let round = shares.round(100, &[(1, busy(first, 100 - first)), (2, busy(second, 0))]);
            (first, second) = (round[0].1, round[1].1);
        }
        assert_eq!((first, second), (50, 50));
    }

    #[test]
    fn departed_process_blocks_no_share() {
        let mut shares = Shares::new(1);
        shares.round(100, &[(1, busy(0, 100))]);
        assert_eq!(shares.round(100, &[(2, busy(0, 100))]), [(2, 100)]);
    }

    fn any_use() -> impl Strategy<Value = Use> {
        (0u64..200, 0u64..200, 0u64..200).prop_map(|(active, wanted, idle)| Use {
            active,
            wanted,
            idle,
        })
    }

    proptest! {
        #[test]
        fn shares_are_within_the_budget_useful_and_fair(budget in 0u64..500, uses in proptest::collection::vec(any_use(), 0..12)) {
            let shares = fair_shares(budget, &uses);
            prop_assert_eq!(&shares, &fair_shares(budget, &uses));
            prop_assert!(shares.iter().sum::<u64>() <= budget);
            let demands: Vec<u64> = uses.iter().map(|each| each.active + each.wanted).collect();
            let most: u64 = uses.iter().map(|each| each.active + each.wanted + each.idle).sum();
            prop_assert_eq!(shares.iter().sum::<u64>(), budget.min(most));
            for (share, each) in shares.iter().zip(&uses) {
                prop_assert!(*share <= each.active + each.wanted + each.idle);
            }
            // No process that wants more has less than another one, except for the remainder.
            for (at, &share) in shares.iter().enumerate() {
                if share < demands[at] {
                    for &other in &shares {
                        prop_assert!(other <= share + 1, "{:?}", shares);
                    }
                }
            }
        }

        #[test]
        fn rounds_respect_budget_and_converge_to_fair_shares(
            budget in 0u64..300, step in 1u64..50, uses in proptest::collection::vec(any_use(), 1..8), turned in 0usize..8,
        ) {
            let mut shares = Shares::new(step);
            let mut uses: Vec<(u64, Use)> = uses.into_iter().enumerate().map(|(id, each)| (id as u64, each)).collect();
            for round in 0..400 {
                if round == 100 {
                    // One process becomes idle.
                    let at = turned % uses.len();
                    let each = &mut uses[at].1;
                    *each = Use { active: 0, wanted: 0, idle: each.active + each.idle };
                }
                let given = shares.round(budget, &uses);
                prop_assert!(given.iter().map(|&(_, share)| share).sum::<u64>() <= budget);
                // Every process obeys: it splits idle ranges first, and collapses as many as it
                // may.
                for ((_, each), (_, share)) in uses.iter_mut().zip(given) {
                    let demand = each.active + each.wanted;
                    each.idle = each.idle.min(share.saturating_sub(each.active));
                    each.active = demand.min(share - each.idle);
                    each.wanted = demand - each.active;
                }
            }
            let plain: Vec<Use> = uses.iter().map(|&(_, each)| each).collect();
            let given: Vec<u64> = shares.round(budget, &uses).into_iter().map(|(_, share)| share).collect();
            let mut fair = fair_shares(budget, &plain);
            add_room(budget, &mut fair);
            prop_assert_eq!(given, fair);
        }
    }
}
