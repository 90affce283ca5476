//! The paper's claims, each as a measure that is met or not.
//!
//! Two policies are compared by the ratio of their responses seed by seed (geometric mean, with its
//! 95 % interval): the same seed gives both the same processes, and runs of different seeds differ
//! by factors. A claim about an order is met if the interval is on the claim's side of 1; if it
//! contains 1, the two are *not told apart*, and the claim is not met.

use hiroma_report::{Better, Measure, Spread, figures as digits};

use super::Rates;
use super::book::{Book, Curve, Id};
use super::experiments::{DEFAULT_MARKS, Experiments};
use crate::figures::RESPONSE;
use hiroma_report::{Estimate, Verdict};

/// A gain below this, in per cent, counts as none.
const NO_GAIN_PERCENT: f64 = 2.0;

fn at(curve: &Curve, rate: f64) -> Id {
    curve
        .points
        .iter()
        .find(|(place, _)| *place == rate)
        .expect("every line has the low, middle and high rate")
        .1
}

/// The deviation of `value` from the paper's figure.
fn off(name: &str, title: &str, value: f64, paper: f64, unit: &str, must_percent: f64) -> Measure {
    let off =
        if value.is_finite() { Spread::of(&[(value / paper - 1.0).abs() * 100.0]) } else { None };
    Measure::new(name, title, "%", Better::Lower)
        .must(must_percent)
        .paper(format!("{paper} {unit}").trim().to_owned())
        .note(if off.is_some() {
            format!("{} {unit}", digits(value))
        } else {
            "there was nothing to measure".to_owned()
        })
        .spread(off)
}

/// The verdict of an interval of ratios, as text.
fn verdict_text(ratio: &Estimate) -> &'static str {
    match ratio.verdict() {
        Verdict::Larger => "told apart: longer",
        Verdict::Smaller => "told apart: shorter",
        Verdict::NotToldApart => "not told apart",
    }
}

/// A ratio with its interval as the spread of a measure.
fn spread_of(ratio: &Estimate) -> Spread {
    Spread { median: ratio.mean.exp(), min: ratio.low().exp(), max: ratio.high().exp(), n: ratio.n }
}

/// The ratio of a figure seed by seed, whose whole interval has to be above `must`.
fn ratio_of(
    book: &Book,
    figure: &str,
    name: &str,
    title: &str,
    over: Id,
    under: Id,
    must: f64,
) -> Measure {
    let measure = Measure::new(name, title, "", Better::Higher).must(must);
    let Some(ratio) =
        Estimate::of_log_ratios(&book.values(over, figure), &book.values(under, figure))
    else {
        return measure.note("there was nothing to measure").decided(false);
    };
    let note = format!(
        "{} against {}; {}",
        digits(book.mean(over, figure)),
        digits(book.mean(under, figure)),
        verdict_text(&ratio)
    );
    measure
        .spread(Some(spread_of(&ratio)))
        .note(note)
        .decided(ratio.half_width.is_some() && ratio.low() > must.ln())
}

/// The same for mean responses, ms.
fn ratio(book: &Book, name: &str, title: &str, over: Id, under: Id, must: f64) -> Measure {
    ratio_of(book, RESPONSE, name, title, over, under, must)
}

/// All claims.
pub fn judge(experiments: &Experiments, book: &Book, named: Rates, measures: &mut Vec<Measure>) {
    judge_no_global(experiments, book, named, measures);
    judge_information(experiments, book, named, measures);
    judge_placement(experiments, book, named, measures);
    let [none, on_demand, in_advance] = [0, 1, 2].map(|index| &experiments.reservation[index]);
    for (rate, name) in [(named.low, "low"), (named.high, "high")] {
        let (over, under) = if rate == named.low {
            (at(on_demand, rate), at(none, rate))
        } else {
            (at(none, rate), at(on_demand, rate))
        };
        let title = if rate == named.low {
            "low rate: on demand against no reservation"
        } else {
            "high rate: no reservation against on demand"
        };
        let key = if rate == named.low {
            "reservation_cost_low".to_owned()
        } else {
            format!("reservation_gain_{name}")
        };
        measures.push(ratio(book, &key, title, over, under, 1.0).paper(if rate == named.low {
            "slower"
        } else {
            "faster"
        }));
    }
    let title = "high rate: no reservation against in advance";
    measures.push(
        ratio(
            book,
            "reservation_in_advance_gain_high",
            title,
            at(none, named.high),
            at(in_advance, named.high),
            1.0,
        )
        .paper("faster"),
    );
    judge_in_advance(experiments, book, measures);
    judge_domain(experiments, book, named, measures);
}

