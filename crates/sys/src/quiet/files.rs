//! Files that programs stream: which processes move most bytes (`/proc/PID/io`), which regular
//! files they have open, their positions in these (`/proc/PID/fd`, `/proc/PID/fdinfo`; proc(5)),
//! and dropping what is behind the position (posix_fadvise(2)). Other users' processes need root.

use std::fs::{self, File, Metadata};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, OFlags, SeekFrom, fadvise, seek};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::host::proc;

/// Number of positions that are checked to find out whether a file is cached.
const SAMPLES: u64 = 16;

/// A regular file that a process has open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenFile {
    pub pid: u32,
    pub fd: u32,
    /// Device and inode number of the file: another file may get the same descriptor later.
    pub id: (u64, u64),
    /// The name with which it was opened; for messages.
    pub name: PathBuf,
    pub position: u64,
    pub size: u64,
}

/// Bytes that a process has read and written through system calls of any kind; none if it has
/// ended, or belongs to another user.
pub fn moved_bytes(pid: u32) -> Option<u64> {
    parse_moved(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?)
}

fn parse_moved(text: &str) -> Option<u64> {
    Some(proc::value(text, "rchar:")?.saturating_add(proc::value(text, "wchar:")?))
}

/// Why other users' files are not visible, if so.
pub fn obstacle() -> Option<String> {
    obstacle_below(Path::new("/proc"))
}

/// Both are needed: what a process moves says which one streams, and its descriptors say what.
fn obstacle_below(proc: &Path) -> Option<String> {
    let failed = |name: &str, error: io::Error| {
        let path = proc.join(name);
        let what = "fadvise on the files that programs read and write (root, CAP_SYS_PTRACE)";
        format!("{what}: {}: {error}", path.display())
    };
    let files = fs::read_dir(proc.join("1/fd")).err().map(|error| failed("1/fd", error));
    files.or_else(|| fs::read(proc.join("1/io")).err().map(|error| failed("1/io", error)))
}

/// All visible processes, and the bytes that each has moved.
pub fn movers() -> Vec<(u32, u64)> {
    super::tasks::numbers_in("/proc")
        .into_iter()
        .filter_map(|pid| Some((pid, moved_bytes(pid)?)))
        .collect()
}

/// Position and flags of a descriptor.
fn parse_fdinfo(text: &str) -> Option<(u64, u32)> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((value("pos:")?.parse().ok()?, u32::from_str_radix(value("flags:")?, 8).ok()?))
}

fn place(pid: u32, fd: u32) -> String {
    format!("/proc/{pid}/fd/{fd}")
}

