//! Fills a server and sends it requests, over several connections at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::client::{Connection, Endpoint, LoadError};
use crate::keys::{Distribution, Keys, key_of};
use crate::value::{VALUE_BYTES_MIN, ValueError, check_value, make_value};

/// The stored items: 0 to `items` (exclusive), each of `value_bytes` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    pub items: u64,
    pub value_bytes: usize,
}

/// The requests of a run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    pub endpoint: Endpoint,
    pub store: Store,
    pub distribution: Distribution,
    /// Number of connections, each with a thread of its own here.
    pub connections: usize,
    /// Number of requests that a connection has in flight, sent in two halves.
    pub depth: usize,
    /// Percentage of requests that write.
    pub write_percent: u32,
    /// The run ends after this number of requests in total, or
    pub operations: Option<u64>,
    /// after this time, whichever is first.
    pub time: Option<Duration>,
    pub seed: u64,
    /// Whether an item may be missing (a server that evicts).
    pub may_miss: bool,
    /// Whether all items are at version 0, as [`fill`] leaves them. Otherwise only versions that
    /// this run wrote are checked.
    pub fresh: bool,
}

/// Results of a run. Latencies are from sending a batch (half of `depth` requests) until each
/// answer was read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunResult {
    pub operations: u64,
    pub reads: u64,
    pub writes: u64,
    pub missing: u64,
    pub seconds: f64,
    pub operations_per_s: f64,
    pub latency_ns_p50: u64,
    pub latency_ns_p99: u64,
    pub latency_ns_p999: u64,
    pub latency_ns_max: u64,
}

/// Default limit of memcached for the size of an item.
const VALUE_BYTES_MAX: usize = 1 << 20;

impl Store {
    fn check(&self) -> Result<(), LoadError> {
        if self.items == 0 {
            return Err(LoadError::Spec("there has to be at least one item".to_owned()));
        }
        if !(VALUE_BYTES_MIN..VALUE_BYTES_MAX).contains(&self.value_bytes) {
            return Err(LoadError::Spec(format!(
                "values of {} bytes cannot be checked: take {VALUE_BYTES_MIN} to {} bytes",
                self.value_bytes,
                VALUE_BYTES_MAX - 1
            )));
        }
        Ok(())
    }
}

/// Stores version 0 of every item; `progress` is called with the number of stored items.
pub fn fill(endpoint: &Endpoint, store: Store, progress: &dyn Fn(u64)) -> Result<(), LoadError> {
    store.check()?;
    let mut connection = Connection::open(endpoint)?;
    let mut value = vec![0; store.value_bytes];
    let batch = (256u64 << 10).div_ceil(store.value_bytes as u64).clamp(1, 256);
    let mut first = 0;
    while first < store.items {
        let last = (first + batch).min(store.items);
        for item in first..last {
            make_value(item, 0, &mut value);
            connection.set(&key_of(item), &value);
        }
        connection.flush()?;
        for item in first..last {
            connection.stored(&key_of(item))?;
        }
        first = last;
        progress(first);
    }
    Ok(())
}

