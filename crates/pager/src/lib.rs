//! Far memory in the process: regions whose pages live partly in local memory and partly in a store.

pub mod config;
pub mod control;
pub mod store;
