//! Quiet: measures how much time the kernel and other programs steal from programs, and reclaims
//! file cache before the kernel has to.
//!
//! | Module | What |
//! |---|---|
//! | [`meter`] | fixed work and fixed time quanta on each processor, and what stole the time |
//! | [`bsp`] | a program that computes in steps, over threads and processes: what that costs it |
//! | [`picture`] | both as text and as a report |
//! | [`daemon`] | reclaims early; its decisions are `hiroma_policy::reclaim`'s |
//! | [`metrics`] | what the daemon did, for Prometheus |
//! | [`advise`] | the cheapest remedy that would help here |
//! | [`fillers`], [`groups`] | who moves data, and which control groups reach their limits |
//! | [`verdict`] | what a recording comes to, in one sentence |
//! | [`settings`] | what can be changed while it runs |

pub mod advise;
pub mod bsp;
pub mod daemon;
pub mod error;
pub mod fillers;
pub mod groups;
pub mod meter;
pub mod metrics;
pub mod picture;
pub mod settings;
pub mod verdict;

pub use error::QuietError;
