//! `hiroma hot undo`: splits the huge pages that hiroma made.

use std::process::ExitCode;

use anyhow::Result;
use hiroma_hot::LedgerDir;

/// Split the huge pages that hiroma made in a process.
///
/// The memory stays in place, on small pages. Nothing is lost, and no setting remains.
#[derive(clap::Args)]
pub struct Args {
    /// Process id
    #[arg(long, value_name = "PID")]
    pid: u32,
}

/// Splits the huge pages.
pub fn main(args: &Args) -> Result<ExitCode> {
    let dir = LedgerDir::of_this_user();
    let undone = hiroma_hot::undo::undo(&dir, args.pid).map_err(super::refusal)?;
    println!("{undone} huge pages of process {} were split", args.pid);
    Ok(ExitCode::SUCCESS)
}
