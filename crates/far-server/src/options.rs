//! The options of a server, and errors in them.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hiroma_far_wire::{CHUNK, Key, KeyError};
use hiroma_sys::host::memory;
use hiroma_units::Bytes;
use rustix::process::{Resource, getrlimit};

use crate::lend::Elastic;
use crate::registry::{LEASE_MIN, SILENCE};
use crate::rings::RINGS_MAX;
use crate::spill::Spill;
use crate::tenant::Quotas;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 4096;
/// Descriptors that are not for connections: the file for moved memory, the pool's and the metrics'
/// sockets, files of /proc.
const SPARE_DESCRIPTORS: u64 = 64;

/// Receives one line about an event, without a line end.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Answers a query, in JSON both.
pub type Answers = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// The options of a server.
#[derive(Clone)]
pub struct ServeOptions {
    /// `HOST:PORT`; port 0 chooses any. Any address except this machine's loopback needs a key.
    pub listen: String,
    /// Memory to lend, rounded down to whole chunks of 2 MiB.
    pub memory_bytes: u64,
    /// Lends less than that while its machine needs the memory; none: always the same.
    pub elastic: Option<Elastic>,
    /// File with the shared key.
    pub key_file: Option<PathBuf>,
    /// How long a session is kept after its last connection was closed without a `Bye`: its client
    /// has been killed, or connects again.
    pub lease: Duration,
    /// How long it is kept while nothing arrives on any connection: the client's machine is gone, or
    /// the network between fails for a while. At least `lease`.
    pub silence: Duration,
    /// Connections at most. A limit of descriptors (`ulimit -n`) may allow fewer.
    pub connections_max: usize,
    /// What tenants may have.
    pub quotas: Quotas,
    /// Answers queries about server and pool; none: they are refused.
    pub answers: Option<Answers>,
    /// Receives messages about clients that connect and disconnect.
    pub log: Log,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            listen: "127.0.0.1:7070".to_owned(),
            memory_bytes: 1 << 30,
            elastic: None,
            key_file: None,
            lease: LEASE_MIN,
            silence: SILENCE,
            connections_max: CONNECTIONS_MAX,
            quotas: Quotas::default(),
            answers: None,
            log: Arc::new(|_| {}),
        }
    }
}

/// Why a server does not start. Every message states what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address is invalid.
    #[error(
        "`{listen}` is not an address to listen on: write HOST:PORT, as in 127.0.0.1:7070 ({source})"
    )]
    Address { listen: String, source: io::Error },
    /// Listening beyond this machine without a key.
    #[error(
        "{listen} can be reached from other machines, and anyone who can connect could read and write the memory: make a key (head -c 32 /dev/urandom | base64 > hiroma.key), give it to server and clients by --key-file, or listen on 127.0.0.1"
    )]
    KeyNeeded { listen: String },
    /// The key file cannot be read.
    #[error("cannot read the key file {path}: {source}; make one with `head -c 32 /dev/urandom | base64 > {path}`", path = path.display())]
    KeyFile { path: PathBuf, source: io::Error },
    /// The key is not valid.
    #[error("{path}: {source}", path = path.display())]
    Key { path: PathBuf, source: KeyError },
    /// Another program listens there.
    #[error(
        "{listen} is in use by another program: stop that one (`ss -ltnp` shows it) or choose another port with --listen"
    )]
    InUse { listen: String },
    /// Listening failed for another reason.
    #[error("cannot listen on {listen}: {source}")]
    Listen { listen: String, source: io::Error },
    /// More than the machine has.
    #[error(
        "--memory {asked} is more than this machine has ({machine}): lend less, and leave some for the system"
    )]
    TooMuch { asked: Bytes, machine: Bytes },
    /// Less than a chunk.
    #[error("--memory {asked} is too little: memory is lent in chunks of {chunk}", chunk = Bytes(CHUNK as u64))]
    TooLittle { asked: Bytes },
    /// Address space could not be reserved.
    #[error(
        "cannot reserve {memory} of address space: {source}; is there a limit on this shell (`ulimit -v`)?"
    )]
    Pool { memory: Bytes, source: io::Error },
    /// The directory for what there is no memory for is not usable.
    #[error("--spill {dir}: cannot make a file there: {source}; choose a directory on a disk with room", dir = dir.display())]
    Spill { dir: PathBuf, source: io::Error },
    /// A thread could not be started.
    #[error("cannot start a thread: {source}; is there a limit on processes (`ulimit -u`)?")]
    Thread { source: io::Error },
}

/// Reads a key file.
pub fn load_key(path: &Path) -> Result<Key, ServerError> {
    let content = std::fs::read(path)
        .map_err(|source| ServerError::KeyFile { path: path.to_owned(), source })?;
    Key::from_file_content(&content)
        .map_err(|source| ServerError::Key { path: path.to_owned(), source })
}

