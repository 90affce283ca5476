//! `hiroma hot`: finds the hot pages of a process, and makes huge pages exactly there.

mod explain;
mod manage;
mod map;
mod options;
mod png;
mod run;
mod serve;
mod show;
mod top;
mod undo;

use std::process::ExitCode;

use clap::Subcommand;
use hiroma_hot::{Engine, HotError, Options};

/// Find the hot pages of a process, and give it huge pages exactly there.
///
/// The process is not changed: a small BPF program reads its page tables (as root), and hot 2 MiB
/// ranges are collapsed in place from outside. Every change can be explained and undone.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct HotArgs {
    #[command(subcommand)]
    what: HotCommand,
}

const EXAMPLES: &str = "\
Examples:
  hiroma hot show --pid 4711                     which pages are hot, as a map
  hiroma hot show --pid 4711 --png heat.png      the same as a picture, one pixel a page
  hiroma hot manage --pid 4711 --dry-run         what would become huge, and why
  hiroma hot manage --pid 4711 --budget 512M     makes hot ranges huge, for as long as it runs
  hiroma hot run -- redis-server                 the same from the start of a program
  hiroma hot serve --budget 25%                  fair shares between all processes that register
  hiroma hot explain --pid 4711                  what was done, why, what it cost";

#[derive(Subcommand)]
enum HotCommand {
    Show(Box<show::Args>),
    Manage(Box<manage::Args>),
    Run(Box<run::Args>),
    Serve(serve::Args),
    Top(top::Args),
    Explain(explain::Args),
    Undo(undo::Args),
}

/// Runs the subcommand.
pub fn run(args: HotArgs) -> anyhow::Result<ExitCode> {
    match args.what {
        HotCommand::Show(args) => show::main(&args),
        HotCommand::Manage(args) => manage::main(&args),
        HotCommand::Run(args) => run::main(&args),
        HotCommand::Serve(args) => serve::main(&args),
        HotCommand::Top(args) => top::main(&args),
        HotCommand::Explain(args) => explain::main(&args),
        HotCommand::Undo(args) => undo::main(&args),
    }
}

/// Attaches an engine to process `pid`. Errors that the user can avoid are refusals.
fn engine(pid: u32, options: Options, clock: &manage::Clock) -> anyhow::Result<Engine> {
    Engine::new(pid, options, clock.now_ns()).map_err(refusal)
}

/// The error, as a refusal if the user can avoid it.
fn refusal(error: HotError) -> anyhow::Error {
    match error {
        HotError::Managed { .. }
        | HotError::NoHugePages { .. }
        | HotError::NoBackend { .. }
        | HotError::NoProcess { .. }
        | HotError::NoLedger { .. }
        | HotError::KernelThread { .. } => hiroma_command::refuse(error.to_string()),
        other => other.into(),
    }
}
