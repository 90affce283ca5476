//! TCP against shared memory, in one run, in turn: bandwidth of sequential reads and writes, and the
//! latency of 4 KiB reads in random order.
//!
//! `cargo run --release -p hiroma-far-server --example transport_speed [ROUNDS]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use hiroma_far::config::{Allocation, TransportChoice};
use hiroma_far::store::tcp::{TcpOptions, TcpStore};
use hiroma_far::store::{Channel, Purpose, Store, Token};
use hiroma_far_server::{ServeOptions, serve};
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::wait;
use hiroma_units::Loc;

const SECTOR: usize = 4096;
/// Bytes that are stored.
const TOTAL: usize = 512 << 20;
/// Bytes of one sequential measurement.
const MOVED: usize = 2 * TOTAL;

struct Path {
    store: TcpStore,
    reader: Box<dyn Channel>,
    writer: Box<dyn Channel>,
    locs: Vec<Loc>,
}

fn open(addr: &str, transport: TransportChoice) -> Path {
    let store = TcpStore::connect_with(TcpOptions {
        servers: vec![addr.to_owned()],
        sector_bytes: SECTOR,
        allocation: Allocation::Simple,
        timeout: Duration::from_secs(5),
        key_file: None,
        resolved: Vec::new(),
        log: Arc::new(|line| eprintln!("{line}")),
        lost: Arc::new(|error| panic!("{error}")),
        is_redundant: false,
        is_return: false,
        is_followed: false,
        transport,
    })
    .unwrap();
    let (reader, writer) =
        (store.open(Purpose::Read).unwrap(), store.open(Purpose::Write).unwrap());
    let mut path = Path { store, reader, writer, locs: vec![Loc(0); TOTAL / SECTOR] };
    sequential(&mut path, true, 2 << 20, 2, TOTAL);
    let usage = path.store.usage();
    assert_eq!(usage.shared_connections > 0, transport == TransportChoice::Auto, "{usage:?}");
    path
}

/// GB/s of requests of `len` bytes, `depth` at a time, one after the other.
fn sequential(path: &mut Path, is_write: bool, len: usize, depth: usize, moved: usize) -> f64 {
    let mut frames: Vec<FrameBuf> = (0..depth).map(|_| FrameBuf::leak(len)).collect();
    frames.iter_mut().for_each(|frame| frame.bytes_mut().fill(7));
    let (count, each) = (moved / len, len / SECTOR);
    let (mut out, mut started, mut finished) = (Vec::new(), 0, 0);
    let start = Instant::now();
    while finished < count {
        while started < count && !frames.is_empty() {
            let at = started * each % path.locs.len();
            let (locs, frame) = (&mut path.locs[at..at + each], frames.pop().unwrap());
            if is_write {
                if locs[0] != Loc(0) || locs[each - 1] != Loc(0) {
                    path.store.free(locs);
                }
                path.writer.write(Token(0), frame, locs).map_err(|(_, error)| error).unwrap();
            } else {
                path.reader.read(Token(0), locs, frame);
            }
            started += 1;
        }
        let channel = if is_write { &mut path.writer } else { &mut path.reader };
        channel.poll(&mut out);
        if out.is_empty() {
            wait::readable(&channel.wait_fds(), 1000);
        }
        for done in out.drain(..) {
            done.result.unwrap();
            frames.push(done.buf);
            finished += 1;
        }
    }
    moved as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Median and 99th percentile in microseconds.
fn latency(path: &mut Path, spin: bool) -> [f64; 2] {
    let mut frame = Some(FrameBuf::leak(SECTOR));
    let mut out = Vec::new();
    let mut times: Vec<f64> = (0..20_000usize)
        .map(|index| {
            let loc = path.locs[index * 7919 % path.locs.len()];
            let start = Instant::now();
            path.reader.read(Token(0), &[loc], frame.take().unwrap());
            loop {
                path.reader.poll(&mut out);
                if let Some(done) = out.pop() {
                    done.result.unwrap();
                    frame = Some(done.buf);
                    return start.elapsed().as_secs_f64() * 1e6;
                }
                if !spin {
                    wait::readable(&path.reader.wait_fds(), 1000);
                }
            }
        })
        .collect();
    times.sort_by(f64::total_cmp);
    [times[times.len() / 2], times[times.len() * 99 / 100]]
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(5, |rounds| rounds.parse().expect("a number"));
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 3 * TOTAL as u64,
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let addr = server.local_addr().to_string();
    let mut paths =
        [TransportChoice::Tcp, TransportChoice::Auto].map(|transport| open(&addr, transport));
    let names = [
        "2 MiB reads, depth 1, GB/s",
        "2 MiB reads, depth 2, GB/s",
        "64 KiB reads, depth 8, GB/s",
        "2 MiB writes, depth 2, GB/s",
        "64 KiB writes, depth 8, GB/s",
        "4 KiB random reads, spinning, p50, us",
        "4 KiB random reads, spinning, p99, us",
        "4 KiB random reads, sleeping, p50, us",
        "4 KiB random reads, sleeping, p99, us",
    ];
    let mut all = vec![[const { Vec::new() }; 2]; names.len()];
    for _ in 0..rounds {
        for (side, path) in paths.iter_mut().enumerate() {
            let [spinning, sleeping] = [latency(path, true), latency(path, false)];
            let values = [
                sequential(path, false, 2 << 20, 1, MOVED),
                sequential(path, false, 2 << 20, 2, MOVED),
                sequential(path, false, 64 << 10, 8, MOVED),
                sequential(path, true, 2 << 20, 2, MOVED),
                sequential(path, true, 64 << 10, 8, MOVED),
                spinning[0],
                spinning[1],
                sleeping[0],
                sleeping[1],
            ];
            for (of_all, value) in all.iter_mut().zip(values) {
                of_all[side].push(value);
            }
        }
    }
    println!("medians of {rounds} rounds in turn          tcp  shared memory  ratio");
    for (name, mut sides) in names.iter().zip(all) {
        let [tcp, shared] = [0, 1].map(|side| {
            sides[side].sort_by(f64::total_cmp);
            sides[side][rounds / 2]
        });
        println!("{name:38} {tcp:8.2} {shared:14.2} {:6.2}", shared / tcp);
    }
}
