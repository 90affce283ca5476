//! The simulator against queueing theory: disks as M/M/c and M/D/1 queues, a link as M/D/1, Little's
//! law and the utilisation law, and the choice between two peers against its fixed point.
//!
//! Each of twenty figures is estimated from ten seeds. Nineteen of the twenty intervals of 95 % have to
//! contain what theory says.
//!
//! Two choices are checked with queues that the test keeps itself: a node of the simulated machine
//! has frames, and no queue whose length its peers could compare. The choice and the view are those
//! of the machine's nodes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hiroma_policy::placement::choice::{Choice, TwoChoices};
use hiroma_policy::placement::{Avoid, Neighbourhood, Peer, Rng, ScopeKind, View};
use hiroma_sim::{
    Config, DiskTime, Histogram, Outcome, TopologyKind, TraceRecord, Transfer, transfer_all,
};

mod common;

use common::{MS, back, out, outcome, replay, small};

const SEEDS: u64 = 10;
/// The 97.5 % quantile of Student's t with nine degrees of freedom.
const STUDENT: f64 = 2.262;
/// Mean service time of a disk and of a link, ns: transfers of pages take nothing beside it.
const SERVICE_NS: u64 = 10 * MS;
/// Each fetches one page at a time: so many that none of them still waits when it is its turn.
const NODES: u32 = 250;
/// Pages that are fetched before measuring starts, and while measuring; on average.
const LEAD_IN: u64 = 1000;
const FETCHES: u64 = 40_000;
const SAMPLES: u32 = 20_000;
/// When the first page is fetched: all of them are on disk by then.
const BEGIN_NS: u64 = 2 * (LEAD_IN + FETCHES) * SERVICE_NS;

/// A figure of all seeds, and what theory says.
struct Check {
    name: String,
    theory: f64,
    values: Vec<f64>,
}

impl Check {
    /// Mean and half width of the 95 % interval.
    fn estimate(&self) -> (f64, f64) {
        let count = self.values.len() as f64;
        assert_eq!(self.values.len() as u64, SEEDS, "{}", self.name);
        let mean = self.values.iter().sum::<f64>() / count;
        let squares: f64 = self.values.iter().map(|value| (value - mean).powi(2)).sum();
        (mean, STUDENT * (squares / (count - 1.0) / count).sqrt())
    }

    fn is_met(&self) -> bool {
        let (mean, half) = self.estimate();
        (mean - self.theory).abs() <= half
    }
}

/// `work` for each of `0..count`, on two threads.
fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let run = || {
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= count {
                return;
            }
            let result = work(job);
            done.lock().expect("no panic").push((job, result));
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(run))));
    let mut done = done.into_inner().expect("no panic");
    done.sort_by_key(|&(job, _)| job);
    done.into_iter().map(|(_, result)| result).collect()
}

/// An exponentially distributed time with this mean.
fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    -(1.0 - uniform).ln() * mean
}

/// The times of a Poisson process in a span, ns.
fn poisson(rng: &mut Rng, from_ns: u64, until_ns: u64, gap_ns: f64) -> Vec<u64> {
    let mut now_ns = from_ns as f64;
    let times = std::iter::repeat_with(|| {
        now_ns += exponential(rng, gap_ns);
        now_ns as u64
    });
    times.take_while(|&time_ns| time_ns < until_ns).collect()
}

/// A disk from which pages are fetched at random times.
#[derive(Clone, Copy)]
struct Queue {
    time: DiskTime,
    servers: u32,
    /// Share of the time in which each server is busy, thousandths.
    load: u64,
}

const fn queue(time: DiskTime, servers: u32, load: u64) -> Queue {
    Queue { time, servers, load }
}

const QUEUES: [Queue; 9] = [
    queue(DiskTime::Exponential, 1, 300),
    queue(DiskTime::Exponential, 1, 600),
    queue(DiskTime::Exponential, 1, 800),
    queue(DiskTime::Exponential, 4, 600),
    queue(DiskTime::Exponential, 4, 800),
    queue(DiskTime::Exponential, 16, 800),
    queue(DiskTime::Fixed, 1, 300),
    queue(DiskTime::Fixed, 1, 600),
    queue(DiskTime::Fixed, 1, 800),
];

