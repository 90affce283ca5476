//! Checks the servers while there are no requests: a broken connection is restored before the
//! server ends the session, and the loss of a server is detected although no request would find it
//! out.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hiroma_far_wire::{Message, TELL_VERSION};

use super::channel::Requests;
use super::{Shared, StoreError};
use crate::store::background::Background;
use crate::store::tcp::link::Link;
use crate::store::{Condition, Pulse};

/// Interval of questions to a server. Together with the time after which a link reports silence, that
/// makes less than 10 s.
const ASK_EVERY: Duration = Duration::from_secs(3);
/// Interval of the checks of links while all of them work, and while one does not.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY_DOWN: Duration = Duration::from_millis(100);

/// A lease is renewed this many times before it would run out.
const LEASE_PARTS: u32 = 4;

/// The same where the content is elsewhere too: questions, and checks while something is amiss.
const ASK_EVERY_REDUNDANT: Duration = Duration::from_millis(300);
const LOOK_EVERY_REDUNDANT: Duration = Duration::from_millis(20);

/// State shared by the store and the minder.
#[derive(Default)]
pub struct Minding {
    pub thread: Background,
    /// What the last round has found.
    found: Mutex<Option<Found>>,
}

#[derive(Clone)]
struct Found {
    condition: Condition,
    heard: Instant,
    reason: String,
}

impl Minding {
    /// What is known of the server (of the first one, if there are several).
    pub fn pulse(&self) -> Pulse {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match found {
            Some(Found { condition, heard, reason }) => {
                Pulse { condition, silent: heard.elapsed(), reason, is_draining: false }
            }
            None => Pulse {
                condition: Condition::Up,
                silent: Duration::ZERO,
                reason: String::new(),
                is_draining: false,
            },
        }
    }

    fn note(&self, link: &Link) {
        let (failure, heard) = link.news();
        let (condition, reason) = match (link.death(), failure) {
            (Some(error), _) => (Condition::Dead, error.to_string()),
            (None, Some(reason)) => (Condition::CutOff, reason.to_owned()),
            (None, None) => (Condition::Up, String::new()),
        };
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Found { condition, heard, reason });
    }
}

/// Starts the minder of this process: in the first one, and in each child that adopts the store.
pub fn start(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let (minded, epoch) = (Arc::clone(shared), shared.epoch.load(SeqCst));
    let mut minder = Minder {
        epoch,
        asked: vec![Instant::now(); shared.servers.len()],
        told: vec![None; shared.servers.len()],
        given_up: shared.books().servers.iter().map(|server| server.is_gone).collect(),
    };
    let work = move || {
        while !minded.minding.thread.is_stopping() && minded.epoch.load(SeqCst) == epoch {
            // Checks each link once, without waiting.
            let pause = minded.minding.thread.round(LOOK_EVERY_DOWN, || minder.look(&minded));
            minded.minding.thread.rest(pause);
        }
    };
    shared
        .minding
        .thread
        .start(c"hiroma-tcp", work)
        .map_err(|error| shared.io_error("starting a thread", &error.to_string()))
}

struct Minder {
    epoch: u64,
    /// When each server was last asked.
    asked: Vec<Instant>,
    /// Blocks with too few pieces, as each server was last told.
    told: Vec<Option<u64>>,
    /// Servers that are lost for good.
    given_up: Vec<bool>,
}

impl Minder {
    /// Returns the pause until the next look.
    fn look(&mut self, shared: &Shared) -> Duration {
        // If the links are in use, their user detects problems.
        let Ok(mut links) = shared.controls.try_lock() else { return LOOK_EVERY_DOWN };
        if shared.epoch.load(SeqCst) != self.epoch {
            return Duration::ZERO;
        }
        let (mut all_well, mut look_every) = (true, LOOK_EVERY);
        for (server, link) in links.iter_mut().enumerate() {
            if self.given_up[server] {
                continue;
            }
            let ask_every = if shared.is_redundant { ASK_EVERY_REDUNDANT } else { ASK_EVERY };
            // Often enough to renew the lease although an answer may get lost.
            let lease = shared.books().servers[server].lease;
            let ask_every = lease.map_or(ask_every, |lease| ask_every.min(lease / LEASE_PARTS));
            look_every = look_every.min(ask_every);
            if !link.is_busy() && (link.is_broken() || self.asked[server].elapsed() >= ask_every) {
                // The answer also says whether the server is to be emptied.
                link.push_control(Message::Usage, false);
                self.asked[server] = Instant::now();
            }
            self.tell(shared, server, link);
            // Nobody else may use the server any more.
            shared.give_back(link);
            link.pump(&mut Requests::default(), true);
            all_well &= link.is_up() && !link.is_busy();
            if server == 0 {
                shared.minding.note(link);
            }
            if let Some(error) = link.death() {
                self.given_up[server] = true;
                if shared.books().servers[server].is_gone {
                    let text = &shared.servers[server].text;
                    (shared.log)(&format!("{text} was emptied, and is done without from now on"));
                    continue;
                }
                let needed = shared.books().holds_something(server);
                if needed { (shared.lost)(error) } else { (shared.log)(&error.to_string()) }
            }
        }
        match (all_well, shared.is_redundant) {
            (true, false) => look_every,
            (true, true) => LOOK_EVERY_DOWN,
            (false, false) => LOOK_EVERY_DOWN,
            (false, true) => LOOK_EVERY_REDUNDANT,
        }
    }

    /// Tells a server how many blocks have too few pieces, for whoever looks at the pool.
    fn tell(&mut self, shared: &Shared, server: usize, link: &mut Link) {
        let short_blocks = shared.short_blocks.load(Relaxed);
        let knows = link.version().is_some_and(|version| version >= TELL_VERSION);
        if shared.is_redundant && knows && self.told[server] != Some(short_blocks) {
            link.push_control(Message::Tell { short_blocks }, false);
            self.told[server] = Some(short_blocks);
        }
    }
}
