//! A member over UDP: a thread for datagrams and timers, and one that looks for members while none
//! is known.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hiroma_far_wire::{Key, VERSIONS};
use hiroma_sys::sockets;

use crate::ask::{AskError, ask};
use crate::etcd::{RENEW_EVERY, Registration};
use crate::guard::Refusal;
use crate::node::{Event, Node, Settings};
use crate::report::{Condition, Id, LabelError, Report, check_name};
use crate::sources::{Discovery, resolve};
use crate::view::{Answer, Health, MemberView, Request};

/// How long one member is waited for.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// How often members are looked for while none is known, and while some are.
const SEEK_ALONE: Duration = Duration::from_secs(1);
const SEEK: Duration = Duration::from_secs(30);
/// Members up to which another one is asked for all that it knows each [`SEEK`]; where there are
/// more, so much more rarely, because the answer is longer.
const SEEK_MEMBERS: usize = 20;
/// The same complaint about the same address is repeated after this.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);
/// Addresses about which complaints are remembered.
const COMPLAINTS_MAX: usize = 64;
/// Members that answer over TCP send datagrams within this time.
const DEAF_AFTER: Duration = Duration::from_secs(10);

/// Receives one line about an event.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// How a member joins.
pub struct Options {
    /// Address at which the others reach it. Its datagrams have the same port as its connections.
    pub address: SocketAddr,
    /// Address to bind, if not the same.
    pub bind: SocketAddr,
    /// Its name; its address if none is given.
    pub name: Option<String>,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Members to begin with, `HOST:PORT`.
    pub join: Vec<String>,
    /// Another source of members.
    pub discovery: Option<Discovery>,
    /// The shared key.
    pub key: Option<Key>,
    /// How it is at first.
    pub condition: Condition,
    /// Receives lines about members that come and go.
    pub log: Log,
}

/// Why a member cannot join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The datagram socket.
    #[error("cannot receive datagrams on {addr}: {source}; another program may use that UDP port")]
    Bind { addr: SocketAddr, source: io::Error },
    /// A name or a label.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// A member refuses.
    #[error("cannot join the pool: {0}")]
    Refused(AskError),
    /// A source of members.
    #[error("{0}")]
    Source(String),
    /// The name is another's.
    #[error(
        "cannot join the pool as `{name}`: the member at {address} has that name; give this one another by --name, or stop that one"
    )]
    NameTaken { name: String, address: SocketAddr },
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

struct Shared {
    node: Mutex<Node>,
    socket: UdpSocket,
    began: Instant,
    stopping: AtomicBool,
    /// When another member has first answered over TCP.
    answered: OnceLock<Instant>,
    /// Addresses to which nothing can be sent, which was said.
    unsendable: Mutex<Vec<SocketAddr>>,
    options: Options,
}

/// A running member; it leaves when this is dropped.
pub struct Membership {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Shared {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, line: &str) {
        (self.options.log)(line);
    }

