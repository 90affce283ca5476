//! The fault threads: they read the messages of userfaultfd and put memory in place.
//!
//! Nothing on this path touches managed memory, and it takes no lock that a thread of the program
//! could hold while it faults: the program's threads take the pager's own lock only in calls that
//! touch no managed memory meanwhile.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hiroma_policy::PrefetchRequest;
use hiroma_policy::neighbours::GROUP;
use hiroma_policy::run_ahead::{RUN_MAX, Run};
use hiroma_sys::lock::Lock;
use hiroma_sys::uffd::Message;
use hiroma_sys::{cpu, wait};
use hiroma_units::{BlockId, EXTENT, Nanos};

use crate::answer::{Answer, Fault};
use crate::control::Waited;
use crate::core::{Ahead, Core, Wait};
use crate::extent::Mode;
use crate::fetch::Fetcher;
use crate::live::Live;
use crate::lost::Began;
use crate::pack::Packing;
use crate::stage::HERE_MAX;
use crate::store::Channel;
use crate::waking::Estimate;
use crate::watchdog::Waits;
use crate::yielding::{Density, Yielding};

/// A fault thread. Each has its own messages, its own requests and its own channel to the store;
/// they share the pager's state.
pub struct Faulting {
    /// Thread 0 always reads, and retries the faults that had to wait. The others read only while
    /// many threads fault, and hand over to thread 0 the faults that have to wait.
    index: usize,
    core: Arc<Lock<Core>>,
    live: Arc<Live>,
    fetcher: Fetcher,
    packing: Packing,
    /// Fetches that begin with that of a fault.
    run: Vec<usize>,
    messages: Vec<Message>,
    waiting: Vec<Fault>,
    requests: Vec<PrefetchRequest>,
    follow: Follow,
    /// When it began to poll the store, which has not answered yet.
    looking_since: Option<Nanos>,
    fds: Vec<RawFd>,
    density: Density,
    estimate: Estimate,
}

/// Keeps the fault thread on the processor of the faulting thread: waking a thread on another
/// processor is many times more expensive than switching here, where the faulting thread has just
/// gone to sleep.
struct Follow {
    faults: u32,
    /// There has been nothing to read since the last fault.
    slept: bool,
    /// The number of faults in a row for which that was so.
    apart: u32,
    buf: [u8; 512],
}

/// The processor of the faulting thread is checked once in this many faults.
const FOLLOW_EVERY: u32 = 128;
/// A yielding fault thread runs when the faulting thread sleeps, and finds the next fault already
/// queued. If it has to wait for it after so many faults in a row, the two are on different
/// processors. Where that lasts, faults of several threads alternate, and looking does not help:
/// it is done after 1, 3, 7, 15, ... such faults.
const APART_MIN: u32 = 1;
/// How long the thread polls a store before it sleeps until there is an answer: most answers come
/// sooner than a sleep and a wakeup take.
const STORE_LOOK: Nanos = Nanos(200_000);
/// Faults that wait are retried at least this often. The other threads check this often whether
/// many threads still fault.
const RETRY_MS: i64 = 20;

impl Faulting {
    /// Fault thread number `index`.
    pub fn new(
        index: usize,
        core: Arc<Lock<Core>>,
        live: Arc<Live>,
        channel: Box<dyn Channel>,
    ) -> Faulting {
        let (costs, store) = {
            let core = core.lock();
            (core.lost.costs, core.store.clone())
        };
        Faulting {
            index,
            core,
            live,
            fetcher: Fetcher::new(channel, Some(index)),
            packing: Packing::new(&*store),
            run: Vec::with_capacity(RUN_MAX),
            messages: Vec::with_capacity(64),
            waiting: Vec::with_capacity(64),
            requests: Vec::with_capacity(64),
            follow: Follow { faults: 0, slept: false, apart: 0, buf: [0; 512] },
            looking_since: None,
            fds: Vec::with_capacity(16),
            density: Density::default(),
            estimate: Estimate::new(costs),
        }
    }

