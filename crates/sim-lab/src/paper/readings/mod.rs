//! Results that depend on how the paper is interpreted: when the frame of an evicted page becomes
//! free, and how long a run at a high rate is.

pub mod reading;

use hiroma_policy::placement::{PlacementConfig, PlacementKind, ReservationKind, ScopeKind};
use hiroma_report::{Axis, Report, Section, Table};
use hiroma_sim::FrameFree;

use super::Params;
use super::book::{Book, Curve, Id};
use crate::figures::RESPONSE;
use crate::single::{estimate_text, name_of};

/// Measured times after the usual warm-up, s.
const LENGTHS_S: [f64; 3] = [0.5, 1.0, 2.0];

/// The requested configurations.
pub struct Readings {
    /// By interpretation: policies at the high rate.
    frame_free: Vec<(FrameFree, Vec<Id>)>,
    /// By rate: the paper's policy, by the length of the run.
    lengths: Vec<Curve>,
    high: f64,
}

type Change = fn(&mut PlacementConfig);

const POLICIES: [(&str, Change); 4] = [
    ("random", |_| ()),
    ("nearest", |policy| policy.placement = PlacementKind::Nearest),
    ("gradient", |policy| policy.scope = ScopeKind::Gradient),
    ("reserve in advance", |policy| policy.reservation = ReservationKind::InAdvance),
];

impl Readings {
    /// Requests the configurations.
    pub fn plan(params: &Params, book: &mut Book) -> Readings {
        let all = [FrameFree::AtOnce, FrameFree::Sent, FrameFree::Arrived, FrameFree::Placed];
        let frame_free = all.map(|reading| {
            let ids = POLICIES.map(|(name, change)| {
                let mut config = params.paper(params.named.high, change);
                config.node.frame_free = reading;
                book.ask(
                    &format!("{name}, frame free {}", name_of(&reading)),
                    config,
                    &params.seeds,
                )
            });
            (reading, ids.to_vec())
        });
        let lengths_s = if params.quick { &LENGTHS_S[..1] } else { &LENGTHS_S };
        let lengths = [params.named.middle, params.named.busy(), params.named.high].map(|rate| {
            book.curve(&format!("{rate} processes/s"), lengths_s, &params.seeds, |length_s| {
                let mut config = params.paper(rate, |_| ());
                config.run.duration_ns = (length_s * 1e9) as u64;
                config
            })
        });
        Readings {
            frame_free: frame_free.to_vec(),
            lengths: lengths.to_vec(),
            high: params.named.high,
        }
    }

    /// Adds its section to the report.
    pub fn report(&self, book: &Book, report: &mut Report) {
        let mut table = Table::new(format!("Mean response at {} processes/s", self.high))
            .text("the frame is free");
        for (name, _) in POLICIES {
            table = table.number(name, "ms");
        }
        for (reading, ids) in &self.frame_free {
            let mut row = vec![name_of(reading).replace('_', " ")];
            row.extend(ids.iter().map(|&id| estimate_text(book.estimate(id, RESPONSE))));
            table.row(row);
        }
        let title = "How long a run is";
        report.sections.push(Section {
            title: "What hangs on how the paper is read".to_owned(),
            text: vec![
                "The paper does not say when the frame of a page that is being paged out is free, nor how long it simulates. Where the \
                 response grows with the length of the run there is no steady state, and what is said of that rate holds for that length."
                    .to_owned(),
            ],
            tables: vec![table, book.table(title, "measured, s", &self.lengths)],
            plots: book.plots(title, Axis::linear("measured after the warm-up", "s"), &self.lengths),
        });
    }
}
