//! Tests over stores that lie about what they hold, and with a real server.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

use hiroma_far_server::{ServeOptions, serve};

use super::*;
use crate::store::chain::ChainStore;
use crate::store::compressed::CompressedStore;
use crate::store::faulty::{FaultyStore, Plan};
use crate::store::file::FileStore;
use crate::store::model::{
    buf_with, check, check_concurrently, content, random_ops, read_now, wait, write_now,
};
use crate::store::tcp::tests::store_options;
use crate::store::tcp::{TcpOptions, TcpStore};

const SECTOR: usize = 4096;

fn file() -> Arc<dyn Store> {
    Arc::new(FileStore::new(Path::new("/dev/shm"), SECTOR, Some(64 << 20)).unwrap())
}

fn sealed(inner: Arc<dyn Store>) -> SealedStore {
    SealedStore::new(inner, SECTOR, 1 << 30).unwrap()
}

/// Answers reads of some locations with what others hold.
struct Liar {
    inner: Arc<dyn Store>,
    lies: Arc<Mutex<HashMap<u32, Loc>>>,
}

struct LyingChannel {
    inner: Box<dyn Channel>,
    lies: Arc<Mutex<HashMap<u32, Loc>>>,
}

impl Store for Liar {
    fn name(&self) -> String {
        "liar".to_owned()
    }

    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        let lies = self.lies.clone();
        Ok(Box::new(LyingChannel { inner: self.inner.open(purpose)?, lies }))
    }

    fn free(&self, locs: &[Loc]) {
        self.inner.free(locs);
    }

    fn usage(&self) -> StoreUsage {
        self.inner.usage()
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        self.inner.prepare_fork()
    }
}

