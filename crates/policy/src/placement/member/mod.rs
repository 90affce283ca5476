//! One node of a cluster in which messages are lost, repeated and reordered, links are cut, and
//! nodes fail: what it keeps for others, where its own pages are, and what it says about both.
//!
//! [`Member`] is what a live node would run, and what the simulator runs where `policy.confirm` or
//! `faults` are on. It decides with the same [`Placer`]. `docs/internals/placer.md` has the protocol
//! and why it loses no page.
//!
//! The *owner* of a page is the only node that decides where its pieces are; a *host* keeps pieces.
//! Every member can be both.

mod fetch;
mod host;
mod message;
mod owner;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use super::placer::WAIT_ANSWERS;
pub use message::{Name, Note, Number, Store};

use super::placer::{self, Placer, Shared};
use super::view::{Peer, PeerKind};
use super::{Arrival, Leaving, Stamp};
use host::Hosted;
use owner::Owned;

/// What happened to a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// So many frames are free, without promised ones.
    Free(u32),
    /// A page of this node has to leave its frame.
    PageOut(u64),
    /// A page that left, or is leaving, is needed.
    PageIn(u64),
    /// A page that left, or is leaving, will not be needed again.
    Drop(u64),
    /// [`Command::WriteDisk`] is done.
    DiskWritten(u64, Number),
    /// The frame of a guest is needed.
    Displace {
        /// Its owner.
        owner: u32,
        /// Its page.
        page: u64,
    },
    /// A message arrived.
    Received {
        /// Its sender.
        from: u32,
        /// The sender's incarnation.
        epoch: u32,
        /// The message.
        note: Note,
    },
    /// A failure detector believes that a node does not work. It may be wrong.
    Suspected(u32),
    /// A node joins, or returns.
    Joined {
        /// The node.
        node: u32,
        /// Its distance, frames and speed.
        kind: PeerKind,
    },
    /// A node has left for good: what it kept is lost.
    Left(u32),
    /// Whether this node is to be emptied.
    Drain(bool),
    /// The time that [`Member::deadline_ns`] returned may have come.
    Tick,
}

/// Where the content of a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The message has none.
    None,
    /// A page of this node.
    Own(u64),
    /// A guest: owner and page.
    Guest(u32, u64),
    /// What [`Command::Carry`] kept.
    Carried(u64),
}

/// What the shell is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Send a message.
    Send {
        /// The receiver.
        to: u32,
        /// The message.
        note: Note,
        /// Its content.
        content: Content,
    },
    /// Send a message to all peers.
    SendToPeers(Note),
    /// The page is kept elsewhere: its frame, or the copy that [`Command::Hold`] made, is free.
    Gone(u64),
    /// The page that was leaving stays: it is still here.
    Stays(u64),
    /// The message at hand contains this piece of a page that was requested.
    Piece(u64, u8),
    /// Enough pieces of the page are here.
    Here(u64),
    /// Enough pieces of the page are here; it leaves again, so that it has all its pieces. Keep it
    /// outside of the frames until then.
    Hold(u64),
    /// The page was written to disk, and has to be read from there.
    ReadDisk(u64),
    /// Write a page to disk.
    WriteDisk(u64, Number),
    /// No node has the page in this version, or none that has it answers.
    Lost(u64, Number),
    /// Keep the piece in the message at hand as a guest; one of the same page is replaced.
    Keep {
        /// Its owner.
        owner: u32,
        /// Its page.
        page: u64,
    },
    /// A guest is not needed any more.
    Free {
        /// Its owner.
        owner: u32,
        /// Its page.
        page: u64,
    },
    /// Write a guest to the disk of this node. Its frame is free then.
    Spill {
        /// Its owner.
        owner: u32,
        /// Its page.
        page: u64,
        /// The attempt by which it was placed.
        number: Number,
    },
    /// Keep the content of the message at hand until it is sent on.
    Carry(u64),
    /// It is not needed any more.
    DropCarried(u64),
    /// This node keeps nothing for others, and can leave.
    Drained,
}

/// Why time matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// An attempt to place a piece.
    Going(u64, u8, Number),
    /// A request for a page.
    Wanted(u64, u64),
    /// Degraded pages are made whole.
    Repair,
    /// A guest that has to leave.
    Displace(u32, u64),
    /// Guests whose owners have to be asked.
    Renew,
    /// Hosts that were not heard.
    Watch,
}

/// What a number that the placer works on stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    /// A piece of an own page.
    Own(u64, u8),
    /// A piece that is passing.
    Passing(Store),
}

/// An attempt is made so often, each time after twice the time.
pub const TRIES: u32 = 4;

