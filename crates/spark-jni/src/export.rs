//! The functions that `io.hiroma.jvm.JniCalls` calls (JNI).
//!
//! Contract: the JVM calls these functions with the arguments that `JniCalls.java` declares. Errors
//! become Java exceptions or numbers; if even that fails, an exception is already pending.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;

use jni::JNIEnv;
use jni::objects::{JByteBuffer, JClass, JObjectArray, JString};
use jni::sys::{jint, jlong, jlongArray, jobject};

use crate::advice::{Advice, advise};
use crate::memory::OwnMemory;
use crate::{Error, libc_calls};

/// The present addresses of the objects, 0 for null. A local reference of HotSpot is the address of
/// a word that contains the object's address (`JNIHandles`); the garbage collector updates the
/// word.
fn object_addresses(env: &mut JNIEnv, objects: &JObjectArray) -> Result<Vec<jlong>, Error> {
    let memory = OwnMemory::open()?;
    let count = env.get_array_length(objects).map_err(Error::Java)?;
    (0..count)
        .map(|index| {
            let object = env.get_object_array_element(objects, index).map_err(Error::Java)?;
            let object = env.auto_local(object);
            let word = object.as_raw().expose_provenance() as u64;
            if word == 0 { Ok(0) } else { memory.u64(word).map(|address| address as jlong) }
        })
        .collect()
}

/// The numbers as a Java array; on an error null, with a pending exception.
fn returned(env: &mut JNIEnv, result: Result<Vec<jlong>, Error>) -> jlongArray {
    let numbers = match result {
        Ok(numbers) => numbers,
        Err(error) => {
            let _ = env.throw_new("java/lang/IllegalStateException", error.to_string());
            return std::ptr::null_mut();
        }
    };
    let array = i32::try_from(numbers.len()).ok().and_then(|len| env.new_long_array(len).ok());
    match array {
        Some(array) if env.set_long_array_region(&array, 0, &numbers).is_ok() => array.into_raw(),
        _ => std::ptr::null_mut(),
    }
}

/// The errno of an error.
fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// `madvise`; returns 0 or the errno.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_jvm_JniCalls_advise0(
    _env: JNIEnv,
    _class: JClass,
    address: jlong,
    len: jlong,
    kind: jint,
) -> jint {
    let (Ok(address), Ok(len), Some(advice)) =
        (usize::try_from(address), usize::try_from(len), Advice::from_number(kind))
    else {
        return libc::EINVAL;
    };
    advise(address, len, advice).map_or_else(|error| number(&error), |()| 0)
}

/// `dlsym`; 0 if there is no such symbol.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_jvm_JniCalls_symbol0(
    mut env: JNIEnv,
    _class: JClass,
    name: JString,
) -> jlong {
    let name = env.get_string(&name).ok().and_then(|name| CString::new(String::from(name)).ok());
    name.and_then(|name| libc_calls::symbol(&name)).map_or(0, |at| at as jlong)
}

/// `mmap`; returns the address, or the negative errno.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_jvm_JniCalls_map0(
    _env: JNIEnv,
    _class: JClass,
    bytes: jlong,
) -> jlong {
    let mapped = usize::try_from(bytes)
        .map_err(|_| io::ErrorKind::InvalidInput.into())
        .and_then(libc_calls::map);
    mapped.map_or_else(|error| -jlong::from(number(&error)), |at| at as jlong)
}

/// `munmap` of a part of a mapping of `map0`.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_jvm_JniCalls_unmap0(
    _env: JNIEnv,
    _class: JClass,
    address: jlong,
    bytes: jlong,
) {
    if let (Ok(address), Ok(len)) = (usize::try_from(address), usize::try_from(bytes)) {
        // SAFETY: `HugeMemory.java` calls this once for each part, when no buffer of it is
        // reachable.
        unsafe { libc_calls::unmap(address, len) };
    }
}

/// A mapping of `map0` as a direct buffer; null and an exception if there is none.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_jvm_JniCalls_buffer0(
    mut env: JNIEnv,
    _class: JClass,
    address: jlong,
    bytes: jlong,
) -> jobject {
    let (Ok(address), Ok(len)) = (usize::try_from(address), usize::try_from(bytes)) else {
        return std::ptr::null_mut();
    };
    // SAFETY: `HugeMemory.java` has mapped these bytes, and unmaps them when the buffer is no
    // longer reachable.
    let buffer =
        unsafe { env.new_direct_byte_buffer(std::ptr::with_exposed_provenance_mut(address), len) };
    buffer.map_or(std::ptr::null_mut(), |buffer| buffer.into_raw())
}

/// Address of the memory of a direct buffer; 0 for any other buffer.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_jvm_JniCalls_address0(
    env: JNIEnv,
    _class: JClass,
    buffer: JByteBuffer,
) -> jlong {
    env.get_direct_buffer_address(&buffer).map_or(0, |at| at.expose_provenance() as jlong)
}

/// The present address of each object; 0 for null.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_jvm_JniCalls_objects0(
    mut env: JNIEnv,
    _class: JClass,
    objects: JObjectArray,
) -> jlongArray {
    let found = object_addresses(&mut env, &objects);
    returned(&mut env, found)
}

/// `PAGEMAP_SCAN`; returns the number of runs, or the negative errno.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_jvm_JniCalls_scan0(
    _env: JNIEnv,
    _class: JClass,
    argument: jlong,
) -> jint {
    // SAFETY: `PageMap.java` writes the argument, and both buffers live as long as it does.
    let filled = usize::try_from(argument)
        .map_err(|_| io::ErrorKind::InvalidInput.into())
        .and_then(|argument| unsafe { libc_calls::scan(argument) });
    filled.unwrap_or_else(|error| -number(&error))
}
