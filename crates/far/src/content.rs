//! The content of a sector: its checksum, and whether it is one repeated word.
//!
//! Whether a block is clean is decided by comparing checksums, so it must not be possible to
//! construct two contents with the same one. The checksum is UMASH, a universal hash, under a key
//! of 256 random bits that never leaves the process. For any two contents that do not depend on the
//! key, the probability of a collision is at most 2^-55 for each 4 KiB (UMASH's report, section 1).
//! A fast hash with a small seed gives no such bound: contents are known that collide under one of
//! 64 seeds of XXH3.

use std::io;

use hiroma_sys::umash::Umash;
use hiroma_sys::vm;

/// Bytes that are hashed in one step, and how far ahead of them the processor prefetches. Twice as
/// fast as without prefetching on one machine (12 against 6 to 8 GB/s), because processors do not
/// prefetch across the end of a page by themselves.
const STEP: usize = 8 << 10;
const AHEAD: usize = 8 << 10;
/// Steps whose hashes are hashed together; the largest sectors have 512.
const STEPS_MAX: usize = 64;

/// The secret of one program's checksums.
pub struct Key {
    steps: Umash,
    /// For the hashes of steps: an independent function, so that the bound does not depend on them.
    above: Umash,
}

impl Key {
    /// A random key.
    pub fn random() -> io::Result<Key> {
        let mut bytes = [0; 32];
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        if got == bytes.len() {
            Ok(Key::from_bytes(&bytes))
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Key {
        Key { steps: Umash::derive(0, bytes), above: Umash::derive(1, bytes) }
    }
}

/// Checksum of a sector.
///
/// For a long sector it is the hash of the hashes of its steps. Two contents have the same checksum
/// only if all steps that differ collide, or if one of the hashes of hashes does, of which a sector
/// of 2 MiB has four.
pub fn checksum(key: &Key, bytes: &[u8]) -> u64 {
    checksum_by(key, bytes, |_| {})
}

/// The same for bytes that are probably in no cache of the processor.
pub fn checksum_cold(key: &Key, bytes: &[u8]) -> u64 {
    vm::prefetch(bytes.as_ptr() as usize, bytes.len().min(STEP));
    checksum_by(key, bytes, |step| vm::prefetch(step.as_ptr() as usize + AHEAD, STEP))
}

fn checksum_by(key: &Key, bytes: &[u8], ahead_of: impl Fn(&[u8])) -> u64 {
    if bytes.len() <= STEP {
        return key.steps.hash(bytes);
    }
    let mut sum = 0;
    for steps in bytes.chunks(STEP * STEPS_MAX) {
        // The sum so far, and the hashes that follow it.
        let mut hashes = [0; 8 * (STEPS_MAX + 1)];
        hashes[..8].copy_from_slice(&u64::to_le_bytes(sum));
        for (step, hash) in steps.chunks(STEP).zip(hashes[8..].chunks_exact_mut(8)) {
            ahead_of(step);
            hash.copy_from_slice(&key.steps.hash(step).to_le_bytes());
        }
        sum = key.above.hash(&hashes);
    }
    sum
}

/// The 64-bit word that `bytes` consists of, if it is repeated throughout.
pub fn repeated_word(bytes: &[u8]) -> Option<u64> {
    let word = <[u8; 8]>::try_from(bytes.get(..8)?).ok()?;
    (bytes[8..] == bytes[..bytes.len() - 8]).then(|| u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_repeated_word_is_recognised() {
        assert_eq!(repeated_word(&[0; 4096]), Some(0));
        assert_eq!(
            repeated_word(&0x0123_4567_89ab_cdefu64.to_le_bytes().repeat(512)),
            Some(0x0123_4567_89ab_cdef)
        );
        for at in [0, 7, 8, 4095] {
            let mut bytes = [0u8; 4096];
            bytes[at] = 1;
            assert_eq!(repeated_word(&bytes), None, "{at}");
        }
    }

    fn key(byte: u8) -> Key {
        Key::from_bytes(&[byte; 32])
    }

    #[test]
    fn the_checksum_depends_on_content_and_key() {
        let mut bytes = [7u8; 8192];
        let sum = checksum(&key(1), &bytes);
        assert_ne!(sum, checksum(&key(2), &bytes));
        bytes[8191] ^= 1;
        assert_ne!(sum, checksum(&key(1), &bytes));
    }

    #[test]
    fn the_checksum_of_cold_bytes_is_the_same() {
        let bytes: Vec<u8> =
            (0..70_000u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        for len in [0, 1, 8, 240, 241, 2047, 2048, 2049, 4096, 8192, 65_536, 70_000] {
            assert_eq!(
                checksum_cold(&key(3), &bytes[..len]),
                checksum(&key(3), &bytes[..len]),
                "{len}"
            );
        }
    }

    /// Contents that collide under one of 64 seeds of XXH3 (two flipped sign bits of two numbers)
    /// do not collide under any key here.
    #[test]
    fn flipped_sign_bits_do_not_cancel() {
        let flipped = |at: &[usize]| {
            let mut bytes = vec![0x5a_u8; 4096];
            at.iter().for_each(|&at| bytes[at] ^= 0x80);
            bytes
        };
        let collisions = |sum: &dyn Fn(u8, &[u8]) -> u64| {
            let pairs = (0..64).flat_map(|stripe| {
                (1..8).map(move |next| (stripe * 8 + 7, (stripe + next) % 64 * 8 + 7))
            });
            pairs
                .filter(|&(a, b)| {
                    (0..8).any(|seed| sum(seed, &flipped(&[])) == sum(seed, &flipped(&[a, b])))
                })
                .count()
        };
        assert_eq!(collisions(&|seed, bytes| checksum(&key(seed), bytes)), 0);
    }
}
