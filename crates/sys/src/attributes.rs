//! What a thread inherits from the one that starts it: nice value, class, processors, timer slack,
//! and whether it may read the time stamp counter.
//!
//! A pager that starts late is started by any thread of the program, which may have made itself
//! slow. Its threads get what the process had when it began.

use std::num::NonZeroU64;
use std::sync::OnceLock;

use rustix::process::{
    TimeStampCounterReadability, getpriority_process, set_time_stamp_counter_readability,
    setpriority_process, time_stamp_counter_readability,
};
use rustix::thread::set_current_timer_slack;

use crate::cpu::{Cpus, be_normal_class, is_normal_class};

#[derive(Clone, Copy, Debug)]
struct Attributes {
    nice: i32,
    is_normal: bool,
    cpus: Option<Cpus>,
}

static FIRST: OnceLock<Attributes> = OnceLock::new();
/// Linux's default.
const TIMER_SLACK_NS: u64 = 50_000;

fn of_this_thread() -> Option<Attributes> {
    let nice = getpriority_process(None).ok()?;
    Some(Attributes { nice, is_normal: is_normal_class(), cpus: Cpus::of_this_thread() })
}

/// Notes what the calling thread has.
pub fn note() {
    if let Some(first) = of_this_thread() {
        let _ = FIRST.set(first);
    }
}

/// Whether the calling thread has less of the processors than the process had when it began.
pub fn is_slow() -> bool {
    let (Some(first), Some(own)) = (FIRST.get(), of_this_thread()) else { return false };
    own.nice > first.nice || first.is_normal && !own.is_normal
}

/// Allows the calling thread to read the time stamp counter, on which the clock of the C library
/// depends.
pub fn allow_clock() {
    let _ = set_time_stamp_counter_readability(TimeStampCounterReadability::Readable);
}

/// Whether the calling thread may read the time stamp counter. Other processors than x86 have none.
pub fn has_clock() -> bool {
    time_stamp_counter_readability() != Ok(TimeStampCounterReadability::RaiseSIGSEGV)
}

/// Takes the clock away again.
pub fn forbid_clock() {
    let _ = set_time_stamp_counter_readability(TimeStampCounterReadability::RaiseSIGSEGV);
}

/// Gives the calling thread what was noted, as far as that is allowed.
pub fn restore() {
    let Some(first) = FIRST.get() else { return };
    allow_clock();
    let _ = set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS));
    if first.is_normal && !is_normal_class() {
        be_normal_class();
    }
    let _ = setpriority_process(None, first.nice);
    if let Some(cpus) = first.cpus {
        cpus.confine_this();
    }
}
