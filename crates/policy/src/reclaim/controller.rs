//! What to do now, for each node.

use super::observe::{HUGE_ORDER, Node, Observation};
use super::pages;
use super::reason::Reason;
use super::settings::{BEHIND_LARGE, BEHIND_NEVER, Settings};
use crate::pace::Pace;

const SECOND_NS: u64 = 1_000_000_000;
/// Assumed cost of reclaiming a page before it is measured: 155 ms for a GiB, in picoseconds.
const COST_PS: u64 = 591_000;
/// Lower and upper limit of the cost of a page.
const COST_PS_RANGE: (u64, u64) = (50_000, 50_000_000);
/// With less idle time than this, in millionths, the processors are busy.
const BUSY_PPM: u64 = 50_000;
const PAUSE_NS_MIN: u64 = 500_000_000;
/// A pause leaves reclaim to the kernel, which evicts the same pages, and others beside them.
const PAUSE_NS_MAX: u64 = 2 * SECOND_NS;
/// After this long without a setback, the next pause is a short one again.
const FORGIVEN_NS: u64 = 30 * SECOND_NS;
/// How long a demand for large blocks, or for more room, is expected to recur.
const REMEMBERED_NS: u64 = 60 * SECOND_NS;
/// Minimum time between compactions: compacting a whole node takes long.
const COMPACT_NS_MIN: u64 = 10 * SECOND_NS;
/// With this many times the wanted amount free, but not in large blocks, compaction is needed, not
/// reclaim.
const PIECES: u64 = 3;
/// The same where the cache is in large blocks: reclaim frees these as a whole, sooner or later.
const PIECES_LARGE: u64 = 8;
/// And at least this part of the file cache, or 1 GiB: a slow stream wants little, and little free
/// memory contains large blocks by chance only. For a writer of 150 MB/s, which wanted 30 MiB of
/// order 8, 2 of 90 MiB were found, and reclaim was given up.
const PIECES_PART: u64 = 8;
const PIECES_PAGES_MAX: u64 = pages(1 << 30);
/// Fewer refaulted pages are chance.
const MISSED_PAGES_MIN: u64 = 1024;
/// Reclaimed pages are compared with refaults for about twenty observations.
const FADES: u64 = 16;
/// More than one refault in this many reclaimed pages is too much; the second value applies where
/// all threads wait for memory already.
const MISSED_PART: u64 = 8;
const MISSED_PART_STALLED: u64 = 64;
/// All threads wait if they do so for this part of the time, in thousandths.
const STALLED_PERMILLE: u64 = 100;
/// The smallest batch: 16 MiB.
const BATCH_PAGES_MIN: u64 = pages(16 << 20);
const MARGIN: u64 = 2;
const MARGIN_MAX: u64 = 8;
/// Processor time that may be used without a break.
const BURST_NS: u64 = 2 * SECOND_NS;
/// Upper limit of the fill rate of a cache, pages in a second: 16 GiB. One reader reached 4.5
/// (sparse file, large folios).
const FILL_S_MAX: u64 = pages(16 << 30);
/// The next observation is after this much has entered the cache, but not before `LOOK_NS_MIN`.
const LOOK_PAGES: u64 = pages(64 << 20);
const LOOK_NS_MIN: u64 = 20_000_000;
/// With this part of the cache in large blocks, it is large blocks that ran out.
const LARGE_PART: u64 = 4;
/// The longest time without reading counters, and without any check.
const REST_NS_MAX: u64 = SECOND_NS;
const BLIND_NS_MAX: u64 = 2 * SECOND_NS;

/// What to do on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    pub node: u32,
    /// Reclaim this much in all, in batches of `batch_pages`, calling [`Controller::batch_done`]
    /// after each.
    pub reclaim_pages: u64,
    pub batch_pages: u64,
    /// Compact the node's memory.
    pub compact: bool,
    /// Drop what is behind streams, file by file: reclaim frees no blocks of the needed size, or
    /// finds too little that is clean.
    pub behind: bool,
    pub reason: Reason,
}

/// How a batch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchEnd {
    /// The requested amount was reclaimed.
    Whole,
    /// The kernel stopped before (`EAGAIN`).
    Short,
}

/// A completed batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    pub node: u32,
    pub asked_pages: u64,
    pub got_pages: u64,
    /// Elapsed time of the call, and processor time.
    pub took_ns: u64,
    pub cpu_ns: u64,
    pub end: BatchEnd,
}

/// Whether to continue with the next batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Go {
    /// Continue with this many pages.
    On(u64),
    Stop(Reason),
}

