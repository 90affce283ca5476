//! The pager's configuration, and its text forms (options, and the environment of a program under
//! `hiroma run`).

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use hiroma_policy::redundancy::Scheme;
use hiroma_units::{BlockId, Bytes, EXTENT, PAGE, ParseSizeError, SizeSpec};
use serde::{Deserialize, Serialize};

pub use crate::store::redis::address::{RedisAddress, RedisAddressError};
use crate::waking::Costs;

/// The smallest local limit with which a program can work: a few extents in flight must fit.
pub const LOCAL_MIN: Bytes = Bytes(16 << 20);

/// Environment variable that carries a [`Config`] into a program (JSON).
pub const CONFIG_ENV: &str = "HIROMA_CONFIG";

/// Name of the file below `control_dir` in which `hiroma run --pool` lists the members that take
/// blocks now: `[TENANT@]HOST:PORT` in each line, and, after a space, what fails together with it.
pub const MEMBERS_FILE: &str = "pool-members";

/// In the control directory: the list of the programs that processes of the run have executed.
pub const EXECUTED_FILE: &str = "executed";

/// Largest arena: the range of block numbers.
pub const ARENA_BYTES_MAX: u64 = BlockId::PAGES_MAX * PAGE as u64;

/// Maximum number of threads that answer faults.
pub const FAULT_THREADS_MAX: usize = 4;

/// The configuration of a pager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Maximum bytes of local memory.
    pub local_limit_bytes: u64,
    /// Stores, in the order in which they are filled; in their text form.
    pub stores: Vec<StoreSpec>,
    /// How servers of one store are filled.
    pub allocation: Allocation,
    /// Of how many pieces in servers each block consists; with one, servers are one store that does
    /// without none.
    #[serde(with = "scheme_text", default = "one_copy")]
    pub scheme: Scheme,
    /// Members that join the pool later are used.
    #[serde(default)]
    pub joins: bool,
    /// Which servers fail together: the address of one, and the name of what they share, for
    /// example a rack. One that is not listed fails with others on its host.
    #[serde(default)]
    pub domains: Vec<(String, String)>,
    /// Whether blocks are sealed before they leave this machine.
    #[serde(default)]
    pub seal: Seal,
    /// What may carry connections to servers.
    #[serde(default)]
    pub transport: TransportChoice,
    /// Transfer size.
    pub block: BlockSize,
    /// Which blocks are evicted first.
    pub replacement: ReplacementKind,
    /// Whether to prefetch.
    pub prefetch: bool,
    /// How long to wait for an unreachable store.
    pub store_timeout: Duration,
    /// Shared key for servers that require one.
    pub key_file: Option<PathBuf>,
    /// Which kernel interface to use; `Auto` selects the best one that the kernel has.
    pub path: PathChoice,
    /// Directory in which each process keeps its control page (`PID.hiroma`); none: no control, no
    /// live statistics.
    pub control_dir: Option<PathBuf>,
    /// Whether each process also has a ring of its page-outs and page-ins there ([`crate::trace`]).
    #[serde(default)]
    pub trace: bool,
    /// Whether the pager's threads may be a process of their own (only if `malloc` is ours too: see
    /// `hiroma_sys::helper`).
    #[serde(default)]
    pub helper: bool,
    /// The process that watches the control page and shows its messages to the user (`hiroma run`).
    #[serde(default)]
    pub runner: Option<u32>,
    /// The run has begun with all its servers: this process goes on without those that are gone
    /// now, as the others do. Set where the process begins.
    #[serde(skip)]
    pub has_begun: bool,
    /// How long a fault may wait before the program is ended with a message.
    #[serde(default = "fault_timeout")]
    pub fault_timeout: Duration,
    /// Maximum bytes of local memory of all processes of the run together: `hiroma run` divides them by
    /// changing their limits. None: each has its own limit.
    #[serde(default)]
    pub total_limit_bytes: Option<u64>,
    /// Whether the program is ended if unevictable memory does not fit the limit; otherwise the
    /// limit yields.
    #[serde(default)]
    pub hard_limit: bool,
    /// Number of threads that answer faults while several threads of the program fault at the same
    /// time; none: as many as prove to be faster.
    #[serde(default)]
    pub fault_threads: Option<u32>,
    /// What wakeups cost on this machine, for estimates of how long faults wait; none: not included
    /// in the estimates.
    #[serde(default)]
    pub waking: Option<Costs>,
    /// A process has no pager until it uses this much memory ([`crate::nursery`]); 0: from its start.
    #[serde(default)]
    pub manage_from_bytes: u64,
    /// Size of the nursery. Where the kernel counts all memory that could be written
    /// (`vm.overcommit_memory=2`), it counts this for each process, and again for each fork.
    #[serde(default = "nursery_bytes")]
    pub nursery_bytes: u64,
    /// Addresses of servers, resolved at the start.
    #[serde(skip)]
    pub resolved: Vec<(String, Vec<SocketAddr>)>,
    /// Address space to reserve for managed memory; at most [`ARENA_BYTES_MAX`].
    pub arena_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            local_limit_bytes: 1 << 30,
            total_limit_bytes: None,
            stores: vec![
                StoreSpec::Compressed { capacity: None },
                StoreSpec::File { dir: PathBuf::from("/var/tmp"), capacity: None },
            ],
            allocation: Allocation::Simple,
            scheme: Scheme::ONE,
            joins: false,
            domains: Vec::new(),
            seal: Seal::Auto,
            transport: TransportChoice::Auto,
            block: BlockSize::Auto,
            replacement: ReplacementKind::Lru,
            prefetch: true,
            store_timeout: Duration::from_secs(30),
            key_file: None,
            path: PathChoice::Auto,
            control_dir: None,
            trace: false,
            helper: false,
            runner: None,
            has_begun: false,
            fault_timeout: fault_timeout(),
            hard_limit: false,
            fault_threads: None,
            waking: None,
            manage_from_bytes: 0,
            nursery_bytes: nursery_bytes(),
            resolved: Vec::new(),
            arena_bytes: ARENA_BYTES_MAX,
        }
    }
}

