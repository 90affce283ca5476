//! Reports: tables for the terminal, SVG plots, and one self-contained HTML page that holds both.
//!
//! The crate does not know what it reports on. Callers bring titles, units and numbers; this crate
//! aligns, scales and draws.
//!
//! - [`Measure`]: one figure with its spread, what the literature reports, what must and should be
//!   reached, and whether it is.
//! - [`Table`] and [`Plot`]: what a [`Section`] shows.
//! - [`atomic`]: files of results that are there as a whole or not at all.
//! - [`Report`]: all of it, with the machine and the command; becomes text, JSON or HTML.

pub mod atomic;
mod html;
mod machine;
mod measure;
mod plot;
mod report;
mod scale;
mod table;

pub use machine::Machine;
pub use measure::{Better, Bound, Measure, Paper, Spread, measures_table};
pub use plot::{Axis, Kind, Plot, Point, Series};
pub use report::{Report, Section};
pub use scale::figures;
pub use table::{Align, Table};
