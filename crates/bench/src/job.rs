//! What a measuring child process is told, and what it answers. Both are one line of JSON.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hiroma_pager::config::Config;
use serde::{Deserialize, Serialize};

/// One task for a child of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The memory it works on.
    pub memory: Memory,
    /// Control group to enter before anything else.
    pub cgroup: Option<PathBuf>,
    pub task: Task,
}

/// Where the memory of a task comes from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Memory {
    /// Ordinary anonymous memory; swapped if limited.
    Native,
    /// A pager's.
    Pager(Box<Config>),
}

/// What to do and measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Fill, push everything out, read all in order.
    Sequential { bytes: usize },
    /// Fill, push everything out, touch block after block and time each first touch.
    Latency { bytes: usize, block: usize },
    /// Fill, read some random pages to settle, then time as many random pages as the time allows.
    Random { bytes: usize, settle: u64, accesses: u64, time_limit_ms: u64 },
    /// Fill; for each stride: push everything out, touch one word per stride.
    Stride { bytes: usize, strides: Vec<usize> },
    /// Reserve so much address space, fill and read back stretches spread evenly over it.
    Reserve { reserved: usize, touched: usize, stretches: usize },
    /// Work of `bench real` on ordinary memory, whatever is behind it.
    Load(super::real::Load),
    /// Become this program.
    Program { argv: Vec<String> },
    /// Send so many bytes to a port of this machine, 2 MiB at a time.
    StreamSource { port: u16, bytes: u64 },
    /// Accept one connection, print its port first, and take everything in, 2 MiB at a time.
    StreamSink,
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Time of the measured part.
    pub seconds: f64,
    /// Bytes that it went through.
    pub bytes: u64,
    /// Touches or accesses that it made.
    pub count: u64,
    /// Time of the part that filled the memory.
    pub fill_seconds: f64,
    /// Share of the memory that was local when the measured part began.
    pub local_share: f64,
    /// Latency of single touches.
    pub latency: Option<Latency>,
    /// One time per stride.
    pub stride_seconds: Vec<f64>,
    /// Peak resident set of a program.
    pub peak_bytes: u64,
    /// Far and metadata bytes with everything far.
    pub far: Option<FarUse>,
    /// Statistics of the pager at the end.
    pub counters: BTreeMap<String, u64>,
    /// Pages read from and written to swap during the run.
    pub swap_pages_in: u64,
    pub swap_pages_out: u64,
}

/// What far memory costs in local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FarUse {
    pub far_bytes: u64,
    pub metadata_bytes: u64,
}

/// Distribution of latencies, exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub mean_us: f64,
    pub deviation_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Latency {
    /// Of some nanoseconds.
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

impl Outcome {
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
