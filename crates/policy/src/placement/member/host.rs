//! What a member keeps for others.

use std::collections::BTreeMap;

use super::{Command, Content, Member, Name, Note, Number, Store, Timer, Token, send};
use crate::placement::placer::{Event as ToPlacer, Leaving};
use crate::placement::{Arrival, Avoid};

/// Pieces that may be on their way through at the same time: more are refused.
const PASSING_MAX: usize = 16;
/// Guests that are displaced at the same time while the node is emptied.
const DRAINED_AT_ONCE: usize = 8;
/// Pieces in one message that asks for their renewal.
const RENEWED_AT_ONCE: usize = 64;

/// A piece that is kept for another node.
#[derive(Clone, Copy, Debug)]
struct Guest {
    epoch: u32,
    piece: u8,
    number: Number,
    version: Number,
    /// When its owner last said that it is needed, ns.
    confirmed_ns: u64,
    /// How often its owner was asked to take it away, and when it is asked again, ns.
    displaced: Option<(u32, u64)>,
    /// Whether it is on disk, or being written there.
    spills: bool,
}

impl Guest {
    fn name(&self, owner: u32, page: u64) -> Name {
        Name { owner, epoch: self.epoch, page, piece: self.piece }
    }
}

/// All guests.
#[derive(Debug, Default)]
pub struct Hosted {
    guests: BTreeMap<(u32, u64), Guest>,
    /// When each owner was last heard, ns.
    heard_ns: BTreeMap<u32, u64>,
    is_draining: bool,
}

impl Hosted {
    pub fn guests(&self) -> impl Iterator<Item = (Name, Number)> + '_ {
        self.guests.iter().map(|(&(owner, page), guest)| (guest.name(owner, page), guest.number))
    }

    pub fn guest(&self, owner: u32, page: u64) -> Option<(Name, Number)> {
        let guest = self.guests.get(&(owner, page))?;
        Some((guest.name(owner, page), guest.number))
    }

    pub fn heard_ns(&self, node: u32) -> u64 {
        self.heard_ns.get(&node).copied().unwrap_or(0)
    }

    pub fn heard(&mut self, node: u32, now_ns: u64) {
        self.heard_ns.insert(node, now_ns);
    }
}

impl Member {
    /// A piece arrives to be kept.
    pub(super) fn store(&mut self, now_ns: u64, from: u32, store: Store, out: &mut Vec<Command>) {
        let Store { name, number, version, .. } = store;
        let key = (name.owner, name.page);
        if store.to_epoch != self.base.epoch || self.base.epoch_of(name.owner) > name.epoch {
            self.unreserve(now_ns, &store, out);
            return;
        }
        if let Some(guest) = self.hosted.guests.get(&key).copied() {
            let is_same = guest.epoch == name.epoch && guest.version == version;
            if guest.epoch > name.epoch || guest.number > number {
                self.unreserve(now_ns, &store, out);
            } else if guest.number == number && is_same {
                send(name.owner, Note::Stored(name, number), out);
                self.unreserve(now_ns, &store, out);
            } else if is_same {
                // Pieces of a page are at different nodes, or they are lost together. And an attempt
                // that is a late copy must not take the place of one that the owner relies on.
                self.refuse(now_ns, &store, false, out);
            } else if guest.spills {
                self.free(key, out);
                self.arrive(now_ns, from, store, out);
            } else {
                self.keep(now_ns, store, out);
                self.unreserve(now_ns, &store, out);
            }
            return;
        }
        self.arrive(now_ns, from, store, out);
    }

    fn arrive(&mut self, now_ns: u64, from: u32, store: Store, out: &mut Vec<Command>) {
        if self.hosted.is_draining || store.name.owner == self.base.me {
            self.refuse(now_ns, &store, false, out);
            return;
        }
        match self.arrival(from, &store) {
            Arrival::Keep => self.keep(now_ns, store, out),
            Arrival::SendOn if self.base.tokens.len() < PASSING_MAX => {
                self.pass(now_ns, from, store, out)
            }
            Arrival::Replace | Arrival::SendBack | Arrival::SendOn => {
                self.refuse(now_ns, &store, false, out)
            }
            Arrival::Disk => self.refuse(now_ns, &store, true, out),
        }
    }

    fn keep(&mut self, now_ns: u64, store: Store, out: &mut Vec<Command>) {
        let Store { name, number, version, .. } = store;
        let guest = Guest {
            epoch: name.epoch,
            piece: name.piece,
            number,
            version,
            confirmed_ns: now_ns,
            displaced: None,
            spills: false,
        };
        self.hosted.guests.insert((name.owner, name.page), guest);
        out.push(Command::Keep { owner: name.owner, page: name.page });
        send(name.owner, Note::Stored(name, number), out);
    }

