//! Whether the program's threads have had processor time since a given moment. The kernel sends the
//! event of a raw `madvise(MADV_DONTNEED)` before it acts, and the calling thread may be kept from
//! acting for a long time: `SCHED_IDLE` beside a busy processor, a cgroup's quota.

use std::collections::BTreeMap;

use crate::host;

/// A thread that has run for this long since the event of its removal was read has finished it: a
/// gigabyte is dropped in less. In ticks of 10 ms (`USER_HZ`), which the kernel rounds down.
const PAST_IT_TICKS: u64 = 10;

/// State of a thread, from `/proc/PID/task/TID/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Thread {
    /// Running, runnable, or in uninterruptible sleep (`R`, `D`). In any other state it is not in a
    /// removal.
    may_be_acting: bool,
    /// Processor time.
    ran_ticks: u64,
}

/// How long each thread had run at a given moment.
#[derive(Default)]
pub struct Progress {
    then: Option<BTreeMap<u32, Thread>>,
}

impl Progress {
    /// To be called periodically. `waits`: whether the result is needed. Returns true if every
    /// thread that was about to act at the reference moment has acted, or if there is no reference
    /// moment; then this call becomes the reference moment.
    pub fn have_acted(&mut self, waits: bool) -> bool {
        if !waits {
            self.then = None;
            return true;
        }
        let now = threads();
        let starved = self.then.as_ref().is_some_and(|then| is_any_starved(then, &now));
        if !starved {
            self.then = Some(now);
        }
        !starved
    }
}

fn is_any_starved(then: &BTreeMap<u32, Thread>, now: &BTreeMap<u32, Thread>) -> bool {
    // Less time than before: a new thread has reused the number.
    let has_run = |id, now: u64| {
        then.get(id)
            .is_none_or(|then| now < then.ran_ticks || now - then.ran_ticks >= PAST_IT_TICKS)
    };
    now.iter().any(|(id, thread)| thread.may_be_acting && !has_run(id, thread.ran_ticks))
}

/// The program's threads. Empty if `/proc` does not show them.
fn threads() -> BTreeMap<u32, Thread> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", host::program())) else {
        return BTreeMap::new();
    };
    let read = |task: std::fs::DirEntry| {
        let id = task.file_name().to_str()?.parse().ok()?;
        Some((id, parse(&std::fs::read_to_string(task.path().join("stat")).ok()?)?))
    };
    tasks.flatten().filter_map(read).collect()
}

/// Parses a line of `stat` (proc_pid_stat(5)): the state is the third field, user and system time
/// are the 14th and 15th.
fn parse(stat: &str) -> Option<Thread> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let may_be_acting = matches!(fields.next()?, "R" | "D");
    let mut times = fields.skip(10);
    let (user, system): (u64, u64) = (times.next()?.parse().ok()?, times.next()?.parse().ok()?);
    Some(Thread { may_be_acting, ran_ticks: user + system })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_line_is_parsed_for_any_program_name() {
        let line = "71 (a) R 1 (b) D 1 71 71 0 -1 4194304 94 0 0 0 12 3 0 0 20 0 1 0 9 0 0";
        assert_eq!(parse(line), Some(Thread { may_be_acting: true, ran_ticks: 15 }));
        assert_eq!(
            parse(&line.replace(") D", ") S")),
            Some(Thread { may_be_acting: false, ran_ticks: 15 })
        );
        assert_eq!(parse("71 (a) R 1"), None);
        assert_eq!(parse(""), None);
        assert!(threads().contains_key(&std::process::id()));
    }

    #[test]
    fn runnable_thread_that_did_not_run_is_starved() {
        let at = |states: &[(u32, bool, u64)]| -> BTreeMap<u32, Thread> {
            states
                .iter()
                .map(|&(id, may_be_acting, ran_ticks)| (id, Thread { may_be_acting, ran_ticks }))
                .collect()
        };
        let then = at(&[(1, true, 50), (2, true, 7), (3, false, 9)]);
        assert!(is_any_starved(&then, &at(&[(1, true, 60), (2, true, 16)])));
        assert!(!is_any_starved(&then, &at(&[(1, true, 60), (2, true, 17)])));
        assert!(
            !is_any_starved(&then, &at(&[(1, true, 60), (2, false, 7)])),
            "it sleeps: it is past it"
        );
        assert!(
            is_any_starved(&then, &at(&[(3, true, 9)])),
            "a sleeper of then that runs now may have been woken for it"
        );
        assert!(!is_any_starved(&then, &at(&[(4, true, 0), (2, true, 1)])), "new ones");
    }
}
