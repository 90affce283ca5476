//! The simulated machine: processes events in order, and lets nodes, network and disks act on them.

mod ahead;
mod deliver;
mod fabric;
mod failures;
mod node;
mod observe;
mod paging;
mod passed_on;
mod post;
mod replay;
mod script;
mod tables;
mod threads;
mod tier;

use std::collections::{BTreeMap, BTreeSet};

use hiroma_policy::placement::replacement::AnyRanking;
use hiroma_policy::placement::{Command, Event, Placer, PolicyError, Rng};

use crate::check::{Checker, Place};
use crate::classes::Specs;
use crate::config::{Canary, Config};
use crate::disk::Disks;
use crate::error::{PolicyFailure, Progress, RunError, Stuck};
use crate::load::ThreadPlan;
use crate::message::{Kind, Messages};
use crate::network::{Fabric, Network, Signals};
use crate::observe::Observer;
use crate::outcome::Outcome;
use crate::processes::Processes;
use crate::queue::Queue;
use crate::random::Normal;
use crate::recorded::Recorded;
use crate::script::{Downs, Outages, Scripted as _};
use crate::site::{SharedByNodes, Site};
use crate::topology::Topology;
use node::{Doing, Node};
use passed_on::PassedOn;
use tables::{Page, State, Tables, Whereabouts};

/// Events between two calls of `control`.
const EVENTS_PER_LOOK: u64 = 1 << 16;
/// Pages of new tables between two calls of `control`: 20 MB.
const PAGES_PER_LOOK: u64 = 1 << 20;
/// A run is extended by this time if its recording is not finished.
const REPLAY_MORE_NS: u64 = 1_000_000_000;
/// Number of audits of the checkers in a run.
const AUDITS: u64 = 16;

/// Memory of a table of `pages` pages.
pub fn table_bytes(pages: u32) -> u64 {
    u64::from(pages) * size_of::<Page>() as u64
}

/// Event types; the low 32 bits of a payload identify the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum EventKind {
    /// A message is at the next node or switch.
    Hop,
    /// A message is handled by its receiver.
    Deliver,
    /// A disk has read what a message requested.
    DiskRead,
    /// A thread continues.
    Run,
    /// The page in a frame has been sent.
    FrameFree,
    /// A placer's deadline.
    Tick,
    /// A process arrives.
    Arrive,
    /// Measuring begins.
    Measure,
    /// The next record of a recorded client.
    Replay,
    /// A node fails.
    Fail,
    /// A node is repaired.
    Repair,
    /// The sender of a message detects that the receiver does not answer.
    Bounce,
    /// The end.
    End,
    /// An event of the network itself.
    Fabric,
    /// The processor of a node on the way of a message has forwarded it.
    Forward,
}

const EVENT_KINDS: [EventKind; 15] = [
    EventKind::Hop,
    EventKind::Deliver,
    EventKind::DiskRead,
    EventKind::Run,
    EventKind::FrameFree,
    EventKind::Tick,
    EventKind::Arrive,
    EventKind::Measure,
    EventKind::Replay,
    EventKind::Fail,
    EventKind::Repair,
    EventKind::Bounce,
    EventKind::End,
    EventKind::Fabric,
    EventKind::Forward,
];

