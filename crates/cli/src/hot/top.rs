//! `hiroma hot top`: the processes of the running daemon, live.

use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use hiroma_command::refuse;
use hiroma_hot::service::client::status_json;
use hiroma_report::Table;
use hiroma_units::{Bytes, parse_time};
use serde_json::Value;

use super::manage::stopped;

/// Show the processes that `hiroma hot serve` manages, live.
///
/// Once each second: the huge pages that were made for each process, how many of them are in use,
/// and what is wanted beyond its share. Ends on SIGINT. Where standard output is no terminal, one
/// table is printed.
#[derive(clap::Args)]
pub struct Args {
    /// Path of the daemon's socket [default: as for serve]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Time between two tables
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    every: Duration,
    /// Print one table, and exit
    #[arg(long)]
    once: bool,
}

/// Shows the table again and again.
pub fn main(args: &Args) -> Result<ExitCode> {
    let stop = stopped()?;
    let is_live = stdout().is_terminal() && !args.once;
    loop {
        let text =
            status_json(args.socket.as_deref()).map_err(|error| refuse(error.to_string()))?;
        let status = serde_json::from_str(&text).context("the daemon's answer is not JSON")?;
        let clear = if is_live { "\x1b[2J\x1b[H" } else { "" };
        let shown = write!(stdout(), "{clear}{}", table(&status));
        if shown.and_then(|()| stdout().flush()).is_err() || !is_live {
            return Ok(ExitCode::SUCCESS);
        }
        let step = Duration::from_millis(50);
        for _ in 0..args.every.as_millis().div_ceil(step.as_millis()) {
            if stop() {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(step);
        }
    }
}

fn table(status: &Value) -> String {
    let bytes = |value: &Value| Bytes(value.as_u64().unwrap_or(0)).to_string();
    let none = Vec::new();
    let processes = status["processes"].as_array().unwrap_or(&none);
    let shown = processes.len();
    // Daemons before this count said only how many they show.
    let count = status["count"].as_u64().unwrap_or(shown as u64);
    let count = match shown as u64 {
        all if all == count => count.to_string(),
        _ => format!("{shown} of {count}"),
    };
    let title = format!("{count} processes, {} may be huge", bytes(&status["budget_bytes"]));
    let mut table = Table::new(title).number("pid", "").text("name").text("how");
    for name in ["used", "idle", "wanted", "share"] {
        table = table.number(name, "");
    }
    table = table.text("gain");
    for process in processes {
        let text = |name: &str| process[name].as_str().unwrap_or_default().to_owned();
        table.row([
            process["pid"].to_string(),
            text("name"),
            text("how"),
            bytes(&process["used_bytes"]),
            bytes(&process["idle_bytes"]),
            bytes(&process["wanted_bytes"]),
            bytes(&process["share_bytes"]),
            text("gain"),
        ]);
    }
    table.to_text()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn table_has_a_row_for_each_process() {
        let process = json!({
            "pid": 7, "name": "redis", "how": "chosen", "used_bytes": 4 << 20,
        });
        let text = table(&json!({ "budget_bytes": 1 << 30, "processes": [process] }));
        assert!(text.contains("1 processes, 1GiB may be huge"), "{text}");
        assert!(text.contains("redis") && text.contains("4MiB"), "{text}");
        let text = table(&json!({ "budget_bytes": 1, "count": 256, "processes": [{ "pid": 7 }] }));
        assert!(text.contains("1 of 256 processes"), "{text}");
    }
}
