//! The fault thread: reads what userfaultfd has to say and puts memory in place.
//!
//! On this path nothing touches managed memory, and no lock is taken that a thread of the program could hold while it faults: the
//! pager's own lock is taken by the program's threads only in calls that touch no managed memory meanwhile.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hiroma_kernel::cpu;
use hiroma_kernel::lock::Lock;
use hiroma_kernel::uffd::Message;
use hiroma_kernel::{vm, wait};
use hiroma_policy::{Origin, PrefetchRequest};
use hiroma_units::{BlockId, EXTENT, Nanos, PAGE};

use crate::canary;
use crate::control::{Counter, Waited};
use crate::core::{Core, Phase, Wait};
use crate::extent::{Copy, Mode, flag};
use crate::fatal;
use crate::fetch::Fetcher;
use crate::live::{Live, Path};
use crate::lost::Began;
use crate::mover::PutIn;
use crate::quiet::{Density, Quiet};
use crate::store::Channel;
use crate::waking::Estimate;
use crate::watchdog::Waits;

/// A fault that has not been answered yet.
#[derive(Clone, Copy, Debug)]
struct Fault {
    addr: usize,
    since: Began,
    /// What it waits for, as it turns out.
    kind: Waited,
    /// It could not be answered at once.
    has_waited: bool,
    /// It has been counted and shown to the policies.
    known: bool,
    waits: Waits,
}

/// What is to be done about a fault.
enum Answer {
    /// The thread has been woken, or will be as soon as the lock is free.
    Done,
    /// It will be when the block has come that is under way.
    Coming(BlockId),
    /// The block must be fetched.
    Fetch { block: BlockId, stream: bool },
    /// Try again when something has changed.
    Wait,
    /// The same, when there is room.
    NoRoom,
}

/// The fault thread.
pub struct Faulting {
    core: Arc<Lock<Core>>,
    live: Arc<Live>,
    fetcher: Fetcher,
    messages: Vec<Message>,
    waiting: Vec<Fault>,
    requests: Vec<PrefetchRequest>,
    follow: Follow,
    /// Since when it has been looking at the store, which has not answered.
    looking_since: Option<Nanos>,
    fds: Vec<RawFd>,
    density: Density,
    estimate: Estimate,
}

/// Keeps the fault thread on the processor of the thread that faults: waking another one costs many times more than switching here,
/// where the faulting thread has just gone to sleep.
struct Follow {
    cpu: Option<usize>,
    faults: u32,
    /// There was nothing to read since.
    slept: bool,
    /// For how many faults in a row that was so.
    apart: u32,
    buf: [u8; 512],
}

/// How many faults pass between two looks at where the faulting thread runs.
const FOLLOW_EVERY: u32 = 128;
/// A quiet fault thread runs when the faulting thread sleeps, and finds the next fault waiting. If it has to wait for faults so many
/// times in a row, the two are on different processors.
const APART_MAX: u32 = 2;
/// So many faults in a row on one page that is mapped cannot be late messages of threads that faulted together.
const STUCK_AFTER: u32 = 10_000;
/// By how much the copy of a block that is being written may pass the limit.
const OVER_LIMIT_MAX: usize = 256 << 10;
/// For how long the thread looks at a store before it sleeps until there is an answer: most answer sooner than it could go to sleep and be
/// woken.
const STORE_LOOK: Nanos = Nanos(200_000);
/// Faults that wait are looked at again at least so often.
const RETRY_MS: i64 = 20;

impl Faulting {
    pub fn new(core: Arc<Lock<Core>>, live: Arc<Live>, channel: Box<dyn Channel>) -> Faulting {
        let costs = core.lock().lost.costs;
        Faulting {
            core,
            live,
            fetcher: Fetcher::new(channel),
            messages: Vec::with_capacity(64),
            waiting: Vec::with_capacity(64),
            requests: Vec::with_capacity(64),
            follow: Follow { cpu: None, faults: 0, slept: false, apart: 0, buf: [0; 512] },
            looking_since: None,
            fds: Vec::with_capacity(16),
            density: Density::default(),
            estimate: Estimate::new(costs),
        }
    }