/// Sends the requests. Every value is checked; the first wrong one ends the run with an error.
pub fn run(spec: &RunSpec, progress: &(dyn Fn(u64) + Sync)) -> Result<RunResult, LoadError> {
    spec.store.check()?;
    if spec.connections == 0
        || spec.connections > 1024
        || spec.depth == 0
        || spec.depth > 1024
        || spec.write_percent > 100
    {
        return Err(LoadError::Spec(
            "connections and requests at a time have to be 1 to 1024, writes 0 to 100 %".to_owned(),
        ));
    }
    if spec.write_percent > 0 && spec.store.items < spec.connections as u64 {
        return Err(LoadError::Spec(
            "writing needs at least one item for each connection".to_owned(),
        ));
    }
    if spec.operations.is_none() && spec.time.is_none() {
        return Err(LoadError::Spec("say how many requests, or how long".to_owned()));
    }
    let keys = Keys::new(spec.store.items, spec.distribution).map_err(LoadError::Spec)?;
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    let parts: Vec<Result<Part, LoadError>> = thread::scope(|scope| {
        let asks: Vec<_> = (0..spec.connections)
            .map(|number| {
                let (keys, done, stop) = (&keys, &done, &stop);
                scope.spawn(move || {
                    let part = ask(spec, number, keys, done, stop, progress);
                    if part.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    part
                })
            })
            .collect();
        asks.into_iter()
            .map(|ask| ask.join().expect("a thread of the load does not panic"))
            .collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut latency = new_histogram();
    let mut outcome = RunResult { seconds, ..RunResult::default() };
    for part in parts {
        let part = part?;
        latency.add(&part.latency).expect("histograms of one kind");
        outcome.reads += part.reads;
        outcome.writes += part.writes;
        outcome.missing += part.missing;
    }
    outcome.operations = outcome.reads + outcome.writes;
    outcome.operations_per_s = outcome.operations as f64 / seconds.max(1e-9);
    outcome.latency_ns_p50 = latency.value_at_quantile(0.5);
    outcome.latency_ns_p99 = latency.value_at_quantile(0.99);
    outcome.latency_ns_p999 = latency.value_at_quantile(0.999);
    outcome.latency_ns_max = latency.max();
    Ok(outcome)
}

struct Part {
    latency: Histogram<u64>,
    reads: u64,
    writes: u64,
    missing: u64,
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 120_000_000_000, 3).expect("the bounds are in order")
}

/// Maximum number of bytes that are sent while answers wait to be read: with more, server and load
/// would block each other.
const OVERLAP_BYTES_MAX: usize = 32 << 10;
/// Upper bound of the size of a request without its value.
const REQUEST_BYTES: usize = 64;

/// Requests that were sent together: the item, whether it was written, and the version that a read
/// must return.
struct Batch {
    sent: Instant,
    requests: Vec<(u64, bool, Option<u64>)>,
}

/// The share of one connection. Only this connection writes the items whose number modulo the
/// number of connections is its own number.
struct Asker<'run> {
    spec: &'run RunSpec,
    keys: &'run Keys,
    connection: Connection,
    rng: SmallRng,
    versions: Versions,
    value: Vec<u8>,
    part: Part,
    progress: &'run (dyn Fn(u64) + Sync),
}

/// Sends requests with `depth` of them in flight, in two halves: while the answers to one half are
/// checked, the server works on the other.
fn ask<'run>(
    spec: &'run RunSpec,
    number: usize,
    keys: &'run Keys,
    done: &AtomicU64,
    stop: &AtomicBool,
    progress: &'run (dyn Fn(u64) + Sync),
) -> Result<Part, LoadError> {
    let mut asker = Asker {
        spec,
        keys,
        connection: Connection::open(&spec.endpoint)?,
        rng: SmallRng::seed_from_u64(
            spec.seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ),
        versions: Versions::new(spec, number as u64),
        value: vec![0; spec.store.value_bytes],
        part: Part { latency: new_histogram(), reads: 0, writes: 0, missing: 0 },
        progress,
    };
    let start = Instant::now();
    let goes_on = |count: usize| {
        !stop.load(Ordering::Relaxed)
            && spec.time.is_none_or(|time| start.elapsed() < time)
            && spec
                .operations
                .is_none_or(|most| done.fetch_add(count as u64, Ordering::Relaxed) < most)
    };
    let halves = [spec.depth.div_ceil(2), spec.depth / 2];
    let mut batches =
        halves.map(|count| Batch { sent: start, requests: Vec::with_capacity(count) });
    let mut at = 0;
    // An empty half (of a depth of 1) does not end the run.
    while halves[at] == 0 || goes_on(halves[at]) {
        let [first, second] = &mut batches;
        let (batch, other) = if at == 0 { (first, second) } else { (second, first) };
        asker.check(batch)?;
        asker.send(batch, halves[at], other)?;
        at = 1 - at;
    }
    // The older half first.
    asker.check(&mut batches[at])?;
    asker.check(&mut batches[1 - at])?;
    Ok(asker.part)
}

