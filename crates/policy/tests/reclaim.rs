//! What the reclaim controller never does, whatever it observes.

use hiroma_policy::reclaim::{
    BEHIND_LARGE, BEHIND_NEEDED, BEHIND_NEVER, Batch, BatchEnd, Controller, Go, Node, ORDERS,
    Observation, Reason, Settings, Verdict, Zone,
};
use proptest::prelude::*;

const POLL_NS: u64 = 100_000_000;
const MIB: u64 = 256;

/// A node of 16 GiB with little free.
fn node() -> Node {
    let mut free_blocks = [0; ORDERS];
    free_blocks[9] = 40;
    let zone = Zone {
        managed_pages: 16384 * MIB,
        free_pages: 100 * MIB,
        min_pages: 50 * MIB,
        low_pages: 65 * MIB,
        high_pages: 80 * MIB,
        reserve_pages: 0,
        free_blocks,
    };
    Node {
        zones: vec![zone],
        inactive_file_pages: 8000 * MIB,
        active_file_pages: 1000 * MIB,
        held_pages: 5000 * MIB,
        ..Node::default()
    }
}

fn look(node: Node) -> Observation {
    Observation { nodes: vec![node], idle_ppm: 500_000, ..Observation::default() }
}

/// The verdict at the second observation, after `change`.
fn after(settings: Settings, change: impl Fn(&mut Node)) -> Verdict {
    let mut controller = Controller::new(settings, 0);
    assert_eq!(controller.observe(0, &look(node()))[0].reason, Reason::First);
    let mut changed = node();
    change(&mut changed);
    controller.observe(POLL_NS, &look(changed))[0]
}

/// 100 MiB of files within 100 ms.
fn filled(node: &mut Node) {
    node.inactive_file_pages += 40 * MIB;
    node.stolen_file_pages += 60 * MIB;
}

#[test]
fn filling_page_cache_triggers_batched_reclaim() {
    let verdict = after(Settings::default(), filled);
    // 1000 MiB/s for 64 ms and the time to reclaim that, twice, minus the 20 MiB above the high
    // watermark.
    assert!(matches!(verdict.reason, Reason::Filling { order: 0, .. }), "{verdict:?}");
    assert!((115 * MIB..145 * MIB).contains(&verdict.reclaim_pages), "{verdict:?}");
    assert_eq!(verdict.batch_pages, 32 * MIB);
}

#[test]
fn configured_paper_thresholds_hold() {
    let mut settings = Settings::default();
    settings.set("free_bytes_min", 1 << 30).unwrap().unwrap();
    settings.set("reclaim_bytes", 4 << 30).unwrap().unwrap();
    let verdict = after(settings, filled);
    assert!(
        matches!(verdict.reason, Reason::Filling { wanted, .. } if wanted == 1024 * MIB),
        "{verdict:?}"
    );
    assert_eq!(verdict.reclaim_pages, 4096 * MIB);
}

#[test]
fn calm_enough_and_little_inactive_are_distinguished() {
    let calm = after(Settings::default(), |node| node.inactive_file_pages += MIB);
    assert!(matches!(calm.reason, Reason::Calm { .. }), "{calm:?}");
    let enough = after(Settings::default(), |node| {
        filled(node);
        node.zones[0].free_pages += 1000 * MIB;
    });
    assert!(matches!(enough.reason, Reason::Enough { .. }), "{enough:?}");
    let dirty = after(Settings::default(), |node| {
        filled(node);
        node.dirty_pages = 7900 * MIB;
    });
    assert!(matches!(dirty.reason, Reason::LittleInactive { .. }) && dirty.behind, "{dirty:?}");
    assert!(!calm.behind && !enough.behind);
    assert_eq!(calm.reclaim_pages + enough.reclaim_pages + dirty.reclaim_pages, 0);
}

#[test]
fn unequal_nodes_are_decided_separately() {
    let small = |held_pages| {
        let zone = Zone { managed_pages: 512 * MIB, free_pages: 90 * MIB, ..node().zones[0] };
        Node {
            id: 7,
            zones: vec![zone],
            inactive_file_pages: 12 * MIB,
            active_file_pages: 60 * MIB,
            held_pages,
            ..Node::default()
        }
    };
    let mut controller = Controller::new(Settings::default(), 0);
    controller.observe(
        0,
        &Observation {
            nodes: vec![node(), small(300 * MIB)],
            idle_ppm: 500_000,
            ..Observation::default()
        },
    );
    let mut large = node();
    filled(&mut large);
    let mut after = small(300 * MIB);
    filled(&mut after);
    after.inactive_file_pages = 15 * MIB;
    let verdicts = controller.observe(
        POLL_NS,
        &Observation { nodes: vec![large, after], idle_ppm: 500_000, ..Observation::default() },
    );
    assert!(
        verdicts[0].node == 0 && matches!(verdicts[0].reason, Reason::Filling { .. }),
        "{verdicts:?}"
    );
    // The small one has less than a batch: nothing is requested from it, whatever the large one
    // has.
    assert!(
        verdicts[1].node == 7 && matches!(verdicts[1].reason, Reason::LittleInactive { .. }),
        "{verdicts:?}"
    );
    assert_eq!(verdicts[1].reclaim_pages, 0);
    // A node that disappears is forgotten, and a new one is only observed at first.
    let verdicts = controller.observe(
        2 * POLL_NS,
        &Observation { nodes: vec![small(0)], idle_ppm: 500_000, ..Observation::default() },
    );
    assert_eq!(verdicts.len(), 1);
}

