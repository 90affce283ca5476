//! A simulated store drives the table and the pool through random schedules: members die, come back
//! empty, stop answering and go on, and are full; answers come late and in any order. The members'
//! memory is simulated with places that are used again as soon as they are free, so that a piece
//! that is recorded wrongly, or too early, or freed too early, shows as other content.

use std::collections::{BTreeMap, BTreeSet};

use hiroma_units::Rng;

use super::*;

/// How blocks are kept, and in how many servers.
const SCHEMES: [(&str, usize); 5] = [("1+1", 4), ("1+2", 4), ("2+1", 4), ("4+1", 6), ("3+2", 6)];
const PLACES: u32 = 40;
const STEP_NS: u64 = 10 * MS;

/// What a place contains: block, version, and which piece (0: copies are alike).
type Content = Option<(u32, u32, usize)>;

struct Server {
    member: Option<Member>,
    memory: Vec<Content>,
    free: Vec<u32>,
    /// It answers nothing until this step.
    stopped_until: u64,
}

enum Ask {
    Write { block: u32, version: u32, index: usize, is_again: bool },
    Read { block: u32, version: u32, index: usize },
}

struct Request {
    server: usize,
    member: Member,
    place: u32,
    ask: Ask,
    due: u64,
    since_ns: u64,
    abandoned: bool,
}

struct World {
    rng: Rng,
    table: Table,
    pool: Pool,
    servers: Vec<Server>,
    requests: Vec<Request>,
    /// Pieces that a write still waits for, and those that are stored.
    writing: BTreeMap<u32, (usize, usize)>,
    step: u64,
    /// Deaths since a block last had all of its pieces.
    deaths: BTreeMap<u32, usize>,
    scheme: Scheme,
    lost: usize,
    canary: bool,
}

impl World {
    fn new(seed: u64, canary: bool) -> World {
        let mut rng = Rng::new(seed);
        let (scheme, servers) = SCHEMES[rng.below(SCHEMES.len() as u32) as usize];
        let scheme: Scheme = scheme.parse().unwrap();
        let mut world = World {
            rng,
            table: Table::new(scheme, 1000),
            pool: Pool::new(scheme.needed()),
            servers: Vec::new(),
            requests: Vec::new(),
            writing: BTreeMap::new(),
            step: 0,
            deaths: BTreeMap::new(),
            scheme,
            lost: 0,
            canary,
        };
        for number in 0..servers {
            let member = world.pool.join(1, number as u32);
            world.servers.push(Server {
                member,
                memory: vec![None; PLACES as usize],
                free: (0..PLACES).collect(),
                stopped_until: 0,
            });
        }
        world
    }

    fn now_ns(&self) -> u64 {
        1 + self.step * STEP_NS
    }

    fn server_of(&self, member: Member) -> Option<usize> {
        self.servers.iter().position(|server| server.member == Some(member))
    }

    fn free_place(&mut self, piece: Piece) {
        if let Some(server) = self.server_of(piece.member) {
            self.servers[server].free.push(piece.place);
        }
    }

    fn send(&mut self, member: Member, place: u32, ask: Ask) {
        let Some(server) = self.server_of(member) else { return };
        let due = self.step + 1 + self.rng.below_u64(4) + 30 * u64::from(self.rng.below(20) == 0);
        let since_ns = self.now_ns();
        self.requests.push(Request { server, member, place, ask, due, since_ns, abandoned: false });
    }

    /// Starts to store one more piece of a block. Returns whether a member takes it.
    fn offer(&mut self, block: u32, index: usize, taken: &mut Members, is_again: bool) -> bool {
        let version = self.table.version(block);
        loop {
            let now_ns = self.now_ns();
            let Some(member) = self.pool.target(now_ns, 4096, *taken) else { return false };
            taken.insert(member);
            let Some(server) = self.server_of(member) else { continue };
            let Some(place) = self.servers[server].free.pop() else {
                self.pool.full(member, now_ns);
                continue;
            };
            self.send(member, place, Ask::Write { block, version, index, is_again });
            return true;
        }
    }

