//! A wrapper around another store that fails on purpose, for tests of the code that uses stores.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hiroma_sys::frame::FrameBuf;
use hiroma_units::{Loc, Rng};
use rustix::event::{EventfdFlags, eventfd};

use super::{Channel, Completion, ForkGuard, Purpose, Store, StoreError, StoreUsage, Token};

/// Which faults to inject, and when. Operations are counted over all channels, from 1.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The read or write that fails.
    pub fail_operation: Option<u64>,
    /// Whether a failing write fails at its completion; otherwise it is refused when it starts.
    pub fail_late: bool,
    /// The error; None: an I/O error.
    pub error: Option<StoreError>,
    /// The read whose content is returned with one bit flipped.
    pub corrupt_read: Option<u64>,
    /// One read in so many fails, of those of at least `fail_sectors` sectors. 0: none.
    pub fail_read_in: u64,
    pub fail_sectors: usize,
    /// Completions are delayed by up to this many polls, which changes their order.
    pub delay_polls_max: u64,
    /// Seed of the delays.
    pub seed: u64,
}

/// The wrapper.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    shared: Arc<Shared>,
}

struct Shared {
    plan: Plan,
    operations: AtomicU64,
    reads: AtomicU64,
    /// State of the generator of delays.
    random: AtomicU64,
}

impl FaultyStore {
    /// Makes `inner` fail as planned.
    pub fn new(inner: Arc<dyn Store>, plan: Plan) -> FaultyStore {
        let random = AtomicU64::new(plan.seed);
        FaultyStore {
            inner,
            shared: Arc::new(Shared {
                plan,
                operations: AtomicU64::new(0),
                reads: AtomicU64::new(0),
                random,
            }),
        }
    }

    /// Number of operations that were started: the range of a sweep over `fail_operation`.
    pub fn operations(&self) -> u64 {
        self.shared.operations.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Counts an operation. Returns whether it is the one that fails.
    fn fails(&self) -> bool {
        Some(self.operations.fetch_add(1, Ordering::Relaxed) + 1) == self.plan.fail_operation
    }

    fn error(&self, doing: &'static str) -> StoreError {
        self.plan.error.clone().unwrap_or_else(|| StoreError::Io {
            store: "faulty".to_owned(),
            doing,
            source_text: "a fault that was asked for".to_owned(),
        })
    }

    /// Whether a read of so many sectors is one of those that fail at random.
    fn fails_read(&self, sectors: usize) -> bool {
        let Plan { fail_read_in, fail_sectors, .. } = self.plan;
        fail_read_in > 0 && sectors >= fail_sectors && {
            let number = self.random.fetch_add(1, Ordering::Relaxed);
            Rng::new(number).below_u64(fail_read_in) == 0
        }
    }

    fn delay_polls(&self) -> u64 {
        let number = self.random.fetch_add(1, Ordering::Relaxed);
        Rng::new(number).below_u64(self.plan.delay_polls_max + 1)
    }
}

impl Store for FaultyStore {
    fn name(&self) -> String {
        format!("faulty {}", self.inner.name())
    }

    fn open(&self, purpose: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        let event =
            eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
                StoreError::Io {
                    store: self.name(),
                    doing: "making an eventfd",
                    source_text: error.to_string(),
                }
            })?;
        let (inner, shared) = (self.inner.open(purpose)?, Arc::clone(&self.shared));
        Ok(Box::new(FaultyChannel {
            inner,
            shared,
            event,
            held: Vec::new(),
            failing_write: None,
            corrupt: None,
        }))
    }

    fn open_near(&self) -> Option<Box<dyn Channel>> {
        self.inner.open_near()
    }

    fn takes_now(&self) -> bool {
        self.inner.takes_now()
    }

    fn free(&self, locs: &[Loc]) {
        self.inner.free(locs);
    }

    fn usage(&self) -> StoreUsage {
        self.inner.usage()
    }

    fn local_bytes(&self) -> u64 {
        self.inner.local_bytes()
    }

    fn is_within_limit(&self, loc: Loc) -> bool {
        self.inner.is_within_limit(loc)
    }

    fn is_behind(&self, loc: Loc) -> bool {
        self.inner.is_behind(loc)
    }

    fn begin_drain(&self) -> bool {
        self.inner.begin_drain()
    }

    fn takes_near(&self) -> bool {
        self.inner.takes_near()
    }

    fn is_to_leave(&self, loc: Loc) -> bool {
        self.inner.is_to_leave(loc)
    }

    fn keeps_for_children(&self) -> bool {
        self.inner.keeps_for_children()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        self.inner.descriptors()
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        self.inner.prepare_fork()
    }
}

struct FaultyChannel {
    inner: Box<dyn Channel>,
    shared: Arc<Shared>,
    /// Always readable: a thread that waits while a completion is delayed polls again immediately.
    event: OwnedFd,
    /// Completions, and for how many more polls they are delayed.
    held: Vec<(u64, Completion)>,
    failing_write: Option<Token>,
    corrupt: Option<Token>,
}

