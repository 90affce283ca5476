//! The cluster with faults: messages are lost, repeated and reordered, links are cut, nodes fail.
//!
//! Each node is a member (`hiroma_policy::placement::member`) and what is physically there
//! ([`node`]). A node acts only on what is its own and what messages say; only the checks ([`audit`])
//! look at several nodes at once.

mod act;
mod audit;
mod faults;
mod mail;
mod node;
mod observe;
mod outages;
mod replay;
mod start;
mod threads;
mod tier;
mod waits;

use std::collections::BTreeSet;

use hiroma_policy::placement::member::Event;
use hiroma_policy::placement::replacement::AnyRanking;
use hiroma_policy::placement::{PlacementConfig, PolicyError, Rng};

use crate::classes::Specs;
use crate::config::{Canary, Config, OutageConfig};
use crate::disk::Disks;
use crate::error::{PolicyFailure, Progress, RunError, Violation};
use crate::load::ThreadPlan;
use crate::network::{Fabric, Network, Signals};
use crate::observe::Observer;
use crate::outcome::{FaultTally, Outcome};
use crate::processes::Processes;
use crate::queue::Queue;
use crate::random::{Normal, exponential};
use crate::recorded::Recorded;
use crate::script::{Downs, Outages, Scripted as _};
use crate::site::{SharedByNodes, Site};
use crate::topology::Topology;
use faults::Faults;
use mail::{FORWARDED, LATE, Post};
use node::{Doing, Node};
use waits::Waits;

/// Events between two calls of `control`.
const EVENTS_PER_LOOK: u64 = 1 << 14;
/// Nodes that start between two calls of `control`: some 30 MB.
const MEMBERS_PER_LOOK: u32 = 1 << 14;
/// How late the canary acts at deadlines.
const LATE_NS: u64 = 60_000_000_000;
/// A run is extended by this time if its recording is not finished.
const REPLAY_MORE_NS: u64 = 1_000_000_000;
/// Number of audits in a run.
const AUDITS: u64 = 16;
/// After the end, the cluster has so many leases to come to rest.
const REST_LEASES: u64 = 3;

/// Event types; the low 32 bits of a payload identify the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum EventKind {
    /// A message is at the next node or switch.
    Hop,
    /// A message is handled by its receiver.
    Deliver,
    /// A disk has done what a message requested.
    DiskDone,
    /// A thread continues.
    Run,
    /// A member's deadline.
    Tick,
    /// A process arrives.
    Arrive,
    /// Measuring begins.
    Measure,
    /// A random node fails; or a step of the script, by its number from 1.
    Fail,
    /// A node fails at a given time.
    Crash,
    /// A node is repaired.
    Repair,
    /// A node begins to be emptied, or is used again.
    Drain,
    /// A node suspects another.
    Suspect,
    /// Somebody suspects somebody without reason.
    SuspectWrongly,
    /// Threads end, and with them the faults.
    End,
    /// Everything must be at rest.
    Rest,
    /// An event of the network.
    Fabric,
}

const EVENT_KINDS: [EventKind; 16] = [
    EventKind::Hop,
    EventKind::Deliver,
    EventKind::DiskDone,
    EventKind::Run,
    EventKind::Tick,
    EventKind::Arrive,
    EventKind::Measure,
    EventKind::Fail,
    EventKind::Crash,
    EventKind::Repair,
    EventKind::Drain,
    EventKind::Suspect,
    EventKind::SuspectWrongly,
    EventKind::End,
    EventKind::Rest,
    EventKind::Fabric,
];

/// Memory of one node with so many peers that has just started.
pub fn node_bytes(peers: u64) -> u64 {
    /// Timers, what is being dealt with, the first event; measured.
    const STARTED_BYTES: u64 = 720;
    /// Its name, in two directions, and what is known and assumed about it.
    const PEER_BYTES: u64 = 22;
    size_of::<Node>() as u64 + STARTED_BYTES + peers * PEER_BYTES
}

