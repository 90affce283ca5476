//! Follows the memory of the machine: lends what is free, and gives memory back when the machine's
//! own programs need it. What is to be done is decided by [`Lending`]; this is what does it.
//!
//! Free chunks give their memory up first; then clients that can are asked to move away, and the
//! chunks that were not used for the longest time go to the file.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hiroma_far_wire::CHUNK;
use hiroma_policy::lending::{Lending, Orders, Reading};
use hiroma_units::Bytes;

use crate::pool::Pool;
use crate::{Log, Server};

/// Chunks that are written before the machine is looked at again: 256 MiB.
const AT_A_TIME: usize = 128;
/// Chunks that are brought back between two looks.
const BACK_AT_A_TIME: usize = 32;
/// Threads that write them: one sums and one writes at any time.
const WRITERS: usize = 2;
/// One more client is asked to move after this time.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The same trouble is told again after this time.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What a machine has for its programs, and for guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seen {
    /// Memory that can still be used without swapping, and without reaching a limit.
    pub available_bytes: u64,
    /// Time in which threads waited for memory, summed up; 0 if the kernel does not tell.
    pub stalled_us: u64,
}

/// Looks at the machine.
pub type Gauge = Arc<dyn Fn() -> io::Result<Seen> + Send + Sync>;

/// A server that lends as much as its machine can spare.
#[derive(Clone)]
pub struct Elastic {
    /// Looks at the machine.
    pub gauge: Gauge,
    /// Memory of the machine, or the limit of the group of processes.
    pub whole_bytes: u64,
    /// Directory for what there is no memory for, and the most to store there; none: only clients
    /// that can move give memory back.
    pub spill: Option<(PathBuf, Option<u64>)>,
}

/// What was done so far.
#[derive(Default)]
pub struct Given {
    pub bytes: AtomicU64,
}

pub struct Lender {
    elastic: Elastic,
    lending: Lending,
    start: Instant,
    was_short: bool,
    asked: Option<Instant>,
    told: Option<Instant>,
    /// Stalled time that was seen last.
    stalled_us: u64,
    /// Given back since memory became short, and the time that it took.
    given_bytes: u64,
    giving: Duration,
}

impl Lender {
    pub fn new(elastic: Elastic) -> Lender {
        Lender {
            lending: Lending::new(elastic.whole_bytes),
            elastic,
            start: Instant::now(),
            was_short: false,
            asked: None,
            told: None,
            stalled_us: 0,
            given_bytes: 0,
            giving: Duration::ZERO,
        }
    }

    /// Main function of the thread that does this.
    pub fn run(mut self, server: &Server) {
        while !server.stopping.load(Ordering::SeqCst) {
            let pause = self.look(server);
            std::thread::sleep(pause);
        }
    }

    /// Looks once, and does what is necessary. Returns the time until the next look.
    pub fn look(&mut self, server: &Server) -> Duration {
        let pool = server.registry.pool();
        let (seen, is_blind) = match (self.elastic.gauge)() {
            Ok(seen) => (seen, false),
            Err(error) => {
                self.tell(&server.log, &format!("cannot look at this machine's memory: {error}"));
                // Nobody can say that the machine's programs do not need it.
                (Seen { available_bytes: 0, stalled_us: self.stalled_us }, true)
            }
        };
        self.stalled_us = seen.stalled_us;
        let held = pool.resident();
        let now_ns = self.start.elapsed().as_nanos() as u64;
        let orders = self.lending.look(
            now_ns,
            &Reading {
                available_bytes: seen.available_bytes,
                stalled_us: seen.stalled_us,
                held_bytes: (held * CHUNK) as u64,
            },
        );
        pool.allow((orders.allowed_bytes / CHUNK as u64) as usize, orders.is_short);
        let pause = self.follow(server, orders, held);
        // What is given back without need is at least given back slowly.
        if is_blind { pause.max(ASK_EVERY) } else { pause }
    }

