//! Far memory in the process: regions whose pages live partly in local memory and partly in a
//! store.
//!
//! Start reading at [`Pager`]. `fault` handles faults, `evict` frees memory, `core` is the state.
//! Only `mover` moves pages.

pub mod accessed;
mod addresses;
mod answer;
mod canary;
pub mod config;
mod content;
pub mod control;
mod copies;
mod core;
mod demote;
mod discard;
mod drain;
pub mod elsewhere;
mod error;
mod evict;
mod extent;
pub mod fatal;
mod fault;
mod fetch;
mod fork;
mod frames;
mod fresh;
mod guard;
pub mod hooks;
mod host;
mod inherit;
mod life;
mod live;
mod lost;
mod memory;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod mover;
pub mod nursery;
mod pack;
mod pager;
mod ranges;
mod recorder;
mod removal;
mod room;
mod service;
mod stage;
mod starved;
pub mod store;
pub mod trace;
mod wakes;
pub mod waking;
mod watchdog;
mod writeback;
mod yielding;

pub use addresses::Owner;
pub use config::{Config, LOCAL_MIN};
pub use control::{Counter, Snapshot};
pub use error::PagerError;
pub use hiroma_sys::territory;
pub use pager::{Advice, Pager};
