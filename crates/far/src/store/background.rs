//! A store's thread that looks after it, and rests while the process forks.

use std::ffi::CStr;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread::yield_now;
use std::time::Duration;

use hiroma_sys::lock::Bell;

use crate::host::{self, Thread};

/// What the store and its thread share.
#[derive(Default)]
pub struct Background {
    thread: Mutex<Option<Thread>>,
    bell: Bell,
    stopping: AtomicBool,
    /// The process is about to fork: nothing may be locked or allocated.
    still: AtomicBool,
    /// A round is in progress.
    working: AtomicBool,
}

impl Background {
    /// Starts the thread of this process: in the first one, and in each child that adopts the
    /// store.
    pub fn start(
        &self,
        name: &'static CStr,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        self.still.store(false, SeqCst);
        self.working.store(false, SeqCst);
        let thread = host::spawn(name, work)?;
        let before = self.thread.lock().unwrap_or_else(PoisonError::into_inner).replace(thread);
        // After a fork this is the parent's thread, which does not exist here.
        std::mem::forget(before);
        Ok(())
    }

    /// The thread does one round, unless it stands still. Returns how long to rest.
    pub fn round(&self, still_pause: Duration, work: impl FnOnce() -> Duration) -> Duration {
        self.working.store(true, SeqCst);
        let pause = if self.is_still() { still_pause } else { work() };
        self.working.store(false, SeqCst);
        pause
    }

    /// Whether no rounds are to be done.
    pub fn is_still(&self) -> bool {
        self.still.load(SeqCst)
    }

    /// Whether the thread is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(SeqCst)
    }

    /// The thread rests until it is rung for.
    pub fn rest(&self, pause: Duration) {
        self.bell.wait(pause);
    }

    /// There is something to do.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Waits until the thread has finished its round, and stops further rounds until
    /// [`Background::goes_on`].
    pub fn stand_still(&self) {
        self.still.store(true, SeqCst);
        while self.working.load(SeqCst) {
            yield_now();
        }
    }

    /// The fork is over. A thread that uses the store knows that: no thread uses it during a fork.
    /// Returns whether there was one.
    pub fn goes_on(&self) -> bool {
        self.still.swap(false, SeqCst)
    }

    /// Stops the thread, if this process has one.
    pub fn stop(&self) {
        self.stopping.store(true, SeqCst);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.bell.ring();
            thread.join();
        }
    }
}
