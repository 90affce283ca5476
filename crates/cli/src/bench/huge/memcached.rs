//! memcached with huge pages off, everywhere, and where it is hot (paper, section 6.4).
//!
//! The same program three times (`integrations/memcached/build.sh` makes it), filled alike, and asked in turns. What differs:
//!
//! | Arm | Huge pages |
//! |---|---|
//! | off | none: the machine's setting is `madvise`, and memcached does not ask |
//! | THP always | the machine's setting was `always` while it was filled, and memcached asks for them too (`-L`) |
//! | ours | `-o hiroma`, with a daemon of its own |
//!
//! Without `-L` memcached takes its memory from malloc 1 MiB at a time, and not one huge page comes of the setting.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hiroma_memload::{Connection, Distribution, Endpoint, RunSpec, Store, fill, run as ask, server};
use hiroma_report::{Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series, Spread, Table};
use tempfile::TempDir;

use super::{Params, thp};
use crate::bench::ballast::Ballast;
use crate::bench::children::{Running, this_program};
use crate::bench::progress::Progress;
use crate::bench::with_parent;

const ARMS: [&str; 3] = ["off", "THP always", "ours"];
const OFF: usize = 0;
const ALWAYS: usize = 1;
const OURS: usize = 2;
/// How long one turn of one arm asks. Short, and many: what is to be seen is smaller than how the machine's speed changes within seconds.
const TURN: Duration = Duration::from_millis(200);
const TURNS_PER_REPETITION: usize = 7;
/// How long the daemon may take to find what is hot.
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// Where the program is, unless `integrations/memcached/build.sh` was run in this directory.
const PROGRAM_VARIABLE: &str = "HIROMA_MEMCACHED";

/// A memcached of one arm.
struct Server {
    endpoint: Endpoint,
    running: Running,
}

/// What one turn measured.
struct Turn {
    operations_per_s: f64,
    cpu_ns_per_operation: f64,
}

