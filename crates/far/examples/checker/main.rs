//! Many threads write, verify, discard, fork and remap managed memory at random, under a tight
//! limit and for a bounded time, and compare every word with its expected value. Prints its seed
//! first. Exit code 0: no difference was found; 1: one was.
//!
//! `checker --seconds 10 --threads 16 --limit 32M --region 256M --store compressed:1G --path auto
//! --block auto --seed 7`
//!
//! The threads' pages alternate, so that several threads work inside one extent, one sector and (in
//! the first eighth) one page: blocks are evicted and fetched while a thread writes to them.
//! `--without fork,limit` excludes operations, to narrow a failure down; `--canary
//! zero|stale|misplaced|early` damages memory (`early`: by access in a child that has no pager yet),
//! which must be detected.
#![allow(unsafe_code)]

mod child;
mod page;
mod watch;
mod words;
mod work;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hiroma_far::Pager;
use hiroma_far::config::{Config, PathChoice, parse_stores};
use hiroma_far::control::Counter;
use hiroma_units::Bytes;

use crate::page::Page;
use crate::words::{LINE_WORDS, PAGE_LINES};
use crate::work::{OPS, Own, Worker};

pub use hiroma_units::{EXTENT, PAGE};

/// The command line options.
pub struct Options {
    pub seconds: u64,
    pub threads: usize,
    pub region: usize,
    pub seed: u64,
    pub without: Vec<String>,
    pub canary: Option<String>,
    pub config: Config,
}

/// State shared by all threads.
pub struct Checker {
    pub pager: Pager,
    pub options: Options,
    pub end: Instant,
    /// The shared zone: pages of all threads alternate, and the first `line_pages` of them are
    /// shared line by line.
    pub base: usize,
    pub pages: usize,
    pub line_pages: usize,
    pub versions: Vec<AtomicU32>,
    /// Mappings that each thread created for itself.
    pub own: Vec<Mutex<Own>>,
    /// Locked for reading during every operation, for writing while all threads must stop.
    pub gate: RwLock<()>,
    /// One fork at a time.
    pub forking: Mutex<()>,
    pub children: AtomicUsize,
    pub progress: Vec<Progress>,
    pub stop: AtomicBool,
}

/// The current operation of a thread, for the watcher.
#[derive(Default)]
pub struct Progress {
    pub done: AtomicU64,
    pub op: AtomicUsize,
    pub addr: AtomicUsize,
    pub counts: [AtomicU64; OPS.len()],
}

impl Checker {
    /// Page `number` of the shared zone.
    pub fn page(&self, number: usize) -> Page<'_> {
        let versions = &self.versions[number * PAGE_LINES..(number + 1) * PAGE_LINES];
        Page {
            addr: self.base + number * PAGE,
            index: (number * PAGE_LINES * LINE_WORDS) as u64,
            versions,
        }
    }

    /// Reports a difference and ends the process.
    pub fn fail(&self, who: &str, text: &str) -> ! {
        let snapshot = self.pager.snapshot();
        let counters: Vec<String> =
            Counter::ALL.iter().map(|&c| format!("{}={}", c.name(), snapshot.get(c))).collect();
        page::say(&format!(
            "checker: FAILED, seed {}, path {}: {who}: {text}\n  {}",
            self.options.seed,
            self.pager.path(),
            counters.join(" ")
        ));
        page::exit_now(1)
    }
}

