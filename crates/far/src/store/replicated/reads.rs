//! Reads: the quickest pieces first, then others.
//!
//! Of copies one is enough, and the first one that is asked for goes straight to the caller's
//! buffer. Pieces of blocks that were cut go to buffers of our own, and the blocks are put together
//! when there are enough of them.

use hiroma_policy::redundancy::{Indices, Member, Members, Row};
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::vm;
use hiroma_units::Loc;

use super::books::Wanted;
use super::channel::{Attempt, ReplicatedChannel, Serves, next};
use super::words;
use crate::store::{Completion, Condition, StoreError, Token};

/// Reads of no more than this are told to the pacer.
const SMALL_BYTES: usize = 32 << 10;

/// A read of the caller.
pub struct Request {
    token: Token,
    buf: FrameBuf,
    parts_left: usize,
    error: Option<StoreError>,
}

/// Adjacent blocks of a read with the same pieces at the same members.
pub struct Part {
    request: usize,
    pub(super) addr: usize,
    pub(super) len: usize,
    pub(super) blocks: Vec<Wanted>,
    /// Members that were asked.
    tried: Members,
    /// Pieces that are waited for: as many as are needed, and more if some turn out to be wrong.
    wanted: usize,
    /// Attempts in flight, and the one of them that reads into the caller's buffer.
    flying: Vec<usize>,
    pub(super) home: Option<usize>,
    /// Pieces that have come.
    pub(super) got: Vec<Got>,
    began_ns: u64,
    why: Option<StoreError>,
}

/// A piece of the blocks of a part.
pub struct Got {
    pub index: usize,
    pub member: Member,
    pub serial: u64,
    pub places: Vec<Loc>,
    /// None: in the caller's buffer.
    pub buf: Option<FrameBuf>,
}

