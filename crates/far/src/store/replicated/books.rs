//! What all channels share under one lock: the table of blocks, the health of the members, and
//! their stores.

use std::collections::HashMap;
use std::sync::Arc;

use hiroma_policy::redundancy::{
    Bans, Census, Change, MEMBERS_MAX, Member, Members, Pacer, Piece, Pool, Scheme, Table,
};
use hiroma_units::{Bytes, Loc};

use super::words::{self, Left};
use crate::store::{Condition, Store, StoreUsage};

/// See the module documentation.
pub struct Books {
    pub table: Table,
    pub pool: Pool,
    pub pacer: Pacer,
    sector_bytes: usize,
    members: [Option<Seat>; MEMBERS_MAX],
    /// Stores of dead members, for the keeper to close.
    pub closing: Vec<Arc<dyn Store>>,
    /// Servers without a member, and those of them that are left out for a while.
    pub vacant_servers: Vec<usize>,
    pub bans: Bans,
    freed: Vec<Vec<Loc>>,
    next_serial: u64,
    /// What a member's loss has left to make again, until that is done.
    pub rebuilding: bool,
    /// A write was completed with fewer pieces than it should have since the last search began.
    pub has_short_writes: bool,
    /// The user was told that blocks have too few pieces, and not yet that they have all.
    pub is_told_short: bool,
    /// Nobody takes what is missing of blocks with too few pieces: the store that follows gets them.
    pub overflows: bool,
    /// Blocks that could not be read when that was last tried, and their versions.
    pub unreadable: HashMap<u32, u32>,
    /// Blocks that have too few pieces, apart from those that are being written.
    pub short: u64,
    /// Of these, the ones that are being made again.
    pub under_way: u64,
    /// Bytes that were made again.
    pub recopied_bytes: u64,
}

/// What is to be read: a block, its version, and the checksum of its content.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub block: u32,
    pub version: u32,
    pub sum: u64,
}

struct Seat {
    server: usize,
    /// Never used twice, unlike the member's number.
    serial: u64,
    store: Option<Arc<dyn Store>>,
    reason: String,
    /// The user knows that it is lost.
    is_told: bool,
}

impl Books {
    pub fn new(scheme: Scheme, sector_bytes: usize) -> Books {
        Books {
            table: Table::new(scheme, 1 << Loc::STORE_BITS),
            pool: Pool::new(scheme.needed()),
            pacer: Pacer::default(),
            sector_bytes,
            members: std::array::from_fn(|_| None),
            closing: Vec::new(),
            vacant_servers: Vec::new(),
            bans: Bans::default(),
            freed: (0..MEMBERS_MAX).map(|_| Vec::new()).collect(),
            next_serial: 1,
            rebuilding: false,
            has_short_writes: false,
            is_told_short: false,
            overflows: false,
            unreadable: HashMap::new(),
            short: 0,
            under_way: 0,
            recopied_bytes: 0,
        }
    }

    /// A server becomes a member. Returns false if there are too many.
    pub fn join(&mut self, now_ns: u64, server: usize, label: u32, store: Arc<dyn Store>) -> bool {
        let usage = store.usage();
        let Some(member) = self.pool.join(now_ns, label) else { return false };
        self.pool.room(member, usage.capacity_bytes.saturating_sub(usage.stored_bytes));
        self.members[member.index()] = Some(Seat {
            server,
            serial: self.next_serial,
            store: Some(store),
            reason: String::new(),
            is_told: false,
        });
        self.next_serial += 1;
        true
    }

    /// The stores of the members that may have their content.
    pub fn stores(&self) -> Vec<(Member, Arc<dyn Store>)> {
        let living = self.pool.living();
        living.iter().filter_map(|member| Some((member, self.store(member)?.clone()))).collect()
    }

    pub fn store(&self, member: Member) -> Option<&Arc<dyn Store>> {
        self.members[member.index()].as_ref()?.store.as_ref()
    }

