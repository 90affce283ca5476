//! Runs what is incomplete, alternating between the arms, and saves the results after each run.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::arms::Arm;
use super::cells::{Attempt, Cell, Cells, End, NATIVE};
use super::knob::{Next, Search};
use super::plan::{Equal, Group, LOAD_SECONDS, Size, TARGET_LEAST_BYTES};
use super::results::Results;
use super::work::{Item, Runner, Work};
use crate::children::{Failed, Interrupt};
use crate::peers::ALLOWANCE_BYTES;
use crate::progress::Progress;

/// Time limit of a native run.
const NATIVE_LIMIT: Duration = Duration::from_secs(600);
/// Minimum time limit of a run, for very short items.
const PATIENCE_LEAST_SECONDS: f64 = 2.0;
/// Assumed duration of a run before anything is known, in seconds.
const RUN_SECONDS: f64 = 6.0;

/// Amount of work.
pub struct Limits {
    pub repetitions: usize,
    pub patience: f64,
    /// Start nothing after this number of seconds.
    pub seconds: Option<u64>,
}

/// One call of the bench.
pub struct Session<'a> {
    cells: &'a mut Cells,
    runner: Runner<'a>,
    limits: Limits,
    save: &'a dyn Fn(&Cells) -> Result<()>,
    start: Instant,
    /// Arms that are not possible here.
    missing: Vec<(Arm, String)>,
}

