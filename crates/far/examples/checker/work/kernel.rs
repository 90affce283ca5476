//! Operations in which the kernel accesses the memory: files, pipes, futexes.

use std::sync::atomic::Ordering;

use super::Worker;
use crate::page;
use crate::words::{LINE, LINE_WORDS, PAGE_LINES, word};

impl Worker<'_> {
    pub(super) fn through_file(&mut self) {
        let (page, lines) = (self.some_page(), self.some_range());
        let (addr, len) = page.span(&lines);
        let mut local = vec![0u8; len];
        let offset = self.random.below(10_000) as i64;
        if self.random.once_in(2) {
            self.moved("pwrite", addr, page::write_out(self.file, addr, len, Some(offset)), len);
            self.moved(
                "pread",
                0,
                page::read_in(self.file, local.as_mut_ptr() as usize, len, Some(offset)),
                len,
            );
            self.compare(&page, &lines, &local);
        } else {
            let version = self.next_version();
            page.expect(lines.clone(), version);
            let bytes = page.expected(lines.clone());
            self.moved(
                "pwrite",
                0,
                page::write_out(self.file, bytes.as_ptr() as usize, len, Some(offset)),
                len,
            );
            self.moved("pread", addr, page::read_in(self.file, addr, len, Some(offset)), len);
            self.check_sometimes(&page);
        }
    }

    pub(super) fn through_pipe(&mut self) {
        let (page, lines) = (self.some_page(), self.some_range());
        let (addr, len) = page.span(&lines);
        let mut local = vec![0u8; len];
        if self.random.once_in(2) {
            self.moved("write", addr, page::write_out(self.pipe[1], addr, len, None), len);
            self.moved(
                "read",
                0,
                page::read_in(self.pipe[0], local.as_mut_ptr() as usize, len, None),
                len,
            );
            self.compare(&page, &lines, &local);
        } else {
            let version = self.next_version();
            page.expect(lines.clone(), version);
            let bytes = page.expected(lines.clone());
            self.moved(
                "write",
                0,
                page::write_out(self.pipe[1], bytes.as_ptr() as usize, len, None),
                len,
            );
            self.moved("read", addr, page::read_in(self.pipe[0], addr, len, None), len);
            self.check_sometimes(&page);
        }
    }

    /// The kernel compares a word with its expected value, and with a wrong one.
    pub(super) fn futex(&mut self) {
        let page = self.some_page();
        let line = self.random.below(PAGE_LINES);
        let word = word(
            page.index + (line * LINE_WORDS) as u64,
            page.versions[line].load(Ordering::Relaxed),
        ) as u32;
        let addr = page.addr + line * LINE;
        for (value, allowed) in
            [(word, [libc::ETIMEDOUT, libc::EINTR]), (word ^ 1, [libc::EAGAIN, libc::EAGAIN])]
        {
            let errno = page::futex_wait(addr, value);
            if !allowed.contains(&errno) {
                self.check(&page, page.verify(line..line + 1));
                self.checker.fail(&self.name(), &format!("futex at {addr:#x}, value {value:#x} where {word:#x} should be: error {errno}"));
            }
        }
    }
}
