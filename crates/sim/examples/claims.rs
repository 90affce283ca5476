//! What the paper claims, and what comes out here: `cargo run --release --example claims [seeds] [part...]`.
//!
//! Means over seeds with the half width of their 95 % confidence interval. Parts: disk, information, placement, own-high,
//! reservation, domain, watermarks, herding, failures, steady, and `scan`, which is run only when it is asked for: the policies of the
//! claims at rates from a half empty memory to a full one (`scan=80,120` for other rates).

use hiroma_policy::placement::{InformationKind, PlacementKind, ReservationKind, ScopeKind};
use hiroma_sim::{Config, Outcome, run};

const LOW: f64 = 20.0;
const MIDDLE: f64 = 60.0;
const HIGH: f64 = 90.0;

/// Mean and half width of the 95 % confidence interval (Student's t).
fn interval(values: &[f64]) -> (f64, f64) {
    const T: [f64; 11] = [0.0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, f64::NAN);
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, T.get(values.len() - 1).copied().unwrap_or(2.09) * (variance / n).sqrt())
}

/// Prints a line; mean responses seed by seed, ms.
fn show(label: &str, config: &Config, seeds: u64) -> Vec<f64> {
    let start = std::time::Instant::now();
    let outcomes: Vec<Outcome> =
        (1..=seeds).map(|seed| run(config, seed, &mut |_| true).unwrap_or_else(|error| panic!("{label}: {error}"))).collect();
    let column = |value: &dyn Fn(&Outcome) -> f64| interval(&outcomes.iter().map(value).collect::<Vec<_>>());
    let (response, half) = column(&|o| o.response_ns.mean().unwrap_or(0.0) / 1e6);
    let (median, _) = column(&|o| o.response_ns.quantile(500).unwrap_or(0) as f64 / 1e6);
    let (transfer, transfer_half) = column(&|o| o.transfer_ns.mean().unwrap_or(0.0) / 1e6);
    let (hops, _) = column(&|o| o.transfer_hops.mean().unwrap_or(0.0));
    let (repeated, repeated_half) = column(&|o| 100.0 * o.repeated_page_outs as f64 / o.page_outs.max(1) as f64);
    let (to_disk, _) = column(&|o| 100.0 * o.placed_disk as f64 / o.page_outs.max(1) as f64);
    let (messages, _) = column(&|o| o.messages_per_page_out().unwrap_or(0.0));
    let (link, _) = column(&|o| 100.0 * o.link_use());
    let (busy, _) = column(&|o| 100.0 * o.node_use());
    let (thread, _) = column(&|o| o.thread_ns.mean().unwrap_or(0.0) / 1e6);
    let frames = |o: &Outcome| o.nodes as f64 * f64::from(config.node.frames) * o.measured_ns as f64 / 1e3;
    let (used, _) = column(&|o| 100.0 * o.frames_used_us as f64 / frames(o));
    println!(
        "{label:<34} {:>4} | {response:8.3} +-{half:6.3} {median:7.3} | {transfer:.3} +-{transfer_half:.3} {hops:.2} | {repeated:6.2} +-{repeated_half:5.2} {to_disk:5.1} | {messages:6.1} {link:4.1} {used:5.1} {busy:5.1} {thread:6.1} | {:.1} s",
        config.load.arrivals_per_s,
        start.elapsed().as_secs_f64()
    );
    outcomes.iter().map(|o| o.response_ns.mean().unwrap_or(0.0) / 1e6).collect()
}

fn config(rate: f64, change: &dyn Fn(&mut Config)) -> Config {
    let mut config = Config::default();
    config.load.arrivals_per_s = rate;
    change(&mut config);
    config
}

type Change<'a> = &'a dyn Fn(&mut Config);

/// What the user asked for.
struct Claims {
    seeds: u64,
    parts: Vec<String>,
}

