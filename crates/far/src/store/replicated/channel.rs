//! One thread's access to the members: a channel to each, the requests of the caller, and the
//! *attempts* that serve them. An attempt is one request to one member.
//!
//! The caller's buffers are lent to members again and again ([`vm::lend`]); the request keeps the
//! original. Before a buffer is returned, every attempt that uses it has completed or was abandoned
//! ([`Channel::abandon`]): no late answer can reach it.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use hiroma_policy::redundancy::{MEMBERS_MAX, Member};
use hiroma_sys::frame::FrameBuf;
use hiroma_units::Loc;
use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use slab::Slab;

use super::Shared;
use super::reads::{Part, Request};
use super::writes::Write;
use crate::store::spares::Spares;
use crate::store::{Channel, Completion, Condition, Purpose, StoreError, Token};

/// Interval at which requests in flight are looked at, for members that do not answer.
const LOOK_NS: u64 = 2_000_000;

/// One request to one member.
pub struct Attempt {
    pub member: Member,
    pub serial: u64,
    pub since_ns: u64,
    /// Which piece of its blocks it is about.
    pub index: usize,
    /// The part or the write that it serves; none: it was abandoned.
    pub serves: Serves,
    /// Where the blocks are, or where a write puts them.
    pub places: Vec<Loc>,
    pub is_write: bool,
    /// The buffer of our own that it reads into, instead of the caller's.
    pub spare: Option<FrameBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serves {
    Read(usize),
    Write(usize),
    Nobody,
}

struct Line {
    serial: u64,
    channel: Box<dyn Channel>,
}

/// See [`Channel`].
pub struct ReplicatedChannel {
    pub(super) shared: Arc<Shared>,
    purpose: Purpose,
    epoch: u64,
    /// The members as of this change.
    seen: u64,
    lines: [Option<Line>; MEMBERS_MAX],
    pub(super) attempts: Slab<Attempt>,
    pub(super) requests: Slab<Request>,
    pub(super) parts: Slab<Part>,
    pub(super) writes: Slab<Write>,
    pub(super) done: Vec<Completion>,
    /// For pieces, and for second requests of what was requested already.
    pub(super) spares: Spares,
    /// For pieces that are not there, and to compare pieces.
    pub(super) scratch: Vec<u8>,
    completions: Vec<Completion>,
    looked_ns: u64,
    /// When completions were last taken.
    pumped_ns: u64,
    timer: Option<OwnedFd>,
}

impl ReplicatedChannel {
    pub fn open(shared: &Arc<Shared>, purpose: Purpose) -> ReplicatedChannel {
        let mut channel = ReplicatedChannel {
            shared: Arc::clone(shared),
            purpose,
            epoch: shared.epoch.load(SeqCst),
            seen: 0,
            lines: std::array::from_fn(|_| None),
            attempts: Slab::default(),
            requests: Slab::default(),
            parts: Slab::default(),
            writes: Slab::default(),
            done: Vec::new(),
            spares: Spares::default(),
            scratch: Vec::new(),
            completions: Vec::new(),
            looked_ns: 0,
            pumped_ns: 0,
            timer: timerfd_create(
                TimerfdClockId::Monotonic,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )
            .ok(),
        };
        channel.follow();
        channel
    }

    pub(super) fn is_stale(&self) -> bool {
        self.epoch != self.shared.epoch.load(Relaxed)
    }

    pub(super) fn stale_error(&self) -> StoreError {
        self.shared.io_error("using a channel", "it was opened before this process was forked off")
    }

    /// Opens channels to new members, and closes those to members that are gone.
    pub(super) fn follow(&mut self) {
        let changes = self.shared.changes.load(SeqCst);
        if self.seen == changes {
            return;
        }
        self.seen = changes;
        let stores = self.shared.books().stores();
        let mut serials = [0; MEMBERS_MAX];
        {
            let books = self.shared.books();
            stores.iter().for_each(|&(member, _)| serials[member.index()] = books.serial(member));
        }
        for (number, serial) in serials.into_iter().enumerate() {
            if self.lines[number].as_ref().is_some_and(|line| line.serial != serial) {
                self.close(Member(number as u8));
            }
        }
        for (member, store) in stores {
            let serial = serials[member.index()];
            if self.lines[member.index()].is_none() && serial != 0 {
                if let Ok(channel) = store.open(self.purpose) {
                    self.lines[member.index()] = Some(Line { serial, channel });
                }
            }
        }
    }

    /// Ends the use of a member that is gone: what it was asked for, others are asked for.
    fn close(&mut self, member: Member) {
        let Some(line) = &self.lines[member.index()] else { return };
        let serial = line.serial;
        let mut at = 0;
        while let Some(number) = next(&self.attempts, at) {
            at = number + 1;
            if self
                .attempts
                .get(number)
                .is_some_and(|attempt| attempt.member == member && attempt.serial == serial)
            {
                // A buffer that is not given back may not be used again.
                if let Some(line) = &mut self.lines[member.index()] {
                    let _ = line.channel.abandon(Token(number as u64));
                }
                let error = self.shared.io_error("waiting", "the server is gone");
                self.ended(number, Err(error));
            }
        }
        self.lines[member.index()] = None;
    }

    pub(super) fn line(&mut self, member: Member) -> Option<&mut Box<dyn Channel>> {
        self.lines[member.index()].as_mut().map(|line| &mut line.channel)
    }

