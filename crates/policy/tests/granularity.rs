//! Huge or small: the modes of extents under simulated programs.

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
fn random_reads_beyond_memory_end_in_sectors() {
    let mut model = written(256, 64);
    let mut rng = Rng(1);
    let mut reads = |model: &mut Model<Lru>, n| {
        let before = model.stats;
        (0..n).for_each(|_| model.touch(rng.below(256 * EXTENT_PAGES)));
        model.stats.since(&before)
    };
    // They were written from end to end, so each is fetched whole at first, but only until it is
    // known that this does not pay.
    let learning = reads(&mut model, 25_000);
    assert!(
        (learning.huge_fetches + learning.bought) * 2 <= 9 * 256,
        "4.5 times an extent: {learning:?}"
    );
    let stats = reads(&mut model, 100_000);
    assert!(
        (stats.huge_fetches + stats.bought) * 1000 < stats.small_fetches,
        "one fetch in a thousand is an extent: {stats:?}"
    );
    // Three touches in four miss; hardly anything else is moved.
    assert!(stats.fetched_sectors < 78_000, "{stats:?}");
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
        assert!(
            stats.small_fetches == 0 && stats.bought == 0,
            "what was written as a whole comes back as a whole: {stats:?}"
        );
        // Four whole extents make a stream; where the direction turns, the first one still belongs
        // to the last stream.
        assert!(
            stats.huge_fetches <= 5,
            "nothing is waited for once the stream is seen: {stats:?}"
        );
        assert!(stats.marker_faults <= 90, "one fault a window: {stats:?}");
        assert_eq!(stats.fetched_sectors, 256 * SECTORS, "everything is fetched once");
        model.evict_all();
    }
}

#[test]
fn fitting_hot_set_becomes_huge_after_one_burst() {
    let mut model = written(40, 100);
    let (before, mut rng) = (model.stats, Rng(2));
    (0..20_000).for_each(|_| model.touch(rng.below(40 * EXTENT_PAGES)));
    let stats = model.stats.since(&before);
    assert_eq!(model.modes(), (40, 0), "{stats:?}");
    assert!(
        stats.small_fetches < 40 * 80,
        "less than a third of the sectors was fetched one by one: {stats:?}"
    );
    // When it is far again, it is fetched whole immediately: that it was bought is remembered.
    // Local memory has turned over in between. One in eight at most is a trial.
    model.evict_all();
    (1000 * EXTENT_PAGES..1200 * EXTENT_PAGES).for_each(|page| model.touch(page));
    let before = model.stats;
    let mut order: Vec<u64> = (0..40).collect();
    order.sort_by_cached_key(|_| rng.below(1 << 32));
    order.iter().for_each(|extent| model.touch(extent * EXTENT_PAGES + rng.below(EXTENT_PAGES)));
    let stats = model.stats.since(&before);
    assert!(stats.huge_fetches >= 33 && stats.small_fetches <= 5, "{stats:?}");
}

#[test]
fn oversized_hot_set_thrashes_in_sectors() {
    let mut model = written(70, 50);
    let mut rng = Rng(2);
    let mut touches = |model: &mut Model<Lru>| {
        let before = model.stats;
        (0..100_000).for_each(|_| model.touch(rng.below(70 * EXTENT_PAGES)));
        model.stats.since(&before)
    };
    let learning = touches(&mut model);
    assert!(learning.huge_fetches + learning.bought < 5 * 70, "{learning:?}");
    // Some extents may stay, whole, while they are in use. Everything else moves in sectors, and
    // hardly more of them than necessary.
    let stats = touches(&mut model);
    assert!((stats.huge_fetches + stats.bought) * 200 < stats.small_fetches, "{stats:?}");
    assert!(
        stats.small_fetches < 100_000 * 20 / 70 * 11 / 10,
        "twenty touches in seventy miss: {stats:?}"
    );
    assert!(stats.fetched_sectors * 2 < stats.small_fetches * 3, "{stats:?}");
}