/// The machine.
pub struct Engine<'a> {
    config: &'a Config,
    seed: u64,
    now_ns: u64,
    events: u64,
    queue: Queue,
    topology: Topology,
    network: Network,
    /// The network, if it has events of its own; `network` is not used then.
    fabric: Option<Box<Fabric>>,
    signals: Signals,
    route: Vec<u32>,
    /// Frames that become free when a message has been sent.
    frames_sent: BTreeMap<u32, u32>,
    in_order: fabric::InOrder,
    /// Time of the processor of a node that a message without, or with, a page passes, ns.
    forward_ns: [u64; 2],
    passed_on: PassedOn,
    disks: Disks,
    nodes: Vec<Node>,
    specs: Specs,
    outages: Outages,
    downs: Downs,
    shared: SharedByNodes,
    tables: Tables,
    messages: Messages,
    normal: Normal,
    processes: Processes,
    replay: Option<Recorded>,
    failures: Rng,
    checker: Checker,
    observer: Option<Observer>,
    out: Outcome,
    measuring: bool,
    ended: bool,
    /// Nodes with a thread, and frames in use, for their integrals over time.
    busy_nodes: u64,
    used_frames: u64,
    integrated_ns: u64,
    frames_used_ns: u128,
    /// Threads that wait for a page.
    waiting: u64,
    /// Pages that arrived, for the canary.
    arrived_pages: u64,
    canary_turns: u64,
    /// Reused buffers.
    commands: Vec<Command>,
    plans: Vec<(u32, ThreadPlan)>,
}

impl<'a> Engine<'a> {
    /// The machine of a valid configuration, idle.
    pub fn new(config: &'a Config, seed: u64) -> Self {
        let Site { topology, specs, disks, shared } = Site::new(config, &config.policy, seed);
        let nodes = (0..topology.nodes())
            .map(|node| {
                let placer = Placer::new(shared.of(node).clone(), placer_seed(seed, node, 0), 0);
                Node::new(placer, AnyRanking::new(config.policy.replacement))
            })
            .collect();
        Engine {
            seed,
            now_ns: 0,
            events: 0,
            queue: Queue::default(),
            network: Network::new(
                &config.network,
                topology.links(),
                config.node.page_bytes,
                config.run.count_links,
            ),
            fabric: Fabric::new(config, &topology, config.node.page_bytes, config.run.count_links),
            signals: Signals::default(),
            route: Vec::new(),
            frames_sent: BTreeMap::new(),
            in_order: fabric::InOrder::default(),
            forward_ns: config.network.forward_ns(),
            passed_on: PassedOn::new(&config.network),
            disks,
            nodes,
            shared,
            tables: Tables::default(),
            messages: Messages::default(),
            normal: Normal::new(),
            processes: Processes::new(&config.load, seed),
            replay: None,
            failures: Rng::part(seed, 3),
            checker: Checker::new(config.run.check, topology.nodes(), |node| {
                specs.of(node).frames + specs.of(node).tier_frames
            }),
            observer: None,
            out: Outcome::default(),
            measuring: false,
            ended: false,
            busy_nodes: 0,
            used_frames: 0,
            integrated_ns: 0,
            frames_used_ns: 0,
            waiting: 0,
            arrived_pages: 0,
            canary_turns: 0,
            commands: Vec::new(),
            plans: Vec::new(),
            specs,
            outages: Outages::default(),
            downs: Downs::default(),
            topology,
            config,
        }
    }

    /// Runs to the end.
    pub fn run(mut self, control: &mut dyn FnMut(Progress) -> bool) -> Result<Outcome, RunError> {
        let run = &self.config.run;
        let end_ns = run.warmup_ns + run.duration_ns;
        self.begin(end_ns);
        let patience_ns = self.config.patience_ns();
        let (mut looked, mut audit_ns, mut searched_ns) = (0, end_ns / AUDITS, 0);
        while let Some((time_ns, payload)) = self.queue.pop() {
            self.now_ns = time_ns;
            self.events += 1;
            if self.events % ahead::AHEAD == 0 {
                self.read_ahead();
            }
            // Before the event: what follows an event at once is not what is found at any time.
            self.observe();
            self.dispatch(EVENT_KINDS[(payload >> 32) as usize & 15], payload as u32);
            if let Some(error) = self.shared.of(0).policy_failure() {
                return Err(self.policy_failed(error));
            }
            if run.check && self.now_ns >= audit_ns {
                audit_ns = self.now_ns + (end_ns / AUDITS).max(1);
                self.audit();
            }
            if self.checker.objects() {
                break;
            }
            if self.is_settling() && !run.check {
                break;
            }
            if self.events - looked >= EVENTS_PER_LOOK || self.tables.fresh() >= PAGES_PER_LOOK {
                looked = self.events;
                self.tables.forget_fresh();
                let progress = Progress { now_ns: self.now_ns, end_ns, events: self.events };
                if !control(progress) {
                    return Err(RunError::Stopped(progress));
                }
                if self.now_ns - searched_ns >= patience_ns / 4 && !self.outages.has_failed_links()
                {
                    searched_ns = self.now_ns;
                    self.find_stuck(patience_ns)?;
                }
            }
        }
        self.finish(end_ns)
    }

