//! Requests from any thread to one thread that serves them, in memory that both share: no
//! descriptor, no lock, no allocation.
//!
//! A request may be made by a thread whose stack the serving thread has to fetch first, also from a
//! signal handler that interrupted another request: so the request and its answer are in slots of
//! the mailbox, never on the caller's stack.
//!
//! Contract: a slot belongs to one side at a time. From `FREE` to `TAKEN`, and while it takes the
//! answer, it is the caller's; from `ASKED` to `ANSWERED` it is the server's.
//!
//! Callers may be processes that share this memory and are killed alone, in any of these states. So each
//! slot names the thread that has it, and where none is free, the server frees those of threads that have
//! ended ([`Mailbox::free_the_dead`]).
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags};
use rustix::thread::{Timespec, gettid, nanosleep};

use crate::lock::Bell;

/// A free slot. The others have a state in the lowest bits, and above it the number of the thread that
/// has the slot.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const ASKED: u32 = 2;
const SERVED: u32 = 3;
const ANSWERED: u32 = 4;
const STATE_BITS: u32 = 3;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

/// Maximum number of concurrent requests; more wait for a free slot.
const SLOTS: usize = 128;
const WORDS: usize = SLOTS / 64;
/// How often to check for an answer before going to sleep.
const SPINS: u32 = 200;
/// How long a caller waits before it looks for a free slot again.
const FULL_FOR: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
/// Threads that are known to be the caller's are remembered, in places by their numbers.
const KNOWN: usize = 256;

struct Slot<Q, A> {
    state: AtomicU32,
    question: UnsafeCell<Option<Q>>,
    answer: UnsafeCell<Option<A>>,
}

/// The slots, and the bell of the thread that serves them.
pub struct Mailbox<Q, A> {
    slots: Vec<Slot<Q, A>>,
    /// Which slots have a request.
    asked: [AtomicU64; WORDS],
    /// A caller has found no free slot.
    is_short: AtomicBool,
    /// Numbers by which the server finds the threads that have made requests.
    known: [AtomicU32; KNOWN],
    bell: Bell,
}

// SAFETY: see the module's contract; questions and answers are sent from thread to thread.
unsafe impl<Q: Send, A: Send> Sync for Mailbox<Q, A> {}
// SAFETY: as above.
unsafe impl<Q: Send, A: Send> Send for Mailbox<Q, A> {}

impl<Q: Send, A: Send> Default for Mailbox<Q, A> {
    fn default() -> Self {
        let slot = || Slot {
            state: AtomicU32::new(FREE),
            question: UnsafeCell::new(None),
            answer: UnsafeCell::new(None),
        };
        Mailbox {
            slots: (0..SLOTS).map(|_| slot()).collect(),
            asked: [const { AtomicU64::new(0) }; WORDS],
            is_short: AtomicBool::new(false),
            known: [const { AtomicU32::new(0) }; KNOWN],
            bell: Bell::default(),
        }
    }
}

impl<Q: Send, A: Send> Mailbox<Q, A> {
    /// Makes a request, and waits for the answer.
    pub fn ask(&self, question: Q) -> A {
        let own = (gettid().as_raw_nonzero().get() as u32) << STATE_BITS;
        let index = self.take(own);
        let slot = &self.slots[index];
        // Not dropped: one that was killed here may have left half of a question.
        // SAFETY: the slot is ours until its state is ASKED.
        unsafe { slot.question.get().write(Some(question)) };
        slot.state.store(own | ASKED, Ordering::Release);
        self.asked[index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
        self.bell.ring();
        let mut spins = 0;
        loop {
            let now = slot.state.load(Ordering::Acquire);
            if now == own | ANSWERED {
                break;
            } else if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                let _ = futex::wait(&slot.state, Flags::PRIVATE, now, None);
            }
        }
        // SAFETY: ours again because its state is ANSWERED.
        let answer = unsafe { (*slot.answer.get()).take() };
        slot.state.store(FREE, Ordering::Release);
        answer.expect("an answer lies where it is said to lie")
    }

