//! One run of one arm.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use hiroma_sys::quiet::affinity;

use super::Params;
use super::app::{App, AppResults};
use super::arm::{Arm, Remedy};
use super::ground::{self, Books, Ground, on_cpus, place_kswapd, scratch, set};
use super::load::Way;
use crate::children::{Failed, Interrupt, Running, hiroma, this_program};
use crate::peers::Cgroup;
use crate::undo::Guard;

/// Time for the noise and the daemon to settle before the application starts.
const SETTLE: Duration = Duration::from_millis(1000);
/// Time that a child may take beyond its own duration.
const GRACE: Duration = Duration::from_secs(30);
/// Memory limit of the reader in a control group.
const GROUP_BYTES: u64 = 256 << 20;
/// Memory that the application allocates in each step of the allocating arms.
const ALLOC_BYTES: usize = 4 << 20;

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Run {
    pub went: AppResults,
    pub books: Books,
    /// Whether the load kept its rate, as a valid run requires.
    pub valid: bool,
    /// Messages of the daemon.
    pub journal: Vec<String>,
}

impl Run {
    /// Mean duration of a step, in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        self.went.steps_ns.iter().sum::<u64>() as f64 / self.went.steps_ns.len().max(1) as f64 / 1e6
    }

    pub fn step_ms(&self, permille: usize) -> f64 {
        let mut steps = self.went.steps_ns.clone();
        steps.sort_unstable();
        let at = (steps.len() * permille).div_ceil(1000).saturating_sub(1);
        steps.get(at).copied().unwrap_or(0) as f64 / 1e6
    }
}

/// The daemon, from the command beside this program.
pub struct DaemonRun {
    pub running: Running,
    journal: PathBuf,
    _state: Guard,
}

impl DaemonRun {
    /// Starts it on the spare processor, and waits until it is ready.
    pub fn start(ground: &Ground, pin: bool) -> Result<DaemonRun> {
        let state = ground.dir.join(format!("hiroma-bench-{}-state", std::process::id()));
        let guard = Guard::new(crate::undo::Undo::DirRemove(state.clone()));
        fs::create_dir_all(&state).with_context(|| format!("{}", state.display()))?;
        hiroma_quiet::settings::save(&state, &ground.settings)?;
        let journal = state.join("journal");
        let mut command = Command::new(hiroma()?);
        // A pipe that is not drained would block the daemon in the middle of a turn.
        let said = File::create(&journal).with_context(|| format!("{}", journal.display()))?;
        command
            .args(["quiet", "serve", "--with-parent", "--state"])
            .arg(&state)
            .stdout(Stdio::piped())
            .stderr(said);
        // Without --app-cpus the daemon uses the processors that it may run on, which is only the
        // spare one, and leaves kswapd where it is.
        let cpus = if pin { ground.all_cpus.clone() } else { vec![ground.spare] };
        if pin {
            command.args(["--app-cpus", &affinity::show_list(&ground.app_cpus)]);
        }
        let mut running = on_cpus(&cpus, || Running::start(&mut command))?;
        let mut line = String::new();
        BufReader::new(running.take_stdout().context("a daemon without an output")?)
            .read_line(&mut line)?;
        ensure!(line.contains("ready"), "the daemon did not start: `hiroma quiet serve` shows why");
        Ok(DaemonRun { running, journal, _state: guard })
    }

    /// Ends it, so that it restores all settings. Returns its messages.
    pub fn end(self) -> Result<Vec<String>, Failed> {
        self.running.end(GRACE)?;
        let said = fs::read_to_string(&self.journal)?;
        Ok(said.lines().map(|line| line.trim_start_matches("hiroma quiet: ").to_owned()).collect())
    }
}

/// Applies the settings of a peer until the guards are dropped.
fn apply(remedy: Remedy) -> Result<Vec<Guard>> {
    Ok(match remedy {
        Remedy::WatermarkScale => vec![set("/proc/sys/vm/watermark_scale_factor", "1000")?],
        Remedy::MinFree => vec![set("/proc/sys/vm/min_free_kbytes", "1048576")?],
        Remedy::None
        | Remedy::Daemon
        | Remedy::DaemonAndPin
        | Remedy::Cgroup
        | Remedy::QuietRun => Vec::new(),
    })
}

