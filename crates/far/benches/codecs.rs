//! Compares how well and how fast codecs compress the memory of a program: pages of a running
//! program, compressed and decompressed by each codec.
//!
//! `cargo bench -p hiroma-far --bench codecs -- PROGRAM [ARGUMENT]...` starts the program,
//! samples pages of its private writable memory while it runs, and uses the sample from when it had
//! the most. File names must be absolute.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hiroma_sys::codec::{self, ZstdDecoder, ZstdEncoder};

const PAGE: usize = 4096;
const SAMPLED_PIECES: usize = 4096;
const DICTIONARY_BYTES: usize = 64 << 10;
/// All pieces are compressed and decompressed this many times; the fastest round counts.
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    let mut arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // Without a program there is nothing to compress: a plain `cargo bench` skips this.
    let Some(program) = (!arguments.is_empty()).then(|| arguments.remove(0)) else {
        println!("usage: cargo bench -p hiroma-far --bench codecs -- PROGRAM [ARGUMENT]...");
        return ExitCode::SUCCESS;
    };
    let child =
        Command::new(&program).args(&arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("{program}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let pieces = sample(&mut child);
    let _ = child.kill();
    let _ = child.wait();
    if pieces.len() < 64 {
        eprintln!("{program}: ended before 256 KiB of its memory could be read");
        return ExitCode::FAILURE;
    }
    table(&pieces);
    ExitCode::SUCCESS
}

/// Pages of the child's memory without zero ones, from when it has not grown for a second or has
/// run for half a minute.
fn sample(child: &mut Child) -> Vec<Vec<u8>> {
    let (mut pieces, mut most, mut grew) = (Vec::new(), 0, Instant::now());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) && grew.elapsed() < Duration::from_secs(1) {
        if child.try_wait().is_ok_and(|status| status.is_some()) {
            break;
        }
        let resident = resident_pages(child.id());
        if resident > most + most / 10 {
            let taken = read_pieces(child.id());
            if taken.len() >= pieces.len().min(SAMPLED_PIECES / 2) {
                (pieces, most, grew) = (taken, resident, Instant::now());
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
    pieces
}

fn resident_pages(pid: u32) -> usize {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

/// Resident pages, spread evenly over the anonymous writable memory.
fn read_pieces(pid: u32) -> Vec<Vec<u8>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let (Ok(memory), Ok(pagemap)) =
        (File::open(format!("/proc/{pid}/mem")), File::open(format!("/proc/{pid}/pagemap")))
    else {
        return Vec::new();
    };
    let mut resident = Vec::new();
    for (start, end) in maps.lines().filter_map(anonymous) {
        for at in (start..end).step_by(PAGE) {
            let mut entry = [0; 8];
            let read = pagemap.read_exact_at(&mut entry, at / PAGE as u64 * 8);
            if read.is_ok() && u64::from_le_bytes(entry) >> 63 == 1 {
                resident.push(at);
            }
        }
    }
    let every = (resident.len() / SAMPLED_PIECES).max(1);
    let mut pieces = Vec::new();
    for &at in resident.iter().step_by(every) {
        let mut piece = vec![0; PAGE];
        if memory.read_exact_at(&mut piece, at).is_ok() && piece.iter().any(|&byte| byte != 0) {
            pieces.push(piece);
        }
    }
    pieces
}

/// The bounds of a private writable mapping without a file.
fn anonymous(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace();
    let (range, rights) = (fields.next()?, fields.next()?);
    let name = fields.nth(3).unwrap_or("");
    if !rights.starts_with("rw-p") || name.starts_with('/') || name == "[stack]" {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Compresses or decompresses the first argument into the second. Returns the resulting bytes.
type Step<'a> = Box<dyn FnMut(&[u8], &mut [u8]) -> usize + 'a>;

struct Codec<'a> {
    name: &'static str,
    pack: Step<'a>,
    unpack: Step<'a>,
}

fn table(pieces: &[Vec<u8>]) {
    // The dictionary is not trained on the pages that it is judged by.
    let (learned, judged): (Vec<_>, Vec<_>) =
        pieces.iter().enumerate().partition(|(at, _)| at % 2 == 0);
    let learned: Vec<&Vec<u8>> = learned.into_iter().map(|(_, piece)| piece).collect();
    let judged: Vec<&Vec<u8>> = judged.into_iter().map(|(_, piece)| piece).collect();
    let dictionary = zstd::dict::from_samples(&learned, DICTIONARY_BYTES).unwrap_or_default();
    println!("{} pages of 4 KiB", judged.len());
    println!(
        "{:<24} {:>9} {:>11} {:>11} {:>9}",
        "codec", "packed, %", "pack, us", "unpack, us", "> 3/4, %"
    );
    for mut codec in codecs(&dictionary) {
        let mut packed: Vec<Vec<u8>> = vec![vec![0; 2 * PAGE + 64]; judged.len()];
        let mut lens = vec![0; judged.len()];
        let (mut pack, mut unpack) = (Duration::MAX, Duration::MAX);
        let mut out = vec![0; PAGE];
        for _ in 0..ROUNDS {
            let began = Instant::now();
            for ((piece, packed), len) in judged.iter().zip(&mut packed).zip(&mut lens) {
                *len = (codec.pack)(piece, packed);
            }
            pack = pack.min(began.elapsed());
            let began = Instant::now();
            for (packed, &len) in packed.iter().zip(&lens) {
                assert_eq!((codec.unpack)(&packed[..len], &mut out), PAGE);
            }
            unpack = unpack.min(began.elapsed());
        }
        for ((piece, packed), &len) in judged.iter().zip(&packed).zip(&lens) {
            (codec.unpack)(&packed[..len], &mut out);
            assert!(out == **piece, "{} returned other bytes", codec.name);
        }
        let all = (judged.len() * PAGE) as f64;
        let bad = lens.iter().filter(|&&len| len > PAGE * 3 / 4).count() as f64;
        let each_us = |time: Duration| time.as_secs_f64() * 1e6 / judged.len() as f64;
        println!(
            "{:<24} {:>9.1} {:>11.2} {:>11.2} {:>9.1}",
            codec.name,
            lens.iter().sum::<usize>() as f64 / all * 100.0,
            each_us(pack),
            each_us(unpack),
            bad / judged.len() as f64 * 100.0
        );
    }
}

fn codecs(dictionary: &[u8]) -> Vec<Codec<'_>> {
    let (mut encoder, mut decoder) = (ZstdEncoder::new(), ZstdDecoder::new());
    let mut all = vec![
        Codec {
            name: "lz4_flex",
            pack: Box::new(|from, to| lz4_flex::block::compress_into(from, to).expect("it fits")),
            unpack: Box::new(|from, to| {
                lz4_flex::block::decompress_into(from, to).expect("it is whole")
            }),
        },
        Codec {
            name: "LZ4 (in use)",
            pack: Box::new(codec::lz4_pack),
            unpack: Box::new(|from, to| codec::lz4_unpack(from, to).expect("it is whole")),
        },
        Codec {
            name: "Zstandard 1 (in use)",
            pack: Box::new(move |from, to| encoder.pack(from, to)),
            unpack: Box::new(move |from, to| decoder.unpack(from, to).expect("it is whole")),
        },
        snappy(),
    ];
    for (name, level) in [("zstd -5", -5), ("zstd 3", 3)] {
        all.push(zstandard(name, level, &[]));
    }
    if !dictionary.is_empty() {
        for (name, level) in [("zstd -5, dictionary", -5), ("zstd 1, dictionary", 1)] {
            all.push(zstandard(name, level, dictionary));
        }
    }
    all
}

fn snappy() -> Codec<'static> {
    let (mut encoder, mut decoder) = (snap::raw::Encoder::new(), snap::raw::Decoder::new());
    Codec {
        name: "snappy",
        pack: Box::new(move |from, to| encoder.compress(from, to).expect("it fits")),
        unpack: Box::new(move |from, to| decoder.decompress(from, to).expect("it is whole")),
    }
}

fn zstandard(name: &'static str, level: i32, dictionary: &[u8]) -> Codec<'static> {
    let mut encoder = zstd::bulk::Compressor::with_dictionary(level, dictionary)
        .expect("the dictionary is sound");
    let mut decoder =
        zstd::bulk::Decompressor::with_dictionary(dictionary).expect("the dictionary is sound");
    Codec {
        name,
        pack: Box::new(move |from, to| encoder.compress_to_buffer(from, to).expect("it fits")),
        unpack: Box::new(move |from, to| {
            decoder.decompress_to_buffer(from, to).expect("it is whole")
        }),
    }
}