fn id(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

fn position(pid: u32, fd: u32) -> Option<(u64, u32)> {
    parse_fdinfo(&fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?)
}

/// Regular files of at least `size_min` bytes that a process has open and that use the page cache.
pub fn open_files(pid: u32, size_min: u64) -> Vec<OpenFile> {
    let one = |fd: u32| {
        let path = place(pid, fd);
        let found = fs::metadata(&path).ok()?;
        let (position, flags) = position(pid, fd)?;
        let wanted =
            found.is_file() && found.len() >= size_min && flags & OFlags::DIRECT.bits() == 0;
        let name = fs::read_link(&path).unwrap_or_default();
        wanted.then(|| OpenFile { pid, fd, id: id(&found), name, position, size: found.len() })
    };
    super::tasks::numbers_in(&format!("/proc/{pid}/fd")).into_iter().filter_map(one).collect()
}

impl OpenFile {
    /// Its current position; none if it was closed.
    pub fn position_now(&self) -> Option<u64> {
        let found = fs::metadata(place(self.pid, self.fd)).ok()?;
        (id(&found) == self.id).then_some(())?;
        Some(position(self.pid, self.fd)?.0)
    }

    /// A separate descriptor of the same file. Not kept open: that would keep a file system busy.
    fn open(&self) -> io::Result<File> {
        let flags = (OFlags::NONBLOCK | OFlags::NOATIME | OFlags::CLOEXEC).bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(place(self.pid, self.fd))?;
        if id(&file.metadata()?) == self.id {
            Ok(file)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// Drops a part from the cache; write-back of dirty pages is started.
    pub fn drop_cached(&self, range: &Range<u64>) -> io::Result<()> {
        Ok(fadvise(
            self.open()?,
            range.start,
            NonZeroU64::new(range.end - range.start),
            Advice::DontNeed,
        )?)
    }

    /// Share of a part that is in the cache, in thousandths.
    pub fn cached_permille(&self, range: &Range<u64>) -> io::Result<u64> {
        cached_permille(&self.open()?, range)
    }
}

/// Share of a part of a file that is in the cache, in thousandths, by sampling: a read that must
/// not block (`RWF_NOWAIT`) finds only cached pages.
pub fn cached_permille(file: &File, range: &Range<u64>) -> io::Result<u64> {
    // A sample must not trigger readahead.
    fadvise(file, 0, None, Advice::Random)?;
    let (mut there, mut byte) = (0, [0]);
    for sample in 0..SAMPLES {
        let at = range.start + (range.end - range.start) / SAMPLES * sample;
        // A hole is filled by reading it, and is not needed in the cache. The descriptor is not
        // shared with the program: no position of the program changes.
        if !matches!(seek(file, SeekFrom::Data(at)), Ok(data) if data == at) {
            continue;
        }
        match preadv2(file, &mut [io::IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT) {
            Ok(got) => there += got as u64,
            Err(Errno::AGAIN) => {}
            // Some file systems do not support this: counted as cached, so that it is left alone.
            Err(_) => there += 1,
        }
    }
    Ok(there * 1000 / SAMPLES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsRawFd;

    const MIB: u64 = 1 << 20;

    #[test]
    fn each_file_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let said = || obstacle_below(dir.path());
        assert!(said().unwrap().contains("/1/fd: No such file"));
        fs::create_dir_all(dir.path().join("1/fd")).unwrap();
        assert!(said().unwrap().contains("/1/io: No such file"));
        fs::write(dir.path().join("1/io"), "rchar: 1\n").unwrap();
        assert_eq!(said(), None);
    }

    #[test]
    fn positions_flags_and_counters_are_read() {
        assert_eq!(
            parse_fdinfo("pos:\t4096\nflags:\t0140000\nmnt_id:\t21\n"),
            Some((4096, 0o140_000))
        );
        assert_eq!(parse_fdinfo("flags:\t02\n"), None);
        assert_eq!(parse_moved("rchar: 5\nwchar: 7\nread_bytes: 99\n"), Some(12));
        assert_eq!(parse_moved("rchar: 5\n"), None);
    }

    #[test]
    fn open_file_position_is_found_and_ranges_dropped() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut file = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(dir.path().join("stream"))
            .unwrap();
        file.write_all(&vec![7; 8 << 20]).unwrap();
        file.sync_all().unwrap();
        file.seek(std::io::SeekFrom::Start(0)).unwrap();
        let mut some = vec![0; 4 << 20];
        file.read_exact(&mut some).unwrap();
        let pid = std::process::id();
        let files = open_files(pid, 8 * MIB);
        let found = files.iter().find(|found| found.fd == file.as_raw_fd() as u32).unwrap();
        assert_eq!(
            (found.position, found.size, found.position_now()),
            (4 * MIB, 8 * MIB, Some(4 * MIB))
        );
        assert!(found.name.ends_with("stream"));
        assert!(open_files(pid, 9 * MIB).iter().all(|other| other.id != found.id));
        assert!(
            moved_bytes(pid).unwrap() >= 12 * MIB && movers().iter().any(|mover| mover.0 == pid)
        );
        found.drop_cached(&(0..4 * MIB)).unwrap();
        let control = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(dir.path().join("control"))
            .unwrap();
        rustix::io::write(&control, &some).unwrap();
        control.sync_all().unwrap();
        fadvise(&control, 0, None, Advice::DontNeed).unwrap();
        if cached_permille(&control, &(0..4 * MIB)).unwrap() > 0 {
            hiroma_testkit::skip!(
                Machine,
                "the file system of /var/tmp does not say what is cached, or keeps it"
            );
        } else {
            assert_eq!(found.cached_permille(&(0..4 * MIB)).unwrap(), 0);
        }
        let gone = OpenFile { id: (0, 0), ..found.clone() };
        assert!(gone.position_now().is_none() && gone.drop_cached(&(0..1)).is_err());
    }
}
