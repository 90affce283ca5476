//! Processes for tests of `hiroma hot`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use super::HIROMA;

/// A process that touches some of its memory until it is dropped.
pub struct Load {
    pub child: Child,
    /// The process that touches memory: `child`, or the child of `child` if that only starts it.
    pub pid: u32,
    pub base: u64,
    pub bytes: u64,
}

impl Load {
    pub fn start(mib: u64, pattern: &str, change: impl FnOnce(&mut Value)) -> Load {
        Load::start_by(&[], mib, pattern, change).expect("the load does not start")
    }

    /// Starts a load by another program. None: that program does not start it.
    pub fn start_by(
        starter: &[&str],
        mib: u64,
        pattern: &str,
        change: impl FnOnce(&mut Value),
    ) -> Option<Load> {
        let bytes = mib << 20;
        let mut job = json!({"bytes": bytes, "pattern": pattern, "pages": "default"});
        change(&mut job);
        let mut words = [starter, &[super::bench().to_str().unwrap(), "huge-load"]].concat();
        let job = job.to_string();
        words.push(&job);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        Load::of(command, bytes, !starter.is_empty())
    }

    /// A load of `bytes` that is `command` or (`as_child`) its child. None: it does not start.
    pub fn of(mut command: Command, bytes: u64, as_child: bool) -> Option<Load> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(ready) = serde_json::from_str::<Value>(&line) else {
            child.wait().unwrap();
            return None;
        };
        writeln!(child.stdin.as_mut().unwrap(), "loop").unwrap();
        let pid = if as_child { child_of(child.id()).unwrap() } else { child.id() };
        Some(Load { child, pid, base: ready["base"].as_u64().unwrap(), bytes })
    }

    /// A load of a program that touches `mib` MiB in one mapping and has filled them. None: the
    /// program has ended.
    pub fn adopt(child: Child, mib: u64) -> Option<Load> {
        let bytes = mib << 20;
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let base = maps.lines().find_map(|line| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            let (start, end) =
                (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
            (end - start >= bytes).then_some(start)
        })?;
        Some(Load { pid: child.id(), child, base, bytes })
    }

    pub fn pid(&self) -> String {
        self.pid.to_string()
    }

    /// Number of bytes of its memory that are in huge pages.
    pub fn huge_bytes(&self) -> u64 {
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", self.pid)).unwrap();
        let mut inside = false;
        let mut sum = 0;
        for line in smaps.lines() {
            let first = line.split_whitespace().next().unwrap_or_default();
            if let Some((start, _)) = first.split_once('-').filter(|_| !first.ends_with(':')) {
                let start = u64::from_str_radix(start, 16).unwrap();
                inside = (self.base..self.base + self.bytes).contains(&start);
            } else if inside && first == "AnonHugePages:" {
                sum += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10;
            }
        }
        sum
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process whose parent is `pid`.
fn child_of(pid: u32) -> Option<u32> {
    let of = |entry: fs::DirEntry| -> Option<u32> {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent: u32 = stat[stat.rfind(')')? + 1..].split_whitespace().nth(1)?.parse().ok()?;
        (parent == pid).then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    fs::read_dir("/proc").ok()?.filter_map(Result::ok).find_map(of)
}

/// Manages `load` until there is nothing to do, whatever the machine's speed.
#[allow(dead_code, reason = "not every test program manages")]
pub fn manage_once(load: &Load, more: &[&str]) -> Output {
    let pid = load.pid();
    let args = ["manage", "--once", "--pid", &pid, "--cpu", "50%", "--stall", "60s"];
    hot(&[&args[..], more].concat())
}

pub fn hot(args: &[&str]) -> Output {
    Command::new(HIROMA).arg("hot").args(args).stdin(Stdio::null()).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether this machine allows managing; otherwise reports why not.
pub fn possible() -> bool {
    let thp = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !thp.contains("[madvise]") {
        hiroma_testkit::skip!(
            Machine,
            "transparent huge pages are not set to madvise: {}",
            thp.trim()
        );
        return false;
    }
    let load = Load::start(4, "sequential", |_| {});
    let output = hot(&["show", "--pid", &load.pid(), "--for", "1ms", "--backend", "bpf", "--json"]);
    if !output.status.success() {
        hiroma_testkit::skip!(Machine, "{}", text(&output.stderr));
    }
    output.status.success()
}
