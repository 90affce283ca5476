//! A thread that makes strings in the server before they are needed, deletes those that are not
//! needed any more, and renews the expiry of all others: it alone decides which exist.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::books::Home;
use super::line::{Batch, Facts, Line};
use super::pool::is_oom;
use super::{GOODBYE_MAX, Shared, room_bytes};
use crate::store::StoreError;

/// Interval of its rounds while nobody rings, and while the process forks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const STILL_EVERY: Duration = Duration::from_millis(5);
/// Interval of questions to the server.
const ASK_EVERY: Duration = Duration::from_secs(3);
/// Number of commands that are sent together.
const TOGETHER: usize = 512;

/// Starts the keeper of this process: in the first one, and in each child that adopts the store.
pub fn start(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let (kept, epoch) = (Arc::clone(shared), shared.epoch.load(SeqCst));
    let mut keeper = Keeper {
        line: Line::yielding(shared),
        shared: Arc::clone(shared),
        renewed: Instant::now(),
        asked: Instant::now(),
        is_lost: false,
        policy: None,
    };
    let work = move || {
        while !kept.minding.is_stopping() && kept.epoch.load(SeqCst) == epoch {
            let pause = kept.minding.round(STILL_EVERY, || keeper.round());
            kept.minding.rest(pause);
        }
        keeper.say_goodbye();
    };
    shared
        .minding
        .start(c"hiroma-keeper", work)
        .map_err(|error| shared.io("starting a thread", &error.to_string()))
}

struct Keeper {
    shared: Arc<Shared>,
    line: Line,
    renewed: Instant,
    asked: Instant,
    is_lost: bool,
    /// The policy other than noeviction that the user knows of.
    policy: Option<String>,
}

impl Keeper {
    /// Returns how long to rest.
    fn round(&mut self) -> Duration {
        if self.is_lost {
            return LOOK_EVERY;
        }
        let ttl = self.shared.ttl;
        if let Err(error) = self.work() {
            let shared = Arc::clone(&self.shared);
            if shared.minding.is_stopping() {
                return Duration::ZERO;
            }
            if self.line.take_yielded() {
                return STILL_EVERY;
            }
            self.is_lost = true;
            let holds_something = {
                let mut books = shared.books();
                books.made(&[], true);
                books.holds_something()
            };
            shared.note_room(Some(error.clone()));
            if holds_something { (shared.lost)(&error) } else { (shared.log)(&error.to_string()) }
        }
        LOOK_EVERY.min(ttl / 8)
    }

    fn work(&mut self) -> Result<(), StoreError> {
        let frees = self.shared.books().take_frees();
        // Deleting twice does no harm.
        self.delete(&frees).inspect_err(|_| self.shared.books().put_back_frees(&frees))?;
        let numbers: Vec<u32> = self.shared.books().numbers_to_make().collect();
        if !numbers.is_empty() {
            self.make(&numbers)?;
        }
        if self.renewed.elapsed() >= self.shared.ttl / 4 {
            let before = std::mem::replace(&mut self.renewed, Instant::now());
            self.renew().inspect_err(|_| self.renewed = before)?;
        } else if self.asked.elapsed() >= ASK_EVERY {
            self.ask_for_room()?;
        }
        Ok(())
    }

    fn delete(&mut self, numbers: &[u32]) -> Result<(), StoreError> {
        let homes: Vec<Home> = {
            let books = self.shared.books();
            numbers.iter().map(|&number| books.ours(number)).collect()
        };
        for some in homes.chunks(TOGETHER) {
            self.line.ask(&unlink(&self.shared, some))?;
        }
        self.shared.books().freed(numbers.len());
        Ok(())
    }

