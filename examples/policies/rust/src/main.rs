//! A placement policy of one's own, compared with the built-in ones on a cluster.
//!
//! `cargo run --release -p hiroma-example-policy -- examples/sim/small.toml` prints the ranking. A
//! cluster's file may also name the policy itself: `policy.placement = "headroom"`.

use std::error::Error;
use std::path::PathBuf;

use hiroma_policy::placement::{CustomPlacement, Peer, PlacementPolicy, PolicyError, Request, Rng};
use hiroma_sim::Config;
use hiroma_sim_lab::cluster::read_cluster;
use hiroma_sim_lab::compare::{Comparison, compare, entrants_with};
use hiroma_sim_lab::jobs::Stop;
use hiroma_sim_lab::lab::{Lab, LabError};
use hiroma_sim_lab::policies::Policies;

/// The nearest peer that keeps some of its memory free for itself; without one, the peer with the
/// most free frames. Ties are broken at random, so that nodes with the same view do not all choose
/// the same peer.
#[derive(Debug)]
struct Headroom {
    /// What a peer keeps, in thousandths of its memory.
    kept_permille: u32,
}

impl PlacementPolicy for Headroom {
    fn choose(
        &mut self,
        request: &Request<'_>,
        rng: &mut Rng,
    ) -> Result<Option<Peer>, PolicyError> {
        let kept = |capacity: u32| u64::from(capacity) * u64::from(self.kept_permille) / 1000;
        let roomy =
            || request.candidates().filter(|peer| u64::from(peer.free) > kept(peer.capacity));
        let Some(hops) = roomy().map(|peer| peer.hops).min() else {
            let most = request.candidates().max_by_key(|peer| (peer.free, rng.next_u64()));
            return Ok(most.map(|peer| peer.peer));
        };
        let nearest: Vec<Peer> =
            roomy().filter(|peer| peer.hops == hops).map(|peer| peer.peer).collect();
        Ok(Some(nearest[rng.below(nearest.len() as u32) as usize]))
    }
}

/// What files may name.
fn policies() -> Policies {
    let mut policies = Policies::new();
    policies.register("headroom", || Headroom { kept_permille: 250 });
    policies
}

/// All policies on `config`'s cluster, and some variants of ours.
fn rank(config: &Config, seeds: &[u64], threads: usize) -> Result<Comparison, LabError> {
    let own: Vec<CustomPlacement> = [125, 250, 500]
        .into_iter()
        .map(|kept_permille| {
            let label = format!("headroom {} %", f64::from(kept_permille) / 10.0);
            CustomPlacement::new(label, move || Headroom { kept_permille })
        })
        .collect();
    let stop = Stop::new();
    let lab =
        Lab { threads, stop: &stop, advance: &|_| (), lacking: &|_| None, instead: &|_| None };
    compare(config, entrants_with(config, &own), seeds, &lab)
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args_os().nth(1).ok_or("usage: hiroma-example-policy CLUSTER.toml")?;
    let config = read_cluster(&PathBuf::from(file), &policies())?;
    let threads = std::thread::available_parallelism()?.get();
    let comparison = rank(&config, &[1, 2, 3, 4, 5], threads)?;
    println!("{}\n\n{}", comparison.verdict(), comparison.table().to_text().trim_end());
    Ok(())
}

#[cfg(test)]
mod tests {
    use hiroma_sim_lab::cluster::cluster_with;
    use hiroma_sim_lab::settings::Settings;

    use super::*;

    const SMALL: &str = "nodes = 16\ndisk.count = 2\npolicy.domain_radius = 2\n\
        load.arrivals_per_s = 40\nrun.warmup_ns = \"10ms\"\nrun.duration_ns = \"20ms\"\n";

    fn cluster(policy: &str) -> Config {
        let text = format!("{SMALL}policy.placement = \"{policy}\"\n");
        cluster_with(Settings::parse("c.toml", &text).unwrap(), &policies()).unwrap()
    }

    #[test]
    fn own_policies_are_ranked_with_the_built_in_ones() {
        let comparison = rank(&cluster("headroom"), &[1, 2], 1).unwrap();
        let place = |name: &str| {
            comparison.ranked.iter().position(|ranked| ranked.entrant.name.starts_with(name))
        };
        for name in ["headroom,", "headroom 12.5 %,", "headroom 50 %,", "nearest,"] {
            assert!(place(name).is_some(), "{name} is missing");
        }
        assert_eq!(comparison, rank(&cluster("headroom"), &[1, 2], 3).unwrap());
    }

    #[test]
    fn headroom_of_nothing_sends_to_the_nearest() {
        let hops = |config: &Config| {
            hiroma_sim::run(config, 1, &mut |_| true).unwrap().transfer_hops.mean().unwrap()
        };
        let nearest = hops(&cluster("nearest"));
        assert!((hops(&cluster("headroom")) - nearest).abs() < 0.3);
        assert!(hops(&cluster("random")) > nearest + 0.3);
    }
}
