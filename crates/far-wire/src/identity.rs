//! A machine's identity in a pool: a certificate of the pool's authority, and the handshake by which
//! two ends show each other theirs.
//!
//! The handshake is TLS 1.3 with certificates on both sides (rustls). Both ends derive a key from
//! it (RFC 8446, 7.5), and prove in the greeting that follows that they have this key; so the
//! greeting is between the two ends of the handshake. What follows is not encrypted by TLS: clients
//! seal the blocks.
//!
//! A certificate names a machine for people. It is valid at any address: what counts is that the
//! pool's authority made it.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig,
    ServerConnection, SideData,
};

use crate::auth::{Key, KeyError};

/// The name that each certificate of a pool is valid for.
pub const MEMBER_NAME: &str = "member.pool.hiroma.internal";
/// Begins the line of an identity that has the key for datagrams.
pub const POOL_KEY_LINE: &str = "pool-key: ";
const LABEL: &[u8] = b"EXPORTER-hiroma-greeting";
/// Type, version and length of a TLS record.
const RECORD_HEADER: usize = 5;
/// The largest record (RFC 8446, 5.2).
const RECORD_MAX: usize = RECORD_HEADER + (1 << 14) + 256;
/// Bytes that are requested at once.
const PIECE: usize = 256;
/// First byte of a record with a handshake message.
const HANDSHAKE_RECORD: u8 = 22;
/// The least and greatest first byte of a record.
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;

/// The wall clock. It is read past the C library: programs exist that fake its clock.
#[derive(Debug)]
pub struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let seconds = u64::try_from(now.tv_sec).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)))
    }
}

/// See the module's head. Its file has the machine's certificate, that of the authority, the
/// machine's private key (all PEM), and the key for datagrams in a line.
pub struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(secret)")
    }
}

fn bad(what: impl fmt::Display) -> KeyError {
    KeyError::BadIdentity(what.to_string())
}

impl Identity {
    /// Whether this is the content of an identity's file, and not a shared key.
    pub(crate) fn is_one(content: &[u8]) -> bool {
        content.windows(10).any(|part| part == b"-----BEGIN")
    }

    /// Reads an identity, and the key for datagrams that is in it.
    pub(crate) fn read(content: &[u8]) -> Result<(Identity, Vec<u8>), KeyError> {
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(content)
            .collect::<Result<_, _>>()
            .map_err(|error| bad(format_args!("a certificate cannot be read: {error}")))?;
        let [_, authority] = &certificates[..] else {
            return Err(bad(format_args!("it has {} certificates, not two", certificates.len())));
        };
        let text = String::from_utf8_lossy(content);
        let pool_key = text.lines().find_map(|line| line.strip_prefix(POOL_KEY_LINE));
        let pool_key = pool_key.map(str::trim).filter(|key| key.len() >= 16);
        let pool_key = pool_key.ok_or_else(|| bad("the line with the pool's key is missing"))?;
        let key = || {
            PrivateKeyDer::from_pem_slice(content)
                .map_err(|error| bad(format_args!("the private key cannot be read: {error}")))
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(|error| bad(reason(&error)))?;
        let roots = Arc::new(roots);
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let chain = vec![certificates[0].clone()];
        let client = ClientConfig::builder_with_details(provider.clone(), Arc::new(Clock))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| bad(reason(&error)))?
            .with_webpki_verifier(
                WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
                    .build()
                    .map_err(bad)?,
            )
            .with_client_auth_cert(chain.clone(), key()?);
        let mut client = client.map_err(|error| bad(reason(&error)))?;
        client.resumption = Resumption::disabled();
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        let server = ServerConfig::builder_with_details(provider, Arc::new(Clock))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| bad(reason(&error)))?
            .with_client_cert_verifier(clients.build().map_err(bad)?)
            .with_single_cert(chain, key()?);
        let mut server = server.map_err(|error| bad(reason(&error)))?;
        server.send_tls13_tickets = 0;
        let identity = Identity { client: Arc::new(client), server: Arc::new(server) };
        Ok((identity, pool_key.as_bytes().to_vec()))
    }
}

/// An error of TLS, in the words of this crate's users.
fn reason(error: &rustls::Error) -> String {
    use rustls::Error;
    match error {
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "its certificate has expired (or the clock of one of the machines is wrong): make a new one with `hiroma pool invite`"
            .to_owned(),
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "its certificate is not valid yet: is the clock of one of the machines wrong?".to_owned(),
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "its certificate was made by another pool's authority".to_owned(),
        other => other.to_string(),
    }
}

