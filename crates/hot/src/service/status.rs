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
                gain_permille: member.watch.gain().and_then(Gain::permille),
            };
            (OfProcess { pid: member.pid, name: label_value(&name_of(member.pid)) }, figures)
        };
        let processes = self.members().map(|(_, member)| of(member)).collect();
        metrics.set(bytes(self.options.budget_ranges), processes);
        metrics.set_cpu(hiroma_sys::cpu::thread_ns());
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
            })
        };
        let mut processes: Vec<Value> = self.members().map(|(_, member)| of(member)).collect();
        processes.sort_by_key(|process| Reverse(process["used_bytes"].as_u64()));
        within_message(bytes(self.options.budget_ranges), processes)
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

/// The answer about `processes`. It is one message: the last of them are left out of it, but
/// counted.
fn within_message(budget_bytes: u64, mut processes: Vec<Value>) -> String {
    let count = processes.len();
    loop {
        let text = json!({ "budget_bytes": budget_bytes, "count": count, "processes": processes })
            .to_string();
        if text.len() <= TEXT_MAX || processes.pop().is_none() {
            return text;
        }
    }
}

/// Name of a process's first thread.
fn name_of(pid: u32) -> String {
    proc::stat(pid).and_then(|stat| proc::name(&stat).map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_do_not_fit_are_counted() {
        let text = within_message(7, (0..2000).map(|pid| json!({ "pid": pid })).collect());
        let answer: Value = serde_json::from_str(&text).unwrap();
        let shown = answer["processes"].as_array().unwrap();
        assert!(text.len() <= TEXT_MAX && shown.len() > 1000 && shown.len() < 2000);
        assert_eq!((&answer["count"], &shown[0]["pid"]), (&json!(2000), &json!(0)));
    }
}
