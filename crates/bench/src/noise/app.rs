//! The disturbed application: a process that computes in step ([`hiroma_quiet::bsp`]) and reports
//! its results.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use hiroma_quiet::bsp::{self, Options, STEPS_MAX};
use hiroma_quiet::meter::{Part, Source};
use hiroma_sys::quiet::tasks::TaskKind;
use serde::{Deserialize, Serialize};

/// Options of the application.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct App {
    pub cpus: Vec<usize>,
    pub step_us: u64,
    pub duration_ms: u64,
    pub alloc_bytes: usize,
    pub chunk_turns: Option<u64>,
}

/// Results. Times are in nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AppResults {
    pub steps_ns: Vec<u64>,
    pub chunk_turns: u64,
    /// Time stolen from all ranks.
    pub stolen_ns: u64,
    pub explained_ns: u64,
    /// The part of the stolen time that is due to kswapd, kcompactd, and the program's own reclaim
    /// and compaction.
    pub reclaim_ns: u64,
    /// Stolen time by the name of its cause.
    pub parts: Vec<(String, u64)>,
    /// Number of times that kswapd was woken, by order.
    pub woken: Vec<u64>,
    /// Number of direct reclaims of all programs, by order.
    pub direct: Vec<u64>,
    /// Why BPF was not available.
    pub no_bpf: Option<String>,
}

/// Runs the application, and prints [`AppResults`] as one line.
pub fn main(app: &str) -> Result<ExitCode> {
    let app: App =
        serde_json::from_str(app).context("the job of a computing process is not readable")?;
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let options = Options {
        cpus: app.cpus,
        steps: STEPS_MAX,
        duration: Duration::from_millis(app.duration_ms),
        step: Duration::from_micros(app.step_us),
        chunk_turns: app.chunk_turns,
        alloc_bytes: app.alloc_bytes,
        bpf: true,
    };
    let recording = bsp::run(&options, None, &AtomicBool::new(false))?;
    let mut parts: std::collections::BTreeMap<Part, u64> = std::collections::BTreeMap::new();
    recording
        .losses
        .iter()
        .flat_map(|loss| &loss.parts)
        .for_each(|(&part, &ns)| *parts.entry(part).or_insert(0) += ns);
    let is_reclaim = |part: &Part| {
        let reclaimers = [
            Part::Task(TaskKind::Kswapd),
            Part::Task(TaskKind::Kcompactd),
            Part::DirectReclaim,
            Part::DirectCompaction,
        ];
        reclaimers.contains(part)
    };
    let (stolen_ns, explained_ns) = recording.stolen_and_explained_ns();
    let went = AppResults {
        steps_ns: recording.steps.iter().map(|step| step.ns).collect(),
        chunk_turns: recording.chunk_turns,
        stolen_ns,
        explained_ns,
        reclaim_ns: parts.iter().filter(|(part, _)| is_reclaim(part)).map(|(_, ns)| ns).sum(),
        parts: parts.iter().map(|(part, ns)| (part.name().to_owned(), *ns)).collect(),
        woken: recording.memory.map(|memory| memory.kswapd_woken.to_vec()).unwrap_or_default(),
        direct: recording.memory.map(|memory| memory.direct_reclaims.to_vec()).unwrap_or_default(),
        no_bpf: match recording.source {
            Source::Bpf => None,
            Source::Books(why) => Some(why),
        },
    };
    let mut line = serde_json::to_string(&went)?;
    line.push('\n');
    std::io::stdout().write_all(line.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
