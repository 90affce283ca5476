//! The plan that a sweep's file describes.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use hiroma_sim::Config;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use twox_hash::XxHash3_64;

use crate::cluster::{check, config_of};
use crate::lab::Job;
use crate::policies::Policies;
use crate::settings::{Settings, SettingsError};
use crate::single::seeds_from;

/// Maximum number of points of a sweep.
const POINTS_MAX: usize = 10_000_000;

/// Version of the files of a sweep's results.
pub const FORMAT: u32 = 2;

/// One combination of values of the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The settings that distinguish it, by dotted path, with their values as written in the file.
    pub values: Vec<(String, String)>,
    pub config: Arc<Config>,
}

/// One run: a cell, by its number, with a seed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Point {
    pub cell: usize,
    pub seed: u64,
}

/// The runs of one cell after the other, each with every seed.
pub fn point_of(seeds: &[u64], point: usize) -> Point {
    Point { cell: point / seeds.len(), seed: seeds[point % seeds.len()] }
}

/// All runs of a sweep: every cell with every seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub cells: Vec<Cell>,
    pub seeds: Vec<u64>,
}

/// Every `of`-th point, starting with the `number`-th; counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    of: usize,
}

/// Description of a plan, stored beside its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this file and of those of the points.
    pub format: u32,
    /// Version of the simulator: another one may give different results.
    pub version: String,
    /// Of all configurations. More seeds extend a sweep; another configuration makes another one.
    pub fingerprint: String,
    /// All seeds that were asked for, in order.
    pub seeds: Vec<u64>,
    /// Settings and values of each cell.
    pub cells: Vec<Vec<(String, String)>>,
}

impl Plan {
    /// Reads a sweep's file, which may name `policies`. The path of a cluster's file in it is
    /// relative to it.
    pub fn read(path: &Path, policies: &Policies) -> Result<Plan, SettingsError> {
        Plan::with(Settings::read(path)?, path.parent().unwrap_or(Path::new("")), policies)
    }

    /// The sweep that `settings` describe; paths are relative to `directory`.
    pub fn of(settings: Settings, directory: &Path) -> Result<Plan, SettingsError> {
        Plan::with(settings, directory, &Policies::new())
    }

    /// The same for settings that may name `policies`.
    pub fn with(
        mut settings: Settings,
        directory: &Path,
        policies: &Policies,
    ) -> Result<Plan, SettingsError> {
        let allowed = ["cluster", "seeds", "first_seed", "grid"];
        if let Some(unknown) = settings.table().keys().find(|key| !allowed.contains(&key.as_str()))
        {
            let what = format!(
                "there is no key `{unknown}`, use one of `cluster`, `seeds`, `first_seed`, `grid`"
            );
            return Err(settings.complain(unknown, what));
        }
        let seeds = whole(&mut settings, "seeds", 10, 1, 100_000)?;
        let first_seed = whole(&mut settings, "first_seed", 1, 0, i64::MAX)?;
        let seeds = seeds_from(first_seed as u64, seeds as usize);
        let base = match settings.table().get("cluster") {
            None => Settings::parse("", "")?,
            Some(Value::Table(_)) => settings.part("cluster"),
            Some(Value::String(file)) => {
                Settings::read(&directory.join(file)).map_err(|error| {
                    settings.complain("cluster", format_args!("`cluster`: {error}"))
                })?
            }
            Some(_) => {
                return Err(settings.complain(
                    "cluster",
                    "`cluster`: needed is the name of a file, or a table of settings",
                ));
            }
        };
        let axes = axes(&settings)?;
        let count =
            axes.iter().try_fold(seeds.len(), |count, (_, values)| count.checked_mul(values.len()));
        if count.is_none_or(|count| count > POINTS_MAX) {
            return Err(settings.complain(
                "grid",
                format_args!(
                    "`grid`: more than {POINTS_MAX} points, seeds included: leave some values out"
                ),
            ));
        }
        let cells = combinations(&axes)
            .map(|values| cell(&base, &settings, &values, policies))
            .collect::<Result<_, _>>()?;
        Ok(Plan { cells, seeds })
    }

    /// Number of runs.
    pub fn points(&self) -> usize {
        self.cells.len() * self.seeds.len()
    }

    /// The cell and the seed of one of the runs.
    pub fn point(&self, point: usize) -> Point {
        point_of(&self.seeds, point)
    }

    /// One of the runs.
    pub fn job(&self, point: usize) -> Job {
        let Point { cell, seed } = self.point(point);
        let cell = &self.cells[cell];
        Job { label: label(&cell.values), config: cell.config.clone(), seed }
    }

