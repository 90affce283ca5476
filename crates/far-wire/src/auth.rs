//! Mutual proof that both sides have the shared key, without sending it.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::identity::Identity;

/// Random bytes, used for one connection only. They must come from a cryptographic source.
pub type Nonce = [u8; 32];
/// A value that can only be computed from the two nonces with the key.
pub type Proof = [u8; 32];

/// What a client and a server know each other by: a secret that they share, or this machine's
/// identity in a pool.
#[derive(Clone)]
pub struct Key {
    /// The shared secret. With an identity, that of the pool, for datagrams.
    secret: Vec<u8>,
    identity: Option<Arc<Identity>>,
}

/// A key file is shorter.
const FILE_BYTES_MAX: usize = 16385;

/// An error in a key, or a missing key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Too easy to guess.
    #[error(
        "the key is only {0} bytes long: make one of at least 16, for example with `head -c 32 /dev/urandom | base64 > hiroma.key`"
    )]
    TooShort(usize),
    /// Longer than any reasonable key.
    #[error("the key is {0} bytes long: at most 16384 are taken; is it the right file?")]
    TooLong(usize),
    /// The server requires a key and the client has none.
    #[error("the server asks for a key: give the one it was started with, by --key-file")]
    Needed,
    /// The client has a key and the server requires none: another program may be listening there.
    #[error(
        "the server does not ask for a key, although --key-file is given: start it with the same --key-file"
    )]
    NotAskedFor,
    /// The client's key differs from the server's.
    #[error("the client's key is not the server's: give both the same --key-file")]
    ClientWrong,
    /// The server's key differs from the client's.
    #[error("the server could not prove that it has the key: give both the same --key-file")]
    ServerWrong,
    /// The file looks like an identity, and is not a whole one.
    #[error("this is no identity: {0}; make one with `hiroma pool invite`")]
    BadIdentity(String),
    /// The peer's certificate is not accepted, or its handshake is not valid.
    #[error("the identity of the other side is not accepted: {0}")]
    Identity(String),
    /// The server has an identity, the client a shared key or none.
    #[error(
        "the members of this pool know each other by identities: give one to --key-file (`hiroma pool invite`)"
    )]
    IdentityNeeded,
    /// The client has an identity, the server a shared key or none.
    #[error(
        "the server has a shared key or none, the client an identity: give both the same kind of --key-file"
    )]
    IdentityNotAskedFor,
}

impl Key {
    /// The key in a key file: its bytes without white space at the end; or the identity in it.
    pub fn from_file_content(content: &[u8]) -> Result<Key, KeyError> {
        let key = content.trim_ascii_end();
        match key.len() {
            len @ ..16 => Err(KeyError::TooShort(len)),
            len @ FILE_BYTES_MAX.. => Err(KeyError::TooLong(len)),
            _ if Identity::is_one(key) => {
                let (identity, secret) = Identity::read(key)?;
                Ok(Key { secret, identity: Some(Arc::new(identity)) })
            }
            _ => Ok(Key { secret: key.to_vec(), identity: None }),
        }
    }

    /// The key that both ends of a handshake have.
    pub(crate) fn of_session(key: [u8; 32]) -> Key {
        Key { secret: key.to_vec(), identity: None }
    }

    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_deref()
    }

    fn mac(&self, side: Side, version: u16, client: &Nonce, server: &Nonce) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        mac.update(match side {
            Side::Client => b"hiroma client proof\0",
            Side::Server => b"hiroma server proof\0",
        });
        mac.update(&version.to_le_bytes());
        mac.update(client);
        mac.update(server);
        mac
    }

    /// A value that can only be computed with the key, for bytes that are sent outside of a
    /// connection. It is never equal to a [`Proof`] for the same bytes.
    pub fn tag(&self, parts: &[&[u8]]) -> Proof {
        self.datagram_mac(parts).finalize().into_bytes().into()
    }

    /// Whether `tag` is the beginning (16 bytes or more) of these bytes' tag; in constant time.
    pub fn has_tag(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        tag.len() >= 16 && self.datagram_mac(parts).verify_truncated_left(tag).is_ok()
    }

    fn datagram_mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        mac.update(b"hiroma datagram\0");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    pub(crate) fn prove(&self, side: Side, version: u16, client: &Nonce, server: &Nonce) -> Proof {
        self.mac(side, version, client, server).finalize().into_bytes().into()
    }

    /// Compares in constant time.
    pub(crate) fn verify(
        &self,
        side: Side,
        version: u16,
        client: &Nonce,
        server: &Nonce,
        proof: &Proof,
    ) -> bool {
        self.mac(side, version, client, server).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.identity.is_some() { "Key(identity)" } else { "Key(secret)" })
    }
}

/// Which side's proof it is; the two differ, so that neither can be returned as the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_bound_to_side_nonces_and_key() {
        let key = Key::from_file_content(b"0123456789abcdef\n").unwrap();
        let other = Key::from_file_content(b"0123456789abcdeF\n").unwrap();
        let proof = key.prove(Side::Client, 1, &[1; 32], &[2; 32]);
        assert!(key.verify(Side::Client, 1, &[1; 32], &[2; 32], &proof));
        assert!(!key.verify(Side::Server, 1, &[1; 32], &[2; 32], &proof));
        assert!(!key.verify(Side::Client, 1, &[2; 32], &[1; 32], &proof));
        assert!(!key.verify(Side::Client, 2, &[1; 32], &[2; 32], &proof));
        assert!(!other.verify(Side::Client, 1, &[1; 32], &[2; 32], &proof));
    }

    #[test]
    fn weak_keys_are_refused() {
        assert_eq!(Key::from_file_content(b"secret\n").unwrap_err(), KeyError::TooShort(6));
        assert_eq!(Key::from_file_content(&[b'x'; 20_000]).unwrap_err(), KeyError::TooLong(20_000));
    }

    #[test]
    fn a_key_is_not_printed() {
        let key = Key::from_file_content(b"0123456789abcdef").unwrap();
        assert!(!format!("{key:?}").contains("0123"));
    }
}
