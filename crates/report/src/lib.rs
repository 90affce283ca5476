//! Reports: tables for the terminal, SVG plots, and one self-contained HTML page with both.
//!
//! The crate does not know what it reports on. Callers supply titles, units and numbers; this crate
//! aligns, scales and draws.
//!
//! - [`Measure`]: one figure with its spread, what the literature reports, what must and should be
//!   reached, and whether it is.
//! - [`Table`] and [`Plot`]: the content of a [`Section`].
//! - [`atomic`]: result files that are complete or do not exist.
//! - [`Report`]: all of the above, with the machine and the command; rendered as text, JSON or
//!   HTML.

pub mod atomic;
mod estimate;
mod html;
mod machine;
mod measure;
mod plot;
mod report;
mod scale;
mod table;

pub use estimate::{Estimate, Verdict, compare_paired};
pub use machine::Machine;
pub use measure::{Better, Bound, Measure, Paper, Spread, measures_table};
pub use plot::{Axis, Kind, Plot, Point, Series};
pub use report::{Report, Section};
pub use scale::figures;
pub use table::{Align, Table};
