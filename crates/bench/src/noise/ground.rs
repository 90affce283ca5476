//! The machine under the experiments: the size of its page cache, its settings, its counters.

use std::cell::Cell;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hiroma_policy::reclaim::Settings;
use hiroma_sys::host::memory;
use hiroma_sys::hot::target::started_at;
use hiroma_sys::quiet::affinity;
use hiroma_sys::quiet::files;
use hiroma_sys::quiet::memory::{Counters, MemoryInfo};
use hiroma_sys::quiet::tasks::{self, TaskKind, parse_schedstat};
use hiroma_sys::workload::Region;

use super::arm::Kswapd;
use super::load::{Load, Way};
use super::nfs::Source;
use crate::children::{Failed, Interrupt, Running, hiroma, this_program};
use crate::undo::{Guard, Undo};

/// Number of bytes that are allocated at a time.
const PIECE: u64 = 256 << 20;
/// Apparent size of the file for reading: more than any machine's cache.
pub const SPARSE_BYTES: u64 = 1 << 40;
/// Distance between the starts of one load and the next. Not a power of two, so that the starts
/// spread over smaller files, too.
const APART_BYTES: u64 = 77 << 30;
const ALIGNED: u64 = 1 << 20;
/// The cache is full when at most this multiple of the high watermarks is free, or when kswapd has
/// worked for this time, because its work for large blocks may keep more free.
const FULL_TIMES: u64 = 2;
const FULL_AFTER: Duration = Duration::from_secs(8);

/// Memory that is not page cache, and the files.
pub struct Ground {
    /// Memory that is unavailable to the page cache, so that the cache fills within seconds. It
    /// stands for an application's own memory.
    _taken: Vec<Region>,
    pub cache_bytes: u64,
    pub all_cpus: Vec<usize>,
    pub app_cpus: Vec<usize>,
    pub spare: usize,
    pub read_file: PathBuf,
    pub read_bytes: u64,
    pub dir: PathBuf,
    /// Settings of the daemon.
    pub settings: Settings,
    /// A file over NFS, if it is wanted.
    pub nfs: Option<Source>,
    loads: Cell<u64>,
    _files: Vec<Guard>,
}

impl Ground {
    /// Leaves `cache_bytes` for the page cache. The file for reading is `file`, or a sparse one in
    /// `dir`.
    pub fn new(cache_bytes: u64, dir: &Path, file: Option<&Path>) -> Result<Ground> {
        let cpus = affinity::of(0)?;
        ensure!(
            cpus.len() > 1,
            "one processor only: there is no spare one for the reader and the daemon, so nothing can be compared"
        );
        let available = memory::available()?.0;
        ensure!(
            available > cache_bytes + PIECE,
            "{} MiB of memory must be available, {} MiB are",
            (cache_bytes + PIECE) >> 20,
            available >> 20
        );
        let taken = take((available - cache_bytes) / PIECE, cpus.len())?;
        let mut files = Vec::new();
        let (read_file, read_bytes) = match file {
            Some(file) => (
                file.to_owned(),
                fs::metadata(file).with_context(|| format!("{}", file.display()))?.len(),
            ),
            None => {
                let (path, guard) = scratch(dir, "read", SPARSE_BYTES)?;
                files.push(guard);
                (path, SPARSE_BYTES)
            }
        };
        ensure!(
            read_bytes > 2 * cache_bytes,
            "{} is not larger than twice the cache of {} MiB",
            read_file.display(),
            cache_bytes >> 20
        );
        let (spare, app_cpus) = (cpus[0], cpus[1..].to_vec());
        // From now on this process and its children do not run on the application's processors.
        affinity::confine(0, &[spare])?;
        Ok(Ground {
            _taken: taken,
            cache_bytes,
            all_cpus: cpus,
            app_cpus,
            spare,
            read_file,
            read_bytes,
            dir: dir.to_owned(),
            settings: Settings::default(),
            nfs: None,
            loads: Cell::new(0),
            _files: files,
        })
    }

    /// A load on this ground's file. Each begins at a different place: cached pages of an earlier
    /// load may have read-ahead marks, and a reader that encounters one reads ahead in large folios
    /// regardless of its advice.
    pub fn load(&self, way: Way, rate_bytes_s: u64) -> Load {
        let (file, bytes) = match &self.nfs {
            Some(nfs) if way == Way::Nfs => (&nfs.file, nfs.bytes),
            _ => (&self.read_file, self.read_bytes),
        };
        let number = self.loads.replace(self.loads.get() + 1);
        let start = number.wrapping_mul(APART_BYTES) % bytes / ALIGNED * ALIGNED;
        Load {
            way,
            file: file.clone(),
            bytes,
            start,
            rate_bytes_s,
            total_bytes: 0,
            cgroup: None,
            under_quiet_run: false,
        }
    }