    pub fn run(mut self) {
        self.live.yielding.i_am_fault_thread(self.index);
        while !self.live.stopping() {
            if self.is_off_duty() {
                // What it reported last has been answered since. The watchdog would see that
                // fault wait for as long as this thread sleeps, and end the program.
                self.live.oldest.of(self.index).rests();
                self.live.yielding.wait_for_crowd(self.index);
                continue;
            }
            self.live.yielding.round(self.index);
            self.tell_oldest();
            let moved = self.turn();
            if moved {
                self.looking_since = None;
            }
            if moved && (self.fetcher.is_busy() || self.live.yielding.is_on()) {
                continue;
            }
            self.sleep();
            self.follow.slept = true;
        }
    }

    /// Whether the first fault thread is sufficient.
    fn is_off_duty(&self) -> bool {
        self.index > 0 && !self.live.yielding.is_crowd() && !self.fetcher.is_busy()
    }

    /// Handles what is pending. Returns false if there was nothing.
    pub fn turn(&mut self) -> bool {
        let mut moved = self.has_messages() && self.read_messages();
        moved |= self.fetcher.poll(&self.core);
        if moved {
            self.retry();
        }
        moved
    }

    /// Whether it is worth taking the lock to check for messages. Only the first thread handles
    /// messages that others have read.
    fn has_messages(&self) -> bool {
        self.index == 0 || self.live.yielding.is_crowd() && self.live.memory.has_messages()
    }

    /// Reports the oldest waiting fault to the watchdog.
    fn tell_oldest(&self) {
        let waiting =
            self.waiting.iter().map(|fault| (fault.since.read.0, fault.addr, fault.waits));
        let fetching = self.fetcher.oldest().map(|(since, addr)| (since.0, addr, Waits::Store));
        let oldest = self.live.oldest.of(self.index);
        match waiting.chain(fetching).min_by_key(|&(since, _, _)| since) {
            Some((since, addr, waits)) => oldest.is(since, addr, waits),
            None => oldest.none(),
        }
        oldest.round(cpu::now_ns());
    }

    /// Sleeps until there is work. While a thread of the program waits for the store, returns after
    /// a moment so that the store is polled.
    fn sleep(&mut self) {
        if self.index == 0 {
            self.live.faults_waiting.store(!self.waiting.is_empty(), Ordering::SeqCst);
        }
        if self.fetcher.is_busy() {
            let now = Nanos(cpu::now_ns());
            if now.since(*self.looking_since.get_or_insert(now)) < STORE_LOOK {
                self.live.yielding.pause();
                return;
            }
        }
        self.looking_since = None;
        let is_first = self.index == 0;
        let ms = if is_first && self.waiting.is_empty() { 500 } else { RETRY_MS };
        self.live.yielding.awake(self.index, false);
        self.live.oldest.of(self.index).round(0);
        self.fds.truncate(0);
        self.fds.push(self.live.uffd_number());
        if is_first {
            self.fds.push(self.live.fault_wake.as_raw_fd());
        }
        if self.fetcher.is_busy() {
            self.fds.extend(self.fetcher.wait_fds());
        }
        let ready = if self.fetcher.is_busy() {
            self.live.yielding.waits_for_store(|| wait::readable(&self.fds, ms))
        } else {
            wait::readable(&self.fds, ms)
        };
        self.estimate.sleeps();
        self.live.yielding.awake(self.index, true);
        let woken = is_first
            && ready & 2 != 0
            && rustix::io::read(&self.live.fault_wake, &mut [0; 8]).is_ok();
        if woken || !self.waiting.is_empty() {
            self.retry();
        }
    }