fn judge_no_global(
    experiments: &Experiments,
    book: &Book,
    named: Rates,
    measures: &mut Vec<Measure>,
) {
    let all: Vec<f64> = experiments
        .no_global
        .points
        .iter()
        .map(|&(_, id)| book.response(id))
        .filter(|value| value.is_finite())
        .collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    measures.push(off(
        "no_global_off_percent",
        "no global placement: off the paper's response",
        mean,
        33.0,
        "ms",
        20.0,
    ));
    let spread =
        Spread::of(&all).and_then(|spread| Spread::of(&[(spread.max / spread.min - 1.0) * 100.0]));
    measures.push(
        Measure::new(
            "no_global_flat_percent",
            "no global placement: longest over shortest of all rates",
            "%",
            Better::Lower,
        )
        .must(20.0)
        .paper("flat")
        .spread(spread)
        .note(format!(
            "{} ms",
            all.iter().map(|&value| digits(value)).collect::<Vec<_>>().join(", ")
        )),
    );
    for (rate, name) in [(named.low, "low"), (named.middle, "middle")] {
        let title = format!("no global placement against the paper's policy, {name} rate");
        let (over, under) =
            (at(&experiments.no_global, rate), at(&experiments.information[0], rate));
        measures.push(
            ratio(book, &format!("global_gain_{name}"), &title, over, under, 10.0)
                .paper("an order of magnitude"),
        );
    }
}

fn judge_information(
    experiments: &Experiments,
    book: &Book,
    named: Rates,
    measures: &mut Vec<Measure>,
) {
    let [on_change, on_demand, periodic] = [0, 1, 2].map(|index| &experiments.information[index]);
    for (other, key, name) in
        [(on_demand, "on_demand", "on demand"), (periodic, "periodic", "periodic (1 ms)")]
    {
        for (rate, place) in [(named.low, "low"), (named.middle, "middle"), (named.high, "high")] {
            let title = format!("{name} against on change, {place} rate");
            measures.push(
                ratio(
                    book,
                    &format!("{key}_cost_{place}"),
                    &title,
                    at(other, rate),
                    at(on_change, rate),
                    1.0,
                )
                .paper("slower"),
            );
        }
    }
    measures.push(against_best(
        book,
        "watermarks_cost",
        "the paper's watermarks against the best of the others, over the rates",
        &experiments.watermarks,
        DEFAULT_MARKS,
        |(high, low)| {
            format!(
                "{} % and {} % free",
                digits(f64::from(*high) / 10.0),
                digits(f64::from(*low) / 10.0)
            )
        },
    ));
    let period = |period_ns: &u64| format!("{} ms", digits(*period_ns as f64 / 1e6));
    let title = "a period of 1 ms against the best other one, over the rates";
    measures.push(against_best(
        book,
        "period_cost",
        title,
        &experiments.periods,
        1_000_000,
        period,
    ));
}

/// The paper's choice against the best of the others, by the geometric mean over the rates: met if
/// the two are distinguished and the paper's is faster.
fn against_best<K: PartialEq>(
    book: &Book,
    name: &str,
    title: &str,
    tried: &[(K, Vec<Id>)],
    papers: K,
    describe: impl Fn(&K) -> String,
) -> Measure {
    let over_rates = |ids: &[Id]| -> Vec<f64> {
        let all: Vec<Vec<f64>> = ids.iter().map(|&id| book.responses(id)).collect();
        let of_seed = |seed: usize| all.iter().map(|runs| runs[seed].ln()).sum::<f64>();
        (0..all[0].len()).map(|seed| (of_seed(seed) / all.len() as f64).exp()).collect()
    };
    let mean = |ids: &[Id]| over_rates(ids).iter().map(|response| response.ln()).sum::<f64>();
    let paper = tried.iter().find(|(key, _)| *key == papers);
    let others = tried.iter().filter(|(key, _)| *key != papers);
    let best = others.min_by(|(_, one), (_, other)| mean(one).total_cmp(&mean(other)));
    let measure = Measure::new(name, title, "", Better::Lower).must(1.0).paper("best");
    let (Some((_, paper)), Some((key, best))) = (paper, best) else {
        return measure.note("nothing else was tried");
    };
    let Some(ratio) = Estimate::of_log_ratios(&over_rates(paper), &over_rates(best)) else {
        return measure;
    };
    let note = format!("the best other one: {}; {}", describe(key), verdict_text(&ratio));
    measure.spread(Some(spread_of(&ratio))).note(note).decided(ratio.verdict() == Verdict::Smaller)
}

