//! The paper's figure 6: huge pages over time. Sampling costs time, so these runs are not used for
//! timings.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use hiroma_memload::server;
use hiroma_report::{Axis, Plot, Point, Report, Section, Series, Table, figures};
use hiroma_units::EXTENT;

use super::Ground;
use super::pages::{Executor, huge_of, large_ranges};
use super::spec::{Policy, Storage, Workload};
use crate::children::Failed;
use crate::progress::Progress;

const LOOK_EVERY: Duration = Duration::from_millis(250);
const MIB: f64 = (1u64 << 20) as f64;

/// One sample of all executors.
struct Sample {
    seconds: f64,
    huge_bytes: u64,
    resident_bytes: u64,
    /// Process and range of the huge pages in the large mappings.
    huge: BTreeSet<(u32, u64)>,
}

fn look(pids: &[u32], began: Instant) -> io::Result<Sample> {
    let mut sample = Sample {
        seconds: began.elapsed().as_secs_f64(),
        huge_bytes: 0,
        resident_bytes: 0,
        huge: BTreeSet::new(),
    };
    for &pid in pids {
        let memory = server::memory(pid)?;
        sample.huge_bytes += memory.huge_bytes;
        sample.resident_bytes += memory.resident_bytes;
        sample
            .huge
            .extend(huge_of(pid, &large_ranges(pid)?)?.into_iter().map(|range| (pid, range)));
    }
    Ok(sample)
}

/// Ranges that contain cached data at the end, as far as they were huge in `sample`, in MiB.
fn cached_mib(sample: &Sample, executors: &[Executor]) -> f64 {
    let ranges = executors.iter().flat_map(|executor| {
        executor.cached_ranges().into_iter().map(|range| (executor.pid, range))
    });
    ranges.filter(|range| sample.huge.contains(range)).count() as f64 * EXTENT as f64 / MIB
}

/// Observations of one policy.
struct Watched {
    samples: Vec<Sample>,
    executors: Vec<Executor>,
    caching_ended_s: f64,
}

fn watch(ground: &Ground<'_>, policy: Policy) -> Result<Watched, Failed> {
    let mut session = ground.start(&ground.spec(Workload::Micro, Storage::Serialised, policy))?;
    let pids = session.pids.clone();
    let (over, began) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut samples = Vec::new();
            while !over.load(Ordering::Relaxed) {
                samples.push(look(&pids, began)?);
                std::thread::sleep(LOOK_EVERY);
            }
            Ok::<_, io::Error>(samples)
        });
        let worked = (|| {
            session.cache()?;
            let caching_ended_s = began.elapsed().as_secs_f64();
            session.iterate(ground.params.watched_iterations)?;
            Ok::<_, Failed>((session.look()?, caching_ended_s))
        })();
        over.store(true, Ordering::Relaxed);
        let samples =
            watcher.join().map_err(|_| anyhow!("the thread that looks at executors failed"))?;
        let (executors, caching_ended_s) = worked?;
        Ok(Watched { samples: samples?, executors, caching_ended_s })
    })
}

/// Estimated duration for one policy, in seconds.
pub fn seconds_of(ground: &Ground<'_>) -> f64 {
    let gib = ground.params.bytes as f64 / (1u64 << 30) as f64;
    9.0 + gib * (8.0 + 1.5 * ground.params.watched_iterations as f64)
}

/// Watches and reports.
pub fn run(
    ground: &Ground<'_>,
    progress: &mut Progress,
    report: &mut Report,
) -> Result<(), Failed> {
    let axes = |title: &str| Plot {
        title: title.to_owned(),
        x: Axis::linear("time since the executors were there", "s"),
        y: Axis::linear("all executors", "MiB"),
        ..Plot::default()
    };
    let mut plots = [
        axes("On huge pages (figure 6)"),
        axes("Cached data on huge pages"),
        axes("Anything else on huge pages"),
        axes("Resident"),
    ];
    let mut table = Table::new("When caching ended, and in the end")
        .text("policy")
        .number("caching ended", "s")
        .number("huge then", "MiB")
        .number("in the end", "MiB")
        .number("cached", "MiB")
        .number("something else", "MiB");
    for policy in ground.params.four() {
        progress.starts(&format!("huge pages over time, {}", policy.name()));
        let watched = watch(ground, policy)?;
        let points = |value: &dyn Fn(&Sample) -> f64| {
            watched.samples.iter().map(|sample| Point::at(sample.seconds, value(sample))).collect()
        };
        let huge = |sample: &Sample| sample.huge_bytes as f64 / MIB;
        let cached = |sample: &Sample| cached_mib(sample, &watched.executors);
        let values: [&dyn Fn(&Sample) -> f64; 4] =
            [&huge, &cached, &|sample| (huge(sample) - cached(sample)).max(0.0), &|sample| {
                sample.resident_bytes as f64 / MIB
            }];
        for (plot, value) in plots.iter_mut().zip(values) {
            plot.series.push(Series::new(policy.name(), points(value)));
        }
        if policy == Policy::Part {
            // The reference of the paper's figure: an executor's share of the data.
            let mib =
                watched.executors.iter().flat_map(Executor::runs).map(|(_, len)| len).sum::<u64>()
                    as f64
                    / MIB;
            let end = watched.samples.last().map_or(0.0, |sample| sample.seconds);
            plots[0].series.push(Series {
                reference: true,
                ..Series::new("cached", vec![Point::at(0.0, mib), Point::at(end, mib)])
            });
        }
        let then = watched
            .samples
            .iter()
            .find(|sample| sample.seconds >= watched.caching_ended_s)
            .or(watched.samples.last());
        let number = |sample: Option<&Sample>, value: &dyn Fn(&Sample) -> f64| {
            sample.map_or_else(|| "–".to_owned(), |sample| figures(value(sample)))
        };
        let last = watched.samples.last();
        table.row([
            policy.name().to_owned(),
            figures(watched.caching_ended_s),
            number(then, &huge),
            number(last, &huge),
            number(last, &cached),
            number(last, &|sample| (huge(sample) - cached(sample)).max(0.0)),
        ]);
        progress.done(seconds_of(ground));
    }
    report.sections.push(Section {
        title: "Huge pages over time (figure 6)".into(),
        text: vec![
            "Paper, 12 GB in four executors: part has all 3 GB of an executor at once and nothing else, part-old gets there slowly, entire has more than the \
             cached data. Here: a look every quarter of a second, from outside. Cached is what holds cached data in the end, in whole ranges of 2 MiB."
                .into(),
        ],
        tables: vec![table],
        plots: plots.into(),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_curve_covers_finally_cached_ranges() {
        let executor: Executor = serde_json::from_str(
            r#"{"pid":7,"policy":"","gc_ms":0,"runs":[4194304,2097152,10485760,1]}"#,
        )
        .unwrap();
        let huge = BTreeSet::from([(7, 2), (7, 3), (8, 5)]);
        let sample = Sample { seconds: 0.0, huge_bytes: 0, resident_bytes: 0, huge };
        assert_eq!(cached_mib(&sample, &[executor]), 2.0);
    }
}
