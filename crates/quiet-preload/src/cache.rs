//! Finds out what is cached of a file, and drops it.

use std::ffi::c_int;
use std::ops::Range;

use crate::stream::{CachedBlocks, WINDOW};
use crate::sys;

/// Maximum amount of written data behind a stream that may await write-back; beyond it the stream
/// waits.
pub const BEHIND: u64 = 256 << 20;
/// How often, and for how many times at most, a stream asks whether a window of its data was
/// written back. A device that takes longer holds the stream up again with its next window.
const PAUSE_NS: u32 = 2_000_000;
const PAUSES_MAX: u32 = 1000;

/// Finds where the file has pages in the cache. None if more than half of it is cached, or if that
/// cannot be determined; the file is then left alone.
pub fn look(fd: c_int, size: u64) -> Option<CachedBlocks> {
    let cached = sys::cached_pages(fd, 0, size.max(1))?;
    if cached.saturating_mul(4096) > size / 2 && size > 0 {
        return None;
    }
    if cached == 0 {
        return Some(CachedBlocks::none());
    }
    Some(CachedBlocks::look(size, |range| {
        sys::cached_pages(fd, range.start, range.end - range.start) != Some(0)
    }))
}

/// Drops the cache behind a reading stream.
pub fn drop_read(fd: c_int, kept: &CachedBlocks, range: Range<u64>) {
    kept.others(range, |part| sys::drop_cached(fd, part.start, part.end - part.start));
}

/// The kernel's cache of a file; of a model in tests.
trait Cache {
    fn start_write_back(&self, range: Range<u64>);
    /// Pages that were not written back yet; none if that is not known.
    fn unwritten(&self, range: Range<u64>) -> Option<u64>;
    fn pause(&self);
    fn drop(&self, range: Range<u64>);
}

struct Kernel(c_int);

impl Cache for Kernel {
    fn start_write_back(&self, range: Range<u64>) {
        sys::start_write_back(self.0, range.start, range.end - range.start);
    }

    fn unwritten(&self, range: Range<u64>) -> Option<u64> {
        sys::unwritten_pages(self.0, range.start, range.end - range.start)
    }

    fn pause(&self) {
        sys::pause(PAUSE_NS);
    }

    fn drop(&self, range: Range<u64>) {
        sys::drop_cached(self.0, range.start, range.end - range.start);
    }
}

/// Starts write-back of written data, and drops what has been written back. Returns the offset up
/// to which nothing is left behind.
pub fn drop_written(fd: c_int, kept: &CachedBlocks, written: Range<u64>, from: u64) -> u64 {
    drop_written_of(&Kernel(fd), kept, written, from)
}

fn drop_written_of(cache: &impl Cache, kept: &CachedBlocks, written: Range<u64>, from: u64) -> u64 {
    cache.start_write_back(written.clone());
    // After a jump nothing is in between.
    let near = from <= written.start && written.start - from <= 2 * BEHIND;
    let mut from = if near { from } else { written.start };
    let drop_part = |range| kept.others(range, |part| cache.drop(part));
    if written.end.saturating_sub(from) > BEHIND {
        // The kernel throttles a program that dirties too much memory in the same way; here it
        // happens before it affects all others.
        let until = written.end - BEHIND;
        let is_written = wait_until_written(cache, from..until);
        drop_part(from..until);
        if is_written {
            from = until;
        }
    }
    // Also drop what has been written back already.
    drop_part(from..written.start);
    from
}

