//! Prefetch against programs that walk through memory.

use std::collections::BTreeMap;

use hiroma_policy::{PrefetchRequest, Prefetcher};
use proptest::prelude::*;

mod common;
use common::Rng;

/// Memory in which every block is far at first and nothing is ever evicted; counts what a program
/// would wait for.
struct World {
    prefetcher: Prefetcher,
    unit: u16,
    /// Local blocks; false: not mapped.
    here: BTreeMap<u64, bool>,
    fetches: u64,
    markers: u64,
    prefetched: u64,
}

impl World {
    fn new(unit: u16) -> Self {
        World {
            prefetcher: Prefetcher::new(16),
            unit,
            here: BTreeMap::new(),
            fetches: 0,
            markers: 0,
            prefetched: 0,
        }
    }

    fn touch(&mut self, page: u64) {
        let block = page / u64::from(self.unit);
        match self.here.insert(block, true) {
            Some(true) => return,
            Some(false) => {
                self.markers += 1;
                self.prefetcher.used(page);
            }
            None => self.fetches += 1,
        }
        let mut requests = Vec::new();
        self.prefetcher.on_fault(page, self.unit, 64, &mut requests);
        for request in requests {
            let block = request.page / u64::from(self.unit);
            self.here.entry(block).or_insert_with(|| {
                self.prefetched += 1;
                !request.leave_unmapped
            });
        }
    }
}

#[test]
fn a_stream_costs_one_short_fault_a_window() {
    for (unit, blocks, fetches, markers) in
        [(512, 1000, 4, 130), (2, 100_000, 3, 2000), (16, 10_000, 3, 1600), (1, 100_000, 3, 2000)]
    {
        for down in [false, true] {
            let mut world = World::new(unit);
            for block in 0..blocks {
                let block = if down { 2 * blocks - block } else { block };
                // Every page of small blocks, or nearly every page.
                world.touch(block * u64::from(unit));
                world.touch(block * u64::from(unit) + u64::from(unit) / 2);
            }
            assert!(
                world.fetches <= fetches,
                "{} fetches, unit {unit}, down {down}",
                world.fetches
            );
            assert!(
                world.markers <= markers,
                "{} markers, unit {unit}, down {down}",
                world.markers
            );
            assert!(world.prefetched <= blocks + 64);
        }
    }
}

#[test]
fn windows_double_to_bound_with_middle_unmapped() {
    let mut prefetcher = Prefetcher::new(16);
    let mut windows = Vec::new();
    let (mut next, mut ahead) = (0u64, Vec::<PrefetchRequest>::new());
    while windows.len() < 8 {
        let mut out = Vec::new();
        prefetcher.on_fault(next * 512, 512, 64, &mut out);
        if !out.is_empty() {
            let unmapped: Vec<usize> = (0..out.len()).filter(|&i| out[i].leave_unmapped).collect();
            assert_eq!(unmapped, [(out.len() - 1) / 2]);
            windows.push(out.len());
        }
        ahead.extend(out);
        let marker = ahead.iter().position(|request| request.leave_unmapped);
        next = marker
            .map_or(next + 1, |at| ahead.drain(..=at).next_back().expect("a marker").page / 512);
    }
    assert_eq!(windows, [1, 2, 4, 8, 8, 8, 8, 8]);
}

#[test]
fn small_stream_requests_next_extent_whole() {
    for down in [false, true] {
        let mut prefetcher = Prefetcher::new(16);
        let place = |step: u64| if down { 1022 - 2 * step } else { 512 + 2 * step };
        let mut asked = Vec::new();
        for step in 0..256 {
            prefetcher.on_fault(place(step), 2, 64, &mut asked);
        }
        let whole: Vec<&PrefetchRequest> =
            asked.iter().filter(|request| request.unit == 512).collect();
        assert_eq!(whole, [&PrefetchRequest { page: place(256), unit: 512, leave_unmapped: true }]);
        assert!(prefetcher.is_stream(place(256)));
        asked.clear();
        prefetcher.on_fault(place(256), 512, 64, &mut asked);
        let next = if down { 0u64.wrapping_sub(512) } else { 1536 };
        assert!(
            down && asked.is_empty()
                || asked.iter().all(|request| request.unit == 512 && request.page >= next),
            "{asked:?}"
        );
    }
}

#[test]
fn interleaved_streams_are_followed_at_once() {
    // A merge reads two runs upwards and writes a third, while an array is filled downwards.
    for unit in [2u16, 512] {
        let mut world = World::new(unit);
        let blocks = 2000;
        for step in 0..blocks {
            for start in [0, 100_000, 200_000] {
                world.touch((start + step) * u64::from(unit));
            }
            world.touch((400_000 - step) * u64::from(unit));
        }
        assert!(world.fetches <= 4 * 8, "unit {unit}: {} fetches of {}", world.fetches, 4 * blocks);
    }
}

#[test]
fn a_stream_is_found_among_random_faults() {
    let mut world = World::new(2);
    let mut rng = Rng(5);
    for step in 0..2000 {
        world.touch(step * 2);
        (0..4).for_each(|_| world.touch((1 << 30) + rng.below(1 << 28)));
    }
    let stream_fetches = world.fetches - 4 * 2000;
    assert!(stream_fetches <= 10, "{stream_fetches} blocks of the stream were waited for");
    assert!(world.prefetched <= 2000 + 200, "{} were fetched ahead", world.prefetched);
}

