//! System calls without libc, `errno`, the signal mask, and a lock.
//!
//! Contract: `call` is the `syscall` instruction and nothing else. It must not go through libc's
//! functions, because this library replaces those. Everything else here is safe to call from
//! anywhere, including signal handlers.
#![allow(unsafe_code)]

use std::arch::asm;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libc::c_long;

/// A call that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// Makes one system call. The caller is responsible for its effects on memory.
///
/// # Safety
/// The arguments must be valid for the call; memory that Rust holds references to must not change.
#[inline]
pub unsafe fn call(number: c_long, args: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel clobbers only rcx and r11; the caller is responsible for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
             in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; the kernel preserves all registers but x0.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] => result, in("x1") args[1], in("x2") args[2],
             in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack));
    }
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// `mmap`, directly to the kernel.
///
/// # Safety
/// With `MAP_FIXED` the range must not contain memory that anything but the caller uses.
pub unsafe fn mmap(
    addr: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Result<usize, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        call(
            libc::SYS_mmap,
            [addr, len, prot as usize, flags as usize, fd as usize, offset as usize],
        )
    }
}

/// `mprotect`, directly to the kernel.
///
/// # Safety
/// The range must belong to the caller.
pub unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { call(libc::SYS_mprotect, [addr, len, prot as usize, 0, 0, 0]).map(drop) }
}

/// `munmap`, directly to the kernel.
///
/// # Safety
/// The range must belong to the caller.
pub unsafe fn munmap(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { call(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]).map(drop) }
}

/// `madvise`, directly to the kernel.
///
/// # Safety
/// The range must belong to the caller.
pub unsafe fn madvise(addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { call(libc::SYS_madvise, [addr, len, advice as usize, 0, 0, 0]).map(drop) }
}

/// Copies the readable part of `len` bytes at `from` to `to`; returns the number of bytes copied.
///
/// The kernel does the reading, so unreadable memory ends the copy instead of the process.
///
/// # Safety
/// `to` must be writable for `len` bytes and not otherwise in use.
pub unsafe fn copy_readable(from: usize, to: usize, len: usize) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { copy_from(std::process::id() as usize, from, to, len) }.unwrap_or(0)
}

/// Whether memory can be read, as far as the kernel says: a program that hands a wrong address to a
/// system call gets `EFAULT`.
pub fn is_readable(from: usize, len: usize) -> bool {
    let mut copy = [0_u8; 256];
    let process = std::process::id() as usize;
    (0..len).step_by(copy.len()).all(|at| {
        let part = copy.len().min(len - at);
        // SAFETY: `copy` is ours.
        let copied =
            unsafe { copy_from(process, from.wrapping_add(at), copy.as_mut_ptr() as usize, part) };
        // A filter may forbid the call.
        copied == Ok(part) || copied.is_err_and(|Errno(errno)| errno != libc::EFAULT)
    })
}

/// As [`copy_readable`], from the memory of `process`.
///
/// # Safety
/// As there.
unsafe fn copy_from(process: usize, from: usize, to: usize, len: usize) -> Result<usize, Errno> {
    let local = libc::iovec { iov_base: to as *mut _, iov_len: len };
    let remote = libc::iovec { iov_base: from as *mut _, iov_len: len };
    let args = [process, &raw const local as usize, 1, &raw const remote as usize, 1, 0];
    // SAFETY: the kernel writes only to `to`, which the caller provides.
    unsafe { call(libc::SYS_process_vm_readv, args) }
}

/// A word in the memory of another process; `None`: it has ended, has none there, or may not be read.
pub fn word_in(process: usize, addr: usize) -> Option<u64> {
    let mut word = 0_u64;
    // SAFETY: `word` is ours.
    let copied = unsafe { copy_from(process, addr, &raw mut word as usize, size_of::<u64>()) };
    (copied == Ok(size_of::<u64>())).then_some(word)
}

/// The soft limit on a resource; `RLIM_INFINITY` if it is unknown.
pub fn limit(resource: usize) -> u64 {
    prlimit(0, resource, None).map_or(libc::RLIM_INFINITY, |limit| limit.rlim_cur)
}

/// Sets a limit, if one is given, and returns the previous one.
pub fn prlimit(
    pid: i32,
    resource: usize,
    new: Option<libc::rlimit>,
) -> Result<libc::rlimit, Errno> {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let given = new.as_ref().map_or(0, |new| ptr::from_ref(new) as usize);
    // SAFETY: both structures are on our stack.
    unsafe {
        call(libc::SYS_prlimit64, [pid as usize, resource, given, &raw mut old as usize, 0, 0])
    }
    .map(|_| old)
}

/// Whether a capability is effective in the calling thread.
pub fn is_capable(capability: u32) -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: the kernel reads the header and writes twice three words.
    let read = unsafe {
        call(libc::SYS_capget, [&raw const header as usize, &raw mut sets as usize, 0, 0, 0, 0])
    };
    read.is_ok() && sets[capability as usize / 32][0] & (1 << (capability % 32)) != 0
}

