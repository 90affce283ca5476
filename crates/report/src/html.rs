//! One page that contains everything and refers to nothing outside of itself.

use std::fmt::Write as _;

use crate::plot::Kind;
use crate::report::{Report, Section};

/// The colours of pages and pictures.
pub(crate) const THEME: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--line:#d1d9e0;--page:#fff;--band:#f6f8fa;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--page:#0d1117;--band:#151b23;--bad:#ff7b72}}
";

/// The style of plots.
pub(crate) const PLOT_STYLE: &str = "\
svg{max-width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .t{font-size:14px;font-weight:600}
svg .g{stroke:var(--line);stroke-width:1}svg .a{stroke:var(--soft);stroke-width:1}svg .s{fill:var(--soft)}";

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.5rem;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums;font-size:.92em;display:block;overflow-x:auto}
caption{text-align:left;font-weight:600;padding:.3rem 0}
th,td{padding:.2rem .7rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:bottom;white-space:nowrap}
th small{color:var(--soft);font-weight:400}tbody tr:nth-child(odd){background:var(--band)}.n{text-align:right}
.note,.meta{color:var(--soft);font-size:.9em;margin:.2rem 0}code{background:var(--band);padding:.1rem .3rem;overflow-wrap:anywhere}
figure{margin:1rem 0}";

/// Escapes text for HTML, including attribute values.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

impl Section {
    fn to_html(&self) -> String {
        let mut html = format!("<section>\n<h2>{}</h2>\n", escape(&self.title));
        for paragraph in &self.text {
            let _ = writeln!(html, "<p>{}</p>", escape(paragraph));
        }
        for plot in &self.plots {
            let style = match plot.kind {
                Kind::Panel => " style=\"display:inline-block;margin:.2rem 0\"",
                _ => "",
            };
            let _ = writeln!(html, "<figure{style}>{}</figure>", plot.to_svg());
        }
        for table in &self.tables {
            html += &table.to_html();
        }
        html + "</section>\n"
    }
}

impl Report {
    /// The page.
    pub fn to_html(&self) -> String {
        let mut html =
            String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        html += "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n";
        let _ = writeln!(
            html,
            "<title>{}</title>\n<style>\n{THEME}{STYLE}{PLOT_STYLE}\n</style>\n</head>\n<body>",
            escape(&self.title)
        );
        let _ = writeln!(html, "<h1>{}</h1>", escape(&self.title));
        let _ = writeln!(html, "<p class=\"meta\">{}</p>", escape(&self.machine.describe()));
        let _ = writeln!(
            html,
            "<p class=\"meta\">Made by <code>{}</code>{}</p>",
            escape(&self.command),
            self.made_at_html()
        );
        for paragraph in &self.preamble {
            let _ = writeln!(html, "<p>{}</p>", escape(paragraph));
        }
        if !self.measures.is_empty() {
            html += &self.summary().to_html();
        }
        for section in &self.sections {
            html += &section.to_html();
        }
        html + "</body>\n</html>\n"
    }

    fn made_at_html(&self) -> String {
        if self.made_at.is_empty() {
            String::new()
        } else {
            format!(" on {}", escape(&self.made_at))
        }
    }
}
