//! Carries out decisions: collapses and splits ranges, and checks the pages of huge ones.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use hiroma_policy::huge::{Decision, RangeFacts, Reason, Verdict};
use hiroma_sys::hot::target::{Advice, Span};
use hiroma_units::{EXTENT, PAGE, PAGES_PER_EXTENT};
use rustix::io::Errno;

use super::look::{Fit, Growth};
use super::{Engine, Memo, State, Step, elapsed_ns};
use crate::bits;
use crate::error::HotError;
use crate::ledger::{Entry, reason_text};

const RANGE: u64 = EXTENT as u64;
/// After the kernel had no room for a huge page, none is tried for this time.
const SHORT_NS: u64 = 30_000_000_000;
/// A huge range counts as found cold after this many windows without a touch.
const COLD_WINDOWS: u32 = 6;

/// The result of collapsing one range.
pub(super) enum CollapseOutcome {
    /// It took this long, in nanoseconds.
    Done(u64),
    /// Only reported.
    DryRun,
    /// This range cannot be collapsed now; others may be.
    Refused,
    /// It has changed since it was scanned: pages of it are shared or gone.
    Unfit,
    /// No more collapses in this step.
    Enough,
}

/// From whose share the time of a collapse is taken.
#[derive(Clone, Copy)]
pub(super) enum Payer {
    Passes,
    Surveys,
}

/// The kernel's error, and its meaning for `MADV_COLLAPSE` (`madvise(2)`).
fn refusal_text(error: &io::Error) -> String {
    let meaning = match Errno::from_io_error(error) {
        Some(Errno::NOMEM) => ": the machine has no free huge page",
        Some(Errno::BUSY) => ": the process's cgroup has no room for it",
        Some(Errno::AGAIN) => ": some of its pages are in use by others for now",
        Some(Errno::INVAL) => ": its mapping, or what is in it, cannot be huge",
        _ => "",
    };
    format!("{error}{meaning}")
}

impl Engine {
    /// Carries out the verdicts. Returns whether there was anything to do, or will be.
    pub(super) fn act(
        &mut self,
        now_ns: u64,
        facts: &[RangeFacts],
        verdicts: &[Verdict],
        step: &mut Step,
    ) -> Result<bool, HotError> {
        self.regroup = verdicts
            .iter()
            .filter(|verdict| verdict.decision == Decision::Regroup)
            .map(|verdict| verdict.range)
            .collect();
        let mut busy = verdicts.iter().any(|verdict| verdict.reason == Reason::Later);
        // Free memory before using more.
        for verdict in verdicts.iter().filter(|verdict| verdict.decision == Decision::Split) {
            if self.split(now_ns, verdict.range, reason_text(verdict.reason))? {
                step.split += 1;
                busy = true;
            }
        }
        let mut hottest: Vec<&RangeFacts> = facts
            .iter()
            .zip(verdicts)
            .filter(|(_, verdict)| verdict.decision == Decision::Collapse)
            .map(|(fact, _)| fact)
            .collect();
        hottest.sort_by_key(|fact| std::cmp::Reverse(fact.hot));
        if !self.may_collapse(now_ns) {
            hottest.clear();
        }
        if self.options.dry_run {
            // Nothing has to be paid for.
            for fact in hottest {
                self.collapse(now_ns, fact, Payer::Passes)?;
            }
        } else {
            self.pass.due = hottest.into_iter().copied().collect();
        }
        self.count_cold();
        Ok(busy)
    }

    /// From whose share a range is collapsed that a pass has decided on: what is completely present
    /// grows nothing, and is for surveys' share.
    fn payer_of(&self, fact: &RangeFacts) -> Payer {
        match self.surveys.is_some() && usize::from(fact.present) == PAGES_PER_EXTENT {
            true => Payer::Surveys,
            false => Payer::Passes,
        }
    }

