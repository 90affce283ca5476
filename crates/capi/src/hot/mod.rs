//! Huge pages where the program is hot: the process's side of `hiroma hot serve`, and memory for
//! hot objects.

pub mod arena;
pub mod export;
mod handling;
mod state;
