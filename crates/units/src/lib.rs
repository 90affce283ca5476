//! Ids, sizes and times that all other crates use, with their text forms, and the one generator of
//! random numbers that have to be the same everywhere.

mod ids;
mod random;
mod size;
mod time;

pub use ids::{BlockId, ExtentNo, Loc, Nanos};
pub use random::Rng;
pub use size::{Bytes, ParseSizeError, SizeSpec};
pub use time::{ParseTimeError, parse_time};

/// Bytes in one base page of the machines that are supported (x86-64 and aarch64 with 4 KiB pages).
pub const PAGE: usize = 4096;
/// Bytes in one extent: the unit of huge mode, and the size of a PMD-mapped huge page.
pub const EXTENT: usize = 2 << 20;
/// Pages in one extent.
pub const PAGES_PER_EXTENT: usize = EXTENT / PAGE;
