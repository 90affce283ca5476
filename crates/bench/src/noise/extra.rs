//! Measurements other than the duration of steps: hot files, throughput, and the cost of the idle
//! daemon.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use hiroma_report::Spread;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::arm::{Kswapd, Remedy};
use super::ground::{self, Books, Ground, cpu_ns, place_kswapd, scratch};
use super::load::Way;
use super::run::DaemonRun;
use crate::children::{Failed, Interrupt, check};

const HOT_BYTES: u64 = 256 << 20;
const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;
/// Number of times that hot files are read beforehand: more than once, or the kernel treats them as
/// streamed.
const READS: usize = 3;
const LIMIT: Duration = Duration::from_secs(600);

/// Remedy against a stream that would evict hot files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeper {
    None,
    Daemon,
    DropCaches,
    Fadvise,
    QuietRun,
}

impl Keeper {
    pub const ALL: [Keeper; 5] =
        [Keeper::None, Keeper::Daemon, Keeper::DropCaches, Keeper::Fadvise, Keeper::QuietRun];

    pub fn name(self) -> &'static str {
        match self {
            Keeper::None => "nothing",
            Keeper::Daemon => "daemon",
            Keeper::DropCaches => "drop_caches, once after the stream",
            Keeper::Fadvise => "reader with fadvise DONTNEED",
            Keeper::QuietRun => "reader under quiet run",
        }
    }
}

/// The state of hot files after a stream.
#[derive(Clone, Copy, Debug)]
pub struct HotFileState {
    /// Share that was still cached, in percent.
    pub percent: f64,
    /// Time to read them again, relative to the time before.
    pub again: f64,
}

fn read_all(file: &File, bytes: u64) -> Result<Duration> {
    let mut buffer = vec![0; CHUNK];
    let began = Instant::now();
    for at in (0..bytes).step_by(CHUNK) {
        file.read_exact_at(&mut buffer, at)?;
    }
    Ok(began.elapsed())
}

/// Share of the file's pages that are in the cache, in percent: a read that must not wait
/// (`RWF_NOWAIT`) returns only those.
fn cached_percent(file: &File, bytes: u64) -> Result<f64> {
    let mut page = [0; PAGE];
    let mut there = 0u64;
    for at in (0..bytes).step_by(PAGE) {
        match preadv2(file, &mut [IoSliceMut::new(&mut page)], at, ReadWriteFlags::NOWAIT) {
            Ok(got) => there += u64::from(got == PAGE),
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(100.0 * there as f64 / (bytes / PAGE as u64) as f64)
}

/// Streams `times` times the size of the cache past hot files.
pub fn hot(
    keeper: Keeper,
    times: u64,
    ground: &Ground,
    interrupt: &Interrupt,
) -> Result<HotFileState, Failed> {
    let (path, _file) = scratch(&ground.dir, "hot", HOT_BYTES)?;
    let file = File::open(path)?;
    let mut before = read_all(&file, HOT_BYTES)?;
    for _ in 1..READS {
        before = read_all(&file, HOT_BYTES)?;
    }
    let daemon = (keeper == Keeper::Daemon).then(|| DaemonRun::start(ground, false)).transpose()?;
    let way = if keeper == Keeper::Fadvise { Way::Fadvise } else { Way::Large };
    let mut load = ground.load(way, 0);
    load.total_bytes = times * ground.cache_bytes;
    load.under_quiet_run = keeper == Keeper::QuietRun;
    check(&ground.start(&load)?.wait(LIMIT, interrupt)?)?;
    if keeper == Keeper::DropCaches {
        std::fs::write("/proc/sys/vm/drop_caches", "1")?;
    }
    let percent = cached_percent(&file, HOT_BYTES)?;
    let after = read_all(&file, HOT_BYTES)?;
    if let Some(daemon) = daemon {
        daemon.end()?;
    }
    Ok(HotFileState { percent, again: after.as_secs_f64() / before.as_secs_f64() })
}

/// The remedies whose throughput is compared.
pub const STREAMS: [(Remedy, &str); 3] =
    [(Remedy::None, "nothing"), (Remedy::Daemon, "daemon"), (Remedy::QuietRun, "quiet run")];

/// Bytes per second of a reader without a rate limit, with the cache full.
pub fn stream(
    remedy: Remedy,
    duration: Duration,
    ground: &Ground,
    interrupt: &Interrupt,
) -> Result<f64, Failed> {
    let _kswapd = place_kswapd(Kswapd::Free, ground)?;
    ground.fill(interrupt)?;
    let daemon = (remedy == Remedy::Daemon).then(|| DaemonRun::start(ground, false)).transpose()?;
    let mut load = ground.load(Way::Large, 0);
    load.under_quiet_run = remedy == Remedy::QuietRun;
    let mut load = ground.start(&load)?;
    thread::sleep(Duration::from_millis(500));
    let pids =
        (Some(ground::worker(load.pid())), daemon.as_ref().map(|daemon| daemon.running.pid()));
    let before = Books::read(pids.0, pids.1, &ground.app_cpus)?;
    thread::sleep(duration);
    let books = Books::read(pids.0, pids.1, &ground.app_cpus)?.since(&before);
    if load.has_ended() {
        return Err(anyhow!("the reader ended early").into());
    }
    drop(load);
    if let Some(daemon) = daemon {
        daemon.end()?;
    }
    Ok(books.load_bytes as f64 / (books.at_ns as f64 / 1e9))
}

/// The daemon's share of a processor while nothing happens, in percent, for each second.
pub fn idle(seconds: usize, ground: &Ground) -> Result<Option<Spread>, Failed> {
    let daemon = DaemonRun::start(ground, false)?;
    let pid = daemon.running.pid();
    thread::sleep(Duration::from_secs(2));
    let mut shares = Vec::new();
    for _ in 0..seconds {
        let (began, cpu) = (Instant::now(), cpu_ns(pid));
        thread::sleep(Duration::from_secs(1));
        shares.push(100.0 * (cpu_ns(pid) - cpu) as f64 / began.elapsed().as_nanos() as f64);
    }
    daemon.end()?;
    Ok(Spread::of(&shares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_pages_are_counted() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, vec![1; 8 * PAGE]).unwrap();
        let file = File::open(&path).unwrap();
        read_all(&file, 0).unwrap();
        match cached_percent(&file, 8 * PAGE as u64) {
            Ok(percent) => assert!((0.0..=100.0).contains(&percent), "{percent}"),
            Err(error) => hiroma_testkit::skip!(
                Machine,
                "this file system does not say what is cached: {error}"
            ),
        }
        let beyond = cached_percent(&file, 16 * PAGE as u64);
        assert!(beyond.map_or(true, |percent| percent <= 50.0));
    }
}
