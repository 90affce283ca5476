//! Facts about this machine, each determined in one place: its memory, the control groups that
//! limit it, and its processes.

pub mod cgroup;
pub mod dirs;
pub mod memory;
pub mod proc;
