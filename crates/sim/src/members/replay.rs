//! Recorded page-outs and page-ins instead of a generated load. The client's own memory is not
//! simulated: a page is at the program, or out, where the member knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use hiroma_policy::placement::member::Event;

use super::node::{Doing, State, Thread};
use super::{Engine, EventKind};
use crate::config::LoadConfig;
use crate::load::{Accesses, ThreadPlan};
use crate::recorded::Recorded;
use crate::trace::{TraceKind, TraceRecord};

impl Engine<'_> {
    pub(super) fn begin_replay(&mut self, records: &Arc<[TraceRecord]>) {
        let (replay, pages) = Recorded::new(records, self.nodes.len());
        for (number, pages) in (0..).zip(pages) {
            let Some(first) = replay.peek(number) else { continue };
            let plan = ThreadPlan { process: 0, pages, seed: 0 };
            let node = self.node(number);
            node.serial += 1;
            let thread = Thread {
                plan,
                serial: node.serial,
                pages: vec![State::Fresh; pages as usize],
                saved: BTreeMap::new(),
                written: vec![0; pages as usize],
                accesses: Accesses::new(&LoadConfig::default(), &plan),
                doing: Doing::Running,
                pending: None,
                coming: None,
                replays: true,
                crashes: 0,
                fault_ns: 0,
                asked_ns: 0,
                counts: true,
                started_ns: 0,
                due_ns: first.time_ns,
            };
            node.thread = Some(Box::new(thread));
            self.at(first.time_ns, EventKind::Run, number);
        }
        self.replay = Some(replay);
    }

    /// Whether a recording is being run and has records left, or a waiting client.
    pub(super) fn replay_goes_on(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| !replay.is_through() || self.waiting > 0)
    }

    /// Executes the records of a client that are due, up to the first page-in that has to wait.
    pub(super) fn replay_next(&mut self, number: u32) {
        while let Some(step) = self.replay.as_ref().and_then(|replay| replay.peek(number)) {
            if step.time_ns > self.now_ns {
                if let Some(thread) = self.node(number).thread.as_deref_mut() {
                    thread.due_ns = step.time_ns;
                }
                self.at(step.time_ns, EventKind::Run, number);
                return;
            }
            if let Some(replay) = &mut self.replay {
                replay.advance(number);
            }
            match step.kind {
                TraceKind::PageOut => {
                    let leaves = self.replay_leave(number, step.page);
                    self.out.replay_skipped += u64::from(self.measuring && !leaves);
                }
                // A page that was dropped because of its copy is paged out, unless it is out.
                TraceKind::Drop => {
                    let leaves = self.replay_leave(number, step.page);
                    self.out.replay_drops += u64::from(self.measuring && leaves);
                }
                TraceKind::PageIn => {
                    if self.replay_page_in(number, step.page) {
                        return;
                    }
                }
            }
        }
    }

    /// Moves a page out of the program. Returns whether it was there.
    fn replay_leave(&mut self, number: u32, page: u32) -> bool {
        let node = self.node(number);
        let Some(thread) = node.thread.as_deref_mut() else { return false };
        let place = page as usize;
        if !matches!(thread.pages[place], State::Fresh | State::Program) {
            return false;
        }
        thread.pages[place] = State::Out;
        thread.written[place] += 1;
        thread.saved.remove(&page);
        let (token, content) = (thread.token(page), thread.written[place]);
        node.held.insert(token, content);
        self.out.page_outs += u64::from(self.measuring);
        self.tell(number, Event::PageOut(token), None);
        true
    }

    /// Returns whether the client waits now.
    fn replay_page_in(&mut self, number: u32, page: u32) -> bool {
        let Some(thread) = self.node(number).thread.as_deref_mut() else { return false };
        if thread.pages[page as usize] != State::Out {
            self.out.first_touches += u64::from(self.measuring);
            return false;
        }
        thread.pending = Some((page, false));
        self.fault(number);
        true
    }
}
