//! A connection to the server that is made again when it breaks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use redis::{
    Client, Cmd, Connection, ConnectionAddr, ConnectionLike, RedisError, RedisResult, Value, cmd,
};

use super::Shared;
use super::tls::TlsConnection;
use crate::store::StoreError;

/// How long to wait before another attempt to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// A server that puts us off is asked again after an eighth of the time that it has done so, at
/// most this.
const PUT_OFF_PAUSE_MAX: Duration = Duration::from_secs(1);
/// The user is told of a server that puts us off for longer.
const TOLD_AFTER: Duration = Duration::from_secs(2);
/// Time for one attempt.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// What a server says that will carry out the same command later: a script runs, its disk is full,
/// its replicas are away, it is being replaced by one, it reads its data.
const PASSING: [&str; 8] = [
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "TRYAGAIN",
    "CLUSTERDOWN",
];

/// Why a question has no answer.
pub enum Failed {
    /// The connection failed; another attempt may help.
    Broken(String),
    /// The server answers that it will not now.
    PutOff(String),
    /// Nothing helps.
    Fatal(StoreError),
}

/// One thread's connection.
pub struct Line {
    shared: Arc<Shared>,
    connection: Option<Link>,
    /// The server's number of the connection, or of the one that broke.
    id: Option<i64>,
    /// Forks wait for this thread: it does not wait for a server that puts it off.
    yields: bool,
    /// It has given up for a fork.
    has_yielded: bool,
}

/// Some commands in the form in which they are sent.
#[derive(Default)]
pub struct Batch {
    packed: Vec<u8>,
    count: usize,
}

impl Batch {
    pub fn push(&mut self, command: &Cmd) {
        command.write_packed_command(&mut self.packed);
        self.count += 1;
    }
}

impl Line {
    pub fn new(shared: &Arc<Shared>) -> Line {
        let shared = Arc::clone(shared);
        Line { shared, connection: None, id: None, yields: false, has_yielded: false }
    }

    /// One for a thread that forks wait for.
    pub fn yielding(shared: &Arc<Shared>) -> Line {
        Line { yields: true, ..Line::new(shared) }
    }

    /// Whether the last command was given up for a fork, not because it failed.
    pub fn take_yielded(&mut self) -> bool {
        std::mem::take(&mut self.has_yielded)
    }

    /// Sends all commands at once, and waits for the answers to all of them, at most the store's
    /// timeout. They may be executed twice.
    pub fn ask(&mut self, batch: &Batch) -> Result<Vec<Value>, StoreError> {
        let timeout = self.shared.timeout;
        self.ask_within(batch, timeout)
    }

    /// The same with another timeout.
    pub fn ask_within(
        &mut self,
        batch: &Batch,
        timeout: Duration,
    ) -> Result<Vec<Value>, StoreError> {
        let (start, mut was_put_off) = (Instant::now(), false);
        loop {
            let left = timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
            let failed = match self.attempt(batch, left) {
                Ok(values) => {
                    // Other commands may have been answered all the time.
                    let again = was_put_off && self.shared.puts_off.swap(false, SeqCst);
                    if self.shared.is_down.swap(false, SeqCst) || again {
                        (self.shared.log)(&format!("{} answers again", self.shared.name));
                    }
                    return Ok(values);
                }
                Err(failed) => failed,
            };
            let waited = start.elapsed();
            let (error, news, told, pause) = match failed {
                Failed::Fatal(error) => return Err(error),
                Failed::Broken(reason) => {
                    self.connection = None;
                    let news = format!(
                        "the connection is lost ({reason}); trying for {timeout:?} to restore it"
                    );
                    (self.shared.silent(timeout, &reason), news, Some(&self.shared.is_down), PAUSE)
                }
                Failed::PutOff(said) => {
                    let news = format!("the server says {said}; trying again for {timeout:?}");
                    let pause = (waited / 8).clamp(PAUSE, PUT_OFF_PAUSE_MAX);
                    was_put_off = true;
                    if self.yields && self.shared.minding.is_still() {
                        self.has_yielded = true;
                        return Err(self.shared.put_off(timeout, &said));
                    }
                    let told = (waited >= TOLD_AFTER).then_some(&self.shared.puts_off);
                    (self.shared.put_off(timeout, &said), news, told, pause)
                }
            };
            if waited + pause >= timeout || self.shared.minding.is_stopping() {
                return Err(error);
            }
            if told.is_some_and(|told| !told.swap(true, SeqCst)) {
                (self.shared.log)(&format!("{}: {news}", self.shared.name));
            }
            std::thread::sleep(pause);
        }
    }

