//! `hiroma serve`: lends memory until it is stopped.

mod address;
mod elastic;
mod journal;
mod metrics;

use std::io::{Write, stderr, stdout};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use self::elastic::{Memory, Spill};
use self::journal::Journal;
use anyhow::{Context, Result};
use hiroma_command::{refuse, show};
use hiroma_far_server::{
    Answers, LEASE_MIN, Log, Quotas, SILENCE, ServeOptions, ServerHandle, ServerStats,
    SessionStats, load_key, serve,
};
use hiroma_far_wire::check_tenant;
use hiroma_metrics::{Endpoint, registry_of};
use hiroma_pool::{
    Answer, ClientView, Condition, Discovery, Membership, Options, Request, parse_labels,
};
use hiroma_sys::host::memory::Limits;
use hiroma_sys::quiet::memory::recent_pressure;
use hiroma_units::{Bytes, EXTENT, parse_time};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Lend this machine's memory to programs under `hiroma run`.
///
/// Prints one line on standard output when it is ready, with the address that it listens on. Stops
/// on SIGINT and SIGTERM, and then reports the usage of each client. Any program that reaches the
/// port can use the memory: listening beyond this machine requires a key, which clients must have
/// too.
///
/// Servers that know one another are a pool: with --join, or --discovery, this one becomes a member
/// of the pool of the servers named there. `hiroma pool` shows it, and `hiroma run --pool` uses it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hiroma serve --memory 8G
  head -c 32 /dev/urandom | base64 > hiroma.key
  hiroma serve --listen 10.0.0.1:7070 --memory 50% --key-file hiroma.key
  hiroma serve --memory 50% --key-file hiroma.key --join 10.0.0.1:7070
  hiroma serve --memory 8G --metrics :9467
  hiroma serve --memory auto --spill /srv/scratch:20G
and on another machine, with a copy of the key:
  hiroma run --store tcp://10.0.0.1:7070 --key-file hiroma.key --local 1G -- PROGRAM")]
pub struct Args {
    /// Address and port to listen on; port 0 picks a free port. Default: 127.0.0.1:7070; with --join
    /// or --discovery the address of this machine from which it reaches the members named there,
    /// with port 7070
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Memory to lend: a size, a share of the machine's memory or the cgroup's limit, or auto: what is
    /// free except for an eighth, following the machine's programs. When these need memory, it is given
    /// back within about a second: programs with --copies or --parity are asked to move away, and the blocks that
    /// were not used for the longest time are written to --spill
    #[arg(long, value_name = "SIZE|auto", allow_hyphen_values = true)]
    memory: Memory,
    /// With --memory auto: directory on a disk for blocks that there is no memory for, and the most to
    /// store there (default: half of what is free there); none for no such directory
    #[arg(long, value_name = "DIR[:SIZE]|none", default_value = "/var/tmp")]
    spill: Spill,
    /// File with the shared key that clients must have; or with this machine's identity (`hiroma pool
    /// invite`), for which clients must have one of the same pool
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Memory that a tenant may have here at most: NAME=SIZE for one that `hiroma run --tenant NAME`
    /// names, SIZE for each other one; may be given several times. For a tenant that has used up its
    /// quota, this server is full
    #[arg(long = "quota", value_name = "[NAME=]SIZE", value_parser = parse_quota)]
    quotas: Vec<(String, Bytes)>,
    /// Weight of a tenant when memory is short, as alice=3; others have 1
    #[arg(long = "weight", value_name = "NAME=N", value_parser = parse_weight)]
    weights: Vec<(String, u32)>,
    /// How long a client may be away until what it had here is freed; one that comes back later is
    /// refused. Without this option 2 s after its connections were closed, as when it is killed, and
    /// 30 s while its machine or the network is silent
    #[arg(long, value_name = "TIME", value_parser = parse_lease)]
    lease: Option<Duration>,
    /// Become a member of the pool of these members; any of them is enough
    #[arg(long, value_name = "HOST:PORT[,...]", value_delimiter = ',')]
    join: Vec<String>,
    /// Find members of the pool elsewhere: static:FILE (a HOST:PORT in each line),
    /// dns:NAME[:PORT] (a name with several addresses), or etcd://HOST[:PORT][,HOST...][/PREFIX]
    /// (etcd 3.4 or newer, where this member registers itself, too)
    #[arg(long, value_name = "SOURCE")]
    discovery: Option<Discovery>,
    /// Address at which other members and clients reach this one; default: that of --listen
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Name of this member; default: its address
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Label of this member, as rack=r1; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics: HOST:PORT, or :PORT for this machine
    /// alone. There is no password: whoever reaches the address can read them
    #[arg(long, value_name = "ADDRESS", value_parser = hiroma_metrics::parse_address)]
    metrics: Option<SocketAddr>,
    /// Print only errors and the line that reports readiness
    #[arg(short, long)]
    quiet: bool,
}

