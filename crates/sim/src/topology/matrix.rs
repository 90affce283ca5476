//! Nodes of which only the latencies between each two are known, as measured: each has a link into
//! the network and one out of it, and nothing is shared in between.

use std::sync::Arc;

use serde::Serialize;

use super::around::Around;

/// Largest number of nodes.
pub const MATRIX_NODES_MAX: usize = 2048;

/// Latencies between nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LatencyMatrix {
    nodes: u32,
    /// By sender and receiver, ns.
    latency_ns: Vec<u64>,
    /// The smallest between two nodes: the unit of distances, ns.
    unit_ns: u64,
    diameter: u32,
}

/// Why numbers are not a matrix of latencies.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixProblem {
    /// There are too few rows, or too many.
    #[error(
        "{0} rows are out of range; allowed are 2 to {MATRIX_NODES_MAX} nodes, with a row and a column each"
    )]
    Size(usize),
    /// A row has another number of columns than there are rows.
    #[error(
        "row {row} has {columns} numbers, and there are {rows} rows; a node needs a row and a column: add what is lacking, or take the rest out"
    )]
    NotSquare {
        /// Number of the row, from 1.
        row: usize,
        /// Its numbers.
        columns: usize,
        /// Rows.
        rows: usize,
    },
}

impl LatencyMatrix {
    /// The latencies of `rows`, ns: from the node of the row to that of the column. The diagonal
    /// means nothing.
    ///
    /// # Errors
    /// If there are not as many columns as rows, or too few or too many.
    pub fn new(rows: &[Vec<u64>]) -> Result<LatencyMatrix, MatrixProblem> {
        if !(2..=MATRIX_NODES_MAX).contains(&rows.len()) {
            return Err(MatrixProblem::Size(rows.len()));
        }
        if let Some((row, found)) = (1..).zip(rows).find(|(_, row)| row.len() != rows.len()) {
            let columns = found.len();
            return Err(MatrixProblem::NotSquare { row, columns, rows: rows.len() });
        }
        let nodes = rows.len() as u32;
        let mut matrix = LatencyMatrix {
            nodes,
            latency_ns: rows.iter().flatten().copied().collect(),
            unit_ns: 1,
            diameter: 1,
        };
        let pairs = || {
            (0..nodes).flat_map(move |a| (0..nodes).filter(move |&b| a != b).map(move |b| (a, b)))
        };
        matrix.unit_ns = pairs().map(|(a, b)| matrix.both_ns(a, b)).min().unwrap_or(1).max(1);
        matrix.diameter = pairs().map(|(a, b)| matrix.distance(a, b)).max().unwrap_or(1);
        Ok(matrix)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The largest distance, in units of the smallest latency.
    pub fn diameter(&self) -> u32 {
        self.diameter
    }

    fn get(&self, from: u32, to: u32) -> u64 {
        self.latency_ns[(from * self.nodes + to) as usize]
    }

    /// There and back.
    fn both_ns(&self, a: u32, b: u32) -> u64 {
        self.get(a, b).saturating_add(self.get(b, a))
    }

    /// The latency in units of the smallest one, rounded.
    pub(super) fn distance(&self, a: u32, b: u32) -> u32 {
        if a == b {
            return 0;
        }
        let units = (self.both_ns(a, b) + self.unit_ns / 2) / self.unit_ns;
        units.clamp(1, u16::MAX.into()) as u32
    }
}

/// Nodes with latencies, and their domains.
#[derive(Debug)]
pub struct Matrix {
    latencies: Arc<LatencyMatrix>,
    around: Around,
}

impl Matrix {
    /// Domains of `radius` units of distance and at most `most` peers.
    pub fn new(latencies: Arc<LatencyMatrix>, radius: u32, most: usize) -> Self {
        let around = Around::new(latencies.nodes, radius, most, |a, b| latencies.distance(a, b));
        Matrix { latencies, around }
    }

    pub(super) fn around(&self) -> &Around {
        &self.around
    }

    pub(super) fn latencies(&self) -> &LatencyMatrix {
        &self.latencies
    }

    pub(super) fn links(&self) -> u32 {
        self.latencies.nodes * (2 + self.latencies.nodes)
    }

    /// Of a link between two nodes, its latency, ns; none for the links of a node.
    pub(super) fn latency_ns(&self, link: u32) -> Option<u64> {
        let pair = link.checked_sub(2 * self.latencies.nodes)?;
        Some(self.latencies.latency_ns[pair as usize])
    }

    /// Into the network, to the other node, out of the network.
    #[inline]
    pub(super) fn next(&self, at: u32, source: u32, target: u32) -> Option<(u32, u32)> {
        let nodes = self.latencies.nodes;
        match at {
            _ if source == target => None,
            0 => Some((source, 1)),
            1 => Some((2 * nodes + source * nodes + target, 2)),
            2 => Some((nodes + target, 3)),
            _ => None,
        }
    }
}
