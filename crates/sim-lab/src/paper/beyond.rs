//! Beyond the paper: herding on stale information, present-day clusters, nodes that fail.

use hiroma_policy::placement::{
    InformationKind, PlacementConfig, PlacementKind, ReservationKind, ScopeKind,
};
use hiroma_report::{Axis, Better, Measure, Report, Section, Spread, Table, figures as digits};
use hiroma_sim::Config;

use super::book::{Book, Curve, Id};
use super::{Params, RATES};
use crate::figures::RESPONSE;
use crate::presets::PRESETS;
use crate::single::{estimate_text, name_of};
use hiroma_report::{Estimate, Verdict, compare_paired};

/// Time between two messages of periodic information, ms: its maximum age. Below 1 ms, nodes spend
/// most of their time receiving it.
const AGES_MS: [f64; 7] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
/// The same where information is free, so that it can be arbitrarily recent; 0: every node knows
/// every change immediately.
const AGES_FREE_MS: [f64; 5] = [0.0, 0.1, 0.2, 0.5, 1.0];
/// Work of a page at each link, ns, where its receiver has none: 0.82 ms over three hops, as in the
/// paper.
const LINK_OVERHEAD_NS: u64 = 110_000;
/// Time between failures of nodes in the whole machine, ms.
const BETWEEN_MS: [f64; 3] = [400.0, 100.0, 25.0];

/// The rate of these experiments, processes/s.
const MIDDLE: f64 = RATES.middle;

/// Policies on present-day clusters in a quick run.
const QUICK: [&str; 4] = ["nearest", "two choices", "random", "disk only"];

/// A policy, and its runs by the time between failures, ms; none for no failures.
type Failing = (String, Vec<(Option<f64>, Id)>);

/// The requested configurations.
pub struct Beyond {
    /// Most free, two choices, random.
    herding: Vec<Curve>,
    /// Most free and two choices, with the work for a page at the links instead of at its receiver.
    herding_links: Vec<Curve>,
    /// Most free and two choices with free information: as configured, with the work at the links,
    /// and with pages that take no time.
    herding_free: [Vec<Curve>; 3],
    /// Preset and policies on it.
    presets: Vec<(&'static str, Vec<(String, Id)>)>,
    failing: Vec<Failing>,
}

impl Beyond {
    /// Requests the configurations.
    pub fn plan(params: &Params, book: &mut Book) -> Beyond {
        // Not the paper's results: the cluster as everybody gets it, which is also quicker to run.
        let params = &Params { base: Config::default(), ..params.clone() };
        let ages: Vec<f64> = if params.quick { vec![1.0, 10.0, 100.0] } else { AGES_MS.to_vec() };
        let ages_free = &AGES_FREE_MS[..if params.quick { 1 } else { AGES_FREE_MS.len() }];
        let mut curve = |placement: PlacementKind, work: Work, free: bool| {
            let config = |age_ms: f64| aged(params, &placement, work, age_ms, free);
            let name = format!("{}{}", name_of(&placement).replace('_', " "), work.text());
            book.curve(&name, if free { ages_free } else { &ages }, &params.seeds, config)
        };
        let two = [PlacementKind::MostFree, PlacementKind::TwoChoices];
        let three = [PlacementKind::MostFree, PlacementKind::TwoChoices, PlacementKind::Random];
        let herding = three.map(|kind| curve(kind, Work::Receiver, false)).to_vec();
        let herding_links = two.clone().map(|kind| curve(kind, Work::Links, false)).to_vec();
        let herding_free = [Work::Receiver, Work::Links, Work::None]
            .map(|work| two.clone().map(|kind| curve(kind, work, true)).to_vec());
        let modern = PRESETS.iter().filter(|preset| !preset.name.starts_with("paper"));
        let chosen = modern.filter(|preset| !params.quick || preset.name == "ethernet-25g");
        let presets = chosen.map(|preset| {
            let base = preset.config();
            let ask = |(name, change): (String, Change)| {
                let mut config = base.clone();
                change(&mut config.policy);
                (name, book.ask(preset.name, config, &params.seeds_modern))
            };
            let policies = policies()
                .into_iter()
                .filter(|(name, _)| !params.quick || QUICK.contains(&name.as_str()));
            (preset.name, policies.map(ask).collect())
        });
        let presets = presets.collect();
        Beyond {
            herding,
            herding_links,
            herding_free,
            presets,
            failing: plan_failing(params, book),
        }
    }