    /// The serial number of a member; 0 if there is none.
    pub fn serial(&self, member: Member) -> u64 {
        self.members[member.index()].as_ref().map_or(0, |seat| seat.serial)
    }

    /// Takes a member's store out, so that it is not used any more.
    pub fn take_store(&mut self, member: Member) -> Option<Arc<dyn Store>> {
        self.members[member.index()].as_mut()?.store.take()
    }

    /// Why a member cannot be reached.
    pub fn note_reason(&mut self, member: Member, reason: &str) {
        if let Some(seat) = self.members[member.index()].as_mut().filter(|_| !reason.is_empty()) {
            seat.reason = reason.to_owned();
        }
    }

    /// Whether members other than `without` have enough of every block that is not lost anyway.
    pub fn are_needless(&self, without: Members) -> bool {
        let living = self.pool.living();
        let others = Members(living.0 & !without.0);
        self.table.census(others).gone() == self.table.census(living).gone()
    }

    /// Whether a block is to go to the store that follows.
    pub fn is_to_leave(&self, block: u32) -> bool {
        let table = &self.table;
        let good = self.pool.good();
        let pieces = || Members(table.holders(block).0 & good.0).len();
        // What cannot be read cannot be moved.
        self.overflows
            && !self.is_unreadable(block)
            && table.is_live(block)
            && !table.is_busy(block)
            && pieces() < table.scheme().pieces()
    }

    /// Frees blocks with all their pieces.
    pub fn free(&mut self, locs: &[Loc]) {
        let Books { table, freed, short, .. } = self;
        let all = table.scheme().pieces();
        for loc in locs {
            // One that is being written was not counted yet.
            let (is_counted, mut pieces) = (!table.is_busy(loc.0), 0);
            table.free(loc.0, |piece| {
                pieces += 1;
                freed[piece.member.index()].push(Loc(piece.place));
            });
            *short = short.saturating_sub(u64::from(is_counted && pieces < all));
        }
        for number in 0..MEMBERS_MAX {
            if !self.freed[number].is_empty() {
                let mut locs = std::mem::take(&mut self.freed[number]);
                self.free_places(Member(number as u8), &locs);
                locs.clear();
                self.freed[number] = locs;
            }
        }
    }

    /// Frees places at a member that no block refers to.
    pub fn free_places(&self, member: Member, places: &[Loc]) {
        if self.pool.living().contains(member) {
            if let Some(store) = self.store(member) {
                store.free(places);
            }
        }
    }

    /// The piece `index` of each block was stored. What is superfluous is freed.
    pub fn add(&mut self, member: Member, index: usize, blocks: &[(u32, u32)], places: &[Loc]) {
        let good = self.pool.good();
        let is_living = self.pool.living().contains(member);
        for (&(block, version), &place) in blocks.iter().zip(places) {
            let piece = Piece { member, place: place.0 };
            if !is_living {
                continue;
            }
            match self.table.add(block, version, index, piece, good) {
                Ok(None) => {}
                Ok(Some(old)) => self.free_places(old.member, &[Loc(old.place)]),
                Err(_) => self.free_places(member, &[place]),
            }
        }
    }

    /// A member returned other bytes than this piece of a block has. The piece is forgotten, if it
    /// is still the one that was asked for. Returns whether it was.
    pub fn wrong(&mut self, wanted: &Wanted, index: usize, member: Member, place: Loc) -> bool {
        let piece = Piece { member, place: place.0 };
        let was_short =
            self.table.is_busy(wanted.block) || self.is_short(wanted.block, wanted.version);
        let is_current = self.table.is_live(wanted.block)
            && self.table.version(wanted.block) == wanted.version
            && self.table.forget(wanted.block, index, piece);
        if is_current {
            let is_counted = was_short || !self.is_short(wanted.block, wanted.version);
            self.short += u64::from(!is_counted);
            self.free_places(member, &[place]);
            self.rebuilding = true;
        }
        is_current
    }