impl ReplicatedChannel {
    pub(super) fn start_read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        if self.is_stale() {
            self.done.push(Completion { token, buf, result: Err(self.stale_error()) });
            return;
        }
        self.follow();
        let sector = self.shared.sector_bytes;
        assert!(buf.len() == locs.len() * sector && !locs.is_empty(), "a buffer for other sectors");
        let addr = buf.addr();
        let request = self.requests.insert(Request { token, buf, parts_left: 1, error: None });
        let began_ns = self.shared.now_ns();
        let mut groups: Vec<(usize, Vec<Wanted>)> = Vec::new();
        {
            let books = self.shared.books();
            let mut before = None;
            for (at, &Loc(block)) in locs.iter().enumerate() {
                let (row, version) = (books.table.row(block), books.table.version(block));
                let wanted = Wanted { block, version, sum: books.table.sum(block) };
                match groups.last_mut() {
                    Some((_, blocks)) if before == Some(row) => blocks.push(wanted),
                    _ => groups.push((at, vec![wanted])),
                }
                before = Some(row);
            }
        }
        if let Some(request) = self.requests.get_mut(request) {
            request.parts_left = groups.len();
        }
        for (at, blocks) in groups {
            self.start_part(request, addr + at * sector, blocks, began_ns, None);
        }
    }

    fn start_part(
        &mut self,
        request: usize,
        addr: usize,
        blocks: Vec<Wanted>,
        began_ns: u64,
        why: Option<StoreError>,
    ) {
        let part = Part {
            request,
            addr,
            len: blocks.len() * self.shared.sector_bytes,
            blocks,
            tried: Members::default(),
            wanted: self.shared.scheme.needed(),
            flying: Vec::with_capacity(self.shared.scheme.needed()),
            home: None,
            got: Vec::new(),
            began_ns,
            why,
        };
        let number = self.parts.insert(part);
        self.ask_next(number);
    }

    /// Up to `count` pieces that all blocks of a part have at members that were not asked.
    fn next_sources(&self, part: &Part, count: usize) -> (Row, Indices) {
        let mut books = self.shared.books();
        let rows = part.blocks.iter().map(|wanted| books.table.row(wanted.block));
        let common = rows.reduce(|all, row| all.common(&row)).expect("a part has blocks");
        let row = common.at(Members(!part.tried.0));
        // A piece that has come is not asked for again.
        let has = |index: &usize| !part.got.iter().any(|got| got.index == *index);
        let fresh = row.indices().iter().filter(has).filter_map(|index| row.member(index));
        let row = row.at(fresh.collect());
        let sources = books.pool.sources(&row, count);
        (row, sources)
    }

    /// Asks for as many more pieces of a part as are wanted. Ends the part if there are too few.
    fn ask_next(&mut self, number: usize) {
        loop {
            let Some(part) = self.parts.get(number) else { return };
            let more = part.wanted.saturating_sub(part.got.len() + part.flying.len());
            if more == 0 {
                return;
            }
            let (row, sources) = self.next_sources(part, more);
            if sources.is_empty() {
                return self.give_up(number);
            }
            for index in sources.iter() {
                let member = row.member(index).expect("sources have the piece");
                self.ask(number, index, member);
            }
        }
    }

    /// The blocks of a part cannot be read from the same members: each may be from others.
    fn give_up(&mut self, number: usize) {
        let Some(part) = self.parts.get(number) else { return };
        if part.blocks.len() > 1 {
            return self.split(number);
        }
        let why = part
            .why
            .as_ref()
            .map_or_else(|| words::too_few(self.shared.scheme), ToString::to_string);
        self.part_done(number, Err(self.shared.unreadable(why)));
    }

    /// Asks a member for a piece: into the caller's buffer, if it is a copy and nobody uses that, or
    /// into one of ours.
    fn ask(&mut self, number: usize, index: usize, member: Member) {
        let now_ns = self.shared.now_ns();
        let (serial, piece_bytes) = (self.serial(member), self.shared.code.piece_bytes());
        let Some(part) = self.parts.get_mut(number) else { return };
        part.tried.insert(member);
        let places: Option<Vec<Loc>> = {
            let books = self.shared.books();
            let has_it =
                |wanted: &Wanted| books.table.row(wanted.block).member(index) == Some(member);
            let place = |wanted: &Wanted| {
                has_it(wanted).then(|| books.table.place(wanted.block, member).map(Loc)).flatten()
            };
            (books.serial(member) == serial)
                .then(|| part.blocks.iter().map(place).collect())
                .flatten()
        };
        let (Some(places), true) = (places, serial != 0) else { return };
        let is_home = part.home.is_none() && !self.shared.scheme.is_cut();
        let len = part.blocks.len() * piece_bytes;
        let spare = match is_home {
            true => None,
            // Without memory for it, there is one piece less.
            false => match self.spares.take(len) {
                Ok(spare) => Some(spare),
                Err(_) => return,
            },
        };
        let addr = spare.as_ref().map_or(part.addr, FrameBuf::addr);
        let attempt = self.attempts.insert(Attempt {
            member,
            serial,
            since_ns: now_ns,
            index,
            serves: Serves::Read(number),
            places: places.clone(),
            is_write: false,
            spare,
        });
        part.flying.push(attempt);
        if is_home {
            part.home = Some(attempt);
        }
        if let Some(line) = self.line(member) {
            line.read(Token(attempt as u64), &places, vm::lend(addr, len));
        }
    }

    /// Takes everything back that a part has under way, apart from what reads into the caller's
    /// buffer.
    fn clear(&mut self, part: &mut Part) {
        for attempt in std::mem::take(&mut part.flying) {
            if part.home != Some(attempt) {
                self.abandon(attempt);
            }
        }
        for got in part.got.drain(..) {
            self.keep_spare(got.buf);
        }
    }

    /// Reads the blocks of a part one by one.
    fn split(&mut self, number: usize) {
        let Some(mut part) = self.parts.try_remove(number) else { return };
        self.clear(&mut part);
        let Part { request, addr, blocks, began_ns, why, .. } = part;
        if let Some(request) = self.requests.get_mut(request) {
            request.parts_left += blocks.len() - 1;
        }
        let sector = self.shared.sector_bytes;
        for (at, block) in blocks.into_iter().enumerate() {
            self.start_part(request, addr + at * sector, vec![block], began_ns, why.clone());
        }
    }

    fn part_done(&mut self, number: usize, result: Result<(), StoreError>) {
        let Some(mut part) = self.parts.try_remove(number) else { return };
        self.clear(&mut part);
        let Some(request) = self.requests.get_mut(part.request) else { return };
        request.parts_left -= 1;
        if let Err(error) = result {
            request.error.get_or_insert(error);
            let mut books = self.shared.books();
            part.blocks.iter().for_each(|wanted| books.note_unreadable(wanted));
        }
        if request.parts_left == 0 {
            if let Some(Request { token, buf, error, .. }) = self.requests.try_remove(part.request)
            {
                self.done.push(Completion { token, buf, result: error.map_or(Ok(()), Err) });
            }
        }
    }

    /// An attempt of a part has ended.
    pub(super) fn read_ended(
        &mut self,
        number: usize,
        attempt_number: usize,
        attempt: Attempt,
        result: Result<(), StoreError>,
    ) {
        if let Err(error @ StoreError::Answered { .. }) = &result {
            self.failed(number, &attempt, error);
        }
        let Attempt { member, serial, since_ns, index, places, spare, .. } = attempt;
        let now_ns = self.shared.now_ns();
        let Some(part) = self.parts.get_mut(number) else {
            return self.keep_spare(spare);
        };
        let Some(at) = part.flying.iter().position(|&flying| flying == attempt_number) else {
            // It served another part, which has ended.
            return self.keep_spare(spare);
        };
        part.flying.swap_remove(at);
        if part.home == Some(attempt_number) {
            part.home = None;
        }
        if let Err(error) = result {
            part.why = Some(error);
            self.keep_spare(spare);
            return self.ask_next(number);
        }
        if part.got.iter().any(|got| got.index == index) {
            // It was made again meanwhile, and was asked for at both members.
            self.keep_spare(spare);
            return self.ask_next(number);
        }
        let len = places.len() * self.shared.code.piece_bytes();
        part.got.push(Got { index, member, serial, places, buf: spare });
        let is_enough = part.got.len() >= part.wanted;
        {
            let mut books = self.shared.books();
            if books.serial(member) == serial {
                books.pool.answered(member, now_ns, now_ns - since_ns, Some(len));
            }
        }
        if is_enough {
            self.assemble(number, now_ns);
        }
    }

    /// As many pieces of a part have come as were waited for.
    fn assemble(&mut self, number: usize, now_ns: u64) {
        if let Err(error) = self.put_together(number) {
            let Some(part) = self.parts.get_mut(number) else { return };
            part.why = Some(error);
            if part.blocks.len() > 1 && self.shared.scheme.is_cut() {
                return self.split(number);
            }
            // Of a cut block, one more tells which one is wrong. A wrong copy is gone already.
            part.wanted = part.got.len() + 1;
            return self.ask_next(number);
        }
        let Some(part) = self.parts.get(number) else { return };
        if part.len <= SMALL_BYTES {
            self.shared.books().pacer.read(now_ns, now_ns - part.began_ns);
        }
        self.part_done(number, Ok(()));
    }

    /// Asks for other pieces of parts that take longer than usual.
    pub(super) fn hedge(&mut self, now_ns: u64) {
        let mut at = 0;
        while let Some(number) = next(&self.parts, at) {
            at = number + 1;
            let Some(part) = self.parts.get(number) else { continue };
            let on_time =
                part.flying.iter().filter(|&&flying| !self.is_late(flying, now_ns)).count();
            let more = part.wanted.saturating_sub(part.got.len() + on_time);
            if more == 0 {
                continue;
            }
            let (row, sources) = self.next_sources(part, more);
            for index in sources.iter() {
                let member = row.member(index).expect("sources have the piece");
                self.ask(number, index, member);
            }
        }
    }

    /// Whether an attempt takes longer than usual, or its member is not well.
    fn is_late(&self, number: usize, now_ns: u64) -> bool {
        let Some(attempt) = self.attempts.get(number) else { return true };
        let len = attempt.places.len() * self.shared.code.piece_bytes();
        let waited_ns = now_ns.saturating_sub(attempt.since_ns);
        let books = self.shared.books();
        !books.pool.up().contains(attempt.member)
            || waited_ns > books.pool.hedge_after_ns(attempt.member, len)
            || self.condition(attempt.member) != Condition::Up
    }
}
