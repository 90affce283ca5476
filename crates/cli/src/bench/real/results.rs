//! What the runs came to, as tables, plots and figures.

use std::collections::BTreeMap;

use hiroma_report::{Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series, Spread, Table};

use super::arms::{Arm, Ran};
use crate::bench::children::Failed;
use crate::bench::peers::SwapKind;

const ZRAM: Arm = Arm::Swap(SwapKind::Zram);

/// Repetitions of one program in one arm, and why there are no more.
#[derive(Default)]
struct Cell {
    runs: Vec<Ran>,
    failed: Option<String>,
}

/// All of them, by program, percent of memory and arm.
pub struct Results {
    at: Vec<u8>,
    arms: Vec<Arm>,
    /// What is killed or given up counts as so many times the native time.
    patience: f64,
    programs: Vec<String>,
    cells: BTreeMap<(String, u8, Arm), Cell>,
}

impl Results {
    pub fn new(at: Vec<u8>, arms: Vec<Arm>, patience: f64) -> Results {
        Results { at, arms, patience, programs: Vec::new(), cells: BTreeMap::new() }
    }

    /// A native run.
    pub fn native(&mut self, program: &str, ran: Ran) {
        if !self.programs.iter().any(|known| known == program) {
            self.programs.push(program.to_owned());
        }
        self.add(program, 100, Arm::Native, Ok(ran));
    }

    /// A run with a part of the memory.
    pub fn add(&mut self, program: &str, percent: u8, arm: Arm, outcome: Result<Ran, Failed>) {
        let cell = self.cells.entry((program.to_owned(), percent, arm)).or_default();
        match outcome {
            Ok(ran) => cell.runs.push(ran),
            Err(failed) => cell.failed = Some(failed.to_string()),
        }
    }

    fn cell(&self, program: &str, percent: u8, arm: Arm) -> Option<&Cell> {
        self.cells.get(&(program.to_owned(), percent, arm))
    }

    /// Whether it is of no use to try again.
    pub fn has_failed(&self, program: &str, percent: u8, arm: Arm) -> bool {
        self.cell(program, percent, arm).is_some_and(|cell| cell.failed.is_some())
    }

    fn values(&self, program: &str, percent: u8, arm: Arm, value: impl Fn(&Ran) -> f64) -> Vec<f64> {
        self.cell(program, percent, arm).map_or_else(Vec::new, |cell| cell.runs.iter().map(value).collect())
    }

    /// Seconds and peak of the native runs.
    pub fn natively(&self, program: &str) -> (f64, u64) {
        let seconds = Spread::of(&self.values(program, 100, Arm::Native, |ran| ran.seconds)).map_or(0.0, |spread| spread.median);
        let peak = self.values(program, 100, Arm::Native, |ran| ran.peak_bytes as f64).into_iter().fold(0.0, f64::max);
        (seconds, peak as u64)
    }

    /// Times the native time; what failed counts as the patience.
    fn slowdown(&self, program: &str, percent: u8, arm: Arm) -> Option<Spread> {
        let cell = self.cell(program, percent, arm)?;
        if cell.failed.is_some() {
            return Spread::of(&[self.patience]);
        }
        let native = self.natively(program).0;
        Spread::of(&cell.runs.iter().map(|ran| ran.seconds / native).collect::<Vec<_>>())
    }

    fn slowdown_text(&self, program: &str, percent: u8, arm: Arm) -> String {
        match self.cell(program, percent, arm).map(|cell| &cell.failed) {
            Some(Some(reason)) => reason.clone(),
            _ => self.slowdown(program, percent, arm).map_or_else(String::new, Spread::to_text),
        }
    }

    /// One program, for the terminal while others run.
    pub fn row(&self, program: &str) -> String {
        let (seconds, peak) = self.natively(program);
        let mut text = format!("{program}: {seconds:.1} s, {} MB", peak / 1_000_000);
        for &percent in &self.at {
            let arms = self.arms.iter().map(|&arm| format!("{} {}", arm.name(), self.slowdown_text(program, percent, arm)));
            text += &format!("; {percent} %: {}", arms.collect::<Vec<_>>().join(", "));
        }
        text
    }

    /// Everything.
    pub fn report(&self, report: &mut Report) {
        for &percent in &self.at {
            report.sections.push(Section {
                title: format!("With {percent} % of the memory"),
                text: vec![],
                tables: vec![self.table(percent)],
                plots: vec![self.plot(percent)],
            });
            let ours = self.arms.iter().copied().filter(|arm| matches!(arm, Arm::Compressed | Arm::Default));
            for arm in ours.filter(|_| self.arms.contains(&ZRAM)) {
                report.measures.extend(self.measures(percent, arm));
            }
        }
    }

