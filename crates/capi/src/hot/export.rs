//! The exported functions for huge pages; `include/hps.h` and `include/hiroma.h` describe them for
//! callers.
//!
//! Contract: as in [`crate::export`]. The program's functions are called with pointers that are
//! valid for the call, and must return.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc)] // The contract of every function is the headers'.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering::Relaxed;
use std::{ptr, slice};

use hiroma_hot::service::protocol::{HandlingResult, Mode, Page, Registration};
use hiroma_sys::hugearena;
use hiroma_sys::notify::realtime_signals;
use hiroma_units::{EXTENT, PAGES_PER_EXTENT};

use super::arena;
use super::handling::{Choice, Program, Slice};
use super::state::{self, COUNTERS, Style, Wish};
use crate::error::CapiError;
use crate::export::{export_ungated as export, text};

/// As in the header.
#[repr(C)]
pub struct hps_range {
    pub start: *mut c_void,
    pub size: usize,
    pub pages: *const Page,
    pub page_count: usize,
}

type Decide = unsafe extern "C" fn(*const hps_range, *mut c_void) -> c_int;
type Compact = unsafe extern "C" fn(*const hps_range, u64, *mut c_void) -> c_int;

/// As in the header. New fields are added at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hps_functions {
    pub size: usize,
    pub decide: Option<Decide>,
    pub compact: Option<Compact>,
    pub context: *mut c_void,
}

/// As in the header. New fields are added at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hiroma_hot_options {
    pub size: usize,
    pub socket: *const c_char,
    pub budget_bytes: u64,
    pub style: u32,
    pub managed: u32,
    pub signal: i32,
    pub collapse_pages: u32,
    pub count_min: u32,
    pub pages_min: u32,
}

/// As in the header. New fields are added at the end.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct hiroma_hot_stats {
    pub size: usize,
    pub signals: u64,
    pub pages: u64,
    pub collapsed: u64,
    pub compacted: u64,
    pub left: u64,
    pub failed: u64,
    pub call_ns_max: u64,
}

/// As in the header. New fields are added at the end.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct hiroma_arena_stats {
    pub size: usize,
    pub bytes: u64,
    pub used_bytes: u64,
    pub populated_bytes: u64,
    pub huge_bytes: u64,
    pub reserved: u64,
}

macro_rules! fields {
    ($name:ident, $type:ident: $($field:ident),*) => {
        /// Name and offset of every field, for the test that compares them with the header.
        pub const $name: &[(&str, usize)] = &[$((stringify!($field), offset_of!($type, $field))),*];
    };
}
fields!(PAGE_FIELDS, Page: address, count, reserved);
fields!(RANGE_FIELDS, hps_range: start, size, pages, page_count);
fields!(FUNCTIONS_FIELDS, hps_functions: size, decide, compact, context);
fields!(HOT_OPTIONS_FIELDS, hiroma_hot_options: size, socket, budget_bytes, style, managed, signal, collapse_pages, count_min, pages_min);
fields!(HOT_STATS_FIELDS, hiroma_hot_stats: size, signals, pages, collapsed, compacted, left, failed, call_ns_max);
fields!(ARENA_STATS_FIELDS, hiroma_arena_stats: size, bytes, used_bytes, populated_bytes, huge_bytes, reserved);

/// Opaque in C.
#[repr(C)]
pub struct hiroma_arena {
    _opaque: [u8; 0],
}

/// The program's functions.
#[derive(Clone, Copy)]
pub struct ProgramFunctions {
    decide: Option<Decide>,
    compact: Option<Compact>,
    context: *mut c_void,
}

impl ProgramFunctions {
    /// No functions are set.
    pub const NONE: ProgramFunctions =
        ProgramFunctions { decide: None, compact: None, context: ptr::null_mut() };
}

fn range_of(pages: &[Page]) -> hps_range {
    let start = pages[0].address & !(EXTENT as u64 - 1);
    hps_range {
        start: ptr::with_exposed_provenance_mut(start as usize),
        size: EXTENT,
        pages: pages.as_ptr(),
        page_count: pages.len(),
    }
}

impl Program for ProgramFunctions {
    fn decide(&self, pages: &[Page]) -> Choice {
        let Some(decide) = self.decide else { return Choice::Default };
        // SAFETY: the program's own function, called as the header specifies.
        match unsafe { decide(&range_of(pages), self.context) } {
            1 => Choice::Collapse,
            2 => Choice::Compact,
            3 => Choice::Leave,
            _ => Choice::Default,
        }
    }

    fn can_compact(&self) -> bool {
        self.compact.is_some()
    }

