//! `hiroma bench real`: programs that people run, with less memory than they use, against what they would use otherwise.

mod arms;
mod programs;
mod results;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use hiroma_report::Report;

use self::arms::{Arm, Runner};
use self::programs::Program;
use self::results::Results;
use super::children::{Failed, Interrupt};
use super::progress::Progress;
use super::undo::{Guard, Undo};
use super::{machine, peers};
use crate::files::Files;

/// A native run may take so long.
const NATIVE_LIMIT: Duration = Duration::from_secs(600);
/// Short programs are dominated by what every start costs.
const PATIENCE_LEAST_SECONDS: f64 = 20.0;

/// Runs ordinary programs with a part of the memory that they use: natively, swapped to zram, and with far memory, in turns.
///
/// As much is resident in each arm; what was compressed beside it is measured by the kernel and shown. Outputs are compared with the
/// native ones. Needs root and a memory control group. Seventeen programs are known; those whose interpreter or module is not installed
/// are left out, with the reason. All of them once take a quarter of an hour. A program after `--` is measured instead of them; it must print the same in each run.
#[derive(clap::Args)]
pub struct RealArgs {
    #[command(flatten)]
    files: Files,
    /// Only these of the known programs
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Percent of the native peak that is local
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "50,25", value_parser = clap::value_parser!(u8).range(1..=100))]
    at: Vec<u8>,
    /// What to compare, natively apart: zram, swap-file, compressed (beside the local part), default (within it, and a file)
    #[arg(long, value_name = "ARM,...", value_delimiter = ',', default_value = "zram,compressed", value_parser = Arm::parse)]
    arms: Vec<Arm>,
    /// Python that has the modules
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Repetitions of every run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    repetitions: u8,
    /// Give up what takes so many times as long as natively, and 20 s
    #[arg(long, value_name = "TIMES", default_value_t = 13, value_parser = clap::value_parser!(u16).range(2..=1000))]
    patience: u16,
    /// A program to measure, with its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Does it.
pub fn run(args: &RealArgs) -> Result<ExitCode> {
    args.files.check()?;
    if let Some(reason) = peers::obstacle() {
        return Err(crate::refuse(format!("{reason}; all arms are measured by a control group")));
    }
    super::measured(&args.files, |interrupt| measure(args, interrupt))
}

fn measure(args: &RealArgs, interrupt: &Interrupt) -> Result<Report, Failed> {
    let dir = PathBuf::from(format!("/var/tmp/hiroma-bench-real-{}", std::process::id()));
    let _made = Guard::new(Undo::DirRemove(dir.clone()));
    std::fs::create_dir(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let (programs, missing) = chosen(args, &dir)?;
    for reason in &missing {
        eprintln!("hiroma: {reason}");
    }
    let mut results = Results::new(args.at.clone(), args.arms.clone(), f64::from(args.patience));
    let runs = programs.len() * usize::from(args.repetitions) * (1 + args.at.len() * args.arms.len());
    let mut progress = Progress::new(8.0 * runs as f64);
    let runner = Runner::new(&dir, interrupt);
    for program in &programs {
        progress.starts(&format!("{} natively", program.name));
        match runner.native(program, NATIVE_LIMIT) {
            Err(Failed::Interrupted) => return Err(Failed::Interrupted),
            Err(failed) => {
                progress.say(&format!("hiroma: {} is left out: {failed}", program.name));
                continue;
            }
            Ok(ran) => results.native(&program.name, ran),
        }
        for repetition in 0..args.repetitions {
            in_turns(args, &runner, program, repetition, &mut results, &mut progress)?;
        }
        progress.say(&results.row(&program.name));
    }
    let mut report = Report {
        title: "Ordinary programs with less memory than they use".into(),
        machine: machine::look(),
        made_at: machine::now(),
        preamble: vec![
            "Each program ran natively and in each arm in turns. The same part of its native peak is resident in each arm (a swapped program gets 8 MiB more, for its text and \
             page tables); total is the most that the kernel counted, with what was compressed. Medians with the smallest and the largest."
                .into(),
        ],
        ..Report::default()
    };
    report.preamble.extend(missing);
    results.report(&mut report);
    for section in &report.sections {
        progress.print(&format!("\n{}", section.to_text()));
    }
    Ok(report)
}

fn chosen(args: &RealArgs, dir: &Path) -> Result<(Vec<Program>, Vec<String>)> {
    if args.program.is_empty() {
        let found = programs::find(&args.only, &args.python, dir)?;
        programs::write_inputs(dir)?;
        return Ok(found);
    }
    let argv: Vec<String> = args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let name = Path::new(&argv[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((vec![Program { name, argv }], Vec::new()))
}

/// One repetition: natively, then each arm with each part of the memory.
fn in_turns(
    args: &RealArgs,
    runner: &Runner,
    program: &Program,
    repetition: u8,
    results: &mut Results,
    progress: &mut Progress,
) -> Result<(), Failed> {
    if repetition > 0 {
        match runner.native(program, NATIVE_LIMIT) {
            Ok(ran) => results.native(&program.name, ran),
            Err(failed) => return Err(failed),
        }
    }
    progress.done(8.0);
    let (seconds, peak_bytes) = results.natively(&program.name);
    let limit = Duration::from_secs_f64((seconds * f64::from(args.patience)).max(PATIENCE_LEAST_SECONDS));
    for &percent in &args.at {
        let local = (peak_bytes * u64::from(percent) / 100).max(16 << 20);
        for &arm in &args.arms {
            if !results.has_failed(&program.name, percent, arm) {
                progress.starts(&format!("{}, {percent} %, {}, {} of {}", program.name, arm.name(), repetition + 1, args.repetitions));
                match runner.limited(program, arm, local, limit) {
                    Err(Failed::Interrupted) => return Err(Failed::Interrupted),
                    outcome => results.add(&program.name, percent, arm, outcome),
                }
            }
            progress.done(8.0);
        }
    }
    Ok(())
}
