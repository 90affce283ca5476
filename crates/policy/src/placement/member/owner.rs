//! Where the pages of a member are. It alone decides, so that there is nothing to agree on.

use std::collections::{BTreeMap, BTreeSet};

use super::{Command, Content, Member, Name, Note, Number, Store, TRIES, Timer, Token, send};
use crate::placement::placer::{Event as ToPlacer, Leaving};
use crate::placement::{Avoid, Peer};

/// A piece that a host keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub(super) node: u32,
    pub(super) epoch: u32,
    pub(super) number: Number,
}

/// A piece that is being placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Going {
    pub(super) to: u32,
    pub(super) number: Number,
    /// The host that sends it; this node, if none.
    pub(super) from: Option<At>,
    pub(super) attempts: u32,
    pub(super) reserved: Option<u64>,
    pub(super) tries: u32,
    pub(super) due_ns: u64,
}

/// What is known of one piece.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) at: Option<At>,
    pub(super) going: Option<Going>,
    /// The placer chooses a node for it.
    pub(super) token: Option<u64>,
    /// Its host leaves: as soon as the content is here, it goes elsewhere.
    pub(super) leaves: bool,
}

/// A page that was requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) id: u64,
    pub(super) since_ns: u64,
    pub(super) due_ns: u64,
    pub(super) tries: u32,
    /// The pieces that have arrived.
    pub(super) got: u32,
    /// Whether it is to be made whole, and not used.
    pub(super) repairs: bool,
}

/// A page that is out, or leaving.
#[derive(Clone, Debug)]
pub struct Out {
    pub(super) version: Number,
    /// Whether its content is here.
    pub(super) is_here: bool,
    pub(super) writes: bool,
    pub(super) is_on_disk: bool,
    pub(super) places: Box<[Place]>,
    pub(super) wanted: Option<Wanted>,
}

impl Out {
    pub(super) fn kept(&self) -> usize {
        self.places.iter().filter(|place| place.at.is_some()).count()
    }

    /// Pieces that a host keeps, or that have arrived.
    pub(super) fn readable(&self) -> usize {
        let got = self.wanted.map_or(0, |wanted| wanted.got);
        let pieces = (0..).zip(&self.places);
        pieces.filter(|(piece, place)| place.at.is_some() || got & 1 << piece != 0).count()
    }

    pub(super) fn is_moving(&self) -> bool {
        self.places.iter().any(|place| place.going.is_some() || place.token.is_some())
    }
}

/// All pages that are out or leaving.
#[derive(Debug, Default)]
pub struct Owned {
    pub(super) pages: BTreeMap<u64, Out>,
    /// Pages that lack pieces, by the number of those that are left.
    pub(super) degraded: BTreeSet<(usize, u64)>,
    /// Whether a timer is set for them.
    pub(super) repairs: bool,
}

impl Owned {
    pub fn places(&self, page: u64) -> Vec<(u32, Number)> {
        let places = self.pages.get(&page).into_iter().flat_map(|out| out.places.iter());
        places.filter_map(|place| place.at.map(|at| (at.node, at.number))).collect()
    }

    pub fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.keys().copied()
    }

    /// Pages that are being placed, written, or fetched.
    pub fn going(&self) -> usize {
        self.busy().len()
    }

    pub fn busy(&self) -> Vec<(u64, &Out)> {
        let busy = |out: &Out| out.is_moving() || out.is_here || out.wanted.is_some();
        self.pages.iter().filter(|(_, out)| busy(out)).map(|(&page, out)| (page, out)).collect()
    }
}

impl Member {
    pub(super) fn name(&self, page: u64, piece: u8) -> Name {
        Name { owner: self.base.me, epoch: self.base.epoch, page, piece }
    }

    /// Whether a piece belongs to this node in its present incarnation.
    pub(super) fn is_own(&self, name: Name) -> bool {
        (name.owner, name.epoch) == (self.base.me, self.base.epoch)
    }

    pub(super) fn place(&mut self, page: u64, piece: u8) -> Option<&mut Place> {
        self.owned.pages.get_mut(&page)?.places.get_mut(usize::from(piece))
    }

