//! The cells as tables and plots, including cells in the file that earlier calls have measured.

use hiroma_report::{Axis, Kind, Plot, Point, Report, Section, Series, Spread, Table, figures};

use super::cells::{Attempt, Cell, Cells, NATIVE, mean};
use super::goals;
use super::plan::GROUPS;

/// Arms in the order in which they are shown.
const ORDER: [&str; 18] = [
    "native",
    "zram",
    "zswap",
    "swap-file",
    "compressed",
    "no-disk",
    "file",
    "default",
    "blind",
    "tcp",
    "auto",
    "4K",
    "8K",
    "16K",
    "32K",
    "64K",
    "2M",
    "roomy",
];

/// The cells, and the value of failures.
pub struct Results<'a> {
    pub cells: &'a Cells,
    /// In times native.
    pub patience: f64,
}

impl<'a> Results<'a> {
    /// Distinct keys of the cells of a group, in order of appearance.
    fn distinct(&self, group: &str, key: impl Fn(&'a Cell) -> &'a str) -> Vec<&'a str> {
        let mut found = Vec::new();
        for cell in self.cells.0.iter().filter(|cell| cell.group == group) {
            if !found.contains(&key(cell)) {
                found.push(key(cell));
            }
        }
        found
    }

    /// Items of a group that ran.
    pub fn items(&self, group: &str) -> Vec<&'a str> {
        self.distinct(group, |cell| &cell.item)
    }

    /// Arms of a group, except native.
    pub fn arms(&self, group: &str) -> Vec<&'a str> {
        let mut arms = self.distinct(group, |cell| &cell.arm);
        arms.retain(|&arm| arm != NATIVE);
        arms.sort_by_key(|arm| ORDER.iter().position(|name| name == arm));
        arms
    }

    /// Sizes of a group, in descending order.
    pub fn sizes(&self, group: &str) -> Vec<&'a str> {
        let mut sizes = self.distinct(group, |cell| &cell.size);
        sizes.retain(|&size| size != NATIVE);
        sizes.sort_by_key(|size| {
            std::cmp::Reverse(size.trim_end_matches(['%', 'M']).parse::<u64>().unwrap_or(0))
        });
        sizes
    }

    /// One cell.
    pub fn cell(&self, group: &str, item: &str, size: &str, arm: &str) -> Option<&'a Cell> {
        self.cells.find(group, item, size, arm)
    }

    /// Seconds and bytes of the native run.
    pub fn natively(&self, group: &str, item: &str) -> Option<(f64, u64)> {
        let cell = self.cells.native(group, item)?;
        Some((Spread::of(&cell.values(|run| run.seconds))?.median, cell.runs[0].total_bytes))
    }

    /// Times in times native; a failure counts as the patience.
    pub fn slowdown(&self, cell: &Cell) -> Option<Spread> {
        let (native, _) = self.natively(&cell.group, &cell.item)?;
        Spread::of(
            &self
                .cells
                .seconds(cell, self.patience)?
                .into_iter()
                .map(|seconds| seconds / native)
                .collect::<Vec<_>>(),
        )
    }

    fn text(&self, cell: Option<&Cell>, value: impl Fn(&Cell) -> Option<Spread>) -> String {
        let Some(cell) = cell else { return String::new() };
        match &cell.end {
            Some(end) => end.to_text(self.patience),
            None => value(cell).map_or_else(String::new, Spread::to_text),
        }
    }

    /// One item as text, for the terminal while others run.
    pub fn row(&self, group: &str, item: &str) -> String {
        let native = self.natively(group, item).map_or_else(String::new, |(seconds, bytes)| {
            format!(" {seconds:.2} s, {} MB", bytes / 1_000_000)
        });
        let mut text = format!("{item}:{native}");
        for size in self.sizes(group) {
            let arms = self
                .arms(group)
                .into_iter()
                .filter_map(|arm| Some((arm, self.cell(group, item, size, arm)?)));
            let arms = arms.map(|(arm, cell)| {
                let times = self.text(Some(cell), |cell| {
                    if native.is_empty() { per_access(cell) } else { self.slowdown(cell) }
                });
                format!(
                    "{arm} {times} of {} MB",
                    most(cell, |run| run.total_bytes).unwrap_or(0.0) as u64
                )
            });
            let arms = arms.collect::<Vec<_>>().join(", ");
            if !arms.is_empty() {
                text += &format!("; {size}: {arms}");
            }
        }
        text
    }

    /// Adds all sections to the report.
    pub fn report(&self, report: &mut Report) {
        for group in GROUPS.into_iter().filter(|group| !self.items(group).is_empty()) {
            match group {
                "programs" => report
                    .sections
                    .extend(self.sizes(group).into_iter().map(|size| self.programs(size))),
                "servers" => report
                    .sections
                    .extend(self.sizes(group).into_iter().map(|size| self.servers(size))),
                "threads" => report.sections.push(self.threads()),
                "bad" => report.sections.push(self.seconds(group, "Bad input", BAD)),
                "fits" => report.sections.push(self.seconds(group, "More than it uses", FITS)),
                _ => report.sections.push(self.seconds(group, "Fixed blocks against auto", BLOCKS)),
            }
        }
        report.measures = goals::measures(self);
        let ends = self.cells.0.iter().filter_map(|cell| Some((cell, cell.end.as_ref()?)));
        let ends = ends.filter(|(_, end)| {
            matches!(end, super::cells::End::Failed(_) | super::cells::End::Skipped(_))
        });
        report.preamble.extend(ends.map(|(cell, end)| {
            format!("{} at {} in {}: {}", cell.item, cell.size, cell.arm, end.reason())
        }));
    }

    fn programs(&self, size: &str) -> Section {
        let group = "programs";
        let arms = self.arms(group);
        let mut table = Table::new(format!("Times of native, with {size} of the memory"))
            .text("program")
            .number("native", "s")
            .number("memory", "MB");
        for &arm in &arms {
            table = table.number(arm, "x").number("total", "MB");
            if arm == "tcp" {
                table = table.number("remote", "MB");
            }
            table = table.number("pages in", "k");
        }
        let mut slowdowns = vec![Vec::new(); arms.len()];
        for item in self.items(group) {
            let Some((seconds, bytes)) = self.natively(group, item) else { continue };
            let mut row =
                vec![item.to_owned(), format!("{seconds:.2}"), format!("{}", bytes / 1_000_000)];
            for (at, arm) in arms.iter().enumerate() {
                let cell = self.cell(group, item, size, arm);
                let number = |value: fn(&Attempt) -> u64| {
                    cell.and_then(|cell| most(cell, value))
                        .map_or_else(String::new, |mb| format!("{mb:.0}"))
                };
                row.extend([
                    self.text(cell, |cell| self.slowdown(cell)),
                    number(|run| run.total_bytes),
                ]);
                if *arm == "tcp" {
                    row.push(number(|run| run.remote_bytes));
                }
                row.push(number(|run| run.pages_in * 1000));
                slowdowns[at]
                    .extend(cell.and_then(|cell| self.slowdown(cell)).map(|spread| spread.median));
            }
            table.row(row);
        }
        let mut row = vec!["geometric mean".to_owned(), String::new(), String::new()];
        for (values, arm) in slowdowns.iter().zip(&arms) {
            row.extend([
                mean(values).map_or_else(String::new, figures),
                format!("of {}", values.len()),
            ]);
            row.extend(vec![String::new(); 1 + usize::from(*arm == "tcp")]);
        }
        table.row(row);
        Section {
            title: format!("Programs with {size} of their memory"),
            text: vec![],
            tables: vec![table],
            plots: vec![self.slowdowns(size)],
        }
    }

    fn slowdowns(&self, size: &str) -> Plot {
        let group = "programs";
        let title = format!("Time with {size} of the memory");
        self.bars(group, &title, "time / native", |item, arm| {
            self.slowdown(self.cell(group, item, size, arm)?)
        })
    }

    /// The times of the programs with 50 % of their memory, or with the next size that was measured.
    pub fn picture(&self) -> Option<Plot> {
        let sizes = self.sizes("programs");
        let size = sizes.iter().find(|&&size| size == "50%").or(sizes.first())?;
        Some(self.slowdowns(size))
    }

    /// Bar plot of a group: items side by side, an arm in each colour.
    fn bars(
        &self,
        group: &str,
        title: &str,
        label: &str,
        value: impl Fn(&str, &str) -> Option<Spread>,
    ) -> Plot {
        let items = self.items(group);
        let series = self.arms(group).into_iter().map(|arm| {
            let points = items
                .iter()
                .enumerate()
                .filter_map(|(at, item)| Some(Point::of(at as f64, value(item, arm)?)));
            Series::new(arm, points.collect())
        });
        let series = series.collect();
        Plot {
            title: title.to_owned(),
            kind: Kind::Bars,
            x: Axis::names("", items),
            y: Axis::log(label, ""),
            series,
        }
    }

    fn servers(&self, size: &str) -> Section {
        let group = "servers";
        let mut table = Table::new(format!("Requests of a client, with {size} of the memory"))
            .text("server")
            .text("arm")
            .number("requests", "1/s")
            .number("p50", "us")
            .number("p99", "us")
            .number("total", "MB")
            .number("remote", "MB");
        let arms: Vec<&str> = std::iter::once(NATIVE).chain(self.arms(group)).collect();
        for item in self.items(group) {
            for arm in &arms {
                let size = if *arm == NATIVE { NATIVE } else { size };
                let Some(cell) = self.cell(group, item, size, arm) else { continue };
                let text = |value: fn(&Attempt) -> f64| {
                    self.text(Some(cell), |cell| Spread::of(&cell.values(value)))
                };
                let number = |value: fn(&Attempt) -> u64| {
                    most(cell, value).map_or_else(String::new, |mb| format!("{mb:.0}"))
                };
                table.row([
                    item.to_owned(),
                    (*arm).to_owned(),
                    text(per_second),
                    text(p50),
                    text(p99),
                    number(|run| run.total_bytes),
                    number(|run| run.remote_bytes),
                ]);
            }
        }
        let kinds = [("p50", p50 as fn(&Attempt) -> f64), ("p99", p99)];
        let items = self.items(group);
        let places: Vec<String> =
            items.iter().flat_map(|item| kinds.map(|(kind, _)| format!("{item} {kind}"))).collect();
        let series = arms.iter().map(|&arm| {
            let size = if arm == NATIVE { NATIVE } else { size };
            let places =
                items.iter().flat_map(|item| kinds.map(|(_, value)| (*item, value))).enumerate();
            let points = places.filter_map(|(at, (item, value))| {
                Some(Point::of(
                    at as f64,
                    Spread::of(&self.cell(group, item, size, arm)?.values(value))?,
                ))
            });
            Series::new(arm, points.collect())
        });
        let plot = Plot {
            title: format!("Latency with {size} of the memory"),
            kind: Kind::Bars,
            x: Axis::names("", places),
            y: Axis::log("latency", "us"),
            series: series.collect(),
        };
        Section {
            title: format!("Servers with {size} of their memory"),
            text: vec![SERVERS.into()],
            tables: vec![table],
            plots: vec![plot],
        }
    }

    fn threads(&self) -> Section {
        let group = "threads";
        let size = self.sizes(group).first().copied().unwrap_or_default();
        let mut table = Table::new("Microseconds per access").text("access").number("threads", "");
        for arm in self.arms(group) {
            table = table.number(arm, "us").number("total", "MB");
        }
        let mut plots = Vec::new();
        for kind in ["random-read", "random-write"] {
            let items = || {
                self.items(group)
                    .into_iter()
                    .filter_map(|item| Some((item, item.strip_prefix(kind)?.strip_prefix("-t")?)))
            };
            let mut series = Vec::new();
            for arm in self.arms(group) {
                let point = |(item, threads): (&str, &str)| {
                    Some(Point::of(
                        threads.parse().ok()?,
                        per_access(self.cell(group, item, size, arm)?)?,
                    ))
                };
                series.push(Series::new(arm, items().filter_map(point).collect()));
            }
            for (item, threads) in items() {
                let mut row = vec![kind.replace('-', " "), threads.to_owned()];
                for arm in self.arms(group) {
                    let cell = self.cell(group, item, size, arm);
                    let total = cell
                        .and_then(|cell| most(cell, |run| run.total_bytes))
                        .map_or_else(String::new, |mb| format!("{mb:.0}"));
                    row.extend([self.text(cell, per_access), total]);
                }
                table.row(row);
            }
            let (x, y) = (Axis::log("threads", ""), Axis::linear("per access", "us"));
            plots.push(Plot {
                title: format!("Time of a {}", kind.replace('-', " ")),
                kind: Kind::Lines,
                x,
                y,
                series,
            });
        }
        Section {
            title: "Threads at random".into(),
            text: vec![THREADS.into()],
            tables: vec![table],
            plots,
        }
    }

    /// Seconds of each item in each arm, for all sizes.
    fn seconds(&self, group: &str, title: &str, about: &str) -> Section {
        let arms = self.arms(group);
        let mut table = Table::new("Seconds").text("program").text("memory").number("native", "s");
        for &arm in &arms {
            table = table.number(arm, "s").number("total", "MB");
        }
        for size in self.sizes(group) {
            for item in self.items(group) {
                let cells: Vec<_> =
                    arms.iter().map(|arm| self.cell(group, item, size, arm)).collect();
                if cells.iter().all(Option::is_none) {
                    continue;
                }
                let native = self
                    .cells
                    .native(group, item)
                    .and_then(|cell| Spread::of(&cell.values(|run| run.seconds)));
                let mut row = vec![
                    item.to_owned(),
                    size.to_owned(),
                    native.map_or_else(String::new, Spread::to_text),
                ];
                for cell in cells {
                    let total = cell
                        .and_then(|cell| most(cell, |run| run.total_bytes))
                        .map_or_else(String::new, |mb| format!("{mb:.0}"));
                    row.extend([
                        self.text(cell, |cell| Spread::of(&cell.values(|run| run.seconds))),
                        total,
                    ]);
                }
                table.row(row);
            }
        }
        let plot = self.bars(group, title, "time (s)", |item, arm| {
            let cell = self
                .cells
                .0
                .iter()
                .find(|cell| (&*cell.group, &*cell.item, &*cell.arm) == (group, item, arm))?;
            Spread::of(&self.cells.seconds(cell, self.patience)?)
        });
        Section {
            title: title.to_owned(),
            text: vec![about.to_owned()],
            tables: vec![table],
            plots: vec![plot],
        }
    }
}

