//! Tests that every store must pass: random operations on the store and on a naive map are
//! compared.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hiroma_sys::frame::FrameBuf;
use hiroma_sys::wait;
use hiroma_units::Loc;
use proptest::prelude::*;

use super::{Channel, Completion, Purpose, Store, StoreError, Token};

/// One step. Numbers select among the existing items.
#[derive(Clone, Debug)]
pub enum Op {
    Write { sectors: usize, seed: u64 },
    Read { from: usize, sectors: usize },
    Free { from: usize, sectors: usize },
    Poll,
}

/// Random steps; writes and reads of up to `sectors_max`.
pub fn ops(sectors_max: usize, count_max: usize) -> impl Strategy<Value = Vec<Op>> {
    let sectors = move || prop_oneof![Just(1usize), 1..=sectors_max];
    let op = prop_oneof![
        4 => (sectors(), any::<u64>()).prop_map(|(sectors, seed)| Op::Write { sectors, seed }),
        4 => (any::<usize>(), sectors()).prop_map(|(from, sectors)| Op::Read { from, sectors }),
        2 => (any::<usize>(), sectors()).prop_map(|(from, sectors)| Op::Free { from, sectors }),
        1 => Just(Op::Poll),
    ];
    proptest::collection::vec(op, 1..count_max)
}

/// A pseudorandom stream.
pub fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut random = hiroma_units::Rng::new(seed);
    move || random.next_u64()
}

/// Random steps from a seed, for threads.
pub fn random_ops(seed: u64, sectors_max: usize, count: usize) -> Vec<Op> {
    let mut next = random(seed);
    let mut op = || {
        let (kind, from, sectors) =
            (next() % 11, next() as usize, next() as usize % sectors_max + 1);
        match kind {
            0..4 => Op::Write { sectors, seed: next() },
            4..8 => Op::Read { from, sectors },
            8..10 => Op::Free { from, sectors },
            _ => Op::Poll,
        }
    };
    (0..count).map(|_| op()).collect()
}

/// Content that compresses very well, fairly, slightly or not at all, depending on `seed`.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut next = random(seed);
    let random_of_16 = [0, 5, 11, 16][seed as usize % 4];
    let mut bytes = vec![(seed >> 8) as u8; len];
    for chunk in bytes.chunks_mut(16) {
        let word = [next(), next()].map(u64::to_le_bytes).concat();
        chunk[..random_of_16].copy_from_slice(&word[..random_of_16]);
    }
    bytes
}

/// A buffer with that content.
pub fn buf_with(bytes: &[u8]) -> FrameBuf {
    let mut buf = FrameBuf::leak(bytes.len());
    buf.bytes_mut().copy_from_slice(bytes);
    buf
}

/// Waits until `channel` has completions, and returns them.
pub fn wait(channel: &mut dyn Channel) -> Vec<Completion> {
    let mut out = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(120);
    channel.poll(&mut out);
    while out.is_empty() && channel.in_flight() > 0 {
        wait::readable(&channel.wait_fds(), 1000);
        channel.poll(&mut out);
        assert!(Instant::now() < deadline, "a store that says nothing for so long is stuck");
    }
    out
}

/// Writes and waits; `None` if the store is full.
pub fn write_now(channel: &mut dyn Channel, bytes: &[u8], sectors: usize) -> Option<Vec<Loc>> {
    let mut locs = vec![Loc(u32::MAX); sectors];
    match channel.write(Token(0), buf_with(bytes), &mut locs) {
        Ok(()) => {
            wait(channel).pop().unwrap().result.unwrap();
            Some(locs)
        }
        Err((_, StoreError::Full { .. })) => None,
        Err((_, error)) => panic!("{error}"),
    }
}

/// Reads and waits.
pub fn read_now(
    channel: &mut dyn Channel,
    locs: &[Loc],
    sector_bytes: usize,
) -> Result<Vec<u8>, StoreError> {
    channel.read(Token(0), locs, FrameBuf::leak(locs.len() * sector_bytes));
    let done = wait(channel).pop().unwrap();
    done.result.map(|()| done.buf.bytes().to_vec())
}

/// The sectors of one thread in a store.
pub struct Driver<'a> {
    store: &'a dyn Store,
    sector_bytes: usize,
    reader: Box<dyn Channel>,
    writer: Box<dyn Channel>,
    held: HashMap<Loc, Vec<u8>>,
    order: Vec<Loc>,
    writing: HashMap<Token, (Vec<Loc>, Vec<u8>)>,
    reading: HashMap<Token, (Vec<Loc>, Vec<u8>)>,
    next_token: u64,
    bufs: HashMap<usize, Vec<FrameBuf>>,
    /// Number of writes for which the store had no room.
    pub refused: usize,
}