    #[cold]
    fn policy_failed(&self, error: &PolicyError) -> RunError {
        let (now_ns, event) = (self.now_ns, self.events);
        RunError::Policy(PolicyFailure { now_ns, event, what: error.to_string() })
    }

    fn begin(&mut self, end_ns: u64) {
        self.out = Outcome {
            seed: self.seed,
            nodes: self.nodes.len() as u64,
            links: self.topology.links().into(),
            disks: self.disks.count() as u64,
            measured_ns: self.config.run.duration_ns,
            ..Outcome::default()
        };
        if self.config.run.samples > 0 {
            let (samples, frames) = (self.config.run.samples, self.config.node.frames);
            self.observer = Some(Observer::new(samples, end_ns, self.nodes.len() as u64, frames));
        }
        self.at(self.config.run.warmup_ns, EventKind::Measure, 0);
        for node in 0..self.nodes.len() as u32 {
            self.plan_tick(node);
        }
        if self.config.failures.mean_between_ns > 0 {
            self.plan_failure();
        }
        self.plan_script();
        match &self.config.load.trace {
            Some(trace) => self.begin_replay(&trace.clone()),
            None => {
                let gap_ns = self.processes.gap_ns();
                self.at(gap_ns, EventKind::Arrive, 0);
            }
        }
        self.at(end_ns, EventKind::End, 0);
    }

    #[inline]
    fn at(&mut self, time_ns: u64, what: EventKind, whom: u32) {
        self.queue.push(time_ns, u64::from(what as u8) << 32 | u64::from(whom));
    }

    /// Whether threads have stopped, and only what is under way is finished.
    #[inline]
    fn is_settling(&self) -> bool {
        self.ended && !self.config.run.drain
    }

    #[inline]
    fn dispatch(&mut self, what: EventKind, whom: u32) {
        match what {
            EventKind::Hop => self.hop(whom),
            EventKind::Deliver => self.deliver(whom),
            EventKind::DiskRead => self.disk_read(whom),
            EventKind::Run => self.thread_due(whom),
            EventKind::FrameFree => self.frame_free(whom),
            EventKind::Tick => self.tick(whom),
            EventKind::Arrive => self.arrive(),
            EventKind::Measure => self.begin_measuring(),
            EventKind::Replay => self.replay_next(whom),
            EventKind::Fail if whom > 0 && !self.ended => self.script_step(whom),
            EventKind::Fail => self.fail(),
            EventKind::Repair => self.repair(whom),
            EventKind::Bounce => self.bounce(whom),
            EventKind::End => self.end(),
            EventKind::Fabric => self.fabric_event(whom),
            EventKind::Forward => self.next_link(whom),
        }
    }

    fn begin_measuring(&mut self) {
        self.measuring = true;
        self.integrate();
        (self.frames_used_ns, self.out.node_busy_ns) = (0, 0);
        match &mut self.fabric {
            Some(fabric) => fabric.restart_measuring(self.now_ns),
            None => self.network.restart_measuring(self.now_ns),
        }
        self.disks.restart_measuring(self.now_ns);
    }