    fn write(&mut self) {
        let mut block = [0];
        if self.table.live() > 30 || self.table.allocate(&mut block).is_err() {
            return;
        }
        let block = block[0];
        let mut taken = Members::default();
        let flying = (0..self.scheme.pieces())
            .filter(|&index| self.offer(block, index, &mut taken, false))
            .count();
        if flying < self.scheme.needed() {
            let is_of = |ask: &Ask| matches!(ask, Ask::Write { block: at, .. } if *at == block);
            let requests = self.requests.iter_mut().filter(|request| is_of(&request.ask));
            requests.for_each(|request| request.abandoned = true);
            self.table.free(block, |_| {});
            return;
        }
        self.writing.insert(block, (flying, 0));
        self.deaths.insert(block, 0);
    }

    fn free(&mut self) {
        let Some(block) = self.any_block() else { return };
        let mut pieces = Vec::new();
        self.table.free(block, |piece| pieces.push(piece));
        pieces.into_iter().for_each(|piece| self.free_place(piece));
    }

    /// A block that the program knows: not being written.
    fn any_block(&mut self) -> Option<u32> {
        let from = self.rng.below(60);
        (0..60)
            .map(|at| (from + at) % 60)
            .find(|&block| self.table.is_live(block) && !self.writing.contains_key(&block))
    }

    fn read(&mut self) {
        let Some(block) = self.any_block() else { return };
        let row = self.table.row(block);
        let (needed, deaths) = (self.scheme.needed(), self.deaths[&block]);
        let sources = self.pool.sources(&row, needed);
        if sources.len() < needed {
            let are_borne = self.scheme.pieces() - needed;
            assert!(
                deaths > are_borne || row.indices().len() < needed && deaths > 0,
                "block {block} has too few pieces, after {deaths} deaths"
            );
            self.lost += 1;
            return;
        }
        let version = self.table.version(block);
        for index in sources.iter() {
            let member = row.member(index).unwrap();
            let place = self.table.place(block, member).unwrap();
            self.send(member, place, Ask::Read { block, version, index });
        }
    }

    fn make_again(&mut self) {
        let mut found = Vec::new();
        let good = self.pool.good();
        let sources = Members(good.0 | self.pool.draining().0);
        self.table.missing(0, (good, sources), self.scheme.pieces(), 4, |_| false, &mut found);
        for block in found {
            let version = self.table.version(block);
            let left = self.table.row(block).at(good);
            let missing = Indices::first(self.scheme.pieces()).without(left.indices());
            let mut taken = left.members();
            let index = missing.iter().next().unwrap();
            if self.table.begin(block, version) && !self.offer(block, index, &mut taken, true) {
                self.table.settle(block, version);
            }
        }
    }

    /// A member dies with all it has. Its server comes back as another member, at once or later.
    fn kill(&mut self) {
        let server = self.rng.below(self.servers.len() as u32) as usize;
        let Some(member) = self.servers[server].member.take() else { return };
        for block in 0..60 {
            if self.table.is_live(block) && self.table.holders(block).contains(member) {
                *self.deaths.entry(block).or_default() += 1;
            }
        }
        for block in self.writing.keys() {
            *self.deaths.entry(*block).or_default() += 1;
        }
        self.pool.died(member);
        self.servers[server].memory.fill(None);
        self.servers[server].free = (0..PLACES).collect();
        self.servers[server].stopped_until = 0;
        let (dead, rest) = std::mem::take(&mut self.requests)
            .into_iter()
            .partition(|request| request.member == member);
        self.requests = rest;
        self.table.purge(member);
        for request in dead {
            self.failed(&request);
        }
        self.tick();
        self.pool.retire(member);
    }

    fn failed(&mut self, request: &Request) {
        if let (Ask::Write { block, version, is_again, .. }, false) =
            (&request.ask, request.abandoned)
        {
            self.write_ended(*block, *version, *is_again, false);
        }
    }

