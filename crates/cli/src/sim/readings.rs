//! `hiroma sim readings`: the search for the reading of the paper that explains most.

use std::process::ExitCode;

use anyhow::Result;
use hiroma_command::machine;
use hiroma_sim_lab::forecast::Plan;
use hiroma_sim_lab::paper::{Search, SearchParams};

use super::shared::{self, Broken, Jobs, Outputs};

/// Search for the reading of the paper on global page placement under which most of its claims come
/// out.
///
/// The paper leaves questions open. Every answer that its text allows is tried, one change at a
/// time, and the search goes on from the best; three figures are fitted under each reading, by the
/// same rule, and all others are predicted. One reading takes one to
/// four minutes on two processors, and one step tries a dozen.
#[derive(clap::Args)]
#[command(after_help = super::EXIT_CODES)]
pub struct ReadingsArgs {
    /// Number of seeds for each configuration
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=1000))]
    seeds: u32,
    /// Most steps from a reading to a better one; 0: the first reading only
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(0..=100))]
    steps: u32,
    #[command(flatten)]
    broken: Broken,
    #[command(flatten)]
    jobs: Jobs,
    #[command(flatten)]
    outputs: Outputs,
}

/// `hiroma sim readings`.
pub fn readings(args: &ReadingsArgs) -> Result<ExitCode> {
    args.outputs.check()?;
    let canary = args.broken.canary()?;
    let mut search = Search::new(SearchParams::new(args.seeds as usize, args.steps as usize));
    let configs = search.configs();
    let plan = Plan::new(configs.iter().map(|(config, times)| (&**config, *times)));
    let plan = plan.for_one("the first step of the search");
    shared::in_broken_lab(args.jobs.threads(), &plan, canary, |lab, progress| {
        let tell = |line: String| progress.print(&line);
        search.run(lab, |tried| tell(tried.line())).map_err(shared::failed)?;
        let mut report = search.report(machine::look());
        report.command = std::env::args().collect::<Vec<_>>().join(" ");
        report.made_at = machine::now();
        progress.print(report.to_text().trim_end());
        args.outputs.write(|| report.to_json(), || report.clone())?;
        Ok(ExitCode::SUCCESS)
    })
}
