//! Connections to a server over TLS (`rediss://`).
//!
//! The client crate's own TLS looks the server's name up when it connects, with the C library's
//! resolver, which allocates: the pager's threads must not. So the connection is made to an address
//! that is known, and the certificate is verified against the name.

use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hiroma_far_wire::Clock;
use redis::{Cmd, ConnectionInfo, ConnectionLike, Parser, RedisError, RedisResult, Value, cmd};
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::address::TlsFiles;

/// What is needed to connect. It is read once: a program may change its root directory later.
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// `host`: the name or the address that the server's certificate must be for.
    ///
    /// # Errors
    /// In words, if a file cannot be used.
    pub fn new(host: &str, files: &TlsFiles) -> Result<Tls, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| format!("{host} cannot be the name of a certificate: {error}"))?;
        let builder =
            ClientConfig::builder_with_details(Arc::new(ring::default_provider()), Arc::new(Clock))
                .with_safe_default_protocol_versions()
                .map_err(|error| error.to_string())?
                .with_root_certificates(roots(files.ca.as_deref())?);
        let mut config = match (&files.cert, &files.key) {
            (Some(cert), Some(key)) => builder
                .with_client_auth_cert(certificates(cert)?, private_key(key)?)
                .map_err(|error| format!("cert={}: {error}", cert.display()))?,
            (None, None) => builder.with_no_client_auth(),
            _ => return Err("cert= and key= belong together: give both".to_owned()),
        };
        // A ticket would be kept in memory that forked children share.
        config.resumption = Resumption::disabled();
        Ok(Tls { config: Arc::new(config), name })
    }

    /// Connects to `addr`, shows and verifies certificates, and logs in.
    pub fn connect(
        &self,
        addr: SocketAddr,
        login: &ConnectionInfo,
        timeout: Duration,
    ) -> RedisResult<TlsConnection> {
        let socket = TcpStream::connect_timeout(&addr, timeout)?;
        socket.set_nodelay(true)?;
        let session =
            ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(in_words)?;
        let stream = StreamOwned::new(session, socket);
        let db = login.redis_settings().db();
        let mut connection = TlsConnection { stream, parser: Parser::new(), db, is_broken: false };
        connection.set_timeout(timeout)?;
        connection.shake_hands()?;
        connection.log_in(login)?;
        Ok(connection)
    }
}

fn in_words(error: rustls::Error) -> RedisError {
    (redis::ErrorKind::AuthenticationFailed, "TLS", error.to_string()).into()
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |what: &str| format!("{}: {what}", file.display());
    let content = fs::read(file).map_err(|error| failed(&error.to_string()))?;
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&content)
            .collect::<Result<_, _>>()
            .map_err(|error| failed(&format!("a certificate cannot be read: {error}")))?;
    match certificates.is_empty() {
        true => Err(failed("it has no certificate (PEM)")),
        false => Ok(certificates),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let failed = |what: &str| format!("key={}: {what}", file.display());
    let content = fs::read(file).map_err(|error| failed(&error.to_string()))?;
    PrivateKeyDer::from_pem_slice(&content)
        .map_err(|error| failed(&format!("the private key cannot be read: {error}")))
}

/// The authorities that may have made the server's certificate: those of `ca`, or the system's.
fn roots(ca: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = ca {
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| format!("ca={}: {error}", ca.display()))?;
        }
        return Ok(roots);
    }
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match added {
        0 => Err("this system has no certificates of authorities: install ca-certificates, or name the authority's with rediss://HOST?ca=FILE".to_owned()),
        _ => Ok(roots),
    }
}

/// A connection over TLS.
pub struct TlsConnection {
    stream: StreamOwned<ClientConnection, TcpStream>,
    parser: Parser,
    db: i64,
    is_broken: bool,
}

impl TlsConnection {
    /// How long to wait for the server, in each call.
    pub fn set_timeout(&self, timeout: Duration) -> RedisResult<()> {
        self.stream.sock.set_read_timeout(Some(timeout))?;
        self.stream.sock.set_write_timeout(Some(timeout))?;
        Ok(())
    }

    fn shake_hands(&mut self) -> RedisResult<()> {
        while self.stream.conn.is_handshaking() {
            if let Err(error) = self.stream.conn.complete_io(&mut self.stream.sock) {
                // The other side's certificate was refused, or ours.
                let refused =
                    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                return Err(match refused {
                    Some(refused) => in_words(refused.clone()),
                    None => timed_out(error).into(),
                });
            }
        }
        Ok(())
    }

    fn log_in(&mut self, login: &ConnectionInfo) -> RedisResult<()> {
        let settings = login.redis_settings();
        if let Some(password) = settings.password() {
            let mut auth = cmd("AUTH");
            if let Some(user) = settings.username() {
                auth.arg(user);
            }
            self.expect_ok(auth.arg(password))?;
        }
        if self.db != 0 {
            self.expect_ok(cmd("SELECT").arg(self.db))?;
        }
        Ok(())
    }

    fn expect_ok(&mut self, command: &Cmd) -> RedisResult<()> {
        self.req_command(command)?.extract_error().map(drop)
    }

    fn ask(&mut self, packed: &[u8], count: usize) -> RedisResult<Vec<Value>> {
        self.stream.write_all(packed).and_then(|()| self.stream.flush()).map_err(timed_out)?;
        (0..count).map(|_| self.parser.parse_value(&mut self.stream)).collect()
    }
}

/// A socket's timeout is a lack of data for the kernel.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    }
}

impl ConnectionLike for TlsConnection {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        let mut values = self.req_packed_commands(command, 0, 1)?;
        Ok(values.pop().unwrap_or(Value::Nil))
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let mut values =
            self.ask(commands, offset + count).inspect_err(|_| self.is_broken = true)?;
        Ok(values.split_off(offset))
    }

    fn get_db(&self) -> i64 {
        self.db
    }

    fn check_connection(&mut self) -> bool {
        self.req_command(&cmd("PING")).is_ok()
    }

    fn is_open(&self) -> bool {
        !self.is_broken
    }
}