/// Other questions are repeated until they are answered, each time after twice the time, but not after
/// more than so many times `answer_ns`.
pub const REPEAT_ANSWERS_MAX: u64 = 64;

/// What all parts of a member use.
#[derive(Debug)]
struct Base {
    me: u32,
    epoch: u32,
    placer: Placer,
    answer_ns: u64,
    lease_ns: u64,
    give_up_ns: u64,
    pieces: (u8, u8),
    /// By peer: its name.
    nodes: Vec<u32>,
    peers: BTreeMap<u32, Peer>,
    /// The latest incarnation of every node that was heard.
    epochs: BTreeMap<u32, u32>,
    timers: BTreeSet<(u64, Timer)>,
    tokens: BTreeMap<u64, Token>,
    next: u64,
    commands: Vec<placer::Command>,
}

impl Base {
    /// A number that was never used: of an attempt, a request or a token.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn at(&mut self, time_ns: u64, timer: Timer) {
        self.timers.insert((time_ns, timer));
    }

    /// When the `tries`th repetition is due, ns.
    fn due_ns(&self, now_ns: u64, tries: u32) -> u64 {
        now_ns + self.answer_ns * (1 << tries.min(16)).min(REPEAT_ANSWERS_MAX)
    }

    fn peer(&self, node: u32) -> Option<Peer> {
        self.peers.get(&node).copied()
    }

    /// The incarnation in which a node was last heard.
    fn epoch_of(&self, node: u32) -> u32 {
        self.epochs.get(&node).copied().unwrap_or(0)
    }

    fn token(&mut self, token: Token) -> u64 {
        let number = self.number();
        self.tokens.insert(number, token);
        number
    }
}

/// One node.
#[derive(Debug)]
pub struct Member {
    base: Base,
    owned: Owned,
    hosted: Hosted,
}

fn send(to: u32, note: Note, out: &mut Vec<Command>) {
    out.push(Command::Send { to, note, content: Content::None });
}

impl Member {
    /// Node `me` in its incarnation `epoch` (greater than all before), whose peers are `nodes`, in
    /// the order of `shared`.
    pub fn new(
        shared: Arc<Shared>,
        me: u32,
        epoch: u32,
        nodes: Vec<u32>,
        seed: u64,
        now_ns: u64,
    ) -> Self {
        let config = shared.config();
        let mut base = Base {
            me,
            epoch,
            answer_ns: config.answer_ns,
            lease_ns: config.lease_ns,
            give_up_ns: config.give_up_ns,
            pieces: config.pieces(),
            placer: Placer::new(shared.clone(), seed, now_ns).incarnation(epoch),
            peers: (0..).zip(&nodes).map(|(peer, &node)| (node, Peer(peer))).collect(),
            nodes,
            epochs: BTreeMap::new(),
            timers: BTreeSet::new(),
            tokens: BTreeMap::new(),
            next: 0,
            commands: Vec::new(),
        };
        base.at(now_ns + base.lease_ns / 16 + 1, Timer::Renew);
        base.at(now_ns + base.lease_ns / 8 + 1, Timer::Watch);
        Member { base, owned: Owned::default(), hosted: Hosted::default() }
    }

    /// Its incarnation.
    pub fn epoch(&self) -> u32 {
        self.base.epoch
    }

    /// The peers, in the order in which the placer numbers them.
    pub fn peers(&self) -> &[u32] {
        &self.base.nodes
    }

    /// Frames promised to others.
    pub fn promised(&self) -> u32 {
        self.base.placer.promised()
    }

