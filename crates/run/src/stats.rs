//! Output at the end of a run: one summary line, and JSON for `--stats`.

use std::ffi::OsString;
use std::time::Duration;

use hiroma_command::show;
use hiroma_far::config::{Config, PathChoice};
use hiroma_far::control::{Counter, RANGE_BYTES, Range, Snapshot, Waited};
use hiroma_policy::redundancy::Scheme;
use hiroma_units::{Bytes, Nanos};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Map, Value, json};

use crate::loss::{Loss, curve_json};
use crate::outside::Outside;
use crate::signals::Ending;
use crate::watch::Watch;

/// All data about a run that has ended.
pub struct Report<'a> {
    pub watch: &'a Watch,
    pub config: &'a Config,
    pub command: &'a [OsString],
    pub path: PathChoice,
    pub ending: Ending,
    pub elapsed: Duration,
    pub main_pid: u32,
    /// Children that ran without far memory.
    pub outside: Outside,
    /// Counts of the trace that `--trace` recorded.
    pub trace: Option<Value>,
    /// Why accessed bits could not be read, if they were wanted.
    pub unreadable: Option<String>,
    /// What this machine or the user's rights lack, and what makes the run slower than it could be.
    pub lacks: Vec<String>,
}

/// Share of the time, in millionths, from which the summary says what slows the program down.
const SLOW_PPM: u64 = 100_000;

impl Report<'_> {
    /// The summary line.
    pub fn summary(&self) -> String {
        let elapsed = show::elapsed(self.elapsed);
        let outside = self.outside.summary();
        let Some(total) = self.watch.total() else {
            return format!("{elapsed}, no managed memory was used{outside}");
        };
        let wait = |quantile| total.wait_quantile(quantile).map_or("-".to_owned(), show::latency);
        let loss = self.loss();
        let is_slow = loss.as_ref().is_some_and(|loss| loss.share_ppm >= SLOW_PPM);
        let unreadable = match &self.unreadable {
            Some(why) if is_slow => {
                format!("; accessed bits would have spared faults, but could not be read: {why}")
            }
            _ => String::new(),
        };
        let lacks = match &*self.lacks.join(", ") {
            what if is_slow && !what.is_empty() => {
                format!("; faults would be faster but for what `hiroma doctor` explains: {what}")
            }
            _ => String::new(),
        };
        let loss = loss.map_or(String::new(), |loss| loss.summary());
        let processes = match self.watch.count() {
            1 => String::new(),
            count => format!(" in {count} processes"),
        };
        let scheme = self.config.scheme;
        let transport = total.stores.transport();
        let kept = match (scheme.is_cut(), scheme.pieces()) {
            (false, 1) if transport.is_empty() => String::new(),
            (false, 1) => format!(" (in servers, by {transport})"),
            (is_cut, _) => {
                let parity = if is_cut { "parity " } else { "" };
                let by = if transport.is_empty() { "" } else { ", by " };
                format!(" (in servers: {parity}{scheme}{by}{transport})")
            }
        };
        let missing = match self.watch.short_bytes_max() {
            0 => String::new(),
            bytes => format!(", up to {} with too few {}", Bytes(bytes), pieces_of(scheme)),
        };
        let recopied = match total.stores.recopied_bytes {
            0 => String::new(),
            bytes => format!(", {} made again in other servers", Bytes(bytes)),
        };
        format!(
            "{elapsed}, local {} max (limit {}){processes}, far {} max{kept}, {} faults (estimated wait p50 {}, p99 {}), fetched {}, written {}{missing}{recopied}{loss}{outside}{unreadable}{lacks}",
            Bytes(self.watch.local_bytes_max()),
            Bytes(self.watch.largest(Counter::LimitBytes)),
            Bytes(self.watch.far_bytes_max()),
            show::count(total.get(Counter::Faults)),
            wait(0.5),
            wait(0.99),
            Bytes(total.get(Counter::FetchedBytes)),
            Bytes(total.get(Counter::WrittenBytes)),
        )
    }

    /// The time lost by waiting for far memory.
    pub fn loss(&self) -> Option<Loss> {
        Loss::of(&self.watch.total()?, self.watch.largest(Counter::LimitBytes), self.elapsed)
    }

    /// All data as JSON.
    pub fn json(&self) -> Value {
        let (exit_code, signal) = match self.ending {
            Ending::Exited(code) => (Some(code), None),
            Ending::Killed(signal) => (None, Some(signal)),
        };
        let processes: Vec<Value> = self
            .watch
            .seen()
            .iter()
            .map(|(pid, seen)| process_json(*pid, &seen.snapshot))
            .collect();
        let command: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        // Linux reports the value in KiB.
        let peak_rss = getrusage(UsageWho::RUSAGE_CHILDREN)
            .ok()
            .and_then(|usage| u64::try_from(usage.max_rss()).ok())
            .map(|kib| kib << 10);
        json!({
            "hiroma": env!("CARGO_PKG_VERSION"),
            "command": command,
            "config": self.config,
            "path": self.path,
            "exit_code": exit_code,
            "signal": signal,
            "elapsed_s": self.elapsed.as_secs_f64(),
            "peak_rss_bytes": peak_rss,
            "main_pid": self.main_pid,
            "without_far_memory": self.outside.json(),
            "trace": self.trace,
            "accessed_bits_missing": self.unreadable,
            "lacks": self.lacks,
            "local_bytes_max": self.watch.local_bytes_max(),
            "far_bytes_max": self.watch.far_bytes_max(),
            "copies_missing_bytes_max": self.watch.short_bytes_max(),
            "loss": self.loss().map(|loss| loss.json()),
            "total": self.watch.total().map(|total| counts_json(&total)),
            "processes": processes,
        })
    }
}