#[test]
fn kswapd_active_with_free_memory_means_fragmentation() {
    let verdict = after(Settings::default(), |node| {
        filled(node);
        node.zones[0].free_pages += 200 * MIB;
        node.kswapd_scanned_pages += 1000;
    });
    assert!(
        !matches!(verdict.reason, Reason::Filling { order: 9, .. }),
        "the room before was less than what came in: {verdict:?}"
    );
    let in_pieces = |free: u64| {
        let mut controller = Controller::new(Settings::default(), 0);
        let mut node = node();
        node.zones[0].free_pages += free;
        node.zones[0].free_blocks[3] = (free + 20 * MIB) >> 3;
        controller.observe(0, &look(node.clone()));
        filled(&mut node);
        node.kswapd_scanned_pages += 1000;
        controller.observe(POLL_NS, &look(node))[0]
    };
    // Three times what is wanted, but little compared with the cache: some more may well contain
    // larger blocks.
    let verdict = in_pieces(700 * MIB);
    assert!(
        matches!(verdict.reason, Reason::Filling { order: 4, .. }) && !verdict.compact,
        "{verdict:?}"
    );
    let verdict = in_pieces(1200 * MIB);
    assert!(
        matches!(verdict.reason, Reason::Pieces { order: 4, .. })
            && verdict.compact
            && verdict.behind,
        "{verdict:?}"
    );
}

#[test]
fn drop_behind_large_folios_while_enough_is_free() {
    let run = |drop_behind, early_reclaim, in_large: bool, free: u64| {
        let mut settings = Settings::default();
        settings.set("drop_behind", drop_behind).unwrap().unwrap();
        settings.set("early_reclaim", early_reclaim).unwrap().unwrap();
        after(settings, |node| {
            // All of it is dropped again, and counts as filled nevertheless.
            node.dropped_file_pages += 100 * MIB;
            node.large_file_pages += if in_large { 100 * MIB } else { 0 };
            (node.zones[0].free_pages, node.zones[0].free_blocks[9]) = (80 * MIB + free, free >> 9);
        })
    };
    let enough = run(BEHIND_LARGE, 1, true, 300 * MIB);
    assert!(matches!(enough.reason, Reason::Enough { .. }) && enough.behind, "{enough:?}");
    let plenty = run(BEHIND_LARGE, 1, true, 3000 * MIB);
    assert!(matches!(plenty.reason, Reason::Enough { .. }) && !plenty.behind, "{plenty:?}");
    let filling = run(BEHIND_LARGE, 1, true, 20 * MIB);
    assert!(
        matches!(filling.reason, Reason::Filling { order: 9, .. })
            && filling.behind
            && filling.reclaim_pages > 0,
        "{filling:?}"
    );
    assert!(
        !run(BEHIND_LARGE, 1, false, 20 * MIB).behind
            && !run(BEHIND_NEEDED, 1, true, 20 * MIB).behind
    );
    // As the only mechanism, for any stream.
    let alone = run(BEHIND_NEEDED, 0, false, 20 * MIB);
    assert!(
        alone.behind && alone.reclaim_pages == 0 && run(BEHIND_NEEDED, 0, false, 200 * MIB).behind,
        "{alone:?}"
    );
    assert!(!run(BEHIND_NEVER, 0, true, 20 * MIB).behind);
}

#[test]
fn refaults_or_missing_pages_lengthen_pauses() {
    let mut controller = Controller::new(Settings::default(), 0);
    let mut node = node();
    controller.observe(0, &look(node.clone()));
    let (mut now, mut pauses) = (0, Vec::new());
    while pauses.len() < 5 {
        now += POLL_NS;
        filled(&mut node);
        let verdict = controller.observe(now, &look(node.clone()))[0];
        if verdict.reclaim_pages > 0 {
            let asked_pages = verdict.batch_pages;
            let batch = Batch {
                node: 0,
                asked_pages,
                got_pages: asked_pages,
                took_ns: 5_000_000,
                cpu_ns: 0,
                end: BatchEnd::Whole,
            };
            controller.batch_done(now, batch);
            node.missed_file_pages += 16 * MIB;
        } else if let Reason::CameBack { pause_ns, .. } = verdict.reason {
            pauses.push(pause_ns);
        }
    }
    assert_eq!(pauses, [500, 1000, 2000, 2000, 2000].map(|ms| ms * 1_000_000));
    let batch = Batch {
        node: 0,
        asked_pages: 32 * MIB,
        got_pages: MIB,
        took_ns: 1,
        cpu_ns: 1,
        end: BatchEnd::Short,
    };
    assert!(matches!(
        controller.batch_done(now, batch),
        Go::Stop(Reason::Short { pause_ns: 2_000_000_000, .. })
    ));
}

