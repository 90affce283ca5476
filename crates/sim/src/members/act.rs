//! What a node does with the commands of its member.

use hiroma_policy::placement::member::{Command, Content, Event, Name, Note};
use hiroma_policy::placement::replacement::Ranking;

use super::Engine;
use super::mail::{Disked, What};
use super::node::{Doing, Kept, Medium, Node, Slot, State};
use crate::config::Canary;

/// The message that a member handles: its sender, and its content.
pub type Hand = Option<(u32, u32)>;

/// Content that is wrong everywhere.
const NO_CONTENT: u32 = u32::MAX;

/// What a message says that its sender keeps of the receiver's pages.
fn pieces_reported(event: &Event) -> Option<(u32, Vec<(u64, u64)>)> {
    let Event::Received { from, note, .. } = event else { return None };
    let pieces = match note {
        Note::Stored(name, attempt) => vec![(name.page, *attempt)],
        Note::Displace { name, number, .. } => vec![(name.page, *number)],
        Note::Renew(_, pages) => pages.iter().map(|&(page, _, attempt)| (page, attempt)).collect(),
        _ => return None,
    };
    Some((*from, pieces))
}

impl Engine<'_> {
    /// Passes an event to a member and executes its commands.
    pub(super) fn tell(&mut self, number: u32, event: Event, hand: Hand) {
        let accepted = pieces_reported(&event);
        let mut commands = Vec::new();
        let now_ns = self.now_ns;
        let Some(member) = self.node(number).member.as_mut() else { return };
        member.handle(now_ns, event, &mut commands);
        if self.config.run.check {
            self.note_accepted(number, accepted);
        }
        for command in commands {
            self.act(number, command, hand);
        }
        self.free_changed(number);
        self.plan_tick(number);
    }

    /// Reports the free frames to the member, and wakes a thread that waits for one.
    pub(super) fn free_changed(&mut self, number: u32) {
        let (frames, pieces) = (self.specs.of(number).frames, self.pieces());
        let overfills = self.config.run.canary == Canary::OverfillNode;
        let node = self.node(number);
        let Some(member) = &node.member else { return };
        let mut free = frames.saturating_sub(node.used(pieces) + member.promised());
        free += u32::from(overfills);
        let waits = node.thread.as_ref().is_some_and(|thread| thread.doing == Doing::WaitsForFrame);
        if std::mem::replace(&mut node.told_free, free) != free {
            self.tell(number, Event::Free(free), None);
        }
        if waits && free > 0 {
            self.frame_freed(number);
        }
    }

    /// Changes the frames of a node.
    pub(super) fn change(&mut self, number: u32, change: impl FnOnce(&mut Node)) {
        self.integrate();
        let pieces = self.pieces();
        let node = &mut self.nodes[number as usize];
        let before = node.used(pieces);
        change(node);
        let after = node.used(pieces);
        self.used_frames = self.used_frames + u64::from(after) - u64::from(before);
    }

    fn act(&mut self, number: u32, command: Command, hand: Hand) {
        let content = hand.map_or(NO_CONTENT, |(_, content)| content);
        match command {
            Command::Send { to, note, content: of } => self.send(number, to, note, of),
            Command::SendToPeers(note) => {
                let member = self.nodes[number as usize].member.as_ref();
                let peers = member.map_or_else(Vec::new, |member| member.peers().to_vec());
                for to in peers {
                    self.send_note(number, to, note.clone(), 0);
                }
            }
            Command::Gone(token) => self.page_gone(number, token),
            Command::Stays(token) => self.page_stays(number, token),
            Command::Piece(token, _) => {
                let from = hand.map_or(number, |(from, _)| from);
                self.node(number).pieces.entry(token).or_default().push((from, content));
            }
            Command::Here(token) => {
                let (content, hops) = self.join_pieces(number, token);
                if self.measuring {
                    self.out.transfer_hops.add(hops.into());
                }
                self.page_is_here(number, token, content, true);
            }
            Command::Hold(token) => {
                let (content, _) = self.join_pieces(number, token);
                self.out.faults.repaired += 1;
                self.node(number).held.insert(token, content);
            }
            Command::ReadDisk(token) => {
                self.send_to_disk(number, What::Read(Disked::Own(token, 0, 0)))
            }
            Command::WriteDisk(token, version) => {
                let content = self.own_content(number, token);
                self.out.placed_disk += u64::from(self.measuring);
                let disked = Disked::Own(token, version, content.unwrap_or(NO_CONTENT));
                self.send_to_disk(number, What::Write(disked));
            }
            Command::Lost(token, version) => self.page_lost(number, token, version),
            Command::Keep { owner, page } => self.keep(number, owner, page, content),
            Command::Free { owner, page } => self.free_guest(number, owner, page),
            Command::Spill { owner, page, number: attempt } => {
                self.out.faults.spilled += 1;
                self.node(number).spilling.insert((owner, page), attempt);
                let disked = Disked::Guest(owner, page, attempt);
                self.send_to_disk(number, What::Write(disked));
            }
            Command::Carry(token) => {
                self.out.repeated_page_outs += u64::from(self.measuring);
                self.node(number).carried.insert(token, content);
            }
            Command::DropCarried(token) => drop(self.node(number).carried.remove(&token)),
            Command::Drained => {
                let node = self.node(number);
                let first = !std::mem::replace(&mut node.is_drained, true);
                self.out.faults.drained += u64::from(first);
            }
        }
    }

    /// The content of an own page that is leaving, or is held.
    pub(super) fn own_content(&self, number: u32, token: u64) -> Option<u32> {
        let node = &self.nodes[number as usize];
        if let Some(&content) = node.held.get(&token) {
            return Some(content);
        }
        let thread = node.thread.as_ref()?;
        match thread.pages[thread.page(token)? as usize] {
            State::Here(slot) => Some(node.slots[slot as usize].content),
            _ => None,
        }
    }

    fn send(&mut self, number: u32, to: u32, note: Note, content: Content) {
        if let Note::Discard(name, attempt) = note {
            self.forget_accepted(to, number, name.page, attempt);
        }
        let node = &self.nodes[number as usize];
        let found = match content {
            Content::None => Some((0, false)),
            Content::Own(token) => self.own_content(number, token).map(|content| (content, false)),
            Content::Guest(owner, page) => node.guest(owner, page),
            Content::Carried(token) => node.carried.get(&token).map(|&content| (content, false)),
        };
        let Some((value, on_disk)) = found else {
            self.wrong(format!("node {number} sends {note:?} without having its content"));
            return;
        };
        if on_disk {
            self.send_to_disk(number, What::Read(Disked::Answer(to, note, value)));
            return;
        }
        if let (Canary::NeverRepeat, Note::Fetch { name, id, .. }) = (self.config.run.canary, &note)
        {
            if !self.asked.insert((number, *id, name.piece)) {
                return;
            }
        }
        let is_own = matches!(content, Content::Own(_));
        if let (true, Content::Own(token)) =
            (self.config.run.canary == Canary::ForgetEarly, content)
        {
            self.forget_early(number, token);
        }
        if matches!(note, Note::Refused { .. }) {
            self.out.repeated_page_outs += u64::from(self.measuring);
        }
        let stale = self.config.run.canary == Canary::StaleContent && !is_own;
        let value = if stale && note.has_page() { value.saturating_sub(1) } else { value };
        self.send_note(number, to, note, value);
    }

    fn forget_early(&mut self, number: u32, token: u64) {
        let node = &mut self.nodes[number as usize];
        let Some(thread) = node.thread.as_ref() else { return };
        let Some(page) = thread.page(token) else { return };
        if let State::Here(slot) = thread.pages[page as usize] {
            node.slots[slot as usize].content = NO_CONTENT;
        }
    }

    /// The content of the pieces of a page, and the hops to the farthest node that had one.
    fn join_pieces(&mut self, number: u32, token: u64) -> (u32, u32) {
        let pieces = self.node(number).pieces.remove(&token).unwrap_or_default();
        let needed = self.pieces() as usize;
        if pieces.len() != needed || pieces.iter().any(|&(_, content)| content != pieces[0].1) {
            self.wrong(format!("page {token:#x} of node {number} is made of pieces {pieces:?}"));
        }
        let hops = pieces.iter().map(|&(from, _)| self.topology.distance(from, number));
        (pieces.first().map_or(NO_CONTENT, |&(_, content)| content), hops.max().unwrap_or(0))
    }

    /// A page is kept elsewhere.
    fn page_gone(&mut self, number: u32, token: u64) {
        self.check_placed(number, token);
        let node = &mut self.nodes[number as usize];
        if node.held.remove(&token).is_some() {
            return;
        }
        let Some(thread) = node.thread.as_mut() else { return };
        let Some(page) = thread.page(token) else { return };
        if let State::Here(slot) = std::mem::replace(&mut thread.pages[page as usize], State::Out) {
            node.evicting -= 1;
            self.change(number, |node| {
                node.empty(slot);
                node.own_frames -= 1;
            });
            self.frame_freed(number);
        }
    }

    /// A page that was leaving is used again.
    fn page_stays(&mut self, number: u32, token: u64) {
        let node = &mut self.nodes[number as usize];
        if let Some(content) = node.held.remove(&token) {
            self.page_is_here(number, token, content, true);
            return;
        }
        let Some(thread) = node.thread.as_ref() else { return };
        let Some(page) = thread.page(token) else { return };
        if let State::Here(slot) = thread.pages[page as usize] {
            node.slots[slot as usize].leaves = false;
            node.ranking.insert(slot);
            node.evicting -= 1;
        }
    }

    /// Puts a guest in a slot.
    fn keep(&mut self, number: u32, owner: u32, page: u64, content: u32) {
        if self.canary_acts(Canary::LosePage, 20) {
            return;
        }
        self.out.placed_remote += u64::from(self.measuring);
        let node = &mut self.nodes[number as usize];
        if let Some(&Medium::Slot(place)) = node.guests.get(&(owner, page)) {
            let keeps_old = self.config.run.canary == Canary::KeepVersion;
            let slot = &mut node.slots[place as usize];
            slot.content = if keeps_old { slot.content } else { content };
            if std::mem::take(&mut slot.leaves) {
                node.ranking.insert(place);
                node.evicting -= 1;
                self.frame_freed(number);
            } else {
                node.ranking.touch(place);
            }
            return;
        }
        let slot = Slot { kept: Kept::Guest(owner, page), content, dirty: true, leaves: false };
        self.change(number, |node| {
            let place = node.fill(slot);
            node.ranking.insert(place);
            node.guests.insert((owner, page), Medium::Slot(place));
            node.guest_slots += 1;
        });
        let used = self.nodes[number as usize].used(self.pieces());
        let frames = self.specs.of(number).frames;
        if used > frames {
            self.wrong(format!("node {number} has {used} frames in use, of {frames}"));
        }
    }

    fn free_guest(&mut self, number: u32, owner: u32, page: u64) {
        self.check_not_relied_on(number, owner, page);
        self.forget_accepted(number, owner, page, u64::MAX);
        let node = &mut self.nodes[number as usize];
        node.spilling.remove(&(owner, page));
        if let Some(Medium::Slot(place)) = node.guests.remove(&(owner, page)) {
            self.slot_freed(number, place);
        }
    }

    /// The slot of a guest is free.
    fn slot_freed(&mut self, number: u32, place: u32) {
        self.change(number, |node| {
            let slot = node.empty(place);
            node.evicting -= u32::from(slot.leaves);
            node.guest_slots -= 1;
        });
        self.frame_freed(number);
    }

    /// A disk has answered.
    pub(super) fn disk_answered(&mut self, number: u32, disked: Disked) {
        match disked {
            Disked::Own(token, version, content) if version > 0 => {
                let thread = self.node(number).thread.as_mut();
                if let Some((thread, page)) = thread
                    .and_then(|thread| Some((thread.page(token)?, thread)))
                    .map(|(p, t)| (t, p))
                {
                    let saved = thread.saved.entry(page).or_default();
                    if version > saved.0 {
                        *saved = (version, content);
                    }
                }
                self.tell(number, Event::DiskWritten(token, version), None);
            }
            Disked::Own(token, ..) => self.read_from_disk(number, token),
            Disked::Guest(owner, page, attempt) => {
                let node = &mut self.nodes[number as usize];
                if node.spilling.get(&(owner, page)) != Some(&attempt) {
                    return;
                }
                node.spilling.remove(&(owner, page));
                if let Some(&Medium::Slot(place)) = node.guests.get(&(owner, page)) {
                    let content = node.slots[place as usize].content;
                    node.guests.insert((owner, page), Medium::Disk(content));
                    self.slot_freed(number, place);
                }
            }
            Disked::Answer(to, note, content) => self.send_note(number, to, note, content),
        }
    }

    /// What a broken member would do, or a broken message say, instead.
    pub(super) fn tampered(&mut self, to: u32, from: u32, note: Note) -> Option<Note> {
        match (self.config.run.canary, note) {
            (Canary::KeepOrphans, Note::Discard(..)) => None,
            (Canary::KeepOrphans, Note::Renewed { epoch, mut keep, drop }) => {
                keep.extend(drop);
                Some(Note::Renewed { epoch, keep, drop: Vec::new() })
            }
            (Canary::BelieveOld, Note::Discard(name, _)) => Some(Note::Discard(name, u64::MAX)),
            (Canary::DenyPage, Note::Fetch { name, number, .. })
                if self.canary_acts(Canary::DenyPage, 10) =>
            {
                self.deny(to, from, name, number);
                None
            }
            (_, note) => Some(note),
        }
    }

    fn deny(&mut self, by: u32, to: u32, name: Name, number: u64) {
        self.send_note(by, to, Note::NotHere(name, number), 0);
    }
}
