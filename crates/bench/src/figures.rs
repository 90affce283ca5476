//! Inserts the results of a measurement into a document, so that figures are never copied by hand.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use hiroma_command::refuse;
use hiroma_report::figures;
use serde_json::Value;

const BEGIN: &str = "<!-- results: begin -->\n";
const END: &str = "<!-- results: end -->";

/// Insert results into a document, as a table between the marks `<!-- results: begin -->` and `<!--
/// results: end -->`.
#[derive(clap::Args)]
pub struct Args {
    /// Document to change (Markdown)
    document: PathBuf,
    /// Files that were written with --json; of several results with the same name, the last one is
    /// used
    #[arg(required = true)]
    results: Vec<PathBuf>,
}

/// Inserts the results.
pub fn main(args: &Args) -> Result<ExitCode> {
    let mut results: Vec<Value> = Vec::new();
    for path in &args.results {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file: Value = serde_json::from_str(&text)
            .with_context(|| format!("{} is not JSON", path.display()))?;
        for result in file["results"].as_array().into_iter().flatten() {
            match results.iter_mut().find(|known| known["name"] == result["name"]) {
                Some(known) => *known = result.clone(),
                None => results.push(result.clone()),
            }
        }
    }
    put(&args.document, &table(&results))?;
    Ok(ExitCode::SUCCESS)
}

/// Checks, before anything is measured, that `put` will find the marks of a document.
pub fn check(document: &Path) -> Result<()> {
    filled(document, "").map(|_| ())
}

/// Puts `text` between the marks of a document.
pub fn put(document: &Path, text: &str) -> Result<()> {
    let filled = filled(document, text)?;
    fs::write(document, filled).with_context(|| format!("cannot write {}", document.display()))
}

fn filled(document: &Path, text: &str) -> Result<String> {
    let path = document.display();
    let content = fs::read_to_string(document).with_context(|| format!("cannot read {path}"))?;
    fill(&content, text).ok_or_else(|| {
        refuse(format!("{path} has no lines `{}` and `{END}`, in this order", BEGIN.trim_end()))
    })
}

/// The document with `table` between its marks.
fn fill(document: &str, table: &str) -> Option<String> {
    let (head, rest) = document.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}{table}{END}{tail}"))
}

fn table(results: &[Value]) -> String {
    let mut text =
        "| Measure | Here | Must | Aim | | Paper |\n|---|---|---|---|---|---|\n".to_owned();
    let number = |value: &Value| value.as_f64().map_or(String::new(), figures);
    for result in results {
        let here = match (result["value"].as_f64(), result["n"].as_u64()) {
            (None, _) => "–".to_owned(),
            (Some(value), Some(2..)) => {
                format!(
                    "{} {} ({} to {})",
                    figures(value),
                    unit(result),
                    number(&result["min"]),
                    number(&result["max"])
                )
            }
            (Some(value), _) => format!("{} {}", figures(value), unit(result)),
        };
        let met = match (result["met"].as_bool(), result["aim_met"].as_bool()) {
            (Some(false), _) => "missed",
            (_, Some(true)) => "met, aim too",
            (Some(true), _) => "met",
            (None, Some(false)) => "aim missed",
            (None, None) => "",
        };
        let paper =
            result["paper"].as_str().map_or_else(|| number(&result["paper"]), str::to_owned);
        let title = result["title"].as_str().unwrap_or_default();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {met} | {} |",
            plain(title),
            here.trim_end(),
            number(&result["must"]),
            number(&result["aim"]),
            plain(&paper)
        );
    }
    text
}

fn unit(result: &Value) -> &str {
    result["unit"].as_str().unwrap_or_default()
}

/// Removes characters that would end a table cell.
fn plain(text: &str) -> String {
    text.replace(['|', '\n'], " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn document_is_checked_before_anything_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("document.md");
        assert!(check(&path).unwrap_err().to_string().contains("cannot read"));
        fs::write(&path, "no marks").unwrap();
        assert!(check(&path).unwrap_err().to_string().contains("has no lines"));
        fs::write(&path, format!("{BEGIN}{END}")).unwrap();
        check(&path).unwrap();
        put(&path, "figures\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{BEGIN}figures\n{END}"));
    }

    #[test]
    fn results_become_rows_between_the_marks() {
        let results = [
            json!({"name": "a", "title": "A|b", "value": 0.3771, "unit": "ms", "min": 0.3, "max": 0.5, "n": 9, "must": 0.5, "aim": 0.25,
                   "met": true, "aim_met": false, "paper": "37 ms"}),
            json!({"name": "c", "title": "C", "value": null, "unit": "%", "paper": 1.94, "must": 90.0, "met": false}),
        ];
        let document = format!("before\n{BEGIN}old\n{END}\nafter\n");
        let filled = fill(&document, &table(&results)).unwrap();
        assert!(
            filled.starts_with("before\n")
                && filled.ends_with("-->\nafter\n")
                && !filled.contains("old"),
            "{filled}"
        );
        assert!(
            filled.contains("| A b | 0.377 ms (0.300 to 0.500) | 0.500 | 0.250 | met | 37 ms |"),
            "{filled}"
        );
        assert!(filled.contains("| C | – | 90.0 |  | missed | 1.94 |"), "{filled}");
        assert_eq!(fill("no marks", ""), None);
        // Filling again is idempotent.
        assert_eq!(fill(&filled, &table(&results)).unwrap(), filled);
    }
}