    fn end(&mut self) {
        // A recording counts up to its last record, however long the simulated machine takes.
        if self.replay_goes_on() && self.queue.len() > 0 {
            self.out.measured_ns += REPLAY_MORE_NS;
            self.at(self.now_ns + REPLAY_MORE_NS, EventKind::End, 0);
            return;
        }
        self.integrate();
        self.ended = true;
        self.measuring = false;
        self.out.frames_used_us = (self.frames_used_ns / 1000) as u64;
        (self.out.link_busy_ns, self.out.link_busy_max_ns) = match &mut self.fabric {
            Some(fabric) => fabric.busy_ns(self.now_ns),
            None => self.network.busy_ns(self.now_ns),
        };
        (self.out.disk_busy_ns, self.out.disk_accesses) = self.disks.measured(self.now_ns);
        self.out.events = self.events;
        self.end_script(self.now_ns);
    }

    /// Integrates busy nodes and used frames up to now; to be called before either changes.
    #[inline]
    fn integrate(&mut self) {
        let span_ns = self.now_ns - self.integrated_ns;
        self.integrated_ns = self.now_ns;
        if !self.ended {
            self.out.node_busy_ns += self.busy_nodes * span_ns;
            self.frames_used_ns += u128::from(self.used_frames) * u128::from(span_ns);
        }
    }

    fn plan_tick(&mut self, node: u32) {
        if let Some(time_ns) = self.nodes[node as usize].placer.deadline_ns() {
            self.at(time_ns.max(self.now_ns), EventKind::Tick, node);
        }
    }

    fn tick(&mut self, node: u32) {
        // A failed node has a new deadline; the old one is void.
        let placer = &self.nodes[node as usize].placer;
        if self.ended || !self.nodes[node as usize].up || placer.deadline_ns() != Some(self.now_ns)
        {
            return;
        }
        self.tell_placer(node, Event::Tick);
        self.plan_tick(node);
    }

    fn audit(&mut self) {
        let nodes = &self.nodes;
        self.checker.audit(self.messages.len(), self.waiting, |node| {
            let node = &nodes[node as usize];
            node.pages + node.extra.as_ref().map_or(0, |extra| extra.tier.len())
        });
        if self.config.run.check {
            for (number, table) in (0..).zip(self.tables.all()).filter(|(_, table)| table.live) {
                self.checker.audit_table(number, |page| place_of(&table.pages[page]));
            }
            self.audit_dead();
        }
    }

    /// A page of a thread that has ended is discarded, or somebody is about to.
    fn audit_dead(&mut self) {
        let discards: BTreeSet<(u32, u32)> = self
            .messages
            .under_way()
            .filter(|message| matches!(message.kind, Kind::Discard | Kind::Placed))
            .map(|message| (message.table, message.page))
            .collect();
        for (number, table) in (0..).zip(self.tables.all()).filter(|(_, table)| table.out > 0) {
            // A node that failed discards when it is repaired.
            let extra = self.nodes[table.node as usize].extra.as_ref();
            if extra.is_some_and(|extra| extra.orphans.contains(&(number, table.serial))) {
                continue;
            }
            for (page, entry) in (0..).zip(&table.pages) {
                if entry.whereabouts == Whereabouts::Frame && !discards.contains(&(number, page)) {
                    self.checker.forgotten(number, page, entry.node);
                }
            }
        }
    }

    /// Checks what holds when nothing is under way.
    fn rest(&mut self) -> Result<(), RunError> {
        // A thread that waits now waits forever.
        self.find_stuck(0)?;
        let mut reserved = vec![0; self.nodes.len()];
        for (number, node) in (0..).zip(&self.nodes) {
            for peer in node.placer.reserved() {
                reserved[self.topology.peer(number, peer) as usize] += 1;
            }
        }
        let promises_may_be_lost =
            self.config.failures.mean_between_ns > 0 || crate::script::nodes_fail(self.config);
        for (number, (node, mut reserved)) in (0..).zip(self.nodes.iter().zip(reserved)) {
            let promised = node.placer.promised();
            if promises_may_be_lost {
                // With a node, or with an answer to one that has failed meanwhile.
                reserved = promised;
            }
            let used = node.used + self.in_tier(number);
            self.checker.at_rest(number, used, promised, reserved);
        }
        for (number, table) in (0..).zip(self.tables.all()) {
            if !table.live {
                self.checker.guests_of_dead(number, table.out);
                continue;
            }
            for (page, entry) in (0..).zip(&table.pages) {
                let at = (entry.whereabouts == Whereabouts::Frame).then_some(entry.node);
                let known = match entry.state {
                    State::Away => Some(entry.holder),
                    State::Resident | State::Near if at.is_some() => Some(table.node),
                    _ => None,
                };
                if entry.whereabouts != Whereabouts::Lost {
                    self.checker.known_at_rest(number, page, known, at);
                }
            }
        }
        Ok(())
    }

