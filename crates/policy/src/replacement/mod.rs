//! Who leaves local memory.
//!
//! A replacement policy sees blocks come and names the next one to go. It never sees ordinary
//! accesses, because nobody does: the only sign of use is that a block which the pager had moved to
//! the staging area was touched there and came back ([`Origin::Rescued`]).

mod fifo;
mod ghosts;
mod lru;
mod queue;
mod staging;
mod trust;

use hiroma_units::BlockId;

pub use fifo::Fifo;
pub use lru::Lru;
pub use staging::Staging;

/// Why a block became resident.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// First touch; filled with zeros.
    Fresh,
    /// Fetched because the program waited for it.
    Demand,
    /// Fetched ahead of need, for whatever reason.
    Prefetch,
    /// The program waited for it, or it is fresh, as part of a stream: likely to be used once and
    /// then left behind.
    Stream,
    /// Touched while it was staged.
    Rescued,
}

/// What somebody knows about a block without a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// In use; should stay.
    Hot,
    /// Will not be needed for long.
    Cold,
}

/// A replacement policy. One object decides for one process; calls come in the order of the events.
pub trait Replacement: Send {
    /// `block` became resident.
    fn admitted(&mut self, block: BlockId, origin: Origin);

    /// Something is known about `block` without a fault: from the program's advice, or from a
    /// tracker of accesses.
    fn hinted(&mut self, block: BlockId, hint: Hint);

    /// The next block that should be staged.
    ///
    /// Each admission is handed out at most once (and once more after a [`Hint::Cold`]). Blocks
    /// that are gone since, or that are in another mode now, may still be handed out: the caller
    /// looks whether the block is resident and asks again if not.
    fn next_victim(&mut self) -> Option<BlockId>;

    /// The victim could not be staged (pinned, say): it is offered again later.
    fn put_back(&mut self, block: BlockId);

    /// Entries, those of blocks that are gone included.
    fn len(&self) -> usize;

    /// Whether there is nothing to hand out.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the entries of blocks for which `resident` answers false, and all but one for each
    /// other block. Order stays.
    ///
    /// For the owner to call when `len()` is far above the number of resident blocks. Takes time
    /// and allocates.
    fn compact(&mut self, resident: &mut dyn FnMut(BlockId) -> bool);

    /// Memory that the policy uses for itself.
    fn metadata_bytes(&self) -> usize;

    /// Whether a rescue tells the policy anything. If not, the owner should stage late and write at
    /// once: a long stay in the staging area would be a second chance that the policy does not mean
    /// to give.
    fn gives_second_chances(&self) -> bool {
        true
    }
}

/// Bits of a block for tables without chains. Multiplied twice: blocks lie at even distances, which
/// one multiplication alone would leave in clusters.
fn scattered(block: BlockId) -> u64 {
    let half = (block.page() << 4 | u64::from(block.order())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (half ^ half >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}
