//! Why a connection cannot continue, and what becomes of its link.

use std::io;
use std::time::{Duration, Instant};

use super::{Ask, Link, PAUSE_MAX, PAUSE_MIN, State};
use crate::store::StoreError;
use crate::store::tcp::Shared;
use crate::store::tcp::channel::Requests;

/// Trouble with a connection.
pub enum Trouble {
    /// It broke: reconnect.
    Broken(String),
    /// Reconnecting cannot help.
    Fatal(StoreError),
}

impl Trouble {
    /// For trouble after which reconnecting makes no sense.
    pub fn into_fatal(self, shared: &Shared, server: usize) -> Trouble {
        match self {
            Trouble::Broken(reason) => Trouble::Fatal(shared.broken_protocol(server, &reason)),
            fatal @ Trouble::Fatal(_) => fatal,
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Broken(error.to_string())
    }
}

impl Link {
    /// The connection broke: reconnect, unless that has been tried for long enough.
    pub(super) fn break_off(&mut self, reason: &str, requests: &mut Requests) {
        let now = Instant::now();
        let text = &self.shared.servers[self.server].text;
        let (since, pause) = match self.state {
            State::Down { since, pause, .. }
            | State::Connecting { since, pause, .. }
            | State::Greeting { since, pause, .. } => (since, pause),
            State::Up { .. } => {
                self.announced = true;
                let patience = self.shared.timeout;
                (self.shared.log)(&format!(
                    "lost the connection to {text} ({reason}); trying again for up to {patience:?}"
                ));
                (now, Duration::ZERO)
            }
            State::Dead(_) => return,
        };
        self.failure = Some(reason.to_owned());
        // A link without waiting requests may stay down indefinitely.
        let waited = now.duration_since(since.max(self.busy_since));
        if self.is_busy() && waited > self.shared.timeout {
            let store = format!("{text} ({reason})");
            return self.die(
                StoreError::Unreachable { store, waited: Duration::from_secs(waited.as_secs()) },
                requests,
            );
        }
        self.state = State::Down {
            since,
            retry_at: now + pause,
            pause: (2 * pause).clamp(PAUSE_MIN, PAUSE_MAX),
        };
        (self.sent, self.sent_bytes, self.received, self.blocked) = (0, 0, 0, false);
        self.stash.clear();
        self.greeting.clear();
        self.changed = true;
    }

    pub(super) fn die(&mut self, error: StoreError, requests: &mut Requests) {
        self.state = State::Dead(error);
        self.changed = true;
        self.fail_all(requests);
    }

    pub(super) fn fail_all(&mut self, requests: &mut Requests) {
        let State::Dead(error) = &self.state else { return };
        for part in self.parts.drain(..) {
            match part.ask {
                Ask::Transfer { request, .. } => requests.part_done(request, Err(error.clone())),
                Ask::Control { message: question, .. } => {
                    self.shared.note_no_answer(self.server, &question)
                }
            }
        }
        self.sent = 0;
    }
}
