//! Descriptors that a forked child's pager needs and only its parent's pager has: the child
//! inherits the program's descriptor table, and the pager's is a separate one. They are handed over
//! through a socket. Its abstract name and a secret are both in memory that is copied to the child.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use hiroma_sys::fds;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recv, recvmsg, send, sendmsg, socket_with,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Maximum number of descriptors in one message.
const MOST: usize = 64;
/// Size of a request: the secret, and the number of the fork.
const QUESTION_BYTES: usize = 24;
/// How long to wait for the request after a connection was accepted.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Where a parent's pager listens, and the secret that its children know. An abstract name can be
/// reached from any root directory and by any user, a path from any network namespace.
#[derive(Clone, Debug)]
pub struct Address {
    name: [u8; 16],
    path: Option<PathBuf>,
    secret: [u8; 16],
}

/// The descriptors to hand over.
#[derive(Debug, Default)]
pub struct Legacy {
    /// `/dev/userfaultfd`.
    pub device: Option<RawFd>,
    /// The network namespace of the parent's pager.
    pub network: Option<RawFd>,
    /// Descriptor numbers that the store uses, the same in parent and child.
    pub numbers: Vec<RawFd>,
    /// The parent's own connections to the pagers before it. Each of those keeps the content that
    /// descendants may read until all duplicates of its connection are closed.
    pub lineage: Vec<RawFd>,
}

impl Legacy {
    /// All descriptors, in the order in which they are sent.
    fn all(&self) -> Vec<RawFd> {
        let first = [self.device, self.network].into_iter().flatten();
        first.chain(self.numbers.iter().chain(&self.lineage).copied()).collect()
    }
}

/// What the first message of the answer says: which descriptors follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Head {
    device: u32,
    network: u32,
    numbers: u32,
    lineage: u32,
}

/// The parent's side.
pub struct Listener {
    sockets: Vec<OwnedFd>,
    pub address: Address,
}

/// A child, on the parent's side.
pub struct Heir(OwnedFd);

fn socket_address(name: &[u8; 16]) -> rustix::io::Result<SocketAddrUnix> {
    let mut text = *b"hiroma-00000000000000000000000000000000";
    for (at, byte) in name.iter().enumerate() {
        let hex = |nibble: u8| b"0123456789abcdef"[nibble as usize & 15];
        (text[7 + at * 2], text[8 + at * 2]) = (hex(byte >> 4), hex(*byte));
    }
    SocketAddrUnix::new_abstract_name(&text)
}

fn seqpacket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | flags, None)
}

fn listen_at(address: &Address) -> rustix::io::Result<Vec<OwnedFd>> {
    let at = |address: SocketAddrUnix| {
        let socket = seqpacket(SocketFlags::NONBLOCK)?;
        bind(&socket, &address)?;
        listen(&socket, 64)?;
        Ok::<_, rustix::io::Errno>(socket)
    };
    let by_path = address.path.as_ref().and_then(|path| {
        let _ = std::fs::remove_file(path);
        at(SocketAddrUnix::new(path).ok()?).ok()
    });
    Ok([at(socket_address(&address.name)?)?].into_iter().chain(by_path).collect())
}

impl Listener {
    /// Listens under an unguessable abstract name, and at `path`.
    pub fn open(path: Option<PathBuf>) -> rustix::io::Result<Listener> {
        let mut random = [0u8; 32];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let (mut name, mut secret) = ([0; 16], [0; 16]);
        name.copy_from_slice(&random[..16]);
        secret.copy_from_slice(&random[16..]);
        let address = Address { name, path, secret };
        Ok(Listener { sockets: listen_at(&address)?, address })
    }

    /// Ends all connections that wait to be accepted, and listens again.
    pub fn turn_away(&mut self) -> rustix::io::Result<()> {
        self.sockets.clear();
        self.sockets = listen_at(&self.address)?;
        Ok(())
    }

