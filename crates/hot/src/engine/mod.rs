//! One managed process: its tracker, its counts, the decisions, and their execution.
//!
//! The engine does not sleep and has no thread: its owner calls [`Engine::step`] with the time, and
//! again at the time that the step returns. A step either opens a window (clears the bits of some
//! ranges) or closes one (reads and counts them). When all ranges have been watched, a *pass* is
//! over, and decisions are made. Between rounds, surveys find completely present ranges that are
//! worth a collapse.

mod access;
mod act;
mod calm;
mod idle;
mod look;
mod memo;
mod renew;
mod survey;
mod try_out;
mod types;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use hiroma_policy::huge::{Planner, RangeFacts, Reason, Situation, Stall, Verdict, Window};
use hiroma_policy::pace::{BURDEN_PER_PAGE_NS, Pace};
use hiroma_sys::hot::maps;
use hiroma_sys::hot::target::{self, Target};
use hiroma_units::EXTENT;

pub use types::{ActivePage, State, Step, Usage};

use crate::bits;
use crate::error::HotError;
use crate::heat::Heat;
use crate::layout::Layout;
use crate::ledger::{Entry, Ledger};
use crate::machine;
use crate::options::Options;
use crate::readiness::Readiness;
use crate::tracker::{self, RangeView, RoundCost, Tracker};
use memo::Memo;
use survey::Surveys;

/// Rounds in a pass, unless there are few ranges.
const ROUNDS_PER_PASS: usize = 16;
/// Minimum number of ranges in a round.
const RANGES_PER_ROUND_MIN: usize = 32;

/// Share of one processor that making memory ready may take while a processor is idle, in
/// millionths. A hypervisor takes milliseconds for each huge page, in which
/// the process is not held up, and hot ranges should not wait for minutes. Where all processors are
/// busy, it is paid for like the collapse.
const READY_PPM: u64 = 200_000;
/// The same as a multiple of what collapsing may take, where that is divided among processes.
const READY_TIMES: u64 = 4;

/// Minimum number of passes before managing may settle: over fewer windows, rarely touched pages
/// look cold.
const SETTLE_PASSES_MIN: u64 = 10;

enum Phase {
    Idle,
    Watching {
        ranges: Vec<u64>,
        until_ns: u64,
    },
    /// A sample of all ranges: `pages` of each.
    Surveying {
        ranges: Vec<u64>,
        pages: std::ops::Range<u64>,
        until_ns: u64,
    },
}

/// One iteration over all ranges.
#[derive(Default)]
struct Pass {
    ranges: Vec<u64>,
    /// How many of them have been watched.
    turn: usize,
    touched_pages: u64,
    present_pages: u64,
    /// Passes so far, and those in a row that found nothing to do.
    number: u64,
    quiet: u16,
    /// Ranges that the last one has decided to collapse, the hottest first. The next one begins
    /// when there are none.
    due: VecDeque<RangeFacts>,
}

/// What managing has cost.
#[derive(Default)]
struct Accounts {
    resident_at_begin: u64,
    /// As of the last pass, without what collapsing has added.
    resident_now: u64,
    grown_bytes: u64,
    /// Processor time of this step that was taken from a share.
    charged_ns: u64,
    /// When refusals are forgotten.
    forget_at_ns: u64,
    rounds: u64,
    last_round: RoundCost,
    /// The round whose window is open.
    opened: RoundCost,
    /// Cost that is not yet in the ledger.
    unreported: RoundCost,
    unreported_rounds: u64,
}

/// A managed process.
pub struct Engine {
    target: Target,
    tracker: Box<dyn Tracker>,
    options: Options,
    planner: Planner,
    heat: Heat,
    layout: Layout,
    memos: BTreeMap<u64, Memo>,
    ledger: Ledger,
    pace: Pace,
    /// What tracking costs the process.
    burden: Pace,
    window: Window,
    stall: Stall,
    readiness: Readiness,
    surveys: Option<Surveys>,
    /// Pays for making memory ready.
    ready_pace: Pace,
    idle: idle::Idle,
    calm: calm::Calm,
    map: Option<look::Map>,
    image: Option<renew::Image>,
    /// Attempts in a row to look at the process's memory anew.
    attempts: u8,
    /// When the machine's setting of transparent huge pages is read again; whether it was `never`.
    setting_at_ns: u64,
    is_never: bool,
    /// Until when nothing is collapsed because there was no room for a huge page.
    short_until_ns: u64,
    phase: Phase,
    state: State,
    pass: Pass,
    accounts: Accounts,
    /// When settled: when to watch again.
    wake_ns: u64,
    began_ns: u64,
    trial: try_out::TryOut,
    regroup: Vec<u64>,
    wanted_ranges: u64,
    /// See [`Heat::top_permille`]; as of the last pass.
    top_permille: u16,
    views: Vec<RangeView>,
}

