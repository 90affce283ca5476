//! What a sector holds: its checksum, and whether it is one word repeated.

use twox_hash::XxHash3_64;

/// Checksum of a sector. The seed is drawn per process, so that nobody can prepare two contents with one checksum.
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// The 64-bit word that `bytes` repeats from end to end, if it does.
pub fn repeated_word(bytes: &[u8]) -> Option<u64> {
    let word = <[u8; 8]>::try_from(bytes.get(..8)?).ok()?;
    (bytes[8..] == bytes[..bytes.len() - 8]).then(|| u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_word_is_seen_and_nothing_else() {
        assert_eq!(repeated_word(&[0; 4096]), Some(0));
        assert_eq!(repeated_word(&0x0123_4567_89ab_cdefu64.to_le_bytes().repeat(512)), Some(0x0123_4567_89ab_cdef));
        for at in [0, 7, 8, 4095] {
            let mut bytes = [0u8; 4096];
            bytes[at] = 1;
            assert_eq!(repeated_word(&bytes), None, "{at}");
        }
    }

    #[test]
    fn the_checksum_depends_on_content_and_seed() {
        let mut bytes = [7u8; 8192];
        let sum = checksum(1, &bytes);
        assert_ne!(sum, checksum(2, &bytes));
        bytes[8191] ^= 1;
        assert_ne!(sum, checksum(1, &bytes));
    }
}
