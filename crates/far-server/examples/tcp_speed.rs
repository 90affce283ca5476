//! Performance of a store on a memory server relative to a raw TCP stream, in one run: bandwidth of
//! 2 MiB reads and writes with 1, 2 and 4 under way, and the latency of 8 KiB reads, compared with
//! two threads on a plain socket.
//!
//! `cargo run --release -p hiroma-far-server --example tcp_speed`

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hiroma_far::config::{Allocation, TransportChoice};
use hiroma_far::store::tcp::{TcpOptions, TcpStore};
use hiroma_far::store::{Channel, Purpose, Store, Token};
use hiroma_far_server::{ServeOptions, serve};
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::wait;
use hiroma_units::{EXTENT, Loc};

const SECTOR: usize = 8192;
const EXTENTS: usize = 256;
const ROUNDS: usize = 3;

fn main() {
    let server = serve(ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 640 << 20,
        ..ServeOptions::default()
    })
    .unwrap();
    let addr = server.local_addr().to_string();
    let store = TcpStore::connect_with(TcpOptions {
        servers: vec![addr],
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
        transport: TransportChoice::Tcp,
    })
    .unwrap();
    let mut reader = store.open(Purpose::Read).unwrap();
    let mut writer = store.open(Purpose::Write).unwrap();
    let mut frames: Vec<FrameBuf> = (0..4).map(|_| FrameBuf::leak(EXTENT)).collect();
    frames.iter_mut().for_each(|frame| frame.bytes_mut().fill(1));
    let mut locs: Vec<Vec<Loc>> = Vec::new();
    for _ in 0..EXTENTS {
        write_one(&mut *writer, &mut frames, &mut locs);
    }
    let (mut raw, mut paths) = (Vec::new(), vec![Vec::new(); 4]);
    for round in 0..ROUNDS {
        println!("round {round}");
        raw.push(raw_stream().unwrap());
        println!("  raw stream, 2 MiB reads     {:6.2} GB/s", raw[round]);
        for (index, depth) in [1, 2, 4].into_iter().enumerate() {
            let speed = reads(&mut *reader, &mut frames, &locs, depth);
            println!("  store, 2 MiB reads, depth {depth} {speed:6.2} GB/s");
            paths[index].push(speed);
        }
        let speed = writes(&store, &mut *writer, &mut frames, &mut locs);
        println!("  store, 2 MiB writes, depth 2 {speed:5.2} GB/s");
        paths[3].push(speed);
        for spin in [true, false] {
            let (p50, p99) = latency(&mut *reader, &locs, spin);
            println!(
                "  store, 8 KiB reads, {} p50 {p50:5.1} us, p99 {p99:5.1} us",
                if spin { "spinning" } else { "sleeping" }
            );
        }
        println!("  raw, 8 KiB reads, sleeping  p50 {:5.1} us", raw_latency().unwrap());
    }
    let median = |speeds: &[f64]| {
        let mut speeds = speeds.to_vec();
        speeds.sort_by(f64::total_cmp);
        speeds[speeds.len() / 2]
    };
    let whole = median(&raw);
    for (name, speeds) in
        ["reads, depth 1", "reads, depth 2", "reads, depth 4", "writes, depth 2"].iter().zip(&paths)
    {
        println!("{name:16} {:.2} of a raw stream", median(speeds) / whole);
    }
}

fn write_one(writer: &mut dyn Channel, frames: &mut Vec<FrameBuf>, locs: &mut Vec<Vec<Loc>>) {
    let mut at = vec![Loc(0); EXTENT / SECTOR];
    writer.write(Token(0), frames.pop().unwrap(), &mut at).map_err(|(_, error)| error).unwrap();
    locs.push(at);
    frames.push(next(writer, false));
}

/// Waits for one completion.
fn next(channel: &mut dyn Channel, spin: bool) -> FrameBuf {
    let mut out = Vec::new();
    loop {
        channel.poll(&mut out);
        if let Some(done) = out.pop() {
            done.result.unwrap();
            assert!(out.is_empty(), "completions are taken one by one here");
            return done.buf;
        }
        if !spin {
            wait::readable(&channel.wait_fds(), 1000);
        }
    }
}

