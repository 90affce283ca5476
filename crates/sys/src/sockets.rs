//! Settings of TCP sockets that carry memory.

use std::io;
use std::os::fd::AsFd;

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
    sockopt::set_tcp_keepidle(socket, std::time::Duration::from_secs(KEEPALIVE_IDLE_S))?;
    sockopt::set_tcp_keepintvl(socket, std::time::Duration::from_secs(KEEPALIVE_INTERVAL_S))?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MS_MAX)?;
    Ok(())
}

/// Interval of the probes of an idle connection whose peer must not be silent for long.
const PROBE_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

/// Asks the peer's kernel for a sign of life each second in which the connection is idle. It answers
/// as long as the peer's process has not ended, whether that runs or is stopped.
pub fn probe_often(socket: &impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_keepidle(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, 2 * KEEPALIVE_PROBES)?;
    Ok(())
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
