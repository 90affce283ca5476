//! What to do now, for each node.

use super::observe::{HUGE_ORDER, Node, Observation};
use super::pages;
use super::reason::Reason;
use super::settings::Settings;
use crate::huge::Pace;

const SECOND_NS: u64 = 1_000_000_000;
/// What a page costs to reclaim before it is known: 155 ms for a GiB, in picoseconds.
const COST_PS: u64 = 591_000;
/// The least and the most that a page can be believed to cost.
const COST_PS_RANGE: (u64, u64) = (50_000, 50_000_000);
/// Less idle time than this, in millionths: the processors are busy.
const BUSY_PPM: u64 = 50_000;
const PAUSE_NS_MIN: u64 = 500_000_000;
const PAUSE_NS_MAX: u64 = 60 * SECOND_NS;
/// After so long without a setback, the next pause is a short one again.
const FORGIVEN_NS: u64 = 30 * SECOND_NS;
/// How long a demand for large blocks, or for more room, is expected to come again.
const REMEMBERED_NS: u64 = 60 * SECOND_NS;
/// Compaction of a whole node takes long: not more often.
const COMPACT_NS_MIN: u64 = 10 * SECOND_NS;
/// So many times more than wanted is free without large blocks: that needs compaction, not reclaim.
const PIECES: u64 = 3;
/// Fewer pages that come back are chance.
const MISSED_PAGES_MIN: u64 = 1024;
/// What was taken is held against what comes back for some twenty looks.
const FADES: u64 = 16;
/// One in so many coming back is too much.
const MISSED_PART: u64 = 8;
/// The smallest batch: 16 MiB.
const BATCH_PAGES_MIN: u64 = pages(16 << 20);
const MARGIN: u64 = 2;
const MARGIN_MAX: u64 = 8;
/// Processor time that may be used at once.
const BURST_NS: u64 = 2 * SECOND_NS;

/// What to do on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    pub node: u32,
    /// Reclaim so much in all, in batches of `batch_pages`, asking [`Controller::batch_done`] after each.
    pub reclaim_pages: u64,
    pub batch_pages: u64,
    /// Compact the node's memory.
    pub compact: bool,
    pub reason: Reason,
}

/// How a batch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchEnd {
    /// As much as was asked for was reclaimed.
    Whole,
    /// The kernel gave up before (`EAGAIN`).
    Short,
}

/// A batch that was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    pub node: u32,
    pub asked_pages: u64,
    pub got_pages: u64,
    /// From the call to its return, and processor time.
    pub took_ns: u64,
    pub cpu_ns: u64,
    pub end: BatchEnd,
}

/// Whether to go on with the next batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Go {
    /// With so many pages.
    On(u64),
    Stop(Reason),
}

/// Decides; the caller looks and acts.
#[derive(Clone, Debug)]
pub struct Controller {
    settings: Settings,
    nodes: Vec<Memory>,
    pace: Pace,
}

/// What is remembered of a node.
#[derive(Clone, Debug)]
struct Memory {
    last: Node,
    last_ns: u64,
    /// Pages that enter the cache in a second: rises at once, falls slowly.
    fill_s: u64,
    cost_ps: u64,
    margin: u64,
    margin_until_ns: u64,
    order: usize,
    order_until_ns: u64,
    compact_at_ns: u64,
    pause_ns: u64,
    pause_until_ns: u64,
    /// Taken lately: fades from look to look.
    taken: u64,
    /// Of what was decided on, what is still to be asked for.
    left: u64,
}

/// What happened since the last look, in pages.
struct Change {
    fill: u64,
    held: u64,
    missed: u64,
    kswapd: u64,
    direct: u64,
    ns: u64,
}

