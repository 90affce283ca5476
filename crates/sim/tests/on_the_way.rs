//! What happens to messages on their way: the processors of the nodes that they pass, and pages that
//! return over the nodes that passed them on.

use hiroma_policy::placement::{PlacementKind, ReservationKind, ScopeKind};
use hiroma_sim::{Canary, FetchPath, RunError, Switching, run};

mod common;

use common::{MS, back, out, outcome, replay, small};

#[test]
fn processors_forward_for_as_long_as_set() {
    let (small_ns, page_ns) = (5_000 + 640, 5_000 + 82_560);
    let mut seen = [0; 3];
    for seed in 1..30 {
        let mut config = small();
        config.policy.placement = PlacementKind::Random;
        (config.network.forward_ns, config.network.page_forward_ns) = (7_000, 90_000);
        replay(&mut config, vec![out(0, 0, 7), back(100 * MS, 0, 7)]);
        let outcome = outcome(&config, seed);
        let hops = outcome.transfer_hops.sum;
        seen[hops as usize] += 1;
        let links_ns = hops * (small_ns + page_ns) + 2 * 5_000 + 250_000;
        assert_eq!(outcome.transfer_ns.sum, links_ns + (hops - 1) * (7_000 + 97_000));
    }
    assert!(seen[1] > 0 && seen[2] > 0, "{seen:?}");
    // A whole machine: every message over more than one hop waits for processors.
    let mut config = small();
    let links = outcome(&config, 1);
    (config.network.forward_ns, config.network.page_forward_ns) = (7_000, 90_000);
    let processors = outcome(&config, 1);
    let mean = |run: &hiroma_sim::Outcome| run.transfer_ns.mean().unwrap();
    assert!(mean(&processors) > mean(&links) + 50_000.0, "{} {}", mean(&processors), mean(&links));
    assert!(processors.handler_use() > links.handler_use());
}

#[test]
fn processors_forward_confirmed_messages_as_well() {
    let mut seen = [0; 3];
    for seed in 1..30 {
        let mut config = small();
        config.policy.placement = PlacementKind::Random;
        config.policy.confirm = true;
        let refresh_ns = config.policy.refresh_ns;
        replay(&mut config, vec![out(refresh_ns, 0, 7), back(refresh_ns * 2 + MS, 0, 7)]);
        let took = |config: &hiroma_sim::Config| {
            let outcome = outcome(config, seed);
            (outcome.transfer_hops.sum, outcome.transfer_ns.sum)
        };
        let (hops, links_ns) = took(&config);
        (config.network.forward_ns, config.network.page_forward_ns) = (7_000, 90_000);
        let (same, processors_ns) = took(&config);
        if hops == same {
            seen[hops as usize] += 1;
            assert_eq!(processors_ns, links_ns + (hops - 1) * (7_000 + 97_000));
        }
    }
    assert!(seen[1] > 0 && seen[2] > 0, "{seen:?}");
}

#[test]
fn forwarding_needs_whole_messages() {
    let mut config = small();
    (config.network.forward_ns, config.network.switching) = (1, Switching::CutThrough);
    let Err(RunError::Config(problems)) = run(&config, 1, &mut |_| true) else {
        panic!("it was not refused")
    };
    assert_eq!(problems[0].field, "network.forward_ns");
}

#[test]
fn pages_walk_back_over_the_nodes_that_passed_them_on() {
    for (scope, reservation) in [
        (ScopeKind::Gradient, ReservationKind::None),
        (ScopeKind::Domain, ReservationKind::None),
        (ScopeKind::Domain, ReservationKind::InAdvance),
    ] {
        for seed in 1..4 {
            let mut config = small();
            (config.policy.scope, config.policy.reservation) = (scope, reservation);
            (config.policy.attempts_max, config.run.drain) = (200, true);
            config.load.arrivals_per_s = 220.0;
            let direct = outcome(&config, seed);
            config.network.fetch_path = FetchPath::Back;
            // The checkers see every page in one place, and every wait end.
            let walked = outcome(&config, seed);
            assert!(
                walked.checks > 10_000 && walked.repeated_page_outs + walked.guests_displaced > 0
            );
            let hops = |run: &hiroma_sim::Outcome| run.transfer_hops.mean().unwrap();
            if scope == ScopeKind::Gradient {
                assert!(hops(&walked) > hops(&direct), "{} {}", hops(&walked), hops(&direct));
            }
        }
    }
}

#[test]
fn a_page_lost_on_its_way_back_is_found() {
    for canary in [Canary::LosePage, Canary::VanishPage, Canary::DropAnswer, Canary::KeepCopy] {
        let mut config = small();
        config.policy.scope = ScopeKind::Gradient;
        (config.network.fetch_path, config.run.canary) = (FetchPath::Back, canary);
        config.run.duration_ns = 1000 * MS;
        let result = run(&config, 1, &mut |_| true);
        let found = matches!(result, Err(RunError::Wrong(_) | RunError::Stuck(_)));
        assert!(found, "{canary:?} {result:?}");
    }
}
