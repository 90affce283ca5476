//! Threads that carry out the requests of channels, each with a connection of its own. A thread
//! takes all requests that wait, and sends them together.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};
use std::{io, mem};

use hiroma_sys::frame::FrameBuf;
use hiroma_units::Loc;
use redis::{Cmd, Value, cmd};
use rustix::event::{EventfdFlags, eventfd};

use super::Shared;
use super::books::{Piece, Short};
use super::line::{Batch, Line};
use crate::store::{Channel, Completion, Purpose, StoreError, Token};

const READERS: usize = 2;
const WRITERS: usize = 2;
/// A thread takes more requests until it has this many bytes.
const TOGETHER_BYTES: usize = 512 << 10;
/// A write within a string takes no memory, but the server refuses all such commands when it is
/// full, except in a script that has already written something: it is not ended halfway. (A script
/// could also say that it may write, but only since version 7.)
const SCRIPT: &str = "redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('SETRANGE', KEYS[1], ARGV[1], ARGV[2])";

/// The threads of one process. They end when the pool is dropped.
pub struct Pool {
    reads: Arc<Inbox>,
    writes: Arc<Inbox>,
}

#[derive(Default)]
struct Inbox {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that carry out jobs.
    busy: usize,
    ending: bool,
}

struct Job {
    token: Token,
    buf: FrameBuf,
    pieces: Vec<Piece>,
    done: Arc<Done>,
}

struct Done {
    finished: Mutex<Vec<Completion>>,
    event: OwnedFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub fn start(shared: &Arc<Shared>) -> io::Result<Pool> {
        let pool = Pool { reads: Arc::default(), writes: Arc::default() };
        let threads = [(&pool.reads, READERS, false), (&pool.writes, WRITERS, true)];
        for (inbox, count, is_write) in threads {
            for _ in 0..count {
                let (inbox, line) = (Arc::clone(inbox), Line::new(shared));
                let mut worker = Worker { shared: Arc::clone(shared), line, is_write };
                crate::host::spawn(c"hiroma-redis", move || worker.run(&inbox))?;
            }
        }
        Ok(pool)
    }

    /// Forgets the requests that wait, and waits a while for those that are under way.
    pub fn end(&self, patience: Duration) {
        let start = Instant::now();
        for inbox in [&self.reads, &self.writes] {
            {
                let mut state = lock(&inbox.state);
                state.ending = true;
                state.jobs.clear();
            }
            inbox.wake.notify_all();
            while lock(&inbox.state).busy > 0 && start.elapsed() < patience {
                sleep(Duration::from_millis(1));
            }
        }
    }