    /// When the next range is collapsed that the last pass has decided on: one after another, as
    /// fast as the shares pay.
    pub(super) fn next_due_ns(&mut self, now_ns: u64) -> u64 {
        let Some(fact) = self.pass.due.front().copied() else { return u64::MAX };
        if matches!(self.state, State::Gone | State::Stopped(_)) {
            return u64::MAX;
        }
        let paid_ns = match self.payer_of(&fact) {
            Payer::Surveys => self.purse_ns(now_ns),
            Payer::Passes => self.pace.next_ns(now_ns),
        };
        paid_ns.max(self.ready_at_ns(now_ns)).max(self.calm_at_ns())
    }

    /// Collapses that range, if it is time. Returns whether it did.
    pub(super) fn collapse_next(&mut self, now_ns: u64) -> Result<bool, HotError> {
        if self.next_due_ns(now_ns) > now_ns {
            return Ok(false);
        }
        if self.is_budget_used() || !self.may_collapse(now_ns) {
            self.pass.due.clear();
            return Ok(false);
        }
        let Some(fact) = self.pass.due.pop_front() else { return Ok(false) };
        // A survey may have been faster.
        if self.memos.get(&fact.range).is_some_and(|memo| memo.ours || !memo.is_open()) {
            return Ok(false);
        }
        let payer = self.payer_of(&fact);
        let outcome = self.collapse(now_ns, &fact, payer)?;
        match outcome {
            CollapseOutcome::Done(duration_ns) => self.survey_done(fact.range, duration_ns),
            CollapseOutcome::Enough => self.pass.due.clear(),
            CollapseOutcome::Refused | CollapseOutcome::DryRun | CollapseOutcome::Unfit => {}
        }
        if matches!(outcome, CollapseOutcome::Done(_) | CollapseOutcome::Refused) {
            // There was something to do.
            self.pass.quiet = 0;
            self.resume();
        }
        self.stop_if_stalled(now_ns);
        Ok(matches!(outcome, CollapseOutcome::Done(_)))
    }

    /// When the next collapse may begin as far as making memory ready for it is concerned.
    pub(super) fn ready_at_ns(&mut self, now_ns: u64) -> u64 {
        match self.readiness.is_wanted() && !self.options.dry_run && self.idle.has_spare(now_ns) {
            true => self.ready_pace.next_ns(now_ns),
            false => now_ns,
        }
    }

    /// Stops managing if collapsing has become slow. Returns whether it did.
    pub(super) fn stop_if_stalled(&mut self, now_ns: u64) -> bool {
        if !self.stall.is_stalled() {
            return false;
        }
        let why = format!(
            "collapsing has become slow (99th percentile {} us, limit {} us): it would hold the program up more than it helps",
            self.stall.p99_ns() / 1000,
            self.options.stall_ns / 1000
        );
        self.note_end(now_ns, &why);
        self.state = State::Stopped(why);
        true
    }

    fn spend(&mut self, payer: Payer, cpu_ns: u64) {
        match payer {
            Payer::Surveys => self.pay(cpu_ns),
            Payer::Passes => self.charge(cpu_ns),
        }
    }

