//! Section 4 of the paper: figures 2 to 4, the domain's size, the watermarks, the period, frames
//! reserved in advance.

use hiroma_policy::placement::{
    FailureKind, InformationKind, PlacementKind, ReplacementKind, ReservationKind, ScopeKind,
};
use hiroma_report::{Axis, Report, Section, Table, figures as digits};

use super::book::{Book, Curve, Id};
use super::{Params, Rates};
use crate::figures::RESPONSE;
use crate::single::{estimate_text, name_of};

/// Watermarks to try, high and low: thousandths of a node's memory, in the paper's steps of 12.5 %
/// around its own.
const MARKS: [(u32, u32); 7] =
    [(125, 0), (125, 125), (250, 0), (250, 250), (375, 125), (375, 250), (500, 250)];
/// The defaults: the paper's 87.5 % and 75 % interpreted as memory in use instead of free frames.
pub const DEFAULT_MARKS: (u32, u32) = (250, 125);
/// The paper's first; with a quarter of a millisecond, nodes do little but receive.
const PERIODS_NS: [u64; 5] = [1_000_000, 4_000_000, 500_000, 2_000_000, 8_000_000];

/// The curves of every experiment.
pub struct Experiments {
    pub no_global: Curve,
    /// On change, on demand, periodic.
    pub information: Vec<Curve>,
    /// Most free, nearest, random, gradient, then those that the paper does not have.
    pub placement: Vec<Curve>,
    /// None, on demand, in advance.
    pub reservation: Vec<Curve>,
    /// By domain size.
    pub domain: Vec<(u32, Curve)>,
    /// High and low watermark, besides 100 % and 0: at the low, middle and high rate.
    pub watermarks: Vec<((u32, u32), Vec<Id>)>,
    /// The same for periods, ns.
    pub periods: Vec<(u64, Vec<Id>)>,
    /// Frames reserved in advance.
    pub in_advance: Vec<(u32, Id)>,
    failures: Vec<Curve>,
    replacements: Vec<Curve>,
    named: Rates,
}

impl Experiments {
    /// Requests all configurations.
    pub fn plan(params: &Params, book: &mut Book) -> Experiments {
        let (seeds, rates) = (&params.seeds, &params.rates);
        let some = params.named.all();
        let beyond = |kinds: usize| if params.claims_only { 0 } else { kinds };
        let information =
            [InformationKind::OnChange, InformationKind::OnDemand, InformationKind::Periodic].map(
                |information| {
                    let name = name_of(&information).replace('_', " ");
                    book.curve(&name, rates, seeds, |rate| {
                        params.paper(rate, |policy| policy.information = information)
                    })
                },
            );
        let mut placement: Vec<Curve> = Vec::new();
        for kind in [PlacementKind::MostFree, PlacementKind::Nearest, PlacementKind::Random] {
            let name = name_of(&kind).replace('_', " ");
            placement.push(book.curve(&name, rates, seeds, |rate| {
                params.paper(rate, |policy| policy.placement = kind.clone())
            }));
        }
        let gradient = |rate| params.paper(rate, |policy| policy.scope = ScopeKind::Gradient);
        placement.push(book.curve("gradient", rates, seeds, gradient));
        let others = [
            PlacementKind::TwoChoices,
            PlacementKind::WeightedNearest,
            PlacementKind::RoundRobin,
            PlacementKind::Fill,
        ];
        for kind in others.into_iter().take(beyond(4)) {
            let name = name_of(&kind).replace('_', " ");
            placement.push(book.curve(&name, rates, seeds, |rate| {
                params.paper(rate, |policy| policy.placement = kind.clone())
            }));
        }
        let reservation =
            [ReservationKind::None, ReservationKind::OnDemand, ReservationKind::InAdvance].map(
                |reservation| {
                    let name = name_of(&reservation).replace('_', " ");
                    book.curve(&name, rates, seeds, |rate| {
                        params.paper(rate, |policy| policy.reservation = reservation)
                    })
                },
            );
        let sizes: &[u32] = if params.quick { &[2, 3, 4, 5] } else { &[1, 2, 3, 4, 5] };
        let domain = sizes.iter().map(|&size| {
            let config = |rate| params.paper(rate, |policy| policy.domain_radius = size);
            (size, book.curve(&format!("size {size}"), rates, seeds, config))
        });
        let domain = domain.collect();
        let failures =
            [FailureKind::Replace, FailureKind::Return, FailureKind::Cascade, FailureKind::Disk];
        let failures = failures.into_iter().take(beyond(4)).map(|kind| {
            book.curve(&name_of(&kind), &some, seeds, |rate| {
                params.paper(rate, |policy| policy.on_failure = kind)
            })
        });
        let failures = failures.collect();
        let replacements = [
            ReplacementKind::Fifo,
            ReplacementKind::Lru,
            ReplacementKind::Lfu,
            ReplacementKind::Clock,
        ];
        let replacements = replacements.into_iter().take(beyond(4)).map(|kind| {
            book.curve(&name_of(&kind), &some, seeds, |rate| {
                params.paper(rate, |policy| policy.replacement = kind)
            })
        });
        let replacements = replacements.collect();
        Experiments {
            no_global: book.curve("no global placement", rates, seeds, |rate| {
                params.paper(rate, |policy| policy.scope = ScopeKind::Disk)
            }),
            information: information.to_vec(),
            placement,
            reservation: reservation.to_vec(),
            domain,
            watermarks: plan_watermarks(params, book),
            periods: plan_periods(params, book),
            in_advance: [1, 2, 4]
                .map(|frames| (frames, book.ask("in advance", in_advance(params, frames), seeds)))
                .to_vec(),
            failures,
            replacements,
            named: params.named,
        }
    }