/// When to observe again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Next {
    /// Not before this time: free memory lasts longer, however fast it is taken.
    pub after_ns: u64,
    /// After that, at any poll at which the machine's free memory has changed by this much ...
    pub changed_pages: u64,
    /// ... and after this time in any case.
    pub latest_ns: u64,
}

/// Decides; the caller observes and acts.
#[derive(Clone, Debug)]
pub struct Controller {
    settings: Settings,
    nodes: Vec<Memory>,
    pace: Pace,
    /// Time stalled for memory, and when it was read.
    stalled_ns: u64,
    looked_ns: u64,
}

/// State of the whole machine at one observation.
#[derive(Clone, Copy)]
struct Around {
    now_ns: u64,
    /// The processors have no time for reclaim.
    busy: bool,
    /// Threads wait for memory.
    stalled: bool,
    /// Time from which the share of processor time allows more.
    share_ns: u64,
}

/// What is remembered about a node.
#[derive(Clone, Debug)]
struct Memory {
    last: Node,
    last_ns: u64,
    /// Pages that enter the cache in a second: rises immediately, falls slowly.
    fill_s: u64,
    /// Its maximum within the last minute.
    peak_s: u64,
    peak_until_ns: u64,
    cost_ps: u64,
    margin: u64,
    margin_until_ns: u64,
    order: usize,
    order_until_ns: u64,
    compact_at_ns: u64,
    pause_ns: u64,
    pause_until_ns: u64,
    /// Reclaimed lately: decays with every observation.
    taken: u64,
    /// Pages that were decided on and not requested yet.
    left: u64,
    reason: Reason,
}

/// Changes since the last observation, in pages.
struct Change {
    fill: u64,
    /// Part of it that is at least known to be in large blocks.
    large: u64,
    held: u64,
    missed: u64,
    kswapd: u64,
    direct: u64,
    ns: u64,
}

