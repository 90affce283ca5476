//! Symbols of libraries that are loaded already.
//!
//! Contract: only addresses are looked up; what is there is read through [`crate::memory`].
#![allow(unsafe_code)]

use std::ffi::CStr;

/// The address of an exported symbol, such as those of libjvm.so, which the `java` command loads for all to see.
pub fn address(name: &CStr) -> Option<u64> {
    // SAFETY: the name ends with a zero byte, and looking up calls no code of the symbol.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() { None } else { Some(found.expose_provenance() as u64) }
}