impl Engine {
    /// Starts managing process `pid`; `now_ns` is the caller's clock (monotonic).
    ///
    /// # Errors
    /// [`HotError::NoProcess`], [`HotError::NotPermitted`], [`HotError::NoBackend`],
    /// [`HotError::Managed`] if another process manages it, [`HotError::NoHugePages`] if it has
    /// switched huge pages off or the kernel cannot make them.
    pub fn new(pid: u32, mut options: Options, now_ns: u64) -> Result<Engine, HotError> {
        let target =
            Target::open(pid).map_err(|source| match HotError::of(pid, "pidfd_open")(source) {
                HotError::Gone { pid } => HotError::NoProcess { pid },
                other => other,
            })?;
        if target::is_kernel_thread(pid) {
            return Err(HotError::KernelThread { pid });
        }
        // Before the rest is opened: if it executes another program meanwhile, that is noticed.
        let image = renew::Image::of(pid);
        // An ending process loses its memory first; every error after that is due to the ending.
        let (tracker, ledger, resident_at_begin) = Engine::prepare(&target, &options)
            .map_err(|error| if target.is_ending() { HotError::Gone { pid } } else { error })?;
        let surveys = Surveys::new(&options, target.started(), now_ns);
        let rule = std::mem::replace(&mut options.rule, Box::new(hiroma_policy::huge::PaperRule));
        Ok(Engine {
            planner: Planner::new(rule),
            heat: Heat::new(),
            layout: Layout::default(),
            memos: BTreeMap::new(),
            ledger,
            pace: Pace::new(options.cpu_ppm, options.burst_ns, now_ns),
            burden: Pace::new(options.slowdown_ppm, options.burst_ns, now_ns),
            window: options.window,
            stall: Stall::new(options.stall_ns),
            idle: idle::Idle::default(),
            calm: calm::Calm::default(),
            map: None,
            image,
            attempts: 0,
            setting_at_ns: 0,
            is_never: false,
            short_until_ns: 0,
            ready_pace: Pace::new(READY_PPM, options.burst_ns, now_ns),
            readiness: if options.make_ready { Readiness::new() } else { Readiness::off() },
            surveys,
            phase: Phase::Idle,
            state: State::Tracking,
            pass: Pass::default(),
            accounts: Accounts { resident_at_begin, ..Accounts::default() },
            wake_ns: u64::MAX,
            began_ns: now_ns,
            trial: try_out::TryOut::default(),
            regroup: Vec::new(),
            wanted_ranges: 0,
            top_permille: 1000,
            views: Vec::new(),
            target,
            tracker,
            options,
        })
    }

    /// The tracker of `target`, its ledger with the beginning recorded, and its resident bytes.
    fn prepare(
        target: &Target,
        options: &Options,
    ) -> Result<(Box<dyn Tracker>, Ledger, u64), HotError> {
        let pid = target.pid();
        let looked = HotError::of(pid, "read /proc/PID/status");
        let refused = if options.watch_only {
            None
        } else {
            machine::huge_pages_refused(pid).map_err(&looked)?
        };
        let collapses = !options.watch_only && !options.dry_run;
        if let Some(reason) =
            refused.or_else(|| collapses.then(machine::collapse_refused).flatten())
        {
            return Err(HotError::NoHugePages { pid, reason });
        }
        let tracker = tracker::open(pid, options.backend)?;
        let mut ledger = match &options.ledger {
            Some(dir) => Ledger::take(dir, pid, target.started())?,
            None => Ledger::in_memory(),
        };
        let resident_bytes = machine::resident_bytes(pid).map_err(&looked)?;
        ledger.note(&Entry::Begin {
            pid,
            command: machine::command_of(pid),
            manager: std::process::id(),
            backend: tracker.backend().name().to_owned(),
            resident_bytes,
            budget_bytes: (options.settings.budget_bytes != u64::MAX)
                .then_some(options.settings.budget_bytes),
            dry_run: options.dry_run,
            told: options.told,
        });
        Ok((tracker, ledger, resident_bytes))
    }