    /// Replaces the seeds by as many from the first one on.
    pub fn set_seeds(&mut self, count: usize) {
        self.seeds = seeds_from(self.seeds.first().copied().unwrap_or(1), count);
    }

    /// The description that is stored beside the results.
    pub fn manifest(&self) -> Manifest {
        let configs: Vec<&Config> = self.cells.iter().map(|cell| &*cell.config).collect();
        let content = serde_json::to_vec(&configs).expect("configurations always become JSON");
        Manifest {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fingerprint: format!("{:016x}", XxHash3_64::oneshot(&content)),
            seeds: self.seeds.clone(),
            cells: self.cells.iter().map(|cell| cell.values.clone()).collect(),
        }
    }
}

/// `a = 1, b = x`, or the name of a grid of one cell.
pub fn label(values: &[(String, String)]) -> String {
    if values.is_empty() {
        return "the cluster".to_owned();
    }
    values.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
}

fn whole(
    settings: &mut Settings,
    key: &str,
    usual: i64,
    least: i64,
    most: i64,
) -> Result<i64, SettingsError> {
    match settings.take(key) {
        None => Ok(usual),
        Some(Value::Integer(value)) if (least..=most).contains(&value) => Ok(value),
        Some(other) => Err(settings.complain(
            key,
            format_args!("`{key}`: {other} is not a whole number from {least} to {most}"),
        )),
    }
}

/// The grid's settings (dotted) with their values, ordered by name.
fn axes(settings: &Settings) -> Result<Vec<(String, Vec<Value>)>, SettingsError> {
    let mut axes = Vec::new();
    match settings.table().get("grid") {
        None => {}
        Some(Value::Table(grid)) => collect(settings, grid, "", &mut axes)?,
        Some(_) => {
            return Err(settings
                .complain("grid", "`grid`: needed is a table of settings with lists of values"));
        }
    }
    axes.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(axes)
}

fn collect(
    settings: &Settings,
    grid: &Table,
    prefix: &str,
    axes: &mut Vec<(String, Vec<Value>)>,
) -> Result<(), SettingsError> {
    for (key, value) in grid {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(inner) => collect(settings, inner, &path, axes)?,
            Value::Array(values) if !values.is_empty() => axes.push((path, values.clone())),
            _ => {
                let what =
                    format!("`grid.{path}`: needed is a list of at least one value, in brackets");
                return Err(settings.complain(&format!("grid.{path}"), what));
            }
        }
    }
    Ok(())
}

/// All combinations; the last axis varies fastest.
fn combinations(axes: &[(String, Vec<Value>)]) -> impl Iterator<Item = Vec<(&str, usize, &Value)>> {
    let total: usize = axes.iter().map(|(_, values)| values.len()).product();
    (0..total).map(move |mut number| {
        let mut chosen: Vec<(&str, usize, &Value)> = Vec::with_capacity(axes.len());
        for (path, values) in axes.iter().rev() {
            chosen.push((path.as_str(), number % values.len(), &values[number % values.len()]));
            number /= values.len();
        }
        chosen.reverse();
        chosen
    })
}

