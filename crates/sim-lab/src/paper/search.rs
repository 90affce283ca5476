//! The search for the reading of the paper under which most of it comes out.
//!
//! It starts twice: from the first answers, and from the best reading that is known. All readings
//! that differ in one answer are tried, and the search goes on from the best as long as it is better. Under each reading the same three figures are fitted
//! by the same rule; everything else is predicted.

use std::sync::Arc;

use hiroma_policy::placement::{PlacementKind, ScopeKind};
use hiroma_report::{Machine, Measure, Report, Section, Table, figures as digits};
use hiroma_sim::Config;

use super::book::Book;
use super::claims;
use super::experiments::Experiments;
use super::readings::reading::{QUESTIONS, Reading};
use super::score::{CLAIMS, FIGURES, Score};
use super::{Params, RATES, Rates};
use crate::lab::{Lab, LabError};
use crate::single::{seeds_from, seeds_text};

/// Response without global placement, ms.
const DISK_MS: f64 = 33.0;
/// Transfer with most free at the high rate, ms.
const TRANSFER_MS: f64 = 0.82;
/// Hops with nearest at the high rate, less a tenth.
const HOPS_LEAST: f64 = 1.9 * 0.9;
/// Rates tried for the high one.
const RATE_STEP: f64 = 10.0;
const RATE_MAX: f64 = 400.0;
/// Turns in which the three are fitted one after the other.
const TURNS: usize = 3;
/// Simulated time of a run that fits the transfer or the rate, as a share of the usual.
const SHORTER: u64 = 2;

/// Configurations that fitting the high rate, and the transfer, needs, about: in two of the turns,
/// and the rate once more.
const RATE_RUNS_ABOUT: f64 = 3.0 * 5.5;
const TRANSFER_RUNS_ABOUT: f64 = 2.0 * 6.0;
/// Turns in which the disk is fitted, with one seed.
const DISK_TURNS: usize = 3;

/// The extent of the search.
#[derive(Clone, Debug)]
pub struct SearchParams {
    /// Seeds of every configuration.
    pub seeds: Vec<u64>,
    /// Most steps from reading to better reading, from either start.
    pub steps: usize,
}

impl SearchParams {
    /// `seeds` seeds and at most `steps` steps.
    pub fn new(seeds: usize, steps: usize) -> SearchParams {
        SearchParams { seeds: seeds_from(1, seeds), steps }
    }
}

/// What is fitted to figures of the paper.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fitted {
    /// Time of a disk for a page, ns: 33 ms.
    pub disk_ns: u64,
    /// Work for a page at its receiver, ns: 0.82 ms.
    pub page_handler_ns: u64,
    /// The rate called high, processes/s: 1.9 hops.
    pub high: f64,
}

impl Fitted {
    fn start(config: &Config) -> Fitted {
        Fitted {
            disk_ns: config.node.page_bytes * 1_000_000_000 / config.disk.bytes_per_s,
            page_handler_ns: config.network.page_handler_ns,
            high: RATES.high,
        }
    }

    /// Under [`Reading::BEST`].
    pub const BEST: Fitted = Fitted { disk_ns: 1_388_475, page_handler_ns: 240_000, high: 200.0 };

    /// The paper's cluster.
    pub fn config(&self, reading: Reading) -> Config {
        let mut config = Config::default();
        config.network.page_handler_ns = self.page_handler_ns;
        reading.apply(&mut config);
        config.disk.bytes_per_s = (config.node.page_bytes * 1_000_000_000 / self.disk_ns).max(1000);
        config
    }
}

/// One reading, and what came out.
#[derive(Clone, Debug)]
pub struct Tried {
    pub reading: Reading,
    pub fitted: Fitted,
    pub measures: Vec<Measure>,
    pub score: Score,
}

impl Tried {
    /// In one line.
    pub fn line(&self) -> String {
        let Score { claims, predicted, parts } = self.score;
        let met = CLAIMS.iter().map(|claim| match claim.text(&self.measures).as_str() {
            "yes" => '+',
            "no" => '-',
            _ => '.',
        });
        format!(
            "{claims:2} claims, {predicted} figures ({}, parts {parts:.2}), high {}, page {} us: {}",
            met.collect::<String>(),
            digits(self.fitted.high),
            digits(self.fitted.page_handler_ns as f64 / 1e3),
            self.reading.describe()
        )
    }
}

