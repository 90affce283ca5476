//! A store that parent and child share after a fork, as servers and files are: locations from
//! before the fork remain until the child has ended, and are then reused immediately. Some of its
//! locations count as compressed memory, and some as the store behind it.

use std::collections::{HashSet, VecDeque};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hiroma_sys::frame::FrameBuf;
use hiroma_units::Loc;

use crate::store::{Channel, Completion, ForkGuard, Purpose, Store, StoreError, StoreUsage, Token};

/// A location, and the number of its holders: its process, and forks.
#[derive(Default)]
struct Place {
    bytes: Vec<u8>,
    holders: usize,
}

#[derive(Default)]
struct Shelf {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Shelf {
    fn hold(&mut self, bytes: &[u8]) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        self.places[at as usize] = Place { bytes: bytes.to_vec(), holders: 1 };
        at
    }

    fn release(&mut self, at: u32) {
        self.places[at as usize].holders -= 1;
        if self.places[at as usize].holders == 0 {
            self.free.push(at);
        }
    }
}

/// The store of one process.
pub struct Shared {
    shelf: Arc<Mutex<Shelf>>,
    own: Arc<Mutex<HashSet<u32>>>,
    sector_bytes: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(sector_bytes: usize) -> Shared {
        Shared { shelf: Arc::default(), own: Arc::default(), sector_bytes }
    }

    /// The store of a child: it reads its parent's content, and owns what it writes.
    pub fn of_child(&self) -> Shared {
        Shared { shelf: self.shelf.clone(), own: Arc::default(), sector_bytes: self.sector_bytes }
    }
}

impl Store for Shared {
    fn name(&self) -> String {
        "shared".to_owned()
    }

    fn open(&self, _: Purpose) -> Result<Box<dyn Channel>, StoreError> {
        let (shelf, own) = (self.shelf.clone(), self.own.clone());
        Ok(Box::new(Way {
            shelf,
            own,
            sector_bytes: self.sector_bytes,
            reads: VecDeque::new(),
            done: Vec::new(),
        }))
    }

    fn free(&self, locs: &[Loc]) {
        let (mut own, mut shelf) = (lock(&self.own), lock(&self.shelf));
        // Inherited locations are freed by the parent.
        locs.iter().filter(|loc| own.remove(&loc.0)).for_each(|loc| shelf.release(loc.0));
    }

    fn usage(&self) -> StoreUsage {
        StoreUsage::default()
    }

    // Some locations count as compressed memory that is to become empty, some as the store behind
    // it: sectors in either are moved.

    fn begin_drain(&self) -> bool {
        true
    }

    fn is_to_leave(&self, loc: Loc) -> bool {
        loc.0 % 3 == 0
    }

    fn is_behind(&self, loc: Loc) -> bool {
        loc.0 % 3 == 1
    }

    fn takes_near(&self) -> bool {
        lock(&self.shelf).places.len() % 2 == 0
    }

    fn is_within_limit(&self, loc: Loc) -> bool {
        loc.0 % 3 == 2
    }

    fn prepare_fork(&self) -> Result<Box<dyn ForkGuard>, StoreError> {
        let held: Vec<u32> = lock(&self.own).iter().copied().collect();
        let mut shelf = lock(&self.shelf);
        held.iter().for_each(|&at| shelf.places[at as usize].holders += 1);
        Ok(Box::new(Guard { shelf: self.shelf.clone(), held }))
    }
}

struct Guard {
    shelf: Arc<Mutex<Shelf>>,
    held: Vec<u32>,
}

impl ForkGuard for Guard {
    fn adopt(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut shelf = lock(&self.shelf);
        self.held.drain(..).for_each(|at| shelf.release(at));
    }
}

struct Way {
    shelf: Arc<Mutex<Shelf>>,
    own: Arc<Mutex<HashSet<u32>>>,
    sector_bytes: usize,
    reads: VecDeque<(Token, Vec<Loc>, FrameBuf)>,
    done: Vec<Completion>,
}

impl Channel for Way {
    fn read(&mut self, token: Token, locs: &[Loc], buf: FrameBuf) {
        self.reads.push_back((token, locs.to_vec(), buf));
    }

    fn write(
        &mut self,
        token: Token,
        buf: FrameBuf,
        locs: &mut [Loc],
    ) -> Result<(), (FrameBuf, StoreError)> {
        let (mut own, mut shelf) = (lock(&self.own), lock(&self.shelf));
        for (loc, bytes) in locs.iter_mut().zip(buf.bytes().chunks_exact(self.sector_bytes)) {
            let at = shelf.hold(bytes);
            own.insert(at);
            *loc = Loc(at);
        }
        self.done.push(Completion { token, buf, result: Ok(()) });
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) {
        let shelf = lock(&self.shelf);
        for (token, locs, mut buf) in self.reads.drain(..) {
            for (loc, bytes) in locs.iter().zip(buf.bytes_mut().chunks_exact_mut(self.sector_bytes))
            {
                bytes.copy_from_slice(&shelf.places[loc.0 as usize].bytes);
            }
            self.done.push(Completion { token, buf, result: Ok(()) });
        }
        out.append(&mut self.done);
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    fn in_flight(&self) -> usize {
        self.reads.len() + self.done.len()
    }
}
