//! Processes that the daemon manages by rules.

use hiroma_sys::cpu::now_ns;
use rustix::process::{PidfdFlags, pidfd_open};

use super::daemon::{Daemon, Member};
use super::notice::Notice;
use super::protocol::{Mode, Registration};
use super::select::{Chosen, Rules};
use super::subject::pid_of;

/// How often the processes of the machine are looked at.
const CHOOSE_INTERVAL_NS: u64 = 2_000_000_000;
/// Maximum number of processes that are managed by rules, and of those that are added at once:
/// opening a tracker takes some milliseconds.
const CHOSEN_MAX: usize = 256;
const ADDED_MAX: usize = 4;

impl Daemon {
    /// Uses other rules from now on. Processes that they no longer choose are left alone; their
    /// huge pages remain.
    pub fn set_rules(&mut self, rules: Rules) {
        if let Some(selector) = &mut self.options.selector {
            selector.set_rules(rules);
            self.choose_at_ns = 0;
        }
    }

    /// Looks for processes that the rules choose, if it is time.
    pub(super) fn choose(&mut self, now: u64) {
        let Some(selector) = &mut self.options.selector else { return };
        if now < self.choose_at_ns {
            return;
        }
        let wanted = selector.choose();
        self.chosen.retain(|_, member| wanted.iter().any(|chosen| chosen.pid == member.pid));
        let is_new = |chosen: &&Chosen| !self.members().any(|(_, known)| known.pid == chosen.pid);
        let room = CHOSEN_MAX.saturating_sub(self.chosen.len()).min(ADDED_MAX);
        let new: Vec<Chosen> = wanted.iter().filter(is_new).take(room).copied().collect();
        let is_full = new.len() == ADDED_MAX;
        for chosen in &new {
            self.add_chosen(*chosen);
        }
        if !new.is_empty() {
            self.share_out(now_ns());
        }
        // The rest follows soon, but the processes that are managed have their turn in between.
        self.choose_at_ns =
            now + if is_full { CHOOSE_INTERVAL_NS / 20 } else { CHOOSE_INTERVAL_NS };
    }

    fn add_chosen(&mut self, Chosen { pid, budget_bytes }: Chosen) {
        let Ok(Ok(pidfd)) = pid_of(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) else {
            return;
        };
        let wish = Registration {
            pid,
            mode: Mode::Managed,
            signal: 0,
            eventfd: false,
            count_min: 0,
            pages_min: 1,
            budget_bytes,
        };
        match (self.open)(&wish) {
            Ok(watch) => {
                let line = format!("process {pid} is chosen, tracked by {}", watch.backend());
                self.next_id += 1;
                let notice = Notice::new(usize::MAX, u64::MAX);
                let now = now_ns();
                let mut member = Member::new(pid, pidfd, wish, watch, notice, now);
                member.is_chosen = true;
                self.chosen.insert(self.next_id, member);
                self.log(&line);
            }
            Err(error) => {
                if let Some(selector) = &mut self.options.selector {
                    selector.refuse(pid, u64::MAX);
                }
                if !error.is_gone() {
                    self.log(&format!("process {pid} is left alone: {error}"));
                }
            }
        }
    }
}
