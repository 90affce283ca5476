//! `/proc/PID/stat` of processes and threads, with fields numbered as in `proc_pid_stat(5)`.

use std::fs;
use std::str::FromStr;

/// The first field after the name.
pub const STATE: usize = 3;
/// Process id of the parent.
pub const PARENT: usize = 4;
/// Flags of the kernel (`PF_*`).
pub const FLAGS: usize = 9;
/// User and system time of all threads, ended ones included, in clock ticks.
pub const USER: usize = 14;
pub const SYSTEM: usize = 15;
/// Start time, in clock ticks since the machine started.
pub const STARTED: usize = 22;
/// Resident memory, in pages.
pub const RESIDENT: usize = 24;
/// The processor on which it last ran.
pub const CPU: usize = 39;

/// Length of a clock tick in ns.
pub fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// The text for process `pid`; none if it has ended.
pub fn stat(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// Field `number` of a text, from [`STATE`] on. Never allocates.
pub fn field<T: FromStr>(stat: &str, number: usize) -> Option<T> {
    stat[name_end(stat)? + 1..].split_whitespace().nth(number.checked_sub(STATE)?)?.parse().ok()
}

/// The number after `name` at the start of a line, as in `/proc/meminfo`, `/proc/PID/status` and
/// `/proc/PID/io`.
pub fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// The name (field 2), without its parentheses. It can contain any characters, these included.
pub fn name(stat: &str) -> Option<&str> {
    stat.get(stat.find('(')? + 1..name_end(stat)?)
}

fn name_end(stat: &str) -> Option<usize> {
    stat.rfind(')')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_parentheses_and_spaces_is_parsed() {
        let text = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1";
        assert_eq!(name(text), Some("a) b (c)"));
        assert_eq!(field(text, STATE), Some('S'));
        assert_eq!(field(text, PARENT), Some(7));
        assert_eq!(field(text, FLAGS), Some(4194560));
        assert_eq!(field::<u32>(text, CPU), None);
        assert_eq!((field::<u32>("42 (a", PARENT), field::<u32>(text, 2)), (None, None));
    }

    #[test]
    fn this_process_runs() {
        let text = stat(std::process::id()).unwrap();
        assert!(field(&text, STATE).is_some_and(|state: char| !"ZX".contains(state)));
        assert_eq!(stat(u32::MAX), None);
    }
}