impl Controller {
    /// Starts at `now_ns` of a monotonic clock.
    pub fn new(settings: Settings, now_ns: u64) -> Controller {
        Controller {
            settings,
            nodes: Vec::new(),
            pace: Pace::new(settings.cpu_ppm, BURST_NS, now_ns),
            stalled_ns: u64::MAX,
            looked_ns: now_ns,
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings; what was learnt stays.
    pub fn set_settings(&mut self, settings: Settings) {
        self.pace.set_share(settings.cpu_ppm);
        self.settings = settings;
    }

    /// Takes the observation of `now_ns` and returns one verdict for each node.
    pub fn observe(&mut self, now_ns: u64, machine: &Observation) -> Vec<Verdict> {
        let around = self.around(now_ns, machine);
        self.nodes.retain(|memory| machine.nodes.iter().any(|node| node.id == memory.last.id));
        let mut verdicts = Vec::with_capacity(machine.nodes.len());
        for node in &machine.nodes {
            let Some(memory) = self.nodes.iter_mut().find(|memory| memory.last.id == node.id)
            else {
                self.nodes.push(Memory::new(node.clone(), now_ns));
                verdicts.push(Verdict {
                    node: node.id,
                    reclaim_pages: 0,
                    batch_pages: 0,
                    compact: false,
                    behind: false,
                    reason: Reason::First,
                });
                continue;
            };
            verdicts.push(memory.decide(&self.settings, node, around));
        }
        verdicts
    }

    fn around(&mut self, now_ns: u64, machine: &Observation) -> Around {
        let passed_ns = now_ns.saturating_sub(self.looked_ns);
        let waited_ns = machine.stalled_ns.saturating_sub(self.stalled_ns);
        (self.stalled_ns, self.looked_ns) = (machine.stalled_ns, now_ns);
        let stalled = waited_ns > 0 && waited_ns >= mul_div(passed_ns, STALLED_PERMILLE, 1000);
        Around {
            now_ns,
            busy: machine.idle_ppm < BUSY_PPM,
            stalled,
            share_ns: self.pace.next_ns(now_ns),
        }
    }

    /// When to observe again: the earliest time that any node needs.
    pub fn next(&self) -> Next {
        let poll_ns = self.settings.poll_ns;
        let nexts = self.nodes.iter().map(|memory| memory.next(&self.settings));
        let earliest = nexts.reduce(|one, other| Next {
            after_ns: one.after_ns.min(other.after_ns),
            changed_pages: one.changed_pages.min(other.changed_pages),
            latest_ns: one.latest_ns.min(other.latest_ns),
        });
        earliest.unwrap_or(Next { after_ns: poll_ns, changed_pages: 0, latest_ns: poll_ns })
    }

    /// Records the result of a batch, and decides whether the next may follow.
    pub fn batch_done(&mut self, now_ns: u64, batch: Batch) -> Go {
        self.pace.spend(batch.cpu_ns);
        let share_ns = self.pace.next_ns(now_ns);
        let Some(memory) = self.nodes.iter_mut().find(|memory| memory.last.id == batch.node) else {
            return Go::Stop(Reason::Done);
        };
        memory.left = memory.left.saturating_sub(batch.asked_pages.max(batch.got_pages));
        memory.taken = memory.taken.saturating_add(batch.got_pages);
        if let Some(cost) = batch.took_ns.saturating_mul(1000).checked_div(batch.got_pages) {
            let cost = cost.clamp(COST_PS_RANGE.0, COST_PS_RANGE.1);
            memory.cost_ps = (memory.cost_ps * 3 + cost) / 4;
        }
        if batch.end == BatchEnd::Short || batch.got_pages < batch.asked_pages / 2 {
            let pause_ns = memory.pause(now_ns);
            memory.left = 0;
            return Go::Stop(Reason::Short {
                asked: batch.asked_pages,
                got: batch.got_pages,
                pause_ns,
            });
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

    /// Estimated pages per second that enter the cache of a node.
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
            peak_s: 0,
            peak_until_ns: 0,
            cost_ps: COST_PS,
            margin: MARGIN,
            margin_until_ns: 0,
            order: 0,
            order_until_ns: 0,
            compact_at_ns: 0,
            reason: Reason::First,
            pause_ns: 0,
            pause_until_ns: 0,
            taken: 0,
            left: 0,
        }
    }

    fn decide(&mut self, settings: &Settings, node: &Node, around: Around) -> Verdict {
        let Around { now_ns, busy, stalled, share_ns } = around;
        let missed_part = if stalled { MISSED_PART_STALLED } else { MISSED_PART };
        let change = self.learn(settings, now_ns, node);
        let mut verdict = Verdict {
            node: node.id,
            reclaim_pages: 0,
            batch_pages: settings.batch_pages(),
            compact: false,
            behind: false,
            reason: Reason::First,
        };
        let taken = self.taken;
        self.taken -= self.taken / FADES;
        self.left = 0;
        let wanted = self.wanted(settings);
        let free = node.above_high(self.order);
        let keep = mul_div(node.file_pages(), settings.keep_permille, 1000);
        let clean = node.clean_inactive_pages();
        let room = clean.saturating_sub(keep);
        if change.kswapd > 0 || change.direct > 0 {
            // What a pause could keep is evicted by the kernel now.
            self.pause_until_ns = self.pause_until_ns.min(now_ns);
        }
        verdict.reason = if change.ns == 0 {
            Reason::First
        } else if now_ns < self.pause_until_ns {
            Reason::Paused { until_ns: self.pause_until_ns }
        } else if taken >= BATCH_PAGES_MIN
            && change.missed >= MISSED_PAGES_MIN
            && change.missed.saturating_mul(missed_part) > taken
        {
            // Each page that came back is held against reclaim once.
            self.taken = 0;
            Reason::CameBack { missed: change.missed, taken, pause_ns: self.pause(now_ns) }
        } else if change.fill == 0 || self.fill_s < pages(settings.fill_bytes_s_min) {
            Reason::Calm { fill_s: self.fill_s }
        } else if free >= wanted {
            Reason::Enough { free, wanted }
        } else if mul_div(change.fill.saturating_add(change.held), settings.cause_permille, 1000)
            > change.fill
        {
            Reason::NotFiles { fill: change.fill, held: change.held }
        } else if self.order > 0 && node.above_high(0) >= in_vain(node, wanted) {
            // That much was freed already without yielding large blocks.
            verdict.compact = now_ns >= self.compact_at_ns && !busy;
            if verdict.compact {
                self.compact_at_ns = now_ns.saturating_add(COMPACT_NS_MIN);
            }
            Reason::Pieces { order: self.order, free, wanted, in_all: node.above_high(0) }
        } else if room < BATCH_PAGES_MIN {
            Reason::LittleInactive { clean, keep }
        } else if share_ns > now_ns {
            Reason::CpuShare { until_ns: share_ns }
        } else if busy {
            verdict.reclaim_pages = BATCH_PAGES_MIN;
            Reason::FillingBusy { fill_s: self.fill_s, free, wanted }
        } else {
            verdict.reclaim_pages =
                (wanted - free).max(pages(settings.reclaim_bytes)).max(BATCH_PAGES_MIN).min(room);
            Reason::Filling { fill_s: self.fill_s, free, wanted, order: self.order }
        };
        verdict.behind = self.wants_behind(settings, verdict.reason);
        if settings.early_reclaim == 0 {
            verdict.reclaim_pages = 0;
        }
        verdict.batch_pages = verdict.batch_pages.min(verdict.reclaim_pages);
        self.left = verdict.reclaim_pages;
        self.reason = verdict.reason;
        verdict
    }

    /// Whether to drop behind streams.
    fn wants_behind(&self, settings: &Settings, reason: Reason) -> bool {
        let by_large = settings.drop_behind >= BEHIND_LARGE && self.order > 0;
        settings.drop_behind > BEHIND_NEVER
            && match reason {
                Reason::Pieces { .. } | Reason::LittleInactive { .. } => true,
                Reason::Filling { .. } | Reason::FillingBusy { .. } => {
                    by_large || settings.early_reclaim == 0
                }
                // There is enough because pages are dropped: continuing keeps it so. With far more
                // than enough, the cache may grow again.
                Reason::Enough { free, wanted } => {
                    (by_large || settings.early_reclaim == 0)
                        && free < wanted.saturating_mul(PIECES)
                }
                _ => false,
            }
    }

    /// What changed since the last observation; updates the expectations.
    fn learn(&mut self, settings: &Settings, now_ns: u64, node: &Node) -> Change {
        let change = self.change(now_ns, node);
        if change.ns == 0 {
            return change;
        }
        let fill_s = mul_div(change.fill, SECOND_NS, change.ns);
        self.fill_s = fill_s.max(mul_div(self.fill_s, 3, 4).saturating_add(fill_s / 4));
        if fill_s >= self.peak_s || now_ns >= self.peak_until_ns {
            (self.peak_s, self.peak_until_ns) = (fill_s, now_ns.saturating_add(REMEMBERED_NS));
        }
        if change.fill >= BATCH_PAGES_MIN && change.large.saturating_mul(2) >= change.fill {
            // Detected before large blocks run out.
            self.expect_order(now_ns, HUGE_ORDER);
        }
        if change.kswapd > 0 || change.direct > 0 {
            self.learn_from_wake(settings, now_ns, node, &change);
        }
        self.forget(now_ns, self.fill_s >= pages(settings.fill_bytes_s_min));
        (self.last, self.last_ns) = (node.clone(), now_ns);
        change
    }

    fn change(&self, now_ns: u64, node: &Node) -> Change {
        let grown = |now: u64, before: u64| now.saturating_sub(before);
        let last = &self.last;
        // Pages that were reclaimed or dropped had entered the cache too.
        let out = grown(node.stolen_file_pages, last.stolen_file_pages)
            .saturating_add(grown(node.dropped_file_pages, last.dropped_file_pages));
        let in_and_out = node.file_pages().saturating_add(out);
        Change {
            fill: grown(in_and_out, last.file_pages()),
            large: grown(node.large_file_pages, last.large_file_pages),
            held: grown(node.held_pages, last.held_pages),
            missed: grown(node.missed_file_pages, last.missed_file_pages),
            kswapd: grown(node.kswapd_scanned_pages, last.kswapd_scanned_pages),
            direct: grown(node.direct_scanned_pages, last.direct_scanned_pages),
            ns: now_ns.saturating_sub(self.last_ns),
        }
    }

    /// The kernel had to reclaim: finds out what ran out.
    fn learn_from_wake(&mut self, settings: &Settings, now_ns: u64, node: &Node, change: &Change) {
        let last = &self.last;
        let used = change.fill.saturating_add(change.held);
        // More room than was used at both ends: not the amount ran out, but blocks that are large
        // enough.
        if last.above_low().min(node.above_low()) > used {
            // At least the smallest size that can have run out; if it was a larger one, the next
            // time will show it.
            let ran_out =
                |&order: &usize| last.above_high(order).min(node.above_high(order)) <= used;
            let large = self.order == HUGE_ORDER || caches_large(node);
            let order = if large {
                HUGE_ORDER
            } else {
                (1..HUGE_ORDER).find(ran_out).unwrap_or(HUGE_ORDER)
            };
            self.expect_order(now_ns, order);
        } else if last.above_high(self.order) >= self.wanted(settings) {
            // There was as much room as wanted, and it was not enough.
            self.margin = (self.margin + 1).min(MARGIN_MAX);
            self.margin_until_ns = now_ns.saturating_add(REMEMBERED_NS);
        }
    }

    fn expect_order(&mut self, now_ns: u64, order: usize) {
        self.order = order;
        self.order_until_ns = now_ns.saturating_add(REMEMBERED_NS);
    }

    /// Forgets old demands. The needs of a stream last while it continues.
    fn forget(&mut self, now_ns: u64, filling: bool) {
        if filling && self.order > 0 {
            self.order_until_ns = now_ns.saturating_add(REMEMBERED_NS);
        }
        if now_ns >= self.order_until_ns {
            self.order = 0;
        }
        if now_ns >= self.margin_until_ns {
            // Step by step: each step shows whether less is enough.
            self.margin = (self.margin - 1).max(MARGIN);
            self.margin_until_ns = now_ns.saturating_add(REMEMBERED_NS);
        }
        if self.pause_ns > 0 && now_ns >= self.pause_until_ns.saturating_add(FORGIVEN_NS) {
            self.pause_ns = 0;
        }
    }

    /// When to observe again, after `observe`.
    fn next(&self, settings: &Settings) -> Next {
        // With busy processors as seldom as possible.
        let poll_ns = if matches!(self.reason, Reason::FillingBusy { .. }) {
            settings.poll_ns
        } else {
            self.look_ns(settings)
        };
        if !matches!(self.reason, Reason::Calm { .. } | Reason::Enough { .. }) {
            return Next { after_ns: poll_ns, changed_pages: 0, latest_ns: poll_ns };
        }
        // A cache that was filled in large blocks may be again.
        let order = if caches_large(&self.last) { HUGE_ORDER } else { self.order };
        let surplus = self.last.above_high(order).saturating_sub(self.wanted(settings));
        let after_ns =
            mul_div(surplus, SECOND_NS, FILL_S_MAX).clamp(poll_ns, BLIND_NS_MAX.max(poll_ns));
        if matches!(self.reason, Reason::Enough { .. }) {
            return Next { after_ns, changed_pages: 0, latest_ns: after_ns };
        }
        let changed_pages =
            mul_div(pages(settings.fill_bytes_s_min), poll_ns, SECOND_NS).max(surplus / 4);
        Next { after_ns, changed_pages, latest_ns: after_ns.max(REST_NS_MAX) }
    }

    /// Pages that should be free above the high watermarks: twice what enters until the next
    /// observation and the reclaim that follows it are done; and what enters unnoticed if a stream
    /// as fast as a recent one begins again.
    fn wanted(&self, settings: &Settings) -> u64 {
        let look_ns = self.look_ns(settings);
        let until_look = mul_div(self.fill_s, look_ns, SECOND_NS);
        let reclaim_ns = mul_div(until_look, self.cost_ps, 1000);
        let until_done = mul_div(self.fill_s, look_ns.saturating_add(reclaim_ns), SECOND_NS);
        let unnoticed = mul_div(self.peak_s, settings.poll_ns.saturating_mul(5) / 4, SECOND_NS);
        until_done.saturating_mul(self.margin).max(unnoticed).max(pages(settings.free_bytes_min))
    }

    /// How often to observe while the cache fills: the faster it fills, the less must be kept free
    /// in between.
    fn look_ns(&self, settings: &Settings) -> u64 {
        mul_div(LOOK_PAGES, SECOND_NS, self.fill_s.max(1)).max(LOOK_NS_MIN).min(settings.poll_ns)
    }

    /// Leaves reclaim to the kernel for a while, twice as long as the last time.
    fn pause(&mut self, now_ns: u64) -> u64 {
        self.pause_ns = self.pause_ns.saturating_mul(2).clamp(PAUSE_NS_MIN, PAUSE_NS_MAX);
        self.pause_until_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns
    }
}

/// With this much free and still less in large blocks than wanted, freeing more will not help.
fn in_vain(node: &Node, wanted: u64) -> u64 {
    let times = if caches_large(node) { PIECES_LARGE } else { PIECES };
    wanted.saturating_mul(times).max((node.file_pages() / PIECES_PART).min(PIECES_PAGES_MAX))
}

/// Whether much of the cache is in folios of 2 MiB.
fn caches_large(node: &Node) -> bool {
    node.large_file_pages.saturating_mul(LARGE_PART) >= node.file_pages()
}

fn mul_div(value: u64, by: u64, over: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(by) / u128::from(over)).unwrap_or(u64::MAX)
}