    /// Does what is due at `now_ns`. Never sleeps; takes a few milliseconds at most.
    ///
    /// # Errors
    /// Those of the tracker. That the process ended is not an error but [`State::Gone`].
    pub fn step(&mut self, now_ns: u64) -> Result<Step, HotError> {
        let began = Instant::now();
        let cpu = hiroma_sys::cpu::thread_ns();
        self.accounts.charged_ns = 0;
        let mut step = Step {
            next_ns: u64::MAX,
            state: State::Tracking,
            collapsed: 0,
            split: 0,
            pass_over: false,
        };
        let done = if self.target.is_alive() {
            self.advance(now_ns, &began, &mut step)
        } else {
            self.gone(now_ns)
        };
        match done {
            Err(error) if error.is_gone() && !self.target.is_ending() => self.renew(now_ns)?,
            Err(error) if error.is_gone() || self.target.is_ending() => self.gone(now_ns)?,
            other => other?,
        }
        // Decisions, and looks at the machine.
        let spent = hiroma_sys::cpu::thread_ns() - cpu;
        self.pace.spend(spent.saturating_sub(self.accounts.charged_ns));
        step.next_ns = self.next_ns(now_ns + elapsed_ns(&began));
        step.state = self.state.clone();
        Ok(step)
    }

    fn advance(&mut self, now_ns: u64, began: &Instant, step: &mut Step) -> Result<(), HotError> {
        if self.has_trial(now_ns) {
            // It was asked for, and takes more than any share.
            self.accounts.charged_ns = u64::MAX;
            return self.try_on(now_ns);
        }
        match self.state {
            State::Gone | State::Stopped(_) => return Ok(()),
            // What is split to be checked is to be watched at once.
            State::Settled if now_ns >= self.wake_ns => {
                if self.is_calm(now_ns) {
                    self.look_again(now_ns, step)?;
                } else {
                    self.wake_ns = self.calm_at_ns();
                }
            }
            State::Settled | State::Tracking => {}
        }
        if self.is_calm(now_ns) {
            step.collapsed += u32::from(self.collapse_due(now_ns)?);
            step.collapsed += u32::from(self.collapse_next(now_ns)?);
        } else {
            // A collapse takes memory where that is short.
            self.drop_due();
        }
        if matches!(self.state, State::Stopped(_)) {
            return Ok(());
        }
        match self.phase {
            Phase::Watching { until_ns, .. } if now_ns >= until_ns => {
                self.close_window()?;
                if self.pass.turn >= self.pass.ranges.len() {
                    self.end_pass(now_ns, step)?;
                }
            }
            Phase::Surveying { until_ns, .. } if now_ns >= until_ns => self.close_survey(now_ns)?,
            _ => {}
        }
        let time_ns = now_ns + elapsed_ns(began);
        if matches!(self.phase, Phase::Idle)
            && self.next_round_ns(time_ns) <= time_ns
            && self.is_calm(time_ns)
        {
            if self.is_surveying() {
                self.open_survey(now_ns, began)?;
            }
            let is_open = matches!(self.phase, Phase::Idle) && self.pass.due.is_empty();
            if self.state == State::Tracking && is_open {
                self.open_window(now_ns, began)?;
            }
        }
        Ok(())
    }

    /// Whether surveys go on: until managing ends, even when passes have nothing more to do.
    fn is_surveying(&self) -> bool {
        match self.state {
            State::Tracking => true,
            State::Settled => self.wake_ns != u64::MAX,
            State::Gone | State::Stopped(_) => false,
        }
    }

    fn next_ns(&mut self, now_ns: u64) -> u64 {
        if let Some(next_ns) = self.trial.next_ns(now_ns) {
            return next_ns;
        }
        let survey_ns = if self.is_surveying() { self.next_survey_ns(now_ns) } else { u64::MAX };
        let pass_ns = match (&self.state, &self.phase) {
            (State::Gone | State::Stopped(_), _) => u64::MAX,
            (_, Phase::Watching { until_ns, .. } | Phase::Surveying { until_ns, .. }) => *until_ns,
            (State::Settled, _) => self.wake_ns,
            (State::Tracking, Phase::Idle) if !self.pass.due.is_empty() => u64::MAX,
            (State::Tracking, Phase::Idle) => self.next_round_ns(now_ns),
        };
        survey_ns.min(pass_ns).min(self.next_due_ns(now_ns))
    }

    /// Deducts processor time from the share of tracking.
    fn charge(&mut self, cpu_ns: u64) {
        self.pace.spend(cpu_ns);
        self.accounts.charged_ns = self.accounts.charged_ns.saturating_add(cpu_ns);
    }

    /// When both shares, of what tracking takes itself and of what it costs the process, and the
    /// machine's memory allow another round.
    fn next_round_ns(&mut self, now_ns: u64) -> u64 {
        self.pace.next_ns(now_ns).max(self.burden.next_ns(now_ns)).max(self.calm_at_ns())
    }