fn one_copy() -> Scheme {
    Scheme::ONE
}

mod scheme_text {
    use hiroma_policy::redundancy::Scheme;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(scheme: &Scheme, serializer: S) -> Result<S::Ok, S::Error> {
        scheme.parts().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scheme, D::Error> {
        match <(usize, usize)>::deserialize(deserializer)? {
            (1, 0) => Ok(Scheme::ONE),
            (data, parity) => format!("{data}+{parity}").parse().map_err(D::Error::custom),
        }
    }
}

fn nursery_bytes() -> u64 {
    4 << 30
}

fn fault_timeout() -> Duration {
    Duration::from_secs(30)
}

/// How blocks are spread over the servers of one store (the paper on remote swap, section 4 (2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Allocation {
    /// Fill one server after the other.
    Simple,
    /// Take the servers in turn, 2 MiB at a time.
    RoundRobin,
}

/// What may carry connections to servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportChoice {
    /// Memory that both share, with servers on this machine; TCP with others.
    #[default]
    Auto,
    /// TCP alone.
    Tcp,
}

/// Whether blocks in servers are sealed: encrypted and authenticated ([`crate::store::sealed`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seal {
    /// Unless all servers have addresses of this machine (127.0.0.0/8, ::1).
    #[default]
    Auto,
    On,
    Off,
}

/// Replacement policy (the paper on remote swap, sections 4 (5) and 4 (6)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplacementKind {
    Lru,
    Fifo,
}

/// Kernel interface for moving pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathChoice {
    Auto,
    /// `UFFDIO_MOVE` (Linux 6.8).
    Full,
    /// Write-protect, copy, `MADV_DONTNEED` (Linux 5.7).
    Fallback,
}

/// Transfer size: chosen per extent while running, or fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockSize {
    Auto,
    /// A power of two from 4 KiB to 4 MiB.
    Fixed(u32),
}

/// One store as the user names it: `compressed`, `compressed:4G`, `file:/var/tmp`,
/// `file:/var/tmp:20G`, `tcp://HOST:PORT,HOST:PORT`,
/// `redis://[USER:PASSWORD@]HOST[:PORT][/DB][?size=SIZE&ttl=TIME&password-file=FILE]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum StoreSpec {
    /// Compressed memory of this machine; `None`: as much as the local limit, but at most a quarter
    /// of the machine.
    Compressed { capacity: Option<Bytes> },
    /// One unlinked file in `dir`; `None`: as much as the file system has free, less a twentieth.
    File { dir: PathBuf, capacity: Option<Bytes> },
    /// Memory servers.
    Tcp { servers: Vec<String> },
    /// A Redis or Valkey server.
    Redis(RedisAddress),
}

impl StoreSpec {
    /// The text form for messages: without passwords.
    pub fn shown(&self) -> String {
        match self {
            StoreSpec::Redis(address) => address.shown(),
            other => other.to_string(),
        }
    }
}

/// Why an option is invalid. The message says what is valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error(transparent)]
    Size(#[from] ParseSizeError),
    #[error(
        "`{0}` is not a store: use compressed[:SIZE], file:DIR[:SIZE], tcp://HOST:PORT[,HOST:PORT...] or redis://HOST[:PORT], several joined by commas"
    )]
    Store(String),
    #[error(transparent)]
    Redis(#[from] RedisAddressError),
    #[error("`{0}` is not a server address: write HOST:PORT, as in tcp://10.0.0.2:7070")]
    Server(String),
    #[error("`{0}` is not a block size: use auto, or a power of two from 4K to 4M")]
    Block(String),
}

