//! Records of page-outs and page-ins for another process to write to a file: a ring in a file that
//! this process and the reader map.
//!
//! The pager stores a record and continues; it never waits for the reader. If the ring is full, a
//! record is counted as lost. The ring outlives the process, so that its last records are not lost
//! when it is killed.
//!
//! Layout: 64-bit words. Word 0 magic, 1 version, 2 bytes of a page, 3 records written, 4 records
//! read, 5 records lost; from [`RING_WORD`] two words a record: time (ns of the monotonic clock),
//! and page << 2 | kind.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use hiroma_sys::cpu;
use hiroma_sys::shared::SharedWords;
use hiroma_units::{BlockId, PAGE};

use crate::config::BlockSize;
use crate::core::{Core, sector_order};
use crate::extent::Copy;

const MAGIC: u64 = u64::from_le_bytes(*b"hiromatr");
const VERSION: u64 = 1;
const RING_WORD: usize = 8;
/// Records in a ring: 2 MiB for each process.
const RECORDS: u64 = 1 << 17;
const WORDS: usize = RING_WORD + 2 * RECORDS as usize;
/// Suffix of the file names of rings.
const SUFFIX: &str = ".trace";

/// What happened to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// It was written to a store.
    Out = 1,
    /// It was read from a store.
    In = 2,
    /// It was evicted without being written, because the store has the same content.
    Dropped = 3,
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Nanoseconds of the monotonic clock.
    pub time_ns: u64,
    /// Page, counted from the beginning of the arena.
    pub page: u64,
    /// What happened to it.
    pub moved: Moved,
}

/// Bytes of a page of the records: one sector.
pub fn page_bytes(block: BlockSize) -> u64 {
    (PAGE << sector_order(block)) as u64
}

/// A ring, as seen by the pager or by its reader.
pub struct Ring {
    words: SharedWords,
}

impl Ring {
    /// Creates a ring of this process for pages of `page_bytes` in `dir`, readable and writable by
    /// its user alone.
    pub fn create(dir: &Path, page_bytes: u64) -> io::Result<Ring> {
        let (file, _) = create_new(dir)?;
        let ring = Ring { words: SharedWords::create(&file, WORDS)? };
        ring.word(1).store(VERSION, Ordering::Relaxed);
        ring.word(2).store(page_bytes, Ordering::Relaxed);
        ring.word(0).store(MAGIC, Ordering::Release);
        Ok(ring)
    }

    /// Opens the ring at `path`; returns None while it is being created.
    pub fn open(path: &Path) -> io::Result<Option<Ring>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != (WORDS * 8) as u64 {
            return Ok(None);
        }
        let ring = Ring { words: SharedWords::map(&file, WORDS)? };
        match (ring.word(0).load(Ordering::Acquire), ring.word(1).load(Ordering::Relaxed)) {
            (0, _) => Ok(None),
            (MAGIC, VERSION) => Ok(Some(ring)),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a ring of this version of hiroma",
            )),
        }
    }

    /// The rings in `dir`, with the ids of the processes that created them.
    pub fn list(dir: &Path) -> Vec<(PathBuf, u32)> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let ring = |name: &str| -> Option<u32> {
            name.strip_suffix(SUFFIX)?.split('-').next()?.parse().ok()
        };
        entries
            .filter_map(|entry| Some((entry.path(), ring(entry.file_name().to_str()?)?)))
            .collect()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words.words()[index]
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.word(2).load(Ordering::Relaxed)
    }

    /// Number of records lost because the ring was full.
    pub fn lost(&self) -> u64 {
        self.word(5).load(Ordering::Relaxed)
    }

    /// Adds records with the same time. One caller at a time: the pager's lock ensures that.
    pub(crate) fn append(&self, time_ns: u64, moved: Moved, pages: impl Iterator<Item = u64>) {
        let (mut written, read) =
            (self.word(3).load(Ordering::Relaxed), self.word(4).load(Ordering::Acquire));
        for page in pages {
            if written.wrapping_sub(read) >= RECORDS {
                self.word(5).fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let at = RING_WORD + 2 * (written % RECORDS) as usize;
            self.word(at).store(time_ns, Ordering::Relaxed);
            self.word(at + 1).store(page << 2 | moved as u64, Ordering::Relaxed);
            written = written.wrapping_add(1);
        }
        self.word(3).store(written, Ordering::Release);
    }

    /// Takes the records since the last call. One reader at a time.
    pub fn take(&self, records: &mut Vec<Record>) -> io::Result<()> {
        let (written, read) =
            (self.word(3).load(Ordering::Acquire), self.word(4).load(Ordering::Relaxed));
        let broken = || {
            io::Error::new(io::ErrorKind::InvalidData, "the program has written over its records")
        };
        if written.wrapping_sub(read) > RECORDS {
            return Err(broken());
        }
        for number in 0..written.wrapping_sub(read) {
            let at = RING_WORD + 2 * (read.wrapping_add(number) % RECORDS) as usize;
            let (time_ns, word) =
                (self.word(at).load(Ordering::Relaxed), self.word(at + 1).load(Ordering::Relaxed));
            let moved = match word & 3 {
                1 => Moved::Out,
                2 => Moved::In,
                3 => Moved::Dropped,
                _ => return Err(broken()),
            };
            records.push(Record { time_ns, page: word >> 2, moved });
        }
        self.word(4).store(written, Ordering::Release);
        Ok(())
    }
}

