//! I/O of the file store: reads by io_uring if it is allowed, writes by a few threads.
//!
//! ext4 completes an asynchronous direct write to blocks that were never written in a workqueue of
//! the processor that got the interrupt. A program that calls `sched_yield` in a loop there (Open
//! MPI) keeps that workqueue from running for a minute and more (Linux 6.18), and with it all
//! evictions. A synchronous write completes in the thread that made it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use hiroma_sys::frame::FrameBuf;
use hiroma_sys::uring::{Direction, Finished, Piece, Ring};
use rustix::event::{EventfdFlags, eventfd};

const RING_DEPTH: u32 = 128;
/// Number of threads where they only write, since reads go through a ring.
pub const WRITERS: usize = 2;
/// Number of threads where they read and write.
pub const ALL: usize = 4;
/// A thread takes more writes until it has this many bytes.
const TOGETHER_BYTES: usize = 512 << 10;
/// Maximum number of pieces of one call (`IOV_MAX`).
const SLICES_MAX: usize = 1024;

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
    pub fn start(threads: usize) -> io::Result<Pool> {
        let pool = Pool { inbox: Arc::default() };
        for _ in 0..threads {
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
            let mut batch = loop {
                if let Some(job) = jobs.0.pop_front() {
                    break vec![job];
                }
                if jobs.1 {
                    return;
                }
                jobs = self.wake.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            };
            // Writes that wait together are mostly neighbours in the file.
            let mut bytes = batch[0].buf.len();
            while batch[0].direction == Direction::Write && bytes < TOGETHER_BYTES {
                let is_write = jobs.0.front().is_some_and(|job| job.direction == Direction::Write);
                let Some(job) = is_write.then(|| jobs.0.pop_front()).flatten() else { break };
                bytes += job.buf.len();
                batch.push(job);
            }
            drop(jobs);
            let results = match batch[0].direction {
                Direction::Read => batch.iter_mut().map(Job::read).collect(),
                Direction::Write => write(&batch),
            };
            for (job, result) in batch.into_iter().zip(results) {
                let Job { token, buf, done, .. } = job;
                lock(&done.finished).push(Finished { token, buf, result });
                // It can only fail when the counter is at its maximum, and then it is readable
                // anyway.
                let _ = rustix::io::write(&done.event, &1u64.to_ne_bytes());
            }
        }
    }
}

impl Job {
    fn read(&mut self) -> io::Result<()> {
        let buf = self.buf.bytes_mut();
        self.pieces.iter().try_for_each(|piece| {
            piece.file.read_exact_at(&mut buf[piece.start..][..piece.len], piece.offset)
        })
    }

    fn slice(&self, piece: &Piece) -> &[u8] {
        &self.buf.bytes()[piece.start..][..piece.len]
    }
}

/// Writes all pieces of some jobs, those that are adjacent in a file with one call. Returns the
/// result of each job.
fn write(jobs: &[Job]) -> Vec<io::Result<()>> {
    let mut results: Vec<io::Result<()>> = jobs.iter().map(|_| Ok(())).collect();
    let mut pieces: Vec<(usize, &Piece)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(number, job)| job.pieces.iter().map(move |piece| (number, piece)))
        .collect();
    pieces.sort_by_key(|(_, piece)| (piece.file.as_raw_fd(), piece.offset));
    let is_next = |a: &(usize, &Piece), b: &(usize, &Piece)| {
        Arc::ptr_eq(&a.1.file, &b.1.file) && a.1.offset + a.1.len as u64 == b.1.offset
    };
    for run in pieces.chunk_by(is_next).flat_map(|run| run.chunks(SLICES_MAX)) {
        let slices: Vec<IoSlice<'_>> =
            run.iter().map(|&(number, piece)| IoSlice::new(jobs[number].slice(piece))).collect();
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        let (_, first) = run[0];
        if rustix::io::pwritev(&first.file, &slices, first.offset) == Ok(len) {
            continue;
        }
        // A part is missing, or all of it: piece by piece, which says whose.
        for &(number, piece) in run {
            if let Err(error) = piece.file.write_all_at(jobs[number].slice(piece), piece.offset) {
                results[number] = Err(error);
            }
        }
    }
    results
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