    /// Waits until no thread holds anything; no request is in flight. A fork may follow.
    pub fn settle(&self) {
        for inbox in [&self.reads, &self.writes] {
            while lock(&inbox.state).busy > 0 {
                yield_now();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for inbox in [&self.reads, &self.writes] {
            lock(&inbox.state).ending = true;
            inbox.wake.notify_all();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    line: Line,
    is_write: bool,
}

impl Worker {
    fn run(&mut self, inbox: &Inbox) {
        while let Some(jobs) = take(inbox) {
            self.carry_out(jobs);
            lock(&inbox.state).busy -= 1;
        }
    }

    fn carry_out(&mut self, mut jobs: Vec<Job>) {
        let result = if self.is_write { self.write(&jobs) } else { self.read(&mut jobs) };
        for Job { token, buf, done, .. } in jobs {
            lock(&done.finished).push(Completion { token, buf, result: result.clone() });
            // It can only fail when the counter is at its maximum, and then it is readable anyway.
            let _ = rustix::io::write(&done.event, &1u64.to_ne_bytes());
        }
    }

    fn keys(&self, jobs: &[Job]) -> Vec<String> {
        let books = self.shared.books();
        let pieces = jobs.iter().flat_map(|job| &job.pieces);
        pieces.map(|piece| books.key(piece.home, piece.part)).collect()
    }

    fn read(&mut self, jobs: &mut [Job]) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        let keys = self.keys(jobs);
        for (piece, key) in jobs.iter().flat_map(|job| &job.pieces).zip(&keys) {
            let last = piece.offset + piece.len - 1;
            batch.push(cmd("GETRANGE").arg(key).arg(piece.offset).arg(last));
        }
        let mut values = self.line.ask(&batch)?.into_iter();
        for job in jobs {
            let buf = job.buf.bytes_mut();
            for piece in &job.pieces {
                match values.next() {
                    Some(Value::BulkString(bytes)) if bytes.len() == piece.len => {
                        buf[piece.at..piece.at + piece.len].copy_from_slice(&bytes);
                    }
                    Some(Value::BulkString(_)) => return Err(self.shared.missing()),
                    other => return Err(self.shared.unexpected("reading", other)),
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, jobs: &[Job]) -> Result<(), StoreError> {
        let keys = self.keys(jobs);
        let mut lens = [0; 2];
        for (part, range) in self.shared.books().parts() {
            lens[usize::from(part)] = range.len();
        }
        let parts: Vec<(&Job, &Piece, &String)> = jobs
            .iter()
            .flat_map(|job| job.pieces.iter().map(move |piece| (job, piece)))
            .zip(&keys)
            .map(|((job, piece), key)| (job, piece, key))
            .collect();
        // A string that has expired is made again by SETRANGE, and must not stay.
        let ttl = self.shared.ttl.as_millis() as u64;
        let mut batch = Batch::default();
        for &(job, piece, key) in &parts {
            batch.push(cmd("SETRANGE").arg(key).arg(piece.offset).arg(content(job, piece)));
            batch.push(cmd("PEXPIRE").arg(key).arg(ttl));
        }
        let mut values = self.line.ask(&batch)?;
        if values.iter().any(is_oom) {
            let mut again = Batch::default();
            for &(job, piece, key) in &parts {
                again.push(&scripted(key, piece.offset, content(job, piece), ttl));
                again.push(cmd("PEXPIRE").arg(key).arg(ttl));
            }
            values = self.line.ask(&again)?;
        }
        for ((_, piece, _), value) in parts.iter().zip(values.into_iter().step_by(2)) {
            match value {
                Value::Int(len) if len as usize == lens[usize::from(piece.part)] + 1 => {}
                Value::Int(_) => return Err(self.shared.missing()),
                other => return Err(self.shared.unexpected("writing", Some(other))),
            }
        }
        Ok(())
    }
}

fn content<'a>(job: &'a Job, piece: &Piece) -> &'a [u8] {
    &job.buf.bytes()[piece.at..piece.at + piece.len]
}

fn scripted(key: &str, offset: usize, content: &[u8], ttl: u64) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(SCRIPT).arg(1).arg(key).arg(offset).arg(content).arg(ttl);
    command
}

/// Whether the server has reached its `maxmemory`.
pub fn is_oom(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "OOM")
}

/// Waits for requests, and takes as many as should be sent together.
fn take(inbox: &Inbox) -> Option<Vec<Job>> {
    let mut state = lock(&inbox.state);
    while state.jobs.is_empty() {
        if state.ending {
            return None;
        }
        state = inbox.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    let (mut jobs, mut bytes) = (Vec::new(), 0);
    while bytes < TOGETHER_BYTES {
        let Some(job) = state.jobs.pop_front() else { break };
        bytes += job.buf.len();
        jobs.push(job);
    }
    state.busy += 1;
    Some(jobs)
}

/// One thread's requests to the pool.
pub struct RedisChannel {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    done: Arc<Done>,
    in_flight: usize,
}

impl RedisChannel {
    pub fn open(shared: &Arc<Shared>, _purpose: Purpose) -> io::Result<RedisChannel> {
        let done = Arc::new(Done {
            finished: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        Ok(RedisChannel { pool: shared.pool()?, shared: Arc::clone(shared), done, in_flight: 0 })
    }

    fn start(&mut self, is_write: bool, token: Token, buf: FrameBuf, pieces: Vec<Piece>) {
        // A fork, if there was one, is over.
        self.shared.minding.goes_on();
        self.in_flight += 1;
        let inbox = if is_write { &self.pool.writes } else { &self.pool.reads };
        let done = Arc::clone(&self.done);
        lock(&inbox.state).jobs.push_back(Job { token, buf, pieces, done });
        inbox.wake.notify_one();
    }

    fn allocate(&self, locs: &mut [Loc]) -> Result<Vec<Piece>, StoreError> {
        loop {
            {
                let mut books = self.shared.books();
                match books.allocate(locs) {
                    Ok(()) => {
                        let pieces = books.pieces(locs);
                        let has_work = books.has_work();
                        drop(books);
                        if has_work {
                            self.shared.minding.ring();
                        }
                        return Ok(pieces);
                    }
                    Err(Short::Full) => return Err(self.shared.full(&books)),
                    Err(Short::Make) => {}
                }
            }
            self.shared.wait_for_room()?;
        }
    }
}

impl Channel for RedisChannel {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        let pieces = self.shared.books().pieces(locs);
        self.start(false, token, buf, pieces);
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        match self.allocate(locs) {
            Ok(pieces) => {
                self.start(true, token, buf, pieces);
                Ok(())
            }
            Err(error) => Err((buf, error)),
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        if self.in_flight == 0 {
            return;
        }
        // First the event, then the list: a request that finishes in between is seen now, and
        // causes one unnecessary wakeup.
        let _ = rustix::io::read(&self.done.event, &mut [0u8; 8]);
        let finished = mem::take(&mut *lock(&self.done.finished));
        self.in_flight -= finished.len();
        out.extend(finished);
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        vec![self.done.event.as_raw_fd()]
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}
