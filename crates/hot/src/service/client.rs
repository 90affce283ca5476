//! The process's side of the service.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hiroma_sys::host::dirs;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use zerocopy::IntoBytes;

use super::protocol::{
    self, HandlingResult, Header, Kind, PAGES_MAX, Page, Registration, TEXT_MAX, VERSION, receive,
    send,
};

/// Environment variable that replaces the usual sockets.
pub const SOCKET_VARIABLE: &str = "HIROMA_HOT_SOCKET";
const FILE_NAME: &str = "hiroma-hot.sock";
/// Timeout for an answer of the daemon. It answers between rounds of tracking, which take
/// milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Why the daemon cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no `hiroma hot serve` listens on {}: {source}", .path.display())]
    NoDaemon { path: PathBuf, source: io::Error },
    #[error("no `hiroma hot serve` runs here ({tried}): start it, as root or as this user")]
    NoDaemonAnywhere { tried: String },
    #[error("the hot page daemon refused: {reason}")]
    Refused { errno: i32, reason: String },
    #[error("the connection to the hot page daemon broke: {0}")]
    Broken(io::Error),
}

impl ClientError {
    /// The errno for this error.
    pub fn errno(&self) -> i32 {
        match self {
            ClientError::NoDaemon { source, .. } => {
                source.raw_os_error().unwrap_or(Errno::CONNREFUSED.raw_os_error())
            }
            ClientError::NoDaemonAnywhere { .. } => Errno::CONNREFUSED.raw_os_error(),
            ClientError::Refused { errno, .. } => *errno,
            ClientError::Broken(source) => {
                source.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
            }
        }
    }
}

fn broken(errno: Errno) -> ClientError {
    ClientError::Broken(errno.into())
}

/// The socket of a daemon that this user starts: `/run/hiroma-hot.sock` for root, for other users
/// in their runtime directory.
pub fn own_socket() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return Path::new("/run").join(FILE_NAME);
    }
    dirs::runtime()
        .unwrap_or_else(|| format!("/tmp/hiroma-{}", rustix::process::geteuid().as_raw()).into())
        .join(FILE_NAME)
}

/// The sockets to try: only `$HIROMA_HOT_SOCKET` if it is set, otherwise root's and then the user's
/// own.
fn usual_sockets() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os(SOCKET_VARIABLE) {
        return vec![path.into()];
    }
    let mut paths = vec![Path::new("/run").join(FILE_NAME), own_socket()];
    paths.dedup();
    paths
}

fn connect_to(path: &Path) -> Result<OwnedFd, ClientError> {
    let attempt = || -> Result<OwnedFd, Errno> {
        let address = SocketAddrUnix::new(path)?;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, Some(ANSWER_TIMEOUT))?;
        }
        connect(&socket, &address)?;
        Ok(socket)
    };
    attempt().map_err(|errno| ClientError::NoDaemon { path: path.to_owned(), source: errno.into() })
}

fn reach(path: Option<&Path>) -> Result<OwnedFd, ClientError> {
    if let Some(path) = path {
        return connect_to(path);
    }
    let mut tried = Vec::new();
    for path in usual_sockets() {
        match connect_to(&path) {
            Ok(socket) => return Ok(socket),
            Err(ClientError::NoDaemon { path, source }) => {
                tried.push(format!("{}: {source}", path.display()))
            }
            Err(error) => return Err(error),
        }
    }
    Err(ClientError::NoDaemonAnywhere { tried: tried.join(", ") })
}

/// Sends a request and receives the answer, which has to be of kind `wanted`, with its text.
fn ask(
    socket: BorrowedFd<'_>,
    request: &Header,
    wanted: Kind,
) -> Result<(Header, String, Option<OwnedFd>), ClientError> {
    send(socket, request, &[], None).map_err(broken)?;
    let mut text = vec![0; TEXT_MAX];
    let (header, len, fd) = receive(socket, &mut text).map_err(broken)?;
    let text = String::from_utf8_lossy(&text[..len]).into_owned();
    match Kind::of(header.kind) {
        Some(Kind::Refused) => {
            Err(ClientError::Refused { errno: header.args[0] as i32, reason: text })
        }
        Some(kind) if kind == wanted && header.version == VERSION => Ok((header, text, fd)),
        _ => Err(broken(Errno::PROTO)),
    }
}

