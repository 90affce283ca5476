//! Which block is evicted from local memory.
//!
//! A replacement policy is told which blocks become resident and names the next victim. It does
//! not see ordinary accesses. The signs of use are that a block which the pager had moved to the
//! staging area was touched there and became resident again ([`Origin::Rescued`]), and accessed
//! bits, where the pager can have them ([`Replacement::accessed`]).

mod fifo;
mod ghosts;
mod lru;
mod queue;
mod staging;
mod trust;
mod used;

use hiroma_units::{BlockId, ExtentNo, PAGES_PER_EXTENT};

pub use fifo::Fifo;
pub use lru::Lru;
pub use staging::Staging;
pub(crate) use used::words_of;

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

/// What is known about a block without a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// In use; should stay.
    Hot,
    /// Will not be needed for long.
    Cold,
}

/// A bit for each page of an extent: bit `i % 64` of word `i / 64` for page `i`.
pub type PageBits = [u64; PAGES_PER_EXTENT / 64];

/// Number of victims that are taken from a policy at a time.
pub const VICTIMS_AHEAD: usize = 32;

/// A replacement policy. One object decides for one process; calls come in the order of the events.
pub trait Replacement: Send {
    /// `block` became resident.
    fn admitted(&mut self, block: BlockId, origin: Origin);

    /// Something is known about `block` without a fault: from the program's advice, or from an
    /// access tracker.
    fn hinted(&mut self, block: BlockId, hint: Hint);

    /// The pages of `extent` whose accessed bits were set since the last call for it. Policies that
    /// give no second chances ignore them.
    fn accessed(&mut self, _extent: ExtentNo, _pages: &PageBits) {}

    /// Number of pages of a victim that were accessed, if they are too few to keep all of it.
    fn used_pages(&self, _block: BlockId) -> usize {
        0
    }

    /// An extent that is kept because all of its pages seem to be in use. That may be the one bit
    /// of a huge page: the owner should map it by small pages, so that their bits can be told
    /// apart. Each is handed out once for each time that it was passed over.
    fn blurred(&mut self) -> Option<ExtentNo> {
        None
    }

    /// The next block that should be staged.
    ///
    /// Each admission is returned at most once (and once more after a [`Hint::Cold`]). Blocks that
    /// no longer exist, or are in another mode now, may still be returned: the caller checks
    /// whether the block is resident and calls again if not.
    fn next_victim(&mut self) -> Option<BlockId>;

    /// Adds the next victims to `victims`, the one with the lowest address last: neighbours leave
    /// together. There are [`VICTIMS_AHEAD`] small ones at most; an extent is taken alone.
    fn next_victims(&mut self, victims: &mut Vec<BlockId>) {
        while victims.len() < VICTIMS_AHEAD {
            let Some(block) = self.next_victim() else { break };
            victims.push(block);
            if block.is_huge() {
                break;
            }
        }
        victims.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// The victim could not be staged (for example, because it is pinned): it is offered again
    /// later.
    fn put_back(&mut self, block: BlockId);

    /// Number of entries, including those of blocks that no longer exist.
    fn len(&self) -> usize;

    /// Whether there are no entries.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the entries of blocks for which `resident` returns false, and all but one for each
    /// other block. Preserves the order.
    ///
    /// To be called by the owner when `len()` is far above the number of resident blocks. Takes
    /// time and allocates.
    fn compact(&mut self, resident: &mut dyn FnMut(BlockId) -> bool);

    /// Memory that the policy uses for itself.
    fn metadata_bytes(&self) -> usize;

    /// Whether the policy makes use of rescues. If not, the owner should stage late and write
    /// immediately: a long stay in the staging area would be a second chance that the policy does
    /// not intend to give.
    fn gives_second_chances(&self) -> bool {
        true
    }
}

/// Hash of a block for tables without chains. Multiplied twice: blocks are at even distances, which
/// a single multiplication would leave in clusters.
fn scattered(block: BlockId) -> u64 {
    let half = (block.page() << 4 | u64::from(block.order())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (half ^ half >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}
