//! Tables, for the terminal and for HTML.

use std::fmt::Write as _;

use crate::html::escape;

/// The alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    Left,
    Right,
}

/// A table. The first line of the heading is the name of the column, the second its unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What the table shows.
    pub title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    /// Lines below the table.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Column {
    name: String,
    unit: String,
    align: Align,
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>) -> Table {
        Table { title: title.into(), ..Table::default() }
    }

    /// Adds a column of text.
    pub fn text(mut self, name: impl Into<String>) -> Table {
        self.columns.push(Column { name: name.into(), unit: String::new(), align: Align::Left });
        self
    }

    /// Adds a column of numbers in `unit`.
    pub fn number(mut self, name: impl Into<String>, unit: impl Into<String>) -> Table {
        self.columns.push(Column { name: name.into(), unit: unit.into(), align: Align::Right });
        self
    }

    /// Adds a row. Missing cells are empty.
    ///
    /// # Panics
    /// If there are more cells than columns.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert!(
            cells.len() <= self.columns.len(),
            "a row of {} cells in a table of {} columns: {cells:?}",
            cells.len(),
            self.columns.len()
        );
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Adds a line below the table.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as aligned text.
    pub fn to_text(&self) -> String {
        let has_units = self.columns.iter().any(|column| !column.unit.is_empty());
        let width = |index: usize| {
            let column = &self.columns[index];
            let cells = self.rows.iter().map(|row| columns_of(&row[index]));
            cells.chain([columns_of(&column.name), columns_of(&column.unit)]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded = cells
                .zip(&self.columns)
                .zip(&widths)
                .map(|((cell, column), &width)| pad(cell, width, column.align));
            let line = padded.collect::<Vec<_>>().join("  ");
            format!("{}\n", line.trim_end())
        };
        let mut text =
            if self.title.is_empty() { String::new() } else { format!("{}\n", self.title) };
        text += &line(&mut self.columns.iter().map(|column| column.name.as_str()));
        if has_units {
            text += &line(&mut self.columns.iter().map(|column| column.unit.as_str()));
        }
        text += &format!(
            "{}\n",
            widths.iter().map(|&width| "─".repeat(width)).collect::<Vec<_>>().join("  ")
        );
        for row in &self.rows {
            text += &line(&mut row.iter().map(String::as_str));
        }
        for note in &self.notes {
            let _ = writeln!(text, "  {note}");
        }
        text
    }

    /// The table as CSV (RFC 4180); units follow the names of the columns.
    pub fn to_csv(&self) -> String {
        let quoted = |text: &str| {
            if text.contains([',', '"', '\n', '\r']) {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.to_owned()
            }
        };
        let name = |column: &Column| {
            if column.unit.is_empty() {
                column.name.clone()
            } else {
                format!("{} ({})", column.name, column.unit)
            }
        };
        let header: Vec<String> = self.columns.iter().map(|column| quoted(&name(column))).collect();
        let mut csv = header.join(",") + "\n";
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
            let _ = writeln!(csv, "{}", cells.join(","));
        }
        csv
    }

    /// The table as Markdown; units follow the names of the columns.
    pub fn to_markdown(&self) -> String {
        let plain = |text: &str| text.replace('|', "\\|");
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let name = |column: &Column| {
            if column.unit.is_empty() {
                column.name.clone()
            } else {
                format!("{}, {}", column.name, column.unit)
            }
        };
        let mut text = line(self.columns.iter().map(|column| plain(&name(column))).collect());
        let sides = self
            .columns
            .iter()
            .map(|column| if column.align == Align::Right { "---:" } else { "---" });
        text += &format!("|{}|\n", sides.collect::<Vec<_>>().join("|"));
        for row in &self.rows {
            text += &line(row.iter().map(|cell| plain(cell)).collect());
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }

    /// The table as HTML.
    pub fn to_html(&self) -> String {
        let class =
            |column: &Column| if column.align == Align::Right { " class=\"n\"" } else { "" };
        let mut html = String::from("<table>\n");
        if !self.title.is_empty() {
            let _ = writeln!(html, "<caption>{}</caption>", escape(&self.title));
        }
        html += "<thead><tr>";
        for column in &self.columns {
            let unit = if column.unit.is_empty() {
                String::new()
            } else {
                format!("<br><small>{}</small>", escape(&column.unit))
            };
            let _ = write!(html, "<th{}>{}{unit}</th>", class(column), escape(&column.name));
        }
        html += "</tr></thead>\n<tbody>\n";
        for row in &self.rows {
            let cells = row
                .iter()
                .zip(&self.columns)
                .map(|(cell, column)| format!("<td{}>{}</td>", class(column), escape(cell)));
            let _ = writeln!(html, "<tr>{}</tr>", cells.collect::<String>());
        }
        html += "</tbody></table>\n";
        for note in &self.notes {
            let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(note));
        }
        html
    }
}

/// Width of a text in the terminal; every character of our reports is one column wide.
fn columns_of(text: &str) -> usize {
    text.chars().count()
}

fn pad(text: &str, width: usize, align: Align) -> String {
    let fill = " ".repeat(width.saturating_sub(columns_of(text)));
    match align {
        Align::Left => format!("{text}{fill}"),
        Align::Right => format!("{fill}{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table =
            Table::new("Reading").text("what").number("speed", "GB/s").number("paper", "MB/s");
        table.row(["1M", "3.20", "603"]);
        table.row(["swap file <disk>", "0.12", "58.9"]);
        table.row(["2M × 3"]);
        table.note("medians of 3");
        table
    }

    #[test]
    fn columns_align_with_numbers_right() {
        let expected = "\
Reading
what              speed  paper
                   GB/s   MB/s
────────────────  ─────  ─────
1M                 3.20    603
swap file <disk>   0.12   58.9
2M × 3
  medians of 3
";
        assert_eq!(sample().to_text(), expected);
    }

    #[test]
    fn markdown_has_one_line_per_row() {
        let mut table = sample();
        table.row(["a|b"]);
        let expected = "\
| what | speed, GB/s | paper, MB/s |
|---|---:|---:|
| 1M | 3.20 | 603 |
| swap file <disk> | 0.12 | 58.9 |
| 2M × 3 |  |  |
| a\\|b |  |  |

medians of 3
";
        assert_eq!(table.to_markdown(), expected);
    }

    #[test]
    fn html_escapes_cell_text() {
        let html = sample().to_html();
        assert!(html.contains("swap file &lt;disk&gt;") && !html.contains("<disk>"));
        assert_eq!(html.matches("<tr>").count(), 4);
    }

    #[test]
    #[should_panic(expected = "a row of 4 cells in a table of 3 columns")]
    fn a_row_with_too_many_cells_is_refused() {
        sample().row(["1", "2", "3", "4"]);
    }

    #[test]
    fn csv_heading_has_units_and_commas_are_quoted() {
        let mut table = Table::new("t").text("policy").number("response", "ms");
        table.row(["nearest, on demand", "1.23"]);
        assert_eq!(table.to_csv(), "policy,response (ms)\n\"nearest, on demand\",1.23\n");
    }
}
