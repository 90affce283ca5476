//! Page-outs and page-ins that were recorded elsewhere, as a load.

/// What a recorded client did.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TraceKind {
    /// A page left local memory, changed.
    PageOut,
    /// A page came into local memory that was elsewhere.
    PageIn,
    /// A page left local memory unchanged; a copy of it was elsewhere.
    Drop,
}

/// One line of a recording. Records are in the order of time; a page-in waits for the one before it
/// at the same node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TraceRecord {
    /// Time since the start of the recording, ns.
    pub time_ns: u64,
    /// Node (client), counted from 0.
    pub node: u32,
    /// What it did.
    pub kind: TraceKind,
    /// Page, as numbered by the client.
    pub page: u64,
}
