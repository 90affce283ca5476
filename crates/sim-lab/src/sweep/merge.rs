//! Merges the results of a sweep.

use std::fmt::Write as _;

use hiroma_report::{Axis, Kind, Plot, Point, Section, Series, Table, figures as digits};
use serde::Serialize;

use crate::figures::{FIGURES, Figures, RESPONSE, estimate};
use crate::notes;
use crate::single::{FigureJson, estimate_text, figures_json, seeds_text, to_text};
use crate::sweep::plan::label;
use crate::sweep::store::{Gaps, Store, StoreError};

/// More lines cannot be told apart in one plot: each has a panel then.
const SERIES_MAX: usize = 4;
/// More panels show nothing that the table does not.
const PANELS_MAX: usize = 24;

/// Settings that distinguish a cell, with their values.
type CellValues = Vec<(String, String)>;

/// All cells with their runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    seeds: Vec<u64>,
    /// Settings with their values, and the runs.
    cells: Vec<(CellValues, Vec<Figures>)>,
    gaps: Gaps,
}

impl Merged {
    /// All results that `store` has. Cells without any are left out.
    pub fn of(store: &Store) -> Result<Merged, StoreError> {
        let manifest = store.manifest();
        let (runs, gaps) = store.load_all()?;
        let cells = manifest.cells.iter().cloned().zip(runs);
        Ok(Merged {
            seeds: manifest.seeds.clone(),
            cells: cells.filter(|(_, runs)| !runs.is_empty()).collect(),
            gaps,
        })
    }

    /// What is missing.
    pub fn gaps(&self) -> &Gaps {
        &self.gaps
    }

    /// What is missing, and what the results are not about.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.missing();
        let cells = self.cells.iter().map(|(values, runs)| (label(values), &runs[..]));
        notes.extend(notes::of_cells(cells));
        notes
    }

    /// What is missing, in words.
    fn missing(&self) -> Vec<String> {
        let Gaps { missing, of, first, shards } = &self.gaps;
        if *missing == 0 {
            return Vec::new();
        }
        let mut notes = vec![format!(
            "Note: {missing} of {of} runs are missing, the first is {first}. The rest was merged; means are of the seeds that are \
             there. Run `hiroma sim sweep` again with the same directory: it runs only what is missing."
        )];
        notes.extend(shards.iter().map(|gap| {
            format!("Missing in shard {}: {} of {} runs", gap.shard, gap.missing, gap.of)
        }));
        notes
    }

    /// Names of the varied settings.
    fn keys(&self) -> Vec<&str> {
        self.cells
            .first()
            .map_or(Vec::new(), |(values, _)| values.iter().map(|(key, _)| key.as_str()).collect())
    }

    /// One row for each cell.
    pub fn table(&self) -> Table {
        let mut table = self.keys().iter().fold(Table::new(""), |table, key| table.text(*key));
        table = table
            .number("response", "ms")
            .number("median", "ms")
            .number("p99", "ms")
            .number("transfer", "ms")
            .number("hops", "");
        table =
            table.number("repeated", "").number("to disk", "").number("messages", "per page-out");
        for (values, runs) in &self.cells {
            let mut row: Vec<String> = values.iter().map(|(_, value)| value.clone()).collect();
            row.push(estimate_text(estimate(runs, RESPONSE)));
            let rest = [
                "response_median_ms",
                "response_p99_ms",
                "transfer_ms",
                "transfer_hops",
                "repeated_share",
                "disk_share",
                "messages_per_page_out",
            ];
            row.extend(rest.map(|name| {
                estimate(runs, name).map_or("–".to_owned(), |estimate| digits(estimate.mean))
            }));
            table.row(row);
        }
        table
    }

    fn plots(&self) -> Vec<Plot> {
        match self.plot() {
            Some(plot) if plot.series.len() > SERIES_MAX => plot.panels(),
            plot => plot.into_iter().collect(),
        }
    }

    /// Response over the numeric setting with the most values, a line for each combination of the
    /// others; none without such a setting.
    fn plot(&self) -> Option<Plot> {
        let numbers = |at: usize| -> Option<Vec<f64>> {
            let mut numbers: Vec<f64> = self
                .cells
                .iter()
                .map(|(values, _)| values[at].1.parse().ok())
                .collect::<Option<_>>()
                .filter(|all: &Vec<f64>| !all.is_empty())?;
            numbers.sort_by(f64::total_cmp);
            numbers.dedup();
            Some(numbers)
        };
        let keys = self.keys();
        let places = (0..keys.len()).filter_map(|at| Some((numbers(at)?.len(), at)));
        let (count, at) = places.max_by_key(|&(count, at)| (count, usize::MAX - at))?;
        if count < 2 {
            return None;
        }
        let mut series: Vec<Series> = Vec::new();
        for (values, runs) in &self.cells {
            let mut others = values.clone();
            let (_, x) = others.remove(at);
            let name = if others.is_empty() { "mean response".to_owned() } else { label(&others) };
            let Some(response) = estimate(runs, RESPONSE) else { continue };
            let point = Point {
                x: x.parse().ok()?,
                y: response.mean,
                min: response.low(),
                max: response.high(),
            };
            match series.iter().position(|series| series.name == name) {
                Some(at) => series[at].points.push(point),
                None if series.len() < PANELS_MAX => series.push(Series::new(name, vec![point])),
                None => {}
            }
        }
        series
            .iter_mut()
            .for_each(|series| series.points.sort_by(|one, other| one.x.total_cmp(&other.x)));
        Some(Plot {
            title: "Mean response, with 95 % intervals".to_owned(),
            x: Axis::linear(keys[at], ""),
            y: Axis::linear("response", "ms"),
            kind: Kind::Labelled,
            series,
        })
    }

    /// The results as a section of a report.
    pub fn section(&self) -> Section {
        let mut text = vec![format!(
            "{} cells, {}. Means with 95 % intervals.",
            self.cells.len(),
            seeds_text(&self.seeds)
        )];
        text.extend(self.notes());
        Section { title: "Sweep".to_owned(), text, tables: vec![self.table()], plots: self.plots() }
    }

    /// One line per cell, with mean and half width of the interval of every figure.
    pub fn to_csv(&self) -> String {
        let mut header: Vec<String> = self.keys().iter().map(|key| quoted(key)).collect();
        header.push("seeds".to_owned());
        header.extend(
            FIGURES
                .iter()
                .flat_map(|figure| [figure.name.to_owned(), format!("{}_half_width", figure.name)]),
        );
        let mut csv = header.join(",") + "\n";
        for (values, runs) in &self.cells {
            let mut row: Vec<String> = values.iter().map(|(_, value)| quoted(value)).collect();
            row.push(runs.len().to_string());
            for figure in &FIGURES {
                let estimate = estimate(runs, figure.name);
                row.push(estimate.map_or(String::new(), |estimate| estimate.mean.to_string()));
                row.push(
                    estimate
                        .and_then(|estimate| estimate.half_width)
                        .map_or(String::new(), |half| half.to_string()),
                );
            }
            let _ = writeln!(csv, "{}", row.join(","));
        }
        csv
    }

    /// All results as JSON.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct CellJson<'a> {
            settings: &'a [(String, String)],
            seeds: usize,
            results: Vec<FigureJson>,
        }
        #[derive(Serialize)]
        struct Json<'a> {
            seeds: &'a [u64],
            missing_runs: usize,
            cells: Vec<CellJson<'a>>,
        }
        let cells = self
            .cells
            .iter()
            .map(|(values, runs)| CellJson {
                settings: values,
                seeds: runs.len(),
                results: figures_json(runs),
            })
            .collect();
        to_text(&Json { seeds: &self.seeds, missing_runs: self.gaps.missing, cells })
    }
}

