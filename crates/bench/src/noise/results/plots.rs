//! The paper's figures, of steps measured here.

use hiroma_report::{Axis, Kind, Plot, Point, Series};

use super::Results;

/// Number of points of a plot: of the steps on one point, the longest is shown.
const POINTS: usize = 400;
/// Number of nodes in the paper's larger experiment.
const NODES: usize = 4;

impl Results {
    /// The paper's figures 4 to 7: durations of steps and their sums, on one node and on four.
    pub(super) fn plots(&self) -> Vec<Plot> {
        let first = |key: &str| {
            self.runs(key)
                .iter()
                .flatten()
                .find(|run| run.valid)
                .map(|run| run.went.steps_ns.clone())
        };
        let (Some(quiet), Some(noise), Some(daemon)) =
            (first("quiet"), first("small_app"), first("small_app_daemon"))
        else {
            return Vec::new();
        };
        let names = ["quiet (Original)", "noise (Noise)", "noise and daemon (Noise+Proposed)"];
        let one = [quiet.clone(), noise.clone(), daemon.clone()];
        let four = [&quiet, &noise, &daemon].map(|noisy| composed(noisy, &quiet));
        let mut plots = Vec::new();
        for (steps, place) in [
            (&one, "one node (paper: figures 4 and 5)"),
            (&four, "four nodes, composed (paper: figures 6 and 7)"),
        ] {
            let times = names
                .iter()
                .zip(steps)
                .map(|(name, steps)| Series::new(*name, times_of(steps)))
                .collect();
            let sums = names
                .iter()
                .zip(steps)
                .map(|(name, steps)| Series::new(*name, sums_of(steps)))
                .collect();
            let plot = |title: String, y: Axis, series: Vec<Series>| Plot {
                title,
                kind: Kind::Lines,
                x: Axis::linear("step", ""),
                y,
                series,
            };
            plots.push(plot(format!("Time of a step, {place}"), Axis::linear("time", "ms"), times));
            plots.push(plot(
                format!("Time of all steps, {place}"),
                Axis::linear("time", "s"),
                sums,
            ));
        }
        plots.push(slowdowns(&one, &four));
        plots
    }
}

/// A step over several nodes, of which one is noisy: the maximum of its step and of steps of quiet
/// nodes. Composed from measurements on this machine, not measured on several.
fn composed(noisy: &[u64], quiet: &[u64]) -> Vec<u64> {
    let others = |at: usize| {
        (1..NODES).map(move |node| quiet[(at + node * quiet.len() / NODES) % quiet.len()])
    };
    noisy
        .iter()
        .enumerate()
        .map(|(at, &step)| others(at).chain([step]).max().unwrap_or(step))
        .collect()
}

fn mean(steps: &[u64]) -> f64 {
    steps.iter().sum::<u64>() as f64 / steps.len().max(1) as f64
}

/// Slowdown relative to quiet, beside the paper's.
fn slowdowns(one: &[Vec<u64>; 3], four: &[Vec<u64>; 3]) -> Plot {
    let percent =
        |steps: &[Vec<u64>; 3], at: usize| 100.0 * (mean(&steps[at]) / mean(&steps[0]) - 1.0);
    let series = |name: &str, values: [f64; 4]| {
        Series::new(
            name,
            values.iter().enumerate().map(|(at, &y)| Point::at(at as f64, y)).collect(),
        )
    };
    Plot {
        title: "Slowdown against quiet, and the paper's".to_owned(),
        kind: Kind::Bars,
        x: Axis::names(
            "experiment",
            ["one node, noise", "one node, proposed", "four nodes, noise", "four nodes, proposed"],
        ),
        y: Axis::linear("slowdown", "%"),
        series: vec![
            series(
                "here (four nodes: composed)",
                [percent(one, 1), percent(one, 2), percent(four, 1), percent(four, 2)],
            ),
            series("paper", [9.0, 0.0, 14.0, 0.0]),
        ],
    }
}

fn times_of(steps: &[u64]) -> Vec<Point> {
    let width = steps.len().div_ceil(POINTS).max(1);
    let longest = steps.chunks(width).map(|steps| steps.iter().max().copied().unwrap_or(0));
    longest.enumerate().map(|(at, ns)| Point::at((at * width) as f64, ns as f64 / 1e6)).collect()
}

fn sums_of(steps: &[u64]) -> Vec<Point> {
    let mut sum = 0;
    let all = steps.iter().enumerate().map(|(at, ns)| {
        sum += ns;
        Point::at(at as f64, sum as f64 / 1e9)
    });
    let all: Vec<Point> = all.collect();
    all.iter().step_by(steps.len().div_ceil(POINTS).max(1)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_over_nodes_takes_the_longest_time() {
        assert_eq!(composed(&[9, 1, 1, 1], &[1, 2, 3, 4]), [9, 4, 4, 3]);
    }
}