    fn table(&self, percent: u8) -> Table {
        let mut table = Table::new(format!("Time in times of native, with {percent} % local"))
            .text("program")
            .number("native", "s")
            .number("peak", "MB");
        for arm in &self.arms {
            table = table.number(arm.name(), "x").number("total", "MB").number("pages in", "k");
        }
        for program in &self.programs {
            let (seconds, peak) = self.natively(program);
            let mut row = vec![program.clone(), format!("{seconds:.1}"), format!("{}", peak / 1_000_000)];
            for &arm in &self.arms {
                let most = |value: fn(&Ran) -> u64, unit: f64| {
                    let values = self.values(program, percent, arm, |ran| value(ran) as f64 / unit);
                    Spread::of(&values).map_or_else(String::new, |spread| format!("{:.0}", spread.median))
                };
                row.extend([self.slowdown_text(program, percent, arm), most(|ran| ran.total_bytes, 1e6), most(|ran| ran.pages_in, 1e3)]);
            }
            table.row(row);
        }
        table
    }

    fn plot(&self, percent: u8) -> Plot {
        let series = self.arms.iter().map(|&arm| {
            let points = self.programs.iter().enumerate();
            let points = points.filter_map(|(at, program)| Some(Point::of(at as f64, self.slowdown(program, percent, arm)?)));
            Series::new(arm.name(), points.collect())
        });
        Plot {
            title: format!("Time with {percent} % of the memory"),
            kind: Kind::Bars,
            x: Axis::names("", self.programs.clone()),
            y: Axis::log("time / native", ""),
            series: series.collect(),
        }
    }

    /// Against zram: each program, and the geometric mean of all.
    fn measures(&self, percent: u8, arm: Arm) -> Vec<Measure> {
        let mut measures = Vec::new();
        let mut logarithms = Vec::new();
        for program in &self.programs {
            let name = format!("real_{percent}_{}_{}", arm.name(), program.replace('-', "_"));
            let measure = Measure::new(name, format!("{program} with {percent} %, {}, against zram", arm.name()), "", Better::Lower)
                .must(1.2)
                .aim(0.7);
            let (Some(ours), Some(zram)) = (self.slowdown(program, percent, arm), self.slowdown(program, percent, ZRAM)) else {
                measures.push(measure.note("not run"));
                continue;
            };
            logarithms.push((ours.median / zram.median).ln());
            let ratio =
                Spread { median: ours.median / zram.median, min: ours.min / zram.max, max: ours.max / zram.min, n: ours.n.min(zram.n) };
            let failures = [arm, ZRAM].into_iter().filter_map(|arm| {
                let reason = self.cell(program, percent, arm)?.failed.as_ref()?;
                Some(format!("{}: {reason}, counted as {} times native", arm.name(), self.patience))
            });
            measures.push(measure.spread(Some(ratio)).note(failures.collect::<Vec<_>>().join("; ")));
        }
        let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
        let title = format!("geometric mean of {} programs with {percent} %, {}, against zram", logarithms.len(), arm.name());
        let measure = Measure::new(format!("real_{percent}_{}_mean", arm.name()), title, "", Better::Lower).must(0.8).aim(0.5);
        measures.push(measure.spread(Spread::of(&[mean.exp()])));
        measures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(seconds: f64) -> Ran {
        Ran { seconds, peak_bytes: 100_000_000, total_bytes: 60_000_000, pages_in: 1000 }
    }

    #[test]
    fn what_is_killed_counts_as_the_patience_and_the_mean_is_geometric() {
        let mut results = Results::new(vec![50], vec![ZRAM, Arm::Compressed], 13.0);
        for (program, zram, ours) in [("a", Ok(ran(4.0)), Ok(ran(2.0))), ("b", Err(Failed::OutOfMemory), Ok(ran(26.0)))] {
            results.native(program, ran(1.0));
            results.native(program, ran(3.0));
            results.add(program, 50, ZRAM, zram);
            results.add(program, 50, Arm::Compressed, ours);
        }
        assert!(results.has_failed("b", 50, ZRAM) && !results.has_failed("b", 50, Arm::Compressed));
        let mut report = Report::default();
        results.report(&mut report);
        let value = |name: &str| report.measures.iter().find(|measure| measure.name == name).unwrap();
        assert_eq!((value("real_50_compressed_a").value, value("real_50_compressed_a").met), (Some(0.5), Some(true)));
        assert_eq!(value("real_50_compressed_b").value, Some(1.0));
        assert!(value("real_50_compressed_b").note.contains("zram: killed for want of memory"));
        let mean = value("real_50_compressed_mean").value.unwrap();
        assert!((mean - 0.5_f64.sqrt()).abs() < 1e-9, "{mean}");
        assert!(report.sections[0].to_text().contains("killed for want of memory"));
        assert!(!report.to_html().contains("NaN"));
    }

    #[test]
    fn what_was_not_run_has_no_figure_and_no_mean() {
        let mut results = Results::new(vec![25], vec![ZRAM, Arm::Compressed], 13.0);
        results.native("a", ran(1.0));
        let mut report = Report::default();
        results.report(&mut report);
        assert!(report.measures.iter().all(|measure| measure.value.is_none() && measure.met.is_none()));
    }
}
