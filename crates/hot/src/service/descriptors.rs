//! Descriptors: how many the daemon may have, and what it does when there are no more.

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::daemon::{Daemon, Peer};
use super::protocol::refuse;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 512;
/// Maximum number of processes that are managed by rules.
const CHOSEN_MAX: u64 = 256;
/// Descriptors of a managed process: for the process, its page tables, its page map, its ledger,
/// and some that are open for a short time.
const PER_PROCESS: u64 = 16;
/// Descriptors for the daemon itself and for connections.
const RESERVED: u64 = 128;
/// Time without new connections after one could not be accepted.
const PAUSE_NS: u64 = 1_000_000_000;

/// Raises the limit of open files as far as this process may. Programs that are started later
/// inherit it; the daemon starts none.
pub fn raise() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where it is refused, fewer processes are managed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The number of processes that may be managed by rules under the present limit of open files.
pub(super) fn chosen_max() -> usize {
    processes(getrlimit(Resource::Nofile).current)
}

fn processes(descriptors: Option<u64>) -> usize {
    let all = descriptors.unwrap_or(u64::MAX);
    (all.saturating_sub(RESERVED) / PER_PROCESS).min(CHOSEN_MAX) as usize
}

impl Daemon {
    /// Accepts a connection. Where that fails, for lack of descriptors for example, the connection
    /// stays in the queue, and the listener would be readable all the time: it is left alone for a
    /// while.
    pub(super) fn accept(&mut self, now_ns: u64) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match accept_with(&self.listener, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(errno) => {
                if self.accept_at_ns.is_none() {
                    self.log(&format!("no connection can be accepted now: {errno}"));
                }
                self.accept_at_ns = Some(now_ns + PAUSE_NS);
                return;
            }
        };
        self.accept_at_ns = None;
        let Ok(credentials) = socket_peercred(&socket) else { return };
        if self.peers.len() >= CONNECTIONS_MAX {
            let text = format!("{CONNECTIONS_MAX} processes are connected already");
            let _ = refuse(&socket, Errno::USERS, &text);
            return;
        }
        self.next_id += 1;
        self.peers.insert(self.next_id, Peer { socket, credentials, member: None });
    }

    /// Whether new connections are waited for.
    pub(super) fn accepts(&self, now_ns: u64) -> bool {
        self.accept_at_ns.is_none_or(|at_ns| now_ns >= at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_bounded_by_descriptors() {
        assert_eq!(processes(None), 256);
        assert_eq!(processes(Some(65536)), 256);
        assert_eq!(processes(Some(1024)), 56);
        assert_eq!(processes(Some(100)), 0);
    }
}