impl Core {
    /// Records what happened to sectors of a block, if tracing is enabled.
    pub fn trace(&self, moved: Moved, block: BlockId, sectors: impl Iterator<Item = usize>) {
        if let Some(ring) = &self.live.trace {
            let first = block.page() >> self.sector_order;
            ring.append(cpu::now_ns(), moved, sectors.map(|sector| first + sector as u64));
        }
    }

    /// Records that a block was evicted without being written.
    pub fn trace_dropped(&self, block: BlockId) {
        let (first, count) = self.sector_range(block);
        let extent = self.extent(block);
        let stored =
            (0..count).filter(|&sector| matches!(extent.copy(first + sector), Copy::Stored { .. }));
        self.trace(Moved::Dropped, block, stored);
    }
}

/// Creates a new file for each life of a process: an `execve` begins another with the same process
/// id.
fn create_new(dir: &Path) -> io::Result<(File, PathBuf)> {
    for life in 0..u32::MAX {
        let path = dir.join(format!("{}-{life}{SUFFIX}", crate::host::program_in_proc()));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|file| (file, path)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (tempfile::TempDir, Ring, Ring) {
        let dir = tempfile::tempdir().unwrap();
        let ours = Ring::create(dir.path(), 8192).unwrap();
        let theirs = Ring::open(&Ring::list(dir.path())[0].0).unwrap().unwrap();
        (dir, ours, theirs)
    }

    #[test]
    fn reader_gets_each_record_once_in_order() {
        let (_dir, ours, theirs) = ring();
        assert_eq!(theirs.page_bytes(), 8192);
        let mut records = Vec::new();
        for round in 0..3 * RECORDS / 1000 {
            ours.append(round, Moved::Out, 0..600);
            ours.append(round, Moved::In, 0..400);
            theirs.take(&mut records).unwrap();
        }
        assert_eq!((records.len() as u64, theirs.lost()), (3 * RECORDS / 1000 * 1000, 0));
        assert_eq!(records[1599], Record { time_ns: 1, page: 599, moved: Moved::Out });
        assert_eq!(records[1600], Record { time_ns: 1, page: 0, moved: Moved::In });
    }

    #[test]
    fn records_lost_to_a_full_ring_are_counted() {
        let (_dir, ours, theirs) = ring();
        ours.append(5, Moved::Dropped, 0..RECORDS + 7);
        let mut records = Vec::new();
        theirs.take(&mut records).unwrap();
        assert_eq!((records.len() as u64, theirs.lost()), (RECORDS, 7));
        ours.append(6, Moved::Out, 0..1);
        theirs.take(&mut records).unwrap();
        assert_eq!(records.last(), Some(&Record { time_ns: 6, page: 0, moved: Moved::Out }));
    }

    #[test]
    fn each_exec_gets_its_own_ring() {
        let (dir, _ours, _theirs) = ring();
        let _second = Ring::create(dir.path(), 4096).unwrap();
        let rings = Ring::list(dir.path());
        assert_eq!(rings.len(), 2);
        assert!(rings.iter().all(|(_, pid)| *pid == std::process::id()));
    }

    #[test]
    fn ring_overwritten_by_the_program_is_refused() {
        let (_dir, ours, theirs) = ring();
        ours.append(5, Moved::Out, 0..3);
        ours.word(RING_WORD + 1).store(0, Ordering::Relaxed);
        assert!(theirs.take(&mut Vec::new()).is_err());
        ours.word(3).store(u64::MAX / 2, Ordering::Relaxed);
        assert!(theirs.take(&mut Vec::new()).is_err());
    }
}
