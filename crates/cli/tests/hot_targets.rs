//! `hiroma hot` on unusual processes, and on machines that lack something.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::hot::{Load, hot, possible, text};
use common::{HIROMA, compile, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Traces a process as strace does, and ends with its parent. The traced process then continues on
/// its own.
const TRACER: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pid_t pid = atoi(argv[1]);
    if (ptrace(PTRACE_SEIZE, pid, 0, (void *)PTRACE_O_TRACESYSGOOD) || ptrace(PTRACE_INTERRUPT, pid, 0, 0)) {
        perror("ptrace");
        return 1;
    }
    for (int status, stops = 0; waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status); stops++) {
        int signal = WSTOPSIG(status);
        int own = status >> 16 || signal == (SIGTRAP | 0x80);
        ptrace(PTRACE_SYSCALL, pid, 0, (void *)(long)(own ? 0 : signal));
        if (stops == 0) {
            puts("traced");
            fflush(stdout);
        }
    }
    return 0;
}
"#;

/// Writes and checks 16 MiB repeatedly. Uses no library, because 32-bit ones are rarely installed.
/// Ends with its parent.
const SMALL: &str = r#"
static long call(long number, long a, long b, long c, long d, long e)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e) : "memory");
    return result;
}

#define LEN (18 << 20)

void _start(void)
{
    /* prctl(PR_SET_PDEATHSIG, SIGKILL); mmap2 has its sixth argument in ebp, which stays what it is: of no meaning without a file. */
    call(172, 1, 9, 0, 0, 0);
    volatile unsigned *memory = (unsigned *)call(192, 0, LEN, 3, 0x22, -1);
    for (unsigned at = 0; at < LEN / 4; at += 1024)
        memory[at] = at;
    call(4, 1, (long)"ready\n", 6, 0, 0);
    for (unsigned round = 0;; round++)
        for (unsigned at = 0; at < LEN / 4; at += 1024) {
            if (memory[at] != at + round)
                call(1, 1, 0, 0, 0, 0);
            memory[at] = at + round + 1;
        }
}
"#;

/// Has 10 MiB that stay mapped and hot, and other mappings that are made, moved, shrunk and
/// unmapped all the time. Ends at the end of its input, and then checks all its memory.
const RESTLESS: &str = r#"
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define MIB (1ul << 20)
#define STAYS (10 * MIB)
#define MOVES (6 * MIB)

static void fill(volatile unsigned long *memory, unsigned long bytes, unsigned long content)
{
    for (unsigned long at = 0; at < bytes / 8; at += 512)
        memory[at] = content + at;
}

static int wrong(volatile unsigned long *memory, unsigned long bytes, unsigned long content)
{
    for (unsigned long at = 0; at < bytes / 8; at += 512)
        if (memory[at] != content + at)
            return 1;
    return 0;
}

static void *map(unsigned long bytes)
{
    return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(void)
{
    prctl(PR_SET_PDEATHSIG, 9);
    unsigned long cycles = 0;
    /* Between two pages of no access, so that it is not joined to what comes and goes. */
    char *stays = (char *)mmap(0, STAYS + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
    mprotect(stays, STAYS, PROT_READ | PROT_WRITE);
    fill((void *)stays, STAYS, 7);
    puts("ready");
    fflush(stdout);
    for (struct pollfd input = {.fd = 0, .events = POLLIN}; poll(&input, 1, 0) == 0; cycles++) {
        char *memory = map(MOVES), *place = map(MOVES);
        fill((void *)memory, MOVES, cycles);
        if (wrong((void *)stays, STAYS, 7))
            return 2;
        char *moved = mremap(memory, MOVES, MOVES, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (moved == MAP_FAILED || wrong((void *)moved, MOVES, cycles))
            return 3;
        madvise(moved, MIB, MADV_DONTNEED);
        if (*(volatile unsigned long *)moved != 0 || wrong((void *)(moved + 2 * MIB), MOVES - 2 * MIB, cycles + 2 * MIB / 8))
            return 4;
        munmap(moved + 3 * MIB, MIB);
        munmap(moved, MOVES);
    }
    printf("%lu\n", cycles);
    return wrong((void *)stays, STAYS, 7);
}
"#;

/// A program for these tests; it is killed with the test.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> std::io::Result<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

fn line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

/// Manages `load` until something is huge. On a busy machine a call may find nothing to do because
/// the process has not run yet.
fn manage(load: &Load) {
    let deadline = Instant::now() + LIMIT;
    while load.huge_bytes() == 0 {
        assert!(Instant::now() < deadline, "nothing became huge");
        let managed = common::hot::manage_once(load, &["--window", "50ms"]);
        assert!(managed.status.success(), "{}", text(&managed.stderr));
    }
}

/// The value of `name` in `/proc/PID/status`.
fn status(load: &Load, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", load.pid)).unwrap();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
}

#[test]
fn a_process_in_another_pid_namespace_is_managed() {
    if !possible() {
        return;
    }
    let starter = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let Some(load) = Load::start_by(&starter, 8, "sequential", |_| {}) else {
        hiroma_testkit::skip!(Machine, "unshare makes no pid namespace here");
        return;
    };
    let inside = status(&load, "NSpid:");
    assert!(inside.ends_with("\t1"), "not in a namespace of its own: {inside}");
    manage(&load);
    let undone = hot(&["undo", "--pid", &load.pid()]);
    assert!(undone.status.success(), "{}", text(&undone.stderr));
    assert_eq!(load.huge_bytes(), 0);
}

#[test]
fn a_traced_process_is_managed_and_stays_traced() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tracer = compile(dir.path(), "tracer", TRACER, &[]);
    let load = Load::start(8, "sequential", |_| {});
    let mut tracer = Helper(start(Command::new(tracer).arg(load.pid())).unwrap());
    if line(&mut tracer.0) != "traced\n" {
        hiroma_testkit::skip!(Machine, "no process may be traced here");
        return;
    }
    manage(&load);
    assert_eq!(status(&load, "TracerPid:"), tracer.0.id().to_string());
}

#[test]
fn a_32_bit_process_is_managed() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("small.c"), dir.path().join("small"));
    fs::write(&source, SMALL).unwrap();
    let flags = [
        "-m32",
        "-O1",
        "-nostdlib",
        "-static",
        "-ffreestanding",
        "-fno-pic",
        "-fno-stack-protector",
        "-o",
    ];
    let compiled = Command::new("cc").args(flags).arg(&program).arg(&source).output().unwrap();
    if !compiled.status.success() {
        hiroma_testkit::skip!(
            Machine,
            "the compiler makes no 32-bit programs: {}",
            text(&compiled.stderr)
        );
        return;
    }
    let Ok(mut child) = start(&mut Command::new(&program)) else {
        hiroma_testkit::skip!(Machine, "the kernel runs no 32-bit programs");
        return;
    };
    assert_eq!(line(&mut child), "ready\n");
    let mut load = Load::adopt(child, 18).unwrap();
    assert!(load.base + load.bytes <= 1 << 32);
    manage(&load);
    assert!(load.child.try_wait().unwrap().is_none(), "it found its memory changed");
}

