//! What a server has done since its start, counted by all connections.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hiroma_far_wire::{ErrorCode, Message};

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum RequestKind {
    /// Bytes of a client are sent to it.
    Read,
    /// Bytes of a client are taken.
    Write,
    /// Bytes are not needed any more.
    Free,
    /// Room is set aside.
    Reserve,
    /// A child reads what its parent has.
    Attach,
    /// A question about server or pool.
    Query,
    /// All others: usage, signs of life, announcements of forks.
    Other,
}

impl RequestKind {
    /// All of them.
    pub const ALL: [RequestKind; 7] = [
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Free,
        RequestKind::Reserve,
        RequestKind::Attach,
        RequestKind::Query,
        RequestKind::Other,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        ["read", "write", "free", "reserve", "attach", "query", "other"][self as usize]
    }

    pub(crate) fn of(message: &Message) -> RequestKind {
        match message {
            Message::Read { .. } => RequestKind::Read,
            Message::Write { .. } => RequestKind::Write,
            Message::Free { .. } => RequestKind::Free,
            Message::Reserve { .. } => RequestKind::Reserve,
            Message::Attach { .. } => RequestKind::Attach,
            Message::Query { .. } => RequestKind::Query,
            _ => RequestKind::Other,
        }
    }
}

/// Why a client was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Refused {
    /// There is no room for more blocks.
    Full,
    /// Its tenant's quota is used up.
    Quota,
    /// Its key is not the server's.
    Key,
    /// What it had here is gone.
    Session,
    /// It asked for what it does not have.
    Address,
    /// There are too many connections.
    Connections,
    /// What it sent makes no sense.
    Protocol,
    /// Anything else.
    Other,
}

impl Refused {
    /// All of them.
    pub const ALL: [Refused; 8] = [
        Refused::Full,
        Refused::Quota,
        Refused::Key,
        Refused::Session,
        Refused::Address,
        Refused::Connections,
        Refused::Protocol,
        Refused::Other,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        ["full", "quota", "key", "session", "address", "connections", "protocol", "other"]
            [self as usize]
    }

    pub(crate) fn of(code: ErrorCode) -> Refused {
        match code {
            ErrorCode::Full => Refused::Full,
            ErrorCode::Key => Refused::Key,
            ErrorCode::NoSession => Refused::Session,
            ErrorCode::BadAddress => Refused::Address,
            ErrorCode::TooMany => Refused::Connections,
            ErrorCode::Version | ErrorCode::Malformed => Refused::Protocol,
            _ => Refused::Other,
        }
    }
}

/// Times are counted in steps that double; the first is up to this.
const FIRST_NS: u64 = 1 << 10;
/// The last step ends at 4.3 s.
const STEPS: usize = 23;

#[derive(Default)]
struct Times {
    steps: [AtomicU64; STEPS],
    above: AtomicU64,
    sum_ns: AtomicU64,
}

/// How long the requests of one kind took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimesTaken {
    /// For each step its upper bound in nanoseconds, and the requests in it.
    pub steps: Vec<(u64, u64)>,
    /// Requests that took longer.
    pub above: u64,
    /// Of all of them together.
    pub sum_ns: u64,
}

impl TimesTaken {
    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.above + self.steps.iter().map(|(_, count)| count).sum::<u64>()
    }
}

impl Times {
    fn add(&self, taken: Duration) {
        let ns = taken.as_nanos() as u64;
        let step = ns.div_ceil(FIRST_NS).max(1).next_power_of_two().trailing_zeros() as usize;
        self.steps.get(step).unwrap_or(&self.above).fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    fn taken(&self) -> TimesTaken {
        let step = |(step, count): (usize, &AtomicU64)| (FIRST_NS << step, count.load(Relaxed));
        TimesTaken {
            steps: self.steps.iter().enumerate().map(step).collect(),
            above: self.above.load(Relaxed),
            sum_ns: self.sum_ns.load(Relaxed),
        }
    }
}

/// The counters of a server. They only grow.
#[derive(Default)]
pub struct Activity {
    times: [Times; RequestKind::ALL.len()],
    refused: [AtomicU64; Refused::ALL.len()],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

impl Activity {
    /// A request was served, which began at `start`.
    pub(crate) fn served(&self, kind: RequestKind, start: Instant) {
        self.times[kind as usize].add(start.elapsed());
    }

    pub(crate) fn refused(&self, why: Refused) {
        self.refused[why as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// How long the requests of a kind took: from its header until its reply was on its way.
    pub fn times(&self, kind: RequestKind) -> TimesTaken {
        self.times[kind as usize].taken()
    }

    /// How often clients were refused.
    pub fn refusals(&self, why: Refused) -> u64 {
        self.refused[why as usize].load(Relaxed)
    }

    /// Content of blocks that was received.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Relaxed)
    }

    /// Content of blocks that was sent.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_its_step() {
        for ns in [0, 1, 1024, 1025, 5_000, 1 << 32, (1 << 32) + 1, u64::MAX >> 1] {
            let times = Times::default();
            times.add(Duration::from_nanos(ns));
            let taken = times.taken();
            let at = taken.steps.iter().position(|(_, count)| *count > 0);
            match at {
                Some(0) => assert!(ns <= FIRST_NS),
                Some(at) => assert!(ns > taken.steps[at - 1].0 && ns <= taken.steps[at].0, "{ns}"),
                None => assert!(ns > 1 << 32 && taken.above == 1, "{ns}"),
            }
            assert_eq!((taken.count(), taken.sum_ns), (1, ns));
        }
    }
}
