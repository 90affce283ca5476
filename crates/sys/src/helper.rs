//! Threads that share this process's memory but do not belong to the program: a separate process
//! beside it.
//!
//! `clone(2)` with `CLONE_VM` alone makes a process that has this address space, but its own thread
//! group, descriptors, signal handlers, credentials and system call filters. What the program does
//! to its descriptors, threads or rights does not affect it, and the program does not see it: not
//! in `/proc/PID/task`, not in `/proc/PID/fd`, not among its children (an intermediate process
//! makes it an orphan). More threads of the helper are made by [`spawn`], which clones within the
//! helper's thread group.
//!
//! Contract: code that runs here has a thread pointer with the C library's thread-local storage
//! (`_dl_allocate_tls`, which `pthread_create` uses too), but the C library does not know these
//! threads: neither `setuid`, nor `fork`, nor the last `pthread_exit` of the program counts them.
//! They have a thread id, so that they can hold its locks; but a lock that they hold while the
//! program forks is held for ever in the child. So they must not use anything of the C library that
//! shares state with the program: no `malloc` of glibc, no `pthread_create`, no stdio, no
//! `getaddrinfo`, no `strerror_r`. All signals are blocked in them. Rooms are made in advance
//! ([`prepare`]), because the dynamic linker's lock must not be waited for later.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::thread::futex;

/// Maximum number of threads of the helper: the pager's, and those of four stores.
const ROOMS_MAX: usize = 28;
const STACK_BYTES: usize = 256 << 10;
/// Guard area without access below each stack.
const GUARD_BYTES: usize = 16 << 10;

/// What one thread needs: stack and thread-local storage.
struct Room {
    stack_top: AtomicUsize,
    thread_pointer: AtomicUsize,
    /// The thread's id; the kernel clears it when the thread has ended.
    thread: AtomicU32,
}

static ROOMS: [Room; ROOMS_MAX] = [const {
    Room {
        stack_top: AtomicUsize::new(0),
        thread_pointer: AtomicUsize::new(0),
        thread: AtomicU32::new(0),
    }
}; ROOMS_MAX];
/// The dynamic linker's `_dl_allocate_tls`; null: not looked for, or missing.
static ALLOCATOR: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// The helper's process id; 0: there is no helper.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Offset from the thread pointer, in bytes, at which the C library stores a thread's id; 0: not
/// known.
static TID_AT: AtomicUsize = AtomicUsize::new(0);
/// Where that offset can be in glibc's control block on x86-64: behind its fixed part of 704 bytes
/// (720 in all releases so far).
const TID_BETWEEN: std::ops::Range<usize> = 704..1024;

type Work = Box<dyn FnOnce() + Send>;

/// What a new thread is to do.
struct Birth {
    work: Work,
}

/// Whether this machine supports a helper: it needs a supported processor architecture, and the C
/// library's thread-local storage.
pub fn is_possible() -> bool {
    cfg!(target_arch = "x86_64") && allocator().is_some()
}

/// The helper's process id, if there is one.
pub fn process() -> Option<u32> {
    Some(PROCESS.load(Ordering::Acquire)).filter(|&pid| pid != 0)
}

/// Whether the calling thread belongs to the helper.
pub fn is_here() -> bool {
    process() == Some(std::process::id())
}

type AllocateTls = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// Found once, at the start: later another thread may hold the dynamic linker's lock, and wait for
/// a pager that starts late.
fn allocator() -> Option<AllocateTls> {
    let mut found = ALLOCATOR.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: a string that ends with a zero.
        found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_allocate_tls".as_ptr()) };
        ALLOCATOR.store(found, Ordering::Relaxed);
    }
    // SAFETY: the dynamic linker's function of this name has this type (glibc, since 2.3).
    (!found.is_null()).then(|| unsafe { mem::transmute::<*mut c_void, AllocateTls>(found) })
}

/// Finds where the C library stores a thread's id. Its locks with an owner (recursive mutexes,
/// read-write locks) distinguish threads by it: without one, a free lock looks like the helper's
/// own, and is damaged when the helper releases it.
fn find_tid() -> io::Result<()> {
    if TID_AT.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    // SAFETY: takes no argument.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // SAFETY: the control block of a thread that the C library made is longer than this (2304
    // bytes).
    let holds_tid =
        |at: &usize| unsafe { thread_pointer().byte_add(*at).cast::<u32>().read_volatile() } == tid;
    let at = TID_BETWEEN.step_by(4).find(holds_tid).ok_or(io::ErrorKind::Unsupported)?;
    TID_AT.store(at, Ordering::Relaxed);
    Ok(())
}