/// The cluster.
pub struct Engine<'a> {
    config: &'a Config,
    policy: PlacementConfig,
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
    /// Time of the processor of a node that a message without, or with, a page passes, ns.
    forward_ns: [u64; 2],
    outages: Outages,
    downs: Downs,
    /// Nodes that have not joined yet, and those that have.
    absent: BTreeSet<u32>,
    joined: BTreeSet<u32>,
    disks: Disks,
    nodes: Vec<Node>,
    specs: Specs,
    shared: SharedByNodes,
    post: Post,
    faults: Faults,
    waits: Waits,
    /// Failures of nodes so far.
    crashes: u64,
    normal: Normal,
    processes: Processes,
    replay: Option<Recorded>,
    failures: Rng,
    violation: Option<Violation>,
    observer: Option<Observer>,
    out: Outcome,
    measuring: bool,
    ended: bool,
    /// What went wrong in the time that was measured.
    measured_faults: FaultTally,
    busy_nodes: u64,
    integrated_ns: u64,
    frames_used_ns: u128,
    used_frames: u64,
    waiting: u64,
    canary_turns: u64,
    /// Requests that were sent, for the canary.
    asked: BTreeSet<(u32, u64, u8)>,
    /// Pieces that owners have accepted as kept: owner, page, host, attempt.
    accepted: BTreeSet<(u32, u64, u32, u64)>,
    plans: Vec<(u32, ThreadPlan)>,
}

impl<'a> Engine<'a> {
    /// The machine of a valid configuration, idle.
    pub fn new(config: &'a Config, seed: u64) -> Self {
        let policy = PlacementConfig { confirm: true, ..config.policy.clone() };
        let Site { topology, specs, disks, shared } = Site::new(config, &policy, seed);
        let nodes =
            (0..topology.nodes()).map(|_| Node::new(AnyRanking::new(policy.replacement))).collect();
        let piece_bytes = config.node.page_bytes.div_ceil(policy.pieces().0.into());
        Engine {
            seed,
            now_ns: 0,
            events: 0,
            queue: Queue::default(),
            network: Network::new(
                &config.network,
                topology.links(),
                piece_bytes,
                config.run.count_links,
            ),
            fabric: Fabric::new(config, &topology, piece_bytes, config.run.count_links),
            signals: Signals::default(),
            route: Vec::new(),
            forward_ns: config.network.forward_ns(),
            outages: Outages::default(),
            downs: Downs::default(),
            absent: BTreeSet::new(),
            joined: BTreeSet::new(),
            disks,
            nodes,
            specs,
            shared,
            post: Post::default(),
            faults: Faults::new(&config.faults, topology.nodes(), seed),
            waits: Waits::new(config),
            crashes: 0,
            normal: Normal::new(),
            processes: Processes::new(&config.load, seed),
            replay: None,
            failures: Rng::part(seed, 3),
            violation: None,
            observer: None,
            out: Outcome::default(),
            measuring: false,
            ended: false,
            measured_faults: FaultTally::default(),
            busy_nodes: 0,
            integrated_ns: 0,
            frames_used_ns: 0,
            used_frames: 0,
            waiting: 0,
            canary_turns: 0,
            asked: BTreeSet::new(),
            accepted: BTreeSet::new(),
            plans: Vec::new(),
            topology,
            policy,
            config,
        }
    }