/// The search and its results.
#[derive(Debug)]
pub struct Search {
    params: SearchParams,
    tried: Vec<Tried>,
    /// The reading after each step.
    path: Vec<Reading>,
}

impl Search {
    /// A search that has not begun.
    pub fn new(params: SearchParams) -> Search {
        Search { params, tried: Vec::new(), path: Vec::new() }
    }

    /// Configurations of the first step from either start, with the number of runs of each, about:
    /// how many steps there will be is not known.
    pub fn configs(&self) -> Vec<(Arc<Config>, f64)> {
        let seeds = self.params.seeds.len() as f64;
        let of_reading = |reading: Reading| {
            let fitted = Fitted::BEST;
            let mut book = Book::default();
            let named = Rates { high: fitted.high, ..RATES };
            let base = fitted.config(reading);
            let params = Params::of_claims(base.clone(), named, self.params.seeds.clone());
            Experiments::plan(&params, &mut book);
            let claims = book.configs().map(|(_, config, runs)| (config.clone(), runs as f64));
            let at_rate = |placement| {
                let mut config = at_rate(reading, &fitted, fitted.high);
                config.policy.placement = placement;
                Arc::new(config)
            };
            let fits = [
                (Arc::new(without_lenders(base)), DISK_TURNS as f64),
                (at_rate(PlacementKind::Nearest), seeds * RATE_RUNS_ABOUT),
                (at_rate(PlacementKind::MostFree), seeds * TRANSFER_RUNS_ABOUT),
            ];
            claims.chain(fits).collect::<Vec<_>>()
        };
        let starts = [Reading::FIRST, Reading::BEST];
        let each = starts.into_iter().flat_map(|start| {
            let step = if self.params.steps > 0 { start.neighbours().len() } else { 0 };
            let readings = 1.0 + step as f64;
            of_reading(start).into_iter().map(move |(config, times)| (config, times * readings))
        });
        each.collect()
    }

    /// All readings that were tried, best first.
    pub fn tried(&self) -> Vec<&Tried> {
        let mut tried: Vec<&Tried> = self.tried.iter().collect();
        tried.sort_by(|one, other| {
            other.score.partial_cmp(&one.score).unwrap_or(std::cmp::Ordering::Equal)
        });
        tried
    }

    /// Searches. `told` is called after each reading.
    pub fn run(&mut self, lab: &Lab<'_>, mut told: impl FnMut(&Tried)) -> Result<(), LabError> {
        for start in [Reading::FIRST, Reading::BEST] {
            self.ascend(lab, start, &mut told)?;
        }
        Ok(())
    }

    fn ascend(
        &mut self,
        lab: &Lab<'_>,
        start: Reading,
        told: &mut impl FnMut(&Tried),
    ) -> Result<(), LabError> {
        let mut at = start;
        let mut score = self.try_one(lab, at, told)?;
        self.path.push(at);
        for _ in 0..self.params.steps {
            let mut best = None;
            for reading in at.neighbours() {
                let new = self.try_one(lab, reading, told)?;
                if best.is_none_or(|(known, _)| new > known) {
                    best = Some((new, reading));
                }
            }
            match best {
                Some((better, reading)) if better > score => (score, at) = (better, reading),
                _ => break,
            }
            self.path.push(at);
        }
        Ok(())
    }

    fn try_one(
        &mut self,
        lab: &Lab<'_>,
        reading: Reading,
        told: &mut impl FnMut(&Tried),
    ) -> Result<Score, LabError> {
        if let Some(known) = self.tried.iter().find(|tried| tried.reading == reading) {
            return Ok(known.score);
        }
        let tried = try_reading(lab, reading, &self.params.seeds)?;
        told(&tried);
        let score = tried.score;
        self.tried.push(tried);
        Ok(score)
    }

