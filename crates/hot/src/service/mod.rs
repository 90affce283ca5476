//! One daemon for many processes: they register over a Unix socket, it tracks them, divides a
//! budget of huge pages among them, and tells each which of its pages are active.
//!
//! | Module | What |
//! |---|---|
//! | [`protocol`] | messages on the socket |
//! | [`client`] | the process's side; usable in a signal handler |
//! | [`daemon`] | the other side: who may register, whose turn it is, what each may have |
//! | [`notice`] | what a process is told and when: pages wait until they are fetched, so no signal is lost |
//!
//! Source: "HPS" (Shimizu and Yamada), sections 4.2, 5.1.2 and 5.2. There a process is told by the
//! kernel and asks by a system call; here the daemon queues the same signal
//! (`pidfd_send_signal(2)`), and the process asks over the socket.

pub mod client;
pub mod daemon;
pub mod notice;
pub mod protocol;
pub mod watch;
