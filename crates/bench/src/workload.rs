//! The measuring child process: maps memory, natively or from a pager, works on it and prints the
//! outcome.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hiroma_far::Pager;
use hiroma_far::control::Counter;
use hiroma_memload::content;
use hiroma_sys::workload::Region;
use hiroma_units::PAGE;
use hiroma_units::Rng;

use super::job::{FarUse, Job, Latency, Memory, Task, TaskResult};
use super::{peers, stream};

/// Executes `job` (JSON).
pub fn main(job: &str) -> Result<ExitCode> {
    let job: Job =
        serde_json::from_str(job).context("the job of a measuring process is not readable")?;
    // Without its parent, a measuring process is useless.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if let Some(cgroup) = &job.cgroup {
        hiroma_sys::host::cgroup::enter(cgroup)?;
    }
    let outcome = match &job.task {
        Task::Program { argv } => {
            let (program, args) = argv.split_first().context("no program to become")?;
            let error = Command::new(program).args(args).exec();
            return Err(error).with_context(|| format!("starting {program}"));
        }
        Task::Load(load) => super::real::do_load(load)?,
        Task::StreamSource { port, bytes } => stream::source(*port, *bytes)?,
        Task::StreamSink => stream::sink()?,
        _ => measure(&job)?,
    };
    let mut line = serde_json::to_string(&outcome)?;
    line.push('\n');
    std::io::stdout().write_all(line.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The memory of a task, and the means to evict it.
struct Ground {
    region: Region,
    pager: Option<Pager>,
    cgroup: Option<PathBuf>,
}

impl Ground {
    fn make(job: &Job, bytes: usize) -> Result<Ground> {
        let cgroup = job.cgroup.clone();
        let Memory::Pager(config) = &job.memory else {
            return Ok(Ground { region: Region::map(bytes)?, pager: None, cgroup });
        };
        let pager = Pager::start(config.as_ref().clone())
            .map_err(|error| anyhow::anyhow!("starting the pager: {error}"))?;
        let addr = pager
            .map(bytes, 2 << 20)
            .map_err(|error| anyhow::anyhow!("mapping {bytes} bytes: {error}"))?;
        Ok(Ground { region: Region::adopt(addr, bytes)?, pager: Some(pager), cgroup })
    }

    /// Makes everything far; returns the share that stayed local anyway.
    fn push_out(&self) -> Result<f64> {
        if let Some(pager) = &self.pager {
            pager.evict_all().map_err(|error| anyhow::anyhow!("evicting everything: {error}"))?;
            return Ok(
                pager.snapshot().get(Counter::ResidentBytes) as f64 / self.region.len() as f64
            );
        }
        // Pages under write-back stay in the swap cache until it completes, so this takes a few
        // rounds.
        let mut share = 1.0;
        for round in 0..20 {
            self.region.page_out(0, self.region.len())?;
            self.cgroup.iter().for_each(|cgroup| peers::reclaim(cgroup));
            share = (self.region.resident_pages()? * PAGE) as f64 / self.region.len() as f64;
            if share < 0.01 {
                break;
            }
            thread::sleep(Duration::from_millis(20 * (round + 1).min(5)));
        }
        Ok(share)
    }

    fn finish(&self, outcome: &mut TaskResult) {
        if let Some(pager) = &self.pager {
            let snapshot = pager.snapshot();
            outcome.counters = Counter::ALL
                .iter()
                .map(|&counter| (counter.name().to_owned(), snapshot.get(counter)))
                .collect();
        }
    }

    fn far_use(&self) -> Option<FarUse> {
        let snapshot = self.pager.as_ref()?.snapshot();
        Some(FarUse {
            far_bytes: snapshot.get(Counter::FarBytes),
            metadata_bytes: snapshot.get(Counter::MetadataBytes),
        })
    }
}

fn measure(job: &Job) -> Result<TaskResult> {
    match &job.task {
        &Task::Sequential { bytes } => with_ground(job, bytes, sequential),
        &Task::Latency { bytes, block } => {
            with_ground(job, bytes, |ground, outcome| latency(ground, outcome, block))
        }
        &Task::Random { bytes, settle, accesses, time_limit_ms } => {
            let limit = Duration::from_millis(time_limit_ms);
            with_ground(job, bytes, |ground, outcome| {
                random(ground, outcome, settle, accesses, limit)
            })
        }
        Task::Stride { bytes, strides } => {
            with_ground(job, *bytes, |ground, outcome| stride(ground, outcome, strides))
        }
        &Task::Reserve { reserved, touched, stretches } => {
            with_ground(job, reserved, |ground, outcome| {
                reserve(ground, outcome, touched, stretches)
            })
        }
        Task::Load(_) | Task::Program { .. } | Task::StreamSource { .. } | Task::StreamSink => {
            unreachable!("handled by the caller")
        }
    }
}

fn with_ground(
    job: &Job,
    bytes: usize,
    work: impl FnOnce(&Ground, &mut TaskResult) -> Result<()>,
) -> Result<TaskResult> {
    let ground = Ground::make(job, bytes)?;
    let mut outcome = TaskResult::default();
    work(&ground, &mut outcome)?;
    ground.finish(&mut outcome);
    Ok(outcome)
}

/// Fills all of the memory and returns the sum of its words.
fn fill(ground: &Ground, outcome: &mut TaskResult) -> u64 {
    let start = Instant::now();
    let sum = content::fill(&ground.region, 0, ground.region.len());
    outcome.fill_seconds = start.elapsed().as_secs_f64();
    sum
}

fn sequential(ground: &Ground, outcome: &mut TaskResult) -> Result<()> {
    let written = fill(ground, outcome);
    outcome.local_share = ground.push_out()?;
    outcome.far = ground.far_use();
    let start = Instant::now();
    let read = ground.region.sum(0, ground.region.len());
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome.bytes = ground.region.len() as u64;
    ensure!(
        read == written,
        "the memory came back changed: its sum is {read:#x} and was {written:#x}"
    );
    Ok(())
}

fn latency(ground: &Ground, outcome: &mut TaskResult, block: usize) -> Result<()> {
    fill(ground, outcome);
    outcome.local_share = ground.push_out()?;
    let mut nanos = Vec::with_capacity(ground.region.len() / block);
    let all = Instant::now();
    for offset in (0..ground.region.len()).step_by(block) {
        let start = Instant::now();
        std::hint::black_box(ground.region.read(offset));
        nanos.push(start.elapsed().as_nanos() as u64);
        std::hint::black_box(ground.region.sum(offset, block));
    }
    outcome.seconds = all.elapsed().as_secs_f64();
    outcome.bytes = ground.region.len() as u64;
    outcome.count = nanos.len() as u64;
    outcome.latency = Latency::of(nanos);
    Ok(())
}

fn random(
    ground: &Ground,
    outcome: &mut TaskResult,
    settle: u64,
    accesses: u64,
    limit: Duration,
) -> Result<()> {
    fill(ground, outcome);
    let pages = (ground.region.len() / PAGE) as u64;
    let mut random = Rng::new(25);
    let mut access = || {
        let page = random.below_u64(pages);
        (page, ground.region.sum(page as usize * PAGE, PAGE))
    };
    let settling = Instant::now();
    (0..settle).take_while(|_| settling.elapsed() < limit).for_each(|_| {
        access();
    });
    let mut nanos = Vec::with_capacity(accesses as usize);
    let mut checks = Vec::new();
    let all = Instant::now();
    while (nanos.len() as u64) < accesses && all.elapsed() < limit {
        let start = Instant::now();
        let seen = access();
        nanos.push(start.elapsed().as_nanos() as u64);
        if nanos.len() % 64 == 0 {
            checks.push(seen);
        }
    }
    outcome.seconds = all.elapsed().as_secs_f64();
    outcome.count = nanos.len() as u64;
    outcome.bytes = outcome.count * PAGE as u64;
    outcome.latency = Latency::of(nanos);
    outcome.far = ground.far_use();
    for (page, sum) in checks {
        ensure!(sum == content::page_sum(page), "page {page} came back changed");
    }
    Ok(())
}

fn stride(ground: &Ground, outcome: &mut TaskResult, strides: &[usize]) -> Result<()> {
    fill(ground, outcome);
    for &stride in strides {
        outcome.local_share = outcome.local_share.max(ground.push_out()?);
        let start = Instant::now();
        for offset in (0..ground.region.len()).step_by(stride) {
            std::hint::black_box(ground.region.read(offset));
        }
        outcome.stride_seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn reserve(
    ground: &Ground,
    outcome: &mut TaskResult,
    touched: usize,
    stretches: usize,
) -> Result<()> {
    let (apart, length) = (ground.region.len() / stretches, touched / stretches);
    let start = Instant::now();
    let written = (0..stretches).fold(0u64, |sum, stretch| {
        sum.wrapping_add(content::fill(&ground.region, stretch * apart, length))
    });
    outcome.fill_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let read = (0..stretches)
        .fold(0u64, |sum, stretch| sum.wrapping_add(ground.region.sum(stretch * apart, length)));
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome.bytes = touched as u64;
    outcome.far = ground.far_use();
    ensure!(
        read == written,
        "the memory came back changed: its sum is {read:#x} and was {written:#x}"
    );
    Ok(())
}
