//! A connection over TCP.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};

use super::{Awaited, Transport};
use crate::hugepool::{HugePool, PoolRange};
use crate::sockets;

/// See the module's head.
pub struct Tcp(pub Arc<TcpStream>);

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        super::TCP
    }

    fn send(&mut self, parts: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        if wait {
            return (&*self.0).write_vectored(parts);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(&*self.0, parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>], wait: bool) -> io::Result<usize> {
        if wait {
            return (&*self.0).read_vectored(parts);
        }
        let mut control = RecvAncillaryBuffer::default();
        Ok(recvmsg(&*self.0, parts, &mut control, RecvFlags::DONTWAIT)?.bytes)
    }

    fn send_from(
        &mut self,
        head: &[u8],
        pool: &HugePool,
        range: PoolRange,
        wait: bool,
    ) -> io::Result<usize> {
        pool.send(self.0.as_fd(), head, range, wait)
    }

    fn receive_to(
        &mut self,
        pool: &HugePool,
        range: PoolRange,
        tail: &mut [u8],
        wait: bool,
    ) -> io::Result<usize> {
        pool.receive(self.0.as_fd(), range, tail, wait)
    }

    fn wait(&mut self, awaited: Awaited) -> io::Result<()> {
        let flags = match awaited {
            Awaited::Bytes => PollFlags::IN,
            Awaited::Room => PollFlags::OUT,
        };
        match poll(&mut [PollFd::new(&*self.0, flags)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn is_beside_peer(&self) -> bool {
        sockets::is_beside_its_peer(&*self.0)
    }
}