/// Waits until the range was written back, for a limited time. Returns whether it was, or whether
/// nothing is known.
fn wait_until_written(cache: &impl Cache, range: Range<u64>) -> bool {
    // Pages that were being written before, and have been changed since, need another start.
    cache.start_write_back(range.clone());
    let windows = (range.end - range.start).div_ceil(WINDOW).max(1) as u32;
    for _ in 0..PAUSES_MAX.saturating_mul(windows) {
        if cache.unwritten(range.clone()).is_none_or(|pages| pages == 0) {
            return true;
        }
        cache.pause();
        cache.start_write_back(range.clone());
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::process::Command;

    /// A device that needs this many pauses until it has written all; what is done to it.
    #[derive(Default)]
    struct Model {
        pauses: Cell<u32>,
        paused: Cell<u32>,
        dropped: RefCell<Vec<Range<u64>>>,
        started: RefCell<Vec<Range<u64>>>,
    }

    impl Cache for Model {
        fn start_write_back(&self, range: Range<u64>) {
            self.started.borrow_mut().push(range);
        }

        fn unwritten(&self, range: Range<u64>) -> Option<u64> {
            Some(if self.paused.get() < self.pauses.get() { range.end - range.start } else { 0 })
        }

        fn pause(&self) {
            self.paused.set(self.paused.get() + 1);
        }

        fn drop(&self, range: Range<u64>) {
            self.dropped.borrow_mut().push(range);
        }
    }

    #[test]
    fn stream_waits_for_the_device_but_not_for_ever() {
        let written = BEHIND..BEHIND + WINDOW;
        for (pauses, paused, from) in [(0, 0, WINDOW), (3, 3, WINDOW), (9999, PAUSES_MAX, 0)] {
            let model = Model { pauses: Cell::new(pauses), ..Model::default() };
            assert_eq!(
                drop_written_of(&model, &CachedBlocks::none(), written.clone(), 0),
                from,
                "{pauses}"
            );
            assert_eq!(model.paused.get(), paused);
            assert_eq!(model.started.borrow()[..2], [written.clone(), 0..WINDOW]);
            assert_eq!(model.dropped.borrow()[0], 0..WINDOW);
        }
        // Within the allowance nothing waits.
        let model = Model { pauses: Cell::new(9), ..Model::default() };
        drop_written_of(&model, &CachedBlocks::none(), WINDOW..2 * WINDOW, 0);
        assert_eq!(model.paused.get(), 0);
    }

    /// Set in the process that runs in its own mount namespace: a directory on a device that fails.
    const FAILING: &str = "HIROMA_QUIET_TEST_FAILING_DIR";

    /// A file system whose device is a file. Holes are made in that, and no room is left: data that
    /// is written over fails at write-back, metadata does not.
    const SCRIPT: &str = "set -e; cd \"$1\"; mkdir t m; mount -t tmpfs -o size=100m none t; \
        truncate -s 128M t/image; mkfs.ext4 -q -b 4096 -O ^has_journal t/image; \
        mount -o loop,noatime t/image m; dd if=/dev/zero of=m/file bs=1M count=48 status=none; \
        sync -f m; fallocate -p -o 16M -l 112M t/image; \
        dd if=/dev/zero of=t/full bs=64K status=none 2>/dev/null || true; code=0; \
        env HIROMA_QUIET_TEST_FAILING_DIR=\"$1/m\" \"$2\" --exact \
        cache::tests::program_learns_of_lost_data || code=1; umount m; umount t; \
        [ $code = 0 ] || exit 9";

    #[test]
    fn program_learns_of_lost_data() {
        if let Some(dir) = std::env::var_os(FAILING) {
            return lose_data(Path::new(&dir));
        }
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", SCRIPT, "sh"]).arg(dir.path());
        let output = command.arg(std::env::current_exe().unwrap()).output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => {}
            Some(9) => panic!("{said}"),
            _ => hiroma_testkit::skip!(Machine, "no file system on a loop device here: {said}"),
        }
    }

    /// A stream over all of the file: `fsync` has to fail, once.
    fn lose_data(dir: &Path) {
        let mut file = File::options().write(true).open(dir.join("file")).unwrap();
        let fd = file.as_raw_fd();
        for _ in 0..48 {
            file.write_all(&vec![7; 1 << 20]).unwrap();
        }
        let all = 0..48 << 20;
        assert!(wait_until_written(&Kernel(fd), all.clone()));
        drop_written(fd, &CachedBlocks::none(), all, 0);
        assert!(file.sync_all().is_err(), "the program does not learn that data was lost");
        assert!(file.sync_all().is_ok(), "this file system reports more than lost data");
    }

    /// On a file system with a device: in a memory file system nothing can be dropped from the
    /// cache.
    fn file(bytes: usize) -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(dir.path().join("file"))
            .unwrap();
        file.write_all(&vec![7; bytes]).unwrap();
        file.sync_all().unwrap();
        (dir, file)
    }

    #[test]
    fn cached_file_is_kept_and_uncached_is_dropped() {
        let (_dir, file) = file(4 << 20);
        let fd = file.as_raw_fd();
        if sys::cached_pages(fd, 0, 1).is_none() {
            hiroma_testkit::skip!(Machine, "no cachestat (before Linux 6.5)");
            return;
        }
        assert!(look(fd, 4 << 20).is_none());
        drop_read(fd, &CachedBlocks::none(), 0..4 << 20);
        let left = sys::cached_pages(fd, 0, 4 << 20).unwrap();
        if left > 512 {
            hiroma_testkit::skip!(Machine, "this file system keeps what it is told to drop");
            return;
        }
        assert!(look(fd, 4 << 20).is_some());
    }
}
