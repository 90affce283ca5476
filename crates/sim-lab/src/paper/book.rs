//! Configurations that experiments request; each is run once, however often it is requested.

use std::sync::Arc;

use hiroma_report::{Axis, Kind, Plot, Point, Series, Table};
use hiroma_sim::{Config, Outcome};

use crate::figures::{Figures, RESPONSE, estimate, figure_named};
use crate::lab::{Job, Lab, LabError};
use crate::single::estimate_text;
use hiroma_report::Estimate;

/// More curves cannot be told apart in one plot.
const CURVES_MAX: usize = 4;

/// A configuration in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(usize);

/// Requests, and their results after [`Book::run`].
#[derive(Default)]
pub struct Book {
    configs: Vec<(String, Arc<Config>)>,
    seeds: Vec<Vec<u64>>,
    answers: Vec<Vec<Figures>>,
}

/// A curve of a plot: one configuration at each place.
#[derive(Clone, Debug)]
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, Id)>,
}

impl Book {
    /// Requests a configuration with these seeds.
    pub fn ask(&mut self, label: &str, config: Config, seeds: &[u64]) -> Id {
        let known = self
            .configs
            .iter()
            .zip(&self.seeds)
            .position(|((_, known), with)| **known == config && with == seeds);
        Id(known.unwrap_or_else(|| {
            self.configs.push((label.to_owned(), Arc::new(config)));
            self.seeds.push(seeds.to_vec());
            self.configs.len() - 1
        }))
    }

    /// Requests a curve: `config(place)` at each of `places`.
    pub fn curve(
        &mut self,
        name: &str,
        places: &[f64],
        seeds: &[u64],
        config: impl Fn(f64) -> Config,
    ) -> Curve {
        let points = places
            .iter()
            .map(|&place| (place, self.ask(&format!("{name} at {place}"), config(place), seeds)));
        Curve { name: name.to_owned(), points: points.collect() }
    }

    /// Labels and configurations, with the number of runs of each.
    pub fn configs(&self) -> impl Iterator<Item = (&str, &Arc<Config>, usize)> {
        let seeds = self.seeds.iter().map(Vec::len);
        self.configs.iter().zip(seeds).map(|((label, config), runs)| (label.as_str(), config, runs))
    }

    /// Runs all requests.
    pub fn run(&mut self, lab: &Lab<'_>) -> Result<(), LabError> {
        let jobs: Vec<(usize, Job)> = self
            .configs
            .iter()
            .zip(&self.seeds)
            .enumerate()
            .flat_map(|(index, ((label, config), seeds))| {
                seeds.iter().map(move |&seed| {
                    (index, Job { label: label.clone(), config: config.clone(), seed })
                })
            })
            .collect();
        let figures =
            lab.each(&jobs, |(_, job)| job, |_, outcome: Outcome| Figures::of(&outcome))?;
        self.answers = vec![Vec::new(); self.configs.len()];
        for ((index, _), figures) in jobs.iter().zip(figures) {
            self.answers[*index].push(figures);
        }
        Ok(())
    }

    /// Runs of a configuration, seed by seed.
    pub fn runs_of(&self, id: Id) -> &[Figures] {
        &self.answers[id.0]
    }

    /// One figure of a configuration over its seeds.
    pub fn estimate(&self, id: Id, name: &str) -> Option<Estimate> {
        estimate(self.runs_of(id), name)
    }

    /// Its mean; NaN if there is none.
    pub fn mean(&self, id: Id, name: &str) -> f64 {
        self.estimate(id, name).map_or(f64::NAN, |estimate| estimate.mean)
    }

    /// Mean response, ms.
    pub fn response(&self, id: Id) -> f64 {
        self.mean(id, RESPONSE)
    }

    /// One figure seed by seed; 0 for a run that does not have it.
    pub fn values(&self, id: Id, name: &str) -> Vec<f64> {
        self.runs_of(id).iter().map(|run| run.get(name).unwrap_or(0.0)).collect()
    }

    /// Responses seed by seed, ms.
    pub fn responses(&self, id: Id) -> Vec<f64> {
        self.values(id, RESPONSE)
    }

    /// Mean responses with their intervals: in one plot, or in a panel for each of many curves.
    pub fn plots(&self, title: &str, x: Axis, curves: &[Curve]) -> Vec<Plot> {
        let plot = self.plot(title, x, curves);
        if curves.len() > CURVES_MAX { plot.panels() } else { vec![plot] }
    }

    fn plot(&self, title: &str, x: Axis, curves: &[Curve]) -> Plot {
        let series = curves.iter().map(|curve| {
            let points = curve.points.iter().filter_map(|&(x, id)| {
                let response = self.estimate(id, RESPONSE)?;
                Some(Point {
                    x,
                    y: response.mean,
                    min: response.low().max(0.0),
                    max: response.high(),
                })
            });
            Series::new(curve.name.clone(), points.collect())
        });
        Plot {
            title: title.to_owned(),
            kind: Kind::Labelled,
            x,
            y: Axis::log("mean response", "ms"),
            series: series.collect(),
        }
    }

    /// A table of mean responses: a row for each place, a column for each curve.
    pub fn table(&self, title: &str, place: &str, curves: &[Curve]) -> Table {
        self.table_of(RESPONSE, title, place, curves)
    }

    /// The same for another figure.
    pub fn table_of(&self, figure: &str, title: &str, place: &str, curves: &[Curve]) -> Table {
        let unit = figure_named(figure).map_or("", |figure| figure.unit);
        let mut table = Table::new(title).number(place, "");
        for curve in curves {
            table = table.number(curve.name.clone(), unit);
        }
        for index in 0..curves.first().map_or(0, |curve| curve.points.len()) {
            let mut row = vec![hiroma_report::figures(curves[0].points[index].0)];
            row.extend(
                curves
                    .iter()
                    .map(|curve| estimate_text(self.estimate(curve.points[index].1, figure))),
            );
            table.row(row);
        }
        table
    }

    /// A table of some figures of some configurations, one row each.
    pub fn details(&self, title: &str, rows: &[(String, Id)]) -> Table {
        let mut table = Table::new(title)
            .text("policy")
            .number("response", "ms")
            .number("p99", "ms")
            .number("transfer", "ms")
            .number("hops", "")
            .number("repeated", "")
            .number("to disk", "")
            .number("messages", "per page-out")
            .number("link use", "");
        for (name, id) in rows {
            let mean = |figure: &str| {
                self.estimate(*id, figure)
                    .map_or("–".to_owned(), |estimate| hiroma_report::figures(estimate.mean))
            };
            let mut row = vec![name.clone(), estimate_text(self.estimate(*id, RESPONSE))];
            let rest = [
                "response_p99_ms",
                "transfer_ms",
                "transfer_hops",
                "repeated_share",
                "disk_share",
                "messages_per_page_out",
                "link_use",
            ];
            row.extend(rest.map(mean));
            table.row(row);
        }
        table
    }
}

#[cfg(test)]
impl Book {
    /// Changes every configuration.
    pub fn change(&mut self, change: impl Fn(&mut Config)) {
        self.configs.iter_mut().for_each(|(_, config)| change(Arc::make_mut(config)));
    }
}
