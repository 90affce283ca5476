//! The pager of this process: the constructor that starts it, and the functions through which the
//! exports call it.
//!
//! Contract: the constructor runs before any other code of the program (`-z initfirst`), on the
//! only thread. Until it has run, `malloc` serves the dynamic linker from the internal heap and
//! `mmap` is the kernel's. All calls of the pager go through [`far`], which blocks signals: a
//! handler could leave the call by a jump.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ops::Range;
use std::panic::{self, PanicHookInfo};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use hiroma_far::Pager;
use hiroma_far::config::{CONFIG_ENV, Config};
use hiroma_far::control::ControlPage;
use hiroma_units::PAGE;

use crate::export_brk::Holds;
use crate::scope::{self, internal_scope};
use crate::{
    errors, export_brk, export_exec, export_limits, export_memfile, export_thread, export_wait,
    internal, large, libc_state, mimalloc, nursery, program, sys,
};

/// Exit code if the pager cannot work.
const EXIT_NO_PAGER: i32 = 75;

/// What serves the program.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Nothing yet: the constructor has not run.
    Early = 0,
    /// glibc and the kernel, because there is no configuration.
    PassThrough = 1,
    /// The pager.
    Managed = 2,
    /// The nursery and the kernel, because the process is small so far.
    Nursery = 3,
    /// The same, and it remains so, because the pager could not start.
    Unmanaged = 4,
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Early as u8);
static ARENA_START: AtomicUsize = AtomicUsize::new(0);
static ARENA_END: AtomicUsize = AtomicUsize::new(0);
static PAGER: OnceLock<Pager> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array.00001")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

extern "C" fn start(
    count: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    // First of all: what follows calls functions of the C library.
    // SAFETY: the arguments are the kernel's, and no other code of the process has run.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        crate::sanitizer::yield_to(count, arguments, environment);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (count, arguments);
    // SAFETY: this is the only thread; libc has not set the variable yet, because we run before its
    // own constructor.
    unsafe {
        if environ.is_null() {
            environ = environment;
        }
    }
    let _scope = internal_scope();
    let mask = sys::block_signals();
    let errno = sys::errno();
    // SAFETY: the kernel terminates the environment with a null pointer, and each string in it with
    // a NUL.
    match unsafe { find(environment, CONFIG_ENV) } {
        None => PHASE.store(Phase::PassThrough as u8, Ordering::Release),
        Some(text) => {
            // SAFETY: as above.
            let preloaded = unsafe { find(environment, "LD_PRELOAD") };
            start_pager(text, preloaded);
        }
    }
    sys::set_errno(errno);
    sys::restore_signals(mask);
}

/// Finds the value of an environment variable.
///
/// # Safety
/// `environment` must be null or as the kernel passes it.
pub unsafe fn find(environment: *const *const c_char, name: &str) -> Option<&'static CStr> {
    let mut at = environment;
    // SAFETY: guaranteed by the caller; reading stops at the null pointer.
    unsafe {
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at);
            if entry
                .to_bytes()
                .strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.starts_with(b"="))
            {
                return Some(CStr::from_ptr((*at).add(name.len() + 1)));
            }
            at = at.add(1);
        }
    }
    None
}

/// The current environment of the process.
pub fn environment() -> *const *const c_char {
    // SAFETY: the C library's variable. A program that changes it while other threads start
    // programs is broken in any case.
    unsafe { environ }
}

/// Whether valgrind runs this program: its interpreter does not support a process that shares the
/// memory of another.
fn is_interpreted(preloaded: Option<&CStr>) -> bool {
    const CORE: &[u8] = b"/vgpreload_core";
    preloaded.is_some_and(|list| list.to_bytes().windows(CORE.len()).any(|part| part == CORE))
}

/// Whether not even a pager can be prepared for this program. If it is worth a line, says why.
fn has_no_use(preloaded: Option<&CStr>) -> bool {
    let reason = match export_brk::holds_everything() {
        _ if is_interpreted(preloaded) => "valgrind runs it",
        // `hiroma run` names these at the end.
        _ if program::is_go() => return true,
        Some(Holds::Now) => "it keeps all of its memory where its own data ends (as GCL does)",
        Some(Holds::Later) => return true,
        None => return false,
    };
    let pid = std::process::id();
    sys::say(&format!("hiroma: process {pid} runs without far memory: {reason}"));
    true
}

