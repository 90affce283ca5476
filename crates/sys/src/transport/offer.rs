//! How both ends of a TCP connection come to share memory, if they are on the same machine.
//!
//! The server listens at an abstract Unix name that nobody can guess, and tells that and a secret over
//! the TCP connection. A client that reaches the name is in the same network namespace; the secret
//! shows that it is this client, because names are listed for all processes of a machine. It is given
//! the memory there, and the connection through which it came is the bell from then on.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};

use super::ring::{self, Reader, Sizes, Writer};
use crate::sockets;

/// Strangers may have come before the client.
const BACKLOG: i32 = 8;
/// The sizes, as sent with the memory.
const SIZES_BYTES: usize = 8;

/// What the client is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Invitation {
    /// The name of the socket.
    pub name: [u8; 16],
    /// What to say there.
    pub secret: [u8; 16],
}

/// An invitation that waits for its client.
pub struct Offer {
    listener: OwnedFd,
    invitation: Invitation,
}

/// Whether both ends of a connection have the same address, or addresses of the loopback device: then
/// it is worth trying.
pub fn is_worth_trying(stream: &TcpStream) -> bool {
    let (Ok(ours), Ok(peers)) = (stream.local_addr(), stream.peer_addr()) else { return false };
    ours.ip() == peers.ip() || ours.ip().is_loopback() && peers.ip().is_loopback()
}

fn address(name: &[u8; 16]) -> rustix::io::Result<SocketAddrUnix> {
    let text =
        name.iter().fold("hiroma-rings-".to_owned(), |text, byte| format!("{text}{byte:02x}"));
    SocketAddrUnix::new_abstract_name(text.as_bytes())
}

fn unix_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

impl Offer {
    /// Listens for the client.
    pub fn open() -> io::Result<Offer> {
        let invitation = Invitation { name: sockets::random(), secret: sockets::random() };
        let listener = unix_socket()?;
        bind(&listener, &address(&invitation.name)?)?;
        listen(&listener, BACKLOG)?;
        Ok(Offer { listener, invitation })
    }

    /// What to tell the client.
    pub fn invitation(&self) -> Invitation {
        self.invitation
    }

    /// Gives the client its end of new rings. It has come already, or this fails. Returns the server's
    /// end, and the bell.
    pub fn hand_over(self, sizes: Sizes) -> io::Result<((Writer, Reader), OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let bell = loop {
            let bell = accept_with(&self.listener, flags)?;
            let mut said = [0u8; 17];
            if matches!(recv(&bell, &mut said, RecvFlags::DONTWAIT), Ok((_, 16)))
                && said[..16] == self.invitation.secret
            {
                break bell;
            }
        };
        let (file, writer, reader) = ring::create(sizes)?;
        let mut text = [0u8; SIZES_BYTES];
        text[..4].copy_from_slice(&(sizes.to_server as u32).to_le_bytes());
        text[4..].copy_from_slice(&(sizes.to_client as u32).to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        if !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(Errno::NOBUFS.into());
        }
        let sent = sendmsg(&bell, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)?;
        if sent != text.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(((writer, reader), bell))
    }
}

/// Goes to where the server listens. Does not wait.
pub fn come(invitation: &Invitation) -> io::Result<OwnedFd> {
    let socket = unix_socket()?;
    connect(&socket, &address(&invitation.name)?)?;
    match send(&socket, &invitation.secret, SendFlags::NOSIGNAL)? {
        16 => Ok(socket),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Takes what the server has handed over. Does not wait.
pub fn take(bell: &OwnedFd) -> io::Result<(Writer, Reader)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0u8; SIZES_BYTES];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = recvmsg(bell, &mut [IoSliceMut::new(&mut text)], &mut control, flags)?;
    let files = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let file = files.ok_or(io::ErrorKind::UnexpectedEof)?;
    if got.bytes != text.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize;
    let sizes = Sizes { to_server: number(&text[..4]), to_client: number(&text[4..]) };
    ring::open(&file, sizes)
}
