//! `hiroma hot explain`: shows the ledger as text.

use std::collections::BTreeSet;
use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::Result;
use hiroma_hot::ledger::{Entry, Ledger, Totals, huge_ranges, last_manager};
use hiroma_hot::{LedgerDir, machine};
use hiroma_memload::server::memory;
use hiroma_sys::hot::target::started_at;
use hiroma_units::{Bytes, EXTENT};

/// Explain which ranges of a process were made huge, why, and at what cost.
#[derive(clap::Args)]
pub struct Args {
    /// Process id; the process may have ended
    #[arg(long, value_name = "PID")]
    pid: u32,
    /// Print all entries as JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Print every entry, not only the totals
    #[arg(short, long)]
    all: bool,
}

/// Prints the explanation.
pub fn main(args: &Args) -> Result<ExitCode> {
    let entries = Ledger::read(&LedgerDir::of_this_user(), args.pid)?;
    let mut text = String::new();
    if args.json {
        for entry in &entries {
            text.push_str(&serde_json::to_string(entry)?);
            text.push('\n');
        }
    } else {
        text = told(args.pid, &entries, args.all);
    }
    // The reader of standard output may have closed it.
    let _ = stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn told(pid: u32, entries: &[Entry], all: bool) -> String {
    let totals = Totals::of(entries);
    let mut text = String::new();
    let mut resident_at_begin = 0;
    let mut how = How::Managed;
    for entry in entries {
        if let Entry::Begin { resident_bytes, .. } = entry {
            (resident_at_begin, how) = (*resident_bytes, How::of(entry));
        }
        let told = matches!(
            entry,
            Entry::Begin { .. } | Entry::End { .. } | Entry::Budget { .. } | Entry::Trial { .. }
        );
        if all || told {
            text.push_str(&line(entry, how));
            text.push('\n');
        }
    }
    if let Some(manager) = left_alone_by(entries) {
        text.push_str(&format!(
            "its manager (process {manager}) ended without a word: it was killed; what is huge stays so (hiroma hot undo --pid {pid})\n"
        ));
    }
    if how == How::Told {
        text.push_str(&made_by_itself(pid, entries, &totals));
        return text;
    }
    let ranges = huge_ranges(entries);
    let huge = ranges.len() as u64;
    let hot_pages: u64 = ranges.values().map(|&hot| u64::from(hot)).sum();
    let growth = 100.0 * totals.added_bytes as f64 / resident_at_begin.max(1) as f64;
    let mean_us = totals.collapse_ns as f64 / 1e3 / totals.collapses.max(1) as f64;
    let ms = |ns: u64| ns as f64 / 1e6;
    let gain = match huge {
        0 => "none: nothing is huge now".to_owned(),
        _ => format!(
            "{hot_pages} hot pages are reached through {huge} translations now instead of one each"
        ),
    };
    text.push_str(&format!(
        "\n\
         huge now      {huge} ranges, {} (made huge {} times, split {}, refused {}, checked {})\n\
         memory        +{} ({growth:+.2} % of what was resident at the start)\n\
         time          collapsing {:.1} ms (mean {mean_us:.0} us, longest {:.1} ms), making memory ready before {:.1} ms, splitting {:.1} ms\n\
         {}\n\
         gain          {gain}\n",
        Bytes(huge * EXTENT as u64),
        totals.collapses,
        totals.splits,
        totals.refusals,
        totals.checks,
        Bytes(totals.added_bytes),
        ms(totals.collapse_ns),
        ms(totals.collapse_ns_max),
        ms(totals.ready_ns),
        ms(totals.split_ns),
        tracking(&totals),
    ));
    text.push_str(&now_of(pid, resident_at_begin));
    text
}

/// What the kernel says of the process now; nothing if it has ended.
fn now_of(pid: u32, resident_at_begin: u64) -> String {
    let mut text = String::new();
    if let Ok(memory) = memory(pid) {
        text.push_str(&format!(
            "on huge pages {} of {} resident, whoever made them\n",
            Bytes(memory.huge_bytes),
            Bytes(memory.resident_bytes)
        ));
    }
    if let Ok(resident) = machine::resident_bytes(pid) {
        text.push_str(&format!(
            "resident      {} now, {} at the start\n",
            Bytes(resident),
            Bytes(resident_at_begin)
        ));
    }
    text
}

fn tracking(totals: &Totals) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let (clear, scan, count) = (ms(totals.clear_ns), ms(totals.scan_ns), ms(totals.count_ns));
    let rounds = totals.rounds;
    format!(
        "tracking      {rounds} rounds: clearing {clear:.1} ms, scanning {scan:.1} ms, counting {count:.1} ms of processor time"
    )
}

