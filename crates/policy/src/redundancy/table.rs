//! Which pieces of each block are current.
//!
//! A block has a number that stays while its pieces move, a *version* that grows with each new
//! content, and up to as many pieces as its [`Scheme`] says, each at another member. A piece has a
//! number too, its *index*: copies are all alike, but of a block that was cut each piece is another
//! one. The version is odd while the block is in use and even while it is free; a number whose
//! versions are used up is never used again.

use super::{Indices, MEMBERS_MAX, Member, Members, PIECES_MAX, Piece, Scheme};

/// No member.
const NONE: u8 = u8::MAX;
/// End of the list of free numbers.
const END: u32 = u32::MAX;
/// Blocks that a search looks at before it gives its caller time for other work.
const SEARCHED_MAX: usize = 16 << 10;

/// All numbers are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// Why a piece was not accepted. It has to be freed where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The block was freed meanwhile, or has other content.
    Stale,
    /// The block has a piece at this member, or this piece at a good one, already.
    Needless,
}

/// The members of a block's pieces, by index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row([u8; PIECES_MAX]);

impl Row {
    /// The member that has the piece `index`.
    pub fn member(&self, index: usize) -> Option<Member> {
        (self.0[index] != NONE).then_some(Member(self.0[index]))
    }

    /// The pieces that some member has.
    pub fn indices(&self) -> Indices {
        (0..PIECES_MAX).filter(|&index| self.0[index] != NONE).collect()
    }

    /// The members.
    pub fn members(&self) -> Members {
        self.0.iter().filter(|&&member| member != NONE).map(|&member| Member(member)).collect()
    }

    /// What two rows have in common.
    pub fn common(&self, other: &Row) -> Row {
        Row(std::array::from_fn(|at| if self.0[at] == other.0[at] { self.0[at] } else { NONE }))
    }

    /// Without the members that are not in `members`.
    pub fn at(&self, members: Members) -> Row {
        let is_in = |member: u8| member != NONE && members.contains(Member(member));
        Row(self.0.map(|member| if is_in(member) { member } else { NONE }))
    }
}

/// How many blocks have how many pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Census {
    scheme: Scheme,
    counts: [u64; PIECES_MAX + 1],
}

impl Census {
    /// Blocks with exactly so many pieces.
    pub fn with(&self, pieces: usize) -> u64 {
        self.counts[pieces]
    }

    /// Blocks whose pieces do not give them back.
    pub fn gone(&self) -> u64 {
        self.counts[..self.scheme.needed()].iter().sum()
    }

    /// Blocks that are there and do not have all of their pieces.
    pub fn short(&self) -> u64 {
        self.counts[self.scheme.needed()..self.scheme.pieces()].iter().sum()
    }

    /// The least number of pieces of a block that is there; all of them if there is no block.
    pub fn least(&self) -> usize {
        let pieces = self.scheme.pieces();
        (self.scheme.needed()..pieces).find(|&left| self.counts[left] > 0).unwrap_or(pieces)
    }
}

/// The table. About `14 + 5 * pieces` bytes for each block.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Table {
    scheme: Scheme,
    pieces: usize,
    blocks_max: u32,
    members: Vec<u8>,
    places: Vec<u32>,
    versions: Vec<u32>,
    sums: Vec<u64>,
    /// Being written or made again.
    busy: Vec<bool>,
    first_free: u32,
    live: u64,
    held: [u64; MEMBERS_MAX],
}

impl Table {
    /// A table for at most `blocks_max` blocks.
    pub fn new(scheme: Scheme, blocks_max: u32) -> Table {
        Table {
            scheme,
            pieces: scheme.pieces(),
            blocks_max: blocks_max.min(END - 1),
            members: Vec::new(),
            places: Vec::new(),
            versions: Vec::new(),
            sums: Vec::new(),
            busy: Vec::new(),
            first_free: END,
            live: 0,
            held: [0; MEMBERS_MAX],
        }
    }

    /// Allocates a block for each entry of `out`, without pieces, and busy. All or nothing.
    pub fn allocate(&mut self, out: &mut [u32]) -> Result<(), NoRoom> {
        for done in 0..out.len() {
            let Some(block) = self.allocate_one() else {
                out[..done].iter().for_each(|&block| self.free(block, |_| {}));
                return Err(NoRoom);
            };
            out[done] = block;
        }
        Ok(())
    }

