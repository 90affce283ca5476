//! Memory attached to a node (over CXL) behind its local memory. An own page that would leave the
//! node goes there first; when the tier is full, the page that came there first leaves in its
//! place. A touch of a page there brings it back without any other node.

use std::collections::BTreeMap;

use hiroma_policy::placement::Leaving;

use crate::check::Place;
use crate::engine::node::Frame;
use crate::engine::tables::{State, Whereabouts};
use crate::engine::{Engine, EventKind};
use crate::message::{Kind, Message};

/// Pages in the attached memory of a node, by the order in which they came.
#[derive(Debug, Default)]
pub struct Tier {
    pages: BTreeMap<u32, Frame>,
    came: u32,
}

impl Tier {
    /// Number of pages.
    pub fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Takes a page out.
    pub fn remove(&mut self, place: u32) -> Option<Frame> {
        self.pages.remove(&place)
    }
}

impl Engine<'_> {
    /// Pages in the attached memory of a node.
    pub(super) fn in_tier(&self, number: u32) -> u32 {
        self.nodes[number as usize].extra.as_ref().map_or(0, |extra| extra.tier.len())
    }

    /// Takes the page out of a frame, into the tier if there is one and the page is the node's own.
    /// Returns the page that has to leave the node for that.
    pub(super) fn clear_frame(
        &mut self,
        number: u32,
        place: u32,
        frees_frame: bool,
    ) -> Option<Leaving> {
        let room = self.specs.of(number).tier_frames;
        let Frame { table, page, content, .. } = self.nodes[number as usize].frames[place as usize];
        if room == 0 || content == 0 || self.tables.get(table).node != number {
            return self.take_victim(number, place, frees_frame);
        }
        let node = &mut self.nodes[number as usize];
        let frame = node.empty(place);
        let tier = &mut node.extra().tier;
        let first = if tier.len() < room { None } else { tier.pages.pop_first() };
        tier.came += 1;
        let at = tier.came;
        tier.pages.insert(at, frame);
        // The page that makes room leaves as one does from a frame.
        let leaving = first.and_then(|(_, first)| self.let_go(number, first, frees_frame));
        let entry = self.tables.page(table, page);
        (entry.state, entry.whereabouts, entry.node, entry.frame) =
            (State::Near, Whereabouts::Frame, number, at);
        self.out.tier_stores += u64::from(self.measuring);
        leaving
    }

    /// A thread touches a page in the tier: it is on its way to a frame, and leaves room for
    /// another one.
    pub(super) fn take_from_tier(&mut self, number: u32, table: u32, page: u32) {
        let place = self.tables.page(table, page).frame;
        let tier = &mut self.nodes[number as usize].extra().tier;
        let Some(frame) = tier.remove(place) else { return };
        self.checker.take(table, page, Place::Frame(number));
        self.take_in_hand(number, table, page, frame.content, false);
    }

    /// Brings the page that a thread waits for from the tier into the frame that it has.
    pub(super) fn bring_from_tier(&mut self, number: u32, table: u32, page: u32) {
        self.take_from_hand(number, table, page);
        let serial = self.tables.get(table).serial;
        let entry = self.tables.page(table, page);
        entry.whereabouts = Whereabouts::Message;
        let content = entry.content;
        let message = Message {
            table,
            serial,
            page,
            content,
            ..Message::new(Kind::PageIn, number, number, number)
        };
        self.checker.sent();
        let slot = self.messages.insert(message);
        self.checker.put(table, page, Place::Message(slot), content);
        self.at(self.now_ns + self.specs.of(number).tier_ns, EventKind::Deliver, slot);
    }
}
