//! A program with far memory, watched and controlled from outside.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use common::{compile, hiroma, output};
use serde_json::Value;

/// Fills memory, reports that, waits for a line, and checks the memory. It is twice as large as any
/// limit in these tests.
const SWEEP: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    size_t words = (size_t)96 << 17;
    unsigned long *memory = malloc(words * 8), seed = 1;
    for (size_t i = 0; i < words; i++) memory[i] = seed = seed * 6364136223846793005UL + 1442695040888963407UL;
    printf("filled %d\n", getpid());
    fflush(stdout);
    getchar();
    seed = 1;
    for (size_t i = 0; i < words; i++)
        if (memory[i] != (seed = seed * 6364136223846793005UL + 1442695040888963407UL)) return puts("wrong"), 1;
    return puts("right"), 0;
}
"#;

struct Sweep {
    run: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pid: u32,
}

impl Sweep {
    fn start(dir: &Path, options: &[&str]) -> Sweep {
        let program = compile(dir, "sweep", SWEEP, &[]);
        let mut command = hiroma(["run", "--local", "32M", "--store", "compressed:256M"]);
        command
            .args(options)
            .arg("--")
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut run = command.spawn().unwrap();
        let (input, mut output) =
            (run.stdin.take().unwrap(), BufReader::new(run.stdout.take().unwrap()));
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let pid = line.trim().strip_prefix("filled ").and_then(|pid| pid.parse().ok());
        let pid = pid.unwrap_or_else(|| panic!("the program said {line:?}"));
        Sweep { run, input, output, pid }
    }

    fn finish(mut self) -> String {
        self.input.write_all(b"\n").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "right\n");
        let ended = self.run.wait_with_output().unwrap();
        assert!(ended.status.success());
        String::from_utf8(ended.stderr).unwrap()
    }
}

fn counters(pid: u32) -> Vec<Value> {
    let told = output(["ctl", &pid.to_string(), "--json"]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    serde_json::from_slice(&told.stdout).unwrap()
}

#[test]
fn ctl_shows_and_changes_a_running_limit() {
    let dir = tempfile::tempdir().unwrap();
    let sweep = Sweep::start(dir.path(), &[]);
    // Once by the id of the program, and once by that of its `hiroma run`.
    for pid in [sweep.pid, sweep.run.id()] {
        let processes = counters(pid);
        assert_eq!(processes.len(), 1);
        let number = |name: &str| processes[0][name].as_u64().unwrap();
        assert_eq!((number("pid"), number("limit_bytes")), (u64::from(sweep.pid), 32 << 20));
        assert!(
            number("local_bytes") <= 48 << 20 && number("far_bytes") >= 48 << 20,
            "{processes:?}"
        );
    }
    let told = output(["ctl", &sweep.pid.to_string(), "--local", "64M"]);
    let text = String::from_utf8(told.stdout).unwrap();
    assert!(
        told.status.success()
            && text.starts_with(&format!("{}: local ", sweep.pid))
            && text.contains("(limit 64MiB, "),
        "{text}"
    );
    assert_eq!(counters(sweep.pid)[0]["limit_bytes"].as_u64(), Some(64 << 20));
    sweep.finish();
}

#[test]
fn summary_and_statistics_report_far_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stats.json");
    let summary = Sweep::start(dir.path(), &["--stats", file.to_str().unwrap()]).finish();
    assert!(
        summary.starts_with("hiroma: ")
            && summary.contains("(limit 32MiB), far ")
            && summary.lines().count() == 1,
        "{summary}"
    );
    let stats: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let number = |name: &str| stats[name].as_u64().unwrap();
    assert!(
        number("local_bytes_max") <= 48 << 20 && number("far_bytes_max") >= 48 << 20,
        "{stats}"
    );
    let process = &stats["processes"][0];
    assert_eq!(process["pid"].as_u64(), Some(number("main_pid")));
    assert_eq!(process["faults"], stats["total"]["faults"]);
    let latency = |name: &str| process[name].as_u64().unwrap();
    assert!(
        latency("fault_latency_ns_p50") <= latency("fault_latency_ns_p99")
            && latency("fault_latency_ns_p99") <= latency("fault_latency_ns_max")
    );
}