impl Queue {
    fn name(&self) -> String {
        let service = if self.time == DiskTime::Fixed { 'D' } else { 'M' };
        format!("M/{service}/{} at {} %", self.servers, self.load / 10)
    }

    fn rho(&self) -> f64 {
        self.load as f64 / 1000.0
    }

    /// Mean time in the queue and in service, in service times.
    fn response(&self) -> f64 {
        match self.time {
            DiskTime::Fixed => md1(self.rho()),
            DiskTime::Exponential => mmc(self.servers, self.rho()),
        }
    }

    /// Time between two fetches, mean.
    fn gap_ns(&self) -> f64 {
        SERVICE_NS as f64 / f64::from(self.servers) / self.rho()
    }

    /// When measuring starts.
    fn measure_ns(&self) -> u64 {
        BEGIN_NS + (LEAD_IN as f64 * self.gap_ns()) as u64
    }

    /// Time in which pages are fetched and measured.
    fn duration_ns(&self) -> u64 {
        (FETCHES as f64 * self.gap_ns()) as u64
    }

    /// Programs that wait on average, as a share of what Little's law says: of rate times response.
    fn little(&self, outcome: &Outcome) -> f64 {
        let samples = &outcome.observed.as_ref().expect("it was asked for").samples;
        let measured = samples.iter().filter(|sample| sample.measured);
        let waiting = measured.map(|sample| sample.waiting).sum::<u64>() as f64;
        // One sample for so much time, and none where nothing happens and nobody waits.
        let every_ns = (self.measure_ns() + self.duration_ns()) / u64::from(SAMPLES);
        waiting * every_ns as f64 / outcome.response_disk_ns.sum() as f64
    }

    /// Every page is on disk before the first one is fetched, and measuring starts after some.
    fn run(&self, seed: u64) -> Outcome {
        let mut config = small();
        (config.topology.kind, config.topology.dims) = (TopologyKind::FullBisection, vec![NODES]);
        immediate(&mut config);
        (config.node.page_bytes, config.node.frames) = (1, 2);
        (config.disk.count, config.disk.parallel, config.disk.time) = (1, self.servers, self.time);
        (config.disk.access_ns, config.disk.bytes_per_s) = (SERVICE_NS, 1 << 40);
        config.policy.scope = ScopeKind::Disk;
        let (measure_ns, duration_ns) = (self.measure_ns(), self.duration_ns());
        let mut rng = Rng::new(seed);
        let times = poisson(&mut rng, BEGIN_NS, measure_ns + duration_ns, self.gap_ns());
        let place = |number: usize| (number as u32 % NODES, (number as u32 / NODES).into());
        let outs = (0..times.len()).map(place).map(|(node, page)| out(0, node, page));
        let backs = times.iter().enumerate().map(|(number, &time_ns)| {
            let (node, page) = place(number);
            back(time_ns, node, page)
        });
        let records: Vec<TraceRecord> = outs.chain(backs).collect();
        replay(&mut config, records);
        (config.run.warmup_ns, config.run.duration_ns) = (measure_ns, duration_ns);
        (config.run.samples, config.run.stuck_after_ns) = (SAMPLES, 1 << 45);
        outcome(&config, seed)
    }
}

/// Nothing takes time, except disks and links.
fn immediate(config: &mut Config) {
    let network = &mut config.network;
    (network.hop_overhead_ns, network.page_handler_ns, network.handler_ns) = (0, 0, 0);
    (network.bytes_per_s, network.message_bytes) = (1 << 40, 1);
}

/// Mean response of M/D/1 in service times, by Pollaczek and Khinchine.
fn md1(rho: f64) -> f64 {
    1.0 + rho / (2.0 * (1.0 - rho))
}

/// Mean response of M/M/c in service times: Erlang's formulas for loss and for waiting.
fn mmc(servers: u32, rho: f64) -> f64 {
    let offered = rho * f64::from(servers);
    let loss = (1..=servers)
        .fold(1.0, |loss, servers| offered * loss / (f64::from(servers) + offered * loss));
    let waits = loss / (1.0 - rho * (1.0 - loss));
    1.0 + waits / (f64::from(servers) * (1.0 - rho))
}

