//! What a user may not have meant by a cluster, or by the length of its runs.

use std::collections::BTreeSet;

use hiroma_sim::{Config, TopologyKind};

use crate::figures::Figures;
use crate::sweep::Plan;

const HELPS: &str = "what the figures say is about an empty or a starting machine; a longer \
                     run.duration_ns or more load.arrivals_per_s helps";

/// Notes on a cluster and its runs.
pub fn notes<'a>(config: &Config, runs: impl IntoIterator<Item = &'a Figures>) -> Vec<String> {
    let mut notes = of_cluster(config);
    if nothing_ended(runs) && config.load.trace.is_none() {
        notes.push(format!("Note: no process ended in the time that was measured: {HELPS}"));
    }
    notes
}

/// Notes on the clusters of a sweep, each once.
pub fn of_plan(plan: &Plan) -> Vec<String> {
    let mut told = BTreeSet::new();
    let all = plan.cells.iter().flat_map(|cell| of_cluster(&cell.config));
    all.filter(|note| told.insert(note.clone())).collect()
}

/// A note on those of `cells`, with their names, in whose runs nothing ended.
pub fn of_cells<'a>(cells: impl IntoIterator<Item = (String, &'a [Figures])>) -> Option<String> {
    let (mut count, mut empty) = (0, Vec::new());
    for (name, runs) in cells {
        count += 1;
        empty.extend(nothing_ended(runs).then_some(name));
    }
    let first = empty.first()?;
    Some(format!(
        "Note: in {} of {count} cells no process ended in the time that was measured, the first is {first}: {HELPS}",
        empty.len()
    ))
}

fn nothing_ended<'a>(runs: impl IntoIterator<Item = &'a Figures>) -> bool {
    let mut ended = runs.into_iter().filter_map(|run| run.get("processes_ended")).peekable();
    ended.peek().is_some() && ended.all(|count| count == 0.0)
}

fn of_cluster(config: &Config) -> Vec<String> {
    [side_of_one(config), too_late(config)].into_iter().flatten().collect()
}

/// A torus of which a side has one node is a ring, or a smaller torus.
fn side_of_one(config: &Config) -> Option<String> {
    let dims = &config.topology.dims;
    let is_torus = matches!(config.topology.kind, TopologyKind::Torus2d | TopologyKind::Torus3d);
    if !is_torus || !dims.contains(&1) {
        return None;
    }
    let shape = dims.iter().map(u32::to_string).collect::<Vec<_>>().join(" x ");
    Some(format!(
        "Note: {shape} has a side of one node, which is another network than its kind promises; choose another number of \
         nodes, or topology.dims"
    ))
}

/// Events by script after the end of the run.
fn too_late(config: &Config) -> Option<String> {
    // A recording may take longer than is planned.
    if config.load.trace.is_some() {
        return None;
    }
    let end_ns = config.run.warmup_ns.saturating_add(config.run.duration_ns);
    let faults = &config.faults;
    let outages = |outages: &[hiroma_sim::OutageConfig]| -> Vec<u64> {
        outages.iter().map(|outage| outage.from_ns).collect()
    };
    let times = [
        ("[[event]]", config.event.iter().map(|event| event.time_ns).collect()),
        ("[[faults.crashes]]", outages(&faults.crashes)),
        ("[[faults.drains]]", outages(&faults.drains)),
        ("[[faults.partitions]]", faults.partitions.iter().map(|part| part.from_ns).collect()),
    ];
    let late: Vec<String> = times
        .iter()
        .filter_map(|(name, times)| {
            let late = times.iter().filter(|&&time_ns| time_ns >= end_ns).count();
            (late > 0).then(|| format!("{late} of {} {name}", times.len()))
        })
        .collect();
    (!late.is_empty()).then(|| {
        format!(
            "Note: the run ends after {} ms, and these would begin later and do not happen: {}; a longer run.duration_ns or \
             earlier times help",
            hiroma_report::figures(end_ns as f64 / 1e6),
            late.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use hiroma_sim::{OutageConfig, PartitionConfig, ScriptEvent, ScriptKind};

    use super::*;

    #[test]
    fn only_a_torus_promises_sides() {
        let told = |kind, dims: &[u32]| {
            let mut config = Config::default();
            (config.topology.kind, config.topology.dims) = (kind, dims.to_vec());
            of_cluster(&config).len()
        };
        assert_eq!(told(TopologyKind::Torus2d, &[7, 1]), 1);
        assert_eq!(told(TopologyKind::Torus2d, &[4, 2]), 0);
        assert_eq!(told(TopologyKind::FatTree, &[2, 3, 1]), 0);
        assert_eq!(told(TopologyKind::LeafSpine, &[4, 2, 1]), 0);
    }

    #[test]
    fn what_lies_after_the_end_is_told() {
        let mut config = Config::default();
        (config.run.warmup_ns, config.run.duration_ns) = (1_000_000, 9_000_000);
        let event =
            |time_ns| ScriptEvent { time_ns, kind: ScriptKind::NodeFails, which: "3".to_owned() };
        config.event = vec![event(9_999_999)];
        assert_eq!(of_cluster(&config), Vec::<String>::new());
        config.event.push(event(10_000_000));
        let outage = OutageConfig { node: 1, from_ns: 20_000_000, until_ns: 30_000_000 };
        config.faults.drains = vec![outage.clone()];
        config.faults.partitions = vec![PartitionConfig {
            from_ns: 20_000_000,
            until_ns: 30_000_000,
            groups: vec![vec![1]],
        }];
        let told = of_cluster(&config);
        assert!(
            told[0].starts_with("Note: the run ends after 10.0 ms")
                && told[0].contains(
                    "1 of 2 [[event]], 1 of 1 [[faults.drains]], 1 of 1 [[faults.partitions]]"
                ),
            "{told:?}"
        );
    }
}
