//! Jobs that are compared: each runs once in every round.

use hiroma_report::{Spread, Table, figures};
use hiroma_units::Bytes;

use super::Ground;
use super::pages::Pages;
use super::spec::{Policy, Spec, Storage};
use crate::children::Failed;
use crate::progress::Progress;

/// Results of one run of a job.
#[derive(Clone, Debug, Default)]
pub struct RunResults {
    pub build_s: f64,
    /// Without the warm-up iterations.
    pub iterations_s: Vec<f64>,
    /// Time of garbage collection of all executors, while caching and iterating.
    pub gc_ms: u64,
    /// Immediately after caching.
    pub cached: Pages,
    /// After the iterations.
    pub steady: Pages,
}

impl RunResults {
    /// Median of the iterations.
    pub fn iteration_s(&self) -> f64 {
        Spread::of(&self.iterations_s).map_or(f64::NAN, |spread| spread.median)
    }

    /// Caching and the timed iterations: what the paper's figure 4 shows.
    pub fn whole_s(&self) -> f64 {
        self.build_s + self.iterations_s.iter().sum::<f64>()
    }
}

/// A job and its runs, by round; none where it failed.
#[derive(Clone)]
pub struct Cell {
    pub spec: Spec,
    pub outcomes: Vec<Option<RunResults>>,
    /// The reason of the first failure.
    pub failure: Option<String>,
}

/// All jobs of one experiment.
#[derive(Default)]
pub struct Grid(pub Vec<Cell>);

/// Runs one job from start to end.
pub fn run(ground: &Ground<'_>, spec: &Spec) -> Result<RunResults, Failed> {
    let mut session = ground.start(spec)?;
    let build_s = session.cache()?;
    let cached = Pages::of_all(&session.look()?)?;
    if cached.cached < spec.bytes / 10 * 9 {
        return Err(anyhow::anyhow!(
            "only {} of {} are cached: they do not fit into the executors' memory; a smaller --size, or a larger --heap",
            Bytes(cached.cached),
            Bytes(spec.bytes)
        )
        .into());
    }
    session.iterate(ground.params.warm_iterations)?;
    let iterations_s = session.iterate(ground.params.iterations)?;
    let looked = session.look()?;
    let gc_ms = looked.iter().map(|executor| executor.gc_ms).sum();
    Ok(RunResults { build_s, iterations_s, gc_ms, cached, steady: Pages::of_all(&looked)? })
}

impl Grid {
    /// Runs `specs` in `rounds` rounds, each in a different order. After an interruption, the
    /// results so far can be reported.
    pub fn measure(
        ground: &Ground<'_>,
        specs: &[Spec],
        progress: &mut Progress,
    ) -> (Grid, Result<(), Failed>) {
        let mut grid = Grid(
            specs.iter().map(|&spec| Cell { spec, outcomes: Vec::new(), failure: None }).collect(),
        );
        let ended = grid.fill(ground, progress);
        (grid, ended)
    }

    fn fill(&mut self, ground: &Ground<'_>, progress: &mut Progress) -> Result<(), Failed> {
        let (cells, rounds) = (&mut self.0, ground.params.rounds);
        for round in 0..rounds {
            for turn in 0..cells.len() {
                let at = (turn + round) % cells.len();
                let spec = cells[at].spec;
                progress.starts(&format!("round {} of {rounds}: {}", round + 1, describe(&spec)));
                let outcome = match run(ground, &spec) {
                    Err(Failed::Interrupted) => return Err(Failed::Interrupted),
                    Ok(outcome) => Some(outcome),
                    // A job that fails on this machine does not end the others.
                    Err(error) => {
                        let error = anyhow::Error::from(error);
                        progress.say(&format!("{}: {error:#}", describe(&spec)));
                        cells[at].failure.get_or_insert(format!("{error:#}"));
                        None
                    }
                };
                cells[at].outcomes.push(outcome);
                progress.done(seconds_of(ground, &spec));
            }
        }
        Ok(())
    }

    /// The first job with this storage and policy.
    pub fn cell(&self, storage: Storage, policy: Policy) -> Option<&Cell> {
        self.0.iter().find(|cell| cell.spec.storage == storage && cell.spec.policy == policy)
    }

    /// Spread of `value` over the runs of a job.
    pub fn spread(
        &self,
        storage: Storage,
        policy: Policy,
        value: impl Fn(&RunResults) -> f64,
    ) -> Option<Spread> {
        let cell = self.cell(storage, policy)?;
        Spread::of(&cell.outcomes.iter().flatten().map(value).collect::<Vec<_>>())
    }

    /// Ratio of `value` of one policy to that of another, for runs of the same round.
    pub fn ratio(
        &self,
        storage: Storage,
        over: Policy,
        under: Policy,
        value: impl Fn(&RunResults) -> f64,
    ) -> Option<Spread> {
        let pairs =
            self.cell(storage, over)?.outcomes.iter().zip(&self.cell(storage, under)?.outcomes);
        Spread::of(
            &pairs
                .filter_map(|(over, under)| Some(value(over.as_ref()?) / value(under.as_ref()?)))
                .collect::<Vec<_>>(),
        )
    }

