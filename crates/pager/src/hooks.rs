//! Hooks for a host that gives the pager's threads an allocator of their own (the preload library).

use std::sync::OnceLock;

/// What to call on entering and on leaving.
type EnterAndLeave = (fn(), fn());

static INTERNAL: OnceLock<EnterAndLeave> = OnceLock::new();

static HEAP_BYTES: OnceLock<fn() -> usize> = OnceLock::new();

/// `bytes` tells how much memory the heap of the pager's own takes.
pub fn set_heap(bytes: fn() -> usize) {
    let _ = HEAP_BYTES.set(bytes);
}

/// Memory of the pager's heap, where it has one of its own.
pub(crate) fn heap_bytes() -> Option<usize> {
    HEAP_BYTES.get().map(|bytes| bytes())
}

/// `enter` and `leave` are called around every stretch in which a thread works for the pager, so
/// that whatever the C library allocates there (thread creation does) comes from memory that is not
/// managed. The pager's own threads enter once and stay.
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

/// Marks the calling thread as the pager's for good.
pub(crate) fn enter_thread() {
    if let Some((enter, _)) = INTERNAL.get() {
        enter();
    }
}
