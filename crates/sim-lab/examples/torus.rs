//! The transfers of a pattern on this simulator's torus, for `bench/sim/simgrid/compare`: generates
//! the pattern, runs it, and compares the bytes of every link and the times with SimGrid's.
//!
//! `torus pattern FILE TRANSFERS GAP_NS` writes lines of `start_ns source destination bytes`;
//! `torus run FILE LINKS_OUT` prints what `bench/sim/simgrid/torus.cpp` prints, for store and
//! forward, for cut-through and for fair sharing; `torus check OURS SIMGRIDS` compares two files of `from to bytes`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::time::Instant;
use std::{env, fs};

use hiroma_sim::{Config, NetworkConfig, NetworkModel, Sharing, Switching, Transfer, transfer_all};

/// Width and height.
const SIDE: u32 = 16;
const PAGE_BYTES: u64 = 8192;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["pattern", file, transfers, gap_ns] => {
            Ok(fs::write(file, pattern(transfers.parse()?, gap_ns.parse()?))?)
        }
        ["run", file, links] => run(&fs::read_to_string(file)?, links),
        ["check", ours, theirs] => check(&fs::read_to_string(ours)?, &fs::read_to_string(theirs)?),
        _ => Err(
            "usage: torus pattern FILE TRANSFERS GAP_NS | run FILE LINKS_OUT | check OURS SIMGRIDS"
                .into(),
        ),
    }
}

/// Pages between nodes at most four hops apart, as in one of the paper's domains; times are a fixed
/// pseudo-random sequence.
fn pattern(transfers: u32, gap_ns: u64) -> String {
    let mut state = 1u64;
    let mut draw = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut text, mut now_ns) = (String::new(), 0);
    for _ in 0..transfers {
        now_ns += draw(2 * gap_ns);
        let (x, y) = (draw(SIDE.into()) as i64, draw(SIDE.into()) as i64);
        let (dx, dy) = loop {
            let (dx, dy) = (draw(9) as i64 - 4, draw(9) as i64 - 4);
            if (1..=4).contains(&(dx.abs() + dy.abs())) {
                break (dx, dy);
            }
        };
        let (side, to_x, to_y) =
            (i64::from(SIDE), (x + dx).rem_euclid(SIDE.into()), (y + dy).rem_euclid(SIDE.into()));
        let _ = writeln!(text, "{now_ns} {} {} {PAGE_BYTES}", x + y * side, to_x + to_y * side);
    }
    text
}

fn run(pattern: &str, links: &str) -> Result<(), Box<dyn Error>> {
    let mut transfers = Vec::new();
    for line in pattern.lines() {
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [start_ns, source, target, _] = numbers[..] else {
            return Err(format!("not four numbers: {line}").into());
        };
        transfers.push(Transfer { start_ns, source: source as u32, target: target as u32 });
    }
    for (name, model, switching) in [
        ("StoreAndForward", NetworkModel::Fifo, Switching::StoreAndForward),
        ("CutThrough", NetworkModel::Fifo, Switching::CutThrough),
        ("Fair", NetworkModel::Fair, Switching::CutThrough),
    ] {
        let base = Config::default();
        let network = NetworkConfig {
            latency_ns: 1000,
            hop_overhead_ns: 0,
            page_overhead_ns: 0,
            message_bytes: 1,
            switching,
            model,
            // SimGrid's flows share a link in inverse proportion to their latencies.
            sharing: Sharing::ByLatency,
            ..base.network.clone()
        };
        // A message has at least one byte; together with the page it is as large as SimGrid's.
        let mut config = Config { network, ..base };
        config.node.page_bytes = PAGE_BYTES - 1;
        let start = Instant::now();
        let result = transfer_all(&config, &transfers)?;
        let wall_s = start.elapsed().as_secs_f64();
        let taken_ns: u64 = result
            .there_ns
            .iter()
            .zip(&transfers)
            .map(|(there_ns, transfer)| there_ns - transfer.start_ns)
            .sum();
        let count = transfers.len() as f64;
        println!(
            "{name}\ntransfers {count}\nmean_transfer_us {:.3}",
            taken_ns as f64 / count / 1e3
        );
        println!("end_ms {:.3}", result.there_ns.iter().max().copied().unwrap_or(0) as f64 / 1e6);
        println!("wall_s {wall_s:.3}\nwall_us_per_transfer {:.3}\n", wall_s / count * 1e6);
        let lines: String = result
            .neighbour_bytes
            .iter()
            .map(|(from, to, bytes)| format!("{from} {to} {bytes}\n"))
            .collect();
        fs::write(links, lines)?;
    }
    Ok(())
}

fn check(ours: &str, theirs: &str) -> Result<(), Box<dyn Error>> {
    let read = |text: &str| -> Result<BTreeMap<String, f64>, Box<dyn Error>> {
        let pairs = text
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(ends, bytes)| Ok((ends.to_owned(), bytes.parse()?)));
        pairs.filter(|pair| !matches!(pair, Ok((_, bytes)) if *bytes == 0.0)).collect()
    };
    let (ours, theirs) = (read(ours)?, read(theirs)?);
    let off =
        |ends: &String| (ours.get(ends).unwrap_or(&0.0) - theirs.get(ends).unwrap_or(&0.0)).abs();
    let most = ours.keys().chain(theirs.keys()).map(off).fold(0.0, f64::max);
    let (sum, other) = (ours.values().sum::<f64>(), theirs.values().sum::<f64>());
    println!(
        "links {} and {}, bytes {sum} and {other}, largest difference on a link {most} bytes",
        ours.len(),
        theirs.len()
    );
    if most == 0.0 { Ok(()) } else { Err("some link carried another number of pages".into()) }
}
