//! Quiet: how much time the kernel and others steal from programs, and a daemon that reclaims file cache before the kernel has to.
//!
//! | Module | What |
//! |---|---|
//! | [`meter`] | fixed work and fixed time quanta on each processor, and who stole the time |
//! | [`picture`] | that as text and as a report |

pub mod meter;
pub mod picture;