    /// A thread that has waited too long, with all links working, will never be answered; with 0, one
    /// that waits at all.
    fn find_stuck(&self, after_ns: u64) -> Result<(), RunError> {
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(thread) =
                node.thread.as_ref().filter(|thread| thread.doing != Doing::Running)
            {
                if self.now_ns - thread.fault_ns.max(self.outages.links_up_ns()) >= after_ns {
                    let what = format!(
                        "node {number} has waited for page {:?} since {} ns ({:?})",
                        thread.pending, thread.fault_ns, thread.doing
                    );
                    return Err(RunError::Stuck(Stuck {
                        now_ns: self.now_ns,
                        event: self.events,
                        what,
                    }));
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, end_ns: u64) -> Result<Outcome, RunError> {
        if !self.checker.objects() {
            self.audit();
        }
        if let Some(violation) = self.checker.violation(self.now_ns, self.events) {
            return Err(RunError::Wrong(violation));
        }
        if self.queue.len() == 0 {
            if self.config.run.check {
                self.rest()?;
            }
            if let Some(violation) = self.checker.violation(self.now_ns, self.events) {
                return Err(RunError::Wrong(violation));
            }
        } else {
            self.find_stuck(self.config.patience_ns())?;
        }
        debug_assert!(self.ended, "the end at {end_ns} ns is an event");
        if self.config.run.drain {
            self.out.events = self.events;
        }
        if let Some(observer) = self.observer.take() {
            self.out.observed = Some(observer.into_observed());
        }
        self.out.checks = self.checker.checks();
        let bytes = self.fabric.as_ref().map(|fabric| fabric.bytes());
        self.out.link_bytes = bytes.unwrap_or(self.network.bytes()).to_vec();
        Ok(self.out)
    }

    /// Memory of the machine now, bytes: everything except the program itself.
    pub fn heap_bytes(&self) -> usize {
        let nodes: usize =
            self.nodes.iter().map(|node| size_of::<Node>() + node.heap_bytes()).sum();
        nodes
            + self.network.heap_bytes()
            + self.fabric.as_ref().map_or(0, |fabric| fabric.heap_bytes())
            + self.messages.heap_bytes()
            + self.tables.heap_bytes()
            + self.queue.heap_bytes()
            + self.topology.heap_bytes()
            + self.disks.heap_bytes()
    }

    /// Whether a canary acts now: each time it could `every` times.
    fn canary_acts(&mut self, canary: Canary, every: u64) -> bool {
        if self.config.run.canary != canary {
            return false;
        }
        self.canary_turns += 1;
        self.canary_turns % every == 0
    }

    /// Whether this page arrival is the one that a canary corrupts.
    fn is_canary(&self, canary: Canary) -> bool {
        self.config.run.canary == canary && self.arrived_pages == 100
    }
}

/// Where the machine believes a page to be.
fn place_of(page: &Page) -> Option<Place> {
    match page.whereabouts {
        Whereabouts::Frame => Some(Place::Frame(page.node)),
        Whereabouts::Hand => Some(Place::Hand(page.node)),
        // These do not say which.
        Whereabouts::Message | Whereabouts::Elsewhere => None,
        Whereabouts::Lost => Some(Place::Lost),
    }
}

fn placer_seed(seed: u64, node: u32, epoch: u8) -> u64 {
    Rng::part(seed, u64::from(node) << 16 | u64::from(epoch) << 8 | 4).next_u64()
}
