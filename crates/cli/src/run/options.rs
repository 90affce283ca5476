//! The options of `hiroma run`, and their conversion into the pager's configuration.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use hiroma_command::{refuse, show};
use hiroma_far::config::{
    Allocation, BlockSize, Config, ConfigError, FAULT_THREADS_MAX, LOCAL_MIN, PathChoice,
    ReplacementKind, Seal, StoreSpec, TransportChoice, parse_stores,
};
use hiroma_far::store::replicated::SERVERS_MAX;
use hiroma_far_wire::check_tenant;
use hiroma_policy::redundancy::Scheme;
use hiroma_sys::host::memory::Limits;
use hiroma_units::{Bytes, EXTENT, SizeSpec, parse_time};
use rustix::process::{Resource, getrlimit};

use super::members::{Following, common_label, domains_of, servers_of};
use super::progress;
use crate::pool::Way;

/// Run a program with far memory.
///
/// Memory that the program uses beyond the local limit is evicted to the stores, and fetched again
/// when it is touched. Programs that it starts have far memory too, each with the same limit.
///
/// `hiroma run` ends with the program's exit code or by the signal that ended it. Exit code 2 means
/// that the program was not started because something cannot work, 126 that it cannot be executed,
/// 127 that it was not found, and 75 that a store failed permanently.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Local memory limit per process: managed memory including compressed memory, buffers and
    /// tables. A size (512M, 1G), or a share of the machine's memory or the cgroup's limit,
    /// whichever is smaller (25%) [default: that of --total, or 50%]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    local: Option<SizeSpec>,
    /// Local memory limit of all processes together. It is divided among them while they run: most
    /// goes where it saves most waiting, and each keeps at least 16M [default: 75%]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    total: Option<SizeSpec>,
    /// Stores for far memory, in the order in which they are filled: compressed (within --local: a
    /// sixteenth of it at first, a quarter if the data packs four to one, then adjusted to reduce
    /// waiting; seven eighths if no other store follows; data that does not compress goes to the
    /// next store), compressed:SIZE (SIZE in addition to --local), file:DIR[:SIZE] (default size:
    /// all free space there, less a twentieth), tcp://HOST:PORT[,HOST:PORT...] (all that the
    /// servers lend), redis://[USER@]HOST[:PORT][/DB][?size=SIZE&ttl=TIME&password-file=FILE] (a
    /// Redis or Valkey server with the policy noeviction; default size: up to its maxmemory; with
    /// TLS rediss://HOST[?ca=FILE&cert=FILE&key=FILE])
    #[arg(long, value_name = "LIST", default_value = DEFAULT_STORES, default_value_if("pool", clap::builder::ArgPredicate::IsPresent, None))]
    store: Option<StoreList>,
    /// Far memory in the members of a pool: any member (HOST:PORT[,...]) is asked for all of them.
    /// Without a value: the pool of HIROMA_POOL or ~/.config/hiroma/pool.toml. They come after the
    /// stores of --store, but before file:DIR, which takes what they have no room for; without
    /// --store, that is file:/var/tmp
    #[arg(long, value_name = "MEMBERS", num_args = 0..=1, require_equals = false, value_delimiter = ',')]
    pool: Option<Vec<String>>,
    /// Amount that is moved at a time: auto (chosen at run time, for each 2 MiB), or a power of two
    /// from 4K to 4M
    #[arg(long, value_name = "SIZE", default_value = "auto", allow_hyphen_values = true)]
    block: BlockSize,
    /// Replacement policy: which blocks leave local memory first
    #[arg(long, value_enum, default_value = "lru")]
    replacement: Replacement,
    /// How the servers of one tcp:// store are filled: simple (one after the other) or round-robin
    /// (in turn)
    #[arg(long, value_enum, default_value = "simple")]
    allocation: Filling,
    /// Number of servers of a tcp:// store that keep each block: with 2, the program does not notice
    /// the death of one of them, and what was in it is copied again to the others
    #[arg(long, value_name = "N", default_value_t = 1)]
    copies: usize,
    /// Cut each block into K pieces and compute M more, each for another server of a tcp:// store:
    /// any K give the block back, so the program does not notice the death of M servers. Needs
    /// (K+M)/K of the memory of one copy (4+1: 1.25 times) and more requests than copies do
    #[arg(long, value_name = "K+M")]
    parity: Option<Scheme>,
    /// Encrypt and authenticate blocks before they are sent to servers, so that neither they nor the
    /// network can read or change them: auto (unless all servers have loopback addresses), on, or off
    /// (for trusted networks)
    #[arg(long, value_enum, default_value = "auto")]
    seal: Sealing,
    /// What carries connections to servers: auto (memory that both share, with servers on this
    /// machine; TCP with others), or tcp
    #[arg(long, value_enum, default_value = "auto")]
    transport: Carrier,
    /// Disable prefetching
    #[arg(long)]
    no_prefetch: bool,
    /// Do not read the accessed bits of the program's pages. By default they are read while memory
    /// is short, if that is permitted (`hiroma doctor`): the pages to evict are then chosen by when
    /// they were last used
    #[arg(long)]
    pub no_accessed_bits: bool,
    /// Time to wait for a store that does not respond (500ms, 30s, 5m)
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    store_timeout: Duration,
    /// Time that a fault may wait for anything; after it, the program is ended with a message and
    /// exit code 75
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    fault_timeout: Duration,
    /// A process has no pager until it uses this much memory, at most half of the limit (by default
    /// half of the limit or a quarter of --total, but not more than 1G): until then it starts, forks
    /// and touches memory as fast as without `hiroma run`. What it had before is then managed too. 0:
    /// a pager from the start, as with servers, and with fixed blocks
    #[arg(long, value_name = "SIZE")]
    manage_from: Option<Bytes>,
    /// End the program (exit code 75) if locked or pinned memory does not fit the limit; without
    /// this option, the limit is exceeded and a line reports it
    #[arg(long)]
    hard_limit: bool,
    /// With --pool and --copies or --parity: pieces of a block go to members with different values of
    /// this label (`hiroma serve --label rack=r1`). Without it: of rack, else of host, if all members
    /// have that label and not all the same value; else to different hosts
    #[arg(long, value_name = "LABEL", requires = "pool")]
    apart: Option<String>,
    /// Name to which servers count the memory of this program, and of all programs with this name:
    /// for their quotas, and shown by `hiroma pool`. Without it, all programs of a machine are one
    /// tenant. One server of a list can be given another name: tcp://NAME@HOST:PORT
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// File with the shared key, or with this machine's identity (`hiroma pool invite`), for servers
    /// that require one
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Threads that handle faults if several threads of the program fault at the same time: 1 to 4,
    /// or auto (as many as turn out to be fastest)
    #[arg(long, value_name = "N", default_value = "auto")]
    fault_threads: FaultThreads,
    /// Kernel interface: full requires Linux 6.8, fallback Linux 5.7, and auto uses full where it
    /// works
    #[arg(long, value_enum, default_value = "auto")]
    path: KernelPath,
    /// Show a live status line on the terminal; `always` shows it even if standard error is not a
    /// terminal
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    pub progress: Option<progress::When>,
    /// Write all statistics to FILE at the end, as JSON
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Write a report about the run to FILE, as HTML: memory and faults over time, the effect that
    /// more local memory would have had, and where the program waited
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Record every page-out and page-in of the program and of its children in FILE, for `hiroma
    /// sim replay`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics while the program runs: HOST:PORT, or
    /// :PORT for this machine alone. There is no password: whoever reaches the address can read them
    #[arg(long, value_name = "ADDRESS", value_parser = hiroma_metrics::parse_address)]
    pub metrics: Option<SocketAddr>,
    /// Do not print a summary at the end
    #[arg(short, long)]
    pub quiet: bool,
    /// Print what will be used and what could be improved
    #[arg(short, long)]
    pub verbose: bool,
    /// Program to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  hiroma run --local 1G -- sort -S 4G big.txt -o sorted.txt
  hiroma run --local 25% --store compressed,file:/var/tmp -- python3 job.py
  hiroma run --local 1G --store tcp://127.0.0.1:7070 -- redis-server --port 6390
  hiroma run --local 1G --pool 10.0.0.1:7070 --key-file hiroma.key -- ./solver input
  hiroma run --local 512M --progress --stats run.json -- ./solver input
  hiroma run --local 512M --metrics :9468 -- ./solver input
  hiroma run --local 512M --report run.html -- ./solver input
  hiroma run --local 512M --trace trace.bin -- ./solver input && hiroma sim replay trace.bin";

