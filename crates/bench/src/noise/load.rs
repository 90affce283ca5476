//! The source of the noise: a process that reads or writes one file repeatedly, at a fixed rate.
//!
//! The file for reading is sparse unless the user names one: reads of it fill the page cache like
//! any others, and no disk is involved. `/proc/PID/io` of the process shows how much it read or
//! wrote.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hiroma_sys::workload::Region;
use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use serde::{Deserialize, Serialize};

/// Number of bytes that are read or written at a time.
const CHUNK: usize = 1 << 20;
/// `RWF_DONTCACHE` (Linux 6.14, `preadv2(2)`).
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// A reader that has fallen behind catches up by at most this time.
const BEHIND_MAX: Duration = Duration::from_millis(50);

/// How the file is read or written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Bypassing the cache.
    Direct,
    /// Without read-ahead (`POSIX_FADV_RANDOM`): page by page, so that only blocks of order 0 are
    /// requested.
    Small,
    /// With the read-ahead of the device: large folios where the file system supports them.
    Large,
    /// With `RWF_DONTCACHE`.
    DontCache,
    /// With `POSIX_FADV_DONTNEED` after each chunk.
    Fadvise,
    /// As large as read-ahead makes them, from a file over NFS.
    Nfs,
    Write,
}

/// Options of a load that runs until it is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    pub way: Way,
    pub file: PathBuf,
    pub bytes: u64,
    /// Offset at which it begins.
    pub start: u64,
    /// Bytes per second; 0: unlimited.
    pub rate_bytes_s: u64,
    /// Total number of bytes; 0: unlimited.
    pub total_bytes: u64,
    pub cgroup: Option<PathBuf>,
    /// Started by `hiroma quiet run`.
    pub under_quiet_run: bool,
}

/// Runs the load.
pub fn main(load: &str) -> Result<ExitCode> {
    let load: Load =
        serde_json::from_str(load).context("the job of a loading process is not readable")?;
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if let Some(cgroup) = &load.cgroup {
        hiroma_sys::host::cgroup::enter(cgroup)?;
    }
    let file = open(&load)?;
    let buffer = Region::map(CHUNK)?;
    buffer.populate();
    let mut bytes = vec![7u8; CHUNK + 4096];
    // Direct I/O requires whole pages of memory.
    let start = bytes.as_ptr().align_offset(4096);
    let bytes = &mut bytes[start..start + CHUNK];
    let (mut done, mut began) = (0u64, Instant::now());
    let mut counted = 0u64;
    while load.total_bytes == 0 || done < load.total_bytes {
        let at = (load.start + done) % (load.bytes - load.bytes % CHUNK as u64);
        chunk(&load, &file, bytes, at).with_context(|| format!("{}", load.file.display()))?;
        (done, counted) = (done + CHUNK as u64, counted + CHUNK as u64);
        if load.rate_bytes_s > 0 {
            let due = Duration::from_secs_f64(counted as f64 / load.rate_bytes_s as f64);
            let passed = began.elapsed();
            if due > passed {
                thread::sleep(due - passed);
            } else if passed > due + BEHIND_MAX {
                (began, counted) = (Instant::now(), 0);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn open(load: &Load) -> Result<File> {
    let flags = if load.way == Way::Direct { OFlags::DIRECT.bits() as i32 } else { 0 };
    let file = OpenOptions::new()
        .read(true)
        .write(load.way == Way::Write)
        .custom_flags(flags)
        .open(&load.file);
    let file = file.with_context(|| format!("opening {}", load.file.display()))?;
    if load.way == Way::Small {
        fadvise(&file, 0, None, Advice::Random)?;
    }
    Ok(file)
}

fn chunk(load: &Load, mut file: &File, bytes: &mut [u8], at: u64) -> Result<()> {
    match load.way {
        Way::Write => {
            file.seek(SeekFrom::Start(at))?;
            file.write_all(bytes)?;
        }
        Way::DontCache => {
            match preadv2(file, &mut [std::io::IoSliceMut::new(bytes)], at, DONTCACHE) {
                Ok(_) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                    bail!("this kernel or file system has no RWF_DONTCACHE (Linux 6.14)")
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Way::Fadvise => {
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(bytes)?;
            fadvise(file, at, std::num::NonZeroU64::new(bytes.len() as u64), Advice::DontNeed)?;
        }
        // As most programs do: the file position moves.
        Way::Direct | Way::Small | Way::Large | Way::Nfs => {
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(bytes)?;
        }
    }
    Ok(())
}
