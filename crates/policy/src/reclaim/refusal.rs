//! What follows when the kernel refuses to reclaim on a node.

use std::collections::BTreeMap;

/// A node is asked again after this time.
const PAUSE_NS: u64 = 60_000_000_000;

/// Nodes on which reclaim was refused and has not worked since, and when to ask there again.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    until_ns: BTreeMap<u32, u64>,
}

/// What to do after a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Ask no more, on any node.
    GiveUp,
    /// Ask this node again later. Users learn of it (`is_news`) once until it works again.
    Pause { is_news: bool },
}

impl Refusals {
    /// No node has refused.
    pub fn new() -> Refusals {
        Refusals::default()
    }

    /// Whether a node may be asked now.
    pub fn may_ask(&self, node: u32, now_ns: u64) -> bool {
        self.until_ns.get(&node).is_none_or(|&until_ns| now_ns >= until_ns)
    }

    /// A node has refused; `is_final`: in a way that no later attempt can change.
    pub fn refused(&mut self, node: u32, now_ns: u64, is_final: bool) -> Refused {
        if is_final {
            return Refused::GiveUp;
        }
        let before = self.until_ns.insert(node, now_ns.saturating_add(PAUSE_NS));
        Refused::Pause { is_news: before.is_none() }
    }

    /// A node has accepted a request. Returns whether it had refused before.
    pub fn accepted(&mut self, node: u32) -> bool {
        self.until_ns.remove(&node).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_that_refuses_is_asked_again_and_others_are_not_affected() {
        let mut refusals = Refusals::new();
        assert!(refusals.may_ask(0, 5) && !refusals.accepted(0));
        assert_eq!(refusals.refused(0, 5, false), Refused::Pause { is_news: true });
        assert!(!refusals.may_ask(0, 5 + PAUSE_NS - 1) && refusals.may_ask(1, 5));
        assert!(refusals.may_ask(0, 5 + PAUSE_NS));
        assert_eq!(refusals.refused(0, 5 + PAUSE_NS, false), Refused::Pause { is_news: false });
        assert!(refusals.accepted(0) && refusals.may_ask(0, 6));
        assert_eq!(refusals.refused(0, 7, false), Refused::Pause { is_news: true });
        assert_eq!(refusals.refused(1, 8, true), Refused::GiveUp);
    }
}
