//! `hiroma bench real`: everyday programs with less memory than they use, compared with the
//! alternatives in use today.

mod arms;
mod cells;
mod goals;
mod knob;
mod load;
mod plan;
mod postgres;
mod programs;
mod redis;
mod results;
mod session;
mod work;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use hiroma_report::{Machine, Report};
use serde_json::{Value, json};

pub use self::load::{Load, run as do_load};

use self::arms::Arm;
use self::cells::Cells;
use self::plan::{Choice, GROUPS};
use self::results::Results;
use self::session::{Limits, Session};
use super::children::{Failed, Interrupt};
use super::undo::{Guard, Undo};
use hiroma_command::machine;

use super::{figures, peers};
use hiroma_command::files::{self, Files};
use hiroma_command::refuse;

/// Exit code if runs are left because of `--time`.
const UNFINISHED: u8 = 3;

/// Run ordinary programs with a part of the memory that they use: natively, swapped, and with far
/// memory, alternately.
///
/// The total memory is the same in each arm: resident memory, compressed memory and tables, as
/// counted by the kernel for the control group, and for zram and zswap in addition to it. The first
/// runs search for the limit that gives this total. Outputs are compared with the native ones.
/// Requires root and a memory control group. Programs that are not installed are skipped, with the
/// reason. A complete run takes hours: --items, --only, --at and --arms select parts, and with
/// --append the next call continues in the same file. A program after `--` is measured instead; its
/// output must be the same in each run.
#[derive(clap::Args)]
pub struct RealArgs {
    #[command(flatten)]
    files: Files,
    /// Put the tables into FILE, between the marks <!-- results: begin --> and <!-- results: end
    /// -->
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Draw the times of the programs, with 50 % of their memory where that was measured, as an image
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Continue with the results in the file of --json; complete cells are not run again
    #[arg(long, requires = "json")]
    append: bool,
    /// What to measure: programs, servers (latency of clients), threads (a sweep of random
    /// accesses), bad (input that may be bad for far memory), fits (with more memory than is used),
    /// blocks (fixed block sizes compared with auto)
    #[arg(long, value_name = "ITEM,...", value_delimiter = ',', default_values = GROUPS, value_parser = GROUPS)]
    items: Vec<String>,
    /// Measure only these of the known programs, servers and loads
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Memory, in percent of what the kernel counts natively
    #[arg(long, value_name = "PERCENT,...", value_delimiter = ',', default_value = "75,50,25", value_parser = clap::value_parser!(u8).range(1..=100))]
    at: Vec<u8>,
    /// Arms to compare, in addition to native: zram, swap-file, zswap (in front of a swap file),
    /// compressed (compressed memory beside the limit), no-disk (within it), file (a file alone),
    /// default (compressed memory within the limit, and a file), blind (the same without accessed
    /// bits), tcp (a memory server on this machine, whose memory is counted separately)
    #[arg(long, value_name = "ARM,...", value_delimiter = ',', default_value = "zram,compressed,default", value_parser = Arm::parse)]
    arms: Vec<Arm>,
    /// Numbers of threads of the sweep [default: 1,2,4,8]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Vec<u8>,
    /// Python interpreter, with the required modules installed
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Number of repetitions of every run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=99))]
    repetitions: u8,
    /// Stop a run that takes more than this many times as long as native
    #[arg(long, value_name = "TIMES", default_value_t = 13, value_parser = clap::value_parser!(u16).range(2..=1000))]
    patience: u16,
    /// Start no run after this number of seconds: the exit code is 3, and the next call continues
    /// with --append
    #[arg(long, value_name = "SECONDS")]
    time: Option<u64>,
    /// Program to measure, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the measurements.
pub fn run(args: &RealArgs) -> Result<ExitCode> {
    args.files.check()?;
    args.svg.iter().try_for_each(|path| files::check(path))?;
    args.document.iter().try_for_each(|path| figures::check(path))?;
    if let Some(unknown) = args.only.iter().find(|name| !plan::names().contains(name)) {
        return Err(refuse(format!(
            "there is no program `{unknown}`: choose from {}, or name one after --",
            plan::names().join(", ")
        )));
    }
    if let Some(reason) = peers::obstacle() {
        return Err(refuse(format!("{reason}; all arms are measured by a control group")));
    }
    let mut cells = Cells::default();
    if let Some(path) = args.files.json.as_ref().filter(|path| args.append && path.exists()) {
        cells = Cells::load(path).map_err(|error| refuse(format!("{error:#}")))?;
        cells.forget_skipped();
    }
    let outcome = super::with_clean_up(|interrupt| measure(args, &mut cells, interrupt));
    let (unfinished, about) = match outcome? {
        Ok((unfinished, about)) => (unfinished, about),
        Err(Failed::Interrupted) => (None, Vec::new()),
        Err(failed) => {
            deliver(args, &cells, Vec::new())?;
            return Err(failed.into());
        }
    };
    deliver(args, &cells, about)?;
    match unfinished {
        Some(0) => Ok(ExitCode::SUCCESS),
        Some(left) => {
            eprintln!("hiroma: about {left} runs are left; the same command with --append goes on");
            Ok(ExitCode::from(UNFINISHED))
        }
        None => {
            eprintln!(
                "hiroma: interrupted; swap, control groups and files are as they were before"
            );
            Ok(ExitCode::from(130))
        }
    }
}

