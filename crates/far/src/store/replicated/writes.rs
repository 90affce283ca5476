//! Writes: to as many members as there are to be pieces, and to others instead of those that fail.

use std::time::{Duration, Instant};

use hiroma_policy::redundancy::{Indices, Member, Members};
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::vm;
use hiroma_units::{Bytes, Loc};

use super::channel::{Attempt, ReplicatedChannel, Serves, next};
use crate::content;
use crate::store::{Completion, StoreError, Token};

/// How long a write waits for members that were asked for more room.
const ROOM_PATIENCE: Duration = Duration::from_millis(250);
/// The same where another store follows.
const ROOM_PATIENCE_FOLLOWED: Duration = Duration::from_millis(20);

/// A write of the caller, or pieces that are made again.
pub struct Write {
    token: Token,
    buf: FrameBuf,
    /// All pieces by index, if they are not copies.
    cut: Option<FrameBuf>,
    /// The blocks, and their versions.
    blocks: Vec<(u32, u32)>,
    /// Pieces of each that are to be stored, the one to begin with, and those that are stored.
    wanted: Indices,
    first: usize,
    stored: Indices,
    /// With so many of them, the write is complete as soon as the others' members do not answer; with
    /// fewer, it is refused. All, where another store follows.
    enough: usize,
    /// Members that have a piece, and those that were asked to store one.
    holders: Members,
    taken: Members,
    flying: Vec<Flight>,
    error: Option<StoreError>,
    is_again: bool,
    /// The caller knows of it.
    is_begun: bool,
}

/// An attempt to store a piece.
#[derive(Clone, Copy)]
struct Flight {
    attempt: usize,
    index: usize,
    member: Member,
}

impl Write {
    /// Pieces that are stored or under way.
    fn covered(&self) -> Indices {
        self.stored.iter().chain(self.flying.iter().map(|flight| flight.index)).collect()
    }

    /// The next piece to find a member for.
    fn next_index(&self) -> Option<usize> {
        let open = self.wanted.without(self.covered());
        open.iter().find(|&index| index >= self.first).or_else(|| open.iter().next())
    }

