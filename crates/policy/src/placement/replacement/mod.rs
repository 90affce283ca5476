//! Which of a node's pages is evicted, its own and guests alike (section 2.2): one file per way,
//! all based on the same lists of frames.

mod clock;
mod fifo;
mod lfu;
mod list;
mod lru;

pub use clock::Clock;
pub use fifo::Fifo;
pub use lfu::Lfu;
pub use lru::Lru;

use super::config::ReplacementKind;

/// An order among frames. A frame is a number that the owner assigns; only frames in the order can
/// be chosen.
pub trait Ranking {
    /// `frame`, which is not in the order, holds a page from now on.
    fn insert(&mut self, frame: u32);
    /// The page in `frame` was used.
    fn touch(&mut self, frame: u32);
    /// The page in `frame`, which is in the order, was evicted or must stay for the time being.
    fn remove(&mut self, frame: u32);
    /// Returns the frame whose page is evicted next and removes it from the order; none if the
    /// order is empty.
    fn victim(&mut self) -> Option<u32>;
    /// Heap memory, bytes.
    fn heap_bytes(&self) -> usize;
}

/// Any of the orders.
#[derive(Clone, Debug)]
pub enum AnyRanking {
    /// See [`Fifo`].
    Fifo(Fifo),
    /// See [`Lru`].
    Lru(Lru),
    /// See [`Lfu`].
    Lfu(Box<Lfu>),
    /// See [`Clock`].
    Clock(Clock),
}

impl AnyRanking {
    /// The order that `kind` names, empty.
    pub fn new(kind: ReplacementKind) -> Self {
        match kind {
            ReplacementKind::Fifo => AnyRanking::Fifo(Fifo::default()),
            ReplacementKind::Lru => AnyRanking::Lru(Lru::default()),
            ReplacementKind::Lfu => AnyRanking::Lfu(Box::default()),
            ReplacementKind::Clock => AnyRanking::Clock(Clock::default()),
        }
    }
}

impl Ranking for AnyRanking {
    #[inline]
    fn insert(&mut self, frame: u32) {
        match self {
            AnyRanking::Fifo(ranking) => ranking.insert(frame),
            AnyRanking::Lru(ranking) => ranking.insert(frame),
            AnyRanking::Lfu(ranking) => ranking.insert(frame),
            AnyRanking::Clock(ranking) => ranking.insert(frame),
        }
    }

    #[inline]
    fn touch(&mut self, frame: u32) {
        match self {
            AnyRanking::Fifo(ranking) => ranking.touch(frame),
            AnyRanking::Lru(ranking) => ranking.touch(frame),
            AnyRanking::Lfu(ranking) => ranking.touch(frame),
            AnyRanking::Clock(ranking) => ranking.touch(frame),
        }
    }

    #[inline]
    fn remove(&mut self, frame: u32) {
        match self {
            AnyRanking::Fifo(ranking) => ranking.remove(frame),
            AnyRanking::Lru(ranking) => ranking.remove(frame),
            AnyRanking::Lfu(ranking) => ranking.remove(frame),
            AnyRanking::Clock(ranking) => ranking.remove(frame),
        }
    }

    fn victim(&mut self) -> Option<u32> {
        match self {
            AnyRanking::Fifo(ranking) => ranking.victim(),
            AnyRanking::Lru(ranking) => ranking.victim(),
            AnyRanking::Lfu(ranking) => ranking.victim(),
            AnyRanking::Clock(ranking) => ranking.victim(),
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            AnyRanking::Fifo(ranking) => ranking.heap_bytes(),
            AnyRanking::Lru(ranking) => ranking.heap_bytes(),
            AnyRanking::Lfu(ranking) => size_of::<Lfu>() + ranking.heap_bytes(),
            AnyRanking::Clock(ranking) => ranking.heap_bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