    /// Collapses a range.
    pub(super) fn collapse(
        &mut self,
        now_ns: u64,
        fact: &RangeFacts,
        payer: Payer,
    ) -> Result<CollapseOutcome, HotError> {
        let span = Span { start: fact.range * RANGE, len: RANGE };
        let before = hiroma_sys::cpu::thread_ns();
        // Surveys collapse what grows nothing.
        let room_bytes = match payer {
            Payer::Surveys => 0,
            Payer::Passes => self.growth_room(),
        };
        let Fit::Fits { missing } = self.look(fact.range, Growth { free: 0, room_bytes })? else {
            self.spend(payer, hiroma_sys::cpu::thread_ns() - before);
            return Ok(CollapseOutcome::Unfit);
        };
        let mut entry = Entry::Collapse {
            at_ms: self.at_ms(now_ns),
            address: span.start,
            hot_pages: fact.hot,
            present_pages: PAGES_PER_EXTENT as u16 - missing,
            windows: fact.windows,
            added_bytes: u64::from(missing) * PAGE as u64,
            took_ns: 0,
            ready_ns: 0,
        };
        let memo = self.memos.entry(fact.range).or_default();
        if self.options.dry_run {
            // Reported once; the range then counts as huge, so that the budget is respected.
            if !memo.ours {
                memo.ours = true;
                self.ledger.note(&entry);
            }
            return Ok(CollapseOutcome::DryRun);
        }
        let looked = hiroma_sys::cpu::thread_ns();
        let made_ready_ns = self.readiness.before();
        let cpu = hiroma_sys::cpu::thread_ns();
        let is_spared = self.idle.has_spare(now_ns);
        if is_spared {
            self.ready_pace.spend(cpu - looked);
            self.accounts.charged_ns += cpu - looked;
        }
        let began = Instant::now();
        let result = self.target.advise(&[span], Advice::Collapse);
        let duration_ns = elapsed_ns(&began);
        let ready_ns = if is_spared { cpu - looked } else { 0 };
        self.spend(payer, hiroma_sys::cpu::thread_ns() - before - ready_ns);
        if let Err(error) = result {
            return self.refused(now_ns, fact.range, &error);
        }
        self.readiness.note(made_ready_ns, duration_ns);
        if let Entry::Collapse { took_ns, ready_ns, .. } = &mut entry {
            (*took_ns, *ready_ns) = (duration_ns, made_ready_ns.unwrap_or(0));
        }
        self.ledger.note(&entry);
        self.collapsed(fact.range, missing, duration_ns);
        Ok(CollapseOutcome::Done(duration_ns))
    }

    /// Remembers that a range is huge now, and that it got pages that were missing.
    fn collapsed(&mut self, range: u64, missing: u16, duration_ns: u64) {
        self.stall.note(duration_ns);
        let memo = self.memos.entry(range).or_default();
        (memo.ours, memo.in_use, memo.checked, memo.cold_checks) = (true, true, false, 0);
        memo.added_pages += missing;
        self.accounts.grown_bytes += u64::from(missing) * PAGE as u64;
        if let Some(heat) = self.heat.range_mut(range) {
            heat.became_huge();
        }
        if duration_ns > self.options.stall_ns {
            memo.refuse_for_good();
        }
    }

    /// Records that the kernel refused to collapse a range.
    fn refused(
        &mut self,
        now_ns: u64,
        range: u64,
        error: &io::Error,
    ) -> Result<CollapseOutcome, HotError> {
        let pid = self.target.pid();
        let errno = Errno::from_io_error(error);
        if errno == Some(Errno::SRCH) {
            return Err(HotError::Gone { pid });
        }
        if errno == Some(Errno::PERM) {
            let doing = "process_madvise, which needs CAP_SYS_NICE";
            return Err(HotError::NotPermitted { pid, doing });
        }
        let memo = self.memos.entry(range).or_default();
        // The machine, or the cgroup, has no room: the range is as good as others.
        let is_short = matches!(errno, Some(Errno::NOMEM | Errno::BUSY));
        match errno {
            _ if is_short => self.short_until_ns = now_ns.saturating_add(SHORT_NS),
            Some(Errno::INVAL) => memo.refuse_for_good(),
            _ => memo.refuse(),
        }
        let at_ms = self.at_ms(now_ns);
        self.ledger.note(&Entry::Refused {
            at_ms,
            address: range * RANGE,
            error: refusal_text(error),
        });
        Ok(if is_short { CollapseOutcome::Enough } else { CollapseOutcome::Refused })
    }

    /// Splits one of our huge pages. Returns false if the kernel did not.
    pub(super) fn split(&mut self, now_ns: u64, range: u64, why: &str) -> Result<bool, HotError> {
        let began = Instant::now();
        if !self.options.dry_run && !self.split_mapping(range)? {
            return Ok(false);
        }
        let took_ns = elapsed_ns(&began);
        let memo = self.memos.entry(range).or_default();
        (memo.ours, memo.in_use, memo.cold_checks, memo.checked) = (false, false, 0, false);
        if let Some(heat) = self.heat.range_mut(range) {
            heat.forget();
        }
        self.ledger.note(&Entry::Split {
            at_ms: self.at_ms(now_ns),
            address: range * RANGE,
            why: why.to_owned(),
            took_ns,
        });
        Ok(true)
    }