    fn follow(&mut self, server: &Server, orders: Orders, held: usize) -> Duration {
        if orders.is_short != self.was_short {
            self.was_short = orders.is_short;
            self.changed(server);
        }
        let pool = server.registry.pool();
        if orders.give_back_bytes > 0 {
            let wanted = (orders.give_back_bytes as usize).div_ceil(CHUNK).min(AT_A_TIME);
            self.give_back(server, held.saturating_sub(wanted));
        }
        if orders.is_short {
            if self.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY) {
                self.asked = Some(Instant::now());
                if let Some(session) = server.registry.ask_to_move() {
                    (server.log)(&format!("{} is asked to move away", session.called()));
                }
            }
        } else {
            let room = (orders.allowed_bytes as usize / CHUNK).saturating_sub(pool.resident());
            self.bring_back(server, (room / 2).min(BACK_AT_A_TIME));
        }
        // What was given back may not have been enough.
        let is_pressing = orders.give_back_bytes > 0 && pool.resident() < held;
        if is_pressing { Duration::ZERO } else { Duration::from_nanos(orders.pause_ns) }
    }

    fn changed(&mut self, server: &Server) {
        if self.was_short {
            (self.given_bytes, self.giving, self.asked) = (0, Duration::ZERO, None);
            (server.log)("this machine needs its memory: nothing more is lent for now");
            return;
        }
        server.registry.stop_moves();
        let usage = server.registry.pool().usage();
        (server.log)(&format!(
            "this machine has memory again: lending {}; {} were given back in {:.2} s, {} are on the disk",
            Bytes((usage.total * CHUNK) as u64),
            Bytes(self.given_bytes),
            self.giving.as_secs_f64(),
            Bytes((usage.filed * CHUNK) as u64),
        ));
    }

    /// Gives memory back until no more than `target` chunks have some.
    fn give_back(&mut self, server: &Server, target: usize) {
        let (pool, start) = (server.registry.pool(), Instant::now());
        let before = pool.resident();
        let excess = before.saturating_sub(target);
        // A chunk that is in use now is passed by; others are there for it.
        let trouble = if excess > 0 { to_file(pool, excess) } else { Ok(()) };
        let freed = (before.saturating_sub(pool.resident()) * CHUNK) as u64;
        self.given_bytes += freed;
        self.giving += start.elapsed();
        server.given.bytes.fetch_add(freed, Ordering::Relaxed);
        if let Err(error) = trouble {
            let text = if error.kind() == io::ErrorKind::Unsupported {
                "this machine needs its memory, and there is no place for what guests have here: start with --spill DIR".to_owned()
            } else {
                format!(
                    "cannot write what guests have to the disk: {error}; give --spill a directory with more room"
                )
            };
            self.tell(&server.log, &text);
        }
    }

    /// Brings chunks back from the file, those first that were used last.
    fn bring_back(&mut self, server: &Server, most: usize) {
        let pool = server.registry.pool();
        if most == 0 || pool.usage().filed == 0 {
            return;
        }
        for chunk in pool.by_age(false).iter().rev().take(most) {
            if let Err(error) = chunk.to_memory() {
                self.tell(&server.log, &format!("the disk of moved memory: {error}"));
            }
        }
    }

    fn tell(&mut self, log: &Log, text: &str) {
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            log(text);
        }
    }
}

/// Moves `wanted` chunks to the file, the longest unused first.
fn to_file(pool: &Pool, wanted: usize) -> io::Result<()> {
    pool.spill()?;
    let chunks = pool.by_age(true);
    let (next, moved, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> io::Result<()> {
        while moved.load(Ordering::SeqCst) < wanted && !failed.load(Ordering::SeqCst) {
            let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::SeqCst)) else { break };
            match chunk.to_file() {
                Ok(has_moved) => drop(moved.fetch_add(usize::from(has_moved), Ordering::SeqCst)),
                Err(error) => {
                    failed.store(true, Ordering::SeqCst);
                    return Err(error);
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..WRITERS).map(|_| scope.spawn(work)).collect();
        let mine = work();
        writers.into_iter().fold(mine, |result, writer| {
            result.and(writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })
}