/// A cell of a CSV file (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn merged() -> Merged {
        let cell = |rate: &str, kind: &str, ms: f64| {
            let runs =
                [ms, ms + 1.0].map(|ms| Figures(BTreeMap::from([(RESPONSE.to_owned(), ms)])));
            (
                vec![("rate".to_owned(), rate.to_owned()), ("kind".to_owned(), kind.to_owned())],
                runs.to_vec(),
            )
        };
        Merged {
            seeds: vec![1, 2],
            gaps: Gaps::default(),
            cells: vec![
                cell("20", "a,b", 4.0),
                cell("20", "c", 5.0),
                cell("10", "a,b", 1.0),
                cell("10", "c", 2.0),
            ],
        }
    }

    #[test]
    fn plot_has_one_line_per_non_numeric_combination() {
        let plot = merged().plot().unwrap();
        assert_eq!((plot.x.label.as_str(), plot.series.len()), ("rate", 2));
        let points: Vec<(f64, f64)> =
            plot.series[0].points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(points, [(10.0, 1.5), (20.0, 4.5)]);
    }

    #[test]
    fn csv_quotes_commas_and_leaves_missing_cells_empty() {
        let csv = merged().to_csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert!(lines[0].starts_with(
            "rate,kind,seeds,response_mean_ms,response_mean_ms_half_width,response_median_ms,"
        ));
        assert!(lines[1].starts_with("20,\"a,b\",2,4.5,6.35"), "{}", lines[1]);
        assert!(lines[1].ends_with(",,,"));
        assert_eq!(quoted("say \"x\""), "\"say \"\"x\"\"\"");
    }
}
