//! The control page: a small shared file through which `hiroma ctl` sets the limit of a running
//! pager, and other programs read its statistics. The pager only stores to it; the fault path never
//! waits for a reader.
//!
//! Layout: 1024 words of 64 bits. Word 0 magic, 1 version, 2 process id, 3 requested limit (0:
//! none), 4.. [`Counter`]s, 48 process id of the pager (0: it is the program), 49 exit code (0: the
//! pager has not ended the program), 50 to 52 for how long the oldest fault has waited (ns), its
//! address, and for what ([`Waits`]; 0: none waits), 53 bytes of local memory that cannot be
//! evicted, from [`COSTS_WORD`] the costs of wakeups ([`Costs`]), from [`WAITED_WORD`] time waited
//! ([`Waited`]), from [`HISTOGRAM_WORD`] the histogram of fault service times, from
//! [`STORES_WORD`] the [`Stores`], from [`MESSAGE_WORD`] the pager's messages to the user: their length in bytes, then the text (the
//! pager has no standard error of its own: the program's may have been redirected), from
//! [`WAIT_WORD`] the histogram of estimated waits, from [`CURVE_WORD`] the two curves of what more
//! local memory would have spared, from [`RANGES_WORD`] the ranges with most faults.

mod stores;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hiroma_policy::loss::{self, Curve, RANGES_MAX};
use hiroma_sys::shared::SharedWords;
use hiroma_units::Nanos;

pub use stores::Stores;

use crate::waking::Costs;
use crate::watchdog::{Waits, describe};

/// Of the link that names a process's pager.
pub const PAGER_EXTENSION: &str = "pager";
const MAGIC: u64 = u64::from_le_bytes(*b"hiromact");
const VERSION: u64 = 5;
const WORDS: usize = 1024;
const COUNTER_WORD: usize = 4;
const PAGER_WORD: usize = 48;
const EXIT_WORD: usize = 49;
const WAITS_WORD: usize = 50;
const HELD_WORD: usize = 53;
const COSTS_WORD: usize = 54;
const WAITED_WORD: usize = 59;
const HISTOGRAM_WORD: usize = 64;
const STORES_WORD: usize = HISTOGRAM_WORD + BUCKETS;
const MESSAGE_WORD: usize = 256;
const WAIT_WORD: usize = 512;
const CURVE_WORD: usize = WAIT_WORD + BUCKETS;
const RANGES_WORD: usize = CURVE_WORD + 2 * loss::BUCKETS;
/// Space for messages; the rest is dropped.
const MESSAGE_BYTES: usize = (WAIT_WORD - MESSAGE_WORD - 1) * 8;
/// Words of a range: its address, the address of its mapping, faults.
const RANGE_WORDS: usize = 3;
const _: () = assert!(RANGES_WORD + RANGE_WORDS * RANGES_MAX <= WORDS);
const _: () = assert!(STORES_WORD + Stores::WORDS <= MESSAGE_WORD);
const _: () = assert!(COUNTER_WORD + Counter::ALL.len() <= PAGER_WORD);
/// Four buckets for each power of two of nanoseconds.
const BUCKETS: usize = 160;

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident $name:literal),* $(,)?) => {
        /// One statistic of a pager. Bytes are gauges, the rest counts since the start.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $variant),* }

        impl Counter {
            /// All of them, in the order of the page.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant),*];

            /// Name in JSON and in metrics.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name),* }
            }
        }
    };
}