/// Where far memory is if nothing else is said.
const DEFAULT_STORES: &str = "compressed,file:/var/tmp";
/// Where blocks are that a pool has no room for, if nothing else is said.
const BEHIND_POOL: &str = "/var/tmp";
/// A process that uses more has a pager, whatever its limit: from then on `hiroma ctl` changes the
/// limit.
const MANAGE_FROM_MAX: u64 = 1 << 30;
/// Processes without a pager are not counted: so many of them fill the total.
const MANAGE_FROM_PART: u64 = 4;
/// Limits where none are given.
const LOCAL_DEFAULT: SizeSpec = SizeSpec::Percent(50_00);
const TOTAL_DEFAULT: SizeSpec = SizeSpec::Percent(75_00);

/// Where far memory is.
struct Stores {
    specs: Vec<StoreSpec>,
    key_file: Option<PathBuf>,
    domains: Vec<(String, String)>,
    /// The label that these are values of.
    label: Option<String>,
}

#[derive(Clone, Debug)]
struct StoreList(Vec<StoreSpec>);

impl FromStr for StoreList {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        parse_stores(text).map(StoreList)
    }
}

#[derive(Clone, Copy, Debug)]
struct FaultThreads(Option<u32>);

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a number of threads: auto, or 1 to {FAULT_THREADS_MAX}")]
struct FaultThreadsError(String);

