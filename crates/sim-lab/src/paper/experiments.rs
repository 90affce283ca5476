//! Section 4 of the paper: figures 2 to 4, the domain's size, the watermarks, the period, frames
//! reserved in advance.

use hiroma_policy::placement::{
    FailureKind, InformationKind, PlacementKind, ReplacementKind, ReservationKind, ScopeKind,
};
use hiroma_report::{Axis, Report, Section, Table, figures as digits};

use super::book::{Book, Curve, Id};
use super::{HIGH, LOW, MIDDLE, Params};
use crate::figures::RESPONSE;
use crate::single::{estimate_text, name_of};

/// Watermarks to try: thousandths of a node's memory, in the paper's steps of 12.5 %.
const HIGH_MARKS: [u32; 4] = [500, 625, 750, 875];
const LOW_MARKS: [u32; 4] = [250, 500, 625, 750];
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
    /// High and low watermark, besides 100 % and 0.
    pub watermarks: Vec<((u32, u32), Id)>,
    pub periods: Vec<(u64, Id)>,
    /// Frames reserved in advance.
    pub in_advance: Vec<(u32, Id)>,
    failures: Vec<Curve>,
    replacements: Vec<Curve>,
}

impl Experiments {
    /// Requests all configurations.
    pub fn plan(params: &Params, book: &mut Book) -> Experiments {
        let (seeds, rates) = (&params.seeds, &params.rates);
        let some = [LOW, MIDDLE, HIGH];
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
        for kind in [
            PlacementKind::TwoChoices,
            PlacementKind::WeightedNearest,
            PlacementKind::RoundRobin,
            PlacementKind::Fill,
        ] {
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
        let sizes: &[u32] = if params.quick { &[2, 3, 4, 5] } else { &[1, 2, 3, 4, 5, 6] };
        let domain = sizes.iter().map(|&size| {
            let config = |rate| params.paper(rate, |policy| policy.domain_radius = size);
            (size, book.curve(&format!("size {size}"), rates, seeds, config))
        });
        let domain = domain.collect();
        let failures =
            [FailureKind::Replace, FailureKind::Return, FailureKind::Cascade, FailureKind::Disk]
                .map(|kind| {
                    book.curve(&name_of(&kind), &some, seeds, |rate| {
                        params.paper(rate, |policy| policy.on_failure = kind)
                    })
                });
        let replacements = [
            ReplacementKind::Fifo,
            ReplacementKind::Lru,
            ReplacementKind::Lfu,
            ReplacementKind::Clock,
        ]
        .map(|kind| {
            book.curve(&name_of(&kind), &some, seeds, |rate| {
                params.paper(rate, |policy| policy.replacement = kind)
            })
        });
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
            failures: failures.to_vec(),
            replacements: replacements.to_vec(),
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
        let table = book.details(&format!("Frames held in advance, {HIGH} processes/s"), &rows);
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
                book.details(&format!("At {HIGH} processes/s"), &at(HIGH)),
            ],
            plots: book.plots(title, Axis::linear("arrival rate", "processes/s"), curves),
        }
    }

    fn watermark_section(&self, book: &Book) -> Section {
        let mut table = Table::new(format!("Watermarks besides 100 % and 0, {MIDDLE} processes/s"))
            .number("high", "% free")
            .number("low", "% free");
        table = table.number("response", "ms").number("messages", "per page-out");
        for ((high, low), id) in &self.watermarks {
            table.row([
                digits(f64::from(*high) / 10.0),
                digits(f64::from(*low) / 10.0),
                estimate_text(book.estimate(*id, RESPONSE)),
                digits(book.mean(*id, "messages_per_page_out")),
            ]);
        }
        let mut periods = Table::new(format!("Periods, {MIDDLE} processes/s"))
            .number("period", "ms")
            .number("response", "ms");
        periods = periods.number("messages", "per page-out");
        for (period_ns, id) in &self.periods {
            let messages = digits(book.mean(*id, "messages_per_page_out"));
            periods.row([
                digits(*period_ns as f64 / 1e6),
                estimate_text(book.estimate(*id, RESPONSE)),
                messages,
            ]);
        }
        Section {
            title: "Watermarks and periods".to_owned(),
            text: vec![
                "The paper: 87.5 % and 75 % were best in steps of 12.5 %, and a period of 1 ms."
                    .to_owned(),
            ],
            tables: vec![table, periods],
            plots: Vec::new(),
        }
    }
}

fn plan_watermarks(params: &Params, book: &mut Book) -> Vec<((u32, u32), Id)> {
    // The paper's are last in both lists.
    let from = if params.quick { 2 } else { 0 };
    let pairs = HIGH_MARKS[from..]
        .iter()
        .flat_map(|&high| LOW_MARKS[from..].iter().map(move |&low| (high, low)));
    let pairs = pairs.filter(|(high, low)| low <= high).chain([DEFAULT_MARKS]);
    let ask = |(high, low): (u32, u32)| {
        let config = params.paper(MIDDLE, |policy| {
            (policy.high_permille, policy.low_permille) = (vec![high, 1000], vec![low, 0]);
        });
        ((high, low), book.ask("watermarks", config, &params.seeds))
    };
    pairs.map(ask).collect()
}

fn plan_periods(params: &Params, book: &mut Book) -> Vec<(u64, Id)> {
    let mut periods = PERIODS_NS[..if params.quick { 2 } else { PERIODS_NS.len() }].to_vec();
    periods.sort_unstable();
    periods
        .into_iter()
        .map(|period_ns| {
            (period_ns, book.ask("periods", periodic(params, period_ns), &params.seeds))
        })
        .collect()
}

fn periodic(params: &Params, period_ns: u64) -> hiroma_sim::Config {
    params.paper(MIDDLE, |policy| {
        (policy.information, policy.period_ns) = (InformationKind::Periodic, period_ns)
    })
}

fn in_advance(params: &Params, frames: u32) -> hiroma_sim::Config {
    params.paper(HIGH, |policy| {
        (policy.reservation, policy.reserve_frames) = (ReservationKind::InAdvance, frames)
    })
}
