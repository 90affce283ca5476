//! Speed of the simulator on this machine, and memory of an idle node: `cargo run --release
//! --example speed`; with `million`, the largest machine alone.
//!
//! The paper's machine with 256 nodes, then the same load per node with more nodes, over a shorter
//! time; at last the first one again with other models of the network. Times are processor times, so
//! that other programs on the machine matter less; they include the construction of the machine,
//! before the first event. Events for one access differ with the size: accesses compare sizes.

use hiroma_sim::{Config, NetworkConfig, NetworkModel, bytes_per_idle_node, run};

/// Processor time of this process, ns.
fn cpu_ns() -> u64 {
    let text =
        std::fs::read_to_string("/proc/self/schedstat").expect("Linux tells the time of a process");
    text.split(' ')
        .next()
        .and_then(|first| first.parse().ok())
        .expect("the first number is that time")
}

fn main() {
    println!(
        "{:>9} {:>12} {:>14} {:>16} {:>12} {:>16} {:>14}",
        "nodes", "events", "cpu ms", "M events/s", "accesses", "M accesses/s", "B/idle node"
    );
    let fifo = |_: &mut NetworkConfig| ();
    let fair = |network: &mut NetworkConfig| network.model = NetworkModel::Fair;
    let packets = |network: &mut NetworkConfig| {
        network.model = NetworkModel::Packets;
        (network.packet_bytes, network.buffer_bytes) = (2048, 65_536);
    };
    // For a profile of the large machine alone.
    if std::env::args().nth(1).as_deref() == Some("million") {
        return measure(1000, 1_000_000, 5_000_000, &fifo);
    }
    measure(16, 200_000_000, 2_000_000_000, &fifo);
    measure(64, 100_000_000, 400_000_000, &fifo);
    measure(1000, 1_000_000, 5_000_000, &fifo);
    println!("the first one with fair sharing, and with packets of 2 KiB");
    measure(16, 200_000_000, 2_000_000_000, &fair);
    measure(16, 200_000_000, 2_000_000_000, &packets);
}

fn measure(side: u32, warmup_ns: u64, duration_ns: u64, change: &dyn Fn(&mut NetworkConfig)) {
    let mut config = Config::default();
    let nodes = side * side;
    config.topology.dims = vec![side, side];
    config.disk.count = nodes / 16;
    config.load.arrivals_per_s = 150.0 * f64::from(nodes) / 256.0;
    // Accesses are counted while measuring only: so that they are those of all events.
    (config.run.warmup_ns, config.run.duration_ns, config.run.check) =
        (0, warmup_ns + duration_ns, false);
    change(&mut config.network);
    let start_ns = cpu_ns();
    let outcome = run(&config, 1, &mut |_| true).expect("the configuration is valid");
    let took_ns = cpu_ns() - start_ns;
    let per_s = |count: u64| count as f64 / took_ns as f64 * 1e3;
    let bytes = bytes_per_idle_node(&config).expect("the configuration is valid");
    println!(
        "{nodes:>9} {:>12} {:>14.1} {:>16.2} {:>12} {:>16.2} {bytes:>14}",
        outcome.events,
        took_ns as f64 / 1e6,
        per_s(outcome.events),
        outcome.accesses,
        per_s(outcome.accesses)
    );
}