/// Id of the parent process, or of the process that adopted this one.
pub fn parent_process() -> u32 {
    // SAFETY: only returns a number.
    unsafe { call(libc::SYS_getppid, [0; 6]) }.unwrap_or(0) as u32
}

/// Leaves the current stack for another one, calls a function there, and ends the thread with what it
/// returns, as the C library's `clone` does.
///
/// # Safety
/// `stack` must be the end of a stack, aligned to 16; nothing on the current one may be needed.
pub unsafe fn end_on_stack(
    stack: usize,
    body: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> ! {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: guaranteed by the caller; what comes after the call needs no stack.
    unsafe {
        asm!("mov rsp, {stack}", "xor ebp, ebp", "call {body}", "mov edi, eax", "mov eax, {exit}", "syscall", "ud2",
             stack = in(reg) stack, body = in(reg) body, exit = const libc::SYS_exit, in("rdi") argument, options(noreturn));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!("mov sp, {stack}", "mov x29, xzr", "mov x30, xzr", "blr {body}", "mov x8, {exit}", "svc 0", "brk 1",
             stack = in(reg) stack, body = in(reg) body, exit = const libc::SYS_exit, in("x0") argument, options(noreturn));
    }
}

/// Address of the calling thread's control block.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of the block is its address.
    unsafe {
        asm!("mov {0}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly, pure));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        asm!("mrs {0}, tpidr_el0", out(reg) pointer, options(nostack, nomem, pure));
    }
    pointer
}

/// The calling thread's `errno`.
pub fn errno() -> i32 {
    // SAFETY: libc's pointer is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Blocks all signals in the calling thread and returns the previous mask.
pub fn block_signals() -> u64 {
    set_mask(u64::MAX)
}

/// Restores the mask that [`block_signals`] returned.
pub fn restore_signals(mask: u64) {
    set_mask(mask);
}

fn set_mask(mask: u64) -> u64 {
    let mut old = 0_u64;
    let args = [
        libc::SIG_SETMASK as usize,
        &raw const mask as usize,
        &raw mut old as usize,
        size_of::<u64>(),
        0,
        0,
    ];
    // SAFETY: both masks are on our stack and have the given length.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, args) };
    old
}

/// Writes one line to standard error, with a single call.
pub fn say(line: &str) {
    let text = format!("{line}\n");
    // SAFETY: reads from `text`.
    let _ = unsafe { call(libc::SYS_write, [2, text.as_ptr() as usize, text.len(), 0, 0, 0]) };
}

/// What standard error was when the process began: device and inode.
static STDERR: OnceLock<[u64; 2]> = OnceLock::new();

fn stderr_now() -> Option<[u64; 2]> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes one `stat`; all zeros is a valid one.
    unsafe {
        call(libc::SYS_fstat, [2, stat.as_mut_ptr() as usize, 0, 0, 0, 0]).ok()?;
        let stat = stat.assume_init();
        Some([stat.st_dev, stat.st_ino])
    }
}

/// Remembers what standard error is.
pub fn note_stderr() {
    if let Some(now) = stderr_now() {
        let _ = STDERR.set(now);
    }
}

/// As [`say`], in the middle of the program's work: only if descriptor 2 is still what it was at its
/// start, and if that takes a line now. Returns whether it was said.
pub fn say_later(line: &str) -> bool {
    let mut ask = libc::pollfd { fd: 2, events: libc::POLLOUT, revents: 0 };
    let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one `pollfd`, and a time that is only read.
    let ready = unsafe {
        call(libc::SYS_ppoll, [&raw mut ask as usize, 1, &raw const no_time as usize, 0, 0, 0])
    };
    let takes = ready == Ok(1) && ask.revents == libc::POLLOUT;
    let says = takes && STDERR.get().is_some_and(|then| stderr_now() == Some(*then));
    if says {
        say(line);
    }
    says
}

/// Ends the process immediately, without exit handlers.
pub fn exit_now(code: i32) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { call(libc::SYS_exit_group, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

/// How often a waiting thread checks whether the program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// No thread of the pager holds a lock for so long.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// A lock that can be held across `fork`, works before libc does, and allocates nothing.
pub struct Lock<T> {
    /// 0 free, 1 held, 2 held with waiters.
    state: AtomicU32,
    /// Held across a fork, by a thread of the program.
    is_kept: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder of the lock accesses the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Access to the value of a [`Lock`] that is held.
pub struct Held<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            state: AtomicU32::new(0),
            is_kept: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the lock is free, and takes it.
    pub fn lock(&self) -> Held<'_, T> {
        if self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            let mut since = None;
            while self.state.swap(2, Ordering::Acquire) != 0 {
                self.futex(libc::FUTEX_WAIT, 2, LOOK_EVERY);
                self.mind_the_dead(*since.get_or_insert_with(Instant::now));
            }
        }
        Held(self)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        let taken = self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| Held(self))
    }

    /// In the pager, which outlives the program: a thread of the program that was killed with this
    /// lock releases it no more. Across a fork it was held without a change to the value; else the
    /// value may be half changed.
    fn mind_the_dead(&self, since: Instant) {
        if since.elapsed() < LOOK_EVERY || !hiroma_far::hooks::has_program_ended() {
            return;
        }
        // Several threads may wait; one of them takes its place.
        if self.is_kept.swap(false, Ordering::Relaxed) {
            self.release();
        } else if since.elapsed() > DEAD_AFTER {
            exit_now(0);
        }
    }

    /// Takes the lock and holds it until [`Lock::release`].
    pub fn hold(&self) {
        std::mem::forget(self.lock());
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Releases a lock that the calling thread (or, after a fork, its parent) took with
    /// [`Lock::hold`].
    pub fn release(&self) {
        self.is_kept.store(false, Ordering::Relaxed);
        if self.state.swap(0, Ordering::Release) == 2 {
            self.futex(libc::FUTEX_WAKE, 1, Duration::ZERO);
        }
    }

    fn futex(&self, operation: i32, value: usize, timeout: Duration) {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let operation = (operation | libc::FUTEX_PRIVATE_FLAG) as usize;
        // SAFETY: the word lives as long as `self`. Early returns are harmless, because the caller
        // checks again.
        let _ = unsafe {
            call(
                libc::SYS_futex,
                [
                    ptr::from_ref(&self.state) as usize,
                    operation,
                    value,
                    &raw const timeout as usize,
                    0,
                    0,
                ],
            )
        };
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock, and `self` is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Sizes in bytes of the process's address space, and of its writable private part. `None`: `/proc`
/// cannot be read. Other threads of the program can see the descriptor: only for its start, and for
/// programs that limit themselves.
pub fn memory() -> Option<[usize; 2]> {
    let mut text = [0_u8; 128];
    let name = c"/proc/self/statm".as_ptr() as usize;
    // SAFETY: the kernel writes to our buffer; the descriptor is this function's own.
    let got = unsafe {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let fd = call(libc::SYS_openat, [libc::AT_FDCWD as usize, name, flags, 0, 0, 0]).ok()?;
        let got = call(libc::SYS_read, [fd, text.as_mut_ptr() as usize, text.len(), 0, 0, 0]);
        let _ = call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        got.ok()?
    };
    let text = std::str::from_utf8(&text[..got]).ok()?;
    let mut fields = [0; 6];
    for (field, pages) in fields.iter_mut().zip(text.split_ascii_whitespace()) {
        *field = pages.parse::<usize>().ok()? * hiroma_units::PAGE;
    }
    let [size, _, _, _, _, data] = fields;
    Some([size, data])
}

/// Bytes of a range that are in memory.
pub fn resident_bytes(range: std::ops::Range<usize>) -> usize {
    let mut pages = 0;
    // Small: any call of `malloc` may come here, also one that has little stack left.
    let mut seen = [0_u8; 256];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(seen.len() * hiroma_units::PAGE);
        let args = [at, len, seen.as_mut_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel writes a byte for each page to our buffer, which is large enough.
        if unsafe { call(libc::SYS_mincore, args) }.is_ok() {
            let count = len / hiroma_units::PAGE;
            pages += seen[..count].iter().filter(|page| **page & 1 == 1).count();
        }
        at += len;
    }
    pages * hiroma_units::PAGE
}

/// Sleeps for a moment.
pub fn nap() {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    // SAFETY: reads our own variable.
    let _ = unsafe { call(libc::SYS_nanosleep, [&raw const moment as usize, 0, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_refused_call_gives_the_error_number() {
        // SAFETY: the kernel refuses a length of zero.
        assert_eq!(unsafe { munmap(0, 0) }, Err(Errno(libc::EINVAL)));
    }

    #[test]
    fn lock_admits_one_thread_at_a_time() {
        let counter = Arc::new(Lock::new(0_u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let counter = counter.clone();
                thread::spawn(move || (0..50_000).for_each(|_| *counter.lock() += 1))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*counter.lock(), 200_000);
    }

    #[test]
    fn a_held_lock_is_free_after_its_release() {
        let lock = Lock::new(1);
        lock.hold();
        lock.release();
        *lock.lock() += 1;
        assert_eq!(*lock.lock(), 2);
    }

    #[test]
    fn copying_stops_where_memory_cannot_be_read() {
        // SAFETY: two new pages, of which the second is made unreadable; nothing else uses them.
        unsafe {
            let start = mmap(
                0,
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
            .unwrap();
            *(start as *mut u8) = 7;
            mprotect(start + 4096, 4096, libc::PROT_NONE).unwrap();
            let mut copy = vec![0_u8; 8192];
            assert_eq!(copy_readable(start, copy.as_mut_ptr() as usize, 8192), 4096);
            assert_eq!(copy[0], 7);
            munmap(start, 8192).unwrap();
        }
    }

    #[test]
    fn signals_are_blocked_and_put_back() {
        let before = block_signals();
        assert_ne!(block_signals() & (1 << (libc::SIGUSR1 - 1)), 0);
        restore_signals(before);
        assert_eq!(set_mask(before), before);
    }
}