/// Maximum of a value over the runs, or over the last attempt if there are none, in MB.
fn most(cell: &Cell, value: impl Fn(&Attempt) -> u64) -> Option<f64> {
    let tried = cell.tries.last().map(|(_, run)| run);
    let runs: Vec<u64> = if cell.runs.is_empty() {
        tried.into_iter().map(&value).collect()
    } else {
        cell.runs.iter().map(&value).collect()
    };
    runs.into_iter().max().map(|most| most as f64 / 1e6)
}

/// Microseconds per access.
pub fn per_access(cell: &Cell) -> Option<Spread> {
    Spread::of(&cell.values(|run| run.seconds * 1e6 / run.count as f64))
}

/// Median latency of requests, in microseconds.
pub fn p50(run: &Attempt) -> f64 {
    run.latency.map_or(f64::NAN, |latency| latency.p50_us)
}

/// 99th percentile of the latency of requests, in microseconds.
pub fn p99(run: &Attempt) -> f64 {
    run.latency.map_or(f64::NAN, |latency| latency.p99_us)
}

/// Requests per second.
pub fn per_second(run: &Attempt) -> f64 {
    run.count as f64 / run.seconds
}

const SERVERS: &str = "Redis holds 150,000 values of about a kilobyte; one client reads and writes them in turn, one in ten is written, four of five \
                       requests go to a fifth of the keys, and every value that is read is checked. PostgreSQL sorts and groups 400,000 rows in the private memory of \
                       two connections; pgbench measures. What is shared between its processes stays local under `hiroma run`. The clients are outside of the group.";
