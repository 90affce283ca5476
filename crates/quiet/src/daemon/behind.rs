//! Drops the cache behind streams, file by file: where the kernel accepts no reclaim requests, or
//! reclaim yields no blocks of the size that is short.

use std::collections::BTreeMap;

use hiroma_policy::reclaim::Stream;
use hiroma_sys::quiet::files::{OpenFile, movers, open_files};

/// Programs come and go: streaming processes are searched at this interval. Checking all processes
/// takes milliseconds.
const FIND_NS: u64 = 1_000_000_000;
/// The first searches follow sooner: only the second one shows how much each process moves.
const FIND_FIRST_NS: u64 = 250_000_000;
/// The files of a process that moves less per second are not checked.
const MOVED_BYTES_S_MIN: u64 = 16 << 20;
/// Number of processes, those that move most, whose files are checked.
const PROCESSES_MAX: usize = 8;
const FILES_MAX: usize = 32;
/// Streams are followed for this long after they were last wanted: a stream that pauses, because of
/// its device or its rate, continues soon.
const REST_NS: u64 = 10_000_000_000;
/// Smaller files are not treated as streams.
const SIZE_MIN: u64 = 64 << 20;
/// A range ahead of a stream, beyond the kernel's read-ahead: if more than half of it is cached,
/// the file was cached before the stream, and a program needs it.
const AHEAD_BYTES: std::ops::Range<u64> = 32 << 20..96 << 20;

/// The streams that are followed.
#[derive(Debug, Default)]
pub(super) struct Behind {
    wanted_ns: Option<u64>,
    found_ns: Option<u64>,
    searches: u32,
    moved: BTreeMap<u32, u64>,
    followed: Vec<Followed>,
    /// Dropped from all streams so far, as far as it was cached.
    dropped_bytes: u64,
}

#[derive(Debug)]
struct Followed {
    file: OpenFile,
    stream: Stream,
    /// The end of the dropped part.
    end: u64,
    moved: u64,
    /// Already reported.
    told: bool,
}

impl Behind {
    /// Drops what can be dropped now, if that is or recently was `wanted`. Returns a line for each
    /// file that is dropped from for the first time.
    pub(super) fn step(&mut self, now_ns: u64, wanted: bool) -> Vec<String> {
        if wanted {
            self.wanted_ns = Some(now_ns);
        }
        if self.wanted_ns.is_none_or(|last| now_ns.saturating_sub(last) >= REST_NS) {
            *self = Behind { dropped_bytes: self.dropped_bytes, ..Behind::default() };
            return Vec::new();
        }
        let find_ns = if self.searches < 2 { FIND_FIRST_NS } else { FIND_NS };
        if self.found_ns.is_none_or(|last| now_ns.saturating_sub(last) >= find_ns) {
            self.find(now_ns);
        }
        let mut lines = Vec::new();
        self.followed.retain_mut(|followed| {
            let Some(position) = followed.file.position_now() else { return false };
            let Some(moved) = hiroma_sys::quiet::files::moved_bytes(followed.file.pid) else {
                return false;
            };
            let range = followed.stream.look(position, moved.saturating_sub(followed.moved));
            followed.moved = moved;
            let dropped = range.map(|range| {
                followed.file.drop_cached(&range)?;
                // Parts are dropped more than once, but count once.
                self.dropped_bytes += range.end.saturating_sub(range.start.max(followed.end));
                followed.end = followed.end.max(range.end);
                Ok::<(), std::io::Error>(())
            });
            if matches!(dropped, Some(Ok(()))) && !followed.told {
                followed.told = true;
                let OpenFile { name, pid, .. } = &followed.file;
                lines
                    .push(format!("dropping what is behind in {} (process {pid})", name.display()));
            }
            !matches!(dropped, Some(Err(_)))
        });
        lines
    }

    /// Bytes that were dropped since the start.
    pub(super) fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// Finds the processes that move most, and their open files.
    fn find(&mut self, now_ns: u64) {
        self.searches = self.searches.saturating_add(1);
        let passed_ns = self.found_ns.map(|last| (now_ns - last).max(1));
        let now: BTreeMap<u32, u64> =
            movers().into_iter().filter(|mover| mover.0 != std::process::id()).collect();
        let before = std::mem::replace(&mut self.moved, now);
        self.found_ns = Some(now_ns);
        let Some(passed_ns) = passed_ns else { return };
        let grown = |(pid, moved): (&u32, &u64)| {
            let bytes = moved.saturating_sub(*before.get(pid)?);
            let bytes_s = u128::from(bytes) * 1_000_000_000 / u128::from(passed_ns);
            (bytes_s >= u128::from(MOVED_BYTES_S_MIN)).then_some((bytes, *pid))
        };
        let mut busiest: Vec<(u64, u32)> = self.moved.iter().filter_map(grown).collect();
        busiest.sort_unstable_by_key(|mover| std::cmp::Reverse(*mover));
        for (_, pid) in busiest.into_iter().take(PROCESSES_MAX) {
            for file in open_files(pid, SIZE_MIN) {
                let known = self.followed.iter().any(|followed| {
                    (followed.file.pid, followed.file.fd, followed.file.id)
                        == (pid, file.fd, file.id)
                });
                if !known && self.followed.len() < FILES_MAX && !was_cached(&file) {
                    let moved = self.moved.get(&pid).copied().unwrap_or(0);
                    self.followed.push(Followed {
                        stream: Stream::new(file.position),
                        end: file.position,
                        file,
                        moved,
                        told: false,
                    });
                }
            }
        }
    }
}

