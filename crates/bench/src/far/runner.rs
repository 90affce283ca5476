//! Executes planned runs: prepares the memory, has a child do the work, and cleans up.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use hiroma_far::config::{Allocation, Config, ReplacementKind, StoreSpec, TransportChoice};
use hiroma_memload::ballast::Ballast;
use hiroma_memload::content;
use hiroma_units::Bytes;

use super::params::Params;
use super::plan::{Local, Ours, Place, Run, Store, Text, TimeLimit, Work, block_name};
use super::results::Results;
use super::{sort, sort_blocks};
use crate::children::{
    Failed, Interrupt, Running, Server, check, hiroma, run_job, run_stream, same_content,
    this_program,
};
use crate::job::{Job, Memory, Task, TaskResult};
use crate::peers::{ALLOWANCE_BYTES, Cgroup, SwapArea, SwapKind, SwapTraffic};
use crate::undo::{Guard, Undo};

/// Resources of one call.
pub struct Runner<'a> {
    params: &'a Params,
    interrupt: &'a Interrupt,
    areas: BTreeMap<SwapKind, Result<SwapArea, String>>,
    texts: BTreeMap<Text, PathBuf>,
    ballast: Option<Ballast>,
    dir: PathBuf,
    _dir_remove: Guard,
}

impl<'a> Runner<'a> {
    /// A runner with a private directory in /var/tmp, which is removed with it.
    pub fn new(params: &'a Params, interrupt: &'a Interrupt) -> Result<Runner<'a>> {
        let dir = PathBuf::from(format!("/var/tmp/hiroma-bench-{}", std::process::id()));
        let remove = Guard::new(Undo::DirRemove(dir.clone()));
        fs::create_dir(&dir).with_context(|| {
            format!("making {} for texts and their sorted copies", dir.display())
        })?;
        Ok(Runner {
            params,
            interrupt,
            areas: BTreeMap::new(),
            texts: BTreeMap::new(),
            ballast: None,
            dir,
            _dir_remove: remove,
        })
    }

    /// Takes enough backed memory for every experiment.
    pub fn warm(&mut self) -> Result<()> {
        let wanted =
            (3 * self.params.region as u64 / 2).max(3 * sort::memory_of(self.params.lines, 10) / 2);
        self.ballast = Some(Ballast::new(Bytes(wanted))?);
        Ok(())
    }

    /// Descriptions of the peers.
    pub fn descriptions(&self) -> Vec<String> {
        let peers = self.areas.values().map(|area| match area {
            Ok(area) => area.description.clone(),
            Err(reason) => reason.clone(),
        });
        let all: Vec<String> = peers.collect();
        if all.is_empty() {
            vec![]
        } else {
            vec![format!(
                "Swap peers: {}; limited by a control group to the local memory and {} MiB.",
                all.join(", "),
                ALLOWANCE_BYTES >> 20
            )]
        }
    }

    /// Executes a run once.
    pub fn execute(&mut self, run: &Run, results: &Results) -> Result<TaskResult, Failed> {
        let limit = self.time_limit(run, results)?;
        if let Some(ballast) = &self.ballast {
            ballast.load()?;
        }
        match (&run.place, &run.work) {
            (_, Work::Stream(bytes)) => run_stream(*bytes, limit, self.interrupt),
            (Place::Native, Work::Task(task)) => self.job(Memory::Native, None, task, limit),
            (Place::Native, Work::Sort(text)) => self.sort_natively(*text, limit),
            (Place::Ours(ours), work) => {
                let local = local_bytes(ours.local, results)?;
                let (stores, mut servers) = open_store(ours.store)?;
                let death = ours.kill.map(|key| Death::plan(key, results, &mut servers));
                let death = death.transpose()?;
                let outcome = match work {
                    Work::Sort(text) => self.sort_far(*text, ours, local, &stores, limit),
                    Work::Task(task) => self.job(
                        Memory::Pager(Box::new(config(ours, local, stores))),
                        None,
                        task,
                        limit,
                    ),
                    Work::Stream(_) => unreachable!("matched above"),
                };
                death.map_or(Ok(()), |death| death.check(&outcome))?;
                outcome
            }
            (Place::Swap(kind, local), work) => {
                let local = local_bytes(*local, results)?;
                self.swapped(*kind, local, work, limit)
            }
        }
    }

    fn time_limit(&self, run: &Run, results: &Results) -> Result<Duration> {
        let seconds = match run.limit {
            TimeLimit::Seconds(seconds) => seconds,
            TimeLimit::Times(factor, key) => {
                let native = results
                    .spread(key, |outcome| outcome.seconds)
                    .with_context(|| format!("not run: {}", results.why_missing(key)))?;
                // Short runs are dominated by the fixed cost of a run.
                factor * native.median.max(1.0)
            }
        };
        Ok(Duration::from_secs_f64(seconds))
    }

    fn job(
        &self,
        memory: Memory,
        cgroup: Option<&Cgroup>,
        task: &Task,
        limit: Duration,
    ) -> Result<TaskResult, Failed> {
        let job = Job {
            memory,
            cgroup: cgroup.map(|cgroup| cgroup.path().to_owned()),
            task: task.clone(),
        };
        run_job(&job, limit, self.interrupt)
    }

    /// Runs under the limit of a control group, with swap to a peer, and verifies that it really
    /// swapped.
    fn swapped(
        &mut self,
        kind: SwapKind,
        local: u64,
        work: &Work,
        limit: Duration,
    ) -> Result<TaskResult, Failed> {
        // Pages of zeros take no room; everything else has to fit.
        let largest = roomiest(self.params);
        let area = self.areas.entry(kind).or_insert_with(|| {
            SwapArea::make(kind, largest)
                .map_err(|error| format!("{} is skipped: {error:#}", kind.name()))
        });
        let area = area.as_ref().map_err(|reason| anyhow!("{reason}"))?;
        let cgroup = Cgroup::make(local + ALLOWANCE_BYTES)?;
        let on = area.switch_on()?;
        let before = SwapTraffic::now();
        let outcome = match work {
            Work::Task(task) => self.job(Memory::Native, Some(&cgroup), task, limit),
            Work::Sort(text) => {
                let text = *text;
                self.sort_limited(text, &cgroup, limit)
            }
            Work::Stream(_) => unreachable!("a stream needs no memory"),
        };
        let swapped = SwapTraffic::now().since(before);
        let kills = cgroup.kills();
        drop(on);
        let mut outcome = match outcome {
            Err(Failed::Other(_)) if kills > 0 => return Err(Failed::OutOfMemory),
            outcome => outcome?,
        };
        (outcome.swap_pages_in, outcome.swap_pages_out) = (swapped.pages_in, swapped.pages_out);
        if let Work::Task(Task::Sequential { bytes }) = work {
            let expected = (*bytes as f64 * (1.0 - outcome.local_share)) as u64 / 4096;
            if outcome.local_share > 0.3 || swapped.pages_in < expected / 10 * 8 {
                return Err(anyhow!(
                    "it hardly swapped: {} pages were read from swap, {expected} were to be",
                    swapped.pages_in
                )
                .into());
            }
        }
        if swapped.pages_out == 0 {
            return Err(anyhow!(
                "it did not swap at all: is the memory limit of control groups in force here?"
            )
            .into());
        }
        Ok(outcome)
    }

    fn text(&mut self, text: Text) -> Result<PathBuf> {
        if let Some(path) = self.texts.get(&text) {
            return Ok(path.clone());
        }
        let path = self.dir.join(format!("{text:?}"));
        match text {
            Text::Numbers => content::numbers(&path, self.params.lines),
            Text::FewNumbers => content::numbers(&path, sort_blocks::few_lines(self.params)),
            Text::LongLines => content::long_lines(&path, sort_blocks::long_lines(self.params)),
        }
        .with_context(|| format!("writing the text {}", path.display()))?;
        self.texts.insert(text, path.clone());
        Ok(path)
    }

    fn sorted(&self, text: Text) -> PathBuf {
        self.dir.join(format!("{text:?}.sorted"))
    }

    /// Command line of a sort whose buffer is large enough for all of its text, so that it needs no
    /// temporary files.
    fn sort_argv(&mut self, text: Text, out: &std::path::Path) -> Result<Vec<String>> {
        let input = self.text(text)?;
        let line = if text == Text::LongLines { 71 } else { 10 };
        let lines = fs::metadata(&input)?.len() / line;
        let buffer = sort::memory_of(lines, line) * 3 / 2 + (64 << 20);
        let argv = [
            "sort",
            "--parallel=1",
            "-S",
            &format!("{}K", buffer >> 10),
            "-T",
            &self.dir.to_string_lossy(),
            &input.to_string_lossy(),
            "-o",
            &out.to_string_lossy(),
        ];
        Ok(argv.map(str::to_owned).to_vec())
    }

    fn sort_natively(&mut self, text: Text, limit: Duration) -> Result<TaskResult, Failed> {
        let out = self.sorted(text);
        let argv = self.sort_argv(text, &out)?;
        self.program(Command::new(&argv[0]).args(&argv[1..]), limit)
    }

    fn sort_limited(
        &mut self,
        text: Text,
        cgroup: &Cgroup,
        limit: Duration,
    ) -> Result<TaskResult, Failed> {
        let out = self.dir.join("out");
        let job = Job {
            memory: Memory::Native,
            cgroup: Some(cgroup.path().to_owned()),
            task: Task::Program { argv: self.sort_argv(text, &out)? },
        };
        let job = serde_json::to_string(&job).map_err(anyhow::Error::from)?;
        let outcome = self.program(Command::new(this_program()?).args(["workload", &job]), limit);
        self.checked(text, &out, outcome)
    }

    fn sort_far(
        &mut self,
        text: Text,
        ours: &Ours,
        local: u64,
        stores: &[StoreSpec],
        limit: Duration,
    ) -> Result<TaskResult, Failed> {
        let out = self.dir.join("out");
        let stats = self.dir.join("stats.json");
        let stores: Vec<String> = stores.iter().map(StoreSpec::to_string).collect();
        let allocation = match ours.store {
            Store::Tcp { allocation: Allocation::RoundRobin, .. } => "round-robin",
            _ => "simple",
        };
        let mut command = Command::new(hiroma()?);
        command.args([
            "run",
            "--quiet",
            "--local",
            &local.to_string(),
            "--store",
            &stores.join(","),
            "--allocation",
            allocation,
            // The servers are here, and what is measured is TCP.
            "--transport",
            "tcp",
        ]);
        command.args([
            "--block",
            &block_name(ours.block),
            "--replacement",
            if ours.replacement == ReplacementKind::Lru { "lru" } else { "fifo" },
        ]);
        if !ours.prefetch {
            command.arg("--no-prefetch");
        }
        match (ours.scheme.is_cut(), ours.scheme.pieces()) {
            (true, _) => command.args(["--parity", &ours.scheme.to_string()]),
            (false, copies) => command.args(["--copies", &copies.to_string()]),
        };
        command.arg("--stats").arg(&stats).arg("--").args(self.sort_argv(text, &out)?);
        let outcome = self.program(&mut command, limit);
        let mut outcome = self.checked(text, &out, outcome)?;
        outcome.counters = read_counters(&fs::read_to_string(&stats)?)?;
        if outcome
            .counters
            .get("mapped_bytes")
            .is_none_or(|_| outcome.counters.get("local_bytes_max") == Some(&0))
        {
            return Err(anyhow!(
                "sort used no far memory at all: was libhiroma_preload.so loaded?"
            )
            .into());
        }
        Ok(outcome)
    }

    /// Runs a program to its end.
    fn program(&self, command: &mut Command, limit: Duration) -> Result<TaskResult, Failed> {
        command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped());
        let ended = Running::start(command)?.wait(limit, self.interrupt)?;
        check(&ended)?;
        Ok(TaskResult {
            seconds: ended.seconds,
            peak_bytes: ended.peak_bytes,
            ..TaskResult::default()
        })
    }

    /// Compares a sort's output with the native one, and removes it.
    fn checked(
        &self,
        text: Text,
        out: &std::path::Path,
        outcome: Result<TaskResult, Failed>,
    ) -> Result<TaskResult, Failed> {
        let right = if outcome.is_ok() { same_content(out, &self.sorted(text)) } else { Ok(true) };
        let _ = fs::remove_file(out);
        if right? { outcome } else { Err(anyhow!("the sorted text is wrong").into()) }
    }
}