#[test]
fn mistaken_buys_are_rented_again_at_higher_price() {
    let mut granularity = Granularity::new(256, 48, 100);
    let (mut state, mut region) = (ExtentHistory::default(), RegionHistory::default());
    // Each time after it was bought, it is far again immediately. Counts whole fetches until it is
    // rented, and faults until it is bought.
    let mut round = |granularity: &mut Granularity| {
        let mut whole = 0;
        while granularity.on_far_fault(&mut state, &mut region, false, false) == Mode::Huge {
            granularity.on_huge_evicted(&mut state, &mut region, false, 256, 1);
            whole += 1;
        }
        let mut faults = 2;
        while !granularity.on_small_fault(&mut state, &mut region) {
            faults += 1;
        }
        granularity.on_huge_evicted(&mut state, &mut region, false, 256, 1);
        (whole, faults)
    };
    let rounds: Vec<(u32, u32)> = (0..3).map(|_| round(&mut granularity)).collect();
    assert_eq!(rounds, [(0, 48), (3, 384), (0, 384)]);
    // After a turnover of local memory it is worth its price again.
    granularity.on_inflow(101 * 256);
    assert_eq!(granularity.on_far_fault(&mut state, &mut region, false, false), Mode::Huge);
}

/// An extent of which `filled` sectors in 256 had content at its first eviction.
fn left_once(
    granularity: &mut Granularity,
    region: &mut RegionHistory,
    filled: u16,
) -> ExtentHistory {
    let mut state = ExtentHistory::default();
    assert_eq!(granularity.on_fresh_fault(&mut state, region, false), Mode::Huge);
    granularity.on_huge_evicted(&mut state, region, true, filled, 0);
    state
}

#[test]
fn fully_written_extent_is_fetched_whole_twice() {
    let mut granularity = Granularity::new(256, 48, 100);
    let mut region = RegionHistory::default();
    let mut state = left_once(&mut granularity, &mut region, 192);
    for turn in 0..2 {
        assert_eq!(
            granularity.on_far_fault(&mut state, &mut region, false, false),
            Mode::Huge,
            "turn {turn}"
        );
        granularity.on_huge_evicted(&mut state, &mut region, false, 0, 0);
    }
    assert_eq!(granularity.on_far_fault(&mut state, &mut region, false, false), Mode::Small);
    let mut partly = left_once(&mut granularity, &mut region, 191);
    assert_eq!(granularity.on_far_fault(&mut partly, &mut region, false, false), Mode::Small);
}

#[test]
fn slow_or_streamed_extents_stay_huge() {
    let mut granularity = Granularity::new(256, 48, 100);
    let mut region = RegionHistory::default();
    let (mut slow, mut streamed) = (
        left_once(&mut granularity, &mut region, 256),
        left_once(&mut granularity, &mut region, 256),
    );
    let mut trials = 0;
    for round in 0..100 {
        // Prefetched, then fetched by a fault of a stream: in neither case does a fault wait that
        // would have needed a sector only.
        granularity.on_inflow(256);
        granularity.on_huge_evicted(&mut streamed, &mut region, false, 0, 0);
        assert_eq!(granularity.on_far_fault(&mut streamed, &mut region, true, false), Mode::Huge);
        granularity.on_huge_evicted(&mut streamed, &mut region, false, 0, 0);
        granularity.on_inflow(101 * 256);
        if granularity.on_far_fault(&mut slow, &mut region, false, false) == Mode::Small {
            trials += 1;
            let faults = (1..).find(|_| granularity.on_small_fault(&mut slow, &mut region));
            assert_eq!(faults, Some(47), "round {round}");
        }
        granularity.on_huge_evicted(&mut slow, &mut region, false, 0, 0);
    }
    assert!((3..=12).contains(&trials), "{trials} trials");
    // Nor does one bad turn change that, whatever streams passed since.
    (0..3).for_each(|_| granularity.on_huge_evicted(&mut slow, &mut region, false, 0, 0));
    assert_eq!(granularity.on_far_fault(&mut slow, &mut region, false, false), Mode::Huge);
    granularity.on_huge_evicted(&mut streamed, &mut region, false, 0, 0);
    for turn in 0..2 {
        assert_eq!(
            granularity.on_far_fault(&mut streamed, &mut region, false, false),
            Mode::Huge,
            "turn {turn} after the streams"
        );
        granularity.on_huge_evicted(&mut streamed, &mut region, false, 0, 0);
    }
    assert_eq!(granularity.on_far_fault(&mut streamed, &mut region, false, false), Mode::Small);
}

