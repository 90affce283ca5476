//! Replacement under simulated programs: what stays local, and how many faults that avoids.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{EXTENT_PAGES, Model, Rng, Stats};
use hiroma_policy::{Fifo, Hint, Lru, Origin, Replacement};
use hiroma_units::BlockId;
use proptest::prelude::*;

const LOCAL: u64 = 119; // 238 MiB
const HOT: u64 = 70; // 140 MiB

/// Faults on the hot set that waited for a fetch, while a stream of ten times local memory passes,
/// with `touches_per_extent` random touches of the hot set for each extent of the stream.
fn hot_misses<R: Replacement>(
    replacement: R,
    touches_per_extent: u64,
    streams_are_known: bool,
) -> u64 {
    let mut model = Model::new(replacement, LOCAL, streams_are_known);
    let mut rng = Rng(7);
    (0..HOT * EXTENT_PAGES).for_each(|page| model.touch(page));
    let mut misses = 0;
    for extent in 1000..1000 + 10 * LOCAL {
        // Sixteen touches of each extent of the stream are equivalent to all: it is one block.
        for step in 0..16 {
            model.touch(extent * EXTENT_PAGES + step * EXTENT_PAGES / 16);
            for _ in 0..touches_per_extent / 16 {
                let before = model.stats;
                model.touch(rng.below(HOT * EXTENT_PAGES));
                let during = model.stats.since(&before);
                misses += during.huge_fetches + during.small_fetches;
            }
        }
    }
    misses
}

#[test]
fn lru_keeps_hot_set_during_large_stream() {
    // A hot extent is touched about once in the time in which the stream passes four extents, or
    // one.
    for (touches_per_extent, streams_are_known, times_better) in
        [(16, false, 2), (16, true, 10), (64, false, 20), (64, true, 50)]
    {
        let fifo = hot_misses(Fifo::new(), touches_per_extent, streams_are_known);
        let lru = hot_misses(Lru::new(), touches_per_extent, streams_are_known);
        assert!(
            lru * times_better < fifo,
            "{touches_per_extent} touches an extent, streams known: {streams_are_known}: {lru} misses, fifo {fifo}"
        );
    }
}

/// A merge sort in memory: a text that is read at random, and an array of lines that was filled
/// downwards and is merged level by level through an array of half its size.
fn sort<R: Replacement>(replacement: R, local_extents: u64) -> Stats {
    const LINES: u64 = 100 * EXTENT_PAGES;
    const LINES_PAGES: u64 = 224 * EXTENT_PAGES;
    const TEMPORARY: u64 = 400 * EXTENT_PAGES;
    let mut model = Model::new(replacement, local_extents, true);
    let mut rng = Rng(3);
    (0..HOT * EXTENT_PAGES).for_each(|page| model.touch(page));
    (LINES..LINES + LINES_PAGES).rev().for_each(|page| model.touch(page));
    let before = model.stats;
    for _level in 0..2 {
        let (mut low, mut high) = (LINES, LINES + LINES_PAGES / 2);
        for written in 0..LINES_PAGES {
            let take_low =
                high == LINES + LINES_PAGES || (low < LINES + LINES_PAGES / 2 && rng.below(2) == 0);
            let read = if take_low { &mut low } else { &mut high };
            model.touch(*read);
            *read += 1;
            for _ in 0..8 {
                model.touch(rng.below(HOT * EXTENT_PAGES));
            }
            model.touch(TEMPORARY + written / 2);
        }
    }
    model.stats.since(&before)
}

#[test]
fn sort_with_fitting_text_waits_little_under_lru() {
    let (fifo, lru) = (sort(Fifo::new(), LOCAL), sort(Lru::new(), LOCAL));
    assert!(lru.waited_us() * 5 < fifo.waited_us(), "lru {lru:?}\nfifo {fifo:?}");
    // Waits for streams are rare: four extents in five are prefetched.
    assert!(lru.huge_fetches * 5 < lru.prefetched_sectors / common::SECTORS, "{lru:?}");
}

