//! What others can read of an engine, and what they can set.

use hiroma_policy::huge::Settings;
use hiroma_sys::hot::target::Target;
use hiroma_units::{EXTENT, PAGE};

use super::{ActivePage, Engine, Usage};
use crate::heat::Heat;
use crate::ledger::{Entry, Ledger};
use crate::tracker::{Backend, RoundCost};

impl Engine {
    /// The present thresholds and limits.
    pub fn settings(&self) -> &Settings {
        &self.options.settings
    }

    /// Bytes that collapsing has added to the process's memory and that have not been freed since.
    pub fn grown_bytes(&self) -> u64 {
        self.accounts.grown_bytes
    }

    /// Appends the pages that are hot according to the settings, by address.
    pub fn active_pages(&self, out: &mut Vec<ActivePage>) {
        for (range, heat) in self.heat.ranges() {
            let least = self.hot_count(heat.windows);
            let hot = heat.hot_pages(least);
            for (page, count) in heat.counts.iter().enumerate() {
                if hot[page / 64] >> (page % 64) & 1 == 1 {
                    out.push(ActivePage {
                        address: range * EXTENT as u64 + (page * PAGE) as u64,
                        count: u32::from(count),
                    });
                }
            }
        }
    }

    /// Addresses of the 2 MiB ranges whose hot objects the program should move elsewhere, as of the
    /// last pass.
    pub fn regroup(&self) -> impl Iterator<Item = u64> {
        self.regroup.iter().map(|range| range * EXTENT as u64)
    }

    /// The counts of all pages.
    pub fn heat(&self) -> &Heat {
        &self.heat
    }

    /// What has been done so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How its pages are tracked.
    pub fn backend(&self) -> Backend {
        self.tracker.backend()
    }

    /// The process.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What the last round cost.
    pub fn last_round(&self) -> &RoundCost {
        &self.accounts.last_round
    }

    /// Length of the next window in nanoseconds.
    pub fn window_ns(&self) -> u64 {
        self.window.ns()
    }

    /// Rounds that are over.
    pub fn rounds(&self) -> u64 {
        self.accounts.rounds
    }

    /// Whether it only reports what it would do.
    pub fn is_dry_run(&self) -> bool {
        self.options.dry_run
    }

    /// Whether counts are per page; otherwise per range as a whole
    /// ([`Tracker::tells_pages_apart`](crate::tracker::Tracker::tells_pages_apart)).
    pub fn tells_pages_apart(&self) -> bool {
        self.tracker.tells_pages_apart()
    }

    /// Passes that are over.
    pub fn passes(&self) -> u64 {
        self.pass.number
    }

    /// Sets the bytes that may be in huge pages. The excess is split at the end of the next pass,
    /// the coldest ranges first.
    pub fn set_budget(&mut self, budget_bytes: u64, now_ns: u64) {
        if self.options.settings.budget_bytes != budget_bytes {
            let was_tight = self.is_tight();
            self.options.settings.budget_bytes = budget_bytes;
            self.ledger.note(&Entry::Budget { at_ms: self.at_ms(now_ns), budget_bytes });
            // Shares change all the time; where there is room for more, nothing follows from it.
            if was_tight || self.is_tight() {
                self.resume();
            }
        }
    }

    /// Changes the share of one processor that tracking and collapsing may take, in millionths.
    pub fn set_cpu_ppm(&mut self, cpu_ppm: u64) {
        self.pace.set_share(cpu_ppm);
    }

    /// Changes the share of one processor that collapsing completely present ranges may take, in
    /// millionths, and with it that of making memory ready.
    pub fn set_collapse_ppm(&mut self, collapse_ppm: u64) {
        if self.options.collapse_ppm == 0 {
            return;
        }
        self.options.collapse_ppm = collapse_ppm.max(1);
        self.set_purse_share(collapse_ppm);
        self.ready_pace.set_share(collapse_ppm.saturating_mul(super::READY_TIMES));
    }

    /// Whether it has nothing to do but to check now and then.
    pub fn is_settled(&self) -> bool {
        self.state == super::State::Settled
    }

    /// Memory of the process, as of the last pass.
    pub fn memory_bytes(&self) -> u64 {
        self.resident_bytes()
    }

    /// Changes by how much tracking may slow the process down, in millionths.
    pub fn set_slowdown_ppm(&mut self, slowdown_ppm: u64) {
        self.burden.set_share(slowdown_ppm);
    }

    /// Changes thresholds from the next decision on. Change the budget with [`Engine::set_budget`].
    pub fn change_settings(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.options.settings);
        self.resume();
    }

    /// How the process uses huge pages.
    pub fn usage(&self) -> Usage {
        let used = self.memos.values().filter(|memo| memo.ours && memo.in_use).count() as u64;
        let bytes = |ranges: u64| ranges * EXTENT as u64;
        Usage {
            huge_bytes: bytes(self.huge_ranges()),
            used_bytes: bytes(used),
            wanted_bytes: bytes(self.wanted_ranges),
        }
    }
}
