//! A connection in shared memory ([`super::ring`]): its bell, and its end.
//!
//! The bell is a Unix socket: a byte wakes who sleeps at the other end, and the socket shows when the
//! other end is gone. The connection's TCP socket stays open beside it, silent: shutting that down ends
//! the connection as before.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::ring::{Damaged, End, Reader, Ring, Writer};
use super::{Awaited, Transport};
use crate::hugepool::{HugePool, PoolRange};

/// After this many calls, the sockets are looked at although there was no reason to.
const LOOK_EVERY: u32 = 256;
/// The same of calls that had nothing to do.
const LOOK_EVERY_IDLE: u32 = 32;

/// See the module's head.
pub struct SharedMemory {
    end: End,
    writer: Writer,
    reader: Reader,
    bell: OwnedFd,
    tcp: Arc<TcpStream>,
    /// What the peer was told that we wait for.
    announced: [Cell<bool>; 2],
    /// The peer has rung, and its byte has not arrived yet.
    due: Cell<bool>,
    /// The other end is gone, or this connection was shut.
    gone: Cell<bool>,
    calls: u32,
}

fn ring(bell: &OwnedFd) {
    // If it takes no more, there are bytes enough to wake the peer; if it is closed, nobody sleeps.
    let _ = send(bell, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

impl SharedMemory {
    /// `tcp` is the connection that goes on here.
    pub fn new(
        end: End,
        (writer, reader): (Writer, Reader),
        bell: OwnedFd,
        tcp: Arc<TcpStream>,
    ) -> SharedMemory {
        SharedMemory {
            end,
            writer,
            reader,
            bell,
            tcp,
            announced: [const { Cell::new(false) }; 2],
            due: Cell::new(false),
            gone: Cell::new(false),
            calls: 0,
        }
    }

    /// Looks at the sockets; waits for an event there if `wait`.
    fn look_at_sockets(&self, wait: bool) -> io::Result<()> {
        let mut fds = [
            PollFd::new(&self.bell, PollFlags::IN),
            PollFd::new(&*self.tcp, PollFlags::IN | PollFlags::RDHUP),
        ];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, (!wait).then_some(&now)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let [bell, tcp] = fds.map(|fd| fd.revents());
        // Nothing is sent on the TCP connection any more: whatever is seen there is its end.
        self.gone.set(self.gone.get() || !tcp.is_empty());
        if !bell.is_empty() {
            self.hear();
        }
        Ok(())
    }

    /// Takes the bytes of the bell.
    fn hear(&self) {
        match recv(&self.bell, &mut [0u8; 64], RecvFlags::DONTWAIT) {
            Ok((_, 1..)) => self.due.set(false),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 0)) | Err(_) => self.gone.set(true),
        }
    }

    fn announce(&self, awaited: Awaited) -> bool {
        self.announced[awaited as usize].set(true);
        match awaited {
            Awaited::Bytes => self.reader.announce(),
            Awaited::Room => self.writer.announce(),
        }
    }

    /// Awake: nothing is waited for any more.
    fn withdraw(&self) {
        let [bytes, room] = self.announced.each_ref().map(Cell::take);
        let was_rung = (bytes && self.reader.withdraw()) | (room && self.writer.withdraw());
        self.due.set(self.due.get() || was_rung);
        if self.due.get() {
            self.hear();
        }
    }

    /// Called first in each call.
    fn begin(&mut self) -> io::Result<()> {
        if self.announced.iter().any(Cell::get) || self.due.get() {
            self.withdraw();
        }
        self.calls += 1;
        if self.calls >= LOOK_EVERY {
            self.calls = 0;
            self.look_at_sockets(false)?;
        }
        Ok(())
    }

    /// What becomes of a call that had nothing to do; an error, unless it is to be repeated.
    fn pause(&mut self, awaited: Awaited, wait: bool) -> io::Result<()> {
        if wait {
            if self.announce(awaited) {
                self.look_at_sockets(true)?;
            }
            self.withdraw();
            return Ok(());
        }
        self.calls += LOOK_EVERY / LOOK_EVERY_IDLE;
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn receive_with(
        &mut self,
        wait: bool,
        mut read: impl FnMut(&mut Reader, Ring<'_>) -> Result<usize, Damaged>,
    ) -> io::Result<usize> {
        self.begin()?;
        loop {
            let gone = self.gone.get();
            // A client reads what the server said last; a server ends at once, whatever else comes.
            if gone && self.end == End::Server {
                return Ok(0);
            }
            let received = read(&mut self.reader, &mut || ring(&self.bell))?;
            if received > 0 || gone {
                return Ok(received);
            }
            self.pause(Awaited::Bytes, wait)?;
        }
    }

    fn send_with(
        &mut self,
        wait: bool,
        mut write: impl FnMut(&mut Writer, Ring<'_>) -> Result<usize, Damaged>,
    ) -> io::Result<usize> {
        self.begin()?;
        loop {
            if self.gone.get() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let sent = write(&mut self.writer, &mut || ring(&self.bell))?;
            if sent > 0 {
                return Ok(sent);
            }
            self.pause(Awaited::Room, wait)?;
        }
    }
}

impl Transport for SharedMemory {
    fn name(&self) -> &'static str {
        super::SHARED_MEMORY
    }

    fn send(&mut self, parts: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        self.send_with(wait, |writer, ring| writer.write(parts, ring))
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>], wait: bool) -> io::Result<usize> {
        self.receive_with(wait, |reader, ring| reader.read(parts, ring))
    }

    fn send_from(
        &mut self,
        head: &[u8],
        pool: &HugePool,
        range: PoolRange,
        wait: bool,
    ) -> io::Result<usize> {
        self.send_with(wait, |writer, ring| writer.write_from(head, pool, range, ring))
    }

    fn receive_to(
        &mut self,
        pool: &HugePool,
        range: PoolRange,
        tail: &mut [u8],
        wait: bool,
    ) -> io::Result<usize> {
        self.receive_with(wait, |reader, ring| reader.read_to(pool, range, tail, ring))
    }

    fn wait(&mut self, awaited: Awaited) -> io::Result<()> {
        self.begin()?;
        if !self.gone.get() { self.pause(awaited, true) } else { Ok(()) }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn is_socket_writable_when_ready(&self) -> bool {
        false
    }

    fn may_sleep(&self, is_blocked: bool) -> bool {
        self.announce(Awaited::Bytes) && (!is_blocked || self.announce(Awaited::Room))
    }

    fn look(&mut self) {
        let _ = self.look_at_sockets(false);
    }

    fn is_beside_peer(&self) -> bool {
        self.reader.writer_cpu() == rustix::thread::sched_getcpu()
    }
}

#[cfg(test)]
mod tests;