    fn gone(&mut self, now_ns: u64) -> Result<(), HotError> {
        if self.state != State::Gone {
            self.state = State::Gone;
            self.note_end(now_ns, "the process ended");
        }
        Ok(())
    }

    /// Clears the bits of the next ranges.
    fn open_window(&mut self, now_ns: u64, began: &Instant) -> Result<(), HotError> {
        let cpu = hiroma_sys::cpu::thread_ns();
        if self.pass.turn >= self.pass.ranges.len() {
            self.begin_pass(now_ns)?;
        }
        let rest = &self.pass.ranges[self.pass.turn..];
        let all = self.pass.ranges.len();
        let count = if self.tracker.clears_all() {
            all
        } else {
            all.div_ceil(ROUNDS_PER_PASS).max(RANGES_PER_ROUND_MIN)
        };
        let ranges = rest[..count.min(rest.len())].to_vec();
        self.tracker.clear(&self.layout, &ranges)?;
        let spent = hiroma_sys::cpu::thread_ns() - cpu;
        self.charge(spent);
        self.accounts.opened =
            RoundCost { clear_ns: spent, ranges: ranges.len() as u64, ..RoundCost::default() };
        let until_ns = now_ns + elapsed_ns(began) + self.window.ns();
        self.phase = Phase::Watching { ranges, until_ns };
        Ok(())
    }

    /// Updates where the process's memory is.
    fn begin_pass(&mut self, now_ns: u64) -> Result<(), HotError> {
        self.check_image()?;
        self.forget_refusals(now_ns);
        let pid = self.target.pid();
        self.layout = Layout::of(&maps::of(pid).map_err(HotError::of(pid, "read /proc/PID/maps"))?);
        self.pass.ranges.clear();
        self.tracker.populated(&self.layout, &mut self.pass.ranges)?;
        self.note_freed();
        // Where the budget limits, surveys collapse only what is clearly hot, and passes judge the
        // rest.
        let is_tight = self.is_tight();
        if let Some(surveys) = self.surveys.as_ref().filter(|_| !is_tight) {
            self.pass.ranges.retain(|&range| !surveys.judges(range));
            self.heat.retain(|range| !surveys.judges(range));
        }
        (self.pass.turn, self.pass.touched_pages, self.pass.present_pages) = (0, 0, 0);
        if self.surveys.is_none() {
            self.shared_once_less();
        }
        let layout = &self.layout;
        self.heat.retain(|range| layout.holds_part(range));
        self.memos.retain(|&range, _| layout.holds_part(range));
        Ok(())
    }

    /// Ranges of which pages are shared come closer to being looked at again.
    fn shared_once_less(&mut self) {
        for memo in self.memos.values_mut() {
            memo.shared = memo.shared.saturating_sub(1);
        }
    }

    /// Reads and counts what was touched.
    fn close_window(&mut self) -> Result<(), HotError> {
        let Phase::Watching { ranges, .. } = std::mem::replace(&mut self.phase, Phase::Idle) else {
            return Ok(());
        };
        let cpu = hiroma_sys::cpu::thread_ns();
        self.views.clear();
        self.tracker.scan(&self.layout, &ranges, &mut self.views)?;
        let scanned = hiroma_sys::cpu::thread_ns();
        let (present, touched) = self.heat.add(&self.views);
        for view in self.views.iter().filter(|view| view.huge) {
            self.memos.entry(view.range).or_default().in_use = !bits::is_empty(&view.touched);
        }
        self.note_small();
        // The processor has to look up each page that is in use again, within the window or later.
        let in_use: u64 = self
            .views
            .iter()
            .map(|view| self.heat.range(view.range).map_or(0, |heat| heat.pages_in_use()))
            .sum();
        self.burden.spend(in_use * BURDEN_PER_PAGE_NS);
        let counted = hiroma_sys::cpu::thread_ns();
        self.charge(counted - cpu);
        self.pass.present_pages += present;
        self.pass.touched_pages += touched;
        self.pass.turn += ranges.len();
        let round = &mut self.accounts.opened;
        (round.scan_ns, round.count_ns, round.present_pages, round.touched_pages) =
            (scanned - cpu, counted - scanned, present, touched);
        self.accounts.last_round = *round;
        self.accounts.unreported.add(&self.accounts.last_round);
        self.accounts.rounds += 1;
        self.accounts.unreported_rounds += 1;
        Ok(())
    }

