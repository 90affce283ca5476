//! What carries the bytes of a connection between a client and a memory server: TCP, or memory that
//! both share if they are on the same machine.
//!
//! A connection always begins over TCP, and is authenticated there. [`offer`] is how it goes on in
//! shared memory.

pub mod offer;
pub mod ring;
pub mod shared;
pub mod tcp;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use crate::hugepool::{HugePool, PoolRange};

/// The name of TCP.
pub const TCP: &str = "tcp";
/// The name of shared memory.
pub const SHARED_MEMORY: &str = "shared memory";

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Something to receive.
    Bytes = 0,
    /// Room for something to send.
    Room = 1,
}

/// A stream of bytes in both directions. Calls that do not wait fail with `WouldBlock` if there is
/// nothing to do; no call does more than its buffers allow.
pub trait Transport: Send {
    /// What users know it by.
    fn name(&self) -> &'static str;

    /// Sends as much of the parts as is accepted. Returns the number of bytes.
    fn send(&mut self, parts: &[IoSlice<'_>], wait: bool) -> io::Result<usize>;

    /// Fills the parts with what has arrived. Returns the number of bytes, 0 at the end of the stream.
    fn receive(&mut self, parts: &mut [IoSliceMut<'_>], wait: bool) -> io::Result<usize>;

    /// Sends `head` and then a range of a pool.
    fn send_from(
        &mut self,
        head: &[u8],
        pool: &HugePool,
        range: PoolRange,
        wait: bool,
    ) -> io::Result<usize>;

    /// Receives into a range of a pool and, when that is full, into `tail`.
    fn receive_to(
        &mut self,
        pool: &HugePool,
        range: PoolRange,
        tail: &mut [u8],
        wait: bool,
    ) -> io::Result<usize>;

    /// Waits, possibly for less than what is awaited.
    fn wait(&mut self, awaited: Awaited) -> io::Result<()>;

    /// A socket that becomes readable when something has arrived, or the other end is gone.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Whether that socket becomes writable when there is room; if not, it becomes readable.
    fn is_socket_writable_when_ready(&self) -> bool {
        true
    }

    /// Called before a sleep until the socket is ready; `is_blocked`: also if there is room to send.
    /// False: there is something to do already, and the socket may not become ready for it.
    fn may_sleep(&self, _is_blocked: bool) -> bool {
        true
    }

    /// Looks whether the other end is still there, if calls that do not wait would not notice.
    fn look(&mut self) {}

    /// Whether the peer runs on this thread's processor, and would be kept from it by a thread that
    /// polls.
    fn is_beside_peer(&self) -> bool;
}
