//! The reclaim controller in a simulated machine: what it prevents, and when it stays idle.

use hiroma_policy::reclaim::{Reason, Settings, pages};
use hiroma_sim::{MachineConfig, MachineLoad as Load, MachineOutcome, run_machine};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn stream(mib_s: u64, large: bool) -> Load {
    Load::Stream { bytes_s: mib_s * MIB, from_ms: 0, until_ms: u64::MAX, large }
}

/// The same machine without the daemon and with it.
fn both(loads: &[Load]) -> (MachineOutcome, MachineOutcome) {
    let without = MachineConfig { loads: loads.to_vec(), ..MachineConfig::measured() };
    let with = MachineConfig { daemon: Some(Settings::default()), ..without.clone() };
    (run_machine(&without), run_machine(&with))
}

#[test]
fn kswapd_never_wakes_during_large_file_read() {
    // The paper's case, from a slow disk to a fast one.
    for mib_s in [150, 500, 1200, 2000] {
        let (without, with) = both(&[stream(mib_s, false)]);
        assert!(without.kswapd_wakes > 10, "{mib_s} MiB/s: {without:?}");
        assert_eq!(
            (with.kswapd_wakes, with.direct_reclaims, with.hot_missed_pages),
            (0, 0, 0),
            "{mib_s} MiB/s: {with:?}"
        );
        assert_eq!(with.filled_pages, without.filled_pages);
        assert!(
            with.daemon_ns <= without.kswapd_ns * 11 / 10,
            "{mib_s} MiB/s: {} against {}",
            with.daemon_ns,
            without.kswapd_ns
        );
    }
}

#[test]
fn late_bursty_reader_is_handled_in_time() {
    let bursts = (0..10).map(|at| Load::Stream {
        bytes_s: 1500 * MIB,
        from_ms: 5000 * at,
        until_ms: 5000 * at + 2500,
        large: false,
    });
    let (without, with) = both(&bursts.collect::<Vec<_>>());
    assert!(without.kswapd_wakes > 10, "{without:?}");
    assert!(with.kswapd_wakes <= 2, "{with:?}");
    assert_eq!(with.direct_reclaims, 0);
}

#[test]
fn anonymous_growth_is_left_to_the_kernel() {
    let (without, with) = both(&[
        Load::Allocate { bytes_s: 700 * MIB, bytes: 13 * GIB, from_ms: 1000 },
        stream(100, false),
    ]);
    let while_it_grew = |outcome: &MachineOutcome| {
        outcome.journal.iter().any(|(_, reason)| matches!(reason, Reason::NotFiles { .. }))
    };
    assert!(while_it_grew(&with), "{with:?}");
    assert_eq!(with.out_of_memory, without.out_of_memory);
    assert!(with.hot_missed_pages <= without.hot_missed_pages.max(pages(64 * MIB)), "{with:?}");
}

#[test]
fn cache_create_and_drop_loop_causes_no_thrashing() {
    for bytes in [GIB / 2, 4 * GIB, 9 * GIB] {
        let config = MachineConfig {
            loads: vec![Load::MakeAndDrop { bytes_s: 2000 * MIB, bytes }],
            ..MachineConfig::measured()
        };
        let with = run_machine(&MachineConfig { daemon: Some(Settings::default()), ..config });
        assert_eq!((with.hot_missed_pages, with.out_of_memory), (0, 0), "{bytes}: {with:?}");
        // What it reclaims is bounded by the cache that no program needs, and by what the loop
        // leaves to the next round.
        assert!(with.daemon_pages <= with.filled_pages, "{bytes}: {with:?}");
        assert!(with.daemon_ns <= 60_000 * 1_000_000 * 6 / 10 + 2_000_000_000, "{bytes}: {with:?}");
    }
}