counters! {
    /// The limit in force.
    LimitBytes "limit_bytes",
    /// Managed memory that is local: mapped, staged and in buffers.
    LocalBytes "local_bytes",
    /// Maximum of `LocalBytes` so far.
    LocalBytesMax "local_bytes_max",
    /// Of `LocalBytes`: mapped into the program.
    ResidentBytes "resident_bytes",
    /// Of `LocalBytes`: staged for eviction, mapped again if touched.
    StagedBytes "staged_bytes",
    /// Of `LocalBytes`: empty frames and frames being filled.
    BufferBytes "buffer_bytes",
    /// Bytes of the program that are in a store.
    FarBytes "far_bytes",
    /// Maximum of `FarBytes` so far.
    FarBytesMax "far_bytes_max",
    /// Bytes that they occupy there.
    StoredBytes "stored_bytes",
    /// Capacity of the stores.
    StoreCapacityBytes "store_capacity_bytes",
    /// Managed address space in use by the program.
    MappedBytes "mapped_bytes",
    /// Tables of the pager and its stores.
    MetadataBytes "metadata_bytes",
    /// Faults that reached the pager.
    Faults "faults",
    /// Of `Faults`: memory that was never touched before.
    FaultsFresh "faults_fresh",
    /// Of `Faults`: staged blocks, rescued.
    FaultsStaged "faults_staged",
    /// Of `Faults`: blocks that were prefetched or being prefetched.
    FaultsPrefetched "faults_prefetched",
    /// Of `Faults`: blocks that had to be fetched.
    FaultsFetched "faults_fetched",
    /// Blocks that were prefetched.
    Prefetches "prefetches",
    /// Of `Prefetches`: dropped without having been used.
    PrefetchesWasted "prefetches_wasted",
    /// Bytes read from stores.
    FetchedBytes "fetched_bytes",
    /// Bytes written to stores.
    WrittenBytes "written_bytes",
    /// Bytes of blocks that were evicted with nothing to write: the far copy was still valid.
    CleanBytes "clean_bytes",
    /// Bytes evicted without being stored, because they were one repeated word.
    PatternBytes "pattern_bytes",
    /// Faults that had to wait for room.
    StallsForRoom "stalls_for_room",
    /// Bytes that could not be evicted when tried (pinned, locked, not writable).
    UnevictableBytes "unevictable_bytes",
    /// Extents that changed between huge and small mode.
    ModeChanges "mode_changes",
    /// Answers to requests for accessed bits.
    AccessedReads "accessed_reads",
    /// Managed memory that was mapped or staged when a fault had to fetch: a sum over `FaultsFetched`.
    LocalBytesAtFetches "local_bytes_at_fetches",
}

/// What faults waited for, and a total: sums in nanoseconds, over all threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Waited {
    /// Memory that was never touched before, or that another thread's fault had mapped meanwhile.
    FirstTouch,
    /// A block that was staged.
    Staged,
    /// A block that had to be fetched, or was being fetched.
    Fetched,
    /// Room in local memory, before one of the others could begin; and first touches that had to
    /// wait for room.
    Room,
    /// Time in which at least one thread waited for anything but a plain first touch.
    AnyFar,
}

impl Waited {
    /// All of them, in the order of the page.
    pub const ALL: [Waited; 5] =
        [Waited::FirstTouch, Waited::Staged, Waited::Fetched, Waited::Room, Waited::AnyFar];
}

/// Faults that had to wait for far memory, of one range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Its first address; it is [`RANGE_BYTES`] long.
    pub start: u64,
    /// Start address of the mapping that contains the first of the faults.
    pub mapping: u64,
    pub faults: u64,
}

/// Length of a [`Range`].
pub const RANGE_BYTES: u64 = 64 << 20;

/// The control page of one process, as seen by its pager or by other programs.
pub struct ControlPage {
    words: SharedWords,
    /// Other programs can see it.
    watched: bool,
}

/// Counters and latencies at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    counters: Vec<u64>,
    histogram: Vec<u64>,
    waits: Vec<u64>,
    waited: [u64; Waited::ALL.len()],
    /// Where far memory is.
    pub stores: Stores,
    /// For how long the oldest fault has waited; zero if none waits.
    pub oldest_wait: Nanos,
    /// Bytes fetched, and time waited for fetches, by the extra local memory that would have spared
    /// them.
    pub fetched_curve: Curve,
    pub waited_curve: Curve,
    /// The ranges with the most faults on far memory. Empty for several processes, because each has
    /// its own addresses.
    pub ranges: Vec<Range>,
    /// The costs of wakeups; none if they were not measured.
    pub costs: Option<Costs>,
}

impl ControlPage {
    /// Path of the page of process `pid`.
    pub fn path(dir: &Path, pid: u32) -> PathBuf {
        dir.join(format!("{pid}.hiroma"))
    }

    /// Names the pager of the program: a link whose target is its number. It stays when the pager ends,
    /// for those who wait for that.
    pub fn name_pager(dir: &Path, pager: u32) {
        let link = ControlPage::path(dir, crate::host::program_in_proc());
        let link = link.with_extension(PAGER_EXTENSION);
        let _ = std::fs::remove_file(&link);
        let _ = std::os::unix::fs::symlink(pager.to_string(), link);
    }

    /// Creates the page of the program, readable and writable by its user alone. `watched`: another
    /// program reads its messages.
    pub fn create(dir: &Path, watched: bool) -> io::Result<ControlPage> {
        let path = ControlPage::path(dir, crate::host::program_in_proc());
        let _ = std::fs::remove_file(&path);
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let page = ControlPage { words: SharedWords::create(&file, WORDS)?, watched };
        page.word(1).store(VERSION, Ordering::Relaxed);
        page.word(2).store(u64::from(crate::host::program_in_proc()), Ordering::Relaxed);
        page.word(0).store(MAGIC, Ordering::Release);
        Ok(page)
    }