impl Channel for LyingChannel {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        let lies = self.lies.lock().unwrap();
        let locs: Vec<_> = locs.iter().map(|loc| *lies.get(&loc.0).unwrap_or(loc)).collect();
        self.inner.read(token, &locs, buf);
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        self.inner.write(token, buf, locs)
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        self.inner.poll(out);
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.inner.wait_fds()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

fn read_result(channel: &mut dyn Channel, locs: &[Loc]) -> Result<(), StoreError> {
    channel.read(Token(7), locs, FrameBuf::leak(locs.len() * SECTOR));
    wait(channel).remove(0).result
}

#[test]
fn one_read_of_sectors_that_lie_in_turn_in_front_and_behind() {
    let front: Arc<dyn Store> = Arc::new(CompressedStore::new(SECTOR, 1 << 20).unwrap());
    let stores: Vec<Arc<dyn Store>> = vec![front, Arc::new(sealed(file()))];
    let chain = ChainStore::new(stores, SECTOR).unwrap();
    let mut channel = chain.open(Purpose::Write).unwrap();
    // More than fits in front.
    let written: Vec<Loc> = (0..400)
        .map(|n| write_now(&mut *channel, &content(n * 4 + 3, SECTOR), 1).unwrap()[0])
        .collect();
    for from in 0..100 {
        let wanted: Vec<u64> =
            (0..7).map(|n| if n % 2 == 0 { from + n } else { 399 - from - n }).collect();
        let locs: Vec<Loc> = wanted.iter().map(|&n| written[n as usize]).collect();
        let expected: Vec<u8> = wanted.iter().flat_map(|n| content(n * 4 + 3, SECTOR)).collect();
        assert!(read_now(&mut *channel, &locs, SECTOR).unwrap() == expected, "{from}");
    }
}

#[test]
fn stores_hold_no_plaintext_and_no_repetition() {
    let inner = file();
    let store = sealed(inner.clone());
    let mut channel = store.open(Purpose::Write).unwrap();
    let bytes = [content(1, SECTOR), content(1, SECTOR)].concat();
    let locs = write_now(&mut *channel, &bytes, 2).unwrap();
    assert!(read_now(&mut *channel, &locs, SECTOR).unwrap() == bytes);

    let raw = read_now(&mut *inner.open(Purpose::Read).unwrap(), &locs, SECTOR).unwrap();
    assert!(raw.windows(32).all(|window| window != &bytes[..32]));
    assert!(raw[..SECTOR] != raw[SECTOR..]);
    let ones: u32 = raw.iter().map(|byte| byte.count_ones()).sum();
    let bits = (raw.len() * 8) as f64;
    assert!((f64::from(ones) / bits - 0.5).abs() < 0.02, "{ones} of {bits} bits are set");
}

#[test]
fn changed_bytes_are_an_error() {
    let plan = Plan { corrupt_read: Some(2), ..Plan::default() };
    let store = sealed(Arc::new(FaultyStore::new(file(), plan)));
    let mut channel = store.open(Purpose::Write).unwrap();
    let locs = write_now(&mut *channel, &content(1, 4 * SECTOR), 4).unwrap();
    assert!(read_result(&mut *channel, &locs).is_ok());
    let error = read_result(&mut *channel, &locs).unwrap_err();
    assert!(matches!(error, StoreError::Changed { .. }), "{error}");
    assert!(read_result(&mut *channel, &locs).is_ok());
}

#[test]
fn older_and_foreign_blocks_are_an_error() {
    let lies = Arc::new(Mutex::new(HashMap::new()));
    let store = sealed(Arc::new(Liar { inner: file(), lies: lies.clone() }));
    let mut channel = store.open(Purpose::Write).unwrap();
    // The same content, so that a checksum of it would not notice.
    let old = write_now(&mut *channel, &content(1, SECTOR), 1).unwrap();
    let new = write_now(&mut *channel, &content(1, SECTOR), 1).unwrap();
    lies.lock().unwrap().insert(new[0].0, old[0]);
    let error = read_result(&mut *channel, &new).unwrap_err();
    assert!(matches!(error, StoreError::Changed { .. }), "{error}");
    assert!(error.to_string().contains("older one"), "{error}");
    assert!(read_result(&mut *channel, &old).is_ok());
}

#[test]
fn children_write_under_keys_of_their_own() {
    let store = sealed(Arc::new(CompressedStore::new(SECTOR, 64 << 20).unwrap()));
    let mut channel = store.open(Purpose::Write).unwrap();
    let before = write_now(&mut *channel, &content(1, SECTOR), 1).unwrap();
    let nonce_of = |loc: Loc| store.shared.slips[loc.0 as usize].nonce.load(Ordering::Relaxed);
    let first = nonce_of(before[0]);
    let guard = SealedGuard { inner: Box::new(Nothing), shared: store.shared.clone() };
    guard.adopt().unwrap();
    let after = write_now(&mut *channel, &content(2, SECTOR), 1).unwrap();
    assert_eq!(nonce_of(after[0]) - first, 1 << COUNT_BITS);
    assert!(read_now(&mut *channel, &before, SECTOR).unwrap() == content(1, SECTOR));
    assert!(read_now(&mut *channel, &after, SECTOR).unwrap() == content(2, SECTOR));
}

struct Nothing;

impl ForkGuard for Nothing {
    fn adopt(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[test]
fn abandoned_write_returns_its_buffer_unchanged() {
    let plan = Plan { delay_polls_max: 8, ..Plan::default() };
    let store = sealed(Arc::new(FaultyStore::new(file(), plan)));
    let mut channel = store.open(Purpose::Write).unwrap();
    let buf = buf_with(&content(1, SECTOR));
    let addr = buf.addr();
    channel.write(Token(1), buf, &mut [Loc(0)]).unwrap();
    let back = channel.abandon(Token(1)).unwrap();
    assert!(back.addr() == addr && back.bytes() == content(1, SECTOR));
    assert!(wait(&mut *channel)[0].buf.is_empty());
    // Its copy is in use again.
    let bytes = store.shared.spare_bytes.load(Ordering::Relaxed);
    for seed in 0..200 {
        write_now(&mut *channel, &content(seed, SECTOR), 1).unwrap();
    }
    assert_eq!(store.shared.spare_bytes.load(Ordering::Relaxed), bytes);
    drop(channel);
    assert_eq!(store.shared.spare_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn too_small_a_table_is_an_error_and_never_wrong_bytes() {
    let store = SealedStore::new(file(), SECTOR, 4 * SECTOR as u64).unwrap();
    let mut channel = store.open(Purpose::Write).unwrap();
    let error = (0..64).find_map(|seed| {
        let buf = buf_with(&content(seed, SECTOR));
        channel.write(Token(seed), buf, &mut [Loc(0)]).unwrap();
        wait(&mut *channel).remove(0).result.err()
    });
    assert!(error.unwrap().to_string().contains("ulimit -v"));
}

#[test]
fn random_requests_get_what_was_written() {
    for seed in 0..8 {
        check(&sealed(file()), SECTOR, &random_ops(seed, 16, 300));
        let plan = Plan { delay_polls_max: 4, seed, ..Plan::default() };
        let delayed = sealed(Arc::new(FaultyStore::new(file(), plan)));
        check(&delayed, SECTOR, &random_ops(seed, 16, 300));
        // What is sealed does not compress; writes are refused when little room is left.
        let small = CompressedStore::new(SECTOR, 1 << 20).unwrap();
        check(&sealed(Arc::new(small)), SECTOR, &random_ops(seed, 16, 300));
    }
    check_concurrently(&sealed(file()), SECTOR, 3, 300);
}

#[test]
fn server_holds_sealed_blocks() {
    let options = ServeOptions {
        listen: "127.0.0.1:0".into(),
        memory_bytes: 64 << 20,
        ..ServeOptions::default()
    };
    let server = serve(options).unwrap();
    let tcp =
        TcpStore::connect_with(TcpOptions { sector_bytes: SECTOR, ..store_options(&[&server]) });
    let tcp = tcp.unwrap();
    let store = sealed(Arc::new(tcp));
    check(&store, SECTOR, &random_ops(1, 16, 300));
    check_concurrently(&store, SECTOR, 2, 300);
}
