//! Processes that the daemon manages by rules.

use std::collections::{BTreeMap, BTreeSet};

use hiroma_sys::cpu::now_ns;
use rustix::process::{PidfdFlags, pidfd_open};

use super::daemon::{Daemon, Member, RETRY_NS};
use super::descriptors::chosen_max;
use super::notice::Notice;
use super::protocol::{Mode, Registration};
use super::select::{Chosen, Rules};
use super::subject::pid_of;
use crate::error::HotError;

/// How often the processes of the machine are looked at.
const CHOOSE_INTERVAL_NS: u64 = 2_000_000_000;
/// Maximum number of processes that are added at once: opening a tracker takes some milliseconds.
const ADDED_MAX: usize = 4;
/// A process takes the place of one that is managed if it is this many times as large: what is
/// known of a process is lost when it is left alone.
const LARGER: u64 = 2;

/// The largest `most` of `wanted`, those that are managed rather than others of a similar size.
fn largest(mut wanted: Vec<Chosen>, is_managed: impl Fn(u32) -> bool, most: usize) -> Vec<Chosen> {
    let weight = |chosen: &Chosen| {
        let times = if is_managed(chosen.pid) { LARGER } else { 1 };
        (std::cmp::Reverse(chosen.resident_bytes.saturating_mul(times)), chosen.pid)
    };
    wanted.sort_by_key(weight);
    wanted.truncate(most);
    wanted
}