    /// A page has to leave its frame.
    pub(super) fn page_out(&mut self, now_ns: u64, page: u64, out: &mut Vec<Command>) {
        let version = self.base.number();
        let places = vec![Place::default(); usize::from(self.base.pieces.1)].into();
        let leaving =
            Out { version, is_here: true, writes: false, is_on_disk: false, places, wanted: None };
        let before = self.owned.pages.insert(page, leaving);
        debug_assert!(before.is_none(), "page {page} is out already");
        self.choose_next(now_ns, page, out);
    }

    /// Lets the placer choose a node for the next piece that has none. One after the other: each
    /// avoids the nodes of the others.
    fn choose_next(&mut self, now_ns: u64, page: u64, out: &mut Vec<Command>) {
        let Some(entry) = self.owned.pages.get(&page) else { return };
        if !entry.is_here || entry.writes || entry.places.iter().any(|place| place.token.is_some())
        {
            return;
        }
        let next =
            entry.places.iter().position(|place| place.at.is_none() && place.going.is_none());
        if let Some(piece) = next {
            self.choose(now_ns, page, piece as u8, 0, None, out);
        }
    }

    /// Lets the placer choose a node for a piece that was sent `attempts` times.
    fn choose(
        &mut self,
        now_ns: u64,
        page: u64,
        piece: u8,
        attempts: u32,
        refused: Option<Peer>,
        out: &mut Vec<Command>,
    ) {
        let Some(entry) = self.owned.pages.get(&page).filter(|entry| !entry.writes) else { return };
        let places = entry
            .places
            .iter()
            .flat_map(|place| [place.at.map(|at| at.node), place.going.map(|going| going.to)]);
        let peers: Vec<Option<Peer>> =
            places.flatten().map(|node| self.base.peer(node)).chain([refused]).collect();
        let token = self.base.token(Token::Own(page, piece));
        if let Some(place) = self.place(page, piece) {
            place.token = Some(token);
        }
        let leaving = Leaving { page: token, attempts, avoid: Avoid::new(peers) };
        let event = match refused {
            Some(peer) => ToPlacer::Refused { peer, page: leaving },
            None => ToPlacer::PageLeaves(leaving),
        };
        self.ask_placer(now_ns, event, out);
    }

