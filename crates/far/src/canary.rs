//! Rules that tests break on purpose, to verify that a violation is detected. Outside of tests no
//! rule is broken, and the check costs nothing.

#[cfg(test)]
thread_local!(static BROKEN: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) });

/// Every rule that can be broken; the places that check a rule describe it.
#[cfg(test)]
pub const RULES: &[&str] = &[
    "discarded on its way in",
    "discarded while away",
    "event before unlock",
    "clean by content",
    "copy while written",
    "one mode",
    "own removals",
    "undo of a move",
    "holes",
    "fresh is zero",
    "verify what comes",
    "stale entries",
    "kept for the kernel",
    "nothing moves out of what was removed",
    "swapped out is there",
    "swapped out is no hole",
    "content goes before its addresses",
    "moved memory ends the program",
    "unshared after a fork",
    "not touched while it may be dropped",
    "nothing under way in a fork",
    "kept over a fork",
    "kept for a child",
    "wiped in a child",
    "touched early is known",
    "foreign memory stays",
];

/// Whether the calling thread's test has broken a rule.
#[cfg(test)]
pub fn is_broken(rule: &'static str) -> bool {
    debug_assert!(RULES.contains(&rule), "{rule}");
    BROKEN.with(|broken| broken.get() == Some(rule))
}

#[cfg(not(test))]
#[inline(always)]
pub fn is_broken(_rule: &'static str) -> bool {
    false
}

/// Breaks a rule in this thread; `None` restores all.
#[cfg(all(test, not(debug_assertions)))]
pub fn break_rule(rule: Option<&'static str>) {
    BROKEN.with(|broken| broken.set(rule));
}
