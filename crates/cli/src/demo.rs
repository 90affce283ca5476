//! `hiroma demo`: the paper's sort, run natively and with a part of the memory it needs, with the
//! rest in a memory server.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use hiroma_command::show;
use hiroma_memload::ballast::Ballast;
use hiroma_memload::content;
use hiroma_report::Table;
use hiroma_units::{Bytes, Nanos};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::fs::statvfs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::rights::{self, ALLOW_FOR_GOOD, ALLOW_NOW};

/// Sort a large text natively and with a part of the memory it needs, and compare the two.
#[derive(clap::Args)]
pub struct Args {
    /// Number of lines of the text, ten bytes each
    #[arg(long, default_value_t = 14_000_000, value_parser = clap::value_parser!(u64).range(10_000..))]
    lines: u64,
    /// Share of the needed memory that stays local, in percent
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(10..=100))]
    share: u64,
    /// Number of times that each sort is timed; the table shows the medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=25))]
    rounds: u32,
    /// Directory for the text and the results, which are removed at the end
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
}

/// Bytes of the text, the results and the temporary copies, per line.
const DISK_BYTES_PER_LINE: u64 = 40;
/// Smallest local limit that `hiroma run` accepts.
const LOCAL_MIN: u64 = hiroma_far::LOCAL_MIN.0;

/// Runs the demonstration.
pub fn main(args: Args) -> Result<ExitCode> {
    if let Err(why) = rights::best_path() {
        eprintln!(
            "The demonstration needs userfaultfd, by which far memory hears of missing pages, and it cannot be had:\n  {why}"
        );
        eprintln!(
            "Allow it until the next start of the machine:\n  {ALLOW_NOW}\nor for good:\n  {ALLOW_FOR_GOOD}\nand try again."
        );
        return Ok(ExitCode::FAILURE);
    }
    let found = statvfs(&args.dir).with_context(|| format!("cannot use {}", args.dir.display()))?;
    let (free, needed) =
        (Bytes(found.f_bavail * found.f_frsize), Bytes(args.lines * DISK_BYTES_PER_LINE));
    ensure!(
        free >= needed,
        "{} has {free} free and the demonstration takes {needed}: make room, or name another directory with --dir",
        args.dir.display()
    );
    let dir = tempfile::Builder::new()
        .prefix("hiroma-demo-")
        .tempdir_in(&args.dir)
        .context("cannot make a directory for the text")?;
    let bench =
        Bench { hiroma: env::current_exe()?, sort: gnu_sort()?, dir: dir.path().to_owned() };

    println!("Writing {} random numbers, one per line ...", show::count(args.lines));
    content::numbers(&bench.file("text"), args.lines).context("cannot write the text")?;
    println!("Sorting it once, to warm the memory and to see how much it takes ...");
    bench.sort_natively()?;
    // `ru_maxrss` is the largest peak of any child so far, which is that of the sort.
    let peak_native = Bytes(u64::try_from(getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss())? << 10);
    let local = Bytes((peak_native.0 * args.share / 100).max(LOCAL_MIN));
    let ballast = Ballast::new(Bytes(peak_native.0 * 3 / 2))?;
    println!(
        "It takes {peak_native}. Now with {local} local and the rest in a memory server on this machine:"
    );
    let server =
        Server::start(&bench.hiroma, Bytes((peak_native.0 * 3 / 2).next_multiple_of(64 << 20)))?;
    let (mut native, mut far) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        ballast.load()?;
        native.push(bench.sort_natively()?);
        ballast.load()?;
        let run = bench.sort_far(local, &server.store)?;
        println!(
            "  round {round}: natively {:.1} s, with far memory {:.1} s, the outputs are the same",
            native[native.len() - 1],
            run.seconds
        );
        far.push(run);
    }
    native.sort_by(f64::total_cmp);
    far.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    println!(
        "\n{}",
        table(native[native.len() / 2], peak_native, &far[far.len() / 2], local, args.rounds)
            .to_text()
    );
    Ok(ExitCode::SUCCESS)
}

fn table(
    native_seconds: f64,
    native_peak: Bytes,
    far: &FarRun,
    local: Bytes,
    rounds: u32,
) -> Table {
    let mib = |bytes: u64| format!("{}", bytes >> 20);
    let latency =
        |name| far.total[name].as_u64().map_or("-".to_owned(), |nanos| show::latency(Nanos(nanos)));
    let mut table = Table::new(format!("sort --parallel=1 of random numbers, median of {rounds}"))
        .text("")
        .number("time", "s")
        .number("ratio", "")
        .number("local limit", "MiB")
        .number("peak RSS", "MiB")
        .number("far", "MiB")
        .number("faults", "")
        .number("p50", "")
        .number("p99", "");
    table.row([
        "native".to_owned(),
        format!("{native_seconds:.2}"),
        "1.00".to_owned(),
        "-".to_owned(),
        mib(native_peak.0),
    ]);
    table.row([
        "hiroma".to_owned(),
        format!("{:.2}", far.seconds),
        format!("{:.2}", far.seconds / native_seconds),
        mib(local.0),
        mib(far.peak_rss_bytes),
        mib(far.far_bytes_max),
        far.total["faults"].to_string(),
        latency("fault_latency_ns_p50"),
        latency("fault_latency_ns_p99"),
    ]);
    table.note("p50 and p99: from the pager reading a fault to the waking of the program.");
    table
}

