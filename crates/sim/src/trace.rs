//! Page-outs and page-ins that were recorded on another machine, as a load.

/// An event of a recorded client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TraceKind {
    /// A dirty page was evicted from local memory.
    PageOut,
    /// A page was brought into local memory.
    PageIn,
    /// A clean page was evicted from local memory; a copy of it existed elsewhere.
    Drop,
}

/// One line of a recording. Records are in order of time; a page-in blocks the later records of its
/// node until it is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TraceRecord {
    /// Time since the start of the recording, ns.
    pub time_ns: u64,
    /// Node (client), counted from 0.
    pub node: u32,
    /// What happened.
    pub kind: TraceKind,
    /// Page, as numbered by the client.
    pub page: u64,
}
