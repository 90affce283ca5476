//! One node: what is physically there. The member decides; this is what it decides about.

use std::collections::{BTreeMap, VecDeque};

use hiroma_policy::placement::member::{Member, Number};
use hiroma_policy::placement::replacement::{AnyRanking, Ranking};

use super::tier::Tier;
use crate::load::{Accesses, ThreadPlan};

/// What a slot of memory contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// A page of this node's thread.
    Own(u32),
    /// A guest: owner and page.
    Guest(u32, u64),
    /// Nothing.
    Nothing,
}

/// One piece of memory.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// What is in it.
    pub kept: Kept,
    /// Its content: how often the page was written.
    pub content: u32,
    /// Whether no disk has this content.
    pub dirty: bool,
    /// Whether its page is being evicted.
    pub leaves: bool,
}

/// Where a page of the thread is, as far as the thread's own table says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Never written: zeros.
    Fresh,
    /// In a slot.
    Here(u32),
    /// The member knows.
    Out,
    /// On disk, unchanged since it was read from there.
    Saved,
    /// In attached memory, at this place.
    Near(u32),
    /// On its way from there to a frame: [`Thread::coming`].
    Coming,
    /// At the program itself (replayed recordings: its memory is not simulated).
    Program,
}

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Nothing.
    Running,
    /// A frame.
    WaitsForFrame,
    /// A page, for which it has a frame.
    WaitsForPage,
}

/// The thread that runs on a node.
#[derive(Debug)]
pub struct Thread {
    /// What it was created from.
    pub plan: ThreadPlan,
    /// Distinguishes its pages from those of other threads of the node.
    pub serial: u32,
    /// Its pages.
    pub pages: Vec<State>,
    /// Pages on disk: version and content.
    pub saved: BTreeMap<u32, (u64, u32)>,
    /// How often each page was written: the truth, for the checks alone.
    pub written: Vec<u32>,
    /// Its remaining accesses.
    pub accesses: Accesses,
    /// What it waits for.
    pub doing: Doing,
    /// The access that it could not make, and whether it is a write.
    pub pending: Option<(u32, bool)>,
    /// The page that it waits for, if that comes from attached memory.
    pub coming: Option<Slot>,
    /// Failures of nodes before it faulted.
    pub crashes: u64,
    /// Whether it stands for a recorded client, whose memory is not simulated.
    pub replays: bool,
    /// When it faulted, ns.
    pub fault_ns: u64,
    /// When it requested the page, ns.
    pub asked_ns: u64,
    /// Whether the fault counts as one that waits for a page.
    pub counts: bool,
    /// When it started, ns.
    pub started_ns: u64,
    /// Time of its event, ns.
    pub due_ns: u64,
}

impl Thread {
    /// The name of a page in the cluster.
    pub fn token(&self, page: u32) -> u64 {
        u64::from(self.serial) << 32 | u64::from(page)
    }

    /// The page of a name, if it is of this thread.
    pub fn page(&self, token: u64) -> Option<u32> {
        (token >> 32 == u64::from(self.serial)).then_some(token as u32)
    }
}

/// Where the content of a guest is.
#[derive(Clone, Copy, Debug)]
pub enum Medium {
    /// In a slot.
    Slot(u32),
    /// On disk.
    Disk(u32),
}

/// One node.
#[derive(Debug)]
pub struct Node {
    /// Its part in the protocol; none while it has failed.
    pub member: Option<Member>,
    /// How often it started.
    pub epoch: u32,
    /// Attached memory.
    pub tier: Tier,
    /// Slots that were ever used.
    pub slots: Vec<Slot>,
    free_slots: Vec<u32>,
    /// The order in which slots are evicted.
    pub ranking: AnyRanking,
    /// Frames with own pages, or reserved for one.
    pub own_frames: u32,
    /// Guests in slots.
    pub guest_slots: u32,
    /// Guests by owner and page.
    pub guests: BTreeMap<(u32, u64), Medium>,
    /// Evictions that have not brought a frame yet.
    pub evicting: u32,
    /// Content of pages that the member holds outside of the frames.
    pub held: BTreeMap<u64, u32>,
    /// Pieces that arrived, by page: the host of each, and its content.
    pub pieces: BTreeMap<u64, Vec<(u32, u32)>>,
    /// Content on its way through.
    pub carried: BTreeMap<u64, u32>,
    /// Guests that are being written to disk, by the attempt that placed them.
    pub spilling: BTreeMap<(u32, u64), Number>,
    /// The thread.
    pub thread: Option<Box<Thread>>,
    /// Threads that wait for the node.
    pub queue: VecDeque<ThreadPlan>,
    /// Threads that were started.
    pub serial: u32,
    /// When its message handler becomes free, ns.
    pub handler_free_ns: u64,
    /// The member's next tick, ns.
    pub tick_ns: u64,
    /// Free frames that the member was last told.
    pub told_free: u32,
    /// Whether it was emptied since it was last asked to.
    pub is_drained: bool,
}

impl Node {
    /// A node that was never started.
    pub fn new(ranking: AnyRanking) -> Self {
        Node {
            member: None,
            epoch: 0,
            tier: Tier::default(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            ranking,
            own_frames: 0,
            guest_slots: 0,
            guests: BTreeMap::new(),
            evicting: 0,
            held: BTreeMap::new(),
            pieces: BTreeMap::new(),
            carried: BTreeMap::new(),
            spilling: BTreeMap::new(),
            thread: None,
            queue: VecDeque::new(),
            serial: 0,
            handler_free_ns: 0,
            tick_ns: u64::MAX,
            told_free: u32::MAX,
            is_drained: false,
        }
    }

    /// The node after it lost its memory.
    pub fn lost_memory(&mut self, ranking: AnyRanking) {
        let queue = std::mem::take(&mut self.queue);
        let fresh = Node::new(ranking);
        let (epoch, serial) = (self.epoch, self.serial);
        *self = Node { epoch, serial, queue, ..fresh };
    }

    /// Frames in use; `pieces` guests share one.
    pub fn used(&self, pieces: u32) -> u32 {
        self.own_frames + self.guest_slots.div_ceil(pieces)
    }

    /// Puts something in a slot.
    pub fn fill(&mut self, slot: Slot) -> u32 {
        if let Some(place) = self.free_slots.pop() {
            self.slots[place as usize] = slot;
            return place;
        }
        self.slots.push(slot);
        self.slots.len() as u32 - 1
    }

    /// Empties a slot.
    pub fn empty(&mut self, place: u32) -> Slot {
        let nothing = Slot { kept: Kept::Nothing, content: 0, dirty: false, leaves: false };
        let slot = std::mem::replace(&mut self.slots[place as usize], nothing);
        if !slot.leaves {
            self.ranking.remove(place);
        }
        self.free_slots.push(place);
        slot
    }

    /// The content of a guest, and whether it is on disk.
    pub fn guest(&self, owner: u32, page: u64) -> Option<(u32, bool)> {
        match *self.guests.get(&(owner, page))? {
            Medium::Slot(place) => Some((self.slots[place as usize].content, false)),
            Medium::Disk(content) => Some((content, true)),
        }
    }

    /// Slots in use.
    pub fn kept(&self) -> impl Iterator<Item = Kept> + '_ {
        let used = self.slots.iter().filter(|slot| slot.kept != Kept::Nothing);
        used.map(|slot| slot.kept)
    }
}