/// What too few may be there of.
fn pieces_of(scheme: Scheme) -> &'static str {
    if scheme.is_cut() { "pieces" } else { "copies" }
}

/// The counters and latencies of one process.
pub fn process_json(pid: u32, snapshot: &Snapshot) -> Value {
    let mut object = counts_json(snapshot);
    object.insert("pid".to_owned(), pid.into());
    Value::Object(object)
}

fn counts_json(snapshot: &Snapshot) -> Map<String, Value> {
    let mut object: Map<String, Value> = Counter::ALL
        .iter()
        .map(|&counter| (counter.name().to_owned(), snapshot.get(counter).into()))
        .collect();
    for (name, quantile) in
        [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)]
    {
        let nanos = snapshot.latency_quantile(quantile).map(|Nanos(nanos)| nanos);
        object.insert(format!("fault_latency_ns_{name}"), nanos.into());
    }
    for (name, quantile) in
        [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)]
    {
        let nanos = snapshot.wait_quantile(quantile).map(|Nanos(nanos)| nanos);
        object.insert(format!("estimated_wait_ns_{name}"), nanos.into());
    }
    for (name, kind) in ["first_touch", "staged", "fetched", "room"].into_iter().zip(Waited::ALL) {
        object.insert(format!("waited_{name}_ns"), snapshot.waited(kind).0.into());
    }
    object.insert("copies_missing_bytes".to_owned(), snapshot.stores.short_bytes.into());
    object.insert("recopied_bytes".to_owned(), snapshot.stores.recopied_bytes.into());
    let made = [snapshot.stores.tcp_connections, snapshot.stores.shared_connections];
    object.insert("connections_tcp".to_owned(), made[0].into());
    object.insert("connections_shared_memory".to_owned(), made[1].into());
    object.insert("waiting_ns".to_owned(), snapshot.waited(Waited::AnyFar).0.into());
    object.insert("waking_costs".to_owned(), json!(snapshot.costs));
    object.insert("miss_ratio_curve".to_owned(), curve_json(snapshot));
    let range = |range: &Range| json!({"start": range.start, "bytes": RANGE_BYTES, "mapping": range.mapping, "faults": range.faults});
    object.insert("ranges".to_owned(), snapshot.ranges.iter().map(range).collect());
    object
}