    /// Adds its sections to the report.
    pub fn report(&self, book: &Book, report: &mut Report) {
        let curves = [&self.herding[..], &self.herding_links[..]].concat();
        report.sections.push(Section {
            title: "Herding: old information".to_owned(),
            text: vec![
                format!("Periodic information, {MIDDLE} processes/s: the longer the period, the older what a node knows. Everybody who believes the same sends to the same node."),
                format!("As configured: {}", crossover_text(book, &self.herding)),
                format!(
                    "With {} us of work at each link and none at the receiver of a page, so that many pages at one node do not wait for each other: {}",
                    digits(LINK_OVERHEAD_NS as f64 / 1e3),
                    crossover_text(book, &self.herding_links)
                ),
            ],
            tables: vec![book.table("Mean response by age of information", "period, ms", &curves)],
            plots: book.plots("Herding", Axis::log("time between messages", "ms"), &curves),
        });
        report.sections.push(self.young_section(book));
        report.sections.push(self.preset_section(book));
        report.sections.push(self.failing_section(book));
    }

    fn young_section(&self, book: &Book) -> Section {
        let curves = self.herding_free.concat();
        let mut ratios =
            Table::new("Two choices against most free: ratio of the responses, 95 % interval")
                .number("period, ms", "");
        for work in [Work::Receiver, Work::Links, Work::None] {
            ratios = ratios.text(format!("work{}", work.where_text()));
        }
        for (index, (age, _)) in self.herding_free[0][0].points.iter().enumerate() {
            let mut row = vec![digits(*age)];
            row.extend(self.herding_free.iter().map(|pair| ratio_text(book, pair, index)));
            ratios.row(row);
        }
        // A logarithmic axis cannot show 0.
        let mut plotted = curves.clone();
        plotted.iter_mut().for_each(|curve| curve.points.retain(|(age, _)| *age > 0.0));
        Section {
            title: "Herding: information that costs nothing".to_owned(),
            text: vec![
                format!(
                    "What a node tells is known in its domain at once and costs nobody anything, so that it can be told more often than once a millisecond; period 0: at every change. {MIDDLE} processes/s."
                ),
                format!("As configured: {}", crossover_text(book, &self.herding_free[0])),
                format!(
                    "With the work of a page at the links: {}",
                    crossover_text(book, &self.herding_free[1])
                ),
                format!(
                    "Where a page takes next to no time either: {}",
                    crossover_text(book, &self.herding_free[2])
                ),
            ],
            tables: vec![
                book.table("Mean response by age of information", "period, ms", &curves),
                ratios,
            ],
            plots: book.plots(
                "Herding below a millisecond",
                Axis::log("time between messages", "ms"),
                &plotted,
            ),
        }
    }

    fn preset_section(&self, book: &Book) -> Section {
        let mut best = Table::new("Best policy of each cluster")
            .text("cluster")
            .text("best")
            .number("response", "ms")
            .text("not told apart from it");
        let mut tables = Vec::new();
        for (name, rows) in &self.presets {
            let mut rows = rows.clone();
            rows.sort_by(|(_, one), (_, other)| {
                book.response(*one).total_cmp(&book.response(*other))
            });
            let (first, id) = rows[0].clone();
            let close = rows[1..].iter().filter(|(_, other)| {
                compare_paired(&book.responses(id), &book.responses(*other)) != Verdict::Smaller
            });
            let close: Vec<&str> = close.map(|(name, _)| name.as_str()).collect();
            best.row([
                (*name).to_owned(),
                first,
                estimate_text(book.estimate(id, RESPONSE)),
                close.join("; "),
            ]);
            tables.push(book.details(name, &rows));
        }
        tables.insert(0, best);
        Section {
            title: "Today's clusters: the best policy of each".to_owned(),
            text: vec![
                "1,024 nodes, blocks of 2 MiB; `hiroma sim presets NAME` shows all settings, `hiroma sim compare NAME` runs all policies."
                    .to_owned(),
            ],
            tables,
            plots: Vec::new(),
        }
    }

