//! `hiroma sim paper`: the paper's experiments.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use hiroma_command::machine;
use hiroma_sim_lab::forecast::Plan;
use hiroma_sim_lab::paper::{Paper, Params};

use super::shared::{self, Broken, Jobs, Outputs};

/// Run every experiment of the paper on global page placement, and print its tables beside the
/// paper's figures.
///
/// Then runs the experiments that the paper left for later: old information and herding, today's
/// clusters, nodes that fail. Takes up to ten minutes on two processors, or half a minute with
/// --quick, which is too little to distinguish close policies.
#[derive(clap::Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct PaperArgs {
    /// Use fewer seeds, rates and variants, and shorter runs
    #[arg(long)]
    quick: bool,
    /// Number of seeds for each configuration [default: 4, or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: Option<u32>,
    #[command(flatten)]
    broken: Broken,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    outputs: Outputs,
}

/// `hiroma sim paper`.
pub fn paper(args: &PaperArgs) -> Result<ExitCode> {
    args.outputs.check()?;
    let canary = args.broken.canary()?;
    let mut paper = Paper::plan(Params::new(args.quick, args.seeds.map(|seeds| seeds as usize)));
    let configs = paper.configs();
    let plan = Plan::new(configs.iter().map(|(config, times)| (&**config, *times as f64)));
    shared::in_broken_lab(args.jobs.threads(), &plan, canary, |lab, progress| {
        let start = Instant::now();
        paper.run(lab).map_err(shared::failed)?;
        let mut report = paper.report(machine::look(), start.elapsed().as_secs_f64());
        report.command = std::env::args().collect::<Vec<_>>().join(" ");
        report.made_at = machine::now();
        progress.print(report.to_text().trim_end());
        args.outputs.write(|| report.to_json(), || report.clone())?;
        Ok(ExitCode::SUCCESS)
    })
}
