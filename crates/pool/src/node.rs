//! One member's part in the pool, without sockets, clocks and threads: datagrams and the time in,
//! datagrams out.
//!
//! Who is there is decided by SWIM (the crate foca): each second a member probes another one,
//! directly and then through three others, and what it finds travels with the probes. What a member
//! says of itself ([`Report`]) travels in three ways: changes that others should act on are passed on
//! by all; other changes are told to whom the member talks anyway; and whoever has heard nothing of
//! a member asks it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroU32, NonZeroUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foca::{AccumulatingRuntime, Config, Foca, Member, OwnedNotification, State, Timer};
use hiroma_far_wire::{CHUNK, Key};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::book::{Book, Reports};
use crate::codec::{Roll, Wire};
use crate::guard::{Guard, HEADER_BYTES, Received, Refusal};
use crate::report::{Condition, Id, REPORT_BYTES_MAX, Report};
use crate::view::{Health, MemberView};

/// Members that are known at most, dead ones included.
pub const MEMBERS_MAX: usize = 4096;
/// No datagram is longer: it fits an Ethernet frame whole, also through a tunnel.
pub const DATAGRAM_BYTES_MAX: usize = 1400;
/// The part of a datagram that SWIM may fill.
const SWIM_BYTES_MAX: usize = DATAGRAM_BYTES_MAX - HEADER_BYTES - 2 - REPORT_BYTES_MAX;
/// How long a dead member is remembered.
const DEAD_KEPT: Duration = Duration::from_secs(600);
/// How often members whose report was not heard are asked for it, and how many of them.
const ASK_INTERVAL_MS: u64 = 1000;
const ASKED_AT_A_TIME: usize = 20;
/// Members that are told at once that this one is there; the rest is gossip.
const ANNOUNCED_TO: usize = 8;

const SWIM: u8 = 0;
const ASK: u8 = 1;
const TELL: u8 = 2;

/// What happened, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member is there.
    Up(SocketAddr),
    /// A member is gone.
    Down(SocketAddr),
    /// Another process is there now in a member's place.
    Restarted(SocketAddr),
    /// The others believed this member dead; it is back with a new incarnation.
    Returned,
}

/// How a node starts.
pub struct Settings {
    /// What it says of itself first.
    pub report: Report,
    /// The shared key.
    pub key: Option<Key>,
    /// Random, and secret.
    pub secret: [u8; 32],
}

/// One member.
pub struct Node {
    foca: Foca<Id, Wire, SmallRng, Reports>,
    runtime: AccumulatingRuntime<Id>,
    book: Arc<Mutex<Book>>,
    roll: Arc<Mutex<Roll>>,
    guard: Guard,
    timers: BinaryHeap<Reverse<(u64, u64, TimerEntry)>>,
    timer_number: u64,
    report: Report,
    /// Sequence number of the report that each peer was told last.
    told: HashMap<SocketAddr, u32>,
    out: Vec<(SocketAddr, Vec<u8>)>,
    events: Vec<Event>,
    sized_for: u32,
    ask_at_ms: u64,
}

#[derive(PartialEq, Eq)]
struct TimerEntry(Timer<Id>);