    fn failing_section(&self, book: &Book) -> Section {
        let mut table =
            Table::new(format!("{MIDDLE} processes/s; a node is back after 500 ms, empty"))
                .text("policy")
                .number("between failures", "ms")
                .number("response", "ms")
                .number("failures", "")
                .number("pages lost", "")
                .number("work lost", "ms");
        for (name, ids) in &self.failing {
            for (between_ms, id) in ids {
                let between = between_ms.map_or("none".to_owned(), digits);
                let mut row =
                    vec![name.clone(), between, estimate_text(book.estimate(*id, RESPONSE))];
                row.extend(
                    ["node_failures", "pages_lost", "work_lost_ms"]
                        .map(|figure| estimate_text(book.estimate(*id, figure))),
                );
                table.row(row);
            }
        }
        Section {
            title: "What failures of nodes cost".to_owned(),
            text: Vec::new(),
            tables: vec![table],
            plots: Vec::new(),
        }
    }

    /// Adds its measures.
    pub fn measures(&self, book: &Book, measures: &mut Vec<Measure>) {
        for (name, title, curves) in [
            (
                "herding_crossover_ms",
                "two choices beat most free from this period on",
                &self.herding,
            ),
            (
                "herding_crossover_links_ms",
                "the same without work at the receivers of pages",
                &self.herding_links,
            ),
            (
                "herding_crossover_free_ms",
                "the same with information that costs nothing",
                &self.herding_free[0],
            ),
            ("herding_crossover_free_links_ms", "the same with both", &self.herding_free[1]),
            (
                "herding_crossover_free_pages_ms",
                "the same where information and pages cost nothing",
                &self.herding_free[2],
            ),
        ] {
            measures.push(
                Measure::new(name, title, "ms", Better::Lower)
                    .spread(crossover_ms(book, curves).and_then(|age| Spread::of(&[age])))
                    .note(crossover_text(book, curves)),
            );
        }
        for (name, rows) in &self.presets {
            let best = rows.iter().min_by(|(_, one), (_, other)| {
                book.response(*one).total_cmp(&book.response(*other))
            });
            let disk = rows.iter().find(|(name, _)| name == "disk only");
            if let (Some((best, id)), Some((_, disk))) = (best, disk) {
                let gain = book.response(*disk) / book.response(*id);
                measures.push(
                    Measure::new(
                        format!("gain_{}", name.replace('-', "_")),
                        format!("{name}: disk only against the best policy"),
                        "",
                        Better::Higher,
                    )
                    .spread(if gain.is_finite() { Spread::of(&[gain]) } else { None })
                    .note(format!("best: {best}")),
                );
            }
        }
    }
}

/// What costs a page has, and where.
#[derive(Clone, Copy)]
enum Work {
    /// Its receiver, as configured.
    Receiver,
    /// Every link.
    Links,
    /// None: links are also a thousand times as fast.
    None,
}

impl Work {
    fn text(self) -> &'static str {
        match self {
            Work::Receiver => "",
            Work::Links => ", no work at receivers",
            Work::None => ", pages that take no time",
        }
    }

    fn where_text(self) -> &'static str {
        match self {
            Work::Receiver => " at receivers",
            Work::Links => " at links",
            Work::None => " nowhere",
        }
    }
}

/// The paper's cluster with information of a given age.
fn aged(params: &Params, placement: &PlacementKind, work: Work, age_ms: f64, free: bool) -> Config {
    let mut config = params.paper(MIDDLE, |policy| {
        policy.placement = placement.clone();
        if age_ms > 0.0 {
            (policy.information, policy.period_ns) =
                (InformationKind::Periodic, (age_ms * 1e6) as u64);
        }
    });
    if age_ms == 0.0 {
        // A watermark at every frame: every change is reported.
        let marks: Vec<u32> = (0..=config.node.frames)
            .map(|frame| (frame * 1000).div_ceil(config.node.frames))
            .collect();
        (config.policy.high_permille, config.policy.low_permille) = (marks.clone(), marks);
    }
    let network = &mut config.network;
    network.free_information = free;
    match work {
        Work::Receiver => {}
        Work::Links => (network.page_handler_ns, network.page_overhead_ns) = (0, LINK_OVERHEAD_NS),
        Work::None => {
            (network.page_handler_ns, network.handler_ns, network.hop_overhead_ns) = (0, 0, 0);
            network.bytes_per_s *= 1000;
        }
    }
    config
}

