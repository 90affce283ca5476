//! Writes: to as many members as there are to be copies, and to others instead of those that fail.

use std::time::{Duration, Instant};

use hiroma_policy::redundancy::{Member, Members};
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::vm;
use hiroma_units::{Bytes, Loc};

use super::channel::{Attempt, ReplicatedChannel, Serves, next};
use crate::content;
use crate::store::{Completion, StoreError, Token};

/// How long a write waits for members that were asked for more room.
const ROOM_PATIENCE: Duration = Duration::from_millis(250);

/// A write of the caller, or blocks that are made again.
pub struct Write {
    token: Token,
    buf: FrameBuf,
    /// The blocks, and their versions.
    blocks: Vec<(u32, u32)>,
    /// Pieces of each that are to be stored, and that are.
    wanted: usize,
    stored: usize,
    /// Members that have a piece or were asked to store one.
    taken: Members,
    flying: Vec<usize>,
    error: Option<StoreError>,
    is_again: bool,
}

impl ReplicatedChannel {
    pub(super) fn start_write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        if self.is_stale() {
            return Err((buf, self.stale_error()));
        }
        self.follow();
        let sector = self.shared.sector_bytes;
        assert!(buf.len() == locs.len() * sector && !locs.is_empty(), "a buffer for other sectors");
        let sum = |bytes| content::checksum(&self.shared.key, bytes);
        let sums: Vec<u64> = buf.bytes().chunks(sector).map(sum).collect();
        let mut numbers = vec![0; locs.len()];
        let blocks: Vec<(u32, u32)> = {
            let mut books = self.shared.books();
            if books.table.allocate(&mut numbers).is_err() {
                drop(books);
                return Err((buf, self.full()));
            }
            numbers.iter().zip(&sums).for_each(|(&number, &sum)| books.table.set_sum(number, sum));
            numbers.iter().map(|&number| (number, books.table.version(number))).collect()
        };
        let write = Write {
            token,
            buf,
            blocks,
            wanted: self.shared.copies,
            stored: 0,
            taken: Members::default(),
            flying: Vec::with_capacity(self.shared.copies),
            error: None,
            is_again: false,
        };
        let number = self.writes.insert(write);
        let start = Instant::now();
        while !self.spread(number) {
            // Room is asked for ahead, so this is rare.
            let patience = if self.shared.books().pool.up().is_empty() {
                self.shared.timeout
            } else {
                ROOM_PATIENCE
            };
            if !self.awaits_room() || start.elapsed() > patience {
                let write = self.writes.remove(number);
                let freed: Vec<Loc> = write.blocks.iter().map(|&(block, _)| Loc(block)).collect();
                self.shared.books().free(&freed);
                let error = match write.error {
                    Some(error) if !matches!(error, StoreError::Full { .. }) => error,
                    _ => self.full(),
                };
                return Err((write.buf, error));
            }
            self.answer_room();
            if let Some(write) = self.writes.get_mut(number) {
                write.taken = Members::default();
            }
        }
        locs.iter_mut().zip(numbers).for_each(|(loc, number)| *loc = Loc(number));
        Ok(())
    }

    /// Starts to store one more piece of blocks that have too few. `holders` have one already.
    /// They must have been marked with `Table::begin`. Returns the buffer if nobody takes them.
    pub fn write_again(
        &mut self,
        token: Token,
        buf: FrameBuf,
        blocks: Vec<(u32, u32)>,
        holders: Members,
        wanted: usize,
    ) -> Result<(), FrameBuf> {
        let write = Write {
            token,
            buf,
            blocks,
            wanted,
            stored: 0,
            taken: holders,
            flying: Vec::new(),
            error: None,
            is_again: true,
        };
        let number = self.writes.insert(write);
        if self.spread(number) {
            return Ok(());
        }
        let write = self.writes.remove(number);
        Err(write.buf)
    }

    fn full(&self) -> StoreError {
        let (usage, stores) = {
            let books = self.shared.books();
            if books.pool.living().is_empty() {
                let reason = "all servers are gone".to_owned();
                return StoreError::NoCopy { store: self.shared.name.clone(), reason };
            }
            (books.usage(), books.stores())
        };
        let reason = stores.iter().find_map(|(_, store)| store.full_because());
        let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
        StoreError::Full {
            store: format!("{}{reason}", self.shared.name),
            used: Bytes(usage.stored_bytes),
            capacity: Bytes(usage.capacity_bytes),
        }
    }

    fn awaits_room(&self) -> bool {
        self.shared.books().stores().iter().any(|(_, store)| store.awaits_room())
    }

    /// Lets members answer that were asked for room.
    fn answer_room(&mut self) {
        let mut out = Vec::new();
        let stores = self.shared.books().stores();
        for (member, _) in stores {
            // Completions of other requests come with the next poll.
            if let Some(line) = self.line(member) {
                line.poll(&mut out);
            }
        }
        self.completions_came(out);
        self.shared.tick();
        self.follow();
        std::thread::sleep(Duration::from_micros(200));
    }

    /// Starts attempts until as many pieces are stored or under way as are wanted. Returns whether
    /// there is any.
    fn spread(&mut self, number: usize) -> bool {
        loop {
            let Some(write) = self.writes.get(number) else { return false };
            let (len, taken) = (write.buf.len(), write.taken);
            if write.stored + write.flying.len() >= write.wanted {
                return true;
            }
            let now_ns = self.shared.now_ns();
            let is_lost = write.stored + write.flying.len() == 0 && !write.is_again;
            let target = {
                let mut books = self.shared.books();
                let target = books.pool.target(now_ns, len as u64, taken);
                target.or_else(|| is_lost.then(|| books.pool.last_resort(now_ns, taken)).flatten())
            };
            let Some(target) = target else { break };
            self.offer(number, target);
        }
        self.writes.get(number).is_some_and(|write| write.stored + write.flying.len() > 0)
    }

    /// Starts to store a piece at a member, if it has room.
    fn offer(&mut self, number: usize, member: Member) {
        let now_ns = self.shared.now_ns();
        let serial = self.serial(member);
        let Some(write) = self.writes.get_mut(number) else { return };
        write.taken.insert(member);
        if serial == 0 || self.shared.books().serial(member) != serial {
            // A new member, which this channel has not followed yet.
            return;
        }
        let (addr, len) = (write.buf.addr(), write.buf.len());
        let attempt = Attempt {
            member,
            serial,
            since_ns: now_ns,
            serves: Serves::Write(number),
            places: Vec::new(),
            is_write: true,
            spare: None,
        };
        let mut places = vec![Loc(0); write.blocks.len()];
        let attempt = self.attempts.insert(attempt);
        let Some(line) = self.line(member) else {
            self.attempts.try_remove(attempt);
            return;
        };
        match line.write(Token(attempt as u64), vm::lend(addr, len), &mut places) {
            Ok(()) => {
                if let Some(attempt) = self.attempts.get_mut(attempt) {
                    attempt.places = places;
                }
                if let Some(write) = self.writes.get_mut(number) {
                    write.flying.push(attempt);
                }
            }
            Err((_, error)) => {
                self.attempts.try_remove(attempt);
                let mut books = self.shared.books();
                if matches!(error, StoreError::Full { .. }) {
                    let is_coming = books.store(member).is_some_and(|store| store.awaits_room());
                    if !is_coming {
                        books.pool.full(member, now_ns);
                    }
                }
                drop(books);
                if let Some(write) = self.writes.get_mut(number) {
                    write.error = Some(error);
                }
            }
        }
    }

    /// An attempt of a write has ended.
    pub(super) fn write_ended(
        &mut self,
        number: usize,
        attempt_number: usize,
        attempt: Attempt,
        result: Result<(), StoreError>,
    ) {
        let Attempt { member, serial, since_ns, places, .. } = attempt;
        let now_ns = self.shared.now_ns();
        let Some(write) = self.writes.get_mut(number) else { return };
        write.flying.retain(|&flying| flying != attempt_number);
        let mut books = self.shared.books();
        let is_member = books.serial(member) == serial && books.pool.living().contains(member);
        match result {
            Ok(()) if is_member => {
                books.pool.answered(member, now_ns, now_ns - since_ns, None);
                books.add(member, &write.blocks, &places);
                write.stored += 1;
            }
            Ok(()) => {}
            Err(error) => {
                if is_member {
                    books.free_places(member, &places);
                }
                write.error = Some(error);
            }
        }
        drop(books);
        self.spread(number);
        self.settle(number);
    }

    /// Ends a write of which nothing is under way.
    fn settle(&mut self, number: usize) {
        if self.writes.get(number).is_none_or(|write| !write.flying.is_empty()) {
            return;
        }
        let Some(write) = self.writes.try_remove(number) else { return };
        {
            let mut books = self.shared.books();
            let short = write.stored < write.wanted;
            for &(block, version) in &write.blocks {
                books.table.settle(block, version);
            }
            books.rebuilding |= short && !write.is_again;
        }
        let result = if write.stored > 0 {
            Ok(())
        } else {
            let reason = write
                .error
                .map_or_else(|| "no server has taken it".to_owned(), |error| error.to_string());
            Err(StoreError::NoCopy { store: self.shared.name.clone(), reason })
        };
        self.done.push(Completion { token: write.token, buf: write.buf, result });
    }

    /// Does without members that do not answer: their writes go to others, and the rest is made
    /// again later.
    pub(super) fn redirect(&mut self) {
        let up = self.shared.books().pool.up();
        let mut at = 0;
        while let Some(number) = next(&self.writes, at) {
            at = number + 1;
            let Some(write) = self.writes.get(number) else { continue };
            let is_up = |&attempt: &usize| {
                self.attempts.get(attempt).is_some_and(|attempt| up.contains(attempt.member))
            };
            let (quick, late): (Vec<usize>, Vec<usize>) =
                write.flying.iter().copied().partition(is_up);
            if late.is_empty() {
                continue;
            }
            let flying = quick.clone();
            let (stored, wanted) = (write.stored, write.wanted);
            // Others first, so that the last hope is not given up before there is another.
            if let Some(write) = self.writes.get_mut(number) {
                write.flying = flying;
                if stored + write.flying.len() < wanted {
                    self.spread(number);
                }
            }
            let is_safe =
                self.writes.get(number).is_some_and(|write| write.stored + write.flying.len() > 0);
            for attempt in late {
                if !is_safe || !self.abandon(attempt) {
                    if let Some(write) = self.writes.get_mut(number) {
                        write.flying.push(attempt);
                    }
                }
            }
            self.settle(number);
        }
    }
}