// The order of entries is that of the two numbers before them.
impl PartialOrd for TimerEntry {
    fn partial_cmp(&self, other: &TimerEntry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimerEntry {
    fn cmp(&self, _: &TimerEntry) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(members: u32) -> Config {
    let mut config = Config::new_lan(NonZeroU32::new(members.max(1)).expect("at least one"));
    let scale = f64::from(members.max(10)).log10();
    config.probe_rtt = Duration::from_millis(400);
    config.suspect_to_down_after = Duration::from_secs_f64(1.5 * scale);
    config.remove_down_after = DEAD_KEPT;
    // With fewer, much of the news dies before it has reached everyone (half of the deaths among 20
    // members with 3, and 1 in 100 with 8).
    let transmissions = 4 * f64::from(members.max(10) + 1).log10().ceil() as u8;
    config.max_transmissions = NonZeroU8::new(transmissions).expect("eight or more");
    config.max_packet_size = NonZeroUsize::new(SWIM_BYTES_MAX).expect("more than nothing");
    if let Some(gossip) = &mut config.periodic_gossip {
        gossip.frequency = Duration::from_millis(u64::from(members.clamp(200, 1000)));
        gossip.num_members = NonZeroUsize::new(2).expect("two");
    }
    config
}

impl Node {
    /// A member that knows no others.
    pub fn new(settings: Settings) -> Node {
        let Settings { report, key, secret } = settings;
        let (book, roll) = (Arc::<Mutex<Book>>::default(), Arc::<Mutex<Roll>>::default());
        let foca = Foca::with_custom_broadcast(
            report.id,
            config(1),
            SmallRng::seed_from_u64(report.boot),
            Wire { roll: Arc::clone(&roll) },
            Reports { book: Arc::clone(&book), max: MEMBERS_MAX },
        );
        let guard = Guard::new(key, report.boot, &secret);
        lock(&book).hear(report.clone(), MEMBERS_MAX);
        Node {
            foca,
            runtime: AccumulatingRuntime::new(),
            book,
            roll,
            guard,
            timers: BinaryHeap::new(),
            timer_number: 0,
            report,
            told: HashMap::new(),
            out: Vec::new(),
            events: Vec::new(),
            sized_for: 1,
            ask_at_ms: 0,
        }
    }

    /// What this member says of itself.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Members that answer, without this one.
    pub fn peers(&self) -> usize {
        self.foca.num_members()
    }

    /// Acts on a datagram.
    pub fn receive(&mut self, from: SocketAddr, bytes: &[u8], now_ms: u64) -> Result<(), Refusal> {
        lock(&self.book).now_ms = now_ms;
        let mut valid = true;
        match self.guard.open(from, bytes, now_ms)? {
            Received::Nothing => {}
            Received::Reply(datagram) => self.out.push((from, datagram)),
            Received::Payloads(payloads) => {
                for payload in payloads {
                    valid &= self.payload(from, &payload);
                }
            }
        }
        self.settle(now_ms);
        if valid { Ok(()) } else { Err(Refusal::Content) }
    }

    fn payload(&mut self, from: SocketAddr, payload: &[u8]) -> bool {
        let Some((kind, mut rest)) = payload.split_first() else { return false };
        match *kind {
            SWIM => {
                let Some((len, body)) = rest.split_first() else { return false };
                // The length is in units of two bytes.
                let Some((said, swim)) = body.split_at_checked(2 * usize::from(*len)) else {
                    return false;
                };
                let heard = said.is_empty() || self.hear(said);
                // What SWIM refuses (of an earlier incarnation, or no room) is no fault here.
                match self.foca.handle_data(swim, &mut self.runtime) {
                    Err(foca::Error::Decode(_) | foca::Error::MalformedPacket) => false,
                    _ => heard,
                }
            }
            ASK if rest.is_empty() => {
                self.tell(from);
                true
            }
            TELL => {
                let valid = Report::decode(&mut rest).is_ok();
                valid && self.hear(&payload[1..])
            }
            _ => false,
        }
    }

    fn hear(&mut self, mut said: &[u8]) -> bool {
        match Report::decode(&mut said) {
            Ok(report) if report.id.addr == self.report.id.addr => true,
            Ok(report) => {
                lock(&self.book).hear(report, MEMBERS_MAX);
                true
            }
            Err(_) => false,
        }
    }

    fn tell(&mut self, to: SocketAddr) {
        let mut payload = vec![TELL];
        self.report.encode(&mut payload);
        let datagram = self.guard.seal(&payload);
        self.out.push((to, datagram));
    }

    /// Passes the own report on through all members.
    fn broadcast(&mut self) {
        let mut bytes = Vec::new();
        self.report.encode(&mut bytes);
        // It fails only where a report does not fit, and reports are bounded.
        let _ = self.foca.add_broadcast(&bytes);
    }

    /// Changes what this member says of itself.
    pub fn set_condition(&mut self, condition: Condition, now_ms: u64) {
        let old = std::mem::replace(&mut self.report.condition, condition);
        if old == condition {
            return;
        }
        lock(&self.book).now_ms = now_ms;
        self.report.sequence += 1;
        if (old.refusing, old.draining) != (condition.refusing, condition.draining) {
            self.broadcast();
            let _ = self.foca.gossip(&mut self.runtime);
        }
        self.settle(now_ms);
    }

    /// Learns of members from what another one has told over a connection.
    pub fn learn(&mut self, members: &[MemberView], now_ms: u64) {
        let own = self.report.id;
        // Whoever was at this address before: this process comes after it.
        let is_other = |m: &&MemberView| {
            m.boot != self.report.boot && (m.boot != 0 || m.incarnation > own.incarnation)
        };
        let before = members.iter().filter(|m| m.address == own.addr).filter(is_other);
        if let Some(before) = before.map(|member| member.incarnation).max() {
            if before >= own.incarnation {
                let renewed = Id { incarnation: before + 1, ..own };
                let _ = self.foca.change_identity(renewed, &mut self.runtime);
                self.renamed(renewed);
            }
        }
        let known = members.iter().filter(|m| m.address != own.addr && m.health != Health::Dead);
        {
            let mut book = lock(&self.book);
            book.now_ms = now_ms;
            for report in known.clone().filter_map(told) {
                book.hear(report, MEMBERS_MAX);
            }
        }
        let ids: Vec<Id> = known
            .map(|m| Id { addr: m.address, incarnation: m.incarnation })
            .take(MEMBERS_MAX)
            .collect();
        let alone = self.foca.num_members() == 0;
        let alive = ids.iter().map(|id| Member::alive(*id));
        let _ = self.foca.apply_many(alive, false, &mut self.runtime);
        for id in ids.into_iter().filter(|_| alone).take(ANNOUNCED_TO) {
            let _ = self.foca.announce(id, &mut self.runtime);
        }
        self.settle(now_ms);
    }

    fn renamed(&mut self, id: Id) {
        self.report.id = id;
        self.report.sequence += 1;
    }

    /// Tells the others that this member goes.
    pub fn leave(&mut self, now_ms: u64) {
        let _ = self.foca.leave_cluster(&mut self.runtime);
        self.settle(now_ms);
    }

    /// The time at which [`Node::tick`] has something to do.
    pub fn next_ms(&self) -> u64 {
        let timer = self.timers.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at);
        timer.min(self.ask_at_ms)
    }

    /// Does what is due.
    pub fn tick(&mut self, now_ms: u64) {
        lock(&self.book).now_ms = now_ms;
        while self.timers.peek().is_some_and(|Reverse((at, _, _))| *at <= now_ms) {
            let Some(Reverse((_, _, TimerEntry(timer)))) = self.timers.pop() else { break };
            let _ = self.foca.handle_timer(timer, &mut self.runtime);
        }
        if self.ask_at_ms <= now_ms {
            self.ask_at_ms = now_ms + ASK_INTERVAL_MS;
            self.ask_for_reports();
            self.forget();
            let members = self.foca.num_members() as u32 + 1;
            if members.abs_diff(self.sized_for) * 4 > self.sized_for {
                self.sized_for = members;
                let _ = self.foca.set_config(config(members));
            }
        }
        self.settle(now_ms);
    }

    fn ask_for_reports(&mut self) {
        let silent: Vec<SocketAddr> = {
            let book = lock(&self.book);
            let known = |id: &Id| {
                book.heard.get(&id.addr).is_some_and(|h| h.report.id.incarnation >= id.incarnation)
            };
            let silent = self.foca.iter_members().filter(|member| !known(member.id()));
            silent.map(|member| member.id().addr).take(ASKED_AT_A_TIME).collect()
        };
        for addr in silent {
            let datagram = self.guard.seal(&[ASK]);
            self.out.push((addr, datagram));
        }
    }

    /// Forgets what nobody is a member for any more.
    fn forget(&mut self) {
        let members: std::collections::HashSet<SocketAddr> =
            self.foca.iter_membership_state().map(|member| member.id().addr).collect();
        let own = self.report.id.addr;
        let mut book = lock(&self.book);
        let now_ms = book.now_ms;
        let kept_ms = DEAD_KEPT.as_millis() as u64;
        book.heard.retain(|addr, heard| {
            *addr == own || members.contains(addr) || now_ms < heard.at_ms + kept_ms
        });
        self.told.retain(|addr, _| members.contains(addr));
    }

    /// Datagrams to send.
    pub fn take_out(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.out)
    }

    /// What has happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Carries out what SWIM has decided.
    fn settle(&mut self, now_ms: u64) {
        while let Some(notification) = self.runtime.to_notify() {
            match notification {
                OwnedNotification::MemberUp(id) => self.events.push(Event::Up(id.addr)),
                OwnedNotification::MemberDown(id) => {
                    self.told.remove(&id.addr);
                    self.events.push(Event::Down(id.addr));
                }
                OwnedNotification::Rename(_, after) => {
                    self.told.remove(&after.addr);
                    self.events.push(Event::Restarted(after.addr));
                }
                OwnedNotification::Rejoin(id) => {
                    self.renamed(id);
                    self.events.push(Event::Returned);
                }
                _ => {}
            }
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.timer_number += 1;
            let at = now_ms + after.as_millis() as u64;
            self.timers.push(Reverse((at, self.timer_number, TimerEntry(timer))));
        }
        while let Some((to, swim)) = self.runtime.to_send() {
            let mut payload = vec![SWIM, 0];
            let told = self.told.insert(to.addr, self.report.sequence);
            if told != Some(self.report.sequence) {
                self.report.encode(&mut payload);
                if payload.len() % 2 != 0 {
                    payload.push(0);
                }
                payload[1] = ((payload.len() - 2) / 2) as u8;
            }
            payload.extend_from_slice(&swim);
            let datagram = self.guard.seal(&payload);
            debug_assert!(datagram.len() <= DATAGRAM_BYTES_MAX);
            self.out.push((to.addr, datagram));
        }
        let members = self.foca.iter_membership_state().map(|member| *member.id());
        if members.len() + 64 >= MEMBERS_MAX {
            lock(&self.roll).set(members, MEMBERS_MAX - 64);
        } else {
            lock(&self.roll).clear();
        }
    }

    /// All members, this one first, the others by address.
    pub fn members(&self, now_ms: u64) -> Vec<MemberView> {
        let book = lock(&self.book);
        let mut others: Vec<MemberView> = self
            .foca
            .iter_membership_state()
            .filter(|member| member.id().addr != self.report.id.addr)
            .map(|member| {
                let health = match member.state() {
                    State::Alive => Health::Alive,
                    State::Suspect => Health::Suspect,
                    State::Down => Health::Dead,
                };
                let heard = book.heard.get(&member.id().addr);
                let age = heard.map_or(0, |heard| now_ms.saturating_sub(heard.at_ms));
                view(member.id(), health, heard.map(|heard| &heard.report), age)
            })
            .collect();
        others.sort_by_key(|member| (member.address, Reverse(member.incarnation)));
        // Of the processes that were at one address, the latest one is the member.
        others.dedup_by_key(|member| member.address);
        let own = view(&self.report.id, Health::Alive, Some(&self.report), 0);
        [own].into_iter().chain(others).collect()
    }
}

/// What a member has said of itself, from what another one tells of it; none: that one has not
/// heard it, or it makes no sense.
fn told(member: &MemberView) -> Option<Report> {
    let chunks = |bytes: u64| u32::try_from(bytes / CHUNK as u64).ok();
    let report = Report {
        id: Id { addr: member.address, incarnation: member.incarnation },
        boot: member.boot,
        sequence: member.sequence,
        name: member.name.clone(),
        version: member.version,
        condition: Condition {
            lent_chunks: chunks(member.lent_bytes)?,
            free_chunks: chunks(member.free_bytes)?,
            spilled_chunks: chunks(member.spilled_bytes)?,
            pressure: member.pressure_percent,
            refusing: member.refusing,
            draining: member.draining,
        },
        labels: member.labels.clone(),
    };
    report.is_valid().then_some(report)
}

fn view(id: &Id, health: Health, report: Option<&Report>, heard_ms_ago: u64) -> MemberView {
    let condition = report.map(|report| report.condition).unwrap_or_default();
    let bytes = |chunks: u32| u64::from(chunks) * CHUNK as u64;
    MemberView {
        name: report.map_or_else(|| id.addr.to_string(), |report| report.name.clone()),
        address: id.addr,
        incarnation: id.incarnation,
        boot: report.map_or(0, |report| report.boot),
        health,
        lent_bytes: bytes(condition.lent_chunks),
        free_bytes: bytes(condition.free_chunks),
        spilled_bytes: bytes(condition.spilled_chunks),
        pressure_percent: condition.pressure,
        refusing: condition.refusing,
        draining: condition.draining,
        version: report.map_or(0, |report| report.version),
        labels: report.map_or_else(Vec::new, |report| report.labels.clone()),
        sequence: report.map_or(0, |report| report.sequence),
        heard_ms_ago,
    }
}