impl Controller {
    /// Begins at `now_ns` of a clock that does not go back.
    pub fn new(settings: Settings, now_ns: u64) -> Controller {
        Controller { settings, nodes: Vec::new(), pace: Pace::new(settings.cpu_ppm, BURST_NS, now_ns) }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes other settings; what was learnt stays.
    pub fn set_settings(&mut self, settings: Settings) {
        self.pace.set_share(settings.cpu_ppm);
        self.settings = settings;
    }

    /// Takes note of the machine at `now_ns` and says what to do, one verdict for each node.
    pub fn observe(&mut self, now_ns: u64, machine: &Observation) -> Vec<Verdict> {
        let share_ns = self.pace.next_ns(now_ns);
        self.nodes.retain(|memory| machine.nodes.iter().any(|node| node.id == memory.last.id));
        let mut verdicts = Vec::with_capacity(machine.nodes.len());
        for node in &machine.nodes {
            let Some(memory) = self.nodes.iter_mut().find(|memory| memory.last.id == node.id) else {
                self.nodes.push(Memory::new(node.clone(), now_ns));
                verdicts.push(Verdict { node: node.id, reclaim_pages: 0, batch_pages: 0, compact: false, reason: Reason::First });
                continue;
            };
            let busy = machine.idle_ppm < BUSY_PPM;
            verdicts.push(memory.decide(&self.settings, now_ns, node, busy, share_ns));
        }
        verdicts
    }

    /// Learns how a batch went, and says whether the next may follow.
    pub fn batch_done(&mut self, now_ns: u64, batch: Batch) -> Go {
        self.pace.spend(batch.cpu_ns);
        let share_ns = self.pace.next_ns(now_ns);
        let Some(memory) = self.nodes.iter_mut().find(|memory| memory.last.id == batch.node) else { return Go::Stop(Reason::Done) };
        memory.left = memory.left.saturating_sub(batch.asked_pages.max(batch.got_pages));
        memory.taken = memory.taken.saturating_add(batch.got_pages);
        if let Some(cost) = batch.took_ns.saturating_mul(1000).checked_div(batch.got_pages) {
            let cost = cost.clamp(COST_PS_RANGE.0, COST_PS_RANGE.1);
            memory.cost_ps = (memory.cost_ps * 3 + cost) / 4;
        }
        if batch.end == BatchEnd::Short || batch.got_pages < batch.asked_pages / 2 {
            let pause_ns = memory.pause(now_ns);
            memory.left = 0;
            return Go::Stop(Reason::Short { asked: batch.asked_pages, got: batch.got_pages, pause_ns });
        }
        if memory.left < BATCH_PAGES_MIN {
            memory.left = 0;
            return Go::Stop(Reason::Done);
        }
        if share_ns > now_ns {
            memory.left = 0;
            return Go::Stop(Reason::CpuShare { until_ns: share_ns });
        }
        Go::On(memory.left.min(self.settings.batch_pages()))
    }

    /// Pages per second that enter the cache of a node, as it is reckoned with.
    pub fn fill_s(&self, node: u32) -> u64 {
        self.nodes.iter().find(|memory| memory.last.id == node).map_or(0, |memory| memory.fill_s)
    }
}

impl Memory {
    fn new(node: Node, now_ns: u64) -> Memory {
        Memory {
            last: node,
            last_ns: now_ns,
            fill_s: 0,
            cost_ps: COST_PS,
            margin: MARGIN,
            margin_until_ns: 0,
            order: 0,
            order_until_ns: 0,
            compact_at_ns: 0,
            pause_ns: 0,
            pause_until_ns: 0,
            taken: 0,
            left: 0,
        }
    }

    fn decide(&mut self, settings: &Settings, now_ns: u64, node: &Node, busy: bool, share_ns: u64) -> Verdict {
        let change = self.learn(now_ns, node);
        let mut verdict =
            Verdict { node: node.id, reclaim_pages: 0, batch_pages: settings.batch_pages(), compact: false, reason: Reason::First };
        let taken = self.taken;
        self.taken -= self.taken / FADES;
        self.left = 0;
        let wanted = self.wanted(settings);
        let free = node.above_high(self.order);
        let keep = mul_div(node.file_pages(), settings.keep_permille, 1000);
        let clean = node.clean_inactive_pages();
        let room = clean.saturating_sub(keep);
        verdict.reason = if change.ns == 0 {
            Reason::First
        } else if taken >= BATCH_PAGES_MIN && change.missed >= MISSED_PAGES_MIN && change.missed.saturating_mul(MISSED_PART) > taken {
            Reason::CameBack { missed: change.missed, taken, pause_ns: self.pause(now_ns) }
        } else if now_ns < self.pause_until_ns {
            Reason::Paused { until_ns: self.pause_until_ns }
        } else if change.fill == 0 || self.fill_s < pages(settings.fill_bytes_s_min) {
            Reason::Calm { fill_s: self.fill_s }
        } else if free >= wanted {
            Reason::Enough { free, wanted }
        } else if mul_div(change.fill.saturating_add(change.held), settings.cause_permille, 1000) > change.fill {
            Reason::NotFiles { fill: change.fill, held: change.held }
        } else if self.order > 0 && node.above_high(0) >= wanted.saturating_mul(PIECES) {
            // So much was freed already without large blocks coming of it.
            verdict.compact = now_ns >= self.compact_at_ns && !busy;
            if verdict.compact {
                self.compact_at_ns = now_ns.saturating_add(COMPACT_NS_MIN);
            }
            Reason::Pieces { order: self.order, free, wanted }
        } else if room < BATCH_PAGES_MIN {
            Reason::LittleInactive { clean, keep }
        } else if share_ns > now_ns {
            Reason::CpuShare { until_ns: share_ns }
        } else if busy {
            verdict.reclaim_pages = BATCH_PAGES_MIN;
            Reason::FillingBusy { fill_s: self.fill_s, free, wanted }
        } else {
            verdict.reclaim_pages = (wanted - free).max(pages(settings.reclaim_bytes)).max(BATCH_PAGES_MIN).min(room);
            Reason::Filling { fill_s: self.fill_s, free, wanted, order: self.order }
        };
        verdict.batch_pages = verdict.batch_pages.min(verdict.reclaim_pages);
        self.left = verdict.reclaim_pages;
        verdict
    }