impl<'a> Driver<'a> {
    pub fn new(store: &'a dyn Store, sector_bytes: usize) -> Driver<'a> {
        Driver {
            store,
            sector_bytes,
            reader: store.open(Purpose::Read).unwrap(),
            writer: store.open(Purpose::Write).unwrap(),
            held: HashMap::new(),
            order: Vec::new(),
            writing: HashMap::new(),
            reading: HashMap::new(),
            next_token: 0,
            bufs: HashMap::new(),
            refused: 0,
        }
    }

    /// Bytes of our sectors that the store should contain.
    pub fn far_bytes(&self) -> u64 {
        let writing: usize = self.writing.values().map(|(locs, _)| locs.len()).sum();
        ((self.held.len() + writing) * self.sector_bytes) as u64
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn buf(&mut self, len: usize) -> FrameBuf {
        self.bufs.get_mut(&len).and_then(Vec::pop).unwrap_or_else(|| FrameBuf::leak(len))
    }

    pub fn step(&mut self, op: &Op) {
        match *op {
            Op::Write { sectors, seed } => {
                let bytes: Vec<u8> = (0..sectors as u64)
                    .flat_map(|index| content(seed.wrapping_add(index * 257), self.sector_bytes))
                    .collect();
                let mut buf = self.buf(bytes.len());
                buf.bytes_mut().copy_from_slice(&bytes);
                let (token, mut locs) = (self.token(), vec![Loc(u32::MAX); sectors]);
                match self.writer.write(token, buf, &mut locs) {
                    Ok(()) => _ = self.writing.insert(token, (locs, bytes)),
                    Err((buf, StoreError::Full { .. })) => {
                        assert_eq!(buf.bytes(), bytes, "a refused buffer comes back as it was");
                        self.bufs.entry(bytes.len()).or_default().push(buf);
                        self.refused += 1;
                    }
                    Err((_, error)) => panic!("{error}"),
                }
            }
            Op::Read { from, sectors } => {
                let locs = self.pick(from, sectors);
                let expected: Vec<u8> =
                    locs.iter().flat_map(|loc| self.held[loc].clone()).collect();
                if !locs.is_empty() {
                    let (token, buf) = (self.token(), self.buf(expected.len()));
                    self.reader.read(token, &locs, buf);
                    self.reading.insert(token, (locs, expected));
                }
            }
            Op::Free { from, sectors } => {
                let busy = |loc: &Loc| self.reading.values().any(|(locs, _)| locs.contains(loc));
                let locs: Vec<Loc> =
                    self.pick(from, sectors).into_iter().filter(|loc| !busy(loc)).collect();
                self.order.retain(|loc| !locs.contains(loc));
                locs.iter().for_each(|loc| _ = self.held.remove(loc));
                self.store.free(&locs);
            }
            Op::Poll => self.poll(),
        }
    }

    /// A run of stored sectors, in the order in which they were written, without repetition.
    fn pick(&self, from: usize, sectors: usize) -> Vec<Loc> {
        let start = if self.order.is_empty() { 0 } else { from % self.order.len() };
        self.order[start..].iter().take(sectors).copied().collect()
    }

    fn poll(&mut self) {
        let mut out = Vec::new();
        self.reader.poll(&mut out);
        self.writer.poll(&mut out);
        out.into_iter().for_each(|done| self.complete(done));
    }

    fn complete(&mut self, done: Completion) {
        done.result.unwrap();
        if let Some((locs, expected)) = self.reading.remove(&done.token) {
            assert!(done.buf.bytes() == expected, "sectors {locs:?} came back changed");
        } else {
            let (locs, bytes) =
                self.writing.remove(&done.token).expect("a known token, completed once");
            for (&loc, bytes) in locs.iter().zip(bytes.chunks(self.sector_bytes)) {
                assert!(
                    self.held.insert(loc, bytes.to_vec()).is_none(),
                    "{loc:?} was handed out twice"
                );
                self.order.push(loc);
            }
        }
        self.bufs.entry(done.buf.len()).or_default().push(done.buf);
    }

    /// Waits for all requests in flight.
    pub fn settle(&mut self) {
        while self.reader.in_flight() > 0 {
            wait(&mut *self.reader).into_iter().for_each(|done| self.complete(done));
        }
        while self.writer.in_flight() > 0 {
            wait(&mut *self.writer).into_iter().for_each(|done| self.complete(done));
        }
        assert!(self.reading.is_empty() && self.writing.is_empty(), "every request completes");
    }

    /// Reads everything back, one by one.
    pub fn verify(&mut self) {
        self.settle();
        for index in 0..self.order.len() {
            self.step(&Op::Read { from: index, sectors: 1 });
            self.settle();
        }
    }

    /// Verifies and frees everything.
    pub fn finish(mut self) {
        self.verify();
        let count = self.order.len();
        self.step(&Op::Free { from: 0, sectors: count });
        assert!(self.held.is_empty());
    }
}

/// Drives `store`, which has no other user, and compares it with the naive map. Returns how many
/// writes were refused.
pub fn check(store: &dyn Store, sector_bytes: usize, ops: &[Op]) -> usize {
    let mut driver = Driver::new(store, sector_bytes);
    for op in ops {
        driver.step(op);
        let usage = store.usage();
        assert_eq!(usage.far_bytes, driver.far_bytes());
        assert!(usage.stored_bytes <= usage.capacity_bytes, "{usage:?}");
    }
    let refused = driver.refused;
    driver.finish();
    assert_eq!(store.usage().far_bytes, 0);
    refused
}

/// Drives `store` from several threads with a channel each.
pub fn check_concurrently(store: &dyn Store, sector_bytes: usize, threads: u64, steps: usize) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut driver = Driver::new(store, sector_bytes);
                random_ops(thread + 1, 16, steps).iter().for_each(|op| driver.step(op));
                driver.finish();
            });
        }
    });
    assert_eq!(store.usage().far_bytes, 0);
}