/// Parses a list of stores in the syntax of `--store`.
pub fn parse_stores(text: &str) -> Result<Vec<StoreSpec>, ConfigError> {
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(',') {
        let starts_store = part == "compressed"
            || part.starts_with("compressed:")
            || part.starts_with("file:")
            || part.contains("://");
        match parts.last_mut() {
            Some(previous) if !starts_store && previous.starts_with("tcp://") => {
                previous.push(',');
                previous.push_str(part);
            }
            _ => parts.push(part.to_owned()),
        }
    }
    parts.iter().map(|part| part.parse()).collect()
}

impl FromStr for StoreSpec {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let size = |text: &str| -> Result<Bytes, ConfigError> {
            let bytes: Bytes = text.parse()?;
            if bytes.0 == 0 {
                Err(ParseSizeError::NotPositive(text.to_owned()).into())
            } else {
                Ok(bytes)
            }
        };
        if text == "compressed" {
            return Ok(StoreSpec::Compressed { capacity: None });
        }
        if let Some(capacity) = text.strip_prefix("compressed:") {
            return Ok(StoreSpec::Compressed { capacity: Some(size(capacity)?) });
        }
        if let Some(rest) = text.strip_prefix("file:") {
            let (dir, capacity) = match rest.rsplit_once(':') {
                Some((dir, capacity)) => (dir, Some(size(capacity)?)),
                None => (rest, None),
            };
            if dir.is_empty() {
                return Err(ConfigError::Store(text.to_owned()));
            }
            return Ok(StoreSpec::File { dir: PathBuf::from(dir), capacity });
        }
        if RedisAddress::is_meant(text) {
            return Ok(StoreSpec::Redis(text.parse()?));
        }
        let Some(servers) = text.strip_prefix("tcp://") else {
            return Err(ConfigError::Store(text.to_owned()));
        };
        let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
        for server in &servers {
            let port = server
                .rsplit_once(':')
                .filter(|(host, _)| !host.is_empty())
                .and_then(|(_, port)| port.parse::<u16>().ok());
            if port.is_none_or(|port| port == 0) {
                return Err(ConfigError::Server(server.clone()));
            }
        }
        Ok(StoreSpec::Tcp { servers })
    }
}

impl TryFrom<String> for StoreSpec {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Self, ConfigError> {
        text.parse()
    }
}

impl From<StoreSpec> for String {
    fn from(spec: StoreSpec) -> String {
        spec.to_string()
    }
}

impl fmt::Display for StoreSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, capacity) = match self {
            StoreSpec::Compressed { capacity } => ("compressed".to_owned(), capacity),
            StoreSpec::File { dir, capacity } => (format!("file:{}", dir.display()), capacity),
            StoreSpec::Tcp { servers } => return write!(f, "tcp://{}", servers.join(",")),
            StoreSpec::Redis(address) => return address.fmt(f),
        };
        match capacity {
            Some(bytes) => write!(f, "{name}:{}", bytes.0),
            None => f.write_str(&name),
        }
    }
}

impl FromStr for BlockSize {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        if text == "auto" {
            return Ok(BlockSize::Auto);
        }
        let bytes: Bytes = text.parse()?;
        let fits =
            bytes.0.is_power_of_two() && bytes.0 >= PAGE as u64 && bytes.0 <= 2 * EXTENT as u64;
        if fits {
            Ok(BlockSize::Fixed(bytes.0 as u32))
        } else {
            Err(ConfigError::Block(text.to_owned()))
        }
    }
}

/// Parses a local limit; percentages are of the machine's memory.
pub fn parse_local(text: &str, machine: Bytes) -> Result<Bytes, ConfigError> {
    let spec: SizeSpec = text.parse()?;
    Ok(spec.of(machine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_list_groups_servers_of_one_store() {
        let stores = parse_stores("compressed:1G,tcp://a:1,b:2,file:/var/tmp").unwrap();
        assert_eq!(
            stores,
            vec![
                StoreSpec::Compressed { capacity: Some(Bytes(1 << 30)) },
                StoreSpec::Tcp { servers: vec!["a:1".into(), "b:2".into()] },
                StoreSpec::File { dir: "/var/tmp".into(), capacity: None },
            ]
        );
    }

    #[test]
    fn store_specification_round_trips() {
        for text in [
            "compressed",
            "compressed:1073741824",
            "file:/var/tmp",
            "file:/x:4096",
            "tcp://a:1,b:2",
            "redis://a:6379/0",
            "redis://u:p%2C@a:6380/3?size=4096&ttl=5000ms",
        ] {
            assert_eq!(text.parse::<StoreSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_stores_are_refused() {
        for text in [
            "",
            "memory",
            "file:",
            "tcp://",
            "tcp://host",
            "tcp://host:0",
            "tcp://host:99999",
            "compressed:0",
            "compressed:-1",
            "compressed:1Q",
        ] {
            assert!(parse_stores(text).is_err(), "{text}");
        }
        for text in ["3K", "8M", "2K", "x"] {
            assert!(text.parse::<BlockSize>().is_err(), "{text}");
        }
    }
}
