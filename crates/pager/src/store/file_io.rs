//! I/O of the file store: io_uring if it is allowed, otherwise a few threads with pread and pwrite.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use hiroma_kernel::frame::FrameBuf;
use hiroma_kernel::uring::{Direction, Finished, Piece, Ring};
use rustix::event::{EventfdFlags, eventfd};

const RING_DEPTH: u32 = 128;
const THREADS: usize = 4;

/// One channel's access to files.
pub enum Mover {
    Ring(Box<Ring>),
    Threads(Queue),
}

impl Mover {
    /// A ring if the kernel allows one.
    pub fn ring() -> io::Result<Mover> {
        Ring::new(RING_DEPTH).map(|ring| Mover::Ring(Box::new(ring)))
    }

    /// A queue to `pool`.
    pub fn threads(pool: Arc<Pool>) -> io::Result<Mover> {
        let done = Arc::new(Done {
            finished: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        Ok(Mover::Threads(Queue { pool, done, in_flight: 0 }))
    }

    /// Starts to transfer all `pieces` of `buf`, and empties them.
    pub fn start(
        &mut self,
        token: u64,
        direction: Direction,
        buf: FrameBuf,
        pieces: &mut Vec<Piece>,
    ) {
        match self {
            Mover::Ring(ring) => ring.start(token, direction, buf, pieces.drain(..)),
            Mover::Threads(queue) => queue.start(token, direction, buf, std::mem::take(pieces)),
        }
    }

    /// Advances transfers without blocking, and appends the finished ones to `out`.
    pub fn reap(&mut self, out: &mut Vec<Finished>) {
        match self {
            Mover::Ring(ring) => ring.reap(out),
            Mover::Threads(queue) => queue.reap(out),
        }
    }

    pub fn in_flight(&self) -> usize {
        match self {
            Mover::Ring(ring) => ring.in_flight(),
            Mover::Threads(queue) => queue.in_flight,
        }
    }

    /// Readable while there is something to reap.
    pub fn fd(&self) -> RawFd {
        match self {
            Mover::Ring(ring) => ring.fd(),
            Mover::Threads(queue) => queue.done.event.as_raw_fd(),
        }
    }
}

/// Threads that do the transfers of channels. They end when the pool is dropped.
pub struct Pool {
    inbox: Arc<Inbox>,
}

#[derive(Default)]
struct Inbox {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    wake: Condvar,
}

struct Job {
    token: u64,
    direction: Direction,
    buf: FrameBuf,
    pieces: Vec<Piece>,
    done: Arc<Done>,
}

struct Done {
    finished: Mutex<Vec<Finished>>,
    event: OwnedFd,
}

/// One channel's requests to a pool.
pub struct Queue {
    pool: Arc<Pool>,
    done: Arc<Done>,
    in_flight: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub fn start() -> io::Result<Pool> {
        let pool = Pool { inbox: Arc::default() };
        for _ in 0..THREADS {
            let inbox = Arc::clone(&pool.inbox);
            crate::host::spawn(c"hiroma-file", move || inbox.work())?;
        }
        Ok(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.inbox.jobs).1 = true;
        self.inbox.wake.notify_all();
    }
}

impl Inbox {
    fn work(&self) {
        loop {
            let mut jobs = lock(&self.jobs);
            let job = loop {
                if let Some(job) = jobs.0.pop_front() {
                    break job;
                }
                if jobs.1 {
                    return;
                }
                jobs = self.wake.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            };
            drop(jobs);
            let Job { token, direction, mut buf, pieces, done } = job;
            let result = pieces.iter().try_for_each(|piece| transfer(direction, &mut buf, piece));
            lock(&done.finished).push(Finished { token, buf, result });
            // It can only fail when the counter is at its maximum, and then it is readable anyway.
            let _ = rustix::io::write(&done.event, &1u64.to_ne_bytes());
        }
    }
}

fn transfer(direction: Direction, buf: &mut FrameBuf, piece: &Piece) -> io::Result<()> {
    let bytes = &mut buf.bytes_mut()[piece.start..][..piece.len];
    match direction {
        Direction::Read => piece.file.read_exact_at(bytes, piece.offset),
        Direction::Write => piece.file.write_all_at(bytes, piece.offset),
    }
}

impl Queue {
    fn start(&mut self, token: u64, direction: Direction, buf: FrameBuf, pieces: Vec<Piece>) {
        self.in_flight += 1;
        let done = Arc::clone(&self.done);
        lock(&self.pool.inbox.jobs).0.push_back(Job { token, direction, buf, pieces, done });
        self.pool.inbox.wake.notify_one();
    }

    fn reap(&mut self, out: &mut Vec<Finished>) {
        if self.in_flight == 0 {
            return;
        }
        // First the event, then the list: a transfer that finishes in between is seen now, and
        // causes one unnecessary wakeup.
        let _ = rustix::io::read(&self.done.event, &mut [0u8; 8]);
        let mut finished = lock(&self.done.finished);
        self.in_flight -= finished.len();
        out.append(&mut finished);
    }
}
