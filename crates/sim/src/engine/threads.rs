//! Processes and threads: they arrive, run until they touch a page that is not resident, wait for
//! it, and end.

use hiroma_policy::placement::Event;
use hiroma_policy::placement::replacement::Ranking;

use crate::check::Place;
use crate::config::{Canary, FirstTouch};
use crate::engine::node::{Doing, Frame, Thread};
use crate::engine::tables::{State, Whereabouts};
use crate::engine::{Engine, EventKind};
use crate::load::{Accesses, ThreadPlan};
use crate::message::{Kind, Message, ON_DISK, UNKNOWN};
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
            let place = &mut self.nodes[node as usize];
            if place.thread.is_some() || !place.up {
                place.extra().queue.push_back(plan);
            } else {
                self.start(node, plan);
            }
        }
        self.plans = plans;
        let next_ns = self.now_ns + self.processes.gap_ns();
        self.at(next_ns, EventKind::Arrive, 0);
    }

    pub(super) fn start(&mut self, node: u32, plan: ThreadPlan) {
        self.integrate();
        self.busy_nodes += 1;
        let table = self.tables.create(node, plan.pages);
        self.checker.table(table, plan.pages);
        let accesses = Accesses::new(&self.config.load, &plan);
        let now_ns = self.now_ns;
        let thread = Thread {
            plan,
            table,
            accesses,
            doing: Doing::Running,
            pending: None,
            framed: false,
            replays: false,
            fault_ns: now_ns,
            asked_ns: now_ns,
            counts: false,
            started_ns: now_ns,
            due_ns: now_ns,
        };
        self.nodes[node as usize].thread = Some(Box::new(thread));
        self.run_thread(node);
    }

    /// Handles the event that a thread waits for, unless it is left over from before a failure.
    pub(super) fn thread_due(&mut self, node: u32) {
        if self.is_settling() {
            return;
        }
        let now_ns = self.now_ns;
        match self.nodes[node as usize]
            .thread
            .as_ref()
            .filter(|thread| thread.due_ns == now_ns && thread.doing == Doing::Running)
        {
            Some(thread) if thread.pending.is_some() => self.fault(node),
            Some(_) => self.run_thread(node),
            None => (),
        }
    }

    /// Runs a thread until it touches a page that is not resident, or for a while.
    pub(super) fn run_thread(&mut self, number: u32) {
        if self.is_settling() {
            return;
        }
        let access_ns = self.specs.of(number).access_ns;
        let node = &mut self.nodes[number as usize];
        let Some(thread) = node.thread.as_deref_mut() else { return };
        let table = self.tables.get_mut(thread.table);
        let mut made = 0;
        while thread.accesses.left > 0 && made < ACCESSES_AT_ONCE {
            let (page, write) = thread.accesses.draw(&self.normal);
            made += 1;
            let entry = &table.pages[page as usize];
            if entry.state != State::Resident {
                thread.pending = Some((page, write));
                break;
            }
            node.ranking.touch(entry.frame);
            if write {
                let frame = &mut node.frames[entry.frame as usize];
                frame.dirty = true;
                frame.content += 1;
                self.checker.write(thread.table, page, number);
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

    /// The thread touches a page that is not resident.
    pub(super) fn fault(&mut self, number: u32) {
        let now_ns = self.now_ns;
        let Some(thread) = self.nodes[number as usize].thread.as_deref_mut() else { return };
        let Some((page, _)) = thread.pending else { return };
        let state = self.tables.page(thread.table, page).state;
        if state == State::Resident {
            self.touch_pending(number);
            return;
        }
        let (table, replays) = (thread.table, thread.replays);
        thread.fault_ns = now_ns;
        thread.counts = state != State::Fresh || self.config.load.first_touch == FirstTouch::Disk;
        thread.doing = Doing::WaitsForFrame;
        self.waiting += 1;
        self.checker.fault();
        if state == State::Near {
            self.take_from_tier(number, table, page);
        }
        if replays {
            self.ask_for_page(number);
        } else if self.acquire_frame(number) {
            self.frame_acquired(number);
        }
    }

    /// The thread has its frame: requests the page.
    pub(super) fn frame_acquired(&mut self, number: u32) {
        if let Some(thread) = self.nodes[number as usize].thread.as_deref_mut() {
            thread.framed = true;
        }
        self.ask_for_page(number);
    }

    /// Requests the page that a thread needs from its known place.
    pub(super) fn ask_for_page(&mut self, number: u32) {
        let now_ns = self.now_ns;
        let Some(thread) = self.nodes[number as usize].thread.as_deref_mut() else { return };
        let Some((page, _)) = thread.pending else { return };
        let (table, first_touch) = (thread.table, self.config.load.first_touch);
        let entry = self.tables.page(table, page);
        thread.asked_ns = now_ns;
        thread.doing = Doing::WaitsForPage;
        let (kind, target, value) = match entry.state {
            State::Fresh if first_touch == FirstTouch::Zero => {
                self.out.first_touches += u64::from(self.measuring);
                self.page_is_here(number, 0, false);
                return;
            }
            State::Fresh => {
                self.out.first_touches += u64::from(self.measuring);
                let disk = self.disks.of_node(number);
                (Kind::FetchFromDisk, self.disks.node(disk), disk)
            }
            State::OnDisk => (
                Kind::FetchFromDisk,
                self.disks.node(entry.holder & !ON_DISK),
                entry.holder & !ON_DISK,
            ),
            State::Away if entry.holder != UNKNOWN => {
                (Kind::Fetch, self.passed_on.first(table, page).unwrap_or(entry.holder), 0)
            }
            State::Away | State::Leaving => {
                thread.doing = Doing::WaitsForPlace;
                return;
            }
            State::Near => {
                self.bring_from_tier(number, table, page);
                return;
            }
            State::Resident => {
                self.found_resident(number);
                return;
            }
        };
        let moves = entry.moves_known;
        let serial = self.tables.get(table).serial;
        self.post(Message {
            table,
            serial,
            page,
            moves,
            ..Message::new(kind, number, target, value)
        });
    }

    /// The page that a thread needs is resident without a fetch: the frame reserved for it is not
    /// needed.
    pub(super) fn found_resident(&mut self, number: u32) {
        let Some(thread) = self.nodes[number as usize].thread.as_deref_mut() else { return };
        let framed = std::mem::take(&mut thread.framed);
        self.answered(number);
        if framed {
            self.frame_unused(number);
        }
        self.touch_pending(number);
    }

    /// The content of the page that a thread waits for is here; `dirty`: no disk has it.
    pub(super) fn page_is_here(&mut self, number: u32, content: u32, dirty: bool) {
        let node = &mut self.nodes[number as usize];
        let Some(thread) = node.thread.as_deref_mut() else { return };
        let Some((page, _)) = thread.pending else { return };
        let (table, replays) = (thread.table, thread.replays);
        thread.framed = false;
        let entry = self.tables.page(table, page);
        (entry.state, entry.moves_known) = (State::Resident, entry.moves);
        if replays {
            entry.whereabouts = Whereabouts::Elsewhere;
            entry.content = content;
            self.checker.put(table, page, Place::Program, content);
        } else {
            let frame = node.fill(Frame { table, page, content, dirty });
            node.ranking.insert(frame);
            (entry.whereabouts, entry.node, entry.frame) = (Whereabouts::Frame, number, frame);
            self.checker.put(table, page, Place::Frame(number), content);
        }
        self.answered(number);
        self.touch_pending(number);
    }

    /// The fault of a thread is over.
    fn answered(&mut self, number: u32) {
        let Some(thread) = self.nodes[number as usize].thread.as_deref_mut() else { return };
        thread.doing = Doing::Running;
        self.waiting -= 1;
        self.checker.answered();
        if self.measuring && thread.counts {
            self.out.response_ns.add(self.now_ns - thread.fault_ns);
        }
    }

    /// Makes the access that faulted, and continues the thread.
    fn touch_pending(&mut self, number: u32) {
        let node = &mut self.nodes[number as usize];
        let Some(thread) = node.thread.as_deref_mut() else { return };
        thread.doing = Doing::Running;
        let Some((page, write)) = thread.pending.take() else { return };
        if thread.replays {
            self.replay_after(number);
            return;
        }
        let place = self.tables.page(thread.table, page).frame;
        node.ranking.touch(place);
        if write {
            let frame = &mut node.frames[place as usize];
            frame.dirty = true;
            frame.content += 1;
            self.checker.write(thread.table, page, number);
        }
        self.run_thread(number);
    }

    fn end_thread(&mut self, number: u32) {
        let Some(thread) = self.nodes[number as usize].thread.take() else { return };
        self.integrate();
        self.busy_nodes -= 1;
        self.drop_table(number, thread.table, true);
        if self.measuring {
            self.out.thread_ns.add(self.now_ns - thread.started_ns);
        }
        let ended = self.processes.thread_ended(thread.plan.process);
        if let Some(arrived_ns) = ended.filter(|_| self.measuring) {
            self.out.processes_ended += 1;
            self.out.process_ns.add(self.now_ns - arrived_ns);
        }
        self.free_changed(number);
        self.start_next(number);
    }

    /// Starts the next thread that waits for a node.
    pub(super) fn start_next(&mut self, number: u32) {
        let node = &mut self.nodes[number as usize];
        if let Some(plan) = node.extra.as_mut().and_then(|extra| extra.queue.pop_front()) {
            self.start(number, plan);
        }
    }

    /// The pages of a thread are no longer needed. With `tell`, the nodes that store them are
    /// notified.
    pub(super) fn drop_table(&mut self, number: u32, table: u32, tell: bool) {
        let (mut out, pages) = (0, self.tables.get(table).pages.len() as u32);
        for page in 0..pages {
            let entry = *self.tables.page(table, page);
            if entry.state == State::Near && entry.whereabouts == Whereabouts::Frame {
                let tier = &mut self.nodes[number as usize].extra().tier;
                let content = tier.remove(entry.frame).map_or(0, |frame| frame.content);
                self.checker.drop_clean(table, page, Place::Frame(number), content, Place::Nowhere);
                self.tables.page(table, page).whereabouts = Whereabouts::Elsewhere;
            } else if entry.whereabouts == Whereabouts::Frame && entry.node == number {
                let node = &mut self.nodes[number as usize];
                let Frame { content, .. } = node.empty(entry.frame);
                node.ranking.remove(entry.frame);
                self.checker.drop_clean(table, page, Place::Frame(number), content, Place::Nowhere);
                self.tables.page(table, page).whereabouts = Whereabouts::Elsewhere;
                self.unuse_frame(number);
            } else if entry.is_out(number) {
                out += 1;
                if tell
                    && entry.state == State::Away
                    && entry.holder & ON_DISK == 0
                    && !self.canary_acts(Canary::DropDiscard, 2)
                {
                    let serial = self.tables.get(table).serial;
                    self.post(Message {
                        table,
                        serial,
                        page,
                        moves: entry.moves,
                        ..Message::new(Kind::Discard, number, entry.holder, 0)
                    });
                }
            }
        }
        self.tables.end(table, out);
    }

    /// Reports the free frames to the placer.
    pub(super) fn free_changed(&mut self, number: u32) {
        let node = &self.nodes[number as usize];
        let frames = self.specs.of(number).frames;
        let free = frames.saturating_sub(node.used + node.placer.promised());
        self.tell_placer(number, Event::Free(free));
    }
}
