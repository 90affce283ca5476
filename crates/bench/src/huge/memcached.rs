//! memcached with huge pages off, everywhere, and where it is hot (paper, section 6.4).
//!
//! The same program three times (`integrations/memcached/build.sh` makes it), filled alike, and
//! loaded alternately. The arms are:
//!
//! | Arm | Huge pages |
//! |---|---|
//! | off | none: the machine's setting is `madvise`, and memcached does not request them |
//! | THP always | the setting was `always` while it was filled, and memcached requests them (`-L`) |
//! | ours | `-o hiroma`, with a daemon of its own |
//!
//! Without `-L` memcached takes its memory from malloc 1 MiB at a time, and the setting results in
//! no huge page at all.
//!
//! Before the measurement all three have answered the same number of requests: while items are new
//! to it, memcached has little work with its lists (one of its threads moves items that were read
//! again), and this difference would be attributed to huge pages.
//!
//! There are two settings: that of the paper, where little is hot and caches contain much of it, so
//! that huge pages gain next to nothing; and one with a wide hot set, where the gain can be
//! distinguished from the differences between rounds.

mod results;

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hiroma_memload::ballast::Ballast;
use hiroma_memload::{
    Connection, Distribution, Endpoint, RunSpec, Store, fill, run as ask, server,
};
use hiroma_report::{
    Axis, Better, Kind, Measure, Plot, Point, Report, Section, Series, Spread, Table,
};
use hiroma_sys::quiet::affinity;
use tempfile::TempDir;

use self::results::MemcachedResults;
use super::{Params, interval, thp};
use crate::children::{Running, hiroma};
use crate::progress::Progress;
use crate::with_parent;

const ARMS: [&str; 3] = ["off", "THP always", "ours"];
const OFF: usize = 0;
const ALWAYS: usize = 1;
const OURS: usize = 2;
/// The order of the arms in each round: each arm is at each place, and follows each other arm,
/// equally often.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];
/// Duration of one turn of one arm. Turns are short and many: the effect is smaller than the
/// changes of the machine's speed within seconds.
const TURN: Duration = Duration::from_millis(200);
/// Number of times that all are started anew: the addresses of their memory differ from start to
/// start, and so does their speed.
const STARTS: usize = 5;
/// Memory that must be available for three times the items of the wide setting.
const ROOM_FOR_WIDE: u64 = 8 << 30;
/// Time limit for the daemon to find what is hot.
const SETTLE_MAX: Duration = Duration::from_secs(90);
/// The daemon has found it if it did nothing for this time: it sleeps for some seconds between
/// checks, and takes some checks to be sure.
const SETTLED_AFTER: Duration = Duration::from_secs(12);
/// Path of the program, unless `integrations/memcached/build.sh` was run in this directory.
const PROGRAM_VARIABLE: &str = "HIROMA_MEMCACHED";

/// The stored items and the requests.
struct Setting {
    /// Prefix of the names of figures.
    key: &'static str,
    title: &'static str,
    store: Store,
    distribution: Distribution,
    /// Number of requests in flight.
    depth: usize,
    /// Rounds of one start, for each repetition.
    rounds_per_repetition: usize,
    /// Whether its figures are also the paper's.
    of_paper: bool,
}

impl Setting {
    /// Both settings; the smallest ones with `quick`.
    fn all(quick: bool, available_bytes: u64) -> [Setting; 2] {
        let paper_items = if quick { 50_000 } else { 800_000 };
        let wide_items = match quick {
            true => paper_items,
            false if available_bytes < ROOM_FOR_WIDE => paper_items,
            false => 1_600_000,
        };
        [
            Setting {
                key: "memcached",
                title: "zipfian (.99), as in the paper",
                store: Store { items: paper_items, value_bytes: 512 },
                distribution: Distribution::Zipf { exponent: 0.99 },
                depth: 32,
                rounds_per_repetition: 6,
                of_paper: true,
            },
            Setting {
                key: "memcached_wide",
                title: "a wide hot set: 95 % of requests for half of the items",
                store: Store { items: wide_items, value_bytes: 512 },
                distribution: Distribution::Hotspot { items_percent: 50, requests_percent: 95 },
                depth: 64,
                rounds_per_repetition: 4,
                of_paper: false,
            },
        ]
    }
}

