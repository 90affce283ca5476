//! Tests with real servers on loopback, which are killed, cut off, held up and filled.

mod uneven;

use std::collections::HashMap;
use std::sync::Mutex as StdMutex;

use hiroma_far_server::{ServeOptions, ServerHandle, serve};
use hiroma_policy::redundancy::Piece;
use hiroma_sys::frame::FrameBuf;

use super::*;
use crate::config::{Allocation, TransportChoice};
use crate::store::model::{self, buf_with, check, check_concurrently, content, wait};
use crate::store::tcp::tests::proxy::Proxy;
use crate::store::{Completion, Token};

const SECTOR: usize = 4096;

fn server_at(listen: &str, memory_bytes: u64) -> ServerHandle {
    let listen = listen.to_owned();
    serve(ServeOptions { listen, memory_bytes, ..ServeOptions::default() }).unwrap()
}

fn server(memory_bytes: u64) -> ServerHandle {
    server_at("127.0.0.1:0", memory_bytes)
}

pub type Lines = Arc<StdMutex<Vec<String>>>;

pub fn options(servers: Vec<String>) -> (TcpOptions, Lines) {
    let lines = Lines::default();
    let heard = lines.clone();
    let options = TcpOptions {
        servers,
        sector_bytes: SECTOR,
        allocation: Allocation::Simple,
        timeout: Duration::from_secs(20),
        key_file: None,
        resolved: Vec::new(),
        log: Arc::new(move |line| heard.lock().unwrap().push(line.to_owned())),
        lost: Arc::new(|_| {}),
        is_redundant: true,
        is_return: false,
        is_followed: false,
        transport: TransportChoice::Auto,
    };
    (options, lines)
}

fn addresses(servers: &[ServerHandle]) -> Vec<String> {
    servers.iter().map(|server| server.local_addr().to_string()).collect()
}

/// A store of `copies` in servers behind proxies, which tests cut, hold and let go.
struct Cluster {
    servers: Vec<ServerHandle>,
    proxies: Vec<Proxy>,
    store: ReplicatedStore,
    lines: Lines,
}

impl Cluster {
    fn new(servers: usize, scheme: &str) -> Cluster {
        Cluster::of((0..servers).map(|_| server(256 << 20)).collect(), scheme, &Place::default())
    }

    fn of(servers: Vec<ServerHandle>, scheme: &str, place: &Place) -> Cluster {
        let proxies: Vec<_> =
            servers.iter().map(|server| Proxy::new(server.local_addr())).collect();
        let (options, lines) = options(proxies.iter().map(|at| at.addr.to_string()).collect());
        // Shared memory would not pass through the proxies.
        let options = TcpOptions { transport: TransportChoice::Tcp, ..options };
        let store = ReplicatedStore::connect(&options, scheme.parse().unwrap(), place).unwrap();
        Cluster { servers, proxies, store, lines }
    }

    /// Whether everything has all of its pieces.
    fn is_whole(&self) -> bool {
        let books = self.store.shared.books();
        let census = books.table.census(books.pool.good());
        census.gone() + census.short() == 0
    }

    fn heard(&self, what: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(what))
    }
}

fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !happens() {
        assert!(Instant::now() < deadline, "{what} never happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Less than the timeout of the stores here: nothing has waited for a server that is silent. How long
/// the longest stall is, `tests/e2e/copies.py` measures.
const NOT_WAITED: Duration = Duration::from_secs(5);

/// Sectors with known content, and a channel to work on them.
struct Load {
    reader: Box<dyn Channel>,
    writer: Box<dyn Channel>,
    held: HashMap<u32, u64>,
    order: Vec<Loc>,
    next: u64,
    /// The longest that a request took.
    slowest: Duration,
}

impl Load {
    fn new(store: &ReplicatedStore) -> Load {
        Load {
            reader: store.open(Purpose::Read).unwrap(),
            writer: store.open(Purpose::Write).unwrap(),
            held: HashMap::new(),
            order: Vec::new(),
            next: 0,
            slowest: Duration::ZERO,
        }
    }

    fn write(&mut self, sectors: usize) {
        let start = Instant::now();
        let first = self.next;
        self.next += sectors as u64;
        let bytes: Vec<u8> = (first..self.next).flat_map(|seed| content(seed, SECTOR)).collect();
        let mut locs = vec![Loc(u32::MAX); sectors];
        if let Err((_, error)) = self.writer.write(Token(1), buf_with(&bytes), &mut locs) {
            panic!("{error}");
        }
        let done = one(&mut *self.writer);
        done.result.unwrap();
        for (loc, seed) in locs.into_iter().zip(first..) {
            assert!(self.held.insert(loc.0, seed).is_none(), "{loc:?} was handed out twice");
            self.order.push(loc);
        }
        self.slowest = self.slowest.max(start.elapsed());
    }

    fn read(&mut self, from: usize, sectors: usize) {
        let start = Instant::now();
        let locs: Vec<Loc> = self.order.iter().skip(from).take(sectors).copied().collect();
        let expected: Vec<u8> =
            locs.iter().flat_map(|loc| content(self.held[&loc.0], SECTOR)).collect();
        self.reader.read(Token(2), &locs, FrameBuf::leak(expected.len()));
        let done = one(&mut *self.reader);
        done.result.unwrap();
        assert!(done.buf.bytes() == expected, "sectors {locs:?} came back changed");
        self.slowest = self.slowest.max(start.elapsed());
    }

    fn free_last(&mut self, store: &ReplicatedStore, count: usize) {
        let locs = self.order.split_off(self.order.len() - count);
        locs.iter().for_each(|loc| _ = self.held.remove(&loc.0));
        store.free(&locs);
    }

    fn read_all(&mut self) {
        (0..self.order.len()).step_by(16).for_each(|from| self.read(from, 16));
    }
}

fn one(channel: &mut dyn Channel) -> Completion {
    let mut done = wait(channel);
    assert_eq!(done.len(), 1);
    done.pop().unwrap()
}

#[test]
fn store_matches_a_naive_map() {
    let servers: Vec<ServerHandle> = (0..5).map(|_| server(256 << 20)).collect();
    let schemes = ["1+1", "1+2", "4+1", "3+2", "2+1"].map(|text| text.parse().unwrap());
    for (seed, scheme) in [Scheme::ONE].into_iter().chain(schemes).enumerate() {
        let (options, _) = options(addresses(&servers));
        let store = ReplicatedStore::connect(&options, scheme, &Place::default()).unwrap();
        check(&store, SECTOR, &model::random_ops(seed as u64, 20, 400));
        check_concurrently(&store, SECTOR, 3, 300);
    }
}

#[test]
fn blocks_of_all_sizes_are_cut() {
    let servers: Vec<ServerHandle> = (0..5).map(|_| server(256 << 20)).collect();
    for sector_bytes in [4096, 64 << 10, 2 << 20] {
        let (options, _) = options(addresses(&servers));
        let options = TcpOptions { sector_bytes, ..options };
        let store =
            ReplicatedStore::connect(&options, "3+2".parse().unwrap(), &Place::default()).unwrap();
        check(&store, sector_bytes, &model::random_ops(7, 4, 60));
    }
}

#[test]
fn impossible_numbers_of_copies_are_refused_in_words() {
    let server = server(64 << 20);
    let (options, _) = options(vec![server.local_addr().to_string()]);
    let error = ReplicatedStore::connect(&options, Scheme::copies(2).unwrap(), &Place::default())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("--copies 2 needs 2 servers, and 1 is named"), "{error}");
    let parity = "4+1".parse().unwrap();
    let error =
        ReplicatedStore::connect(&options, parity, &Place::default()).err().unwrap().to_string();
    assert!(error.contains("--parity 4+1 needs 5 servers, and 1 is named"), "{error}");
}

#[test]
fn death_of_a_server_is_not_noticed_and_its_blocks_are_made_again() {
    death_is_not_noticed(3, "1+1", "everything has 2 copies again");
    death_is_not_noticed(6, "4+1", "everything has all 5 pieces again");
}

fn death_is_not_noticed(servers: usize, scheme: &str, line: &str) {
    let mut cluster = Cluster::new(servers, scheme);
    let mut load = Load::new(&cluster.store);
    (0..64).for_each(|_| load.write(64));
    load.slowest = Duration::ZERO;
    cluster.proxies[0].close();
    cluster.servers.remove(0).stop();
    let end = Instant::now() + Duration::from_secs(3);
    let mut at = 0;
    while Instant::now() < end {
        // New blocks take the place of new ones: the old ones stay, to be made again.
        load.write(8);
        load.read(at % load.order.len(), 16);
        at += 16;
        load.free_last(&cluster.store, 8);
    }
    assert!(load.slowest < NOT_WAITED, "{:?}", load.slowest);
    eventually("the copies", || cluster.is_whole());
    eventually("the line", || cluster.heard(line));
    let usage = cluster.store.usage();
    assert!(usage.recopied_bytes > 0 && usage.server_bytes == usage.stored_bytes, "{usage:?}");
    eventually("nothing is short", || cluster.store.usage().short_bytes == 0);
    let lines = cluster.lines.lock().unwrap().clone();
    assert_eq!(lines.iter().filter(|line| line.contains("lost")).count(), 1, "{lines:?}");
    load.read_all();
}

#[test]
fn silent_server_is_done_without_and_comes_back_with_its_blocks() {
    // With 5, nobody can take the place of a piece meanwhile.
    for (servers, scheme) in [(3, "1+1"), (6, "4+1"), (5, "4+1")] {
        silence_is_borne(servers, scheme);
    }
}

fn silence_is_borne(servers: usize, scheme: &str) {
    let cluster = Cluster::new(servers, scheme);
    let mut load = Load::new(&cluster.store);
    (0..32).for_each(|_| load.write(64));
    load.slowest = Duration::ZERO;
    cluster.proxies[1].pause();
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        load.write(8);
        let at = load.next as usize * 7 % load.order.len();
        load.read(at, 16);
    }
    assert!(load.slowest < NOT_WAITED, "{:?}", load.slowest);
    assert!(cluster.heard("lost"));
    cluster.proxies[1].resume();
    eventually("its return", || cluster.heard("is back"));
    (0..200).for_each(|_| load.write(8));
    load.read_all();
    eventually("the copies", || cluster.is_whole());
}

