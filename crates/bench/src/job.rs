//! Messages to and from a measuring child process. Each is one line of JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hiroma_far::config::Config;
use serde::{Deserialize, Serialize};

/// One task for a child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Memory that the task works on.
    pub memory: Memory,
    /// Control group to enter before anything else.
    pub cgroup: Option<PathBuf>,
    pub task: Task,
}

/// Source of the memory of a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Memory {
    /// Ordinary anonymous memory, which is swapped if a limit requires it.
    Native,
    /// Memory of a pager.
    Pager(Box<Config>),
}

/// Work to do and measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Fill, evict everything, read all in order.
    Sequential { bytes: usize },
    /// Fill, evict everything, touch block after block and time each first touch.
    Latency { bytes: usize, block: usize },
    /// Fill, read some random pages to settle, then time random reads until the number or the time
    /// limit is reached.
    Random { bytes: usize, settle: u64, accesses: u64, time_limit_ms: u64 },
    /// Fill; for each stride: evict everything, touch one word per stride.
    Stride { bytes: usize, strides: Vec<usize> },
    /// Reserve `reserved` bytes of address space, fill and read back stretches spread evenly over
    /// it.
    Reserve { reserved: usize, touched: usize, stretches: usize },
    /// A load of `bench real` on ordinary memory, in any arm.
    Load(super::real::Load),
    /// Execute this program.
    Program { argv: Vec<String> },
    /// Send `bytes` bytes to a port of this machine, 2 MiB at a time.
    StreamSource { port: u16, bytes: u64 },
    /// Print a port, accept one connection on it, and read everything, 2 MiB at a time.
    StreamSink,
}

/// The result of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Duration of the measured part.
    pub seconds: f64,
    /// Number of bytes that the measured part processed.
    pub bytes: u64,
    /// Number of touches or accesses in the measured part.
    pub count: u64,
    /// Duration of filling the memory.
    pub fill_seconds: f64,
    /// Share of the memory that was local when the measured part began.
    pub local_share: f64,
    /// Latency of single touches.
    pub latency: Option<Latency>,
    /// One duration per stride.
    pub stride_seconds: Vec<f64>,
    /// Peak resident set of a program.
    pub peak_bytes: u64,
    /// Far bytes and metadata bytes when everything was far.
    pub far: Option<FarUse>,
    /// Statistics of the pager at the end.
    pub counters: BTreeMap<String, u64>,
    /// Pages that were read from and written to swap during the run.
    pub swap_pages_in: u64,
    pub swap_pages_out: u64,
}

/// Local memory that far memory takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FarUse {
    pub far_bytes: u64,
    pub metadata_bytes: u64,
}

/// Distribution of latencies, calculated exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub mean_us: f64,
    pub deviation_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Latency {
    /// Distribution of latencies in nanoseconds. None if there are none.
    pub fn of(mut nanos: Vec<u64>) -> Option<Latency> {
        nanos.sort_unstable();
        let &max = nanos.last()?;
        let n = nanos.len() as f64;
        let mean = nanos.iter().map(|&ns| ns as f64).sum::<f64>() / n;
        let variance = nanos.iter().map(|&ns| (ns as f64 - mean).powi(2)).sum::<f64>() / n;
        let quantile = |share: f64| {
            nanos[((n * share).ceil() as usize).clamp(1, nanos.len()) - 1] as f64 / 1e3
        };
        Some(Latency {
            mean_us: mean / 1e3,
            deviation_us: variance.sqrt() / 1e3,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            max_us: max as f64 / 1e3,
        })
    }
}

impl TaskResult {
    /// Bandwidth of the measured part.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.seconds
    }

    /// Time per access.
    pub fn us_per_access(&self) -> f64 {
        self.seconds * 1e6 / self.count as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_has_exact_quantiles() {
        let latency = Latency::of((1..=1000).map(|us| us * 1000).collect()).unwrap();
        assert_eq!((latency.p50_us, latency.p99_us, latency.max_us), (500.0, 990.0, 1000.0));
        assert!(
            (latency.mean_us - 500.5).abs() < 1e-9 && (latency.deviation_us - 288.67).abs() < 0.1
        );
        assert_eq!(Latency::of(vec![]), None);
    }
}