fn judge_placement(
    experiments: &Experiments,
    book: &Book,
    named: Rates,
    measures: &mut Vec<Measure>,
) {
    let [most_free, nearest, random, gradient] =
        [0, 1, 2, 3].map(|index| at(&experiments.placement[index], named.high));
    for (id, key, name, ms, hops) in [
        (nearest, "nearest", "nearest", 0.59, 1.9),
        (most_free, "most_free", "most free", 0.82, 3.0),
    ] {
        let title = format!("{name}, high rate: page transfer off the paper's");
        measures.push(off(
            &format!("{key}_transfer_off_percent"),
            &title,
            book.mean(id, "transfer_ms"),
            ms,
            "ms",
            25.0,
        ));
        let title = format!("{name}, high rate: hops off the paper's");
        measures.push(off(
            &format!("{key}_hops_off_percent"),
            &title,
            book.mean(id, "transfer_hops"),
            hops,
            "hops",
            25.0,
        ));
    }
    measures.push(
        ratio(book, "nearest_gain_high", "high rate: random against nearest", random, nearest, 1.0)
            .paper("slower"),
    );
    let repeated = |id| book.mean(id, "repeated_share");
    measures.push(off(
        "most_free_repeated_off_percent",
        "high rate: repeated page-outs of most free over those of random, off the paper's",
        repeated(most_free) / repeated(random),
        1.2,
        "times",
        25.0,
    ));
    let title = "high rate: repeated page-outs for each page-out, most free against random";
    measures.push(
        ratio_of(book, "repeated_share", "most_free_repeated_ratio", title, most_free, random, 1.0)
            .paper_number(1.2),
    );
    measures.push(
        ratio(
            book,
            "most_free_cost_high",
            "high rate: most free against random",
            most_free,
            random,
            1.0,
        )
        .paper("slower"),
    );
    for (rate, name) in [(named.low, "low"), (named.high, "high")] {
        let others = experiments.placement[..3].iter().map(|curve| at(curve, rate));
        let worst = others
            .max_by(|one, other| book.response(*one).total_cmp(&book.response(*other)))
            .expect("there are three");
        let gradient =
            if rate == named.high { gradient } else { at(&experiments.placement[3], rate) };
        let title = format!("gradient against the worst other placement, {name} rate");
        measures.push(
            ratio(book, &format!("gradient_cost_{name}"), &title, gradient, worst, 1.0)
                .paper("worst"),
        );
    }
}

fn judge_in_advance(experiments: &Experiments, book: &Book, measures: &mut Vec<Measure>) {
    let one = experiments.in_advance[0].1;
    for (frames, more) in &experiments.in_advance[1..] {
        let title = format!("high rate: gain of {frames} frames in advance over 1");
        let gain = Estimate::of_log_ratios(&book.responses(one), &book.responses(*more))
            .filter(|gain| gain.half_width.is_some());
        let percent = |log: f64| (log.exp() - 1.0) * 100.0;
        let spread = gain.map(|gain| Spread {
            median: percent(gain.mean),
            min: percent(gain.low()),
            max: percent(gain.high()),
            n: gain.n,
        });
        let none = gain.is_some_and(|gain| percent(gain.high()) <= NO_GAIN_PERCENT);
        measures.push(
            Measure::new(format!("in_advance_{frames}_gain_percent"), title, "%", Better::Lower)
                .must(NO_GAIN_PERCENT)
                .paper("none")
                .spread(spread)
                .note("met if the whole interval is below")
                .decided(none),
        );
    }
}

fn judge_domain(experiments: &Experiments, book: &Book, named: Rates, measures: &mut Vec<Measure>) {
    let mean =
        |curve: &Curve| curve.points.iter().map(|&(_, id)| book.response(id).ln()).sum::<f64>();
    let best = experiments
        .domain
        .iter()
        .min_by(|(_, one), (_, other)| mean(one).total_cmp(&mean(other)))
        .map(|(size, _)| *size);
    measures.push(
        Measure::new(
            "domain_best_is_3_or_4",
            "best domain size over all rates (geometric mean)",
            "hops",
            Better::Higher,
        )
        .paper("3 and 4")
        .spread(best.and_then(|size| Spread::of(&[f64::from(size)])))
        .decided(best.is_some_and(|size| size == 3 || size == 4)),
    );
    let size = |wanted: u32| {
        experiments.domain.iter().find(|(size, _)| *size == wanted).map(|(_, curve)| curve)
    };
    if let (Some(two), Some(three)) = (size(2), size(3)) {
        let title = "domain size 2 against 3, high rate";
        measures.push(
            ratio(
                book,
                "domain_2_cost_high",
                title,
                at(two, named.high),
                at(three, named.high),
                1.0,
            )
            .paper("slower"),
        );
    }
    if let (Some(four), Some(five)) = (size(4), size(5)) {
        for (rate, name) in [(named.middle, "middle"), (named.high, "high")] {
            let title = format!("domain size 5 against 4, {name} rate");
            measures.push(
                ratio(
                    book,
                    &format!("domain_5_cost_{name}"),
                    &title,
                    at(five, rate),
                    at(four, rate),
                    1.0,
                )
                .paper("slower"),
            );
        }
    }
}

/// How long all experiments took.
pub fn judge_time(quick: bool, wall_s: f64, measures: &mut Vec<Measure>) {
    let measure = Measure::new("wall_s", "all experiments, on this machine", "s", Better::Lower)
        .spread(Spread::of(&[wall_s]));
    measures.push(if quick { measure.must(30.0) } else { measure.must(600.0).aim(300.0) });
}
