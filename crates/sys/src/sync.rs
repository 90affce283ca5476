//! Atomics and futexes; under `--cfg loom` those of a model that tries every possible interleaving
//! of threads.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

#[cfg(loom)]
pub use loom::hint::spin_loop;
#[cfg(not(loom))]
pub use std::hint::spin_loop;

/// Waiting for a word to change.
#[cfg(not(loom))]
pub mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex::{self, Flags, Timespec};

    /// Sleeps while `word` is `value`, at most `timeout`; spurious wake-ups are possible.
    pub fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let _ = futex::wait(word, Flags::PRIVATE, value, timeout.as_ref());
    }

    /// Wakes at most `most` sleeping threads.
    pub fn wake(word: &AtomicU32, most: u32) {
        let _ = futex::wake(word, Flags::PRIVATE, most);
    }
}

/// The same in the model: one word is compared and slept on as in the kernel, under the lock of its
/// bucket. There are no timeouts, so that a lost wake-up is a deadlock.
#[cfg(loom)]
pub mod futex {
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    loom::lazy_static! {
        /// Number of wake-ups.
        static ref BUCKET: (Mutex<u32>, Condvar) = (Mutex::new(0), Condvar::new());
    }

    pub fn wait(word: &AtomicU32, value: u32, _timeout: Option<Duration>) {
        let mut wakes = BUCKET.0.lock().unwrap();
        let before = *wakes;
        if word.load(Ordering::SeqCst) != value {
            return;
        }
        while *wakes == before {
            wakes = BUCKET.1.wait(wakes).unwrap();
        }
    }

    /// Wakes all: a thread that is woken unnecessarily checks again.
    pub fn wake(_word: &AtomicU32, _most: u32) {
        *BUCKET.0.lock().unwrap() += 1;
        BUCKET.1.notify_all();
    }
}
