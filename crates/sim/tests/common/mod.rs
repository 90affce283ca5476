//! What tests of the engine share.

use std::sync::Arc;

use hiroma_sim::{Config, Outcome, Spread, TraceKind, TraceRecord, run};

pub const MS: u64 = 1_000_000;

/// A small machine under pressure: four by four nodes of 16 frames, programs of up to 40 pages.
pub fn small() -> Config {
    let mut config = Config::default();
    config.topology.dims = vec![4, 4];
    config.disk.count = 4;
    config.node.frames = 16;
    (config.load.virtual_pages_max, config.load.accesses, config.load.arrivals_per_s) =
        (40, 400, 150.0);
    config.load.virtual_spread = Spread::Uniform;
    config.policy.domain_radius = 2;
    (config.run.warmup_ns, config.run.duration_ns) = (20 * MS, 300 * MS);
    config
}

pub fn outcome(config: &Config, seed: u64) -> Outcome {
    run(config, seed, &mut |_| true).unwrap_or_else(|error| panic!("{error}\n{config:#?}"))
}

pub fn replay(config: &mut Config, records: Vec<TraceRecord>) {
    config.load.trace = Some(Arc::from(records));
    config.run.warmup_ns = 0;
    config.run.drain = true;
}

pub fn out(time_ns: u64, node: u32, page: u64) -> TraceRecord {
    TraceRecord { time_ns, node, kind: TraceKind::PageOut, page }
}

pub fn back(time_ns: u64, node: u32, page: u64) -> TraceRecord {
    TraceRecord { time_ns, node, kind: TraceKind::PageIn, page }
}
