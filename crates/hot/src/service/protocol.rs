//! Messages between a process and the daemon.
//!
//! A `SOCK_SEQPACKET` socket preserves message boundaries: each message is a [`Header`] and the
//! data that its kind implies. Numbers are in native byte order, since both ends are on one
//! machine. Sending and receiving never allocate, so that a signal handler may use them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First word of every message.
pub const MAGIC: u32 = 0x4850_5331;
/// Version of this protocol. A daemon refuses others.
pub const VERSION: u16 = 1;
/// Maximum number of pages in one message.
pub const PAGES_MAX: usize = 2048;
/// Maximum length of text in a message, in bytes.
pub const TEXT_MAX: usize = 16 << 10;

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// To the daemon: request to track a process. Arguments: see [`Registration`].
    Register = 1,
    /// To the daemon: request for the active pages, at most `args[0]`.
    Fetch = 2,
    /// To the daemon: what was done with them. Arguments: see [`HandlingResult`].
    Handled = 3,
    /// To the daemon: request for the status. Every user may send it.
    Status = 4,
    /// From the daemon: registered. Carries an eventfd if requested. `args[0]`: the share in ranges
    /// of 2 MiB; the backend's name follows.
    Welcome = 16,
    /// From the daemon: `args[0]` pages follow, `args[1]` are left, `args[2]` ranges of 2 MiB may
    /// still be made huge.
    Pages = 17,
    /// From the daemon: done.
    Done = 18,
    /// From the daemon: refused. `args[0]` is an errno; the reason follows as text.
    Refused = 19,
    /// From the daemon: a text follows.
    Text = 20,
}

impl Kind {
    /// The kind with this number.
    pub fn of(number: u16) -> Option<Kind> {
        use Kind::{Done, Fetch, Handled, Pages, Refused, Register, Status, Text, Welcome};
        [Register, Fetch, Handled, Status, Welcome, Pages, Done, Refused, Text]
            .into_iter()
            .find(|&kind| kind as u16 == number)
    }
}

/// Start of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    pub magic: u32,
    pub version: u16,
    pub kind: u16,
    pub args: [u64; 6],
}

impl Header {
    /// The header of a message of `kind`.
    pub fn new(kind: Kind, args: [u64; 6]) -> Header {
        Header { magic: MAGIC, version: VERSION, kind: kind as u16, args }
    }

    /// An empty header, to receive into.
    pub fn empty() -> Header {
        Header { magic: 0, version: 0, kind: 0, args: [0; 6] }
    }
}

/// An active page: also the C structure `hps_page`.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Page {
    /// Address of its first byte.
    pub address: u64,
    /// Windows in which it was touched, with decay.
    pub count: u32,
    pub reserved: u32,
}

/// Which side makes pages huge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The process: it is notified of all its active pages, and decides.
    Notified,
    /// The daemon: it makes hot ranges huge itself, and the process is notified of active pages in
    /// ranges with too few of them.
    Managed,
}

/// What a process requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The process to track; 0: the requesting process.
    pub pid: u32,
    pub mode: Mode,
    /// Real-time signal to send; 0: none.
    pub signal: i32,
    /// Whether an eventfd is requested.
    pub eventfd: bool,
    /// Count from which a page is active; 0: the daemon's rule.
    pub count_min: u32,
    /// Number of active pages from which the process is notified; at least 1.
    pub pages_min: u32,
    /// Maximum bytes that may be made huge for the process; 0: its share.
    pub budget_bytes: u64,
}

impl Registration {
    /// Converts to a message.
    pub fn to_header(self) -> Header {
        let mode = match self.mode {
            Mode::Notified => 0,
            Mode::Managed => 1,
        };
        let flags = mode | u64::from(self.eventfd) << 1;
        let counts = u64::from(self.count_min) << 32 | u64::from(self.pages_min);
        Header::new(
            Kind::Register,
            [self.pid.into(), flags, u64::from(self.signal as u32), counts, self.budget_bytes, 0],
        )
    }

    /// Parses a message.
    ///
    /// # Errors
    /// The reason why the request is invalid.
    pub fn from_header(header: &Header) -> Result<Registration, String> {
        let [pid, flags, signal, counts, budget_bytes, _] = header.args;
        if flags > 3 {
            return Err(format!("flags {flags:#x} are of a later version"));
        }
        let pid = u32::try_from(pid)
            .ok()
            .filter(|&pid| pid <= i32::MAX as u32)
            .ok_or_else(|| format!("{pid} is not the number of a process"))?;
        let (first, last) = hiroma_sys::notify::realtime_signals();
        let signal = i32::try_from(signal)
            .ok()
            .filter(|&signal| signal == 0 || (first..=last).contains(&signal))
            .ok_or_else(|| {
                format!("signal {signal} is not one of the real-time signals {first} to {last}")
            })?;
        Ok(Registration {
            pid,
            mode: if flags & 1 == 0 { Mode::Notified } else { Mode::Managed },
            signal,
            eventfd: flags & 2 != 0,
            count_min: (counts >> 32) as u32,
            pages_min: (counts as u32).max(1),
            budget_bytes,
        })
    }
}

/// What a process did with the pages it was notified of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HandlingResult {
    /// Ranges of 2 MiB made huge in place.
    pub collapsed: u64,
    /// Ranges whose objects were moved.
    pub compacted: u64,
    /// Ranges left alone.
    pub left: u64,
    /// Ranges for which one of these failed.
    pub failed: u64,
    /// Longest call of a function of the program, in nanoseconds.
    pub call_ns_max: u64,
}

