//! The results as tables.

use hiroma_report::{Section, Spread, Table, figures};

use super::Results;
use crate::noise::arm::{Arm, Group};
use crate::noise::extra::STREAMS;
use crate::noise::run::Run;

impl Results {
    pub(super) fn sections(&self) -> Vec<Section> {
        let mut sections = Vec::new();
        let title = |group: Group| match group {
            Group::Small => "Small pages (order 0)",
            Group::Large => "Large folios",
            Group::Alloc => "An application that takes and gives back memory",
            Group::Write => "A writer",
            Group::Nfs => "A file over NFS",
            _ => "What is used otherwise",
        };
        for group in
            [Group::Small, Group::Large, Group::Alloc, Group::Write, Group::Nfs, Group::Peers]
        {
            let arms: Vec<&(Arm, Vec<Option<Run>>)> =
                self.arms.iter().filter(|(arm, _)| arm.group == group).collect();
            if arms.is_empty() {
                continue;
            }
            let plots = if group == Group::Small { self.plots() } else { Vec::new() };
            let tables = vec![self.table(title(group), &arms), self.orders(&arms)];
            let tables = tables.into_iter().filter(|table| !table.is_empty()).collect();
            sections.push(Section {
                title: title(group).to_owned(),
                text: Vec::new(),
                tables,
                plots,
            });
        }
        sections.extend(self.extra_section());
        sections
    }

    fn table(&self, title: &str, arms: &[&(Arm, Vec<Option<Run>>)]) -> Table {
        let mut table = Table::new(title)
            .text("arm")
            .text("runs")
            .number("slowdown", "%")
            .number("p99", "x quiet")
            .number("longest", "ms");
        table = table
            .number("stolen by reclaim", "%")
            .number("kswapd", "runs")
            .number("kswapd", "% of a core")
            .number("direct", "reclaims");
        table = table
            .number("early", "MiB/s")
            .number("daemon", "% of a core")
            .number("steal", "%")
            .number("load", "MB/s");
        for (arm, runs) in arms {
            let text = |spread: Option<Spread>| spread.map_or("–".to_owned(), Spread::to_text);
            let short = |value: fn(&Run) -> f64| {
                self.of_runs(arm.key, value)
                    .map_or("–".to_owned(), |spread| figures(spread.median))
            };
            let valid = runs.iter().flatten().filter(|run| run.valid).count();
            // Of all runs: the rate of an invalid run shows why it is invalid.
            let rate =
                |run: &Run| run.books.load_bytes as f64 / 1e6 / (run.books.at_ns as f64 / 1e9);
            let rates = Spread::of(&runs.iter().flatten().map(rate).collect::<Vec<_>>());
            table.row([
                arm.name.to_owned(),
                format!("{valid} of {}", runs.len()),
                text(self.slowdown(arm.key)),
                text(self.ratio(arm.key, |run| run.step_ms(990))),
                short(|run| run.step_ms(1000)),
                short(|run| {
                    100.0 * run.went.reclaim_ns as f64
                        / run.went.steps_ns.iter().sum::<u64>().max(1) as f64
                }),
                short(|run| run.books.kswapd_runs as f64),
                short(|run| 100.0 * run.books.kswapd_cpu_ns as f64 / run.books.at_ns as f64),
                short(|run| run.books.direct_reclaims as f64),
                short(|run| run.books.early_pages as f64 / 256.0 / (run.books.at_ns as f64 / 1e9)),
                short(|run| 100.0 * run.books.daemon_cpu_ns as f64 / run.books.at_ns as f64),
                short(|run| 100.0 * run.books.steal_ns as f64 / run.books.at_ns as f64),
                text(rates),
            ]);
        }
        for line in self
            .failures
            .iter()
            .filter(|line| arms.iter().any(|(arm, _)| line.starts_with(arm.name)))
        {
            table.note(line.clone());
        }
        table
    }

    /// The orders for which kswapd was woken and direct reclaim began, over all runs of an arm.
    fn orders(&self, arms: &[&(Arm, Vec<Option<Run>>)]) -> Table {
        let mut table =
            Table::new("Blocks that were wanted when kswapd was woken, and in direct reclaim")
                .text("arm")
                .text("kswapd woken for orders");
        table = table.text("direct reclaims for orders");
        let sums = |runs: &[Option<Run>], value: fn(&Run) -> &[u64]| {
            let mut sums = [0u64; 16];
            runs.iter().flatten().for_each(|run| {
                sums.iter_mut().zip(value(run)).for_each(|(sum, count)| *sum += count)
            });
            let shown = sums
                .iter()
                .enumerate()
                .filter(|(_, count)| **count > 0)
                .map(|(order, count)| format!("{order}: {count}"));
            shown.collect::<Vec<_>>().join(", ")
        };
        for (arm, runs) in arms {
            let (woken, direct) =
                (sums(runs, |run| &run.went.woken), sums(runs, |run| &run.went.direct));
            if !woken.is_empty() || !direct.is_empty() {
                table.row([arm.name.to_owned(), woken, direct]);
            }
        }
        table
    }

    fn extra_section(&self) -> Option<Section> {
        let mut hot = Table::new("Hot files, after a stream")
            .text("against it")
            .number("still cached", "%")
            .number("time to read them again", "x before");
        self.hot.iter().for_each(|(keeper, kept)| {
            hot.row([keeper.name().to_owned(), figures(kept.percent), figures(kept.again)])
        });
        let mut streams = Table::new("A reader that takes what it gets, kswapd free")
            .text("with")
            .number("throughput", "GB/s");
        for (remedy, name) in STREAMS {
            let rates: Vec<f64> = self.stream_rates(remedy).iter().map(|rate| rate / 1e9).collect();
            if let Some(spread) = Spread::of(&rates) {
                streams.row([name.to_owned(), spread.to_text()]);
            }
        }
        let tables: Vec<Table> =
            [hot, streams].into_iter().filter(|table| !table.is_empty()).collect();
        let text: Vec<String> = self.nfs.iter().cloned().collect();
        (!tables.is_empty() || !text.is_empty()).then(|| Section {
            title: "Files and throughput".to_owned(),
            text,
            tables,
            plots: Vec::new(),
        })
    }
}
