//! All reasonable policies side by side on one cluster.
//!
//! Every policy runs with the same seeds, so that all have the same processes at the same times.
//! They are ranked by their mean response; two of them are distinguished by the interval of their
//! paired differences, not by their two intervals.

use std::sync::Arc;

use hiroma_policy::placement::{
    CustomPlacement, FailureKind, InformationKind, PlacementConfig, PlacementKind, ReplacementKind,
    ReservationKind, ScopeKind,
};
use hiroma_report::{Axis, Kind, Plot, Point, Section, Series, Table, figures as digits};
use hiroma_sim::{Config, TopologyKind};
use serde::Serialize;

use crate::figures::{Figures, RESPONSE, estimate, values};
use crate::lab::{Lab, LabError, jobs_of};
use crate::notes::notes;
use crate::single::{self, FigureJson, describe, estimate_text, figures_json, seeds_text};
use hiroma_report::{Estimate, Verdict, compare_paired};

/// A policy in the comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Entrant {
    /// What distinguishes it from the others.
    pub name: String,
    pub config: Config,
}

/// An entrant and its results.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    pub entrant: Entrant,
    pub runs: Vec<Figures>,
}

/// All entrants, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The cluster as its file describes it.
    pub base: Config,
    pub seeds: Vec<u64>,
    pub ranked: Vec<Ranked>,
}

/// The reasonable combinations on `base`'s machine: every placement with every kind of information,
/// with and without reservations; then the other choices one by one, as changes of the base's own;
/// disk only; gradient if nodes are linked directly to each other.
///
/// A base with a policy of the user's own adds it to the placements.
pub fn entrants(base: &Config) -> Vec<Entrant> {
    entrants_with(base, &[])
}

/// The same with `own` placement policies beside the built-in ones.
pub fn entrants_with(base: &Config, own: &[CustomPlacement]) -> Vec<Entrant> {
    let mut policies: Vec<PlacementConfig> = Vec::new();
    let domain = PlacementConfig { scope: ScopeKind::Domain, ..base.policy.clone() };
    let based = match &base.policy.placement {
        PlacementKind::Custom(_) => Some(base.policy.placement.clone()),
        _ => None,
    };
    let own = based.into_iter().chain(own.iter().cloned().map(PlacementKind::Custom));
    for placement in PlacementKind::ALL.into_iter().chain(own) {
        for information in
            [InformationKind::OnChange, InformationKind::Periodic, InformationKind::OnDemand]
        {
            // A bid is an answer about the present; a reservation in addition would ask the same
            // node twice.
            let reservations: &[ReservationKind] = match information {
                InformationKind::OnDemand => &[ReservationKind::None],
                _ => {
                    &[ReservationKind::None, ReservationKind::OnDemand, ReservationKind::InAdvance]
                }
            };
            for &reservation in reservations {
                policies.push(PlacementConfig {
                    placement: placement.clone(),
                    information,
                    reservation,
                    ..domain.clone()
                });
            }
        }
    }
    for on_failure in
        [FailureKind::Replace, FailureKind::Return, FailureKind::Cascade, FailureKind::Disk]
    {
        policies.push(PlacementConfig { on_failure, ..domain.clone() });
    }
    for replacement in
        [ReplacementKind::Fifo, ReplacementKind::Lru, ReplacementKind::Lfu, ReplacementKind::Clock]
    {
        policies.push(PlacementConfig { replacement, ..domain.clone() });
    }
    policies.push(PlacementConfig { scope: ScopeKind::Disk, ..base.policy.clone() });
    if matches!(base.topology.kind, TopologyKind::Torus2d | TopologyKind::Torus3d) {
        policies.push(PlacementConfig {
            scope: ScopeKind::Gradient,
            reservation: ReservationKind::None,
            ..base.policy.clone()
        });
    }
    policies.push(base.policy.clone());
    let mut entrants: Vec<Entrant> = Vec::new();
    for policy in policies {
        let config = Config { policy, ..base.clone() };
        if config.validate().is_ok()
            && entrants.iter().all(|entrant| entrant.config.policy != config.policy)
        {
            entrants.push(Entrant { name: name_of_policy(&config.policy, &base.policy), config });
        }
    }
    entrants
}

/// `placement, information[, reservation][, what differs from the base besides]`.
fn name_of_policy(policy: &PlacementConfig, base: &PlacementConfig) -> String {
    match policy.scope {
        ScopeKind::Disk => return "disk only".to_owned(),
        ScopeKind::Gradient => return "gradient".to_owned(),
        ScopeKind::Domain => {}
    }
    // The name of a file stays as it is.
    let placement = match &policy.placement {
        PlacementKind::Custom(custom) => custom.label().to_owned(),
        kind => single::name_of(kind).replace('_', " "),
    };
    let mut parts = vec![single::name_of(&policy.information)];
    if policy.reservation != ReservationKind::None {
        parts.push(format!("reserve {}", single::name_of(&policy.reservation)));
    }
    if policy.on_failure != base.on_failure {
        parts.push(format!("on failure {}", single::name_of(&policy.on_failure)));
    }
    if policy.replacement != base.replacement {
        parts.push(single::name_of(&policy.replacement));
    }
    format!("{placement}, {}", parts.join(", ").replace('_', " "))
}

