//! How a node handles a message.

use hiroma_policy::placement::replacement::Ranking;
use hiroma_policy::placement::{Event, Stamp};

use crate::check::Place;
use crate::config::Canary;
use crate::engine::node::Doing;
use crate::engine::tables::{State, Whereabouts};
use crate::engine::{Engine, EventKind};
use crate::message::{Kind, Message, ON_DISK, UNKNOWN};

impl Engine<'_> {
    /// A node receives a message.
    pub(super) fn deliver(&mut self, slot: u32) {
        let message = *self.messages.get(slot);
        let number = message.target;
        // Disks and the links to them work even when their node has failed.
        if !self.nodes[number as usize].up
            && !matches!(message.kind, Kind::PageToDisk | Kind::FetchFromDisk)
        {
            let time_ns = self.now_ns + self.config.failures.detect_ns;
            self.at(time_ns, EventKind::Bounce, slot);
            return;
        }
        if message.kind == Kind::FetchFromDisk {
            // The disk serves it; the message remains until the disk is done.
            let done_ns = self.disks.access(self.now_ns, message.value);
            self.at(done_ns, EventKind::DiskRead, slot);
            return;
        }
        self.handle(number, slot, message);
        self.received(slot);
    }

    pub(super) fn received(&mut self, slot: u32) {
        let message = self.messages.remove(slot);
        self.checker.received(slot, &message);
    }

    fn handle(&mut self, number: u32, slot: u32, message: Message) {
        let Message { source, value, .. } = message;
        match message.kind {
            Kind::Told => {
                if let Some(peer) = self.topology.peer_of(number, source) {
                    let stamp = Stamp::default();
                    self.tell_placer(number, Event::Told { peer, stamp, value });
                }
            }
            Kind::Restarted => {
                self.tell_placer(number, Event::Restarted { node: source });
                self.free_changed(number);
            }
            Kind::BidAsked => {
                self.tell_placer(number, Event::BidAsked { node: source, id: value.into() })
            }
            Kind::Bid => {
                if let Some(peer) = self.topology.peer_of(number, source) {
                    let id = message.page.into();
                    self.tell_placer(number, Event::Bid { peer, id, free: value });
                }
            }
            Kind::ReservationAsked => {
                self.tell_placer(number, Event::ReservationAsked { node: source, id: value.into() })
            }
            Kind::ReservationAnswered => {
                if let Some(peer) = self.topology.peer_of(number, source) {
                    let (id, granted) = (value.into(), message.reserved);
                    self.tell_placer(number, Event::ReservationAnswered { peer, id, granted });
                }
            }
            Kind::ReservationReleased => {
                let id = value.into();
                self.tell_placer(number, Event::ReservationReleased { node: source, id });
                self.free_changed(number);
            }
            Kind::PageOut => self.page_out_arrived(number, slot, message),
            Kind::PageBack => self.page_back_arrived(number, slot, message),
            Kind::PageToDisk => self.page_to_disk_arrived(slot, message),
            Kind::Fetch => self.fetch_arrived(number, message),
            Kind::FetchFromDisk => (),
            Kind::PageIn => self.page_in_arrived(number, slot, message),
            Kind::NotHere => self.not_here_arrived(number, message),
            Kind::Placed => self.placed_arrived(number, message),
            Kind::Discard => self.discard_arrived(number, message),
            Kind::Taken => self.frame_free(value),
        }
    }

    /// Whether the table that a message refers to still belongs to the same thread.
    fn is_current(&self, message: &Message) -> bool {
        self.tables.get(message.table).serial == message.serial
    }

    fn page_to_disk_arrived(&mut self, slot: u32, message: Message) {
        let Message { table, page, content, source, value: disk, moves, serial, .. } = message;
        self.disks.access(self.now_ns, disk);
        self.checker.take(table, page, Place::Message(slot));
        self.release_frame(message.target, table, page);
        let owner = self.tables.get(table).node;
        if !self.tables.get(table).live {
            self.page_is_gone(table, page, content);
            return;
        }
        self.checker.put(table, page, Place::Disk(disk), content);
        let entry = self.tables.page(table, page);
        (entry.saved, entry.disk, entry.content, entry.whereabouts) =
            (true, disk, content, Whereabouts::Elsewhere);
        self.out.placed_disk += u64::from(self.measuring);
        if source != owner {
            let at = self.disks.node(disk);
            self.post(Message {
                table,
                serial,
                page,
                moves,
                ..Message::new(Kind::Placed, at, owner, disk | ON_DISK)
            });
        }
    }

    /// A disk has read a page: sends it to the requesting node.
    pub(super) fn disk_read(&mut self, slot: u32) {
        let message = *self.messages.get(slot);
        self.received(slot);
        let Message { table, page, serial, source, target, value: disk, .. } = message;
        if !self.is_current(&message) || !self.tables.get(table).live {
            return;
        }
        let entry = self.tables.page(table, page);
        let (mut content, moves, fresh) = (entry.content, entry.moves, entry.state == State::Fresh);
        if self.config.run.canary == Canary::StaleContent && content > 0 {
            content -= 1;
        }
        entry.whereabouts = Whereabouts::Message;
        (entry.saved, entry.disk) = (true, disk);
        let reply = Message {
            table,
            serial,
            page,
            moves,
            content,
            ..Message::new(Kind::PageIn, target, source, disk | ON_DISK)
        };
        let (_, slot) = self.post(reply);
        self.checker.take(table, page, if fresh { Place::Nowhere } else { Place::Disk(disk) });
        self.checker.put(table, page, Place::Message(slot), content);
    }

    fn fetch_arrived(&mut self, number: u32, message: Message) {
        let Message { table, page, source, serial, moves, .. } = message;
        if !self.is_current(&message)
            || !self.tables.get(table).live
            || self.config.run.canary == Canary::DropAnswer
        {
            return;
        }
        let entry = self.tables.page(table, page);
        if entry.whereabouts != Whereabouts::Frame || entry.node != number {
            if entry.whereabouts == Whereabouts::Lost {
                self.page_lost(source);
                return;
            }
            if self.pass_request_on(number, message) {
                return;
            }
            let owner = self.tables.get(table).node;
            self.post(Message {
                table,
                serial,
                page,
                moves,
                ..Message::new(Kind::NotHere, number, owner, 0)
            });
            return;
        }
        let (place, moves) = (entry.frame, entry.moves);
        entry.whereabouts = Whereabouts::Message;
        let keeps_copy = self.config.run.canary == Canary::KeepCopy;
        let node = &mut self.nodes[number as usize];
        let content = node.frames[place as usize].content;
        self.checker.take(table, page, Place::Frame(number));
        if !keeps_copy {
            node.ranking.remove(place);
            node.empty(place);
        }
        let (target, attempts) = self.way_back(&message);
        let reply = Message {
            table,
            serial,
            page,
            moves,
            content,
            attempts,
            ..Message::new(Kind::PageIn, number, target, number)
        };
        let (_, slot) = self.post(reply);
        self.checker.put(table, page, Place::Message(slot), content);
        if !keeps_copy {
            self.frame_unused(number);
        }
    }

    fn page_in_arrived(&mut self, number: u32, slot: u32, message: Message) {
        let Message { table, page, content, value, .. } = message;
        self.checker.take(table, page, Place::Message(slot));
        if !self.tables.get(table).live {
            self.page_is_gone(table, page, content);
            return;
        }
        if let Some(slot) = self.pass_page_back(number, message) {
            self.checker.put(table, page, Place::Message(slot), content);
            return;
        }
        let from_disk = value & ON_DISK != 0;
        if self.measuring {
            self.measure_page_in(number, &message, from_disk);
        }
        // From a page in attached memory a disk may have a copy, which is not used any more.
        self.page_is_here(number, content, !from_disk);
    }

    fn measure_page_in(&mut self, number: u32, message: &Message, from_disk: bool) {
        let from = message.value;
        let Some(thread) = self.nodes[number as usize].thread.as_deref() else { return };
        let (took_ns, response_ns) = (self.now_ns - thread.asked_ns, self.now_ns - thread.fault_ns);
        if from == number {
            self.out.tier_fetches += 1;
            self.out.tier_fetch_ns += took_ns;
            self.out.response_tier_ns += response_ns;
        } else if from_disk {
            self.out.disk_fetch_ns.add(took_ns);
            self.out.response_disk_ns.add(response_ns);
        } else {
            let hops = self.hops_back(number, from, message);
            self.out.transfer_ns.add(took_ns);
            self.out.transfer_hops.add(hops.into());
            self.out.response_remote_ns.add(response_ns);
        }
    }

    pub(super) fn not_here_arrived(&mut self, number: u32, message: Message) {
        if !self.is_current(&message) || !self.tables.get(message.table).live {
            return;
        }
        let Some(thread) = self.nodes[number as usize].thread.as_deref_mut() else { return };
        if thread.doing != Doing::WaitsForPage
            || thread.pending.is_none_or(|(page, _)| page != message.page)
        {
            return;
        }
        let entry = self.tables.page(message.table, message.page);
        if entry.whereabouts == Whereabouts::Lost {
            // It was lost while the answer was under way: no node will report its place.
            self.page_lost(number);
        } else if entry.state == State::Away && entry.moves_known <= message.moves {
            entry.holder = UNKNOWN;
            thread.doing = Doing::WaitsForPlace;
        } else {
            self.ask_for_page(number);
        }
    }

    pub(super) fn placed_arrived(&mut self, number: u32, message: Message) {
        let Message { table, page, moves, value, serial, .. } = message;
        if !self.is_current(&message) || self.canary_acts(Canary::SkipPlaced, 10) {
            return;
        }
        if !self.tables.get(table).live {
            if value & ON_DISK == 0 {
                self.post(Message {
                    table,
                    serial,
                    page,
                    moves,
                    ..Message::new(Kind::Discard, number, value, 0)
                });
            }
            return;
        }
        let entry = self.tables.page(table, page);
        if moves > entry.moves_known && entry.state == State::Away {
            entry.moves_known = moves;
            entry.holder = value;
            if value & ON_DISK != 0 {
                entry.state = State::OnDisk;
            }
            self.place_known(number, page);
        }
    }

    fn discard_arrived(&mut self, number: u32, message: Message) {
        let Message { table, page, .. } = message;
        if !self.is_current(&message) {
            return;
        }
        let entry = *self.tables.page(table, page);
        if entry.whereabouts == Whereabouts::Frame
            && entry.node == number
            && self.tables.get(table).node != number
        {
            let node = &mut self.nodes[number as usize];
            node.ranking.remove(entry.frame);
            let frame = node.empty(entry.frame);
            self.checker.take(table, page, Place::Frame(number));
            self.page_is_gone(table, page, frame.content);
            if self.config.run.canary != Canary::KeepGuestFrame {
                self.frame_unused(number);
            }
        }
    }
}
