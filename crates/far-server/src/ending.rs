//! How connections end, and what their peers are told.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hiroma_far_wire::{ErrorCode, Message, VERSIONS, WireError};
use hiroma_sys::tcp_info;

use crate::session::lock;

/// Time that a peer has for reading the last message.
const FAREWELL: Duration = Duration::from_secs(1);
/// What a peer may send after it.
const IGNORED_MAX: usize = 1 << 20;
/// Connections that were turned away and are still open: no more than there are spare descriptors.
const PARTING_MAX: usize = 16;
/// A reset after so long a silence is the end of a failure of the network: the peer's machine was
/// heard each second before.
const SILENT_MIN: Duration = Duration::from_secs(5);

/// Why a connection ends.
#[derive(Debug)]
pub enum End {
    /// The peer closed it, or its kernel did when its process ended; or this server shut it.
    Closed,
    /// The network failed, or the peer does not know the connection any more.
    Broken(io::ErrorKind),
    /// The peer violated the protocol.
    Wire(WireError),
    /// Its place is needed for another one.
    TurnedAway,
    /// The peer sent `Bye`.
    Bye,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Broken(error.kind())
    }
}

impl From<WireError> for End {
    fn from(error: WireError) -> End {
        End::Wire(error)
    }
}

/// What the end of a connection says about its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The client has ended, or connects again at once.
    Closed,
    /// The network failed, and nothing was heard for this long.
    Network(Duration),
    /// The network works again after a failure, in which the client gave this connection up: it
    /// will connect again when it notices.
    Forgotten,
}

impl Loss {
    /// What this end of a connection says.
    pub fn of<T>(ended: &Result<T, End>, socket: &impl AsFd) -> Loss {
        let Err(End::Broken(kind)) = ended else { return Loss::Closed };
        Loss::judge(*kind, tcp_info::silence(socket).unwrap_or_default())
    }

    fn judge(kind: io::ErrorKind, silence: Duration) -> Loss {
        use io::ErrorKind::{ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut};
        match kind {
            TimedOut | HostUnreachable | NetworkUnreachable => Loss::Network(silence),
            ConnectionReset if silence > SILENT_MIN => Loss::Forgotten,
            _ => Loss::Closed,
        }
    }
}

/// Sends the last bytes and gives the peer time to read them: closing a socket with unread bytes
/// would discard them. Returns after a second at the latest, whatever the peer does.
pub fn part_with(mut stream: &TcpStream, last: &[u8]) {
    let deadline = Instant::now() + FAREWELL;
    let left = || deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    let mut sent = 0;
    while sent < last.len() {
        let Some(left) = left() else { return };
        let _ = stream.set_write_timeout(Some(left));
        match stream.write(&last[sent..]) {
            Ok(count) if count > 0 => sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let (mut ignored, mut rest) = (0, [0; 2048]);
    while ignored < IGNORED_MAX {
        let Some(left) = left() else { return };
        let _ = stream.set_read_timeout(Some(left));
        match stream.read(&mut rest) {
            Ok(count) if count > 0 => ignored += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

/// What a peer is told for which there is no place.
pub fn no_place(version: u16) -> Vec<u8> {
    let text = "the server has too many connections: try again in a moment".to_owned();
    let mut bytes = Vec::new();
    Message::Error { code: ErrorCode::TooMany, text }.encode(version, 0, &mut bytes);
    bytes
}

/// Connections that were turned away. They stay open for a moment without a thread of their own,
/// for the same reason for which [`part_with`] waits.
#[derive(Default)]
pub struct Parting(Mutex<VecDeque<(Instant, Arc<TcpStream>)>>);

impl Parting {
    /// Tells a peer that was just accepted that there is no place.
    pub fn turn_away(&self, stream: Arc<TcpStream>) {
        let bytes = no_place(*VERSIONS.start());
        let said = stream.set_nonblocking(true).and_then(|()| (&*stream).write(&bytes));
        if said.is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
            let mut parting = lock(&self.0);
            parting.push_back((Instant::now(), stream));
            if parting.len() > PARTING_MAX {
                parting.pop_front();
            }
        }
    }

    /// Closes those that had their time.
    pub fn close_old(&self) {
        let mut parting = lock(&self.0);
        while parting.front().is_some_and(|(since, _)| since.elapsed() >= FAREWELL) {
            parting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn silence_of_the_network_is_told_from_a_client_that_ended() {
        let s = Duration::from_secs;
        for kind in [ErrorKind::TimedOut, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable]
        {
            assert_eq!(Loss::judge(kind, s(17)), Loss::Network(s(17)));
        }
        assert_eq!(Loss::judge(ErrorKind::ConnectionReset, s(17)), Loss::Forgotten);
        assert_eq!(Loss::judge(ErrorKind::ConnectionReset, s(1)), Loss::Closed);
        assert_eq!(Loss::judge(ErrorKind::BrokenPipe, s(17)), Loss::Closed);
        let ended: io::Error = rustix::io::Errno::HOSTUNREACH.into();
        assert!(matches!(End::from(ended), End::Broken(ErrorKind::HostUnreachable)));
    }

    #[test]
    fn peer_that_sends_on_and_on_is_parted_with_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let trickle = std::thread::spawn(move || {
            while peer.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let start = Instant::now();
        part_with(&stream, b"farewell");
        assert!(start.elapsed() < 3 * FAREWELL, "{:?}", start.elapsed());
        drop(stream);
        trickle.join().unwrap();
    }
}
