//! Whether accessed bits may be cleared now. `MADV_COLD` also moves pages to the end of the list
//! from which the kernel reclaims. Where memory is short they would be swapped out first, although
//! they may be the hottest of the machine; so nothing is cleared until that is over.

use std::fs;

use hiroma_sys::host::proc;

use super::Engine;
use crate::machine;
use crate::tracker::Backend;

/// How often the machine is looked at, and after what time a round is tried again.
const LOOK_NS: u64 = 1_000_000_000;
/// From this share of waiting on memory is short, in hundredths of a percent. Making room for huge
/// pages counts as waiting too, and is usually less.
const WAITED_MIN: u64 = 500;
/// From so many pages swapped out between two looks (1 MiB) memory is short: a little is always
/// tidied away on some machines.
const SWAPPED_MIN: u64 = 256;

/// What is known of the machine.
#[derive(Debug, Default)]
pub(super) struct Calm {
    look_at_ns: u64,
    /// Pages that the machine has swapped out so far.
    swapped_pages: Option<u64>,
    is_short: bool,
}

/// Share of the last ten seconds in which some task waited for memory, in hundredths of a percent
/// (`/proc/pressure/memory`).
fn waited(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let text = some.split_whitespace().find_map(|part| part.strip_prefix("avg10="))?;
    let (whole, part) = text.split_once('.')?;
    Some(whole.parse::<u64>().ok()? * 100 + part.parse::<u64>().ok()?)
}

impl Calm {
    /// Takes note of what the machine says.
    fn note(&mut self, pressure: &str, vmstat: &str) {
        let swapped = proc::value(vmstat, "pswpout");
        let swaps = match (self.swapped_pages, swapped) {
            (Some(before), Some(now)) => now >= before.saturating_add(SWAPPED_MIN),
            _ => false,
        };
        self.swapped_pages = swapped;
        self.is_short = swaps || waited(pressure).is_some_and(|part| part >= WAITED_MIN);
    }
}

impl Engine {
    /// Whether a round may begin. If not, [`Engine::calm_at_ns`] says when to ask again.
    pub(super) fn is_calm(&mut self, now_ns: u64) -> bool {
        let is_cold = self.tracker.backend() == Backend::Bpf;
        // Who only watches does so for a moment, and waits for the result.
        let waits = self.options.waits_for_calm && !self.options.watch_only;
        if !is_cold || !waits || machine::pretended("calm") {
            return true;
        }
        if now_ns >= self.calm.look_at_ns {
            self.calm.look_at_ns = now_ns.saturating_add(LOOK_NS);
            let read = |path| fs::read_to_string(path).unwrap_or_default();
            self.calm.note(&read("/proc/pressure/memory"), &read("/proc/vmstat"));
        }
        !self.calm.is_short
    }

    /// When a round may begin as far as memory is concerned.
    pub(super) fn calm_at_ns(&self) -> u64 {
        if self.calm.is_short { self.calm.look_at_ns } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use hiroma_policy::huge::RangeFacts;

    use super::super::Phase;
    use super::*;
    use crate::options::Options;

    #[test]
    fn what_is_due_is_dropped_while_memory_is_short() {
        let options = Options { ledger: None, ..Options::default() };
        let mut engine = match Engine::new(std::process::id(), options, 0) {
            Ok(engine) if engine.backend() == Backend::Bpf => engine,
            Ok(_) => return hiroma_testkit::skip!(Bpf, "another backend"),
            Err(error) => return hiroma_testkit::skip!(Machine, "{error}"),
        };
        engine.calm = Calm { look_at_ns: u64::MAX, is_short: true, ..Calm::default() };
        engine.pass.due.push_back(RangeFacts::default());
        assert_eq!(engine.step(1).unwrap().collapsed, 0);
        assert!(engine.pass.due.is_empty() && matches!(engine.phase, Phase::Idle));
    }

    #[test]
    fn pressure_and_swapping_are_recognized() {
        let text = |avg10: &str| {
            format!("some avg10={avg10} avg60=9.00 avg300=9.00 total=9\nfull avg10=9.99 total=9\n")
        };
        assert_eq!(waited(&text("0.00")), Some(0));
        assert_eq!(waited(&text("12.03")), Some(1203));
        assert_eq!(waited(""), None);
        let mut calm = Calm::default();
        let mut is_short = |avg10: &str, swapped: u64| {
            calm.note(&text(avg10), &format!("pswpin 7\npswpout {swapped}\n"));
            calm.is_short
        };
        // What was swapped out before is over.
        assert!(!is_short("0.00", 500));
        assert!(is_short("5.00", 500));
        assert!(!is_short("4.99", 500));
        assert!(is_short("0.00", 756));
        assert!(!is_short("0.00", 1011));
    }
}
