//! `hiroma serve --memory auto`: what this machine can spare.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use hiroma_command::refuse;
use hiroma_far_server::{Elastic, Seen};
use hiroma_sys::host::memory::headroom;
use hiroma_sys::quiet::memory::pressure;
use hiroma_units::{Bytes, ParseSizeError, SizeSpec};

/// How much to lend.
#[derive(Clone, Copy, Debug)]
pub enum Memory {
    /// What can be spared.
    Auto,
    /// Always the same.
    Fixed(SizeSpec),
}

impl FromStr for Memory {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Memory, ParseSizeError> {
        if text == "auto" { Ok(Memory::Auto) } else { text.parse().map(Memory::Fixed) }
    }
}

/// Where blocks go that there is no memory for.
#[derive(Clone, Debug)]
pub struct Spill(Option<(PathBuf, Option<Bytes>)>);

impl FromStr for Spill {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Spill, Infallible> {
        if text == "none" {
            return Ok(Spill(None));
        }
        // A directory may have a colon in its name.
        let sized = text.rsplit_once(':').and_then(|(dir, size)| Some((dir, size.parse().ok()?)));
        Ok(Spill(Some(match sized {
            Some((dir, size)) => (PathBuf::from(dir), Some(size)),
            None => (PathBuf::from(text), None),
        })))
    }
}

/// Points that make the kernel choose this process before others, if memory is exhausted in spite of
/// everything.
const OOM_POINTS: &str = "800";

/// Follows this machine.
pub fn of_machine(whole: Bytes, spill: &Spill) -> Result<Elastic> {
    let look = || {
        let stalled_us = pressure(Path::new("/")).map_or(0, |pressure| pressure.some_us);
        headroom().map(|Bytes(available_bytes)| Seen { available_bytes, stalled_us })
    };
    look().map_err(|error| refuse(format!("--memory auto: {error}; give a size instead")))?;
    let _ = fs::write("/proc/self/oom_score_adj", OOM_POINTS);
    let spill = spill.0.clone().map(|(dir, most)| (dir, most.map(|Bytes(bytes)| bytes)));
    Ok(Elastic { gauge: Arc::new(look), whole_bytes: whole.0, spill })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_sizes_are_read() {
        let spill = |text: &str| text.parse::<Spill>().unwrap().0;
        assert_eq!(spill("none"), None);
        assert_eq!(spill("/srv/x"), Some((PathBuf::from("/srv/x"), None)));
        assert_eq!(spill("/srv/x:2G"), Some((PathBuf::from("/srv/x"), Some(Bytes(2 << 30)))));
        assert_eq!(spill("/srv/a:b"), Some((PathBuf::from("/srv/a:b"), None)));
        assert!(matches!("auto".parse(), Ok(Memory::Auto)));
        assert!(matches!("2G".parse(), Ok(Memory::Fixed(_))));
        assert!("automatic".parse::<Memory>().is_err());
    }
}