/// The tenant of a quota; empty: each that has none of its own.
fn parse_quota(text: &str) -> Result<(String, Bytes), String> {
    let (name, size) = text.split_once('=').unwrap_or(("", text));
    if text.contains('=') {
        check_tenant(name).map_err(|error| error.to_string())?;
    }
    let bytes: Bytes =
        size.parse().map_err(|error: hiroma_units::ParseSizeError| error.to_string())?;
    if bytes.0 < EXTENT as u64 {
        return Err(format!("{bytes} is too little: memory is lent in chunks of 2MiB"));
    }
    Ok((name.to_owned(), bytes))
}

fn parse_weight(text: &str) -> Result<(String, u32), String> {
    let (name, weight) = text.split_once('=').ok_or("write NAME=N, as in alice=3")?;
    check_tenant(name).map_err(|error| error.to_string())?;
    match weight.parse() {
        Ok(weight @ 1..=1000) => Ok((name.to_owned(), weight)),
        _ => Err(format!("`{weight}` is not a weight: 1 to 1000")),
    }
}

fn parse_lease(text: &str) -> Result<Duration, String> {
    let lease = parse_time(text).map_err(|error| error.to_string())?;
    if (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        return Ok(lease);
    }
    Err("a lease is 2s to 24h: within less, a client that lives could not be told from one that does not".to_owned())
}

/// What tenants may have.
fn quotas(args: &Args) -> Quotas {
    let (named, default): (Vec<_>, Vec<_>) =
        args.quotas.iter().cloned().partition(|(name, _)| !name.is_empty());
    Quotas {
        default_bytes: default.last().map(|(_, bytes)| bytes.0),
        bytes: named.into_iter().map(|(name, bytes)| (name, bytes.0)).collect(),
        weights: args.weights.iter().cloned().collect(),
    }
}

/// The longest lease.
const LEASE_MAX: Duration = Duration::from_secs(24 * 3600);

/// How often the server reports how full it is, if that has changed.
const ACCOUNT_INTERVAL: Duration = Duration::from_secs(60);

