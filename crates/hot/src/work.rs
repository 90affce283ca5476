//! How much a process has done, and the processor time that it took: as far as that is visible from
//! outside without counters of the processor.

use std::fs;

use hiroma_sys::host::proc;

/// What a process has done since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Processor time of all threads, ended ones included.
    pub cpu_ns: u64,
    /// Calls that read or write (`/proc/PID/io`).
    pub calls: u64,
    /// How often a thread that runs now has waited for something.
    pub waits: u64,
}

impl Work {
    /// Of process `pid`; none if it has ended.
    pub fn of(pid: u32) -> Option<Work> {
        let stat = proc::stat(pid)?;
        let ticks =
            proc::field::<u64>(&stat, proc::USER)? + proc::field::<u64>(&stat, proc::SYSTEM)?;
        // Another user's may be unreadable.
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let number = |text: &str, name| proc::value(text, name).unwrap_or(0);
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        let waits = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
        Some(Work {
            cpu_ns: ticks * proc::tick_ns(),
            calls: number(&io, "syscr:") + number(&io, "syscw:"),
            waits: waits.map(|status| number(&status, "voluntary_ctxt_switches:")).sum(),
        })
    }

    /// What was done between `before` and this.
    pub fn since(&self, before: &Work) -> Work {
        Work {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            calls: self.calls.saturating_sub(before.calls),
            waits: self.waits.saturating_sub(before.waits),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn calls_and_time_of_this_process_are_counted() {
        let own = std::process::id();
        let before = Work::of(own).unwrap();
        let mut file = fs::File::create("/dev/null").unwrap();
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 60 {
            file.write_all(b"x").unwrap();
        }
        let work = Work::of(own).unwrap().since(&before);
        assert!(work.calls > 1000 && work.cpu_ns >= 10_000_000, "{work:?}");
        assert_eq!(Work::of(u32::MAX), None);
    }
}