fn start_pager(text: &CStr, preloaded: Option<&CStr>) {
    if has_no_use(preloaded) {
        PHASE.store(Phase::PassThrough as u8, Ordering::Release);
        return;
    }
    errors::settle();
    panic::set_hook(Box::new(die));
    mimalloc::configure();
    export_thread::settle();
    export_memfile::settle();
    let mut config: Config = match serde_json::from_slice(text.to_bytes()) {
        Ok(config) => config,
        Err(error) => give_up(&format!(
            "cannot read {CONFIG_ENV} ({error}); start the program with `hiroma run`"
        )),
    };
    config.helper = true;
    export_exec::start(config.control_dir.as_deref(), preloaded);
    export_wait::settle();
    export_wait::start(config.control_dir.as_deref());
    let is_first = config.runner.is_none_or(|runner| sys::parent_process() == runner);
    config.has_begun = !is_first;
    hiroma_far::hooks::set_internal(scope::enter, scope::leave);
    hiroma_far::hooks::set_heap(internal::bytes);
    let starts_now = export_limits::before_start();
    if !starts_now && nursery::prepare(&config, is_first) {
        export_limits::note_use();
        let (start, len) = nursery::arena();
        has_arena(start, len);
        PHASE.store(Phase::Nursery as u8, Ordering::Release);
        return;
    }
    match Pager::start(config) {
        Ok(pager) => {
            let (start, len) = pager.arena();
            has_arena(start, len);
            has_pager(pager);
        }
        // A child of the first program, possibly run as another user or in a sandbox, behaves as it
        // would without this library.
        Err(error) if !is_first => {
            sys::say(&format!(
                "hiroma: process {} runs without far memory: {error}",
                std::process::id()
            ));
            export_limits::give_back();
            PHASE.store(Phase::PassThrough as u8, Ordering::Release);
        }
        Err(error) => give_up(&error.to_string()),
    }
}

/// There is an arena: its heap can be used, and forks are followed.
fn has_arena(start: usize, len: usize) {
    libc_state::settle();
    if let Err(error) = large::start(start, len) {
        give_up(&format!(
            "cannot map a table for {len} bytes of managed memory (error {})",
            error.0
        ));
    }
    // SAFETY: plain functions that are never unloaded.
    if unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        )
    } != 0
    {
        give_up("cannot follow forks: no memory");
    }
    ARENA_START.store(start, Ordering::Relaxed);
    ARENA_END.store(start + len, Ordering::Relaxed);
}

/// Keeps forks away until the result is dropped, if no thread is forking.
pub fn without_forks_now() -> Option<sys::Held<'static, ()>> {
    FORKING.try_lock()
}

/// The pager has started.
pub fn has_pager(pager: Pager) {
    // A late one has accounted for its use already.
    if phase() != Phase::Nursery {
        export_limits::note_use();
    }
    let mapped_max = export_limits::after_start();
    if mapped_max != usize::MAX {
        pager.set_mapped_max(mapped_max);
    }
    let _ = PAGER.set(pager);
    PHASE.store(Phase::Managed as u8, Ordering::Release);
}

/// The pager of a process that has outgrown its nursery could not start. What it has done so far is
/// worth more than its limit.
pub fn stays_without_pager(config: &Config, reason: &str) {
    let line = format!(
        "hiroma: process {} runs without far memory from now on: {reason}",
        std::process::id()
    );
    let runner = config.control_dir.as_ref().filter(|_| config.runner.is_some());
    if let (false, Some(dir)) = (sys::say_later(&line), runner) {
        // `hiroma run` shows it.
        let _ = ControlPage::create(dir, true).map(|page| page.say(&format!("{line}\n")));
    }
    PHASE.store(Phase::Unmanaged as u8, Ordering::Release);
}

fn give_up(reason: &str) -> ! {
    sys::say(&format!("hiroma: {reason}"));
    sys::exit_now(EXIT_NO_PAGER)
}

fn die(info: &PanicHookInfo<'_>) {
    let _scope = internal_scope();
    hiroma_far::fatal::die(&format!("internal error, please report it: {info}"))
}

/// What currently serves the program.
#[inline]
pub fn phase() -> Phase {
    match PHASE.load(Ordering::Acquire) {
        0 => Phase::Early,
        1 => Phase::PassThrough,
        2 => Phase::Managed,
        3 => Phase::Nursery,
        _ => Phase::Unmanaged,
    }
}

/// The arena; empty while there is none.
#[inline]
pub fn arena() -> Range<usize> {
    ARENA_START.load(Ordering::Relaxed)..ARENA_END.load(Ordering::Relaxed)
}

/// Calls the pager. `None` if there is none, or if the calling thread works for it.
#[inline]
pub fn far<T>(f: impl FnOnce(&Pager) -> T) -> Option<T> {
    if phase() != Phase::Managed || scope::is_internal() {
        return None;
    }
    let pager = PAGER.get()?;
    let errno = sys::errno();
    // A handler that jumps out of the call would leave its request behind for ever.
    let mask = sys::block_signals();
    let result = f(pager);
    sys::restore_signals(mask);
    sys::set_errno(errno);
    Some(result)
}