    /// A block could not be read.
    pub fn note_unreadable(&mut self, wanted: &Wanted) {
        self.unreadable.insert(wanted.block, wanted.version);
    }

    /// Whether a block could not be read when that was last tried.
    pub fn is_unreadable(&self, block: u32) -> bool {
        self.unreadable.get(&block).is_some_and(|&version| self.table.version(block) == version)
    }

    /// A member has returned wrong pieces of a request, or an error. After some of these, what it has
    /// is made again elsewhere. Until that is done, it is the last hope of every block that it has.
    pub fn was_wrong(&mut self, member: Member, what: &str) {
        if self.pool.wrong(member) && !self.pool.distrusted().contains(member) {
            self.note_reason(member, what);
            self.pool.distrust(member);
        }
    }

    /// Distrusted members are dead when everything has all of its pieces at others; and those that
    /// were left out for long enough, to begin anew, when everything can be read without them.
    pub fn dismiss_needless(&mut self, now_ns: u64) {
        let distrusted = self.pool.distrusted();
        if distrusted.is_empty() {
            return;
        }
        let census = self.table.census(self.pool.good());
        let is_whole = census.gone() + census.short() == 0;
        for member in distrusted.iter() {
            let seat = self.members[member.index()].as_ref();
            let is_over = seat.is_some_and(|seat| !self.bans.has(seat.server, now_ns));
            if is_whole || is_over && self.are_needless(Members(1 << member.0)) {
                self.pool.died(member);
            }
        }
    }

    /// Whether a block can be read without a member.
    pub fn is_elsewhere(&self, wanted: &Wanted, member: Member) -> bool {
        let others = Members(self.pool.good().0 & !(1 << member.0));
        let table = &self.table;
        table.is_live(wanted.block)
            && Members(table.holders(wanted.block).0 & others.0).len() >= table.scheme().needed()
    }

    /// Looks at the health of all members. Returns lines for the user, and whether anything has
    /// changed.
    pub fn tick(&mut self, now_ns: u64, name: impl Fn(usize) -> String) -> (Vec<String>, bool) {
        let mut changes = Vec::new();
        self.pool.tick(now_ns, &mut changes);
        let mut lines = Vec::new();
        for &change in &changes {
            match change {
                Change::Suspected(_) => self.rebuilding = true,
                Change::Lost(member) => {
                    self.rebuilding = true;
                    lines.extend(self.loss(member, &name, false));
                }
                Change::Back(member) => {
                    if self.short > 0 {
                        self.count_short();
                    }
                    if let Some(seat) = &mut self.members[member.index()] {
                        seat.is_told = false;
                        lines.push(format!("{} is back", name(seat.server)));
                    }
                }
                Change::Draining(member, draining) => {
                    self.rebuilding = true;
                    lines.extend(self.draining(member, draining, &name));
                }
                Change::Distrusted(member) => {
                    self.rebuilding = true;
                    let census = self.count_short();
                    self.is_told_short |= census.gone() + census.short() > 0;
                    if let Some(seat) = &self.members[member.index()] {
                        let lasts_ns = self.bans.add(seat.server, now_ns);
                        lines.push(words::left_out(&name(seat.server), &seat.reason, lasts_ns));
                    }
                }
                Change::Died(member) => {
                    self.rebuilding = true;
                    lines.extend(self.loss(member, &name, true));
                    self.bury(member);
                }
            }
        }
        (lines, !changes.is_empty())
    }

    fn draining(
        &self,
        member: Member,
        draining: bool,
        name: &impl Fn(usize) -> String,
    ) -> Option<String> {
        let name = name(self.members[member.index()].as_ref()?.server);
        let bytes = self.bytes_of(self.table.held(member));
        let (scheme, others) = (self.table.scheme(), self.pool.good().len());
        Some(words::draining(scheme, draining, &name, bytes, others))
    }