    /// The nodes at which frames are reserved, once for each.
    pub fn reserved(&self) -> impl Iterator<Item = u32> + '_ {
        self.base.placer.reserved().map(|peer| self.base.nodes[usize::from(peer.0)])
    }

    /// The placer.
    pub fn placer(&self) -> &Placer {
        &self.base.placer
    }

    /// Where this node believes the pieces of a page to be: node and attempt of each. None for a page
    /// that is not out, or is on disk.
    pub fn places(&self, page: u64) -> Vec<(u32, Number)> {
        self.owned.places(page)
    }

    /// Own pages that are out or leaving.
    pub fn pages_out(&self) -> impl Iterator<Item = u64> + '_ {
        self.owned.pages()
    }

    /// What is kept for others: the piece, and the attempt by which it was placed.
    pub fn guests(&self) -> impl Iterator<Item = (Name, Number)> + '_ {
        self.hosted.guests()
    }

    /// The piece that is kept of a page.
    pub fn guest(&self, owner: u32, page: u64) -> Option<(Name, Number)> {
        self.hosted.guest(owner, page)
    }

    /// Pages on their way through, pages that wait for the placer, and pages that are being placed.
    pub fn under_way(&self) -> usize {
        self.base.tokens.len() + self.owned.going()
    }

    /// The same in words, for messages about what is not at rest.
    pub fn busy(&self) -> String {
        format!("{:?} {:?}", self.base.tokens, self.owned.busy())
    }

    /// When [`Event::Tick`] next has something to do, ns.
    pub fn deadline_ns(&self) -> u64 {
        let timer = self.base.timers.first().map(|&(time_ns, _)| time_ns);
        let all = [timer, self.base.placer.deadline_ns()];
        all.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Processes an event and appends the commands to `out`.
    pub fn handle(&mut self, now_ns: u64, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Free(free) => self.ask_placer(now_ns, placer::Event::Free(free), out),
            Event::PageOut(page) => self.page_out(now_ns, page, out),
            Event::PageIn(page) => self.page_in(now_ns, page, out),
            Event::Drop(page) => self.forget_page(page, out),
            Event::DiskWritten(page, version) => self.disk_written(page, version, out),
            Event::Displace { owner, page } => self.displace(now_ns, owner, page, out),
            Event::Received { from, epoch, note } => self.received(now_ns, from, epoch, note, out),
            Event::Suspected(node) => {
                if let Some(peer) = self.base.peer(node) {
                    self.ask_placer(now_ns, placer::Event::Suspected(peer), out);
                }
                self.hurry(node, out);
            }
            Event::Joined { node, kind } => self.joined(node, kind),
            Event::Left(node) => {
                if let Some(peer) = self.base.peer(node) {
                    self.ask_placer(now_ns, placer::Event::Left(peer), out);
                }
                self.places_lost(now_ns, node, u32::MAX, out);
            }
            Event::Drain(on) => self.drain(now_ns, on, out),
            Event::Tick => self.tick(now_ns, out),
        }
    }

    fn joined(&mut self, node: u32, kind: PeerKind) {
        let known = self.base.peer(node);
        let peer = self.base.placer.join(known, kind);
        if known.is_none() {
            self.base.nodes.push(node);
            self.base.peers.insert(node, peer);
        }
    }

    fn tick(&mut self, now_ns: u64, out: &mut Vec<Command>) {
        while let Some(&(time_ns, timer)) = self.base.timers.first() {
            if time_ns > now_ns {
                break;
            }
            self.base.timers.pop_first();
            match timer {
                Timer::Going(page, piece, number) => {
                    self.going_due(now_ns, page, piece, number, out)
                }
                Timer::Wanted(page, id) => self.wanted_due(now_ns, page, id, out),
                Timer::Repair => self.repair(now_ns, out),
                Timer::Displace(owner, page) => self.displace_due(now_ns, owner, page, out),
                Timer::Renew => self.renew(now_ns, out),
                Timer::Watch => self.watch(now_ns, out),
            }
        }
        if self.base.placer.deadline_ns().is_some_and(|time_ns| time_ns <= now_ns) {
            self.ask_placer(now_ns, placer::Event::Tick, out);
        }
    }

    /// Passes an event to the placer and executes its commands.
    fn ask_placer(&mut self, now_ns: u64, event: placer::Event, out: &mut Vec<Command>) {
        let mut commands = std::mem::take(&mut self.base.commands);
        self.base.placer.handle(now_ns, event, &mut commands);
        for command in commands.drain(..) {
            self.act(now_ns, command, out);
        }
        if commands.capacity() > self.base.commands.capacity() {
            self.base.commands = commands;
        }
    }

    fn act(&mut self, now_ns: u64, command: placer::Command, out: &mut Vec<Command>) {
        use placer::Command as From;
        let node = |peer: Peer, base: &Base| base.nodes[usize::from(peer.0)];
        match command {
            From::Tell { sequence, value } => {
                out.push(Command::SendToPeers(Note::Told { sequence, value }))
            }
            From::AskBids { id } => out.push(Command::SendToPeers(Note::BidAsked { id })),
            From::AnswerBid { node, id, free } => send(node, Note::Bid { id, free }, out),
            From::AskReservation { peer, id } => {
                send(node(peer, &self.base), Note::ReservationAsked { id }, out)
            }
            From::AnswerReservation { node, id, granted } => {
                send(node, Note::ReservationAnswered { id, granted }, out)
            }
            From::ReleaseReservation { peer, id } => {
                send(node(peer, &self.base), Note::ReservationReleased { id }, out)
            }
            From::Send { page, to, reserved } => {
                let to = node(to, &self.base);
                match self.base.tokens.remove(&page.page) {
                    Some(Token::Own(own, piece)) => {
                        self.go(now_ns, own, piece, to, page.attempts, reserved, out)
                    }
                    Some(Token::Passing(store)) => {
                        let reserved = reserved.map(|id| (self.base.me, id));
                        let (attempts, to_epoch) = (page.attempts, self.base.epoch_of(to));
                        let note = Note::Store(Store { attempts, to_epoch, reserved, ..store });
                        out.push(Command::Send { to, note, content: Content::Carried(page.page) });
                        out.push(Command::DropCarried(page.page));
                    }
                    // The page was fetched or dropped meanwhile.
                    None => {
                        if let Some(id) = reserved {
                            send(to, Note::ReservationReleased { id }, out);
                        }
                    }
                }
            }
            From::SendToDisk(Leaving { page, .. }) => match self.base.tokens.remove(&page) {
                Some(Token::Own(own, piece)) => self.no_room(now_ns, own, piece, out),
                Some(Token::Passing(store)) => {
                    out.push(Command::DropCarried(page));
                    self.refuse(now_ns, &store, true, out);
                }
                None => (),
            },
        }
    }

    fn received(&mut self, now_ns: u64, from: u32, epoch: u32, note: Note, out: &mut Vec<Command>) {
        let known = self.base.epochs.entry(from).or_insert(epoch);
        if epoch < *known {
            return;
        }
        let restarted = epoch > std::mem::replace(known, epoch);
        if restarted {
            self.ask_placer(now_ns, placer::Event::Restarted { node: from }, out);
            self.places_lost(now_ns, from, epoch, out);
            self.forget_guests(from, epoch, out);
        }
        self.hosted.heard(from, now_ns);
        let peer = self.base.peer(from);
        if let Some(peer) = peer {
            self.ask_placer(now_ns, placer::Event::Heard { peer, epoch }, out);
        }
        self.read(now_ns, from, epoch, peer, note, out);
    }

    fn read(
        &mut self,
        now_ns: u64,
        from: u32,
        epoch: u32,
        peer: Option<Peer>,
        note: Note,
        out: &mut Vec<Command>,
    ) {
        use placer::Event as To;
        let node = from;
        match note {
            Note::Told { sequence, value } => {
                let stamp = Stamp { epoch, sequence };
                if let Some(peer) = peer {
                    self.ask_placer(now_ns, To::Told { peer, stamp, value }, out);
                }
            }
            Note::BidAsked { id } => self.ask_placer(now_ns, To::BidAsked { node, id }, out),
            Note::Bid { id, free } => {
                if let Some(peer) = peer {
                    self.ask_placer(now_ns, To::Bid { peer, id, free }, out);
                }
            }
            Note::ReservationAsked { id } => {
                self.ask_placer(now_ns, To::ReservationAsked { node, id }, out)
            }
            Note::ReservationAnswered { id, granted } => {
                if let Some(peer) = peer {
                    self.ask_placer(now_ns, To::ReservationAnswered { peer, id, granted }, out);
                }
            }
            Note::ReservationReleased { id } => {
                self.ask_placer(now_ns, To::ReservationReleased { node, id }, out)
            }
            Note::Store(store) => self.store(now_ns, from, store, out),
            Note::Stored(name, number) => self.stored(now_ns, from, name, number, out),
            Note::Refused { name, number, to_disk } => {
                self.refused(now_ns, from, name, number, to_disk, out)
            }
            Note::Fetch { name, number, id } => self.fetched(now_ns, from, name, number, id, out),
            Note::Page { name, number, id } => {
                self.piece_arrived(now_ns, from, name, number, id, out)
            }
            Note::NotHere(name, number) => self.not_here(now_ns, from, name, number, out),
            Note::Probe(name, number) => self.probed(from, name, number, out),
            Note::Discard(name, number) => self.discard(now_ns, name, number, out),
            Note::Displace { name, number, leaves } => {
                self.displace_asked(now_ns, from, name, number, leaves, out)
            }
            Note::SendOn { name, number, to, next, attempts, to_epoch, reserved } => {
                let reserved = reserved.map(|id| (name.owner, id));
                let store = Store { name, number: next, version: 0, attempts, to_epoch, reserved };
                self.send_on(now_ns, number, to, store, out)
            }
            Note::Spill(name, number) => self.spill(name, number, out),
            Note::Renew(epoch, pages) => self.renew_asked(now_ns, from, epoch, pages, out),
            Note::Renewed { epoch, keep, drop } => {
                self.renewed(now_ns, from, epoch, &keep, &drop, out)
            }
        }
    }

    /// What happens to a piece that arrives from another node.
    fn arrival(&mut self, from: u32, store: &Store) -> Arrival {
        let (node, id) = store.reserved.map_or((from, None), |(node, id)| (node, Some(id)));
        self.base.placer.arrival(node, store.attempts, id)
    }
}

#[cfg(test)]
mod tests;