/// Number of bytes of swap that the largest run needs.
fn roomiest(params: &Params) -> u64 {
    let sorts =
        sort::memory_of(params.lines, 10).max(sort::memory_of(sort_blocks::long_lines(params), 71));
    (sorts.max(params.peer_region as u64) + (256 << 20)) >> 20 << 20
}

/// A server that is killed while a program runs.
struct Death {
    killer: std::thread::JoinHandle<()>,
    after: Duration,
}

impl Death {
    fn plan(key: &str, results: &Results, servers: &mut Vec<Server>) -> Result<Death> {
        let calm = results.spread(key, |outcome| outcome.seconds);
        let calm = calm.with_context(|| format!("not run: {}", results.why_missing(key)))?;
        let after = Duration::from_secs_f64(calm.median / 2.0);
        let victim = servers.pop().context("a run without servers")?;
        let killer = std::thread::spawn(move || {
            std::thread::sleep(after);
            drop(victim);
        });
        Ok(Death { killer, after })
    }

    /// Wants that it came in the middle of the program.
    fn check(self, outcome: &Result<TaskResult, Failed>) -> Result<()> {
        self.killer.join().map_err(|_| anyhow!("a server could not be killed"))?;
        match outcome {
            Ok(outcome) if outcome.seconds < self.after.as_secs_f64() => {
                Err(anyhow!("it ended before a server was to be killed"))
            }
            _ => Ok(()),
        }
    }
}

