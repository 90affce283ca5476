//! Files that results are written to.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hiroma_report::Report;
use hiroma_simlab::atomic::{check_writable, write_atomically};

use crate::refuse;

/// Where results go besides the terminal.
#[derive(clap::Args)]
pub struct Files {
    /// Write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write everything, with plots, as one HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Files {
    /// Refuses files that cannot be written, before anything is run.
    pub fn check(&self) -> Result<()> {
        [&self.json, &self.html].into_iter().flatten().try_for_each(|path| check(path))
    }

    /// Writes what was asked for.
    pub fn write(&self, json: impl FnOnce() -> String, html: impl FnOnce() -> Report) -> Result<()> {
        if let Some(path) = &self.json {
            write(path, &json())?;
        }
        if let Some(path) = &self.html {
            write(path, &html().to_html())?;
        }
        Ok(())
    }
}

/// Refuses a file that cannot be written.
pub fn check(path: &Path) -> Result<()> {
    check_writable(path).map_err(|error| refuse(format!("{}: {error}: choose another place", path.display())))
}

/// Writes a file whole or not at all.
pub fn write(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, text.as_bytes()).with_context(|| format!("writing {}", path.display()))
}