#[test]
fn progress_shows_where_the_memory_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut sweep = Sweep::start(dir.path(), &["--progress=always"]);
    // The line appears while the program waits, however long that takes.
    let lines = BufReader::new(sweep.run.stderr.take().unwrap()).lines();
    let line = lines.map(Result::unwrap).find(|line| line.contains(" of 32MiB, far ")).unwrap();
    assert!(
        line.starts_with("hiroma: local ")
            && line.contains(" faults/s, p99 ")
            && line.ends_with("% of 256MiB"),
        "{line}"
    );
    drop(sweep.input);
    let mut said = String::new();
    sweep.output.read_line(&mut said).unwrap();
    assert_eq!(said, "right\n");
    sweep.run.wait().unwrap();
}

#[test]
fn children_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stats.json");
    let run = hiroma([
        "run",
        "--quiet",
        "--local",
        "32M",
        "--manage-from",
        "0",
        "--stats",
        file.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "sort /etc/passwd >/dev/null; sort /etc/group >/dev/null",
    ])
    .status();
    assert!(run.unwrap().success());
    let stats: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let pids: Vec<u64> = stats["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["pid"].as_u64().unwrap())
        .collect();
    assert!(pids.len() >= 3 && pids.contains(&stats["main_pid"].as_u64().unwrap()), "{pids:?}");
}

#[test]
fn children_without_far_memory_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let alone = compile(dir.path(), "alone", "int main(void) { return 0; }", &["-static"]);
    let source = r#"
        #define _GNU_SOURCE
        #include <errno.h>
        #include <fcntl.h>
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <spawn.h>
        #include <stddef.h>
        #include <string.h>
        #include <sys/prctl.h>
        #include <sys/syscall.h>
        #include <sys/wait.h>
        #include <unistd.h>
        #define CHILD(start) do { pid_t pid = vfork(); if (!pid) { start; _exit(9); } waitpid(pid, 0, 0); } while (0)
        int main(int count, char **words)
        {
            char *all[] = { "alone", 0 }, *none[] = { 0 };
            int file = open(words[1], O_RDONLY);
            pid_t pid;
            CHILD(execve(words[1], all, environ));
            CHILD(execv(words[1], all));
            CHILD(execl(words[1], "alone", (char *)0));
            CHILD(fexecve(file, all, environ));
            CHILD(execveat(file, "", all, environ, AT_EMPTY_PATH));
            posix_spawn(&pid, words[1], 0, 0, all, environ);
            waitpid(pid, 0, 0);
            CHILD(execle("/bin/sleep", "sleep", "0", "0", "0", "0", "0", "0", "0", (char *)0, none));
            CHILD(execvpe("sleep", (char *[]){ "sleep", "0", 0 }, none));
            CHILD(execlp("sleep", "sleep", "0", "0", "0", "0", "0", "0", "0", (char *)0));
            CHILD(execvp("no such program", all));
            // The kernel's answer to bad pointers.
            if (execve((char *)8, all, environ) != -1 || errno != EFAULT) return 1;
            if (execve(words[1], all, (char **)8) != -1 || errno != EFAULT) return 2;
            // A filter that allows what the program needs, and no more: no note is taken.
            struct sock_filter rules[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_writev, 1, 0),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            };
            struct sock_fprog filter = { 5, rules };
            int status;
            pid = vfork();
            if (!pid) {
                prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
                execv(words[1], all);
                _exit(9);
            }
            waitpid(pid, &status, 0);
            return status ? 3 : 0;
        }"#;
    let parent = compile(dir.path(), "parent", source, &[]);
    let file = dir.path().join("stats.json");
    let run = hiroma([
        "run",
        "--local",
        "32M",
        "--stats",
        file.to_str().unwrap(),
        "--",
        parent.to_str().unwrap(),
    ])
    .arg(&alone)
    .output()
    .unwrap();
    assert_eq!(run.status.code(), Some(0));
    let said = String::from_utf8(run.stderr).unwrap();
    let wanted = "8 children ran without far memory: alone (static), sleep (environment without LD_PRELOAD or HIROMA_CONFIG)";
    assert!(said.trim_end().ends_with(wanted), "{said}");
    let stats: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let counts: Vec<u64> = stats["without_far_memory"]
        .as_array()
        .unwrap()
        .iter()
        .map(|program| program["count"].as_u64().unwrap())
        .collect();
    assert_eq!(counts.iter().sum::<u64>(), 8);
}

