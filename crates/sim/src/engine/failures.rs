//! Failures and repairs of nodes. A failed node loses its memory, its thread and the pages it
//! stored for others; its links, and a disk attached to it, continue to work.

use hiroma_policy::placement::replacement::AnyRanking;
use hiroma_policy::placement::{Event, Placer, ScopeKind};

use crate::check::Place;
use crate::engine::node::{Doing, NO_FRAME};
use crate::engine::tables::Whereabouts;
use crate::engine::{Engine, EventKind, placer_seed};
use crate::load::ThreadPlan;
use crate::message::{Kind, Message};
use crate::random::exponential;

impl Engine<'_> {
    pub(super) fn plan_failure(&mut self) {
        let gap_ns = exponential(&mut self.failures, self.config.failures.mean_between_ns as f64)
            .min(1 << 46);
        self.at(self.now_ns + gap_ns, EventKind::Fail, 0);
    }

    /// A random node fails.
    pub(super) fn fail(&mut self) {
        if self.ended {
            return;
        }
        let number = self.failures.below(self.nodes.len() as u32);
        if self.nodes[number as usize].up {
            self.crash(number);
            self.at(self.now_ns + self.config.failures.repair_ns, EventKind::Repair, number);
        }
        self.plan_failure();
    }

    /// An outage of a node begins.
    pub(super) fn crash(&mut self, number: u32) {
        if !self.downs.begin(number) {
            return;
        }
        self.out.node_failures += u64::from(self.measuring);
        if let Some((table, plan)) = self.kill_thread(number, false) {
            let serial = self.tables.get(table).serial;
            let extra = self.nodes[number as usize].extra();
            extra.queue.push_front(plan);
            extra.orphans.push((table, serial));
        }
        let kept: Vec<(u32, u32)> = self.nodes[number as usize]
            .frames
            .iter()
            .filter(|frame| frame.table != NO_FRAME)
            .map(|frame| (frame.table, frame.page))
            .collect();
        for (table, page) in kept {
            self.lose(table, page, Place::Frame(number));
        }
        for hand in std::mem::take(&mut self.nodes[number as usize].extra().hands) {
            self.lose(hand.table, hand.page, Place::Hand(number));
        }
        self.integrate();
        let node = &mut self.nodes[number as usize];
        self.used_frames -= u64::from(node.used);
        node.forget();
        node.ranking = AnyRanking::new(self.config.policy.replacement);
        node.placer = Placer::new(
            self.shared.of(number).clone(),
            placer_seed(self.seed, number, node.epoch),
            self.now_ns,
        );
    }

    /// A page is lost with a node.
    fn lose(&mut self, table: u32, page: u32, place: Place) {
        self.checker.take(table, page, place);
        self.checker.lost(table, page);
        self.out.pages_lost += u64::from(self.measuring);
        self.release_lost(table, page);
        self.tables.page(table, page).whereabouts = Whereabouts::Lost;
        let (owner, live) = (self.tables.get(table).node, self.tables.get(table).live);
        if !live {
            self.tables.gone(table);
        } else if self.nodes[owner as usize].thread.as_ref().is_some_and(|thread| {
            thread.doing == Doing::WaitsForPlace
                && thread.table == table
                && thread.pending.is_some_and(|(pending, _)| pending == page)
        }) {
            self.page_lost(owner);
        }
    }

    /// The thread of `number` learns that a page it needs is lost: it restarts.
    pub(super) fn page_lost(&mut self, number: u32) {
        if let Some((_, plan)) = self.kill_thread(number, true) {
            self.free_changed(number);
            self.start(number, plan);
        }
    }

    /// Ends a thread early. Returns its table and its plan.
    fn kill_thread(&mut self, number: u32, tell: bool) -> Option<(u32, ThreadPlan)> {
        let thread = self.nodes[number as usize].thread.take()?;
        self.integrate();
        self.busy_nodes -= 1;
        if thread.doing != Doing::Running {
            self.waiting -= 1;
            self.checker.answered();
        }
        self.drop_table(number, thread.table, tell);
        if thread.framed {
            self.unuse_frame(number);
        }
        if self.measuring {
            self.out.threads_restarted += 1;
            self.out.work_lost_ns += self.now_ns - thread.started_ns;
        }
        Some((thread.table, thread.plan))
    }

    /// An outage of a node ends; after the last one it is available again, with empty memory.
    pub(super) fn repair(&mut self, number: u32) {
        if !self.downs.end(number) {
            return;
        }
        let node = &mut self.nodes[number as usize];
        node.up = true;
        node.placer = Placer::new(
            self.shared.of(number).clone(),
            placer_seed(self.seed, number, node.epoch),
            self.now_ns,
        );
        for (table, serial) in std::mem::take(&mut node.extra().orphans) {
            self.discard_orphans(number, table, serial);
        }
        self.post_to_peers(Kind::Restarted, number, 0);
        let value = if self.config.policy.scope == ScopeKind::Gradient {
            0
        } else {
            self.specs.of(number).frames
        };
        self.post_to_peers(Kind::Told, number, value);
        self.plan_tick(number);
        self.start_next(number);
    }

    /// Discards the pages that other nodes still store for the thread that was lost with its node.
    fn discard_orphans(&mut self, number: u32, table: u32, serial: u32) {
        if self.tables.get(table).serial != serial || self.tables.get(table).live {
            return;
        }
        for page in 0..self.tables.get(table).pages.len() as u32 {
            let entry = *self.tables.page(table, page);
            if entry.whereabouts == Whereabouts::Frame {
                self.post(Message {
                    table,
                    serial,
                    page,
                    ..Message::new(Kind::Discard, number, entry.node, 0)
                });
            }
        }
    }

    /// The sender of a message detects that its receiver does not answer.
    pub(super) fn bounce(&mut self, slot: u32) {
        let message = *self.messages.get(slot);
        let Message { source, target, table, page, content, .. } = message;
        let source_up = self.nodes[source as usize].up;
        match message.kind {
            Kind::PageOut | Kind::PageBack if source_up => {
                self.checker.take(table, page, Place::Message(slot));
                self.refused(source, message, target, content, table, page);
            }
            Kind::PageOut | Kind::PageBack => self.lose(table, page, Place::Message(slot)),
            Kind::PageIn => {
                self.checker.take(table, page, Place::Message(slot));
                self.page_is_gone(table, page, content);
            }
            // The owner of a page has failed after its thread had ended: it discards the page as soon
            // as it is back.
            Kind::Placed if !self.tables.get(table).live => {
                if self.nodes[target as usize].up {
                    self.placed_arrived(target, message);
                } else {
                    let orphan = (table, message.serial);
                    self.nodes[target as usize].extra().orphans.push(orphan);
                }
            }
            Kind::Fetch if source_up => self.not_here_arrived(source, message),
            Kind::BidAsked | Kind::ReservationAsked if source_up => {
                if let Some(peer) = self.topology.peer_of(source, target) {
                    let id = message.value.into();
                    let event = match message.kind {
                        Kind::BidAsked => Event::Bid { peer, id, free: 0 },
                        _ => Event::ReservationAnswered { peer, id, granted: false },
                    };
                    self.tell_placer(source, event);
                }
            }
            _ => (),
        }
        self.received(slot);
    }
}
