//! What the daemon did and observes, for Prometheus: OpenMetrics text over HTTP, on request only.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hiroma_policy::reclaim::{PAGE_BYTES, Reason};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Timeout for a client's request, and for sending the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// A request of Prometheus is not longer than this.
const REQUEST_BYTES_MAX: usize = 8 << 10;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfNode {
    node: u32,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfVerdict {
    node: u32,
    reason: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfMechanism {
    name: &'static str,
}

type Seconds = Counter<f64, AtomicU64>;

/// Counters and gauges of one daemon.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    reclaimed: Family<OfNode, Counter>,
    batches: Family<OfNode, Counter>,
    cpu: Family<OfNode, Seconds>,
    compactions: Family<OfNode, Counter>,
    dropped: Counter,
    verdicts: Family<OfVerdict, Counter>,
    fill: Family<OfNode, Gauge>,
    free: Family<OfNode, Gauge>,
    wanted: Family<OfNode, Gauge>,
    mechanisms: Family<OfMechanism, Gauge>,
}

impl Metrics {
    /// Counts a batch that was reclaimed on `node`.
    pub fn batch(&self, node: u32, got_pages: u64, cpu_ns: u64) {
        let of = OfNode { node };
        self.reclaimed.get_or_create(&of).inc_by(got_pages * PAGE_BYTES);
        self.batches.get_or_create(&of).inc();
        self.cpu.get_or_create(&of).inc_by(cpu_ns as f64 / 1e9);
    }

    /// Counts a compaction that was started on `node`.
    pub fn compaction(&self, node: u32) {
        self.compactions.get_or_create(&OfNode { node }).inc();
    }

    /// Counts bytes that were dropped behind streams.
    pub fn dropped(&self, bytes: u64) {
        self.dropped.inc_by(bytes);
    }

    /// Records a decision for `node`, whose cache is filled by `fill_s` pages a second.
    pub fn verdict(&self, node: u32, reason: &Reason, fill_s: u64) {
        self.verdicts.get_or_create(&OfVerdict { node, reason: reason.name() }).inc();
        let of = OfNode { node };
        let bytes =
            |pages: u64| i64::try_from(pages.saturating_mul(PAGE_BYTES)).unwrap_or(i64::MAX);
        self.fill.get_or_create(&of).set(bytes(fill_s));
        if let Some((free, wanted)) = reason.free_and_wanted() {
            self.free.get_or_create(&of).set(bytes(free));
            self.wanted.get_or_create(&of).set(bytes(wanted));
        }
    }

    /// Records whether a mechanism is in use.
    pub fn mechanism(&self, name: &'static str, in_use: bool) {
        self.mechanisms.get_or_create(&OfMechanism { name }).set(i64::from(in_use));
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("hiroma_quiet");
        registry.register_with_unit(
            "reclaimed",
            "File cache given back early",
            Unit::Bytes,
            self.reclaimed.clone(),
        );
        registry.register("batches", "Requests to the kernel to reclaim", self.batches.clone());
        registry.register_with_unit(
            "reclaim_cpu",
            "Processor time of early reclaim",
            Unit::Seconds,
            self.cpu.clone(),
        );
        registry.register("compactions", "Compactions that were begun", self.compactions.clone());
        registry.register_with_unit(
            "dropped",
            "File cache dropped behind streams",
            Unit::Bytes,
            self.dropped.clone(),
        );
        registry.register(
            "verdicts",
            "Looks at the machine by what was decided and why",
            self.verdicts.clone(),
        );
        registry.register(
            "fill_bytes_per_second",
            "File data that enters the cache",
            self.fill.clone(),
        );
        registry.register_with_unit(
            "free",
            "Memory that counted as free when it mattered last",
            Unit::Bytes,
            self.free.clone(),
        );
        registry.register_with_unit(
            "wanted",
            "Memory that should have been free then",
            Unit::Bytes,
            self.wanted.clone(),
        );
        registry.register("mechanism", "1: in use", self.mechanisms.clone());
        registry
    }
}

/// Answers requests for the metrics, until it is dropped.
pub struct Endpoint {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Endpoint {
    /// Listens at `address`; port 0 is any free port.
    pub fn open(address: SocketAddr, metrics: &Metrics) -> io::Result<Endpoint> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let (stop, registry) = (Arc::new(AtomicBool::new(false)), Mutex::new(metrics.registry()));
        let stopped = stop.clone();
        let serve = move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                // A client that does not receive is skipped.
                let _ = stream.and_then(|stream| answer(stream, &registry));
            }
        };
        thread::Builder::new().name("hiroma-metrics".to_owned()).spawn(serve)?;
        Ok(Endpoint { address, stop })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread. It is not joined: a slow client may keep it busy.
        let _ = TcpStream::connect_timeout(&self.address, LIMIT);
    }
}

