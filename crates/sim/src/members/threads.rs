//! Processes and threads on the cluster with faults.

use std::collections::BTreeMap;

use hiroma_policy::placement::member::Event;
use hiroma_policy::placement::replacement::Ranking;

use super::mail::{Disked, What};
use super::node::{Doing, Kept, Slot, State, Thread};
use super::tier::Tier;
use super::{Engine, EventKind};
use crate::config::{Canary, FirstTouch};
use crate::load::{Accesses, ThreadPlan};
use crate::processes::ACCESSES_AT_ONCE;

impl Engine<'_> {
    /// A process arrives; schedules the next arrival.
    pub(super) fn arrive(&mut self) {
        if self.ended {
            return;
        }
        let mut plans = std::mem::take(&mut self.plans);
        let (load, nodes) = (&self.config.load, self.nodes.len() as u32);
        self.processes.arrive(load, &self.normal, nodes, self.now_ns, &mut plans);
        self.out.processes_arrived += u64::from(self.measuring);
        for (node, plan) in plans.drain(..) {
            let place = self.node(node);
            if place.thread.is_some() || place.member.is_none() {
                place.queue.push_back(plan);
            } else {
                self.start(node, plan);
            }
        }
        self.plans = plans;
        let next_ns = self.now_ns + self.processes.gap_ns();
        self.at(next_ns, EventKind::Arrive, 0);
    }

    fn start(&mut self, number: u32, plan: ThreadPlan) {
        self.integrate();
        self.busy_nodes += 1;
        let (now_ns, accesses) = (self.now_ns, Accesses::new(&self.config.load, &plan));
        let node = self.node(number);
        node.serial += 1;
        let thread = Thread {
            plan,
            serial: node.serial,
            pages: vec![State::Fresh; plan.pages as usize],
            saved: BTreeMap::new(),
            written: vec![0; plan.pages as usize],
            accesses,
            doing: Doing::Running,
            pending: None,
            coming: None,
            replays: false,
            crashes: 0,
            fault_ns: now_ns,
            asked_ns: now_ns,
            counts: false,
            started_ns: now_ns,
            due_ns: now_ns,
        };
        node.thread = Some(Box::new(thread));
        self.run_thread(number);
    }

    /// Starts the next thread that waits for a node.
    pub(super) fn start_next(&mut self, number: u32) {
        let node = self.node(number);
        if node.thread.is_none() && node.member.is_some() {
            if let Some(plan) = node.queue.pop_front() {
                self.start(number, plan);
            }
        }
    }

    /// Whether threads have stopped.
    fn is_settling(&self) -> bool {
        self.ended && !self.config.run.drain
    }

    pub(super) fn thread_due(&mut self, number: u32) {
        let now_ns = self.now_ns;
        let thread = self.node(number).thread.as_ref();
        let Some(thread) = thread.filter(|thread| thread.due_ns == now_ns) else { return };
        match thread.doing {
            Doing::Running if thread.replays => self.replay_next(number),
            Doing::Running if thread.pending.is_some() => self.fault(number),
            Doing::Running => self.run_thread(number),
            Doing::WaitsForPage if thread.coming.is_some() => self.came_near(number),
            Doing::WaitsForPage | Doing::WaitsForFrame => (),
        }
    }

    /// Runs a thread until it touches a page that is not in a slot, or for a while.
    fn run_thread(&mut self, number: u32) {
        if self.is_settling() {
            return;
        }
        let access_ns = self.specs.of(number).access_ns;
        let node = &mut self.nodes[number as usize];
        let Some(thread) = node.thread.as_deref_mut() else { return };
        let mut made = 0;
        while thread.accesses.left > 0 && made < ACCESSES_AT_ONCE {
            let (page, write) = thread.accesses.draw(&self.normal);
            made += 1;
            let slot = match thread.pages[page as usize] {
                State::Here(slot) if !node.slots[slot as usize].leaves => slot,
                _ => {
                    thread.pending = Some((page, write));
                    break;
                }
            };
            node.ranking.touch(slot);
            if write {
                thread.written[page as usize] += 1;
                let slot = &mut node.slots[slot as usize];
                (slot.dirty, slot.content) = (true, slot.content + 1);
            }
        }
        if self.measuring {
            self.out.accesses += u64::from(made);
            self.out.compute_ns += u64::from(made) * access_ns;
        }
        if made == 0 {
            self.end_thread(number);
            return;
        }
        thread.due_ns = self.now_ns + u64::from(made) * access_ns;
        let due_ns = thread.due_ns;
        self.at(due_ns, EventKind::Run, number);
    }

    /// The thread touches a page that is not in a slot, or is about to leave it.
    pub(super) fn fault(&mut self, number: u32) {
        let (now_ns, first_touch) = (self.now_ns, self.config.load.first_touch);
        let crashes = self.crashes;
        let Some(thread) = self.node(number).thread.as_deref_mut() else { return };
        let Some((page, _)) = thread.pending else { return };
        let (token, state) = (thread.token(page), thread.pages[page as usize]);
        let replays = thread.replays;
        (thread.fault_ns, thread.crashes) = (now_ns, crashes);
        thread.counts = state != State::Fresh || first_touch == FirstTouch::Disk;
        if !matches!(state, State::Here(_)) {
            thread.doing = Doing::WaitsForFrame;
        }
        self.waiting += 1;
        if let State::Here(slot) = state {
            if self.nodes[number as usize].slots[slot as usize].leaves {
                self.tell(number, Event::PageIn(token), None);
            }
            self.answered(number);
            self.touch_pending(number);
            return;
        }
        if let State::Near(near) = state {
            self.take_near(number, page, near);
        }
        if replays {
            self.frame_acquired(number);
            return;
        }
        self.frame_freed(number);
    }

    /// A frame may be free: the thread may be waiting for one.
    pub(super) fn frame_freed(&mut self, number: u32) {
        let waits = |engine: &Self| {
            let thread = engine.nodes[number as usize].thread.as_ref();
            thread.is_some_and(|thread| thread.doing == Doing::WaitsForFrame)
        };
        while waits(self) {
            if self.has_room(number) {
                self.change(number, |node| node.own_frames += 1);
                self.frame_acquired(number);
                self.free_changed(number);
                return;
            }
            if self.nodes[number as usize].evicting > 0 || !self.evict(number) {
                return;
            }
        }
    }

    fn has_room(&self, number: u32) -> bool {
        let node = &self.nodes[number as usize];
        let promised = node.member.as_ref().map_or(0, |member| member.promised());
        node.used(self.pieces()) + promised < self.specs.of(number).frames
    }

    /// Evicts one page. Returns whether there was one.
    fn evict(&mut self, number: u32) -> bool {
        let node = &mut self.nodes[number as usize];
        let Some(place) = node.ranking.victim() else { return false };
        node.slots[place as usize].leaves = true;
        if self.move_near(number, place) {
            return true;
        }
        let node = &mut self.nodes[number as usize];
        let slot = node.slots[place as usize];
        match slot.kept {
            Kept::Own(page) => {
                let Some(thread) = node.thread.as_deref_mut() else { return false };
                let saved = thread.saved.contains_key(&page);
                if !slot.dirty && (saved || slot.content == 0) {
                    let state = if saved { State::Saved } else { State::Fresh };
                    thread.pages[page as usize] = state;
                    self.out.clean_drops += u64::from(self.measuring);
                    self.change(number, |node| {
                        node.empty(place);
                        node.own_frames -= 1;
                    });
                    return true;
                }
                self.out.page_outs += u64::from(self.measuring);
                thread.saved.remove(&page);
                let token = thread.token(page);
                node.evicting += 1;
                self.tell(number, Event::PageOut(token), None);
            }
            Kept::Guest(owner, page) => {
                node.evicting += 1;
                self.out.page_outs += u64::from(self.measuring);
                self.out.guests_displaced += u64::from(self.measuring);
                self.tell(number, Event::Displace { owner, page }, None);
            }
            Kept::Nothing => (),
        }
        true
    }

    /// The thread has its frame: requests the page.
    fn frame_acquired(&mut self, number: u32) {
        self.check_wait(number);
        let now_ns = self.now_ns;
        let first_touch = self.config.load.first_touch;
        let Some(thread) = self.node(number).thread.as_deref_mut() else { return };
        let Some((page, _)) = thread.pending else { return };
        thread.doing = Doing::WaitsForPage;
        thread.asked_ns = now_ns;
        let token = thread.token(page);
        match thread.pages[page as usize] {
            State::Fresh => {
                self.out.first_touches += u64::from(self.measuring);
                if first_touch == FirstTouch::Zero {
                    self.page_is_here(number, token, 0, false);
                } else {
                    self.send_to_disk(number, What::Read(Disked::Own(token, 0, 0)));
                }
            }
            State::Saved => self.send_to_disk(number, What::Read(Disked::Own(token, 0, 0))),
            State::Out => self.tell(number, Event::PageIn(token), None),
            State::Coming => self.bring_near(number),
            State::Here(_) | State::Near(_) | State::Program => (),
        }
    }

    /// A disk has read an own page.
    pub(super) fn read_from_disk(&mut self, number: u32, token: u64) {
        let Some(thread) = self.node(number).thread.as_deref() else { return };
        let Some(page) = thread.page(token) else { return };
        let (fault_ns, asked_ns) = (thread.fault_ns, thread.asked_ns);
        let content = thread.saved.get(&page).map_or(0, |&(_, content)| content);
        if self.measuring {
            self.out.disk_fetch_ns.add(self.now_ns - asked_ns);
            self.out.response_disk_ns.add(self.now_ns - fault_ns);
        }
        let stale = self.config.run.canary == Canary::StaleContent;
        let content = if stale { content.saturating_sub(1) } else { content };
        self.page_is_here(number, token, content, false);
    }

    /// A page that the thread waits for is here; `dirty`: no disk has it.
    pub(super) fn page_is_here(&mut self, number: u32, token: u64, content: u32, dirty: bool) {
        let now_ns = self.now_ns;
        let Some(thread) = self.node(number).thread.as_deref_mut() else { return };
        let Some(page) = thread.page(token) else { return };
        let waits = thread.doing == Doing::WaitsForPage
            && thread.pending.is_some_and(|(pending, _)| pending == page);
        let (written, replays) = (thread.written[page as usize], thread.replays);
        let (was, asked_ns, fault_ns) =
            (thread.pages[page as usize], thread.asked_ns, thread.fault_ns);
        if !waits || matches!(was, State::Here(_)) {
            self.wrong(format!("page {page} of node {number} arrives, but nobody waits for it"));
            return;
        }
        if content != written {
            self.wrong(format!(
                "page {page} of node {number} arrives with content {content}, but was written {written} times"
            ));
        }
        if self.measuring && was == State::Out && dirty {
            self.out.transfer_ns.add(now_ns - asked_ns);
            self.out.response_remote_ns.add(now_ns - fault_ns);
        }
        let node = self.node(number);
        let state = if replays {
            State::Program
        } else {
            let place = node.fill(Slot { kept: Kept::Own(page), content, dirty, leaves: false });
            node.ranking.insert(place);
            State::Here(place)
        };
        if let Some(thread) = node.thread.as_deref_mut() {
            thread.pages[page as usize] = state;
        }
        self.answered(number);
        self.touch_pending(number);
    }

    /// The fault of a thread is over.
    fn answered(&mut self, number: u32) {
        self.check_wait(number);
        let (now_ns, measuring) = (self.now_ns, self.measuring);
        let Some(thread) = self.node(number).thread.as_deref_mut() else { return };
        thread.doing = Doing::Running;
        let (counts, took_ns) = (thread.counts, now_ns - thread.fault_ns);
        self.waiting -= 1;
        if measuring && counts {
            self.out.response_ns.add(took_ns);
        }
    }

    /// Makes the access that faulted, and continues the thread.
    fn touch_pending(&mut self, number: u32) {
        let node = &mut self.nodes[number as usize];
        let Some(thread) = node.thread.as_deref_mut() else { return };
        let Some((page, write)) = thread.pending.take() else { return };
        if let State::Here(place) = thread.pages[page as usize] {
            node.ranking.touch(place);
            if write {
                thread.written[page as usize] += 1;
                let slot = &mut node.slots[place as usize];
                (slot.dirty, slot.content) = (true, slot.content + 1);
            }
        }
        // Not at once: the command that brought the page may have more to do.
        thread.due_ns = self.now_ns;
        let due_ns = self.now_ns;
        self.at(due_ns, EventKind::Run, number);
    }

    fn end_thread(&mut self, number: u32) {
        let Some(plan) = self.kill_thread(number) else { return };
        let ended = self.processes.thread_ended(plan.process);
        if let Some(arrived_ns) = ended.filter(|_| self.measuring) {
            self.out.processes_ended += 1;
            self.out.process_ns.add(self.now_ns - arrived_ns);
        }
        self.start_next(number);
    }

    /// Ends a thread, and drops its pages. Returns its plan.
    pub(super) fn kill_thread(&mut self, number: u32) -> Option<ThreadPlan> {
        let now_ns = self.now_ns;
        let thread = self.node(number).thread.take()?;
        self.integrate();
        self.busy_nodes -= 1;
        if thread.doing != Doing::Running {
            self.waiting -= 1;
        } else if thread.accesses.left == 0 && thread.pending.is_none() && self.measuring {
            self.out.thread_ns.add(now_ns - thread.started_ns);
        }
        let framed = thread.doing == Doing::WaitsForPage && !thread.replays;
        let mut out = Vec::new();
        self.change(number, |node| {
            node.own_frames -= u32::from(framed);
            for (page, state) in (0..).zip(&thread.pages) {
                match *state {
                    State::Here(place) => {
                        node.own_frames -= 1;
                        let slot = node.empty(place);
                        if slot.leaves {
                            node.evicting -= 1;
                            out.push(thread.token(page));
                        }
                    }
                    State::Out => out.push(thread.token(page)),
                    State::Fresh
                    | State::Saved
                    | State::Near(_)
                    | State::Coming
                    | State::Program => (),
                }
            }
            node.tier = Tier::default();
        });
        for token in out {
            let node = self.node(number);
            node.held.remove(&token);
            node.pieces.remove(&token);
            self.tell(number, Event::Drop(token), None);
        }
        self.tell(number, Event::Tick, None);
        Some(thread.plan)
    }

    /// A page that the thread needs is lost: it begins again.
    pub(super) fn page_lost(&mut self, number: u32, token: u64, version: u64) {
        self.check_lost(number, token, version);
        let Some(thread) = self.node(number).thread.as_deref_mut() else { return };
        let started_ns = thread.started_ns;
        let Some(page) = thread.page(token) else { return };
        let replays = thread.replays;
        if replays {
            // The recording goes on as if the page had come.
            thread.pages[page as usize] = State::Program;
        }
        self.out.pages_lost += u64::from(self.measuring);
        if replays {
            self.answered(number);
            self.touch_pending(number);
            return;
        }
        if self.measuring {
            self.out.threads_restarted += 1;
            self.out.work_lost_ns += self.now_ns - started_ns;
        }
        if let Some(plan) = self.kill_thread(number) {
            self.node(number).queue.push_front(plan);
            self.start_next(number);
        }
    }
}