/// The processors of the server and of the load. They are separate, so that neither waits for the
/// other and caches stay warm.
#[derive(Clone, Copy)]
struct Places {
    server: usize,
    load: usize,
}

impl Places {
    /// The first two processors that this thread may use; none if there is only one.
    fn choose() -> Option<Places> {
        match affinity::of(0).ok()?[..] {
            [server, load, ..] => Some(Places { server, load }),
            _ => None,
        }
    }
}

/// Confines this thread, and those that it starts, to one processor until it is dropped.
struct AffinityGuard(Vec<usize>);

impl AffinityGuard {
    fn on(cpu: usize) -> Result<AffinityGuard> {
        let before = affinity::of(0).context("which processors this thread may use")?;
        affinity::confine(0, &[cpu]).context("keeping the load on one processor")?;
        Ok(AffinityGuard(before))
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        let _ = affinity::confine(0, &self.0);
    }
}

/// A memcached of one arm.
struct Server {
    endpoint: Endpoint,
    running: Running,
}

/// When a turn ends.
#[derive(Clone, Copy)]
enum Until {
    Passed(Duration),
    Answered(u64),
}

/// Results of one turn.
struct Turn {
    operations: u64,
    operations_per_s: f64,
    cpu_ns_per_operation: f64,
}

fn program() -> Option<PathBuf> {
    let built = std::env::var_os(PROGRAM_VARIABLE)
        .map_or_else(|| "build/memcached/memcached".into(), PathBuf::from);
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

/// Waits until the program accepts connections. If it ends instead, the reason is what it wrote to
/// `said`.
fn listens(running: &mut Running, socket: &Path, said: &Path) -> Result<()> {
    let mut has_ended = false;
    wait_for("memcached to listen", || {
        has_ended = running.has_ended();
        has_ended || UnixStream::connect(socket).is_ok()
    })?;
    if has_ended {
        let said = std::fs::read_to_string(said)?;
        bail!("it ended before it listened: {}", said.lines().last().unwrap_or("it said nothing"));
    }
    Ok(())
}

impl Server {
    fn start(program: &Path, dir: &Path, arm: usize, store: Store) -> Result<Server> {
        let socket = dir.join(format!("memcached-{arm}"));
        let megabytes = ((store.items * (store.value_bytes as u64 + 256)) >> 20) + 128;
        // The final size of the table: so it does not grow during the measurement.
        let hashpower = format!("hashpower={}", store.items.next_power_of_two().ilog2().max(16));
        let mut command = with_parent::command(program)?;
        command.arg("-s").arg(&socket).args([
            "-u",
            "root",
            "-t",
            "1",
            "-m",
            &megabytes.to_string(),
        ]);
        if arm == ALWAYS {
            command.arg("-L");
        }
        if arm == OURS {
            command.args(["-o", "hiroma"]).env("HIROMA_HOT_SOCKET", dir.join("hot"));
        }
        command.args(["-o", &hashpower]);
        let said = dir.join(format!("memcached-{arm}.said"));
        let mut running =
            Running::start(command.stdout(Stdio::null()).stderr(File::create(&said)?))?;
        listens(&mut running, &socket, &said).with_context(|| format!("{}", program.display()))?;
        let server = Server { endpoint: Endpoint::Unix(socket), running };
        fill(&server.endpoint, store, &|_| ())
            .with_context(|| format!("filling memcached ({})", ARMS[arm]))?;
        Ok(server)
    }

    /// Confines all of its threads to one processor.
    fn keep_on(&self, cpu: usize) -> Result<()> {
        for task in std::fs::read_dir(format!("/proc/{}/task", self.running.pid()))? {
            let thread =
                task?.file_name().to_string_lossy().parse().context("the number of a thread")?;
            affinity::confine(thread, &[cpu]).context("keeping memcached on one processor")?;
        }
        Ok(())
    }

    fn ask(&self, setting: &Setting, seed: u64, until: Until) -> Result<Turn> {
        let (operations, time) = match until {
            Until::Passed(time) => (None, Some(time)),
            Until::Answered(operations) => (Some(operations), None),
        };
        let spec = RunSpec {
            endpoint: self.endpoint.clone(),
            store: setting.store,
            distribution: setting.distribution,
            connections: 1,
            depth: setting.depth,
            write_percent: 0,
            operations,
            time,
            seed,
            may_miss: false,
            fresh: true,
        };
        let before = server::cpu_ns(self.running.pid(), "")?;
        let outcome = ask(&spec, &|_| ())?;
        let used = server::cpu_ns(self.running.pid(), "")?.saturating_sub(before);
        let cpu_ns_per_operation = used as f64 / outcome.operations.max(1) as f64;
        Ok(Turn {
            operations: outcome.operations,
            operations_per_s: outcome.operations_per_s,
            cpu_ns_per_operation,
        })
    }

    fn stat(&self, name: &str) -> Result<u64> {
        let stats = Connection::open(&self.endpoint)?.stats("")?;
        Ok(stats
            .iter()
            .find(|(key, _)| key == name)
            .and_then(|(_, value)| value.parse().ok())
            .unwrap_or(0))
    }
}

/// Starts and fills all three, each under its own setting.
fn start_all(
    program: &Path,
    dir: &Path,
    store: Store,
    ballast: &Ballast,
    progress: &Progress,
) -> Result<(Vec<Server>, Running)> {
    let mut command = with_parent::command(&hiroma()?)?;
    command
        .args(["hot", "serve", "--quiet", "--budget", "50%", "--socket"])
        .arg(dir.join("hot"))
        .stdout(Stdio::null());
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

/// Sends requests until the daemon has been idle for a while, or the time is up. Returns for how
/// many seconds it was active, and how many requests were answered.
fn settle(ours: &Server, setting: &Setting) -> Result<(f64, u64)> {
    let (start, mut last, mut changed, mut operations) = (Instant::now(), 0, Instant::now(), 0);
    while start.elapsed() < SETTLE_MAX && changed.elapsed() < SETTLED_AFTER {
        let until = Until::Passed(Duration::from_millis(500));
        operations += ours.ask(setting, start.elapsed().as_millis() as u64, until)?.operations;
        // A few items are moved again and again.
        let done = ours.stat("hiroma_ranges_collapsed")?;
        if done != last {
            (last, changed) = (done, Instant::now());
        }
    }
    if last == 0 {
        bail!(
            "nothing became huge within {} s; memcached is tracked: {}",
            SETTLE_MAX.as_secs(),
            ours.stat("hiroma_tracked")?
        );
    }
    Ok(((changed - start).as_secs_f64(), operations))
}

/// Measures and reports.
pub fn run(
    params: &Params,
    ballast: &Ballast,
    progress: &Progress,
    report: &mut Report,
) -> Result<()> {
    let Some(program) = program() else {
        let text = format!(
            "Not measured: there is no patched memcached. Run integrations/memcached/build.sh, or name one in {PROGRAM_VARIABLE}."
        );
        report.sections.push(Section {
            title: "memcached".into(),
            text: vec![text],
            tables: vec![],
            plots: vec![],
        });
        return Ok(());
    };
    let mut failed = Vec::new();
    for setting in Setting::all(params.quick, hiroma_sys::host::memory::available()?.0) {
        match measure(&program, &setting, params, ballast, progress) {
            Ok((found, note)) => {
                report.sections.push(found.section(&setting, &note));
                found.measure(&setting, report);
            }
            Err(error) => failed.push(format!("{}: {error:#}", setting.title)),
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
}

fn measure(
    program: &Path,
    setting: &Setting,
    params: &Params,
    ballast: &Ballast,
    progress: &Progress,
) -> Result<(MemcachedResults, String)> {
    let starts = if params.quick { 1 } else { STARTS };
    let mut all = MemcachedResults::default();
    for start in 1..=starts {
        measure_once(
            program,
            setting,
            params.repetitions * setting.rounds_per_repetition,
            (ballast, progress),
            &mut all,
        )
        .with_context(|| format!("start {start} of {starts}"))?;
    }
    let note = all.note(setting);
    Ok((all, note))
}

fn measure_once(
    program: &Path,
    setting: &Setting,
    rounds: usize,
    (ballast, progress): (&Ballast, &Progress),
    all: &mut MemcachedResults,
) -> Result<()> {
    let dir = TempDir::new()?;
    let (servers, _daemon) = start_all(program, dir.path(), setting.store, ballast, progress)?;
    let places = Places::choose();
    if let Some(places) = places {
        servers.iter().try_for_each(|server| server.keep_on(places.server))?;
    }
    let _kept = places.map(|places| AffinityGuard::on(places.load)).transpose()?;
    progress.starts("memcached: finding what is hot");
    let (settled_s, operations) = settle(&servers[OURS], setting)?;
    for arm in [OFF, ALWAYS] {
        progress.starts(&format!("memcached: as many requests for the others ({})", ARMS[arm]));
        servers[arm].ask(setting, 0, Until::Answered(operations))?;
    }
    for round in 0..rounds {
        if round % setting.rounds_per_repetition == 0 {
            progress.starts(&format!(
                "memcached, start {}, round {} of {rounds}",
                all.starts + 1,
                round + 1
            ));
        }
        for arm in ORDERS[round % ORDERS.len()] {
            let turn = servers[arm].ask(setting, round as u64, Until::Passed(TURN))?;
            all.turns[arm].push(turn);
        }
    }
    for (sum, server) in all.memory.iter_mut().zip(&servers) {
        let memory = server::memory(server.running.pid())?;
        sum.resident_bytes += memory.resident_bytes;
        sum.huge_bytes += memory.huge_bytes;
    }
    all.starts += 1;
    all.settled_s_max = all.settled_s_max.max(settled_s);
    all.moved += servers[OURS].stat("hiroma_items_moved")?;
    all.before += operations;
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::results::By;
    use super::*;

    /// The paper's results, as if they had been measured here.
    pub fn section() -> Section {
        found(0.0, 2.55, 1.94).section(&Setting::all(true, 0)[0], "a note")
    }

    /// Two equal rounds, with throughputs that are better than the first arm's by these
    /// percentages.
    fn found(off: f64, always: f64, ours: f64) -> MemcachedResults {
        let turn = |percent: f64| {
            (0..2)
                .map(|_| Turn {
                    operations: 200_000,
                    operations_per_s: 1e6 * (1.0 + percent / 100.0),
                    cpu_ns_per_operation: 900.0,
                })
                .collect()
        };
        let memory = |percent: u64| server::Memory {
            resident_bytes: (100 + percent) << 20,
            ..server::Memory::default()
        };
        MemcachedResults {
            turns: [turn(off), turn(always), turn(ours)],
            memory: [memory(0), memory(96), memory(6)],
            starts: 1,
            ..MemcachedResults::default()
        }
    }

    #[test]
    fn failed_server_start_is_reported_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let said = dir.path().join("said");
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", "echo cannot open libhiroma.so.0 >&2; exit 127"])
            .stderr(File::create(&said).unwrap());
        let error =
            listens(&mut Running::start(&mut command).unwrap(), &dir.path().join("socket"), &said)
                .unwrap_err();
        assert!(
            error.to_string().contains("ended before it listened: cannot open libhiroma.so.0"),
            "{error}"
        );
    }

    #[test]
    fn share_of_gain_is_reported_when_positive() {
        let share = found(0.0, 10.0, 9.5).share(By::Throughput).unwrap();
        assert!(
            (share.median - 95.0).abs() < 1e-6 && (share.max - share.min).abs() < 1e-6,
            "{share:?}"
        );
        // Processor time is the same in all.
        assert_eq!(
            (found(0.0, 10.0, 9.5).share(By::Cpu), found(0.0, -1.0, 5.0).share(By::Throughput)),
            (None, None)
        );
        let mut report = Report::default();
        found(0.0, 10.0, 9.5).measure(&Setting::all(false, 1 << 40)[1], &mut report);
        let named = |name: &str| {
            report
                .measures
                .iter()
                .find(|measure| measure.name == format!("memcached_wide_{name}"))
                .unwrap()
        };
        assert_eq!(
            (named("gain_share_percent").met, named("gain_share_percent").aim_met),
            (Some(true), Some(false))
        );
        assert_eq!(named("gain_share_cpu_percent").met, None);
        assert!(named("gain_share_cpu_percent").note.contains("not told from none"));
    }

    #[test]
    fn gains_and_growth_are_drawn_beside_the_paper() {
        let [gain, growth] = &section().plots[..] else { panic!("not two plots") };
        for (plot, here) in [(gain, [2.55, 1.94]), (growth, [96.0, 6.0])] {
            for (point, expected) in plot.series[0].points.iter().zip(here) {
                assert!((point.y - expected).abs() < 1e-6, "{}: {}", plot.title, point.y);
            }
            assert_eq!((plot.series[0].points.len(), plot.series[1].points.len()), (2, 2));
        }
    }
}
