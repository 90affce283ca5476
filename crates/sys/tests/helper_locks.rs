//! Threads of a helper take the C library's locks like any thread, and leave them unchanged.
//!
//! glibc identifies the owner of a lock by the thread id in its control block. Without an id there,
//! a free lock looks like one that the helper holds, the helper "unlocks" it, and the next thread
//! that takes it waits for ever.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hiroma_sys::{helper, lock};

/// Locks at a fixed address.
struct Locks {
    shared: libc::pthread_rwlock_t,
    nested: libc::pthread_mutex_t,
}

/// Runs `body` in the helper's first thread, and waits for it.
fn in_helper<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let done = Arc::new((AtomicU32::new(0), std::sync::Mutex::new(None)));
    let told = Arc::clone(&done);
    helper::start(move || {
        *told.1.lock().expect("nobody else has it") = Some(body());
        told.0.store(1, Ordering::Release);
        lock::wake_all(&told.0);
        helper::end();
    })
    .expect("a helper can be started");
    while done.0.load(Ordering::Acquire) == 0 {
        lock::wait_while(&done.0, 0, std::time::Duration::from_millis(100));
    }
    let result = done.1.lock().expect("the helper has let go of it").take();
    result.expect("the helper brought it")
}

#[test]
fn helper_leaves_libc_locks_usable() {
    assert!(helper::is_possible(), "no helper on this machine");
    helper::prepare().expect("rooms for threads");
    let locks: &'static mut Locks = Box::leak(Box::new(Locks {
        shared: libc::PTHREAD_RWLOCK_INITIALIZER,
        nested: libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
    }));
    let (shared, nested) = (&raw mut locks.shared as usize, &raw mut locks.nested as usize);
    // SAFETY: locks that are never moved or freed.
    let taken = in_helper(move || unsafe {
        let reading = libc::pthread_rwlock_rdlock(shared as *mut _);
        let read = libc::pthread_rwlock_unlock(shared as *mut _);
        let owning = libc::pthread_mutex_lock(nested as *mut _);
        (reading, read, owning)
    });
    assert_eq!(taken, (0, 0, 0), "the helper took the locks");
    // SAFETY: the same.
    unsafe {
        assert_eq!(
            libc::pthread_rwlock_trywrlock(shared as *mut _),
            0,
            "nobody holds the lock for readers"
        );
        assert_eq!(
            libc::pthread_mutex_trylock(nested as *mut _),
            libc::EBUSY,
            "the helper holds the nested lock"
        );
    }
}
