//! `hiroma quiet` where parts of the kernel are hidden, and where no processor is idle: the real
//! command, in mount namespaces of its own.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{HIROMA, hiroma, refusal, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// Whether this machine allows hiding parts of the kernel; otherwise reports why not.
fn can_hide() -> bool {
    let tried = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "hidden", "/sys/kernel"])
        .output();
    let can = tried.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        hiroma_testkit::skip!(Machine, "no mount namespace can be had here: {tried:?}");
    }
    can
}

/// Runs the command after the shell script `hide`, in the same mount namespace.
fn hidden(hide: &str, args: &[&str]) -> Output {
    let script = format!("{hide}\nexec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-e", "-c", &script, HIROMA]).args(args).stdin(Stdio::null());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn shown(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Hides tracefs and debugfs. A kernel without them has no such directory, and then there is
/// nothing to hide.
const NO_TRACEFS: &str = "for place in tracing debug; do [ ! -d /sys/kernel/$place ] || mount -t tmpfs hidden /sys/kernel/$place; done";
/// Hides the description of the kernel's types too: then no BPF program can be loaded.
const NO_TYPES: &str = "mount -t tmpfs hidden /sys/kernel";

const BY_BPF: &str = "by BPF, for each gap";
const BY_BOOKS: &str = "/proc (schedstat, stat), over the whole measurement only";

#[test]
fn noise_is_measured_without_tracefs() {
    if !can_hide() {
        return;
    }
    let measure = ["quiet", "measure", "--seconds", "1"];
    // BPF does not need tracefs: without it, the report names what took the time just as well.
    let before = shown(&hidden("", &measure));
    let without = shown(&hidden(NO_TRACEFS, &measure));
    assert_eq!(before.contains(BY_BPF), without.contains(BY_BPF), "{without}");
    assert!(without.contains("Who stole the time"), "{without}");
    let books = shown(&hidden(NO_TYPES, &measure));
    assert!(books.contains(BY_BOOKS) && books.contains("/sys/kernel/btf/vmlinux"), "{books}");
    let bsp = shown(&hidden(NO_TYPES, &["quiet", "bsp", "--steps", "20", "--step-us", "200"]));
    assert!(bsp.contains("/sys/kernel/btf/vmlinux") && bsp.contains("Who came last"), "{bsp}");
}

#[test]
fn daemon_and_advice_work_without_tracefs_and_debugfs() {
    if !can_hide() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let advice = shown(&hidden(NO_TYPES, &["quiet", "advise", "--seconds", "1", "--state", state]));
    assert!(
        advice.contains("kswapd ran") && advice.contains("the file cache fills at"),
        "{advice}"
    );
    // A signal ends the daemon even if it is sent before the daemon can have begun to wait: the
    // daemon reports that it was ready, and ends without an error.
    let serve = format!(
        "{NO_TYPES}\n\"$0\" \"$@\" > {state}/said & read -r line < {state}/lines; kill -TERM $!; wait $!; cat {state}/said; exit 0"
    );
    let lines = dir.path().join("lines");
    assert!(Command::new("mkfifo").arg(&lines).status().unwrap().success());
    let said = dir.path().join("said");
    let asks = thread::spawn(move || {
        wait_until("the daemon is ready", || {
            fs::read_to_string(&said).is_ok_and(|said| said.contains("ready"))
        });
        fs::write(lines, "go\n").unwrap();
    });
    let served = hidden(&serve, &["quiet", "serve", "--dry-run", "--state", state]);
    asks.join().unwrap();
    assert!(shown(&served).contains("ready, dry run"), "{}", text(&served.stderr));
    assert!(
        text(&served.stderr).contains("stopped; everything is as it was"),
        "{}",
        text(&served.stderr)
    );
}

#[test]
fn cache_bound_reports_missing_memory_controller() {
    if !can_hide() {
        return;
    }
    // All hierarchies unmounted; only those of version 1 with the memory controller unmounted; all
    // hidden, but still in the list of mounts.
    let away =
        "while grep -q ' /sys/fs/cgroup' /proc/self/mounts; do umount -R -l /sys/fs/cgroup; done";
    let first = "awk '$3 == \"cgroup\" && $4 ~ /memory/ { print $2 }' /proc/self/mounts | while read -r place; do umount -l \"$place\"; done";
    let covered = "mount -t tmpfs hidden /sys/fs/cgroup";
    for (hide, expected) in [
        (away, "no control group hierarchy is mounted"),
        (first, "the memory controller is not available"),
        (covered, ""),
    ] {
        let output = hidden(hide, &["quiet", "run", "--cache", "16M", "--", "true"]);
        let said = text(&output.stderr);
        if hide == first && output.status.success() {
            hiroma_testkit::skip!(Machine, "the memory controller is in version 2 here");
            continue;
        }
        assert_eq!(output.status.code(), Some(2), "{said}");
        for expected in [
            "no memory control group can be had here",
            expected,
            "without --cache no rights are needed",
        ] {
            assert!(said.contains(expected), "{expected} is missing in {said}");
        }
    }
}

/// The real daemon, with metrics. Ends with the test.
struct Daemon {
    child: Child,
    address: String,
    state: PathBuf,
}

impl Daemon {
    fn start(state: &Path) -> Daemon {
        let journal = state.join("journal");
        let mut command = hiroma([
            "quiet",
            "serve",
            "--metrics",
            "127.0.0.1:0",
            "--state",
            state.to_str().unwrap(),
        ]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(File::create(&journal).unwrap()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = fs::read_to_string(&journal).unwrap();
        assert!(line.contains("ready"), "{said}");
        let address = said
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.split('/').next())
            .unwrap()
            .to_owned();
        Daemon { child, address, state: state.to_owned() }
    }

    fn set(&self, key: &str, value: &str) {
        let (code, said) =
            refusal(["quiet", "set", "--state", self.state.to_str().unwrap(), key, value]);
        assert_eq!(code, Some(0), "{said}");
    }

    /// A metric of node 0; 0 if it does not exist yet.
    fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics).unwrap();
        metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.state.join("journal")).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As many threads as requested, which leave no processor idle, and one that fills the cache at 160
/// MiB/s, until this is dropped.
struct Busy(std::sync::Arc<AtomicBool>, Vec<thread::JoinHandle<()>>);

impl Busy {
    fn start(spinners: usize, file: &Path) -> Busy {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..spinners {
            let stop = stop.clone();
            threads.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }));
        }
        let (mut file, stopped) = (File::open(file).unwrap(), stop.clone());
        threads.push(thread::spawn(move || {
            let mut bytes = vec![0; 8 << 20];
            while !stopped.load(Ordering::Relaxed) {
                file.read_exact(&mut bytes).unwrap();
                thread::sleep(Duration::from_millis(50));
            }
        }));
        Busy(stop, threads)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Serializes the tests: to one daemon, the pages that the other one drops look like a cache that
