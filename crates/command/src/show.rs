//! Formats of times and counts, and output on standard error.

use std::io::{Write, stderr};
use std::time::Duration;

use hiroma_units::Nanos;

/// Prints a message on standard error. Write errors are ignored: nothing may read standard error
/// any more, and the program's end matters more.
pub fn say(line: &str) {
    let _ = writeln!(stderr(), "hiroma: {line}");
}

/// Prints one line on standard error without a prefix.
pub fn line(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// `9us`, `1.2ms`, `3.4s`; three digits at most.
pub fn latency(nanos: Nanos) -> String {
    let us = nanos.0 as f64 / 1e3;
    match us {
        _ if us < 9.95 => format!("{us:.1}us"),
        _ if us < 999.5 => format!("{us:.0}us"),
        _ if us < 9950.0 => format!("{:.1}ms", us / 1e3),
        _ if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        _ => format!("{:.1}s", us / 1e6),
    }
}

/// `34 %`, `0.4 %`: millionths as a share.
pub fn percent(ppm: u64) -> String {
    if (1..9_950).contains(&ppm) {
        format!("{:.1} %", (ppm as f64 / 1e4).max(0.1))
    } else {
        format!("{:.0} %", ppm as f64 / 1e4)
    }
}

/// `6.9 s`, `2 min 5 s`.
pub fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 120.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60)
    }
}

/// `999`, `12.3k`, `4.5M`.
pub fn count(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => format!("{:.1}k", number as f64 / 1e3),
        _ => format!("{:.1}M", number as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_keep_two_or_three_digits() {
        for (nanos, text) in [
            (900, "0.9us"),
            (9_000, "9.0us"),
            (77_000, "77us"),
            (310_400, "310us"),
            (1_200_000, "1.2ms"),
            (45_000_000, "45ms"),
            (2_500_000_000, "2.5s"),
        ] {
            assert_eq!(latency(Nanos(nanos)), text);
        }
    }

    #[test]
    fn counts_and_times_are_short() {
        assert_eq!(
            (count(1234), count(12_345), count(4_500_000)),
            ("1234".into(), "12.3k".into(), "4.5M".into())
        );
        assert_eq!(elapsed(Duration::from_millis(6940)), "6.9 s");
        assert_eq!(elapsed(Duration::from_secs(125)), "2 min 5 s");
    }
}
