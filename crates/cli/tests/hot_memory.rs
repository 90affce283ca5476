//! `hiroma hot` on special kinds of memory, and where the kernel refuses to make huge pages.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::hot::{Load, hot, possible, text};
use common::{HIROMA, compile};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// 6 MiB each of private, locked and shared memory and of a privately mapped file, all touched
/// repeatedly. Prints their addresses.
const MIXED: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LEN (6ul << 20)
#define HUGE (2ul << 20)

/* Aligned, between pages of no access, so that no two are joined. */
static char *place(void)
{
    char *room = mmap(0, LEN + 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (char *)(((unsigned long)room + HUGE) & ~(HUGE - 1));
}

static char *map(const char *name, int flags, int file)
{
    char *memory = mmap(place(), LEN, PROT_READ | PROT_WRITE, MAP_FIXED | flags, file, 0);
    if (memory == MAP_FAILED)
        exit(2);
    for (unsigned long at = 0; at < LEN; at += 4096)
        memory[at] = 1;
    printf("%s %lu\n", name, (unsigned long)memory);
    return memory;
}

int main(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, 9);
    FILE *file = fopen(argv[1], "w+");
    if (!file || ftruncate(fileno(file), LEN))
        return 3;
    char *all[] = {
        map("private", MAP_PRIVATE | MAP_ANONYMOUS, -1),
        map("locked", MAP_PRIVATE | MAP_ANONYMOUS, -1),
        map("shared", MAP_SHARED | MAP_ANONYMOUS, -1),
        map("file", MAP_PRIVATE, fileno(file)),
    };
    if (mlock(all[1], LEN))
        return 4;
    puts("ready");
    fflush(stdout);
    for (;;)
        for (int each = 0; each < 4; each++)
            for (unsigned long at = 0; at < LEN; at += 4096)
                ((volatile char *)all[each])[at]++;
}
"#;

/// 8 MiB that are touched repeatedly. In each 2 MiB, a pipe holds a reference to one page. Ends
/// with its parent.
const PINNED: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#define LEN (8ul << 20)
#define HUGE (2ul << 20)

int main(void)
{
    int ends[2];
    prctl(PR_SET_PDEATHSIG, 9);
    char *room = mmap(0, LEN + 2 * HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    volatile char *memory = (char *)(((unsigned long)room + HUGE) & ~(HUGE - 1));
    mprotect((void *)memory, LEN, PROT_READ | PROT_WRITE);
    for (unsigned long at = 0; at < LEN; at += 4096)
        memory[at] = 1;
    if (pipe(ends))
        return 2;
    for (unsigned long at = 0; at < LEN; at += HUGE) {
        struct iovec page = {(void *)(memory + at), 4096};
        if (vmsplice(ends[1], &page, 1, 0) != 4096)
            return 3;
    }
    printf("private %lu\nready\n", (unsigned long)memory);
    fflush(stdout);
    for (;;)
        for (unsigned long at = 0; at < LEN; at += 4096)
            memory[at]++;
}
"#;

/// Starts a program of these tests; returns it and the addresses that it printed.
fn started(program: &Path, args: &[&Path], bytes: u64) -> (Load, BTreeMap<String, u64>) {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut areas = BTreeMap::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        match line.split_once(' ') {
            Some((name, address)) => _ = areas.insert(name.to_owned(), address.parse().unwrap()),
            None => break,
        }
    }
    let load = Load {
        pid: child.id(),
        child,
        base: areas.get("private").copied().unwrap_or_default(),
        bytes,
    };
    (load, areas)
}

/// Manages once, and returns its final message.
fn manage_once(load: &Load) -> String {
    let managed = common::hot::manage_once(load, &["--window", "50ms"]);
    assert!(managed.status.success(), "{}", text(&managed.stderr));
    text(&managed.stderr)
}

