//! Surveys: samples of all ranges at once, and the collapses that follow from them.
//!
//! A pass watches each page of each range, a few ranges at a time; in a large process it takes
//! longer than many hot sets live. A survey clears a few pages of every range and reads them after
//! one window. It judges the ranges of which every page is present: those grow nothing when they
//! are collapsed. Passes leave them out. Collapses are paid for from a share of their own.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use hiroma_policy::huge::{RangeFacts, Survey, Window};
use hiroma_policy::pace::{BURDEN_PER_PAGE_NS, Pace};
use hiroma_sys::hot::maps;
use hiroma_units::PAGES_PER_EXTENT;

use super::act::{CollapseOutcome, Payer};
use super::{Engine, Phase, elapsed_ns};
use crate::bits::{self, PageBits};
use crate::error::HotError;
use crate::layout::Layout;
use crate::machine;
use crate::options::Options;
use crate::tracker::{RangeView, RoundCost};

const MS: u64 = 1_000_000;
/// Pages that one survey clears in all ranges together, and in one range at least and at most.
const SAMPLE_PAGES: u64 = 16 * 1024;
const SAMPLE_MIN: u64 = 4;
const SAMPLE_MAX: u64 = 32;
/// Maximum number of ranges in one survey; larger processes are surveyed in parts.
const RANGES_MAX: usize = 8192;
/// Time between surveys, apart from what the shares require.
const PAUSE_NS: u64 = 200 * MS;
/// Surveys in a row without a collapse before there is nothing to do.
const IDLE_SURVEYS_MIN: u32 = 4;

/// The state of surveys.
pub(super) struct Surveys {
    survey: Survey,
    window: Window,
    /// Pays for collapses.
    purse: Pace,
    /// Ranges that this turn has still to cover.
    rest: Vec<u64>,
    /// Ranges to be collapsed, the hottest first, with their first touches of pages in a second.
    due: VecDeque<(u64, u64)>,
    free_huge_pages: u64,
    /// Number of surveys, for the place of the sample, and those in a row without a collapse.
    turn: u64,
    idle: u32,
    next_ns: u64,
    /// How long the process had run when managing began.
    age_at_begin_ns: u64,
    views: Vec<RangeView>,
}

impl Surveys {
    /// None if the options do not want them.
    pub(super) fn new(options: &Options, started: u64, now_ns: u64) -> Option<Surveys> {
        if options.collapse_ppm == 0 || options.watch_only || options.told {
            return None;
        }
        Some(Surveys {
            survey: Survey::default(),
            window: Window::new(20 * MS, MS, 500 * MS),
            purse: Pace::new(options.collapse_ppm, options.burst_ns, now_ns),
            rest: Vec::new(),
            due: VecDeque::new(),
            free_huge_pages: 0,
            turn: 0,
            idle: 0,
            next_ns: now_ns,
            age_at_begin_ns: machine::age_ns(started),
            views: Vec::new(),
        })
    }

    /// Whether a range is judged by surveys.
    pub(super) fn judges(&self, range: u64) -> bool {
        self.survey.knows(range)
    }

    /// Whether collapses are due, or may still be found to be.
    pub(super) fn is_busy(&self) -> bool {
        !self.due.is_empty() || self.idle < IDLE_SURVEYS_MIN
    }

    /// The pages that are sampled in each of `ranges` ranges: another part in each survey.
    fn sample(&self, ranges: usize) -> Range<u64> {
        let pages = (SAMPLE_PAGES / (ranges as u64).max(1)).clamp(SAMPLE_MIN, SAMPLE_MAX);
        // A power of two divides the range.
        let pages = 1 << pages.ilog2();
        let places = PAGES_PER_EXTENT as u64 / pages;
        // Odd, so that all places have their turn.
        let place = self.turn * ((places * 5 / 8) | 1) % places;
        place * pages..(place + 1) * pages
    }
}

/// The pages of a range that are touched in a window, as far as one bit for each can show.
fn pages_per_window(touches_per_s: u64, window_ns: u64) -> u16 {
    let pages = u128::from(touches_per_s) * u128::from(window_ns) / 1_000_000_000;
    pages.min(PAGES_PER_EXTENT as u128) as u16
}

fn bits_of(pages: &Range<u64>) -> PageBits {
    let mut bits = bits::NONE;
    pages.clone().for_each(|page| bits[page as usize / 64] |= 1 << (page % 64));
    bits
}

