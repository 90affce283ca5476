//! Every policy against a naive version of the same policy, the optimum against all, and examples
//! worked out by hand.

use proptest::prelude::*;

use super::*;
use crate::trace::{Event, Header};

fn trace(steps: &[(u64, u8)]) -> Trace {
    let events: Vec<Event> = steps
        .iter()
        .map(|&(page, kind)| match kind {
            0 => Event::Discard { page, pages: 1 },
            1..4 => Event::Write { page },
            _ => Event::Read { page },
        })
        .collect();
    Trace::of(Header::default(), &events)
}

/// Faults of a trace of writes, by a policy.
fn faults(kind: Kind, capacity: usize, pages: &[u64]) -> u64 {
    let steps: Vec<(u64, u8)> = pages.iter().map(|&page| (page, 1)).collect();
    let outcome = kind.simulate(&trace(&steps), capacity, &Costs::default());
    outcome.fresh + outcome.fetches
}

/// The same policy, over plain lists: oldest first.
#[derive(Default)]
struct Slow {
    capacity: usize,
    lists: [Vec<u64>; 4],
    uses: std::collections::BTreeMap<u64, u8>,
    /// SIEVE's hand, as a page; ARC's target; the youngest list of the generations is the last.
    hand: Option<u64>,
    target: usize,
}

impl Slow {
    fn there(&self, kind: Kind) -> Vec<u64> {
        let lists = match kind {
            Kind::Generations => 0..4,
            Kind::S3Fifo | Kind::Arc => 0..2,
            _ => 0..1,
        };
        lists.flat_map(|list| self.lists[list].clone()).collect()
    }

    fn take(&mut self, page: u64) {
        self.lists.iter_mut().for_each(|list| list.retain(|&known| known != page));
    }

    fn hit(&mut self, kind: Kind, page: u64) {
        *self.uses.entry(page).or_default() += 1;
        match kind {
            Kind::Lru => {
                self.take(page);
                self.lists[0].push(page);
            }
            Kind::Arc => {
                self.take(page);
                self.lists[1].push(page);
            }
            _ => {}
        }
    }

    fn forget(&mut self, kind: Kind, page: u64) {
        if kind == Kind::Sieve && self.hand == Some(page) {
            let at = self.lists[0].iter().position(|&known| known == page).unwrap();
            self.hand = self.lists[0].get(at + 1).copied();
        }
        self.take(page);
    }

    fn used(&mut self, page: u64) -> bool {
        self.uses.insert(page, 0).unwrap_or(0) > 0
    }

    fn evict(&mut self, kind: Kind, incoming: u64) {
        match kind {
            Kind::Lru | Kind::Fifo => drop(self.lists[0].remove(0)),
            Kind::Clock => loop {
                let page = self.lists[0].remove(0);
                if !self.used(page) {
                    break;
                }
                self.lists[0].push(page);
            },
            Kind::Sieve => loop {
                let page = self.hand.unwrap_or(self.lists[0][0]);
                let at = self.lists[0].iter().position(|&known| known == page).unwrap();
                self.hand = self.lists[0].get(at + 1).copied();
                if !self.used(page) {
                    self.lists[0].remove(at);
                    break;
                }
            },
            Kind::S3Fifo => self.evict_s3(),
            Kind::Generations => self.evict_generations(),
            Kind::Arc => self.evict_arc(incoming),
            Kind::Belady => unreachable!(),
        }
    }

    fn evict_s3(&mut self) {
        let small = (self.capacity / 10).max(1);
        loop {
            if self.lists[0].len() >= small || self.lists[1].is_empty() {
                let page = self.lists[0].remove(0);
                if self.uses.insert(page, 0).unwrap_or(0) > 1 {
                    self.lists[1].push(page);
                    continue;
                }
                self.lists[2].push(page);
                if self.lists[2].len() > self.capacity.saturating_sub(small).max(1) {
                    self.lists[2].remove(0);
                }
                return;
            }
            let page = self.lists[1].remove(0);
            let uses = self.uses.get(&page).copied().unwrap_or(0).min(3);
            if uses == 0 {
                return;
            }
            self.uses.insert(page, uses - 1);
            self.lists[1].push(page);
        }
    }