/// One sort with far memory.
struct FarRun {
    seconds: f64,
    peak_rss_bytes: u64,
    far_bytes_max: u64,
    total: Value,
}

struct Bench {
    hiroma: PathBuf,
    sort: &'static str,
    dir: PathBuf,
}

impl Bench {
    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn sort_arguments(&self, command: &mut Command, output: &str) {
        command
            .args(["--parallel=1", "-S", "2G", "-T"])
            .arg(&self.dir)
            .arg(self.file("text"))
            .arg("-o")
            .arg(self.file(output));
        command.env("LC_ALL", "C").stdin(Stdio::null());
    }

    fn sort_natively(&self) -> Result<f64> {
        let mut command = Command::new(self.sort);
        self.sort_arguments(&mut command, "native");
        let start = Instant::now();
        let status = command.status().context("cannot start sort")?;
        ensure!(status.success(), "sort failed natively: {status}");
        Ok(start.elapsed().as_secs_f64())
    }

    fn sort_far(&self, local: Bytes, store: &str) -> Result<FarRun> {
        let stats = self.file("stats.json");
        let mut command = Command::new(&self.hiroma);
        command
            .args(["run", "--quiet", "--local", &local.0.to_string(), "--store", store, "--stats"])
            .arg(&stats)
            .args(["--", self.sort]);
        self.sort_arguments(&mut command, "far");
        let status = command.status().context("cannot start hiroma run")?;
        ensure!(status.success(), "sort failed with far memory: {status}");
        ensure!(
            same_content(&self.file("native"), &self.file("far"))?,
            "the outputs differ: this is a bug in hiroma, please report it"
        );
        let stats: Value =
            serde_json::from_slice(&fs::read(&stats)?).context("the statistics are not JSON")?;
        ensure!(
            !stats["total"].is_null(),
            "sort had no managed memory: is {} built together with this command?",
            "libhiroma_preload.so"
        );
        let number = |name: &str| {
            stats[name].as_u64().with_context(|| format!("the statistics lack {name}"))
        };
        Ok(FarRun {
            seconds: stats["elapsed_s"].as_f64().context("the statistics lack elapsed_s")?,
            peak_rss_bytes: number("peak_rss_bytes")?,
            far_bytes_max: number("far_bytes_max")?,
            total: stats["total"].clone(),
        })
    }
}

/// The paper uses GNU sort; some systems install it under another name.
fn gnu_sort() -> Result<&'static str> {
    for name in ["sort", "gnusort"] {
        let version = Command::new(name).arg("--version").output();
        if version.is_ok_and(|output| output.stdout.windows(3).any(|text| text == b"GNU")) {
            return Ok(name);
        }
    }
    bail!("GNU sort was not found: install the package coreutils (gnu-coreutils on newer Ubuntu)")
}

fn same_content(one: &Path, other: &Path) -> Result<bool> {
    let open =
        |path: &Path| File::open(path).with_context(|| format!("cannot read {}", path.display()));
    let (mut one, mut other) = (open(one)?, open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let len = one.read(&mut left)?;
        other.read_exact(&mut right[..len])?;
        if left[..len] != right[..len] {
            return Ok(false);
        }
        if len == 0 {
            return Ok(true);
        }
    }
}

/// A memory server that this command starts; stopped when dropped.
struct Server {
    process: Child,
    store: String,
}

impl Server {
    fn start(hiroma: &Path, memory: Bytes) -> Result<Server> {
        let mut command = Command::new(hiroma);
        command.args([
            "serve",
            "--quiet",
            "--listen",
            "127.0.0.1:0",
            "--memory",
            &memory.0.to_string(),
        ]);
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start hiroma serve")?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = line
            .split_whitespace()
            .find_map(|word| word.trim_end_matches(',').parse::<std::net::SocketAddr>().ok());
        let server = Server {
            process,
            store: address.map_or(String::new(), |address| format!("tcp://{address}")),
        };
        ensure!(address.is_some(), "the memory server did not start");
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.process.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_comparison_is_byte_by_byte() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            fs::write(dir.path().join(name), content).unwrap();
            dir.path().join(name)
        };
        let long = vec![7; (1 << 20) + 3];
        let mut late = long.clone();
        late[(1 << 20) + 2] = 8;
        let (a, b, c, d) =
            (file("a", &long), file("b", &long), file("c", &late), file("d", &long[1..]));
        assert!(same_content(&a, &b).unwrap());
        assert!(!same_content(&a, &c).unwrap());
        assert!(!same_content(&a, &d).unwrap());
    }
}
