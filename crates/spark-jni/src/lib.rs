//! `libhiroma_jvm.so`: what the Spark plugin (`jvm/hiroma-spark`) cannot do in Java on JDK 17 to
//! 21: calls of the C library, and of the JVM's native interface. On newer JDKs the plugin does the
//! same through `java.lang.foreign`, so this library contains nothing but the calls.
//!
//! A panic of a Rust library would end the JVM (`panic = "abort"`), so whatever can fail returns a
//! `Result` or a number, which becomes a Java exception in [`export`] or in Java.

pub mod advice;
pub mod export;
pub mod libc_calls;
pub mod memory;

use std::io;

/// Why the JVM's state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the JVM's memory at {address:#x} cannot be read: {source}")]
    Unreadable { address: u64, source: io::Error },
    #[error("the JVM answers a call of its native interface with an error: {0}")]
    Java(jni::errors::Error),
}
