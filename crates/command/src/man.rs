//! Man pages, generated from the same text as `--help`.

use std::io;
use std::path::Path;

use clap::{Arg, ArgAction, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// Writes a page for `command` and one for each of its visible subcommands. The command must be
/// built (`Command::build`).
pub fn write_pages(command: &Command, dir: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        write_pages(subcommand, dir)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    // An empty date would shift the fields after it.
    let page = Man::new(command.clone())
        .title(name.clone())
        .date(env!("CARGO_PKG_VERSION"))
        .source("Hiroma")
        .manual("Hiroma");
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = with_synopsis(&String::from_utf8_lossy(&text), &synopsis(command));
    std::fs::write(dir.join(format!("{name}.1")), text)
}

const HEADING: &str = ".SH SYNOPSIS\n";

/// Replaces the synopsis that clap_mangen makes, which lacks the values of options.
fn with_synopsis(page: &str, synopsis: &str) -> String {
    let Some((before, rest)) = page.split_once(HEADING) else { return page.to_owned() };
    let after = rest.find(".SH ").map_or("", |start| &rest[start..]);
    format!("{before}{HEADING}{synopsis}{after}")
}

/// The command line, option by option: `hiroma run [--local SIZE] PROGRAM...`.
fn synopsis(command: &Command) -> String {
    let mut line =
        vec![bold(command.get_bin_name().unwrap_or_else(|| command.get_name())), roman(" ")];
    let options = command.get_arguments().filter(|one| !one.is_positional() && !one.is_hide_set());
    options.filter(|one| one.get_id() != "help").for_each(|option| add_option(&mut line, option));
    for positional in command.get_positionals().filter(|one| !one.is_hide_set()) {
        add_positional(&mut line, positional);
    }
    if command.has_subcommands() {
        line.push(italic("COMMAND"));
    }
    let mut roff = Roff::new();
    roff.text(line);
    roff.to_roff()
}

/// Brackets around what may be left out.
fn bracket(line: &mut Vec<Inline>, is_required: bool, inner: impl FnOnce(&mut Vec<Inline>)) {
    line.push(roman(if is_required { "" } else { "[" }));
    inner(line);
    line.push(roman(if is_required { " " } else { "] " }));
}

fn add_option(line: &mut Vec<Inline>, option: &Arg) {
    let Some(long) = option.get_long() else { return };
    bracket(line, option.is_required_set(), |line| {
        if let Some(short) = option.get_short() {
            line.extend([bold(format!("-{short}")), roman("|")]);
        }
        line.push(bold(format!("--{long}")));
        if option.get_action().takes_values() {
            line.extend([roman(" "), italic(value_of(option))]);
        }
        if matches!(option.get_action(), ArgAction::Count) {
            line.push(roman("..."));
        }
    });
}

fn add_positional(line: &mut Vec<Inline>, positional: &Arg) {
    let is_last = positional.is_last_set() || positional.is_trailing_var_arg_set();
    bracket(line, positional.is_required_set(), |line| {
        line.push(roman(if positional.is_last_set() { "-- " } else { "" }));
        line.push(italic(value_of(positional)));
        let is_many = positional.get_num_args().is_some_and(|count| count.max_values() > 1);
        line.push(roman(if is_many || is_last { "..." } else { "" }));
    });
}

/// The name of an argument's value, as in `--help`.
fn value_of(argument: &Arg) -> String {
    match argument.get_value_names() {
        Some(names) => names.join(" "),
        None => argument.get_id().as_str().to_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synopsis_shows_values_and_optional_parts() {
        let mut command = Command::new("tool").subcommand(
            Command::new("run")
                .arg(Arg::new("size").long("size").short('s').value_name("SIZE"))
                .arg(Arg::new("quiet").long("quiet").action(ArgAction::SetTrue))
                .arg(Arg::new("to").long("to").required(true).value_name("FILE"))
                .arg(Arg::new("hidden").long("hidden").hide(true))
                .arg(Arg::new("program").num_args(1..).required(true).value_name("PROGRAM")),
        );
        command.build();
        let run = command.find_subcommand("run").unwrap();
        let text = synopsis(run).replace("\\fB", "").replace("\\fI", "").replace("\\fR", "");
        assert_eq!(
            text.replace('\\', "").trim(),
            "tool run [-s|--size SIZE] [--quiet] --to FILE PROGRAM..."
        );
        let page = with_synopsis(".SH NAME\nx\n.SH SYNOPSIS\nold\n.SH OPTIONS\n", "new\n");
        assert_eq!(page, ".SH NAME\nx\n.SH SYNOPSIS\nnew\n.SH OPTIONS\n");
    }
}