impl<'a> Session<'a> {
    /// A session with its files in `dir`, which calls `save` after each run.
    pub fn new(
        cells: &'a mut Cells,
        dir: &Path,
        interrupt: &'a Interrupt,
        limits: Limits,
        save: &'a dyn Fn(&Cells) -> Result<()>,
    ) -> Session<'a> {
        Session {
            cells,
            runner: Runner { dir: dir.to_owned(), interrupt },
            limits,
            save,
            start: Instant::now(),
            missing: Vec::new(),
        }
    }

    /// Checks which arms are possible, and reports that.
    pub fn look_at(&mut self, groups: &[Group]) -> Vec<String> {
        let mut about = Vec::new();
        let mut seen: Vec<Arm> = Vec::new();
        for &arm in groups.iter().flat_map(|group| &group.arms) {
            if seen.contains(&arm) {
                continue;
            }
            seen.push(arm);
            match arm.look() {
                Ok(None) => {}
                Ok(Some(what)) => about.push(format!("{} is {what}", arm.name())),
                Err(reason) => {
                    about.push(format!("{} is skipped: {reason:#}", arm.name()));
                    self.missing.push((arm, format!("{reason:#}")));
                }
            }
        }
        about
    }

    /// Runs everything. Returns the number of runs that are left because time ran out.
    pub fn run(&mut self, groups: &[Group]) -> Result<usize, Failed> {
        let mut progress = Progress::new(RUN_SECONDS * self.left(groups) as f64);
        for group in groups {
            for (item, sizes) in &group.items {
                self.item(group, item, sizes, &mut progress)?;
            }
        }
        Ok(self.left(groups))
    }

    fn left(&self, groups: &[Group]) -> usize {
        let cells = groups
            .iter()
            .flat_map(|group| group.items.iter().map(move |(item, sizes)| (group, item, sizes)));
        cells.map(|(group, item, sizes)| self.left_of(group, item, sizes)).sum()
    }

    fn left_of(&self, group: &Group, item: &Item, sizes: &[Size]) -> usize {
        let runs = |size: &str, arm: Arm| match self.cells.find(
            group.name,
            &item.name,
            size,
            arm.name(),
        ) {
            Some(cell) if cell.is_done(self.limits.repetitions) => 0,
            Some(cell) => self.limits.repetitions - cell.runs.len(),
            None => self.limits.repetitions,
        };
        let natively = if group.natively { runs(NATIVE, Arm::Native) } else { 0 };
        natively
            + sizes
                .iter()
                .flat_map(|size| group.arms.iter().map(|&arm| runs(&size.name(), arm)))
                .sum::<usize>()
    }

    /// Runs one item: natively, then each arm with each size, and repeats that.
    fn item(
        &mut self,
        group: &Group,
        item: &Item,
        sizes: &[Size],
        progress: &mut Progress,
    ) -> Result<(), Failed> {
        if self.left_of(group, item, sizes) == 0 || is_late(self.start, self.limits.seconds) {
            return Ok(());
        }
        if let Work::Postgres(postgres) = &item.work {
            progress.starts("preparing postgres");
            if let Err(failed) = postgres.prepare(self.runner.interrupt) {
                return self.left_out(item, failed, progress);
            }
        }
        for repetition in 0..self.limits.repetitions {
            if group.natively {
                let cell = self.cells.find(group.name, &item.name, NATIVE, NATIVE);
                let runs = cell.map_or(0, |cell| cell.runs.len());
                // Outputs are compared with a native one of this call.
                if runs <= repetition || (repetition == 0 && matches!(item.work, Work::Program(_)))
                {
                    progress.starts(&format!("{} natively", item.name));
                    match self.natively(group, item) {
                        Ok(()) if runs <= repetition => progress.done(RUN_SECONDS),
                        Ok(()) => {}
                        Err(failed) => return self.left_out(item, failed, progress),
                    }
                }
            }
            for &size in sizes {
                for &arm in &group.arms {
                    if is_late(self.start, self.limits.seconds) {
                        return Ok(());
                    }
                    let Some(()) = self.turn(group, item, size, arm, repetition, progress)? else {
                        continue;
                    };
                    (self.save)(self.cells)?;
                    progress.done(RUN_SECONDS);
                }
            }
        }
        let results = Results { cells: self.cells, patience: self.limits.patience };
        progress.say(&results.row(group.name, &item.name));
        Ok(())
    }

    fn left_out(&self, item: &Item, failed: Failed, progress: &Progress) -> Result<(), Failed> {
        if matches!(failed, Failed::Interrupted) {
            return Err(failed);
        }
        progress.say(&format!("hiroma: {} is left out: {failed:#}", item.name));
        Ok(())
    }

    fn natively(&mut self, group: &Group, item: &Item) -> Result<(), Failed> {
        let ran = self.runner.run(item, Arm::Native, 0, NATIVE_LIMIT)?;
        if let Some(end) = &ran.end {
            return Err(anyhow::anyhow!("natively it {}", end.reason()).into());
        }
        self.cells.at(group.name, &item.name, NATIVE, NATIVE).runs.push(ran);
        Ok((self.save)(self.cells)?)
    }

    /// Memory of the native run, and the time limit for the other arms.
    fn natively_took(&self, group: &Group, item: &Item) -> (u64, Duration) {
        let native = self.cells.native(group.name, &item.name);
        let bytes = native.map_or(0, |cell| cell.runs[0].total_bytes);
        let seconds = native.map_or(0.0, |cell| {
            cell.values(|run| run.wall_seconds).into_iter().fold(0.0, f64::max)
        });
        let is_load = matches!(item.work, Work::Load(_));
        let patience = if is_load {
            LOAD_SECONDS
        } else {
            (seconds * self.limits.patience).max(PATIENCE_LEAST_SECONDS)
        };
        (bytes, Duration::from_secs_f64(patience))
    }

    /// The `repetition`th run of a cell; none if it exists already or is not possible.
    fn turn(
        &mut self,
        group: &Group,
        item: &Item,
        size: Size,
        arm: Arm,
        repetition: usize,
        progress: &mut Progress,
    ) -> Result<Option<()>, Failed> {
        let missing = self
            .missing
            .iter()
            .find(|(missing, _)| *missing == arm)
            .map(|(_, reason)| reason.clone());
        let cell = self.cells.at(group.name, &item.name, &size.name(), arm.name());
        if let Some(reason) = missing {
            cell.end.get_or_insert(End::Skipped(reason));
        }
        if cell.is_done(repetition + 1) {
            return Ok(None);
        }
        progress.starts(&format!(
            "{}, {}, {}, {} of {}",
            item.name,
            size.name(),
            arm.name(),
            repetition + 1,
            self.limits.repetitions
        ));
        cell.failed_seconds = matches!(item.work, Work::Load(_)).then_some(LOAD_SECONDS);
        let (native_bytes, patience) = self.natively_took(group, item);
        let cell = self.cells.at(group.name, &item.name, &size.name(), arm.name());
        let run = |limit: u64| self.runner.run(item, arm, limit, patience);
        let (start, seconds) = (self.start, self.limits.seconds);
        let is_late = || is_late(start, seconds);
        let outcome = match (group.equal, cell.limit_bytes) {
            (Equal::Total, None) => {
                let target = *cell
                    .target_bytes
                    .get_or_insert(size.bytes(native_bytes).max(TARGET_LEAST_BYTES));
                let search = Search {
                    target,
                    native: native_bytes,
                    least: arm.least(),
                    beside: arm.is_beside(),
                    above: arm.is_ours(),
                };
                look_for(cell, search, &run, &is_late)
            }
            (_, limit) => {
                let resident = size.bytes(native_bytes).max(16 << 20)
                    + if arm.is_ours() { 0 } else { ALLOWANCE_BYTES };
                cell.limit_bytes = Some(limit.unwrap_or(resident));
                run(limit.unwrap_or(resident)).map(|ran| record(cell, ran))
            }
        };
        match outcome {
            Ok(()) => {}
            Err(Failed::Interrupted) => return Err(Failed::Interrupted),
            // The machine could not be set up for the arm, so nothing is known about it.
            Err(failed) => cell.end = Some(End::Skipped(format!("{failed:#}"))),
        }
        Ok(Some(()))
    }
}