const THREADS: &str = "Words of random pages of 512 MiB, of which 128 MiB are resident in both arms: 3 s to settle, then 4 s in which accesses are counted. \
                       Time divided by the accesses of all threads.";
const BAD: &str = "As much is resident in each arm, but for `default`, whose limit holds all of it; total shows what is compressed on top. shifting: another pattern \
                   each second, the time of 50,000 touches of each of eight; once: 768 MiB are written once; incompressible: random accesses to 384 MiB of noise; tiny: \
                   16 MiB are resident, four of five accesses go to a fifth.";
const FITS: &str = "The limit is twice what the program uses, and more: what `hiroma run` costs who does not need it, its start included. first-touch: each page of 256 \
                    MiB of fresh memory, five times; \
                    fresh memory comes in huge pages under `hiroma run`, natively only where transparent huge pages are always on.";
const BLOCKS: &str =
    "Compressed memory beside a limit of half of the memory, as much resident with each size.";

#[cfg(test)]
mod tests {
    use super::super::cells::End;
    use super::*;

    fn ran(seconds: f64) -> Attempt {
        Attempt { seconds, total_bytes: 60_000_000, count: 1000, ..Attempt::default() }
    }

    fn report(cells: &Cells) -> Report {
        let mut report = Report::default();
        Results { cells, patience: 13.0 }.report(&mut report);
        report
    }