fn services(time_ns: f64) -> f64 {
    time_ns / SERVICE_NS as f64
}

fn mean_response(outcome: &Outcome) -> f64 {
    services(outcome.response_disk_ns.mean().expect("pages are fetched"))
}

/// A quantile, interpolated in its bucket: a bucket is wider than an interval may be.
fn quantile(times: &Histogram, share: f64) -> f64 {
    let wanted = times.count() as f64 * share;
    let mut seen = 0.0;
    for (start, count) in times.iter() {
        let width = (1u64 << start.max(1).ilog2().saturating_sub(6)) as f64;
        if seen + count as f64 >= wanted {
            return services(start as f64 + width * (wanted - seen) / count as f64);
        }
        seen += count as f64;
    }
    unreachable!("the last bucket is reached")
}

/// The share of time in which a server is busy, as a share of what the utilisation law says: of rate
/// times service.
fn utilisation(outcome: &Outcome, servers: u32) -> f64 {
    let rate = outcome.disk_accesses as f64 / outcome.measured_ns as f64;
    outcome.disk_use() / (rate * SERVICE_NS as f64 / f64::from(servers))
}

/// Mean response of a link on which pages arrive at random times, in transfer times.
fn link(rho: f64, seed: u64) -> f64 {
    let mut config = small();
    (config.topology.kind, config.topology.dims) = (TopologyKind::FullBisection, vec![2]);
    immediate(&mut config);
    (config.disk.count, config.policy.domain_radius) = (1, 1);
    (config.network.bytes_per_s, config.node.page_bytes) = (100_000, 999);
    let gap_ns = SERVICE_NS as f64 / rho;
    let until_ns = ((LEAD_IN + FETCHES) as f64 * gap_ns) as u64;
    let sends: Vec<Transfer> = poisson(&mut Rng::new(seed), 0, until_ns, gap_ns)
        .into_iter()
        .map(|start_ns| Transfer { start_ns, source: 0, target: 1 })
        .collect();
    let there_ns = transfer_all(&config, &sends).expect("the configuration is valid").there_ns;
    let times = sends.iter().zip(&there_ns).map(|(send, there_ns)| there_ns - send.start_ns);
    let times: Vec<u64> = times.skip(LEAD_IN as usize).collect();
    // Pages leave the first link one by one: none waits for the second.
    services(times.iter().sum::<u64>() as f64 / times.len() as f64) - 1.0
}

/// Mean response of many M/M/1 queues, in service times, where each arrival takes the shorter of two.
fn two_choices(rho: f64, seed: u64) -> f64 {
    /// With fewer queues the mean is longer than with infinitely many: by about 1/QUEUES.
    const QUEUES: usize = 400;
    const ROOM: u32 = 1000;
    let mut view = View::new(Arc::new(Neighbourhood::alike(vec![1; QUEUES].into(), ROOM)));
    let mut rng = Rng::new(seed);
    // When each job of a queue is done, and of all queues the next.
    let mut queues = vec![VecDeque::<u64>::new(); QUEUES];
    let mut ends = BinaryHeap::new();
    let gap_ns = SERVICE_NS as f64 / rho / QUEUES as f64;
    let (start_ns, until_ns) = (60 * SERVICE_NS, 300 * SERVICE_NS);
    let (mut count, mut sum_ns) = (0, 0);
    for now_ns in poisson(&mut Rng::new(seed + 1000), 0, until_ns, gap_ns) {
        while let Some(&Reverse((end_ns, peer))) = ends.peek() {
            if end_ns > now_ns {
                break;
            }
            ends.pop();
            let jobs = &mut queues[usize::from(peer)];
            jobs.pop_front();
            view.set(Peer(peer), ROOM - jobs.len() as u32);
        }
        let peer = TwoChoices.choose(&view, Avoid::default(), &mut rng).expect("there is room");
        let jobs = &mut queues[usize::from(peer.0)];
        let service_ns = exponential(&mut rng, SERVICE_NS as f64) as u64;
        let end_ns = jobs.back().copied().unwrap_or(now_ns) + service_ns;
        jobs.push_back(end_ns);
        ends.push(Reverse((end_ns, peer.0)));
        view.set(peer, ROOM - jobs.len() as u32);
        if now_ns >= start_ns {
            (count, sum_ns) = (count + 1, sum_ns + (end_ns - now_ns));
        }
    }
    services(sum_ns as f64 / f64::from(count))
}

