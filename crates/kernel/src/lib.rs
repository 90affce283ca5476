//! The only system calls and the only unsafe of the project.
//!
//! Every module that holds `unsafe` states its contract at its head.

pub mod frame;
pub mod shared;
