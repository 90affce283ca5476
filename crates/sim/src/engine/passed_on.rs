//! Pages that return over every node that passed them on (`network.fetch_path = "back"`): each node
//! knows only where it sent a page, and the request follows it.

use std::collections::BTreeMap;

use crate::config::{FetchPath, NetworkConfig};
use crate::engine::Engine;
use crate::message::Message;

/// A page that was passed on more often returns directly.
const STEPS_MAX: usize = u8::MAX as usize;

/// The nodes that each page went to on its last way out, in order, by table and page.
#[derive(Debug, Default)]
pub struct PassedOn {
    is_on: bool,
    steps: BTreeMap<(u32, u32), Vec<u32>>,
}

impl PassedOn {
    pub fn new(config: &NetworkConfig) -> PassedOn {
        PassedOn { is_on: config.fetch_path == FetchPath::Back, steps: BTreeMap::new() }
    }

    /// A page is sent to the node `to`, for the first time `by_owner`.
    #[inline]
    pub fn sent(&mut self, table: u32, page: u32, to: u32, by_owner: bool) {
        if self.is_on {
            let steps = self.steps.entry((table, page)).or_default();
            if by_owner {
                steps.clear();
            }
            steps.push(to);
        }
    }

    fn steps(&self, table: u32, page: u32) -> &[u32] {
        let steps = self.steps.get(&(table, page)).map_or(&[][..], Vec::as_slice);
        if steps.len() > STEPS_MAX { &[] } else { steps }
    }

    /// Where a request for a page goes first, if it is not where the page is.
    pub fn first(&self, table: u32, page: u32) -> Option<u32> {
        self.steps(table, page).first().copied()
    }
}

impl Engine<'_> {
    /// Passes a request on, if the node that has it passed the page on. `message.value` counts the
    /// nodes that passed the request on.
    pub(super) fn pass_request_on(&mut self, number: u32, message: Message) -> bool {
        let Message { table, page, value, .. } = message;
        let steps = self.passed_on.steps(table, page);
        let place = value as usize;
        if steps.get(place) != Some(&number) {
            return false;
        }
        let Some(&target) = steps.get(place + 1) else { return false };
        self.post(Message { source: number, target, value: value + 1, ..message });
        true
    }

    /// Where a page goes from the node that has it, which was asked by `message`, and how many nodes
    /// then pass it back before its owner has it.
    pub(super) fn way_back(&self, message: &Message) -> (u32, u8) {
        let Message { table, page, value, .. } = *message;
        let steps = self.passed_on.steps(table, page);
        match (value as usize).checked_sub(1).and_then(|place| steps.get(place)) {
            Some(&before) => (before, value as u8),
            None => (self.tables.get(table).node, 0),
        }
    }

    /// Passes a page back, if the node where it arrived is not its owner. `message.attempts` counts
    /// the nodes that are left on its way.
    pub(super) fn pass_page_back(&mut self, number: u32, message: Message) -> Option<u32> {
        let Message { table, page, attempts, .. } = message;
        let left = attempts.checked_sub(1)?;
        let before = usize::from(left).checked_sub(1);
        let steps = self.passed_on.steps(table, page);
        let target = before.and_then(|place| steps.get(place)).copied();
        let target = target.unwrap_or(self.tables.get(table).node);
        let (_, slot) = self.post(Message { source: number, target, attempts: left, ..message });
        Some(slot)
    }

    /// Hops of a page from the node that had it to its owner.
    pub(super) fn hops_back(&self, owner: u32, from: u32, message: &Message) -> u32 {
        let steps = self.passed_on.steps(message.table, message.page);
        let Some(last) = steps.iter().rposition(|&step| step == from) else {
            return self.topology.distance(from, owner);
        };
        let nodes = [&[owner][..], &steps[..=last]].concat();
        nodes.windows(2).map(|pair| self.topology.distance(pair[0], pair[1])).sum()
    }
}
