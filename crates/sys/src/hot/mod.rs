//! Reading the pages of other processes, and changing how they are mapped.
//!
//! | Module | What |
//! |---|---|
//! | [`target`] | a process: identity that survives reuse of its number, advice on its memory |
//! | [`child`] | a child that shares everything, and what it inherits |
//! | [`maps`] | `/proc/PID/maps` |
//! | [`lockdown`] | whether the kernel prevents BPF from reading |
//! | [`walk`] | its page tables, through BPF |
//! | [`pagemap`] | `/proc/PID/pagemap`: which pages only this process maps |
//! | [`idle`] | the idle page bitmap, and the flags of page frames |

pub mod child;
mod entries;
pub mod idle;
pub mod lockdown;
pub mod maps;
pub mod pagemap;
pub mod target;
pub mod walk;
