//! A lock that survives fork: the parent holds it across the fork, and parent and child both
//! release it afterwards.
//!
//! Contract: the value is accessed through a [`Guard`] only, and at most one exists, except that
//! `hold` keeps the lock without a guard until `resume_held`. Waiters spin for a short time and
//! then sleep on a futex. It never allocates.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::{AtomicBool, AtomicU32, Ordering, fence, futex, spin_loop};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
const SPINS: u32 = if cfg!(loom) { 1 } else { 400 };
/// Spins of an eager waiter: some tens of microseconds, which is the cost of putting a processor to
/// sleep and waking it.
const EAGER_SPINS: u32 = if cfg!(loom) { 1 } else { 4000 };
/// How long a polite thread lets others go first: the time to wake a processor. A waiter that has
/// not taken the lock by then is not running.
const POLITE_SPINS: u32 = if cfg!(loom) { 1 } else { 800 };

/// Sleeps while `word` is `value`, at most `timeout`.
pub fn wait_while(word: &AtomicU32, value: u32, timeout: Duration) {
    futex::wait(word, value, Some(timeout));
}

/// Wakes all threads that sleep in [`wait_while`].
pub fn wake_all(word: &AtomicU32) {
    futex::wake(word, i32::MAX as u32);
}

/// Work that a value leaves to be done once its lock is free.
pub trait Afterwards {
    /// The work; kept while the lock is being released.
    type Work;

    /// Takes the work, with the lock held. Usually there is none.
    fn take_work(&mut self) -> Option<Self::Work>;

    /// Does it, without the lock.
    fn do_work(work: Self::Work);
}

/// A value behind a futex lock.
pub struct Lock<T: Afterwards> {
    state: AtomicU32,
    held: AtomicBool,
    /// Waiting threads: asleep, or eager.
    waiters: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send + Afterwards> Sync for Lock<T> {}

impl<T: Afterwards> Lock<T> {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            state: AtomicU32::new(FREE),
            held: AtomicBool::new(false),
            waiters: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// A free lock.
    #[cfg(loom)]
    pub fn new(value: T) -> Lock<T> {
        Lock {
            state: AtomicU32::new(FREE),
            held: AtomicBool::new(false),
            waiters: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        self.acquire(SPINS);
        Guard { lock: self }
    }

    /// Waits for the lock while the program waits for the caller: polite threads let the caller go
    /// first, and holders can see that it waits ([`Lock::is_wanted`]).
    pub fn lock_eagerly(&self) -> Guard<'_, T> {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.waiters.fetch_add(1, Ordering::Relaxed);
            self.acquire(EAGER_SPINS);
            self.waiters.fetch_sub(1, Ordering::Relaxed);
        }
        Guard { lock: self }
    }

    /// Whether a thread waits for it that should not wait long.
    pub fn is_wanted(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) != 0
    }

    /// Waits for the lock, but lets threads that are already waiting go first: for work that others
    /// should not wait for.
    pub fn lock_politely(&self) -> Guard<'_, T> {
        if self.is_wanted() {
            // Once only: where other threads need the processor too, each yield would cost one of
            // their turns.
            std::thread::yield_now();
            for _ in 0..POLITE_SPINS {
                if !self.is_wanted() {
                    break;
                }
                spin_loop();
            }
        }
        self.lock()
    }

    fn acquire(&self, spins: u32) {
        for _ in 0..spins {
            if self.state.load(Ordering::Relaxed) == FREE
                && self
                    .state
                    .compare_exchange_weak(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            spin_loop();
        }
        self.waiters.fetch_add(1, Ordering::Relaxed);
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            futex::wait(&self.state, CONTENDED, None);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            futex::wake(&self.state, 1);
        }
    }

    /// Keeps the lock held after `guard` is dropped, until [`Lock::resume_held`]: across a fork.
    pub fn hold(guard: Guard<'_, T>) {
        guard.lock.held.store(true, Ordering::Release);
        std::mem::forget(guard);
    }

    /// The guard of a lock that is held by [`Lock::hold`], in a forked child: the waiters do not
    /// exist there.
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

/// A bell that one thread waits for and others ring: rings are not lost; several count as one.
#[derive(Default)]
pub struct Bell {
    rings: AtomicU32,
    waiting: AtomicU32,
}

impl Bell {
    /// Wakes the waiter, now or when it next waits. Cheap when no thread waits.
    pub fn ring(&self) {
        if cfg!(loom) {
            // In the model a store may count as older than an exchange that has not seen it.
            self.rings.swap(1, Ordering::Release);
        } else {
            self.rings.store(1, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            futex::wake(&self.rings, i32::MAX as u32);
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
        fence(Ordering::SeqCst);
        futex::wait(&self.rings, 0, Some(timeout));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.rang();
    }
}

#[cfg(all(test, not(loom)))]
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
    fn held_lock_excludes_others_until_resumed() {
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

/// All interleavings of a few threads, by loom: `RUSTFLAGS="--cfg loom" cargo test --release -p
/// hiroma-sys --lib lock`.
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    impl Afterwards for u64 {
        type Work = ();

        fn take_work(&mut self) -> Option<()> {
            None
        }

        fn do_work((): ()) {}
    }

    #[test]
    fn one_holder_and_no_lost_wakeup() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let lock = Arc::new(Lock::new(0_u64));
            let (second, third) = (lock.clone(), lock.clone());
            let eager = thread::spawn(move || *second.lock_eagerly() += 1);
            let plain = thread::spawn(move || *third.lock() += 1);
            *lock.lock() += 1;
            eager.join().unwrap();
            plain.join().unwrap();
            assert_eq!((*lock.lock(), lock.is_wanted()), (3, false));
        });
    }

    #[test]
    fn lock_held_over_fork_passes_to_waiter() {
        loom::model(|| {
            let lock = Arc::new(Lock::new(0_u64));
            Lock::hold(lock.lock());
            let other = lock.clone();
            let waits = thread::spawn(move || *other.lock() += 1);
            let mut guard = lock.resume_held();
            *guard += 1;
            drop(guard);
            waits.join().unwrap();
            assert_eq!(*lock.lock(), 2);
        });
    }

    #[test]
    fn no_wakeup_is_lost() {
        loom::model(|| {
            let bell = Arc::new(Bell::default());
            let work = Arc::new(AtomicU32::new(0));
            let (rings, done) = (bell.clone(), work.clone());
            let other = thread::spawn(move || {
                done.store(1, Ordering::Relaxed);
                rings.ring();
            });
            // Its waiter checks for work after each wait, and waits again.
            while work.load(Ordering::Relaxed) == 0 {
                bell.wait(Duration::from_secs(1));
            }
            other.join().unwrap();
        });
    }
}
