//! Datagrams that only members can make, and that are taken once.
//!
//! A datagram is a header of 42 bytes (magic, version, kind, the sender's boot number, its sequence
//! number, a tag) and a payload. The tag is an HMAC over all of it under the shared key. A sender
//! that is not known yet is asked to repeat a random number first, so that recorded datagrams of
//! earlier processes are worth nothing; what it sent meanwhile is held and taken then. From there
//! on a window over its sequence numbers lets each datagram through once. No clock is involved, and
//! all tables are bounded.

use std::collections::HashMap;
use std::net::SocketAddr;

use hiroma_far_wire::Key;

/// Version of the datagrams and of all that is in them.
pub const POOL_VERSION: u16 = 1;
/// Length of the header.
pub const HEADER_BYTES: usize = 42;
const MAGIC: [u8; 4] = *b"HIRP";
const TAG_AT: usize = HEADER_BYTES - TAG_BYTES;
const TAG_BYTES: usize = 16;

/// Senders whose windows are remembered; one that is forgotten is asked again.
const SENDERS_MAX: usize = 8192;
/// Senders that are being asked.
const ASKED_MAX: usize = 256;
/// Datagrams of one of them that are held meanwhile.
const HELD_MAX: usize = 4;
/// Time after which an unanswered question is forgotten.
const ASKED_MS: u64 = 2000;

const DATA: u16 = 1;
const CHALLENGE: u16 = 2;
const RESPONSE: u16 = 3;

/// Why a datagram is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is something else.
    #[error("it is no datagram of a pool")]
    Foreign,
    /// Another version.
    #[error(
        "it speaks version {0} of the pool's protocol, this member {POOL_VERSION}: use the same release of hiroma on all members"
    )]
    Version(u16),
    /// Changed on the way, or made with another key.
    #[error("its key is not this member's: start both with the same --key-file")]
    Key,
    /// It was here before.
    #[error("it repeats a datagram that was here before")]
    Replay,
    /// Authentic, but its content is not valid.
    #[error("its content makes no sense")]
    Content,
}

/// What came of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// Payloads to act on, in the order in which they were sent.
    Payloads(Vec<Vec<u8>>),
    /// A datagram to send back.
    Reply(Vec<u8>),
    /// Nothing to do.
    Nothing,
}

struct Window {
    /// Highest sequence number.
    top: u64,
    /// Bit n: `top - n` was here.
    seen: u128,
    heard_ms: u64,
}

impl Window {
    fn accept(&mut self, sequence: u64) -> bool {
        if sequence > self.top {
            let by = sequence - self.top;
            self.seen = if by < 128 { self.seen << by | 1 } else { 1 };
            self.top = sequence;
            return true;
        }
        let bit = self.top - sequence;
        if bit >= 128 || self.seen >> bit & 1 != 0 {
            return false;
        }
        self.seen |= 1 << bit;
        true
    }
}

struct Asked {
    nonce: [u8; 16],
    held: Vec<(u64, Vec<u8>)>,
    at_ms: u64,
}

/// Seals and opens datagrams.
pub struct Guard {
    key: Key,
    nonces: Key,
    boot: u64,
    sequence: u64,
    windows: HashMap<u64, Window>,
    asked: HashMap<u64, Asked>,
}

impl Guard {
    /// `boot` is this process's random number, `secret` is random and never leaves it. Without a
    /// key, anyone who can send to this member is taken for one.
    pub fn new(key: Option<Key>, boot: u64, secret: &[u8; 32]) -> Guard {
        let made = |bytes: &[u8]| Key::from_file_content(bytes).expect("of a valid length");
        let mut secret = secret.to_vec();
        secret.push(b'.'); // white space at the end does not count
        Guard {
            key: key.unwrap_or_else(|| made(b"a pool without a key")),
            nonces: made(&secret),
            boot,
            sequence: 0,
            windows: HashMap::new(),
            asked: HashMap::new(),
        }
    }

    /// A datagram with this payload.
    pub fn seal(&mut self, payload: &[u8]) -> Vec<u8> {
        self.make(DATA, payload)
    }

