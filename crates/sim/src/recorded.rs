//! A recorded load, by node: which pages leave the program there, and which are needed again.

use std::collections::BTreeMap;

use crate::trace::{TraceKind, TraceRecord};

/// One record, with its page numbered within its node.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// When, ns.
    pub time_ns: u64,
    /// The page.
    pub page: u32,
    /// What happened.
    pub kind: TraceKind,
}

/// The remaining steps of each node.
#[derive(Debug)]
pub struct Recorded {
    steps: Vec<Step>,
    /// By node: next step, and the end of its steps.
    next: Vec<(u32, u32)>,
}

impl Recorded {
    /// Sorts records by node and numbers their pages. Also returns the number of pages of each
    /// node.
    pub fn new(records: &[TraceRecord], nodes: usize) -> (Self, Vec<u32>) {
        let mut by_node: Vec<Vec<&TraceRecord>> = vec![Vec::new(); nodes];
        records.iter().for_each(|record| by_node[record.node as usize].push(record));
        let (mut steps, mut next, mut counts) =
            (Vec::with_capacity(records.len()), Vec::new(), Vec::new());
        for records in by_node {
            let mut numbers = BTreeMap::<u64, u32>::new();
            let first = steps.len() as u32;
            for record in records {
                let count = numbers.len() as u32;
                let page = *numbers.entry(record.page).or_insert(count);
                steps.push(Step { time_ns: record.time_ns, page, kind: record.kind });
            }
            next.push((first, steps.len() as u32));
            counts.push(numbers.len() as u32);
        }
        (Recorded { steps, next }, counts)
    }

    /// Whether no node has a step left.
    pub fn is_through(&self) -> bool {
        self.next.iter().all(|(next, end)| next == end)
    }

    /// The next step of a node.
    pub fn peek(&self, node: u32) -> Option<Step> {
        let (next, end) = self.next[node as usize];
        (next < end).then(|| self.steps[next as usize])
    }

    /// The next step of a node is taken.
    pub fn advance(&mut self, node: u32) {
        self.next[node as usize].0 += 1;
    }
}
