//! Processes and files for the tests of userfaultfd.

use std::fs::File;
use std::io::Read;

use super::*;

/// Runs `work` in a forked child, which ends with the code that it returns.
pub fn fork(work: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child uses what was passed to it and ends; it never returns into the test
    // harness.
    match unsafe { libc::fork() } {
        0 => {
            let code = work();
            // SAFETY: ends the child without running code that belongs to its parent.
            unsafe { libc::_exit(code) }
        }
        pid => pid,
    }
}

pub fn exit_code(pid: libc::pid_t) -> i32 {
    assert!(pid > 0, "{}", io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for a child of this test.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
}

/// A child that does nothing but share our pages until it is told to end.
pub struct Forked {
    pid: libc::pid_t,
    life: File,
}

impl Forked {
    pub fn waiting() -> Forked {
        let (mut end, life) = pipe();
        let pid = fork(|| {
            // SAFETY: the child's copy of its parent's end.
            unsafe { libc::close(life.as_raw_fd()) };
            let _ = end.read(&mut [0]);
            0
        });
        Forked { pid, life }
    }

    pub fn ends(self) {
        drop(self.life);
        assert_eq!(exit_code(self.pid), 0);
    }
}

pub fn pipe() -> (File, File) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (read.into(), write.into())
}

/// A file of one page without a name; None if all files are in memory, which can be registered like
/// memory.
pub fn tempfile() -> Option<File> {
    const TMPFS: i64 = 0x0102_1994;
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("uffd-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(PAGE as u64).unwrap();
    if rustix::fs::fstatfs(&file).unwrap().f_type == TMPFS {
        hiroma_testkit::skip!(Machine, "files, because the directory of the build is in memory");
        return None;
    }
    Some(file)
}

pub fn map_file(file: &File) -> usize {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    // SAFETY: a new mapping at an address of the kernel's choice.
    let addr = unsafe {
        mmap(
            std::ptr::null_mut(),
            PAGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            0,
        )
    };
    let addr = addr.unwrap() as usize;
    vm::fill(addr, PAGE, WORD);
    addr
}

pub fn unmap(addr: usize) {
    // SAFETY: made by `map_file`; there are no references to it.
    unsafe { rustix::mm::munmap(addr as *mut _, PAGE).unwrap() };
}
