//! Facts about this machine, each determined in one place: its memory, and the control groups that
//! limit it.

pub mod cgroup;
pub mod memory;