/// Runs all entrants with every seed and ranks them.
pub fn compare(
    base: &Config,
    entrants: Vec<Entrant>,
    seeds: &[u64],
    lab: &Lab<'_>,
) -> Result<Comparison, LabError> {
    let configs: Vec<(String, Arc<Config>)> = entrants
        .iter()
        .map(|entrant| (entrant.name.clone(), Arc::new(entrant.config.clone())))
        .collect();
    let runs = lab.map_all(&jobs_of(&configs, seeds), |_, outcome| Figures::of(&outcome))?;
    Ok(rank(base, entrants, seeds, &runs))
}

/// Ranks `entrants`; `runs` has the runs of one entrant after the other.
pub fn rank(base: &Config, entrants: Vec<Entrant>, seeds: &[u64], runs: &[Figures]) -> Comparison {
    let each = runs.chunks(seeds.len().max(1)).map(<[Figures]>::to_vec);
    let mut ranked: Vec<Ranked> =
        entrants.into_iter().zip(each).map(|(entrant, runs)| Ranked { entrant, runs }).collect();
    // A run without faults has no response; not waiting at all is best. Equal means keep their
    // order.
    let mean =
        |ranked: &Ranked| estimate(&ranked.runs, RESPONSE).map_or(0.0, |estimate| estimate.mean);
    ranked.sort_by(|one, other| mean(one).total_cmp(&mean(other)));
    Comparison { base: base.clone(), seeds: seeds.to_vec(), ranked }
}

impl Comparison {
    /// The response of an entrant, seed by seed; 0 for a seed without faults.
    fn responses(&self, place: usize) -> Vec<f64> {
        self.ranked[place].runs.iter().map(|run| run.get(RESPONSE).unwrap_or(0.0)).collect()
    }

    /// How much longer the response at `place` is than the best one's.
    fn behind_best(&self, place: usize) -> Option<Estimate> {
        Estimate::of_differences(&self.responses(place), &self.responses(0))
    }

    /// Places of those that cannot be distinguished from the best.
    pub fn close(&self) -> Vec<usize> {
        let apart = |place: usize| {
            compare_paired(&self.responses(0), &self.responses(place)) == Verdict::Smaller
        };
        (1..self.ranked.len()).filter(|&place| !apart(place)).collect()
    }

    /// The result in one sentence.
    pub fn verdict(&self) -> String {
        let Some(best) = self.ranked.first() else { return "Nobody took part.".to_owned() };
        let others: Vec<&str> =
            self.close().iter().map(|&place| self.ranked[place].entrant.name.as_str()).collect();
        match (self.seeds.len(), others.len()) {
            (1, _) => format!(
                "{} is first with this seed; one seed does not tell whether that is chance: use --seeds.",
                best.entrant.name
            ),
            (_, 0) => format!("{} is best.", best.entrant.name),
            (seeds, count) => {
                let named = if count <= 3 {
                    others.join("; ")
                } else {
                    format!("{}; and {} more", others[..3].join("; "), count - 3)
                };
                format!(
                    "{} is first, but {seeds} seeds do not tell it apart from {named}.",
                    best.entrant.name
                )
            }
        }
    }

    /// The table of all entrants, best first.
    pub fn table(&self) -> Table {
        let mut table = Table::new("")
            .number("rank", "")
            .text("policy")
            .number("response", "ms")
            .number("behind the best", "ms")
            .text("told apart")
            .number("median", "ms")
            .number("p99", "ms")
            .number("transfer", "ms")
            .number("hops", "")
            .number("repeated", "")
            .number("to disk", "")
            .number("messages", "per page-out");
        for (place, ranked) in self.ranked.iter().enumerate() {
            let mean = |name: &str| {
                estimate(&ranked.runs, name)
                    .map_or("–".to_owned(), |estimate| digits(estimate.mean))
            };
            let (behind, apart) = match place {
                0 => (String::new(), String::new()),
                _ => {
                    let behind = self.behind_best(place);
                    let apart = if behind.is_some_and(|behind| behind.verdict() == Verdict::Larger)
                    {
                        "yes"
                    } else {
                        "no"
                    };
                    (estimate_text(behind), apart.to_owned())
                }
            };
            let response = Estimate::of(&values(&ranked.runs, RESPONSE));
            let mut row = vec![
                (place + 1).to_string(),
                ranked.entrant.name.clone(),
                estimate_text(response),
                behind,
                apart,
            ];
            let rest = [
                "response_median_ms",
                "response_p99_ms",
                "transfer_ms",
                "transfer_hops",
                "repeated_share",
                "disk_share",
            ];
            row.extend(rest.map(mean));
            row.push(mean("messages_per_page_out"));
            table.row(row);
        }
        table
    }