    /// Adds a section for each experiment.
    pub fn report(&self, book: &Book, report: &mut Report) {
        report.sections.push(self.lines(
            book,
            "Figure 2: when others are told",
            &["The paper: on change is best; on demand and periodic send too many messages."],
            &[&self.information[..], std::slice::from_ref(&self.no_global)].concat(),
        ));
        report.sections.push(self.watermark_section(book));
        report.sections.push(self.lines(
            book,
            "Figure 3: who gets a page",
            &["The paper: nearest is best at high rates, most free is worse than random there, gradient is worst."],
            &self.placement,
        ));
        let repeated = book.table_of(
            "repeated_share",
            "Repeated page-outs for each page-out",
            "processes/s",
            &self.placement,
        );
        report.sections.last_mut().expect("one was added").tables.push(repeated);
        report.sections.push(self.lines(
            book,
            "Figure 4: frames set aside",
            &["The paper: reservation costs a little at low rates and wins at high ones; in advance, one frame for each node is enough."],
            &self.reservation,
        ));
        let rows: Vec<(String, Id)> = self
            .in_advance
            .iter()
            .map(|(frames, id)| (format!("{frames} in advance"), *id))
            .collect();
        let title = format!("Frames held in advance, {} processes/s", self.named.high);
        let table = book.details(&title, &rows);
        report.sections.last_mut().expect("one was added").tables.push(table);
        let curves: Vec<Curve> = self.domain.iter().map(|(_, curve)| curve.clone()).collect();
        report.sections.push(self.lines(
            book,
            "Size of the domain",
            &["The paper: 3 and 4 hops are best; 5 sends too much information, small domains find no frame at high rates."],
            &curves,
        ));
        report.sections.push(self.lines(
            book,
            "What happens to a page that finds no frame (left for later by the paper)",
            &[],
            &self.failures,
        ));
        report.sections.push(self.lines(
            book,
            "Who leaves a node (left for later by the paper)",
            &[],
            &self.replacements,
        ));
    }