fn parse() -> Result<Options, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |span| span.as_nanos() as u64);
    let config = Config {
        local_limit_bytes: 32 << 20,
        stores: parse_stores("compressed:2G").unwrap(),
        ..Config::default()
    };
    let mut options = Options {
        seconds: 10,
        threads: 16,
        region: 256 << 20,
        seed: now % 1_000_000_007,
        without: Vec::new(),
        canary: None,
        config,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or(format!("{name} needs a value"))?;
        let size =
            || value.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| error.to_string());
        let number =
            || value.parse::<u64>().map_err(|_| format!("{name}: `{value}` is not a number"));
        match name.as_str() {
            "--seconds" => options.seconds = number()?,
            "--threads" => options.threads = number()?.clamp(1, 64) as usize,
            "--limit" => options.config.local_limit_bytes = size()?,
            "--region" => options.region = (size()? as usize).max(8 << 20),
            "--store" => {
                options.config.stores = parse_stores(&value).map_err(|error| error.to_string())?
            }
            "--block" => {
                options.config.block = value.parse().map_err(|error| format!("{error}"))?
            }
            "--seed" => options.seed = number()?,
            "--without" => options.without = value.split(',').map(str::to_owned).collect(),
            "--canary" if ["zero", "stale", "misplaced", "early"].contains(&value.as_str()) => {
                options.canary = Some(value)
            }
            "--path" => {
                options.config.path = match value.as_str() {
                    "auto" => PathChoice::Auto,
                    "full" => PathChoice::Full,
                    "fallback" => PathChoice::Fallback,
                    _ => return Err(format!("--path: `{value}` is not auto, full or fallback")),
                }
            }
            "--prefetch" => options.config.prefetch = value == "on",
            _ => {
                return Err(format!(
                    "{name} is not an option; see the head of examples/checker/main.rs"
                ));
            }
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match parse() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("checker: {message}");
            return ExitCode::from(2);
        }
    };
    words::self_test();
    let Options { seed, threads, seconds, .. } = options;
    eprintln!("checker: seed {seed}, {threads} threads, {seconds} s, {:?}", options.config);
    let pager = match Pager::start(options.config.clone()) {
        Ok(pager) => pager,
        Err(error) => {
            eprintln!("checker: cannot start the pager: {error}");
            return ExitCode::from(2);
        }
    };
    let checker = build(pager, options);
    let checker = &checker;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || Worker::new(checker, thread).run()))
            .collect();
        let watcher = scope.spawn(move || watch::run(checker));
        workers.into_iter().for_each(|worker| {
            worker.join().unwrap_or_else(|_| checker.fail("main", "a thread panicked"))
        });
        checker.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        watcher.join().unwrap_or_else(|_| checker.fail("main", "the watcher panicked"));
    });
    report(checker);
    ExitCode::SUCCESS
}

fn build(pager: Pager, options: Options) -> Checker {
    let shared = options.region / 4 * 3 / PAGE;
    let base = match pager.map(shared * PAGE, PAGE) {
        Ok(base) => base,
        Err(error) => panic!("map of {shared} pages: {error}"),
    };
    Checker {
        pager,
        end: Instant::now() + Duration::from_secs(options.seconds),
        base,
        pages: shared,
        line_pages: shared / 8,
        versions: (0..shared * PAGE_LINES).map(|_| AtomicU32::new(0)).collect(),
        own: (0..options.threads).map(|_| Mutex::default()).collect(),
        gate: RwLock::new(()),
        forking: Mutex::new(()),
        children: AtomicUsize::new(0),
        progress: (0..options.threads).map(|_| Progress::default()).collect(),
        stop: AtomicBool::new(false),
        options,
    }
}

fn report(checker: &Checker) {
    use std::sync::atomic::Ordering::Relaxed;
    let snapshot = checker.pager.snapshot();
    let counts: Vec<String> = OPS
        .iter()
        .enumerate()
        .map(|(op, (name, _))| {
            format!(
                "{name}={}",
                checker.progress.iter().map(|p| p.counts[op].load(Relaxed)).sum::<u64>()
            )
        })
        .collect();
    let counters = [
        Counter::Faults,
        Counter::FaultsStaged,
        Counter::FaultsFetched,
        Counter::WrittenBytes,
        Counter::FetchedBytes,
        Counter::CleanBytes,
        Counter::PatternBytes,
        Counter::LocalBytesMax,
        Counter::FarBytesMax,
        Counter::ModeChanges,
        Counter::UnevictableBytes,
    ];
    let counters: Vec<String> =
        counters.iter().map(|&c| format!("{}={}", c.name(), snapshot.get(c))).collect();
    println!(
        "checker: no difference, seed={} path={} {} {}",
        checker.options.seed,
        checker.pager.path(),
        counts.join(" "),
        counters.join(" ")
    );
}
