//! What the model consists of: three servers, the requests under way to them, and the program's
//! table, which is the real one.
//!
//! There is no clock. What the program believes of a server changes at any moment, whether or not
//! there is a reason; so every timing of [`hiroma_policy::redundancy::Pool`] is among the runs.

use std::collections::BTreeMap;

use hiroma_policy::redundancy::{Member, Members, Piece, Scheme, Table};

/// Servers. A server that restarts has the same number again at once: the hardest case.
pub const SERVERS: usize = 3;
/// Places of each server: so few that a place is used again as soon as it is free.
pub const PLACES: usize = 2;

/// What a place contains.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    Nothing,
    /// What an abandoned write stores.
    Garbage,
    Piece {
        block: u32,
        version: u32,
        index: usize,
    },
}

/// What the program believes of a server.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum Belief {
    Up,
    Suspect,
    Lost,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct Server {
    /// It has not crashed, or its crash is known and another incarnation has joined.
    pub runs: bool,
    pub belief: Belief,
    pub memory: [Content; PLACES],
    /// Places that the program's session with this server may use for new pieces.
    pub is_free: [bool; PLACES],
}

/// A write of one piece, on its way to the server (`is_done` is false) or back.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub server: usize,
    pub place: usize,
    pub block: u32,
    pub version: u32,
    pub index: usize,
    /// The piece is made again.
    pub is_again: bool,
    pub is_abandoned: bool,
    pub is_done: bool,
}

/// How often each of these may still happen, so that there is an end.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct Budget {
    pub writes: u8,
    pub frees: u8,
    pub crashes: u8,
    pub beliefs: u8,
    pub disconnects: u8,
}

/// A store with a mistake, which the model has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// It records what an abandoned write has stored.
    RecordsAbandoned,
    /// It uses the place of an abandoned write again before the server has answered.
    FreesAbandoned,
    /// It repeats a write to a server that has answered it.
    RepeatsAnswered,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct World {
    pub table: Table,
    pub servers: [Server; SERVERS],
    /// Sorted: worlds that differ only in their order are the same.
    pub requests: Vec<Request>,
    /// Attempts of a write that are under way, and pieces of it that are stored.
    pub writing: BTreeMap<u32, (usize, usize)>,
    pub budget: Budget,
    /// A block had fewer pieces at servers that run after a step in which none crashed.
    pub gave_up: bool,
    /// Only with [`Mistake::RepeatsAnswered`]: what it sends again.
    pub answered: Option<Request>,
}

impl World {
    pub fn new(scheme: Scheme, budget: Budget) -> World {
        let server = Server {
            runs: true,
            belief: Belief::Up,
            memory: [Content::Nothing; PLACES],
            is_free: [true; PLACES],
        };
        World {
            table: Table::new(scheme, 2),
            servers: std::array::from_fn(|_| server.clone()),
            requests: Vec::new(),
            writing: BTreeMap::new(),
            budget,
            gave_up: false,
            answered: None,
        }
    }

    fn believed(&self, wanted: impl Fn(Belief) -> bool) -> Members {
        (0..SERVERS)
            .filter(|&at| wanted(self.servers[at].belief))
            .map(|at| Member(at as u8))
            .collect()
    }

    /// Servers that answer, as far as the program knows.
    pub fn up(&self) -> Members {
        self.believed(|belief| belief == Belief::Up)
    }

    /// Servers whose pieces count.
    pub fn good(&self) -> Members {
        self.believed(|belief| belief != Belief::Lost)
    }

    pub fn content(&self, block: u32, version: u32, index: usize) -> Content {
        // Copies are alike.
        let index = if self.table.scheme().is_cut() { index } else { 0 };
        Content::Piece { block, version, index }
    }