    fn allocate_one(&mut self) -> Option<u32> {
        let block = if self.first_free != END {
            let block = self.first_free;
            self.first_free = self.places[block as usize * self.pieces];
            block
        } else {
            let block = self.versions.len() as u32;
            if block >= self.blocks_max {
                return None;
            }
            self.members.resize(self.members.len() + self.pieces, NONE);
            self.places.resize(self.places.len() + self.pieces, 0);
            self.versions.push(0);
            self.sums.push(0);
            self.busy.push(false);
            block
        };
        self.versions[block as usize] += 1;
        self.busy[block as usize] = true;
        self.live += 1;
        Some(block)
    }

    /// Frees a block. `each` gets its pieces.
    pub fn free(&mut self, block: u32, mut each: impl FnMut(Piece)) {
        assert!(self.is_live(block), "block {block} was freed although it is not in use");
        for at in self.slots(block) {
            if self.members[at] != NONE {
                let member = Member(self.members[at]);
                self.held[member.index()] -= 1;
                each(Piece { member, place: self.places[at] });
                self.members[at] = NONE;
            }
        }
        self.live -= 1;
        self.busy[block as usize] = false;
        let version = &mut self.versions[block as usize];
        match version.checked_add(3) {
            Some(_) => {
                *version += 1;
                self.places[block as usize * self.pieces] = self.first_free;
                self.first_free = block;
            }
            None => *version += 1,
        }
    }

    fn slots(&self, block: u32) -> std::ops::Range<usize> {
        let first = block as usize * self.pieces;
        first..first + self.pieces
    }

    /// Whether a block is in use.
    pub fn is_live(&self, block: u32) -> bool {
        self.versions.get(block as usize).is_some_and(|version| version % 2 == 1)
    }

    /// The version of a block's content.
    pub fn version(&self, block: u32) -> u32 {
        self.versions[block as usize]
    }

    /// The checksum of a block's content.
    pub fn sum(&self, block: u32) -> u64 {
        self.sums[block as usize]
    }

    /// Notes the checksum of a block's content, before any piece of it.
    pub fn set_sum(&mut self, block: u32, sum: u64) {
        self.sums[block as usize] = sum;
    }

