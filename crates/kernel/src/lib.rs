//! The only system calls and the only unsafe of the project.
//!
//! Every module that holds `unsafe` states its contract at its head.

pub mod cpu;
pub mod frame;
pub mod lock;
pub mod shared;
pub mod slabmem;
pub mod table;
pub mod uffd;
pub mod vm;