/// The control block of the calling thread.
fn thread_pointer() -> *mut u8 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word of the block is its own address.
    unsafe {
        let block: *mut u8;
        std::arch::asm!("mov {0}, qword ptr fs:[0]", out(reg) block, options(nostack, readonly, pure));
        block
    }
    #[cfg(not(target_arch = "x86_64"))]
    ptr::null_mut()
}

/// Makes all rooms. Allocates through the C library (`calloc`), so it must be called on a thread
/// that may do so.
pub fn prepare() -> io::Result<()> {
    let allocate = allocator().ok_or(io::ErrorKind::Unsupported)?;
    find_tid()?;
    if ROOMS.iter().all(|room| room.stack_top.load(Ordering::Relaxed) != 0) {
        return Ok(());
    }
    let stacks = new_stacks()?;
    for (room, number) in ROOMS.iter().zip(1..) {
        // SAFETY: null requests new storage; its thread control block is returned.
        let pointer = unsafe { allocate(ptr::null_mut()) };
        if pointer.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: a thread control block that is not in use yet.
        unsafe { fill_control_block(pointer.cast()) };
        room.thread_pointer.store(pointer as usize, Ordering::Relaxed);
        // Last: a room without a stack is not taken.
        room.stack_top.store(stacks + number * STEP, Ordering::Relaxed);
    }
    Ok(())
}

/// From one stack to the next.
const STEP: usize = STACK_BYTES + GUARD_BYTES;

/// The stacks of all rooms, in one mapping: every process that is started makes them, and few use
/// them. Each gets its guard when it is taken.
fn new_stacks() -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let len = ROOMS_MAX * STEP;
    // SAFETY: a new mapping at an address of the kernel's choice. The raw system call, because the
    // C library's function may be replaced.
    let stacks = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            0usize,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1i32,
            0usize,
        )
    };
    if stacks == -1 { Err(io::Error::last_os_error()) } else { Ok(stacks as usize) }
}

/// The first words of glibc's thread control block on x86-64 (`tcbhead_t`): its own address, the
/// table of modules, its own address again, whether there are several threads, and at 0x28 and 0x30
/// the secrets of stack and pointer guards, which are those of the process.
///
/// # Safety
/// `block` must come from `_dl_allocate_tls`.
unsafe fn fill_control_block(block: *mut usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by the caller's contract; reads two words of the calling thread's own block.
    unsafe {
        let (stack_guard, pointer_guard): (usize, usize);
        std::arch::asm!("mov {0}, qword ptr fs:[0x28]", "mov {1}, qword ptr fs:[0x30]", out(reg) stack_guard, out(reg) pointer_guard,
                        options(nostack, readonly));
        block.write(block as usize);
        block.add(2).write(block as usize);
        block.add(3).cast::<u32>().write(1);
        block.add(5).write(stack_guard);
        block.add(6).write(pointer_guard);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = block;
}

fn take_room() -> io::Result<&'static Room> {
    // By one exchange: the program's thread that starts a helper, the process between the two, and
    // the helper's first thread take rooms at the same time. The word is not zero until the kernel
    // has cleared it, so a thread that has not started yet keeps its room.
    let is_taken = |room: &&Room| {
        room.stack_top.load(Ordering::Relaxed) != 0
            && room
                .thread
                .compare_exchange(0, u32::MAX, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    };
    let room = ROOMS
        .iter()
        .find(is_taken)
        .ok_or_else(|| io::Error::other("the helper has too many threads"))?;
    let guard = room.stack_top.load(Ordering::Relaxed) - STEP;
    // SAFETY: the lower end of a stack that nobody uses now.
    unsafe { libc::syscall(libc::SYS_mprotect, guard, GUARD_BYTES, libc::PROT_NONE) };
    Ok(room)
}

fn give_up(room: &Room) {
    room.thread.store(0, Ordering::Release);
}

/// The `clone` system call with a new stack, on which the new thread calls `entry(argument)`.
///
/// # Safety
/// `stack_top` must be the end of an unused stack, aligned to 16; `entry` must not return.
#[cfg(target_arch = "x86_64")]
unsafe fn clone(
    flags: usize,
    stack_top: usize,
    parent_tid: usize,
    child_tid: usize,
    tls: usize,
    entry: extern "C" fn(*mut c_void) -> !,
    argument: *mut c_void,
) -> io::Result<u32> {
    let stack = (stack_top - 16) as *mut usize;
    let result: isize;
    // SAFETY: the new thread finds `entry` and `argument` on its stack and never returns; in the
    // parent only rax, rcx and r11 change.
    unsafe {
        stack.write(entry as usize);
        stack.add(1).write(argument as usize);
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rax",
            "pop rdi",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result, in("rdi") flags, in("rsi") stack, in("rdx") parent_tid,
            in("r10") child_tid, in("r8") tls, lateout("rcx") _, lateout("r11") _
        );
    }
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as u32) }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn clone(
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: usize,
    _: extern "C" fn(*mut c_void) -> !,
    _: *mut c_void,
) -> io::Result<u32> {
    Err(io::ErrorKind::Unsupported.into())
}

