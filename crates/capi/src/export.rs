//! The exported functions; `include/hiroma.h` describes them for callers.
//!
//! Contract: the caller follows the header, as with libc. Pointers to strings and structures are
//! valid for the call. A `hiroma_region *` is never dereferenced: it is the id of a region, so that
//! the use of a destroyed region is detected. Pointers to memory are returned only for allocations
//! of a region's heap that belong to this caller alone. A panic ends the process; it never unwinds
//! into C.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // The contract of every function is the header's.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{process, ptr, slice};

use hiroma_far::Advice;
use hiroma_far::control::Counter;

use crate::error::{CapiError, explain};
use crate::options::Request;
use crate::session::{self, Moved, Session};

/// Opaque in C.
#[repr(C)]
pub struct hiroma_region {
    _opaque: [u8; 0],
}

/// As in the header. New fields are added at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hiroma_options {
    pub size: usize,
    pub local_limit_bytes: u64,
    pub store: *const c_char,
    pub block: *const c_char,
    pub replacement: *const c_char,
    pub allocation: *const c_char,
    pub key_file: *const c_char,
    pub control_dir: *const c_char,
    pub kernel_path: *const c_char,
    pub store_timeout_ms: u32,
    pub prefetch: i32,
}

macro_rules! stats {
    ($($field:ident $counter:ident),*; added: $($added:ident $added_counter:ident),*) => {
        /// As in the header. New fields are added at the end.
        #[repr(C)]
        #[derive(Clone, Copy, Default, Debug)]
        pub struct hiroma_stats {
            pub size: usize,
            $(pub $field: u64,)*
            pub fault_latency_ns_p50: u64,
            pub fault_latency_ns_p99: u64,
            $(pub $added: u64,)*
        }

        fn stats_of(snapshot: &hiroma_far::control::Snapshot) -> hiroma_stats {
            let quantile = |share| snapshot.latency_quantile(share).map_or(0, |nanos| nanos.0);
            hiroma_stats {
                size: size_of::<hiroma_stats>(),
                $($field: snapshot.get(Counter::$counter),)*
                fault_latency_ns_p50: quantile(0.5),
                fault_latency_ns_p99: quantile(0.99),
                $($added: snapshot.get(Counter::$added_counter),)*
            }
        }

        /// Name and offset of every field, for the test that compares them with the header.
        pub const STATS_FIELDS: &[(&str, usize)] = &[
            ("size", offset_of!(hiroma_stats, size)),
            $((stringify!($field), offset_of!(hiroma_stats, $field)),)*
            ("fault_latency_ns_p50", offset_of!(hiroma_stats, fault_latency_ns_p50)),
            ("fault_latency_ns_p99", offset_of!(hiroma_stats, fault_latency_ns_p99)),
            $((stringify!($added), offset_of!(hiroma_stats, $added)),)*
        ];
        /// The counters that have a field, and its name.
        pub const STATS_COUNTERS: &[(Counter, &str)] = &[
            $((Counter::$counter, stringify!($field)),)*
            $((Counter::$added_counter, stringify!($added)),)*
        ];
    };
}

stats! {
    limit_bytes LimitBytes, local_bytes LocalBytes, local_bytes_max LocalBytesMax, resident_bytes ResidentBytes,
    staged_bytes StagedBytes, buffer_bytes BufferBytes, far_bytes FarBytes, far_bytes_max FarBytesMax, stored_bytes StoredBytes,
    store_capacity_bytes StoreCapacityBytes, mapped_bytes MappedBytes, metadata_bytes MetadataBytes,
    faults Faults, faults_fresh FaultsFresh, faults_staged FaultsStaged, faults_prefetched FaultsPrefetched,
    faults_fetched FaultsFetched, prefetches Prefetches, prefetches_wasted PrefetchesWasted,
    fetched_bytes FetchedBytes, written_bytes WrittenBytes, clean_bytes CleanBytes, pattern_bytes PatternBytes,
    stalls_for_room StallsForRoom, unevictable_bytes UnevictableBytes, mode_changes ModeChanges;
    added: accessed_reads AccessedReads, local_bytes_at_fetches LocalBytesAtFetches
}

