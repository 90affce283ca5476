//! Finds out what is cached of a file, and drops it.

use std::ffi::c_int;
use std::ops::Range;

use crate::stream::{CachedBlocks, WINDOW};
use crate::sys;

/// Maximum amount of written data behind a stream that may await write-back; beyond it the stream
/// waits.
pub const BEHIND: u64 = 256 << 20;

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

/// Starts write-back of written data, and drops what has been written back. Returns the offset up
/// to which nothing is left behind.
pub fn drop_written(fd: c_int, kept: &CachedBlocks, written: Range<u64>, from: u64) -> u64 {
    sys::write_back(fd, written.start, written.end - written.start, false);
    // After a jump nothing is in between.
    let near = from <= written.start && written.start - from <= BEHIND + 2 * WINDOW;
    let mut from = if near { from } else { written.start };
    if written.end.saturating_sub(from) > BEHIND {
        // The kernel throttles a program that dirties too much memory in the same way; here it
        // happens before it affects all others.
        let until = written.end - BEHIND;
        sys::write_back(fd, from, until - from, true);
        drop_read(fd, kept, from..until);
        from = until;
    }
    // Also drop what has been written back already.
    drop_read(fd, kept, from..written.start);
    from
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

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