    /// The placer has chosen a node for a piece.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn go(
        &mut self,
        now_ns: u64,
        page: u64,
        piece: u8,
        to: u32,
        attempts: u32,
        reserved: Option<u64>,
        out: &mut Vec<Command>,
    ) {
        let (number, due_ns) = (self.base.number(), self.base.due_ns(now_ns, 0));
        let Some(place) = self.place(page, piece) else { return };
        let from = place.at;
        place.token = None;
        place.going = Some(Going { to, number, from, attempts, reserved, tries: 0, due_ns });
        self.base.at(due_ns, Timer::Going(page, piece, number));
        self.send_piece(page, piece, out);
        self.choose_next(now_ns, page, out);
    }

    fn send_piece(&self, page: u64, piece: u8, out: &mut Vec<Command>) {
        let Some(entry) = self.owned.pages.get(&page) else { return };
        let Some(going) = entry.places[usize::from(piece)].going else { return };
        let Going { to, number, attempts, reserved, .. } = going;
        let (name, to_epoch) = (self.name(page, piece), self.base.epoch_of(to));
        match going.from {
            Some(at) if !entry.is_here => {
                let next = number;
                let number = at.number;
                let note = Note::SendOn { name, number, to, next, attempts, to_epoch, reserved };
                send(at.node, note, out);
            }
            _ => {
                let reserved = reserved.map(|id| (self.base.me, id));
                let version = entry.version;
                let store = Store { name, number, version, attempts, to_epoch, reserved };
                let (note, content) = (Note::Store(store), Content::Own(page));
                out.push(Command::Send { to, note, content });
            }
        }
    }

    pub(super) fn going_due(
        &mut self,
        now_ns: u64,
        page: u64,
        piece: u8,
        number: Number,
        out: &mut Vec<Command>,
    ) {
        let (answer_ns, name) = (self.base.answer_ns, self.name(page, piece));
        let Some(place) = self.place(page, piece) else { return };
        let Some(going) = place.going.as_mut() else { return };
        if going.number != number || going.due_ns > now_ns {
            return;
        }
        if going.tries + 1 < TRIES && going.from.is_none_or(|from| place.at == Some(from)) {
            going.tries += 1;
            going.due_ns = now_ns + (answer_ns << going.tries);
            let due_ns = going.due_ns;
            self.base.at(due_ns, Timer::Going(page, piece, number));
            self.send_piece(page, piece, out);
            return;
        }
        // No word of this attempt is believed from now on.
        let Going { to, attempts, from, .. } = *going;
        place.going = None;
        send(to, Note::Discard(name, number), out);
        if let Some(peer) = self.base.peer(to) {
            self.ask_placer(now_ns, ToPlacer::Suspected(peer), out);
        }
        match from {
            None => self.choose(now_ns, page, piece, attempts, None, out),
            // The host asks again if it still needs the frame.
            Some(_) => self.check(now_ns, page, out),
        }
    }

    /// A host keeps a piece.
    pub(super) fn stored(
        &mut self,
        now_ns: u64,
        from: u32,
        name: Name,
        number: Number,
        out: &mut Vec<Command>,
    ) {
        let epoch = self.base.epoch_of(from);
        let is_ours = name.owner == self.base.me && name.epoch == self.base.epoch;
        let place = if is_ours { self.place(name.page, name.piece) } else { None };
        let Some(place) = place else {
            send(from, Note::Discard(name, number), out);
            return;
        };
        if place.at.is_some_and(|at| at.node == from && at.number == number) {
            return;
        }
        if place.going.is_none_or(|going| going.number != number) {
            send(from, Note::Discard(name, number), out);
            return;
        }
        place.going = None;
        let before = place.at.replace(At { node: from, epoch, number });
        if let Some(before) = before.filter(|before| before.node != from) {
            send(before.node, Note::Discard(name, before.number), out);
        }
        self.check(now_ns, name.page, out);
    }

    /// Looks whether a page has all its pieces, or too few.
    pub(super) fn check(&mut self, now_ns: u64, page: u64, out: &mut Vec<Command>) {
        let (needed, all) = self.base.pieces;
        let Some(entry) = self.owned.pages.get_mut(&page) else { return };
        if entry.is_on_disk || entry.writes {
            return;
        }
        let (kept, readable) = (entry.kept(), entry.readable());
        if entry.is_here {
            if kept == usize::from(all) {
                entry.is_here = false;
                out.push(Command::Gone(page));
            } else {
                self.choose_next(now_ns, page, out);
            }
        } else if readable < usize::from(needed) {
            // A piece that is moving may have arrived: its host will say so.
            let is_wanted = entry.wanted.is_some_and(|wanted| !wanted.repairs);
            if entry.is_moving() {
                return;
            }
            if is_wanted {
                self.lose(page, out);
            } else {
                entry.wanted = None;
            }
        } else if kept < usize::from(all) {
            self.owned.degraded.insert((kept, page));
            if !std::mem::replace(&mut self.owned.repairs, true) {
                let repair_ns = self.base.due_ns(now_ns, 0);
                self.base.at(repair_ns, Timer::Repair);
            }
        }
    }

    pub(super) fn refused(
        &mut self,
        now_ns: u64,
        from: u32,
        name: Name,
        number: Number,
        to_disk: bool,
        out: &mut Vec<Command>,
    ) {
        if !self.is_own(name) {
            return;
        }
        let Some(place) = self.place(name.page, name.piece) else { return };
        let Some(going) = place.going.filter(|going| going.number == number) else { return };
        place.going = None;
        let has_source = place.at.is_some();
        let is_here = self.owned.pages.get(&name.page).is_some_and(|entry| entry.is_here);
        if !is_here && !has_source {
            // The host that sent it is lost.
            self.check(now_ns, name.page, out);
        } else if to_disk {
            self.no_room(now_ns, name.page, name.piece, out);
        } else {
            let peer = self.base.peer(from).or(self.base.peer(going.to));
            self.choose(now_ns, name.page, name.piece, going.attempts, peer, out);
        }
    }

    /// No node has room for a piece.
    pub(super) fn no_room(&mut self, now_ns: u64, page: u64, piece: u8, out: &mut Vec<Command>) {
        let name = self.name(page, piece);
        let Some(entry) = self.owned.pages.get_mut(&page) else { return };
        entry.places[usize::from(piece)].token = None;
        if entry.is_here {
            if !entry.writes {
                entry.writes = true;
                let version = entry.version;
                out.push(Command::WriteDisk(page, version));
            }
            return;
        }
        if let Some(at) = entry.places[usize::from(piece)].at {
            send(at.node, Note::Spill(name, at.number), out);
        }
        self.check(now_ns, page, out);
    }

    pub(super) fn disk_written(&mut self, page: u64, version: Number, out: &mut Vec<Command>) {
        let Some(entry) = self.owned.pages.get_mut(&page) else { return };
        if entry.version == version && entry.writes {
            (entry.writes, entry.is_on_disk, entry.is_here) = (false, true, false);
            out.push(Command::Gone(page));
            self.clear(page, out);
        }
    }

    /// Ends all attempts to place a page, and discards its pieces.
    fn clear(&mut self, page: u64, out: &mut Vec<Command>) {
        let Some(entry) = self.owned.pages.get_mut(&page) else { return };
        let places = std::mem::take(&mut entry.places);
        entry.places = vec![Place::default(); places.len()].into();
        for (piece, place) in (0..).zip(&places) {
            let name = self.name(page, piece);
            if let Some(going) = place.going {
                send(going.to, Note::Discard(name, going.number), out);
            }
            if let Some(at) = place.at {
                send(at.node, Note::Discard(name, at.number), out);
            }
            if let Some(token) = place.token {
                self.base.tokens.remove(&token);
                let mut commands = Vec::new();
                self.base.placer.handle(0, ToPlacer::Cancelled(token), &mut commands);
                commands.into_iter().for_each(|command| self.act(0, command, out));
            }
        }
    }

    /// A page is not out any more.
    pub(super) fn forget_page(&mut self, page: u64, out: &mut Vec<Command>) {
        if let Some(entry) = self.owned.pages.get(&page) {
            self.owned.degraded.remove(&(entry.kept(), page));
        }
        self.clear(page, out);
        self.owned.pages.remove(&page);
    }

    pub(super) fn place_lost(&mut self, now_ns: u64, page: u64, piece: u8, out: &mut Vec<Command>) {
        let lease_ns = self.base.lease_ns;
        let Some(entry) = self.owned.pages.get_mut(&page) else { return };
        self.owned.degraded.remove(&(entry.kept(), page));
        let is_here = entry.is_here;
        let place = &mut entry.places[usize::from(piece)];
        place.at = None;
        if let Some(going) = place.going.as_mut().filter(|going| going.from.is_some() && !is_here) {
            // It may have been sent on before: then its new host asks for a renewal in time.
            going.due_ns = now_ns + lease_ns;
            let (due_ns, number) = (going.due_ns, going.number);
            self.base.at(due_ns, Timer::Going(page, piece, number));
        } else if let Some(token) = place.token.take().filter(|_| !is_here) {
            // There is nothing left to send.
            self.base.tokens.remove(&token);
        }
        self.check(now_ns, page, out);
    }

    /// A host needs the frame of a piece.
    pub(super) fn displace_asked(
        &mut self,
        now_ns: u64,
        from: u32,
        name: Name,
        number: Number,
        leaves: bool,
        out: &mut Vec<Command>,
    ) {
        let is_ours = name.owner == self.base.me && name.epoch == self.base.epoch;
        let place = if is_ours { self.place(name.page, name.piece).copied() } else { None };
        let Some(mut place) = place else {
            send(from, Note::Discard(name, number), out);
            return;
        };
        if place.going.is_some_and(|going| going.number == number) {
            self.stored(now_ns, from, name, number, out);
            place = self.place(name.page, name.piece).copied().unwrap_or_default();
        }
        if place.at.is_none_or(|at| at.node != from || at.number != number) {
            send(from, Note::Discard(name, number), out);
            return;
        }
        let Some(entry) = self.owned.pages.get(&name.page) else { return };
        if entry.wanted.is_some() || entry.is_here || place.token.is_some() {
            return;
        }
        if place.going.is_some() {
            self.send_piece(name.page, name.piece, out);
        } else if leaves {
            // It comes home first, from where it can go to disk if there is no other room.
            if let Some(place) = self.place(name.page, name.piece) {
                place.leaves = true;
            }
            self.want(now_ns, name.page, true, out);
        } else {
            self.choose(now_ns, name.page, name.piece, 0, None, out);
        }
    }
}