/// Ratio of two choices' response (second curve) to most free's (first) at one age.
fn ratio_text(book: &Book, curves: &[Curve], index: usize) -> String {
    let [most_free, two] = [0, 1].map(|line: usize| book.responses(curves[line].points[index].1));
    let text = |ratio: Estimate| {
        let [mean, low, high] = [ratio.mean, ratio.low(), ratio.high()].map(f64::exp);
        format!("{mean:.3} ({low:.3}–{high:.3})")
    };
    Estimate::of_log_ratios(&two, &most_free).map_or("–".to_owned(), text)
}

/// The age from which two choices (second curve) are better than most free (first), and the seeds
/// distinguish the two.
fn crossover_ms(book: &Book, curves: &[Curve]) -> Option<f64> {
    let pairs = curves[0].points.iter().zip(&curves[1].points);
    let wins: Vec<(f64, bool)> = pairs
        .map(|((age, most_free), (_, two))| {
            let ratio = Estimate::of_log_ratios(&book.responses(*two), &book.responses(*most_free));
            (*age, ratio.is_some_and(|ratio| ratio.verdict() == Verdict::Smaller))
        })
        .collect();
    let first = wins.iter().rposition(|(_, wins)| !wins).map_or(0, |last_loss| last_loss + 1);
    wins.get(first).map(|(age, _)| *age)
}

fn crossover_text(book: &Book, curves: &[Curve]) -> String {
    let shortest = curves[0].points.first().map_or(0.0, |(age, _)| *age);
    match crossover_ms(book, curves) {
        Some(age) if age <= shortest => format!("two random choices beat most free at every period, from {} ms on.", digits(age)),
        Some(age) => format!("two random choices beat most free from a period of {} ms on.", digits(age)),
        None => "two random choices do not beat most free at the longest period, as far as the seeds tell.".to_owned(),
    }
}

type Change = Box<dyn Fn(&mut PlacementConfig)>;

/// Policies that are tried on every preset.
fn policies() -> Vec<(String, Change)> {
    let mut policies: Vec<(String, Change)> = Vec::new();
    // Filling one node after the other is meant for servers, not for peers.
    for placement in
        PlacementKind::ALL.into_iter().filter(|placement| *placement != PlacementKind::Fill)
    {
        let name = name_of(&placement).replace('_', " ");
        policies.push((
            name,
            Box::new(move |policy: &mut PlacementConfig| policy.placement = placement.clone()),
        ));
    }
    policies.push((
        "two choices, on demand".to_owned(),
        Box::new(|policy| {
            (policy.placement, policy.information) =
                (PlacementKind::TwoChoices, InformationKind::OnDemand)
        }),
    ));
    policies.push((
        "nearest, reserve in advance".to_owned(),
        Box::new(|policy| {
            (policy.placement, policy.reservation) =
                (PlacementKind::Nearest, ReservationKind::InAdvance)
        }),
    ));
    policies.push(("disk only".to_owned(), Box::new(|policy| policy.scope = ScopeKind::Disk)));
    policies
}

fn plan_failing(params: &Params, book: &mut Book) -> Vec<Failing> {
    let between: &[f64] = if params.quick { &BETWEEN_MS[1..2] } else { &BETWEEN_MS };
    let mut rows: Vec<(String, Config)> = Vec::new();
    for placement in [
        PlacementKind::MostFree,
        PlacementKind::Nearest,
        PlacementKind::Random,
        PlacementKind::TwoChoices,
    ] {
        rows.push((
            name_of(&placement).replace('_', " "),
            params.paper(MIDDLE, |policy| policy.placement = placement.clone()),
        ));
    }
    rows.push((
        "disk only".to_owned(),
        params.paper(MIDDLE, |policy| policy.scope = ScopeKind::Disk),
    ));
    let ask = |(name, config): (String, Config)| {
        let mut ids = vec![(None, book.ask(&name, config.clone(), &params.seeds))];
        for &between_ms in between {
            let mut failing = config.clone();
            failing.failures.mean_between_ns = (between_ms * 1e6) as u64;
            ids.push((Some(between_ms), book.ask(&name, failing, &params.seeds)));
        }
        (name, ids)
    };
    rows.into_iter().map(ask).collect()
}