    /// `target` is the number of generations, in the first lists.
    fn evict_generations(&mut self) {
        loop {
            let count = self.target.max(2);
            if count == 2 {
                self.target = 3;
                let all: Vec<u64> = self.lists[..2].concat();
                for page in all {
                    if self.used(page) {
                        self.take(page);
                        self.lists[2].push(page);
                    }
                }
            } else if self.lists[0].is_empty() {
                self.lists.rotate_left(1);
                self.target = count - 1;
            } else {
                let page = self.lists[0].remove(0);
                if !self.used(page) {
                    return;
                }
                self.lists[count - 1].push(page);
            }
        }
    }

    fn evict_arc(&mut self, incoming: u64) {
        let [once, twice, ghosts_once, ghosts_twice] = &mut self.lists;
        let in_twice = ghosts_twice.contains(&incoming);
        if ghosts_once.contains(&incoming) {
            self.target =
                (self.target + (ghosts_twice.len() / ghosts_once.len()).max(1)).min(self.capacity);
        } else if in_twice {
            self.target =
                self.target.saturating_sub((ghosts_once.len() / ghosts_twice.len()).max(1));
        } else if once.len() == self.capacity {
            once.remove(0);
            return;
        }
        if twice.is_empty()
            || !once.is_empty()
                && (once.len() > self.target || in_twice && once.len() == self.target)
        {
            ghosts_once.push(once.remove(0));
        } else {
            ghosts_twice.push(twice.remove(0));
        }
    }

    fn admit(&mut self, kind: Kind, page: u64) {
        let ghost = self.lists[2..].iter().any(|list| list.contains(&page))
            && matches!(kind, Kind::S3Fifo | Kind::Arc);
        self.take(page);
        self.uses.insert(page, 0);
        let list = match kind {
            Kind::Generations => self.target.max(2) - 1,
            _ => usize::from(ghost),
        };
        self.lists[list].push(page);
        if kind == Kind::Arc {
            while self.lists[0].len() + self.lists[2].len() > self.capacity
                && !self.lists[2].is_empty()
            {
                self.lists[2].remove(0);
            }
            while self.lists.iter().map(Vec::len).sum::<usize>() > 2 * self.capacity
                && !self.lists[3].is_empty()
            {
                self.lists[3].remove(0);
            }
        }
    }

    /// The pages that fault.
    fn run(kind: Kind, capacity: usize, steps: &[(u64, u8)]) -> Vec<u64> {
        let (mut slow, mut missed) = (Slow { capacity, ..Slow::default() }, Vec::new());
        for &(page, what) in steps {
            let is_there = slow.there(kind).contains(&page);
            match (what, is_there) {
                (0, true) => slow.forget(kind, page),
                (0, false) => {}
                (_, true) => slow.hit(kind, page),
                (_, false) => {
                    missed.push(page);
                    if slow.there(kind).len() == capacity {
                        slow.evict(kind, page);
                    }
                    slow.admit(kind, page);
                }
            }
        }
        missed
    }
}

/// Misses of the optimum by exhaustive search.
fn best(there: &std::collections::BTreeSet<u64>, capacity: usize, steps: &[(u64, u8)]) -> u64 {
    let Some((&(page, what), rest)) = steps.split_first() else { return 0 };
    let mut with = there.clone();
    if what == 0 {
        with.remove(&page);
        return best(&with, capacity, rest);
    }
    with.insert(page);
    if there.contains(&page) {
        return best(there, capacity, rest);
    }
    if with.len() <= capacity {
        return 1 + best(&with, capacity, rest);
    }
    let without = |victim: &u64| with.iter().copied().filter(|known| known != victim).collect();
    1 + there.iter().map(|victim| best(&without(victim), capacity, rest)).min().unwrap()
}

