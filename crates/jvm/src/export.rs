//! What `io.hiroma.spark.Native` and `io.hiroma.HugeMemory` call (JNI).
//!
//! Contract: the JVM calls these functions with the arguments that `Native.java` declares. Errors become Java exceptions; if even that
//! fails an exception is pending already.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use jni::JNIEnv;
use jni::objects::{JByteBuffer, JClass, JObjectArray};
use jni::sys::{jint, jlong, jlongArray, jobject};

use crate::Error;
use crate::advice::{Advice, advise};
use crate::arena;
use crate::g1::G1;
use crate::memory::{Memory, OwnMemory};
use crate::pages::{Run, huge_runs, present_runs};
use crate::symbols;
use crate::vmstructs::VmStructs;

/// The heap does not move; the tables are read once.
static HEAP: OnceLock<G1> = OnceLock::new();

fn heap(memory: &OwnMemory) -> Result<G1, Error> {
    if let Some(found) = HEAP.get() {
        return Ok(*found);
    }
    let found = G1::find(memory, &VmStructs::read(memory, symbols::address)?)?;
    Ok(*HEAP.get_or_init(|| found))
}

fn heap_range() -> Result<Vec<jlong>, Error> {
    let g1 = heap(&OwnMemory::open()?)?;
    let (base, len) = g1.heap();
    Ok([base, len, g1.region_bytes()].map(|value| value as jlong).to_vec())
}

fn region_list() -> Result<Vec<jlong>, Error> {
    let memory = OwnMemory::open()?;
    let regions = heap(&memory)?.regions(&memory)?;
    Ok(regions.iter().flat_map(|region| [region.bottom as jlong, region.top as jlong, region.kind.number()]).collect())
}

fn run_list(found: Result<Vec<Run>, Error>) -> Result<Vec<jlong>, Error> {
    Ok(found?.iter().flat_map(|run| [run.start as jlong, run.end as jlong]).collect())
}

/// Where the objects are at this moment, 0 for null. A local reference of HotSpot is the address of a word that holds that of the object
/// (`JNIHandles`); the collector keeps the word right.
fn object_addresses(env: &mut JNIEnv, objects: &JObjectArray) -> Result<Vec<jlong>, Error> {
    let memory = OwnMemory::open()?;
    let (base, len) = heap(&memory)?.heap();
    let count = env.get_array_length(objects).map_err(Error::Java)?;
    (0..count)
        .map(|index| {
            let object = env.get_object_array_element(objects, index).map_err(Error::Java)?;
            let object = env.auto_local(object);
            let word = object.as_raw().expose_provenance() as u64;
            let address = if word == 0 { 0 } else { memory.u64(word)? };
            if address == 0 || (base..base + len).contains(&address) {
                Ok(address as jlong)
            } else {
                Err(Error::Unlikely(format!("an object at {address:#x}")))
            }
        })
        .collect()
}

fn buffer_address(env: &JNIEnv, buffer: &JByteBuffer) -> jlong {
    env.get_direct_buffer_address(buffer).map_or(0, |at| at.expose_provenance() as jlong)
}

/// The numbers as a Java array, or null and an exception.
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

/// `madvise`; 0, or the number of the error.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_spark_Native_advise(_env: JNIEnv, _class: JClass, address: jlong, len: jlong, advice: jint) -> jint {
    let (Ok(address), Ok(len), Some(advice)) = (usize::try_from(address), usize::try_from(len), Advice::from_number(advice)) else {
        return libc::EINVAL;
    };
    match advise(address, len, advice) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// First address, bytes, and bytes of a region.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_spark_Native_heap(mut env: JNIEnv, _class: JClass) -> jlongArray {
    returned(&mut env, heap_range())
}

/// First address, end of what is used, and kind of each region.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_spark_Native_regions(mut env: JNIEnv, _class: JClass) -> jlongArray {
    returned(&mut env, region_list())
}

/// First and last address of each run of huge pages.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_spark_Native_hugeRuns(mut env: JNIEnv, _class: JClass, start: jlong, end: jlong) -> jlongArray {
    returned(&mut env, run_list(huge_runs(start as u64, end as u64)))
}

/// First and last address of each run of pages that are in memory.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_spark_Native_presentRuns(mut env: JNIEnv, _class: JClass, start: jlong, end: jlong) -> jlongArray {
    returned(&mut env, run_list(present_runs(start as u64, end as u64)))
}

/// Address of each object at this moment; 0 for null.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_spark_Native_addresses(mut env: JNIEnv, _class: JClass, objects: JObjectArray) -> jlongArray {
    let found = object_addresses(&mut env, &objects);
    returned(&mut env, found)
}

/// Address of the memory of a direct buffer; 0 for another one.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_HugeMemory_address(env: JNIEnv, _class: JClass, buffer: JByteBuffer) -> jlong {
    buffer_address(&env, &buffer)
}

/// The same.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_spark_Native_bufferAddress(env: JNIEnv, _class: JClass, buffer: JByteBuffer) -> jlong {
    buffer_address(&env, &buffer)
}

/// Memory that is born huge, as a direct buffer; null and an exception if there is none.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_HugeMemory_map(mut env: JNIEnv, _class: JClass, bytes: jlong) -> jobject {
    let mapped = usize::try_from(bytes).map_err(|_| std::io::ErrorKind::InvalidInput.into()).and_then(arena::map);
    let at = match mapped {
        Ok(at) => at,
        Err(error) => {
            let _ = env.throw_new("java/lang/OutOfMemoryError", format!("{bytes} bytes on huge pages: {error}"));
            return std::ptr::null_mut();
        }
    };
    // SAFETY: `bytes` bytes were just mapped there, and `HugeMemory.java` unmaps them when nothing reaches the buffer any more.
    let buffer = unsafe { env.new_direct_byte_buffer(std::ptr::with_exposed_provenance_mut(at), bytes as usize) };
    // Without a buffer an exception is pending, and the memory was never touched.
    buffer.map_or(std::ptr::null_mut(), |buffer| buffer.into_raw())
}

/// Gives back what `map` has mapped.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_HugeMemory_unmap(_env: JNIEnv, _class: JClass, address: jlong, bytes: jlong) {
    if let (Ok(address), Ok(len)) = (usize::try_from(address), usize::try_from(bytes)) {
        // SAFETY: `HugeMemory.java` calls this once for each mapping, when no buffer of it can be reached.
        unsafe { arena::unmap(address, len) };
    }
}

/// First and last address of each run of huge pages.
// SAFETY: no other library exports this name.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_hiroma_HugeMemory_hugeRuns(mut env: JNIEnv, _class: JClass, start: jlong, end: jlong) -> jlongArray {
    returned(&mut env, run_list(huge_runs(start as u64, end as u64)))
}