    fn compact(&self, pages: &[Page], deadline_ns: u64) -> Slice {
        let Some(compact) = self.compact else { return Slice::Failed };
        // SAFETY: as above.
        match unsafe { compact(&range_of(pages), deadline_ns, self.context) } {
            0 => Slice::Done,
            1 => Slice::More,
            _ => Slice::Failed,
        }
    }

    fn rest(&self) {
        state::rest();
    }
}

const UNSET: hiroma_hot_options = hiroma_hot_options {
    size: size_of::<hiroma_hot_options>(),
    socket: ptr::null(),
    budget_bytes: 0,
    style: 0,
    managed: 0,
    signal: 0,
    collapse_pages: 0,
    count_min: 0,
    pages_min: 0,
};

fn status(body: impl FnOnce() -> Result<(), CapiError>) -> c_int {
    export(-1, || body().map(|()| 0))
}

/// Reads a structure whose first field is its size: bytes beyond the part that we know must be
/// zero.
///
/// # Safety
/// `given` points to as many bytes as its first field states, and every bit pattern is a valid
/// value of `T`.
unsafe fn versioned<T: Copy>(given: *const T, unset: T) -> Result<T, CapiError> {
    // SAFETY: the size is the first field.
    let size = unsafe { *given.cast::<usize>() };
    if size < size_of::<usize>() || size > 1 << 16 {
        return Err(CapiError::Invalid(format!(
            "a structure of {size} bytes makes no sense: set its size first"
        )));
    }
    // SAFETY: as above.
    let bytes = unsafe { slice::from_raw_parts(given.cast::<u8>(), size) };
    let known = size.min(size_of::<T>());
    if bytes[known..].iter().any(|&byte| byte != 0) {
        return Err(CapiError::TooNew);
    }
    let mut all = unset;
    // SAFETY: both have `known` bytes.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut all).cast(), known) };
    Ok(all)
}

