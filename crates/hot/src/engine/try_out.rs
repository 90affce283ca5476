//! Tries whether huge pages help the process ([`crate::trial`]), and leaves it alone if not.

use std::time::Instant;

use super::{Engine, Phase, State, elapsed_ns};
use crate::error::HotError;
use crate::ledger::Entry;
use crate::trial::{Gain, Todo, Trial};
use crate::work::Work;

/// A process that has not settled is tried after this time.
const TRIED_AFTER_NS: u64 = 20_000_000_000;
/// A process in which nothing is gained is left alone for this time.
const ALONE_NS: u64 = 3_600_000_000_000;
/// Longest time for making ranges huge again when managing ends.
const ABANDON_NS: u64 = 2_000_000_000;
/// Longest time that one step changes ranges for.
const STEP_NS: u64 = 5_000_000;

/// The trial of a process: going on, over, or still to come.
#[derive(Default)]
pub(super) struct TryOut {
    running: Option<Running>,
    gain: Option<Gain>,
    /// Until when the process is left alone.
    alone_until_ns: u64,
}

/// A trial, and the ranges that the present change has still to reach.
struct Running {
    trial: Trial,
    ranges: Vec<u64>,
    rest: Option<Vec<u64>>,
    /// When to go on.
    next_ns: u64,
    /// A range did not become huge again.
    is_spoilt: bool,
}

impl TryOut {
    /// When to call again, if nothing else is done until then.
    pub(super) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let alone = (now_ns < self.alone_until_ns).then_some(self.alone_until_ns);
        self.running.as_ref().map(|running| running.next_ns.max(now_ns)).or(alone)
    }
}

impl Engine {
    /// What huge pages gain in the process, once that was tried.
    pub fn gain(&self) -> Option<&Gain> {
        self.trial.gain.as_ref()
    }

    /// Whether the process is left alone, because it gains nothing.
    pub fn is_left_alone(&self, now_ns: u64) -> bool {
        now_ns < self.trial.alone_until_ns
    }

    /// Whether nothing but the trial happens now. Begins it when the process has what it is to
    /// have.
    pub(super) fn has_trial(&mut self, now_ns: u64) -> bool {
        if self.trial.running.is_some() || self.is_left_alone(now_ns) {
            return true;
        }
        if std::mem::take(&mut self.trial.alone_until_ns) > 0 {
            // It may be another program by now.
            self.trial.gain = None;
            self.began_ns = now_ns;
            self.resume();
        }
        let Some(options) = self.options.trial.filter(|_| self.trial.gain.is_none()) else {
            return false;
        };
        let is_ready = match self.state {
            State::Tracking => now_ns >= self.began_ns + TRIED_AFTER_NS,
            State::Settled => true,
            State::Gone | State::Stopped(_) => false,
        };
        let is_idle = matches!(self.phase, Phase::Idle);
        // Trials collapse, too.
        if !self.may_collapse(now_ns) {
            return false;
        }
        if !is_ready || !is_idle || self.options.dry_run || self.huge_ranges() == 0 {
            return false;
        }
        // By the end of the trial these are no longer known to be hot.
        self.drop_due();
        let trial = Trial::new(options);
        self.trial.running = Some(Running {
            trial,
            ranges: self.own_ranges(),
            rest: None,
            next_ns: now_ns,
            is_spoilt: false,
        });
        true
    }

    fn own_ranges(&self) -> Vec<u64> {
        self.memos.iter().filter(|(_, memo)| memo.ours).map(|(&range, _)| range).collect()
    }

    /// Advances the trial.
    pub(super) fn try_on(&mut self, now_ns: u64) -> Result<(), HotError> {
        let Some(mut now) = self.trial.running.take() else { return Ok(()) };
        self.may_collapse(now_ns);
        let pid = self.target.pid();
        let work = Work::of(pid).ok_or(HotError::Gone { pid })?;
        match now.trial.next(now_ns, work) {
            Todo::Change { huge } => {
                let rest = now.rest.get_or_insert_with(|| now.ranges.clone());
                let began = Instant::now();
                while elapsed_ns(&began) < STEP_NS {
                    let Some(range) = rest.pop() else { break };
                    // A range that the process has unmapped stays as it is.
                    if huge {
                        now.is_spoilt |= !self.collapse_again(range)?;
                    } else {
                        self.split_for_trial(range)?;
                    }
                }
                now.next_ns = now_ns + elapsed_ns(&began);
                if rest.is_empty() {
                    now.rest = None;
                    now.trial.changed(now.next_ns);
                    // Turns would be compared that differ by less than all of it.
                    if now.is_spoilt {
                        self.trial.running = Some(now);
                        self.abandon_trial();
                        return self.tried(now_ns, Gain::Unknown);
                    }
                }
            }
            Todo::Wait { until_ns } => now.next_ns = until_ns,
            Todo::Nothing => {
                let gain = now.trial.gain().cloned().unwrap_or(Gain::Unknown);
                return self.tried(now_ns, gain);
            }
        }
        self.trial.running = Some(now);
        Ok(())
    }

    /// Ends a trial before its time. What is split for it becomes huge again, as far as that does
    /// not take long.
    pub(crate) fn abandon_trial(&mut self) {
        let Some(running) = self.trial.running.take() else { return };
        let began = Instant::now();
        for range in running.ranges {
            if elapsed_ns(&began) > ABANDON_NS {
                // Neither this one nor the following ones.
                self.memos.entry(range).or_default().ours = false;
                continue;
            }
            // The process may have ended.
            let _ = self.collapse_again(range);
        }
    }

    /// Records the result. Where nothing is gained, the process gets its small pages back.
    fn tried(&mut self, now_ns: u64, gain: Gain) -> Result<(), HotError> {
        let at_ms = self.at_ms(now_ns);
        self.ledger.note(&Entry::Trial { at_ms, gain: gain.to_string() });
        let is_nothing = gain.is_nothing();
        self.trial.gain = Some(gain);
        if is_nothing {
            for range in self.own_ranges() {
                self.split(now_ns, range, "nothing is gained by it")?;
            }
            self.trial.alone_until_ns = now_ns + ALONE_NS;
        }
        Ok(())
    }
}