#[test]
fn outcomes_match_hand_calculation() {
    // Belady's anomaly: FIFO misses more with four pages than with three.
    let pages = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
    assert_eq!((faults(Kind::Fifo, 3, &pages), faults(Kind::Fifo, 4, &pages)), (9, 10));
    assert_eq!((faults(Kind::Lru, 3, &pages), faults(Kind::Lru, 4, &pages)), (10, 8));
    assert_eq!((faults(Kind::Belady, 3, &pages), faults(Kind::Belady, 4, &pages)), (7, 6));
    // A loop of one page more than fits: LRU always misses, the optimum once in three times.
    let pages: Vec<u64> = (0..40).map(|at| at % 4).collect();
    assert_eq!((faults(Kind::Lru, 3, &pages), faults(Kind::Belady, 3, &pages)), (40, 4 + 12));
    // One hot page and a scan: CLOCK and SIEVE keep it, FIFO does not.
    let pages: Vec<u64> = (0..60).map(|at| if at % 2 == 0 { 0 } else { at }).collect();
    assert_eq!((faults(Kind::Clock, 3, &pages), faults(Kind::Sieve, 3, &pages)), (31, 31));
    assert!(faults(Kind::Fifo, 3, &pages) >= 40);
}

#[test]
fn unwritten_pages_are_dropped_and_dirty_written_once() {
    let steps = [(0, 9), (1, 9), (0, 9), (2, 1), (3, 9), (4, 9), (2, 9), (5, 9), (6, 9)];
    let outcome = Kind::Lru.simulate(&trace(&steps), 2, &Costs::default());
    assert_eq!(
        (outcome.fresh, outcome.fetches, outcome.pages_out, outcome.pages_dropped),
        (7, 1, 1, 5)
    );
    let costs = Costs::default();
    assert_eq!(
        outcome.time_ns,
        7 * costs.fresh_ns + costs.fetch_ns + costs.dirty_alone_ns + 5 * costs.clean_alone_ns
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn fast_policies_match_naive_ones(
        capacity in 1usize..24,
        steps in proptest::collection::vec((0u64..48, 0u64..12, 0u8..40), 1..1200),
    ) {
        let steps: Vec<(u64, u8)> =
            steps.iter().map(|&(far, near, kind)| (if kind % 3 == 0 { far } else { near }, kind)).collect();
        for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::Belady) {
            let outcome = kind.simulate(&trace(&steps), capacity, &Costs::default());
            let slow = Slow::run(kind, capacity, &steps).len() as u64;
            prop_assert_eq!(outcome.fresh + outcome.fetches, slow, "{}", kind.name());
        }
    }

    #[test]
    fn nothing_misses_less_than_the_optimum(
        capacity in 1usize..24,
        steps in proptest::collection::vec((0u64..48, 0u64..12, 0u8..40), 1..1200),
    ) {
        let steps: Vec<(u64, u8)> =
            steps.iter().map(|&(far, near, kind)| (if kind % 3 == 0 { far } else { near }, kind)).collect();
        let trace = trace(&steps);
        let misses = |kind: Kind| { let outcome = kind.simulate(&trace, capacity, &Costs::default()); outcome.fresh + outcome.fetches };
        for kind in Kind::ALL {
            prop_assert!(misses(Kind::Belady) <= misses(kind), "{}", kind.name());
        }
    }

    #[test]
    fn optimum_matches_exhaustive_search(
        capacity in 1usize..4,
        steps in proptest::collection::vec((0u64..6, 0u8..12), 1..14),
    ) {
        let outcome = Kind::Belady.simulate(&trace(&steps), capacity, &Costs::default());
        prop_assert_eq!(outcome.fresh + outcome.fetches, best(&Default::default(), capacity, &steps));
    }
}