/// Stores a run.
fn record(cell: &mut Cell, ran: Attempt) {
    match ran.end.clone() {
        Some(end) => {
            cell.end = Some(end);
            cell.tries.push((cell.limit_bytes.unwrap_or(0), ran));
        }
        None => cell.runs.push(ran),
    }
}

/// Whether nothing more may start.
fn is_late(start: Instant, seconds: Option<u64>) -> bool {
    seconds.is_some_and(|seconds| start.elapsed().as_secs() >= seconds)
}

/// Searches for the limit at which the total is the target. The run with this limit counts. If
/// there is no time to continue, the attempts are kept.
fn look_for(
    cell: &mut Cell,
    search: Search,
    run: &dyn Fn(u64) -> Result<Attempt, Failed>,
    is_late: &dyn Fn() -> bool,
) -> Result<(), Failed> {
    loop {
        match search.next(&cell.tries) {
            Next::Try(_) if !cell.tries.is_empty() && is_late() => return Ok(()),
            Next::Try(limit) => {
                let ran = run(limit)?;
                let failed = ran.end.clone().filter(|end| matches!(end, End::Failed(_)));
                cell.tries.push((limit, ran));
                if failed.is_some() {
                    cell.end = failed;
                    return Ok(());
                }
            }
            Next::Found(limit) => {
                cell.limit_bytes = Some(limit);
                let at = cell.tries.iter().position(|&(tried, _)| tried == limit);
                cell.runs.extend(at.map(|at| cell.tries.remove(at).1));
                return Ok(());
            }
            Next::DoesNotFit(bytes) => {
                cell.end = Some(End::DoesNotFit(bytes));
                return Ok(());
            }
            Next::Failed(at) => {
                cell.limit_bytes = Some(cell.tries[at].0);
                cell.end = cell.tries[at].1.end.clone();
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_at_target_total_is_the_first_repetition() {
        let mut cell = Cell::default();
        let search = Search {
            target: 200 << 20,
            native: 400 << 20,
            least: 16 << 20,
            beside: true,
            above: false,
        };
        let run = |limit: u64| {
            Ok(Attempt {
                total_bytes: limit + ((400 << 20) - limit) / 5,
                seconds: limit as f64,
                ..Attempt::default()
            })
        };
        look_for(&mut cell, search, &run, &|| false).unwrap();
        assert_eq!((cell.runs.len(), cell.end.clone()), (1, None));
        assert!(
            search.is_target(cell.runs[0].total_bytes)
                && cell.limit_bytes == Some(cell.runs[0].seconds as u64)
        );
    }

    #[test]
    fn wrong_answer_ends_search_and_interrupt_keeps_results() {
        let search = Search {
            target: 200 << 20,
            native: 400 << 20,
            least: 16 << 20,
            beside: true,
            above: false,
        };
        let mut cell = Cell::default();
        let wrong = Some(End::Failed("its output is not as the native one".into()));
        look_for(
            &mut cell,
            search,
            &|_| Ok(Attempt { end: wrong.clone(), ..Attempt::default() }),
            &|| false,
        )
        .unwrap();
        assert_eq!((cell.end, cell.tries.len()), (wrong, 1));
        let mut cell = Cell {
            tries: vec![(200 << 20, Attempt { total_bytes: 300 << 20, ..Attempt::default() })],
            ..Cell::default()
        };
        assert!(matches!(
            look_for(&mut cell, search, &|_| Err(Failed::Interrupted), &|| false),
            Err(Failed::Interrupted)
        ));
        // No time for another attempt: the known ones are kept.
        look_for(&mut cell, search, &|_| Err(Failed::OutOfMemory), &|| true).unwrap();
        assert_eq!((cell.tries.len(), cell.runs.len(), cell.end), (1, 0, None));
    }
}
