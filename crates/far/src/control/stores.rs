//! Where far memory is, as the control page tells.

/// Where far memory is, and how much of it misses copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stores {
    /// Bytes in use in each kind of store.
    pub compressed_bytes: u64,
    pub file_bytes: u64,
    pub server_bytes: u64,
    /// Bytes that are in fewer servers than they should be.
    pub short_bytes: u64,
    /// Bytes that were copied again so far.
    pub recopied_bytes: u64,
}

impl Stores {
    pub(super) const WORDS: usize = 5;

    pub(super) fn to_words(self) -> [u64; Stores::WORDS] {
        let Stores { compressed_bytes, file_bytes, server_bytes, short_bytes, recopied_bytes } =
            self;
        [compressed_bytes, file_bytes, server_bytes, short_bytes, recopied_bytes]
    }

    pub(super) fn of_words(words: [u64; Stores::WORDS]) -> Stores {
        let [compressed_bytes, file_bytes, server_bytes, short_bytes, recopied_bytes] = words;
        Stores { compressed_bytes, file_bytes, server_bytes, short_bytes, recopied_bytes }
    }
}
