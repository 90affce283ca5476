//! Connections in memory that client and server share.
//!
//! Each has two rings ([`hiroma_sys::transport::ring`]): a small one for requests or acknowledgements,
//! and a large one for the content that its purpose moves. The server makes their memory, so that it
//! is the server's to bound: so much for each connection, and for so many of them.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hiroma_far_wire::Purpose;
use hiroma_sys::transport::offer::{self, Offer};
use hiroma_sys::transport::ring::{End, Sizes};
use hiroma_sys::transport::shared::SharedMemory;

/// Connections in shared memory; more stay with TCP.
pub const RINGS_MAX: usize = 256;

/// Bytes of the ring for content: it stays in the processor's second-level cache.
const CONTENT_BYTES: usize = 512 << 10;
/// Bytes of the ring in the other direction.
const OTHER_BYTES: usize = 64 << 10;

fn sizes(purpose: Purpose) -> Sizes {
    match purpose {
        Purpose::Read => Sizes { to_server: OTHER_BYTES, to_client: CONTENT_BYTES },
        Purpose::Write | Purpose::Control => {
            Sizes { to_server: CONTENT_BYTES, to_client: OTHER_BYTES }
        }
    }
}

/// Counts them.
pub struct Rings {
    open: AtomicUsize,
    max: usize,
}

/// One of them, counted while this exists.
pub struct Place<'a>(&'a Rings);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rings {
    pub fn new(max: usize) -> Rings {
        Rings { open: AtomicUsize::new(0), max }
    }

    /// Listens for the client of a connection.
    pub fn offer(&self, stream: &TcpStream) -> io::Result<Offer> {
        if !offer::is_worth_trying(stream) {
            return Err(io::Error::other("the client is on another machine"));
        }
        if self.open.load(Ordering::Relaxed) >= self.max {
            return Err(too_many());
        }
        Offer::open()
    }

    /// Gives the client its end of the rings.
    pub fn hand_over(
        &self,
        offer: Offer,
        purpose: Purpose,
        stream: &Arc<TcpStream>,
    ) -> io::Result<(SharedMemory, Place<'_>)> {
        let more = |open: usize| (open < self.max).then_some(open + 1);
        self.open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| too_many())?;
        let place = Place(self);
        let (ends, bell) = offer.hand_over(sizes(purpose))?;
        Ok((SharedMemory::new(End::Server, ends, bell, Arc::clone(stream)), place))
    }
}

fn too_many() -> io::Error {
    io::Error::other("too many connections have some already")
}