/// The text of the status of the daemon at `path` (or in the usual places): the registered
/// processes and their shares.
pub fn status(path: Option<&Path>) -> Result<String, ClientError> {
    let socket = reach(path)?;
    Ok(ask(socket.as_fd(), &Header::new(Kind::Status, [0; 6]), Kind::Text)?.1)
}

/// The same as JSON, as shown by `hiroma hot top`.
///
/// # Errors
/// As [`status`].
pub fn status_json(path: Option<&Path>) -> Result<String, ClientError> {
    let socket = reach(path)?;
    Ok(ask(socket.as_fd(), &Header::new(Kind::Status, [1, 0, 0, 0, 0, 0]), Kind::Text)?.1)
}

/// A registered process. Dropping the client ends the registration.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    event: Option<OwnedFd>,
    backend: String,
    share_ranges: u64,
}

/// The result of a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fetched {
    /// Pages in the buffer, by address.
    pub pages: usize,
    /// Waiting pages that did not fit.
    pub left: u64,
    /// Ranges of 2 MiB that the process may still make huge.
    pub may_collapse: u64,
}

impl Client {
    /// Registers with the daemon at `path`, or in the usual places.
    pub fn register(path: Option<&Path>, wish: &Registration) -> Result<Client, ClientError> {
        let socket = reach(path)?;
        let (welcome, backend, event) = ask(socket.as_fd(), &wish.to_header(), Kind::Welcome)?;
        Ok(Client { socket, event, backend, share_ranges: welcome.args[0] })
    }

    /// The socket: becomes readable only when the daemon closes it.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the socket and the eventfd, for callers that keep descriptors by number.
    pub fn into_parts(self) -> (OwnedFd, Option<OwnedFd>) {
        (self.socket, self.event)
    }

    /// The eventfd, if one was requested: readable when pages wait; its value is the number of
    /// pages announced.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    /// How the daemon tracks this process.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Ranges of 2 MiB that the process was allowed to have huge when it registered.
    pub fn share_ranges(&self) -> u64 {
        self.share_ranges
    }

    /// See [`fetch`].
    pub fn fetch(&self, buffer: &mut [Page]) -> Result<Fetched, Errno> {
        fetch(self.socket(), buffer)
    }

    /// See [`handled`].
    pub fn handled(&self, outcome: &HandlingResult) -> Result<(), Errno> {
        handled(self.socket(), outcome)
    }
}

/// Fetches active pages into a buffer of any size. Never allocates, so that a signal handler may
/// call it. After an error the connection is unusable.
pub fn fetch(socket: BorrowedFd<'_>, buffer: &mut [Page]) -> Result<Fetched, Errno> {
    let mut fetched = Fetched::default();
    while fetched.pages < buffer.len() {
        let room = &mut buffer[fetched.pages..];
        let most = room.len().min(PAGES_MAX);
        let room = &mut room[..most];
        send(socket, &Header::new(Kind::Fetch, [most as u64, 0, 0, 0, 0, 0]), &[], None)?;
        let (header, len, _) = receive(socket, room.as_mut_bytes())?;
        let [pages, left, may_collapse, ..] = header.args;
        let pages = usize::try_from(pages).map_err(|_| Errno::PROTO)?;
        if header.kind != Kind::Pages as u16 || pages > most || len != pages * size_of::<Page>() {
            return Err(Errno::PROTO);
        }
        fetched = Fetched { pages: fetched.pages + pages, left, may_collapse };
        // The daemon does not start a range that does not fit in the rest of the buffer.
        if left == 0
            || pages == 0
            || pages < most && fetched.pages + hiroma_units::PAGES_PER_EXTENT > buffer.len()
        {
            break;
        }
    }
    Ok(fetched)
}

/// Reports to the daemon what was done with the pages. Never allocates.
pub fn handled(socket: BorrowedFd<'_>, outcome: &HandlingResult) -> Result<(), Errno> {
    send(socket, &outcome.to_header(), &[], None)?;
    let (header, _, _) = receive(socket, &mut [])?;
    if header.kind == protocol::Kind::Done as u16 { Ok(()) } else { Err(Errno::PROTO) }
}