    /// How blocks are kept.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The pieces of a block.
    pub fn pieces(&self, block: u32) -> impl Iterator<Item = Piece> + '_ {
        self.slots(block)
            .filter(|&at| self.members[at] != NONE)
            .map(|at| Piece { member: Member(self.members[at]), place: self.places[at] })
    }

    /// Who has which piece of a block.
    pub fn row(&self, block: u32) -> Row {
        let mut row = Row([NONE; PIECES_MAX]);
        row.0[..self.pieces].copy_from_slice(&self.members[self.slots(block)]);
        row
    }

    /// The members that have a piece of a block.
    pub fn holders(&self, block: u32) -> Members {
        self.pieces(block).map(|piece| piece.member).collect()
    }

    /// The place of a block's piece at a member.
    pub fn place(&self, block: u32, member: Member) -> Option<u32> {
        self.pieces(block).find(|piece| piece.member == member).map(|piece| piece.place)
    }

    /// The piece `index` of this version of the block is stored. It takes the place of the same
    /// piece at a member that is not in `good`, which is returned.
    pub fn add(
        &mut self,
        block: u32,
        version: u32,
        index: usize,
        piece: Piece,
        good: Members,
    ) -> Result<Option<Piece>, Refused> {
        if !self.is_live(block) || self.versions[block as usize] != version {
            return Err(Refused::Stale);
        }
        let slot = self.slots(block).start + index;
        let before = Piece { member: Member(self.members[slot]), place: self.places[slot] };
        let displaced = (before.member.0 != NONE).then_some(before);
        let is_there = displaced.is_some_and(|before| good.contains(before.member));
        if is_there || self.holders(block).contains(piece.member) {
            return Err(Refused::Needless);
        }
        if let Some(before) = displaced {
            self.held[before.member.index()] -= 1;
        }
        self.members[slot] = piece.member.0;
        self.places[slot] = piece.place;
        self.held[piece.member.index()] += 1;
        Ok(displaced)
    }

    /// Forgets the piece `index`, which turned out to be wrong or lost. Returns whether it was
    /// current.
    pub fn forget(&mut self, block: u32, index: usize, piece: Piece) -> bool {
        if !self.is_live(block) {
            return false;
        }
        let at = self.slots(block).start + index;
        let is_current = self.members[at] == piece.member.0 && self.places[at] == piece.place;
        if is_current {
            self.members[at] = NONE;
            self.held[piece.member.index()] -= 1;
        }
        is_current
    }

    /// Marks a block as being made again. Returns false if it is not live, of another version, or
    /// busy.
    pub fn begin(&mut self, block: u32, version: u32) -> bool {
        let free = self.is_live(block)
            && self.versions[block as usize] == version
            && !self.busy[block as usize];
        if free {
            self.busy[block as usize] = true;
        }
        free
    }

    /// A write, or making a block again, has ended.
    pub fn settle(&mut self, block: u32, version: u32) {
        if self.is_live(block) && self.versions[block as usize] == version {
            self.busy[block as usize] = false;
        }
    }

    /// Nothing is under way any more.
    pub fn settle_all(&mut self) {
        self.busy.fill(false);
    }

    /// Whether a block is being written or made again.
    pub fn is_busy(&self, block: u32) -> bool {
        self.busy[block as usize]
    }

    /// Searches from `cursor` for blocks with fewer pieces at members in `good` than they should
    /// have, with at most `left_max` of them, and with as many as are needed at members in
    /// `sources`, of which `good` is a part, apart from those to `skip`. Collects up to `count_max`
    /// with the same pieces at the same members. Returns where to go on; `None` at the end.
    pub fn missing(
        &self,
        cursor: u32,
        (good, sources): (Members, Members),
        left_max: usize,
        count_max: usize,
        skip: impl Fn(u32) -> bool,
        out: &mut Vec<u32>,
    ) -> Option<u32> {
        let mut group = None;
        let end = self.versions.len().min(cursor as usize + SEARCHED_MAX) as u32;
        for block in cursor..end {
            let is_missing = self.is_missing(block, (good, sources), left_max);
            if !is_missing || skip(block) {
                continue;
            }
            let row = self.row(block).at(good);
            if *group.get_or_insert(row) != row || out.len() == count_max {
                return Some(block);
            }
            out.push(block);
        }
        ((end as usize) < self.versions.len()).then_some(end)
    }

    /// Whether a block is one that [`Table::missing`] searches for.
    pub fn is_missing(
        &self,
        block: u32,
        (good, sources): (Members, Members),
        left_max: usize,
    ) -> bool {
        if !self.is_live(block) || self.busy[block as usize] {
            return false;
        }
        let holders = self.holders(block);
        let left = Members(holders.0 & good.0).len();
        left <= left_max.min(self.pieces - 1)
            && Members(holders.0 & sources.0).len() >= self.scheme.needed()
    }

    /// Numbers of live blocks by their pieces at members in `good`; blocks that are being written
    /// do not count.
    pub fn census(&self, good: Members) -> Census {
        let mut counts = [0; PIECES_MAX + 1];
        for block in 0..self.versions.len() as u32 {
            if self.is_live(block) && !self.busy[block as usize] {
                counts[Members(self.holders(block).0 & good.0).len()] += 1;
            }
        }
        Census { scheme: self.scheme, counts }
    }

    /// Number of pieces at a member.
    pub fn held(&self, member: Member) -> u64 {
        self.held[member.index()]
    }

    /// Drops all pieces at a member that is gone for good.
    pub fn purge(&mut self, member: Member) {
        if self.held[member.index()] == 0 {
            return;
        }
        self.members.iter_mut().filter(|at| **at == member.0).for_each(|at| *at = NONE);
        self.held[member.index()] = 0;
    }

    /// Number of blocks in use.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> u64 {
        (self.members.capacity()
            + self.busy.capacity()
            + 4 * (self.places.capacity() + self.versions.capacity())
            + 8 * self.sums.capacity()) as u64
    }
}