extern "C" fn born(birth: *mut c_void) -> ! {
    // SAFETY: takes no argument.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // SAFETY: a word of this thread's own block, at the offset that `find_tid` found in another
    // thread's.
    unsafe {
        thread_pointer().byte_add(TID_AT.load(Ordering::Relaxed)).cast::<u32>().write_volatile(tid)
    };
    // SAFETY: the box that the creator made for this thread only.
    let Birth { work } = *unsafe { Box::from_raw(birth.cast::<Birth>()) };
    work();
    end_thread()
}

fn end_thread() -> ! {
    loop {
        // SAFETY: ends this thread and does not return.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// Flags of the helper's first thread: the address space is shared, nothing else.
const FIRST: usize = (libc::CLONE_VM
    | libc::CLONE_UNTRACED
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as usize;
/// Flags of its other threads.
const MORE: usize = FIRST
    | (libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM) as usize;
/// Flags of the intermediate process: it shares everything that is expensive to copy. Without
/// `CLONE_VFORK`: a creator that the kernel lets wait like that neither stops nor continues it.
const BETWEEN: usize =
    (libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_UNTRACED) as usize;

/// Task of the intermediate process.
struct Between {
    room: &'static Room,
    birth: *mut Birth,
    result: io::Result<u32>,
}

impl Between {
    fn make_first(&mut self) {
        let word = self.room.thread.as_ptr() as usize;
        let (stack, tls) = (
            self.room.stack_top.load(Ordering::Relaxed),
            self.room.thread_pointer.load(Ordering::Relaxed),
        );
        // SAFETY: a room that was taken for this thread.
        self.result = unsafe { clone(FIRST, stack, word, word, tls, born, self.birth.cast()) };
    }
}

extern "C" fn between(argument: *mut c_void) -> ! {
    // The helper is born outside of the program's process group.
    // SAFETY: takes two numbers.
    unsafe { libc::syscall(libc::SYS_setpgid, 0, 0) };
    // SAFETY: the creator's variable; the creator waits until this process has ended.
    unsafe { (*argument.cast::<Between>()).make_first() };
    end_thread()
}

/// Takes a new child out of the program's process group, and lets it go on if a `SIGSTOP` to that
/// group has reached it before: the `SIGCONT` that ends the stop may be for the program alone.
fn take_out_of_group(pid: u32) {
    // SAFETY: system calls with numbers; a child of ours that nobody else waits for.
    unsafe {
        libc::syscall(libc::SYS_setpgid, pid, 0);
        libc::syscall(libc::SYS_kill, pid, libc::SIGCONT);
    }
}

/// Starts the helper. Its first thread runs `work`, with all signals blocked and a descriptor table
/// that is a copy of the caller's. [`prepare`] must have been called.
pub fn start(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        PROCESS.store(std::process::id(), Ordering::Release);
        work();
    };
    let room = take_room()?;
    let birth = Box::into_raw(Box::new(Birth { work: Box::new(work) }));
    let mut plan = Between { room, birth, result: Err(io::ErrorKind::Other.into()) };
    crate::signals::blocked(|| {
        // Where orphans would become our children, which any wait finds, the helper is our child from
        // the start, one that only `__WALL` finds.
        if gets_orphans() {
            plan.make_first();
            plan.result.iter().for_each(|&pid| take_out_of_group(pid));
        } else {
            through_process_between(&mut plan);
        }
    });
    if plan.result.is_err() {
        // SAFETY: no thread took it.
        drop(unsafe { Box::from_raw(birth) });
        give_up(room);
    }
    plan.result.map(drop)
}

/// Process 1 of a namespace, and a subreaper.
fn gets_orphans() -> bool {
    let mut is_subreaper: libc::c_int = 0;
    // SAFETY: the kernel writes one number.
    let asked = unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_GET_CHILD_SUBREAPER, &raw mut is_subreaper)
    };
    std::process::id() == 1 || asked == 0 && is_subreaper != 0
}

