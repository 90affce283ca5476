//! All system calls and all unsafe code of the project.
//!
//! Every module that contains `unsafe` states its contract at its head.

pub mod attributes;
mod bpf;
pub mod codec;
pub mod cpu;
pub mod exit;
pub mod fds;
pub mod frame;
pub mod helper;
pub mod hoard;
pub mod host;
pub mod hot;
pub mod hugearena;
pub mod hugepool;
pub mod keeper;
pub mod lock;
pub mod mailbox;
pub mod maps;
pub mod network;
pub mod notify;
pub mod private;
pub mod private_table;
pub mod quiet;
pub mod scratch;
pub mod shared;
pub mod signals;
pub mod slabmem;
pub mod sockets;
pub mod stack;
pub mod sync;
pub mod table;
pub mod tcp_info;
pub mod territory;
pub mod transport;
pub mod uffd;
pub mod umash;
pub mod uring;
pub mod vector;
pub mod vm;
pub mod wait;
pub mod workload;