    /// The table of claims and readings.
    pub fn report(&self, machine: Machine) -> Report {
        let tried = self.tried();
        let mut claims = Table::new("Claims by reading, best first").text("reading");
        claims = claims.number("claims", "of 13").number("figures", "of 3");
        for claim in &CLAIMS {
            claims = claims.text(claim.name);
        }
        let mut figures = Table::new("Figures by reading: off the paper's, %").text("reading");
        for (figure, fitted) in &FIGURES {
            figures = figures.number(figure.name, if *fitted { "fitted" } else { "predicted" });
        }
        let mut fitted = Table::new("What was fitted, by reading")
            .text("reading")
            .number("disk, for a page", "ms")
            .number("page at its receiver", "us")
            .number("the high rate", "processes/s");
        for one in &tried {
            let name = one.reading.describe();
            let mut row =
                vec![name.clone(), one.score.claims.to_string(), one.score.predicted.to_string()];
            row.extend(CLAIMS.iter().map(|claim| claim.text(&one.measures)));
            claims.row(row);
            let off = |name: &str| {
                let measure = one.measures.iter().find(|measure| measure.name == name);
                measure.and_then(|measure| measure.value).map_or("–".to_owned(), digits)
            };
            let mut row = vec![name.clone()];
            row.extend(FIGURES.iter().map(|(figure, _)| off(figure.measures[0])));
            figures.row(row);
            fitted.row([
                name,
                digits(one.fitted.disk_ns as f64 / 1e6),
                digits(one.fitted.page_handler_ns as f64 / 1e3),
                digits(one.fitted.high),
            ]);
        }
        let mut questions =
            Table::new("Questions and answers").text("question").text("answer").text("the paper");
        for question in &QUESTIONS {
            for choice in question.choices {
                questions.row([question.name, choice.name, choice.allowed_by]);
            }
        }
        let path: Vec<String> = self.path.iter().map(|reading| reading.describe()).collect();
        let best = tried.first();
        Report {
            title: "Global page placement: how the paper can be read".to_owned(),
            machine,
            preamble: vec![format!(
                "{} readings, {} each. Under each, three figures are fitted by the same rule: the disks to 33 ms, the work of a page at its \
                     receiver to 0.82 ms, and the high rate to 1.9 hops. Claims and the other three figures are predicted. The search went: {}.",
                tried.len(),
                seeds_text(&self.params.seeds),
                path.join(" → ")
            )],
            sections: vec![Section {
                title: "Readings".to_owned(),
                text: Vec::new(),
                tables: vec![claims, figures, fitted, questions],
                plots: Vec::new(),
            }],
            measures: best.map_or(Vec::new(), |best| best.measures.clone()),
            ..Report::default()
        }
    }
}

/// Fits a reading, runs what the claims need, and judges them.
pub fn try_reading(lab: &Lab<'_>, reading: Reading, seeds: &[u64]) -> Result<Tried, LabError> {
    let fitted = fit(lab, reading, seeds)?;
    let named = Rates { high: fitted.high, ..RATES };
    let params = Params::of_claims(fitted.config(reading), named, seeds.to_vec());
    let mut book = Book::default();
    let experiments = Experiments::plan(&params, &mut book);
    book.run(lab)?;
    let mut measures = Vec::new();
    claims::judge(&experiments, &book, named, &mut measures);
    let score = Score::of(&measures);
    Ok(Tried { reading, fitted, measures, score })
}

/// Fits the three figures, one after the other.
fn fit(lab: &Lab<'_>, reading: Reading, seeds: &[u64]) -> Result<Fitted, LabError> {
    let mut fitted = Fitted::start(&Config::default());
    fitted.disk_ns = fit_disk(lab, reading, fitted, seeds)?;
    for _ in 0..TURNS {
        let before = fitted;
        fitted.high = fit_rate(lab, reading, fitted, seeds)?;
        fitted.page_handler_ns = fit_transfer(lab, reading, fitted, seeds)?;
        if fitted == before {
            break;
        }
    }
    fitted.high = fit_rate(lab, reading, fitted, seeds)?;
    Ok(fitted)
}

/// Mean of a figure of one configuration.
fn measure(lab: &Lab<'_>, config: Config, seeds: &[u64], figure: &str) -> Result<f64, LabError> {
    let mut book = Book::default();
    let id = book.ask("fitting", config, seeds);
    book.run(lab)?;
    Ok(book.mean(id, figure))
}

fn at_rate(reading: Reading, fitted: &Fitted, rate: f64) -> Config {
    let mut config = fitted.config(reading);
    config.load.arrivals_per_s = rate;
    config.run.duration_ns /= SHORTER;
    config
}

