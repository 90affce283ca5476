//! The machine's settings of transparent huge pages, changed for the time of a measurement.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::undo::{Guard, Undo};

const DIR: &str = "/sys/kernel/mm/transparent_hugepage";

/// Sets `file` below the kernel's directory to `value` until the guard is dropped.
pub fn set(file: &str, value: &str) -> Result<Guard> {
    let path = Path::new(DIR).join(file);
    let text = fs::read_to_string(&path).with_context(|| {
        format!("cannot read {} (no transparent huge pages in this kernel?)", path.display())
    })?;
    let guard = Guard::new(Undo::FileWrite(path.clone(), chosen(&text).to_owned()));
    fs::write(&path, value)
        .with_context(|| format!("cannot set {} to {value} (as root?)", path.display()))?;
    Ok(guard)
}

/// The present value of a setting: a number, or the word in brackets.
fn chosen(text: &str) -> &str {
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    word.map_or(text.trim(), |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers_are_settings() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("511\n"), "511");
    }
}
