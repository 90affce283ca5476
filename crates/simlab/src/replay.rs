//! A recorded load on a simulated cluster.

use std::path::Path;

use hiroma_sim::Config;

use crate::cluster::cluster_of;
use crate::settings::{Settings, SettingsError};
use crate::trace::Trace;

/// Time that is still measured after the last record.
const AFTER_NS: u64 = 1_000_000_000;

/// The cluster that runs `trace`: `base`, or the paper's with as many nodes as the trace has; pages are as large as the trace's.
pub fn replayed(trace: Trace, base: Option<Config>, path: &Path) -> Result<Config, SettingsError> {
    let refused = |what: String| SettingsError(format!("{}: {what}", path.display()));
    if trace.records.is_empty() {
        return Err(refused("the trace has no records: there is nothing to run".to_owned()));
    }
    let mut config = match base {
        Some(base) => base,
        None => fitting(trace.nodes)?,
    };
    if u64::from(trace.nodes) > config.nodes() {
        return Err(refused(format!(
            "the trace is one of {} nodes and the cluster has {}: choose a cluster with as many",
            trace.nodes,
            config.nodes()
        )));
    }
    config.node.page_bytes = trace.page_bytes;
    // All of the trace counts, and what its last records began has time to end.
    let last_ns = trace.records.last().map_or(0, |record| record.time_ns);
    (config.run.warmup_ns, config.run.duration_ns, config.run.drain) = (0, last_ns + AFTER_NS, true);
    config.load.trace = Some(trace.records.into());
    config.validate().map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(|problem| refused(format!("`{}`: {}", problem.field, problem.message)).0).collect();
        SettingsError(lines.join("\n"))
    })?;
    Ok(config)
}

/// The paper's cluster with at least `nodes` nodes.
fn fitting(nodes: u32) -> Result<Config, SettingsError> {
    cluster_of(Settings::parse("", &format!("nodes = {}", nodes.max(4)))?)
}

#[cfg(test)]
mod tests {
    use hiroma_sim::{TraceKind, TraceRecord};

    use super::*;

    fn trace(nodes: u32) -> Trace {
        let record = TraceRecord { time_ns: 10, node: nodes - 1, kind: TraceKind::PageOut, page: 1 };
        Trace { nodes, page_bytes: 4096, records: vec![record] }
    }

    #[test]
    fn a_cluster_is_made_to_fit_the_trace() {
        for nodes in [1, 2, 7, 64, 1000] {
            let config = replayed(trace(nodes), None, Path::new("t.bin")).unwrap();
            assert!(config.nodes() >= u64::from(nodes));
            assert_eq!((config.node.page_bytes, config.run.duration_ns, config.run.warmup_ns), (4096, 10 + AFTER_NS, 0));
        }
    }

    #[test]
    fn a_trace_that_does_not_fit_its_cluster_is_refused() {
        let error = replayed(trace(257), Some(Config::default()), Path::new("t.bin")).unwrap_err();
        assert_eq!(error.0, "t.bin: the trace is one of 257 nodes and the cluster has 256: choose a cluster with as many");
        let empty = Trace { nodes: 4, page_bytes: 4096, records: Vec::new() };
        assert_eq!(replayed(empty, None, Path::new("t.bin")).unwrap_err().0, "t.bin: the trace has no records: there is nothing to run");
    }
}