/// Fills in a structure for which the caller provides `size` bytes; fields that we do not know read
/// as zero.
///
/// # Safety
/// The caller provides `size` bytes at `to`.
unsafe fn fill<T: Copy>(to: *mut T, size: usize, from: T) {
    // SAFETY: as above.
    unsafe {
        ptr::write_bytes(to.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping(
            (&raw const from).cast::<u8>(),
            to.cast::<u8>(),
            size.min(size_of::<T>()),
        );
    }
}

/// The signal that is used unless the program chooses one: low enough to be delivered before
/// others, and not known to be used by libraries.
fn usual_signal() -> i32 {
    realtime_signals().0 + 6
}

fn wish_of(options: &hiroma_hot_options) -> Result<Wish, CapiError> {
    let style = match options.style {
        0 => Style::Handler,
        1 => Style::Thread,
        2 => Style::Event,
        other => {
            return Err(CapiError::Invalid(format!(
                "style {other} is not one of HPS_HANDLER, HPS_THREAD, HIROMA_HOT_EVENT"
            )));
        }
    };
    let (first, last) = realtime_signals();
    let signal = match (style, options.signal) {
        (Style::Event, _) => 0,
        (_, 0) => usual_signal(),
        (_, signal) if (first..=last).contains(&signal) => signal,
        (_, signal) => {
            return Err(CapiError::Invalid(format!(
                "signal {signal} is not one of the real-time signals {first} to {last}"
            )));
        }
    };
    let collapse_pages = match options.collapse_pages {
        0 => PAGES_PER_EXTENT as u32 / 4,
        pages if pages as usize <= PAGES_PER_EXTENT => pages,
        pages => {
            return Err(CapiError::Invalid(format!(
                "collapse_pages {pages}: there are 512 pages in 2 MiB"
            )));
        }
    };
    if options.managed > 1 {
        return Err(CapiError::Invalid(format!("managed {} is not 0 or 1", options.managed)));
    }
    Ok(Wish {
        socket: None,
        style,
        collapse_pages,
        registration: Registration {
            pid: 0,
            mode: if options.managed == 1 { Mode::Managed } else { Mode::Notified },
            signal,
            eventfd: style == Style::Event,
            count_min: options.count_min,
            pages_min: options.pages_min.max(1),
            budget_bytes: options.budget_bytes,
        },
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hps_enable_track(style: c_int) -> c_int {
    status(|| state::enable(wish_of(&hiroma_hot_options { style: style as u32, ..UNSET })?))
}

#[unsafe(no_mangle)]
pub extern "C" fn hps_disable_track() -> c_int {
    status(state::disable)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hps_set_functions(functions: *const hps_functions) -> c_int {
    status(|| {
        if functions.is_null() {
            return state::set_functions(ProgramFunctions::NONE);
        }
        let unset =
            hps_functions { size: 0, decide: None, compact: None, context: ptr::null_mut() };
        // SAFETY: the structure is the caller's; null is `None`, and other pointers are functions
        // of these types.
        let given = unsafe { versioned(functions, unset) }?;
        state::set_functions(ProgramFunctions {
            decide: given.decide,
            compact: given.compact,
            context: given.context,
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hps_wait_signal(timeout_ms: c_int) -> c_int {
    export(-1, || Ok(c_int::try_from(state::wait(timeout_ms.into())?).unwrap_or(c_int::MAX)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroma_hot_options_init(options: *mut hiroma_hot_options, size: usize) {
    // SAFETY: the caller provides `size` bytes.
    unsafe { fill(options, size, hiroma_hot_options { size, ..UNSET }) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroma_hot_enable(options: *const hiroma_hot_options) -> c_int {
    status(|| {
        // SAFETY: the options, if any, are the caller's.
        let options = if options.is_null() { UNSET } else { unsafe { versioned(options, UNSET) }? };
        // SAFETY: the string is the caller's and valid for the call.
        let socket = unsafe { text("socket", options.socket) }?.map(Into::into);
        state::enable(Wish { socket, ..wish_of(&options)? })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_hot_disable() -> c_int {
    status(state::disable)
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_hot_fd() -> c_int {
    export(-1, state::event_fd)
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_hot_wait(timeout_ms: c_int) -> c_long {
    export(-1, || Ok(c_long::try_from(state::wait(timeout_ms.into())?).unwrap_or(c_long::MAX)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroma_hot_fetch(
    pages: *mut Page,
    count: usize,
    left: *mut usize,
) -> c_long {
    export(-1, || {
        let buffer = match count {
            0 => &mut [],
            // SAFETY: the caller's buffer of `count` pages, which nothing else uses during the
            // call.
            _ => unsafe {
                slice::from_raw_parts_mut(pages, count.min(isize::MAX as usize / size_of::<Page>()))
            },
        };
        let fetched = state::fetch(buffer)?;
        if !left.is_null() {
            // SAFETY: the variable is the caller's.
            unsafe { left.write(fetched.left as usize) };
        }
        Ok(fetched.pages as c_long)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_hot_done(collapsed: u64, compacted: u64, left: u64) -> c_int {
    status(|| {
        state::done(&HandlingResult { collapsed, compacted, left, ..HandlingResult::default() })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_hot_collapse(memory: *mut c_void, size: usize) -> c_int {
    status(|| {
        hugearena::collapse(memory.expose_provenance(), size).map_err(|source| CapiError::Hot {
            errno: source.raw_os_error().unwrap_or(libc::EIO),
            message: format!("{size} bytes at {:#x} cannot be made huge: {source}", memory.addr()),
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroma_hot_stats_read(stats: *mut hiroma_hot_stats, size: usize) -> c_int {
    status(|| {
        let now = hiroma_hot_stats {
            size,
            signals: COUNTERS.signals.load(Relaxed),
            pages: COUNTERS.pages.load(Relaxed),
            collapsed: COUNTERS.collapsed.load(Relaxed),
            compacted: COUNTERS.compacted.load(Relaxed),
            left: COUNTERS.left.load(Relaxed),
            failed: COUNTERS.failed.load(Relaxed),
            call_ns_max: COUNTERS.call_ns_max.load(Relaxed),
        };
        // SAFETY: the caller provides `size` bytes.
        unsafe { fill(stats, size, now) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_arena_create(bytes: usize) -> *mut hiroma_arena {
    export(ptr::null_mut(), || Ok(ptr::with_exposed_provenance_mut(arena::create(bytes)?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_arena_destroy(arena: *mut hiroma_arena) -> c_int {
    status(|| if arena.is_null() { Ok(()) } else { arena::destroy(arena.addr()) })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_arena_alloc(
    arena: *mut hiroma_arena,
    alignment: usize,
    size: usize,
) -> *mut c_void {
    export(ptr::null_mut(), || {
        Ok(ptr::with_exposed_provenance_mut(arena::of(arena.addr())?.allocate(alignment, size)?))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hiroma_arena_free(arena: *mut hiroma_arena, memory: *mut c_void) -> c_int {
    status(
        || if memory.is_null() { Ok(()) } else { arena::of(arena.addr())?.release(memory.addr()) },
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroma_arena_stats_read(
    arena: *const hiroma_arena,
    stats: *mut hiroma_arena_stats,
    size: usize,
) -> c_int {
    status(|| {
        let used = arena::of(arena.addr())?.usage();
        let now = hiroma_arena_stats {
            size,
            bytes: used.bytes,
            used_bytes: used.used_bytes,
            populated_bytes: used.populated_bytes,
            huge_bytes: used.huge_bytes,
            reserved: used.reserved.into(),
        };
        // SAFETY: the caller provides `size` bytes.
        unsafe { fill(stats, size, now) };
        Ok(())
    })
}