    #[test]
    fn failures_are_shown_and_counted_in_the_mean() {
        let mut cells = Cells::default();
        for (item, zram, ours) in [("a", None, 2.0), ("b", Some(End::Killed), 26.0)] {
            cells.at("programs", item, NATIVE, NATIVE).runs = vec![ran(1.0), ran(3.0)];
            let cell = cells.at("programs", item, "50%", "zram");
            cell.end = zram;
            cell.runs = if cell.end.is_none() { vec![ran(4.0)] } else { Vec::new() };
            cells.at("programs", item, "50%", "compressed").runs = vec![ran(ours)];
        }
        cells.at("programs", "b", "25%", "zram").end = Some(End::Stopped);
        let report = report(&cells);
        let value =
            |name: &str| report.measures.iter().find(|measure| measure.name == name).unwrap();
        assert_eq!(
            (value("real_50_compressed_a").value, value("real_50_compressed_a").met),
            (Some(0.5), Some(true))
        );
        assert_eq!(value("real_50_compressed_b").value, Some(1.0));
        assert!(value("real_50_compressed_b").note.contains("zram: killed for want of memory"));
        let mean = value("real_50_compressed_mean").value.unwrap();
        assert!((mean - 0.5_f64.sqrt()).abs() < 1e-9, "{mean}");
        let text = report.sections[0].to_text();
        assert!(text.contains("killed") && text.contains("geometric mean"), "{text}");
        assert!(report.sections[1].to_text().contains("> 13"));
        assert!(!report.to_html().contains("NaN"));
    }