#[test]
fn strides_are_followed_in_both_directions() {
    for step in [5i64, 37, 1024, -9, -700] {
        let mut world = World::new(2);
        (0..2000).for_each(|i| world.touch((10_000_000 + i * step) as u64));
        assert!(world.fetches <= 6, "step {step}: {} fetches", world.fetches);
        assert!(world.prefetched <= 2000 + 64, "step {step}: {} fetched ahead", world.prefetched);
        // Worth whole extents only where many of their sectors are used.
        assert_eq!(
            world.prefetcher.is_stream((10_000_000 + 2000 * step) as u64),
            step.abs() <= 16,
            "step {step}"
        );
    }
}

#[test]
fn majority_trend_is_found_despite_noise() {
    let mut world = World::new(1);
    let mut rng = Rng(11);
    let (mut place, mut walked) = (0, 0);
    while walked < 3000 {
        // Runs of random length at a fixed distance, interrupted by jumps: no row of blocks.
        for _ in 0..3 + rng.below(8) {
            place += 40;
            walked += 1;
            world.touch(place);
        }
        place += 10_000 + rng.below(1000);
    }
    assert!(world.fetches < 2200, "{} of 3000", world.fetches);
}

#[test]
fn random_faults_prefetch_almost_nothing() {
    for (unit, blocks) in [(2u16, 100_000u64), (512, 4096), (512, 512), (512, 70)] {
        let mut prefetcher = Prefetcher::new(16);
        let (mut rng, mut asked, mut streams) = (Rng(3), 0, 0);
        for _ in 0..20_000 {
            let page = rng.below(blocks) * u64::from(unit);
            streams += u64::from(prefetcher.is_stream(page));
            let mut out = Vec::new();
            prefetcher.on_fault(page, unit, 64, &mut out);
            out.iter().for_each(|request| prefetcher.wasted(request.page));
            asked += out.len();
        }
        assert!(asked < 20_000 / 20, "{asked} requests, {blocks} blocks of {unit} pages");
        assert!(
            streams < 20_000 / 10,
            "{streams} taken for streams, {blocks} blocks of {unit} pages"
        );
    }
}

#[test]
fn wasted_window_shrinks_to_zero_and_restarts() {
    let mut prefetcher = Prefetcher::new(16);
    let mut asked = Vec::new();
    (0..40).for_each(|block| prefetcher.on_fault(block * 2, 2, 64, &mut asked));
    assert!(!asked.is_empty());
    asked.iter().for_each(|request| prefetcher.wasted(request.page));
    let edge = asked.last().expect("requests").page;
    let mut silent = 0;
    let mut out = Vec::new();
    for block in edge / 2 + 1.. {
        prefetcher.on_fault(block * 2, 2, 64, &mut out);
        if !out.is_empty() {
            break;
        }
        silent += 1;
    }
    assert!(silent >= 3, "silent for {silent} faults only");
    assert_eq!(out.len(), 1, "it starts over with one block");
}

#[test]
fn all_streams_stay_within_prefetch_limit() {
    let mut prefetcher = Prefetcher::new(16);
    prefetcher.set_ahead_max_pages(64 * 512);
    let mut asked = Vec::new();
    for step in 0..8 {
        for stream in 0..12 {
            prefetcher.on_fault((stream << 30) + step * 512, 512, 64, &mut asked);
        }
    }
    let ahead = asked.iter().filter(|request| request.page % (1 << 30) >= 8 * 512).count();
    assert!((12..=64 + 12 * 8).contains(&ahead), "{ahead}");
}

#[test]
fn streams_stop_at_arena_ends() {
    let mut prefetcher = Prefetcher::new(16);
    let mut out = Vec::new();
    for page in (0..20).rev() {
        prefetcher.on_fault(page, 1, 64, &mut out);
    }
    assert!(!out.is_empty() && out.iter().all(|request| request.page < 20), "{out:?}");
}

fn faults() -> impl Strategy<Value = Vec<(u64, u8)>> {
    // Few places, so that rows, strides and repeats occur by chance; sizes change on the way.
    let wild = prop::collection::vec((0..4096u64, 0..=9u8), 0..300);
    let walk =
        (0..1u64 << 20, -600..600i64, 0..=9u8, 1..200i64).prop_map(|(from, step, order, n)| {
            (0..n)
                .map(|i| (((1 << 30) + from).wrapping_add_signed(i * step), order))
                .collect::<Vec<_>>()
        });
    prop::collection::vec(prop_oneof![wild, walk], 0..4).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn requests_satisfy_invariants(faults in faults(), budget in 0..80usize) {
        let mut prefetcher = Prefetcher::new(4);
        let mut twin = prefetcher.clone();
        for &(page, order) in &faults {
            let unit = 1u16 << order;
            let (mut out, mut again) = (Vec::new(), Vec::new());
            prefetcher.on_fault(page, unit, budget, &mut out);
            twin.on_fault(page, unit, budget, &mut again);
            prop_assert_eq!(&out, &again, "the same events give the same requests");
            prop_assert!(out.len() <= budget);
            if !out.is_empty() {
                prop_assert!(out.iter().any(|request| request.leave_unmapped));
            }
            for (at, request) in out.iter().enumerate() {
                prop_assert!(request.unit == unit || request.unit == 512);
                prop_assert_eq!(request.page % u64::from(unit), 0);
                prop_assert!(request.page / u64::from(unit) != page / u64::from(unit), "the block of the fault itself");
                prop_assert!(out[..at].iter().all(|other| other.page != request.page), "twice the same");
            }
            prop_assert_eq!(prefetcher.is_stream(page + u64::from(unit)), twin.is_stream(page + u64::from(unit)));
            if page % 3 == 0 { prefetcher.wasted(page); twin.wasted(page); } else { prefetcher.used(page); twin.used(page); }
        }
    }
}
