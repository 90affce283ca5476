//! Why a connection cannot continue.

use std::io;

use crate::store::StoreError;
use crate::store::tcp::Shared;

/// Trouble with a connection.
pub enum Trouble {
    /// It broke: reconnect.
    Broken(String),
    /// Reconnecting cannot help.
    Fatal(StoreError),
}

impl Trouble {
    /// For trouble after which reconnecting makes no sense.
    pub fn into_fatal(self, shared: &Shared, server: usize) -> Trouble {
        match self {
            Trouble::Broken(reason) => Trouble::Fatal(shared.broken_protocol(server, &reason)),
            fatal @ Trouble::Fatal(_) => fatal,
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Broken(error.to_string())
    }
}