fn cell(
    base: &Settings,
    sweep: &Settings,
    values: &[(&str, usize, &Value)],
    policies: &Policies,
) -> Result<Cell, SettingsError> {
    let mut settings = base.clone();
    for &(path, index, value) in values {
        settings.set(path, value.clone(), sweep.place(&format!("grid.{path}[{index}]")));
    }
    let values: Vec<(String, String)> =
        values.iter().map(|(path, _, value)| ((*path).to_owned(), text_of(value))).collect();
    // A problem that is due to a combination is reported at the line of one setting; the message
    // has to name the combination.
    let with = |error: SettingsError| {
        if values.len() > 1 {
            SettingsError(format!("{}\n(with {})", error.0, label(&values)))
        } else {
            error
        }
    };
    let config = config_of(&mut settings, policies)
        .and_then(|config| check(&config, &settings).map(|()| config))
        .map_err(with)?;
    Ok(Cell { config: Arc::new(config), values })
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Shard {
    /// All points.
    pub const ALL: Shard = Shard { number: 1, of: 1 };

    /// The `number`-th of `of`.
    pub fn new(number: usize, of: usize) -> Shard {
        Shard { number, of }
    }

    /// How many there are.
    pub fn of(&self) -> usize {
        self.of
    }

    /// Whether a point belongs to it.
    pub fn has(&self, point: usize) -> bool {
        point % self.of == self.number - 1
    }

    /// Whether all points belong to it.
    pub fn is_all(&self) -> bool {
        self.of == 1
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parsed = text.split_once('/').and_then(|(number, of)| {
            Some((number.parse::<usize>().ok()?, of.parse::<usize>().ok()?))
        });
        match parsed {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Shard { number, of }),
            _ => Err(format!(
                "`{text}` is not a shard: write its number and how many there are, like 3/8"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use hiroma_policy::placement::PlacementKind;

    use super::*;

    fn plan(text: &str) -> Result<Plan, String> {
        Settings::parse("sweep.toml", text)
            .and_then(|settings| Plan::of(settings, Path::new(".")))
            .map_err(|error| error.0)
    }

    #[test]
    fn a_grid_is_every_combination_with_every_seed() {
        let plan = plan(
            "seeds = 3\nfirst_seed = 5\n[cluster]\nnodes = 64\ndisk.count = 4\n[grid]\n\"load.arrivals_per_s\" = [10, 20.5]\n\
             policy.placement = [\"random\", \"most_free\"]\nnetwork.latency_ns = [\"1us\"]\n",
        )
        .unwrap();
        assert_eq!((plan.cells.len(), plan.points()), (4, 12));
        let labels: Vec<String> = plan.cells.iter().map(|cell| label(&cell.values)).collect();
        assert_eq!(
            labels[1],
            "load.arrivals_per_s = 10, network.latency_ns = 1us, policy.placement = most_free"
        );
        assert_eq!(
            labels[2],
            "load.arrivals_per_s = 20.5, network.latency_ns = 1us, policy.placement = random"
        );
        let last = plan.job(11);
        assert_eq!(
            (last.seed, last.config.load.arrivals_per_s, last.config.network.latency_ns),
            (7, 20.5, 1000)
        );
        assert_eq!(
            (last.config.policy.placement.clone(), last.config.nodes()),
            (PlacementKind::MostFree, 64)
        );
    }

    #[test]
    fn without_a_grid_there_is_one_cell() {
        let plan = plan("").unwrap();
        assert_eq!((plan.cells.len(), plan.seeds.len()), (1, 10));
        assert_eq!(*plan.cells[0].config, Config::default());
    }

    #[test]
    fn shards_share_all_points_without_overlap() {
        let shards: Vec<Shard> =
            (1..=8).map(|number| format!("{number}/8").parse().unwrap()).collect();
        for point in 0..100 {
            assert_eq!(shards.iter().filter(|shard| shard.has(point)).count(), 1);
            assert!(Shard::ALL.has(point));
        }
        for text in ["0/8", "9/8", "8", "1/0", "a/b", "-1/8"] {
            assert_eq!(
                text.parse::<Shard>().unwrap_err(),
                format!(
                    "`{text}` is not a shard: write its number and how many there are, like 3/8"
                )
            );
        }
    }

    #[test]
    fn grid_mistakes_are_reported_with_line() {
        for (text, message) in [
            (
                "grid = 3",
                "sweep.toml:1: `grid`: needed is a table of settings with lists of values",
            ),
            (
                "sed = 3",
                "sweep.toml:1: there is no key `sed`, use one of `cluster`, `seeds`, `first_seed`, `grid`",
            ),
            ("seeds = 0", "sweep.toml:1: `seeds`: 0 is not a whole number from 1 to 100000"),
            (
                "[grid]\n\"load.arrivals_per_s\" = 4",
                "sweep.toml:2: `grid.load.arrivals_per_s`: needed is a list of at least one value, in brackets",
            ),
            (
                "[grid]\n\"load.arrivals_per_s\" = [\n  4,\n  0,\n]",
                "sweep.toml:4: `load.arrivals_per_s`: 0 is out of range; allowed are 0.001 to 1000000000",
            ),
            (
                "[cluster]\npolicy.domain_radius = 2\n[grid]\nnodes = [16]\ndisk.count = [4, 17]",
                "sweep.toml:5: `disk.count`: 17 disks at 16 nodes; allowed are 1 to 16\n(with disk.count = 17, nodes = 16)",
            ),
        ] {
            assert_eq!(plan(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn fingerprint_depends_only_on_what_runs() {
        let print = |text: &str| plan(text).unwrap().manifest().fingerprint;
        assert_eq!(
            print(""),
            print("[cluster]\npreset = \"paper\"\n[grid]\n\"load.accesses\" = [3600]"),
            "said otherwise, the same"
        );
        assert_eq!(print("seeds = 2"), print("seeds = 3"), "more seeds extend it");
        assert_ne!(
            print("[grid]\n\"node.frames\" = [64, 65]"),
            print("[grid]\n\"node.frames\" = [64, 66]")
        );
    }
}