    fn attempt(&mut self, batch: &Batch, left: Duration) -> Result<Vec<Value>, Failed> {
        if self.connection.is_none() {
            self.connect(left)?;
        }
        let connection = self.connection.as_mut().expect("just connected");
        let broken = |error: RedisError| Failed::Broken(error.to_string());
        connection.set_timeout(left).map_err(broken)?;
        let values = connection
            .commands()
            .req_packed_commands(&batch.packed, 0, batch.count)
            .map_err(broken)?;
        // All of them are sent again then: each may be executed twice.
        match values.iter().find_map(passing) {
            Some(said) => Err(Failed::PutOff(said)),
            None => Ok(values),
        }
    }

    fn connect(&mut self, left: Duration) -> Result<(), Failed> {
        let (mut connection, facts) = open(&self.shared, left.min(CONNECT_MAX))?;
        self.shared.is_same(&facts).map_err(Failed::Fatal)?;
        let shared = &self.shared;
        let mut number = |command: &Cmd, doing| match connection.commands().req_command(command) {
            Ok(Value::Int(number)) => Ok(number),
            Ok(other) if passing(&other).is_some() => {
                Err(Failed::PutOff(passing(&other).unwrap_or_default()))
            }
            Ok(other) => Err(Failed::Fatal(shared.io(doing, &format!("{other:?}")))),
            Err(error) if is_of_connection(&error) => Err(Failed::Broken(error.to_string())),
            Err(error) if is_passing(&error) => Err(Failed::PutOff(said(&error))),
            Err(error) => Err(Failed::Fatal(shared.io(doing, &error.to_string()))),
        };
        // What the server has not executed yet from a connection that broke must never be executed:
        // it could overwrite newer content.
        if let Some(old) = self.id {
            number(cmd("CLIENT").arg("KILL").arg("ID").arg(old), "ending an old connection")?;
        }
        self.id = Some(number(cmd("CLIENT").arg("ID"), "asking for the connection's number")?);
        self.connection = Some(connection);
        Ok(())
    }
}

/// A connection, with or without TLS.
pub enum Link {
    Plain(Connection),
    Secure(Box<TlsConnection>),
}

impl Link {
    fn open(shared: &Shared, addr: SocketAddr, timeout: Duration) -> RedisResult<Link> {
        if let Some(tls) = &shared.tls {
            return tls
                .connect(addr, &shared.connection, timeout)
                .map(|link| Link::Secure(Box::new(link)));
        }
        let at = ConnectionAddr::Tcp(addr.ip().to_string(), addr.port());
        let client = Client::open(shared.connection.clone().set_addr(at))?;
        client.get_connection_with_timeout(timeout).map(Link::Plain)
    }

    fn commands(&mut self) -> &mut dyn ConnectionLike {
        match self {
            Link::Plain(connection) => connection,
            Link::Secure(connection) => &mut **connection,
        }
    }

    fn set_timeout(&self, timeout: Duration) -> RedisResult<()> {
        match self {
            Link::Plain(connection) => {
                connection.set_read_timeout(Some(timeout))?;
                connection.set_write_timeout(Some(timeout))
            }
            Link::Secure(connection) => connection.set_timeout(timeout),
        }
    }
}

/// Whether the server has said nothing about it.
fn is_of_connection(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_timeout()
}

/// Whether the server has refused TLS.
fn is_alert(error: &RedisError) -> bool {
    error.to_string().contains("received fatal alert")
}

/// What the server says, if it is an error that passes.
fn passing(value: &Value) -> Option<String> {
    match value {
        Value::ServerError(error) if PASSING.contains(&error.code()) => {
            Some(format!("{} {}", error.code(), error.details().unwrap_or_default()))
        }
        _ => None,
    }
}