    /// Why a job has no figures, or other remarks.
    pub fn remark(&self, storage: Storage, policies: &[Policy]) -> String {
        let failures =
            policies.iter().filter_map(|&policy| self.cell(storage, policy)?.failure.clone());
        failures.collect::<Vec<_>>().join("; ")
    }

    /// All jobs with their medians.
    pub fn table(&self, title: &str) -> Table {
        let mut table = Table::new(title)
            .text("job")
            .text("policy")
            .number("caching", "s")
            .number("an iteration", "s")
            .number("collectors", "ms")
            .number("cached", "MiB")
            .number("of it huge, at once", "%")
            .number("later", "%")
            .number("all huge", "MiB")
            .number("other huge", "% of it")
            .number("resident", "MiB");
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        for cell in &self.0 {
            let of = |value: &dyn Fn(&RunResults) -> f64| {
                let spread =
                    Spread::of(&cell.outcomes.iter().flatten().map(value).collect::<Vec<_>>());
                spread.map_or_else(|| "–".to_owned(), Spread::to_text)
            };
            let median = |value: &dyn Fn(&RunResults) -> f64| {
                let spread =
                    Spread::of(&cell.outcomes.iter().flatten().map(value).collect::<Vec<_>>());
                spread.map_or_else(|| "–".to_owned(), |spread| figures(spread.median))
            };
            table.row([
                job(&cell.spec),
                cell.spec.policy.name().to_owned(),
                of(&|outcome| outcome.build_s),
                of(&RunResults::iteration_s),
                median(&|outcome| outcome.gc_ms as f64),
                median(&|outcome| mib(outcome.cached.cached)),
                median(&|outcome| outcome.cached.cached_huge_percent()),
                median(&|outcome| outcome.steady.cached_huge_percent()),
                median(&|outcome| mib(outcome.steady.huge)),
                median(&|outcome| outcome.steady.other_percent()),
                median(&|outcome| mib(outcome.steady.resident)),
            ]);
            if let Some(failure) = &cell.failure {
                let failed = cell.outcomes.iter().filter(|outcome| outcome.is_none()).count();
                table.note(format!(
                    "{}: {failed} of {} runs failed: {failure}",
                    describe(&cell.spec),
                    cell.outcomes.len()
                ));
            }
        }
        table
    }
}

fn job(spec: &Spec) -> String {
    format!("{}, {}, {}", spec.workload.name(), spec.storage.name(), Bytes(spec.bytes))
}

/// Job and policy as text.
pub fn describe(spec: &Spec) -> String {
    format!("{}, {}", job(spec), spec.policy.name())
}

/// Estimated duration of a run, in seconds.
pub fn seconds_of(ground: &Ground<'_>, spec: &Spec) -> f64 {
    let gib = spec.bytes as f64 / (1u64 << 30) as f64;
    let iterations = (ground.params.warm_iterations + ground.params.iterations) as f64;
    9.0 + gib * (8.0 + iterations)
}

#[cfg(test)]
mod tests {
    use super::super::spec::Workload;
    use super::*;

    fn cell(policy: Policy, builds: &[Option<f64>]) -> Cell {
        let spec = Spec {
            workload: Workload::Micro,
            storage: Storage::Serialised,
            policy,
            bytes: 1 << 28,
            executors: 2,
            heap_bytes: 1 << 30,
        };
        let outcome = |&build_s: &f64| RunResults {
            build_s,
            iterations_s: vec![3.0, 1.0, 2.0],
            ..RunResults::default()
        };
        Cell {
            spec,
            outcomes: builds.iter().map(|build| build.as_ref().map(outcome)).collect(),
            failure: None,
        }
    }

    #[test]
    fn ratios_use_runs_of_the_same_round() {
        let grid = Grid(vec![
            cell(Policy::Off, &[Some(2.0), Some(4.0), None]),
            cell(Policy::Part, &[Some(1.0), None, Some(9.0)]),
        ]);
        let ratio = grid
            .ratio(Storage::Serialised, Policy::Part, Policy::Off, |outcome| outcome.build_s)
            .unwrap();
        assert_eq!((ratio.median, ratio.n), (0.5, 1));
        assert_eq!(
            grid.ratio(Storage::OffHeap, Policy::Part, Policy::Off, |outcome| outcome.build_s),
            None
        );
        let spread =
            grid.spread(Storage::Serialised, Policy::Part, RunResults::iteration_s).unwrap();
        assert_eq!((spread.median, spread.n), (2.0, 2));
    }

    #[test]
    fn failed_job_is_listed_with_its_reason() {
        let mut failed = cell(Policy::Part, &[None]);
        failed.failure = Some("no room".to_owned());
        let grid = Grid(vec![failed]);
        let text = grid.table("Jobs").to_text();
        assert!(
            text.contains("1 of 1 runs failed: no room")
                && text.contains('–')
                && !text.contains("NaN"),
            "{text}"
        );
        assert_eq!(grid.remark(Storage::Serialised, &Policy::FOUR), "no room");
    }
}