/// The totals for a process that makes its huge pages itself: the ledger records which ranges were
/// hot enough, and the kernel reports what is huge.
fn made_by_itself(pid: u32, entries: &[Entry], totals: &Totals) -> String {
    let hot: BTreeSet<u64> = entries
        .iter()
        .filter_map(
            |entry| if let Entry::Collapse { address, .. } = entry { Some(*address) } else { None },
        )
        .collect();
    let now = match memory(pid) {
        Ok(memory) => {
            format!("{} of {} resident", Bytes(memory.huge_bytes), Bytes(memory.resident_bytes))
        }
        Err(_) => "the process has ended".to_owned(),
    };
    format!(
        "\n\
         huge now      {now}; it makes huge pages itself, and chooses which (hiroma hot serve --status)\n\
         hot enough    {} ranges of 2MiB in all, by the default rule\n\
         {}\n",
        hot.len(),
        tracking(totals),
    )
}

/// The last manager, if it has ended without recording its end.
fn left_alone_by(entries: &[Entry]) -> Option<u32> {
    last_manager(entries).filter(|manager| started_at(*manager).is_none())
}

/// How huge pages are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Managed,
    /// Not at all: the run only decided (a dry run).
    Dry,
    /// By the process itself, which receives reports of its active pages.
    Told,
}

impl How {
    fn of(begin: &Entry) -> How {
        match begin {
            Entry::Begin { told: true, .. } => How::Told,
            Entry::Begin { dry_run: true, .. } => How::Dry,
            _ => How::Managed,
        }
    }
}

/// Why a range was collapsed. A survey samples a few pages in one window, and counts no windows.
fn heat(hot_pages: u16, windows: u16) -> String {
    match windows {
        0 => format!("by a survey: about {hot_pages} of 512 pages touched in a window"),
        _ => format!("{hot_pages} of 512 pages hot in {windows} windows"),
    }
}

