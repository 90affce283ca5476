//! The only system calls and the only unsafe of the project.
//!
//! Every module that holds `unsafe` states its contract at its head.

mod bpf;
pub mod cpu;
pub mod exit;
pub mod frame;
pub mod hoard;
pub mod hot;
pub mod hugearena;
pub mod hugepool;
pub mod lock;
pub mod notify;
pub mod private;
pub mod quiet;
pub mod shared;
pub mod signals;
pub mod slabmem;
pub mod sockets;
pub mod table;
pub mod uffd;
pub mod uring;
pub mod vector;
pub mod vm;
pub mod wait;
pub mod workload;
