//! Files that results are written to.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hiroma_report::Report;
use hiroma_report::atomic::{check_writable, write_atomically};

use crate::refuse;

/// Options for result files.
#[derive(clap::Args)]
pub struct Files {
    /// Write the figures to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the whole report, with plots, to FILE, as one HTML page
    #[arg(long, alias = "report", value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Files {
    /// Refuses files that cannot be written, before anything is run.
    pub fn check(&self) -> Result<()> {
        [&self.json, &self.html].into_iter().flatten().try_for_each(|path| check(path))
    }

    /// Writes the requested files.
    pub fn write(
        &self,
        json: impl FnOnce() -> String,
        html: impl FnOnce() -> Report,
    ) -> Result<()> {
        if let Some(path) = &self.json {
            write(path, &json())?;
        }
        if let Some(path) = &self.html {
            write(path, &html().to_html())?;
        }
        Ok(())
    }
}

/// Options for result files, and for the tables as separate files.
#[derive(clap::Args)]
pub struct Outputs {
    #[command(flatten)]
    files: Files,
    /// Write each table to a CSV file in DIR
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
}

impl Outputs {
    /// Whether a page is to be written.
    pub fn wants_html(&self) -> bool {
        self.files.html.is_some()
    }

    /// Refuses files that cannot be written, before anything is run.
    pub fn check(&self) -> Result<()> {
        self.files.check()?;
        self.csv.iter().try_for_each(|directory| {
            std::fs::create_dir_all(directory).map_err(|error| {
                refuse(format!("{}: {error}: choose another place", directory.display()))
            })
        })
    }

    /// Writes the requested files.
    pub fn write(
        &self,
        json: impl FnOnce() -> String,
        report: impl FnOnce() -> Report,
    ) -> Result<()> {
        if self.csv.is_none() {
            return self.files.write(json, report);
        }
        let report = report();
        self.csv.iter().try_for_each(|directory| write_tables(directory, &report))?;
        self.files.write(json, || report)
    }
}

/// Writes each table to a file that is named after its section and its number there.
fn write_tables(directory: &Path, report: &Report) -> Result<()> {
    for section in &report.sections {
        for (number, table) in section.tables.iter().enumerate() {
            let path = directory.join(format!("{}-{}.csv", file_name(&section.title), number + 1));
            write(&path, &table.to_csv()).with_context(|| format!("table {:?}", table.title))?;
        }
    }
    Ok(())
}

/// Converts a title to a file name: lower-case letters and digits, with hyphens in place of all
/// else.
fn file_name(title: &str) -> String {
    let letters: String = title
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' })
        .collect();
    letters.split_whitespace().collect::<Vec<_>>().join("-")
}

/// Refuses a file that cannot be written.
pub fn check(path: &Path) -> Result<()> {
    check_writable(path)
        .map_err(|error| refuse(format!("{}: {error}: choose another place", path.display())))
}

/// Writes a file whole or not at all.
pub fn write(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, text.as_bytes()).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn titles_become_file_names() {
        assert_eq!(
            super::file_name("Figure 2: when others are told"),
            "figure-2-when-others-are-told"
        );
    }
}