/// The kernel's refusals since managing last began, by address.
fn refusals(load: &Load) -> BTreeMap<u64, Vec<String>> {
    let told = text(&hot(&["explain", "--json", "--pid", &load.pid()]).stdout);
    let mut refused: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for entry in told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        match entry["what"].as_str() {
            Some("begin") => refused.clear(),
            Some("refused") => {
                let address = entry["address"].as_u64().unwrap();
                refused
                    .entry(address)
                    .or_default()
                    .push(entry["error"].as_str().unwrap().to_owned());
            }
            _ => {}
        }
    }
    // Only those of the hot memory: other memory of the process may have been touched too.
    refused.retain(|address, _| (load.base..load.base + load.bytes).contains(address));
    refused
}

/// Manages until the refusals satisfy `enough`. On a busy machine a call may find nothing to do
/// because the process has not run yet.
fn manage_until(
    load: &Load,
    enough: impl Fn(&BTreeMap<u64, Vec<String>>) -> bool,
) -> BTreeMap<u64, Vec<String>> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let said = manage_once(load);
        let refused = refusals(load);
        if enough(&refused) {
            return refused;
        }
        assert!(Instant::now() < deadline, "{refused:?}\n{said}");
    }
}

#[test]
fn locked_shared_and_file_memory_is_skipped() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "mixed", MIXED, &[]);
    let (mut load, areas) = started(&program, &[&dir.path().join("file")], 6 * MIB);
    if areas.len() < 4 || load.child.try_wait().unwrap().is_some() {
        hiroma_testkit::skip!(Machine, "no memory may be locked here, or mapped");
        return;
    }
    let counts = || -> BTreeMap<&str, Vec<u64>> {
        let shown = hot(&[
            "show",
            "--json",
            "--for",
            "1ms",
            "--window",
            "200ms",
            "--backend",
            "bpf",
            "--pid",
            &load.pid(),
        ]);
        assert!(shown.status.success(), "{}", text(&shown.stderr));
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        let mut counts: BTreeMap<&str, Vec<u64>> =
            areas.keys().map(|name| (name.as_str(), Vec::new())).collect();
        for run in shown["ranges"].as_array().unwrap() {
            let (start, end) = (run["start"].as_u64().unwrap(), run["end"].as_u64().unwrap());
            for page in (start..end).step_by(4096) {
                let area =
                    areas.iter().find(|(_, base)| (**base..**base + load.bytes).contains(&page));
                if let Some((name, _)) = area {
                    counts.get_mut(name.as_str()).unwrap().push(run["count"].as_u64().unwrap());
                }
            }
        }
        counts
    };
    let deadline = Instant::now() + LIMIT;
    loop {
        let counts = counts();
        assert!(counts["shared"].is_empty() && counts["file"].is_empty(), "{counts:?}");
        assert_eq!((counts["locked"].len(), counts["locked"].iter().sum::<u64>()), (1536, 0));
        if counts["private"].iter().all(|&count| count > 0) {
            break;
        }
        assert!(Instant::now() < deadline, "what is private is not seen to be hot: {counts:?}");
    }
    let deadline = Instant::now() + LIMIT;
    while load.huge_bytes() == 0 {
        manage_once(&load);
        assert!(Instant::now() < deadline, "nothing became huge");
    }
    for name in ["locked", "shared", "file"] {
        load.base = areas[name];
        assert_eq!(load.huge_bytes(), 0, "{name}");
    }
}

#[test]
fn uncollapsible_range_is_tried_once() {
    if !possible() {
        return;
    }
    // With MADV_NOHUGEPAGE the kernel returns EINVAL.
    let load = Load::start(8, "sequential", |job| job["pages"] = "small".into());
    let refused = manage_until(&load, |refused| !refused.is_empty());
    assert!(
        refused.values().all(|errors| errors.len() == 1 && errors[0].contains("Invalid argument")),
        "{refused:?}"
    );
    assert_eq!(load.huge_bytes(), 0);
}

#[test]
fn temporarily_refused_range_is_tried_three_times() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), "pinned", PINNED, &[]);
    let (load, areas) = started(&program, &[], 8 * MIB);
    assert!(!areas.is_empty(), "it did not start");
    let refused = manage_until(&load, |refused| refused.values().any(|errors| errors.len() >= 3));
    assert!(refused.values().all(|errors| errors.len() <= 3), "{refused:?}");
    assert!(
        !refused.values().flatten().any(|error| error.contains("Invalid argument")),
        "{refused:?}"
    );
    assert_eq!(load.huge_bytes(), 0);
    assert!(text(&hot(&["explain", "--all", "--pid", &load.pid()]).stdout).contains("refused"));
}

