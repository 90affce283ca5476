//! Messages under way: over links, through faults, to a member or a disk.

use hiroma_policy::placement::member::{Event, Note};

use super::{Engine, EventKind};
use crate::network::Done;

/// Of an event: the node where the message is has forwarded it.
pub const FORWARDED: u32 = 1 << 31;

/// Of an event: a message that others could overtake is at its receiver.
pub const LATE: u32 = 1 << 31;

/// What a message is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// From member to member, with the content of a page if it has one.
    Note(Note, u32),
    /// A page to write to a disk.
    Write(Disked),
    /// It was written.
    Written(Disked),
    /// A page to read from a disk.
    Read(Disked),
    /// The page.
    Data(Disked),
}

/// What a disk writes or reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Disked {
    /// An own page: its name, version and content.
    Own(u64, u64, u32),
    /// A guest: owner, page, attempt that placed it.
    Guest(u32, u64, u64),
    /// A guest that is requested: the answer, and its content.
    Answer(u32, Note, u32),
}

/// One message.
#[derive(Clone, Debug)]
pub struct Mail {
    pub from: u32,
    /// The sender's incarnation; for what a disk answers, the receiver's.
    pub epoch: u32,
    pub to: u32,
    pub disk: u32,
    pub what: What,
    at: u32,
    lost: bool,
    later_ns: u64,
    again_ns: Option<u64>,
}

impl Mail {
    fn has_page(&self) -> bool {
        match &self.what {
            What::Note(note, _) => note.has_page(),
            What::Write(_) | What::Data(_) => true,
            What::Written(_) | What::Read(_) => false,
        }
    }

    fn is_disk(&self) -> bool {
        !matches!(self.what, What::Note(..))
    }
}

/// Messages under way, by number.
#[derive(Debug, Default)]
pub struct Post {
    slots: Vec<Option<Mail>>,
    free: Vec<u32>,
}

impl Post {
    fn insert(&mut self, mail: Mail) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(mail);
            return slot;
        }
        self.slots.push(Some(mail));
        self.slots.len() as u32 - 1
    }

    fn remove(&mut self, slot: u32) -> Option<Mail> {
        self.free.push(slot);
        self.slots[slot as usize].take()
    }
}

