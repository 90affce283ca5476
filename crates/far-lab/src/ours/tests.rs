//! Invariants of the model, and its results where these are obvious.

use proptest::prelude::*;

use super::*;
use crate::policies::Kind;
use crate::trace::{Event, Header};

fn trace(steps: &[(u64, u8)]) -> Trace {
    let event = |&(page, kind): &(u64, u8)| match kind {
        0 => Event::Discard { page, pages: 1 },
        1..4 => Event::Write { page },
        _ => Event::Read { page },
    };
    Trace::of(
        Header { references: steps.len() as u64 * 100, ..Header::default() },
        &steps.iter().map(event).collect::<Vec<_>>(),
    )
}

#[test]
fn nothing_is_fetched_when_all_fits() {
    let steps: Vec<(u64, u8)> = (0..20_000u64).map(|at| (at * 7919 % 3000, 1)).collect();
    for options in [Options::plain(0), Options::AUTO] {
        let outcome = simulate(&trace(&steps), 8192, options, &Costs::default());
        assert_eq!((outcome.fetches, outcome.pages_out), (0, 0), "{options:?}");
    }
}

#[test]
fn hot_set_stays_while_others_pass() {
    // Two of three touches go to 200 hot pages, the others to 6,000 in turn.
    let steps: Vec<(u64, u8)> = (0..60_000u64)
        .map(|at| if at % 3 == 0 { (1000 + at / 3 % 6000, 1) } else { (at * 7919 % 200, 1) })
        .collect();
    let trace = trace(&steps);
    let ours = simulate(&trace, 1500, Options::plain(0), &Costs::default());
    let lru = Kind::Lru.simulate(&trace, 1500, &Costs::default());
    assert!(ours.fetches * 10 <= lru.fetches * 12, "{ours:?} {lru:?}");
}

#[test]
fn a_stream_is_fetched_ahead() {
    let steps: Vec<(u64, u8)> = (0..4u64)
        .flat_map(|pass| (0..8192u64).map(move |page| (page, if pass == 0 { 1 } else { 9 })))
        .collect();
    let trace = trace(&steps);
    let auto = simulate(&trace, 4096 + 4096, Options::AUTO, &Costs::default());
    let plain = simulate(&trace, 4096, Options::plain(0), &Costs::default());
    assert!(auto.fetches * 20 < plain.fetches, "{auto:?} {plain:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn accounting_holds_for_any_program(
        capacity in 2048usize..4000,
        steps in proptest::collection::vec((0u64..4096, 0u64..300, 0u8..40), 1..4000),
        order in 0u8..11,
    ) {
        let steps: Vec<(u64, u8)> =
            steps.iter().enumerate().map(|(at, &(far, near, kind))| (if kind % 3 == 0 { far } else { (near + at as u64) % 4096 }, kind)).collect();
        let trace = trace(&steps);
        let options = Options { fixed: Some(order).filter(|&order| order < 10), prefetch: order % 2 == 0, fifo: order == 3, scans: u32::from(order) % 3 * 4, near: order % 4 != 1, rules: Rules { clusters: capacity % 2 == 0, groups: capacity % 3 != 0, runs: capacity % 5 != 0, zeros: capacity % 7 != 0 } };
        let costs = Costs::default();
        // The pager has 8 MiB at least; with room for less than a few reserves, what is fetched is
        // evicted immediately.
        let capacity = capacity.max(16 << order.min(9));
        let outcome = Ours::new(&trace, capacity, options, &costs).checked();
        let belady = Kind::Belady.simulate(&trace, capacity, &Costs::default());
        // Pages of zeros that are mapped with a block are no faults, so only single pages can be
        // compared.
        if order == 0 {
            prop_assert!(outcome.fresh + outcome.fetches + outcome.ahead >= belady.fresh + belady.fetches);
        }
    }
}

impl Ours<'_> {
    /// Runs, and checks the accounts at the end.
    fn checked(mut self) -> PolicyOutcome {
        for step in &self.trace.steps {
            let page = step.page() as usize;
            if step.what() == StepKind::Discard {
                self.discard(page);
                continue;
            }
            let is_there = self.flags[page] & MAPPED != 0;
            if !is_there {
                self.fault_in(page);
            }
            assert!(self.flags[page] & MAPPED != 0, "a page that was touched is there");
            self.touch(page, step.what());
            if !is_there {
                self.after_fault();
            }
        }
        let mapped = self.flags.iter().filter(|&&flags| flags & MAPPED != 0).count() as u64;
        assert_eq!(self.resident, mapped);
        assert_eq!(self.staged, self.blocks.keys().map(|block| block.pages() as u64).sum::<u64>());
        let clean = self
            .blocks
            .iter()
            .filter(|(_, entry)| entry.clean)
            .map(|(block, _)| block.pages() as u64)
            .sum::<u64>();
        assert_eq!(self.clean_pages, clean);
        let largest = if self.options.fixed.is_some_and(|order| order < 9) {
            1 << self.order
        } else {
            EXTENT
        };
        assert!(
            self.resident + self.staged <= self.room.max(largest),
            "{} and {} in {}",
            self.resident,
            self.staged,
            self.room
        );
        self.outcome
    }
}
