//! `libhiroma_jvm.so`: what the Spark plugin (`jvm/hiroma-spark`) cannot do in Java: advice on pages of the heap, and a look at where the
//! heap and its regions are.
//!
//! The library runs inside executors. It reads the JVM's memory through `/proc/self/mem`, so that an address that is not what it was
//! taken for is an error and not the end of the process, and it never writes there. The panics of a Rust library would end the JVM
//! (`panic = "abort"`), so what can fail is a `Result`, which becomes a Java exception in [`export`].

pub mod advice;
pub mod arena;
pub mod export;
pub mod g1;
pub mod memory;
pub mod pages;
pub mod symbols;
pub mod vmstructs;

use std::io;

/// Why something of the JVM or of its pages cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this JVM does not describe itself: {0} is missing from its vmStructs tables")]
    Undescribed(String),
    #[error("the JVM's memory at {address:#x} cannot be read: {source}")]
    Unreadable { address: u64, source: io::Error },
    #[error("this JVM's heap does not look like that of G1: {0}")]
    Unlikely(String),
    #[error("the JVM answers a call of its native interface with an error: {0}")]
    Java(jni::errors::Error),
    #[error("the kernel does not tell which pages are huge (PAGEMAP_SCAN, Linux 6.7): {0}")]
    Untold(io::Error),
}