impl Claims {
    fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }

    fn sweep(&self, part: &str, rates: &[f64], changes: &[(&str, Change)]) {
        if self.wants(part) {
            println!("-- {part}");
            for &rate in rates {
                for (label, change) in changes {
                    show(label, &config(rate, change), self.seeds);
                }
            }
        }
    }

    fn information(&self) {
        self.sweep(
            "disk",
            &[LOW, MIDDLE, HIGH, 200.0],
            &[("no global placement", &|config| {
                config.policy.scope = ScopeKind::Disk;
                (config.run.warmup_ns, config.run.duration_ns) = (20_000_000_000, 5_000_000_000);
            })],
        );
        let period = |ms: u64| {
            move |config: &mut Config| {
                (config.policy.information, config.policy.period_ns) = (InformationKind::Periodic, ms * 1_000_000);
                config.run.duration_ns /= 2;
            }
        };
        let (one, four, sixteen) = (period(1), period(4), period(16));
        let on_demand = |config: &mut Config| {
            config.policy.information = InformationKind::OnDemand;
            config.run.duration_ns /= 2;
        };
        self.sweep(
            "information",
            &[LOW, MIDDLE, HIGH],
            &[
                ("on change", &|_| ()),
                ("periodic 1 ms", &one),
                ("periodic 4 ms", &four),
                ("periodic 16 ms", &sixteen),
                ("on demand", &on_demand),
            ],
        );
        if self.wants("watermarks") {
            println!("-- watermarks (memory in use: told above / told below)");
            for (above, below) in [(1000, 875), (875, 750), (875, 500), (750, 625), (625, 500), (500, 250)] {
                let marks = |config: &mut Config| {
                    config.policy.low_permille = vec![1000 - above, 0];
                    config.policy.high_permille = vec![1000 - below, 1000];
                };
                let label = format!("{:.1} % / {:.1} %", f64::from(above) / 10.0, f64::from(below) / 10.0);
                show(&label, &config(MIDDLE, &marks), self.seeds);
            }
            let free = |config: &mut Config| (config.policy.high_permille, config.policy.low_permille) = (vec![875, 1000], vec![750, 0]);
            show("read as free frames", &config(MIDDLE, &free), self.seeds);
        }
    }

    fn placement(&self) {
        self.sweep(
            "placement",
            &[LOW, MIDDLE, HIGH],
            &[
                ("random", &|_| ()),
                ("most free", &|config| config.policy.placement = PlacementKind::MostFree),
                ("nearest", &|config| config.policy.placement = PlacementKind::Nearest),
                ("weighted nearest", &|config| config.policy.placement = PlacementKind::WeightedNearest),
                ("two choices", &|config| config.policy.placement = PlacementKind::TwoChoices),
                ("round robin", &|config| config.policy.placement = PlacementKind::RoundRobin),
                ("fill in order", &|config| config.policy.placement = PlacementKind::Fill),
                ("gradient", &|config| config.policy.scope = ScopeKind::Gradient),
            ],
        );
        self.sweep(
            "own-high",
            &[130.0, 140.0, 150.0, 160.0],
            &[
                ("nearest", &|config| config.policy.placement = PlacementKind::Nearest),
                ("gradient", &|config| config.policy.scope = ScopeKind::Gradient),
            ],
        );
    }

    fn reservation_and_domain(&self) {
        let advance = |frames: u32| {
            move |config: &mut Config| {
                (config.policy.reservation, config.policy.reserve_frames) = (ReservationKind::InAdvance, frames);
            }
        };
        let (first, second, fourth) = (advance(1), advance(2), advance(4));
        self.sweep(
            "reservation",
            &[LOW, MIDDLE, HIGH],
            &[
                ("no reservation", &|_| ()),
                ("on demand", &|config| config.policy.reservation = ReservationKind::OnDemand),
                ("in advance 1", &first),
                ("in advance 2", &second),
                ("in advance 4", &fourth),
            ],
        );
        for radius in 1..=6 {
            let part = |config: &mut Config| config.policy.domain_radius = radius;
            self.sweep("domain", &[LOW, MIDDLE, HIGH], &[(&format!("domain {radius}"), &part)]);
        }
    }

    /// One line for each policy that a claim compares, at rates up to where memory is full and beyond.
    fn scan(&self) {
        let Some(asked) = self.parts.iter().find_map(|part| part.strip_prefix("scan")) else { return };
        let asked: Vec<f64> = asked.split([',', '=']).filter_map(|rate| rate.parse().ok()).collect();
        let rates = if asked.is_empty() { vec![80.0, 100.0, 110.0, 120.0, 150.0, 180.0, 220.0, 300.0] } else { asked };
        for rate in rates {
            println!("-- scan (behind a line: response less that of the first line, seed by seed)");
            let run = |label: &str, change: Change| {
                let mut config = config(rate, change);
                config.run.duration_ns /= 2;
                show(label, &config, self.seeds)
            };
            let first = run("random, cascade", &|_| ());
            let line = |label: &str, change: Change| {
                let more: Vec<f64> = run(label, change).iter().zip(&first).map(|(one, other)| one - other).collect();
                let (mean, half) = interval(&more);
                let verdict = if mean.abs() > half { "told apart" } else { "not told apart" };
                println!("    {mean:+.3} +- {half:.3} ms: {verdict}");
            };
            line("most free", &|config| config.policy.placement = PlacementKind::MostFree);
            line("nearest", &|config| config.policy.placement = PlacementKind::Nearest);
            line("gradient", &|config| config.policy.scope = ScopeKind::Gradient);
            line("reserved on demand", &|config| config.policy.reservation = ReservationKind::OnDemand);
            line("reserved in advance 1", &|config| config.policy.reservation = ReservationKind::InAdvance);
            for radius in [2, 3, 5] {
                line(&format!("domain {radius}"), &|config| config.policy.domain_radius = radius);
            }
        }
    }

    /// Whether the default policy keeps up with a rate: the same response however long the run.
    fn steady(&self) {
        for seconds in [1, 2, 4] {
            let label = format!("random, cascade, {seconds} s");
            self.sweep(
                "steady",
                &[60.0, 75.0, 90.0, 120.0, 150.0],
                &[(&label, &|config| config.run.duration_ns = seconds * 1_000_000_000)],
            );
        }
    }

    fn beyond_the_paper(&self) {
        if self.wants("herding") {
            println!("-- herding (periodic information of a growing age)");
            for ms in [1, 4, 16, 64, 128] {
                for placement in [PlacementKind::MostFree, PlacementKind::TwoChoices, PlacementKind::Random] {
                    let aged = |config: &mut Config| {
                        (config.policy.information, config.policy.period_ns) = (InformationKind::Periodic, ms * 1_000_000);
                        config.policy.placement = placement;
                    };
                    show(&format!("{placement:?}, {ms} ms"), &config(80.0, &aged), self.seeds);
                }
            }
        }
        if self.wants("failures") {
            println!("-- failures (one node every 100 ms, back after 500 ms)");
            for placement in [PlacementKind::Random, PlacementKind::Nearest, PlacementKind::MostFree, PlacementKind::Fill] {
                for gap_ns in [0, 100_000_000] {
                    let failing = |config: &mut Config| (config.policy.placement, config.failures.mean_between_ns) = (placement, gap_ns);
                    let label = format!("{placement:?}, {}", if gap_ns == 0 { "none fail" } else { "failing" });
                    show(&label, &config(MIDDLE, &failing), self.seeds);
                }
            }
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seeds: u64 = arguments.next().map_or(10, |text| text.parse().expect("the first argument is a number of seeds"));
    let claims = Claims { seeds, parts: arguments.collect() };
    println!(
        "{:<34} {:>4} | response ms, median        | transfer ms, hops  | repeated %, disk %    | msgs link% frames% busy% thread ms",
        "", "rate"
    );
    claims.information();
    claims.placement();
    claims.reservation_and_domain();
    claims.beyond_the_paper();
    claims.scan();
    claims.steady();
}
