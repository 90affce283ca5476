//! One page of managed memory, or some of its lines, with the expected content. All raw accesses
//! are in this module.
//!
//! Contract: a page is in the arena and mapped readable and writable whenever one of these
//! functions accesses it, and the lines that a thread passes are its own: no other thread writes
//! them meanwhile.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::words::{LINE, LINE_WORDS, PAGE_LINES, diagnose, word};

/// A page, and the versions of its lines.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    pub addr: usize,
    /// Number of its first word, which is unchanged when the page moves.
    pub index: u64,
    pub versions: &'a [AtomicU32],
}

/// A word that differs from what was written.
pub struct Wrong {
    pub addr: usize,
    pub expected: u64,
    pub found: u64,
    pub what: String,
}

impl Page<'_> {
    pub fn version(&self, line: usize) -> u32 {
        self.versions[line].load(Ordering::Relaxed)
    }

    fn word(&self, at: usize) -> u64 {
        word(self.index + at as u64, self.version(at / LINE_WORDS))
    }

    /// Writes `version` to `lines`.
    pub fn write(&self, lines: Range<usize>, version: u32) {
        for line in lines {
            self.versions[line].store(version, Ordering::Relaxed);
            for at in line * LINE_WORDS..(line + 1) * LINE_WORDS {
                let place = (self.addr + at * 8) as *mut u64;
                // SAFETY: see the contract.
                unsafe { place.write_volatile(self.word(at)) };
            }
        }
    }

    /// Reads a word, whatever it is.
    pub fn touch(&self) {
        // SAFETY: see the contract.
        unsafe { (self.addr as *const u64).read_volatile() };
    }

    /// Writes a wrong word (for the canary).
    pub fn spoil(&self, at: usize, word: u64) {
        let place = (self.addr + at * 8) as *mut u64;
        // SAFETY: see the contract; the canary has stopped all other threads.
        unsafe { place.write_volatile(word) };
    }

    /// Compares `lines` with their expected content.
    pub fn verify(&self, lines: Range<usize>) -> Result<(), Wrong> {
        (lines.start * LINE_WORDS..lines.end * LINE_WORDS).try_for_each(|at| {
            let place = (self.addr + at * 8) as *const u64;
            // SAFETY: see the contract.
            let found = unsafe { place.read_volatile() };
            if found == self.word(at) { Ok(()) } else { Err(self.wrong(at, found)) }
        })
    }

    /// Describes the wrong word `found` at word `at` of the page.
    pub fn wrong(&self, at: usize, found: u64) -> Wrong {
        let what = diagnose(found, self.index + at as u64, self.version(at / LINE_WORDS));
        Wrong { addr: self.addr + at * 8, expected: self.word(at), found, what }
    }

    /// Sets zeros as the expected content of the page.
    pub fn expect_zeros(&self) {
        self.versions.iter().for_each(|version| version.store(0, Ordering::Relaxed));
    }

    /// The expected bytes of `lines`.
    pub fn expected(&self, lines: Range<usize>) -> Vec<u8> {
        (lines.start * LINE_WORDS..lines.end * LINE_WORDS)
            .flat_map(|at| self.word(at).to_ne_bytes())
            .collect()
    }

    /// Sets the expected content of `lines` without writing it: another writer will.
    pub fn expect(&self, lines: Range<usize>, version: u32) {
        lines.for_each(|line| self.versions[line].store(version, Ordering::Relaxed));
    }

    /// A picture of the whole page for the report: one letter per line (`.` correct, `0` zeros, `X`
    /// wrong).
    pub fn picture(&self) -> String {
        let letter = |line: usize| match self.verify(line..line + 1) {
            Ok(()) => '.',
            Err(wrong) if wrong.found == 0 => '0',
            Err(_) => 'X',
        };
        (0..PAGE_LINES).map(letter).collect()
    }

    /// Address and length of `lines`.
    pub fn span(&self, lines: &Range<usize>) -> (usize, usize) {
        (self.addr + lines.start * LINE, lines.len() * LINE)
    }
}

/// Writes managed memory to a descriptor, at `offset` if given.
pub fn write_out(fd: i32, addr: usize, len: usize, offset: Option<i64>) -> isize {
    // SAFETY: see the contract; the kernel only reads.
    unsafe {
        match offset {
            Some(offset) => libc::pwrite(fd, ptr::without_provenance(addr), len, offset),
            None => libc::write(fd, ptr::without_provenance(addr), len),
        }
    }
}

/// Reads from a descriptor into managed memory.
pub fn read_in(fd: i32, addr: usize, len: usize, offset: Option<i64>) -> isize {
    // SAFETY: see the contract; the lines are the caller's.
    unsafe {
        match offset {
            Some(offset) => libc::pread(fd, addr as *mut libc::c_void, len, offset),
            None => libc::read(fd, addr as *mut libc::c_void, len),
        }
    }
}

/// Waits for a word of managed memory to change from `value`, 20 us at most. Returns the error
/// number.
pub fn futex_wait(addr: usize, value: u32) -> i32 {
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
    // SAFETY: the kernel reads the word and the timeout.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            addr,
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            &raw const timeout,
            0,
            0,
        )
    };
    if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
}

/// Forks; returns 0 in the child.
pub fn fork() -> i32 {
    // SAFETY: the child continues with this thread alone, and takes no lock that another thread may
    // have had.
    unsafe { libc::fork() }
}

/// Ends the process immediately.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// Writes a message without taking any lock.
pub fn say(text: &str) {
    let text = format!("{text}\n");
    // SAFETY: the bytes are valid during the call.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// The exit status of a child; `None` if it has not ended.
pub fn reap(pid: i32, wait: bool) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is valid during the call.
    let done = unsafe { libc::waitpid(pid, &raw mut status, if wait { 0 } else { libc::WNOHANG }) };
    (done == pid).then_some(status)
}

/// Kills a child of ours.
pub fn kill(pid: i32) {
    // SAFETY: `pid` is a child that was not reaped yet.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// An in-memory file.
pub fn memory_file() -> i32 {
    // SAFETY: the name is a C string.
    unsafe { libc::memfd_create(c"checker".as_ptr(), libc::MFD_CLOEXEC) }
}

/// A pipe: the read end, the write end.
pub fn pipe() -> [i32; 2] {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    let result = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(result, 0, "pipe2");
    ends
}
