//! What `io.hiroma.spark.Native` calls (JNI).
//!
//! Contract: the JVM calls these functions with the arguments that `Native.java` declares. Errors become Java exceptions; if even that
//! fails an exception is pending already.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use jni::JNIEnv;
use jni::objects::JClass;
use jni::sys::{jint, jlong, jlongArray};

use crate::Error;
use crate::advice::{Advice, advise};
use crate::g1::G1;
use crate::memory::OwnMemory;
use crate::pages::huge_runs;
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

fn run_list(start: jlong, end: jlong) -> Result<Vec<jlong>, Error> {
    let runs = huge_runs(start as u64, end as u64)?;
    Ok(runs.iter().flat_map(|run| [run.start as jlong, run.end as jlong]).collect())
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
    returned(&mut env, run_list(start, end))
}
