//! Mutual proof that both sides have the shared key, without sending it.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Random bytes, used for one connection only. They must come from a cryptographic source.
pub type Nonce = [u8; 32];
/// A value that can only be computed from the two nonces with the key.
pub type Proof = [u8; 32];

/// A secret that client and server share.
#[derive(Clone)]
pub struct Key(Vec<u8>);

/// An error in a key, or a missing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Too easy to guess.
    #[error(
        "the key is only {0} bytes long: make one of at least 16, for example with `head -c 32 /dev/urandom | base64 > hiroma.key`"
    )]
    TooShort(usize),
    /// Longer than any reasonable key.
    #[error("the key is {0} bytes long: at most 4096 are taken; is it the right file?")]
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
}

impl Key {
    /// The key in a key file: its bytes without white space at the end.
    pub fn from_file_content(content: &[u8]) -> Result<Key, KeyError> {
        let key = content.trim_ascii_end();
        match key.len() {
            len @ ..16 => Err(KeyError::TooShort(len)),
            len @ 4097.. => Err(KeyError::TooLong(len)),
            _ => Ok(Key(key.to_vec())),
        }
    }

    fn mac(&self, side: Side, version: u16, client: &Nonce, server: &Nonce) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
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
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
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
        f.write_str("Key(secret)")
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
        assert_eq!(Key::from_file_content(&[b'x'; 5000]).unwrap_err(), KeyError::TooLong(5000));
    }

    #[test]
    fn a_key_is_not_printed() {
        let key = Key::from_file_content(b"0123456789abcdef").unwrap();
        assert!(!format!("{key:?}").contains("0123"));
    }
}
