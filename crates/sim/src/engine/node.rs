//! One node: its frames, their ranking, its placer, its thread.

use std::collections::VecDeque;

use hiroma_policy::placement::Placer;
use hiroma_policy::placement::replacement::AnyRanking;

use crate::engine::tier::Tier;
use crate::load::{Accesses, ThreadPlan};

/// No frame.
pub const NO_FRAME: u32 = u32::MAX;

/// A frame and its content.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Table of the page; [`NO_FRAME`] if there is none.
    pub table: u32,
    /// Page; in a frame without a page, the next free frame.
    pub page: u32,
    /// Content: how often the page was written.
    pub content: u32,
    /// Whether no disk has this content.
    pub dirty: bool,
}

/// The state of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// It runs, or is about to touch `pending`.
    Running,
    /// It waits for a frame.
    WaitsForFrame,
    /// It has a frame and waits for the page, which was requested.
    WaitsForPage,
    /// It has a frame and waits to learn where the page is.
    WaitsForPlace,
}

/// The thread that runs on a node.
#[derive(Debug)]
pub struct Thread {
    /// What it was created from.
    pub plan: ThreadPlan,
    /// Its pages.
    pub table: u32,
    /// Its remaining accesses.
    pub accesses: Accesses,
    /// Its state.
    pub doing: Doing,
    /// The page that it could not touch, and whether the access is a write.
    pub pending: Option<(u32, bool)>,
    /// Whether a frame is reserved for that page.
    pub framed: bool,
    /// Whether it represents a recorded client, whose memory is not simulated.
    pub replays: bool,
    /// When it faulted on that page, ns.
    pub fault_ns: u64,
    /// When the page was requested, ns.
    pub asked_ns: u64,
    /// Whether the fault counts as one that waits for a page.
    pub counts: bool,
    /// When it started, ns.
    pub started_ns: u64,
    /// Time of the event that it waits for, ns; other events are left over from before a failure.
    pub due_ns: u64,
}

/// A page in hand: at a node, outside of its frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InHand {
    /// Its table.
    pub table: u32,
    /// The page.
    pub page: u32,
    /// Whether it came from a frame, which becomes free when the page is sent.
    pub from_frame: bool,
}

/// State that few nodes need.
#[derive(Debug, Default)]
pub struct Extra {
    /// Threads that wait for the node.
    pub queue: VecDeque<ThreadPlan>,
    /// Pages in hand: on their way out, or arrived where no frame is free.
    pub hands: Vec<InHand>,
    /// Pages in attached memory.
    pub tier: Tier,
    /// Tables, with their serials, of threads that were lost with the node, and whose pages other
    /// nodes still store.
    pub orphans: Vec<(u32, u32)>,
}

/// One node.
#[derive(Debug)]
pub struct Node {
    /// Its part in global page placement.
    pub placer: Placer,
    /// The ranking of its frames.
    pub ranking: AnyRanking,
    /// Frames that were ever used.
    pub frames: Vec<Frame>,
    free_frame: u32,
    /// Frames in use: with a page, reserved for one that is expected, or with one that is being
    /// sent.
    pub used: u32,
    /// Frames with a page.
    pub pages: u32,
    /// When its message handler becomes free, ns.
    pub handler_free_ns: u64,
    /// Its thread.
    pub thread: Option<Box<Thread>>,
    /// State that few nodes need.
    pub extra: Option<Box<Extra>>,
    /// Whether it works.
    pub up: bool,
    /// How often it failed.
    pub epoch: u8,
}

impl Node {
    /// An idle node.
    pub fn new(placer: Placer, ranking: AnyRanking) -> Self {
        Node {
            placer,
            ranking,
            frames: Vec::new(),
            free_frame: NO_FRAME,
            used: 0,
            pages: 0,
            handler_free_ns: 0,
            thread: None,
            extra: None,
            up: true,
            epoch: 0,
        }
    }

    /// Puts a page into an empty frame.
    pub fn fill(&mut self, frame: Frame) -> u32 {
        self.pages += 1;
        if self.free_frame == NO_FRAME {
            self.frames.push(frame);
            return self.frames.len() as u32 - 1;
        }
        let place = self.free_frame;
        self.free_frame = self.frames[place as usize].page;
        self.frames[place as usize] = frame;
        place
    }

    /// Takes the page out of a frame.
    pub fn empty(&mut self, place: u32) -> Frame {
        self.pages -= 1;
        let empty = Frame { table: NO_FRAME, page: self.free_frame, content: 0, dirty: false };
        self.free_frame = place;
        std::mem::replace(&mut self.frames[place as usize], empty)
    }

    /// Empties the memory of a node that fails.
    pub fn forget(&mut self) {
        (self.up, self.used, self.pages, self.free_frame) = (false, 0, 0, NO_FRAME);
        self.epoch = self.epoch.wrapping_add(1);
        self.frames.clear();
    }

    /// State that few nodes need; created on first use.
    pub fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Heap memory of the node, bytes.
    pub fn heap_bytes(&self) -> usize {
        use hiroma_policy::placement::replacement::Ranking;
        let extra = self.extra.as_ref().map_or(0, |extra| {
            size_of::<Extra>()
                + extra.queue.capacity() * size_of::<ThreadPlan>()
                + extra.hands.capacity() * size_of::<InHand>()
                + extra.tier.len() as usize * (size_of::<Frame>() + 4)
        });
        self.placer.heap_bytes()
            + self.ranking.heap_bytes()
            + self.frames.capacity() * size_of::<Frame>()
            + self.thread.as_ref().map_or(0, |_| size_of::<Thread>())
            + extra
    }
}