fn app(
    ground: &Ground,
    params: &Params,
    alloc: bool,
    duration: Duration,
    interrupt: &Interrupt,
) -> Result<AppResults, Failed> {
    let job = App {
        cpus: ground.app_cpus.clone(),
        step_us: params.step_us,
        duration_ms: duration.as_millis() as u64,
        alloc_bytes: if alloc { ALLOC_BYTES } else { 0 },
        chunk_turns: params.chunk_turns,
    };
    let mut command = Command::new(this_program()?);
    command.arg("noise-app").arg(serde_json::to_string(&job).context("a job becomes JSON")?);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(&mut command)?;
    let out = running.take_stdout().context("an application without an output")?;
    // The output exceeds the capacity of a pipe, so it is read while the application runs.
    let reader = thread::spawn(move || {
        let mut text = String::new();
        BufReader::new(out).read_to_string(&mut text).map(|_| text)
    });
    let ended = running.wait(duration + GRACE, interrupt)?;
    crate::children::check(&ended)?;
    let text = reader.join().map_err(|_| anyhow!("reading what the application found"))??;
    serde_json::from_str(&text).context("reading what the application found").map_err(Failed::Other)
}

/// Determines the amount of work in a microsecond, once for all runs.
pub fn calibrate(
    ground: &Ground,
    params: &Params,
    interrupt: &Interrupt,
) -> Result<AppResults, Failed> {
    app(ground, params, false, Duration::from_millis(500), interrupt)
}

/// Runs an arm once.
pub fn run(
    arm: &Arm,
    ground: &Ground,
    params: &Params,
    interrupt: &Interrupt,
) -> Result<Run, Failed> {
    let _kswapd = place_kswapd(arm.kswapd, ground)?;
    let _peer = apply(arm.remedy)?;
    if arm.wants_full() {
        ground.fill(interrupt)?;
    }
    let cgroup = (arm.remedy == Remedy::Cgroup).then(|| Cgroup::make(GROUP_BYTES)).transpose()?;
    let daemon = arm
        .has_daemon()
        .then(|| DaemonRun::start(ground, arm.remedy == Remedy::DaemonAndPin))
        .transpose()?;
    let mut file = None;
    let mut load = match arm.way {
        None => None,
        Some(way) => {
            let rate_bytes_s =
                if way == Way::Nfs { params.nfs_bytes_s } else { params.rate_bytes_s };
            let mut load = ground.load(way, rate_bytes_s);
            if way == Way::Write {
                let (path, guard) = scratch(&ground.dir, "write", 2 * ground.cache_bytes)?;
                file = Some(guard);
                (load.file, load.bytes, load.start) = (path, 2 * ground.cache_bytes, 0);
                load.rate_bytes_s = params.write_bytes_s;
            }
            load.cgroup = cgroup.as_ref().map(|group| group.path().to_owned());
            load.under_quiet_run = arm.remedy == Remedy::QuietRun;
            Some((ground.start(&load)?, load.rate_bytes_s))
        }
    };
    thread::sleep(SETTLE);
    let pids = (
        load.as_ref().map(|(load, _)| ground::worker(load.pid())),
        daemon.as_ref().map(|daemon| daemon.running.pid()),
    );
    let before = Books::read(pids.0, pids.1, &ground.app_cpus)?;
    let went = app(ground, params, arm.alloc, params.duration, interrupt)?;
    let books = Books::read(pids.0, pids.1, &ground.app_cpus)?.since(&before);
    let mut valid = true;
    if let Some((mut running, rate)) = load.take() {
        if running.has_ended() {
            let said = running.wait(GRACE, interrupt)?.errors;
            return Err(anyhow!(
                "the load ended: {}",
                said.lines().last().unwrap_or("it said nothing")
            )
            .into());
        }
        let got = books.load_bytes as f64 / (books.at_ns as f64 / 1e9);
        valid = got >= 0.95 * rate as f64;
    }
    drop(file);
    let journal = daemon.map_or(Ok(Vec::new()), DaemonRun::end)?;
    Ok(Run { went, books, valid, journal })
}
