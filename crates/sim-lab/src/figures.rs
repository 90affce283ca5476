//! The figures of a run: one number each, with a name and a unit.

use std::collections::BTreeMap;

use hiroma_sim::Outcome;
use serde::{Deserialize, Serialize};

use hiroma_report::Estimate;

/// A number that every run has, or may have.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Key in files: lower case, units last.
    pub name: &'static str,
    /// Title in reports.
    pub title: &'static str,
    /// Unit in reports; empty for counts and shares.
    pub unit: &'static str,
    read: fn(&Outcome) -> Option<f64>,
}

const fn figure(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    read: fn(&Outcome) -> Option<f64>,
) -> Figure {
    Figure { name, title, unit, read }
}

/// Mean response: the figure by which policies are ranked.
pub const RESPONSE: &str = "response_mean_ms";

/// All figures, in the order in which they are shown.
pub const FIGURES: [Figure; 36] = [
    figure(RESPONSE, "response, mean", "ms", |run| run.response_ns.mean().map(ms)),
    figure("response_median_ms", "response, median", "ms", |run| quantile_ms(run, 500)),
    figure("response_p99_ms", "response, 99th percentile", "ms", |run| quantile_ms(run, 990)),
    figure("response_remote_ms", "response from another node, mean", "ms", |run| {
        run.response_remote_ns.mean().map(ms)
    }),
    figure("response_disk_ms", "response from disk, mean", "ms", |run| {
        run.response_disk_ns.mean().map(ms)
    }),
    figure("faults", "faults", "", |run| Some(run.response_ns.count() as f64)),
    figure("transfer_ms", "page transfer, mean", "ms", |run| run.transfer_ns.mean().map(ms)),
    figure("transfer_hops", "page transfer, mean hops", "hops", |run| run.transfer_hops.mean()),
    figure("disk_fetch_ms", "fetch from disk, mean", "ms", |run| run.disk_fetch_ns.mean().map(ms)),
    figure("tier_stores", "pages put into attached memory", "", |run| {
        (run.tier_stores > 0).then_some(run.tier_stores as f64)
    }),
    figure("tier_fetches", "pages brought back from there", "", |run| {
        (run.tier_stores > 0).then_some(run.tier_fetches as f64)
    }),
    figure("page_outs", "page-outs", "", |run| Some(run.page_outs as f64)),
    figure("replay_drops", "of them dropped in the recording", "", |run| {
        (run.replay_drops > 0).then_some(run.replay_drops as f64)
    }),
    figure("replay_skipped", "recorded of pages that were out", "", |run| {
        (run.replay_skipped > 0).then_some(run.replay_skipped as f64)
    }),
    figure("repeated_page_outs", "repeated page-outs", "", |run| {
        Some(run.repeated_page_outs as f64)
    }),
    figure("repeated_share", "repeated, of all page-outs", "", |run| {
        share(run.repeated_page_outs, run.page_outs)
    }),
    figure("disk_share", "page-outs that ended on disk", "", |run| {
        share(run.placed_disk, run.placed_disk + run.placed_remote)
    }),
    figure(
        "messages_per_page_out",
        "messages for each page-out",
        "",
        Outcome::messages_per_page_out,
    ),
    figure("information_per_page_out", "of them information and bids", "", |run| {
        share(run.messages.information + run.messages.bids, run.page_outs)
    }),
    figure("link_use", "link use, mean", "", |run| Some(run.link_use())),
    figure("link_use_max", "link use, busiest", "", |run| Some(run.link_use_max())),
    figure("handler_use", "work of node processors by messages", "", |run| Some(run.handler_use())),
    figure("disk_use", "disk use", "", |run| Some(run.disk_use())),
    figure("node_use", "nodes that have a thread", "", |run| Some(run.node_use())),
    figure("process_ms", "process, arrival to end", "ms", |run| run.process_ns.mean().map(ms)),
    figure("processes_ended", "processes that ended", "", |run| Some(run.processes_ended as f64)),
    figure("node_failures", "node failures", "", |run| {
        (run.node_failures > 0).then_some(run.node_failures as f64)
    }),
    figure("pages_lost", "pages lost", "", |run| {
        (run.node_failures + run.pages_lost > 0).then_some(run.pages_lost as f64)
    }),
    figure("work_lost_ms", "work lost", "ms", |run| {
        (run.node_failures + run.work_lost_ns > 0).then(|| ms(run.work_lost_ns as f64))
    }),
    figure("messages_lost", "messages lost", "", |run| some(run.faults.lost + run.faults.cut)),
    figure("messages_repeated", "messages repeated", "", |run| some(run.faults.repeated)),
    figure("suspicions", "suspicions", "", |run| some(run.faults.suspicions)),
    figure("pages_repaired", "pages made whole again", "", |run| some(run.faults.repaired)),
    figure("guests_spilled", "guests written to disk", "", |run| some(run.faults.spilled)),
    figure("nodes_drained", "nodes emptied", "", |run| some(run.faults.drained)),
    figure("events", "events", "", |run| Some(run.events as f64)),
];

/// Left out where it did not happen.
fn some(count: u64) -> Option<f64> {
    (count > 0).then_some(count as f64)
}

fn ms(ns: f64) -> f64 {
    ns / 1e6
}

fn quantile_ms(run: &Outcome, permille: u32) -> Option<f64> {
    run.response_ns.quantile(permille).map(|ns| ms(ns as f64))
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The figure with this name.
pub fn figure_named(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}

/// All figures of one run, by name; those that it does not have are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(pub BTreeMap<String, f64>);

impl Figures {
    /// The figures of `run`.
    pub fn of(run: &Outcome) -> Figures {
        Figures(
            FIGURES
                .iter()
                .filter_map(|figure| Some((figure.name.to_owned(), (figure.read)(run)?)))
                .collect(),
        )
    }

    /// One of the figures.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }
}

/// One figure of those runs that have it.
pub fn values(runs: &[Figures], name: &str) -> Vec<f64> {
    runs.iter().filter_map(|run| run.get(name)).collect()
}

/// One figure over seeds; none if no run has it.
pub fn estimate(runs: &[Figures], name: &str) -> Option<Estimate> {
    Estimate::of(&values(runs, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_unique_names() {
        for figure in &FIGURES {
            assert_eq!(figure_named(figure.name).unwrap().title, figure.title);
        }
    }

    #[test]
    fn outcomes_are_converted_to_named_units() {
        let mut run =
            Outcome { page_outs: 8, repeated_page_outs: 2, nodes: 1, ..Outcome::default() };
        run.response_ns.add(1_000_000);
        run.response_ns.add(3_000_000);
        run.transfer_hops.add(3);
        let figures = Figures::of(&run);
        assert_eq!(figures.get(RESPONSE), Some(2.0));
        assert_eq!(figures.get("repeated_share"), Some(0.25));
        assert_eq!(figures.get("transfer_hops"), Some(3.0));
        assert_eq!(figures.get("transfer_ms"), None, "nothing was transferred");
        assert_eq!(figures.get("pages_lost"), None, "no node failed");
        // A partition loses pages, too.
        let cut = Outcome { pages_lost: 3, work_lost_ns: 2_000_000, ..Outcome::default() };
        let cut = Figures::of(&cut);
        assert_eq!((cut.get("pages_lost"), cut.get("work_lost_ms")), (Some(3.0), Some(2.0)));
        assert_eq!(estimate(&[figures.clone(), figures], RESPONSE).unwrap().half_width, Some(0.0));
    }
}