    /// `MADV_COLD` on a part of a huge page splits it; nothing else works from outside the process.
    pub(super) fn split_mapping(&mut self, range: u64) -> Result<bool, HotError> {
        let part = Span { start: range * RANGE, len: PAGE as u64 };
        match self.target.advise(&[part], Advice::Cold) {
            Ok(_) => Ok(true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {
                Err(HotError::Gone { pid: self.target.pid() })
            }
            Err(_) => Ok(false),
        }
    }

    /// Splitting a huge page frees those of its pages that contain only zeros (Linux 6.12); older
    /// kernels free none. Which were freed is known when the range is scanned next.
    pub(super) fn credit_what_came_back(&mut self) {
        for (&range, memo) in
            self.memos.iter_mut().filter(|(_, memo)| !memo.ours && memo.added_pages > 0)
        {
            let Some(heat) = self.heat.range(range).filter(|heat| !heat.huge && heat.windows > 0)
            else {
                continue;
            };
            let missing = PAGES_PER_EXTENT as u16 - bits::count(&heat.present);
            let back = missing.min(memo.added_pages);
            self.accounts.grown_bytes =
                self.accounts.grown_bytes.saturating_sub(u64::from(back) * PAGE as u64);
            memo.added_pages = 0;
        }
    }

    /// A huge range of ours that was not touched in `COLD_WINDOWS` windows counts as found cold
    /// once more.
    fn count_cold(&mut self) {
        for (&range, memo) in self.memos.iter_mut().filter(|(_, memo)| memo.ours) {
            let Some(heat) = self.heat.range_mut(range) else { continue };
            if heat.huge_touched > 0 {
                memo.cold_checks = 0;
            } else if heat.huge_windows >= COLD_WINDOWS {
                memo.cold_checks = memo.cold_checks.saturating_add(1);
            } else {
                continue;
            }
            (heat.huge_windows, heat.huge_touched) = (0, 0);
        }
    }

    /// Leaves the settled state: everything is watched again, and a few huge ranges are split to
    /// check how much of them is in use; those that are still hot enough become huge again.
    pub(super) fn look_again(&mut self, now_ns: u64, step: &mut Step) -> Result<(), HotError> {
        self.resume();
        if self.options.dry_run {
            return Ok(());
        }
        let is_scarce = self.is_scarce();
        // What costs nothing is not checked.
        let counts = |memo: &Memo| memo.ours && (is_scarce || memo.added_pages > 0);
        let ranges_of = |memos: &BTreeMap<u64, Memo>| -> Vec<u64> {
            let open = memos.iter().filter(|(_, memo)| counts(memo) && !memo.checked);
            open.map(|(&range, _)| range).collect()
        };
        let mut turn = ranges_of(&self.memos);
        if turn.is_empty() {
            // All have been checked: start over.
            for memo in self.memos.values_mut().filter(|memo| memo.ours) {
                memo.checked = false;
            }
            turn = ranges_of(&self.memos);
        }
        for range in turn.into_iter().take(self.options.recheck_ranges) {
            if self.split_mapping(range)? {
                let memo = self.memos.entry(range).or_default();
                *memo = memo.was_checked();
                if let Some(heat) = self.heat.range_mut(range) {
                    heat.forget();
                }
                self.ledger
                    .note(&Entry::Check { at_ms: self.at_ms(now_ns), address: range * RANGE });
                step.split += 1;
            }
        }
        Ok(())
    }

    /// Splits all huge pages that we made. Returns how many.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn undo(&mut self, now_ns: u64) -> Result<u64, HotError> {
        let ours: Vec<u64> =
            self.memos.iter().filter(|(_, memo)| memo.ours).map(|(&range, _)| range).collect();
        let mut undone = 0;
        for range in ours {
            undone += u64::from(self.split(now_ns, range, "undone")?);
        }
        Ok(undone)
    }
}