#[test]
fn late_answers_never_reach_a_buffer_that_was_given_back() {
    late_answers(2, "1+1");
    late_answers(5, "4+1");
}

fn late_answers(servers: usize, scheme: &str) {
    let cluster = Cluster::new(servers, scheme);
    let mut load = Load::new(&cluster.store);
    (0..16).for_each(|_| load.write(16));
    for round in 0..6 {
        let proxy = &cluster.proxies[round % servers];
        proxy.pause();
        // Some of these are asked of the server that is silent, and answered by the other one.
        let from = round * 32;
        let mut bufs = Vec::new();
        for at in (from..from + 32).step_by(4) {
            let locs: Vec<Loc> = load.order[at..at + 4].to_vec();
            load.reader.read(Token(at as u64), &locs, FrameBuf::leak(4 * SECTOR));
        }
        while load.reader.in_flight() > 0 {
            for mut done in wait(&mut *load.reader) {
                done.result.unwrap();
                done.buf.bytes_mut().fill(0xaa);
                bufs.push(done.buf);
            }
        }
        proxy.resume();
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            load.reader.poll(&mut Vec::new());
        }
        load.read(0, 8);
        for buf in &bufs {
            assert!(buf.bytes().iter().all(|&byte| byte == 0xaa), "written after it was returned");
        }
    }
}

#[test]
fn restarted_server_is_a_new_member() {
    restart(3, "1+1");
    restart(5, "3+1");
}

fn restart(servers: usize, scheme: &str) {
    let mut cluster = Cluster::new(servers, scheme);
    let mut load = Load::new(&cluster.store);
    (0..16).for_each(|_| load.write(64));
    let address = cluster.servers[2].local_addr().to_string();
    cluster.servers.remove(2).stop();
    let again = server_at(&address, 256 << 20);
    eventually("its return", || {
        load.write(1);
        cluster.heard("is back, empty")
    });
    eventually("the copies", || cluster.is_whole());
    load.read_all();
    // It has blocks again, and the death of another one is borne.
    cluster.proxies[0].close();
    cluster.servers.remove(0).stop();
    (0..600).for_each(|_| load.write(8));
    load.read_all();
    eventually("use of it", || again.stats().used_bytes > 0);
}

#[test]
fn death_of_all_copies_is_said() {
    let mut cluster = Cluster::new(2, "1+1");
    let mut load = Load::new(&cluster.store);
    (0..4).for_each(|_| load.write(16));
    let addresses: Vec<String> = addresses(&cluster.servers);
    cluster.servers.drain(..).for_each(|server| server.stop());
    let _again: Vec<_> = addresses.iter().map(|at| server_at(at, 64 << 20)).collect();
    load.reader.read(Token(9), &[load.order[3]], FrameBuf::leak(SECTOR));
    let error = one(&mut *load.reader).result.unwrap_err().to_string();
    assert!(error.contains("no copy of a needed block is left"), "{error}");
}

#[test]
fn two_may_die_at_once_if_two_pieces_are_spare() {
    let mut cluster = Cluster::new(5, "3+2");
    let mut load = Load::new(&cluster.store);
    (0..32).for_each(|_| load.write(64));
    for at in [3, 1] {
        cluster.proxies[at].close();
        cluster.servers.remove(at).stop();
    }
    load.read_all();
    (0..32).for_each(|_| load.write(16));
    load.read_all();
}

