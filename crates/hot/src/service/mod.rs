//! One daemon for many processes: they register over a Unix socket; it tracks them, divides a
//! budget of huge pages among them, and reports to each which of its pages are active.
//!
//! | Module | What |
//! |---|---|
//! | [`protocol`] | messages on the socket |
//! | [`client`] | the process's side; usable in a signal handler |
//! | [`daemon`] | the other side: which processes may register, their steps and shares |
//! | [`descriptors`] | how many it may have, and what it does without |
//! | [`metrics`] | what it does, for Prometheus |
//! | [`select`] | which processes it manages that have not registered |
//! | [`notice`] | what is reported to a process, and when; pages wait until they are fetched |
//!
//! Source: "HPS" (Shimizu and Yamada), sections 4.2, 5.1.2 and 5.2. There the kernel notifies a
//! process, which fetches the pages with a system call; here the daemon queues the same signal
//! (`pidfd_send_signal(2)`), and the process fetches over the socket.

mod chosen;
pub mod client;
pub mod daemon;
pub mod descriptors;
pub mod metrics;
pub mod notice;
pub mod protocol;
pub mod select;
mod socket;
mod status;
mod subject;
pub mod watch;