/// Runs the incomplete cells. Returns the number of runs that are left, and remarks.
fn measure(
    args: &RealArgs,
    cells: &mut Cells,
    interrupt: &Interrupt,
) -> Result<(Option<usize>, Vec<String>), Failed> {
    let dir = PathBuf::from(format!("/var/tmp/hiroma-bench-real-{}", std::process::id()));
    let _made = Guard::new(Undo::DirRemove(dir.clone()));
    std::fs::create_dir(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let choice = Choice {
        groups: &args.items,
        only: &args.only,
        at: &args.at,
        arms: &args.arms,
        threads: &args.threads,
        python: &args.python,
        command: args.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    };
    let (groups, mut about) = choice.groups(&dir)?;
    let limits = Limits {
        repetitions: args.repetitions.into(),
        patience: args.patience.into(),
        seconds: args.time,
    };
    let save = |cells: &Cells| match &args.files.json {
        Some(path) => files::write(path, &json_of(&report(args, cells, Vec::new()), cells)),
        None => Ok(()),
    };
    let mut session = Session::new(cells, &dir, interrupt, limits, &save);
    about.extend(session.look_at(&groups));
    for line in &about {
        eprintln!("hiroma: {line}");
    }
    let left = session.run(&groups)?;
    Ok((Some(left), about))
}

fn report(args: &RealArgs, cells: &Cells, about: Vec<String>) -> Report {
    let mut report = Report {
        title: "Ordinary programs with less memory than they use".into(),
        machine: machine::look(),
        made_at: machine::now(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        preamble: vec![format!(
            "Each program ran natively and in each arm in turns. With programs and servers the total is the same in each arm, within 3 % or 2 MiB: what the kernel \
             counts for the control group without cached pages of files, and what is compressed outside of it, looked at each 20 ms; the resident limit was lowered until it was. \
             Who takes more than {} times native is stopped; that, being killed (three times), failing, or needing more at the least counts as {0}. Medians with the smallest and the largest.",
            args.patience
        )],
        ..Report::default()
    };
    report.preamble.extend(about);
    Results { cells, patience: args.patience.into() }.report(&mut report);
    report
}

/// The figures, and every run behind them, as JSON.
fn json_of(report: &Report, cells: &Cells) -> String {
    let mut json: Value = serde_json::from_str(&report.to_json()).unwrap_or_else(|_| json!({}));
    json["cells"] = serde_json::to_value(cells).unwrap_or_default();
    let mut text = serde_json::to_string_pretty(&json).unwrap_or_default();
    text.push('\n');
    text
}

fn deliver(args: &RealArgs, cells: &Cells, about: Vec<String>) -> Result<()> {
    let report = report(args, cells, about);
    for section in &report.sections {
        println!("\n{}", section.to_text());
    }
    println!("{}\n{}", report.machine.describe(), report.summary().to_text());
    if let Some(path) = &args.document {
        figures::put(path, &document(&report.machine, &report))?;
    }
    if let Some(path) = &args.svg {
        let results = Results { cells, patience: args.patience.into() };
        let plot = results.picture().context("--svg: no program was measured")?;
        files::write(path, &plot.to_svg_file())?;
    }
    let json = json_of(&report, cells);
    args.files.write(|| json, || report)
}

/// The tables as Markdown, for a document.
fn document(machine: &Machine, report: &Report) -> String {
    let mut text = format!("\n{}, {}.\n", machine.describe(), report.made_at);
    for section in &report.sections {
        text += &format!("\n### {}\n", section.title);
        // One line for each sentence, like the rest of the document.
        let lines = section.text.iter().map(|paragraph| paragraph.replace(". ", ".\n"));
        lines.for_each(|lines| text += &format!("\n{lines}\n"));
        section.tables.iter().for_each(|table| text += &format!("\n{}", table.to_markdown()));
    }
    text += "\n### Against what is wanted\n\n";
    text += &report.summary().to_markdown();
    text.push('\n');
    text
}