fn local_bytes(local: Local, results: &Results) -> Result<u64> {
    let peak_of = |key: &str| {
        let peak =
            results.of(key).iter().map(|outcome| outcome.peak_bytes).max().filter(|&peak| peak > 0);
        peak.with_context(|| {
            format!("the peak of its memory is not known: {}", results.why_missing(key))
        })
    };
    let bytes = match local {
        Local::Bytes(bytes) => bytes,
        Local::Percent(percent, key) => (peak_of(key)? as f64 * percent / 100.0) as u64,
        Local::Everything(key) => peak_of(key)? / 10 * 11 + (64 << 20),
    };
    Ok(bytes >> 12 << 12)
}

/// Starts the servers of a store, and returns its specification.
fn open_store(store: Store) -> Result<(Vec<StoreSpec>, Vec<Server>)> {
    match store {
        Store::Compressed { capacity } => {
            Ok((vec![StoreSpec::Compressed { capacity: Some(Bytes(capacity)) }], Vec::new()))
        }
        Store::Tcp { servers, each, .. } => {
            let servers: Vec<Server> =
                (0..servers).map(|_| Server::start(each)).collect::<Result<_>>()?;
            Ok((
                vec![StoreSpec::Tcp {
                    servers: servers.iter().map(|server| server.address.clone()).collect(),
                }],
                servers,
            ))
        }
    }
}

