//! The subcommands and options of a command, as text: with them one program completes the command
//! line of another.

use clap::{Arg, ArgAction, Command};

/// One line for each visible subcommand and option, parents first. The fields are separated by
/// tabs: the subcommand's path, the option (empty for the subcommand itself), whether it takes a
/// value (0 or 1), and the first line of its help.
pub fn outline(command: &Command) -> String {
    let mut lines = String::new();
    add(command, "", &mut lines);
    lines
}

fn add(command: &Command, path: &str, lines: &mut String) {
    let first_line = |help: Option<&clap::builder::StyledStr>| {
        help.map_or_else(String::new, |help| {
            help.to_string().lines().next().unwrap_or_default().replace('\t', " ")
        })
    };
    for option in command.get_arguments().filter(|one| !one.is_hide_set()) {
        if let Some(long) = option.get_long() {
            let takes_value = u8::from(option.get_action().takes_values());
            let help = first_line(option.get_help());
            lines.push_str(&format!("{path}\t{long}\t{takes_value}\t{help}\n"));
        }
    }
    for subcommand in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        let path = format!("{path} {}", subcommand.get_name()).trim_start().to_owned();
        lines.push_str(&format!("{path}\t\t0\t{}\n", first_line(subcommand.get_about())));
        add(subcommand, &path, lines);
    }
}

/// Adds to `command` what an outline lists. Lines that are not understood are left out.
pub fn with_outline(mut command: Command, outline: &str) -> Command {
    for line in outline.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [path, option, takes_value, help] = fields[..] else { continue };
        let words: Vec<&str> = path.split_whitespace().collect();
        command = with_line(command, &words, option, takes_value == "1", help);
    }
    command
}

fn with_line(
    command: Command,
    path: &[&str],
    option: &str,
    takes_value: bool,
    help: &str,
) -> Command {
    match path {
        [] if option.is_empty() || option == "help" => command,
        [] => {
            let action = if takes_value { ArgAction::Set } else { ArgAction::SetTrue };
            let (option, help) = (option.to_owned(), help.to_owned());
            command.arg(Arg::new(option.clone()).long(option).action(action).help(help))
        }
        [name] if option.is_empty() => {
            command.subcommand(Command::new((*name).to_owned()).about(help.to_owned()))
        }
        [name, rest @ ..] if command.find_subcommand(name).is_some() => {
            command.mut_subcommand(*name, |inner| with_line(inner, rest, option, takes_value, help))
        }
        _ => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> Command {
        let record = Command::new("record")
            .about("Record\nmore")
            .arg(Arg::new("out").long("out").help("Where\tto"));
        Command::new("tool")
            .subcommand(Command::new("policy").about("Policies").subcommand(record))
            .subcommand(Command::new("secret").hide(true))
            .arg(Arg::new("quick").long("quick").action(ArgAction::SetTrue).help("Less"))
    }

    #[test]
    fn an_outline_restores_subcommands_and_options() {
        let text = outline(&tool());
        assert_eq!(
            text,
            "\tquick\t0\tLess\npolicy\t\t0\tPolicies\npolicy record\t\t0\tRecord\npolicy record\tout\t1\tWhere to\n"
        );
        let restored = with_outline(Command::new("other"), &text);
        assert_eq!(outline(&restored), text);
    }

    #[test]
    fn invalid_outline_adds_nothing() {
        let text = "usage: something\nunknown sub\tx\t0\thelp\n\t\t\n";
        assert_eq!(outline(&with_outline(Command::new("other"), text)), "");
    }
}
