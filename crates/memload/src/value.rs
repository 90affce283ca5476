//! Content of an item: bytes derived from the item's number and a version, so that a reader can
//! verify them.

use hiroma_units::Rng;

/// Item number and version come first; a shorter value cannot be checked.
pub const VALUE_BYTES_MIN: usize = 16;

/// Why a value differs from the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("the value has {got} bytes, not {wanted}")]
    Length { got: usize, wanted: usize },
    #[error("the value is that of item {got}")]
    Item { got: u64 },
    #[error("byte {at} of the value is wrong (version {version})")]
    Content { at: usize, version: u64 },
    #[error("the value is version {got}, although version {wanted} was written last")]
    Version { got: u64, wanted: u64 },
}

/// Fills `buffer` (at least 16 bytes) with version `version` of item `item`.
pub fn make_value(item: u64, version: u64, buffer: &mut [u8]) {
    buffer[..8].copy_from_slice(&item.to_le_bytes());
    buffer[8..16].copy_from_slice(&version.to_le_bytes());
    let mut random = Rng::new(item.rotate_left(32) ^ version);
    for chunk in buffer[VALUE_BYTES_MIN..].chunks_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
    }
}

/// Checks that `got` is a value of `item` with `wanted_bytes` bytes, of any version. Returns the
/// version.
pub fn check_value(item: u64, wanted_bytes: usize, got: &[u8]) -> Result<u64, ValueError> {
    if got.len() != wanted_bytes || got.len() < VALUE_BYTES_MIN {
        return Err(ValueError::Length { got: got.len(), wanted: wanted_bytes });
    }
    let word = |at: usize| u64::from_le_bytes(got[at..at + 8].try_into().expect("eight bytes"));
    let (found, version) = (word(0), word(8));
    if found != item {
        return Err(ValueError::Item { got: found });
    }
    let mut random = Rng::new(item.rotate_left(32) ^ version);
    for (number, chunk) in got[VALUE_BYTES_MIN..].chunks(8).enumerate() {
        if chunk != &random.next_u64().to_le_bytes()[..chunk.len()] {
            return Err(ValueError::Content { at: VALUE_BYTES_MIN + 8 * number, version });
        }
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_change_is_found(item: u64, version: u64, len in 16usize..600, at: usize, bit in 0u8..8) {
            let mut value = vec![0; len];
            make_value(item, version, &mut value);
            prop_assert_eq!(check_value(item, len, &value), Ok(version));
            prop_assert!(check_value(item, len + 1, &value).is_err());
            let at = at % len;
            value[at] ^= 1 << bit;
            // With 16 bytes, only the version follows the number, and any version is valid.
            let seen = check_value(item, len, &value);
            prop_assert!(seen.is_err() || (len == 16 && at >= 8 && seen != Ok(version)));
        }
    }
}
