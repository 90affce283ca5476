//! A process that has executed another program: the same process with other memory. What was opened
//! to look at its memory before shows nothing of it.

use hiroma_sys::host::proc;

use super::{Engine, Pass, Phase, State, try_out};
use crate::error::HotError;
use crate::heat::Heat;
use crate::layout::Layout;
use crate::ledger::Entry;
use crate::machine;
use crate::tracker::{self, Backend};

/// Fields of `/proc/PID/stat` that another program changes: where its code begins, and its stack.
const CODE: usize = 26;
const STACK: usize = 28;
/// A process whose memory cannot be looked at after this many attempts counts as ended.
const ATTEMPTS_MAX: u8 = 3;
/// How often the machine's setting of transparent huge pages is read at most.
const SETTING_NS: u64 = 1_000_000_000;

/// The program that a process executes, as far as it can be told from others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Image {
    code: u64,
    stack: u64,
}

impl Image {
    /// None: the process has ended.
    pub(super) fn of(pid: u32) -> Option<Image> {
        let stat = proc::stat(pid)?;
        Some(Image { code: proc::field(&stat, CODE)?, stack: proc::field(&stat, STACK)? })
    }
}

impl Engine {
    /// Fails with [`HotError::Gone`] if the process executes another program than before.
    pub(super) fn check_image(&self) -> Result<(), HotError> {
        let pid = self.target.pid();
        match Image::of(pid) {
            image @ Some(_) if image == self.image => Ok(()),
            _ => Err(HotError::Gone { pid }),
        }
    }

    /// Starts afresh with a process whose memory is gone, although it has not ended.
    pub(super) fn renew(&mut self, now_ns: u64) -> Result<(), HotError> {
        let pid = self.target.pid();
        self.attempts += 1;
        if self.attempts > ATTEMPTS_MAX {
            return self.gone(now_ns);
        }
        let image = Image::of(pid);
        if self.tracker.backend() == Backend::Damon {
            // The kernel's monitor is taken until it is given back.
            match tracker::open(pid, Some(Backend::Smaps)) {
                Ok(tracker) => self.tracker = tracker,
                Err(_) => return self.gone(now_ns),
            }
        }
        let reopened = tracker::open(pid, self.options.backend).and_then(|tracker| {
            let looked = HotError::of(pid, "read /proc/PID/status");
            Ok((tracker, machine::resident_bytes(pid).map_err(looked)?))
        });
        let (tracker, resident_bytes) = match reopened {
            Err(error) if error.is_gone() || self.target.is_ending() => return self.gone(now_ns),
            other => other?,
        };
        self.image = image;
        (self.tracker, self.map) = (tracker, None);
        (self.heat, self.layout, self.window) =
            (Heat::new(), Layout::default(), self.options.window);
        self.memos.clear();
        self.surveys = super::Surveys::new(&self.options, self.target.started(), now_ns);
        (self.phase, self.state, self.wake_ns) = (Phase::Idle, State::Tracking, u64::MAX);
        (self.pass, self.trial) = (Pass::default(), try_out::TryOut::default());
        (self.accounts.grown_bytes, self.accounts.resident_at_begin) = (0, resident_bytes);
        self.accounts.resident_now = 0;
        self.regroup.clear();
        (self.wanted_ranges, self.top_permille) = (0, 1000);
        let command = machine::command_of(pid);
        self.ledger.note(&Entry::Exec { at_ms: self.at_ms(now_ns), command });
        Ok(())
    }

    /// Whether the administrator allows huge pages, which may change while a process is managed,
    /// and there was room for one lately.
    pub(super) fn may_collapse(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.setting_at_ns {
            self.setting_at_ns = now_ns.saturating_add(SETTING_NS);
            self.is_never = machine::is_never();
        }
        !self.is_never && now_ns >= self.short_until_ns
    }
}