impl Asker<'_> {
    /// Fills `batch` with `count` new requests and sends it; `other` may be in flight.
    fn send(
        &mut self,
        batch: &mut Batch,
        count: usize,
        other: &mut Batch,
    ) -> Result<(), LoadError> {
        for _ in 0..count {
            let mut item = self.keys.draw(&mut self.rng);
            let write = self.spec.write_percent > 0
                && self.rng.random_range(0..100) < self.spec.write_percent;
            let bytes = REQUEST_BYTES + if write { self.value.len() } else { 0 };
            if self.connection.prepared_bytes() + bytes > OVERLAP_BYTES_MAX {
                self.check(other)?;
                self.flush(batch)?;
                self.check(batch)?;
            }
            if write {
                item = self.versions.nearest_own(item, self.spec.store.items);
                make_value(item, self.versions.write(item), &mut self.value);
                self.connection.set(&key_of(item), &self.value);
            } else {
                self.connection.get(&key_of(item));
            }
            batch.requests.push((item, write, self.versions.of(item)));
        }
        self.flush(batch)
    }

    fn flush(&mut self, batch: &mut Batch) -> Result<(), LoadError> {
        batch.sent = Instant::now();
        self.connection.flush()
    }

    /// Waits for the answers to `batch`, if it is in flight, and checks each; leaves it empty.
    fn check(&mut self, batch: &mut Batch) -> Result<(), LoadError> {
        let count = batch.requests.len() as u64;
        for (item, write, wanted) in batch.requests.drain(..) {
            let key = key_of(item);
            if write {
                self.connection.stored(&key)?;
                self.part.writes += 1;
            } else {
                self.part.reads += 1;
                match self.connection.value(&key)? {
                    Some(got) => {
                        let version = check_value(item, self.spec.store.value_bytes, got);
                        let checked = version.and_then(|got| match wanted {
                            Some(wanted) if wanted != got => {
                                Err(ValueError::Version { got, wanted })
                            }
                            _ => Ok(()),
                        });
                        checked.map_err(|source| LoadError::Wrong { key, source })?;
                    }
                    None if self.spec.may_miss => self.part.missing += 1,
                    None => {
                        return Err(LoadError::Answer {
                            request: format!("get {key}"),
                            answer: "no such item".to_owned(),
                        });
                    }
                }
            }
            self.part.latency.saturating_record(
                u64::try_from(batch.sent.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1),
            );
        }
        if count > 0 {
            (self.progress)(count);
        }
        Ok(())
    }
}

/// The versions that a connection wrote last to its own items.
struct Versions {
    connections: u64,
    own: u64,
    /// The version of items that were not written; none if it is unknown.
    first: Option<u64>,
    /// Versions of the own items, indexed by their number divided by the number of connections;
    /// empty if nothing is written.
    last: Vec<Option<u64>>,
    next: u64,
}

impl Versions {
    fn new(spec: &RunSpec, own: u64) -> Versions {
        let connections = spec.connections as u64;
        let first = spec.fresh.then_some(0);
        let count = if spec.write_percent > 0 { spec.store.items / connections + 1 } else { 0 };
        // Versions of different runs differ, so that a value of an earlier run is not accepted.
        Versions {
            connections,
            own,
            first,
            last: vec![first; count as usize],
            next: spec.seed << 40 | own << 36,
        }
    }

    /// An item near `item` that this connection may write. There must be at least as many items as
    /// connections.
    fn nearest_own(&self, item: u64, items: u64) -> u64 {
        let own = item / self.connections * self.connections + self.own;
        if own < items { own } else { self.own }
    }

    /// Makes a new version of an own item.
    fn write(&mut self, item: u64) -> u64 {
        self.next += 1;
        self.last[(item / self.connections) as usize] = Some(self.next);
        self.next
    }

    /// The version that a read must return; none if it is unknown.
    fn of(&self, item: u64) -> Option<u64> {
        if self.last.is_empty() {
            return self.first;
        }
        if item % self.connections == self.own {
            self.last[(item / self.connections) as usize]
        } else {
            None
        }
    }
}