/// does not grow.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn free_bytes() -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("MemFree:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn daemon_acts_little_when_processors_are_busy() {
    if !rustix::process::geteuid().is_root() {
        return hiroma_testkit::skip!(Root, "early reclaim needs root");
    }
    let _alone = alone();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (state, file) = (dir.path().join("state"), dir.path().join("stream"));
    fs::create_dir(&state).unwrap();
    File::create(&file).unwrap().set_len(1 << 40).unwrap();
    let mut daemon = Daemon::start(&state);
    if !daemon.said().contains("mechanism: ") {
        return hiroma_testkit::skip!(Machine, "{}", daemon.said());
    }
    // With these settings the stream counts, however slow it is here and whatever memory other
    // programs take.
    daemon.set("fill_bytes_s_min", "1M");
    daemon.set("cause_permille", "51%");
    let busy = Busy::start(thread::available_parallelism().unwrap().get(), &file);
    // With enough free memory nothing is done, but the load of the processors is checked.
    let looks = || daemon.metric("hiroma_quiet_verdicts_total{node=\"0\",reason=\"enough\"}");
    wait_until("looks while there is enough", || looks() >= 2);
    // A little more than is free, so that the daemon never reclaims the whole cache. One such check
    // is enough: other programs here may need the reclaimed pages, and then the daemon pauses.
    wait_until("a look with busy processors", || {
        daemon.set("free_bytes_min", &(free_bytes() + (512 << 20)).to_string());
        daemon.metric("hiroma_quiet_verdicts_total{node=\"0\",reason=\"filling_busy\"}") >= 1
    });
    let batches = || daemon.metric("hiroma_quiet_batches_total{node=\"0\"}");
    wait_until("a batch", || batches() >= 1);
    kill_process(Pid::from_raw(daemon.child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert!(daemon.child.wait().unwrap().success());
    drop(busy);
    let said = daemon.said();
    assert!(said.contains("stopped; everything is as it was"), "{said}");
    assert!(said.contains("all processors are busy: only a little is reclaimed"), "{said}");
}

#[test]
fn streams_are_dropped_behind_without_kernel_reclaim() {
    let _alone = alone();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let (state, file) = (dir.path().join("state"), dir.path().join("stream"));
    fs::create_dir(&state).unwrap();
    File::create(&file).unwrap().set_len(1 << 40).unwrap();
    if !rustix::process::geteuid().is_root() {
        return hiroma_testkit::skip!(Root, "the files of other programs are root's to look at");
    }
    let daemon = Daemon::start(&state);
    if !daemon.said().contains("fadvise, behind programs") {
        return hiroma_testkit::skip!(Machine, "{}", daemon.said());
    }
    daemon.set("early_reclaim", "off");
    wait_until("the setting is taken", || {
        daemon.said().contains("early_reclaim is off now, was on")
    });
    daemon.set("fill_bytes_s_min", "1M");
    daemon.set("cause_permille", "51%");
    let batches = || daemon.metric("hiroma_quiet_batches_total{node=\"0\"}");
    let before = batches();
    let _stream = Busy::start(0, &file);
    wait_until("something is dropped", || {
        daemon.set("free_bytes_min", &(free_bytes() + (512 << 20)).to_string());
        daemon.metric("hiroma_quiet_dropped_bytes_total") > 0
    });
    let line = format!("dropping what is behind in {}", file.display());
    wait_until("the file is named", || daemon.said().contains(&line));
    assert_eq!(batches(), before, "{}", daemon.said());
}