    pub fn run(mut self) {
        self.live.quiet.i_am_the_fault_thread();
        while !self.live.stopping() {
            self.live.quiet.round();
            self.tell_oldest();
            let moved = self.turn();
            if moved {
                self.looking_since = None;
            }
            if moved && (self.fetcher.is_busy() || self.live.quiet.is_on()) {
                continue;
            }
            self.sleep();
            self.follow.slept = true;
        }
    }

    /// Does what there is to do. False: there was nothing.
    pub fn turn(&mut self) -> bool {
        let mut moved = self.read_messages();
        moved |= self.fetcher.poll(&self.core);
        if moved {
            self.retry();
        }
        moved
    }

    /// Tells the watchdog what waits longest.
    fn tell_oldest(&self) {
        let waiting = self.waiting.iter().map(|fault| (fault.since.read.0, fault.addr, fault.waits));
        let fetching = self.fetcher.oldest().map(|(since, addr)| (since.0, addr, Waits::Store));
        match waiting.chain(fetching).min_by_key(|&(since, _, _)| since) {
            Some((since, addr, waits)) => self.live.oldest.is(since, addr, waits),
            None => self.live.oldest.none(),
        }
        self.live.oldest.round(cpu::now_ns());
    }

    /// Sleeps until there is something to do; while a thread of the program waits for the store, only for a moment at a time.
    fn sleep(&mut self) {
        self.live.faults_waiting.store(!self.waiting.is_empty(), Ordering::SeqCst);
        if self.fetcher.is_busy() {
            let now = Nanos(cpu::now_ns());
            if now.since(*self.looking_since.get_or_insert(now)) < STORE_LOOK {
                self.live.quiet.pause();
                return;
            }
        }
        self.looking_since = None;
        let ms = if self.waiting.is_empty() { 500 } else { RETRY_MS };
        self.live.quiet.awake(false);
        self.live.oldest.round(0);
        self.fds.truncate(0);
        self.fds.extend([self.live.uffd_number(), self.live.fault_wake.as_raw_fd()]);
        if self.fetcher.is_busy() {
            self.fds.extend(self.fetcher.wait_fds());
        }
        let ready = wait::readable(&self.fds, ms);
        self.estimate.sleeps();
        self.live.quiet.awake(true);
        let woken = ready & 2 != 0 && rustix::io::read(&self.live.fault_wake, &mut [0; 8]).is_ok();
        if woken || !self.waiting.is_empty() {
            self.retry();
        }
    }

    /// Reads what has come and acts on it. Events are read and acted on under one hold of the lock: from the moment an event was read
    /// the program goes on, and must not meet what the books still held then.
    pub fn read_messages(&mut self) -> bool {
        let shared = self.core.clone();
        let mut core = shared.lock_eagerly();
        let mut messages = std::mem::take(&mut self.messages);
        if self.live.memory.read(&mut core.pending).is_err() {
            fatal::die("reading from userfaultfd failed; please report this");
        }
        core.catch_up();
        messages.append(&mut core.pending);
        drop(core);
        let any = !messages.is_empty();
        let read = Nanos(cpu::now_ns());
        self.estimate.reads(read);
        for message in messages.drain(..) {
            if let Message::Fault { addr, thread, .. } = message {
                let since = Began { began: self.estimate.began(thread, self.live.quiet.is_on()), read, answered: read };
                self.follow.on_fault(thread, &self.live.quiet);
                // Faults on whole extents that come densely are a stream, which has no use for the scheduling of small ones.
                if self.answer(Fault { addr, since, kind: Waited::FirstTouch, has_waited: false, known: false, waits: Waits::Busy })
                    == Mode::Small
                {
                    self.density.on_fault(&self.live.quiet, thread, read);
                }
                self.estimate.answers(thread, Nanos(cpu::now_ns()));
            }
        }
        self.messages = messages;
        any
    }