impl HandlingResult {
    /// Converts to a message.
    pub fn to_header(self) -> Header {
        Header::new(
            Kind::Handled,
            [self.collapsed, self.compacted, self.left, self.failed, self.call_ns_max, 0],
        )
    }

    /// Parses a message.
    pub fn from_header(header: &Header) -> HandlingResult {
        let [collapsed, compacted, left, failed, call_ns_max, _] = header.args;
        HandlingResult { collapsed, compacted, left, failed, call_ns_max }
    }
}

/// Sends a message, with a descriptor if one is given.
pub fn send(
    socket: BorrowedFd<'_>,
    header: &Header,
    rest: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    loop {
        match sendmsg(
            socket,
            &[IoSlice::new(header.as_bytes()), IoSlice::new(rest)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Receives a message: its header, and as much of the rest as fits in `rest`. Returns the header,
/// the length of the rest, and the descriptor if one was sent.
///
/// # Errors
/// `EPIPE`: the other side has closed the connection. `EPROTO`: not a message of this protocol, or
/// longer than `rest`.
pub fn receive(
    socket: BorrowedFd<'_>,
    rest: &mut [u8],
) -> Result<(Header, usize, Option<OwnedFd>), Errno> {
    let mut header = Header::empty();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let mut parts = [IoSliceMut::new(header.as_mut_bytes()), IoSliceMut::new(rest)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match got.bytes.checked_sub(size_of::<Header>()) {
        _ if got.bytes == 0 => Err(Errno::PIPE),
        Some(rest) if header.magic == MAGIC && !got.flags.contains(ReturnFlags::TRUNC) => {
            Ok((header, rest, fd))
        }
        _ => Err(Errno::PROTO),
    }
}

/// Refuses with an errno and a reason. A text that does not fit is truncated.
pub fn refuse(socket: &impl AsFd, errno: Errno, reason: &str) -> Result<(), Errno> {
    let header = Header::new(Kind::Refused, [errno.raw_os_error() as u64, 0, 0, 0, 0, 0]);
    send(socket.as_fd(), &header, cut(reason).as_bytes(), None)
}

/// The longest prefix of a text that fits in a message.
pub fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn message_arrives_whole_with_descriptor_or_fails() {
        let (a, b) = pair();
        let header = Header::new(Kind::Pages, [1, 2, 3, 4, 5, 6]);
        send(a.as_fd(), &header, b"rest", Some(a.as_fd())).unwrap();
        let mut rest = [0; 8];
        let (got, len, fd) = receive(b.as_fd(), &mut rest).unwrap();
        assert_eq!((got, &rest[..len]), (header, &b"rest"[..]));
        assert!(fd.is_some());
        send(a.as_fd(), &header, b"more than fits", None).unwrap();
        assert_eq!(receive(b.as_fd(), &mut rest).unwrap_err(), Errno::PROTO);
        rustix::io::write(&a, b"nonsense").unwrap();
        assert_eq!(receive(b.as_fd(), &mut rest).unwrap_err(), Errno::PROTO);
        rustix::io::write(&a, &[0; 80]).unwrap();
        assert_eq!(receive(b.as_fd(), &mut [0; 80]).unwrap_err(), Errno::PROTO);
        // The received descriptor is a copy of the same end.
        drop((a, fd));
        assert_eq!(receive(b.as_fd(), &mut rest).unwrap_err(), Errno::PIPE);
    }

    #[test]
    fn invalid_registrations_are_refused_with_a_reason() {
        let good = Registration {
            pid: 0,
            mode: Mode::Notified,
            signal: 0,
            eventfd: false,
            count_min: 0,
            pages_min: 1,
            budget_bytes: 0,
        };
        for (at, value) in [(0, u64::MAX), (0, 1 << 31), (1, 4), (2, 9), (2, u64::MAX), (2, 65)] {
            let mut header = good.to_header();
            header.args[at] = value;
            assert!(Registration::from_header(&header).is_err(), "argument {at} is {value}");
        }
    }

    #[test]
    fn long_reasons_are_cut_at_character_boundaries() {
        let text = "広".repeat(TEXT_MAX);
        assert!(cut(&text).len() <= TEXT_MAX && cut(&text).ends_with('広'));
    }

    proptest! {
        #[test]
        fn registrations_round_trip(pid in 0u32..=i32::MAX as u32, managed: bool, eventfd: bool, signal in 0i32..20, count_min: u32, pages_min in 1u32.., budget_bytes: u64) {
            let first = hiroma_sys::notify::realtime_signals().0;
            let mode = if managed { Mode::Managed } else { Mode::Notified };
            let signal = if signal == 0 { 0 } else { first + signal };
            let wish = Registration { pid, mode, signal, eventfd, count_min, pages_min, budget_bytes };
            prop_assert_eq!(Registration::from_header(&wish.to_header()), Ok(wish));
        }

        #[test]
        fn arbitrary_headers_never_crash_the_reader(args: [u64; 6], kind: u16) {
            let header = Header { magic: MAGIC, version: VERSION, kind, args };
            let _ = (Registration::from_header(&header), HandlingResult::from_header(&header), Kind::of(kind));
        }
    }
}
