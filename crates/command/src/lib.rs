//! Code that the commands of hiroma share: refusals and exit codes, result files, formats of
//! numbers, man pages, and a description of the machine.

pub mod files;
pub mod machine;
pub mod man;
pub mod outline;
pub mod show;

use std::process::ExitCode;

use hiroma_report::{Report, Section};

/// A failure with an exit code of its own. The message states what happened, to what, and what to
/// do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

/// Exit code of everything that is refused before it begins.
pub const REFUSED: u8 = 2;

/// A refusal: nothing has happened yet.
pub fn refuse(message: impl Into<String>) -> anyhow::Error {
    Failure { code: REFUSED, message: message.into() }.into()
}

/// Exit code of a command that a signal interrupted.
pub const INTERRUPTED: u8 = 130;

/// The exit code for the outcome of a command. An error is printed on standard error.
pub fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("hiroma: {error:#}");
        ExitCode::from(error.downcast_ref::<Failure>().map_or(1, |failure| failure.code))
    })
}

/// A report about this machine and this command, with `sections`.
pub fn report(title: &str, sections: Vec<Section>) -> Report {
    Report {
        title: title.to_owned(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        made_at: machine::now(),
        machine: machine::look(),
        sections,
        ..Report::default()
    }
}
