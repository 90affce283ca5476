//! `hiroma doctor`: checks what this machine allows, and prints the command that fixes each
//! problem.

use std::fs;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use hiroma_far::config::PathChoice;
use hiroma_sys::cpu;
use hiroma_sys::host::proc;
use hiroma_units::Bytes;
use rustix::fs::{OFlags, statvfs};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::rights::{self, ALLOW_NOW, KernelVersion, sysctl};
use hiroma_sys::host::memory::Limits;

/// Check what this machine allows, and print how to fix what is missing.
///
/// Prints one line for each thing that far memory needs or profits from, followed by the command
/// that fixes it if it is missing. The exit code is 0 if `hiroma run` can work, and 1 if something
/// that it requires is missing.
#[derive(clap::Args)]
pub struct Args {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Works, but is slower or offers less.
    Weak,
    /// `hiroma run` cannot work without it.
    Lacks,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    mend: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, state: State::Ok, found: found.into(), mend: None }
    }

    fn weak(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
        Check { name, state: State::Weak, found: found.into(), mend: Some(mend.into()) }
    }

    fn lacks(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
        Check { name, state: State::Lacks, found: found.into(), mend: Some(mend.into()) }
    }
}

/// Runs all checks and prints the results.
pub fn main(args: Args) -> Result<ExitCode> {
    let mut checks =
        vec![kernel(), userfaultfd(), library(), address_space(), overcommit(), map_count()];
    checks.extend([
        huge_pages(),
        free_huge_pages(),
        memory(),
        cgroup(),
        scheduling(),
        accessed_bits(),
        io_uring(),
        file_store(),
        direct_io(),
        loopback(),
    ]);
    let works = checks.iter().all(|check| check.state != State::Lacks);
    if args.json {
        writeln!(
            io::stdout(),
            "{}",
            serde_json::to_string_pretty(&serde_json::json!({ "works": works, "checks": checks }))?
        )?;
    } else {
        print(&checks, works)?;
    }
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(checks: &[Check], works: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for check in checks {
        let state = match check.state {
            State::Ok => "ok",
            State::Weak => "weak",
            State::Lacks => "lacks",
        };
        writeln!(out, "{state:5}  {:16} {}", check.name, check.found)?;
        if let Some(mend) = &check.mend {
            writeln!(out, "       {:16} -> {mend}", "")?;
        }
    }
    writeln!(
        out,
        "{}",
        if works {
            "hiroma run can work here."
        } else {
            "hiroma run cannot work here until what is lacking is mended."
        }
    )
}

fn kernel() -> Check {
    const NAME: &str = "kernel";
    let newer = "install a newer kernel (Debian 12: sudo apt install -t bookworm-backports linux-image-amd64)";
    match KernelVersion::running() {
        None => {
            Check::weak(NAME, "of unknown version", "run `uname -r`: it should be 6.8 or newer")
        }
        Some(version) if version < KernelVersion::OLDEST => Check::lacks(
            NAME,
            format!("Linux {version} is older than {}", KernelVersion::OLDEST),
            newer,
        ),
        Some(version) if version < KernelVersion::FULL => Check::weak(
            NAME,
            format!(
                "Linux {version}: fallback path, slower; the full path needs {}",
                KernelVersion::FULL
            ),
            newer,
        ),
        Some(version) => Check::ok(NAME, format!("Linux {version}")),
    }
}

fn userfaultfd() -> Check {
    match rights::best_path() {
        Ok(PathChoice::Full) => Check::ok("userfaultfd", "allowed: full path"),
        Ok(_) => Check::ok("userfaultfd", "allowed: fallback path"),
        Err(why) => Check::lacks("userfaultfd", why, ALLOW_NOW),
    }
}

fn library() -> Check {
    match hiroma_run::preload::find() {
        Ok(path) => Check::ok("preload library", path.display().to_string()),
        Err(error) => Check::lacks("preload library", error.to_string(), "make build"),
    }
}

fn address_space() -> Check {
    match getrlimit(Resource::As).current {
        None => Check::ok("address space", "not limited"),
        Some(bytes) if bytes >= 4 << 30 => Check::weak(
            "address space",
            format!("limited to {}: managed memory gets half of it", Bytes(bytes)),
            "ulimit -v unlimited",
        ),
        Some(bytes) => Check::lacks(
            "address space",
            format!("limited to {}", Bytes(bytes)),
            "ulimit -v unlimited",
        ),
    }
}

fn overcommit() -> Check {
    match sysctl("vm/overcommit_memory").as_deref() {
        Some("2") => Check::weak(
            "overcommit",
            "mode 2: all memory that programs ask for must fit into memory and swap, far or not",
            "sudo sysctl -w vm.overcommit_memory=0",
        ),
        mode => Check::ok("overcommit", format!("mode {}", mode.unwrap_or("unknown"))),
    }
}

fn map_count() -> Check {
    const USUAL: u64 = 65_530;
    match sysctl("vm/max_map_count").and_then(|count| count.parse::<u64>().ok()) {
        Some(count) if count < USUAL => Check::weak(
            "vm.max_map_count",
            format!("{count}, less than usual"),
            "sudo sysctl -w vm.max_map_count=1048576",
        ),
        Some(count) => Check::ok("vm.max_map_count", count.to_string()),
        None => Check::weak("vm.max_map_count", "unknown", "mount /proc"),
    }
}

fn huge_pages() -> Check {
    const NAME: &str = "huge pages";
    let enabled =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let mode = enabled.split('[').nth(1).and_then(|rest| rest.split(']').next());
    match mode {
        Some("never") => Check::weak(
            NAME,
            "off: streams move 4 KiB at a time",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some(mode) => Check::ok(NAME, format!("{mode} (transparent)")),
        None => Check::weak(
            NAME,
            "the kernel has none",
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
    }
}

/// Counts the free memory that is available in blocks of 2 MiB and larger.
fn free_huge_pages() -> Check {
    const NAME: &str = "free huge pages";
    let Ok(buddies) = fs::read_to_string("/proc/buddyinfo") else {
        return Check::ok(NAME, "not known without /proc/buddyinfo");
    };
    // A line is `Node 0, zone Normal`, followed by the number of free blocks of order 0, 1, ...; 2
    // MiB is order 9.
    let counts = |line: &str| {
        line.split_whitespace()
            .skip(4)
            .map(|count| count.parse::<u64>().unwrap_or(0))
            .collect::<Vec<_>>()
    };
    let extents = buddies
        .lines()
        .map(|line| {
            counts(line)
                .iter()
                .enumerate()
                .skip(9)
                .map(|(order, count)| count << (order - 9))
                .sum::<u64>()
        })
        .sum::<u64>();
    let free = Bytes(extents << 21);
    if extents >= 64 {
        Check::ok(NAME, format!("{free} of free memory is in pieces of 2 MiB"))
    } else {
        Check::weak(
            NAME,
            format!("only {free} of free memory is in pieces of 2 MiB"),
            "echo 1 | sudo tee /proc/sys/vm/compact_memory",
        )
    }
}

fn memory() -> Check {
    let available = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| Some(Bytes(proc::value(&text, "MemAvailable:")? << 10)));
    let available = available.map_or(String::new(), |bytes| format!(", {bytes} available"));
    Check::ok("memory", format!("{}{available}", Limits::read().machine))
}

fn cgroup() -> Check {
    match Limits::read().cgroup {
        Some((limit, file)) => {
            Check::ok("cgroup", format!("limited to {limit} by {}", file.display()))
        }
        None => Check::ok("cgroup", "no limit"),
    }
}

/// Whether the pager may keep its fault thread beside the faulting thread
/// (`docs/internals/far-memory.md`).
fn scheduling() -> Check {
    const NAME: &str = "scheduling";
    if cpu::may_raise_from_idle() {
        Check::ok(
            NAME,
            "threads may come back from SCHED_IDLE: faults are answered on the processor where they happen",
        )
    } else {
        Check::weak(
            NAME,
            "threads may not come back from SCHED_IDLE: faults of a single thread take three times as long",
            "sudo prlimit --pid $$ --nice=20 (for good: echo '* - nice 0' | sudo tee /etc/security/limits.d/60-hiroma.conf)",
        )
    }
}

fn accessed_bits() -> Check {
    const NAME: &str = "accessed bits";
    match hiroma_run::accessed::may_read() {
        Ok(()) => Check::ok(NAME, "can be read: what was used last stays in local memory"),
        Err(why) => Check::weak(
            NAME,
            format!("{why}: the pages to evict are chosen by faults alone"),
            "sudo hiroma run ..., on Linux 6.1 or newer, x86-64, without kernel lockdown",
        ),
    }
}

fn io_uring() -> Check {
    match io_uring::IoUring::new(4) {
        Ok(_) => Check::ok("io_uring", "allowed"),
        Err(error) => Check::weak(
            "io_uring",
            format!("{error}: the file store uses threads instead"),
            "sudo sysctl -w kernel.io_uring_disabled=0 (or the container's seccomp profile)",
        ),
    }
}

const STORE_DIR: &str = "/var/tmp";

fn file_store() -> Check {
    let usable = tempfile::tempfile_in(STORE_DIR).and_then(|_| Ok(statvfs(STORE_DIR)?));
    match usable {
        Ok(found) => {
            let free = Bytes(found.f_bavail * found.f_frsize);
            if free.0 >= 1 << 30 {
                Check::ok(STORE_DIR, format!("{free} free for the file store"))
            } else {
                Check::weak(
                    STORE_DIR,
                    format!("only {free} free for the file store"),
                    "name a directory with more room: hiroma run --store compressed,file:DIR",
                )
            }
        }
        Err(error) => Check::weak(
            STORE_DIR,
            format!("cannot be written to: {error}"),
            "name another directory: hiroma run --store compressed,file:DIR",
        ),
    }
}

fn direct_io() -> Check {
    const NAME: &str = "direct I/O";
    let opened = tempfile::tempdir_in(STORE_DIR).and_then(|dir| {
        let direct = OFlags::DIRECT.bits() as i32;
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(direct)
            .open(Path::new(dir.path()).join("direct"))
    });
    match opened {
        Ok(_) => Check::ok(NAME, format!("{STORE_DIR} allows it")),
        Err(error) => Check::weak(
            NAME,
            format!("not on {STORE_DIR} ({error}): the page cache holds a second copy"),
            "name a directory on ext4 or XFS: hiroma run --store compressed,file:DIR",
        ),
    }
}

fn loopback() -> Check {
    let connected = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| TcpStream::connect(listener.local_addr()?));
    match connected {
        Ok(_) => Check::ok("loopback", "works"),
        Err(error) => Check::weak(
            "loopback",
            format!("{error}: no memory server on this machine"),
            "sudo ip link set lo up",
        ),
    }
}