#[test]
fn memory_pressure_lowers_refault_tolerance() {
    let comes_back = |stalled_ns: u64, missed: u64| {
        let mut controller = Controller::new(Settings::default(), 0);
        let mut node = node();
        controller.observe(0, &look(node.clone()));
        filled(&mut node);
        let verdict = controller.observe(POLL_NS, &look(node.clone()))[0];
        let got_pages = verdict.reclaim_pages;
        assert!(got_pages > 0, "{verdict:?}");
        let batch = Batch {
            node: 0,
            asked_pages: got_pages,
            got_pages,
            took_ns: 5_000_000,
            cpu_ns: 0,
            end: BatchEnd::Whole,
        };
        controller.batch_done(POLL_NS, batch);
        filled(&mut node);
        node.missed_file_pages += got_pages * missed / 1000;
        let verdict = controller.observe(2 * POLL_NS, &Observation { stalled_ns, ..look(node) })[0];
        matches!(verdict.reason, Reason::CameBack { .. })
    };
    // 5 % of what was taken.
    assert!(!comes_back(0, 50) && !comes_back(POLL_NS / 20, 50));
    assert!(comes_back(POLL_NS / 5, 50) && comes_back(0, 200));
    assert!(!comes_back(POLL_NS, 0), "waiting alone is the kernel's affair");
}

/// What may happen between two observations, in MiB.
#[derive(Clone, Debug)]
struct Event {
    file: i64,
    held: i64,
    stolen: u64,
    missed: u64,
    scanned: u64,
    free: u64,
    dirty: u64,
    idle_ppm: u64,
    ms: u64,
    /// Results of the batches of this observation, in quarters of the requested amount.
    quarters: u64,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = (
        (-3000i64..3000, -500i64..500, 0u64..500, 0u64..60, 0u64..100),
        (0u64..4000, 0u64..9000, 0u64..1_000_000, 1u64..2000, 0u64..=4),
    );
    let event =
        event.prop_map(
            |((file, held, stolen, missed, scanned), (free, dirty, idle_ppm, ms, quarters))| {
                Event { file, held, stolen, missed, scanned, free, dirty, idle_ppm, ms, quarters }
            },
        );
    prop::collection::vec(event, 1..60)
}

/// Plays events; returns every observation with its verdict and the total that was requested.
fn play(events: &[Event]) -> Vec<(Node, Node, Verdict, u64)> {
    let mut controller = Controller::new(Settings::default(), 0);
    let mut node = node();
    controller.observe(0, &look(node.clone()));
    let (mut now, mut played) = (0, Vec::new());
    for event in events {
        let before = node.clone();
        now += event.ms * 1_000_000;
        let add = |value: u64, by: i64| value.saturating_add_signed(by * MIB as i64);
        node.inactive_file_pages = add(node.inactive_file_pages, event.file);
        node.held_pages = add(node.held_pages, event.held);
        node.stolen_file_pages += event.stolen * MIB;
        node.missed_file_pages += event.missed * MIB;
        node.kswapd_scanned_pages += event.scanned / 50;
        node.zones[0].free_pages = event.free * MIB;
        node.zones[0].free_blocks[9] = event.free / 4;
        node.dirty_pages = event.dirty * MIB;
        let verdict = controller.observe(
            now,
            &Observation {
                nodes: vec![node.clone()],
                idle_ppm: event.idle_ppm,
                ..Observation::default()
            },
        )[0];
        let (mut asked, mut next) = (0, verdict.batch_pages);
        while next > 0 {
            asked += next;
            let got_pages = next * event.quarters / 4;
            let end = if event.quarters == 4 { BatchEnd::Whole } else { BatchEnd::Short };
            let batch = Batch {
                node: 0,
                asked_pages: next,
                got_pages,
                took_ns: next * 600,
                cpu_ns: next * 600,
                end,
            };
            next = match controller.batch_done(now, batch) {
                Go::On(pages) => pages,
                Go::Stop(_) => 0,
            };
        }
        played.push((before, node.clone(), verdict, asked));
    }
    played
}

proptest! {
    #[test]
    fn controller_respects_its_limits(events in events()) {
        for (before, node, verdict, asked) in play(&events) {
            let clean = node.inactive_file_pages.saturating_sub(node.dirty_pages);
            prop_assert!(asked <= verdict.reclaim_pages);
            prop_assert!(verdict.reclaim_pages <= clean, "{verdict:?} of {clean}");
            prop_assert!(verdict.batch_pages <= 16384, "{verdict:?}");
            prop_assert!(verdict.reclaim_pages == 0 || verdict.batch_pages >= 4096, "{verdict:?}");
            let fill = (node.file_pages() + node.stolen_file_pages).saturating_sub(before.file_pages() + before.stolen_file_pages);
            let held = node.held_pages.saturating_sub(before.held_pages);
            prop_assert!(verdict.reclaim_pages == 0 || fill >= 3 * held, "{verdict:?} although {held} against {fill}");
        }
    }

    #[test]
    fn the_same_events_give_the_same_verdicts(events in events()) {
        prop_assert_eq!(play(&events), play(&events));
    }
}
