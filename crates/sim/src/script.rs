//! Events by script: links and nodes that fail and return at given times.

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