    /// Decides, acts, and checks whether anything is left to do.
    fn end_pass(&mut self, now_ns: u64, step: &mut Step) -> Result<(), HotError> {
        step.pass_over = true;
        self.pass.number += 1;
        self.attempts = 0;
        self.window.learn(self.pass.touched_pages, self.pass.present_pages);
        if self.options.watch_only {
            self.report_tracking(now_ns);
            return Ok(());
        }
        self.credit_what_came_back();
        self.note_resident();
        self.top_permille = self.heat.top_permille();
        let facts = self.facts();
        let situation = Situation {
            resident_bytes: self.resident_bytes(),
            grown_bytes: self.accounts.grown_bytes,
            huge_bytes: self.huge_ranges() * EXTENT as u64,
            free_huge_pages: machine::free_huge_pages(),
        };
        let mut verdicts = Vec::with_capacity(facts.len());
        self.planner.plan(&self.options.settings, &situation, &facts, &mut verdicts);
        let has_reason = |verdict: &&Verdict, reason| verdict.reason == reason;
        self.wanted_ranges =
            verdicts.iter().filter(|verdict| has_reason(verdict, Reason::OverBudget)).count()
                as u64;
        let unknown = self.pass.number < SETTLE_PASSES_MIN
            || verdicts.iter().any(|verdict| verdict.reason == Reason::NotYetKnown);
        let acted = self.act(now_ns, &facts, &verdicts, step)?;
        let is_busy = acted || unknown || self.surveys.as_ref().is_some_and(Surveys::is_busy);
        self.pass.quiet = if is_busy { 0 } else { self.pass.quiet + 1 };
        self.report_tracking(now_ns);
        if self.state == State::Tracking && self.pass.quiet >= self.options.quiet_passes {
            self.settle(now_ns);
        }
        Ok(())
    }

    /// The facts of every range that has a page present.
    fn facts(&self) -> Vec<RangeFacts> {
        let is_scarce = self.is_scarce();
        let of = |(range, heat): (u64, &crate::heat::RangeHeat)| {
            let memo = self.memos.get(&range).copied().unwrap_or_default();
            RangeFacts {
                range,
                present: bits::count(&heat.present),
                hot: bits::count(&heat.hot_pages(self.hot_count(heat.windows))),
                huge: heat.huge,
                ours: memo.ours,
                may_be_huge: memo.is_open() && self.layout.holds_whole(range),
                is_free: memo.added_pages == 0 && !is_scarce,
                windows: heat.windows,
                cold_checks: memo.cold_checks,
            }
        };
        self.heat.ranges().map(of).collect()
    }

    /// The count from which a page that was watched for `windows` windows is hot.
    pub fn hot_count(&self, windows: u16) -> u16 {
        self.options.settings.hot_count(windows, self.top_permille)
    }

    /// Resumes tracking if it had settled.
    pub fn resume(&mut self) {
        if self.state == State::Settled {
            self.state = State::Tracking;
            self.pass.quiet = 0;
        }
    }

    fn at_ms(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.began_ns) / 1_000_000
    }

    fn settle(&mut self, now_ns: u64) {
        self.state = State::Settled;
        self.wake_ns =
            self.options.recheck_ns.map_or(u64::MAX, |pause| now_ns.saturating_add(pause));
    }

    fn report_tracking(&mut self, now_ns: u64) {
        let cost = std::mem::take(&mut self.accounts.unreported);
        let rounds = std::mem::take(&mut self.accounts.unreported_rounds);
        self.ledger.note(&Entry::Tracking {
            at_ms: self.at_ms(now_ns),
            rounds,
            clear_ns: cost.clear_ns,
            scan_ns: cost.scan_ns,
            count_ns: cost.count_ns,
            window_ns: self.window.ns(),
        });
    }

    fn note_end(&mut self, now_ns: u64, why: &str) {
        let resident_bytes = machine::resident_bytes(self.target.pid()).unwrap_or(0);
        let huge_bytes = self.usage().huge_bytes;
        self.ledger.note(&Entry::End {
            at_ms: self.at_ms(now_ns),
            why: why.to_owned(),
            huge_bytes,
            resident_bytes,
        });
    }

    /// Ends managing and closes the ledger with `why`. Huge pages remain; see [`Engine::undo`].
    pub fn finish(mut self, now_ns: u64, why: &str) -> Ledger {
        self.leave(now_ns, why);
        self.ledger
    }

    /// The last that is done before an engine is dropped.
    pub(crate) fn leave(&mut self, now_ns: u64, why: &str) {
        self.abandon_trial();
        // These states have already recorded their end.
        if !matches!(self.state, State::Gone | State::Stopped(_)) {
            self.note_end(now_ns, why);
        }
    }
}

fn elapsed_ns(began: &Instant) -> u64 {
    began.elapsed().as_nanos() as u64
}