/// Serves until a signal arrives.
pub fn main(args: Args) -> Result<ExitCode> {
    let whole = Limits::read().whole();
    let (memory, elastic) = match args.memory {
        Memory::Fixed(size) => (size.of(whole), None),
        Memory::Auto => (whole, Some(elastic::of_machine(whole, &args.spill)?)),
    };
    if memory > whole {
        return Err(refuse(format!(
            "--memory {memory} is more than the {whole} of memory there is here: lend less, and leave some for the system"
        )));
    }
    raise_descriptors();
    let journal = (!args.quiet).then(|| Journal::start(stderr())).transpose();
    let journal = journal.context("cannot start a thread")?;
    let log: Log = journal.as_ref().map_or_else(|| Arc::new(|_: &str| {}) as Log, Journal::log);
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot take over the signals")?;
    let place = Arc::new(Place::default());
    let options = ServeOptions {
        listen: address::to_listen_on(args.listen.as_deref(), &args.join, args.discovery.as_ref())?,
        memory_bytes: memory.0,
        elastic,
        key_file: args.key_file.clone(),
        lease: args.lease.unwrap_or(LEASE_MIN),
        silence: args.lease.unwrap_or(SILENCE),
        quotas: quotas(&args),
        log: Arc::clone(&log),
        answers: Some(place.answers()),
        ..ServeOptions::default()
    };
    let server = Arc::new(serve(options).map_err(|error| refuse(error.to_string()))?);
    let _ = place.server.set(Arc::clone(&server));
    let _endpoint = args.metrics.map(|address| tell(address, &place, &log)).transpose()?;
    join(&args, &server, &place, &log)?;
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
    let mut said_at = Instant::now();
    while stopped.recv_timeout(CONDITION_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        place.say_condition();
        if said_at.elapsed() < ACCOUNT_INTERVAL {
            continue;
        }
        said_at = Instant::now();
        let account = account(&server.stats());
        if account != last {
            account.iter().for_each(|line| log(line));
            last = account;
        }
    }
    account(&server.stats()).iter().for_each(|line| log(line));
    if let Some(member) = &mut *place.member() {
        member.leave();
    }
    server.stop();
    log("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Each connection needs a descriptor. The usual limit is low for the sake of programs that use
/// `select(2)`, and may be raised as far as the administrator allows.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Without it there are fewer connections.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Serves metrics.
fn tell(address: SocketAddr, place: &Arc<Place>, log: &Log) -> Result<Endpoint> {
    let registry = registry_of("hiroma", metrics::Figures::of(place));
    let endpoint = Endpoint::open(address, registry)
        .map_err(|error| refuse(format!("--metrics {address}: cannot listen there: {error}")))?;
    log(&format!("metrics are at http://{}/metrics", endpoint.address()));
    Ok(endpoint)
}

/// How often the other members are told how full this one is, if that has changed.
const CONDITION_INTERVAL: Duration = Duration::from_millis(500);

/// This server's place in the pool.
#[derive(Default)]
struct Place {
    server: OnceLock<Arc<ServerHandle>>,
    member: Mutex<Option<Membership>>,
}

impl Place {
    fn member(&self) -> MutexGuard<'_, Option<Membership>> {
        self.member.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn condition(&self) -> Condition {
        let Some(server) = self.server.get() else { return Condition::default() };
        let stats = server.stats();
        let chunks = |bytes: u64| (bytes / EXTENT as u64) as u32;
        let taken = stats.used_bytes + stats.reserved_bytes;
        let pressure = recent_pressure(Path::new("/")).map_or(0.0, |recent| recent.some);
        Condition {
            lent_chunks: chunks(stats.capacity_bytes),
            free_chunks: chunks(stats.capacity_bytes.saturating_sub(taken)),
            spilled_chunks: chunks(stats.spilled_bytes),
            pressure: (pressure * 100.0) as u8,
            refusing: stats.is_short,
            draining: server.is_draining(),
        }
    }

    fn say_condition(&self) {
        let condition = self.condition();
        if let Some(member) = &*self.member() {
            member.set_condition(condition);
        }
    }

    /// Answers queries. The place is not kept alive by it.
    fn answers(self: &Arc<Self>) -> Answers {
        let place = Arc::downgrade(self);
        Arc::new(move |asked: &[u8]| {
            let answer = match (serde_json::from_slice(asked), place.upgrade()) {
                (Ok(request), Some(place)) => place.answer(&request),
                (Err(error), _) => Answer::Error(format!("not a request that is known: {error}")),
                (_, None) => Answer::Error("the server is stopping".to_owned()),
            };
            serde_json::to_vec(&answer).expect("answers are plain data")
        })
    }

    fn answer(&self, request: &Request) -> Answer {
        let starting = || Answer::Error("the server is starting: try again".to_owned());
        let Some(server) = self.server.get() else { return starting() };
        match request {
            Request::Members => match &*self.member() {
                Some(member) => Answer::Members(member.members()),
                None => Answer::Error(
                    "this server is no member of a pool (yet); if it listens on every address, start it with --advertise".to_owned(),
                ),
            },
            Request::Clients => Answer::Clients(clients(&server.stats())),
            Request::Drain(draining) => {
                server.set_draining(*draining);
                self.say_condition();
                Answer::Draining { used_bytes: server.stats().used_bytes }
            }
        }
    }
}

fn clients(stats: &ServerStats) -> Vec<ClientView> {
    stats.sessions.iter().map(|session| client(session, stats)).collect()
}

fn client(session: &SessionStats, stats: &ServerStats) -> ClientView {
    let usage = &session.usage;
    let tenant = stats.tenants.iter().find(|tenant| tenant.number == session.tenant_number);
    ClientView {
        number: session.number,
        name: session.tenant.clone(),
        peer: session.peer.clone(),
        connections: session.connections,
        shared_connections: session.shared_connections,
        used_bytes: usage.used_chunks * EXTENT as u64,
        tenant_bytes: tenant.map_or(0, |tenant| tenant.used_bytes + tenant.reserved_bytes),
        quota_bytes: tenant.and_then(|tenant| tenant.quota_bytes),
        short_blocks: session.short_blocks,
        weight: tenant.map_or(1, |tenant| tenant.weight),
        read_bytes: usage.read_bytes,
        written_bytes: usage.written_bytes,
        reads: usage.reads,
        writes: usage.writes,
    }
}

/// Makes the server a member of its pool, which may consist of itself.
fn join(args: &Args, server: &ServerHandle, place: &Place, log: &Log) -> Result<()> {
    let bind = server.local_addr();
    let address = match &args.advertise {
        Some(text) => advertised(text)?,
        None => bind,
    };
    if address.ip().is_unspecified() {
        if args.join.is_empty() && args.discovery.is_none() {
            return Ok(());
        }
        return Err(refuse(format!(
            "--listen {bind} is every address of this machine: tell the other members one at which they reach it, by --advertise HOST:PORT"
        )));
    }
    let key = args.key_file.as_deref().map(load_key).transpose();
    let options = Options {
        address,
        bind,
        name: args.name.clone(),
        labels: parse_labels(&args.labels).map_err(|error| refuse(error.to_string()))?,
        join: args.join.clone(),
        discovery: args.discovery.clone(),
        key: key.map_err(|error| refuse(error.to_string()))?,
        condition: place.condition(),
        log: Arc::clone(log),
    };
    let member = Membership::start(options).map_err(|error| refuse(error.to_string()))?;
    *place.member() = Some(member);
    Ok(())
}

fn advertised(text: &str) -> Result<SocketAddr> {
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| refuse(format!("--advertise {text}: write HOST:PORT ({error})")))?;
    found.next().ok_or_else(|| refuse(format!("--advertise {text}: the name has no address")))
}

/// Lines that report how full the server is, and the usage of each client.
fn account(stats: &ServerStats) -> Vec<String> {
    let spilled = match stats.spilled_bytes {
        0 => String::new(),
        bytes => format!(", {} of it on the disk", Bytes(bytes)),
    };
    let whole = format!(
        "{} of {} in use by {} clients{spilled}",
        Bytes(stats.used_bytes),
        Bytes(stats.capacity_bytes),
        stats.sessions.len()
    );
    let clients = stats.sessions.iter().map(|session| {
        let usage = &session.usage;
        format!(
            "client {}{} ({}): {} in use, {} written in {} requests, {} read in {} requests",
            session.number,
            if session.tenant.is_empty() {
                String::new()
            } else {
                format!(" of {}", session.tenant)
            },
            session.peer,
            Bytes(usage.used_chunks * EXTENT as u64),
            Bytes(usage.written_bytes),
            show::count(usage.writes),
            Bytes(usage.read_bytes),
            show::count(usage.reads),
        )
    });
    [whole].into_iter().chain(clients).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_descriptors_that_are_allowed_are_used() {
        raise_descriptors();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
