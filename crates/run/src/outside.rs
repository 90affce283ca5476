//! Children of the program that ran without far memory, as recorded by the library.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hiroma_far::config::EXECUTED_FILE;
use serde_json::{Value, json};

use crate::program;

/// Number of programs that the summary names.
const NAMED: usize = 3;

/// How often each program was started without far memory, and the reason.
#[derive(Default)]
pub struct Outside {
    programs: BTreeMap<PathBuf, (String, u64)>,
}

impl Outside {
    /// Reads the records in the run directory `dir`.
    pub fn read(dir: &Path) -> Outside {
        Outside::of(&fs::read(dir.join(EXECUTED_FILE)).unwrap_or_default())
    }

    fn of(notes: &[u8]) -> Outside {
        let mut counts: BTreeMap<&[u8], u64> = BTreeMap::new();
        // The last record may be incomplete.
        let whole = notes.iter().rposition(|&byte| byte == 0).map_or(&[][..], |end| &notes[..end]);
        whole.split(|&byte| byte == 0).for_each(|note| *counts.entry(note).or_default() += 1);
        let mut outside = Outside::default();
        for (note, count) in counts {
            let Some((kept, name)) = note.split_first() else { continue };
            let Ok(path) = program::find(OsStr::from_bytes(name)) else { continue };
            let path = path.canonicalize().unwrap_or(path);
            let reason = match program::check(&path) {
                Ok(()) if *kept == b'+' => None,
                Ok(()) => Some("environment without LD_PRELOAD or HIROMA_CONFIG".to_owned()),
                Err(error) => error.without_far_memory(),
            };
            if let Some(reason) = reason {
                outside.programs.entry(path).or_insert((reason, 0)).1 += count;
            }
        }
        outside
    }

    /// Text for the summary; empty if there were none.
    pub fn summary(&self) -> String {
        let count: u64 = self.programs.values().map(|(_, count)| count).sum();
        if count == 0 {
            return String::new();
        }
        let name =
            |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut most: Vec<_> = self.programs.iter().collect();
        most.sort_by_key(|(_, (_, count))| std::cmp::Reverse(*count));
        let mut named: Vec<String> = most
            .iter()
            .take(NAMED)
            .map(|(path, (reason, _))| format!("{} ({reason})", name(path)))
            .collect();
        if self.programs.len() > NAMED {
            named.push(format!("{} more", self.programs.len() - NAMED));
        }
        let children = if count == 1 { "child" } else { "children" };
        format!(", {count} {children} ran without far memory: {}", named.join(", "))
    }

    /// All programs, for `--stats`.
    pub fn json(&self) -> Value {
        let one = |(path, (reason, count)): (&PathBuf, &(String, u64))| json!({"program": path, "reason": reason, "count": count});
        self.programs.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_its_environment_is_named() {
        let outside = Outside::of(b"+/bin/sh\0-/bin/sh\0-sh\0-/nowhere/at/all\0-/bin/s");
        // Both names refer to the same file.
        assert_eq!((outside.programs.len(), outside.programs.values().next().unwrap().1), (1, 2));
        let summary = outside.summary();
        assert!(summary.starts_with(", 2 children ran without far memory: "), "{summary}");
        assert!(
            summary.ends_with("sh (environment without LD_PRELOAD or HIROMA_CONFIG)"),
            "{summary}"
        );
    }

    #[test]
    fn long_lists_of_programs_are_shortened() {
        let programs = (0..5)
            .map(|number| (PathBuf::from(format!("/bin/p{number}")), ("static".to_owned(), 2)))
            .collect();
        let said = Outside { programs }.summary();
        assert_eq!(
            said,
            ", 10 children ran without far memory: p0 (static), p1 (static), p2 (static), 2 more"
        );
    }

    #[test]
    fn no_outside_programs_gives_an_empty_summary() {
        assert_eq!(Outside::of(b"").summary(), "");
        assert_eq!(Outside::of(b"+/bin/sh\0").summary(), "");
    }
}