    /// Reads the queued messages and acts on them. Events are read and acted on under one hold of
    /// the lock: as soon as an event is read, the program continues, and it must not meet the state
    /// from before the event.
    pub fn read_messages(&mut self) -> bool {
        let shared = self.core.clone();
        let mut core = shared.lock_eagerly();
        let mut messages = std::mem::take(&mut self.messages);
        core.read_pending();
        core.catch_up();
        messages.append(&mut core.pending);
        drop(core);
        let any = !messages.is_empty();
        let read = Nanos(cpu::now_ns());
        self.estimate.reads(read);
        self.live.yielding.takes(
            self.index,
            messages.iter().filter(|message| matches!(message, Message::Fault { .. })).count(),
        );
        for message in messages.drain(..) {
            if let Message::Fault { addr, thread, .. } = message {
                let since = Began {
                    began: self.estimate.began(thread, self.live.yielding.is_on()),
                    read,
                    answered: read,
                };
                self.follow.on_fault(self.index, thread, &self.live.yielding);
                // Dense faults on whole extents are a stream, which does not benefit from the
                // scheduling for small ones.
                if self.answer(Fault {
                    addr,
                    since,
                    kind: Waited::FirstTouch,
                    has_waited: false,
                    known: false,
                    waits: Waits::Busy,
                }) == Mode::Small
                {
                    self.density.on_fault(&self.live.yielding, thread, read);
                }
                self.estimate.answers(thread, Nanos(cpu::now_ns()));
            }
        }
        self.messages = messages;
        any
    }

    /// Answers a fault as far as possible without waiting. Returns the current mode of its extent.
    fn answer(&mut self, mut fault: Fault) -> Mode {
        let mut core = self.core.lock_eagerly();
        if fault.has_waited {
            fault.since.answered = Nanos(cpu::now_ns());
        }
        let extent = (fault.addr - core.arena.base()) / EXTENT;
        let answer = core.on_fault(&mut fault, &mut self.requests);
        let mode = core.extents[extent].mode;
        let outcome = match answer {
            Answer::Done => {
                core.note_wait(fault.kind, fault.since, fault.addr);
                None
            }
            Answer::Coming(block) => {
                core.note_late(block, fault.since);
                None
            }
            Answer::Wait | Answer::NoRoom => {
                fault.waits =
                    if matches!(answer, Answer::NoRoom) { Waits::Room } else { Waits::Busy };
                fault.must_wait();
                put_off(self.index, &mut self.waiting, &mut core, fault);
                None
            }
            Answer::Fetch { block, stream } => {
                match self.fetcher.begin(
                    &mut core,
                    Ahead { block, map: true, stream, drains: false },
                    Some(fault.since),
                ) {
                    Ok(job) => {
                        fetch_beside(&mut self.fetcher, &mut core, block, &mut self.run);
                        Some(job)
                    }
                    Err(wait) => {
                        core.settle(block.extent_no().0 as usize);
                        if wait == Wait::Room {
                            core.wants_room(block);
                            fault.waits = Waits::Room;
                        }
                        fault.must_wait();
                        put_off(self.index, &mut self.waiting, &mut core, fault);
                        None
                    }
                }
            }
        };
        if !self.requests.is_empty() {
            core.prefetch(&self.requests);
            self.requests.clear();
        }
        core.catch_up();
        core.publish();
        core.mind_reserve();
        if outcome.is_none() {
            self.live.yielding.gives(self.index);
        }
        drop(core);
        if let Some(job) = outcome {
            // What the program waits for is finished last: it runs as soon as it is woken.
            self.fetcher.submit(job);
            self.run.drain(..).for_each(|job| self.fetcher.submit(job));
            self.fetcher.poll(&self.core);
        }
        if self.live.yielding.is_on() {
            self.evict();
        }
        mode
    }

    /// Evicts small blocks here.
    fn evict(&mut self) {
        let shared = self.core.clone();
        let mut core = shared.lock_eagerly();
        core.trim_staged();
        core.exchange_accessed();
        if !core.is_evictor_behind() {
            core.stage_burst();
            core.catch_up();
            return;
        }
        for _ in 0..HERE_MAX {
            if !core.stage_here() {
                break;
            }
            if !self.packing.choose(&mut core) {
                core.compare_here();
                continue;
            }
            drop(core);
            self.packing.write();
            core = shared.lock_eagerly();
            self.packing.commit(&mut core);
        }
        core.catch_up();
    }

