//! Measures the cost of a sector in the local stores: `cargo run --release -p hiroma-far
//! --example store_speed [DIR]`.

use std::path::PathBuf;
use std::time::Instant;

use hiroma_far::store::compressed::CompressedStore;
use hiroma_far::store::file::FileStore;
use hiroma_far::store::{Channel, Completion, Purpose, Store, Token};
use hiroma_sys::frame::FrameBuf;
use hiroma_sys::wait;
use hiroma_units::Loc;

/// Bytes that are written and read back for each line of output.
const TOTAL_BYTES: usize = 64 << 20;

type Failure = Box<dyn std::error::Error>;

/// A pseudorandom stream.
fn random(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Random numbers, one per line, like the input of `sort`.
fn lines(sector: &mut [u8], next: &mut dyn FnMut() -> u64) {
    let text: String =
        (0..sector.len() / 4).map(|_| format!("{}\n", next() % 1_000_000_000)).collect();
    sector.copy_from_slice(&text.as_bytes()[..sector.len()]);
}

/// Records of a pointer, a length and two more words, like those in `sort`'s memory.
fn records(sector: &mut [u8], next: &mut dyn FnMut() -> u64) {
    let mut pointer = 0x7f12_0000_0000 + next() % (1 << 30);
    for record in sector.chunks_exact_mut(32) {
        pointer += 9 + next() % 2;
        for (word, value) in record.chunks_exact_mut(8).zip([pointer, 10, pointer, pointer + 9]) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

fn noise(sector: &mut [u8], next: &mut dyn FnMut() -> u64) {
    sector.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&next().to_le_bytes()));
}

/// Collects completions; their buffers go to `bufs`.
fn reap(
    channel: &mut dyn Channel,
    out: &mut Vec<Completion>,
    bufs: &mut Vec<FrameBuf>,
) -> Result<(), Failure> {
    channel.poll(out);
    if out.is_empty() && channel.in_flight() > 0 {
        wait::readable(&channel.wait_fds(), 1000);
        channel.poll(out);
    }
    for done in out.drain(..) {
        done.result?;
        bufs.push(done.buf);
    }
    Ok(())
}

/// Writes and reads `TOTAL_BYTES`. Returns nanoseconds for each sector written, and read in random
/// order.
fn measure(
    store: &dyn Store,
    sector_bytes: usize,
    depth: usize,
    content: &[u8],
) -> Result<(f64, f64), Failure> {
    let count = TOTAL_BYTES / sector_bytes;
    let (mut writer, mut reader) = (store.open(Purpose::Write)?, store.open(Purpose::Read)?);
    let mut bufs: Vec<FrameBuf> = (0..depth).map(|_| FrameBuf::leak(sector_bytes)).collect();
    let (mut out, mut locs) = (Vec::new(), vec![Loc(0); count]);
    let mut begun = Instant::now();
    let mut copying = std::time::Duration::ZERO;
    for index in 0..count {
        while bufs.is_empty() {
            reap(&mut *writer, &mut out, &mut bufs)?;
        }
        let mut buf = bufs.pop().expect("one is free");
        let copy_begun = Instant::now();
        buf.bytes_mut()
            .copy_from_slice(&content[index * sector_bytes % content.len()..][..sector_bytes]);
        copying += copy_begun.elapsed();
        writer.write(Token(0), buf, &mut locs[index..=index]).map_err(|(_, error)| error)?;
    }
    while writer.in_flight() > 0 {
        reap(&mut *writer, &mut out, &mut bufs)?;
    }
    let write_ns = (begun.elapsed() - copying).as_nanos() as f64 / count as f64;
    let mut next = random(7);
    begun = Instant::now();
    for _ in 0..count {
        while bufs.is_empty() {
            reap(&mut *reader, &mut out, &mut bufs)?;
        }
        let buf = bufs.pop().expect("one is free");
        reader.read(Token(0), &[locs[next() as usize % count]], buf);
        if depth == 1 {
            reap(&mut *reader, &mut out, &mut bufs)?;
        }
    }
    while reader.in_flight() > 0 {
        reap(&mut *reader, &mut out, &mut bufs)?;
    }
    Ok((write_ns, begun.elapsed().as_nanos() as f64 / count as f64))
}

fn main() -> Result<(), Failure> {
    let dir = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    println!(
        "{:<12} {:<8} {:>9} {:>6} {:>10} {:>10} {:>7}",
        "store", "content", "sector", "depth", "write us", "read us", "ratio"
    );
    type Fill = fn(&mut [u8], &mut dyn FnMut() -> u64);
    for (name, fill) in [("lines", lines as Fill), ("records", records), ("noise", noise)] {
        let mut next = random(42);
        let mut content = vec![0; 4 << 20];
        content.chunks_exact_mut(4096).for_each(|sector| fill(sector, &mut next));
        for sector_bytes in [4 << 10, 8 << 10, 64 << 10, 2 << 20] {
            let line = |store: &dyn Store, depth: usize| -> Result<(), Failure> {
                let (write_ns, read_ns) = measure(store, sector_bytes, depth, &content)?;
                let usage = store.usage();
                let ratio = usage.far_bytes as f64 / usage.stored_bytes as f64;
                let (kind, kib) = (store.name(), sector_bytes >> 10);
                println!(
                    "{kind:<12} {name:<8} {kib:>8}K {depth:>6} {:>10.2} {:>10.2} {ratio:>7.2}",
                    write_ns / 1e3,
                    read_ns / 1e3
                );
                Ok(())
            };
            line(&CompressedStore::new(sector_bytes, 4 * TOTAL_BYTES as u64)?, 1)?;
            if name == "noise" {
                for depth in [1, 16] {
                    line(
                        &FileStore::new(&dir, sector_bytes, Some(4 * TOTAL_BYTES as u64))?,
                        depth,
                    )?;
                }
            }
        }
    }
    Ok(())
}
