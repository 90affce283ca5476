//! `hiroma hot serve`: one daemon for all registered processes.

use std::io::{Read, Write, stderr, stdout};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use hiroma_command::refuse;
use hiroma_hot::service::client::{own_socket, status};
use hiroma_hot::service::daemon::{Daemon, OVERDUE_NS, ServiceOptions};
use hiroma_hot::service::descriptors;
use hiroma_hot::service::metrics::Metrics;
use hiroma_hot::service::select::{Rules, Selector};
use hiroma_hot::service::watch::Engines;
use hiroma_hot::{Backend, LedgerDir};
use hiroma_metrics::Endpoint;
use hiroma_sys::host::memory::Limits;
use hiroma_units::{Bytes, EXTENT, SizeSpec};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use super::options::{Measuring, Share, backend};

/// Give huge pages to all registered processes, with fair shares between them.
///
/// With --policy also to processes that its rules choose; see below.
/// Programs register through libhiroma (hps.h, hiroma.h); see hps(3). A program may register itself
/// and processes of the same user; root may register any process. The budget is divided by use:
/// idle huge pages are given to processes that need them. Prints one line on standard output when
/// it is ready. Stops on SIGINT and SIGTERM; huge pages remain.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma hot serve
  hiroma hot serve --budget 4G --cpu 0.5%
  hiroma hot serve --policy /etc/hiroma/hot.toml
  hiroma hot serve --status                      who is managed by the running daemon

Policy (TOML): the first rule that fits a process decides; processes that no rule fits are left alone.
  [[rule]]
  name = \"redis-*\"               # name of the program; * and ? stand for other characters
  user = \"redis\"                 # name or number
  cgroup = \"/system.slice/*\"     # its control group, or one above it
  unit = \"redis.service\"         # its systemd unit
  resident_min = \"64M\"           # least resident memory [default: 64M]
  leave = false                    # true: leave it alone
  children = true                  # false: not the children of what it fits
  budget = \"4G\"                  # limit of memory in huge pages of each process
The policy is read again on SIGHUP.")]
pub struct Args {
    /// Limit of memory in huge pages for all processes together: a size, or a share of the
    /// machine's memory or the cgroup's limit
    #[arg(long, value_name = "SIZE", default_value = "25%", allow_hyphen_values = true)]
    budget: SizeSpec,
    /// Share of one processor that tracking of all processes together may use
    #[arg(long, value_name = "PERCENT", default_value = "1%", allow_hyphen_values = true)]
    cpu: Share,
    /// Share of one processor that collapsing ranges whose pages are all present may use, of all
    /// processes together, in addition to --cpu (where a hypervisor has taken back free memory, up
    /// to four times as much to have it backed again, while a processor is idle)
    #[arg(long, value_name = "PERCENT", default_value = "5%", allow_hyphen_values = true)]
    collapse: Share,
    /// Path of the socket [default: /run/hiroma-hot.sock for root, $XDG_RUNTIME_DIR/hiroma-hot.sock
    /// for other users]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Tracking backend to use: bpf, bpf-clear-refs, idle-bitmap, damon, smaps [default: the first
    /// of these that works]
    #[arg(long, value_name = "NAME", value_parser = backend)]
    backend: Option<Backend>,
    /// Rules that choose processes to manage although they do not register
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Serve Prometheus metrics at this address, as in 127.0.0.1:9465, under /metrics
    #[arg(long, value_name = "ADDRESS", value_parser = hiroma_metrics::parse_address)]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    measuring: Measuring,
    /// Print the processes that are registered with the running daemon, and exit
    #[arg(long)]
    status: bool,
    /// Print only errors and the line that reports readiness
    #[arg(short, long)]
    quiet: bool,
}

/// What signals say.
struct Stop {
    /// Readable after one.
    pipe: UnixStream,
    /// One of those that end the daemon.
    ends: Arc<AtomicBool>,
}

impl Stop {
    /// SIGHUP ends it unless it `rereads`.
    fn of(rereads: bool) -> Result<Stop> {
        let (pipe, signals) = UnixStream::pair().context("cannot make a socket pair")?;
        pipe.set_nonblocking(true).context("cannot set up a socket pair")?;
        let ends = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The flag first: who reads the pipe looks at it afterwards.
            if signal != SIGHUP || !rereads {
                signal_hook::flag::register(signal, Arc::clone(&ends))
                    .context("cannot take over the signals")?;
            }
            let signals = signals.try_clone().context("cannot copy a descriptor")?;
            signal_hook::low_level::pipe::register(signal, signals)
                .context("cannot take over the signals")?;
        }
        Ok(Stop { pipe, ends })
    }

    /// Whether all signals so far only asked to read the policy again. Takes them from the pipe:
    /// several may have arrived at once.
    fn is_only_hung_up(&mut self) -> bool {
        while matches!(self.pipe.read(&mut [0; 64]), Ok(1..)) {}
        !self.ends.load(Ordering::Relaxed)
    }
}

/// Serves until a signal arrives.
pub fn main(args: &Args) -> Result<ExitCode> {
    if args.status {
        let text = status(args.socket.as_deref()).map_err(|error| refuse(error.to_string()))?;
        let _ = stdout().write_all(text.as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let budget = args.budget.of(Limits::read().whole());
    let budget_ranges = budget.0 / EXTENT as u64;
    if budget_ranges == 0 {
        return Err(refuse(format!("--budget {budget} is less than one huge page of 2MiB")));
    }
    let rules = |path: &PathBuf| Rules::read(path).map_err(|error| refuse(error.to_string()));
    let selector = args.policy.as_ref().map(rules).transpose()?.map(Selector::new);
    let mut stop = Stop::of(args.policy.is_some())?;
    let quiet = args.quiet;
    let log = Box::new(move |line: &str| {
        if !quiet {
            // The daemon continues when nothing reads standard error any more.
            let _ = writeln!(stderr(), "hiroma hot serve: {line}");
        }
    });
    descriptors::raise();
    let path = args.socket.clone().unwrap_or_else(own_socket);
    let metrics = Metrics::default();
    let options = ServiceOptions {
        path,
        budget_ranges,
        cpu_ppm: args.cpu.ppm,
        collapse_ppm: args.collapse.ppm,
        overdue_ns: OVERDUE_NS,
        selector,
        metrics: args.metrics.map(|_| metrics.clone()),
        log,
    };
    let _endpoint = match args.metrics {
        Some(address) => Some(Endpoint::open(address, metrics.registry()).map_err(|error| {
            refuse(format!("--metrics {address}: cannot listen there: {error}"))
        })?),
        None => None,
    };
    let engines = Engines {
        backend: args.backend,
        ledger: Some(LedgerDir::of_this_user()),
        trial: args.measuring.options(),
    };
    let mut daemon =
        Daemon::start(options, engines.into_open()).map_err(|error| refuse(error.to_string()))?;
    let share = Bytes(budget_ranges * EXTENT as u64);
    let _ = writeln!(
        stdout(),
        "hiroma hot serve: ready on {}, {share} may be huge",
        daemon.path().display()
    );
    loop {
        daemon.run(stop.pipe.as_fd()).context("cannot wait for requests")?;
        let Some(path) = args.policy.as_ref().filter(|_| stop.is_only_hung_up()) else {
            return Ok(ExitCode::SUCCESS);
        };
        match Rules::read(path) {
            Ok(rules) => daemon.set_rules(rules),
            // A mistake in the file must not end what works.
            Err(error) => {
                let _ = writeln!(stderr(), "hiroma hot serve: the policy is kept: {error}");
            }
        }
    }
}
