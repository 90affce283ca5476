//! Load for a memcached server that checks every returned value: its content and, for items that
//! only the requesting thread writes, that it is the last one written.
//!
//! The paper on huge pages guided by the application (section 6.4) loads memcached with 800,000
//! items of 512 bytes, read only, keys drawn from a zipfian distribution. That is the default here.
//!
//! Other loads of memory: texts to sort, pages of half-compressible content ([`content`]), and
//! memory that is held so that a hypervisor keeps it backed ([`ballast`]).

pub mod ballast;
mod client;
pub mod content;
mod keys;
mod run;
pub mod server;
mod value;

pub use client::{Connection, Endpoint, LoadError};
pub use keys::{Distribution, Keys, key_of};
pub use run::{RunResult, RunSpec, Store, fill, run};
pub use value::{ValueError, check_value, make_value};