    /// Answers a fault as far as it goes without waiting; returns how its extent is handled now.
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
                fault.waits = if matches!(answer, Answer::NoRoom) { Waits::Room } else { Waits::Busy };
                fault.must_wait();
                self.waiting.push(fault);
                None
            }
            Answer::Fetch { block, stream } => match self.fetcher.begin(&mut core, block, true, stream, Some(fault.since)) {
                Ok(job) => Some(job),
                Err(wait) => {
                    core.settle(block.extent_no().0 as usize);
                    if wait == Wait::Room {
                        core.wants_room(block);
                        fault.waits = Waits::Room;
                    }
                    fault.must_wait();
                    self.waiting.push(fault);
                    None
                }
            },
        };
        if !self.requests.is_empty() {
            core.prefetch(&self.requests);
            self.requests.clear();
        }
        core.catch_up();
        core.publish();
        core.mind_reserve();
        drop(core);
        if let Some(job) = outcome {
            self.fetcher.submit(job);
            self.fetcher.poll(&self.core);
        }
        if self.live.quiet.is_on() {
            let mut core = self.core.lock_eagerly();
            core.evict_here();
            core.catch_up();
        }
        mode
    }

    pub fn retry(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.core.lock_eagerly().wanted_bytes = 0;
        for fault in waiting {
            self.answer(fault);
        }
    }
}

impl Fault {
    /// It could not be answered at once. A first touch then is one that far memory keeps waiting.
    fn must_wait(&mut self) {
        self.has_waited = true;
        if self.kind == Waited::FirstTouch {
            self.kind = Waited::Room;
        }
    }
}

impl Follow {
    fn on_fault(&mut self, thread: u32, quiet: &Quiet) {
        self.faults = self.faults.wrapping_add(1);
        self.apart = if std::mem::take(&mut self.slept) { self.apart + 1 } else { 0 };
        let due = if quiet.is_on() { self.apart % APART_MAX == APART_MAX - 1 } else { self.faults % FOLLOW_EVERY == 1 };
        let cpu = if due { cpu::last_cpu_of(crate::host::program(), thread, &mut self.buf) } else { None };
        if let Some(cpu) = cpu.filter(|&cpu| self.cpu != Some(cpu) && cpu::stay_on(cpu)) {
            self.cpu = Some(cpu);
            quiet.stays_on(cpu);
        }
    }
}

impl Core {
    fn on_fault(&mut self, fault: &mut Fault, requests: &mut Vec<PrefetchRequest>) -> Answer {
        let offset = fault.addr - self.arena.base();
        let (page, extent) = ((offset / PAGE) as u64, offset / EXTENT);
        self.recorder.note("fault", page, fault.known as usize, self.extents[extent].mode as usize);
        if self.extents[extent].has(flag::RECLAIMING) {
            return Answer::Wait;
        }
        if !fault.known {
            self.count(Counter::Faults, 1);
        }
        let mode = match self.extents[extent].mode {
            Mode::Away => match self.choose_mode(extent, page) {
                Some(mode) => mode,
                None => return Answer::Wait,
            },
            mode => mode,
        };
        let block = self.block_of(page, mode);
        if self.is_resident(block) {
            return self.on_resident(block, fault.addr);
        }
        let known = std::mem::replace(&mut fault.known, true);
        if let Some(entry) = self.blocks.get(&block).copied() {
            fault.kind = Waited::Staged;
            return self.on_framed(block, entry.phase, known, requests);
        }
        let (first, count) = self.sector_range(block);
        let far = (first..first + count).any(|sector| !matches!(self.extents[extent].copy(sector), Copy::None | Copy::Pattern(0)));
        let stream = self.prefetcher.is_stream(page);
        if !known {
            self.consult(block, page, requests);
            self.count(if far { Counter::FaultsFetched } else { Counter::FaultsFresh }, 1);
            if far && mode == Mode::Small && self.fixed.is_none() && self.granularity.on_small_fault(&mut self.extents[extent].history) {
                self.buy_rest(block, requests);
            }
        }
        if far {
            return Answer::Fetch { block, stream };
        }
        self.note_zeros(block);
        self.map_zeros(block, stream)
    }

