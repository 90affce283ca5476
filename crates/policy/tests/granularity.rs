//! Huge or small: what becomes of extents under simulated programs.

mod common;

use common::{EXTENT_PAGES, Model, Rng, SECTORS};
use hiroma_policy::{ExtentHistory, Granularity, Lru, Mode, RegionHistory};
use proptest::prelude::*;

fn written(extents: u64, local: u64) -> Model<Lru> {
    let mut model = Model::new(Lru::new(), local, true);
    (0..extents * EXTENT_PAGES).for_each(|page| model.touch(page));
    model.evict_all();
    model
}

#[test]
fn random_reads_over_four_times_local_memory_move_sectors_only() {
    let mut model = written(256, 64);
    let (before, mut rng) = (model.stats, Rng(1));
    (0..100_000).for_each(|_| model.touch(rng.below(256 * EXTENT_PAGES)));
    let stats = model.stats.since(&before);
    assert!(stats.huge_fetches + stats.bought <= 2, "{stats:?}");
    // Three touches in four miss; hardly anything else is moved.
    assert!(stats.fetched_sectors < 78_000, "{stats:?}");
    assert_eq!(model.modes().0, 0);
}

#[test]
fn sequential_reads_move_whole_extents_in_both_directions() {
    let mut model = written(256, 64);
    for down in [false, true] {
        let before = model.stats;
        let pages = 0..256 * EXTENT_PAGES;
        if down {
            pages.rev().for_each(|page| model.touch(page))
        } else {
            pages.for_each(|page| model.touch(page))
        }
        let stats = model.stats.since(&before);
        assert!(stats.small_fetches <= 3 && stats.bought == 0, "only the start of the first extent comes in sectors: {stats:?}");
        assert!(stats.huge_fetches <= 2, "nearly nothing is waited for: {stats:?}");
        assert!(stats.marker_faults <= 90, "one fault a window: {stats:?}");
        assert_eq!(stats.fetched_sectors, 256 * SECTORS, "everything is fetched once");
        model.evict_all();
    }
}

#[test]
fn a_dense_hot_set_that_fits_is_bought_back_after_one_burst() {
    let mut model = written(40, 100);
    let (before, mut rng) = (model.stats, Rng(2));
    (0..20_000).for_each(|_| model.touch(rng.below(40 * EXTENT_PAGES)));
    let stats = model.stats.since(&before);
    assert_eq!(model.modes(), (40, 0), "{stats:?}");
    assert!(stats.small_fetches < 40 * 80, "less than a third of the sectors was fetched one by one: {stats:?}");
    // Far once more, it comes back whole at once: that it was bought is remembered. Local memory has turned over in between.
    model.evict_all();
    (1000 * EXTENT_PAGES..1200 * EXTENT_PAGES).for_each(|page| model.touch(page));
    let before = model.stats;
    let mut order: Vec<u64> = (0..40).collect();
    order.sort_by_cached_key(|_| rng.below(1 << 32));
    order.iter().for_each(|extent| model.touch(extent * EXTENT_PAGES + rng.below(EXTENT_PAGES)));
    let stats = model.stats.since(&before);
    assert!(stats.huge_fetches >= 35 && stats.small_fetches <= 5, "{stats:?}");
}

#[test]
fn a_hot_set_larger_than_local_memory_thrashes_in_sectors_not_in_extents() {
    let mut model = written(70, 50);
    let (before, mut rng) = (model.stats, Rng(2));
    (0..100_000).for_each(|_| model.touch(rng.below(70 * EXTENT_PAGES)));
    let stats = model.stats.since(&before);
    assert_eq!(model.modes().0, 0, "{stats:?}");
    assert!(stats.huge_fetches + stats.bought <= 3, "{stats:?}");
}

