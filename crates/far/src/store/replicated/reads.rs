//! Reads: the quickest copy first, then others.

use hiroma_policy::redundancy::{Member, Members, Piece};
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::vm;
use hiroma_units::Loc;

use super::channel::{Attempt, ReplicatedChannel, Serves, next};
use crate::content;
use crate::store::{Completion, Condition, StoreError, Token};

/// A read of the caller.
pub struct Request {
    token: Token,
    buf: FrameBuf,
    parts_left: usize,
    error: Option<StoreError>,
}

/// Adjacent blocks of a read with copies at the same members.
pub struct Part {
    request: usize,
    addr: usize,
    len: usize,
    blocks: Vec<Block>,
    /// Members that were asked for all of it.
    tried: Members,
    /// Attempts in flight: into the caller's buffer, and into one of ours.
    home: Option<usize>,
    hedge: Option<usize>,
    began_ns: u64,
    why: Option<StoreError>,
}

#[derive(Clone, Copy)]
struct Block {
    number: u32,
    version: u32,
    sum: u64,
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
        let mut groups: Vec<(usize, Vec<Block>)> = Vec::new();
        {
            let books = self.shared.books();
            let mut before = None;
            for (at, loc) in locs.iter().enumerate() {
                let holders = books.table.holders(loc.0);
                let block = Block {
                    number: loc.0,
                    version: books.table.version(loc.0),
                    sum: books.table.sum(loc.0),
                };
                match groups.last_mut() {
                    Some((_, blocks)) if before == Some(holders) => blocks.push(block),
                    _ => groups.push((at, vec![block])),
                }
                before = Some(holders);
            }
        }
        if let Some(request) = self.requests.get_mut(request) {
            request.parts_left = groups.len();
        }
        for (at, blocks) in groups {
            let part = Part {
                request,
                addr: addr + at * sector,
                len: blocks.len() * sector,
                blocks,
                tried: Members::default(),
                home: None,
                hedge: None,
                began_ns,
                why: None,
            };
            let part = self.parts.insert(part);
            self.ask_next(part);
        }
    }

    /// A member that has all blocks of a part and was not asked.
    fn next_source(&self, part: &Part) -> Option<Member> {
        let mut books = self.shared.books();
        let all = part
            .blocks
            .iter()
            .map(|block| books.table.holders(block.number))
            .fold(Members(u64::MAX), |all, holders| Members(all.0 & holders.0));
        books.pool.source(Members(all.0 & !part.tried.0))
    }

    /// Asks one more member for a part whose buffer nobody uses. Ends the part if there is none.
    fn ask_next(&mut self, number: usize) {
        loop {
            let Some(part) = self.parts.get(number) else { return };
            match self.next_source(part) {
                Some(member) => {
                    if self.ask(number, member, None) {
                        return;
                    }
                }
                None if part.blocks.len() > 1 => return self.split(number),
                None => {
                    let why = part.why.as_ref().map_or_else(
                        || "all servers that had it are gone".to_owned(),
                        ToString::to_string,
                    );
                    let store = self.shared.name.clone();
                    return self.part_done(number, Err(StoreError::NoCopy { store, reason: why }));
                }
            }
        }
    }

    /// Asks a member for a part, into the caller's buffer or into `spare`.
    fn ask(&mut self, number: usize, member: Member, spare: Option<FrameBuf>) -> bool {
        let now_ns = self.shared.now_ns();
        let serial = self.serial(member);
        let Some(part) = self.parts.get_mut(number) else { return false };
        part.tried.insert(member);
        let places: Option<Vec<Loc>> = {
            let books = self.shared.books();
            let place = |block: &Block| books.table.place(block.number, member).map(Loc);
            (books.serial(member) == serial)
                .then(|| part.blocks.iter().map(place).collect())
                .flatten()
        };
        let (Some(places), true) = (places, serial != 0) else {
            self.keep_spare(spare);
            return false;
        };
        let addr = spare.as_ref().map_or(part.addr, FrameBuf::addr);
        let (len, is_home) = (part.len, spare.is_none());
        let serves = Serves::Read(number);
        let attempt = Attempt {
            member,
            serial,
            since_ns: now_ns,
            serves,
            places: places.clone(),
            is_write: false,
            spare,
        };
        let attempt = self.attempts.insert(attempt);
        if let Some(part) = self.parts.get_mut(number) {
            *if is_home { &mut part.home } else { &mut part.hedge } = Some(attempt);
        }
        if let Some(line) = self.line(member) {
            line.read(Token(attempt as u64), &places, vm::lend(addr, len));
        }
        true
    }

    /// Reads the blocks of a part one by one: their copies are at different members now.
    fn split(&mut self, number: usize) {
        let Some(part) = self.parts.try_remove(number) else { return };
        if let Some(request) = self.requests.get_mut(part.request) {
            request.parts_left += part.blocks.len() - 1;
        }
        let sector = self.shared.sector_bytes;
        for (at, block) in part.blocks.iter().enumerate() {
            let single = Part {
                request: part.request,
                addr: part.addr + at * sector,
                len: sector,
                blocks: vec![*block],
                tried: Members::default(),
                home: None,
                hedge: None,
                began_ns: part.began_ns,
                why: part.why.clone(),
            };
            let single = self.parts.insert(single);
            self.ask_next(single);
        }
    }

    fn part_done(&mut self, number: usize, result: Result<(), StoreError>) {
        let Some(part) = self.parts.try_remove(number) else { return };
        let Some(request) = self.requests.get_mut(part.request) else { return };
        request.parts_left -= 1;
        if let Err(error) = result {
            request.error.get_or_insert(error);
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
        let Attempt { member, serial, since_ns, places, spare, .. } = attempt;
        let now_ns = self.shared.now_ns();
        let Some(part) = self.parts.get_mut(number) else {
            return self.keep_spare(spare);
        };
        if part.home == Some(attempt_number) {
            part.home = None;
        } else if part.hedge == Some(attempt_number) {
            part.hedge = None;
        } else {
            // It served another part, which has ended.
            return self.keep_spare(spare);
        }
        let from = spare.as_ref().map_or(part.addr, FrameBuf::addr);
        let result = result.and_then(|()| self.verify(number, from, member, serial, &places));
        let Some(part) = self.parts.get_mut(number) else { return };
        match result {
            Ok(()) => {
                let (addr, len, began_ns) = (part.addr, part.len, part.began_ns);
                let (home, hedge) = (part.home, part.hedge);
                {
                    let mut books = self.shared.books();
                    if books.serial(member) == serial {
                        books.pool.answered(member, now_ns, now_ns - since_ns, Some(len));
                    }
                    if len <= 32 << 10 {
                        books.pacer.read(now_ns, now_ns - began_ns);
                    }
                }
                if let Some(home) = home {
                    if !self.abandon(home) {
                        // Its buffer is still in use: this answer comes too early.
                        return self.keep_spare(spare);
                    }
                }
                if let Some(hedge) = hedge {
                    self.abandon(hedge);
                }
                if from != addr {
                    vm::copy(addr, from, len);
                }
                self.keep_spare(spare);
                self.part_done(number, Ok(()));
            }
            Err(error) => {
                part.why = Some(error);
                let is_asked = part.home.is_some() || part.hedge.is_some();
                self.keep_spare(spare);
                if !is_asked {
                    self.ask_next(number);
                }
            }
        }
    }

    /// Compares what was read with the checksums. A copy that is wrong is forgotten, if it is still
    /// the one that was asked for.
    fn verify(
        &mut self,
        number: usize,
        from: usize,
        member: Member,
        serial: u64,
        places: &[Loc],
    ) -> Result<(), StoreError> {
        let Some(part) = self.parts.get(number) else { return Ok(()) };
        let sector = self.shared.sector_bytes;
        let sum_of = if part.blocks.len() > 1 { content::checksum_cold } else { content::checksum };
        let mut wrong = 0;
        for (at, (block, place)) in part.blocks.iter().zip(places).enumerate() {
            let bytes = vm::lend(from + at * sector, sector);
            if sum_of(&self.shared.key, bytes.bytes()) == block.sum {
                continue;
            }
            wrong += 1;
            let mut books = self.shared.books();
            let piece = Piece { member, place: place.0 };
            let is_current = books.serial(member) == serial
                && books.table.is_live(block.number)
                && books.table.version(block.number) == block.version
                && books.table.forget(block.number, piece);
            if is_current {
                books.free_places(member, &[*place]);
                books.rebuilding = true;
                if wrong == 1 {
                    books.note_reason(member, "it returned other bytes than were sent there");
                    books.pool.wrong(member);
                }
            }
        }
        if wrong == 0 {
            return Ok(());
        }
        Err(self.shared.io_error("reading", "a server returned other bytes than were sent there"))
    }

    /// Asks a second member for parts that take longer than usual.
    pub(super) fn hedge(&mut self, now_ns: u64) {
        let mut at = 0;
        while let Some(number) = next(&self.parts, at) {
            at = number + 1;
            let Some(part) = self.parts.get(number) else { continue };
            let (Some(home), None) = (part.home, part.hedge) else { continue };
            let Some(attempt) = self.attempts.get(home) else { continue };
            let (member, since_ns, len) = (attempt.member, attempt.since_ns, part.len);
            let is_late = {
                let books = self.shared.books();
                !books.pool.up().contains(member)
                    || now_ns.saturating_sub(since_ns) > books.pool.hedge_after_ns(member, len)
            };
            let is_cut = self.line(member).is_none_or(|line| line.condition() != Condition::Up);
            if !is_late && !is_cut {
                continue;
            }
            if let Some(second) = self.parts.get(number).and_then(|part| self.next_source(part)) {
                // Without memory for a second request, the first one is waited for.
                let Ok(spare) = self.spares.take(len) else { return };
                self.ask(number, second, Some(spare));
            }
        }
    }
}
