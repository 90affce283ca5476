//! What a command tells about itself over HTTP, on request only: metrics for Prometheus as
//! OpenMetrics text, or pages.

mod address;
mod figures;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

pub use address::{AddressError, parse_address};
pub use figures::{Distribution, Labels, Source, Writer, label_value, registry_of};
pub use prometheus_client::registry::Unit;

/// Timeout for a client's request, and for sending the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// A request of Prometheus or of a browser is not longer than this.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Clients that are answered at the same time. A browser keeps a connection or two in reserve.
const CLIENTS_MAX: usize = 16;

/// An answer to a request.
pub struct Page {
    /// Its media type.
    pub kind: &'static str,
    /// Its content; an error is a line of text.
    pub body: Result<Vec<u8>, String>,
}

/// The page at a path, if there is one.
pub type Pages = dyn Fn(&str) -> Option<Page> + Send + Sync;

/// Answers requests, until it is dropped.
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
        let registry = Mutex::new(registry);
        Endpoint::with_pages(address, move |path| (path == "/metrics").then(|| metrics(&registry)))
    }

    /// Serves pages at `address`; port 0 is any free port.
    ///
    /// # Errors
    /// Those of listening there, and of starting a thread.
    pub fn with_pages(
        address: SocketAddr,
        pages: impl Fn(&str) -> Option<Page> + Send + Sync + 'static,
    ) -> io::Result<Endpoint> {
        let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => io::Error::new(
                error.kind(),
                "another program listens there (`ss -ltnp` shows it): choose another port",
            ),
            _ => error,
        })?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, pages): (_, Arc<Pages>) = (stop.clone(), Arc::new(pages));
        let serve = move || {
            let clients = Arc::new(AtomicUsize::new(0));
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                match stream {
                    Ok(stream) => start_answer(stream, &pages, &clients),
                    // Out of descriptors or memory: it can only wait.
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
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

/// Answers in a thread of its own: a client that sends nothing must not keep others waiting.
fn start_answer(stream: TcpStream, pages: &Arc<Pages>, clients: &Arc<AtomicUsize>) {
    if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
        clients.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let (pages, count) = (Arc::clone(pages), Arc::clone(clients));
    let work = move || {
        // A client that does not receive is skipped.
        let _ = answer(stream, &*pages);
        count.fetch_sub(1, Ordering::Relaxed);
    };
    if thread::Builder::new().name("hiroma-metrics".to_owned()).spawn(work).is_err() {
        clients.fetch_sub(1, Ordering::Relaxed);
    }
}

fn metrics(registry: &Mutex<Registry>) -> Page {
    let mut text = String::new();
    let written = registry.lock().map(|registry| encode(&mut text, &registry));
    Page {
        kind: "application/openmetrics-text; version=1.0.0; charset=utf-8",
        body: match written {
            Ok(Ok(())) => Ok(text.into_bytes()),
            _ => Err("the metrics cannot be written".to_owned()),
        },
    }
}

fn answer(mut stream: TcpStream, pages: &Pages) -> io::Result<()> {
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
    let (status, kind, body) = match path_of(&request).and_then(pages) {
        Some(Page { kind, body: Ok(body) }) => ("200 OK", kind, body),
        Some(Page { body: Err(reason), .. }) => {
            ("500 Internal Server Error", "text/plain", format!("{reason}\n").into_bytes())
        }
        None => ("404 Not Found", "text/plain", b"there is nothing here\n".to_vec()),
    };
    // A page may use what is in it, and this server, and nothing else.
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

/// The path that a GET asks for, without a query.
fn path_of(request: &[u8]) -> Option<&str> {
    let rest = request.strip_prefix(b"GET ")?;
    let end = rest.iter().position(|byte| b" ?".contains(byte))?;
    std::str::from_utf8(&rest[..end]).ok()
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
    fn silent_clients_do_not_keep_others_waiting() {
        let endpoint = open(any()).unwrap();
        let silent: Vec<_> =
            (0..CLIENTS_MAX - 1).map(|_| TcpStream::connect(endpoint.address()).unwrap()).collect();
        let began = Instant::now();
        assert!(ask(endpoint.address(), "GET /metrics HTTP/1.1\r\n\r\n").contains("200 OK"));
        assert!(began.elapsed() < LIMIT / 2);
        drop(silent);
    }

    #[test]
    fn pages_are_found_by_path() {
        let endpoint = Endpoint::with_pages(any(), |path| {
            let body = if path == "/" { Ok(b"hello".to_vec()) } else { Err("broken".to_owned()) };
            (path != "/none").then_some(Page { kind: "text/html", body })
        });
        let endpoint = endpoint.unwrap();
        let get = |path| ask(endpoint.address(), &format!("GET {path} HTTP/1.1\r\n\r\n"));
        assert!(get("/?x=1").ends_with("\r\n\r\nhello") && get("/none").contains("404"));
        assert!(get("/other").contains("500") && get("/other").ends_with("broken\n"));
        assert!(ask(endpoint.address(), "POST / HTTP/1.1\r\n\r\n").contains("404"));
    }

    #[test]
    fn address_in_use_is_an_error() {
        let endpoint = open(any()).unwrap();
        let error = open(endpoint.address()).err().expect("it is in use");
        assert!(error.to_string().contains("another program"), "{error}");
    }
}