/// The handshake on one connection: bytes in, bytes out.
pub(crate) struct Handshake {
    tls: Box<Connection>,
    /// The record that is arriving. TLS must not take bytes of what follows the handshake.
    record: Vec<u8>,
}

impl Handshake {
    /// The client's end, and the bytes to send first.
    pub fn client(identity: &Identity) -> Result<(Handshake, Vec<u8>), KeyError> {
        let name = ServerName::try_from(MEMBER_NAME).expect("a valid name");
        let tls = ClientConnection::new(identity.client.clone(), name)
            .map_err(|error| KeyError::Identity(reason(&error)))?;
        let mut handshake =
            Handshake { tls: Box::new(Connection::Client(tls)), record: Vec::new() };
        let hello = handshake.take_output();
        Ok((handshake, hello))
    }

    /// The server's end.
    pub fn server(identity: &Identity) -> Result<Handshake, KeyError> {
        let tls = ServerConnection::new(identity.server.clone())
            .map_err(|error| KeyError::Identity(reason(&error)))?;
        Ok(Handshake { tls: Box::new(Connection::Server(tls)), record: Vec::new() })
    }

    /// Whether a peer that sends this first does the handshake, and not the greeting.
    pub fn begins_with(byte: u8) -> bool {
        byte == HANDSHAKE_RECORD
    }

    /// Whether these bytes are of the handshake: the first of a record decides. Else the peer has
    /// something to say without it.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        !self.record.is_empty() || bytes.first().is_none_or(|byte| RECORD_TYPES.contains(byte))
    }

    fn record_len(&self) -> usize {
        match self.record.get(3..RECORD_HEADER) {
            Some(len) => RECORD_HEADER + usize::from(u16::from_be_bytes([len[0], len[1]])),
            None => RECORD_HEADER,
        }
    }

    /// Bytes that can be received without taking any of what follows the handshake.
    pub fn missing(&self) -> usize {
        (self.record_len() - self.record.len()).min(PIECE)
    }

    /// Consumes bytes. Returns how many were used, and what to send.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Vec<u8>), KeyError> {
        let mut used = 0;
        loop {
            let take = (self.record_len() - self.record.len()).min(bytes.len() - used);
            self.record.extend_from_slice(&bytes[used..used + take]);
            used += take;
            if self.record_len() > RECORD_MAX {
                return Err(KeyError::Identity("a record is too long".to_owned()));
            }
            if self.record.len() >= RECORD_HEADER && self.record.len() == self.record_len() {
                break;
            }
            if used == bytes.len() {
                return Ok((used, Vec::new()));
            }
        }
        let record = std::mem::take(&mut self.record);
        let failed = |error: &dyn fmt::Display| KeyError::Identity(error.to_string());
        let mut left = &record[..];
        while !left.is_empty() {
            let read = match &mut *self.tls {
                Connection::Client(tls) => take_in(tls, &mut left),
                Connection::Server(tls) => take_in(tls, &mut left),
            };
            if read.map_err(|error| failed(&error))? == 0 {
                return Err(failed(&"the handshake ended too early"));
            }
        }
        let processed = match &mut *self.tls {
            Connection::Client(tls) => tls.process_new_packets(),
            Connection::Server(tls) => tls.process_new_packets(),
        };
        processed.map_err(|error| KeyError::Identity(reason(&error)))?;
        Ok((used, self.take_output()))
    }

    fn take_output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            if !matches!(self.tls.write_tls(&mut bytes), Ok(1..)) {
                break;
            }
        }
        bytes
    }

    /// The key of both ends, once the handshake is complete.
    pub fn key(&self) -> Result<Option<Key>, KeyError> {
        if self.tls.is_handshaking() {
            return Ok(None);
        }
        let key = self
            .tls
            .export_keying_material([0; 32], LABEL, None)
            .map_err(|error| KeyError::Identity(reason(&error)))?;
        Ok(Some(Key::of_session(key)))
    }
}

fn take_in<Data: SideData>(
    tls: &mut rustls::ConnectionCommon<Data>,
    bytes: &mut dyn Read,
) -> std::io::Result<usize> {
    tls.read_tls(bytes)
}
