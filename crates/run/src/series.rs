//! A run over time: samples at even intervals, few enough to plot however long the run takes.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hiroma_far::control::{Counter, Waited};

use crate::watch::Watch;

/// Initial interval between samples.
const PERIOD: Duration = Duration::from_millis(50);
/// At this number of samples, every second one is dropped and the interval is doubled.
const SAMPLES_MAX: usize = 480;

/// State at one moment. Bytes are gauges, the other fields count since the start.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sample {
    pub seconds: f64,
    pub local_bytes: u64,
    pub far_bytes: u64,
    pub limit_bytes: u64,
    pub first_touches: u64,
    pub staged: u64,
    pub fetched: u64,
    pub prefetched: u64,
    pub waiting_ns: u64,
}

/// Samples of a run, oldest first.
#[derive(Default)]
pub struct Series {
    pub samples: Vec<Sample>,
}

impl Series {
    /// Adds a sample. True: every second sample was dropped, and the interval doubles.
    fn add(&mut self, sample: Sample) -> bool {
        let is_full = self.samples.len() >= SAMPLES_MAX;
        if is_full {
            let mut keeps = false;
            self.samples.retain(|_| {
                keeps = !keeps;
                keeps
            });
        }
        self.samples.push(sample);
        is_full
    }

    /// Adds a sample for the end of the run. Its gauges are those of the sample before it, because
    /// the gauges of processes that have ended are zero.
    pub fn ended(mut self, watch: &Watch, elapsed: Duration) -> Series {
        let (before, last) = (
            self.samples.last().copied().unwrap_or_default(),
            Sample::of(watch, elapsed.as_secs_f64()),
        );
        let Sample { local_bytes, far_bytes, limit_bytes, .. } = before;
        self.add(Sample { local_bytes, far_bytes, limit_bytes, ..last });
        self
    }
}

impl Sample {
    fn of(watch: &Watch, seconds: f64) -> Sample {
        let Some(total) = watch.total() else { return Sample { seconds, ..Sample::default() } };
        Sample {
            seconds,
            local_bytes: watch.now(Counter::LocalBytes),
            far_bytes: watch.now(Counter::FarBytes),
            limit_bytes: watch.now(Counter::LimitBytes),
            first_touches: total.get(Counter::FaultsFresh),
            staged: total.get(Counter::FaultsStaged),
            fetched: total.get(Counter::FaultsFetched),
            prefetched: total.get(Counter::FaultsPrefetched),
            waiting_ns: total.waited(Waited::AnyFar).0,
        }
    }
}

/// The thread that samples.
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Series>,
}

impl Sampler {
    /// Starts sampling.
    pub fn start(watch: Arc<Mutex<Watch>>, start: Instant) -> Sampler {
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            let (mut series, mut period, mut due) = (Series::default(), PERIOD, start + PERIOD);
            while stopped.recv_timeout(due.saturating_duration_since(Instant::now()))
                == Err(RecvTimeoutError::Timeout)
            {
                let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
                watch.update();
                if series.add(Sample::of(&watch, start.elapsed().as_secs_f64())) {
                    period *= 2;
                }
                due = (due + period).max(Instant::now());
            }
            series
        });
        Sampler { stop, thread }
    }

    /// Stops sampling and returns the samples.
    pub fn stop(self) -> Series {
        drop(self.stop);
        // The join fails only after a panic, which the user has seen.
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_run_keeps_a_bounded_even_series() {
        let (mut series, mut period, mut seconds) = (Series::default(), 1.0, 0.0);
        for _ in 0..5000 {
            if series.add(Sample { seconds, ..Sample::default() }) {
                period *= 2.0;
            }
            seconds += period;
        }
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&series.samples.len()));
        let steps: Vec<f64> =
            series.samples.windows(2).map(|pair| pair[1].seconds - pair[0].seconds).collect();
        assert!(
            steps.iter().all(|&step| step == steps[0]) && series.samples[0].seconds == 0.0,
            "{steps:?}"
        );
    }
}