impl Engine {
    /// When surveys have something to do: a collapse, or the next survey.
    pub(super) fn next_survey_ns(&mut self, now_ns: u64) -> u64 {
        let shares_ns = self.next_round_ns(now_ns);
        let ready_ns = self.ready_at_ns(now_ns);
        let Some(surveys) = &mut self.surveys else { return u64::MAX };
        let collapse_ns = if surveys.due.is_empty() {
            u64::MAX
        } else {
            surveys.purse.next_ns(now_ns).max(ready_ns)
        };
        let survey_ns = match self.phase {
            Phase::Idle => surveys.next_ns.max(shares_ns),
            _ => u64::MAX,
        };
        collapse_ns.min(survey_ns)
    }

    /// Begins a survey if one is due.
    pub(super) fn open_survey(&mut self, now_ns: u64, began: &Instant) -> Result<(), HotError> {
        if self.surveys.as_ref().is_none_or(|surveys| now_ns < surveys.next_ns) {
            return Ok(());
        }
        let cpu = hiroma_sys::cpu::thread_ns();
        let mut ranges = self.ranges_to_survey()?;
        let Some(surveys) = &mut self.surveys else { return Ok(()) };
        let pages = surveys.sample(ranges.len());
        surveys.turn += 1;
        surveys.next_ns = now_ns + PAUSE_NS;
        let mut refused = Vec::new();
        if !self.tracker.clear_sample(&ranges, pages.clone(), &mut refused)? {
            self.surveys = None;
            return Ok(());
        }
        ranges.retain(|range| refused.binary_search(range).is_err());
        let window_ns = surveys.window.ns();
        let spent = hiroma_sys::cpu::thread_ns() - cpu;
        self.charge(spent);
        self.accounts.opened =
            RoundCost { clear_ns: spent, ranges: ranges.len() as u64, ..RoundCost::default() };
        let until_ns = now_ns + elapsed_ns(began) + window_ns;
        self.phase = Phase::Surveying { ranges, pages, until_ns };
        Ok(())
    }

    /// The next part of the process's ranges that could be huge and are not.
    fn ranges_to_survey(&mut self) -> Result<Vec<u64>, HotError> {
        let mut rest = match &mut self.surveys {
            Some(surveys) => std::mem::take(&mut surveys.rest),
            None => return Ok(Vec::new()),
        };
        if rest.is_empty() {
            let pid = self.target.pid();
            let read = HotError::of(pid, "read /proc/PID/maps");
            self.layout = Layout::of(&maps::of(pid).map_err(read)?);
            self.tracker.populated(&self.layout, &mut rest)?;
            self.shared_once_less();
            let may_be_huge = |range: &u64| {
                let memo = self.memos.get(range).copied().unwrap_or_default();
                self.layout.holds_whole(*range) && !memo.ours && memo.is_open()
            };
            rest.retain(may_be_huge);
            if let Some(surveys) = &mut self.surveys {
                surveys.survey.retain(|range| rest.binary_search(&range).is_ok());
            }
        }
        let later = rest.split_off(rest.len().min(RANGES_MAX));
        let mut small = rest.clone();
        // Right before clearing: advice on a part of a huge page splits it, whoever made it.
        self.tracker.retain_small(&mut small)?;
        if let Some(surveys) = &mut self.surveys {
            surveys.rest = later;
            let is_huge = |range: &&u64| small.binary_search(range).is_err();
            rest.iter().filter(is_huge).for_each(|&range| surveys.survey.forget(range));
        }
        Ok(small)
    }

    /// Reads the sample, and decides which ranges are collapsed.
    pub(super) fn close_survey(&mut self, now_ns: u64) -> Result<(), HotError> {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        let is_tight = self.is_tight();
        let (Phase::Surveying { ranges, pages, .. }, Some(surveys)) = (phase, &mut self.surveys)
        else {
            return Ok(());
        };
        let cpu = hiroma_sys::cpu::thread_ns();
        surveys.views.clear();
        self.tracker.scan(&self.layout, &ranges, &mut surveys.views)?;
        let scanned = hiroma_sys::cpu::thread_ns();
        let (sample, each) = (bits_of(&pages), pages.end - pages.start);
        let (mut watched, mut touched) = (0, 0);
        for view in &surveys.views {
            if view.huge || view.present != bits::ALL {
                surveys.survey.forget(view.range);
                continue;
            }
            let seen = u64::from(bits::count(&bits::and(&view.touched, &sample)));
            surveys.survey.note(view.range, seen, each, surveys.window.ns());
            watched += each;
            touched += seen;
        }
        // Pages that were not touched within the window may be touched later.
        self.burden.spend((watched / 2).max(touched) * BURDEN_PER_PAGE_NS);
        surveys.window.learn(touched, watched);
        let age_ns = surveys.age_at_begin_ns + now_ns.saturating_sub(self.began_ns);
        let mut due = Vec::new();
        surveys.survey.worthwhile(age_ns, &mut due);
        if is_tight {
            // What is scarce is for what is really hot.
            let (window_ns, least) =
                (surveys.window.ns(), self.options.settings.collapse_hot_pages);
            due.retain(|&(_, rate)| pages_per_window(rate, window_ns) >= least);
        }
        surveys.idle = surveys.idle.saturating_add(1);
        surveys.due = due.into();
        surveys.free_huge_pages = machine::free_huge_pages();
        let counted = hiroma_sys::cpu::thread_ns();
        self.charge(counted - cpu);
        let round = &mut self.accounts.opened;
        (round.scan_ns, round.count_ns, round.present_pages, round.touched_pages) =
            (scanned - cpu, counted - scanned, watched, touched);
        self.accounts.unreported.add(&self.accounts.opened);
        self.accounts.unreported_rounds += 1;
        Ok(())
    }