/// Whether a program needed the file before this stream: it is cached where the stream has not
/// been.
fn was_cached(file: &OpenFile) -> bool {
    let ahead = file.position.saturating_add(AHEAD_BYTES.start)
        ..file.position.saturating_add(AHEAD_BYTES.end).min(file.size);
    // At the end of the file there is nothing ahead: it is being written, or is nearly read.
    ahead.start < ahead.end && file.cached_permille(&ahead).map_or(true, |cached| cached > 500)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    use hiroma_sys::quiet::files::cached_permille;

    const MIB: u64 = 1 << 20;

    /// Whether this file system reports what is cached, and drops it on request.
    fn can_tell(dir: &std::path::Path) -> bool {
        let mut file = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(dir.join("control"))
            .unwrap();
        file.write_all(&vec![7; 8 * MIB as usize]).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let can = cached_permille(&file, &(0..8 * MIB)).unwrap() == 0;
        if !can {
            hiroma_testkit::skip!(
                Machine,
                "the file system of /var/tmp does not say what is cached, or keeps it"
            );
        }
        can
    }

    /// Waits until the range is dropped: a page may be in use for a moment when it is dropped.
    fn goes(followed: &Followed, range: std::ops::Range<u64>) {
        let began = std::time::Instant::now();
        while followed.file.cached_permille(&range).unwrap() > 0 {
            assert!(began.elapsed() < std::time::Duration::from_secs(60), "{followed:?} stays");
            followed.file.drop_cached(&range).unwrap();
        }
    }

    /// A stream in a process of its own that continues only on request, so that every observation
    /// finds it where it should be.
    struct Reader {
        child: std::process::Child,
    }

    impl Reader {
        /// A shell that reads or writes the next 16 MiB for each line on its input.
        fn start(path: &std::path::Path, output: bool) -> Reader {
            let script = if output {
                "exec 3>\"$1\"; while read -r go; do head -c 16777216 /dev/zero >&3; echo done; done"
            } else {
                "exec 3<\"$1\"; while read -r go; do dd bs=1048576 count=16 <&3 >/dev/null 2>&1; echo done; done"
            };
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script, "sh"]).arg(path);
            let child = command
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            Reader { child }
        }

        fn go(&mut self) {
            self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
            let mut answer = [0; 5];
            self.child.stdout.as_mut().unwrap().read_exact(&mut answer).unwrap();
        }
    }

    impl Drop for Reader {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn follow(reader: &Reader, size_min: u64) -> Followed {
        let file =
            open_files(reader.child.id(), size_min).into_iter().find(|file| file.fd == 3).unwrap();
        Followed {
            stream: Stream::new(file.position),
            end: file.position,
            file,
            moved: 0,
            told: false,
        }
    }

    /// What the children of the shell move is not counted for the shell: here anything counts as
    /// moved.
    fn look(followed: &mut Followed) -> Option<std::ops::Range<u64>> {
        let range = followed.stream.look(followed.file.position_now().unwrap(), u64::MAX);
        range.inspect(|range| followed.file.drop_cached(range).unwrap())
    }

    #[test]
    fn pages_behind_a_reading_stream_are_dropped() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        if !can_tell(dir.path()) {
            return;
        }
        std::fs::write(&path, vec![7; 96 * MIB as usize]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let mut reader = Reader::start(&path, false);
        reader.go();
        let mut followed = follow(&reader, SIZE_MIN);
        for step in 0..3 {
            reader.go();
            // From the position at which it was first seen.
            assert_eq!(look(&mut followed), Some(16 * MIB..(24 + 16 * step) * MIB));
        }
        goes(&followed, 16 * MIB..56 * MIB);
    }

    #[test]
    fn written_pages_are_dropped_after_write_back() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        if !can_tell(dir.path()) {
            return;
        }
        let mut reader = Reader::start(&path, true);
        reader.go();
        let mut followed = follow(&reader, MIB);
        for step in 0..4 {
            reader.go();
            assert_eq!(look(&mut followed), Some(16 * MIB..(24 + 16 * step) * MIB));
        }
        // The first call started the write-out; now it has completed.
        File::open(&path).unwrap().sync_all().unwrap();
        goes(&followed, 16 * MIB..72 * MIB);
    }

    #[test]
    fn exited_process_is_forgotten() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        File::create(&path).unwrap().set_len(96 * MIB).unwrap();
        let mut reader = Reader::start(&path, false);
        reader.go();
        let mut behind = Behind {
            followed: vec![follow(&reader, SIZE_MIN)],
            found_ns: Some(0),
            ..Behind::default()
        };
        assert!(behind.step(1, true).is_empty());
        assert_eq!(behind.followed.len(), 1);
        drop(reader);
        behind.step(2, false);
        assert!(behind.followed.is_empty());
        behind.step(2 + REST_NS, false);
        assert!(behind.wanted_ns.is_none());
    }
}