fn through_process_between(plan: &mut Between) {
    let room = match take_room() {
        Ok(room) => room,
        Err(error) => {
            plan.result = Err(error);
            return;
        }
    };
    let stack = room.stack_top.load(Ordering::Relaxed);
    // SAFETY: a room that was taken for it. It has our thread pointer, and writes nothing there;
    // this thread leaves `plan` alone until it has ended.
    match unsafe { clone(BETWEEN, stack, 0, 0, 0, between, ptr::from_mut(plan).cast()) } {
        Ok(pid) => {
            take_out_of_group(pid);
            let mut status = 0;
            // SAFETY: waits for a process of ours that no other wait finds (it sends no signal when
            // it ends).
            unsafe { libc::syscall(libc::SYS_wait4, pid, &raw mut status, libc::__WALL, 0usize) };
        }
        Err(error) => plan.result = Err(error),
    }
    give_up(room);
}

/// A thread of the helper.
pub struct Thread(&'static Room);

impl Thread {
    /// Waits until the thread has ended.
    pub fn join(&self) {
        loop {
            let thread = self.0.thread.load(Ordering::Acquire);
            if thread == 0 {
                return;
            }
            // The kernel's wake-up is not that of a private futex.
            let _ = futex::wait(&self.0.thread, futex::Flags::empty(), thread, None);
        }
    }
}

/// Starts another thread of the helper. Must be called by a thread of the helper.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let room = take_room()?;
    let birth = Box::into_raw(Box::new(Birth { work: Box::new(work) }));
    let word = room.thread.as_ptr() as usize;
    let (stack, tls) =
        (room.stack_top.load(Ordering::Relaxed), room.thread_pointer.load(Ordering::Relaxed));
    // SAFETY: a room that was taken for this thread.
    match unsafe { clone(MORE, stack, word, word, tls, born, birth.cast()) } {
        Ok(_) => Ok(Thread(room)),
        Err(error) => {
            // SAFETY: no thread took it.
            drop(unsafe { Box::from_raw(birth) });
            give_up(room);
            Err(error)
        }
    }
}

/// In the child of a fork: the parent's helper does not exist here, and its rooms can be reused.
pub fn forget() {
    PROCESS.store(0, Ordering::Release);
    ROOMS.iter().for_each(give_up);
}

/// Detaches the helper from the program: no descriptors of the program (0 to 2 refer to /dev/null),
/// another process group, another directory.
pub fn detach() {
    // SAFETY: closes descriptors of the helper's own table, none of which is in use yet.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, 0u32);
        for _ in 0..3 {
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), libc::O_RDWR);
        }
        // Not a separate session: the scheduler would then weigh it against the program as a whole
        // (sched_autogroup).
        libc::syscall(libc::SYS_setpgid, 0, 0);
        libc::syscall(libc::SYS_chdir, c"/".as_ptr());
    }
    name_thread(c"hiroma-pager");
}

/// Raises limits that the program set for itself and that its helper inherited in a fork, as far as
/// the helper may: to the hard limits, or to unlimited.
pub fn lift_limits() {
    for resource in [
        libc::RLIMIT_AS,
        libc::RLIMIT_DATA,
        libc::RLIMIT_FSIZE,
        libc::RLIMIT_NOFILE,
        libc::RLIMIT_CPU,
    ] {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads and writes one structure; limits of the helper's own process.
        unsafe {
            if libc::getrlimit(resource, &mut limit) != 0 {
                continue;
            }
            let most = if resource == libc::RLIMIT_NOFILE {
                limit.rlim_max.max(4096)
            } else {
                libc::RLIM_INFINITY
            };
            if libc::setrlimit(resource, &libc::rlimit { rlim_cur: most, rlim_max: most }) != 0 {
                libc::setrlimit(
                    resource,
                    &libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max },
                );
            }
        }
    }
}