impl ServeOptions {
    pub(crate) fn load_key(&self) -> Result<Option<Key>, ServerError> {
        self.key_file.as_deref().map(load_key).transpose()
    }

    pub(crate) fn open_spill(&self) -> Result<Option<Spill>, ServerError> {
        let spill = self.elastic.as_ref().and_then(|elastic| elastic.spill.as_ref());
        let Some((dir, most)) = spill else { return Ok(None) };
        let opened = Spill::open(dir, *most);
        opened.map(Some).map_err(|source| ServerError::Spill { dir: dir.clone(), source })
    }

    /// The number of connections that are accepted, and how many of them may go on in shared memory.
    pub(crate) fn connections_max(&self) -> (usize, usize) {
        let (connections, rings) = connections_within(getrlimit(Resource::Nofile).current);
        (self.connections_max.min(connections), rings)
    }

    /// The number of chunks to lend.
    pub(crate) fn check_memory(&self) -> Result<usize, ServerError> {
        let (asked, machine) = (Bytes(self.memory_bytes), memory::machine());
        if asked.0 < CHUNK as u64 {
            return Err(ServerError::TooLittle { asked });
        }
        if asked.0 > machine.0 {
            return Err(ServerError::TooMuch { asked, machine });
        }
        Ok((asked.0 / CHUNK as u64) as usize)
    }

    pub(crate) fn listen(&self, has_key: bool) -> Result<TcpListener, ServerError> {
        let listen = self.listen.clone();
        let addrs = match self.listen.to_socket_addrs() {
            Ok(addrs) => addrs.collect::<Vec<_>>(),
            Err(source) => return Err(ServerError::Address { listen, source }),
        };
        if !has_key && !addrs.iter().all(|addr| addr.ip().is_loopback()) {
            return Err(ServerError::KeyNeeded { listen });
        }
        TcpListener::bind(&addrs[..]).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ServerError::InUse { listen },
            _ => ServerError::Listen { listen, source },
        })
    }
}

/// Connections for which there are descriptors, one for each, and one more for each that goes on in
/// shared memory; there is always one connection.
fn connections_within(descriptors: Option<u64>) -> (usize, usize) {
    let left = descriptors.map(|limit| limit.saturating_sub(SPARE_DESCRIPTORS));
    let left = left.and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
    let rings = RINGS_MAX.min(left / 4);
    ((left - rings).clamp(1, CONNECTIONS_MAX), rings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve;

    fn refused(options: ServeOptions) -> String {
        serve(options).err().expect("must be refused").to_string()
    }

    #[test]
    fn invalid_options_are_refused_with_advice() {
        let options = ServeOptions { listen: "127.0.0.1:0".into(), ..ServeOptions::default() };
        let text = refused(ServeOptions { memory_bytes: 1 << 60, ..options.clone() });
        assert!(text.contains("more than this machine has"), "{text}");
        let text = refused(ServeOptions { memory_bytes: 4096, ..options.clone() });
        assert!(text.contains("chunks of 2MiB"), "{text}");
        let text = refused(ServeOptions { listen: "7070".into(), ..options.clone() });
        assert!(text.contains("write HOST:PORT"), "{text}");
        let text = refused(ServeOptions { key_file: Some("/does/not/exist".into()), ..options });
        assert!(text.contains("/dev/urandom"), "{text}");
    }

    #[test]
    fn key_is_required_beyond_loopback() {
        let options = ServeOptions { listen: "0.0.0.0:0".into(), ..ServeOptions::default() };
        let text = refused(options.clone());
        assert!(text.contains("--key-file"), "{text}");
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, "short").unwrap();
        let text = refused(ServeOptions { key_file: Some(key.clone()), ..options.clone() });
        assert!(text.contains("only 5 bytes"), "{text}");
        std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
        serve(ServeOptions { key_file: Some(key), ..options }).unwrap().stop();
    }

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        let cases = [
            (Some(0), (1, 0)),
            (Some(1024), (720, 240)),
            (Some(1 << 40), (4096, 256)),
            (None, (4096, 256)),
        ];
        for (descriptors, connections) in cases {
            assert_eq!(connections_within(descriptors), connections, "{descriptors:?}");
        }
        let options = ServeOptions { connections_max: 3, ..ServeOptions::default() };
        assert_eq!(options.connections_max().0, 3);
    }

    #[test]
    fn a_port_in_use_is_named() {
        let first = serve(ServeOptions { listen: "127.0.0.1:0".into(), ..ServeOptions::default() })
            .unwrap();
        let listen = first.local_addr().to_string();
        let text = refused(ServeOptions { listen: listen.clone(), ..ServeOptions::default() });
        assert!(text.contains(&listen) && text.contains("in use"), "{text}");
    }
}