    /// Runs to the end.
    pub fn run(mut self, control: &mut dyn FnMut(Progress) -> bool) -> Result<Outcome, RunError> {
        let run = &self.config.run;
        let end_ns = run.warmup_ns + run.duration_ns;
        self.begin(end_ns, control)?;
        let patience_ns = self.config.patience_ns();
        let audit_every_ns = (end_ns / AUDITS).max(1);
        let (mut looked, mut audit_ns) = (0, audit_every_ns);
        while let Some((time_ns, payload)) = self.queue.pop() {
            self.now_ns = time_ns;
            self.events += 1;
            let what = EVENT_KINDS[(payload >> 32) as usize & 15];
            self.dispatch(what, payload as u32);
            if let Some(error) = self.shared.of(0).policy_failure() {
                return Err(self.policy_failed(error));
            }
            self.observe();
            if run.check && self.now_ns >= audit_ns {
                audit_ns = self.now_ns + audit_every_ns;
                self.audit();
                if !self.outages.has_failed_links() {
                    self.find_stuck(patience_ns)?;
                }
            }
            if let Some(violation) = self.violation.take() {
                return Err(RunError::Wrong(violation));
            }
            if self.ended && !run.check {
                break;
            }
            if what == EventKind::Rest {
                // A recorded client has no end; its records have.
                let runs = |node: &Node| node.thread.as_ref().is_some_and(|one| !one.replays);
                if !run.drain || !self.nodes.iter().any(runs) {
                    break;
                }
                self.plan_rest(self.rest_ns());
            }
            if self.events - looked >= EVENTS_PER_LOOK {
                looked = self.events;
                self.look(end_ns, control)?;
            }
        }
        if run.check {
            self.find_stuck(0)?;
            self.rest();
        }
        match self.violation.take() {
            Some(violation) => Err(RunError::Wrong(violation)),
            None => Ok(self.finish()),
        }
    }

    #[cold]
    fn policy_failed(&self, error: &PolicyError) -> RunError {
        let (now_ns, event) = (self.now_ns, self.events);
        RunError::Policy(PolicyFailure { now_ns, event, what: error.to_string() })
    }

    /// Lets the caller end the run.
    fn look(&self, end_ns: u64, control: &mut dyn FnMut(Progress) -> bool) -> Result<(), RunError> {
        let progress = Progress { now_ns: self.now_ns, end_ns, events: self.events };
        if control(progress) { Ok(()) } else { Err(RunError::Stopped(progress)) }
    }

