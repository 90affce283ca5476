//! How the pages of a member come home: because they are needed, or to be made whole.

use std::collections::BTreeSet;

use super::owner::{At, Out, Wanted};
use super::{Command, Member, Name, Note, Number, Timer, send};

/// Degraded pages that are made whole at the same time.
const REPAIRS_AT_ONCE: usize = 4;

impl Member {
    pub(super) fn lose(&mut self, page: u64, out: &mut Vec<Command>) {
        let version = self.owned.pages.get(&page).map_or(0, |entry| entry.version);
        self.forget_page(page, out);
        out.push(Command::Lost(page, version));
    }

    /// A page is needed.
    pub(super) fn page_in(&mut self, now_ns: u64, page: u64, out: &mut Vec<Command>) {
        let needed = usize::from(self.base.pieces.0);
        let Some(entry) = self.owned.pages.get(&page) else {
            out.push(Command::Lost(page, 0));
            return;
        };
        if entry.is_here {
            self.forget_page(page, out);
            out.push(Command::Stays(page));
        } else if entry.is_on_disk {
            self.forget_page(page, out);
            out.push(Command::ReadDisk(page));
        } else if entry.readable() < needed && !entry.is_moving() {
            self.lose(page, out);
        } else {
            self.want(now_ns, page, false, out);
        }
    }

    pub(super) fn want(&mut self, now_ns: u64, page: u64, repairs: bool, out: &mut Vec<Command>) {
        let (id, due_ns) = (self.base.number(), self.base.due_ns(now_ns, 0));
        let Some(entry) = self.owned.pages.get_mut(&page) else { return };
        // What has arrived of a page that is being repaired is used.
        let got = entry.wanted.map_or(0, |wanted| wanted.got);
        let id = entry.wanted.map_or(id, |wanted| wanted.id);
        entry.wanted = Some(Wanted { id, since_ns: now_ns, due_ns, tries: 0, got, repairs });
        self.base.at(due_ns, Timer::Wanted(page, id));
        let needed = usize::from(self.base.pieces.0);
        self.fetch(page, needed, out);
    }

    /// Requests up to `count` of the pieces that have not arrived, from the nearest nodes, and of
    /// those from the fastest.
    fn fetch(&self, page: u64, count: usize, out: &mut Vec<Command>) {
        let Some(entry) = self.owned.pages.get(&page) else { return };
        let Some(wanted) = entry.wanted else { return };
        let mut from: Vec<(u16, u32, u8, At)> = (0..)
            .zip(&entry.places)
            .filter(|(piece, _)| wanted.got & 1 << piece == 0)
            .filter_map(|(piece, place)| place.at.map(|at| (piece, at)))
            .map(|(piece, at)| {
                let view = self.base.placer.view();
                let near = self
                    .base
                    .peer(at.node)
                    .map(|peer| (view.hops()[usize::from(peer.0)], view.slowness(peer)));
                let (hops, slowness) = near.unwrap_or((u16::MAX, u32::MAX));
                (hops, slowness, piece, at)
            })
            .collect();
        from.sort_unstable_by_key(|&(hops, slowness, piece, _)| (hops, slowness, piece));
        for (.., piece, at) in from.into_iter().take(count) {
            let (name, number, id) = (self.name(page, piece), at.number, wanted.id);
            send(at.node, Note::Fetch { name, number, id }, out);
        }
    }

    pub(super) fn wanted_due(&mut self, now_ns: u64, page: u64, id: u64, out: &mut Vec<Command>) {
        let (give_up_ns, answer_ns) = (self.base.give_up_ns, self.base.answer_ns);
        let Some(entry) = self.owned.pages.get_mut(&page) else { return };
        let Some(wanted) = entry.wanted.as_mut().filter(|wanted| wanted.id == id) else { return };
        if wanted.due_ns > now_ns {
            return;
        }
        if wanted.since_ns + give_up_ns <= now_ns {
            let repairs = wanted.repairs;
            entry.wanted = None;
            if repairs {
                self.check(now_ns, page, out);
            } else {
                self.lose(page, out);
            }
            return;
        }
        wanted.tries += 1;
        wanted.due_ns = (now_ns + (answer_ns << wanted.tries.min(4))).min(
            // Exactly at the end of the patience.
            wanted.since_ns + give_up_ns,
        );
        let due_ns = wanted.due_ns;
        self.base.at(due_ns, Timer::Wanted(page, id));
        self.fetch(page, usize::MAX, out);
    }

    /// A node is believed not to work: what was requested from it is requested elsewhere as well.
    pub(super) fn hurry(&mut self, node: u32, out: &mut Vec<Command>) {
        let waits = |entry: &Out| {
            entry.wanted.is_some()
                && entry.places.iter().any(|place| place.at.is_some_and(|at| at.node == node))
        };
        let pages: Vec<u64> = self
            .owned
            .pages
            .iter()
            .filter(|(_, entry)| waits(entry))
            .map(|(&page, _)| page)
            .collect();
        pages.into_iter().for_each(|page| self.fetch(page, usize::MAX, out));
    }

    /// A piece of a page that was requested arrives.
    pub(super) fn piece_arrived(
        &mut self,
        now_ns: u64,
        from: u32,
        name: Name,
        number: Number,
        id: u64,
        out: &mut Vec<Command>,
    ) {
        let needed = u32::from(self.base.pieces.0);
        if !self.is_own(name) {
            return;
        }
        let Name { page, piece, .. } = name;
        let Some(place) = self.place(page, piece).copied() else { return };
        let is_known = place.at.is_some_and(|at| (at.node, at.number) == (from, number))
            || place.going.is_some_and(|going| going.number == number);
        let Some(entry) = self.owned.pages.get_mut(&page) else { return };
        let Some(wanted) = entry.wanted.as_mut().filter(|wanted| wanted.id == id) else { return };
        if !is_known || wanted.got & 1 << piece != 0 {
            return;
        }
        wanted.got |= 1 << piece;
        out.push(Command::Piece(page, piece));
        if wanted.got.count_ones() < needed {
            return;
        }
        let repairs = wanted.repairs;
        entry.wanted = None;
        if repairs {
            entry.is_here = true;
            out.push(Command::Hold(page));
            self.leave_hosts(page, out);
            self.check(now_ns, page, out);
        } else {
            self.forget_page(page, out);
            out.push(Command::Here(page));
        }
    }

