use hiroma_policy::placement::*;
use hiroma_sim::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let what = args.get(1).map_or("", |s| s.as_str());
    let rates = std::env::var("RATES").unwrap_or("20,60,80,90,100".into());
    for rate in rates.split(',').map(|r| r.parse::<f64>().unwrap()) {
        let mut c = Config::default();
        c.load.arrivals_per_s = rate;
        for set in what.split(',').filter(|s| !s.is_empty()) {
            let (k, v) = set.split_once('=').unwrap();
            let n: u64 = v.parse().unwrap_or(0);
            match (k, v) {
                ("scope", "disk") => c.policy.scope = ScopeKind::Disk,
                ("scope", "gradient") => c.policy.scope = ScopeKind::Gradient,
                ("info", "periodic") => c.policy.information = InformationKind::Periodic,
                ("info", "demand") => c.policy.information = InformationKind::OnDemand,
                ("place", "most") => c.policy.placement = PlacementKind::MostFree,
                ("place", "near") => c.policy.placement = PlacementKind::Nearest,
                ("place", "two") => c.policy.placement = PlacementKind::TwoChoices,
                ("res", "demand") => c.policy.reservation = ReservationKind::OnDemand,
                ("res", "adv") => c.policy.reservation = ReservationKind::InAdvance,
                ("fail", "replace") => c.policy.on_failure = FailureKind::Replace,
                ("fail", "return") => c.policy.on_failure = FailureKind::Return,
                ("fail", "disk") => c.policy.on_failure = FailureKind::Disk,
                ("r", _) => c.policy.domain_radius = n as u32,
                ("hop", _) => c.network.hop_overhead_ns = n,
                ("marks", _) => (c.policy.high_permille, c.policy.low_permille) = (vec![250, 1000], vec![125, 0]),
                ("pageov", _) => c.network.page_overhead_ns = n,
                ("handler", _) => c.network.handler_ns = n,
                ("access", _) => c.node.access_ns = n,
                ("disk", _) => c.disk.bytes_per_s = n,
                ("own", _) => c.policy.count_own_sends = n == 1,
                ("period", _) => c.policy.period_ns = n,
                ("msg", _) => c.network.message_bytes = n,
                ("att", _) => c.policy.attempts_max = n as u32,
                ("nf", _) => c.failures.mean_between_ns = n,
                ("rate", _) => c.load.arrivals_per_s = n as f64,
                ("normal", _) => c.load.virtual_spread = Spread::Normal,
                ("warm", _) => c.run.warmup_ns = n,
                ("dur", _) => c.run.duration_ns = n,
                _ => panic!("{set}"),
            }
        }
        let t = std::time::Instant::now();
        match run(&c, 1, &mut |_| true) {
            Err(e) => println!("{rate}: {e}"),
            Ok(o) => println!(
                "{:5} resp {:7.3} ms p50 {:.2} p99 {:.1} rem {:.3} tr {:.3} over {:.2} | n {} rem {} disk {} diskms {:.1} | out {} rep {} dsk {} msg/po {:.1} | link {:.2} max {:.2} disk {:.2} node {:.2} mem {:.2} thr {:.1} ms proc {:.0} ms ended {}/{} | ev {} {:.1}M/s",
                c.load.arrivals_per_s,
                o.response_ns.mean().unwrap_or(0.) / 1e6,
                o.response_ns.quantile(500).unwrap_or(0) as f64 / 1e6,
                o.response_ns.quantile(990).unwrap_or(0) as f64 / 1e6,
                o.response_remote_ns.mean().unwrap_or(0.) / 1e6,
                o.transfer_ns.mean().unwrap_or(0.) / 1e6,
                o.transfer_hops.mean().unwrap_or(0.),
                o.response_ns.count(),
                o.transfer_ns.count,
                o.disk_fetch_ns.count,
                o.disk_fetch_ns.mean().unwrap_or(0.) / 1e6,
                o.page_outs,
                o.repeated_page_outs,
                o.placed_disk,
                o.messages_per_page_out().unwrap_or(0.),
                o.link_use(),
                o.link_use_max(),
                o.disk_use(),
                o.node_use(),
                o.frames_used_us as f64 * 1e3 / o.measured_ns as f64 / o.nodes as f64 / c.node.frames as f64,
                o.thread_ns.mean().unwrap_or(0.) / 1e6,
                o.process_ns.mean().unwrap_or(0.) / 1e6,
                o.processes_ended,
                o.processes_arrived,
                o.events,
                o.events as f64 / t.elapsed().as_secs_f64() / 1e6
            ),
        }
    }
}
