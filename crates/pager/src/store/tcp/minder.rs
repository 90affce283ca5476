//! Minds the servers while nobody asks them anything: a connection that broke is made again before
//! the server gives the session up, and a server that is gone is noticed although no request finds
//! it out.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use hiroma_kernel::lock::Bell;
use hiroma_wire::Message;

use super::channel::Requests;
use super::{Shared, StoreError};
use crate::host::{self, Thread};

/// How often a server is asked whether it is there. With the time after which a link speaks of
/// silence, that makes less than 10 s.
const ASK_EVERY: Duration = Duration::from_secs(3);
/// How often links are looked at while all of them work, and while one does not.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY_DOWN: Duration = Duration::from_millis(100);

/// What store and minder agree on.
#[derive(Default)]
pub struct Minding {
    thread: Mutex<Option<Thread>>,
    bell: Bell,
    stopping: AtomicBool,
    /// The process is about to fork: nothing may be locked or allocated.
    still: AtomicBool,
    /// A round is going on.
    working: AtomicBool,
}

impl Minding {
    /// Lets the minder finish its round and begin no other one, until [`Minding::goes_on`].
    pub fn stand_still(&self) {
        self.still.store(true, SeqCst);
        while self.working.load(SeqCst) {
            yield_now();
        }
    }

    /// The fork is over. Whoever uses a store knows that: nobody does while one is under way.
    pub fn goes_on(&self) {
        self.still.store(false, SeqCst);
    }

    /// Ends the minder, if this process has one.
    pub fn stop(&self) {
        self.stopping.store(true, SeqCst);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.bell.ring();
            thread.join();
        }
    }
}

/// Starts the minder of this process: in the first one, and in each child that adopts the store.
pub fn start(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let (minded, epoch) = (Arc::clone(shared), shared.epoch.load(SeqCst));
    let mut minder = Minder {
        epoch,
        asked: vec![Instant::now(); shared.servers.len()],
        given_up: vec![false; shared.servers.len()],
    };
    let work = move || {
        while !minded.minding.stopping.load(SeqCst) && minded.epoch.load(SeqCst) == epoch {
            let pause = minder.round(&minded);
            minded.minding.bell.wait(pause);
        }
    };
    let thread = host::spawn(c"hiroma-tcp", work)
        .map_err(|error| shared.io_error("starting a thread", &error.to_string()))?;
    let minding = &shared.minding;
    minding.still.store(false, SeqCst);
    minding.working.store(false, SeqCst);
    let before = minding.thread.lock().unwrap_or_else(PoisonError::into_inner).replace(thread);
    // After a fork: the thread of the parent, which is not here.
    std::mem::forget(before);
    Ok(())
}

struct Minder {
    epoch: u64,
    /// When each server was last asked.
    asked: Vec<Instant>,
    /// Servers that are gone for good.
    given_up: Vec<bool>,
}

impl Minder {
    /// Looks at each link once, without waiting for anything; returns when to come again.
    fn round(&mut self, shared: &Shared) -> Duration {
        shared.minding.working.store(true, SeqCst);
        let pause =
            if shared.minding.still.load(SeqCst) { LOOK_EVERY_DOWN } else { self.look(shared) };
        shared.minding.working.store(false, SeqCst);
        pause
    }

    fn look(&mut self, shared: &Shared) -> Duration {
        // Where they are in use, somebody else finds out.
        let Ok(mut links) = shared.controls.try_lock() else { return LOOK_EVERY_DOWN };
        if shared.epoch.load(SeqCst) != self.epoch {
            return Duration::ZERO;
        }
        let mut all_well = true;
        for (server, link) in links.iter_mut().enumerate() {
            if self.given_up[server] {
                continue;
            }
            if !link.is_busy() && (link.is_broken() || self.asked[server].elapsed() >= ASK_EVERY) {
                link.push_control(Message::Ping, false);
                self.asked[server] = Instant::now();
            }
            link.pump(&mut Requests::default(), true);
            all_well &= link.is_up() && !link.is_busy();
            if let Some(error) = link.death() {
                self.given_up[server] = true;
                let needed = shared.books().holds_something(server);
                if needed { (shared.lost)(error) } else { (shared.log)(&error.to_string()) }
            }
        }
        if all_well { LOOK_EVERY } else { LOOK_EVERY_DOWN }
    }
}
