//! UMASH, a universal hash (<https://github.com/backtrace-labs/umash>), of contiguous bytes.
//!
//! Contract: the parameters are a plain value, derived once and only read by the library, which
//! allocates nothing and has no state. The safe `umash` crate feeds bytes in pieces and hashes them
//! 16 at a time at both ends, which takes twice as long for 4 KiB.
#![allow(unsafe_code)]

use umash_sys::{umash_full, umash_params, umash_params_derive};

/// The 64-bit hash, not the second one for 128-bit fingerprints.
const FIRST: i32 = 0;
/// The key is the secret; this seed is that of the library's example, whose result is known.
const SEED: u64 = 42;

/// The parameters of a hash function, chosen at random from the family.
pub struct Umash(umash_params);

impl Umash {
    /// The function with number `bits` under a key.
    pub fn derive(bits: u64, key: &[u8; 32]) -> Umash {
        let mut params = umash_params { poly: [[0; 2]; 2], oh: [0; 34] };
        // SAFETY: the library reads 32 bytes of the key, and fills the parameters.
        unsafe { umash_params_derive(&mut params, bits, key.as_ptr().cast()) };
        Umash(params)
    }

    /// The hash of `bytes`.
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        // SAFETY: the parameters were derived, and the length is that of the slice.
        unsafe { umash_full(&self.0, SEED, FIRST, bytes.as_ptr().cast(), bytes.len() as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library's own example (`umash-sys`, test_example_case).
    #[test]
    fn hash_matches_the_reference_library() {
        let mut key = [0; 32];
        key[..15].copy_from_slice(b"hello example.c");
        assert_eq!(Umash::derive(0, &key).hash(b"the quick brown fox"), 0x398c_5bb5_cc11_3d03);
    }

    #[test]
    fn hash_depends_on_every_byte_and_function_number() {
        let first = Umash::derive(0, &[3; 32]);
        let mut bytes = vec![7u8; 4096];
        let hash = first.hash(&bytes);
        assert_ne!(hash, Umash::derive(1, &[3; 32]).hash(&bytes));
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_ne!(first.hash(&bytes), hash, "{at}");
            bytes[at] ^= 1;
        }
        assert_ne!(first.hash(&bytes[..4095]), hash);
    }
}
