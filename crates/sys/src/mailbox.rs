//! Requests from any thread to one thread that serves them, in memory that both share: no
//! descriptor, no lock, no allocation.
//!
//! A request may be made by a thread whose stack the serving thread has to fetch first, also from a
//! signal handler that interrupted another request: so the request and its answer are in slots of
//! the mailbox, never on the caller's stack.
//!
//! Contract: a slot belongs to one side at a time. From `FREE` to `TAKEN`, and while it takes the
//! answer, it is the caller's; from `ASKED` to `ANSWERED` it is the server's.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::futex::{self, Flags};

use crate::lock::Bell;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const ASKED: u32 = 2;
const ANSWERED: u32 = 3;

/// Maximum number of concurrent requests; more wait for a free slot.
const SLOTS: usize = 128;
const WORDS: usize = SLOTS / 64;
/// How often to check for an answer before going to sleep.
const SPINS: u32 = 200;

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
            bell: Bell::default(),
        }
    }
}

impl<Q: Send, A: Send> Mailbox<Q, A> {
    /// Makes a request, and waits for the answer.
    pub fn ask(&self, question: Q) -> A {
        let index = self.take();
        let slot = &self.slots[index];
        // SAFETY: the slot is ours until its state is ASKED.
        unsafe { *slot.question.get() = Some(question) };
        slot.state.store(ASKED, Ordering::Release);
        self.asked[index / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
        self.bell.ring();
        let mut spins = 0;
        while slot.state.load(Ordering::Acquire) != ANSWERED {
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                let _ = futex::wait(&slot.state, Flags::PRIVATE, ASKED, None);
            }
        }
        // SAFETY: ours again because its state is ANSWERED.
        let answer = unsafe { (*slot.answer.get()).take() };
        slot.state.store(FREE, Ordering::Release);
        answer.expect("an answer lies where it is said to lie")
    }

    fn take(&self) -> usize {
        loop {
            let free = |slot: &Slot<Q, A>| {
                slot.state
                    .compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            };
            if let Some(index) = self.slots.iter().position(free) {
                return index;
            }
            std::thread::yield_now();
        }
    }

    /// Serves one request. False: there is none.
    pub fn serve_one(&self, serve: impl FnOnce(Q) -> A) -> bool {
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
        // SAFETY: ours while its state is ASKED.
        let question = unsafe { (*slot.question.get()).take() };
        let answer = serve(question.expect("a question lies where it is said to lie"));
        // SAFETY: as above.
        unsafe { *slot.answer.get() = Some(answer) };
        slot.state.store(ANSWERED, Ordering::Release);
        let _ = futex::wake(&slot.state, Flags::PRIVATE, 1);
        true
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
                if !served.serve_one(|question| question * 2 + 1) {
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
}
