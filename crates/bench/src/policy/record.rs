//! Records page traces: of one program, or of the known ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use hiroma_command::show;
use hiroma_policylab::record::Recorder;
use hiroma_policylab::trace;
use hiroma_units::Bytes;

use super::programs::{self, Program};
use super::tool::{self, Tool};

/// Record which pages of anonymous memory a program touches, one after the other.
///
/// Every load and store is seen. What counts is private anonymous memory, from mmap and brk:
/// neither the first thread's stack, nor what has a file behind it. Processes that the program
/// starts are not recorded.
#[derive(clap::Args)]
pub struct RecordArgs {
    /// Where the trace goes
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// What sees the accesses
    #[arg(long, value_enum, default_value = "pages")]
    tool: Tool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Does it.
pub fn run(args: &RecordArgs) -> Result<ExitCode> {
    if let Some(reason) = tool::obstacle() {
        return Err(hiroma_command::refuse(reason));
    }
    let dir = tempfile::tempdir()?;
    let name =
        Path::new(&args.program[0]).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let home = if args.tool == Tool::Pages { Some(tool::build(dir.path())?) } else { None };
    one(&Program { name, argv: args.program.clone() }, args.tool, home.as_deref(), &args.out)?;
    Ok(ExitCode::SUCCESS)
}

/// Records one program, and says what came of it.
fn one(program: &Program, tool: Tool, home: Option<&Path>, out: &Path) -> Result<()> {
    let started = Instant::now();
    let mut recorder = Recorder::default();
    tool::watch(tool, home, &program.argv, &mut recorder)?;
    let file = recorder.finish(&program.name, &program.argv);
    hiroma_report::atomic::write_atomically(out, &file)
        .with_context(|| format!("writing {}", out.display()))?;
    let header = trace::decode(&file, |_| {}).context("what was recorded cannot be read")?;
    show::say(&format!(
        "{}: {} of anonymous memory, {} references, {} steps in {} on disk, recorded in {:.1} s",
        program.name,
        Bytes(header.pages * 4096),
        show::count(header.references),
        show::count(header.events),
        Bytes(file.len() as u64),
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Records those of the known programs of which there is no trace; returns names and files of all,
/// and says what is left out.
pub fn missing(dir: &Path, only: &[String], python: &Path) -> Result<Vec<(String, PathBuf)>> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let work = tempfile::tempdir()?;
    let (found, absent) = programs::find(only, python, work.path())?;
    let mut home = None;
    let mut traces = Vec::new();
    for program in found {
        let file = dir.join(format!("{}.pages", program.name));
        if !file.exists() {
            if let Some(reason) = tool::obstacle() {
                return Err(hiroma_command::refuse(reason));
            }
            if home.is_none() {
                programs::write_inputs(work.path())?;
                home = Some(tool::build(work.path())?);
            }
            if let Err(error) = one(&program, Tool::Pages, home.as_deref(), &file) {
                show::say(&format!("{} is left out: {error:#}", program.name));
                continue;
            }
        }
        traces.push((program.name, file));
    }
    for reason in absent {
        show::say(&reason);
    }
    Ok(traces)
}
