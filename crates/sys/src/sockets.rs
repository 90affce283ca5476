//! Settings of TCP sockets that carry memory.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Idle seconds after which the kernel probes whether the peer is still alive.
const KEEPALIVE_IDLE_S: u64 = 5;
const KEEPALIVE_INTERVAL_S: u64 = 2;
const KEEPALIVE_PROBES: u32 = 5;
/// How long sent bytes may stay unacknowledged before the kernel closes the connection.
const UNACKNOWLEDGED_MS_MAX: u32 = 15_000;

/// Configures a TCP socket for memory transfers: no delay to fill packets, and a peer that vanishes
/// silently is detected within about 15 seconds. Buffer sizes are left to the kernel, which lets
/// them grow further than an unprivileged process may set them.
pub fn tune(socket: &impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(KEEPALIVE_IDLE_S))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(KEEPALIVE_INTERVAL_S))?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MS_MAX)?;
    Ok(())
}

/// Interval of the probes of an idle connection whose peer must not be silent for long.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Asks the peer's kernel for a sign of life each second in which the connection is idle. It answers
/// as long as the peer's process has not ended, whether that runs or is stopped.
pub fn probe_often(socket: &impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_keepidle(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, 2 * KEEPALIVE_PROBES)?;
    Ok(())
}

/// Added to a limit of silence, so that whoever set it acts on it before the kernel does.
const SILENCE_MARGIN: Duration = Duration::from_secs(15);

/// Keeps the connection while nothing arrives for `limit`, whether bytes or probes are
/// unacknowledged: the kernel closes it only later. The user timeout decides about both, whatever
/// the number of probes is.
pub fn bear_silence(socket: &impl AsFd, limit: Duration) -> io::Result<()> {
    let ms = u32::try_from(limit.saturating_add(SILENCE_MARGIN).as_millis());
    // The kernel takes an `int`.
    let ms = ms.unwrap_or(u32::MAX).min(i32::MAX as u32);
    Ok(sockopt::set_tcp_user_timeout(socket.as_fd(), ms)?)
}

/// Whether data that arrives at the socket comes from the processor on which this thread runs: then
/// its peer is on this machine, and a thread that polls for the next bytes without sleeping keeps
/// the peer from sending them.
pub fn is_beside_its_peer(socket: &impl AsFd) -> bool {
    sockopt::socket_incoming_cpu(socket)
        .is_ok_and(|cpu| cpu as usize == rustix::thread::sched_getcpu())
}

/// Random bytes from the kernel's cryptographic generator.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0u8; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::tcp_info::silence;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn silence_is_borne_beyond_its_limit() {
        let (near, _far) = pair();
        tune(&near).unwrap();
        bear_silence(&near, Duration::from_secs(30)).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&near).unwrap(), 45_000);
        bear_silence(&near, Duration::MAX).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&near).unwrap(), i32::MAX as u32);
    }

    #[test]
    fn silence_before_a_reset_is_still_known_after_it() {
        let (mut near, far) = pair();
        std::thread::sleep(Duration::from_millis(300));
        sockopt::set_socket_linger(&far, Some(Duration::ZERO)).unwrap();
        drop(far);
        let error = near.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert!(silence(&near).unwrap() >= Duration::from_millis(200));
    }
}
