//! The memory server: lends memory to clients over TCP, or in memory that both share, in chunks of
//! 2 MiB on huge pages.
//!
//! [`serve`] starts it; every connection has its own thread. A client's memory belongs to its
//! *session*, which is freed when the client sends `Bye`, or when its *lease* has run out: that is
//! the time since the last sign of life on any connection. While the client's process exists, its
//! kernel gives one each second, whether the process runs or is stopped.

mod activity;
mod chunk;
mod connection;
mod ending;
mod lend;
mod options;
mod pool;
mod registry;
mod rings;
mod seat;
mod session;
mod spill;
mod stream;
mod tenant;
mod turns;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hiroma_far_wire::{CHUNK, Key};
use hiroma_units::Bytes;

pub use activity::{Activity, Refused, RequestKind, TimesTaken};
pub use lend::{Elastic, Gauge, Seen};
pub use options::{Answers, Log, ServeOptions, ServerError, load_key};
pub use registry::{LEASE_MIN, SILENCE, ServerStats, SessionStats, TenantStats};
pub use tenant::Quotas;

use lend::{Given, Lender};
use registry::{Guest, Registry};
use rings::Rings;

/// Maximum number of connections that are not authenticated.
const STRANGERS_MAX: usize = 64;

/// State that all threads of one server share.
pub(crate) struct Server {
    pub registry: Registry,
    pub activity: Activity,
    pub key: Option<Key>,
    pub log: Log,
    pub answers: Option<Answers>,
    pub stopping: AtomicBool,
    pub given: Given,
    pub connections_max: usize,
    pub rings: Rings,
}

/// A running server. It stops when this is dropped.
pub struct ServerHandle {
    server: Arc<Server>,
    local_addr: SocketAddr,
    accepting: Mutex<Option<JoinHandle<()>>>,
    tending: Mutex<Option<JoinHandle<()>>>,
    readying: Mutex<Option<JoinHandle<()>>>,
    lending: Mutex<Option<JoinHandle<()>>>,
}

/// Starts a server, which runs in its own threads.
pub fn serve(options: ServeOptions) -> Result<ServerHandle, ServerError> {
    let key = options.load_key()?;
    let chunks = options.check_memory()?;
    let listener = options.listen(key.is_some())?;
    let local_addr = listener
        .local_addr()
        .map_err(|source| ServerError::Listen { listen: options.listen.clone(), source })?;
    let spill = options.open_spill()?;
    let (connections_max, rings_max) = options.connections_max();
    let registry =
        Registry::new(chunks, (options.lease, options.silence), options.quotas, spill)
            .map_err(|source| ServerError::Pool { memory: Bytes(options.memory_bytes), source })?;
    let server = Arc::new(Server {
        registry,
        activity: Activity::default(),
        key,
        log: options.log,
        answers: options.answers,
        stopping: AtomicBool::new(false),
        given: Given::default(),
        connections_max,
        rings: Rings::new(rings_max),
    });
    let lender = options.elastic.map(Lender::new).map(|mut lender| {
        lender.look(&server);
        lender
    });
    let lent = (server.registry.pool().usage().total * CHUNK) as u64;
    (server.log)(&format!("lending {} on {local_addr}", Bytes(lent)));
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|source| ServerError::Thread { source })
    };
    let acceptor = Arc::clone(&server);
    let accepting = spawn("hiroma-accept", Box::new(move || accept(&acceptor, &listener)))?;
    let tender = Arc::clone(&server);
    let tending = spawn("hiroma-tend", Box::new(move || tender.registry.tend(&tender.log)))?;
    let readier = Arc::clone(&server);
    let readying = spawn(
        "hiroma-ready",
        Box::new(move || readier.registry.pool().keep_ready(&readier.stopping)),
    )?;
    let lending = lender.map(|lender| {
        let server = Arc::clone(&server);
        spawn("hiroma-lend", Box::new(move || lender.run(&server)))
    });
    let lending = Mutex::new(lending.transpose()?);
    let [accepting, tending, readying] =
        [accepting, tending, readying].map(|thread| Mutex::new(Some(thread)));
    Ok(ServerHandle { server, local_addr, accepting, tending, readying, lending })
}

impl ServerHandle {
    /// The address on which it listens; shows the port when port 0 was requested.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Usage of the server and of each client.
    pub fn stats(&self) -> ServerStats {
        self.server.registry.stats()
    }

    /// What it has done since its start.
    pub fn activity(&self) -> &Activity {
        &self.server.activity
    }

    /// Memory that it has given back to its machine so far.
    pub fn given_back_bytes(&self) -> u64 {
        self.server.given.bytes.load(Ordering::Relaxed)
    }

    /// Takes no new blocks from now on, or (`false`) takes them again. What is there can be read,
    /// written and freed as before.
    pub fn set_draining(&self, draining: bool) {
        self.server.registry.pool().set_closed(draining);
    }

    /// Whether it takes no new blocks, because it is to be emptied.
    pub fn is_draining(&self) -> bool {
        self.server.registry.pool().is_closed()
    }

    /// Ends every connection, frees the memory, and returns when that is done. May be called more
    /// than once.
    pub fn stop(&self) {
        if !self.server.stopping.swap(true, Ordering::SeqCst) {
            // The acceptor blocks in `accept`; a connection of our own wakes it.
            drop(TcpStream::connect_timeout(&self.wake_addr(), Duration::from_secs(1)));
        }
        self.server.registry.stop();
        self.server.registry.pool().wake();
        self.wait();
        self.server.registry.wait_until_idle();
    }

    /// Waits until the server is stopped.
    pub fn wait(&self) {
        for thread in [&self.accepting, &self.tending, &self.readying, &self.lending] {
            if let Some(thread) = thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = thread.join();
            }
        }
    }

    fn wake_addr(&self) -> SocketAddr {
        let mut addr = self.local_addr;
        if addr.ip().is_unspecified() {
            addr.set_ip(if addr.is_ipv4() {
                std::net::Ipv4Addr::LOCALHOST.into()
            } else {
                std::net::Ipv6Addr::LOCALHOST.into()
            });
        }
        addr
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(server: &Arc<Server>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        if server.stopping.load(Ordering::SeqCst) {
            return;
        }
        match accepted {
            Ok((stream, peer)) => start_connection(server, stream, peer),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                ) => {}
            Err(error) => {
                // Out of descriptors or memory: existing connections continue; new ones have to
                // wait.
                (server.log)(&format!("cannot accept a connection: {error}; trying again"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn start_connection(server: &Arc<Server>, stream: TcpStream, peer: SocketAddr) {
    let stream = Arc::new(stream);
    let socket = Arc::clone(&stream);
    let Some(guest) = Guest::admit(server, socket, server.connections_max, STRANGERS_MAX) else {
        server.activity.refused(Refused::Connections);
        (server.log)(&format!("turned {peer} away: too many connections"));
        server.registry.parting.turn_away(stream);
        return;
    };
    let (shared, refused) = (Arc::clone(server), Arc::clone(&stream));
    let started = std::thread::Builder::new().name("hiroma-conn".to_owned()).spawn(move || {
        connection::run(&shared, stream, peer, &guest);
    });
    if let Err(error) = started {
        (server.log)(&format!("turned {peer} away: no thread for it: {error}"));
        server.registry.parting.turn_away(refused);
    }
}