#[test]
fn fitting_working_set_loses_nothing() {
    for prefetch in [false, true] {
        let mut model = Model::new(Lru::new(), 80, prefetch);
        let mut rng = Rng(1);
        (0..HOT * EXTENT_PAGES).for_each(|page| model.touch(page));
        (0..100_000).for_each(|_| model.touch(rng.below(HOT * EXTENT_PAGES)));
        assert_eq!(
            (model.stats.huge_fetches, model.stats.small_fetches, model.stats.rescues),
            (0, 0, 0)
        );
    }
}

#[test]
fn formerly_frequent_blocks_are_evicted_eventually() {
    let mut lru = Lru::new();
    let block = |page| BlockId::new(page, 0);
    (0..100).for_each(|page| lru.admitted(block(page), Origin::Rescued));
    let mut gone = BTreeSet::new();
    for page in 1000..3000 {
        lru.admitted(block(page), Origin::Demand);
        gone.extend(lru.next_victim());
    }
    let stayed = (0..100).filter(|&page| !gone.contains(&block(page))).count();
    assert_eq!(stayed, 0, "frequent blocks that were never touched again are still there");
}

#[derive(Clone, Debug)]
enum Event {
    Admit(u64, Origin),
    Hot(u64),
    Victim,
    PutBack,
    Compact(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let origin = prop_oneof![
        Just(Origin::Fresh),
        Just(Origin::Demand),
        Just(Origin::Prefetch),
        Just(Origin::Stream),
        Just(Origin::Rescued)
    ];
    prop_oneof![
        6 => (0..64u64, origin).prop_map(|(page, origin)| Event::Admit(page, origin)),
        1 => (0..64u64).prop_map(Event::Hot),
        5 => Just(Event::Victim),
        1 => Just(Event::PutBack),
        1 => (1..8u64).prop_map(Event::Compact),
    ]
}

/// Blocks of all sizes; the size follows from the number, so that a number always means the same
/// block.
fn block(number: u64) -> BlockId {
    BlockId::new(number * EXTENT_PAGES, (number % 10) as u8)
}

/// Drives a policy together with a map of what it may still return.
fn check(
    mut policy: impl Replacement,
    events: &[Event],
) -> Result<Vec<Option<BlockId>>, TestCaseError> {
    let mut owed: BTreeMap<BlockId, usize> = BTreeMap::new();
    let mut handed_out = Vec::new();
    let mut last = None;
    for event in events {
        match *event {
            Event::Admit(number, origin) => {
                policy.admitted(block(number), origin);
                *owed.entry(block(number)).or_default() += 1;
            }
            Event::Hot(number) => policy.hinted(block(number), Hint::Hot),
            Event::Victim => {
                let victim = policy.next_victim();
                prop_assert_eq!(
                    victim.is_none(),
                    owed.is_empty(),
                    "a victim exactly while there are entries"
                );
                if let Some(victim) = victim {
                    let left = owed.get_mut(&victim).ok_or_else(|| {
                        TestCaseError::fail("handed out more often than admitted")
                    })?;
                    *left -= 1;
                    owed.retain(|_, left| *left > 0);
                    last = Some(victim);
                }
                handed_out.push(victim);
            }
            Event::PutBack => {
                if let Some(victim) = last.take() {
                    policy.put_back(victim);
                    *owed.entry(victim).or_default() += 1;
                }
            }
            Event::Compact(modulus) => {
                policy.compact(&mut |block| block.page() / EXTENT_PAGES % modulus != 0);
                owed.retain(|block, left| {
                    *left = 1;
                    block.page() / EXTENT_PAGES % modulus != 0
                });
            }
        }
        prop_assert_eq!(policy.len(), owed.values().sum::<usize>());
        prop_assert_eq!(policy.is_empty(), owed.is_empty());
    }
    while let Some(victim) = policy.next_victim() {
        prop_assert!(owed.contains_key(&victim));
        owed.entry(victim).and_modify(|left| *left -= 1);
        owed.retain(|_, left| *left > 0);
        handed_out.push(Some(victim));
    }
    prop_assert!(owed.is_empty(), "never handed out: {:?}", owed);
    Ok(handed_out)
}

proptest! {
    #[test]
    fn every_admission_is_evicted_once_and_deterministically(events in prop::collection::vec(event(), 0..400)) {
        check(Fifo::new(), &events)?;
        prop_assert_eq!(check(Lru::new(), &events)?, check(Lru::new(), &events)?);
    }
}