/// A memory cgroup for these tests, of either version.
struct Cgroup {
    dir: PathBuf,
    limit: &'static str,
}

impl Cgroup {
    /// None, and a reported skip, where this user may not make a cgroup.
    fn new() -> Option<Cgroup> {
        let name = format!("hiroma-test-{}", std::process::id());
        for (root, limit) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let dir = Path::new(root).join(&name);
            if fs::create_dir(&dir).is_err() {
                continue;
            }
            let cgroup = Cgroup { dir, limit };
            if cgroup.dir.join(limit).exists() {
                return Some(cgroup);
            }
        }
        hiroma_testkit::skip!(Machine, "no memory cgroup may be made here");
        None
    }

    /// Sets the limit to `more` bytes above the present usage.
    fn allow(&self, more: u64) {
        let used = ["memory.usage_in_bytes", "memory.current"]
            .iter()
            .find_map(|name| fs::read_to_string(self.dir.join(name)).ok());
        let used: u64 = used.unwrap().trim().parse().unwrap();
        fs::write(self.dir.join(self.limit), (used + more).to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // All processes in it have been reaped, but the kernel may need a moment.
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.dir).is_err() && self.dir.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn process_keeps_small_pages_when_memory_is_short() {
    if !possible() {
        return;
    }
    if fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1) {
        hiroma_testkit::skip!(Machine, "where there is swap the kernel makes room");
        return;
    }
    // Declared first, so dropped last.
    let Some(cgroup) = Cgroup::new() else { return };
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.dir.display());
    let mut job = Command::new("sh");
    job.args(["-c", &enter, "sh"])
        .arg(common::bench())
        .args(["huge-load", r#"{"bytes":16777216,"pattern":"sequential","pages":"default"}"#]);
    let Some(load) = Load::of(job, 16 * MIB, false) else {
        hiroma_testkit::skip!(Machine, "nothing may be put into a cgroup here");
        return;
    };
    // Too little for a huge page.
    cgroup.allow(MIB);
    let refused = manage_until(&load, |refused| !refused.is_empty());
    // `madvise(2)`: EBUSY if the cgroup has no room, ENOMEM if the machine has none.
    let told = |error: &String| {
        error.contains("cgroup has no room") || error.contains("no free huge page")
    };
    assert!(refused.values().flatten().all(told), "{refused:?}");
    assert_eq!(load.huge_bytes(), 0);
    // With room it succeeds, with the same process.
    cgroup.allow(64 * MIB);
    let deadline = Instant::now() + LIMIT;
    while load.huge_bytes() == 0 {
        manage_once(&load);
        assert!(Instant::now() < deadline, "nothing became huge");
    }
}

#[test]
fn observer_of_a_managed_process_is_warned() {
    if !possible() {
        return;
    }
    let load = Load::start(8, "sequential", |_| {});
    let mut manager = Command::new(HIROMA);
    let mut manager = manager
        .args(["hot", "manage", "--dry-run", "--pid", &load.pid()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    // It prints this once it has the ledger.
    BufReader::new(manager.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    // Two at a time beside the manager: none fails, and each reports the manager.
    let args = ["hot", "show", "--for", "1ms", "--pid", &load.pid()];
    let look = || {
        Command::new(HIROMA)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let lookers = [look(), look()].map(|looker| looker.wait_with_output().unwrap());
    manager.kill().unwrap();
    let id = manager.id();
    manager.wait().unwrap();
    for looker in lookers {
        assert!(looker.status.success(), "{}", text(&looker.stderr));
        assert!(
            text(&looker.stderr).contains(&format!("process {id} manages process {}", load.pid())),
            "{}",
            text(&looker.stderr)
        );
    }
    // The manager has ended: there is no such line.
    let alone = hot(&["show", "--for", "1ms", "--pid", &load.pid()]);
    assert!(
        alone.status.success() && !text(&alone.stderr).contains("manages"),
        "{}",
        text(&alone.stderr)
    );
}