#[test]
fn death_of_too_many_pieces_is_said() {
    let mut cluster = Cluster::new(5, "4+1");
    let mut load = Load::new(&cluster.store);
    (0..4).for_each(|_| load.write(16));
    let addresses: Vec<String> = addresses(&cluster.servers);
    cluster.servers.drain(1..3).for_each(|server| server.stop());
    let _again: Vec<_> = addresses[1..3].iter().map(|at| server_at(at, 64 << 20)).collect();
    load.reader.read(Token(9), &[load.order[3]], FrameBuf::leak(SECTOR));
    let error = one(&mut *load.reader).result.unwrap_err().to_string();
    assert!(error.contains("too few pieces of a needed block are left"), "{error}");
}

#[test]
fn memory_of_pieces_is_the_schemes_share() {
    let cluster = Cluster::new(5, "4+1");
    let mut load = Load::new(&cluster.store);
    (0..256).for_each(|_| load.write(64));
    let (data, stored) = (256 * 64 * SECTOR as u64, cluster.store.usage().stored_bytes);
    assert!(stored >= data * 5 / 4 && stored < data * 5 / 4 + (16 << 20), "{stored} for {data}");
    // Everybody has some of the data: no server has only parity.
    let books = cluster.store.shared.books();
    for (member, _) in books.stores() {
        let has_data =
            |block: u32| (0..4).any(|at| books.table.row(block).member(at) == Some(member));
        let count = load.order.iter().filter(|loc| has_data(loc.0)).count();
        assert!(count > load.order.len() / 4, "{member:?} has {count} of {}", load.order.len());
    }
}

/// Puts other bytes in the place of a block's piece.
fn damage(store: &ReplicatedStore, block: u32, index: usize) {
    let (member, inner) = {
        let books = store.shared.books();
        let member = books.table.row(block).member(index).unwrap();
        (member, books.store(member).unwrap().clone())
    };
    let mut channel = inner.open(Purpose::Write).unwrap();
    let junk = content(99, store.shared.code.piece_bytes());
    let mut places = [Loc(0)];
    channel.write(Token(0), buf_with(&junk), &mut places).unwrap();
    one(&mut *channel).result.unwrap();
    let mut books = store.shared.books();
    let good = books.pool.good();
    let before = Piece { member, place: books.table.place(block, member).unwrap() };
    assert!(books.table.forget(block, index, before));
    let version = books.table.version(block);
    let piece = Piece { member, place: places[0].0 };
    books.table.add(block, version, index, piece, good).unwrap();
}

#[test]
fn changed_pieces_are_found_out_and_made_again() {
    for (servers, scheme, damaged) in [(3, "1+1", &[0][..]), (6, "4+1", &[2]), (6, "3+2", &[0, 1])]
    {
        let cluster = Cluster::new(servers, scheme);
        let mut load = Load::new(&cluster.store);
        (0..4).for_each(|_| load.write(16));
        for at in [0, 5, 6, 40] {
            damaged.iter().for_each(|&index| damage(&cluster.store, load.order[at].0, index));
        }
        // Copies are read in turn.
        eventually("the finds", || {
            load.read_all();
            cluster.store.usage().recopied_bytes >= 4 * SECTOR as u64
        });
        eventually("the copies", || cluster.is_whole());
        load.read_all();
    }
}

#[test]
fn full_server_is_passed_by() {
    let servers = [server(8 << 20), server(64 << 20), server(64 << 20)];
    let (options, _) = options(addresses(&servers));
    let store =
        ReplicatedStore::connect(&options, Scheme::copies(2).unwrap(), &Place::default()).unwrap();
    let mut load = Load::new(&store);
    (0..24).for_each(|_| load.write(512));
    load.read_all();
    eventually("the copies", || {
        let books = store.shared.books();
        books.table.census(books.pool.good()).short() == 0
    });
    // All of them are full at last, in words.
    let mut full = None;
    for seed in 0..200 {
        let bytes = content(seed, 512 * SECTOR);
        let mut locs = vec![Loc(0); 512];
        match load.writer.write(Token(1), buf_with(&bytes), &mut locs) {
            Ok(()) => one(&mut *load.writer).result.unwrap(),
            Err((_, error)) => {
                full = Some(error);
                break;
            }
        }
    }
    assert!(matches!(full, Some(StoreError::Full { .. })), "{full:?}");
    load.read_all();
}
