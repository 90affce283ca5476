//! The paper's thirteen claims and six figures: which measures each consists of, and whether they
//! came out.

use hiroma_report::{Better, Measure, Section, Spread, Table};

/// One statement of the paper's text.
#[derive(Debug)]
pub struct Statement {
    /// Short name.
    pub name: &'static str,
    /// The measures that all have to be met.
    pub measures: &'static [&'static str],
}

/// Statements about orders.
pub const CLAIMS: [Statement; 13] = [
    Statement { name: "no global placement: flat", measures: &["no_global_flat_percent"] },
    Statement {
        name: "global placement ten times faster",
        measures: &["global_gain_low", "global_gain_middle"],
    },
    Statement {
        name: "on change beats on demand",
        measures: &["on_demand_cost_low", "on_demand_cost_middle", "on_demand_cost_high"],
    },
    Statement {
        name: "on change beats periodic",
        measures: &["periodic_cost_low", "periodic_cost_middle", "periodic_cost_high"],
    },
    Statement { name: "watermarks 87.5 % and 75 %", measures: &["watermarks_cost"] },
    Statement { name: "period of 1 ms", measures: &["period_cost"] },
    Statement { name: "nearest wins at high rates", measures: &["nearest_gain_high"] },
    Statement { name: "most free slower than random", measures: &["most_free_cost_high"] },
    Statement { name: "most free repeats more", measures: &["most_free_repeated_ratio"] },
    Statement { name: "gradient worst", measures: &["gradient_cost_high"] },
    Statement {
        name: "reservation: costs at low, wins at high",
        measures: &[
            "reservation_cost_low",
            "reservation_gain_high",
            "reservation_in_advance_gain_high",
        ],
    },
    Statement {
        name: "one frame in advance is enough",
        measures: &["in_advance_2_gain_percent", "in_advance_4_gain_percent"],
    },
    Statement {
        name: "domain of 3 or 4 hops",
        measures: &[
            "domain_best_is_3_or_4",
            "domain_2_cost_high",
            "domain_5_cost_middle",
            "domain_5_cost_high",
        ],
    },
];

/// Statements with a number. Those that are fitted prove nothing.
pub const FIGURES: [(Statement, bool); 6] = [
    (Statement { name: "33 ms on disk", measures: &["no_global_off_percent"] }, true),
    (Statement { name: "most free: 0.82 ms", measures: &["most_free_transfer_off_percent"] }, true),
    (Statement { name: "nearest: 1.9 hops", measures: &["nearest_hops_off_percent"] }, true),
    (Statement { name: "nearest: 0.59 ms", measures: &["nearest_transfer_off_percent"] }, false),
    (Statement { name: "most free: 3.0 hops", measures: &["most_free_hops_off_percent"] }, false),
    (
        Statement {
            name: "most free: 1.2 times the repetitions",
            measures: &["most_free_repeated_off_percent"],
        },
        false,
    ),
];

impl Statement {
    /// How many of its measures are met.
    pub fn met(&self, measures: &[Measure]) -> usize {
        let is_met = |name: &&&str| {
            measures.iter().any(|measure| measure.name == ***name && measure.met == Some(true))
        };
        self.measures.iter().filter(is_met).count()
    }

    /// Whether all are.
    pub fn is_met(&self, measures: &[Measure]) -> bool {
        self.met(measures) == self.measures.len()
    }

    /// As a cell of a table.
    pub fn text(&self, measures: &[Measure]) -> String {
        match (self.met(measures), self.measures.len()) {
            (met, all) if met == all => "yes".to_owned(),
            (0, _) => "no".to_owned(),
            (met, all) => format!("{met} of {all}"),
        }
    }
}

/// What came out of one reading.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Score {
    /// Claims that came out.
    pub claims: usize,
    /// Figures that were not fitted, and came out within a quarter.
    pub predicted: usize,
    /// Parts of claims that came out, as a share: between equals.
    pub parts: f64,
}

impl Score {
    /// Of the measures of a reading.
    pub fn of(measures: &[Measure]) -> Score {
        let met = |claim: &&Statement| claim.is_met(measures);
        let share = |claim: &Statement| claim.met(measures) as f64 / claim.measures.len() as f64;
        Score {
            claims: CLAIMS.iter().filter(met).count(),
            predicted: FIGURES
                .iter()
                .filter(|(figure, fitted)| !fitted && figure.is_met(measures))
                .count(),
            parts: CLAIMS.iter().map(share).sum(),
        }
    }
}

/// The claims and figures, and what came of them.
pub fn section(measures: &[Measure], reading: &str) -> Section {
    let mut claims = Table::new("Thirteen claims").text("claim").text("came out").text("parts");
    for claim in &CLAIMS {
        let parts: Vec<String> = claim
            .measures
            .iter()
            .map(|name| {
                let measure = measures.iter().find(|measure| measure.name == *name);
                let text = measure.map_or("–".to_owned(), Measure::value_text);
                format!("{name} {text}")
            })
            .collect();
        claims.row([claim.name.to_owned(), claim.text(measures), parts.join("; ")]);
    }
    let mut figures =
        Table::new("Six figures").text("figure").text("").text("within a quarter").text("here");
    for (figure, fitted) in &FIGURES {
        let measure = measures.iter().find(|measure| measure.name == figure.measures[0]);
        let how = if *fitted { "fitted" } else { "predicted" };
        let note = measure.map_or(String::new(), |measure| measure.note.clone());
        figures.row([figure.name.to_owned(), how.to_owned(), figure.text(measures), note]);
    }
    Section {
        title: "What of the paper comes out".to_owned(),
        text: vec![format!("The reading: {reading}.")],
        tables: vec![claims, figures],
        plots: Vec::new(),
    }
}

/// The number of claims that came out.
pub fn measure(measures: &[Measure]) -> Measure {
    let met = Score::of(measures).claims as f64;
    Measure::new("claims_met", "claims of the paper that came out, of 13", "", Better::Higher)
        .must(10.0)
        .aim(13.0)
        .spread(Spread::of(&[met]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure_of(name: &str, met: bool) -> Measure {
        Measure::new(name, name, "", Better::Higher).must(1.0).decided(met)
    }

    #[test]
    fn claim_comes_out_only_with_all_of_its_parts() {
        let claim = &CLAIMS[1];
        let [one, other] = [0, 1].map(|part: usize| claim.measures[part]);
        let both = [measure_of(one, true), measure_of(other, true)];
        let half = [measure_of(one, true), measure_of(other, false)];
        assert_eq!((claim.text(&both), Score::of(&both).claims), ("yes".to_owned(), 1));
        assert_eq!((claim.text(&half), Score::of(&half).claims), ("1 of 2".to_owned(), 0));
        assert_eq!(claim.text(&[]), "no");
        assert!(Score::of(&both) > Score::of(&half));
    }

    #[test]
    fn fitted_figures_do_not_count() {
        let all: Vec<Measure> =
            FIGURES.iter().map(|(figure, _)| measure_of(figure.measures[0], true)).collect();
        assert_eq!(Score::of(&all).predicted, 3);
    }
}
