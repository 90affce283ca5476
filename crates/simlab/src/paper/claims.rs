//! The paper's claims, each as a figure that is met or not.

use hiroma_report::{Better, Measure, Spread, figures as digits};

use super::book::{Book, Curve, Id};
use super::experiments::Experiments;
use super::{HIGH, LOW, MIDDLE, Params};
use crate::stats::{Verdict, compare_paired};

/// Share of the best response that a loss may cost without being called one.
const NO_GAIN: f64 = 0.02;

fn at(curve: &Curve, rate: f64) -> Id {
    curve.points.iter().find(|(place, _)| *place == rate).expect("every line has the low, middle and high rate").1
}

/// How far `value` lies from the paper's figure.
fn off(name: &str, title: &str, value: f64, paper: f64, unit: &str, must_percent: f64) -> Measure {
    let off = if value.is_finite() { Spread::of(&[(value / paper - 1.0).abs() * 100.0]) } else { None };
    Measure::new(name, title, "%", Better::Lower)
        .must(must_percent)
        .paper(format!("{paper} {unit}").trim().to_owned())
        .note(if off.is_some() { format!("{} {unit}", digits(value)) } else { "there was nothing to measure".to_owned() })
        .spread(off)
}

/// A ratio of responses seed by seed that has to be at least `must`.
fn ratio(book: &Book, name: &str, title: &str, over: Id, under: Id, must: f64) -> Measure {
    let apart = match compare_paired(&book.responses(under), &book.responses(over)) {
        Verdict::Smaller => "told apart: longer",
        Verdict::Larger => "told apart: shorter",
        Verdict::NotToldApart => "the seeds do not tell the two apart",
    };
    let means = format!("{} ms against {} ms; {apart}", digits(book.response(over)), digits(book.response(under)));
    let ratio = book.response(over) / book.response(under);
    let spread = Spread::of_ratio(&book.responses(over), &book.responses(under)).filter(|_| ratio.is_finite());
    let spread = spread.map(|spread| Spread { median: ratio, min: spread.min.min(ratio), max: spread.max.max(ratio), ..spread });
    Measure::new(name, title, "", Better::Higher).must(must).spread(spread).note(means)
}

/// All claims.
pub fn judge(params: &Params, experiments: &Experiments, book: &Book, measures: &mut Vec<Measure>) {
    judge_no_global(experiments, book, measures);
    judge_information(params, experiments, book, measures);
    judge_placement(experiments, book, measures);
    let [none, on_demand, in_advance] = [0, 1, 2].map(|index| &experiments.reservation[index]);
    for (rate, name) in [(LOW, "low"), (HIGH, "high")] {
        let (over, under) = if rate == LOW { (at(on_demand, rate), at(none, rate)) } else { (at(none, rate), at(on_demand, rate)) };
        let title = if rate == LOW { "low rate: on demand against no reservation" } else { "high rate: no reservation against on demand" };
        let key = if rate == LOW { "reservation_cost_low".to_owned() } else { format!("reservation_gain_{name}") };
        measures.push(ratio(book, &key, title, over, under, 1.0).paper(if rate == LOW { "slower" } else { "faster" }));
    }
    let title = "high rate: no reservation against in advance";
    measures.push(ratio(book, "reservation_in_advance_gain_high", title, at(none, HIGH), at(in_advance, HIGH), 1.0).paper("faster"));
    judge_in_advance(experiments, book, measures);
    judge_domain(experiments, book, measures);
}

