//! `hiroma hot undo`: takes apart what was made huge.

use std::process::ExitCode;

use anyhow::Result;
use hiroma_hot::LedgerDir;

/// Take apart the huge pages that a process got from us.
///
/// The memory stays where it is, on small pages; nothing is lost, and no setting remains.
#[derive(clap::Args)]
pub struct Args {
    /// The process
    #[arg(long, value_name = "PID")]
    pid: u32,
}

/// Undoes.
pub fn main(args: &Args) -> Result<ExitCode> {
    let undone = hiroma_hot::undo::undo(&LedgerDir::of_this_user(), args.pid)?;
    println!("{undone} huge pages of process {} were taken apart", args.pid);
    Ok(ExitCode::SUCCESS)
}
