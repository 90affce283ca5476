//! Page-outs: the choice of a page, its destination, and the frame that becomes free.

use hiroma_policy::placement::replacement::Ranking;
use hiroma_policy::placement::{Arrival, Avoid, Command, Event, Leaving};

use crate::check::Place;
use crate::config::{Canary, FrameFree};
use crate::engine::node::{Doing, Frame, InHand};
use crate::engine::tables::{NO_HOLD, State, Whereabouts};
use crate::engine::{Engine, EventKind};
use crate::message::{Kind, Message, ON_DISK};

fn token(table: u32, page: u32) -> u64 {
    u64::from(table) << 32 | u64::from(page)
}

impl Engine<'_> {
    /// Passes an event to a node's placer and executes its commands.
    pub(super) fn tell_placer(&mut self, number: u32, event: Event) {
        let mut commands = std::mem::take(&mut self.commands);
        self.nodes[number as usize].placer.handle(self.now_ns, event, &mut commands);
        for command in commands.drain(..) {
            self.act(number, command);
        }
        self.commands = commands;
    }

    fn act(&mut self, number: u32, command: Command) {
        match command {
            Command::Tell { value, .. } => self.post_to_peers(Kind::Told, number, value),
            Command::AskBids { id } => self.post_to_peers(Kind::BidAsked, number, id as u32),
            Command::AnswerBid { node, id, free } => {
                let page = id as u32;
                self.post(Message { page, ..Message::new(Kind::Bid, number, node, free) });
            }
            Command::AskReservation { peer, id } => {
                let target = self.topology.peer(number, peer);
                self.post(Message::new(Kind::ReservationAsked, number, target, id as u32));
            }
            Command::AnswerReservation { node, id, granted } => {
                self.post(Message {
                    reserved: granted,
                    ..Message::new(Kind::ReservationAnswered, number, node, id as u32)
                });
                if granted {
                    self.free_changed(number);
                } else {
                    self.out.reservations_refused += u64::from(self.measuring);
                }
            }
            Command::ReleaseReservation { peer, id } => {
                if self.config.run.canary == Canary::KeepReservation {
                    return;
                }
                let target = self.topology.peer(number, peer);
                self.post(Message::new(Kind::ReservationReleased, number, target, id as u32));
            }
            Command::Send { page, to, reserved } => {
                let target = self.topology.peer(number, to);
                self.send_page(
                    number,
                    Message {
                        reserved: reserved.is_some(),
                        value: reserved.unwrap_or_default() as u32,
                        ..page_message(Kind::PageOut, number, target, page)
                    },
                );
            }
            Command::SendToDisk(page) => {
                let disk = self.disks.of_node(number);
                let target = self.disks.node(disk);
                self.send_page(
                    number,
                    Message { value: disk, ..page_message(Kind::PageToDisk, number, target, page) },
                );
            }
        }
    }

    /// Acquires a frame for the thread of a node. Returns whether there is one now; otherwise a
    /// page is being evicted, and its frame follows.
    pub(super) fn acquire_frame(&mut self, number: u32) -> bool {
        let at_once = self.config.node.frame_free == FrameFree::AtOnce;
        let node = &mut self.nodes[number as usize];
        if node.used + node.placer.promised() < self.specs.of(number).frames {
            self.use_frame(number);
            self.free_changed(number);
            return true;
        }
        match node.ranking.victim() {
            Some(place) => match self.clear_frame(number, place, !at_once) {
                Some(leaving) => {
                    self.tell_placer(number, Event::PageLeaves(leaving));
                    at_once
                }
                None => true,
            },
            None => false,
        }
    }

    /// Takes the page out of a frame, which stays in use. A clean page is dropped; a dirty one is
    /// in the node's hands, on its way out.
    pub(super) fn take_victim(
        &mut self,
        number: u32,
        place: u32,
        frees_frame: bool,
    ) -> Option<Leaving> {
        let frame = self.nodes[number as usize].empty(place);
        self.let_go(number, frame, frees_frame)
    }

    /// The same for a page that was taken out of its frame.
    pub(super) fn let_go(
        &mut self,
        number: u32,
        frame: Frame,
        frees_frame: bool,
    ) -> Option<Leaving> {
        let Frame { table, page, content, dirty } = frame;
        let owner = self.tables.get(table).node;
        let entry = self.tables.page(table, page);
        if owner == number && !dirty && (entry.saved || content == 0) {
            entry.whereabouts = Whereabouts::Elsewhere;
            entry.state = if entry.saved { State::OnDisk } else { State::Fresh };
            entry.holder = entry.disk | ON_DISK;
            let left = if entry.saved { Place::Disk(entry.disk) } else { Place::Nowhere };
            self.checker.drop_clean(table, page, Place::Frame(number), content, left);
            self.out.clean_drops += u64::from(self.measuring);
            return None;
        }
        if owner == number {
            entry.state = State::Leaving;
        }
        self.out.page_outs += u64::from(self.measuring);
        self.out.guests_displaced += u64::from(self.measuring && owner != number);
        self.checker.take(table, page, Place::Frame(number));
        let until_taken =
            matches!(self.config.node.frame_free, FrameFree::Arrived | FrameFree::Placed);
        if frees_frame && until_taken {
            self.tables.page(table, page).held = self.frame_of(number);
        }
        self.take_in_hand(number, table, page, content, frees_frame && !until_taken);
        Some(Leaving {
            page: token(table, page),
            attempts: 0,
            avoid: self.avoid(number, owner, number),
        })
    }

    /// Where a page must not be sent: to its owner, and to where it came from.
    pub(super) fn avoid(&self, number: u32, owner: u32, source: u32) -> Avoid {
        let peer_of =
            |other: u32| if other == number { None } else { self.topology.peer_of(number, other) };
        Avoid::new([peer_of(owner), peer_of(source)])
    }

    /// Puts a page in a node's hands.
    pub(super) fn take_in_hand(
        &mut self,
        number: u32,
        table: u32,
        page: u32,
        content: u32,
        from_frame: bool,
    ) {
        let entry = self.tables.page(table, page);
        (entry.whereabouts, entry.node, entry.content) = (Whereabouts::Hand, number, content);
        self.checker.put(table, page, Place::Hand(number), content);
        self.nodes[number as usize].extra().hands.push(InHand { table, page, from_frame });
    }

    /// Takes a page out of a node's hands. Returns whether that frees a frame.
    pub(super) fn take_from_hand(&mut self, number: u32, table: u32, page: u32) -> bool {
        self.checker.take(table, page, Place::Hand(number));
        let hands = &mut self.nodes[number as usize].extra().hands;
        let place = hands.iter().position(|hand| hand.table == table && hand.page == page);
        place.is_some_and(|place| hands.swap_remove(place).from_frame)
    }

    /// Sends a page from a node's hands, unless it is no longer needed.
    pub(super) fn send_page(&mut self, number: u32, message: Message) {
        let Message { table, page, target, kind, .. } = message;
        let from_frame = self.take_from_hand(number, table, page);
        let (owner, live, serial) = {
            let table = self.tables.get(table);
            (table.node, table.live, table.serial)
        };
        let entry = self.tables.page(table, page);
        if !live {
            entry.whereabouts = Whereabouts::Elsewhere;
            let content = entry.content;
            if message.reserved {
                let id = message.value;
                self.post(Message::new(Kind::ReservationReleased, number, target, id));
            }
            self.checker.put(table, page, Place::Nowhere, content);
            self.release_frame(number, table, page);
            self.tables.gone(table);
            if from_frame {
                self.frame_unused(number);
            }
            return;
        }
        entry.moves += 1;
        entry.whereabouts = Whereabouts::Message;
        if owner == number {
            entry.moves_known = entry.moves;
            (entry.state, entry.holder) = match kind {
                Kind::PageToDisk => (State::OnDisk, message.value | ON_DISK),
                _ => (State::Away, target),
            };
        }
        let (moves, content) = (entry.moves, entry.content);
        if kind == Kind::PageOut {
            self.passed_on.sent(table, page, target, owner == number);
        }
        let (sent_ns, slot) = self.post(Message { serial, moves, content, ..message });
        self.checker.put(table, page, Place::Message(slot), content);
        if from_frame {
            let frame = self.frame_of(number);
            self.free_when_sent(slot, sent_ns, frame);
        }
        if owner == number {
            self.place_known(number, page);
        }
    }

    /// The owner of a page now knows its place: its thread may be waiting for that.
    pub(super) fn place_known(&mut self, number: u32, page: u32) {
        let thread = self.nodes[number as usize].thread.as_ref();
        if thread.is_some_and(|thread| {
            thread.doing == Doing::WaitsForPlace
                && thread.pending.is_some_and(|(pending, _)| pending == page)
        }) {
            self.ask_for_page(number);
        }
    }

    /// An identifier of a frame of `number` that is in use for a page that left it; void after the
    /// node has failed.
    fn frame_of(&self, number: u32) -> u32 {
        number | u32::from(self.nodes[number as usize].epoch) << 24
    }

    /// The page that was in a frame ([`Self::frame_of`]) has been sent.
    pub(super) fn frame_free(&mut self, frame: u32) {
        let (number, epoch) = (frame & 0xff_ffff, (frame >> 24) as u8);
        if self.nodes[number as usize].epoch == epoch {
            self.frame_unused(number);
        }
    }

    /// `by` has taken a page: the frame that it left, if it was held until now, becomes free as
    /// soon as its node learns of it.
    pub(super) fn release_frame(&mut self, by: u32, table: u32, page: u32) {
        let frame = std::mem::replace(&mut self.tables.page(table, page).held, NO_HOLD);
        if frame == NO_HOLD {
            return;
        }
        let node = frame & 0xff_ffff;
        if node == by {
            self.frame_free(frame);
        } else {
            self.post(Message::new(Kind::Taken, by, node, frame));
        }
    }

    /// A page is lost on its way: the frame that it left becomes free when its node detects that
    /// nobody answers. The node that failed says nothing.
    pub(super) fn release_lost(&mut self, table: u32, page: u32) {
        let frame = std::mem::replace(&mut self.tables.page(table, page).held, NO_HOLD);
        if frame != NO_HOLD {
            let time_ns = self.now_ns + self.config.failures.detect_ns;
            self.at(time_ns, EventKind::FrameFree, frame);
        }
    }

    /// A frame in use is no longer needed: the thread may be waiting for one.
    pub(super) fn frame_unused(&mut self, number: u32) {
        if self.canary_acts(Canary::LeakFrame, 100) {
            return;
        }
        let thread = self.nodes[number as usize].thread.as_ref();
        if thread.is_some_and(|thread| thread.doing == Doing::WaitsForFrame && !thread.replays) {
            self.frame_acquired(number);
        } else {
            self.unuse_frame(number);
            self.free_changed(number);
        }
    }

    /// Counts one more frame as used.
    pub(super) fn use_frame(&mut self, number: u32) {
        self.integrate();
        self.used_frames += 1;
        self.nodes[number as usize].used += 1;
    }

    /// Counts one frame less as used.
    pub(super) fn unuse_frame(&mut self, number: u32) {
        self.integrate();
        self.used_frames -= 1;
        self.nodes[number as usize].used -= 1;
    }

    /// Whether a page ends its way at `number`, which has it in hand: it is no longer needed, or
    /// the node's thread waits for it.
    fn goes_no_further(&mut self, number: u32, table: u32, page: u32, content: u32) -> bool {
        if !self.tables.get(table).live {
            self.release_frame(number, table, page);
            self.page_is_gone(table, page, content);
            return true;
        }
        let waited_for = self.tables.get(table).node == number && self.is_waited_for(number, page);
        if waited_for {
            self.release_frame(number, table, page);
            self.page_is_here(number, content, true);
        }
        waited_for
    }

    /// A page arrives to be stored.
    pub(super) fn page_out_arrived(&mut self, number: u32, slot: u32, message: Message) {
        self.arrived_pages += 1;
        let Message { table, page, content, source, attempts, .. } = message;
        if self.is_canary(Canary::LosePage) {
            return;
        }
        self.checker.take(table, page, Place::Message(slot));
        if self.canary_acts(Canary::VanishPage, 100) {
            return;
        }
        if self.config.node.frame_free == FrameFree::Arrived {
            self.release_frame(number, table, page);
        }
        if self.goes_no_further(number, table, page, content) {
            if message.reserved {
                let id = message.value.into();
                self.tell_placer(number, Event::ReservationReleased { node: source, id });
                self.free_changed(number);
            }
            return;
        }
        let reserved = message.reserved.then_some(message.value.into());
        let mut arrival =
            self.nodes[number as usize].placer.arrival(source, attempts.into(), reserved);
        if self.config.run.canary == Canary::OverfillNode
            && self.nodes[number as usize].used >= self.specs.of(number).frames
        {
            arrival = Arrival::Keep;
        }
        if arrival != Arrival::Keep {
            self.out.repeated_page_outs += u64::from(self.measuring);
        }
        match arrival {
            Arrival::Keep => {
                self.use_frame(number);
                self.keep(number, message);
                self.free_changed(number);
            }
            Arrival::Replace => self.replace(number, message),
            Arrival::SendBack => {
                self.take_in_hand(number, table, page, content, false);
                self.send_page(
                    number,
                    Message {
                        kind: Kind::PageBack,
                        source: number,
                        target: source,
                        reserved: false,
                        ..message
                    },
                );
            }
            Arrival::SendOn => self.send_on(number, message),
            Arrival::Disk => {
                self.take_in_hand(number, table, page, content, false);
                self.act(number, Command::SendToDisk(self.leaving(number, &message)));
            }
        }
    }

    fn leaving(&self, number: u32, message: &Message) -> Leaving {
        let owner = self.tables.get(message.table).node;
        let avoid = self.avoid(number, owner, message.source);
        Leaving {
            page: token(message.table, message.page),
            attempts: message.attempts.into(),
            avoid,
        }
    }

    /// Sends on a page that cannot be stored here.
    fn send_on(&mut self, number: u32, message: Message) {
        let leaving = self.leaving(number, &message);
        self.take_in_hand(number, message.table, message.page, message.content, false);
        self.tell_placer(number, Event::PageLeaves(leaving));
    }

    /// Stores a page in place of another one, which is paged out in turn.
    fn replace(&mut self, number: u32, message: Message) {
        let Some(place) = self.nodes[number as usize].ranking.victim() else {
            self.send_on(number, message);
            return;
        };
        let leaving = self.take_victim(number, place, false);
        self.keep(number, message);
        if let Some(leaving) = leaving {
            let leaving = Leaving { attempts: message.attempts.into(), ..leaving };
            self.tell_placer(number, Event::PageLeaves(leaving));
        }
    }

    /// Puts a page that arrived into a frame that already counts as used.
    fn keep(&mut self, number: u32, message: Message) {
        let Message { table, page, content, source, moves, serial, .. } = message;
        let node = &mut self.nodes[number as usize];
        let frame = node.fill(Frame { table, page, content, dirty: true });
        node.ranking.insert(frame);
        let owner = self.tables.get(table).node;
        let entry = self.tables.page(table, page);
        (entry.whereabouts, entry.node, entry.frame) = (Whereabouts::Frame, number, frame);
        if owner == number {
            (entry.state, entry.moves_known) = (State::Resident, entry.moves);
        }
        self.checker.put(table, page, Place::Frame(number), content);
        self.release_frame(number, table, page);
        self.out.placed_remote += u64::from(self.measuring);
        if source != owner && owner != number {
            self.post(Message {
                table,
                serial,
                page,
                moves,
                ..Message::new(Kind::Placed, number, owner, number)
            });
        }
    }

    /// A page was returned.
    pub(super) fn page_back_arrived(&mut self, number: u32, slot: u32, message: Message) {
        let Message { table, page, content, source, .. } = message;
        self.checker.take(table, page, Place::Message(slot));
        self.refused(number, message, source, content, table, page);
    }

    /// A page that `by` did not take is in the hands of `number` again.
    pub(super) fn refused(
        &mut self,
        number: u32,
        message: Message,
        by: u32,
        content: u32,
        table: u32,
        page: u32,
    ) {
        let owner = self.tables.get(table).node;
        if self.goes_no_further(number, table, page, content) {
            return;
        }
        if owner == number {
            self.tables.page(table, page).state = State::Leaving;
        }
        self.take_in_hand(number, table, page, content, false);
        let leaving = Leaving {
            page: token(table, page),
            attempts: message.attempts.into(),
            avoid: self.avoid(number, owner, by),
        };
        match self.topology.peer_of(number, by) {
            Some(peer) => self.tell_placer(number, Event::Refused { peer, page: leaving }),
            None => self.tell_placer(number, Event::PageLeaves(leaving)),
        }
    }

    /// Whether the thread of `number` has a frame for `page` and waits to learn where it is: then
    /// it is here.
    fn is_waited_for(&self, number: u32, page: u32) -> bool {
        let thread = self.nodes[number as usize].thread.as_ref();
        thread.is_some_and(|thread| {
            thread.doing == Doing::WaitsForPlace
                && thread.pending.is_some_and(|(pending, _)| pending == page)
        })
    }

    /// Discards a page that was taken from its place and is no longer needed.
    pub(super) fn page_is_gone(&mut self, table: u32, page: u32, content: u32) {
        self.tables.page(table, page).whereabouts = Whereabouts::Elsewhere;
        self.checker.put(table, page, Place::Nowhere, content);
        self.tables.gone(table);
    }
}

/// The message that carries a page on its way out.
fn page_message(kind: Kind, source: u32, target: u32, leaving: Leaving) -> Message {
    let (table, page) = ((leaving.page >> 32) as u32, leaving.page as u32);
    Message {
        table,
        page,
        attempts: leaving.attempts.min(u8::MAX.into()) as u8,
        ..Message::new(kind, source, target, 0)
    }
}