    #[test]
    fn every_group_has_tables_and_figures() {
        let mut cells = Cells::default();
        for (group, item, size, arms) in [
            ("servers", "redis", "50%", ["zram", "compressed"]),
            ("threads", "random-read-t2", "128M", ["zram", "compressed"]),
            ("bad", "once", "128M", ["zram", "compressed"]),
            ("fits", "first-touch", "roomy", ["roomy", "roomy"]),
            ("blocks", "a", "50%", ["auto", "16K"]),
        ] {
            cells.at(group, item, NATIVE, NATIVE).runs = vec![ran(1.0)];
            cells.at(group, item, size, arms[0]).runs = vec![ran(2.0)];
            cells.at(group, item, size, arms[1]).runs = vec![ran(1.0)];
        }
        let report = report(&cells);
        let value = |name: &str| {
            report
                .measures
                .iter()
                .find(|measure| measure.name == name)
                .unwrap_or_else(|| panic!("{name}"))
                .value
        };
        assert_eq!(value("random_read_us_t2_vs_zram"), Some(0.5));
        assert_eq!(value("bad_once_compressed_vs_zram"), Some(0.5));
        assert_eq!(value("first_touch_vs_native"), Some(1.0));
        assert_eq!(value("block_auto_a"), Some(2.0));
        assert_eq!(value("redis_50_compressed_per_s"), Some(1000.0));
        assert_eq!(report.sections.len(), 5);
        assert!(!report.to_html().contains("NaN"));
    }

    #[test]
    fn skipped_run_has_no_figure() {
        let mut cells = Cells::default();
        cells.at("programs", "a", NATIVE, NATIVE).runs = vec![ran(1.0)];
        cells.at("programs", "a", "25%", "compressed").runs = vec![ran(2.0)];
        cells.at("programs", "a", "25%", "zram").end = Some(End::Skipped("none here".into()));
        let report = report(&cells);
        assert!(
            report.measures.iter().all(|measure| measure.value.is_none() && measure.met.is_none())
        );
        assert!(report.preamble.iter().any(|line| line.contains("none here")));
    }
}
