//! How fast the simulator is on this machine, and how much memory an idle node takes: `cargo run --release --example speed`.
//!
//! The paper's machine with 256 nodes, then the same load per node with more nodes, over a shorter time.

use std::time::Instant;

use hiroma_sim::{Config, bytes_per_idle_node, run};

fn main() {
    println!("{:>9} {:>12} {:>14} {:>16} {:>14}", "nodes", "events", "wall ms", "M events/s", "B/idle node");
    for (side, warmup_ns, duration_ns) in [(16, 200_000_000, 2_000_000_000), (64, 100_000_000, 400_000_000), (1000, 1_000_000, 20_000_000)] {
        let mut config = Config::default();
        let nodes = side * side;
        config.topology.dims = vec![side, side];
        config.disk.count = nodes / 16;
        config.load.arrivals_per_s = 150.0 * f64::from(nodes) / 256.0;
        (config.run.warmup_ns, config.run.duration_ns, config.run.check) = (warmup_ns, duration_ns, false);
        let start = Instant::now();
        let outcome = run(&config, 1, &mut |_| true).expect("the configuration is valid");
        let wall = start.elapsed();
        let per_s = outcome.events as f64 / wall.as_secs_f64() / 1e6;
        let bytes = bytes_per_idle_node(&config).expect("the configuration is valid");
        println!("{nodes:>9} {:>12} {:>14.1} {per_s:>16.2} {bytes:>14}", outcome.events, wall.as_secs_f64() * 1e3);
    }
}
