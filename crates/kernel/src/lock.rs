//! A lock that survives fork: the parent holds it across the fork, parent and child both let it go afterwards.
//!
//! Contract: the value is reached through a [`Guard`] only, and at most one exists, except that `hold` keeps the lock without a guard
//! until `resume_held`. Waiters spin for a short while and then sleep on a futex. It never allocates.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
const SPINS: u32 = 400;
/// Spins of the eager: some tens of microseconds, which is what putting a processor to sleep and waking it would cost.
const EAGER_SPINS: u32 = 4000;
/// For how long the polite let others go first: as long as it takes to wake a processor. Who has not come by then does not run.
const POLITE_SPINS: u32 = 800;

/// Sleeps while `word` is `value`, at most `timeout`.
pub fn wait_while(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let _ = futex::wait(word, Flags::PRIVATE, value, Some(&timeout));
}

/// Wakes all who sleep in [`wait_while`].
pub fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
}

/// What a value leaves to be done once its lock is free.
pub trait Afterwards {
    /// The work; kept while the lock is let go.
    type Work;

    /// Takes the work, with the lock held. None is the usual answer.
    fn take_work(&mut self) -> Option<Self::Work>;

    /// Does it, without the lock.
    fn do_work(work: Self::Work);
}

/// A value behind a futex lock.
pub struct Lock<T: Afterwards> {
    state: AtomicU32,
    held: AtomicBool,
    /// Threads that wait for it: asleep, or eager.
    waiters: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send + Afterwards> Sync for Lock<T> {}

impl<T: Afterwards> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock { state: AtomicU32::new(FREE), held: AtomicBool::new(false), waiters: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        self.acquire(SPINS);
        Guard { lock: self }
    }

    /// Waits for the lock with a program waiting for us: those who are polite let us go first, and learn of it while they hold it
    /// ([`Lock::is_wanted`]).
    pub fn lock_eagerly(&self) -> Guard<'_, T> {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.waiters.fetch_add(1, Ordering::Relaxed);
            self.acquire(EAGER_SPINS);
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
        Guard { lock: self }
    }

    /// Whether somebody waits for it who should not wait long.
    pub fn is_wanted(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0
    }

    /// Waits for the lock, and lets those go first who are waiting for it already: for work that others should not wait for.
    pub fn lock_politely(&self) -> Guard<'_, T> {
        if self.is_wanted() {
            // Once only: where the processor is wanted by others too, each time would cost a turn of theirs.
            std::thread::yield_now();
            for _ in 0..POLITE_SPINS {
                if !self.is_wanted() {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        self.lock()
    }

    fn acquire(&self, spins: u32) {
        for _ in 0..spins {
            if self.state.load(Ordering::Relaxed) == FREE
                && self.state.compare_exchange_weak(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        self.waiters.fetch_add(1, Ordering::Relaxed);
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            let _ = futex::wait(&self.state, Flags::PRIVATE, CONTENDED, None);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            let _ = futex::wake(&self.state, Flags::PRIVATE, 1);
        }
    }

    /// Keeps the lock when `guard` is gone, until [`Lock::resume_held`]: across a fork.
    pub fn hold(guard: Guard<'_, T>) {
        guard.lock.held.store(true, Ordering::Release);
        std::mem::forget(guard);
    }

    /// The guard of a lock that is held by [`Lock::hold`], in a forked child: those who waited do not exist there.
    pub fn resume_held_in_child(&self) -> Guard<'_, T> {
        self.waiters.store(0, Ordering::Relaxed);
        self.resume_held()
    }

    /// The guard of a lock that is held by [`Lock::hold`].
    pub fn resume_held(&self) -> Guard<'_, T> {
        assert!(self.held.swap(false, Ordering::AcqRel), "resume_held without hold");
        Guard { lock: self }
    }
}

/// The right to use the value.
pub struct Guard<'a, T: Afterwards> {
    lock: &'a Lock<T>,
}

impl<T: Afterwards> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held by this guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: Afterwards> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held by this guard, which is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: Afterwards> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        let work = self.take_work();
        self.lock.release();
        if let Some(work) = work {
            T::do_work(work);
        }
    }
}

/// A bell that one thread waits for and others ring: rings are not lost, several count as one.
#[derive(Default)]
pub struct Bell {
    rings: AtomicU32,
    waiting: AtomicU32,
}

impl Bell {
    /// Wakes the waiter, now or when it next waits. Cheap when nobody waits.
    pub fn ring(&self) {
        self.rings.store(1, Ordering::Release);
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            let _ = futex::wake(&self.rings, Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Whether it rang since the last wait.
    pub fn rang(&self) -> bool {
        self.rings.swap(0, Ordering::Acquire) != 0
    }

    /// Waits for a ring, at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        if self.rang() {
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let _ = futex::wait(&self.rings, Flags::PRIVATE, 0, Some(&timeout));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.rang();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    impl Afterwards for (u64, u64) {
        type Work = ();

        fn take_work(&mut self) -> Option<()> {
            None
        }

        fn do_work((): ()) {}
    }

    #[test]
    fn many_threads_never_hold_it_together() {
        let lock = Arc::new(Lock::new((0u64, 0u64)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let mut pair = lock.lock();
                        assert_eq!(pair.0, pair.1);
                        pair.0 += 1;
                        std::hint::spin_loop();
                        pair.1 += 1;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(lock.lock().0, 80_000);
    }

    #[test]
    fn a_held_lock_stays_held_until_it_is_let_go() {
        let lock = Arc::new(Lock::new((0, 0)));
        Lock::hold(lock.lock());
        let other = lock.clone();
        let thread = std::thread::spawn(move || other.lock().0 += 1);
        std::thread::sleep(Duration::from_millis(20));
        let mut guard = lock.resume_held();
        assert_eq!(guard.0, 0);
        guard.0 = 5;
        drop(guard);
        thread.join().unwrap();
        assert_eq!(lock.lock().0, 6);
    }

    #[test]
    fn a_ring_before_the_wait_is_not_lost() {
        let bell = Bell::default();
        bell.ring();
        bell.wait(Duration::from_secs(3600));
        assert!(!bell.rang());
    }
}