    /// Asks the prefetch policy about a fault.
    fn consult(&mut self, block: BlockId, page: u64, requests: &mut Vec<PrefetchRequest>) {
        if !self.prefetch {
            return;
        }
        let room = self.reserve().max(0) as usize / 2;
        let budget = (room / block.bytes()).min(64);
        self.prefetcher.on_fault(page, block.pages() as u16, budget, requests);
    }

    /// The whole extent is worth having: asks for the sectors that are missing.
    fn buy_rest(&mut self, block: BlockId, requests: &mut Vec<PrefetchRequest>) {
        let start = block.page() - block.page_in_extent() as u64;
        self.count(Counter::ModeChanges, 1);
        for sector in 0..self.sectors() {
            if matches!(self.extent(block).copy(sector), Copy::Stored { .. }) {
                let page = start + ((sector as u64) << self.sector_order);
                requests.push(PrefetchRequest { page, unit: 1 << self.sector_order, leave_unmapped: false });
            }
        }
    }

    /// How an extent that is away comes back. None: not before its page table has been given back.
    fn choose_mode(&mut self, extent: usize, page: u64) -> Option<Mode> {
        let stream = self.prefetcher.is_stream(page);
        let fresh = self.extents[extent].far_sectors() == 0;
        let region = self.region_of(self.arena.base() + extent * EXTENT);
        let history = &mut self.extents[extent].history;
        let wanted = match (self.fixed, fresh) {
            (Some(_), _) => Mode::Huge,
            (None, true) => self.granularity.on_fresh_fault(history, self.regions.entry(region).or_default(), stream).into(),
            (None, false) => self.granularity.on_far_fault(history, stream).into(),
        };
        let mode = self.possible_mode(extent, wanted);
        if mode == Mode::Huge && self.needs_reclaim(extent) {
            self.extents[extent].set(flag::RECLAIMING, true);
            self.reclaim_queue.push(extent as u32);
            self.live.evict_bell.ring();
            return None;
        }
        if mode == Mode::Huge && fresh {
            self.extents[extent].set(flag::BORN_FRESH, true);
        }
        self.recorder.note("mode", extent as u64 * 512, mode as usize, 0);
        self.extents[extent].mode = mode;
        Some(mode)
    }

    /// A fault on memory that the books say is there: another thread's fault brought it meanwhile, or the program discarded it
    /// behind our back.
    fn on_resident(&mut self, block: BlockId, addr: usize) -> Answer {
        let page = addr / PAGE * PAGE;
        // Canary "holes": a page that the program dropped past us is not put back.
        if self.extent(block).has(flag::HOLES) && !canary::is_broken("holes") {
            let _ = self.put_zeros(page, PAGE);
        } else {
            self.stuck = if self.stuck.0 == page { (page, self.stuck.1 + 1) } else { (page, 0) };
            if self.stuck.1 > STUCK_AFTER {
                self.recorder.save_extent(block.page() + (page - self.addr(block)) as u64 / PAGE as u64);
                fatal::die(&format!(
                    "the page at {page:#x} should be there and is not: the program (or a library) changed its memory behind the back of hiroma. It was ended rather than given wrong data"
                ));
            }
            self.wakes.push((page, PAGE));
        }
        Answer::Done
    }

