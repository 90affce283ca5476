//! `hiroma hot manage --measure`: what huge pages gain, measured on the process itself.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::hot::{Load, hot, possible, text};
use common::{HIROMA, compile};

/// Touches 32 MiB for as many seconds as its first argument says. With a second one, it writes to
/// /dev/null after each 2,000 touches.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LEN (32ul << 20)

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, 9);
    int out = open("/dev/null", O_WRONLY);
    volatile char *memory = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (unsigned long at = 0; at < LEN; at += 4096)
        memory[at] = 1;
    unsigned long at = 0;
    for (time_t end = time(0) + atoi(argv[1]); time(0) < end;) {
        for (int i = 0; i < 2000; i++, at = (at + 4096 * 37 + 64) % LEN)
            memory[at]++;
        if (argc > 2 && write(out, "x", 1) != 1)
            return 2;
    }
    return 0;
}
"#;

fn started(program: &Path, seconds: &str, writes: bool) -> Load {
    let mut command = Command::new(program);
    command.arg(seconds).args(writes.then_some("writes"));
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    Load { pid: child.id(), child, base: 0, bytes: 32 << 20 }
}

fn measured(load: &mut Load) -> String {
    let pid = load.pid.to_string();
    let managed = Command::new(HIROMA)
        .args(["hot", "manage", "--measure=500ms", "--pid", &pid])
        .output()
        .unwrap();
    assert!(managed.status.success(), "{}", text(&managed.stderr));
    assert!(load.child.wait().unwrap().success());
    text(&managed.stderr)
}

#[test]
fn gain_of_a_process_that_writes_is_measured_and_explained() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "gain", PROGRAM, &[]);
    let mut tries = ["25", "60", "120"].into_iter().map(|seconds| {
        let mut load = started(&program, seconds, true);
        let told = measured(&mut load);
        (load, told)
    });
    // On a busy machine a process may get too little of the processor.
    let is_known = |(_, told): &(Load, String)| !told.contains("uses the processor too little");
    let (load, told) = tries.find(is_known).expect("it gets the processor in two minutes");
    assert!(told.contains("for each call that reads or writes with huge pages"), "{told}");
    assert!(told.contains("6 pairs of turns of 0.5 s, measured on the process itself"), "{told}");
    let explained = hot(&["explain", "--pid", &load.pid.to_string()]);
    assert!(text(&explained.stdout).contains("tried: "), "{}", text(&explained.stdout));
}

#[test]
fn gain_of_a_process_without_calls_is_not_invented() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut load = started(&compile(dir.path(), "gain", PROGRAM, &[]), "12", false);
    let told = measured(&mut load);
    assert!(told.contains("what huge pages gain is not known"), "{told}");
    assert!(told.contains(" 0 of them were split"), "{told}");
}

#[test]
fn turns_that_show_nothing_are_refused() {
    let refused = hot(&["manage", "--pid", "1", "--measure=1ms"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("choose between 500ms and 10m"));
}