impl Engine<'_> {
    /// Sends a message from member to member.
    pub(super) fn send_note(&mut self, from: u32, to: u32, note: Note, content: u32) {
        self.count(&note);
        let mut mail = self.mail(from, to, What::Note(note, content));
        if !self.ended {
            let fate = self.faults.fate();
            (mail.lost, mail.later_ns, mail.again_ns) = (fate.lost, fate.later_ns, fate.again_ns);
            let counts = &mut self.out.faults;
            counts.lost += u64::from(fate.lost);
            counts.repeated += u64::from(fate.again_ns.is_some());
            counts.delayed += u64::from(fate.later_ns > 0);
            if !fate.lost && self.faults.are_apart(self.now_ns, from, to) {
                mail.lost = true;
                self.out.faults.cut += 1;
            }
        }
        self.set_out(mail);
    }

    /// Sends a page to the disk of a node, or requests one.
    pub(super) fn send_to_disk(&mut self, from: u32, what: What) {
        let disk = self.disks.of_node(from);
        let counts = &mut self.out.messages;
        if self.measuring {
            match what {
                What::Write(_) => counts.pages_out += 1,
                _ => counts.requests += 1,
            }
        }
        let mail = Mail { disk, ..self.mail(from, self.disks.node(disk), what) };
        self.set_out(mail);
    }

    fn mail(&self, from: u32, to: u32, what: What) -> Mail {
        let epoch = self.nodes[from as usize].member.as_ref().map_or(0, |member| member.epoch());
        let (at, later_ns) = (self.topology.start(from), 0);
        Mail { from, epoch, to, disk: 0, what, at, lost: false, later_ns, again_ns: None }
    }

    fn set_out(&mut self, mail: Mail) {
        // A disk gets a page in one piece.
        let parts = match (mail.has_page(), mail.is_disk()) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => self.pieces(),
        };
        let (from, to) = (mail.from, mail.to);
        let slot = self.post.insert(mail);
        if self.fabric.is_some() {
            self.send_by_fabric(slot, parts, from, to);
        } else {
            self.hop(slot, false);
        }
    }

    fn send_by_fabric(&mut self, slot: u32, parts: u32, from: u32, to: u32) {
        let mut route = std::mem::take(&mut self.route);
        self.topology.route(from, to, &mut route);
        if route.is_empty() {
            self.arrived(slot, 0);
        } else if let Some(fabric) = &mut self.fabric {
            let signals = &mut self.signals;
            fabric.send(self.now_ns, slot, parts, &route, &self.topology, signals);
            self.plan_fabric();
        }
        self.route = route;
    }

    /// An event of the network.
    pub(super) fn fabric_event(&mut self, what: u32) {
        let Some(fabric) = &mut self.fabric else { return };
        fabric.event(self.now_ns, what, &mut self.signals);
        self.plan_fabric();
        while let Some(done) = self.signals.done.pop_front() {
            if let Done::Arrived(slot) = done {
                self.arrived(slot, 0);
            }
        }
    }

    pub(super) fn plan_fabric(&mut self) {
        let mut wakes = std::mem::take(&mut self.signals.wakes);
        for (time_ns, what) in wakes.drain(..) {
            self.at(time_ns, EventKind::Fabric, what);
        }
        self.signals.wakes = wakes;
    }

    /// A message is at the next node or switch of its route.
    pub(super) fn hop(&mut self, slot: u32, is_forwarded: bool) {
        let pieces = self.pieces();
        let Some(mail) = self.post.slots[slot as usize].as_mut() else { return };
        let has_page = mail.has_page();
        match self.topology.next(mail.at, mail.from, mail.to) {
            Some((link, next)) => {
                // A node that it only passes, and whose processor has to forward it.
                let forward_ns = self.forward_ns[usize::from(has_page)];
                if forward_ns > 0 && mail.at != mail.from && !is_forwarded {
                    let by = mail.at;
                    let done_ns = self.occupy(by, self.now_ns, forward_ns);
                    self.at(done_ns, EventKind::Hop, slot | FORWARDED);
                    return;
                }
                mail.at = next;
                // A disk gets a page in one piece.
                let parts = if has_page && mail.is_disk() { pieces } else { 1 };
                let mut on_ns = 0;
                for _ in 0..parts {
                    on_ns = self.network.send(self.now_ns, link, has_page).on_ns;
                }
                self.at(on_ns, EventKind::Hop, slot);
            }
            None => self.arrived(slot, self.network.tail_ns(has_page)),
        }
    }

    /// A message is at its receiver, or would be if nothing delayed it: it waits for the handler.
    pub(super) fn arrived(&mut self, slot: u32, tail_ns: u64) {
        let Some(mail) = self.post.slots[slot as usize].clone() else { return };
        let is_cut = !mail.is_disk()
            && !mail.lost
            && !self.ended
            && self.faults.are_apart(self.now_ns, mail.from, mail.to);
        if mail.lost || is_cut {
            self.out.faults.cut += u64::from(is_cut);
            self.post.remove(slot);
            return;
        }
        let spec = self.specs.of(mail.to);
        let page_ns = if mail.has_page() { spec.page_handler_ns } else { 0 };
        let work_ns = spec.handler_ns + page_ns;
        let there_ns = self.now_ns + tail_ns;
        if mail.later_ns > 0 {
            // The handler is free for others until it is here.
            if let Some(mail) = self.post.slots[slot as usize].as_mut() {
                mail.later_ns = 0;
            }
            self.at(there_ns + mail.later_ns, EventKind::Deliver, slot | LATE);
            return;
        }
        let done_ns = self.occupy(mail.to, there_ns, work_ns);
        if let Some(again_ns) = mail.again_ns {
            let copy = self.post.insert(Mail { again_ns: None, ..mail });
            self.at(done_ns + again_ns, EventKind::Deliver, copy);
        }
        self.at(done_ns, EventKind::Deliver, slot);
    }

    /// The processor of a node works for a message that is there at `there_ns`. Returns when it has
    /// done so, ns.
    fn occupy(&mut self, node: u32, there_ns: u64, work_ns: u64) -> u64 {
        if self.measuring {
            self.out.handler_busy_ns += work_ns;
        }
        let node = &mut self.nodes[node as usize];
        node.handler_free_ns = node.handler_free_ns.max(there_ns) + work_ns;
        node.handler_free_ns
    }

    pub(super) fn deliver(&mut self, slot: u32) {
        let disk = match &self.post.slots[slot as usize] {
            Some(Mail { what: What::Write(_) | What::Read(_), disk, .. }) => *disk,
            _ => {
                if let Some(mail) = self.post.remove(slot) {
                    self.handle_mail(mail);
                }
                return;
            }
        };
        let done_ns = self.disks.access(self.now_ns, disk);
        self.at(done_ns, EventKind::DiskDone, slot);
    }

    pub(super) fn disk_done(&mut self, slot: u32) {
        let Some(mail) = self.post.remove(slot) else { return };
        let what = match mail.what {
            What::Write(disked) => What::Written(disked),
            What::Read(disked) => What::Data(disked),
            other => other,
        };
        let epoch = mail.epoch;
        self.set_out(Mail { epoch, ..self.mail(mail.to, mail.from, what) });
    }

    fn handle_mail(&mut self, mail: Mail) {
        let Mail { from, to, epoch, what, .. } = mail;
        let current = self.nodes[to as usize].member.as_ref().map(|member| member.epoch());
        match what {
            What::Note(note, content) => {
                if current.is_none() {
                    self.out.faults.unheard += 1;
                    return;
                }
                self.receive(to, from, epoch, note, content);
            }
            // What a disk answers to an earlier incarnation is void.
            _ if current != Some(epoch) => (),
            What::Written(disked) | What::Data(disked) => self.disk_answered(to, disked),
            What::Write(_) | What::Read(_) => (),
        }
    }

    fn count(&mut self, note: &Note) {
        if !self.measuring {
            return;
        }
        let counts = &mut self.out.messages;
        let count = match note {
            Note::Told { .. } => &mut counts.information,
            Note::BidAsked { .. } | Note::Bid { .. } => &mut counts.bids,
            Note::ReservationAsked { .. }
            | Note::ReservationAnswered { .. }
            | Note::ReservationReleased { .. } => &mut counts.reservations,
            Note::Store(_) => &mut counts.pages_out,
            Note::Fetch { .. } | Note::NotHere(..) => &mut counts.requests,
            Note::Page { .. } => &mut counts.pages_in,
            _ => &mut counts.bookkeeping,
        };
        *count += 1;
    }

    /// Messages about reservations that are under way.
    pub(super) fn reservations_under_way(&self) -> u32 {
        let is_meant = |mail: &&Mail| {
            matches!(
                mail.what,
                What::Note(
                    Note::ReservationAsked { .. }
                        | Note::ReservationAnswered { .. }
                        | Note::ReservationReleased { .. },
                    _
                )
            )
        };
        self.post.slots.iter().flatten().filter(is_meant).count() as u32
    }

    /// A member gets a message.
    pub(super) fn receive(&mut self, to: u32, from: u32, epoch: u32, note: Note, content: u32) {
        let Some(note) = self.tampered(to, from, note) else { return };
        self.tell(to, Event::Received { from, epoch, note }, Some((from, content)));
    }
}