    fn make(&mut self, kind: u16, payload: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&POOL_VERSION.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&0u16.to_be_bytes());
        bytes.extend_from_slice(&self.boot.to_be_bytes());
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        let tag = self.key.tag(&[&bytes, payload]);
        bytes.extend_from_slice(&tag[..TAG_BYTES]);
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Checks a datagram.
    pub fn open(
        &mut self,
        from: SocketAddr,
        bytes: &[u8],
        now_ms: u64,
    ) -> Result<Received, Refusal> {
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes.len() < HEADER_BYTES || bytes[..4] != MAGIC {
            return Err(Refusal::Foreign);
        }
        let version = u16::from_be_bytes([bytes[4], bytes[5]]);
        if version != POOL_VERSION {
            return Err(Refusal::Version(version));
        }
        let (head, payload) = (&bytes[..TAG_AT], &bytes[HEADER_BYTES..]);
        if !self.key.has_tag(&[head, payload], &bytes[TAG_AT..HEADER_BYTES]) {
            return Err(Refusal::Key);
        }
        let kind = u16::from_be_bytes([bytes[6], bytes[7]]);
        let (boot, sequence) = (number(10), number(18));
        if boot == self.boot {
            return Err(Refusal::Replay);
        }
        match kind {
            // A challenge is answered whoever asks: the answer is worth nothing to others.
            CHALLENGE if payload.len() == 16 => Ok(Received::Reply(self.make(RESPONSE, payload))),
            RESPONSE if payload.len() == 16 => self.respond(boot, sequence, payload, now_ms),
            DATA => match self.windows.get_mut(&boot) {
                Some(window) => {
                    window.heard_ms = now_ms;
                    let fresh = window.accept(sequence);
                    let payload = || Received::Payloads(vec![payload.to_vec()]);
                    fresh.then(payload).ok_or(Refusal::Replay)
                }
                None => Ok(self.ask(from, boot, sequence, payload, now_ms)),
            },
            _ => Err(Refusal::Content),
        }
    }

    /// Holds the datagram, and asks its sender whether it is there now.
    fn ask(
        &mut self,
        from: SocketAddr,
        boot: u64,
        sequence: u64,
        payload: &[u8],
        now_ms: u64,
    ) -> Received {
        self.asked.retain(|_, asked| now_ms.saturating_sub(asked.at_ms) < ASKED_MS);
        if self.asked.len() >= ASKED_MAX && !self.asked.contains_key(&boot) {
            return Received::Nothing;
        }
        let (nonces, counter) = (&self.nonces, self.sequence);
        let asked = self.asked.entry(boot).or_insert_with(|| {
            let tag = nonces.tag(&[
                from.to_string().as_bytes(),
                &boot.to_be_bytes(),
                &counter.to_be_bytes(),
                &now_ms.to_be_bytes(),
            ]);
            let nonce = tag[..16].try_into().expect("16 of 32 bytes");
            Asked { nonce, held: Vec::new(), at_ms: now_ms }
        });
        if asked.held.len() < HELD_MAX && asked.held.iter().all(|(held, _)| *held != sequence) {
            asked.held.push((sequence, payload.to_vec()));
        }
        let nonce = asked.nonce;
        Received::Reply(self.make(CHALLENGE, &nonce))
    }

