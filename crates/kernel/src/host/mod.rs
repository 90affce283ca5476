//! What is true of this machine, each thing found in one place: its memory, and the control groups
//! that bound it.

pub mod cgroup;
pub mod memory;