fn config(ours: &Ours, local: u64, stores: Vec<StoreSpec>) -> Config {
    let allocation = match ours.store {
        Store::Tcp { allocation, .. } => allocation,
        Store::Compressed { .. } => Allocation::Simple,
    };
    Config {
        local_limit_bytes: local,
        stores,
        allocation,
        block: ours.block,
        replacement: ours.replacement,
        prefetch: ours.prefetch,
        scheme: ours.scheme,
        seal: ours.seal,
        transport: TransportChoice::Tcp,
        ..Config::default()
    }
}

/// Reads the counters from the output of `hiroma run --stats`.
fn read_counters(text: &str) -> Result<BTreeMap<String, u64>> {
    let stats: serde_json::Value =
        serde_json::from_str(text).context("reading the statistics of a run")?;
    let total = stats
        .get("total")
        .and_then(|total| total.as_object())
        .context("the statistics of a run have no `total`")?;
    Ok(total.iter().filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_run_statistics() {
        let text = r#"{"elapsed_s": 1.5, "total": {"faults": 12, "fault_latency_ns_p50": null}, "processes": []}"#;
        assert_eq!(read_counters(text).unwrap(), BTreeMap::from([("faults".to_owned(), 12)]));
        assert!(read_counters(r#"{"total": null}"#).is_err());
    }

    #[test]
    fn local_share_is_of_the_native_peak() {
        let mut results = Results::default();
        assert!(local_bytes(Local::Percent(30.0, "native"), &results).is_err());
        results.add("native", Ok(TaskResult { peak_bytes: 1000 << 20, ..TaskResult::default() }));
        assert_eq!(local_bytes(Local::Percent(30.0, "native"), &results).unwrap(), 300 << 20);
    }
}