    fn write_ended(&mut self, block: u32, version: u32, is_again: bool, is_stored: bool) {
        if is_again {
            self.table.settle(block, version);
        } else if let Some((flying, stored)) = self.writing.get_mut(&block) {
            *flying -= 1;
            *stored += usize::from(is_stored);
            if *flying == 0 {
                let stored = *stored;
                self.writing.remove(&block);
                self.table.settle(block, version);
                // It cannot be read: the program is told so.
                if stored < self.scheme.needed() {
                    self.free_all(block);
                }
            }
        }
    }

    fn free_all(&mut self, block: u32) {
        let mut pieces = Vec::new();
        self.table.free(block, |piece| pieces.push(piece));
        pieces.into_iter().for_each(|piece| self.free_place(piece));
    }

    fn answer(&mut self, request: Request) {
        let now_ns = self.now_ns();
        let place = request.place as usize;
        self.pool.answered(request.member, now_ns, now_ns - request.since_ns, None);
        match request.ask {
            Ask::Write { block, version, index, is_again } => {
                // An abandoned write stores whatever it had left to send.
                let content = (!request.abandoned).then(|| self.content(block, version, index));
                self.servers[request.server].memory[place] = content;
                let piece = Piece { member: request.member, place: request.place };
                if request.abandoned && !self.canary {
                    return self.free_place(piece);
                }
                match self.table.add(block, version, index, piece, self.pool.good()) {
                    Ok(displaced) => {
                        displaced.into_iter().for_each(|old| self.free_place(old));
                    }
                    Err(_) => self.free_place(piece),
                }
                if !request.abandoned {
                    self.write_ended(block, version, is_again, true);
                }
            }
            Ask::Read { block, version, index } => {
                let got = self.servers[request.server].memory[place];
                let piece = Piece { member: request.member, place: request.place };
                // A piece that was made again meanwhile may have the place of another one.
                let is_current = self.table.is_live(block)
                    && self.table.version(block) == version
                    && self.table.row(block).member(index) == Some(piece.member)
                    && self.table.pieces(block).any(|at| at == piece);
                // What is not current any more may be anything; the checksum tells.
                assert!(
                    !is_current || got == Some(self.content(block, version, index)),
                    "block {block} version {version}: {got:?} is recorded as its piece {index}"
                );
            }
        }
    }

    fn content(&self, block: u32, version: u32, index: usize) -> (u32, u32, usize) {
        (block, version, if self.scheme.is_cut() { index } else { 0 })
    }

    /// Does without members that do not answer, as the store does.
    fn abandon(&mut self) {
        let up = self.pool.up();
        let mut ended = Vec::new();
        for request in &mut self.requests {
            if request.abandoned || up.contains(request.member) {
                continue;
            }
            if let Ask::Write { block, version, is_again, .. } = request.ask {
                let needed = self.scheme.needed();
                let writing = self.writing.get(&block);
                let is_safe = is_again || writing.is_some_and(|&(_, stored)| stored >= needed);
                if is_safe {
                    request.abandoned = true;
                    ended.push((block, version, is_again));
                }
            }
        }
        for (block, version, is_again) in ended {
            self.write_ended(block, version, is_again, false);
        }
    }

    fn tick(&mut self) {
        let mut changes = Vec::new();
        self.pool.tick(self.now_ns(), &mut changes);
    }

