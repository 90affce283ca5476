//! A network between store and server that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Forwards connections to a server until it is told to stop.
pub struct Proxy {
    pub addr: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: SocketAddr,
    /// Nothing is forwarded any more, although all connections stay open.
    held: AtomicBool,
    /// Nothing is forwarded for now; nothing is lost either.
    paused: AtomicBool,
    /// Milliseconds by which answers come later.
    delay_ms: AtomicU64,
    /// New connections are closed immediately.
    closed: AtomicBool,
    /// A connection that has forwarded this many bytes to the server, or to the client, is cut.
    budgets: [AtomicU64; 2],
    cuts: AtomicU64,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub fn new(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(State {
            server,
            held: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            delay_ms: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            budgets: [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)],
            cuts: AtomicU64::new(0),
            streams: Mutex::default(),
        });
        let (addr, shared) = (listener.local_addr().unwrap(), Arc::clone(&state));
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|client| shared.forward(client))
        });
        Proxy { addr, state }
    }

    /// Cuts every connection, and each later one after this many bytes.
    pub fn set_budgets(&self, to_server: u64, to_client: u64) {
        self.state.budgets[0].store(to_server, Ordering::SeqCst);
        self.state.budgets[1].store(to_client, Ordering::SeqCst);
        self.cut();
    }

    /// Cuts everything; new connections are refused from now on.
    pub fn close(&self) {
        self.state.closed.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Lets new connections through again.
    pub fn reopen(&self) {
        self.state.closed.store(false, Ordering::SeqCst);
    }

    /// Discards everything from now on.
    pub fn hold(&self) {
        self.state.held.store(true, Ordering::SeqCst);
    }

    /// Delays everything from now on, like a server that is stopped.
    pub fn pause(&self) {
        self.state.paused.store(true, Ordering::SeqCst);
    }

    /// Answers come later by this from now on.
    pub fn set_delay(&self, delay: std::time::Duration) {
        self.state.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// Forwards what was delayed.
    pub fn resume(&self) {
        self.state.paused.store(false, Ordering::SeqCst);
    }

    /// Cuts the current connections.
    pub fn cut(&self) {
        self.state
            .streams
            .lock()
            .unwrap()
            .drain(..)
            .for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// Number of connections that the budget has cut.
    pub fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

impl State {
    fn forward(self: &Arc<Self>, client: TcpStream) {
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        let Ok(server) = TcpStream::connect(self.server) else { return };
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let mut streams = self.streams.lock().unwrap();
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        streams.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
        for (from, to, side) in [(&client, &server, 0), (&server, &client, 1)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let (state, budget) = (Arc::clone(self), self.budgets[side].load(Ordering::SeqCst));
            std::thread::spawn(move || state.copy(from, to, side, budget));
        }
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, side: usize, mut budget: u64) {
        let mut bytes = [0; 16384];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if self.held.load(Ordering::SeqCst) {
                continue;
            }
            while self.paused.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            if side == 1 {
                let delay_ms = self.delay_ms.load(Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(delay_ms));
            }
            let pass = budget.min(count as u64) as usize;
            budget -= pass as u64;
            if to.write_all(&bytes[..pass]).is_err() || pass < count {
                self.cuts.fetch_add(u64::from(pass < count), Ordering::SeqCst);
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
