//! A network between store and server that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Forwards connections to a server until it is told to stop doing so.
pub struct Proxy {
    pub addr: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: SocketAddr,
    /// New connections are closed at once.
    closed: AtomicBool,
    /// A connection that has forwarded so many bytes, either way, is cut.
    budget: AtomicU64,
    cuts: AtomicU64,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub fn new(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(State {
            server,
            closed: AtomicBool::new(false),
            budget: AtomicU64::new(u64::MAX),
            cuts: AtomicU64::new(0),
            streams: Mutex::default(),
        });
        let (addr, shared) = (listener.local_addr().unwrap(), Arc::clone(&state));
        std::thread::spawn(move || listener.incoming().flatten().for_each(|client| shared.forward(client)));
        Proxy { addr, state }
    }

    /// Cuts every connection after `bytes` more bytes at most.
    pub fn set_budget(&self, bytes: u64) {
        self.state.budget.store(bytes, Ordering::SeqCst);
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

    /// Cuts what is connected now.
    pub fn cut(&self) {
        self.state.streams.lock().unwrap().drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// How many connections the budget has cut.
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
        let budget = Arc::new(AtomicU64::new(self.budget.load(Ordering::SeqCst)));
        let mut streams = self.streams.lock().unwrap();
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        streams.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
        for (from, to) in [(&client, &server), (&server, &client)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let (state, budget) = (Arc::clone(self), Arc::clone(&budget));
            std::thread::spawn(move || state.copy(from, to, &budget));
        }
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, budget: &AtomicU64) {
        let mut bytes = [0; 16384];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let left = budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(count as u64))).unwrap();
            let pass = left.min(count as u64) as usize;
            if to.write_all(&bytes[..pass]).is_err() || pass < count {
                self.cuts.fetch_add(u64::from(pass < count), Ordering::SeqCst);
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
