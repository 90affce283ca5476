//! What runs are about to take: memory at least, and time, from the beginning of some of them.
//!
//! A run does what its load says: so many accesses, and so much information that nodes exchange.
//! Both are known for any simulated time ([`work`]); what they cost on this machine, with this
//! policy and network, is measured in the first instants of runs.

use std::time::Instant;

use hiroma_policy::placement::{InformationKind, ScopeKind};
use hiroma_sim::{Config, TraceKind};

use crate::jobs::run_all;
use crate::lab::Lab;

/// A slice of a run takes at least, and at most, so long, s; in between, a share of what the run is
/// expected to take.
const SLICE_S: (f64, f64) = (0.1, 3.0);
const SLICE_SHARE: f64 = 0.02;
/// Most slices: of runs that differ.
const SLICES: usize = 24;
/// No unit of work takes longer, s: so much of it is not worth a slice.
const UNIT_S_MAX: f64 = 20e-6;
/// Messages of one node that tells its domain how much is free, about.
const TOLD: f64 = 30.0;

/// Runs that are about to begin.
#[derive(Clone, Debug, Default)]
pub struct Plan<'a> {
    /// Configurations, and how often each is run, on average.
    configs: Vec<(&'a Config, f64)>,
    part: &'static str,
}

/// What runs take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Forecast {
    /// Memory at least, of those that run at the same time.
    pub bytes: u64,
    /// Time, s; none if it is not long.
    pub wall_s: Option<f64>,
}

