//! A recorded load on a simulated cluster.

use std::path::Path;

use hiroma_sim::{Config, TIME_MAX_NS, TraceKind};

use crate::cluster::cluster_of;
use crate::settings::{Settings, SettingsError};
use crate::trace::Trace;

/// Time that is measured after the last record.
const AFTER_NS: u64 = 1_000_000_000;
/// The latest time of a record.
const LAST_NS_MAX: u64 = TIME_MAX_NS / 2 - AFTER_NS;

/// Describes a trace in one line.
pub fn describe(trace: &Trace) -> String {
    let [outs, ins, drops] =
        [TraceKind::PageOut, TraceKind::PageIn, TraceKind::Drop].map(|kind| trace.count(kind));
    let nodes =
        if trace.nodes == 1 { "one node".to_owned() } else { format!("{} nodes", trace.nodes) };
    let lost = if trace.lost > 0 {
        format!("; {} records were lost in the recording", trace.lost)
    } else {
        String::new()
    };
    format!(
        "{outs} page-outs, {ins} page-ins and {drops} drops of {nodes}, pages of {} bytes{lost}",
        trace.page_bytes
    )
}

/// The cluster that runs `trace`: `base`, or the paper's with as many nodes as the trace has; the
/// page size is the trace's.
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
    let last_ns = trace.records.last().map_or(0, |record| record.time_ns);
    if last_ns > LAST_NS_MAX {
        return Err(refused(format!(
            "its last record is at {last_ns} ns, and a run lasts at most {LAST_NS_MAX}: times count from the beginning of the \
             recording; subtract that of the first record"
        )));
    }
    // All of the trace counts, and what its last records start has time to finish.
    (config.run.warmup_ns, config.run.duration_ns, config.run.drain) =
        (0, last_ns + AFTER_NS, true);
    // All pages may queue at one disk: a thread that waits for the last of them is not stuck.
    let disk_ns = config.disk.access_ns
        + trace.page_bytes.saturating_mul(1_000_000_000) / config.disk.bytes_per_s.max(1);
    let queue_ns = disk_ns.saturating_mul(2 * trace.records.len() as u64);
    config.run.stuck_after_ns = config.run.stuck_after_ns.saturating_add(queue_ns).min(TIME_MAX_NS);
    config.load.trace = Some(trace.records.into());
    config.validate().map_err(|problems| {
        let lines: Vec<String> = problems
            .iter()
            .map(|problem| refused(format!("`{}`: {}", problem.field, problem.message)).0)
            .collect();
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
    use hiroma_sim::TraceRecord;

    use super::*;

    fn trace(nodes: u32) -> Trace {
        let record =
            TraceRecord { time_ns: 10, node: nodes - 1, kind: TraceKind::PageOut, page: 1 };
        Trace { nodes, page_bytes: 4096, lost: 0, records: vec![record] }
    }

    #[test]
    fn cluster_is_sized_for_the_trace() {
        for nodes in [1, 2, 7, 64, 1000] {
            let config = replayed(trace(nodes), None, Path::new("t.bin")).unwrap();
            assert!(config.nodes() >= u64::from(nodes));
            assert_eq!(
                (config.node.page_bytes, config.run.duration_ns, config.run.warmup_ns),
                (4096, 10 + AFTER_NS, 0)
            );
        }
    }

    #[test]
    fn late_times_are_refused() {
        for time_ns in [u64::MAX, 1_700_000_000_000_000_000, LAST_NS_MAX + 1] {
            let mut late = trace(4);
            late.records[0].time_ns = time_ns;
            let error = replayed(late, None, Path::new("t.bin")).unwrap_err().0;
            assert!(error.contains("times count from the beginning"), "{error}");
        }
        let mut latest = trace(4);
        latest.records[0].time_ns = LAST_NS_MAX;
        assert!(replayed(latest, None, Path::new("t.bin")).is_ok());
    }

    #[test]
    fn mismatched_trace_and_cluster_are_refused() {
        let error = replayed(trace(257), Some(Config::default()), Path::new("t.bin")).unwrap_err();
        assert_eq!(
            error.0,
            "t.bin: the trace is one of 257 nodes and the cluster has 256: choose a cluster with as many"
        );
        let empty = Trace { nodes: 4, page_bytes: 4096, lost: 0, records: Vec::new() };
        assert_eq!(
            replayed(empty, None, Path::new("t.bin")).unwrap_err().0,
            "t.bin: the trace has no records: there is nothing to run"
        );
    }
}