    /// The sockets, which become readable when a child connects.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    /// The next child that asks, with the number of its fork. Fails with `MFILE` if there is one,
    /// but no descriptor for its connection.
    pub fn accept(&self) -> rustix::io::Result<(Heir, u64)> {
        loop {
            let mut why = Errno::AGAIN;
            let accepted = self.sockets.iter().find_map(|socket| {
                match accept_with(socket, SocketFlags::CLOEXEC) {
                    Ok(socket) => Some(socket),
                    Err(Errno::MFILE | Errno::NFILE) => {
                        why = Errno::MFILE;
                        None
                    }
                    Err(_) => None,
                }
            });
            let socket = accepted.ok_or(why)?;
            // A client that connects and sends nothing must not block others.
            set_socket_timeout(&socket, Timeout::Recv, Some(SILENCE_MAX))?;
            let mut question = [0u8; QUESTION_BYTES];
            let got =
                recv(&socket, &mut question[..], RecvFlags::empty()).map_or(0, |(_, got)| got);
            // Other processes can find the name; without the secret they get nothing.
            if got == QUESTION_BYTES && question[..16] == self.address.secret {
                let number = u64::from_ne_bytes(question[16..].try_into().expect("eight bytes"));
                return Ok((Heir(socket), number));
            }
        }
    }
}

impl AsFd for Heir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Heir {
    /// Sends the descriptors.
    pub fn give(&self, legacy: &Legacy) -> rustix::io::Result<()> {
        let head = Head {
            device: u32::from(legacy.device.is_some()),
            network: u32::from(legacy.network.is_some()),
            numbers: legacy.numbers.len() as u32,
            lineage: legacy.lineage.len() as u32,
        };
        let all = legacy.all();
        // At least one message, which has the head.
        let rest = all.get(MOST..).unwrap_or_default();
        for numbers in std::iter::once(&all[..all.len().min(MOST)]).chain(rest.chunks(MOST)) {
            fds::with_borrowed(numbers, |fds| {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                    return Err(Errno::NOBUFS);
                }
                let head = [IoSlice::new(head.as_bytes())];
                sendmsg(&self.0, &head, &mut control, SendFlags::NOSIGNAL).map(drop)
            })?;
        }
        Ok(())
    }
}

/// The descriptors that the child has received. The open connection shows the parent that the child
/// is alive.
pub struct Inherited {
    pub connection: OwnedFd,
    pub device: Option<OwnedFd>,
    pub network: Option<OwnedFd>,
    /// One for each of the parent's `numbers`, in that order.
    pub descriptors: Vec<OwnedFd>,
    /// Those of the parent's `lineage`.
    pub lineage: Vec<OwnedFd>,
}

/// Receives one message of the answer.
fn receive(connection: &OwnedFd, into: &mut Vec<OwnedFd>) -> rustix::io::Result<Head> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut head = [0u8; size_of::<Head>()];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(connection, &mut [IoSliceMut::new(&mut head)], &mut control, flags)?;
    if got.bytes != head.len() {
        return Err(Errno::CONNREFUSED);
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            into.extend(rights);
        }
    }
    // The kernel drops what there are no numbers for, and says only this.
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE);
    }
    Ok(Head::read_from_bytes(&head).expect("as many bytes"))
}

fn connected(address: &Address) -> rustix::io::Result<OwnedFd> {
    let to = |address: SocketAddrUnix| {
        let socket = seqpacket(SocketFlags::empty())?;
        connect(&socket, &address)?;
        Ok(socket)
    };
    let by_path =
        || to(SocketAddrUnix::new(address.path.as_ref().ok_or(rustix::io::Errno::NOENT)?)?);
    to(socket_address(&address.name)?).or_else(|error| by_path().map_err(|_| error))
}

/// Called in the child: requests the descriptors from the parent's pager.
pub fn ask(address: &Address, number: u64) -> rustix::io::Result<Inherited> {
    let connection = connected(address)?;
    let mut question = [0u8; QUESTION_BYTES];
    question[..16].copy_from_slice(&address.secret);
    question[16..].copy_from_slice(&number.to_ne_bytes());
    send(&connection, &question, SendFlags::NOSIGNAL)?;
    let mut received = Vec::new();
    let head = receive(&connection, &mut received)?;
    let all = [head.device, head.network, head.numbers, head.lineage].iter().sum::<u32>() as usize;
    while received.len() < all {
        let before = received.len();
        receive(&connection, &mut received)?;
        if received.len() == before {
            return Err(Errno::MFILE);
        }
    }
    let mut received = received.into_iter();
    let mut next = |count: u32| received.by_ref().take(count as usize).collect::<Vec<_>>();
    let (device, network) = (next(head.device).pop(), next(head.network).pop());
    let (descriptors, lineage) = (next(head.numbers), next(head.lineage));
    Ok(Inherited { connection, device, network, descriptors, lineage })
}

/// Whether the pager at the other end of a connection goes on.
pub fn is_kept(connection: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(connection, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut fds, Some(&now)), Ok(1..))
}