    fn begin(
        &mut self,
        end_ns: u64,
        control: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<(), RunError> {
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
        self.plan_script();
        for node in 0..self.nodes.len() as u32 {
            if !self.absent.contains(&node) {
                self.start_member(node);
            }
            if node % MEMBERS_PER_LOOK == MEMBERS_PER_LOOK - 1 {
                self.look(end_ns, control)?;
            }
        }
        if self.config.failures.mean_between_ns > 0 {
            self.plan_failure();
        }
        let faults = &self.config.faults;
        // Nodes do not fail any more after the end.
        for outage in faults.crashes.iter().filter(|outage| outage.from_ns <= end_ns) {
            self.at(outage.from_ns, EventKind::Crash, outage.node);
            self.at(outage.until_ns, EventKind::Repair, outage.node);
        }
        for outage in &faults.drains {
            self.at(outage.from_ns, EventKind::Drain, outage.node | 1 << 31);
            self.at(outage.until_ns, EventKind::Drain, outage.node);
        }
        if faults.wrong_suspicions_per_s > 0.0 {
            self.plan_suspicion();
        }
        match &self.config.load.trace {
            Some(trace) => self.begin_replay(&trace.clone()),
            None => {
                let gap_ns = self.processes.gap_ns();
                self.at(gap_ns, EventKind::Arrive, 0);
            }
        }
        self.at(end_ns, EventKind::End, 0);
        Ok(())
    }

    #[inline]
    fn at(&mut self, time_ns: u64, what: EventKind, whom: u32) {
        self.queue.push(time_ns, u64::from(what as u8) << 32 | u64::from(whom));
    }

    fn dispatch(&mut self, what: EventKind, whom: u32) {
        match what {
            EventKind::Hop => self.hop(whom & !FORWARDED, whom & FORWARDED != 0),
            EventKind::Deliver if whom & LATE != 0 => self.arrived(whom & !LATE, 0),
            EventKind::Deliver => self.deliver(whom),
            EventKind::DiskDone => self.disk_done(whom),
            EventKind::Run => self.thread_due(whom),
            EventKind::Tick => self.tick(whom),
            EventKind::Arrive => self.arrive(),
            EventKind::Measure => self.begin_measuring(),
            EventKind::Fail if whom > 0 && !self.ended => self.script_step(whom),
            EventKind::Fail => self.fail(),
            EventKind::Crash => self.crash(whom),
            EventKind::Repair => self.repair(whom),
            EventKind::Drain => self.drain(whom & !(1 << 31), whom >> 31 == 1),
            EventKind::Suspect => self.suspect(whom >> 16, whom & 0xffff),
            EventKind::SuspectWrongly => self.suspect_wrongly(),
            EventKind::End => self.end(),
            EventKind::Rest => (),
            EventKind::Fabric => self.fabric_event(whom),
        }
    }

    fn begin_measuring(&mut self) {
        self.measuring = true;
        self.integrate();
        (self.frames_used_ns, self.out.node_busy_ns) = (0, 0);
        self.out.faults = FaultTally::default();
        self.network.restart_measuring(self.now_ns);
        if let Some(fabric) = &mut self.fabric {
            fabric.restart_measuring(self.now_ns);
        }
        self.disks.restart_measuring(self.now_ns);
    }

    fn end(&mut self) {
        // A recording counts up to its last record, however long the simulated machine takes.
        if self.replay_goes_on() {
            self.out.measured_ns += REPLAY_MORE_NS;
            self.at(self.now_ns + REPLAY_MORE_NS, EventKind::End, 0);
            return;
        }
        self.integrate();
        (self.ended, self.measuring) = (true, false);
        self.out.frames_used_us = (self.frames_used_ns / 1000) as u64;
        (self.out.link_busy_ns, self.out.link_busy_max_ns) = match &mut self.fabric {
            Some(fabric) => fabric.busy_ns(self.now_ns),
            None => self.network.busy_ns(self.now_ns),
        };
        (self.out.disk_busy_ns, self.out.disk_accesses) = self.disks.measured(self.now_ns);
        self.out.events = self.events;
        self.measured_faults = self.out.faults;
        self.out.observed = self.observer.take().map(Observer::into_observed);
        self.end_script(self.now_ns);
        self.plan_rest(self.rest_ns());
    }

    fn rest_ns(&self) -> u64 {
        let run = &self.config.run;
        let crashes = self.config.faults.crashes.iter();
        let crashes = crashes.filter(|crash| crash.from_ns <= run.warmup_ns + run.duration_ns);
        let last_ns =
            crashes.map(|crash| crash.until_ns).max().unwrap_or(0).saturating_sub(self.now_ns);
        let failures = &self.config.failures;
        let repair_ns = if failures.mean_between_ns > 0 { failures.repair_ns } else { 0 };
        last_ns.max(repair_ns) + REST_LEASES * self.policy.lease_ns
    }

    /// Ends the run `after_ns` from now, or later if threads go on.
    fn plan_rest(&mut self, after_ns: u64) {
        self.at(self.now_ns + after_ns, EventKind::Rest, 0);
    }

    fn finish(mut self) -> Outcome {
        let bytes =
            self.fabric.as_ref().map_or_else(|| self.network.bytes(), |fabric| fabric.bytes());
        self.out.link_bytes = bytes.to_vec();
        self.out.faults = self.measured_faults;
        self.out
    }

    /// Integrates busy nodes and used frames up to now; to be called before either changes.
    fn integrate(&mut self) {
        let span_ns = self.now_ns - self.integrated_ns;
        self.integrated_ns = self.now_ns;
        if !self.ended {
            self.out.node_busy_ns += self.busy_nodes * span_ns;
            self.frames_used_ns += u128::from(self.used_frames) * u128::from(span_ns);
        }
    }

    fn node(&mut self, number: u32) -> &mut Node {
        &mut self.nodes[number as usize]
    }

    /// How many guests share a frame.
    fn pieces(&self) -> u32 {
        self.policy.pieces().0.into()
    }

    fn plan_tick(&mut self, number: u32) {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[number as usize];
        let Some(member) = &node.member else { return };
        let due_ns = member.deadline_ns().max(now_ns + 1);
        let waits = node.thread.as_ref().is_some_and(|thread| thread.doing != Doing::Running);
        let is_late = waits && self.config.run.canary == Canary::LateDeadline;
        let due_ns = due_ns.saturating_add(if is_late { LATE_NS } else { 0 });
        if due_ns < node.tick_ns && due_ns < 1 << 47 {
            node.tick_ns = due_ns;
            self.at(due_ns, EventKind::Tick, number);
        }
    }

    fn tick(&mut self, number: u32) {
        let now_ns = self.now_ns;
        let node = self.node(number);
        if node.tick_ns == now_ns && node.member.is_some() {
            node.tick_ns = u64::MAX;
            self.tell(number, Event::Tick, None);
        }
    }

    fn plan_failure(&mut self) {
        let mean_ns = self.config.failures.mean_between_ns as f64;
        let gap_ns = exponential(&mut self.failures, mean_ns).min(1 << 46);
        self.at(self.now_ns + gap_ns, EventKind::Fail, 0);
    }

    fn fail(&mut self) {
        if self.ended {
            return;
        }
        let number = self.failures.below(self.nodes.len() as u32);
        if self.nodes[number as usize].member.is_some() {
            self.crash(number);
            self.at(self.now_ns + self.config.failures.repair_ns, EventKind::Repair, number);
        }
        self.plan_failure();
    }

    /// An outage of a node begins: it loses its memory and its thread.
    fn crash(&mut self, number: u32) {
        if !self.downs.begin(number) {
            return;
        }
        self.crashes += 1;
        self.out.node_failures += u64::from(self.measuring);
        if let Some(plan) = self.kill_thread(number) {
            self.node(number).queue.push_front(plan);
        }
        self.integrate();
        let pieces = self.pieces();
        let ranking = AnyRanking::new(self.policy.replacement);
        let node = &mut self.nodes[number as usize];
        self.used_frames -= u64::from(node.used(pieces));
        node.lost_memory(ranking);
        self.plan_detection(number);
    }

    /// An outage of a node ends; after the last one it starts again.
    fn repair(&mut self, number: u32) {
        if !self.downs.end(number) {
            return;
        }
        self.start_member(number);
        if self.is_in_drain(number) {
            self.tell(number, Event::Drain(true), None);
        }
        self.start_next(number);
    }

    /// A node is to be emptied from now on, or not any more unless another drain goes on.
    fn drain(&mut self, number: u32, on: bool) {
        if on || !self.is_in_drain(number) {
            self.node(number).is_drained = false;
            self.tell(number, Event::Drain(on), None);
        }
    }

    fn is_in_drain(&self, number: u32) -> bool {
        let times = |outage: &OutageConfig| outage.from_ns..outage.until_ns;
        let mut drains = self.config.faults.drains.iter().filter(|drain| drain.node == number);
        drains.any(|drain| times(drain).contains(&self.now_ns))
    }

    /// Other nodes learn of a failure, each at its own time.
    fn plan_detection(&mut self, number: u32) {
        let mean_ns = self.config.faults.detect_ns;
        let nodes = self.nodes.len() as u32;
        if mean_ns == 0 {
            return;
        }
        for other in (0..nodes).filter(|&other| other != number) {
            let late_ns = self.faults.exponential_ns(mean_ns);
            self.at(self.now_ns + late_ns, EventKind::Suspect, other << 16 | number);
        }
    }

    fn suspect(&mut self, by: u32, node: u32) {
        if self.nodes[by as usize].member.is_some() {
            self.out.faults.suspicions += 1;
            self.tell(by, Event::Suspected(node), None);
        }
    }

    fn plan_suspicion(&mut self) {
        let mean_ns = (1e9 / self.config.faults.wrong_suspicions_per_s) as u64;
        let gap_ns = self.faults.exponential_ns(mean_ns.max(1));
        self.at(self.now_ns + gap_ns, EventKind::SuspectWrongly, 0);
    }

    fn suspect_wrongly(&mut self) {
        if self.ended {
            return;
        }
        let nodes = self.nodes.len() as u32;
        let (by, node) = (self.faults.node(nodes), self.faults.node(nodes));
        if by != node {
            self.suspect(by, node);
        }
        self.plan_suspicion();
    }

    /// Whether a canary acts now: each time it could `every` times.
    fn canary_acts(&mut self, canary: Canary, every: u64) -> bool {
        if self.config.run.canary != canary {
            return false;
        }
        self.canary_turns += 1;
        self.canary_turns % every == 0
    }
}