/// Name and offset of every option, for the test that compares them with the header.
pub const OPTIONS_FIELDS: &[(&str, usize)] = &[
    ("size", offset_of!(hiroma_options, size)),
    ("local_limit_bytes", offset_of!(hiroma_options, local_limit_bytes)),
    ("store", offset_of!(hiroma_options, store)),
    ("block", offset_of!(hiroma_options, block)),
    ("replacement", offset_of!(hiroma_options, replacement)),
    ("allocation", offset_of!(hiroma_options, allocation)),
    ("key_file", offset_of!(hiroma_options, key_file)),
    ("control_dir", offset_of!(hiroma_options, control_dir)),
    ("kernel_path", offset_of!(hiroma_options, kernel_path)),
    ("store_timeout_ms", offset_of!(hiroma_options, store_timeout_ms)),
    ("prefetch", offset_of!(hiroma_options, prefetch)),
];

const UNSET_OPTIONS: hiroma_options = hiroma_options {
    size: size_of::<hiroma_options>(),
    local_limit_bytes: 0,
    store: ptr::null(),
    block: ptr::null(),
    replacement: ptr::null(),
    allocation: ptr::null(),
    key_file: ptr::null(),
    control_dir: ptr::null(),
    kernel_path: ptr::null(),
    store_timeout_ms: 0,
    prefetch: -1,
};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// Runs the body of an exported function on far memory; forks wait until it is done.
fn export<T>(failed: T, body: impl FnOnce() -> Result<T, CapiError>) -> T {
    export_ungated(failed, || {
        let _gate = session::enter();
        body()
    })
}

/// Runs the body of an exported function. On failure it sets errno and the message, and returns
/// `failed`.
pub(crate) fn export_ungated<T>(failed: T, body: impl FnOnce() -> Result<T, CapiError>) -> T {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        body().map_err(|error| {
            let message = CString::new(error.to_string().replace('\0', "?")).unwrap_or_default();
            LAST_ERROR.with(|last| *last.borrow_mut() = message);
            error.errno()
        })
    }));
    match outcome {
        Ok(Ok(value)) => value,
        Ok(Err(errno)) => {
            // SAFETY: errno is a thread-local variable.
            unsafe { *libc::__errno_location() = errno };
            failed
        }
        Err(_) => {
            eprintln!(
                "hiroma: libhiroma has a bug (see the message above); the process ends, since its memory may be wrong"
            );
            process::abort();
        }
    }
}

fn status(body: impl FnOnce() -> Result<(), CapiError>) -> c_int {
    export(-1, || body().map(|()| 0))
}

fn address(body: impl FnOnce() -> Result<usize, CapiError>) -> *mut c_void {
    export(ptr::null_mut(), || body().map(|addr| addr as *mut c_void))
}

/// Zeroes an allocation, unless it is known to be zero.
///
/// # Safety
/// `size` bytes at `room.addr` are allocated and not yet known to the program.
unsafe fn zeroed(room: crate::heap::Allocated, size: usize) -> usize {
    if !room.zeroed {
        // SAFETY: as above.
        unsafe { ptr::write_bytes(room.addr as *mut u8, 0, size) };
    }
    room.addr
}

fn product(count: usize, size: usize) -> Result<usize, CapiError> {
    count.checked_mul(size).ok_or(CapiError::NoRoom { bytes: usize::MAX, region: 0 })
}

/// # Safety
/// `text` is null or a C string that outlives the call.
pub(crate) unsafe fn text(option: &str, text: *const c_char) -> Result<Option<String>, CapiError> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as above.
    let bytes = unsafe { CStr::from_ptr(text) };
    let utf8 = bytes
        .to_str()
        .map_err(|_| CapiError::Invalid(format!("option {option} is not UTF-8 text")))?;
    Ok(Some(utf8.to_owned()))
}

