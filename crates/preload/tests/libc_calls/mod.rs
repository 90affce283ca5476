//! Functions of the C library that this library may call.
//!
//! The helper's threads share the C library's data with the program, but the C library does not
//! know them. If a function takes one of its locks while the program forks, the child hangs. So
//! think about any new function here before adding it.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common::library;

/// System calls and little more: no lock, no state but `errno`.
const PLAIN: &str = "__errno_location _exit abort bcmp clock_gettime clock_nanosleep close connect dirfd fcntl fstat64 ftruncate64 \
    getcwd getpeername getpid getrusage getsockname getsockopt gettid gnu_get_libc_version lseek64 memcmp memcpy memmove memset open open64 \
    pause poll pread64 pwrite64 read readlink readv recv recvmsg rmdir sched_getscheduler sched_setscheduler sched_yield send sendmsg setsockopt shutdown sigfillset socket stat64 statx symlink \
    strlen strtol sysconf sysinfo unlink write writev pthread_self pthread_sigmask";
/// Functions that lock only the given object, which is ours; memory comes from the internal heap.
const OURS: &str = "opendir readdir64 closedir realpath pthread_attr_destroy pthread_attr_init pthread_attr_setstacksize pthread_mutex_destroy \
    pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock pthread_key_create pthread_key_delete pthread_getspecific pthread_setspecific";
/// Called only on threads of the program: at its start, in functions that this library replaces,
/// and around forks. getrandom: keys of hash maps, where the address of a Redis server is read.
const PROGRAMS: &str = "_IO_iter_begin _IO_iter_end _IO_iter_file _IO_iter_next _IO_list_lock _IO_list_resetlock _IO_list_unlock __register_atfork \
    __res_init getaddrinfo getrandom freeaddrinfo gai_strerror getaliasbyname_r dladdr1 dlvsym environ getenv pthread_detach pthread_join pthread_setname_np \
    __libc_calloc __libc_free __libc_malloc __libc_memalign __libc_realloc fputs stderr stdout";
/// Called when a library is loaded or a thread begins, before the program can fork, and when a
/// panic ends the program. Those of sanitizers and of Go are only looked for.
const LOADER: &str = "__cxa_finalize __cxa_thread_atexit_impl __gmon_start__ _ITM_deregisterTMCloneTable _ITM_registerTMCloneTable \
    dl_iterate_phdr _Unwind_Backtrace _Unwind_GetDataRelBase _Unwind_GetIP _Unwind_GetIPInfo _Unwind_GetLanguageSpecificData \
    _Unwind_GetRegionStart _Unwind_GetTextRelBase _Unwind_Resume _Unwind_SetGR _Unwind_SetIP _Unwind_DeleteException \
    _Unwind_RaiseException __asan_init crosscall2 __hwasan_init __lsan_init __msan_init __tsan_init __tls_get_addr _dl_find_object __pthread_key_create pthread_once";
/// Called by Rust's standard library in threads that it starts itself. A helper has none.
const THREADS: &str =
    "getauxval pthread_attr_getguardsize pthread_attr_getstack pthread_getattr_np sigaltstack";

#[test]
fn no_blocking_libc_function_is_called() {
    let output = Command::new("nm")
        .args(["-D", "--undefined-only", "--format=posix"])
        .arg(library())
        .output()
        .expect("nm runs (binutils)");
    assert!(output.status.success(), "nm: {}", String::from_utf8_lossy(&output.stderr));
    let listing = String::from_utf8(output.stdout).expect("names of symbols");
    let called: BTreeSet<&str> =
        listing.lines().filter_map(|line| line.split([' ', '@']).next()).collect();
    assert!(called.contains("memcpy"), "no list of symbols: {listing}");
    let known: BTreeSet<&str> = [PLAIN, OURS, PROGRAMS, LOADER, THREADS]
        .iter()
        .flat_map(|group| group.split_whitespace())
        .collect();
    let new: Vec<_> = called.difference(&known).collect();
    assert!(new.is_empty(), "calls of the C library that nobody has looked at: {new:?}");
}