    /// Retries the faults that had to wait.
    pub fn retry(&mut self) {
        if self.index > 0
            || self.waiting.is_empty() && !self.live.has_handed_over.load(Ordering::SeqCst)
        {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut core = self.core.lock_eagerly();
        self.live.has_handed_over.store(false, Ordering::SeqCst);
        waiting.append(&mut core.handed_over);
        core.wanted_bytes = 0;
        drop(core);
        self.live.yielding.takes(self.index, waiting.len());
        for fault in waiting {
            self.answer(fault);
        }
    }
}

/// Begins to fetch the blocks behind a faulted one, where faults follow each other in order,
/// or those beside it in its cluster.
fn fetch_beside(fetcher: &mut Fetcher, core: &mut Core, block: BlockId, jobs: &mut Vec<usize>) {
    if core.fixed.is_some() || block.is_huge() {
        return;
    }
    let sectors = core.sectors() as u64;
    let first = block.page();
    let Run { sectors: wanted, down } = core.runs.on_fault(first);
    let room = core.reserve().max(0) as usize / 2 / core.sector_bytes();
    let extent_start = first / sectors * sectors;
    let (mut at, end, most) = if wanted > 1 {
        core.neighbours.forget(first);
        core.clusters.forget_sample(first);
        if down {
            let start = (first + 1).saturating_sub(wanted as u64).max(extent_start);
            (start, first, wanted)
        } else {
            let end = (first + 2 * wanted as u64).min(extent_start + sectors);
            (first + block.pages() as u64, end, wanted)
        }
    } else if core.clusters.is_sample(first) {
        (first, first, 0)
    } else if let Some(cluster) = core.rest_of_cluster(block) {
        (cluster.page(), cluster.page() + cluster.pages() as u64, cluster.pages())
    } else if block.order() == 0 {
        let group = first / GROUP * GROUP;
        match core.neighbours.on_fault(first, (core.room() / block.bytes()) as u64) {
            Some(used) => (group + used.start, group + used.end, GROUP as usize),
            None => {
                let far = core.far_around(first, GROUP);
                core.neighbours.open(first, far);
                (first, first, 0)
            }
        }
    } else {
        (first, first, 0)
    };
    let most = most.min(room);
    let (mut count, mut start, mut last) = (block.pages(), first, first + block.pages() as u64);
    while at < end && count < most {
        let next = core.block_ahead(at, end);
        at = next.page() + next.pages() as u64;
        if !core.is_far(next) || !core.fits(next) {
            continue;
        }
        let ahead = Ahead { block: next, map: true, stream: false, drains: false };
        let Ok(job) = fetcher.begin(core, ahead, None) else { break };
        core.blocks.get_mut(&next).expect("just entered").prefetched = true;
        jobs.push(job);
        (start, last) = (start.min(next.page()), last.max(at));
        count += next.pages();
    }
    core.runs.fetched(start, last, count, down);
}

/// Puts off a fault that has to wait; the first fault thread retries it.
fn put_off(index: usize, waiting: &mut Vec<Fault>, core: &mut Core, fault: Fault) {
    if index == 0 {
        waiting.push(fault);
    } else {
        core.handed_over.push(fault);
        core.live.has_handed_over.store(true, Ordering::SeqCst);
        core.live.wake_fault_thread();
    }
}

impl Follow {
    fn on_fault(&mut self, index: usize, thread: u32, yielding: &Yielding) {
        self.faults = self.faults.wrapping_add(1);
        self.apart = if std::mem::take(&mut self.slept) { self.apart + 1 } else { 0 };
        let due = if yielding.is_on() {
            self.apart >= APART_MIN
                && ((self.apart + 1).is_power_of_two() || self.apart % FOLLOW_EVERY == 0)
        } else {
            self.faults % FOLLOW_EVERY == 1
        };
        let cpu = if due {
            cpu::last_cpu_of(crate::host::program(), thread, &mut self.buf)
        } else {
            None
        };
        if let Some(cpu) =
            cpu.filter(|&cpu| yielding.cpu(index) != cpu as u32 && yielding.take_cpu(index, cpu))
        {
            cpu::stay_on(cpu);
        }
    }
}
