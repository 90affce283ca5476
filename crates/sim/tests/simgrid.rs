//! Fair sharing gives the transfer times of SimGrid 3.32 (model CM02, TCP-gamma 0, no cross
//! traffic), in which a flow's share of a link is inversely proportional to the latency of its
//! route.
//!
//! Pages of 8,192 bytes, a 16 x 16 torus with links of 100 MB/s in each direction and 1 us a hop.

use hiroma_policy::placement::Rng;
use hiroma_sim::{Config, NetworkConfig, NetworkModel, Sharing, Switching, Transfer, transfer_all};

fn torus(model: NetworkModel) -> Config {
    let base = Config::default();
    let network = NetworkConfig {
        model,
        sharing: if model == NetworkModel::Fair { Sharing::ByLatency } else { Sharing::Equal },
        latency_ns: 1000,
        hop_overhead_ns: 0,
        page_overhead_ns: 0,
        message_bytes: 1,
        ..base.network.clone()
    };
    let mut config = Config { network, ..base };
    // A message has at least one byte.
    config.node.page_bytes = 8191;
    config
}

fn mean_us(config: &Config, transfers: &[Transfer]) -> f64 {
    let result = transfer_all(config, transfers).unwrap();
    let taken = result.there_ns.iter().zip(transfers).map(|(there, sent)| there - sent.start_ns);
    taken.sum::<u64>() as f64 / transfers.len() as f64 / 1e3
}

fn at_once(pairs: &[(u32, u32)]) -> Vec<Transfer> {
    pairs.iter().map(|&(source, target)| Transfer { start_ns: 0, source, target }).collect()
}

/// Cases whose senders and receivers are known, with SimGrid's mean transfer times.
#[test]
fn known_cases_take_as_long_as_in_simgrid() {
    let fair = torus(NetworkModel::Fair);
    for (case, pairs, simgrid_us) in [
        ("three hops, nothing else", vec![(0, 3)], 84.9),
        ("two pages share one link", vec![(0, 2), (1, 2)], 144.1),
        ("parking lot", vec![(0, 3), (0, 1), (1, 2), (2, 3)], 123.4),
        ("eight pages at once", vec![(0, 1); 8], 656.4),
    ] {
        let ours_us = mean_us(&fair, &at_once(&pairs));
        assert!((ours_us - simgrid_us).abs() <= 0.051, "{case}: {ours_us} us, not {simgrid_us}");
    }
}

/// The same cases in first-in-first-out order, as the reference has them for this simulator.
#[test]
fn known_cases_in_order_of_arrival() {
    let three = vec![(0, 3)];
    let shared = vec![(0, 2), (1, 2)];
    let lot = vec![(0, 3), (0, 1), (1, 2), (2, 3)];
    let eight = vec![(0, 1); 8];
    for (pairs, stored_us, cut_us) in
        [(three, 248.8, 84.9), (shared, 124.4, 123.9), (lot, 144.9, 124.1), (eight, 369.6, 369.6)]
    {
        let mut fifo = torus(NetworkModel::Fifo);
        let stored = mean_us(&fifo, &at_once(&pairs));
        fifo.network.switching = Switching::CutThrough;
        let cut = mean_us(&fifo, &at_once(&pairs));
        assert!((stored - stored_us).abs() <= 0.051 && (cut - cut_us).abs() <= 0.051, "{pairs:?}");
    }
}

/// The offset of a node at most four hops away: all 40 are equally frequent.
fn near(rng: &mut Rng, node: u32) -> u32 {
    loop {
        let (dx, dy) = (rng.below(9) as i32 - 4, rng.below(9) as i32 - 4);
        if (1..=4).contains(&(dx.abs() + dy.abs())) {
            let (x, y) = (node as i32 % 16 + dx, node as i32 / 16 + dy);
            return (x.rem_euclid(16) + 16 * y.rem_euclid(16)) as u32;
        }
    }
}

/// 32 senders, all within four hops of one receiver. Which ones the reference has is not known:
/// the mean over many draws.
#[test]
fn many_senders_to_one_receiver_take_as_long_as_in_simgrid() {
    let (fair, mut rng, draws) = (torus(NetworkModel::Fair), Rng::new(1), 200);
    let mut sum_us = 0.0;
    for _ in 0..draws {
        let pairs: Vec<(u32, u32)> = (0..32).map(|_| (near(&mut rng, 136), 136)).collect();
        sum_us += mean_us(&fair, &at_once(&pairs));
    }
    let ours_us = sum_us / f64::from(draws);
    assert!((ours_us / 832.0 - 1.0).abs() < 0.03, "{ours_us} us, not 832");
}

