//! A whole report, as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::{Machine, Measure, Plot, Table, measures_table};

/// One experiment: text, tables, plots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    pub title: String,
    /// What was done, in paragraphs.
    pub text: Vec<String>,
    pub tables: Vec<Table>,
    pub plots: Vec<Plot>,
}

/// All experiments of one command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub title: String,
    /// The command that made it.
    pub command: String,
    /// The time of its creation, as text.
    pub made_at: String,
    pub machine: Machine,
    /// What to know before reading the figures.
    pub preamble: Vec<String>,
    pub measures: Vec<Measure>,
    pub sections: Vec<Section>,
}

#[derive(Serialize)]
struct Json<'a> {
    machine: &'a Machine,
    command: &'a str,
    made_at: &'a str,
    results: &'a [Measure],
}

impl Section {
    /// The section as text for a terminal; plots are only in the page.
    pub fn to_text(&self) -> String {
        let mut text = format!("== {} ==\n", self.title);
        for paragraph in &self.text {
            let _ = writeln!(text, "{paragraph}");
        }
        for table in &self.tables {
            let _ = write!(text, "\n{}", table.to_text());
        }
        text
    }
}

impl Report {
    /// `{"machine": …, "results": […]}`, indented.
    pub fn to_json(&self) -> String {
        let json = Json {
            machine: &self.machine,
            command: &self.command,
            made_at: &self.made_at,
            results: &self.measures,
        };
        let text = serde_json::to_string_pretty(&json)
            .expect("strings, numbers and lists always become JSON");
        text + "\n"
    }

    /// The table of all measures.
    pub fn summary(&self) -> Table {
        measures_table("All figures", &self.measures)
    }

    /// The whole report as text.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n{}\n{}\n", self.title, self.machine.describe(), self.command);
        for section in &self.sections {
            let _ = write!(text, "\n{}", section.to_text());
        }
        let _ = write!(text, "\n{}", self.summary().to_text());
        text
    }
}