/// # Safety
/// `options` is null or points to as many bytes as its `size` field states.
unsafe fn request(options: *const hiroma_options) -> Result<Request, CapiError> {
    if options.is_null() {
        return Ok(Request::default());
    }
    // SAFETY: `size` is the first field.
    let size = unsafe { *options.cast::<usize>() };
    if size < size_of::<usize>() || size > 1 << 16 {
        return Err(CapiError::Invalid(format!(
            "options of {size} bytes make no sense: call hiroma_options_init first"
        )));
    }
    // SAFETY: as above.
    let given = unsafe { slice::from_raw_parts(options.cast::<u8>(), size) };
    let known = size.min(size_of::<hiroma_options>());
    if given[known..].iter().any(|&byte| byte != 0) {
        return Err(CapiError::TooNew);
    }
    let mut all = UNSET_OPTIONS;
    // SAFETY: both have `known` bytes, and every bit pattern is a valid value of the fields.
    unsafe { ptr::copy_nonoverlapping(given.as_ptr(), (&raw mut all).cast(), known) };
    let prefetch = match all.prefetch {
        -1 => None,
        0 => Some(false),
        1 => Some(true),
        other => {
            return Err(CapiError::Invalid(format!(
                "option prefetch: {other} is not one of -1 (default), 0 (off), 1 (on)"
            )));
        }
    };
    // SAFETY: the strings are the caller's and valid for the call.
    unsafe {
        Ok(Request {
            local_limit_bytes: (all.local_limit_bytes != 0).then_some(all.local_limit_bytes),
            store: text("store", all.store)?,
            block: text("block", all.block)?,
            replacement: text("replacement", all.replacement)?,
            allocation: text("allocation", all.allocation)?,
            prefetch,
            store_timeout_ms: (all.store_timeout_ms != 0).then_some(all.store_timeout_ms),
            key_file: text("key_file", all.key_file)?,
            kernel_path: text("kernel_path", all.kernel_path)?,
            control_dir: text("control_dir", all.control_dir)?,
        })
    }
}

fn start(request: &Request) -> Result<&'static Session, CapiError> {
    Session::start(request, || {
        // SAFETY: the handlers are functions of this library, which stays loaded (it is linked with
        // `nodelete`).
        unsafe { libc::pthread_atfork(Some(fork_prepare), Some(fork_parent), Some(fork_child)) };
    })
}

extern "C" fn fork_prepare() {
    session::before_fork();
}

extern "C" fn fork_parent() {
    session::after_fork_in_parent();
}

extern "C" fn fork_child() {
    session::after_fork_in_child();
}

