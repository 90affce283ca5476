//! Hooks for a host that provides an allocator of its own for the pager's threads (the preload
//! library).

use std::sync::OnceLock;

pub use crate::host::has_program_ended;

/// Functions to call on entry and on exit.
type EnterAndLeave = (fn(), fn());

static INTERNAL: OnceLock<EnterAndLeave> = OnceLock::new();

static HEAP_BYTES: OnceLock<fn() -> usize> = OnceLock::new();

/// Sets the function that returns the size of the pager's own heap in bytes.
pub fn set_heap(bytes: fn() -> usize) {
    let _ = HEAP_BYTES.set(bytes);
}

/// Size of the pager's heap, if it has one of its own.
pub(crate) fn heap_bytes() -> Option<usize> {
    HEAP_BYTES.get().map(|bytes| bytes())
}

/// `enter` and `leave` are called around every section in which a thread works for the pager, so
/// that allocations by the C library there (thread creation makes some) come from unmanaged memory.
/// The pager's own threads enter once and never leave.
pub fn set_internal(enter: fn(), leave: fn()) {
    let _ = INTERNAL.set((enter, leave));
}

/// Runs `work` between `enter` and `leave`.
pub(crate) fn internal<R>(work: impl FnOnce() -> R) -> R {
    let hooks = INTERNAL.get();
    if let Some((enter, _)) = hooks {
        enter();
    }
    let result = work();
    if let Some((_, leave)) = hooks {
        leave();
    }
    result
}

/// Marks the calling thread permanently as the pager's.
pub(crate) fn enter_thread() {
    if let Some((enter, _)) = INTERNAL.get() {
        enter();
    }
}

/// The pager's process, where it is one of its own.
pub fn pager_process() -> Option<u32> {
    hiroma_sys::helper::process()
}
