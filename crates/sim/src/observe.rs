//! What a run was like over time, and at each node: samples at equal distances. They change nothing
//! of the run.

use crate::outcome::{NodeLoad, Observed, Outcome, Sample};

/// Frames that are looked at in a whole run, at most: more nodes or frames, fewer samples.
const LOOKS_MAX: u64 = 50_000_000;
/// Fewer samples say nothing.
const SAMPLES_MIN: u64 = 20;

/// Takes samples.
#[derive(Debug)]
pub struct Observer {
    every_ns: u64,
    next_ns: u64,
    observed: Box<Observed>,
}

impl Observer {
    /// Takes about `samples` samples until `end_ns`, of `nodes` nodes with `frames` frames.
    pub fn new(samples: u32, end_ns: u64, nodes: u64, frames: u32) -> Self {
        let most = LOOKS_MAX / (nodes * u64::from(frames)).max(1);
        let samples = u64::from(samples).min(most.max(SAMPLES_MIN)).max(1);
        let every_ns = (end_ns / samples).max(1);
        let loads = vec![NodeLoad::default(); nodes as usize];
        let observed = Observed { loads, ..Observed::default() };
        Observer { every_ns, next_ns: every_ns, observed: Box::new(observed) }
    }

    /// Whether it is time for a sample.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Adds a sample, and, after the warm-up, the loads of all nodes.
    pub fn add(&mut self, sample: Sample, load: impl Fn(usize) -> NodeLoad) {
        let Sample { now_ns, measured, .. } = sample;
        self.observed.samples.push(sample);
        if measured {
            self.observed.load_samples += 1;
            for (number, sum) in self.observed.loads.iter_mut().enumerate() {
                let load = load(number);
                sum.frames_used += load.frames_used;
                sum.guests += load.guests;
                sum.busy += load.busy;
                sum.waiting += load.waiting;
                sum.queued += load.queued;
            }
        }
        self.next_ns = now_ns - now_ns % self.every_ns + self.every_ns;
    }

    /// What was observed.
    pub fn into_observed(self) -> Box<Observed> {
        self.observed
    }
}

impl Sample {
    /// A sample with the counts of `out`.
    pub fn of(out: &Outcome, now_ns: u64, measured: bool) -> Self {
        Sample {
            now_ns,
            measured,
            faults: out.response_ns.count(),
            response_ns: out.response_ns.sum(),
            page_outs: out.page_outs,
            placed_remote: out.placed_remote,
            placed_disk: out.placed_disk,
            ..Sample::default()
        }
    }
}