fn answer(mut stream: TcpStream, registry: &Mutex<Registry>) -> io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let (mut request, began) = (Vec::new(), Instant::now());
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut some = [0; 1024];
        let got = stream.read(&mut some)?;
        if got == 0 || request.len() + got > REQUEST_BYTES_MAX || began.elapsed() > LIMIT {
            return Ok(());
        }
        request.extend_from_slice(&some[..got]);
    }
    let (status, kind, body) = if request.starts_with(b"GET /metrics ") {
        let mut text = String::new();
        match registry.lock().map(|registry| encode(&mut text, &registry)) {
            Ok(Ok(())) => {
                ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
            }
            _ => (
                "500 Internal Server Error",
                "text/plain",
                "the metrics cannot be written\n".to_owned(),
            ),
        }
    } else {
        ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn metrics_are_served_over_http() {
        let metrics = Metrics::default();
        let endpoint = Endpoint::open("127.0.0.1:0".parse().unwrap(), &metrics).unwrap();
        metrics.batch(1, 256, 500_000_000);
        metrics.verdict(1, &Reason::Enough { free: 512, wanted: 256 }, 2);
        metrics.mechanism("node_reclaim", true);
        let text = ask(endpoint.address(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        for line in [
            "HTTP/1.1 200 OK",
            "hiroma_quiet_reclaimed_bytes_total{node=\"1\"} 1048576",
            "hiroma_quiet_batches_total{node=\"1\"} 1",
            "hiroma_quiet_reclaim_cpu_seconds_total{node=\"1\"} 0.5",
            "hiroma_quiet_verdicts_total{node=\"1\",reason=\"enough\"} 1",
            "hiroma_quiet_fill_bytes_per_second{node=\"1\"} 8192",
            "hiroma_quiet_free_bytes{node=\"1\"} 2097152",
            "hiroma_quiet_mechanism{name=\"node_reclaim\"} 1",
        ] {
            assert!(
                text.lines().any(|found| found.trim_end() == line),
                "{line} is missing in\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn other_or_unfinished_requests_do_no_harm() {
        let endpoint = Endpoint::open("127.0.0.1:0".parse().unwrap(), &Metrics::default()).unwrap();
        assert!(ask(endpoint.address(), "GET / HTTP/1.1\r\n\r\n").contains("404"));
        drop(TcpStream::connect(endpoint.address()).unwrap());
        let mut endless = TcpStream::connect(endpoint.address()).unwrap();
        // Refused in the middle of the request, or after it.
        let _ = endless.write_all(&[b'x'; 4 * REQUEST_BYTES_MAX]);
        drop(endless);
        assert!(ask(endpoint.address(), "GET /metrics HTTP/1.1\r\n\r\n").contains("200 OK"));
    }

    #[test]
    fn address_in_use_is_an_error() {
        let endpoint = Endpoint::open("127.0.0.1:0".parse().unwrap(), &Metrics::default()).unwrap();
        assert!(Endpoint::open(endpoint.address(), &Metrics::default()).is_err());
    }
}