    /// The content of a page is here: hosts that leave do not need to keep it any longer.
    fn leave_hosts(&mut self, page: u64, out: &mut Vec<Command>) {
        let Some(entry) = self.owned.pages.get_mut(&page) else { return };
        let mut left = Vec::new();
        for (piece, place) in (0..).zip(entry.places.iter_mut()) {
            if std::mem::take(&mut place.leaves) {
                left.extend(place.at.take().map(|at| (piece, at)));
            }
        }
        for (piece, at) in left {
            send(at.node, Note::Discard(self.name(page, piece), at.number), out);
        }
    }

    pub(super) fn not_here(
        &mut self,
        now_ns: u64,
        from: u32,
        name: Name,
        number: Number,
        out: &mut Vec<Command>,
    ) {
        if !self.is_own(name) {
            return;
        }
        let place = self.place(name.page, name.piece);
        let is_lost = place
            .is_some_and(|place| place.at.is_some_and(|at| at.node == from && at.number == number));
        if is_lost {
            self.place_lost(now_ns, name.page, name.piece, out);
        }
    }

    /// A host has lost its memory: what it kept in incarnations before `epoch` is lost.
    pub(super) fn places_lost(
        &mut self,
        now_ns: u64,
        node: u32,
        epoch: u32,
        out: &mut Vec<Command>,
    ) {
        let mut lost = Vec::new();
        for (&page, entry) in &self.owned.pages {
            for (piece, place) in (0..).zip(&entry.places) {
                if place.at.is_some_and(|at| at.node == node && at.epoch < epoch) {
                    lost.push((page, piece));
                }
            }
        }
        for (page, piece) in lost {
            self.place_lost(now_ns, page, piece, out);
        }
    }

    /// Which of the pieces that a host keeps are needed.
    pub(super) fn renew_asked(
        &mut self,
        now_ns: u64,
        from: u32,
        epoch: u32,
        pages: Vec<(u64, u8, Number)>,
        out: &mut Vec<Command>,
    ) {
        let (mut keep, mut drop) = (Vec::new(), Vec::new());
        for (page, piece, number) in pages {
            let name = Name { epoch, ..self.name(page, piece) };
            let is_ours = epoch == self.base.epoch;
            let place = if is_ours { self.place(page, piece).copied() } else { None };
            if place.is_some_and(|place| place.going.is_some_and(|going| going.number == number)) {
                // Its answer was lost.
                self.stored(now_ns, from, name, number, out);
                keep.push((page, piece, number));
            } else if place.is_some_and(|place| {
                place.at.is_some_and(|at| at.node == from && at.number == number)
            }) {
                keep.push((page, piece, number));
            } else {
                drop.push((page, piece, number));
            }
        }
        send(from, Note::Renewed { epoch, keep, drop }, out);
    }

    /// Asks hosts that have been silent whether they are still there. What a silent host keeps is
    /// kept elsewhere as well after a whole lease, if enough is left to do so.
    pub(super) fn watch(&mut self, now_ns: u64, out: &mut Vec<Command>) {
        let lease_ns = self.base.lease_ns;
        self.base.at(now_ns + lease_ns / 8 + 1, Timer::Watch);
        let needed = usize::from(self.base.pieces.0);
        let (mut asked, mut dead) = (BTreeSet::new(), Vec::new());
        for (&page, entry) in &self.owned.pages {
            for (piece, place) in (0..).zip(&entry.places) {
                let Some(at) = place.at else { continue };
                let heard_ns = self.hosted.heard_ns(at.node);
                if heard_ns + lease_ns <= now_ns && entry.readable() > needed && !entry.is_here {
                    dead.push((page, piece));
                } else if heard_ns + lease_ns / 4 <= now_ns && asked.insert(at.node) {
                    send(at.node, Note::Probe(self.name(page, piece), at.number), out);
                }
            }
        }
        for (page, piece) in dead {
            let entry = self.owned.pages.get(&page);
            if entry.is_some_and(|entry| entry.readable() > needed) {
                self.place_lost(now_ns, page, piece, out);
            }
        }
    }

    /// Makes pages whole that lack pieces: those with the fewest left first.
    pub(super) fn repair(&mut self, now_ns: u64, out: &mut Vec<Command>) {
        self.owned.repairs = !self.owned.degraded.is_empty();
        if self.owned.repairs {
            let next_ns = self.base.due_ns(now_ns, 0);
            self.base.at(next_ns, Timer::Repair);
        }
        let repaired = |entry: &&Out| entry.wanted.is_some_and(|wanted| wanted.repairs);
        let busy = self.owned.pages.values().filter(repaired).count();
        for _ in busy..REPAIRS_AT_ONCE {
            let Some((_, page)) = self.owned.degraded.pop_first() else { return };
            let (needed, all) = self.base.pieces;
            let Some(entry) = self.owned.pages.get(&page) else { continue };
            let kept = entry.kept();
            if (usize::from(needed)..usize::from(all)).contains(&kept)
                && !entry.is_here
                && !entry.is_on_disk
                && entry.wanted.is_none()
                && !entry.is_moving()
            {
                self.want(now_ns, page, true, out);
            }
        }
    }
}