    /// Fills the page cache as fast as possible, until kswapd has to work and little is free. The
    /// work of kswapd alone is not sufficient: it works for large blocks while gigabytes are free,
    /// and if a hypervisor has reclaimed these, their first use is slow.
    pub fn fill(&self, interrupt: &Interrupt) -> Result<(), Failed> {
        let before = vmstat()?.get("pageoutrun");
        let mut load = self.start(&self.load(Way::Large, 0))?;
        let (began, mut worked) = (Instant::now(), None);
        loop {
            let memory = MemoryInfo::read(Path::new("/"))?;
            if memory.counters.get("pageoutrun") > before {
                let zones = memory.nodes.iter().flat_map(|node| &node.zones);
                let (free, high) = zones.fold((0, 0), |(free, high), zone| {
                    (free + zone.free, high + zone.high + zone.reserve)
                });
                let since = *worked.get_or_insert_with(Instant::now);
                if free <= FULL_TIMES * high || since.elapsed() >= FULL_AFTER {
                    return Ok(());
                }
            }
            if interrupt.came() {
                return Err(Failed::Interrupted);
            }
            if load.has_ended() || began.elapsed() > Duration::from_secs(60) {
                return Err(
                    anyhow::anyhow!("the page cache could not be filled within 60 s").into()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a load, on the spare processor like everything else.
    pub fn start(&self, load: &Load) -> Result<Running> {
        let program = this_program()?;
        let mut command = std::process::Command::new(if load.under_quiet_run {
            hiroma()?
        } else {
            program.clone()
        });
        if load.under_quiet_run {
            command.args(["quiet", "run", "--"]).arg(&program);
        }
        command.arg("noise-load").arg(serde_json::to_string(load).context("a load becomes JSON")?);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
        Running::start(&mut command)
    }
}

/// Allocates `pieces` pieces of memory with `threads` threads, because a hypervisor that has to
/// back the memory first is slow.
fn take(pieces: u64, threads: usize) -> Result<Vec<Region>> {
    let some = move |count: u64| {
        let one = |_| Region::map(PIECE as usize).inspect(Region::populate);
        (0..count).map(one).collect::<std::io::Result<Vec<Region>>>()
    };
    let threads = threads.max(1) as u64;
    let counts = (0..threads).map(|thread| pieces / threads + u64::from(thread < pieces % threads));
    let taking: Vec<_> = counts.map(|count| std::thread::spawn(move || some(count))).collect();
    let mut taken = Vec::new();
    for thread in taking {
        let some =
            thread.join().map_err(|_| anyhow::anyhow!("a thread that takes memory has failed"))?;
        taken.extend(some.context("taking memory from the page cache")?);
    }
    Ok(taken)
}

/// Makes a sparse file that is removed when the guard is dropped.
pub fn scratch(dir: &Path, name: &str, bytes: u64) -> Result<(PathBuf, Guard)> {
    let path = dir.join(format!("hiroma-bench-{}-{name}", std::process::id()));
    let guard = Guard::new(Undo::FileRemove(path.clone()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file =
        file.with_context(|| format!("{}: choose another directory with --dir", path.display()))?;
    file.set_len(bytes).with_context(|| {
        format!("{}: this file system has no files of {} GiB", path.display(), bytes >> 30)
    })?;
    Ok((path, guard))
}

/// Runs `what` confined to processors, which children inherit.
pub fn on_cpus<T>(cpus: &[usize], what: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = affinity::of(0)?;
    affinity::confine(0, cpus)?;
    let result = what();
    affinity::confine(0, &before)?;
    result
}

/// Confines kswapd until the guards are dropped.
pub fn place_kswapd(place: Kswapd, ground: &Ground) -> Result<Vec<Guard>> {
    let cpus = match place {
        Kswapd::Free => return Ok(Vec::new()),
        Kswapd::App => ground.app_cpus[..1].to_vec(),
        Kswapd::Spare => vec![ground.spare],
    };
    let mut guards = Vec::new();
    for task in tasks::reclaimers().into_iter().filter(|task| task.kind == TaskKind::Kswapd) {
        let started = started_at(task.tid).context("kswapd has ended")?;
        guards.push(Guard::new(Undo::ThreadCpus {
            tid: task.tid,
            started,
            cpus: affinity::of(task.tid)?,
        }));
        affinity::confine(task.tid, &cpus)
            .with_context(|| format!("confining {} (it needs root)", task.name))?;
    }
    Ok(guards)
}

/// Changes a setting of the kernel until the guard is dropped. Writes whole lines: some files
/// accept nothing else.
pub fn set(path: &str, value: &str) -> Result<Guard> {
    let before = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let guard = Guard::new(Undo::FileWrite(PathBuf::from(path), before));
    fs::write(path, format!("{value}\n"))
        .with_context(|| format!("setting {path} to {value} (it needs root)"))?;
    Ok(guard)
}

/// The counters in `/proc/vmstat`.
pub fn vmstat() -> Result<Counters> {
    Ok(MemoryInfo::read(Path::new("/"))?.counters)
}

/// Counters of the kernel at one moment.
#[derive(Clone, Debug, Default)]
pub struct Books {
    pub kswapd_runs: u64,
    pub kswapd_cpu_ns: u64,
    pub early_pages: u64,
    pub direct_reclaims: u64,
    pub load_bytes: u64,
    pub daemon_cpu_ns: u64,
    /// Steal time of the application's processors.
    pub steal_ns: u64,
    pub at_ns: u64,
}

impl Books {
    /// Reads the counters, including those of a load and a daemon, if there are any.
    pub fn read(load: Option<u32>, daemon: Option<u32>, app_cpus: &[usize]) -> Result<Books> {
        let counters = vmstat()?;
        let direct = [
            "allocstall_dma",
            "allocstall_dma32",
            "allocstall_normal",
            "allocstall_movable",
            "allocstall_device",
        ];
        Ok(Books {
            kswapd_runs: counters.get("pageoutrun"),
            kswapd_cpu_ns: tasks::reclaimers()
                .iter()
                .filter(|task| task.kind == TaskKind::Kswapd)
                .map(|task| task.run_ns)
                .sum(),
            early_pages: counters.get("pgsteal_proactive"),
            direct_reclaims: direct.iter().map(|name| counters.get(name)).sum(),
            load_bytes: load.and_then(files::moved_bytes).unwrap_or(0),
            daemon_cpu_ns: daemon.map_or(0, cpu_ns),
            steal_ns: tasks::cpu_times()?
                .iter()
                .filter(|times| app_cpus.contains(&times.cpu))
                .map(|times| times.steal_ns)
                .sum(),
            at_ns: hiroma_sys::cpu::now_ns(),
        })
    }

    /// The increase since `before`.
    pub fn since(&self, before: &Books) -> Books {
        let less = |now: u64, before: u64| now.saturating_sub(before);
        Books {
            kswapd_runs: less(self.kswapd_runs, before.kswapd_runs),
            kswapd_cpu_ns: less(self.kswapd_cpu_ns, before.kswapd_cpu_ns),
            early_pages: less(self.early_pages, before.early_pages),
            direct_reclaims: less(self.direct_reclaims, before.direct_reclaims),
            load_bytes: less(self.load_bytes, before.load_bytes),
            daemon_cpu_ns: less(self.daemon_cpu_ns, before.daemon_cpu_ns),
            steal_ns: less(self.steal_ns, before.steal_ns),
            at_ns: less(self.at_ns, before.at_ns),
        }
    }
}

/// The process that does the work: `pid`, or the program that it started and acts for, as `hiroma
/// quiet run` does (`proc_pid_task(5)`).
pub fn worker(pid: u32) -> u32 {
    let children =
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().next().and_then(|child| child.parse().ok()).unwrap_or(pid)
}

/// Processor time of all threads of a process.
pub fn cpu_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        parse_schedstat(&fs::read_to_string(entry.path().join("schedstat")).ok()?)
    };
    tasks.filter_map(of).map(|(run, _)| run).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_restore_settings_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let setting = dir.path().join("setting");
        fs::write(&setting, "10\n").unwrap();
        let guard = set(setting.to_str().unwrap(), "1000").unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "1000\n");
        drop(guard);
        assert_eq!(fs::read_to_string(&setting).unwrap(), "10\n");
        let (path, guard) = scratch(dir.path(), "x", 1 << 30).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 30);
        drop(guard);
        assert!(!path.exists());
    }

    #[test]
    fn worker_is_the_child_of_a_wrapper() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 600; :"]).stdout(std::process::Stdio::null());
        let shell = Running::start(&mut shell).unwrap();
        let began = std::time::Instant::now();
        while worker(shell.pid()) == shell.pid() {
            assert!(began.elapsed() < Duration::from_secs(60), "the shell starts no child");
            std::thread::sleep(Duration::from_millis(5));
        }
        // A process without children is its own worker.
        let child = worker(shell.pid());
        assert_eq!(worker(child), child);
    }

    #[test]
    fn this_process_has_moved_bytes_and_used_time() {
        let _ = fs::read_to_string("/proc/self/status").unwrap();
        let pid = std::process::id();
        let books = Books::read(Some(pid), Some(pid), &[0]).unwrap();
        assert!(books.load_bytes > 0 && books.daemon_cpu_ns > 0);
        let zero = books.since(&books);
        assert_eq!((zero.load_bytes, zero.at_ns, zero.kswapd_runs), (0, 0, 0));
    }
}
