//! Metrics of a daemon for Prometheus: OpenMetrics text over HTTP, on request only.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Timeout for a client's request, and for sending the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// A request of Prometheus is not longer than this.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Answers requests for the metrics, until it is dropped.
pub struct Endpoint {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Endpoint {
    /// Serves `registry` at `address`; port 0 is any free port.
    ///
    /// # Errors
    /// Those of listening there, and of starting a thread.
    pub fn open(address: SocketAddr, registry: Registry) -> io::Result<Endpoint> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let (stop, registry) = (Arc::new(AtomicBool::new(false)), Mutex::new(registry));
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
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn open(address: SocketAddr) -> io::Result<Endpoint> {
        let mut registry = Registry::with_prefix("test");
        let turns: Counter = Counter::default();
        turns.inc_by(7);
        registry.register("turns", "Turns", turns);
        Endpoint::open(address, registry)
    }

    fn any() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    #[test]
    fn metrics_are_served_over_http() {
        let endpoint = open(any()).unwrap();
        let text = ask(endpoint.address(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            text.starts_with("HTTP/1.1 200 OK") && text.contains("test_turns_total 7"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn other_or_unfinished_requests_do_no_harm() {
        let endpoint = open(any()).unwrap();
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
        let endpoint = open(any()).unwrap();
        assert!(open(endpoint.address()).is_err());
    }
}
