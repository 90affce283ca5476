//! `hiroma sim paper`: the paper's experiments.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use hiroma_report::Report;
use hiroma_simlab::lab::Lab;
use hiroma_simlab::paper::{Paper, Params};

use super::progress::Progress;
use super::shared::{self, Files, Jobs};
use crate::bench::machine;

/// Runs every experiment of the paper on global page placement and prints its tables beside the paper's figures.
///
/// Then what the paper left for later: old information and herding, today's clusters, nodes that fail. Takes up to ten minutes on two
/// processors, or half a minute with --quick, which is too little to tell close policies apart.
#[derive(clap::Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct PaperArgs {
    /// Fewer seeds, rates and variants, shorter runs
    #[arg(long)]
    quick: bool,
    /// Seeds of every configuration [default: 10, or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: Option<u32>,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    files: Files,
    /// Write each table as a CSV file into this directory
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
}

/// `hiroma sim paper`.
pub fn paper(args: &PaperArgs) -> Result<ExitCode> {
    args.files.check()?;
    if let Some(directory) = &args.csv {
        std::fs::create_dir_all(directory)
            .map_err(|error| shared::refused(format_args!("{}: {error}: choose another place", directory.display())))?;
    }
    let mut paper = Paper::plan(Params::new(args.quick, args.seeds.map(|seeds| seeds as usize)));
    let (stop, progress) = (shared::stop_on_signals()?, Progress::new(paper.runs() as f64));
    let lab = Lab { threads: args.jobs.threads(), stop: &stop, advance: &|part| progress.advance(part) };
    let start = Instant::now();
    paper.run(&lab).map_err(shared::failed)?;
    let mut report = paper.report(machine::look(), start.elapsed().as_secs_f64());
    report.command = std::env::args().collect::<Vec<_>>().join(" ");
    report.made_at = machine::now();
    progress.print(report.to_text().trim_end());
    args.files.write(|| report.to_json(), || report.clone())?;
    args.csv.iter().try_for_each(|directory| write_tables(directory, &report))?;
    Ok(ExitCode::SUCCESS)
}

/// Each table as a file that is named after its section and its number there.
fn write_tables(directory: &Path, report: &Report) -> Result<()> {
    for section in &report.sections {
        for (number, table) in section.tables.iter().enumerate() {
            let path = directory.join(format!("{}-{}.csv", file_name(&section.title), number + 1));
            shared::write(&path, &table.to_csv()).with_context(|| format!("table {:?}", table.title))?;
        }
    }
    Ok(())
}

/// A title as the name of a file: small letters and digits, everything else a hyphen.
fn file_name(title: &str) -> String {
    let letters: String = title.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' }).collect();
    letters.split_whitespace().collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    #[test]
    fn titles_become_names_of_files() {
        assert_eq!(super::file_name("Figure 2: when others are told"), "figure-2-when-others-are-told");
    }
}