    /// Makes strings of full length, with an expiry from the beginning.
    fn make(&mut self, numbers: &[u32]) -> Result<(), StoreError> {
        let (mut made, mut is_full) = (Vec::new(), false);
        let parts: Vec<_> = self.shared.books().parts().collect();
        for &number in numbers {
            let mut batch = Batch::default();
            {
                let books = self.shared.books();
                let home = books.ours(number);
                for (part, range) in &parts {
                    let (key, ttl) = (books.key(home, *part), self.shared.ttl.as_millis() as u64);
                    batch.push(cmd("SET").arg(&key).arg("").arg("PX").arg(ttl));
                    batch.push(cmd("SETRANGE").arg(&key).arg(range.len()).arg("."));
                }
            }
            let values = match self.line.ask(&batch) {
                Ok(values) => values,
                Err(error) => {
                    self.shared.books().made(&made, is_full);
                    return Err(error);
                }
            };
            if values.iter().any(is_oom) {
                is_full = true;
                let home = [self.shared.books().ours(number)];
                self.line.ask(&unlink(&self.shared, &home))?;
                break;
            }
            let is_right = |(value, (_, range)): (&Value, &(u8, std::ops::Range<usize>))| matches!(value, Value::Int(len) if *len as usize == range.len() + 1);
            if !values.iter().skip(1).step_by(2).zip(&parts).all(is_right) {
                let error = values.into_iter().find(|value| matches!(value, Value::ServerError(_)));
                return Err(self.shared.unexpected("making room", error));
            }
            made.push(number);
        }
        self.shared.books().made(&made, is_full);
        self.shared.note_room(None);
        Ok(())
    }

    /// Renews the expiry of all strings. One that does not exist is lost.
    fn renew(&mut self) -> Result<(), StoreError> {
        let homes = self.shared.books().kept();
        for some in homes.chunks(TOGETHER) {
            let mut batch = Batch::default();
            let mut owners = Vec::new();
            {
                let books = self.shared.books();
                for &home in some {
                    for (part, _) in books.parts() {
                        let ttl = self.shared.ttl.as_millis() as u64;
                        batch.push(cmd("PEXPIRE").arg(books.key(home, part)).arg(ttl));
                        owners.push(home);
                    }
                }
            }
            let values = self.line.ask(&batch)?;
            for (value, home) in values.into_iter().zip(owners) {
                match value {
                    Value::Int(1) => {}
                    // An ancestor deletes what nobody needs any more, and that may be just now.
                    Value::Int(_) if !self.shared.books().kept().contains(&home) => {}
                    Value::Int(_) => return Err(self.shared.missing()),
                    other => return Err(self.shared.unexpected("renewing", Some(other))),
                }
            }
        }
        self.ask_for_room()
    }

    fn ask_for_room(&mut self) -> Result<(), StoreError> {
        self.asked = Instant::now();
        let mut batch = Batch::default();
        batch.push(cmd("INFO").arg("memory"));
        let facts = self.line.ask(&batch)?.pop().and_then(Facts::of);
        if let Some(facts) = facts {
            if let Some(policy) = facts.text("maxmemory_policy") {
                self.note_policy(policy);
            }
            self.shared.books().room_bytes = room_bytes(&facts);
        }
        Ok(())
    }

    /// Tells of each change of what the server does when its memory is full.
    fn note_policy(&mut self, policy: &str) {
        let policy = Some(policy).filter(|&policy| policy != "noeviction");
        if policy == self.policy.as_deref() {
            return;
        }
        let name = &self.shared.name;
        (self.shared.log)(&match policy {
            Some(policy) => format!(
                "{name}: maxmemory-policy was changed to {policy}: the server may delete what this program keeps there, which then ends; set it to noeviction again"
            ),
            None => format!("{name}: maxmemory-policy is noeviction again"),
        });
        self.policy = policy.map(str::to_owned);
    }

    /// Deletes what nobody needs any more.
    fn say_goodbye(&mut self) {
        // In a process that was forked meanwhile, nothing of this is ours.
        if !self.shared.minding.is_stopping() || self.is_lost {
            return;
        }
        let homes = self.shared.books().leftovers();
        for some in homes.chunks(TOGETHER) {
            if self.line.ask_within(&unlink(&self.shared, some), GOODBYE_MAX).is_err() {
                return;
            }
        }
    }
}

fn unlink(shared: &Shared, homes: &[Home]) -> Batch {
    let mut batch = Batch::default();
    let books = shared.books();
    for &home in homes {
        let mut command = cmd("UNLINK");
        for (part, _) in books.parts() {
            command.arg(books.key(home, part));
        }
        batch.push(&command);
    }
    batch
}
