//! What a run tells Prometheus while it goes on. It is read from the control pages: the program and
//! its pagers do nothing for it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hiroma_far::control::{Counter, Snapshot, Waited};
use hiroma_metrics::{Distribution, Labels, Source, Unit, Writer};
use hiroma_sys::transport;
use hiroma_units::Nanos;

use crate::watch::{Seen, Watch};

/// Waits above this are not told apart.
const WAIT_MAX: Nanos = Nanos(1 << 35);
/// Waits below this are not told apart.
const WAIT_MIN: Nanos = Nanos(1 << 9);
/// Processes that have series of their own, those with most memory first.
const PROCESSES_MAX: usize = 32;

/// The figures of a run.
pub struct Figures {
    pub watch: Arc<Mutex<Watch>>,
    pub start: Instant,
}

fn label(name: &'static str, value: impl Into<String>) -> Labels {
    vec![(name, value.into())]
}

impl Source for Figures {
    fn write(&self, writer: &mut Writer) -> fmt::Result {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.update();
        let living: Vec<_> = watch.seen().iter().filter(|(_, seen)| seen.alive).collect();
        let elapsed = self.start.elapsed().as_secs_f64();
        writer.gauge(
            "elapsed",
            "Time since the start",
            Some(Unit::Seconds),
            [(vec![], elapsed)],
        )?;
        let count = living.len();
        writer.gauge("processes", "Processes with managed memory", None, [(vec![], count)])?;
        gauges(writer, &watch)?;
        stores(writer, &living)?;
        let total = watch.total();
        faults(writer, total.as_ref())?;
        waits(writer, total.as_ref())?;
        traffic(writer, total.as_ref())?;
        processes(writer, living)
    }
}

fn count(total: Option<&Snapshot>, counter: Counter) -> u64 {
    total.map_or(0, |total| total.get(counter))
}

fn gauges(writer: &mut Writer, watch: &Watch) -> fmt::Result {
    for (name, help, counter) in [
        ("limit", "Limits of local memory of all processes", Counter::LimitBytes),
        ("local", "Managed memory that is local", Counter::LocalBytes),
        ("resident", "Of this, what is mapped into programs", Counter::ResidentBytes),
        ("far", "Managed memory that is in a store", Counter::FarBytes),
        ("mapped", "Managed address space in use", Counter::MappedBytes),
        ("metadata", "Tables of pagers and stores", Counter::MetadataBytes),
        ("store_capacity", "Capacity of the stores", Counter::StoreCapacityBytes),
    ] {
        writer.gauge(name, help, Some(Unit::Bytes), [(vec![], watch.now(counter))])?;
    }
    Ok(())
}

fn stores(writer: &mut Writer, living: &[(&u32, &Seen)]) -> fmt::Result {
    let sum = |of: fn(&Snapshot) -> u64| living.iter().map(|(_, seen)| of(&seen.snapshot)).sum();
    let kinds: [(&str, u64); 3] = [
        ("compressed", sum(|of| of.stores.compressed_bytes)),
        ("file", sum(|of| of.stores.file_bytes)),
        ("server", sum(|of| of.stores.server_bytes)),
    ];
    let kinds = kinds.map(|(kind, bytes)| (label("store", kind), bytes));
    writer.gauge("stored", "Bytes in use in stores", Some(Unit::Bytes), kinds)?;
    let made: [(&str, u64); 2] = [
        (transport::TCP, sum(|of| of.stores.tcp_connections)),
        (transport::SHARED_MEMORY, sum(|of| of.stores.shared_connections)),
    ];
    let made = made.map(|(kind, count)| (label("transport", kind), count));
    let help = "Connections for content that were made to servers";
    writer.gauge("server_connections", help, None, made)?;
    let short: u64 = sum(|of| of.stores.short_bytes);
    let help = "Bytes with fewer copies or pieces than wanted, which are made again";
    writer.gauge("copies_missing", help, Some(Unit::Bytes), [(vec![], short)])?;
    let oldest = living.iter().map(|(_, seen)| seen.snapshot.oldest_wait).max();
    let oldest = oldest.unwrap_or_default().0 as f64 / 1e9;
    let help = "For how long the oldest fault has waited";
    writer.gauge("oldest_wait", help, Some(Unit::Seconds), [(vec![], oldest)])
}

