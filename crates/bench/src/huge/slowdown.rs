//! Cost of tracking for the program.

use std::time::{Duration, Instant};

use anyhow::Result;
use hiroma_hot::{Backend, Engine, HotError, Options};
use hiroma_memload::ballast::Ballast;
use hiroma_report::{Better, Measure, Report, Section, Spread, Table};

use super::Params;
use super::load::{Done, Load, Loaded, Pages, Pattern};
use crate::progress::Progress;

/// Length of one turn.
const TURN: Duration = Duration::from_millis(500);
/// Number of rounds of turns for each requested repetition: the effects are small.
const ROUNDS_EACH: usize = 2;
/// No limit on the cost of tracking for the program.
const UNLIMITED: u64 = 1_000_000;

/// A way of tracking; the first arm is not tracked.
struct Arm {
    name: &'static str,
    engine: Option<Engine>,
    /// Sum of its turns so far, in nanoseconds.
    clock_ns: u64,
    turns: Vec<Done>,
}

impl Arm {
    fn new(name: &'static str, engine: Option<Engine>) -> Arm {
        Arm { name, engine, clock_ns: 0, turns: Vec::new() }
    }

    /// Runs one turn. The engine's clock stops between turns, so that it cannot save up time then.
    fn turn(&mut self, loaded: &mut Loaded) -> Result<()> {
        loaded.go()?;
        let began = Instant::now();
        let start_ns = self.clock_ns;
        let now = || start_ns + began.elapsed().as_nanos() as u64;
        while let Some(left) = TURN.checked_sub(began.elapsed()) {
            let pause = match &mut self.engine {
                Some(engine) => {
                    Duration::from_nanos(engine.step(now())?.next_ns.saturating_sub(now()))
                }
                None => left,
            };
            std::thread::sleep(pause.min(left));
        }
        self.clock_ns = now();
        self.turns.push(loaded.stop()?);
        Ok(())
    }
}

/// Engines without an initial credit.
fn arms(pid: u32) -> Result<Vec<Arm>> {
    let options = |slowdown_ppm: Option<u64>, backend| {
        let defaults = Options::default();
        let slowdown_ppm = slowdown_ppm.unwrap_or(defaults.slowdown_ppm);
        Options { watch_only: true, ledger: None, burst_ns: 0, slowdown_ppm, backend, ..defaults }
    };
    let mut arms = vec![
        Arm::new("not tracked", None),
        Arm::new(
            "as by default (1 % CPU, 0.5 % slowdown)",
            Some(Engine::new(pid, options(None, None), 0)?),
        ),
        Arm::new(
            "1 % CPU, slowdown not limited",
            Some(Engine::new(pid, options(Some(UNLIMITED), None), 0)?),
        ),
    ];
    match Engine::new(pid, options(Some(UNLIMITED), Some(Backend::BpfClearRefs)), 0) {
        Ok(engine) => arms.push(Arm::new("the same, cleared by clear_refs", Some(engine))),
        Err(HotError::NoBackend { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(arms)
}

/// The percentage by which each turn of `on` was slower than the turn of `off` in the same round.
fn percents(off: &Arm, on: &Arm, speed: fn(&Done) -> f64) -> Vec<f64> {
    off.turns
        .iter()
        .zip(&on.turns)
        .map(|(off, on)| 100.0 * (speed(off) / speed(on) - 1.0))
        .collect()
}

/// The same for all turns together.
fn overall(off: &Arm, on: &Arm) -> f64 {
    let cpu_per_touch = |arm: &Arm| {
        let touches: u64 = arm.turns.iter().map(|turn| turn.touches).sum();
        arm.turns.iter().map(|turn| turn.cpu_seconds).sum::<f64>() / touches.max(1) as f64
    };
    100.0 * (cpu_per_touch(on) / cpu_per_touch(off) - 1.0)
}

/// Measures and reports.
pub fn run(
    params: &Params,
    ballast: &Ballast,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    let mut loaded =
        Loaded::start(Load::new(params.bytes, Pattern::Random, Pages::Small), ballast)?;
    loaded.run(4)?;
    let mut arms = arms(loaded.pid())?;
    let rounds = ROUNDS_EACH * params.repetitions;
    for round in 0..rounds {
        progress.starts(&format!("slowdown, round {} of {rounds}", round + 1));
        // The order rotates, so that a drift of the machine affects all arms.
        for place in 0..arms.len() {
            let arm = (place + round) % arms.len();
            arms[arm].turn(&mut loaded)?;
        }
    }
    loaded.end()?;
    let (off, tracked) = arms.split_first().expect("there is the arm that is not tracked");
    let mut table = Table::new("Slowdown while tracked")
        .text("tracked")
        .text("by")
        .number("processor time per touch", "%")
        .number("all turns together", "%")
        .number("touches per second", "%")
        .number("rounds of the tracker", "1/s");
    let cpu = |on: &Arm| percents(off, on, Done::touches_per_cpu_us);
    let wall = |on: &Arm| percents(off, on, Done::gb_per_s);
    let text = |values: &[f64]| Spread::of(values).map_or("–".to_owned(), Spread::to_text);
    for arm in tracked {
        let Some(engine) = &arm.engine else { continue };
        table.row([
            arm.name.to_owned(),
            engine.backend().to_string(),
            text(&cpu(arm)),
            format!("{:.2}", overall(off, arm)),
            text(&wall(arm)),
            format!("{:.1}", engine.rounds() as f64 / (arm.clock_ns as f64 / 1e9)),
        ]);
    }
    let mut add = |name: &str, what: &str, values: &[f64]| {
        let title = format!("Slowdown while tracked at 1 % CPU, {what}");
        report.measures.push(
            Measure::new(name, title, "%", Better::Lower)
                .paper("large")
                .must(2.0)
                .aim(0.5)
                .spread(Spread::of(values)),
        );
    };
    add("slowdown_cpu_percent", "processor time per touch", &cpu(&tracked[0]));
    add("slowdown_percent", "throughput", &wall(&tracked[0]));
    let title = "The same, slowdown not limited, processor time per touch";
    report.measures.push(
        Measure::new("slowdown_unlimited_cpu_percent", title, "%", Better::Lower)
            .spread(Spread::of(&cpu(&tracked[1])))
            .note("--slowdown 100%"),
    );
    report.sections.push(Section {
        title: "What tracking costs the program".into(),
        text: vec![format!(
            "Random touches on small pages, in turns of {} ms: {rounds} rounds; medians with the smallest and the largest of the differences in one round. \
             What clears rarely and all at once (clear_refs) shows in few turns: there only all turns together say something.",
            TURN.as_millis()
        )],
        tables: vec![table],
        plots: vec![],
    });
    Ok(())
}