    /// The frame that was promised for a piece is not used by it.
    fn unreserve(&mut self, now_ns: u64, store: &Store, out: &mut Vec<Command>) {
        if let Some((node, id)) = store.reserved {
            self.ask_placer(now_ns, ToPlacer::ReservationReleased { node, id }, out);
        }
    }

    pub(super) fn refuse(
        &mut self,
        now_ns: u64,
        store: &Store,
        to_disk: bool,
        out: &mut Vec<Command>,
    ) {
        self.unreserve(now_ns, store, out);
        let Store { name, number, .. } = *store;
        if name.owner == self.base.me {
            self.refused(now_ns, self.base.me, name, number, to_disk, out);
        } else {
            send(name.owner, Note::Refused { name, number, to_disk }, out);
        }
    }

    /// Sends on a piece that cannot stay here.
    fn pass(&mut self, now_ns: u64, from: u32, store: Store, out: &mut Vec<Command>) {
        self.unreserve(now_ns, &store, out);
        let page = self.base.token(Token::Passing(store));
        out.push(Command::Carry(page));
        let avoid = Avoid::new([self.base.peer(store.name.owner), self.base.peer(from)]);
        let leaving = Leaving { page, attempts: store.attempts, avoid };
        self.ask_placer(now_ns, ToPlacer::PageLeaves(leaving), out);
    }

    pub(super) fn fetched(
        &mut self,
        now_ns: u64,
        from: u32,
        name: Name,
        number: Number,
        id: u64,
        out: &mut Vec<Command>,
    ) {
        let guest = self.hosted.guests.get_mut(&(name.owner, name.page));
        let guest = guest.filter(|guest| {
            guest.epoch == name.epoch && guest.piece == name.piece && guest.number >= number
        });
        match guest {
            Some(guest) => {
                guest.confirmed_ns = now_ns;
                let note = Note::Page { name, number: guest.number, id };
                let content = Content::Guest(name.owner, name.page);
                out.push(Command::Send { to: from, note, content });
            }
            None => send(from, Note::NotHere(name, number), out),
        }
    }

    /// The owner has not heard of this node for a while.
    pub(super) fn probed(&self, from: u32, name: Name, number: Number, out: &mut Vec<Command>) {
        let is_here = self.hosted.guest(name.owner, name.page) == Some((name, number));
        let note = if is_here { Note::Stored(name, number) } else { Note::NotHere(name, number) };
        send(from, note, out);
    }

    /// A piece is not needed if it was placed by attempt `number` or an earlier one.
    pub(super) fn discard(
        &mut self,
        now_ns: u64,
        name: Name,
        number: Number,
        out: &mut Vec<Command>,
    ) {
        let key = (name.owner, name.page);
        let is_meant = self.hosted.guests.get(&key).is_some_and(|guest| {
            guest.epoch == name.epoch && guest.piece == name.piece && guest.number <= number
        });
        if is_meant {
            self.free(key, out);
            self.drain_more(now_ns, out);
        }
    }

    fn free(&mut self, key: (u32, u64), out: &mut Vec<Command>) {
        self.hosted.guests.remove(&key);
        out.push(Command::Free { owner: key.0, page: key.1 });
    }

    /// Drops the guests of earlier incarnations of a node.
    pub(super) fn forget_guests(&mut self, node: u32, epoch: u32, out: &mut Vec<Command>) {
        let of_node = self.hosted.guests.range((node, 0)..=(node, u64::MAX));
        let old: Vec<(u32, u64)> =
            of_node.filter(|(_, guest)| guest.epoch < epoch).map(|(&key, _)| key).collect();
        old.into_iter().for_each(|key| self.free(key, out));
    }

    /// The frame of a guest is needed.
    pub(super) fn displace(&mut self, now_ns: u64, owner: u32, page: u64, out: &mut Vec<Command>) {
        let Some(guest) = self.hosted.guests.get_mut(&(owner, page)) else { return };
        // One that is on disk has to leave as well if the node does.
        let leaves = self.hosted.is_draining;
        if guest.displaced.is_some() || guest.spills && !leaves {
            return;
        }
        let due_ns = self.base.due_ns(now_ns, 0);
        guest.displaced = Some((0, due_ns));
        let (name, number) = (guest.name(owner, page), guest.number);
        self.base.at(due_ns, Timer::Displace(owner, page));
        send(owner, Note::Displace { name, number, leaves }, out);
    }

    pub(super) fn displace_due(
        &mut self,
        now_ns: u64,
        owner: u32,
        page: u64,
        out: &mut Vec<Command>,
    ) {
        let leaves = self.hosted.is_draining;
        let Some(guest) = self.hosted.guests.get_mut(&(owner, page)) else { return };
        let Some((tries, due_ns)) = guest.displaced else { return };
        if due_ns > now_ns || guest.spills && !leaves {
            return;
        }
        let (name, number) = (guest.name(owner, page), guest.number);
        if tries + 1 >= super::TRIES && !leaves {
            self.spill(name, number, out);
            return;
        }
        let due_ns = self.base.due_ns(now_ns, tries + 1);
        guest.displaced = Some((tries + 1, due_ns));
        self.base.at(due_ns, Timer::Displace(owner, page));
        send(owner, Note::Displace { name, number, leaves }, out);
    }

