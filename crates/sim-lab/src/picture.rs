//! A run as plots: over time, by node, and where the time of its threads goes.

use hiroma_report::{Axis, Kind, Plot, Point, Section, Series, Table, figures as digits};
use hiroma_sim::{Config, NodeLoad, Observed, Outcome, Sample};

/// Samples that a run is to take for its plots.
pub const SAMPLES: u32 = 200;
/// Points of a plot by node, at most.
const NODES_SHOWN: usize = 256;

/// The section about one run, with seed `seed`, of a configuration that took samples.
pub fn section(config: &Config, outcome: &Outcome) -> Option<Section> {
    let observed = outcome.observed.as_deref().filter(|one| one.samples.len() > 1)?;
    let (plot, table) = where_time_goes(config, outcome);
    let mut plots = over_time(config, observed);
    plots.extend(by_node(config, observed));
    plots.extend(plot);
    let warmup_ms = config.run.warmup_ns as f64 / 1e6;
    Some(Section {
        title: format!("The run with seed {}", outcome.seed),
        text: vec![
            format!(
                "Over time: {} samples; measuring begins after {} ms. Levels are those at the moment of a sample, rates and \
                 responses those since the sample before.",
                observed.samples.len(),
                digits(warmup_ms)
            ),
            format!(
                "By node: means of {} samples after the warm-up, nodes in descending order for each line.",
                observed.load_samples
            ),
        ],
        tables: table.into_iter().collect(),
        plots,
    })
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A panel over simulated time.
fn panel(title: &str, y: Axis, series: Vec<Series>) -> Plot {
    let x = Axis::linear("simulated time", "ms");
    Plot { title: title.to_owned(), kind: Kind::Panel, x, y, series }
}

fn over_time(config: &Config, observed: &Observed) -> Vec<Plot> {
    let samples = &observed.samples;
    let level = |name: &str, value: &dyn Fn(&Sample) -> f64| {
        let points = samples.iter().map(|sample| Point::at(ms(sample.now_ns), value(sample)));
        Series::new(name, points.collect())
    };
    let between = |name: &str, value: &dyn Fn(&Sample, &Sample) -> Option<f64>| {
        let pairs = samples.windows(2).filter(|pair| pair[0].measured);
        let points = pairs
            .filter_map(|pair| Some(Point::at(ms(pair[1].now_ns), value(&pair[0], &pair[1])?)));
        Series::new(name, points.collect())
    };
    let rate = |count: fn(&Sample) -> u64| {
        move |before: &Sample, after: &Sample| {
            let span_ms = ms(after.now_ns - before.now_ns);
            Some((count(after) - count(before)) as f64 / span_ms)
        }
    };
    let frames: f64 = config.frames_by_node().into_iter().map(f64::from).sum();
    vec![
        panel(
            "Threads",
            Axis::linear("threads", ""),
            vec![
                level("all", &|sample| sample.threads as f64),
                level("waiting", &|sample| sample.waiting as f64),
            ],
        ),
        panel(
            "Frames in use",
            Axis::linear("of all frames", "%"),
            vec![level("", &|sample| sample.frames_used as f64 / frames * 100.0)],
        ),
        panel(
            "Mean response",
            Axis::linear("response", "ms"),
            vec![between("", &|before, after| {
                let faults = after.faults - before.faults;
                (faults > 0).then(|| ms(after.response_ns - before.response_ns) / faults as f64)
            })],
        ),
        panel(
            "Page-outs",
            Axis::linear("pages", "per ms"),
            vec![
                between("begun", &rate(|sample| sample.page_outs)),
                between("to nodes", &rate(|sample| sample.placed_remote)),
                between("to disk", &rate(|sample| sample.placed_disk)),
            ],
        ),
    ]
}

fn by_node(config: &Config, observed: &Observed) -> Vec<Plot> {
    let samples = observed.load_samples as f64;
    if samples == 0.0 {
        return Vec::new();
    }
    let frames = config.frames_by_node();
    let ranked = |name: &str, value: &dyn Fn(&NodeLoad, f64) -> f64| {
        let nodes = observed.loads.iter().zip(&frames);
        let mut values: Vec<f64> =
            nodes.map(|(load, &frames)| value(load, f64::from(frames))).collect();
        values.sort_by(|one, other| other.total_cmp(one));
        let step = values.len().div_ceil(NODES_SHOWN);
        let last = values.len() - 1;
        let places = (0..values.len()).filter(|place| place % step == 0 || *place == last);
        Series::new(
            name,
            places.map(|place| Point::at(place as f64 + 1.0, values[place])).collect(),
        )
    };
    let plot = |title: &str, y: Axis, series: Vec<Series>| Plot {
        title: title.to_owned(),
        kind: Kind::Panel,
        x: Axis::linear("node, in order of the value", ""),
        y,
        series,
    };
    let percent = |sum: u64, of: f64| sum as f64 / samples / of * 100.0;
    vec![
        plot(
            "Memory by node",
            Axis::linear("of its frames", "%"),
            vec![
                ranked("in use", &|load, frames| percent(load.frames_used, frames)),
                ranked("guests", &|load, frames| percent(load.guests, frames)),
            ],
        ),
        plot(
            "Time by node",
            Axis::linear("of the time", "%"),
            vec![
                ranked("has a thread", &|load, _| percent(load.busy, 1.0)),
                ranked("it waits", &|load, _| percent(load.waiting, 1.0)),
            ],
        ),
    ]
}

/// Shares of the time that all threads together were on nodes.
fn where_time_goes(config: &Config, outcome: &Outcome) -> (Option<Plot>, Option<Table>) {
    // A recorded client has no thread whose time could be divided.
    let total = outcome.node_busy_ns;
    if total == 0 || config.load.trace.is_some() {
        return (None, None);
    }
    let (remote, disk, tier) =
        (outcome.transfer_ns.sum, outcome.disk_fetch_ns.sum, outcome.tier_fetch_ns);
    let responses = outcome.response_remote_ns.sum()
        + outcome.response_disk_ns.sum()
        + outcome.response_tier_ns;
    let before = responses.saturating_sub(remote + disk + tier);
    let rest = total.saturating_sub(outcome.compute_ns + responses);
    let mut parts = vec![
        ("computes", outcome.compute_ns),
        ("page from a node", remote),
        ("page from disk", disk),
        ("attached memory", tier),
        ("frame, before these", before),
        // A frame for a page that is touched for the first time, a page that returns before it has
        // left, and what has no answer yet.
        ("first touch, still waiting", rest),
    ];
    parts.retain(|&(name, _)| name != "attached memory" || outcome.tier_stores > 0);
    let share = |part: u64| part as f64 / total as f64 * 100.0;
    let points =
        parts.iter().enumerate().map(|(place, (_, part))| Point::at(place as f64, share(*part)));
    let plot = Plot {
        title: "Where the time of threads goes".to_owned(),
        kind: Kind::Bars,
        x: Axis::names("what a thread does, or waits for", parts.iter().map(|(name, _)| *name)),
        y: Axis::linear("of the time of all threads", "%"),
        series: vec![Series::new("share", points.collect())],
    };
    let mut table = Table::new("Where the time of threads goes")
        .text("what")
        .number("share", "%")
        .number("time", "s");
    for (name, part) in parts {
        table.row([name.to_owned(), digits(share(part)), digits(part as f64 / 1e9)]);
    }
    (Some(plot), Some(table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::cluster_of;
    use crate::settings::Settings;

    const SMALL: &str = "nodes = 16\ndisk.count = 2\npolicy.domain_radius = 2\n\
        load.arrivals_per_s = 60\nrun.warmup_ns = \"20ms\"\nrun.duration_ns = \"100ms\"\n";

    fn run(samples: u32) -> (Config, Outcome) {
        run_with(samples, "")
    }

    fn run_with(samples: u32, more: &str) -> (Config, Outcome) {
        let text = format!("{SMALL}{more}");
        let mut config = cluster_of(Settings::parse("c.toml", &text).unwrap()).unwrap();
        config.run.samples = samples;
        let outcome = hiroma_sim::run(&config, 1, &mut |_| true).unwrap();
        (config, outcome)
    }

    #[test]
    fn samples_change_nothing_and_agree_with_the_outcome() {
        let (_, plain) = run(0);
        let (config, mut outcome) = run(SAMPLES);
        let observed = outcome.observed.take().unwrap();
        assert_eq!(outcome, plain);
        assert!((190..=200).contains(&observed.samples.len()), "{}", observed.samples.len());
        let last = observed.samples.last().unwrap();
        assert!(last.page_outs <= outcome.page_outs && last.page_outs * 10 > outcome.page_outs * 9);
        // The means of the samples are close to the exact integrals over time.
        let measured = observed.load_samples as f64;
        let busy: u64 = observed.loads.iter().map(|load| load.busy).sum();
        assert!((busy as f64 / measured / 16.0 - outcome.node_use()).abs() < 0.02);
        let used: u64 = observed.loads.iter().map(|load| load.frames_used).sum();
        let exact = outcome.frames_used_us as f64 * 1e3 / outcome.measured_ns as f64;
        assert!((used as f64 / measured / exact - 1.0).abs() < 0.05, "{used} {exact}");
        assert!(
            observed
                .loads
                .iter()
                .all(|load| { load.waiting <= load.busy && load.guests <= load.frames_used })
        );
        assert!(section(&config, &outcome).is_none(), "there is nothing to draw");
    }

    #[test]
    fn a_run_with_faults_is_drawn_too() {
        let more = "policy.confirm = true\nfaults.loss = 0.05\n";
        let (_, plain) = run_with(0, more);
        let (config, outcome) = run_with(SAMPLES, more);
        let drawn = section(&config, &outcome).unwrap();
        assert_eq!(drawn.plots.len(), 7);
        let observed = outcome.observed.as_deref().unwrap();
        let measured = observed.load_samples as f64;
        let busy: u64 = observed.loads.iter().map(|load| load.busy).sum();
        assert!((busy as f64 / measured / 16.0 - outcome.node_use()).abs() < 0.02);
        assert!(observed.loads.iter().any(|load| load.guests > 0));
        assert_eq!(Outcome { observed: None, ..outcome }, plain);
    }

    #[test]
    fn shares_of_time_add_up() {
        let (config, outcome) = run(50);
        let section = section(&config, &outcome).unwrap();
        assert_eq!(section.plots.len(), 7);
        let bars = &section.plots[6].series[0].points;
        let sum: f64 = bars.iter().map(|point| point.y).sum();
        assert!((sum - 100.0).abs() < 1.0 && bars.iter().all(|point| point.y >= 0.0), "{bars:?}");
        assert!(section.plots.iter().all(|plot| !plot.to_svg().contains("NaN")));
        // An access takes 1 us; what waits at the end does not compute.
        let computes = outcome.accesses as f64 * 1e3 / outcome.node_busy_ns as f64 * 100.0;
        assert!((bars[0].y - computes).abs() < 0.01, "{computes} % {bars:?}");
    }

    #[test]
    fn attached_memory_has_a_share_of_the_time() {
        let tiers = "node.tier_frames = 64\nnode.tier_access_ns = \"20us\"\n";
        let (config, outcome) = run_with(50, tiers);
        let section = section(&config, &outcome).unwrap();
        let text = section.tables[0].to_text();
        let line = text.lines().find(|line| line.starts_with("attached memory")).unwrap();
        let share: f64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
        let least = outcome.tier_fetches as f64 * 20e3 / outcome.node_busy_ns as f64 * 100.0;
        assert!(outcome.tier_fetches > 100 && share >= least * 0.99, "{least} % {text}");
    }

    #[test]
    fn frames_in_use_are_those_of_each_class_of_nodes() {
        let classes = "node.class = [{ nodes = \"0-7\", frames = 512 }]\n";
        let (config, outcome) = run_with(50, classes);
        let section = section(&config, &outcome).unwrap();
        let most = |plot: usize, series: usize| {
            let points = &section.plots[plot].series[series].points;
            points.iter().map(|point| point.y).fold(0.0, f64::max)
        };
        assert_eq!(
            (&*section.plots[1].title, &*section.plots[4].title),
            ("Frames in use", "Memory by node")
        );
        let levels = [most(1, 0), most(4, 0)];
        assert!(levels.iter().all(|most| (1.0..=100.0).contains(most)), "{levels:?}");
    }
}