impl FromStr for FaultThreads {
    type Err = FaultThreadsError;

    fn from_str(text: &str) -> Result<Self, FaultThreadsError> {
        if text == "auto" {
            return Ok(FaultThreads(None));
        }
        let number =
            text.parse().ok().filter(|number| (1..=FAULT_THREADS_MAX as u32).contains(number));
        number
            .map(|number| FaultThreads(Some(number)))
            .ok_or_else(|| FaultThreadsError(text.to_owned()))
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Replacement {
    Lru,
    Fifo,
}

#[derive(Clone, Copy, ValueEnum)]
enum Filling {
    Simple,
    RoundRobin,
}

#[derive(Clone, Copy, ValueEnum)]
enum Sealing {
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, ValueEnum)]
enum Carrier {
    Auto,
    Tcp,
}

#[derive(Clone, Copy, ValueEnum)]
enum KernelPath {
    Auto,
    Full,
    Fallback,
}

/// A local limit in bytes, of `option`. Refuses one that is too small.
pub fn local_limit(option: &str, spec: SizeSpec) -> Result<Bytes> {
    let whole = Limits::read().whole();
    let limit = spec.of(whole);
    if limit < LOCAL_MIN {
        return Err(refuse(format!(
            "{option} {limit} is too little to work with: give at least {LOCAL_MIN}"
        )));
    }
    if limit > whole {
        show::say(&format!(
            "note: {option} {limit} is more than the {whole} of memory there is here"
        ));
    }
    Ok(limit)
}

/// Limits of one process and of all together, in bytes.
struct LocalLimits {
    process: u64,
    total: u64,
}

impl Args {
    /// The configuration for the pager in the program, and how members are followed that join the
    /// pool later.
    pub fn config(&self) -> Result<(Config, Option<Following>)> {
        let scheme = self.scheme()?;
        if self.apart.is_some() && scheme == Scheme::ONE {
            return Err(refuse(
                "--apart is about several pieces of a block: add --copies or --parity",
            ));
        }
        let Stores { specs: mut stores, key_file, domains, label } = self.stores(scheme)?;
        if let Some(tenant) = &self.tenant {
            name_tenant(&mut stores, tenant)?;
        }
        let following = self.following(label)?;
        let limits = self.limits()?;
        let config = Config {
            local_limit_bytes: limits.process,
            total_limit_bytes: Some(limits.total),
            stores,
            allocation: match self.allocation {
                Filling::Simple => Allocation::Simple,
                Filling::RoundRobin => Allocation::RoundRobin,
            },
            scheme,
            joins: self.pool.is_some(),
            domains,
            seal: match self.seal {
                Sealing::Auto => Seal::Auto,
                Sealing::On => Seal::On,
                Sealing::Off => Seal::Off,
            },
            transport: match self.transport {
                Carrier::Auto => TransportChoice::Auto,
                Carrier::Tcp => TransportChoice::Tcp,
            },
            block: self.block,
            replacement: match self.replacement {
                Replacement::Lru => ReplacementKind::Lru,
                Replacement::Fifo => ReplacementKind::Fifo,
            },
            prefetch: !self.no_prefetch,
            store_timeout: self.store_timeout,
            fault_timeout: self.fault_timeout,
            hard_limit: self.hard_limit,
            fault_threads: self.fault_threads.0,
            manage_from_bytes: self
                .manage_from
                .map_or((limits.total / MANAGE_FROM_PART).min(MANAGE_FROM_MAX), |from| from.0)
                .min(limits.process / 2),
            nursery_bytes: nursery_bytes(),
            key_file: key_file.as_deref().map(absolute).transpose()?,
            path: match self.path {
                KernelPath::Auto => PathChoice::Auto,
                KernelPath::Full => PathChoice::Full,
                KernelPath::Fallback => PathChoice::Fallback,
            },
            arena_bytes: arena_bytes()?,
            ..Config::default()
        };
        Ok((config, following))
    }

