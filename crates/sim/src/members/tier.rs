//! Memory attached to a node (over CXL) behind its local memory, for its own pages. No other node knows
//! of it; what is there is lost with the node.

use std::collections::BTreeMap;

use super::node::{Kept, Slot, State};
use super::{Engine, EventKind};

/// Pages in the attached memory of a node, by the order in which they came.
#[derive(Debug, Default)]
pub struct Tier {
    pages: BTreeMap<u32, Slot>,
    came: u32,
}

impl Tier {
    /// Number of pages.
    pub fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    /// What is at a place.
    pub fn get(&self, place: u32) -> Option<&Slot> {
        self.pages.get(&place)
    }

    fn put(&mut self, slot: Slot) -> u32 {
        self.came += 1;
        self.pages.insert(self.came, slot);
        self.came
    }
}

impl Engine<'_> {
    /// Moves an own page that is to leave its slot to the attached memory. Returns whether the slot is
    /// empty then; otherwise the page that was there longest is in it, and leaves instead.
    pub(super) fn move_near(&mut self, number: u32, place: u32) -> bool {
        let room = self.specs.of(number).tier_frames;
        let node = &mut self.nodes[number as usize];
        let slot = node.slots[place as usize];
        let (Kept::Own(page), Some(thread)) = (slot.kept, node.thread.as_deref_mut()) else {
            return false;
        };
        // Zeros need no memory.
        if room == 0 || slot.content == 0 {
            return false;
        }
        let full = node.tier.len() >= room;
        let first = full.then(|| node.tier.pages.pop_first()).flatten();
        let near = node.tier.put(Slot { leaves: false, ..slot });
        thread.pages[page as usize] = State::Near(near);
        self.out.tier_stores += u64::from(self.measuring);
        if let Some((_, first)) = first {
            if let Kept::Own(page) = first.kept {
                thread.pages[page as usize] = State::Here(place);
            }
            node.slots[place as usize] = Slot { leaves: true, ..first };
            return false;
        }
        self.change(number, |node| {
            node.empty(place);
            node.own_frames -= 1;
        });
        true
    }

    /// The thread touches a page in attached memory: it makes room there, and waits for a frame.
    pub(super) fn take_near(&mut self, number: u32, page: u32, near: u32) {
        let node = &mut self.nodes[number as usize];
        let slot = node.tier.pages.remove(&near);
        if let Some(thread) = node.thread.as_deref_mut() {
            thread.pages[page as usize] = State::Coming;
            thread.coming = slot;
        }
    }

    /// The page that a thread waits for is on its way from attached memory to its frame.
    pub(super) fn bring_near(&mut self, number: u32) {
        let due_ns = self.now_ns + self.specs.of(number).tier_ns;
        if let Some(thread) = self.node(number).thread.as_deref_mut() {
            thread.due_ns = due_ns;
            self.at(due_ns, EventKind::Run, number);
        }
    }

    /// It is there.
    pub(super) fn came_near(&mut self, number: u32) {
        let Some(thread) = self.node(number).thread.as_deref_mut() else { return };
        let (Some(slot), Some((page, _))) = (thread.coming.take(), thread.pending) else { return };
        let (token, asked_ns, fault_ns) = (thread.token(page), thread.asked_ns, thread.fault_ns);
        if self.measuring {
            self.out.tier_fetches += 1;
            self.out.tier_fetch_ns += self.now_ns - asked_ns;
            self.out.response_tier_ns += self.now_ns - fault_ns;
        }
        self.page_is_here(number, token, slot.content, slot.dirty);
    }

    /// What is wrong with the attached memory of a node.
    pub(super) fn audit_tier(&mut self, number: u32) -> Option<String> {
        let room = self.specs.of(number).tier_frames;
        let node = &self.nodes[number as usize];
        if node.tier.len() > room {
            return Some(format!("has {} pages in attached memory, of {room}", node.tier.len()));
        }
        let mut near = 0;
        if let Some(thread) = node.thread.as_deref() {
            for (page, state) in (0..).zip(&thread.pages) {
                let State::Near(place) = *state else { continue };
                near += 1;
                let written = thread.written[page as usize];
                let slot = node.tier.get(place).map(|slot| (slot.kept, slot.content));
                if slot != Some((Kept::Own(page), written)) {
                    return Some(format!(
                        "has {slot:?} in attached memory for page {page}, written {written} times"
                    ));
                }
            }
        }
        self.out.checks += u64::from(near);
        let pages = self.nodes[number as usize].tier.len();
        (near != pages).then(|| format!("needs {near} of {pages} pages in attached memory"))
    }
}