    pub(super) fn serial(&self, member: Member) -> u64 {
        self.lines[member.index()].as_ref().map_or(0, |line| line.serial)
    }

    pub(super) fn condition(&self, member: Member) -> Condition {
        let line = self.lines[member.index()].as_ref();
        line.map_or(Condition::CutOff, |line| line.channel.condition())
    }

    /// Takes the caller's buffer out of an attempt's hands. Returns false if that is impossible.
    pub(super) fn abandon(&mut self, number: usize) -> bool {
        let Some(attempt) = self.attempts.get(number) else { return true };
        let member = attempt.member;
        if self.line(member).is_none_or(|line| line.abandon(Token(number as u64)).is_none()) {
            return false;
        }
        if let Some(attempt) = self.attempts.get_mut(number) {
            attempt.serves = Serves::Nobody;
            let spare = attempt.spare.take();
            self.keep_spare(spare);
        }
        true
    }

    pub(super) fn keep_spare(&mut self, spare: Option<FrameBuf>) {
        if let Some(spare) = spare {
            self.spares.put(spare);
        }
    }

    /// A member has completed an attempt, or will not.
    fn ended(&mut self, number: usize, result: Result<(), StoreError>) {
        let Some(attempt) = self.attempts.try_remove(number) else { return };
        match attempt.serves {
            Serves::Read(part) => self.read_ended(part, number, attempt, result),
            Serves::Write(write) => self.write_ended(write, number, attempt, result),
            Serves::Nobody => self.late_ended(&attempt, result.is_ok()),
        }
    }

    /// An attempt has ended that serves nobody any more.
    fn late_ended(&self, attempt: &Attempt, is_done: bool) {
        let now_ns = self.shared.now_ns();
        let mut books = self.shared.books();
        if books.serial(attempt.member) != attempt.serial {
            return;
        }
        if attempt.is_write {
            // What an abandoned write has stored is worthless.
            books.free_places(attempt.member, &attempt.places);
        }
        match (is_done, attempt.is_write) {
            (true, true) => books.pool.alive(attempt.member, now_ns),
            (true, false) => {
                // It may have lain here since, if there was nothing to take completions for.
                let waited_ns = self.pumped_ns.saturating_sub(attempt.since_ns);
                let bytes = attempt.places.len() * self.shared.code.piece_bytes();
                books.pool.answered_late(attempt.member, now_ns, waited_ns, bytes);
            }
            (false, _) => {}
        }
    }

    /// Handles completions that were collected outside of `pump`.
    pub(super) fn completions_came(&mut self, completions: Vec<Completion>) {
        for done in completions {
            self.ended(done.token.0 as usize, done.result);
        }
    }

    fn pump(&mut self) {
        self.follow();
        let mut completions = std::mem::take(&mut self.completions);
        for number in 0..MEMBERS_MAX {
            let Some(line) =
                self.lines[number].as_mut().filter(|line| line.channel.in_flight() > 0)
            else {
                continue;
            };
            line.channel.poll(&mut completions);
            let condition = line.channel.condition();
            for done in completions.drain(..) {
                self.ended(done.token.0 as usize, done.result);
            }
            let member = Member(number as u8);
            if condition != Condition::Up {
                let now_ns = self.shared.now_ns();
                let serial = self.serial(member);
                let mut books = self.shared.books();
                if books.serial(member) == serial {
                    match condition {
                        Condition::Dead => books.pool.died(member),
                        _ => books.pool.cut_off(member, now_ns),
                    }
                }
            }
        }
        self.completions = completions;
        let now_ns = self.shared.now_ns();
        self.pumped_ns = now_ns;
        if !self.attempts.is_empty() && now_ns > self.looked_ns + LOOK_NS {
            self.looked_ns = now_ns;
            self.look(now_ns);
        }
    }

    /// Looks for members that do not answer, and asks others.
    fn look(&mut self, now_ns: u64) {
        {
            let mut books = self.shared.books();
            let mut at = 0;
            while let Some(number) = next(&self.attempts, at) {
                at = number + 1;
                let Some(attempt) = self.attempts.get(number) else { continue };
                if books.serial(attempt.member) == attempt.serial {
                    books.pool.waits(attempt.member, now_ns, attempt.since_ns);
                }
            }
        }
        self.shared.tick();
        self.hedge(now_ns);
        self.redirect();
    }
}

impl Channel for ReplicatedChannel {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        self.start_read(token, locs, buf);
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        self.start_write(token, buf, locs)
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        if !self.is_stale() {
            self.pump();
        }
        out.append(&mut self.done);
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        let mut fds = Vec::with_capacity(8);
        if let Some(timer) = &self.timer {
            // A caller that sleeps until a member answers has to look at the time too. What has
            // completed already wakes it at once.
            let ns = if self.done.is_empty() { LOOK_NS as i64 } else { 1 };
            let value = Timespec { tv_sec: 0, tv_nsec: ns };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: never, it_value: value };
            let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &spec);
            fds.push(timer.as_raw_fd());
        }
        for line in self.lines.iter().flatten().filter(|line| line.channel.in_flight() > 0) {
            fds.extend(line.channel.wait_fds());
        }
        fds
    }

    fn in_flight(&self) -> usize {
        self.requests.len() + self.writes.len() + self.done.len()
    }
}

/// The first number in use from `number` on.
pub(super) fn next<T>(items: &Slab<T>, number: usize) -> Option<usize> {
    (number..items.capacity()).find(|&at| items.contains(at))
}