/// For how long a process is left alone that cannot be managed. Only of what never has memory of
/// its own is that certain: settings, rights, other managers and shortages change.
fn refused_for_ns(error: &HotError) -> u64 {
    match error {
        HotError::KernelThread { .. } => u64::MAX,
        _ => RETRY_NS,
    }
}

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
        let managed: BTreeSet<u32> = self.chosen.values().map(|member| member.pid).collect();
        let wanted = selector.choose(&managed);
        let wanted = largest(wanted, |pid| managed.contains(&pid), chosen_max());
        let budgets: BTreeMap<u32, u64> =
            wanted.iter().map(|chosen| (chosen.pid, chosen.budget_bytes)).collect();
        // One that was not seen has ended, which its pidfd says, or could not be looked at now.
        self.chosen.retain(|_, member| {
            budgets.contains_key(&member.pid) || !selector.has_seen(member.pid)
        });
        let mut has_changed = false;
        for member in self.chosen.values_mut() {
            let Some(&budget_bytes) = budgets.get(&member.pid) else { continue };
            has_changed |= member.wish.budget_bytes != budget_bytes;
            member.wish.budget_bytes = budget_bytes;
        }
        let is_new = |chosen: &&Chosen| !self.members().any(|(_, known)| known.pid == chosen.pid);
        let room = chosen_max().saturating_sub(self.chosen.len()).min(ADDED_MAX);
        let new: Vec<Chosen> = wanted.iter().filter(is_new).take(room).copied().collect();
        let is_full = new.len() == ADDED_MAX;
        for chosen in &new {
            self.add_chosen(*chosen);
        }
        if has_changed || !new.is_empty() {
            self.share_out(now_ns());
        }
        // The rest follows soon, but the processes that are managed have their turn in between.
        self.choose_at_ns =
            now + if is_full { CHOOSE_INTERVAL_NS / 20 } else { CHOOSE_INTERVAL_NS };
    }

    fn add_chosen(&mut self, Chosen { pid, budget_bytes, .. }: Chosen) {
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
                let for_ns = refused_for_ns(&error);
                let reason = error.to_string();
                let is_news = match &mut self.options.selector {
                    Some(selector) => selector.refuse(pid, for_ns, &reason),
                    None => true,
                };
                if is_news && !error.is_gone() {
                    self.log(&format!("process {pid} is left alone: {reason}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::daemon::ServiceOptions;
    use super::super::protocol::Page;
    use super::super::select::Selector;
    use super::super::watch::Watch;
    use super::*;
    use hiroma_policy::huge::shares::Use;

    #[test]
    fn the_largest_are_managed_and_stay_for_a_while() {
        let of = |pid, resident_bytes| Chosen { pid, budget_bytes: 0, resident_bytes };
        let wanted = || vec![of(1, 10), of(2, 100), of(3, 30), of(4, 50)];
        let pids = |managed: &[u32], most| -> Vec<u32> {
            let chosen = largest(wanted(), |pid| managed.contains(&pid), most);
            chosen.iter().map(|chosen| chosen.pid).collect()
        };
        assert_eq!(pids(&[], 2), [2, 4]);
        assert_eq!(pids(&[2, 3], 2), [2, 3]);
        // Five times as large as one that is managed.
        assert_eq!(pids(&[1, 2], 2), [2, 4]);
        assert_eq!(pids(&[], 9), [2, 4, 3, 1]);
    }

    struct Still;

    impl Watch for Still {
        fn backend(&self) -> String {
            "still".to_owned()
        }

        fn step(&mut self, _: u64) -> Result<(u64, bool), String> {
            Ok((u64::MAX, false))
        }

        fn use_of_huge_pages(&self) -> Use {
            Use::default()
        }

        fn set_budget_ranges(&mut self, _: u64) {}

        fn set_cpu_ppm(&mut self, _: u64) {}

        fn active_pages(&self) -> Vec<Page> {
            Vec::new()
        }
    }

    #[test]
    fn changed_budget_reaches_a_managed_process() {
        let dir = tempfile::tempdir().unwrap();
        let rules = |budget: &str| {
            let path = dir.path().join("hot.toml");
            let text = format!("[[rule]]\nname = 'sleep'\nresident_min = '4K'\n{budget}\n");
            std::fs::write(&path, text).unwrap();
            Rules::read(&path).unwrap()
        };
        let options = ServiceOptions {
            path: dir.path().join("socket"),
            budget_ranges: 100,
            cpu_ppm: 10_000,
            collapse_ppm: 50_000,
            overdue_ns: u64::MAX,
            selector: Some(Selector::new(rules("budget = '20M'"))),
            metrics: None,
            log: Box::new(|_| {}),
        };
        let mut child = std::process::Command::new("sleep").arg("601").spawn().unwrap();
        let own = child.id();
        let open = move |wish: &Registration| match wish.pid == own {
            true => Ok(Box::new(Still) as Box<dyn Watch>),
            false => Err(HotError::KernelThread { pid: wish.pid }),
        };
        let mut daemon = Daemon::start(options, Box::new(open)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2200));
        let budget = |daemon: &mut Daemon| {
            // There may be more of these than are added at once.
            for _ in 0..50 {
                daemon.choose(u64::MAX / 2);
                daemon.choose_at_ns = 0;
            }
            let member = daemon.chosen.values().find(|member| member.pid == own);
            member.map(|member| (member.wish.budget_bytes >> 20, member.share))
        };
        let first = budget(&mut daemon);
        daemon.set_rules(rules("budget = '40M'"));
        let second = budget(&mut daemon);
        daemon.set_rules(rules("leave = true"));
        let third = budget(&mut daemon);
        daemon.set_rules(rules("budget = '40M'"));
        let again = budget(&mut daemon);
        child.kill().unwrap();
        child.wait().unwrap();
        // What cannot be looked at is not let go: whether it has ended, the pidfd says.
        let unseen = budget(&mut daemon);
        assert_eq!((first, second, third), (Some((20, 10)), Some((40, 20)), None));
        assert_eq!((again.is_some(), unseen), (true, again));
        daemon.accept_at_ns = Some(7);
        assert!(!daemon.accepts(6) && daemon.accepts(7));
    }

    #[test]
    fn only_what_can_never_be_managed_is_left_alone_for_ever() {
        let pid = 7;
        assert_eq!(refused_for_ns(&HotError::KernelThread { pid }), u64::MAX);
        for error in [
            HotError::Managed { pid, manager: 8 },
            HotError::NoHugePages { pid, reason: "never".to_owned() },
            HotError::NoBackend { pid, reasons: "EMFILE".to_owned() },
        ] {
            assert_eq!(refused_for_ns(&error), RETRY_NS);
        }
    }
}