/// Sets the name of the calling thread.
pub fn name_thread(name: &std::ffi::CStr) {
    // SAFETY: reads a string that ends with a zero.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Ends the helper with all its threads.
pub fn end() -> ! {
    loop {
        // SAFETY: does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}

/// Whether process or thread `pid` still has the memory of this process: it may have executed
/// another program since. `None`: it has no memory, because it has ended. `mark` is a word that no
/// other program has at its address by chance.
pub fn shares_memory(pid: u32, mark: &AtomicU64) -> io::Result<Option<bool>> {
    let mut found = 0u64;
    let local = libc::iovec { iov_base: (&raw mut found).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: mark.as_ptr().cast(), iov_len: 8 };
    // SAFETY: the kernel writes eight bytes to `found`.
    let got = unsafe {
        libc::syscall(
            libc::SYS_process_vm_readv,
            pid,
            &raw const local,
            1usize,
            &raw const remote,
            1usize,
            0usize,
        )
    };
    if got == 8 {
        return Ok(Some(found == mark.load(Ordering::Relaxed)));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EFAULT) => Ok(Some(false)),
        Some(libc::ESRCH) => Ok(None),
        _ => Err(error),
    }
}

/// Time after which a killed process executes no more of its own code, whatever delays its end.
const KILLED_WITHIN: std::time::Duration = std::time::Duration::from_secs(3);

/// Kills process `pid` and returns when it has ended, or is certain to. Its end may wait for one of
/// our threads in the kernel, which is woken when we end.
pub fn kill_and_wait(pid: u32) {
    if let Some(process) = rustix::process::Pid::from_raw(pid as i32) {
        let is_killed =
            rustix::process::kill_process(process, rustix::process::Signal::KILL).is_ok();
        // The init process of a namespace ignores signals from inside.
        wait_at_most(pid, (is_killed && pid != 1).then_some(KILLED_WITHIN));
    }
}

/// Returns when process `pid` has ended.
pub fn wait_for(pid: u32) {
    wait_at_most(pid, None);
}

fn wait_at_most(pid: u32, most: Option<std::time::Duration>) {
    let Some(process) = rustix::process::Pid::from_raw(pid as i32) else { return };
    let Ok(handle) = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())
    else {
        // No descriptor available: the program's limit applies to a helper that was forked under
        // it.
        for _ in 0..100 {
            if !exists(pid) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        return;
    };
    let mut fds = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
    let most =
        most.map(|most| rustix::event::Timespec { tv_sec: most.as_secs() as i64, tv_nsec: 0 });
    while rustix::event::poll(&mut fds, most.as_ref()) == Err(rustix::io::Errno::INTR) {}
}

/// The process id of the calling process in `/proc`: in the child of `clone` with `CLONE_NEWPID`,
/// the number that is valid outside.
pub fn pid_in_proc() -> u32 {
    let mut text = [0u8; 16];
    // SAFETY: writes at most `text.len()` bytes.
    let len = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            c"/proc/self".as_ptr(),
            text.as_mut_ptr(),
            text.len(),
        )
    };
    let digits = usize::try_from(len).ok().and_then(|len| std::str::from_utf8(&text[..len]).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(std::process::id)
}

/// Whether there is a process `pid`.
pub fn exists(pid: u32) -> bool {
    rustix::process::Pid::from_raw(pid as i32)
        .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

/// Makes the kernel kill the program that `command` starts when the thread that starts it ends
/// (`PR_SET_PDEATHSIG`).
pub fn end_with_us(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let us = std::process::id();
    let before = move || {
        // SAFETY: two system calls with numbers, between fork and exec.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // Already too late for the signal.
            if libc::getppid() as u32 != us {
                libc::_exit(137);
            }
        }
        Ok(())
    };
    // SAFETY: `before` allocates nothing and takes no lock.
    unsafe { command.pre_exec(before) };
}
