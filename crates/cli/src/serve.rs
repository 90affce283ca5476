//! `hiroma serve`: lends memory until it is stopped.

use std::io::{Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use hiroma_command::{refuse, show};
use hiroma_far_server::{Log, ServeOptions, ServerStats, serve};
use hiroma_sys::host::memory::Limits;
use hiroma_units::{Bytes, SizeSpec};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Lend this machine's memory to programs under `hiroma run`.
///
/// Prints one line on standard output when it is ready, with the address that it listens on. Stops
/// on SIGINT and SIGTERM, and then reports the usage of each client. Any program that reaches the
/// port can use the memory: listening beyond this machine requires a key, which clients must have
/// too.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma serve --memory 8G
  head -c 32 /dev/urandom | base64 > hiroma.key
  hiroma serve --listen 10.0.0.2:7070 --memory 50% --key-file hiroma.key
and on another machine, with a copy of the key:
  hiroma run --store tcp://10.0.0.2:7070 --key-file hiroma.key --local 1G -- PROGRAM")]
pub struct Args {
    /// Address and port to listen on; port 0 picks a free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7070")]
    listen: String,
    /// Memory to lend: a size, or a share of the machine's memory or the cgroup's limit
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: SizeSpec,
    /// File with the shared key that clients must have
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Print only errors and the line that reports readiness
    #[arg(short, long)]
    quiet: bool,
}

/// How often the server reports how full it is, if that has changed.
const ACCOUNT_INTERVAL: Duration = Duration::from_secs(60);

/// Serves until a signal arrives.
pub fn main(args: Args) -> Result<ExitCode> {
    let whole = Limits::read()?.whole();
    let memory = args.memory.of(whole);
    if memory > whole {
        return Err(refuse(format!(
            "--memory {memory} is more than the {whole} of memory there is here: lend less, and leave some for the system"
        )));
    }
    let quiet = args.quiet;
    let log: Log = Arc::new(move |line: &str| {
        if !quiet {
            // The server continues when nothing reads standard error any more.
            let _ = writeln!(stderr(), "hiroma serve: {line}");
        }
    });
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot take over the signals")?;
    let options = ServeOptions {
        listen: args.listen,
        memory_bytes: memory.0,
        key_file: args.key_file,
        log: Arc::clone(&log),
        ..ServeOptions::default()
    };
    let server = serve(options).map_err(|error| refuse(error.to_string()))?;
    let _ = writeln!(
        stdout(),
        "hiroma serve: ready on {}, lending {}",
        server.local_addr(),
        Bytes(server.stats().capacity_bytes)
    );

    let (stop, stopped) = channel();
    thread::spawn(move || {
        let _ = stop.send(signals.forever().next());
    });
    let mut last = Vec::new();
    while stopped.recv_timeout(ACCOUNT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let account = account(&server.stats());
        if account != last {
            account.iter().for_each(|line| log(line));
            last = account;
        }
    }
    account(&server.stats()).iter().for_each(|line| log(line));
    server.stop();
    log("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Lines that report how full the server is, and the usage of each client.
fn account(stats: &ServerStats) -> Vec<String> {
    let whole = format!(
        "{} of {} in use by {} clients",
        Bytes(stats.used_bytes),
        Bytes(stats.capacity_bytes),
        stats.sessions.len()
    );
    let clients = stats.sessions.iter().map(|session| {
        let usage = &session.usage;
        format!(
            "client {} ({}): {} in use, {} written in {} requests, {} read in {} requests",
            session.number,
            session.peer,
            Bytes(usage.used_chunks * hiroma_units::EXTENT as u64),
            Bytes(usage.written_bytes),
            show::count(usage.writes),
            Bytes(usage.read_bytes),
            show::count(usage.reads),
        )
    });
    [whole].into_iter().chain(clients).collect()
}