#[test]
fn mlock_beyond_the_limit_leaves_working_memory() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
        #include <stdio.h>
        #include <sys/mman.h>
        int main(void)
        {
            size_t size = 200 << 20;
            char *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t at = 0; at < size; at += 64) memory[at] = at / 64;
            if (mlock(memory, 120 << 20)) return 1;
            for (size_t at = 0; at < size; at += 64) if (memory[at] != (char)(at / 64)) return 2;
            puts("right");
            return 0;
        }"#;
    let program = compile(dir.path(), "locked", source, &[]);
    for limit in ["48M", "64M"] {
        let run =
            hiroma(["run", "--local", limit, "--", program.to_str().unwrap()]).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(
            (run.status.code(), run.stdout.as_slice()),
            (Some(0), &b"right\n"[..]),
            "{said}"
        );
        assert!(said.contains("locked") && said.contains("so the limit of"), "{said}");
    }
}

#[test]
fn locked_page_pins_only_itself_per_extent() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
        #include <stdio.h>
        #include <sys/mman.h>
        int main(void)
        {
            size_t size = 256 << 20;
            char *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t at = 0; at < size; at += 64) memory[at] = at / 64;
            for (size_t at = 0; at < size; at += 2 << 20) if (mlock(memory + at + 8192, 4096)) return 1;
            for (size_t at = 0; at < size; at += 64) if (memory[at] != (char)(at / 64)) return 2;
            puts("right");
            return 0;
        }"#;
    let program = compile(dir.path(), "locked", source, &[]);
    let run = hiroma(["run", "--local", "64M", "--hard-limit", "--", program.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(
        (run.status.code(), run.stdout.as_slice()),
        (Some(0), &b"right\n"[..]),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

#[test]
fn read_only_memory_shared_with_children_is_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
        #include <stdio.h>
        #include <sys/mman.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static size_t size = 160 << 20;
        static int check(char *memory)
        {
            for (size_t at = 0; at < size; at += 64) if (memory[at] != (char)(at / 64)) return 2;
            return 0;
        }
        int main(void)
        {
            char *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (size_t at = 0; at < size; at += 64) memory[at] = at / 64;
            mprotect(memory, size, PROT_READ);
            for (int round = 0; round < 2; round++) {
                pid_t child = fork();
                if (!child) _exit(check(memory));
                int status;
                if (check(memory) || waitpid(child, &status, 0) != child || status || check(memory)) return 1;
            }
            puts("right");
            return 0;
        }"#;
    let program = compile(dir.path(), "shared", source, &[]);
    let run = hiroma(["run", "--local", "64M", "--hard-limit", "--", program.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(
        (run.status.code(), run.stdout.as_slice()),
        (Some(0), &b"right\n"[..]),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

#[test]
fn program_survives_exec_of_an_unmanaged_one() {
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n#include <unistd.h>\nint main(void) { sleep(2); puts(\"done\"); return 3; }";
    let alone = compile(dir.path(), "alone", source, &["-static"]);
    let shared = compile(dir.path(), "shared", source, &[]);
    for script in [
        format!("exec {}", alone.display()),
        format!("sleep 0.2; exec env -i {}", shared.display()),
    ] {
        let run = hiroma(["run", "--local", "32M", "--", "sh", "-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(
            (run.status.code(), run.stdout.as_slice()),
            (Some(3), &b"done\n"[..]),
            "{script}: {said}"
        );
        assert!(said.contains("1 child ran without far memory"), "{said}");
    }
}