    /// Says once that nothing can be sent to an address, until something can.
    fn note_sent(&self, to: SocketAddr, error: Option<io::Error>) {
        let mut unsendable = self.unsendable.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = unsendable.contains(&to);
        match error {
            None if is_known => unsendable.retain(|addr| *addr != to),
            Some(error) if !is_known && unsendable.len() < COMPLAINTS_MAX => {
                unsendable.push(to);
                drop(unsendable);
                self.log(&format!(
                    "cannot send datagrams from {} to the member {to}: {error}",
                    self.options.bind
                ));
            }
            _ => {}
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Does something with the node, sends what it has to send, and reports what has happened.
    fn with<T>(&self, act: impl FnOnce(&mut Node, u64) -> T) -> T {
        let mut node = self.node();
        let result = act(&mut node, self.now_ms());
        let (out, events) = (node.take_out(), node.take_events());
        drop(node);
        for (to, datagram) in out {
            // A lost datagram is part of the protocol; an address without a route is that too.
            let sent = self.socket.send_to(&datagram, to);
            self.note_sent(to, sent.err());
        }
        for event in events {
            self.log(&match event {
                Event::Up(addr) => format!("member {addr} has come"),
                Event::Down(addr) => format!("member {addr} is gone"),
                Event::Restarted(addr) => format!("member {addr} has restarted"),
                Event::Returned => "the other members had lost this one: it is back".to_owned(),
            });
        }
        result
    }
}

/// Complaints about datagrams, each at most once a minute for one address.
#[derive(Default)]
struct Complaints(Vec<(SocketAddr, Instant)>);

impl Complaints {
    fn allow(&mut self, from: SocketAddr) -> bool {
        self.0.retain(|(_, at)| at.elapsed() < COMPLAINT_INTERVAL);
        let known = self.0.iter().any(|(addr, _)| *addr == from);
        if known || self.0.len() >= COMPLAINTS_MAX {
            return false;
        }
        self.0.push((from, Instant::now()));
        true
    }
}

impl Membership {
    /// Starts the member. It asks the members that are given before it says anything to them; where
    /// none can be reached yet, it tries again until one can.
    pub fn start(options: Options) -> Result<Membership, JoinError> {
        let name = options.name.clone().unwrap_or_else(|| options.address.to_string());
        check_name(&name)?;
        let bind = options.bind;
        let socket =
            UdpSocket::bind(bind).map_err(|source| JoinError::Bind { addr: bind, source })?;
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let report = Report {
            id: Id { addr: options.address, incarnation: clock.as_millis() as u64 },
            boot: u64::from_le_bytes(sockets::random()),
            sequence: 1,
            name,
            version: *VERSIONS.end(),
            condition: options.condition,
            labels: options.labels.clone(),
        };
        let settings = Settings { report, key: options.key.clone(), secret: sockets::random() };
        let shared = Arc::new(Shared {
            node: Mutex::new(Node::new(settings)),
            socket,
            began: Instant::now(),
            stopping: AtomicBool::new(false),
            answered: OnceLock::new(),
            unsendable: Mutex::default(),
            options,
        });
        seek(&shared, true)?;
        let (datagrams, seeker, registrar) =
            (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared));
        let registration = match &shared.options.discovery {
            Some(Discovery::Etcd(etcd)) => {
                let mut registration = Registration::new(etcd.clone(), shared.options.address);
                registration.renew().map_err(JoinError::Source)?;
                Some(registration)
            }
            _ => None,
        };
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            let builder = std::thread::Builder::new().name(name.to_owned());
            builder.spawn(body).map_err(JoinError::Thread)
        };
        let mut threads = vec![
            spawn("hiroma-member", Box::new(move || run(&datagrams)))?,
            spawn("hiroma-seek", Box::new(move || keep_seeking(&seeker)))?,
        ];
        if let Some(registration) = registration {
            let body = move || keep_registered(&registrar, registration);
            threads.push(spawn("hiroma-register", Box::new(body))?);
        }
        Ok(Membership { shared, threads })
    }

    /// All members, this one first.
    pub fn members(&self) -> Vec<MemberView> {
        self.shared.node().members(self.shared.now_ms())
    }

    /// Changes what this member says of itself.
    pub fn set_condition(&self, condition: Condition) {
        self.shared.with(|node, now_ms| node.set_condition(condition, now_ms));
    }