/// Without global placement.
fn without_lenders(mut config: Config) -> Config {
    config.policy.scope = ScopeKind::Disk;
    (config.run.warmup_ns, config.run.duration_ns) = (10_000_000_000, 2_000_000_000);
    config
}

/// The response without global placement is in proportion to the time of a disk.
fn fit_disk(
    lab: &Lab<'_>,
    reading: Reading,
    mut fitted: Fitted,
    seeds: &[u64],
) -> Result<u64, LabError> {
    // What is not the disk's is not in proportion: a second turn corrects it.
    for _ in 0..DISK_TURNS {
        let config = without_lenders(fitted.config(reading));
        let response = measure(lab, config, &seeds[..1], crate::figures::RESPONSE)?;
        fitted.disk_ns = (fitted.disk_ns as f64 * DISK_MS / response) as u64;
    }
    Ok(fitted.disk_ns)
}

/// The lowest rate at which pages travel far enough with nearest, by halving: hops grow with the
/// rate.
fn fit_rate(
    lab: &Lab<'_>,
    reading: Reading,
    fitted: Fitted,
    seeds: &[u64],
) -> Result<f64, LabError> {
    let is_far = |rate: f64| -> Result<bool, LabError> {
        let mut config = at_rate(reading, &fitted, rate);
        config.policy.placement = PlacementKind::Nearest;
        Ok(measure(lab, config, seeds, "transfer_hops")? >= HOPS_LEAST)
    };
    let (mut near, mut far) = (RATES.middle / RATE_STEP, RATE_MAX / RATE_STEP);
    while far - near > 1.0 {
        let middle = ((near + far) / 2.0).floor();
        if is_far(middle * RATE_STEP)? { far = middle } else { near = middle }
    }
    Ok(far * RATE_STEP)
}

/// The work at which a transfer with most free takes as long as in the paper, by the secant.
fn fit_transfer(
    lab: &Lab<'_>,
    reading: Reading,
    fitted: Fitted,
    seeds: &[u64],
) -> Result<u64, LabError> {
    let transfer = |work_ns: u64| -> Result<f64, LabError> {
        let fitted = Fitted { page_handler_ns: work_ns, ..fitted };
        let mut config = at_rate(reading, &fitted, fitted.high);
        config.policy.placement = PlacementKind::MostFree;
        measure(lab, config, seeds, "transfer_ms")
    };
    let (mut low, mut high) = (0, 500_000);
    while high - low > 10_000 {
        let middle = (low + high) / 2;
        if transfer(middle)? > TRANSFER_MS { high = middle } else { low = middle }
    }
    // In steps of ten microseconds.
    Ok((low + high) / 20_000 * 10_000)
}

#[cfg(test)]
mod tests {
    use hiroma_sim::{Canary, RunError};

    use super::*;
    use crate::jobs::Stop;
    use crate::lab::with_canary;

    /// A quarter of the machine for a short time, with `canary` wherever it can act.
    fn small(canary: Canary) -> impl Fn(&Config) -> Option<Config> + Sync {
        let broken = with_canary(canary);
        move |config| {
            let mut config = config.clone();
            config.topology.dims = vec![8, 8];
            config.disk.count = 4.min(config.disk.count);
            config.policy.domain_radius = config.policy.domain_radius.min(8);
            config.load.arrivals_per_s /= 4.0;
            (config.run.warmup_ns, config.run.duration_ns) = (20_000_000, 100_000_000);
            Some(broken(&config).unwrap_or(config))
        }
    }

    #[test]
    fn every_canary_ends_the_search() {
        for canary in Canary::TRUSTING {
            let (stop, instead) = (Stop::new(), small(canary));
            let (advance, lacking) = (&|_| (), &|_| None);
            let lab = Lab { threads: 2, stop: &stop, advance, lacking, instead: &instead };
            let mut search = Search::new(SearchParams::new(2, 0));
            match search.run(&lab, |tried| panic!("{canary:?} is not found: {}", tried.line())) {
                Err(LabError::Failed {
                    error: RunError::Wrong(_) | RunError::Stuck(_), ..
                }) => (),
                other => panic!("{canary:?}: {other:?}"),
            }
        }
    }
}
