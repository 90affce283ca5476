//! A thread that reserves and frees blocks of a file, for the file store.
//!
//! `fallocate` waits uninterruptibly, with the inode locked, for all direct I/O in flight on the
//! file. A write through io_uring ends only when the thread that submitted it has processed its
//! completion (`IOCB_DIO_CALLER_COMP`, Linux 6.6 and later). So a thread with writes in flight must
//! not wait in `fallocate`, nor for the inode's lock: it would wait for itself, and all other reads
//! behind it. Instead it waits here for an answer, which a completion can interrupt.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Errand = Box<dyn FnOnce() + Send>;

/// The thread, and its queue of work. It ends when the last handle is dropped.
pub struct Clerk {
    desk: Arc<Desk>,
}

#[derive(Default)]
struct Desk {
    errands: Mutex<Errands>,
    changed: Condvar,
}

#[derive(Default)]
struct Errands {
    waiting: VecDeque<Errand>,
    is_closed: bool,
}

impl Clerk {
    pub fn start() -> io::Result<Clerk> {
        let clerk = Clerk { desk: Arc::default() };
        let desk = Arc::clone(&clerk.desk);
        crate::host::spawn(c"hiroma-blocks", move || desk.work())?;
        Ok(clerk)
    }

    /// Queues work without waiting for it.
    pub fn leave(&self, errand: impl FnOnce() + Send + 'static) {
        self.desk.lock().waiting.push_back(Box::new(errand));
        self.desk.changed.notify_one();
    }

    /// Queues work, and waits for its result.
    pub fn ask<T: Send + 'static>(&self, errand: impl FnOnce() -> T + Send + 'static) -> T {
        let place = Arc::new((Mutex::new(None), Condvar::new()));
        let answered = Arc::clone(&place);
        self.leave(move || {
            *answered.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(errand());
            answered.1.notify_all();
        });
        let mut answer = place.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match answer.take() {
                Some(answer) => return answer,
                None => answer = place.1.wait(answer).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Waits until all queued work is done.
    pub fn settle(&self) {
        self.ask(|| ());
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        self.desk.lock().is_closed = true;
        self.desk.changed.notify_all();
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Errands> {
        self.errands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut errands = self.lock();
        loop {
            if let Some(errand) = errands.waiting.pop_front() {
                drop(errands);
                errand();
                errands = self.lock();
            } else if errands.is_closed {
                return;
            } else {
                errands = self.changed.wait(errands).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn errands_complete_in_order() {
        let clerk = Clerk::start().unwrap();
        let count = Arc::new(AtomicU32::new(0));
        for at in 0..100 {
            let count = Arc::clone(&count);
            clerk.leave(move || assert_eq!(count.fetch_add(1, Ordering::Relaxed), at));
        }
        assert_eq!(clerk.ask(|| 7), 7);
        assert_eq!(count.load(Ordering::Relaxed), 100);
        clerk.leave(|| std::thread::sleep(std::time::Duration::from_millis(20)));
        clerk.settle();
    }
}