#[test]
fn extents_that_were_bought_by_mistake_are_rented_again_and_get_dearer() {
    let mut granularity = Granularity::new(256, 48, 100);
    let (mut state, mut region) = (ExtentHistory::default(), RegionHistory::default());
    let mut burst = |granularity: &mut Granularity, state: &mut ExtentHistory| {
        let mut faults = 1;
        assert_eq!(granularity.on_far_fault(state, false), Mode::Small);
        while !granularity.on_small_fault(state) {
            faults += 1;
        }
        granularity.on_huge_evicted(state, &mut region, false, 256, 1);
        faults + 1
    };
    let prices: Vec<u32> = (0..3).map(|_| burst(&mut granularity, &mut state)).collect();
    assert_eq!(prices, [48, 96, 192]);
    // After a turnover of local memory it is worth its price again.
    granularity.on_inflow(101 * 256);
    assert_eq!(granularity.on_far_fault(&mut state, false), Mode::Huge);
}

#[test]
fn a_stream_takes_extents_whole_whatever_their_past() {
    let mut granularity = Granularity::new(256, 48, 100);
    let (mut state, mut region) = (ExtentHistory::default(), RegionHistory::default());
    granularity.on_huge_evicted(&mut state, &mut region, false, 256, 0);
    assert_eq!(granularity.on_far_fault(&mut state, true), Mode::Huge);
    assert_eq!(granularity.on_far_fault(&mut state, false), Mode::Small);
}

#[test]
fn slow_faults_never_fill_the_bucket() {
    let mut granularity = Granularity::new(256, 48, 100);
    let mut extents = vec![ExtentHistory::default(); 150];
    for round in 0..1000 {
        for state in &mut extents {
            assert!(!granularity.on_small_fault(state), "bought in round {round}");
        }
    }
}

#[test]
fn fresh_extents_are_small_where_a_region_proved_sparse_until_it_is_not() {
    let mut granularity = Granularity::new(256, 48, 100);
    let mut region = RegionHistory::default();
    let fresh = |granularity: &mut Granularity, region: &mut RegionHistory, filled: u16| {
        let mut state = ExtentHistory::default();
        let mode = granularity.on_fresh_fault(&mut state, region, false);
        if mode == Mode::Huge {
            granularity.on_huge_evicted(&mut state, region, true, filled, 0);
        }
        mode
    };
    let mut huge = |region: &mut RegionHistory, extents: u32, filled: u16| {
        (0..extents).filter(|_| fresh(&mut granularity, region, filled) == Mode::Huge).count()
    };
    assert_eq!(huge(&mut region, 100, 256), 100, "a full region stays huge");
    assert_eq!(huge(&mut region, 4, 2), 4, "a few sparse extents do not tell");
    let probes = huge(&mut region, 320, 2);
    assert!((5..=15).contains(&probes), "a sparse region is small, but probed now and then: {probes}");
    let back = huge(&mut region, 320, 256);
    assert!(back > 200, "one that fills again becomes huge again: {back}");
    assert_eq!(granularity.on_fresh_fault(&mut ExtentHistory::default(), &mut RegionHistory::default(), true), Mode::Huge);
}

proptest! {
    #[test]
    fn any_order_of_events_is_survived_and_repeats_itself(
        events in prop::collection::vec((0..6u8, 0..8usize, any::<bool>(), any::<u16>()), 0..500),
        sectors in 1..=512u16, price in any::<u16>(), local in any::<u32>(),
    ) {
        let run = || {
            let mut granularity = Granularity::new(sectors, price, local);
            let mut states = [ExtentHistory::default(); 8];
            let mut region = RegionHistory::default();
            let mut answers = Vec::new();
            for &(kind, extent, flag, number) in &events {
                let state = &mut states[extent];
                answers.push(match kind {
                    0 => granularity.on_far_fault(state, flag) == Mode::Huge,
                    1 => granularity.on_small_fault(state),
                    2 => granularity.on_fresh_fault(state, &mut region, flag) == Mode::Huge,
                    3 => { granularity.on_huge_evicted(state, &mut region, flag, number % (sectors + 1), number as u8); false }
                    4 => { granularity.set_local_extents(u32::from(number)); false }
                    _ => { granularity.on_inflow(u32::from(number) << 8); false }
                });
            }
            (answers, states, region)
        };
        prop_assert_eq!(run(), run());
    }
}