    fn limits(&self) -> Result<LocalLimits> {
        let total = self.total.map(|total| local_limit("--total", total)).transpose()?;
        let process = match (self.local, total) {
            (Some(local), _) => local_limit("--local", local)?,
            (None, Some(total)) => total,
            (None, None) => local_limit("--local", LOCAL_DEFAULT)?,
        };
        let Some(total) = total else {
            let usual = TOTAL_DEFAULT.of(Limits::read().whole());
            return Ok(LocalLimits { process: process.0, total: usual.0.max(process.0) });
        };
        Ok(LocalLimits { process: process.0.min(total.0), total: total.0 })
    }

    /// How members are followed that join later.
    fn following(&self, label: Option<String>) -> Result<Option<Following>> {
        let Some(pool) = &self.pool else { return Ok(None) };
        let way = Way::find(pool, self.key_file.as_deref())?;
        Ok(Some(Following { way, label, tenant: self.tenant.clone() }))
    }

    /// Of how many pieces blocks in servers consist.
    fn scheme(&self) -> Result<Scheme> {
        match (self.parity, self.copies) {
            (None, copies) => {
                Scheme::copies(copies).map_err(|error| refuse(format!("--copies {error}")))
            }
            (Some(scheme), 1) => Ok(scheme),
            (Some(scheme), copies) => Err(refuse(format!(
                "--parity {scheme} and --copies {copies}: blocks are either cut or copied; leave one of the two out"
            ))),
        }
    }

    /// The stores, the key of the servers among them, and which of these fail together.
    fn stores(&self, scheme: Scheme) -> Result<Stores> {
        let stores = self.store.as_ref().map(|list| &list.0[..]);
        let Some(pool) = &self.pool else {
            let default =
                parse_stores(DEFAULT_STORES).map_err(|error| refuse(error.to_string()))?;
            let stores = stores.unwrap_or(&default).iter().map(absolute_store);
            let (specs, key_file) = (stores.collect::<Result<_>>()?, self.key_file.clone());
            return Ok(Stores { specs, key_file, domains: Vec::new(), label: None });
        };
        let specs =
            stores.map(|specs| specs.iter().map(absolute_store).collect::<Result<Vec<_>>>());
        let specs = specs.transpose()?;
        if specs.iter().flatten().any(|store| matches!(store, StoreSpec::Tcp { .. })) {
            return Err(refuse(
                "--pool and a tcp:// store: the pool's members are the servers; leave one of the two out",
            ));
        }
        let way = Way::find(pool, self.key_file.as_deref())?;
        let members = way.members()?;
        let label = match &self.apart {
            Some(label) => Some(label.clone()),
            None if scheme == Scheme::ONE => None,
            None => common_label(&members),
        };
        if let (Some(label), None, true) = (&label, &self.apart, self.verbose) {
            show::say(&format!("pieces of a block go to members with different values of {label}"));
        }
        let servers = servers_of(&members, label.as_deref(), SERVERS_MAX)?;
        if scheme == Scheme::ONE && servers.len() > 1 && !self.quiet {
            show::say(
                "note: each block is in one member of the pool, and the program ends if a member dies that has some that it needs: --copies 2 survives that, or --parity 4+1",
            );
        }
        let specs = with_pool(specs, servers, is_usable(Path::new(BEHIND_POOL)));
        let domains = match &label {
            Some(label) => domains_of(&members, label)?,
            None => Vec::new(),
        };
        Ok(Stores { specs, key_file: way.key_file, domains, label })
    }
}

/// The stores with those of a pool: before the disk, which takes what the members have no room for.
/// If the user has named no stores, that is `/var/tmp`, where files can be made there.
fn with_pool(
    stores: Option<Vec<StoreSpec>>,
    servers: Vec<String>,
    has_disk: bool,
) -> Vec<StoreSpec> {
    let disk = StoreSpec::File { dir: BEHIND_POOL.into(), capacity: None };
    let mut stores = stores.unwrap_or_else(|| if has_disk { vec![disk] } else { Vec::new() });
    let is_disk = |store: &StoreSpec| matches!(store, StoreSpec::File { .. });
    let at = stores.iter().position(is_disk).unwrap_or(stores.len());
    stores.insert(at, StoreSpec::Tcp { servers });
    stores
}

fn is_usable(dir: &Path) -> bool {
    tempfile::tempfile_in(dir).is_ok()
}

/// Names the tenant to all servers that are not given another name.
fn name_tenant(stores: &mut [StoreSpec], tenant: &str) -> Result<()> {
    check_tenant(tenant).map_err(|error| refuse(format!("--tenant {error}")))?;
    let mut named = false;
    for store in stores {
        let StoreSpec::Tcp { servers } = store else { continue };
        named = true;
        for server in servers.iter_mut().filter(|server| !server.contains('@')) {
            *server = format!("{tenant}@{server}");
        }
    }
    if named {
        return Ok(());
    }
    Err(refuse(format!(
        "--tenant {tenant} is about servers, and none is named: add tcp://HOST:PORT to --store or use --pool, or leave --tenant out"
    )))
}

/// Where all memory that could be written has to fit (`vm.overcommit_memory=2`), no process asks for
/// gigabytes that it does not use.
fn nursery_bytes() -> u64 {
    const IF_COUNTED: u64 = 64 << 20;
    let counts = crate::rights::sysctl("vm/overcommit_memory").as_deref() == Some("2");
    if counts { IF_COUNTED } else { Config::default().nursery_bytes }
}

/// Makes a path absolute: the program and its children may have another working directory when they
/// read the configuration.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| refuse(format!("{}: {error}", path.display())))
}

