//! Invariants of the model, and its results where these are obvious.

use proptest::prelude::*;

use hiroma_units::Rng;

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

/// Pages of the programs below, written once, and how many of them are local.
const PAGES: u64 = 6144;
const ROOM: usize = 3072;

/// A program that writes all of its pages and then reads `turns` times what `places` returns for a
/// number by chance.
fn reader(turns: usize, places: impl Fn(u64) -> Vec<u64>) -> Trace {
    let mut numbers = Rng::new(7);
    let reads = (0..turns).flat_map(|_| places(numbers.next_u64() >> 20));
    let steps: Vec<(u64, u8)> =
        (0..PAGES).map(|page| (page, 1)).chain(reads.map(|page| (page, 9))).collect();
    trace(&steps)
}

/// Reads single pages.
fn single() -> Trace {
    reader(60_000, |number| vec![number % PAGES])
}

/// Reads all of an aligned group of `size` pages, in no order.
fn grouped(size: u64) -> Trace {
    reader(60_000 / size as usize, |number| {
        let (group, turn) = (number % (PAGES / size) * size, number / PAGES % size);
        (0..size).map(|at| group + (at * 5 + turn) % size).collect()
    })
}

/// Reads 100 pages one after the other, upwards or downwards.
fn walking() -> Trace {
    reader(600, |number| {
        let walk = number % (PAGES - 100)..;
        let pages: Vec<u64> = walk.take(100).collect();
        if number % 2 == 0 { pages } else { pages.into_iter().rev().collect() }
    })
}

/// With these rules, and with none.
fn with_and_without(trace: &Trace, rules: Rules) -> [PolicyOutcome; 2] {
    [rules, Rules::NONE].map(|rules| {
        let options = Options { prefetch: false, rules, ..Options::AUTO };
        simulate(trace, ROOM, options, &Costs::default())
    })
}

/// What single pages show: no rule fetches more than a few samples of what it would like to.
fn expect_single_pages_alone(rules: Rules) {
    let [with, without] = with_and_without(&single(), rules);
    assert!(with.pages_in * 100 < without.pages_in * 105, "{with:?} {without:?}");
    assert!(with.fetches * 100 < without.fetches * 105, "{with:?} {without:?}");
}

#[test]
fn clusters_move_whole_where_whole_clusters_are_used() {
    let rules = Rules { clusters: true, ..Rules::NONE };
    let [with, without] = with_and_without(&grouped(8), rules);
    assert!(with.fetches * 3 < without.fetches, "{with:?} {without:?}");
    assert!(with.came_by[Reason::Cluster as usize] > 4 * with.fetches, "{with:?}");
    expect_single_pages_alone(rules);
}

#[test]
fn clusters_need_accessed_bits() {
    let rules = Rules { clusters: true, ..Rules::NONE };
    let options = Options { prefetch: false, rules, ..Options::AUTO_BLIND };
    let blind = simulate(&grouped(8), ROOM, options, &Costs::default());
    assert_eq!(blind.came_by[Reason::Cluster as usize], 0, "{blind:?}");
}

#[test]
fn groups_come_together_where_neighbours_are_needed() {
    let rules = Rules { groups: true, ..Rules::NONE };
    let [with, without] = with_and_without(&grouped(16), rules);
    assert!(with.fetches * 3 < without.fetches, "{with:?} {without:?}");
    assert!(with.came_by[Reason::Group as usize] > 2 * with.fetches, "{with:?}");
    expect_single_pages_alone(rules);
}

#[test]
fn runs_fetch_ahead_of_walks_in_both_directions() {
    let rules = Rules { runs: true, ..Rules::NONE };
    let [with, without] = with_and_without(&walking(), rules);
    assert!(with.fetches * 4 < without.fetches, "{with:?} {without:?}");
    let run = Reason::Run as usize;
    assert!(with.wasted_by[run] * 4 < with.came_by[run], "{with:?}");
    expect_single_pages_alone(rules);
}

#[test]
fn first_touches_in_order_map_zeros_ahead_and_scattered_ones_do_not() {
    let rules = Rules { zeros: true, ..Rules::NONE };
    let in_order: Vec<(u64, u8)> = (0..PAGES).map(|page| (page, 1)).collect();
    let [with, without] = with_and_without(&trace(&in_order), rules);
    assert!(with.fresh * 20 < without.fresh, "{with:?} {without:?}");
    // A page in 40, when local memory is full already.
    let scattered = (0..1200).map(|at| (PAGES + at * 40, 1));
    let scattered: Vec<(u64, u8)> = in_order.into_iter().chain(scattered).collect();
    let [more, _] = with_and_without(&trace(&scattered), rules);
    assert_eq!(more.fresh - with.fresh, 1200, "{with:?} {more:?}");
}

#[test]
fn pages_beyond_what_the_program_mapped_never_come() {
    let mut events =
        vec![Event::Map { page: 512, pages: 20 }, Event::Map { page: 1024, pages: 512 }];
    events.push(Event::Write { page: 512 });
    events.push(Event::Write { page: 1024 });
    let trace = Trace::of(Header::default(), &events);
    let costs = Costs::default();
    let mut ours = Ours::new(&trace, ROOM, Options::AUTO_BLIND, &costs);
    for &page in &[0u64, 512] {
        ours.fault_in(page as usize);
    }
    let mapped = |pages: std::ops::Range<usize>| {
        ours.flags[pages].iter().filter(|&&flags| flags & MAPPED != 0).count()
    };
    assert_eq!((mapped(0..20), mapped(20..512), mapped(512..640)), (20, 0, 128));
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