fn judge_no_global(experiments: &Experiments, book: &Book, measures: &mut Vec<Measure>) {
    let all: Vec<f64> = experiments.no_global.points.iter().map(|&(_, id)| book.response(id)).filter(|value| value.is_finite()).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    measures.push(off("no_global_off_percent", "no global placement: off the paper's response", mean, 33.0, "ms", 20.0));
    let spread = Spread::of(&all).and_then(|spread| Spread::of(&[(spread.max / spread.min - 1.0) * 100.0]));
    measures.push(
        Measure::new("no_global_flat_percent", "no global placement: longest over shortest of all rates", "%", Better::Lower)
            .must(20.0)
            .paper("flat")
            .spread(spread)
            .note(format!("{} ms", all.iter().map(|&value| digits(value)).collect::<Vec<_>>().join(", "))),
    );
    for (rate, name) in [(LOW, "low"), (MIDDLE, "middle")] {
        let title = format!("no global placement against the paper's policy, {name} rate");
        let (over, under) = (at(&experiments.no_global, rate), at(&experiments.information[0], rate));
        measures.push(ratio(book, &format!("global_gain_{name}"), &title, over, under, 10.0).paper("an order of magnitude"));
    }
}

fn judge_information(params: &Params, experiments: &Experiments, book: &Book, measures: &mut Vec<Measure>) {
    let [on_change, on_demand, periodic] = [0, 1, 2].map(|index| &experiments.information[index]);
    for (other, key, name) in [(on_demand, "on_demand", "on demand"), (periodic, "periodic", "periodic (1 ms)")] {
        for (rate, place) in [(LOW, "low"), (MIDDLE, "middle"), (HIGH, "high")] {
            let title = format!("{name} against on change, {place} rate");
            measures.push(ratio(book, &format!("{key}_cost_{place}"), &title, at(other, rate), at(on_change, rate), 1.0).paper("slower"));
        }
    }
    let best = experiments.watermarks.iter().min_by(|(_, one), (_, other)| book.response(*one).total_cmp(&book.response(*other)));
    let paper = experiments.watermarks.iter().find(|(marks, _)| *marks == (875, 750));
    if let (Some(((high, low), best)), Some((_, paper))) = (best, paper) {
        let told_apart = compare_paired(&book.responses(*best), &book.responses(*paper)) == Verdict::Smaller;
        let cost = (book.response(*paper) / book.response(*best) - 1.0) * 100.0;
        measures.push(
            Measure::new("watermarks_cost_percent", "the paper's watermarks against the best ones, middle rate", "%", Better::Lower)
                .paper("87.5 % and 75 % are best")
                .spread(Spread::of(&[cost]))
                .must(0.0)
                .note(format!(
                    "best: {} % and {} %; {}; met if {} seeds do not tell the two apart",
                    digits(f64::from(*high) / 10.0),
                    digits(f64::from(*low) / 10.0),
                    if told_apart { "told apart" } else { "not told apart" },
                    params.seeds.len()
                ))
                .decided(!told_apart),
        );
    }
    let best = experiments.periods.iter().min_by(|(_, one), (_, other)| book.response(*one).total_cmp(&book.response(*other)));
    let paper = experiments.periods.iter().find(|(period_ns, _)| *period_ns == 1_000_000);
    if let (Some((period_ns, best)), Some((_, paper))) = (best, paper) {
        let told_apart = compare_paired(&book.responses(*best), &book.responses(*paper)) == Verdict::Smaller;
        let cost = (book.response(*paper) / book.response(*best) - 1.0) * 100.0;
        measures.push(
            Measure::new("period_cost_percent", "a period of 1 ms against the best one, middle rate", "%", Better::Lower)
                .paper("1 ms is best")
                .spread(Spread::of(&[cost]))
                .note(format!("best: {} ms{}", digits(*period_ns as f64 / 1e6), if told_apart { "" } else { "; not told apart" })),
        );
    }
}

