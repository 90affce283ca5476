//! Events by script: links and nodes that fail and return, and nodes that join, at given times.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, ScriptEvent, ScriptKind};
use crate::topology::Topology;
use crate::validate::TIME_MAX_NS;

/// What happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// When, ns.
    pub time_ns: u64,
    /// To which node, or to which links.
    pub what: What,
    /// Whether it works from then on.
    pub up: bool,
}

/// A node, or links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A node.
    Node(u32),
    /// Links.
    Links(Vec<u32>),
}

/// A node or a link that fails, or works again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A link, and whether it works from now on.
    Link(u32, bool),
    /// A node, and whether an outage of it ends or begins.
    Node(u32, bool),
}

/// What is to happen by script, and what has failed by it.
#[derive(Debug, Default)]
pub struct Outages {
    steps: Vec<Step>,
    links_down: BTreeSet<u32>,
    nodes_down: BTreeSet<u32>,
    links_up_ns: u64,
}

impl Outages {
    /// The script of a valid configuration.
    pub fn new(config: &Config, topology: &Topology) -> Self {
        let steps = config.event.iter().map(|event| step(event, topology));
        // They were valid, or there were no engine.
        let steps = steps.filter_map(Result::ok).collect();
        Outages { steps, nodes_down: joiners(config, topology), ..Outages::default() }
    }

    /// Nodes that are not there at the beginning.
    pub fn absent(&self) -> &BTreeSet<u32> {
        &self.nodes_down
    }

    /// The time of each step, ns.
    pub fn times_ns(&self) -> Vec<u64> {
        self.steps.iter().map(|step| step.time_ns).collect()
    }

    /// Whether a link does not work: what waits for it is not stuck.
    pub fn has_failed_links(&self) -> bool {
        !self.links_down.is_empty()
    }

    /// Since when all links work, ns: what waited for one goes on from then.
    pub fn links_up_ns(&self) -> u64 {
        self.links_up_ns
    }

    /// The time from the first failure of a link to `end_ns`, ns.
    pub fn of_links_ns(&self, end_ns: u64) -> u64 {
        let of_links = |step: &&Step| matches!(step.what, What::Links(_)) && !step.up;
        let first_ns = self.steps.iter().filter(of_links).map(|step| step.time_ns).min();
        first_ns.map_or(0, |first_ns| end_ns.saturating_sub(first_ns))
    }

    /// What step `number` changes.
    pub fn step(&mut self, number: usize) -> Vec<Change> {
        let Outages { steps, links_down, nodes_down, links_up_ns } = self;
        let Step { what, up, time_ns } = &steps[number];
        match (what, *up) {
            (What::Links(links), up) => {
                if up && !links_down.is_empty() {
                    *links_up_ns = *time_ns;
                }
                let changes = links.iter().filter(|&&link| {
                    if up { links_down.remove(&link) } else { links_down.insert(link) }
                });
                changes.map(|&link| Change::Link(link, up)).collect()
            }
            (&What::Node(node), up) => {
                let changes = if up { nodes_down.remove(&node) } else { nodes_down.insert(node) };
                changes.then_some(Change::Node(node, up)).into_iter().collect()
            }
        }
    }

    /// Everything works again.
    pub fn end(&mut self, now_ns: u64) -> Vec<Change> {
        if self.has_failed_links() {
            self.links_up_ns = now_ns;
        }
        let links = std::mem::take(&mut self.links_down).into_iter();
        let nodes = std::mem::take(&mut self.nodes_down).into_iter();
        links
            .map(|link| Change::Link(link, true))
            .chain(nodes.map(|n| Change::Node(n, true)))
            .collect()
    }
}

/// Nodes that do not work, and how many outages each is in: it works again after the last of them.
#[derive(Debug, Default)]
pub struct Downs(BTreeMap<u32, u32>);

impl Downs {
    /// An outage of `node` begins. Returns whether it worked until now.
    pub fn begin(&mut self, node: u32) -> bool {
        let outages = self.0.entry(node).or_default();
        *outages += 1;
        *outages == 1
    }

    /// An outage of `node` ends. Returns whether it works from now on.
    pub fn end(&mut self, node: u32) -> bool {
        let Some(outages) = self.0.get_mut(&node) else { return false };
        *outages -= 1;
        let works = *outages == 0;
        if works {
            self.0.remove(&node);
        }
        works
    }
}

/// A simulated cluster whose links and nodes fail and return by script.
pub trait Scripted {
    /// Its script.
    fn outages(&mut self) -> &mut Outages;
    /// A link fails, or works again.
    fn set_link(&mut self, link: u32, up: bool);
    /// An outage of a node begins, or ends.
    fn set_node(&mut self, node: u32, up: bool);

    /// Step `number` of the script, from 1.
    fn script_step(&mut self, number: u32) {
        let mut outages = std::mem::take(self.outages());
        let changes = outages.step(number as usize - 1);
        *self.outages() = outages;
        changes.into_iter().for_each(|change| self.change(change));
    }

    /// At the end of a run everything works again, so that what is under way can be finished.
    fn end_script(&mut self, now_ns: u64) {
        let changes = self.outages().end(now_ns);
        changes.into_iter().for_each(|change| self.change(change));
    }

    /// What fails, or works again.
    fn change(&mut self, change: Change) {
        match change {
            Change::Link(link, up) => self.set_link(link, up),
            Change::Node(node, up) => self.set_node(node, up),
        }
    }
}