    /// What changed since the last look, and what that says of what is to come.
    fn learn(&mut self, now_ns: u64, node: &Node) -> Change {
        let grown = |now: u64, before: u64| now.saturating_sub(before);
        let last = &self.last;
        let ns = now_ns.saturating_sub(self.last_ns);
        // What reclaim took had entered the cache too.
        let in_and_out = node.file_pages().saturating_add(grown(node.stolen_file_pages, last.stolen_file_pages));
        let change = Change {
            fill: grown(in_and_out, last.file_pages()),
            held: grown(node.held_pages, last.held_pages),
            missed: grown(node.missed_file_pages, last.missed_file_pages),
            kswapd: grown(node.kswapd_scanned_pages, last.kswapd_scanned_pages),
            direct: grown(node.direct_scanned_pages, last.direct_scanned_pages),
            ns,
        };
        if ns == 0 {
            return change;
        }
        let fill_s = mul_div(change.fill, SECOND_NS, ns);
        self.fill_s = fill_s.max(mul_div(self.fill_s, 3, 4).saturating_add(fill_s / 4));
        if change.kswapd > 0 || change.direct > 0 {
            // More room than was used at both ends: it was not the amount that lacked, but blocks large enough.
            let used = change.fill.saturating_add(change.held);
            if last.above_low().min(node.above_low()) > used {
                // At least the smallest size that can have run out; if it was a larger one, the next time shows it.
                let ran_out = |&order: &usize| last.above_high(order).min(node.above_high(order)) <= used;
                self.order = (1..HUGE_ORDER).find(ran_out).unwrap_or(HUGE_ORDER);
                self.order_until_ns = now_ns.saturating_add(REMEMBERED_NS);
            } else {
                self.margin = (self.margin + 1).min(MARGIN_MAX);
                self.margin_until_ns = now_ns.saturating_add(REMEMBERED_NS);
            }
        }
        if now_ns >= self.order_until_ns {
            self.order = 0;
        }
        if now_ns >= self.margin_until_ns {
            self.margin = MARGIN;
        }
        if self.pause_ns > 0 && now_ns >= self.pause_until_ns.saturating_add(FORGIVEN_NS) {
            self.pause_ns = 0;
        }
        (self.last, self.last_ns) = (node.clone(), now_ns);
        change
    }

    /// Pages that should be free above the high watermarks: what enters until the next look has come and its reclaim is done, twice.
    fn wanted(&self, settings: &Settings) -> u64 {
        let until_look = mul_div(self.fill_s, settings.poll_ns, SECOND_NS);
        let reclaim_ns = mul_div(until_look, self.cost_ps, 1000);
        let until_done = mul_div(self.fill_s, settings.poll_ns.saturating_add(reclaim_ns), SECOND_NS);
        until_done.saturating_mul(self.margin).max(pages(settings.free_bytes_min))
    }

    /// Leaves it to the kernel for a while, twice as long as the last time.
    fn pause(&mut self, now_ns: u64) -> u64 {
        self.pause_ns = self.pause_ns.saturating_mul(2).clamp(PAUSE_NS_MIN, PAUSE_NS_MAX);
        self.pause_until_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns
    }
}

fn mul_div(value: u64, by: u64, over: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(by) / u128::from(over)).unwrap_or(u64::MAX)
}