#[test]
fn hints_outweigh_write_history() {
    let mut granularity = Granularity::new(256, 48, 100);
    let mut region = RegionHistory::default();
    let mut state = ExtentHistory::default();
    assert_eq!(granularity.on_fresh_fault(&mut state, &mut region, false), Mode::Huge);
    state.hint_sparse();
    granularity.on_huge_evicted(&mut state, &mut region, true, 256, 0);
    granularity.on_inflow(101 * 256);
    assert_eq!(granularity.on_far_fault(&mut state, &mut region, false, false), Mode::Small);
    state.hint_dense();
    assert_eq!(granularity.on_far_fault(&mut state, &mut region, false, false), Mode::Huge);
}

#[test]
fn stream_fetches_whole_extents_regardless_of_history() {
    let mut granularity = Granularity::new(256, 48, 100);
    let (mut state, mut region) = (ExtentHistory::default(), RegionHistory::default());
    granularity.on_huge_evicted(&mut state, &mut region, false, 256, 0);
    assert_eq!(granularity.on_far_fault(&mut state, &mut region, true, false), Mode::Huge);
    assert_eq!(granularity.on_far_fault(&mut state, &mut region, false, false), Mode::Small);
}

#[test]
fn slow_faults_never_fill_the_bucket() {
    let mut granularity = Granularity::new(256, 48, 100);
    let mut extents = vec![ExtentHistory::default(); 150];
    let mut region = RegionHistory::default();
    for round in 0..1000 {
        for state in &mut extents {
            assert!(!granularity.on_small_fault(state, &mut region), "bought in round {round}");
        }
    }
}

#[test]
fn fresh_extents_are_small_in_sparse_regions() {
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
    assert!(
        (5..=15).contains(&probes),
        "a sparse region is small, but probed now and then: {probes}"
    );
    let back = huge(&mut region, 320, 256);
    assert!(back > 200, "one that fills again becomes huge again: {back}");
    assert_eq!(
        granularity.on_fresh_fault(
            &mut ExtentHistory::default(),
            &mut RegionHistory::default(),
            true
        ),
        Mode::Huge
    );
}

proptest! {
    #[test]
    fn any_event_order_is_deterministic(
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
                    0 => granularity.on_far_fault(state, &mut region, flag, false) == Mode::Huge,
                    1 => granularity.on_small_fault(state, &mut region),
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

#[test]
fn empty_evicted_extents_do_not_make_region_sparse() {
    let mut granularity = Granularity::new(256, 48, 64);
    let mut region = RegionHistory::default();
    let fresh = |granularity: &mut Granularity, region: &mut RegionHistory, nonzero| {
        let mut state = ExtentHistory::default();
        let mode = granularity.on_fresh_fault(&mut state, region, false);
        granularity.on_huge_evicted(&mut state, region, true, nonzero, 0);
        mode
    };
    // Mapped ahead of a stream, and pushed out before the stream reached it.
    (0..20).for_each(|_| assert_eq!(fresh(&mut granularity, &mut region, 0), Mode::Huge));
    assert_eq!(fresh(&mut granularity, &mut region, 256), Mode::Huge);
    // A few words in each: that is sparse.
    for _ in 0..20 {
        fresh(&mut granularity, &mut region, 1);
    }
    assert_eq!(fresh(&mut granularity, &mut region, 1), Mode::Small);
}