#[test]
fn large_folios_trigger_reclaim_despite_free_memory() {
    let config = MachineConfig {
        loads: vec![stream(1000, true)],
        large_free_permille: 200,
        ..MachineConfig::measured()
    };
    let without = run_machine(&config);
    let with = run_machine(&MachineConfig { daemon: Some(Settings::default()), ..config });
    assert!(without.kswapd_wakes_large > 10, "{without:?}");
    assert!(
        with.journal.iter().any(|(_, reason)| matches!(
            reason,
            Reason::Filling { order: 1.., .. } | Reason::Pieces { .. }
        )),
        "{with:?}"
    );
    assert!(
        with.kswapd_wakes * 2 < without.kswapd_wakes,
        "{} against {}",
        with.kswapd_wakes,
        without.kswapd_wakes
    );
    // If free memory is not fragmented at the beginning, they are noticed as they arrive, before
    // any shortage.
    let config = MachineConfig {
        loads: vec![stream(1000, true)],
        cold_bytes: 0,
        ..MachineConfig::measured()
    };
    let without = run_machine(&config);
    let with = run_machine(&MachineConfig { daemon: Some(Settings::default()), ..config });
    assert!(
        with.kswapd_wakes * 20 < without.kswapd_wakes,
        "{} against {}",
        with.kswapd_wakes,
        without.kswapd_wakes
    );
}

#[test]
fn slow_large_folio_stream_handled_in_fragmented_memory() {
    for mib_s in [40, 150] {
        let config = MachineConfig {
            loads: vec![stream(mib_s, true)],
            cold_bytes: 13 * GIB,
            large_free_permille: 0,
            duration_ms: 120_000,
            ..MachineConfig::measured()
        };
        let without = run_machine(&config);
        let with = run_machine(&MachineConfig { daemon: Some(Settings::default()), ..config });
        assert!(without.kswapd_wakes_large > 10, "{mib_s} MiB/s: {without:?}");
        assert!(
            with.kswapd_wakes * 10 <= without.kswapd_wakes,
            "{mib_s} MiB/s: {with:?} against {}",
            without.kswapd_wakes
        );
        assert_eq!(
            (with.direct_reclaims, with.hot_missed_pages),
            (0, 0),
            "{mib_s} MiB/s: {with:?}"
        );
    }
}

#[test]
fn busy_processors_limit_reclaim_and_are_reported() {
    let config = MachineConfig {
        loads: vec![stream(1000, false)],
        idle_ppm: 0,
        daemon: Some(Settings::default()),
        ..MachineConfig::measured()
    };
    let with = run_machine(&config);
    assert!(
        with.journal.iter().any(|(_, reason)| matches!(reason, Reason::FillingBusy { .. })),
        "{with:?}"
    );
    assert!(with.daemon_pages <= 600 * pages(16 * MIB));
}

#[test]
fn daemon_backs_off_when_all_memory_is_hot() {
    let config = MachineConfig {
        hot_bytes: 10 * GIB,
        cold_bytes: 0,
        loads: vec![stream(300, false)],
        ..MachineConfig::measured()
    };
    let without = run_machine(&config);
    let with = run_machine(&MachineConfig { daemon: Some(Settings::default()), ..config });
    assert_eq!(with.out_of_memory, 0);
    assert!(
        with.hot_missed_pages <= without.hot_missed_pages + pages(64 * MIB),
        "{with:?} against {without:?}"
    );
}

#[test]
fn the_same_machine_gives_the_same_outcome() {
    let loads = [stream(700, false), Load::MakeAndDrop { bytes_s: 300 * MIB, bytes: GIB }];
    assert_eq!(both(&loads), both(&loads));
}

#[test]
fn idle_machine_is_rarely_observed() {
    for cold_bytes in [0, 8 * GIB, 14 * GIB] {
        let config = MachineConfig {
            cold_bytes,
            daemon: Some(Settings::default()),
            ..MachineConfig::measured()
        };
        let with = run_machine(&config);
        // It would be 600 with an observation at every poll.
        assert!((30..=61).contains(&with.looks), "{with:?}");
        assert_eq!(with.daemon_pages, 0);
    }
}
