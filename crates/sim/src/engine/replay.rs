//! Recorded page-outs and page-ins instead of a generated load. The client's own memory is not
//! simulated: a page is at the program, or somewhere in the machine.

use std::sync::Arc;

use hiroma_policy::placement::{Avoid, Event, Leaving};

use crate::check::Place;
use crate::config::LoadConfig;
use crate::engine::node::{Doing, Thread};
use crate::engine::tables::State;
use crate::engine::{Engine, EventKind};
use crate::load::{Accesses, ThreadPlan};
use crate::recorded::Recorded;
use crate::trace::{TraceKind, TraceRecord};

impl Engine<'_> {
    pub(super) fn begin_replay(&mut self, records: &Arc<[TraceRecord]>) {
        let (replay, pages) = Recorded::new(records, self.nodes.len());
        for (number, pages) in (0..).zip(pages) {
            let Some(first) = replay.peek(number) else { continue };
            let table = self.tables.create(number, pages);
            self.checker.table(table, pages);
            let plan = ThreadPlan { process: 0, pages, seed: 0 };
            let thread = Thread {
                plan,
                table,
                accesses: Accesses::new(&LoadConfig::default(), &plan),
                doing: Doing::Running,
                pending: None,
                framed: false,
                replays: true,
                fault_ns: 0,
                asked_ns: 0,
                counts: true,
                started_ns: 0,
                due_ns: 0,
            };
            self.nodes[number as usize].thread = Some(Box::new(thread));
            self.at(first.time_ns, EventKind::Replay, number);
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
                self.at(step.time_ns, EventKind::Replay, number);
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
                // A simulated page is in one place only: a page that was dropped because of its
                // copy is paged out, unless it is out already.
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

    /// A waiting page-in is done: continue with the next record.
    pub(super) fn replay_after(&mut self, number: u32) {
        self.at(self.now_ns, EventKind::Replay, number);
    }

    /// Moves a page out of the program. Returns whether it was there.
    fn replay_leave(&mut self, number: u32, page: u32) -> bool {
        let Some(thread) = self.nodes[number as usize].thread.as_ref() else { return false };
        let table = thread.table;
        let entry = self.tables.page(table, page);
        if !matches!(entry.state, State::Fresh | State::Resident) {
            return false;
        }
        if entry.state == State::Fresh {
            self.checker.take(table, page, Place::Nowhere);
            self.checker.put(table, page, Place::Program, entry.content);
        }
        entry.content += 1;
        entry.state = State::Leaving;
        let content = entry.content;
        self.checker.write(table, page, number);
        self.checker.take(table, page, Place::Program);
        self.out.page_outs += u64::from(self.measuring);
        self.take_in_hand(number, table, page, content, false);
        let leaving = Leaving {
            page: u64::from(table) << 32 | u64::from(page),
            attempts: 0,
            avoid: Avoid::default(),
        };
        self.tell_placer(number, Event::PageLeaves(leaving));
        true
    }

    /// Returns whether the client waits now.
    fn replay_page_in(&mut self, number: u32, page: u32) -> bool {
        let Some(thread) = self.nodes[number as usize].thread.as_deref_mut() else { return false };
        if matches!(self.tables.page(thread.table, page).state, State::Fresh | State::Resident) {
            self.out.first_touches += u64::from(self.measuring);
            return false;
        }
        thread.pending = Some((page, false));
        self.fault(number);
        true
    }
}
