//! Helpers for tests: a test that cannot run here reports that, and is counted.
//!
//! `HIROMA_SKIPS=FILE` collects the skipped tests, one per line; `scripts/test.sh` prints and
//! counts them. `HIROMA_REQUIRE=root,uffd` turns a skip into a failure if one of these is lacking.

use std::fs::OpenOptions;
use std::io::Write;

/// What a test lacks on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lacks {
    /// The rights of root.
    Root,
    /// Userfaultfd.
    Uffd,
    /// The right to load BPF programs.
    Bpf,
    /// Something of this machine: a device, a kernel feature, a program, free memory.
    Machine,
}

impl Lacks {
    /// The name in `HIROMA_REQUIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Lacks::Root => "root",
            Lacks::Uffd => "uffd",
            Lacks::Bpf => "bpf",
            Lacks::Machine => "machine",
        }
    }
}

/// Reports that the current test, or a part of it, is skipped; see the module documentation.
///
/// # Panics
/// If `HIROMA_REQUIRE` names what is lacking.
pub fn skipped(lacks: Lacks, reason: &str) {
    let reason = reason.trim().replace('\n', " ");
    let required = std::env::var("HIROMA_REQUIRE").unwrap_or_default();
    assert!(
        !is_in(&required, lacks),
        "HIROMA_REQUIRE={required}, and this was to be skipped: {reason}"
    );
    println!("skipped: {reason}");
    if let Some(file) = std::env::var_os("HIROMA_SKIPS") {
        let thread = std::thread::current();
        let line = format!("{} ({}): {reason}\n", thread.name().unwrap_or("a test"), lacks.name());
        // A test that has changed its user may not be allowed to write there.
        let _ = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&file)
            .and_then(|mut out| out.write_all(line.as_bytes()));
    }
}

fn is_in(required: &str, lacks: Lacks) -> bool {
    required.split(',').any(|name| name.trim() == lacks.name())
}

/// `skip!(Root, "only root can become {user}")`: see [`skipped`].
#[macro_export]
macro_rules! skip {
    ($lacks:ident, $($reason:tt)*) => {
        $crate::skipped($crate::Lacks::$lacks, &format!($($reason)*))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_capabilities_are_matched_exactly() {
        assert!(is_in("root,uffd", Lacks::Root) && is_in(" bpf ", Lacks::Bpf));
        assert!(
            !is_in("", Lacks::Root)
                && !is_in("roots", Lacks::Root)
                && !is_in("root,uffd", Lacks::Machine)
        );
    }
}