impl Channel for FaultyChannel {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        if self.shared.fails() || self.shared.fails_read(locs.len()) {
            let result = Err(self.shared.error("reading"));
            self.held.push((self.shared.delay_polls(), Completion { token, buf, result }));
            return;
        }
        if Some(self.shared.reads.fetch_add(1, Ordering::Relaxed) + 1)
            == self.shared.plan.corrupt_read
        {
            self.corrupt = Some(token);
        }
        self.inner.read(token, locs, buf);
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        let fails = self.shared.fails();
        if fails && !self.shared.plan.fail_late {
            return Err((buf, self.shared.error("writing")));
        }
        self.inner.write(token, buf, locs)?;
        if fails {
            self.failing_write = Some(token);
        }
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        let mut arrived = Vec::new();
        self.inner.poll(&mut arrived);
        for mut done in arrived {
            if self.failing_write == Some(done.token) {
                self.failing_write = None;
                done.result = Err(self.shared.error("writing"));
            }
            if self.corrupt == Some(done.token) && done.result.is_ok() {
                self.corrupt = None;
                let middle = done.buf.len() / 2;
                done.buf.bytes_mut()[middle] ^= 1;
            }
            self.held.push((self.shared.delay_polls(), done));
        }
        let (ready, held) =
            std::mem::take(&mut self.held).into_iter().partition(|(polls, _)| *polls == 0);
        self.held = held;
        self.held.iter_mut().for_each(|(polls, _)| *polls -= 1);
        let ready: Vec<(u64, Completion)> = ready;
        out.extend(ready.into_iter().map(|(_, done)| done));
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        let mut fds = self.inner.wait_fds();
        if !self.held.is_empty() {
            fds.push(self.event.as_raw_fd());
        }
        fds
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::compressed::CompressedStore;
    use crate::store::model::{
        buf_with, check, check_concurrently, content, ops, read_now, wait, write_now,
    };

    fn faulty(plan: Plan) -> FaultyStore {
        FaultyStore::new(Arc::new(CompressedStore::new(8192, 8 << 20).unwrap()), plan)
    }

    #[test]
    fn only_the_chosen_operation_fails_and_returns_buffers() {
        for (chosen, fail_late) in (1..=6).flat_map(|chosen| [(chosen, false), (chosen, true)]) {
            let store = faulty(Plan { fail_operation: Some(chosen), fail_late, ..Plan::default() });
            let mut channel = store.open(Purpose::Write).unwrap();
            let mut failed = Vec::new();
            let mut known = None;
            for operation in 1..=6 {
                let result = match known {
                    Some(loc) if operation % 2 == 0 => read_now(&mut *channel, &[loc], 8192)
                        .map(|bytes| assert!(bytes == content(1, 8192))),
                    _ => {
                        let mut locs = [Loc(0)];
                        let result = match channel.write(
                            Token(operation),
                            buf_with(&content(1, 8192)),
                            &mut locs,
                        ) {
                            Ok(()) => wait(&mut *channel).pop().unwrap().result,
                            Err((buf, error)) => {
                                assert!(buf.bytes() == content(1, 8192));
                                Err(error)
                            }
                        };
                        known = result.is_ok().then_some(locs[0]).or(known);
                        result
                    }
                };
                if result.is_err() {
                    failed.push(operation);
                }
            }
            assert_eq!((failed, store.operations()), (vec![chosen], 6));
        }
    }

    #[test]
    fn chosen_read_is_corrupted_and_next_is_right() {
        let store = faulty(Plan { corrupt_read: Some(2), ..Plan::default() });
        let mut channel = store.open(Purpose::Read).unwrap();
        let locs = write_now(&mut *channel, &content(2, 8192), 1).unwrap();
        let right: Vec<bool> = (0..4)
            .map(|_| read_now(&mut *channel, &locs, 8192).unwrap() == content(2, 8192))
            .collect();
        assert_eq!(right, [true, false, true, true]);
    }

    #[test]
    fn delays_change_the_order_and_lose_nothing() {
        let store = faulty(Plan { delay_polls_max: 8, seed: 7, ..Plan::default() });
        let mut channel = store.open(Purpose::Write).unwrap();
        for token in 0..50 {
            channel.write(Token(token), buf_with(&content(token, 8192)), &mut [Loc(0)]).unwrap();
        }
        let mut order = Vec::new();
        while channel.in_flight() > 0 {
            order.extend(wait(&mut *channel).into_iter().map(|done| done.token.0));
        }
        assert!(order != (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
        check_concurrently(&faulty(Plan { delay_polls_max: 4, ..Plan::default() }), 8192, 3, 200);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn faultless_store_matches_a_naive_map(ops in ops(10, 100), delay_polls_max in 0u64..6, seed: u64) {
            check(&faulty(Plan { delay_polls_max, seed, ..Plan::default() }), 8192, &ops);
        }
    }
}