fn program() -> Option<PathBuf> {
    let built = std::env::var_os(PROGRAM_VARIABLE).map_or_else(|| "build/memcached/memcached".into(), PathBuf::from);
    built.is_file().then_some(built)
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > Duration::from_secs(30) {
            bail!("waited 30 s for {what}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Server {
    fn start(program: &Path, dir: &Path, arm: usize, store: Store) -> Result<Server> {
        let socket = dir.join(format!("memcached-{arm}"));
        let megabytes = ((store.items * (store.value_bytes as u64 + 256)) >> 20) + 128;
        let mut command = with_parent::command(program)?;
        command.arg("-s").arg(&socket).args(["-u", "root", "-t", "1", "-m", &megabytes.to_string()]);
        if arm == ALWAYS {
            command.arg("-L");
        }
        if arm == OURS {
            command.args(["-o", "hiroma"]).env("HIROMA_HOT_SOCKET", dir.join("hot"));
        }
        let running = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?;
        wait_for("memcached to listen", || UnixStream::connect(&socket).is_ok())?;
        let server = Server { endpoint: Endpoint::Unix(socket), running };
        fill(&server.endpoint, store, &|_| ()).with_context(|| format!("filling memcached ({})", ARMS[arm]))?;
        Ok(server)
    }

    fn ask(&self, store: Store, seed: u64, time: Duration) -> Result<Turn> {
        let spec = RunSpec {
            endpoint: self.endpoint.clone(),
            store,
            distribution: Distribution::Zipf { exponent: 0.99 },
            connections: 1,
            depth: 32,
            write_percent: 0,
            operations: None,
            time: Some(time),
            seed,
            may_miss: false,
            fresh: true,
        };
        let before = server::cpu_ns(self.running.pid(), "")?;
        let outcome = ask(&spec, &|_| ())?;
        let used = server::cpu_ns(self.running.pid(), "")?.saturating_sub(before);
        let operations = outcome.operations.max(1) as f64;
        Ok(Turn { operations_per_s: outcome.operations_per_s, cpu_ns_per_operation: used as f64 / operations })
    }

    fn stat(&self, name: &str) -> Result<u64> {
        let stats = Connection::open(&self.endpoint)?.stats("")?;
        Ok(stats.iter().find(|(key, _)| key == name).and_then(|(_, value)| value.parse().ok()).unwrap_or(0))
    }
}

/// Starts and fills all three, each under its own setting.
fn start_all(program: &Path, dir: &Path, store: Store, ballast: &Ballast, progress: &Progress) -> Result<(Vec<Server>, Running)> {
    let mut command = with_parent::command(&this_program()?)?;
    command.args(["hot", "serve", "--quiet", "--budget", "50%", "--socket"]).arg(dir.join("hot")).stdout(Stdio::null());
    let daemon = Running::start(&mut command)?;
    wait_for("the hot page daemon", || dir.join("hot").exists())?;
    let mut servers = Vec::new();
    for (arm, name) in ARMS.iter().enumerate() {
        progress.starts(&format!("memcached: filling ({name})"));
        ballast.load()?;
        let _setting = thp::set("enabled", if arm == ALWAYS { "always" } else { "madvise" })?;
        servers.push(Server::start(program, dir, arm, store)?);
    }
    Ok((servers, daemon))
}

/// Asks until the daemon has had nothing to do for a while, or the time is up. Returns how long it had something to do.
fn settle(ours: &Server, store: Store) -> Result<f64> {
    let (start, mut last, mut changed) = (Instant::now(), 0, Instant::now());
    while start.elapsed() < SETTLE_MAX && changed.elapsed() < Duration::from_secs(6) {
        ours.ask(store, start.elapsed().as_millis() as u64, Duration::from_millis(500))?;
        let done = ours.stat("hiroma_ranges_collapsed")? + ours.stat("hiroma_items_moved")?;
        if done != last {
            (last, changed) = (done, Instant::now());
        }
    }
    if last == 0 {
        bail!("nothing became huge within {} s; memcached is tracked: {}", SETTLE_MAX.as_secs(), ours.stat("hiroma_tracked")?);
    }
    Ok((changed - start).as_secs_f64())
}

/// Measures and reports.
pub fn run(params: &Params, ballast: &Ballast, progress: &Progress, report: &mut Report) -> Result<()> {
    let Some(program) = program() else {
        let text =
            format!("Not measured: there is no patched memcached. Run integrations/memcached/build.sh, or name one in {PROGRAM_VARIABLE}.");
        report.sections.push(Section { title: "memcached".into(), text: vec![text], tables: vec![], plots: vec![] });
        return Ok(());
    };
    let store = Store { items: if params.quick { 100_000 } else { 800_000 }, value_bytes: 512 };
    let dir = TempDir::new()?;
    let (servers, _daemon) = start_all(&program, dir.path(), store, ballast, progress)?;
    progress.starts("memcached: finding what is hot");
    let settled_s = settle(&servers[OURS], store)?;
    let rounds = params.repetitions * TURNS_PER_REPETITION;
    let mut turns: [Vec<Turn>; 3] = Default::default();
    for round in 0..rounds {
        if round % TURNS_PER_REPETITION == 0 {
            progress.starts(&format!("memcached, round {} of {rounds}", round + 1));
        }
        // Who goes first changes, so that a drift of the machine hits all.
        for place in 0..ARMS.len() {
            let arm = (place + round) % ARMS.len();
            let turn = servers[arm].ask(store, round as u64, TURN)?;
            turns[arm].push(turn);
        }
    }
    let memory = servers.iter().map(|each| server::memory(each.running.pid())).collect::<std::io::Result<Vec<_>>>()?;
    let moved = servers[OURS].stat("hiroma_items_moved")?;
    let note = format!(
        "Ours settled {settled_s:.1} s after it was filled, and moved {moved} items. Paper (figures 19, 20): THP +2.55 %, HPS +1.94 % \
         throughput; memory +96.2 % and +6.17 %."
    );
    let found = Found { turns, memory };
    report.sections.push(found.section(&note));
    found.measure(report);
    Ok(())
}

/// What all turns found.
struct Found {
    turns: [Vec<Turn>; 3],
    memory: Vec<server::Memory>,
}

/// What is compared.
#[derive(Clone, Copy)]
enum By {
    Throughput,
    Cpu,
}

impl Found {
    fn values(&self, arm: usize, by: By) -> Vec<f64> {
        let of = |turn: &Turn| match by {
            By::Throughput => turn.operations_per_s,
            By::Cpu => turn.cpu_ns_per_operation,
        };
        self.turns[arm].iter().map(of).collect()
    }

    /// By how many per cent `arm` is better than off, round by round.
    fn gains(&self, arm: usize, by: By) -> Vec<f64> {
        let better = |(one, off): (f64, f64)| match by {
            By::Throughput => one / off,
            By::Cpu => off / one,
        };
        self.values(arm, by).into_iter().zip(self.values(OFF, by)).map(|pair| 100.0 * (better(pair) - 1.0)).collect()
    }

    fn growth(&self, arm: usize) -> f64 {
        100.0 * (self.memory[arm].resident_bytes as f64 / self.memory[OFF].resident_bytes as f64 - 1.0)
    }

    /// Ours of THP always's gain, in per cent; none where that gains nothing.
    fn share(&self, by: By) -> Option<Spread> {
        let ours = Spread::of(&self.gains(OURS, by))?.median;
        let always = Spread::of(&self.gains(ALWAYS, by))?.median;
        if always > 0.0 { Spread::of(&[100.0 * ours / always]) } else { None }
    }

    fn section(&self, note: &str) -> Section {
        let mut table = Table::new("memcached, items of 512 bytes, read only, zipfian (.99)")
            .text("huge pages")
            .number("throughput", "1/s")
            .number("gain", "%")
            .number("processor time", "ns/op")
            .number("gain", "%")
            .number("resident", "MiB")
            .number("growth", "%")
            .number("on huge pages", "MiB");
        let text = |values: Vec<f64>| Spread::of(&values).map_or("–".to_owned(), Spread::to_text);
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        for (arm, name) in ARMS.iter().enumerate() {
            table.row([
                (*name).to_owned(),
                text(self.values(arm, By::Throughput)),
                text(self.gains(arm, By::Throughput)),
                text(self.values(arm, By::Cpu)),
                text(self.gains(arm, By::Cpu)),
                mib(self.memory[arm].resident_bytes),
                format!("{:.2}", self.growth(arm)),
                mib(self.memory[arm].huge_bytes),
            ]);
        }
        table.note(note);
        let text = "One program three times, filled alike and asked in turns over a Unix socket by one connection with 32 requests on \
                    their way; every value is verified. Gains are round by round, against off.";
        Section { title: "memcached (figures 19 and 20)".into(), text: vec![text.into()], tables: vec![table], plots: self.plots() }
    }

    /// The paper's figures 19 and 20: against small pages, with the paper's values beside.
    fn plots(&self) -> Vec<Plot> {
        let plot = |title: &str, what: &str, kept: [Option<Spread>; 2], paper: [f64; 2]| {
            let points = |values: [Option<Spread>; 2]| {
                let at = |(place, value): (usize, Option<Spread>)| value.map(|spread| Point::of(place as f64, spread));
                values.into_iter().enumerate().filter_map(at).collect::<Vec<Point>>()
            };
            Plot {
                title: title.to_owned(),
                kind: Kind::Bars,
                x: Axis::names("huge pages", [ARMS[ALWAYS], ARMS[OURS]]),
                y: Axis::linear(what, "%"),
                series: vec![Series::new("here", points(kept)), Series::new("paper", points(paper.map(|value| Spread::of(&[value]))))],
            }
        };
        let gain = |arm| Spread::of(&self.gains(arm, By::Throughput));
        let growth = |arm| Spread::of(&[self.growth(arm)]);
        vec![
            plot("memcached: throughput over small pages (figure 19)", "gain", [gain(ALWAYS), gain(OURS)], [2.55, 1.94]),
            plot("memcached: memory over small pages (figure 20)", "growth", [growth(ALWAYS), growth(OURS)], [96.2, 6.17]),
        ]
    }

    fn measure(&self, report: &mut Report) {
        let gain = |name: &str, title: &str| Measure::new(name, title, "%", Better::Higher);
        let of_always = |name: &str, what: &str, by: By| {
            let title = format!("memcached: gain against THP always's gain, {what}");
            let measure = gain(name, &title).must(90.0).aim(100.0).spread(self.share(by));
            if measure.value.is_none() { measure.note("THP always gained nothing here") } else { measure }
        };
        report
            .measures
            .push(of_always("memcached_gain_share_cpu_percent", "processor time per operation", By::Cpu).paper("76 (throughput)"));
        report.measures.push(of_always("memcached_gain_share_percent", "throughput", By::Throughput).paper_number(76.0));
        let spread = |arm, by| Spread::of(&self.gains(arm, by));
        let cpu = "processor time per operation";
        report.measures.extend([
            gain("memcached_gain_cpu_percent", &format!("memcached: gain, {cpu}")).spread(spread(OURS, By::Cpu)),
            gain("memcached_gain_percent", "memcached: gain, throughput").paper_number(1.94).spread(spread(OURS, By::Throughput)),
            gain("memcached_thp_gain_cpu_percent", &format!("memcached: gain of THP always, {cpu}")).spread(spread(ALWAYS, By::Cpu)),
            gain("memcached_thp_gain_percent", "memcached: gain of THP always, throughput")
                .paper_number(2.55)
                .spread(spread(ALWAYS, By::Throughput)),
        ]);
        let grows = |name: &str, title: &str, arm: usize, paper: f64| {
            Measure::new(name, title, "%", Better::Lower).paper_number(paper).spread(Spread::of(&[self.growth(arm)]))
        };
        report.measures.push(grows("memcached_growth_percent", "memcached: memory growth over 4K pages", OURS, 6.17).must(6.0).aim(3.0));
        report.measures.push(grows("memcached_thp_growth_percent", "memcached: memory growth of THP always", ALWAYS, 96.2));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What the paper found, as if it had been measured here.
    pub fn section() -> Section {
        let turn = |percent: f64| vec![Turn { operations_per_s: 1e6 * (1.0 + percent / 100.0), cpu_ns_per_operation: 900.0 }];
        let memory = |percent: u64| server::Memory { resident_bytes: (100 + percent) << 20, ..server::Memory::default() };
        let found = Found { turns: [turn(0.0), turn(2.55), turn(1.94)], memory: vec![memory(0), memory(96), memory(6)] };
        found.section("a note")
    }

    #[test]
    fn gains_and_growth_are_drawn_beside_the_papers() {
        let [gain, growth] = &section().plots[..] else { panic!("not two plots") };
        for (plot, here) in [(gain, [2.55, 1.94]), (growth, [96.0, 6.0])] {
            for (point, expected) in plot.series[0].points.iter().zip(here) {
                assert!((point.y - expected).abs() < 1e-6, "{}: {}", plot.title, point.y);
            }
            assert_eq!((plot.series[0].points.len(), plot.series[1].points.len()), (2, 2));
        }
    }
}
