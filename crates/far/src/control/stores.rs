//! Where far memory is, as the control page tells.

use hiroma_sys::transport;

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
    /// Connections for content that were made to servers so far, over TCP and in shared memory.
    pub tcp_connections: u64,
    pub shared_connections: u64,
}

impl Stores {
    pub(super) const WORDS: usize = 7;

    pub(super) fn to_words(self) -> [u64; Stores::WORDS] {
        [
            self.compressed_bytes,
            self.file_bytes,
            self.server_bytes,
            self.short_bytes,
            self.recopied_bytes,
            self.tcp_connections,
            self.shared_connections,
        ]
    }

    pub(super) fn of_words(words: [u64; Stores::WORDS]) -> Stores {
        let [
            compressed_bytes,
            file_bytes,
            server_bytes,
            short_bytes,
            recopied_bytes,
            tcp_connections,
            shared_connections,
        ] = words;
        Stores {
            compressed_bytes,
            file_bytes,
            server_bytes,
            short_bytes,
            recopied_bytes,
            tcp_connections,
            shared_connections,
        }
    }

    /// What carries the connections to servers; empty without any.
    pub fn transport(&self) -> &'static str {
        match (self.tcp_connections, self.shared_connections) {
            (0, 0) => "",
            (_, 0) => transport::TCP,
            (0, _) => transport::SHARED_MEMORY,
            _ => "tcp and shared memory",
        }
    }
}