/// One entry as text; for a dry run in the conditional, because nothing was done.
fn line(entry: &Entry, how: How) -> String {
    let at = |at_ms: &u64| format!("{:>9.3} s  ", *at_ms as f64 / 1e3);
    match entry {
        Entry::Begin { pid, command, manager, backend, resident_bytes, budget_bytes, .. } => {
            let budget = match budget_bytes {
                // The process's share of the budget is a later entry, written as soon as it is
                // known.
                _ if how == How::Told => String::new(),
                None => ", no budget".to_owned(),
                Some(bytes) => format!(", budget {}", Bytes(*bytes)),
            };
            let dry = if how == How::Dry { ", a dry run" } else { "" };
            let verb = if how == How::Told { "told of its active pages" } else { "managed" };
            format!(
                "process {pid} ({command}): {verb} by process {manager} with {backend}, {} resident{budget}{dry}",
                Bytes(*resident_bytes)
            )
        }
        Entry::Collapse {
            at_ms,
            address,
            hot_pages,
            present_pages,
            windows,
            added_bytes,
            took_ns,
            ready_ns,
        } => {
            let us = |ns: u64| ns as f64 / 1e3;
            let took = match how {
                How::Managed if *ready_ns > 0 => {
                    format!(", {:.0} us after {:.0} of making ready", us(*took_ns), us(*ready_ns))
                }
                How::Managed => format!(", {:.0} us", us(*took_ns)),
                _ => String::new(),
            };
            let done = match how {
                How::Managed => "collapsed",
                How::Dry => "would be collapsed",
                How::Told => "hot enough to be huge",
            };
            format!(
                "{}{address:012x} {done}: {}, {present_pages} present, +{}{took}",
                at(at_ms),
                heat(*hot_pages, *windows),
                Bytes(*added_bytes)
            )
        }
        Entry::Refused { at_ms, address, error } => {
            format!("{}{address:012x} refused by the kernel: {error}", at(at_ms))
        }
        Entry::Split { at_ms, address, why, .. } => {
            format!("{}{address:012x} split: {why}", at(at_ms))
        }
        Entry::Check { at_ms, address } => {
            format!("{}{address:012x} split to check its pages", at(at_ms))
        }
        Entry::Tracking { at_ms, rounds, clear_ns, scan_ns, count_ns, window_ns } => format!(
            "{}{rounds} rounds: clear {:.1} ms, scan {:.2} ms, count {:.2} ms; windows of {:.1} ms",
            at(at_ms),
            *clear_ns as f64 / 1e6,
            *scan_ns as f64 / 1e6,
            *count_ns as f64 / 1e6,
            *window_ns as f64 / 1e6
        ),
        Entry::Exec { at_ms, command } => {
            format!("{}executed another program: {command}", at(at_ms))
        }
        Entry::Trial { at_ms, gain } => format!("{}tried: {gain}", at(at_ms)),
        Entry::Budget { at_ms, budget_bytes } => {
            format!("{}budget {}", at(at_ms), Bytes(*budget_bytes))
        }
        Entry::End { at_ms, why, huge_bytes, resident_bytes } => {
            let huge = match how {
                How::Managed => "huge",
                How::Dry => "would be huge",
                How::Told => "hot enough to be huge",
            };
            format!(
                "{}ended: {why}; {} {huge}, {} resident",
                at(at_ms),
                Bytes(*huge_bytes),
                Bytes(*resident_bytes)
            )
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(dry_run: bool, told: bool) -> Entry {
        let (command, backend) = ("a program".into(), "bpf".into());
        Entry::Begin {
            pid: std::process::id(),
            command,
            manager: 1,
            backend,
            resident_bytes: 4096,
            budget_bytes: Some(0),
            dry_run,
            told,
        }
    }

    #[test]
    fn notified_process_is_not_reported_as_having_none() {
        let collapse = Entry::Collapse {
            at_ms: 1,
            address: 2 << 20,
            hot_pages: 200,
            present_pages: 500,
            windows: 8,
            added_bytes: 0,
            took_ns: 0,
            ready_ns: 0,
        };
        let text = told(std::process::id(), &[begin(true, true), collapse.clone()], true);
        for part in [
            "told of its active pages by process 1 with bpf, 4KiB resident\n",
            "hot enough to be huge",
            "makes huge pages itself",
            "1 ranges of 2MiB",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(
            !text.contains("dry run")
                && !text.contains("nothing is huge now")
                && !text.contains("budget"),
            "{text}"
        );
        let mut surveyed = collapse.clone();
        let Entry::Collapse { windows, .. } = &mut surveyed else { panic!("another entry") };
        *windows = 0;
        let text = told(std::process::id(), &[begin(false, false), surveyed], true);
        assert!(text.contains("by a survey: about 200 of 512 pages"), "{text}");
        assert!(text.contains("\non huge pages "), "{text}");
        let text = told(std::process::id(), &[begin(true, false), collapse], true);
        assert!(
            text.contains("budget 0B, a dry run") && text.contains("would be collapsed"),
            "{text}"
        );
    }
}