    fn take(&self, own: u32) -> usize {
        loop {
            let free = |slot: &Slot<Q, A>| {
                slot.state
                    .compare_exchange(FREE, own | TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            };
            if let Some(index) = self.slots.iter().position(free) {
                return index;
            }
            self.is_short.store(true, Ordering::Release);
            self.bell.ring();
            let _ = nanosleep(&FULL_FOR);
        }
    }

    /// Serves one request. False: there is none. `has_our_memory` tells whether a thread, by its number,
    /// lives in this memory; `None` if that cannot be found out.
    pub fn serve_one(
        &self,
        serve: impl FnOnce(Q) -> A,
        has_our_memory: impl Fn(u32) -> Option<bool>,
    ) -> bool {
        if self.is_short.load(Ordering::Relaxed) {
            self.is_short.store(false, Ordering::Relaxed);
            self.free_the_dead(&has_our_memory);
        }
        let first = |word: &AtomicU64| {
            Some(word.load(Ordering::Acquire)).filter(|&bits| bits != 0).map(u64::trailing_zeros)
        };
        let Some((place, bit)) = self
            .asked
            .iter()
            .enumerate()
            .find_map(|(place, word)| first(word).map(|bit| (place, bit)))
        else {
            return false;
        };
        self.asked[place].fetch_and(!(1 << bit), Ordering::AcqRel);
        let slot = &self.slots[place * 64 + bit as usize];
        let thread = slot.state.load(Ordering::Acquire) >> STATE_BITS;
        let [asked, served, answered] =
            [ASKED, SERVED, ANSWERED].map(|state| thread << STATE_BITS | state);
        // A request whose caller has died is announced twice.
        if slot.state.compare_exchange(asked, served, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return true;
        }
        self.learn(thread, &has_our_memory);
        // SAFETY: ours while its state is SERVED.
        let question = unsafe { (*slot.question.get()).take() };
        let answer = serve(question.expect("a question lies where it is said to lie"));
        // SAFETY: as above. One that was killed as it took an answer may have left half of it.
        unsafe { slot.answer.get().write(Some(answer)) };
        slot.state.store(answered, Ordering::Release);
        let _ = futex::wake(&slot.state, Flags::PRIVATE, 1);
        true
    }

    /// A thread whose number means another one here, or none (it has its own namespace), never seems to
    /// have ended.
    fn learn(&self, thread: u32, has_our_memory: impl Fn(u32) -> Option<bool>) {
        let known = &self.known[thread as usize % KNOWN];
        if known.load(Ordering::Relaxed) != thread && has_our_memory(thread) == Some(true) {
            known.store(thread, Ordering::Relaxed);
        }
    }

    /// Frees the slots of threads that have ended.
    fn free_the_dead(&self, has_our_memory: impl Fn(u32) -> Option<bool>) {
        for (index, slot) in self.slots.iter().enumerate() {
            let now = slot.state.load(Ordering::Acquire);
            let thread = now >> STATE_BITS;
            let is_known = self.known[thread as usize % KNOWN].load(Ordering::Relaxed) == thread;
            if now == FREE || !is_known || has_our_memory(thread) != Some(false) {
                continue;
            }
            if now & STATE_MASK == ASKED {
                // It may not have come to announce its request.
                self.asked[index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
            } else {
                slot.state.store(FREE, Ordering::Release);
            }
        }
    }

    /// Waits for a request, at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        self.bell.wait(timeout);
    }

    /// Makes [`Mailbox::wait`] return.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// In the child of a fork, where no other thread runs: the threads that made requests do not
    /// exist here.
    pub fn forget(&self) {
        self.known.iter().for_each(|thread| thread.store(0, Ordering::Relaxed));
        self.asked.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.slots.iter().for_each(|slot| slot.state.store(FREE, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn each_caller_gets_its_own_answer() {
        let mailbox = Arc::new(Mailbox::<u64, u64>::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (served, ended) = (mailbox.clone(), stop.clone());
        let server = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if !served.serve_one(|question| question * 2 + 1, |_| Some(true)) {
                    served.wait(Duration::from_millis(20));
                }
            }
        });
        let askers: Vec<_> = (0..6u64)
            .map(|who| {
                let mailbox = mailbox.clone();
                std::thread::spawn(move || {
                    (0..3000).for_each(|at| {
                        assert_eq!(mailbox.ask(who << 32 | at), (who << 32 | at) * 2 + 1)
                    });
                })
            })
            .collect();
        askers.into_iter().for_each(|thread| thread.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        mailbox.ring();
        server.join().unwrap();
    }

    #[test]
    fn slots_of_killed_callers_become_free() {
        let mailbox = Mailbox::<u64, u64>::default();
        let [dead, living] = [7_u32, 8].map(|thread| thread << STATE_BITS);
        mailbox.known[7].store(7, Ordering::Relaxed);
        mailbox.known[8].store(8, Ordering::Relaxed);
        for (index, slot) in mailbox.slots.iter().enumerate() {
            let [whose, state] = match index % 4 {
                0 => [dead, TAKEN],
                1 => [dead, ASKED],
                2 => [dead, ANSWERED],
                _ => [living, ANSWERED],
            };
            // SAFETY: nobody else uses it.
            unsafe { slot.question.get().write(Some(index as u64)) };
            slot.state.store(whose | state, Ordering::Relaxed);
        }
        mailbox.is_short.store(true, Ordering::Relaxed);
        let lives = |thread| Some(thread == 8);
        let free = || {
            let states = mailbox.slots.iter().map(|slot| slot.state.load(Ordering::Relaxed));
            states.filter(|&state| state == FREE).count()
        };
        // The requests that were made are served.
        let mut served = 0;
        while mailbox.serve_one(|question| question, lives) {
            served += 1;
        }
        assert_eq!((served, free()), (SLOTS / 4, SLOTS / 2));
        mailbox.is_short.store(true, Ordering::Relaxed);
        assert!(!mailbox.serve_one(|question| question, lives));
        assert_eq!(free(), SLOTS / 4 * 3);
    }

    #[test]
    fn callers_that_the_server_cannot_find_keep_their_slots() {
        let mailbox = Mailbox::<u64, u64>::default();
        for slot in &mailbox.slots {
            slot.state.store(7 << STATE_BITS | ANSWERED, Ordering::Relaxed);
        }
        mailbox.is_short.store(true, Ordering::Relaxed);
        assert!(!mailbox.serve_one(|question| question, |_| Some(false)));
        assert!(mailbox.slots.iter().all(|slot| slot.state.load(Ordering::Relaxed) != FREE));
    }
}