    fn respond(
        &mut self,
        boot: u64,
        sequence: u64,
        nonce: &[u8],
        now_ms: u64,
    ) -> Result<Received, Refusal> {
        match self.asked.get(&boot) {
            // Two datagrams were asked about, and the first answer was enough.
            None => return Ok(Received::Nothing),
            Some(asked) if asked.nonce != nonce => return Err(Refusal::Replay),
            Some(_) => {}
        }
        let asked = self.asked.remove(&boot).expect("just found");
        if self.windows.len() >= SENDERS_MAX {
            let oldest = self.windows.iter().min_by_key(|(_, window)| window.heard_ms);
            if let Some(oldest) = oldest.map(|(boot, _)| *boot) {
                self.windows.remove(&oldest);
            }
        }
        let mut window = Window { top: sequence, seen: 1, heard_ms: now_ms };
        let fresh = asked.held.into_iter().filter(|(sequence, _)| window.accept(*sequence));
        let payloads = fresh.map(|(_, payload)| payload).collect();
        self.windows.insert(boot, window);
        Ok(Received::Payloads(payloads))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn from() -> SocketAddr {
        "10.0.0.9:7070".parse().unwrap()
    }

    fn guard(key: Option<&str>, boot: u64) -> Guard {
        let key = key.map(|text| Key::from_file_content(text.as_bytes()).unwrap());
        Guard::new(key, boot, &[boot as u8; 32])
    }

    /// Sends one payload; answers challenges.
    fn pass(
        from_guard: &mut Guard,
        to: &mut Guard,
        datagram: &[u8],
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        match to.open(from(), datagram, 0)? {
            Received::Payloads(payloads) => Ok(payloads),
            Received::Nothing => Ok(Vec::new()),
            Received::Reply(challenge) => match from_guard.open(from(), &challenge, 0)? {
                Received::Reply(response) => match to.open(from(), &response, 0)? {
                    Received::Payloads(payloads) => Ok(payloads),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            },
        }
    }

    const KEY: Option<&str> = Some("0123456789abcdef");

    #[test]
    fn each_datagram_is_taken_once() {
        for key in [None, KEY] {
            let (mut a, mut b) = (guard(key, 1), guard(key, 2));
            let sent: Vec<Vec<u8>> = (0..5u8).map(|n| a.seal(&[n])).collect();
            assert_eq!(pass(&mut a, &mut b, &sent[2]), Ok(vec![vec![2]]));
            assert_eq!(pass(&mut a, &mut b, &sent[1]), Ok(vec![vec![1]]), "out of order");
            for n in [4, 0, 3] {
                assert_eq!(pass(&mut a, &mut b, &sent[n]), Ok(vec![vec![n as u8]]));
            }
            for datagram in &sent {
                assert_eq!(pass(&mut a, &mut b, datagram), Err(Refusal::Replay));
            }
        }
    }

    #[test]
    fn recorded_datagrams_of_an_ended_process_are_worth_nothing() {
        let (mut dead, mut b, mut thief) = (guard(KEY, 1), guard(KEY, 2), guard(None, 3));
        let (data, response) = (dead.seal(b"x"), dead.make(RESPONSE, &[7; 16]));
        let Ok(Received::Reply(challenge)) = b.open(from(), &data, 0) else { panic!() };
        // Whoever replays cannot answer, and an old answer does not fit.
        assert_eq!(thief.open(from(), &challenge, 0), Err(Refusal::Key));
        assert_eq!(b.open(from(), &response, 0), Err(Refusal::Replay));
        assert!(matches!(b.open(from(), &data, 0), Ok(Received::Reply(_))));
    }

    #[test]
    fn other_key_version_and_protocol_are_told_apart() {
        let (mut a, mut b) = (guard(KEY, 1), guard(Some("fedcba9876543210"), 2));
        let mut datagram = a.seal(b"x");
        assert_eq!(b.open(from(), &datagram, 0), Err(Refusal::Key));
        assert_eq!(guard(None, 2).open(from(), &datagram, 0), Err(Refusal::Key));
        datagram[5] = 9;
        assert_eq!(b.open(from(), &datagram, 0), Err(Refusal::Version(9)));
        assert_eq!(b.open(from(), b"GET / HTTP/1.1", 0), Err(Refusal::Foreign));
        assert!(Refusal::Version(9).to_string().contains("same release"));
        assert!(Refusal::Key.to_string().contains("--key-file"));
    }

    #[test]
    fn tables_are_bounded_whoever_sends() {
        let mut b = guard(KEY, 0);
        for boot in 1..2000 {
            let _ = b.open(from(), &guard(KEY, boot).seal(b"x"), 0);
        }
        assert_eq!(b.asked.len(), ASKED_MAX);
        // After the time for an answer there is room for others.
        let mut late = guard(KEY, 5000);
        let datagram = late.seal(b"late");
        assert!(matches!(b.open(from(), &datagram, ASKED_MS), Ok(Received::Reply(_))));
        assert_eq!(b.asked.len(), 1);
    }

    proptest! {
        #[test]
        fn no_change_of_any_bit_gets_through(at in 0usize..60, bit in 0u8..8, garbage in proptest::collection::vec(any::<u8>(), 0..100)) {
            let (mut a, mut b) = (guard(KEY, 1), guard(KEY, 2));
            let first = a.seal(b"first");
            prop_assert!(pass(&mut a, &mut b, &first).is_ok());
            let mut datagram = a.seal(&[5; 18]);
            datagram[at] ^= 1 << bit;
            prop_assert!(b.open(from(), &datagram, 0).is_err());
            prop_assert!(b.open(from(), &garbage, 0).is_err());
        }
    }
}
