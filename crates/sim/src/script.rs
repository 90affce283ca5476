//! Events by script: links and nodes that fail and return at given times.

use std::collections::BTreeSet;

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
    /// A node, and whether it works from now on.
    Node(u32, bool),
}

/// What is to happen by script, and what has failed by it.
#[derive(Debug, Default)]
pub struct Outages {
    steps: Vec<Step>,
    links_down: BTreeSet<u32>,
    nodes_down: BTreeSet<u32>,
}

impl Outages {
    /// The script of a valid configuration.
    pub fn new(config: &Config, topology: &Topology) -> Self {
        let steps = config.event.iter().map(|event| step(event, topology));
        // They were valid, or there were no engine.
        Outages { steps: steps.filter_map(Result::ok).collect(), ..Outages::default() }
    }

    /// The time of each step, ns.
    pub fn times_ns(&self) -> Vec<u64> {
        self.steps.iter().map(|step| step.time_ns).collect()
    }

    /// Whether a link does not work: what waits for it is not stuck.
    pub fn has_failed_links(&self) -> bool {
        !self.links_down.is_empty()
    }

    /// The time from the first failure of a link to `end_ns`, ns.
    pub fn of_links_ns(&self, end_ns: u64) -> u64 {
        let of_links = |step: &&Step| matches!(step.what, What::Links(_)) && !step.up;
        let first_ns = self.steps.iter().filter(of_links).map(|step| step.time_ns).min();
        first_ns.map_or(0, |first_ns| end_ns.saturating_sub(first_ns))
    }

    /// What step `number` changes. Nodes that do not work for other reasons are left to these.
    pub fn step(&mut self, number: usize, works: impl Fn(u32) -> bool) -> Vec<Change> {
        let Outages { steps, links_down, nodes_down } = self;
        let Step { what, up, .. } = &steps[number];
        match (what, *up) {
            (What::Links(links), up) => {
                let changes = links.iter().filter(|&&link| {
                    if up { links_down.remove(&link) } else { links_down.insert(link) }
                });
                changes.map(|&link| Change::Link(link, up)).collect()
            }
            (&What::Node(node), true) if nodes_down.remove(&node) => vec![Change::Node(node, true)],
            (&What::Node(node), false) if works(node) => {
                nodes_down.insert(node);
                vec![Change::Node(node, false)]
            }
            (What::Node(_), _) => Vec::new(),
        }
    }

    /// Everything works again.
    pub fn end(&mut self) -> Vec<Change> {
        let links = std::mem::take(&mut self.links_down).into_iter();
        let nodes = std::mem::take(&mut self.nodes_down).into_iter();
        links
            .map(|link| Change::Link(link, true))
            .chain(nodes.map(|n| Change::Node(n, true)))
            .collect()
    }
}

/// A simulated cluster whose links and nodes fail and return by script.
pub trait Scripted {
    /// Its script.
    fn outages(&mut self) -> &mut Outages;
    /// Whether a node works.
    fn works(&self, node: u32) -> bool;
    /// A link fails, or works again.
    fn set_link(&mut self, link: u32, up: bool);
    /// A node fails, or works again.
    fn set_node(&mut self, node: u32, up: bool);

    /// Step `number` of the script, from 1.
    fn script_step(&mut self, number: u32) {
        let mut outages = std::mem::take(self.outages());
        let changes = outages.step(number as usize - 1, |node| self.works(node));
        *self.outages() = outages;
        changes.into_iter().for_each(|change| self.change(change));
    }

    /// At the end of a run everything works again, so that what is under way can be finished.
    fn end_script(&mut self) {
        let changes = self.outages().end();
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
    config.event.iter().any(|event| !event.is_of_link())
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
    let up = matches!(event.kind, ScriptKind::LinkReturns | ScriptKind::NodeReturns);
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
