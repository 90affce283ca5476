//! `hiroma serve --memory auto`: what this machine can spare.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use hiroma_command::refuse;
use hiroma_far_server::{Elastic, Seen};
use hiroma_sys::host::memory::{Limits, headroom};
use hiroma_sys::host::proc;
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

/// Files that stay open, so that they can be read when no descriptors are left, too.
struct Kept {
    meminfo: File,
    /// None: this kernel does not tell.
    pressure: Option<File>,
    /// This process is in a group with a limit of its own.
    in_group: bool,
}

impl Kept {
    fn open() -> io::Result<Kept> {
        Ok(Kept {
            meminfo: File::open("/proc/meminfo")?,
            pressure: File::open("/proc/pressure/memory").ok(),
            in_group: Limits::read().cgroup.is_some(),
        })
    }

    fn look(&self) -> io::Result<Seen> {
        let available_bytes = match headroom() {
            Ok(Bytes(bytes)) => bytes,
            // Where no group has a limit, the machine's memory is all there is to look at.
            Err(_) if !self.in_group => self.available()?,
            Err(error) => return Err(error),
        };
        Ok(Seen { available_bytes, stalled_us: self.stalled_us().unwrap_or(0) })
    }

    fn available(&self) -> io::Result<u64> {
        let kib = proc::value(&read_again(&self.meminfo)?, "MemAvailable:");
        let kib = kib.ok_or_else(|| io::Error::other("/proc/meminfo has no MemAvailable"))?;
        Ok(kib << 10)
    }

    /// Time in which some thread waited for memory.
    fn stalled_us(&self) -> Option<u64> {
        let text = read_again(self.pressure.as_ref()?).ok()?;
        let line = text.lines().find(|line| line.starts_with("some"))?;
        line.rsplit_once("total=")?.1.trim().parse().ok()
    }
}

/// The beginning of a short file of /proc, as it is now.
fn read_again(file: &File) -> io::Result<String> {
    let mut bytes = vec![0; 16 << 10];
    let len = file.read_at(&mut bytes, 0)?;
    bytes.truncate(len);
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// Follows this machine.
pub fn of_machine(whole: Bytes, spill: &Spill) -> Result<Elastic> {
    let kept = Kept::open().map_err(|error| {
        refuse(format!("--memory auto: cannot read /proc/meminfo: {error}; give a size instead"))
    })?;
    let look = move || kept.look();
    look().map_err(|error| refuse(format!("--memory auto: {error}; give a size instead")))?;
    let _ = fs::write("/proc/self/oom_score_adj", OOM_POINTS);
    let spill = spill.0.clone().map(|(dir, most)| (dir, most.map(|Bytes(bytes)| bytes)));
    Ok(Elastic { gauge: Arc::new(look), whole_bytes: whole.0, spill })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_tell_what_is_true_now() {
        let kept = Kept::open().unwrap();
        for _ in 0..2 {
            let (seen, now) = (kept.available().unwrap(), headroom().unwrap().0);
            assert!(seen >= now / 2, "{seen} of the machine, {now} within all limits");
        }
        let psi = hiroma_sys::quiet::memory::pressure(std::path::Path::new("/"));
        assert_eq!(kept.stalled_us().is_some(), psi.is_some());
        if let (Some(before), Some(psi)) = (kept.stalled_us(), psi) {
            assert!(kept.stalled_us().unwrap() >= before && before + 60_000_000 > psi.some_us);
        }
    }

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