    fn lines(&self, book: &Book, title: &str, text: &[&str], curves: &[Curve]) -> Section {
        let high = self.named.high;
        let at = |rate: f64| -> Vec<(String, Id)> {
            let point = |curve: &Curve| {
                Some((curve.name.clone(), curve.points.iter().find(|(place, _)| *place == rate)?.1))
            };
            curves.iter().filter_map(point).collect()
        };
        Section {
            title: title.to_owned(),
            text: text.iter().map(|&line| line.to_owned()).collect(),
            tables: vec![
                book.table("Mean response by arrival rate", "processes/s", curves),
                book.details(&format!("At {high} processes/s"), &at(high)),
            ],
            plots: book.plots(title, Axis::linear("arrival rate", "processes/s"), curves),
        }
    }

    fn watermark_section(&self, book: &Book) -> Section {
        let rates = self.named.all();
        let with_rates = |mut table: Table| {
            for rate in rates {
                table = table.number(format!("{} processes/s", digits(rate)), "ms");
            }
            table.number("messages at the middle rate", "per page-out")
        };
        let cells = |ids: &[Id]| {
            let mut cells: Vec<String> =
                ids.iter().map(|&id| estimate_text(book.estimate(id, RESPONSE))).collect();
            cells.push(digits(book.mean(ids[1], "messages_per_page_out")));
            cells
        };
        let mut table = with_rates(
            Table::new("Watermarks besides 100 % and 0")
                .number("high", "% free")
                .number("low", "% free"),
        );
        for ((high, low), ids) in &self.watermarks {
            let marks = [high, low].map(|mark| digits(f64::from(*mark) / 10.0));
            table.row(marks.into_iter().chain(cells(ids)).collect::<Vec<_>>());
        }
        let mut periods = with_rates(Table::new("Periods").number("period", "ms"));
        for (period_ns, ids) in &self.periods {
            let period = digits(*period_ns as f64 / 1e6);
            periods.row(std::iter::once(period).chain(cells(ids)).collect::<Vec<_>>());
        }
        Section {
            title: "Watermarks and periods".to_owned(),
            text: vec![
                "The paper: 87.5 % and 75 % were best in steps of 12.5 %, and a period of 1 ms; at which rates, it does not say."
                    .to_owned(),
            ],
            tables: vec![table, periods],
            plots: Vec::new(),
        }
    }
}

fn plan_watermarks(params: &Params, book: &mut Book) -> Vec<((u32, u32), Vec<Id>)> {
    let tried = MARKS[..if params.quick { 3 } else { MARKS.len() }].iter().copied();
    let ask = |(high, low): (u32, u32)| {
        let ids = params.named.all().map(|rate| {
            let config = params.paper(rate, |policy| {
                // Others that the reading has are left as they are.
                for (marks, own, mark) in [
                    (&mut policy.high_permille, DEFAULT_MARKS.0, high),
                    (&mut policy.low_permille, DEFAULT_MARKS.1, low),
                ] {
                    marks.iter_mut().filter(|other| **other == own).for_each(|it| *it = mark);
                }
            });
            book.ask("watermarks", config, &params.seeds)
        });
        ((high, low), ids.to_vec())
    };
    tried.chain([DEFAULT_MARKS]).map(ask).collect()
}

fn plan_periods(params: &Params, book: &mut Book) -> Vec<(u64, Vec<Id>)> {
    let mut periods = PERIODS_NS[..if params.quick { 2 } else { PERIODS_NS.len() }].to_vec();
    periods.sort_unstable();
    let ask = |period_ns: u64| {
        let ids = params.named.all().map(|rate| {
            let config = params.paper(rate, |policy| {
                (policy.information, policy.period_ns) = (InformationKind::Periodic, period_ns)
            });
            book.ask("periods", config, &params.seeds)
        });
        (period_ns, ids.to_vec())
    };
    periods.into_iter().map(ask).collect()
}

fn in_advance(params: &Params, frames: u32) -> hiroma_sim::Config {
    params.paper(params.named.high, |policy| {
        (policy.reservation, policy.reserve_frames) = (ReservationKind::InAdvance, frames)
    })
}
