//! Records page traces of one program, or of the known ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use hiroma_command::show;
use hiroma_far_lab::record::Recorder;
use hiroma_far_lab::trace;
use hiroma_units::Bytes;

use super::programs::{self, Program};
use super::tool::{self, Tool};

/// Record the sequence of pages of anonymous memory that a program touches.
///
/// Every load and store is seen. Recorded are accesses to private anonymous memory, from mmap and
/// brk, but not to the first thread's stack or to file mappings. Processes that the program starts
/// are not recorded.
#[derive(clap::Args)]
pub struct RecordArgs {
    /// File to write the trace to
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Tool that observes the accesses
    #[arg(long, value_enum, default_value = "pages")]
    tool: Tool,
    /// Program to record, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Records the program.
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

/// Records one program, and reports the result.
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

/// Records those of the known programs that have no trace. Returns the names and files of all, and
/// reports the omitted ones.
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