fn judge_placement(experiments: &Experiments, book: &Book, measures: &mut Vec<Measure>) {
    let [most_free, nearest, random, gradient] = [0, 1, 2, 3].map(|index| at(&experiments.placement[index], HIGH));
    for (id, key, name, ms, hops) in [(nearest, "nearest", "nearest", 0.59, 1.9), (most_free, "most_free", "most free", 0.82, 3.0)] {
        let title = format!("{name}, high rate: page transfer off the paper's");
        measures.push(off(&format!("{key}_transfer_off_percent"), &title, book.mean(id, "transfer_ms"), ms, "ms", 25.0));
        let title = format!("{name}, high rate: hops off the paper's");
        measures.push(off(&format!("{key}_hops_off_percent"), &title, book.mean(id, "transfer_hops"), hops, "hops", 25.0));
    }
    measures.push(ratio(book, "nearest_gain_high", "high rate: random against nearest", random, nearest, 1.0).paper("slower"));
    let repeated = book.mean(most_free, "repeated_page_outs") / book.mean(random, "repeated_page_outs");
    measures.push(
        Measure::new("most_free_repeated_ratio", "high rate: repeated page-outs, most free against random", "", Better::Higher)
            .must(1.05)
            .paper_number(1.2)
            .note(format!(
                "{} against {}",
                digits(book.mean(most_free, "repeated_page_outs")),
                digits(book.mean(random, "repeated_page_outs"))
            ))
            .spread(if repeated.is_finite() { Spread::of(&[repeated]) } else { None }),
    );
    measures.push(ratio(book, "most_free_cost_high", "high rate: most free against random", most_free, random, 1.0).paper("slower"));
    for (rate, name) in [(LOW, "low"), (HIGH, "high")] {
        let others = experiments.placement[..3].iter().map(|curve| at(curve, rate));
        let worst = others.max_by(|one, other| book.response(*one).total_cmp(&book.response(*other))).expect("there are three");
        let gradient = if rate == HIGH { gradient } else { at(&experiments.placement[3], rate) };
        let title = format!("gradient against the worst other placement, {name} rate");
        measures.push(ratio(book, &format!("gradient_cost_{name}"), &title, gradient, worst, 1.0).paper("worst"));
    }
}

fn judge_in_advance(experiments: &Experiments, book: &Book, measures: &mut Vec<Measure>) {
    let one = experiments.in_advance[0].1;
    let more = experiments.in_advance[1..].iter().map(|&(_, id)| book.response(id)).fold(f64::INFINITY, f64::min);
    let gain = (1.0 - more / book.response(one)) * 100.0;
    measures.push(
        Measure::new("in_advance_more_gain_percent", "high rate: gain of more than one frame in advance", "%", Better::Lower)
            .must(NO_GAIN * 100.0)
            .paper("none")
            .spread(if gain.is_finite() { Spread::of(&[gain]) } else { None }),
    );
}

fn judge_domain(experiments: &Experiments, book: &Book, measures: &mut Vec<Measure>) {
    let mean = |curve: &Curve| curve.points.iter().map(|&(_, id)| book.response(id).ln()).sum::<f64>();
    let best = experiments.domain.iter().min_by(|(_, one), (_, other)| mean(one).total_cmp(&mean(other))).map(|(size, _)| *size);
    measures.push(
        Measure::new("domain_best_is_3_or_4", "best domain size over all rates (geometric mean)", "hops", Better::Higher)
            .paper("3 and 4")
            .spread(best.and_then(|size| Spread::of(&[f64::from(size)])))
            .decided(best.is_some_and(|size| size == 3 || size == 4)),
    );
    let size = |wanted: u32| experiments.domain.iter().find(|(size, _)| *size == wanted).map(|(_, curve)| curve);
    if let (Some(four), Some(five)) = (size(4), size(5)) {
        for (rate, name) in [(MIDDLE, "middle"), (HIGH, "high")] {
            let title = format!("domain size 5 against 4, {name} rate");
            measures.push(ratio(book, &format!("domain_5_cost_{name}"), &title, at(five, rate), at(four, rate), 1.0).paper("slower"));
        }
    }
}

/// How long it all took.
pub fn judge_time(quick: bool, wall_s: f64, measures: &mut Vec<Measure>) {
    let measure = Measure::new("wall_s", "all experiments, on this machine", "s", Better::Lower).spread(Spread::of(&[wall_s]));
    measures.push(if quick { measure.must(30.0) } else { measure.must(600.0).aim(180.0) });
}