    fn has_enough(&self) -> bool {
        self.covered().len() >= self.enough
    }
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
        let scheme = self.shared.scheme;
        let cut = match self.cut(&buf) {
            Ok(cut) => cut,
            Err(error) => {
                self.shared
                    .books()
                    .free(&blocks.iter().map(|&(block, _)| Loc(block)).collect::<Vec<_>>());
                return Err((buf, error));
            }
        };
        let number = self.writes.insert(Write {
            token,
            buf,
            cut,
            blocks,
            wanted: Indices::first(scheme.pieces()),
            // So that no member has the parity of everything.
            first: self.shared.books().pool.round() % scheme.pieces(),
            stored: Indices::default(),
            enough: if self.shared.is_followed { scheme.pieces() } else { scheme.needed() },
            holders: Members::default(),
            taken: Members::default(),
            flying: Vec::with_capacity(scheme.pieces()),
            error: None,
            is_again: false,
            is_begun: false,
        });
        if !self.finds_members(number) {
            return Err(self.undo(number));
        }
        if let Some(write) = self.writes.get_mut(number) {
            write.is_begun = true;
        }
        self.settle(number);
        locs.iter_mut().zip(numbers).for_each(|(loc, number)| *loc = Loc(number));
        Ok(())
    }

    /// Starts a write at as many members as are enough. Those that answer and were asked for room are
    /// waited for, but not again in the next second: the caller knows better what else there is.
    fn finds_members(&mut self, number: usize) -> bool {
        let patience = match self.shared.is_followed {
            true => ROOM_PATIENCE_FOLLOWED,
            false => ROOM_PATIENCE,
        };
        let start = Instant::now();
        while !self.spread(number) {
            // Room is asked for ahead, so this is rare.
            let asked = self.asked_for_room();
            if asked.is_empty() {
                return false;
            }
            if start.elapsed() > patience {
                let now_ns = self.shared.now_ns();
                let mut books = self.shared.books();
                asked.iter().for_each(|member| books.pool.full(member, now_ns));
                return false;
            }
            self.answer_room();
            if let Some(write) = self.writes.get_mut(number) {
                write.taken = write.flying.iter().map(|flight| flight.member).collect();
                write.taken.0 |= write.holders.0;
            }
        }
        true
    }

    /// Members that answer, were asked for more room, and have not said yet whether there is any.
    fn asked_for_room(&self) -> Members {
        let now_ns = self.shared.now_ns();
        let books = self.shared.books();
        let takers = books.pool.open(now_ns);
        let is_asked = |member: &Member| books.store(*member).is_some_and(|at| at.awaits_room());
        takers.iter().filter(is_asked).collect()
    }

    /// All pieces of blocks, if they are not copies.
    fn cut(&mut self, blocks: &FrameBuf) -> Result<Option<FrameBuf>, StoreError> {
        let shared = &self.shared;
        if !shared.scheme.is_cut() {
            return Ok(None);
        }
        let len = blocks.len() / shared.sector_bytes * shared.code.piece_bytes();
        let mut pieces = self
            .spares
            .take(shared.scheme.pieces() * len)
            .map_err(|error| shared.io_error("reserving memory for pieces", &error.to_string()))?;
        shared.code.cut(blocks.bytes(), pieces.bytes_mut());
        Ok(Some(pieces))
    }

    /// Ends a write that has not begun: too few members take it.
    fn undo(&mut self, number: usize) -> (FrameBuf, StoreError) {
        let write = self.writes.remove(number);
        let mut is_free = true;
        for flight in &write.flying {
            is_free &= self.abandon(flight.attempt);
            if let Some(attempt) = self.attempts.get_mut(flight.attempt) {
                attempt.serves = Serves::Nobody;
            }
        }
        // What cannot be taken back stays reserved until the channel ends.
        self.keep_spare(write.cut.filter(|_| is_free));
        let freed: Vec<Loc> = write.blocks.iter().map(|&(block, _)| Loc(block)).collect();
        self.shared.books().free(&freed);
        let error = match write.error {
            Some(error) if !matches!(error, StoreError::Full { .. }) => error,
            _ => self.full(),
        };
        (write.buf, error)
    }

    /// Starts to store the pieces `missing` of blocks. `holders` have the others.
    /// They must have been marked with `Table::begin`. Returns the buffer if nobody takes them.
    pub fn write_again(
        &mut self,
        token: Token,
        buf: FrameBuf,
        blocks: Vec<(u32, u32)>,
        holders: Members,
        missing: Indices,
    ) -> Result<(), FrameBuf> {
        let Ok(cut) = self.cut(&buf) else { return Err(buf) };
        let number = self.writes.insert(Write {
            token,
            buf,
            cut,
            blocks,
            wanted: missing,
            first: 0,
            stored: Indices::default(),
            enough: 1,
            holders,
            taken: holders,
            flying: Vec::new(),
            error: None,
            is_again: true,
            is_begun: true,
        });
        if self.spread(number) {
            return Ok(());
        }
        let write = self.writes.remove(number);
        self.keep_spare(write.cut);
        Err(write.buf)
    }

    fn full(&self) -> StoreError {
        let (usage, stores, up) = {
            let books = self.shared.books();
            let scheme = self.shared.scheme;
            // What is behind takes it; else nobody will.
            if books.pool.living().len() < scheme.needed() && !self.shared.is_followed {
                let reason = match scheme.is_cut() {
                    true => format!("fewer than {} servers are left", scheme.needed()),
                    false => "all servers are gone".to_owned(),
                };
                return self.shared.unreadable(reason);
            }
            (books.usage(), books.stores(), books.pool.up().len())
        };
        let servers = self.shared.roster().numbers().len();
        let mut reasons: Vec<String> = Vec::new();
        if up < servers {
            reasons.push(format!("only {up} of {servers} servers can be used now"));
        }
        reasons.extend(stores.iter().find_map(|(_, store)| store.full_because()));
        let reason = match reasons.is_empty() {
            true => String::new(),
            false => format!(" ({})", reasons.join("; ")),
        };
        StoreError::Full {
            store: format!("{}{reason}", self.shared.name),
            used: Bytes(usage.stored_bytes),
            capacity: Bytes(usage.capacity_bytes),
        }
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

    /// Starts attempts until all pieces are stored or under way that members take. Returns whether
    /// there are enough.
    fn spread(&mut self, number: usize) -> bool {
        let piece_bytes = self.shared.code.piece_bytes();
        loop {
            let Some(write) = self.writes.get(number) else { return false };
            let (bytes, taken) = (write.blocks.len() * piece_bytes, write.taken);
            let Some(index) = write.next_index() else { return true };
            let now_ns = self.shared.now_ns();
            let is_lost = !write.has_enough() && !write.is_again && !self.shared.is_followed;
            let target = {
                let mut books = self.shared.books();
                let target = books.pool.target(now_ns, bytes as u64, taken);
                target.or_else(|| is_lost.then(|| books.pool.last_resort(now_ns, taken)).flatten())
            };
            let Some(target) = target else { break };
            self.offer(number, index, target);
        }
        self.writes.get(number).is_some_and(Write::has_enough)
    }

    /// Starts to store a piece at a member, if it has room.
    fn offer(&mut self, number: usize, index: usize, member: Member) {
        let now_ns = self.shared.now_ns();
        let serial = self.serial(member);
        let piece_bytes = self.shared.code.piece_bytes();
        let Some(write) = self.writes.get_mut(number) else { return };
        write.taken.insert(member);
        if serial == 0 || self.shared.books().serial(member) != serial {
            // A new member, which this channel has not followed yet.
            return;
        }
        let len = write.blocks.len() * piece_bytes;
        let addr = match &write.cut {
            Some(pieces) => pieces.addr() + index * len,
            None => write.buf.addr(),
        };
        let attempt = Attempt {
            member,
            serial,
            since_ns: now_ns,
            index,
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
                    write.flying.push(Flight { attempt, index, member });
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
        let Attempt { member, serial, since_ns, index, places, .. } = attempt;
        let now_ns = self.shared.now_ns();
        let Some(write) = self.writes.get_mut(number) else { return };
        write.flying.retain(|flight| flight.attempt != attempt_number);
        let mut books = self.shared.books();
        let is_member = books.serial(member) == serial && books.pool.living().contains(member);
        match result {
            Ok(()) if is_member => {
                books.pool.answered(member, now_ns, now_ns - since_ns, None);
                books.add(member, index, &write.blocks, &places);
                write.stored.insert(index);
                write.holders.insert(member);
            }
            Ok(()) => {}
            Err(error) => {
                if is_member {
                    books.free_places(member, &places);
                    if matches!(error, StoreError::Full { .. }) {
                        // It has less than it said.
                        books.pool.full(member, now_ns);
                    }
                    if matches!(error, StoreError::Answered { .. }) {
                        books.was_wrong(member, &error.to_string());
                    }
                }
                write.error = Some(error);
            }
        }
        drop(books);
        self.recall(number);
        self.spread(number);
        self.settle(number);
    }

    /// Members that had confirmed pieces of a write may be dead by now.
    fn recall(&mut self, number: usize) {
        let Some(write) = self.writes.get_mut(number).filter(|write| !write.is_again) else {
            return;
        };
        let row = self.shared.books().table.row(write.blocks[0].0);
        (write.stored, write.holders) = (row.indices(), row.members());
    }

    /// Ends a write of which nothing is under way.
    fn settle(&mut self, number: usize) {
        let is_open = |write: &Write| !write.flying.is_empty() || !write.is_begun;
        if self.writes.get(number).is_none_or(is_open) {
            return;
        }
        let Some(write) = self.writes.try_remove(number) else { return };
        // What is refused is freed by the caller, and is not made again until then.
        if !write.is_again && write.stored.len() >= write.enough {
            self.shared.books().written(&write.blocks);
        }
        self.keep_spare(write.cut);
        let result = match write.error {
            _ if write.stored.len() >= write.enough => Ok(()),
            // The caller has the content and finds a better place for it.
            _ if self.shared.is_followed && !write.is_again => Err(self.full()),
            Some(StoreError::Full { .. }) => Err(self.full()),
            Some(error) => Err(self.shared.unreadable(error.to_string())),
            None => Err(self.shared.unreadable("no server has taken it".to_owned())),
        };
        self.done.push(Completion { token: write.token, buf: write.buf, result });
    }

    /// Does without members that do not answer: their writes go to others. Where there are none, the
    /// rest is made again later; what another store can take is not waited for.
    pub(super) fn redirect(&mut self) {
        let up = self.shared.books().pool.up();
        let mut at = 0;
        while let Some(number) = next(&self.writes, at) {
            at = number + 1;
            let Some(write) = self.writes.get_mut(number) else { continue };
            let is_up = |flight: &Flight| {
                self.attempts.get(flight.attempt).is_some_and(|attempt| up.contains(attempt.member))
            };
            let (quick, late): (Vec<Flight>, Vec<Flight>) =
                write.flying.iter().copied().partition(is_up);
            if late.is_empty() {
                continue;
            }
            // Others first, so that the last hope is not given up before there is another.
            write.flying = quick;
            self.recall(number);
            let is_again = self.writes.get(number).is_some_and(|write| write.is_again);
            let is_safe = self.spread(number) || self.shared.is_followed && !is_again;
            for flight in late {
                if !is_safe || !self.abandon(flight.attempt) {
                    if let Some(write) = self.writes.get_mut(number) {
                        write.flying.push(flight);
                    }
                }
            }
            self.settle(number);
        }
    }
}