    /// A fault on a block that is in a frame.
    fn on_framed(&mut self, block: BlockId, phase: Phase, known: bool, requests: &mut Vec<PrefetchRequest>) -> Answer {
        let entry = self.blocks.get_mut(&block).expect("looked up just now");
        if entry.doomed || entry.left {
            return Answer::Wait;
        }
        let prefetched = entry.prefetched;
        match phase {
            Phase::Fetching => {
                entry.map_when_ready = true;
                if !known && prefetched {
                    self.used_prefetch(block, requests);
                }
                Answer::Coming(block)
            }
            Phase::Staged => {
                let origin = if prefetched { Origin::Stream } else { Origin::Rescued };
                if !known {
                    if prefetched {
                        self.used_prefetch(block, requests);
                    } else {
                        self.count(Counter::FaultsStaged, 1);
                    }
                }
                let extent = self.extent_mut(block);
                extent.rescues = extent.rescues.saturating_add(u8::from(!prefetched));
                self.map_in(block, origin);
                Answer::Done
            }
            // Canary "copy while written": the frame itself goes back, while the evictor reads it.
            Phase::Writing if canary::is_broken("copy while written") => {
                self.map_in(block, Origin::Rescued);
                Answer::Done
            }
            Phase::Writing => self.rescue_copy(block),
        }
    }

    fn used_prefetch(&mut self, block: BlockId, requests: &mut Vec<PrefetchRequest>) {
        if let Some(entry) = self.blocks.get_mut(&block) {
            entry.prefetched = false;
            entry.stream = true;
        }
        self.count(Counter::FaultsPrefetched, 1);
        self.prefetcher.used(block.page());
        self.consult(block, block.page(), requests);
    }

    /// A touch of a block that the evictor is reading just now: the program gets a copy, the evictor keeps the frame to the end.
    fn rescue_copy(&mut self, block: BlockId) -> Answer {
        // A copy may pass the limit, but by little: otherwise the write-back is waited for.
        let taken = match self.take_frame_for(block, false) {
            Some((frame, _)) => Some(frame),
            None if self.local() + block.bytes() > self.room() + OVER_LIMIT_MAX => None,
            None => self.frames.take_empty(block.order()).inspect(|&frame| self.frames.gained(frame)),
        };
        let Some(frame) = taken else {
            self.wants_room(block);
            return Answer::NoRoom;
        };
        let entry = self.blocks.get_mut(&block).expect("looked up just now");
        let from = entry.frame;
        let addr = self.frames.addr(frame);
        self.recorder.note("rescue copy", block.page(), block.pages(), 0);
        vm::copy(addr, self.frames.addr(from), block.bytes());
        self.apply_overlay(block, addr);
        if self.put_in(block, frame) == PutIn::Done {
            self.blocks.get_mut(&block).expect("still there").left = true;
            self.admit(block, Origin::Rescued);
            let extent = self.extent_mut(block);
            extent.rescues = extent.rescues.saturating_add(1);
        }
        self.count(Counter::FaultsStaged, 1);
        Answer::Done
    }

    /// First touch: zeros.
    fn map_zeros(&mut self, block: BlockId, stream: bool) -> Answer {
        let addr = self.addr(block);
        let origin = if stream { Origin::Stream } else { Origin::Fresh };
        if block.is_huge() && self.live.path == Path::Full {
            let Some((frame, zero)) = self.take_frame_for(block, true) else {
                return self.no_room(block);
            };
            if !zero {
                vm::zero(self.frames.addr(frame), block.bytes());
            }
            self.fresh_demand += 1;
            match self.put_in(block, frame) {
                PutIn::Done => self.admit(block, origin),
                PutIn::Gone => self.settle(block.extent_no().0 as usize),
            }
            return Answer::Done;
        }
        if !self.keeping_mode(block, |core| core.make_room(block.bytes())) {
            return self.no_room(block);
        }
        match self.put_zeros(addr, block.bytes()) {
            PutIn::Done => self.admit(block, origin),
            PutIn::Gone => self.settle(block.extent_no().0 as usize),
        }
        Answer::Done
    }

    fn no_room(&mut self, block: BlockId) -> Answer {
        self.settle(block.extent_no().0 as usize);
        self.wants_room(block);
        Answer::NoRoom
    }
}

impl From<hiroma_policy::Mode> for Mode {
    fn from(mode: hiroma_policy::Mode) -> Mode {
        match mode {
            hiroma_policy::Mode::Huge => Mode::Huge,
            hiroma_policy::Mode::Small => Mode::Small,
        }
    }
}