impl<'a> Plan<'a> {
    /// Each of `configs` as often as is said.
    pub fn new(configs: impl IntoIterator<Item = (&'a Config, f64)>) -> Plan<'a> {
        Plan { configs: configs.into_iter().collect(), part: "" }
    }

    /// Says that these are the runs of a `part` of the work; how many there are is not known.
    #[must_use]
    pub fn for_one(self, part: &'static str) -> Plan<'a> {
        Plan { part, ..self }
    }

    /// What the runs are for, if they are not all.
    pub fn part(&self) -> &'static str {
        self.part
    }

    /// Number of runs, rounded up.
    pub fn runs(&self) -> usize {
        self.configs.iter().map(|(_, times)| times).sum::<f64>().ceil() as usize
    }

    /// Memory that its runs take at least, `threads` at the same time: those of the largest one.
    pub fn bytes(&self, threads: usize) -> u64 {
        let need_bytes = |config| {
            let need = hiroma_sim::need(config);
            need.idle_bytes.saturating_add(need.table_bytes)
        };
        let each = self.configs.iter().map(|(config, _)| need_bytes(config)).max().unwrap_or(0);
        each.saturating_mul(threads.min(self.runs()) as u64)
    }

    /// What it takes in `lab`: runs a part of it. `clock` tells the time of the calling thread, s.
    pub fn forecast(&self, lab: &Lab<'_>, clock: fn() -> f64) -> Forecast {
        let threads = lab.threads.min(self.runs()).max(1);
        let all: Vec<f64> = self
            .configs
            .iter()
            .map(|(config, times)| {
                work(config, config.run.warmup_ns + config.run.duration_ns) * times
            })
            .collect();
        let total: f64 = all.iter().sum();
        let bytes = self.bytes(lab.threads);
        if total * UNIT_S_MAX / threads as f64 <= SLICE_S.1 {
            return Forecast { bytes, wall_s: None };
        }
        let picked = pick(&all);
        let slices = run_all(
            &picked,
            lab.threads,
            lab.stop,
            |&place| slice(self.configs[place].0, lab, clock),
            |_, _| {},
        );
        // Each slice stands for as much work as all others.
        let of_each: Vec<f64> = picked
            .iter()
            .zip(slices)
            .filter_map(|(&place, took_s)| Some(took_s?? * self.configs[place].1 / all[place]))
            .collect();
        if of_each.is_empty() {
            return Forecast { bytes, wall_s: None };
        }
        let sum_s = total * of_each.iter().sum::<f64>() / of_each.len() as f64;
        // One run is not divided.
        let longest_s = sum_s
            * all
                .iter()
                .zip(&self.configs)
                .map(|(all, (_, times))| all / times.max(1.0))
                .fold(0.0, f64::max)
            / total;
        Forecast { bytes, wall_s: Some((sum_s / threads as f64).max(longest_s)) }
    }
}

/// Places in `all`, evenly by the work that is said there, each once.
fn pick(all: &[f64]) -> Vec<usize> {
    let total: f64 = all.iter().sum();
    let (mut places, mut sum) = (Vec::new(), 0.0);
    for (place, work) in all.iter().enumerate() {
        sum += work;
        // One of the points (n + 1/2) / SLICES of the total is in what was added.
        let points = |sum: f64| (sum / total * SLICES as f64 - 0.5).ceil();
        if points(sum) > points(sum - work) {
            places.push(place);
        }
    }
    places
}

/// The time of this machine, s.
pub fn wall_s() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Runs the beginning of a run. Returns what the whole would take, s; none if it failed.
fn slice(config: &Config, lab: &Lab<'_>, clock: fn() -> f64) -> Option<f64> {
    let need = hiroma_sim::need(config);
    if (lab.lacking)(need.idle_bytes.saturating_add(need.table_bytes)).is_some() {
        return None;
    }
    let all = work(config, config.run.warmup_ns + config.run.duration_ns);
    let start_s = clock();
    let mut seen: Vec<(f64, f64)> = Vec::new();
    let mut whole_s = None;
    let outcome = hiroma_sim::run(config, 1, &mut |progress| {
        let took_s = clock() - start_s;
        seen.push((took_s, work(config, progress.now_ns)));
        whole_s = expected(&seen, all);
        let least_s = (whole_s.unwrap_or(f64::MAX) * SLICE_SHARE).clamp(SLICE_S.0, SLICE_S.1);
        took_s < least_s && (lab.lacking)(need.table_bytes).is_none() && !lab.stop.is_set()
    });
    match outcome {
        Ok(_) => Some(clock() - start_s),
        Err(hiroma_sim::RunError::Stopped(_)) if !lab.stop.is_set() => whole_s,
        Err(_) => None,
    }
}

/// What a run of `all` work takes that was `seen` at some times with some work done: it goes on at
/// the rate of the second half.
fn expected(seen: &[(f64, f64)], all: f64) -> Option<f64> {
    let &(took_s, done) = seen.last()?;
    let half = seen.iter().rev().find(|(at_s, _)| *at_s <= took_s / 2.0);
    let (half_s, half_done) = half.copied().unwrap_or((0.0, 0.0));
    let rate = (done - half_done) / (took_s - half_s);
    (rate > 0.0).then(|| took_s + (all - done).max(0.0) / rate)
}

/// The work of a run up to a simulated time: accesses, and messages with information that nodes
/// exchange at fixed times. The first threads have just begun; later as many run as arrive in the
/// time that one takes, or as there are nodes.
fn work(config: &Config, now_ns: u64) -> f64 {
    let (load, nodes, now) = (&config.load, config.nodes() as f64, now_ns as f64);
    let accesses = match &load.trace {
        Some(records) => {
            let done = records.partition_point(|record| record.time_ns <= now_ns);
            let drops = records[..done].iter().filter(|record| record.kind == TraceKind::Drop);
            (done - drops.count()) as f64
        }
        None => {
            let arrive_per_ns = load.arrivals_per_s * f64::from(load.threads_mean) / 1e9;
            let takes_ns = f64::from(load.accesses) * config.node.access_ns.max(1) as f64;
            // Until then their number grows.
            let grows_ns = takes_ns.min(nodes / arrive_per_ns);
            let (early, late) = (now.min(grows_ns), (now - grows_ns).max(0.0));
            let busy = arrive_per_ns * (early * early / 2.0 + late * grows_ns);
            busy / config.node.access_ns.max(1) as f64
        }
    };
    let policy = &config.policy;
    let mut told = 0.0;
    if policy.scope == ScopeKind::Domain && policy.information == InformationKind::Periodic {
        told += now / policy.period_ns.max(1) as f64;
    }
    if config.confirms() {
        told += now / policy.refresh_ns.max(1) as f64;
    }
    accesses + told * nodes * TOLD
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cluster::read_cluster;
    use crate::jobs::Stop;
    use crate::policies::Policies;
    use crate::presets::preset;

    /// Time of the processor for this thread: other programs on the machine do not count.
    fn thread_s() -> f64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    }

    /// Forecast and time of a run, s; longer than configured where a slice would be all of it.
    fn both(mut config: Config) -> (f64, f64) {
        let stop = Stop::new();
        let lab = Lab {
            threads: 1,
            stop: &stop,
            advance: &|_| (),
            lacking: &|_| None,
            instead: &|_| None,
        };
        let forecast_s = loop {
            let forecast_s = slice(&config, &lab, thread_s).unwrap();
            if forecast_s >= 0.7 {
                break forecast_s;
            }
            config.run.duration_ns *= (1.0 / forecast_s).clamp(2.0, 20.0) as u64;
        };
        let start_s = thread_s();
        hiroma_sim::run(&config, 2, &mut |_| true).unwrap();
        (forecast_s, thread_s() - start_s)
    }

    #[test]
    fn rest_goes_on_at_the_rate_of_the_second_half() {
        let steady: Vec<(f64, f64)> = (1..=10).map(|at| (f64::from(at), f64::from(at))).collect();
        assert_eq!(expected(&steady, 100.0), Some(100.0));
        let faster = [(1.0, 1.0), (2.0, 2.0), (3.0, 6.0), (4.0, 10.0)];
        assert_eq!(expected(&faster, 18.0), Some(6.0));
        assert_eq!(expected(&[], 1.0), None);
        assert_eq!(expected(&[(1.0, 0.0), (2.0, 0.0)], 1.0), None);
    }

    #[test]
    fn work_grows_with_time_and_arrivals() {
        let config = preset("paper").unwrap().config();
        let end = config.run.duration_ns;
        let seen: Vec<f64> = (0..=8).map(|part| work(&config, end / 8 * part)).collect();
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
        let mut busier = config.clone();
        busier.load.arrivals_per_s *= 2.0;
        assert!(work(&busier, end) > 1.5 * work(&config, end));
    }

    #[test]
    #[ignore = "timed: `cargo test --release -p hiroma-sim-lab forecasts_are -- --ignored`"]
    fn forecasts_are_within_a_factor_of_three() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sim");
        let examples =
            ["cluster", "small", "leaf-spine", "graph", "matrix", "failures", "faults", "tiers"];
        let examples = examples.map(|name| {
            let path = directory.join(name).with_extension("toml");
            (name, read_cluster(&path, &Policies::new()).unwrap())
        });
        let presets = ["paper", "ethernet-25g", "leaf-spine"]
            .map(|name| (name, preset(name).unwrap().config()));
        for (name, config) in examples.into_iter().chain(presets) {
            // What else the machine does is not the forecast's: once more, if it disturbed.
            let is_near = (0..2).any(|_| {
                let (forecast_s, took_s) = both(config.clone());
                println!("{name}: {forecast_s:.2} s, took {took_s:.2} s");
                (took_s / 3.0..took_s * 3.0).contains(&forecast_s)
            });
            assert!(is_near, "{name}");
        }
    }
}
