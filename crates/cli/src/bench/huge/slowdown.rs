//! What being tracked costs the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use hiroma_hot::{Engine, Options};
use hiroma_report::{Better, Measure, Report, Section, Spread, Table};

use super::Params;
use super::load::{Done, Load, Loaded, Pages, Pattern};
use crate::bench::ballast::Ballast;
use crate::bench::progress::Progress;

/// Length of one half of a pair.
const HALF: Duration = Duration::from_millis(600);

/// Tracks process `pid` with 1 % of a processor, without credit for the beginning, until told to stop.
fn track(pid: u32, stop: &AtomicBool) -> Result<()> {
    let options = Options { watch_only: true, ledger: None, cpu_ppm: 10_000, burst_ns: 0, ..Options::default() };
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let mut engine = Engine::new(pid, options, now())?;
    while !stop.load(Ordering::Relaxed) {
        let step = engine.step(now())?;
        std::thread::sleep(Duration::from_nanos(step.next_ns.saturating_sub(now())).min(Duration::from_millis(20)));
    }
    Ok(())
}

fn half(loaded: &mut Loaded, tracked: bool) -> Result<Done> {
    let stop = Arc::new(AtomicBool::new(false));
    let tracker = tracked.then(|| {
        let (pid, stop) = (loaded.pid(), Arc::clone(&stop));
        std::thread::spawn(move || track(pid, &stop))
    });
    loaded.go()?;
    std::thread::sleep(HALF);
    let done = loaded.stop()?;
    stop.store(true, Ordering::Relaxed);
    if let Some(tracker) = tracker {
        tracker.join().map_err(|_| anyhow!("the tracker failed"))??;
    }
    Ok(done)
}

/// Measures and reports.
pub fn run(params: &Params, ballast: &Ballast, progress: &Progress, report: &mut Report) -> Result<()> {
    let mut loaded = Loaded::start(Load::new(params.bytes, Pattern::Random, Pages::Small), ballast)?;
    loaded.run(4)?;
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    for pair in 0..params.repetitions {
        progress.starts(&format!("slowdown, pair {} of {}", pair + 1, params.repetitions));
        // Who goes first changes, so that a drift of the machine hits both.
        let first = half(&mut loaded, pair % 2 == 0)?;
        let second = half(&mut loaded, pair % 2 == 1)?;
        let (on, off) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        let percent = |on: f64, off: f64| 100.0 * (off / on - 1.0);
        cpu.push(percent(on.touches_per_cpu_us(), off.touches_per_cpu_us()));
        wall.push(percent(on.gb_per_s(), off.gb_per_s()));
    }
    loaded.end()?;
    let mut table = Table::new("Slowdown while tracked at 1 % of a processor").text("measured by").number("slowdown", "%");
    let text = |values: &[f64]| Spread::of(values).map_or("–".to_owned(), Spread::to_text);
    table.row(["processor time for each touch".to_owned(), text(&cpu)]);
    table.row(["touches per second".to_owned(), text(&wall)]);
    report.measures.push(
        Measure::new("slowdown_cpu_percent", "Slowdown while tracked at 1 % CPU, processor time per touch", "%", Better::Lower)
            .paper("large")
            .must(2.0)
            .aim(0.5)
            .spread(Spread::of(&cpu)),
    );
    report.measures.push(
        Measure::new("slowdown_percent", "Slowdown while tracked at 1 % CPU, throughput", "%", Better::Lower)
            .paper("large")
            .must(2.0)
            .aim(0.5)
            .spread(Spread::of(&wall)),
    );
    report.sections.push(Section {
        title: "What tracking costs the program".into(),
        text: vec![format!(
            "Random touches, {} ms with the tracker and as much without, in turns: {} pairs.",
            HALF.as_millis(),
            params.repetitions
        )],
        tables: vec![table],
        plots: vec![],
    });
    Ok(())
}