fn faults(writer: &mut Writer, total: Option<&Snapshot>) -> fmt::Result {
    let of = |counter| count(total, counter);
    let kinds = [
        ("fresh", of(Counter::FaultsFresh)),
        ("staged", of(Counter::FaultsStaged)),
        ("prefetched", of(Counter::FaultsPrefetched)),
        ("fetched", of(Counter::FaultsFetched)),
    ];
    let known: u64 = kinds.iter().map(|(_, count)| count).sum();
    let rest = ("other", of(Counter::Faults).saturating_sub(known));
    let kinds = kinds.into_iter().chain([rest]);
    let kinds = kinds.map(|(kind, count)| (label("kind", kind), count));
    writer.counter("faults", "Faults by where the block was", None, kinds)?;
    for (name, help, counter) in [
        ("prefetches", "Blocks that were prefetched", Counter::Prefetches),
        ("prefetches_wasted", "Of these, dropped without use", Counter::PrefetchesWasted),
        ("stalls_for_room", "Faults that waited for room", Counter::StallsForRoom),
    ] {
        writer.counter(name, help, None, [(vec![], of(counter))])?;
    }
    Ok(())
}

fn seconds(total: Option<&Snapshot>, kind: Waited) -> f64 {
    total.map_or(0.0, |total| total.waited(kind).0 as f64 / 1e9)
}

fn waits(writer: &mut Writer, total: Option<&Snapshot>) -> fmt::Result {
    let kinds = [
        ("first-touch", Waited::FirstTouch),
        ("staged", Waited::Staged),
        ("fetched", Waited::Fetched),
        ("room", Waited::Room),
    ];
    let sums = kinds.map(|(kind, waited)| (kind, seconds(total, waited)));
    let all = total.map(|total| distribution(total, sums.iter().map(|(_, sum)| sum).sum()));
    let all = all.map(|all| (vec![], all));
    writer.histogram("fault_wait", "Estimated waits of faulting threads", all)?;
    let sums = sums.map(|(kind, sum)| (label("kind", kind), sum));
    writer.seconds("waited", "Estimated waits, over all threads", sums)?;
    let any = [(vec![], seconds(total, Waited::AnyFar))];
    let help = "Time in which a thread waited for far memory, over all processes";
    writer.seconds("waiting", help, any)
}

fn distribution(total: &Snapshot, sum: f64) -> Distribution {
    let (steps, above) = total.wait_steps(WAIT_MAX);
    let mut least = 0;
    let mut buckets = Vec::new();
    for (end, count) in steps {
        least += count;
        if end >= WAIT_MIN {
            buckets.push((end.0 as f64 / 1e9, std::mem::take(&mut least)));
        }
    }
    Distribution { buckets, above, sum }
}

fn traffic(writer: &mut Writer, total: Option<&Snapshot>) -> fmt::Result {
    let of = |counter| count(total, counter);
    let recopied = total.map_or(0, |total| total.stores.recopied_bytes);
    for (name, help, bytes) in [
        ("fetched", "Read from stores", of(Counter::FetchedBytes)),
        ("written", "Written to stores", of(Counter::WrittenBytes)),
        ("clean", "Evicted with nothing to write", of(Counter::CleanBytes)),
        ("pattern", "Evicted as one repeated word", of(Counter::PatternBytes)),
        ("recopied", "Copied again after the loss of a server", recopied),
    ] {
        writer.counter(name, help, Some(Unit::Bytes), [(vec![], bytes)])?;
    }
    Ok(())
}

fn processes(writer: &mut Writer, mut living: Vec<(&u32, &Seen)>) -> fmt::Result {
    let local = |seen: &Seen| seen.snapshot.get(Counter::LocalBytes);
    living.sort_by_key(|&(pid, seen)| (std::cmp::Reverse(local(seen)), *pid));
    living.truncate(PROCESSES_MAX);
    let series = |of: fn(&Snapshot) -> u64| {
        let one =
            move |(pid, seen): &(&u32, &Seen)| (label("pid", pid.to_string()), of(&seen.snapshot));
        living.iter().map(one).collect::<Vec<_>>()
    };
    let bytes = || Some(Unit::Bytes);
    let local = series(|of| of.get(Counter::LocalBytes));
    writer.gauge("process_local", "Local memory of a process", bytes(), local)?;
    let far = series(|of| of.get(Counter::FarBytes));
    writer.gauge("process_far", "Memory of a process that is in a store", bytes(), far)?;
    let faults = series(|of| of.get(Counter::Faults));
    writer.counter("process_faults", "Faults of a process", None, faults)?;
    let waiting = series(|of| of.waited(Waited::AnyFar).0).into_iter();
    let waiting = waiting.map(|(labels, ns)| (labels, ns as f64 / 1e9));
    let help = "Time in which a thread of a process waited for far memory";
    writer.seconds("process_waiting", help, waiting)
}