    /// Bytes of blocks, of which a member has one piece each.
    fn bytes_of(&self, pieces: u64) -> Bytes {
        Bytes(pieces * self.sector_bytes as u64 / self.table.scheme().needed() as u64)
    }

    /// Counts the blocks by their pieces, and takes note of how many have too few.
    pub fn count_short(&mut self) -> Census {
        let census = self.table.census(self.pool.good());
        self.short = census.gone() + census.short() + self.under_way;
        census
    }

    /// Whether this version of a block is there, and has too few pieces.
    fn is_short(&self, block: u32, version: u32) -> bool {
        let (table, good) = (&self.table, self.pool.good());
        table.is_live(block)
            && table.version(block) == version
            && Members(table.holders(block).0 & good.0).len() < table.scheme().pieces()
    }

    /// Blocks were written. What their members have become meanwhile counts.
    pub fn written(&mut self, blocks: &[(u32, u32)]) {
        blocks.iter().for_each(|&(block, version)| self.table.settle(block, version));
        let short = blocks.iter().filter(|&&(block, version)| self.is_short(block, version));
        let short = short.count() as u64;
        self.short += short;
        self.has_short_writes |= short > 0;
    }

    /// Begins to make blocks again: those of them that are there, with their versions.
    pub fn begin_again(&mut self, found: &[u32]) -> Vec<(u32, u32)> {
        let mut blocks = Vec::with_capacity(found.len());
        for &block in found {
            let version = self.table.version(block);
            if self.table.begin(block, version) {
                blocks.push((block, version));
            }
        }
        self.under_way = blocks.len() as u64;
        blocks
    }

    /// Making blocks again has ended.
    pub fn ended_again(&mut self, blocks: &[(u32, u32)]) {
        self.under_way = 0;
        blocks.iter().for_each(|&(block, version)| self.table.settle(block, version));
        let is_done = |&&(block, version): &&(u32, u32)| !self.is_short(block, version);
        let done = blocks.iter().filter(is_done).count() as u64;
        self.short = self.short.saturating_sub(done);
    }

    fn loss(
        &mut self,
        member: Member,
        name: &impl Fn(usize) -> String,
        for_good: bool,
    ) -> Option<String> {
        let census = self.count_short();
        self.is_told_short |= census.gone() + census.short() > 0;
        let seat = self.members[member.index()].as_mut()?;
        let was_told = std::mem::replace(&mut seat.is_told, true);
        if was_told && census.gone() == 0 {
            return None;
        }
        let why = match std::mem::take(&mut seat.reason) {
            reason if reason.is_empty() => "no answer".to_owned(),
            reason => reason,
        };
        let event = if for_good { "what was in it is gone" } else { "it is lost for now" };
        let what = format!("{}: {event} ({why})", name(seat.server));
        let bytes = |blocks: u64| Bytes(blocks * self.sector_bytes as u64);
        let left = Left {
            servers: self.pool.up().len(),
            gone: bytes(census.gone()),
            short: bytes(census.short()),
            least: census.least(),
        };
        Some(words::loss(self.table.scheme(), &what, &left))
    }

    /// A dead member's pieces are forgotten, its store is closed, and its server may join again.
    fn bury(&mut self, member: Member) {
        self.table.purge(member);
        self.pool.retire(member);
        if let Some(seat) = self.members[member.index()].take() {
            self.closing.extend(seat.store);
            self.vacant_servers.push(seat.server);
        }
    }

    /// Takes the pulse of every member.
    pub fn take_pulses(&mut self, now_ns: u64) {
        for (member, store) in self.stores() {
            let Some(pulse) = store.pulse() else { continue };
            self.pool.drains(member, pulse.is_draining);
            match pulse.condition {
                Condition::Dead => {
                    self.note_reason(member, &pulse.reason);
                    self.pool.died(member);
                }
                Condition::CutOff => {
                    self.note_reason(member, &pulse.reason);
                    self.pool.cut_off(member, now_ns);
                }
                Condition::Up => {
                    self.pool.alive(member, now_ns.saturating_sub(pulse.silent.as_nanos() as u64));
                }
            }
        }
    }