    /// The comparison as a section of a report.
    pub fn section(&self, title: &str) -> Section {
        let shown = &self.ranked[..self.ranked.len().min(12)];
        let points = shown.iter().enumerate().filter_map(|(place, ranked)| {
            let estimate = estimate(&ranked.runs, RESPONSE)?;
            Some(Point {
                x: place as f64,
                y: estimate.mean,
                min: estimate.low(),
                max: estimate.high(),
            })
        });
        let plot = Plot {
            title: "Mean response of the best, with 95 % intervals".to_owned(),
            kind: Kind::Bars,
            x: Axis::names("rank", (1..=shown.len()).map(|rank| rank.to_string())),
            y: Axis::linear("response", "ms"),
            series: vec![Series::new("mean response", points.collect())],
        };
        let mut text = vec![
            seeds_text(&self.seeds),
            describe(&self.base),
            self.verdict(),
            "Means with 95 % intervals; `behind the best` is the mean of the differences seed by seed.".to_owned(),
        ];
        text.extend(notes(&self.base, self.ranked.iter().flat_map(|ranked| &ranked.runs)));
        Section { title: title.to_owned(), text, tables: vec![self.table()], plots: vec![plot] }
    }

    /// The comparison as JSON: the bytes do not depend on when and where it was run.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct RankedJson<'a> {
            rank: usize,
            policy: &'a str,
            choices: &'a PlacementConfig,
            told_apart_from_best: bool,
            behind_best_ms: Option<Estimate>,
            results: Vec<FigureJson>,
        }
        #[derive(Serialize)]
        struct Json<'a> {
            config: &'a Config,
            seeds: &'a [u64],
            verdict: String,
            ranked: Vec<RankedJson<'a>>,
        }
        let ranked = self.ranked.iter().enumerate().map(|(place, ranked)| {
            let behind_best_ms = self.behind_best(place);
            RankedJson {
                rank: place + 1,
                policy: &ranked.entrant.name,
                choices: &ranked.entrant.config.policy,
                told_apart_from_best: behind_best_ms
                    .is_some_and(|behind| behind.verdict() == Verdict::Larger),
                behind_best_ms,
                results: figures_json(&ranked.runs),
            }
        });
        single::to_text(&Json {
            config: &self.base,
            seeds: &self.seeds,
            verdict: self.verdict(),
            ranked: ranked.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn run(response_ms: f64) -> Figures {
        Figures(BTreeMap::from([(RESPONSE.to_owned(), response_ms)]))
    }

    fn compared(responses: &[(&str, &[f64])]) -> Comparison {
        let base = Config::default();
        let entrants = responses
            .iter()
            .map(|(name, _)| Entrant { name: (*name).to_owned(), config: base.clone() })
            .collect();
        let runs: Vec<Figures> = responses
            .iter()
            .flat_map(|(_, responses)| responses.iter().map(|&ms| run(ms)))
            .collect();
        let seeds = single::seeds_from(1, responses[0].1.len());
        rank(&base, entrants, &seeds, &runs)
    }

    #[test]
    fn entrants_are_distinct_valid_and_include_base() {
        let base = Config::default();
        let entrants = entrants(&base);
        assert!(entrants.iter().any(|entrant| entrant.config == base));
        assert!(entrants.iter().all(|entrant| entrant.config.validate().is_ok()));
        for (index, entrant) in entrants.iter().enumerate() {
            assert!(
                entrants[..index].iter().all(|other| other.name != entrant.name),
                "{} twice",
                entrant.name
            );
        }
        // 7 placements x (3 + 3 + 1), three other failures, three other replacements, disk,
        // gradient.
        assert_eq!(entrants.len(), 49 + 3 + 3 + 2);
        let mut flat = base;
        flat.topology = hiroma_sim::TopologyConfig {
            kind: TopologyKind::FullBisection,
            dims: vec![64],
            ..Default::default()
        };
        flat.policy.domain_radius = 2;
        assert!(super::entrants(&flat).iter().all(|entrant| entrant.name != "gradient"));
    }

    #[test]
    fn best_is_first_and_ties_are_named() {
        let comparison = compared(&[
            ("slow", &[9.0, 9.5, 9.2]),
            ("close", &[1.0, 3.0, 2.3]),
            ("fast", &[1.1, 2.9, 2.2]),
        ]);
        let names: Vec<&str> =
            comparison.ranked.iter().map(|ranked| ranked.entrant.name.as_str()).collect();
        assert_eq!(names, ["fast", "close", "slow"]);
        assert_eq!(comparison.close(), [1]);
        assert_eq!(
            comparison.verdict(),
            "fast is first, but 3 seeds do not tell it apart from close."
        );
        let text = comparison.table().to_text();
        assert!(text.lines().any(|line| line.contains("slow") && line.contains("yes")), "{text}");
    }

    #[test]
    fn pairs_decide_where_intervals_overlap() {
        let comparison = compared(&[("a", &[1.0, 5.0, 9.0]), ("b", &[1.2, 5.21, 9.19])]);
        assert_eq!(comparison.verdict(), "a is best.");
        assert!(
            compared(&[("a", &[1.0]), ("b", &[2.0])]).verdict().contains("one seed does not tell")
        );
    }
}