fn absolute_store(store: &StoreSpec) -> Result<StoreSpec> {
    Ok(match store {
        StoreSpec::File { dir, capacity } => {
            StoreSpec::File { dir: absolute(dir)?, capacity: *capacity }
        }
        StoreSpec::Redis(address) => StoreSpec::Redis(address.clone().with_files(absolute)?),
        other => other.clone(),
    })
}

/// Address space that is reserved beside the arena: staging, tables, the pager's heap.
const BESIDE_BYTES: u64 = 256 << 30;

/// The usual size of the reservation, or half of the address space that `ulimit -v` leaves.
fn arena_bytes() -> Result<u64> {
    let usual = Config::default().arena_bytes;
    let Some(allowed) = getrlimit(Resource::As).current else { return Ok(usual) };
    let half = allowed.saturating_sub(BESIDE_BYTES) / 2 / EXTENT as u64 * EXTENT as u64;
    if half < 1 << 30 {
        return Err(refuse(format!(
            "the address space is limited to {} (ulimit -v), and managed memory reserves more than that without using it: ulimit -v unlimited, and limit memory with --local or a cgroup",
            Bytes(allowed)
        )));
    }
    Ok(usual.min(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_is_named_to_every_server() {
        let named = |text: &str, tenant: &str| -> Result<String> {
            let mut stores = parse_stores(text)?;
            name_tenant(&mut stores, tenant)?;
            Ok(stores.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        };
        assert_eq!(
            named("compressed,tcp://a:1,bob@b:2", "alice").unwrap(),
            "compressed,tcp://alice@a:1,bob@b:2"
        );
        assert!(named("compressed", "alice").unwrap_err().to_string().contains("about servers"));
        assert!(named("tcp://a:1", "a b").unwrap_err().to_string().contains("letters, digits"));
    }

    #[test]
    fn disk_takes_what_the_pool_has_no_room_for() {
        let all = |text: Option<&str>, has_disk| {
            let stores = text.map(|text| parse_stores(text).unwrap());
            let all = with_pool(stores, vec!["a:1".to_owned()], has_disk);
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(all(None, true), "tcp://a:1 file:/var/tmp");
        assert_eq!(all(None, false), "tcp://a:1");
        assert_eq!(all(Some("compressed"), true), "compressed tcp://a:1");
        let given = "compressed:1M,file:/a:1G,file:/b";
        assert_eq!(
            all(Some(given), true),
            "compressed:1048576 tcp://a:1 file:/a:1073741824 file:/b"
        );
    }

    #[test]
    fn relative_paths_become_absolute() {
        let store =
            absolute_store(&StoreSpec::File { dir: "data".into(), capacity: None }).unwrap();
        assert!(
            matches!(store, StoreSpec::File { dir, .. } if dir.is_absolute() && dir.ends_with("data"))
        );
    }
}