    /// Notes how much room each member has.
    pub fn take_room(&mut self) {
        for (member, store) in self.stores() {
            let usage = store.usage();
            self.pool.room(member, usage.capacity_bytes.saturating_sub(usage.stored_bytes));
            store.tell_short(self.short);
        }
    }

    /// To be called in the child of a fork: what was under way is the parent's.
    pub fn become_child(&mut self) {
        self.table.settle_all();
        self.under_way = 0;
        self.recopied_bytes = 0;
        self.closing.drain(..).for_each(std::mem::forget);
        // Threads and connections of stores that are not adopted are the parent's.
        for member in self.pool.dead().iter() {
            std::mem::forget(self.take_store(member));
        }
        self.rebuilding = true;
    }

    pub fn usage(&self) -> StoreUsage {
        let mut sum = StoreUsage {
            far_bytes: self.table.live() * self.sector_bytes as u64,
            metadata_bytes: self.table.bytes(),
            short_bytes: self.short * self.sector_bytes as u64,
            recopied_bytes: self.recopied_bytes,
            ..StoreUsage::default()
        };
        for (_, store) in self.stores() {
            let usage = store.usage();
            sum.stored_bytes += usage.stored_bytes;
            sum.server_bytes += usage.server_bytes;
            sum.tcp_connections += usage.tcp_connections;
            sum.shared_connections += usage.shared_connections;
            sum.capacity_bytes = sum.capacity_bytes.saturating_add(usage.capacity_bytes);
            sum.metadata_bytes += usage.metadata_bytes;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::compressed::CompressedStore;

    /// Three members, and four blocks with copies at the first two of them.
    fn books() -> (Books, Vec<(u32, u32)>) {
        let mut books = Books::new(Scheme::copies(2).unwrap(), 4096);
        for server in 0..3 {
            let store = CompressedStore::new(4096, 1 << 20).unwrap();
            assert!(books.join(1, server, server as u32, Arc::new(store)));
            // Nothing is stored.
            drop(books.take_store(Member(server as u8)));
        }
        let mut numbers = [0; 4];
        books.table.allocate(&mut numbers).unwrap();
        let blocks = numbers.map(|block| (block, books.table.version(block))).to_vec();
        for (index, places) in [[0, 1, 2, 3], [4, 5, 6, 7]].iter().enumerate() {
            books.add(Member(index as u8), index, &blocks, &places.map(Loc));
        }
        (books, blocks)
    }

    #[test]
    fn blocks_with_too_few_pieces_are_counted_whatever_is_under_way() {
        let (mut books, blocks) = books();
        books.written(&blocks[..2]);
        assert_eq!(books.short, 0);
        // The other two are being written while a member goes.
        books.pool.died(Member(0));
        books.tick(2, |_| String::new());
        assert_eq!(books.short, 2);
        books.written(&blocks[2..]);
        assert!(books.short == 4 && books.has_short_writes, "{}", books.short);
        // One gets its copy, one does not, and what is under way counts.
        let begun = books.begin_again(&[blocks[0].0, blocks[1].0]);
        books.count_short();
        assert_eq!(books.short, 4);
        books.add(Member(2), 0, &begun[..1], &[Loc(0)]);
        books.ended_again(&begun);
        assert_eq!(books.short, 3);
        // A wrong piece is one less.
        let wanted = Wanted { block: blocks[0].0, version: blocks[0].1, sum: 0 };
        assert!(books.wrong(&wanted, 0, Member(2), Loc(0)));
        assert_eq!(books.short, 4);
        books.free(&[Loc(blocks[0].0), Loc(blocks[3].0)]);
        assert_eq!(books.short, 2);
    }
}
