//! Networks: what messages wait for between sender and receiver.
//!
//! In [`fifo`] the times of a hop are known when it begins. In a [`fabric`] they depend on what
//! comes later: it has events of its own.

mod fabric;
mod fair;
mod fifo;
mod line;
mod packets;

pub use fabric::{Done, Fabric, LinkSpec, Signals};
pub use fifo::{Network, transfer_ns};