    /// Live blocks.
    pub fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        (0..2).filter(|&block| self.table.is_live(block))
    }

    /// Live blocks that are completely written: the program may want them.
    pub fn written(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks().filter(|block| !self.writing.contains_key(block))
    }

    /// Pieces of a block that are recorded, at servers that run.
    pub fn pieces_left(&self, block: u32) -> usize {
        self.table.pieces(block).filter(|piece| self.servers[piece.member.index()].runs).count()
    }

    fn free_place(&mut self, piece: Piece) {
        let is_free = &mut self.servers[piece.member.index()].is_free[piece.place as usize];
        assert!(!*is_free, "{piece:?} is freed twice");
        *is_free = true;
    }

    fn free(&mut self, block: u32) {
        let mut pieces = Vec::new();
        self.table.free(block, |piece| pieces.push(piece));
        pieces.into_iter().for_each(|piece| self.free_place(piece));
    }

    /// Sends a piece to a server. Returns false if it has no room.
    fn send(&mut self, server: usize, block: u32, index: usize, is_again: bool) -> bool {
        let Some(place) = self.servers[server].is_free.iter().position(|&free| free) else {
            return false;
        };
        self.servers[server].is_free[place] = false;
        let version = self.table.version(block);
        self.requests.push(Request {
            server,
            place,
            block,
            version,
            index,
            is_again,
            is_abandoned: false,
            is_done: false,
        });
        true
    }

    /// Writes a new block to `targets`. Returns false if too few of them have room.
    pub fn write(&mut self, targets: Members) -> bool {
        let mut block = [0];
        if self.table.allocate(&mut block).is_err() {
            return false;
        }
        let [block] = block;
        let sent = targets.iter().enumerate();
        let flying = sent.filter(|(index, to)| self.send(to.index(), block, *index, false)).count();
        self.writing.insert(block, (flying, 0));
        self.budget.writes -= 1;
        flying >= self.table.scheme().needed()
    }

    pub fn free_written(&mut self, block: u32) {
        self.budget.frees -= 1;
        self.free(block);
    }

    /// Blocks of which the program makes a piece again, and the servers that it may choose.
    pub fn missing(&self) -> Vec<(u32, Members)> {
        let mut found = Vec::new();
        let (good, pieces) = (self.good(), self.table.scheme().pieces());
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let mut some = Vec::new();
            cursor = self.table.missing(from, (good, good), pieces, 2, |_| false, &mut some);
            if some.is_empty() && cursor == Some(from) {
                break;
            }
            found.append(&mut some);
        }
        found
            .into_iter()
            // It is read first: those that have crashed do not answer.
            .filter(|&block| self.pieces_left(block) >= self.table.scheme().needed())
            .map(|block| {
                let left = self.table.row(block).at(good).members();
                (block, Members(self.up().0 & !left.0))
            })
            .collect()
    }

    /// Starts to make a piece of `block` again at `server`.
    pub fn make_again(&mut self, block: u32, server: usize) -> bool {
        let left = self.table.row(block).at(self.good()).indices();
        let scheme = self.table.scheme();
        let Some(index) = (0..scheme.pieces()).find(|&index| !left.contains(index)) else {
            return false;
        };
        let version = self.table.version(block);
        self.table.begin(block, version) && self.send(server, block, index, true)
    }

    /// The server carries a request out. What an abandoned write stores is anything.
    pub fn execute(&mut self, at: usize, is_garbage: bool) {
        let request = &mut self.requests[at];
        request.is_done = true;
        let (server, place) = (request.server, request.place);
        let (block, version, index) = (request.block, request.version, request.index);
        self.servers[server].memory[place] =
            if is_garbage { Content::Garbage } else { self.content(block, version, index) };
    }

    /// The answer reaches the program.
    pub fn answer(&mut self, at: usize, mistake: Mistake) {
        let request = self.requests.remove(at);
        let piece = Piece { member: Member(request.server as u8), place: request.place as u32 };
        if mistake == Mistake::RepeatsAnswered {
            self.answered.get_or_insert(request.clone());
        }
        if request.is_abandoned && mistake != Mistake::RecordsAbandoned {
            if mistake == Mistake::None {
                self.free_place(piece);
            }
            return;
        }
        let (block, version) = (request.block, request.version);
        match self.table.add(block, version, request.index, piece, self.good()) {
            Ok(displaced) => displaced.into_iter().for_each(|piece| self.free_place(piece)),
            Err(_) => self.free_place(piece),
        }
        if !request.is_abandoned {
            self.attempt_ended(&request, true);
        }
    }

    fn attempt_ended(&mut self, request: &Request, is_stored: bool) {
        let (block, version) = (request.block, request.version);
        if request.is_again {
            return self.table.settle(block, version);
        }
        let Some((flying, stored)) = self.writing.get_mut(&block) else { return };
        *flying -= 1;
        *stored += usize::from(is_stored);
        let (flying, stored) = (*flying, *stored);
        if flying == 0 {
            self.writing.remove(&block);
            self.table.settle(block, version);
            // The program is told that its block could not be written.
            if stored < self.table.scheme().needed() {
                self.free(block);
            }
        }
    }

    /// Whether the store may do without this request.
    pub fn can_be_abandoned(&self, request: &Request) -> bool {
        let is_up = self.servers[request.server].belief == Belief::Up;
        let stored = self.writing.get(&request.block).map_or(0, |&(_, stored)| stored);
        let is_safe = request.is_again || stored >= self.table.scheme().needed();
        !request.is_abandoned && !is_up && is_safe
    }

    pub fn abandon(&mut self, at: usize, mistake: Mistake) {
        self.requests[at].is_abandoned = true;
        let request = self.requests[at].clone();
        if mistake == Mistake::FreesAbandoned {
            let member = Member(request.server as u8);
            self.free_place(Piece { member, place: request.place as u32 });
        }
        self.attempt_ended(&request, false);
    }

    /// The connection to a server breaks. What was not answered is sent again.
    pub fn disconnect(&mut self, server: usize) {
        self.budget.disconnects -= 1;
        let requests = self.requests.iter_mut().filter(|request| request.server == server);
        requests.for_each(|request| request.is_done = false);
        if let Some(request) = self.answered.take_if(|request| request.server == server) {
            self.requests.push(Request { is_done: false, is_abandoned: true, ..request });
        }
    }

    /// A server crashes. The program does not know it yet.
    pub fn crash(&mut self, server: usize) {
        self.budget.crashes -= 1;
        self.servers[server].runs = false;
        self.servers[server].memory = [Content::Nothing; PLACES];
    }

    /// The program learns of a crash. The server joins again, empty.
    pub fn learn(&mut self, server: usize) {
        let member = Member(server as u8);
        self.table.purge(member);
        let (dead, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.requests)
            .into_iter()
            .partition(|request| request.server == server);
        self.requests = rest;
        self.servers[server] = Server {
            runs: true,
            belief: Belief::Up,
            memory: [Content::Nothing; PLACES],
            is_free: [true; PLACES],
        };
        for request in dead.iter().filter(|request| !request.is_abandoned) {
            self.attempt_ended(request, false);
        }
    }

    pub fn believe(&mut self, server: usize, belief: Belief) {
        self.budget.beliefs -= 1;
        self.servers[server].belief = belief;
    }
}