fn reads(
    reader: &mut dyn Channel,
    frames: &mut Vec<FrameBuf>,
    locs: &[Vec<Loc>],
    depth: usize,
) -> f64 {
    let start = Instant::now();
    let mut out = Vec::new();
    let mut started = 0;
    let mut finished = 0;
    let total = 3 * locs.len();
    while finished < total {
        while started < total && started - finished < depth {
            reader.read(Token(0), &locs[started % locs.len()], frames.pop().unwrap());
            started += 1;
        }
        reader.poll(&mut out);
        if out.is_empty() {
            wait::readable(&reader.wait_fds(), 1000);
        }
        for done in out.drain(..) {
            done.result.unwrap();
            frames.push(done.buf);
            finished += 1;
        }
    }
    (total * EXTENT) as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn writes(
    store: &dyn Store,
    writer: &mut dyn Channel,
    frames: &mut Vec<FrameBuf>,
    locs: &mut [Vec<Loc>],
) -> f64 {
    let start = Instant::now();
    let mut out = Vec::new();
    let (total, mut started, mut finished) = (2 * EXTENTS, 0, 0);
    while finished < total {
        while started < total && started - finished < 2 {
            store.free(&locs[started % EXTENTS]);
            writer
                .write(Token(0), frames.pop().unwrap(), &mut locs[started % EXTENTS])
                .map_err(|(_, error)| error)
                .unwrap();
            started += 1;
        }
        writer.poll(&mut out);
        if out.is_empty() {
            wait::readable(&writer.wait_fds(), 1000);
        }
        for done in out.drain(..) {
            done.result.unwrap();
            frames.push(done.buf);
            finished += 1;
        }
    }
    (total * EXTENT) as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Median and 99th percentile in microseconds.
fn latency(reader: &mut dyn Channel, locs: &[Vec<Loc>], spin: bool) -> (f64, f64) {
    let mut frame = Some(FrameBuf::leak(SECTOR));
    let mut times: Vec<f64> = (0..10_000)
        .map(|index: usize| {
            let sector = locs[index * 7919 % locs.len()][index * 31 % (EXTENT / SECTOR)];
            let start = Instant::now();
            reader.read(Token(0), &[sector], frame.take().unwrap());
            frame = Some(next(reader, spin));
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let theirs = listener.accept()?.0;
    ours.set_nodelay(true)?;
    theirs.set_nodelay(true)?;
    Ok((ours, theirs))
}

/// GB/s of a thread that sends 2 MiB buffers to another one, as fast as possible.
fn raw_stream() -> io::Result<f64> {
    let (mut ours, mut theirs) = pair()?;
    let total = 3 * EXTENTS;
    let sender = std::thread::spawn(move || {
        let data = vec![1u8; EXTENT];
        (0..total).try_for_each(|_| theirs.write_all(&data))
    });
    let mut data = vec![1u8; EXTENT];
    let start = Instant::now();
    (0..total).try_for_each(|_| ours.read_exact(&mut data))?;
    let took = start.elapsed();
    sender.join().expect("the sender does not panic")?;
    Ok((total * EXTENT) as f64 / took.as_secs_f64() / 1e9)
}

/// Median round-trip time of 32 bytes out and 8 KiB back, with blocking calls.
fn raw_latency() -> io::Result<f64> {
    let (mut ours, mut theirs) = pair()?;
    let echo = std::thread::spawn(move || {
        let (mut question, data) = ([0u8; 32], [1u8; SECTOR]);
        while theirs.read_exact(&mut question).is_ok() {
            theirs.write_all(&data)?;
        }
        io::Result::Ok(())
    });
    let mut times = Vec::new();
    let mut data = [0u8; SECTOR];
    for _ in 0..3000 {
        let start = Instant::now();
        ours.write_all(&[0; 32])?;
        ours.read_exact(&mut data)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    drop(ours);
    echo.join().expect("the echo does not panic")?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