/// The same with infinitely many queues (Mitzenmacher 2001): 2.6141 at nine tenths.
fn two_choices_limit(rho: f64) -> f64 {
    (1..30).map(|place: u32| rho.powf(2f64.powi(place as i32) - 2.0)).sum()
}

/// The twenty figures.
fn checks() -> Vec<Check> {
    let seeds = SEEDS as usize;
    let runs = each(QUEUES.len() * seeds, |job| QUEUES[job / seeds].run(1 + (job % seeds) as u64));
    let mut checks = Vec::new();
    let mut check = |name: String, theory: f64, values: Vec<f64>| {
        checks.push(Check { name, theory, values });
    };
    for (queue, runs) in QUEUES.iter().zip(runs.chunks(seeds)) {
        let of = |figure: &dyn Fn(&Outcome) -> f64| runs.iter().map(figure).collect::<Vec<_>>();
        let name = queue.name();
        check(format!("{name}: response"), queue.response(), of(&mean_response));
        if queue.load == 600 && queue.servers == 1 && queue.time == DiskTime::Exponential {
            for (what, share) in [("median", 0.5), ("p99", 0.99)] {
                let theory = -(1.0f64 - share).ln() / (1.0 - queue.rho());
                let values = of(&|run| quantile(&run.response_disk_ns, share));
                check(format!("{name}: {what}"), theory, values);
            }
        }
        if queue.load == 800 {
            if queue.time == DiskTime::Exponential {
                let values = of(&|run| utilisation(run, queue.servers));
                check(format!("{name}: utilisation law"), 1.0, values);
            }
            check(format!("{name}: Little's law"), 1.0, of(&|run| queue.little(run)));
        }
    }
    let links = each(seeds, |seed| link(0.7, seed as u64));
    check("a link as M/D/1 at 70 %: response".to_owned(), md1(0.7), links);
    let chosen = each(seeds, |seed| two_choices(0.9, seed as u64));
    check("two choices at 90 %: response".to_owned(), two_choices_limit(0.9), chosen);
    checks
}

fn table(checks: &[Check]) -> String {
    let mut text = format!("{:<36} {:>9} {:>22}\n", "", "theory", "simulated");
    for check in checks {
        let (mean, half) = check.estimate();
        let verdict = if check.is_met() { "" } else { "  outside" };
        let _ = writeln!(
            text,
            "{:<36} {:>9.4} {:>10.4} ± {half:<9.4}{verdict}",
            check.name, check.theory, mean
        );
    }
    text
}

#[test]
fn queues_behave_as_theory_says() {
    assert!((two_choices_limit(0.9) - 2.6141).abs() < 5e-5);
    assert!((mmc(1, 0.6) - 2.5).abs() < 1e-12 && (mmc(4, 0.8) - 1.7455).abs() < 1e-4);
    let checks = checks();
    let table = table(&checks);
    println!("{table}");
    assert_eq!(checks.len(), 20);
    let met = checks.iter().filter(|check| check.is_met()).count();
    assert!(met >= 19, "{met} of 20 are met\n{table}");
    for check in &checks {
        let (_, half) = check.estimate();
        assert!(half < 0.04 * check.theory, "{}: too wide to show anything\n{table}", check.name);
    }
}

#[test]
fn another_queue_is_not_taken_for_the_one_at_hand() {
    let queue = queue(DiskTime::Exponential, 4, 800);
    let values = each(SEEDS as usize, |seed| mean_response(&queue.run(seed as u64)));
    let mut check = Check { name: queue.name(), theory: queue.response(), values };
    assert!(check.is_met(), "{}", table(&[check]));
    for theory in [md1(0.8), mmc(1, 0.8), mmc(3, 0.8), mmc(5, 0.8), mmc(4, 0.79), mmc(4, 0.81)] {
        check.theory = theory;
        assert!(!check.is_met(), "{}", table(&[check]));
    }
}