#[test]
fn remapping_process_keeps_its_content() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "restless", RESTLESS, &[]);
    let mut child = start(&mut Command::new(program)).unwrap();
    assert_eq!(line(&mut child), "ready\n");
    let mut load = Load::adopt(child, 10).unwrap();
    // No pauses: the more is read while mappings change, the better. The windows are long enough
    // for a process that has to wait for a processor.
    let mut manager = Command::new(HIROMA);
    manager.args([
        "hot",
        "manage",
        "--keep",
        "10ms",
        "--cpu",
        "50%",
        "--stall",
        "60s",
        "--window",
        "50ms",
        "--pid",
        &load.pid(),
    ]);
    let manager = Helper(manager.stderr(Stdio::null()).spawn().unwrap());
    wait_until("what stays to be huge", || load.huge_bytes() > 0);
    for _ in 0..5 {
        let shown = hot(&["show", "--pid", &load.pid(), "--for", "1ms"]);
        assert!(shown.status.success(), "{}", text(&shown.stderr));
    }
    drop(load.child.stdin.take());
    let cycles = line(&mut load.child);
    assert!(load.child.wait().unwrap().success(), "it found its memory changed");
    assert!(cycles.trim().parse::<u64>().unwrap() > 0);
    // The manager ends when the process does.
    let mut manager = manager;
    wait_until("the manager to end", || manager.0.try_wait().unwrap().is_some());
    assert!(manager.0.wait().unwrap().success());
}

/// Runs `hiroma hot` as if on a machine of kind `what`; returns the exit code and standard error.
fn pretending(what: &str, args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(HIROMA)
        .arg("hot")
        .args(args)
        .env("HIROMA_HOT_PRETEND", what)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.code(), text(&output.stderr))
}

#[test]
fn missing_collapse_or_disabled_thp_is_reported() {
    if !Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
        hiroma_testkit::skip!(Machine, "this kernel has no transparent huge pages");
        return;
    }
    let load = Load::start(8, "sequential", |_| {});
    for (what, expected) in
        [("no-collapse", "MADV_COLLAPSE"), ("thp-never", "echo madvise | sudo tee")]
    {
        let (code, said) = pretending(what, &["manage", "--pid", &load.pid()]);
        if what == "no-collapse" && said.contains("echo madvise") {
            hiroma_testkit::skip!(Machine, "transparent huge pages are really switched off");
            continue;
        }
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(expected) && said.contains("cannot have huge pages"), "{said}");
    }
}

#[test]
fn fallback_backend_is_used_and_named_without_bpf() {
    let load = Load::start(8, "sequential", |_| {});
    let pid = load.pid();
    let show = |lacks: &str, more: &[&str]| {
        let args = [&["hot", "show", "--for", "1ms", "--pid", &pid], more].concat();
        Command::new(HIROMA)
            .args(args)
            .env("HIROMA_HOT_PRETEND", lacks)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let without = show("no-bpf,no-bpf-clear-refs,no-idle-bitmap,no-damon", &[]);
    assert!(without.status.success(), "{}", text(&without.stderr));
    let shown = text(&without.stdout);
    assert!(
        shown.contains("tracked with smaps") && shown.contains("only how much of each mapping"),
        "{shown}"
    );
    let only = show("no-bpf", &["--backend", "bpf"]);
    assert_eq!(only.status.code(), Some(2));
    assert!(text(&only.stderr).contains("bpf: "), "{}", text(&only.stderr));
    let nothing = show("no-bpf,no-bpf-clear-refs,no-idle-bitmap,no-damon,no-smaps", &[]);
    let said = text(&nothing.stderr);
    let named = [
        "no way to track process",
        "bpf: ",
        "bpf-clear-refs: ",
        "idle-bitmap: ",
        "damon: ",
        "smaps: ",
    ];
    assert!(
        nothing.status.code() == Some(2) && named.iter().all(|name| said.contains(name)),
        "{said}"
    );
}

#[test]
fn kernel_thread_is_refused() {
    if fs::read_to_string("/proc/2/comm").ok().as_deref() != Some("kthreadd\n") {
        hiroma_testkit::skip!(Machine, "process 2 is not the kernel's here");
        return;
    }
    for command in ["show", "manage"] {
        let refused = hot(&[command, "--pid", "2"]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            text(&refused.stderr).contains("is a thread of the kernel"),
            "{}",
            text(&refused.stderr)
        );
    }
}
