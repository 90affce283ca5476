//! One cluster, with one seed or several.

use hiroma_report::{Section, Table, figures as digits};
use hiroma_sim::{Config, NetworkModel, TopologyKind};
use serde::Serialize;

use crate::figures::{FIGURES, Figures, estimate};
use crate::notes;
use hiroma_report::Estimate;

/// Describes a cluster in one line.
pub fn describe(config: &Config) -> String {
    let (topology, node, policy) = (&config.topology, &config.node, &config.policy);
    let dims: Vec<String> = topology.dims.iter().map(u32::to_string).collect();
    let machine = format!(
        "{} nodes ({} {}) with {} pages of {} KiB each, {} disks; {}",
        config.nodes(),
        name_of(&topology.kind),
        dims.join(" x "),
        node.frames,
        digits(node.page_bytes as f64 / 1024.0),
        config.disks(),
        describe_policy(policy),
    );
    std::iter::once(machine).chain(particulars(config)).collect::<Vec<_>>().join("; ")
}

/// What is not as in most clusters.
fn particulars(config: &Config) -> Vec<String> {
    let (topology, network, node) = (&config.topology, &config.network, &config.node);
    let mut text = Vec::new();
    if !topology.file.is_empty() {
        text.push(format!("network of {}", topology.file));
    }
    if let (TopologyKind::LeafSpine, [nodes, _, spines]) = (topology.kind, &topology.dims[..]) {
        let uplink = match topology.uplink_bytes_per_s {
            0 => network.bytes_per_s,
            rate => rate,
        };
        let down = f64::from(*nodes) * network.bytes_per_s as f64;
        let ratio = down / (f64::from(*spines) * uplink as f64);
        text.push(format!("{} down for 1 up at a leaf", digits(ratio)));
    }
    match network.model {
        NetworkModel::Fifo => (),
        NetworkModel::Fair => text.push("links are shared fairly".to_owned()),
        NetworkModel::Packets => text.push(format!("packets, {}", name_of(&network.order))),
    }
    if node.tier_frames > 0 {
        text.push(format!("{} pages attached to each node", node.tier_frames));
    }
    let counts = [(node.class.len(), "classes of nodes"), (config.event.len(), "events by script")];
    text.extend(counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    text
}

/// Describes the choices of a policy in one line.
pub fn describe_policy(policy: &hiroma_policy::placement::PlacementConfig) -> String {
    use hiroma_policy::placement::ScopeKind;
    match policy.scope {
        ScopeKind::Disk => "pages leave to disk only".to_owned(),
        ScopeKind::Gradient => format!("gradient, {}", name_of(&policy.replacement)),
        ScopeKind::Domain => format!(
            "domain of {} hops, information {}, placement {}, on failure {}, reservation {}, {}",
            policy.domain_radius,
            name_of(&policy.information),
            name_of(&policy.placement),
            name_of(&policy.on_failure),
            name_of(&policy.reservation),
            name_of(&policy.replacement)
        ),
    }
}

/// The name of a choice in files.
pub fn name_of(choice: &impl Serialize) -> String {
    match serde_json::to_value(choice) {
        Ok(serde_json::Value::String(name)) => name,
        other => panic!("a choice has a name: {other:?}"),
    }
}

/// An estimate as text: `1.23 ± 0.05`.
pub fn estimate_text(estimate: Option<Estimate>) -> String {
    match estimate {
        None => "–".to_owned(),
        Some(Estimate { mean, half_width: None, .. }) => digits(mean),
        Some(Estimate { mean, half_width: Some(half), .. }) => {
            format!("{} ± {}", digits(mean), digits(half))
        }
    }
}

/// The runs of one cluster as a section of a report.
pub fn section(title: &str, config: &Config, seeds: &[u64], runs: &[Figures]) -> Section {
    let interval = if seeds.len() > 1 { "mean ± 95 %" } else { "value" };
    let mut table = Table::new("").text("figure").number(interval, "").text("unit");
    for figure in &FIGURES {
        let estimate = estimate(runs, figure.name);
        if estimate.is_some() {
            table.row([figure.title.to_owned(), estimate_text(estimate), figure.unit.to_owned()]);
        }
    }
    Section {
        title: title.to_owned(),
        text: [seeds_text(seeds), describe(config)]
            .into_iter()
            .chain(notes::notes(config, runs))
            .collect(),
        tables: vec![table],
        plots: Vec::new(),
    }
}

/// `seed 7`, or `seeds 1 to 10`.
pub fn seeds_text(seeds: &[u64]) -> String {
    match seeds {
        [] => "no seeds".to_owned(),
        [seed] => format!("seed {seed}"),
        [first, .., last] if *last - *first + 1 == seeds.len() as u64 => {
            format!("seeds {first} to {last}")
        }
        _ => format!("seeds {}", seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// The seeds from `first` on.
pub fn seeds_from(first: u64, count: usize) -> Vec<u64> {
    (0..count as u64).map(|index| first.wrapping_add(index)).collect()
}

/// A figure for a JSON file.
#[derive(Serialize)]
pub struct FigureJson {
    name: &'static str,
    unit: &'static str,
    #[serde(flatten)]
    estimate: Estimate,
}

/// All figures of some runs, for a JSON file.
pub fn figures_json(runs: &[Figures]) -> Vec<FigureJson> {
    FIGURES
        .iter()
        .filter_map(|figure| {
            Some(FigureJson {
                name: figure.name,
                unit: figure.unit,
                estimate: estimate(runs, figure.name)?,
            })
        })
        .collect()
}

/// The runs of one cluster as JSON: the bytes do not depend on when and where it was run.
pub fn to_json(config: &Config, seeds: &[u64], runs: &[Figures]) -> String {
    #[derive(Serialize)]
    struct Json<'a> {
        config: &'a Config,
        seeds: &'a [u64],
        results: Vec<FigureJson>,
        runs: &'a [Figures],
    }
    to_text(&Json { config, seeds, results: figures_json(runs), runs })
}

/// Indented JSON with a final newline.
pub fn to_text(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("strings, numbers and lists always become JSON")
        + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_listed_briefly() {
        assert_eq!(seeds_text(&[7]), "seed 7");
        assert_eq!(seeds_text(&seeds_from(3, 4)), "seeds 3 to 6");
        assert_eq!(seeds_text(&[1, 5, 2]), "seeds 1, 5, 2");
    }

    #[test]
    fn paper_cluster_description_is_brief() {
        assert_eq!(
            describe(&Config::default()),
            "256 nodes (torus2d 16 x 16) with 64 pages of 8.00 KiB each, 16 disks; domain of 4 hops, information on_change, placement \
             random, on failure cascade, reservation none, lru"
        );
    }

    #[test]
    fn estimates_show_an_interval_when_known() {
        assert_eq!(estimate_text(Estimate::of(&[1.0, 2.0, 3.0])), "2.00 ± 2.48");
        assert_eq!(estimate_text(Estimate::of(&[1.0])), "1.00");
        assert_eq!(estimate_text(None), "–");
    }
}