impl ScriptEvent {
    fn is_of_link(&self) -> bool {
        matches!(self.kind, ScriptKind::LinkFails | ScriptKind::LinkReturns)
    }
}

/// Whether links fail by script.
pub fn links_fail(config: &Config) -> bool {
    config.event.iter().any(ScriptEvent::is_of_link)
}

/// Whether nodes fail by script.
pub fn nodes_fail(config: &Config) -> bool {
    config.event.iter().any(|event| event.kind == ScriptKind::NodeFails)
}

/// The nodes that join by script: until then they are not there.
pub fn joiners(config: &Config, topology: &Topology) -> BTreeSet<u32> {
    let joins = config.event.iter().filter(|event| event.kind == ScriptKind::NodeJoins);
    joins.filter_map(|event| topology.vertex(event.which.trim())).collect()
}

/// What is wrong with the events of nodes that join: which event, and why.
pub fn wrong_joins(config: &Config, topology: &Topology) -> Vec<(usize, String)> {
    let of_node = |event: &ScriptEvent, node: u32| {
        !event.is_of_link() && topology.vertex(event.which.trim()) == Some(node)
    };
    let mut wrong = Vec::new();
    for (number, join) in config.event.iter().enumerate() {
        let Some(node) = topology.vertex(join.which.trim()) else { continue };
        if join.kind != ScriptKind::NodeJoins {
            continue;
        }
        let others = config.event.iter().enumerate().filter(|&(other, _)| other != number);
        for (other, event) in others.filter(|(_, event)| of_node(event, node)) {
            if event.kind == ScriptKind::NodeJoins && other > number {
                wrong.push((other, format!("node {node} joins twice; use node_returns")));
            } else if event.kind != ScriptKind::NodeJoins && event.time_ns <= join.time_ns {
                let time_ns = join.time_ns;
                let what = format!("node {node} is not there before it joins at {time_ns} ns");
                wrong.push((other, what));
            }
        }
    }
    wrong
}

/// What an event means on `topology`.
///
/// # Errors
/// If there is no such node or link.
pub fn step(event: &ScriptEvent, topology: &Topology) -> Result<Step, String> {
    if event.time_ns > TIME_MAX_NS / 2 {
        return Err(format!("{} ns is later than any run", event.time_ns));
    }
    let which = event.which.trim();
    let what = if event.is_of_link() {
        What::Links(links(which, topology)?)
    } else {
        let nodes = topology.nodes();
        let node = topology.vertex(which).filter(|&node| node < nodes).ok_or_else(|| {
            format!("there is no node `{which}`; use one from 0 to {}, or its name", nodes - 1)
        })?;
        What::Node(node)
    };
    let up = !matches!(event.kind, ScriptKind::LinkFails | ScriptKind::NodeFails);
    Ok(Step { time_ns: event.time_ns, what, up })
}

fn links(which: &str, topology: &Topology) -> Result<Vec<u32>, String> {
    if let Ok(link) = which.parse::<u32>() {
        let count = topology.links();
        let refused = || format!("there is no link {link}; use one from 0 to {}", count - 1);
        return if link < count { Ok(vec![link]) } else { Err(refused()) };
    }
    if !topology.names_links() {
        return Err(format!(
            "links of this network have numbers only, from 0 to {}, and `{which}` is none; \
             docs/guide/simulate.md says which link has which",
            topology.links() - 1
        ));
    }
    let (both, ends) = match which.split_once("->") {
        Some(ends) => (false, Some(ends)),
        None => (true, which.split_once(" - ")),
    };
    let (from, to) = ends.ok_or_else(|| {
        format!(
            "`{which}` names no link; write `a - b` for both directions between two ends, \
             `a -> b` for one, or the number of a link"
        )
    })?;
    let vertex = |name: &str| {
        let refused = || format!("there is no end `{}` of a link here", name.trim());
        topology.vertex(name.trim()).ok_or_else(refused)
    };
    let (from, to) = (vertex(from)?, vertex(to)?);
    let mut links = topology.links_between(from, to);
    if both {
        links.extend(topology.links_between(to, from));
    }
    if links.is_empty() {
        return Err(format!(
            "`{which}` are not ends of one link; name two that are joined directly"
        ));
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TopologyKind;

    #[test]
    fn links_without_names_are_told_by_their_numbers() {
        let told = |kind, dims: &[u32], which: &str| {
            let mut config = Config::default();
            (config.topology.kind, config.topology.dims) = (kind, dims.to_vec());
            links(which, &Topology::new(&config, 1, 1))
        };
        for which in ["3 - 4", "leaf0 - spine1", "x"] {
            let refused = told(TopologyKind::FatTree, &[4, 2, 1], which).unwrap_err();
            let numbers = "links of this network have numbers only, from 0 to 47, and ";
            assert!(refused.starts_with(numbers), "{refused}");
        }
        assert_eq!(told(TopologyKind::FatTree, &[4, 2, 1], "47"), Ok(vec![47]));
        let refused = told(TopologyKind::Torus2d, &[4, 4], "0 - 5").unwrap_err();
        assert!(refused.ends_with("name two that are joined directly"), "{refused}");
        assert_eq!(told(TopologyKind::Torus2d, &[4, 4], "0 -> 1"), Ok(vec![0]));
    }

    #[test]
    fn a_node_works_after_its_last_outage() {
        let mut downs = Downs::default();
        assert!(!downs.end(3), "it was not in one");
        assert!(downs.begin(3) && !downs.begin(3) && downs.begin(4));
        assert!(!downs.end(3) && downs.end(4) && downs.end(3) && downs.begin(3));
    }
}