    /// The owner says where a guest is to go.
    pub(super) fn send_on(
        &mut self,
        now_ns: u64,
        number: Number,
        to: u32,
        store: Store,
        out: &mut Vec<Command>,
    ) {
        let name = store.name;
        let key = (name.owner, name.page);
        match self.hosted.guests.get_mut(&key) {
            Some(guest) if guest.epoch == name.epoch && guest.number == number => {
                guest.confirmed_ns = now_ns;
                // While the owner works on it, the disk can wait.
                if let Some((tries, due_ns)) = guest.displaced {
                    let later_ns = self.base.due_ns(now_ns, tries).max(due_ns);
                    guest.displaced = Some((tries, later_ns));
                    self.base.at(later_ns, Timer::Displace(key.0, key.1));
                }
                let note = Note::Store(Store { version: guest.version, ..store });
                out.push(Command::Send { to, note, content: Content::Guest(key.0, key.1) });
            }
            Some(guest) if guest.epoch == name.epoch && guest.number > number => (),
            _ => send(name.owner, Note::NotHere(name, number), out),
        }
    }

    pub(super) fn spill(&mut self, name: Name, number: Number, out: &mut Vec<Command>) {
        let (owner, page) = (name.owner, name.page);
        let Some(guest) = self.hosted.guests.get_mut(&(owner, page)) else { return };
        if guest.epoch == name.epoch && guest.number == number && !guest.spills {
            guest.spills = true;
            out.push(Command::Spill { owner, page, number });
        }
    }

    /// Asks owners whether guests are still needed, and drops those of owners that were not heard for
    /// a whole lease.
    pub(super) fn renew(&mut self, now_ns: u64, out: &mut Vec<Command>) {
        let lease_ns = self.base.lease_ns;
        self.base.at(now_ns + lease_ns / 16 + 1, Timer::Renew);
        let mut by_owner = BTreeMap::<(u32, u32), Vec<(u64, u8, Number)>>::new();
        let mut dead = Vec::new();
        for (&(owner, page), guest) in &self.hosted.guests {
            let heard_ns = self.hosted.heard_ns.get(&owner).copied().unwrap_or(0);
            if heard_ns.max(guest.confirmed_ns) + lease_ns <= now_ns {
                dead.push((owner, page));
            } else if guest.confirmed_ns + lease_ns / 8 <= now_ns {
                let asked = by_owner.entry((owner, guest.epoch)).or_default();
                asked.push((page, guest.piece, guest.number));
            }
        }
        dead.into_iter().for_each(|key| self.free(key, out));
        for ((owner, epoch), pages) in by_owner {
            for pages in pages.chunks(RENEWED_AT_ONCE) {
                send(owner, Note::Renew(epoch, pages.to_vec()), out);
            }
        }
        self.drain_more(now_ns, out);
    }

    pub(super) fn renewed(
        &mut self,
        now_ns: u64,
        owner: u32,
        epoch: u32,
        keep: &[(u64, u8, Number)],
        drop: &[(u64, u8, Number)],
        out: &mut Vec<Command>,
    ) {
        for &(page, piece, number) in keep {
            if let Some(guest) = self.hosted.guests.get_mut(&(owner, page)) {
                if (guest.epoch, guest.piece, guest.number) == (epoch, piece, number) {
                    guest.confirmed_ns = now_ns;
                }
            }
        }
        for &(page, piece, number) in drop {
            self.discard(now_ns, Name { owner, epoch, page, piece }, number, out);
        }
    }

    /// Begins or ends to empty this node.
    pub(super) fn drain(&mut self, now_ns: u64, on: bool, out: &mut Vec<Command>) {
        self.hosted.is_draining = on;
        self.ask_placer(now_ns, ToPlacer::Draining(on), out);
        self.drain_more(now_ns, out);
    }

    fn drain_more(&mut self, now_ns: u64, out: &mut Vec<Command>) {
        if !self.hosted.is_draining {
            return;
        }
        if self.hosted.guests.is_empty() {
            out.push(Command::Drained);
            return;
        }
        let displaced = self.hosted.guests.values().filter(|guest| guest.displaced.is_some());
        let more = DRAINED_AT_ONCE.saturating_sub(displaced.count());
        let next: Vec<(u32, u64)> = self
            .hosted
            .guests
            .iter()
            .filter(|(_, guest)| guest.displaced.is_none())
            .map(|(&key, _)| key)
            .take(more)
            .collect();
        for (owner, page) in next {
            self.displace(now_ns, owner, page, out);
        }
    }
}