    /// Tells the others that this member goes, and stops.
    pub fn leave(&mut self) {
        if !self.shared.stopping.swap(true, Ordering::SeqCst) {
            self.shared.with(Node::leave);
            self.threads.drain(..).for_each(|thread| {
                thread.thread().unpark();
                let _ = thread.join();
            });
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

fn run(shared: &Shared) {
    let mut complaints = Complaints::default();
    let mut bytes = [0; 2048];
    // Whether a member was heard, or that none was is said.
    let mut is_settled = false;
    while !shared.is_stopping() {
        shared.with(Node::tick);
        let answered = shared.answered.get();
        if !is_settled && answered.is_some_and(|at| at.elapsed() > DEAF_AFTER) {
            is_settled = true;
            shared.log(&format!(
                "a member of the pool answers over TCP, but no datagram has come from any: UDP to port {} must be let through, here and to the others",
                shared.options.address.port()
            ));
        }
        let due = shared.node().next_ms().saturating_sub(shared.now_ms());
        // Another thread may set an earlier timer meanwhile.
        let wait = Duration::from_millis(due.clamp(1, 100));
        let _ = shared.socket.set_read_timeout(Some(wait));
        let Ok((len, from)) = shared.socket.recv_from(&mut bytes) else { continue };
        let received = shared.with(|node, now_ms| node.receive(from, &bytes[..len], now_ms));
        is_settled |= received.is_ok();
        if let Err(refusal) = received {
            // Repetitions are usual: networks make them.
            if refusal != Refusal::Replay && complaints.allow(from) {
                shared.log(&format!("ignored a datagram from {from}: {refusal}"));
            }
        }
    }
}

/// Keeps this member's key in etcd. When etcd goes away, the pool goes on with what it knows.
fn keep_registered(shared: &Shared, mut registration: Registration) {
    let mut is_away = false;
    loop {
        std::thread::park_timeout(RENEW_EVERY);
        if shared.is_stopping() {
            return registration.revoke();
        }
        match registration.renew() {
            Ok(()) if is_away => {
                is_away = false;
                shared.log("etcd answers again");
            }
            Err(reason) if !is_away => {
                is_away = true;
                shared.log(&format!("{reason}; going on with the members that are known"));
            }
            _ => {}
        }
    }
}

fn keep_seeking(shared: &Shared) {
    let mut compared = Instant::now();
    let (mut turn, mut complaint) = (0, String::new());
    // Gossip misses some when many join at once, so a new member compares more often at first.
    let mut interval = SEEK_ALONE;
    while !shared.is_stopping() {
        let peers = shared.node().peers();
        std::thread::park_timeout(if peers == 0 { SEEK_ALONE } else { interval });
        if shared.is_stopping() {
            return;
        }
        if let Err(error) = seek(shared, false) {
            let text = error.to_string();
            if text != complaint {
                shared.log(&text);
                complaint = text;
            }
        }
        if shared.is_stopping() {
            return;
        }
        if compared.elapsed() >= interval * (peers / SEEK_MEMBERS).max(1) as u32 {
            compared = Instant::now();
            interval = (interval * 2).min(SEEK);
            turn += 1;
            compare(shared, turn);
        }
    }
}

/// Learns of members that the gossip has not reached this one about, from another member.
fn compare(shared: &Shared, turn: usize) {
    let members = shared.node().members(0);
    let alive: Vec<_> = members[1..].iter().filter(|m| m.health == Health::Alive).collect();
    let Some(other) = alive.get(turn % alive.len().max(1)) else { return };
    let asked = ask(other.address, shared.options.key.as_ref(), &Request::Members, ASK_LIMIT);
    if let Ok(Answer::Members(told)) = asked {
        shared.with(|node, now_ms| node.learn(&told, now_ms));
    }
}

/// Asks the members that the user has named for all that they know, until one answers. Only those
/// are asked that are not known as members.
fn seek(shared: &Shared, first: bool) -> Result<(), JoinError> {
    let options = &shared.options;
    let mut addrs = Vec::new();
    let discovered = options.discovery.iter().map(Discovery::addresses);
    for found in options.join.iter().map(|text| resolve(text)).chain(discovered) {
        match found {
            Ok(found) => addrs.extend(found),
            Err(reason) if first => return Err(JoinError::Source(reason)),
            // Names that cannot be resolved for a while: what is known is known.
            Err(_) => {}
        }
    }
    let known = shared.node().members(0);
    let is_member = |addr: &SocketAddr| {
        known.iter().any(|member| member.address == *addr && member.health == Health::Alive)
    };
    for addr in addrs.into_iter().filter(|addr| !is_member(addr)) {
        // Whoever is silent is waited for, and the end of this member would wait as well.
        if shared.is_stopping() {
            break;
        }
        match ask(addr, options.key.as_ref(), &Request::Members, ASK_LIMIT) {
            Ok(Answer::Members(members)) => {
                if first || known.len() < 2 {
                    check_name_is_free(shared, &members)?;
                }
                shared.with(|node, now_ms| node.learn(&members, now_ms));
                shared.answered.get_or_init(Instant::now);
                return Ok(());
            }
            Ok(_) => {}
            Err(error) if first && !error.is_passing() => return Err(JoinError::Refused(error)),
            Err(error) if first => shared.log(&format!("{error}; trying again")),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Refuses a name that a member has that is there.
fn check_name_is_free(shared: &Shared, members: &[MemberView]) -> Result<(), JoinError> {
    let (name, own) = {
        let node = shared.node();
        (node.report().name.clone(), node.report().id.addr)
    };
    let others = members.iter().filter(|member| member.address != own && member.name == name);
    for other in others.filter(|member| member.health != Health::Dead) {
        if shared.is_stopping() {
            break;
        }
        // It may have died a moment ago: it has the name only if it says so itself.
        let asked = ask(other.address, shared.options.key.as_ref(), &Request::Members, ASK_LIMIT);
        if matches!(asked, Ok(Answer::Members(told)) if told.first().is_some_and(|m| m.name == name))
        {
            return Err(JoinError::NameTaken { name, address: other.address });
        }
    }
    Ok(())
}