    /// Collapses the hottest range that is due, if its share allows. Returns whether it did.
    pub(super) fn collapse_due(&mut self, now_ns: u64) -> Result<bool, HotError> {
        let ready_ns = self.ready_at_ns(now_ns);
        let may_collapse = self.may_collapse(now_ns);
        let is_over_budget = self.is_budget_used();
        let Some(surveys) = &mut self.surveys else { return Ok(false) };
        if surveys.due.is_empty() || surveys.purse.next_ns(now_ns).max(ready_ns) > now_ns {
            return Ok(false);
        }
        if surveys.free_huge_pages == 0 || is_over_budget || !may_collapse {
            surveys.due.clear();
            return Ok(false);
        }
        let Some((range, touches_per_s)) = surveys.due.pop_front() else { return Ok(false) };
        let window_ns = surveys.window.ns();
        let fact = RangeFacts {
            range,
            present: PAGES_PER_EXTENT as u16,
            hot: pages_per_window(touches_per_s, window_ns),
            may_be_huge: true,
            ..RangeFacts::default()
        };
        let outcome = self.collapse(now_ns, &fact, Payer::Surveys)?;
        if let CollapseOutcome::Done(duration_ns) = outcome {
            self.survey_done(range, duration_ns);
        }
        if let Some(surveys) = &mut self.surveys {
            match outcome {
                CollapseOutcome::Done(_) => surveys.idle = 0,
                CollapseOutcome::DryRun | CollapseOutcome::Refused | CollapseOutcome::Unfit => {
                    surveys.survey.forget(range)
                }
                CollapseOutcome::Enough => surveys.due.clear(),
            }
        }
        self.stop_if_stalled(now_ns);
        Ok(matches!(outcome, CollapseOutcome::Done(_)))
    }

    /// A range that surveys judge, or may judge, has become huge.
    pub(super) fn survey_done(&mut self, range: u64, duration_ns: u64) {
        if let Some(surveys) = &mut self.surveys {
            surveys.survey.collapsed(range, duration_ns);
            surveys.free_huge_pages = surveys.free_huge_pages.saturating_sub(1);
        }
    }

    /// Deducts the time of a collapse from its share.
    pub(super) fn pay(&mut self, cpu_ns: u64) {
        match &mut self.surveys {
            Some(surveys) => {
                surveys.purse.spend(cpu_ns);
                self.accounts.charged_ns = self.accounts.charged_ns.saturating_add(cpu_ns);
            }
            None => self.charge(cpu_ns),
        }
    }

    /// Changes the share of surveys' collapses.
    pub(super) fn set_purse_share(&mut self, share_ppm: u64) {
        if let Some(surveys) = &mut self.surveys {
            surveys.purse.set_share(share_ppm);
        }
    }

    /// When the share of surveys' collapses allows one.
    pub(super) fn purse_ns(&mut self, now_ns: u64) -> u64 {
        self.surveys.as_mut().map_or(now_ns, |surveys| surveys.purse.next_ns(now_ns))
    }

    /// Forgets what was to be collapsed.
    pub(super) fn drop_due(&mut self) {
        self.pass.due.clear();
        if let Some(surveys) = &mut self.surveys {
            surveys.due.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_visit_every_part_of_a_range() {
        let options = Options::default();
        let mut surveys = Surveys::new(&options, 0, 0).unwrap();
        for ranges in [1, 700, 2048, 100_000] {
            let mut seen = bits::NONE;
            for turn in 0..512 {
                surveys.turn = turn;
                let pages = surveys.sample(ranges);
                assert!(pages.end <= 512 && (4..=32).contains(&(pages.end - pages.start)));
                seen = bits::or(&seen, &bits_of(&pages));
            }
            assert_eq!(seen, bits::ALL, "{ranges}");
        }
    }

    #[test]
    fn processes_told_of_their_pages_are_not_surveyed() {
        let options = Options { told: true, dry_run: true, ..Options::default() };
        assert!(Surveys::new(&options, 0, 0).is_none());
    }
}