    /// A page that no other program sees.
    pub fn private() -> io::Result<ControlPage> {
        Ok(ControlPage { words: SharedWords::private(WORDS)?, watched: false })
    }

    /// Opens the page of process `pid`.
    pub fn open(dir: &Path, pid: u32) -> io::Result<ControlPage> {
        let file: File =
            OpenOptions::new().read(true).write(true).open(ControlPage::path(dir, pid))?;
        if file.metadata()?.len() != (WORDS * 8) as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a control page"));
        }
        let page = ControlPage { words: SharedWords::map(&file, WORDS)?, watched: true };
        if page.word(0).load(Ordering::Acquire) != MAGIC
            || page.word(1).load(Ordering::Relaxed) != VERSION
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the control page is of another version of hiroma",
            ));
        }
        Ok(page)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words.words()[index]
    }

    fn counter(&self, counter: Counter) -> &AtomicU64 {
        self.word(COUNTER_WORD + counter as usize)
    }

    /// Requests another limit from the pager.
    pub fn request_limit(&self, bytes: u64) {
        self.word(3).store(bytes, Ordering::Release);
    }

    /// The limit that was requested last, if any.
    pub fn requested_limit(&self) -> Option<u64> {
        Some(self.word(3).load(Ordering::Acquire)).filter(|&bytes| bytes != 0)
    }

    /// Whether another program can see it.
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// Sets the process id of a pager that is a process of its own.
    pub fn set_pager(&self, pid: u32) {
        self.word(PAGER_WORD).store(u64::from(pid), Ordering::Release);
    }

    /// The pager's process, if it is one of its own.
    pub fn pager(&self) -> Option<u32> {
        Some(self.word(PAGER_WORD).load(Ordering::Acquire) as u32).filter(|&pid| pid != 0)
    }

    /// The pager ends the program, which should have this exit code.
    pub fn set_exit_code(&self, code: u8) {
        self.word(EXIT_WORD).store(u64::from(code), Ordering::Release);
    }

    /// The exit code with which the pager ended the program, if it did.
    pub fn exit_code(&self) -> Option<u8> {
        Some(self.word(EXIT_WORD).load(Ordering::Acquire) as u8).filter(|&code| code != 0)
    }

    /// Sets the bytes of local memory that cannot be evicted now: locked, pinned, or not to be
    /// moved.
    pub fn set_held_bytes(&self, bytes: usize) {
        self.word(HELD_WORD).store(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of local memory that cannot be evicted now.
    pub fn held_bytes(&self) -> u64 {
        self.word(HELD_WORD).load(Ordering::Relaxed)
    }

    /// Sets what the oldest fault waits for, and for how long.
    pub fn set_waiting(&self, waiting: Option<(Duration, usize, Waits)>) {
        let (age, addr, waits) = waiting.map_or((0, 0, 0), |(age, addr, waits)| {
            (age.as_nanos() as u64, addr as u64, waits as u64)
        });
        self.word(WAITS_WORD).store(age, Ordering::Relaxed);
        self.word(WAITS_WORD + 1).store(addr, Ordering::Relaxed);
        self.word(WAITS_WORD + 2).store(waits, Ordering::Relaxed);
    }

    /// Describes what the oldest fault waits for, and for how long.
    pub fn waiting(&self) -> Option<String> {
        let word = |at| self.word(WAITS_WORD + at).load(Ordering::Relaxed);
        let waits = Waits::from_number(word(2) as u32)?;
        let seconds = Duration::from_nanos(word(0)).as_secs_f64();
        Some(format!("{}, for {seconds:.1} s now", describe(word(1) as usize, waits, self)))
    }

    /// Leaves lines for the program that watches the page. Returns false if there is no space.
    pub fn say(&self, text: &str) -> bool {
        let length = self.word(MESSAGE_WORD);
        let Ok(from) = length.fetch_update(Ordering::AcqRel, Ordering::Acquire, |length| {
            Some(length + text.len() as u64).filter(|&end| end <= MESSAGE_BYTES as u64)
        }) else {
            return false;
        };
        for (at, &byte) in (from as usize..).zip(text.as_bytes()) {
            self.word(MESSAGE_WORD + 1 + at / 8)
                .fetch_or(u64::from(byte) << (at % 8 * 8), Ordering::Release);
        }
        true
    }

    /// All messages from byte `from` on, as far as they are written.
    pub fn said_since(&self, from: usize) -> String {
        let end = (self.word(MESSAGE_WORD).load(Ordering::Acquire) as usize).min(MESSAGE_BYTES);
        let byte = |at: usize| {
            (self.word(MESSAGE_WORD + 1 + at / 8).load(Ordering::Acquire) >> (at % 8 * 8)) as u8
        };
        let bytes: Vec<u8> = (from..end).map(byte).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Adds to a count.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.counter(counter).fetch_add(amount, Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub fn set(&self, counter: Counter, value: u64) {
        self.counter(counter).store(value, Ordering::Relaxed);
    }

    /// Sets a gauge, and raises the gauge of its maximum if necessary.
    pub fn set_max(&self, counter: Counter, max: Counter, value: u64) {
        self.counter(counter).store(value, Ordering::Relaxed);
        self.counter(max).fetch_max(value, Ordering::Relaxed);
    }

    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counter(counter).load(Ordering::Relaxed)
    }

    /// Records how long one fault took, from being read by the pager to waking the program.
    pub fn record_latency(&self, latency: Nanos) {
        self.word(HISTOGRAM_WORD + bucket(latency.0)).fetch_add(1, Ordering::Relaxed);
    }

    /// Records the estimated wait of the faulting thread.
    pub fn record_wait(&self, wait: Nanos) {
        self.word(WAIT_WORD + bucket(wait.0)).fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to a sum of waits.
    pub fn add_waited(&self, kind: Waited, ns: u64) {
        self.word(WAITED_WORD + kind as usize).fetch_add(ns, Ordering::Relaxed);
    }

    /// Adds a fetch of `bytes` that more local memory, by this bucket of [`loss`], would have
    /// spared.
    pub fn add_fetched(&self, bucket: usize, bytes: u64) {
        self.word(CURVE_WORD + bucket).fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds time waited for a fetch that more local memory, by this bucket of [`loss`], would have
    /// spared.
    pub fn add_fetch_wait(&self, bucket: usize, ns: u64) {
        self.word(CURVE_WORD + loss::BUCKETS + bucket).fetch_add(ns, Ordering::Relaxed);
    }

    /// Writes an entry of the table of ranges. `mapping`: set if the entry is for another range
    /// now.
    pub fn set_range(&self, entry: usize, start: u64, mapping: Option<u64>, faults: u64) {
        let first = RANGES_WORD + entry * RANGE_WORDS;
        if let Some(mapping) = mapping {
            self.word(first).store(start, Ordering::Relaxed);
            self.word(first + 1).store(mapping, Ordering::Relaxed);
        }
        self.word(first + 2).store(faults, Ordering::Relaxed);
    }

    /// Sets where far memory is.
    pub fn set_stores(&self, stores: Stores) {
        for (at, value) in stores.to_words().into_iter().enumerate() {
            self.word(STORES_WORD + at).store(value, Ordering::Relaxed);
        }
    }

    /// Sets the costs of wakeups on this machine.
    pub fn set_costs(&self, costs: Costs) {
        for (at, value) in costs.to_words().into_iter().enumerate() {
            self.word(COSTS_WORD + at).store(value, Ordering::Relaxed);
        }
    }

    /// All current values.
    pub fn snapshot(&self) -> Snapshot {
        let load = |index: usize| self.word(index).load(Ordering::Relaxed);
        let curve = |from: usize| Curve(std::array::from_fn(|bucket| load(from + bucket)));
        let range = |entry: usize| {
            let first = RANGES_WORD + entry * RANGE_WORDS;
            Range { start: load(first), mapping: load(first + 1), faults: load(first + 2) }
        };
        Snapshot {
            counters: Counter::ALL.iter().map(|&counter| self.get(counter)).collect(),
            histogram: (0..BUCKETS).map(|bucket| load(HISTOGRAM_WORD + bucket)).collect(),
            waits: (0..BUCKETS).map(|bucket| load(WAIT_WORD + bucket)).collect(),
            waited: std::array::from_fn(|kind| load(WAITED_WORD + kind)),
            stores: Stores::of_words(std::array::from_fn(|at| load(STORES_WORD + at))),
            oldest_wait: Nanos(load(WAITS_WORD)),
            fetched_curve: curve(CURVE_WORD),
            waited_curve: curve(CURVE_WORD + loss::BUCKETS),
            ranges: (0..RANGES_MAX).map(range).filter(|range| range.faults > 0).collect(),
            costs: Costs::of_words(std::array::from_fn(|at| load(COSTS_WORD + at))),
        }
    }
}

impl Snapshot {
    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Adds the values of another process. Gauges are added too, and so are their maxima (which
    /// makes those an upper bound).
    pub fn absorb(&mut self, other: &Snapshot) {
        let add = |mine: &mut Vec<u64>, theirs: &[u64]| {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs)
        };
        add(&mut self.counters, &other.counters);
        add(&mut self.histogram, &other.histogram);
        add(&mut self.waits, &other.waits);
        let sum = |mine: &mut [u64], theirs: &[u64]| {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine += theirs)
        };
        sum(&mut self.waited, &other.waited);
        let mut stores = self.stores.to_words();
        sum(&mut stores, &other.stores.to_words());
        self.stores = Stores::of_words(stores);
        self.oldest_wait = self.oldest_wait.max(other.oldest_wait);
        sum(&mut self.fetched_curve.0, &other.fetched_curve.0);
        sum(&mut self.waited_curve.0, &other.waited_curve.0);
        self.ranges.clear();
        self.costs = self.costs.or(other.costs);
    }

    /// A sum of estimated waits.
    pub fn waited(&self, kind: Waited) -> Nanos {
        Nanos(self.waited[kind as usize])
    }

    /// Estimated waits for anything but plain first touches, over all threads.
    pub fn waited_far(&self) -> Nanos {
        Nanos(
            [Waited::Staged, Waited::Fetched, Waited::Room]
                .into_iter()
                .map(|kind| self.waited(kind).0)
                .sum(),
        )
    }

    /// Estimated waits for far memory by the extra local memory that would have spared them. Waits
    /// for room and for staged blocks are assumed proportional to the bytes fetched, because blocks
    /// are evicted to make room for these.
    pub fn lost_curve(&self) -> Curve {
        let mut curve = self.waited_curve.scaled(self.waited(Waited::Fetched).0);
        let rest =
            self.fetched_curve.scaled(self.waited(Waited::Staged).0 + self.waited(Waited::Room).0);
        curve.0.iter_mut().zip(rest.0).for_each(|(all, rest)| *all += rest);
        curve
    }

    /// The estimated waits up to `bound`, and those above it, in steps that double.
    pub fn wait_steps(&self, bound: Nanos) -> (Vec<(Nanos, u64)>, u64) {
        let mut steps: Vec<_> = self
            .waits
            .chunks(4)
            .enumerate()
            .map(|(step, four)| (Nanos(bucket_end(4 * step + 3)), four.iter().sum::<u64>()))
            .collect();
        let fitting = steps.iter().take_while(|(end, _)| *end <= bound).count();
        let above = steps.drain(fitting..).map(|(_, count)| count).sum();
        (steps, above)
    }

    /// The estimated wait (within 19 %) that a share `quantile` (0 to 1) of the faults did not
    /// exceed.
    pub fn wait_quantile(&self, quantile: f64) -> Option<Nanos> {
        quantile_of(|bucket| self.waits[bucket], quantile)
    }

    /// The same for the faults since `earlier`.
    pub fn wait_quantile_since(&self, earlier: Option<&Snapshot>, quantile: f64) -> Option<Nanos> {
        quantile_of(
            |bucket| {
                self.waits[bucket].saturating_sub(earlier.map_or(0, |before| before.waits[bucket]))
            },
            quantile,
        )
    }

    /// The fault service time (within 19 %) that a share `quantile` (0 to 1) of the faults did not
    /// exceed.
    pub fn latency_quantile(&self, quantile: f64) -> Option<Nanos> {
        quantile_of(|bucket| self.histogram[bucket], quantile)
    }
}

fn quantile_of(count: impl Fn(usize) -> u64, quantile: f64) -> Option<Nanos> {
    let total: u64 = (0..BUCKETS).map(&count).sum();
    if total == 0 {
        return None;
    }
    let wanted = ((total as f64 * quantile).ceil() as u64).clamp(1, total);
    let mut seen = 0;
    (0..BUCKETS).find_map(|bucket| {
        seen += count(bucket);
        (seen >= wanted).then(|| Nanos(bucket_end(bucket)))
    })
}

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(4);
    let power = 63 - nanos.leading_zeros() as usize;
    ((power - 2) * 4 + ((nanos >> (power - 2)) & 3) as usize).min(BUCKETS - 1)
}

fn bucket_end(bucket: usize) -> u64 {
    let power = bucket / 4 + 2;
    (5 + (bucket % 4) as u64) << (power - 2)
}

#[cfg(test)]
mod tests;