thread_local! {
    /// The signal mask of a thread that is forking.
    static MASK: Cell<u64> = const { Cell::new(0) };
}

/// Serializes forks, and the start of a pager.
static FORKING: sys::Lock<()> = sys::Lock::new(());
/// Addresses that a fork touches while the pager is stopped. Not on the heap, because allocating
/// there takes a lock.
static KEEP: [AtomicUsize; 128 << 10] = [const { AtomicUsize::new(0) }; 128 << 10];
/// Sizes of the parts of the forking thread's stack, and of the memory around its thread pointer,
/// that must stay local.
const STACK_BELOW: usize = 64 << 10;
const STACK_ABOVE: usize = 16 << 10;
const THREAD_BELOW: usize = 16 << 10;
const THREAD_ABOVE: usize = 8 << 10;

/// Fills [`KEEP`], of which `passed` is a part; returns the number of addresses.
fn note_what_forks_touch(passed: &[Range<usize>]) -> usize {
    let (mut count, mut last) = (0, usize::MAX);
    let mut keep = |addr: usize| {
        if addr / PAGE == last / PAGE {
            return;
        }
        let Some(place) = KEEP.get(count) else {
            hiroma_far::fatal::die(
                "this process has too many open streams to fork; please report this",
            )
        };
        place.store(addr, Ordering::Relaxed);
        (count, last) = (count + 1, addr);
    };
    let here = 0_u8;
    let stack = ptr::from_ref(&here) as usize;
    let own = [stack - STACK_BELOW..stack + STACK_ABOVE, around_thread(sys::thread_pointer())];
    for part in own.iter().chain(passed).filter(|part| !part.is_empty()) {
        part.clone().step_by(PAGE).for_each(&mut keep);
        keep(part.end - 1);
    }
    libc_state::neighbours_in_thread_list(&mut keep);
    libc_state::lock_streams(&mut keep);
    count
}

/// The memory around a thread pointer that its thread uses during a fork.
pub fn around_thread(pointer: usize) -> Range<usize> {
    pointer.saturating_sub(THREAD_BELOW)..pointer.saturating_add(THREAD_ABOVE)
}

/// What a child uses of its stack, which ends at `end`, before its pager runs.
pub fn top_of_stack(end: usize) -> Range<usize> {
    end.saturating_sub(STACK_ABOVE)..end
}

extern "C" fn before_fork() {
    begin_fork(&[]);
}

/// Called before a fork that does not run libc's handlers. `passed`: the memory of the program that
/// the kernel or the child accesses meanwhile because it was passed to the call.
pub fn begin_fork(passed: &[Range<usize>]) {
    let mask = sys::block_signals();
    MASK.set(mask);
    scope::enter();
    FORKING.hold();
    if let Some(pager) = PAGER.get() {
        let count = note_what_forks_touch(passed);
        pager.before_fork(&KEEP[..count]);
    }
    internal::before_fork();
}

extern "C" fn after_fork_in_parent() {
    internal::after_fork();
    if let Some(pager) = PAGER.get() {
        pager.after_fork_in_parent();
        libc_state::unlock_streams();
    }
    FORKING.release();
    scope::leave();
    sys::restore_signals(MASK.get());
}

extern "C" fn after_fork_in_child() {
    internal::after_fork();
    if let Some(pager) = PAGER.get() {
        libc_state::reset_streams();
        pager.after_fork_in_child();
    } else {
        nursery::is_mine();
    }
    FORKING.release();
    scope::leave();
    sys::restore_signals(MASK.get());
}

/// Whether a pager serves the calling thread.
pub fn is_managed() -> bool {
    phase() == Phase::Managed && !scope::is_internal()
}

/// Whether forks of the calling thread must be followed.
pub fn is_followed() -> bool {
    matches!(phase(), Phase::Managed | Phase::Nursery) && !scope::is_internal()
}

/// Called after such a fork in the parent, whether it succeeded or not.
pub fn end_fork() {
    after_fork_in_parent();
}

/// Called after such a fork in the child.
pub fn begin_child() {
    after_fork_in_child();
}

/// Runs a fork that does not go through libc's `fork`; see [`begin_fork`].
pub fn around_fork(
    passed: &[Range<usize>],
    fork: impl FnOnce() -> Result<usize, sys::Errno>,
) -> Result<usize, sys::Errno> {
    if !is_followed() {
        return fork();
    }
    begin_fork(passed);
    let result = fork();
    if result == Ok(0) {
        after_fork_in_child();
    } else {
        after_fork_in_parent();
    }
    result
}