/// The same of an error during the login, which does not always keep the code.
fn is_passing(error: &RedisError) -> bool {
    error.code().is_some_and(|code| PASSING.contains(&code))
        || error.detail().is_some_and(|detail| detail.contains("is busy running"))
}

/// What `INFO` tells.
pub struct Facts(String);

impl Facts {
    /// One line of it.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    pub fn of(value: Value) -> Option<Facts> {
        match value {
            Value::BulkString(bytes) => Some(Facts(String::from_utf8_lossy(&bytes).into_owned())),
            Value::VerbatimString { text, .. } => Some(Facts(text)),
            _ => None,
        }
    }
}

/// Connects, logs in and asks what kind of server it is.
pub fn open(shared: &Shared, timeout: Duration) -> Result<(Link, Facts), Failed> {
    let refused =
        |reason: String| Failed::Fatal(StoreError::Refused { store: shared.name.clone(), reason });
    let mut last = "the name stands for no address".to_owned();
    for &addr in &shared.addrs {
        let mut connection = match Link::open(shared, addr, timeout) {
            Ok(connection) => connection,
            Err(error) if is_of_connection(&error) && !is_alert(&error) => {
                last = error.to_string();
                continue;
            }
            Err(error) if is_passing(&error) => return Err(Failed::PutOff(said(&error))),
            Err(error) => return Err(refused(login_error(&said(&error)))),
        };
        let set = connection.set_timeout(timeout);
        let told = set.and_then(|()| connection.commands().req_command(&cmd("INFO")));
        return match told {
            Ok(value) if passing(&value).is_some() => {
                Err(Failed::PutOff(passing(&value).unwrap_or_default()))
            }
            Ok(Value::ServerError(error)) => {
                let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
                Err(refused(login_error(&text)))
            }
            Ok(value) => match Facts::of(value) {
                Some(facts) => Ok((connection, facts)),
                None => Err(refused("INFO has no readable answer".to_owned())),
            },
            // TLS 1.3: the server looks at the client's certificate after the handshake.
            Err(error) if is_alert(&error) => Err(refused(login_error(&error.to_string()))),
            Err(error) if is_of_connection(&error) => Err(Failed::Broken(error.to_string())),
            Err(error) if is_passing(&error) => Err(Failed::PutOff(said(&error))),
            Err(error) => Err(refused(login_error(&said(&error)))),
        };
    }
    Err(Failed::Broken(last))
}

fn said(error: &RedisError) -> String {
    format!("{error} {}", error.detail().unwrap_or_default())
}

/// What to do about a refusal.
fn login_error(text: &str) -> String {
    let advice = if text.contains("CertificateRequired") || text.contains("HandshakeFailure") {
        "it wants to see a certificate of the client: write rediss://HOST?cert=FILE&key=FILE"
    } else if text.contains("received fatal alert") {
        "it does not accept the client's certificate: cert=FILE has to be of the authority that it trusts"
    } else if text.contains("UnknownIssuer") || text.contains("BadSignature") {
        "the authority that made its certificate is not known here: name the authority's own with rediss://HOST?ca=FILE"
    } else if text.contains("NotValidForName") || text.contains("not valid for name") {
        "its certificate is for another name: write that name as HOST"
    } else if text.contains("InvalidContentType") || text.contains("corrupt message") {
        "it does not speak TLS at this port: write the port that does, or redis://"
    } else if text.contains("NOAUTH") {
        "it requires a password: write redis://:PASSWORD@HOST, or redis://HOST?password-file=FILE"
    } else if text.contains("WRONGPASS") || text.contains("invalid") || text.contains("Password") {
        "the user or the password is wrong: write redis://[USER]:PASSWORD@HOST, with %XX for special characters, or redis://[USER@]HOST?password-file=FILE"
    } else if text.contains("NOPERM") {
        "the user may not do what is needed: allow INFO, CLIENT, SET, SETRANGE, GETRANGE, PEXPIRE, UNLINK, EVAL, and the keys hiroma:*"
    } else if text.contains("DB index") {
        "it has no database of this number"
    } else {
        return text.trim().to_owned();
    };
    format!("{advice} ({})", text.trim())
}
