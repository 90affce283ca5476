//! What the daemon says about itself.

use std::cmp::Reverse;
use std::fmt::Write as _;

use hiroma_metrics::label_value;
use hiroma_sys::host::proc;
use hiroma_units::EXTENT;
use serde_json::{Value, json};

use super::daemon::{Daemon, Member};
use super::metrics::{Figures, OfProcess};
use super::protocol::{Mode, TEXT_MAX};
use crate::trial::Gain;

impl Daemon {
    /// Sets what is served to Prometheus.
    pub(super) fn update_metrics(&mut self) {
        let Some(mut metrics) = self.options.metrics.take() else { return };
        let bytes = |ranges: u64| ranges * EXTENT as u64;
        let of = |member: &Member| {
            let used = member.use_of_huge_pages();
            let figures = Figures {
                share_bytes: bytes(member.share),
                huge_used_bytes: bytes(used.active),
                huge_idle_bytes: bytes(used.idle),
                wanted_bytes: bytes(used.wanted),
            };
            (OfProcess { pid: member.pid, name: label_value(&name_of(member.pid)) }, figures)
        };
        let processes = self.members().map(|(_, member)| of(member)).collect();
        metrics.set(bytes(self.options.budget_ranges), processes);
        self.options.metrics = Some(metrics);
    }

    /// The managed processes as JSON, for `hiroma hot top`.
    pub(super) fn status_json(&self) -> String {
        let bytes = |ranges: u64| ranges * EXTENT as u64;
        let of = |member: &Member| {
            let used = member.use_of_huge_pages();
            json!({
                "pid": member.pid,
                "name": name_of(member.pid),
                "how": if member.is_chosen { "chosen" } else { "registered" },
                "backend": member.watch.backend(),
                "share_bytes": bytes(member.share),
                "used_bytes": bytes(used.active),
                "idle_bytes": bytes(used.idle),
                "wanted_bytes": bytes(used.wanted),
                "gain": member.watch.gain().map(Gain::brief),
                "gain_told": member.watch.gain().map(ToString::to_string),
            })
        };
        let mut processes: Vec<Value> = self.members().map(|(_, member)| of(member)).collect();
        processes.sort_by_key(|process| Reverse(process["used_bytes"].as_u64()));
        let budget = bytes(self.options.budget_ranges);
        loop {
            let text = json!({ "budget_bytes": budget, "processes": processes }).to_string();
            // The answer is one message: the smallest processes are left out.
            if text.len() <= TEXT_MAX || processes.pop().is_none() {
                return text;
            }
        }
    }

    /// The managed processes, as text.
    pub(super) fn status(&self) -> String {
        let mib = |ranges: u64| ranges * (EXTENT as u64 >> 20);
        let mut text = format!(
            "budget {} MiB, {} processes\n",
            mib(self.options.budget_ranges),
            self.members().count()
        );
        for (_, member) in self.members() {
            let used = member.use_of_huge_pages();
            let mode = if member.wish.mode == Mode::Managed { "managed" } else { "notified" };
            let _ = writeln!(
                text,
                "process {}: {mode}, tracked by {}, share {} MiB, {} MiB huge in use, {} MiB huge idle, {} MiB wanted; {} pages \
                 wait; since it registered: {} signals; it made {} ranges huge, moved the objects of {}, left {}, failed with {}",
                member.pid,
                member.watch.backend(),
                mib(member.share),
                mib(used.active),
                mib(used.idle),
                mib(used.wanted),
                member.notice.waiting(),
                member.signals,
                member.outcome.collapsed,
                member.outcome.compacted,
                member.outcome.left,
                member.outcome.failed
            );
        }
        text
    }
}

/// Name of a process's first thread.
fn name_of(pid: u32) -> String {
    proc::stat(pid).and_then(|stat| proc::name(&stat).map(str::to_owned)).unwrap_or_default()
}
