//! `hiroma serve`.
use std::process::ExitCode;
#[derive(clap::Args)]
pub struct Args {}
pub fn main(_: Args) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