/// The session and the region of a handle.
fn region_of(
    region: *const hiroma_region,
) -> Result<(&'static Session, std::sync::Arc<session::Region>), CapiError> {
    let session = Session::running().map_err(|_| CapiError::NoRegion)?;
    Ok((session, session.region(region.addr())?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroma_options_init(options: *mut hiroma_options, size: usize) {
    let unset = UNSET_OPTIONS;
    // SAFETY: the caller provides `size` bytes.
    unsafe {
        ptr::write_bytes(options.cast::<u8>(), 0, size);
        let known = size.min(size_of::<hiroma_options>());
        ptr::copy_nonoverlapping((&raw const unset).cast::<u8>(), options.cast::<u8>(), known);
        if size >= size_of::<usize>() {
            options.cast::<usize>().write(size);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroma_region_create(
    options: *const hiroma_options,
    bytes: usize,
) -> *mut hiroma_region {
    // SAFETY: the options are the caller's.
    address(|| start(&unsafe { request(options) }?)?.create_region(bytes)).cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_region_destroy(region: *mut hiroma_region) -> c_int {
    status(|| {
        if region.is_null() {
            return Ok(());
        }
        Session::running().map_err(|_| CapiError::NoRegion)?.destroy_region(region.addr())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_region_base(region: *const hiroma_region) -> *mut c_void {
    address(|| Ok(region_of(region)?.1.base()))
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_region_size(region: *const hiroma_region) -> usize {
    export(0, || Ok(region_of(region)?.1.bytes()))
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_alloc(region: *mut hiroma_region, size: usize) -> *mut c_void {
    hiroma_aligned_alloc(region, 16, size)
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_aligned_alloc(
    region: *mut hiroma_region,
    alignment: usize,
    size: usize,
) -> *mut c_void {
    address(|| {
        let (session, region) = region_of(region)?;
        Ok(session.allocate(&region, size, alignment)?.addr)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_calloc(
    region: *mut hiroma_region,
    count: usize,
    size: usize,
) -> *mut c_void {
    address(|| {
        let (session, region) = region_of(region)?;
        let bytes = product(count, size)?;
        // SAFETY: just allocated.
        Ok(unsafe { zeroed(session.allocate(&region, bytes, 16)?, bytes) })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroma_realloc(
    region: *mut hiroma_region,
    memory: *mut c_void,
    size: usize,
) -> *mut c_void {
    address(|| {
        let (session, region) = region_of(region)?;
        if memory.is_null() {
            return Ok(session.allocate(&region, size, 16)?.addr);
        }
        let moved = session.reallocate(&region, memory.addr(), size)?;
        // SAFETY: both allocations are live, and the caller owns the old one.
        unsafe { finish(moved, |from| session.free(&region, from)) }
    })
}

/// # Safety
/// The copy's source and destination are live allocations of at least that many bytes.
unsafe fn finish(
    moved: Moved,
    free: impl FnOnce(usize) -> Result<(), CapiError>,
) -> Result<usize, CapiError> {
    match moved {
        Moved::There(addr) => Ok(addr),
        Moved::Copy { from, to, bytes } => {
            // SAFETY: as above; two live allocations do not overlap.
            unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
            free(from).map(|()| to)
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_free(region: *mut hiroma_region, memory: *mut c_void) -> c_int {
    status(|| {
        if memory.is_null() {
            return Ok(());
        }
        let (session, region) = region_of(region)?;
        session.free(&region, memory.addr())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn teramalloc(size: usize) -> *mut c_void {
    address(|| Ok(start(&Request::default())?.tera_allocate(size)?.addr))
}

#[unsafe(no_mangle)]
pub extern "C" fn teracalloc(count: usize, size: usize) -> *mut c_void {
    address(|| {
        let bytes = product(count, size)?;
        // SAFETY: just allocated.
        Ok(unsafe { zeroed(start(&Request::default())?.tera_allocate(bytes)?, bytes) })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn terarealloc(memory: *mut c_void, size: usize) -> *mut c_void {
    address(|| {
        let session = start(&Request::default())?;
        if memory.is_null() {
            return Ok(session.tera_allocate(size)?.addr);
        }
        let moved = session.tera_reallocate(memory.addr(), size)?;
        // SAFETY: both allocations are live, and the caller owns the old one.
        unsafe { finish(moved, |from| session.tera_free(from)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn terafree(memory: *mut c_void) {
    let freed = status(|| {
        if memory.is_null() {
            return Ok(());
        }
        Session::running()
            .map_err(|_| CapiError::NotAllocated { addr: memory.addr() })?
            .tera_free(memory.addr())
    });
    if freed != 0 {
        // As in free(), the error cannot be returned, and continuing would spread the damage.
        LAST_ERROR.with(|last| eprintln!("hiroma: terafree: {}", last.borrow().to_string_lossy()));
        process::abort();
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_advise(memory: *mut c_void, size: usize, advice: c_int) -> c_int {
    status(|| {
        let advice = match advice {
            0 => Advice::Normal,
            1 => Advice::WillNeed,
            2 => Advice::Cold,
            3 => Advice::Sequential,
            4 => Advice::Random,
            other => {
                return Err(CapiError::Invalid(format!(
                    "advice {other} is not one of the HIROMA_ADVICE constants"
                )));
            }
        };
        Session::running()?.advise(memory.addr(), size, advice)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_discard(memory: *mut c_void, size: usize) -> c_int {
    status(|| Session::running()?.discard(memory.addr(), size))
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_set_limit(bytes: u64) -> c_int {
    status(|| Session::running()?.set_limit(bytes))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroma_stats_read(stats: *mut hiroma_stats, size: usize) -> c_int {
    status(|| {
        let now = hiroma_stats { size, ..stats_of(&Session::running()?.snapshot()) };
        // SAFETY: the caller provides `size` bytes; fields that we do not know read as zero.
        unsafe {
            ptr::write_bytes(stats.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping(
                (&raw const now).cast::<u8>(),
                stats.cast::<u8>(),
                size.min(size_of::<hiroma_stats>()),
            );
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_strerror(errnum: c_int) -> *const c_char {
    explain(errnum).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