/// Poisson arrivals at four loads: what a page waits for others, on average.
#[test]
fn contention_under_load_is_that_of_simgrid() {
    let fair = torus(NetworkModel::Fair);
    for (gap_ns, simgrid_us) in [(3000, 101.0), (1500, 121.0), (1000, 144.0), (800, 170.0)] {
        let (mut rng, pages) = (Rng::new(7), 20_000);
        // A Poisson process: that many times drawn from one long span, in order.
        let span_ns = pages * gap_ns;
        let mut times: Vec<u64> = (0..pages).map(|_| rng.below_u64(span_ns)).collect();
        times.sort_unstable();
        let transfers: Vec<Transfer> = times
            .into_iter()
            .map(|start_ns| {
                let source = rng.below(256);
                Transfer { start_ns, source, target: near(&mut rng, source) }
            })
            .collect();
        let ours_us = mean_us(&fair, &transfers);
        println!("one page in {gap_ns} ns: {ours_us:.1} us, SimGrid {simgrid_us}");
        // Alone, a page of three hops takes 84.9 us; the reference has three digits.
        let (waits_us, simgrid_waits_us) = (ours_us - 84.92, simgrid_us - 84.92);
        assert!(
            (waits_us - simgrid_waits_us).abs() <= 0.03 * simgrid_waits_us + 0.5,
            "one page in {gap_ns} ns waits {waits_us} us for others, in SimGrid {simgrid_waits_us}"
        );
    }
}

/// The transfers of `bench/sim/simgrid/compare`, which runs them on SimGrid itself.
fn pattern(transfers: u32, gap_ns: u64) -> Vec<Transfer> {
    let (mut state, mut now_ns) = (1u64, 0);
    let mut draw = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut next = || {
        now_ns += draw(2 * gap_ns);
        let (x, y) = (draw(16) as i64, draw(16) as i64);
        let (dx, dy) = loop {
            let (dx, dy) = (draw(9) as i64 - 4, draw(9) as i64 - 4);
            if (1..=4).contains(&(dx.abs() + dy.abs())) {
                break (dx, dy);
            }
        };
        let target = ((x + dx).rem_euclid(16) + (y + dy).rem_euclid(16) * 16) as u32;
        Transfer { start_ns: now_ns, source: (x + y * 16) as u32, target }
    };
    (0..transfers).map(|_| next()).collect()
}

/// Exactly the transfers that SimGrid had: the means agree to a tenth of a thousandth.
#[test]
fn same_transfers_take_as_long_as_in_simgrid() {
    let fair = torus(NetworkModel::Fair);
    for (gap_ns, simgrid_us) in [(3000, 100.180), (1500, 119.944), (1000, 144.582), (800, 166.939)]
    {
        let ours_us = mean_us(&fair, &pattern(20_000, gap_ns));
        assert!((ours_us / simgrid_us - 1.0).abs() < 1e-4, "{gap_ns}: {ours_us}, {simgrid_us}");
    }
}

/// With equal shares, computed by hand: a page has 81,920 ns of its own on a link.
#[test]
fn equal_shares_match_hand_calculation() {
    let mut fair = torus(NetworkModel::Fair);
    fair.network.sharing = Sharing::Equal;
    let there = |pairs: &[(u32, u32)]| transfer_all(&fair, &at_once(pairs)).unwrap().there_ns;
    // The second page starts 1 us later than the first, and has half of the link from then on: the
    // first has 80,920 ns of its own left, the second the same when the first is through.
    assert_eq!(there(&[(1, 2), (0, 2)]), [1_000 + 1_000 + 2 * 80_920, 2_000 + 2 * 80_920 + 1_000]);
    // Nobody shares anything in opposite directions.
    assert_eq!(there(&[(0, 1), (1, 0)]), [82_920, 82_920]);
    assert_eq!(there(&[(0, 1); 4]), [4 * 81_920 + 1_000; 4]);
    assert_eq!(there(&[(5, 5)]), [0]);
}