    fn one_step(&mut self, is_calm: bool) {
        self.step += 1;
        let now_ns = self.now_ns();
        let (due, rest) = std::mem::take(&mut self.requests).into_iter().partition(|request| {
            request.due <= self.step && self.servers[request.server].stopped_until <= self.step
        });
        self.requests = rest;
        let due: Vec<Request> = due;
        due.into_iter().for_each(|request| self.answer(request));
        for at in 0..self.requests.len() {
            let (member, since_ns) = (self.requests[at].member, self.requests[at].since_ns);
            self.pool.waits(member, now_ns, since_ns);
        }
        for server in 0..self.servers.len() {
            match self.servers[server].member {
                Some(member) if self.servers[server].stopped_until <= self.step => {
                    self.pool.alive(member, now_ns);
                }
                None if is_calm || self.rng.below(20) == 0 => {
                    self.servers[server].member = self.pool.join(now_ns, server as u32);
                }
                _ => {}
            }
        }
        self.tick();
        self.abandon();
        self.make_again();
        for _ in 0..3 {
            match self.rng.below(8) {
                0..3 if !is_calm => self.write(),
                3 if !is_calm => self.free(),
                _ => self.read(),
            }
        }
        if !is_calm && self.rng.below(80) == 0 {
            self.kill();
        }
        if !is_calm && self.rng.below(60) == 0 {
            let server = self.rng.below(self.servers.len() as u32) as usize;
            self.servers[server].stopped_until = self.step + self.rng.below_u64(300);
        }
        if !is_calm && self.rng.below(50) == 0 {
            self.drain();
        }
        self.check();
    }

    /// One member is to be emptied, or none any more.
    fn drain(&mut self) {
        let drained = self.rng.below(self.servers.len() as u32 + 2) as usize;
        for server in 0..self.servers.len() {
            if let Some(member) = self.servers[server].member {
                self.pool.drains(member, server == drained);
            }
        }
    }

    /// What holds at every moment, whatever happened.
    fn check(&mut self) {
        let mut seen = BTreeSet::new();
        for block in 0..60 {
            if !self.table.is_live(block) {
                continue;
            }
            let version = self.table.version(block);
            let row = self.table.row(block);
            for index in row.indices().iter() {
                let member = row.member(index).unwrap();
                let piece = Piece { member, place: self.table.place(block, member).unwrap() };
                let server = self.server_of(piece.member).expect("a piece is at a member");
                let place = piece.place as usize;
                assert_eq!(
                    self.servers[server].memory[place],
                    Some(self.content(block, version, index)),
                    "what is recorded as a piece is one"
                );
                assert!(seen.insert((server, place)), "a place has one piece");
                assert!(!self.servers[server].free.contains(&piece.place), "it is not free");
            }
            if row.indices().len() == self.scheme.pieces() {
                self.deaths.insert(block, 0);
            }
            assert!(
                row.indices().len() >= self.scheme.needed()
                    || self.writing.contains_key(&block)
                    || self.deaths[&block] > 0,
                "no piece is given up while its member lives"
            );
        }
    }
}

fn run(seed: u64, canary: bool) -> World {
    let mut world = World::new(seed, canary);
    (0..400).for_each(|_| world.one_step(false));
    (0..400).for_each(|_| world.one_step(true));
    world
}

#[test]
fn no_schedule_records_a_wrong_copy_or_loses_one_that_lives() {
    let schedules =
        option_env!("HIROMA_SCHEDULES").and_then(|text| text.parse().ok()).unwrap_or(2000);
    let (mut lost, mut drained) = (0, 0);
    for seed in 0..schedules {
        let world = run(seed, false);
        lost += world.lost;
        let census = world.table.census(world.pool.good());
        assert_eq!(census.short(), 0, "seed {seed}: at rest, everything that lives has all pieces");
        for member in world.pool.draining().iter() {
            drained += 1;
            let is_there = |&block: &u32| {
                let holders = if world.table.is_live(block) {
                    world.table.holders(block)
                } else {
                    Members::default()
                };
                holders.contains(member) && holders.len() >= world.scheme.needed()
            };
            // Too few pieces of a block cannot be moved.
            let left = (0..60).find(is_there);
            assert_eq!(left, None, "seed {seed}: at rest, {member:?} is empty");
        }
    }
    assert!(lost > 0, "some schedules kill too many pieces");
    assert!(drained > 0, "some schedules end with a member to be emptied");
}

#[test]
fn a_store_that_believes_abandoned_writes_is_caught() {
    let caught = std::panic::catch_unwind(|| (0..200).for_each(|seed| _ = run(seed, true)));
    assert!(caught.is_err());
}
