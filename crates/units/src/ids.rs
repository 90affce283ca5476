//! Identifiers of memory blocks, locations in a store, and points in time.

use std::fmt;

use crate::{PAGE, PAGES_PER_EXTENT};

/// Number of an extent (2 MiB, aligned) inside an arena; the first one is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtentNo(pub u32);

/// One block of managed memory: a run of `pages()` pages that starts at page `page()` of the arena.
///
/// A block is either a whole extent (huge mode) or one sector of it (small mode); its length is a
/// power of two.
///
/// Four bytes, because tables and queues contain many of them: the position of the block's middle,
/// in half pages. The number of trailing zeros is the block's order, and no two blocks have the
/// same middle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(u32);

impl fmt::Debug for BlockId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "BlockId({}, {})", self.page(), self.order())
    }
}

impl BlockId {
    /// Maximum number of pages of an arena: 8 TiB.
    pub const PAGES_MAX: u64 = 1 << 31;

    /// The block of `1 << order` pages that starts at arena page `page` (a multiple of its length).
    pub fn new(page: u64, order: u8) -> Self {
        debug_assert!(order <= 9 && page % (1 << order) == 0 && page < Self::PAGES_MAX);
        BlockId((page as u32) << 1 | 1 << order)
    }

    /// The block that is extent `extent` as a whole.
    pub fn extent(extent: ExtentNo) -> Self {
        BlockId::new(u64::from(extent.0) * PAGES_PER_EXTENT as u64, 9)
    }

    /// First page of the block, counted from the start of the arena.
    pub fn page(self) -> u64 {
        u64::from(self.0 & (self.0 - 1)) >> 1
    }

    /// Base-2 logarithm of the block's length in pages.
    pub fn order(self) -> u8 {
        self.0.trailing_zeros() as u8
    }

    /// Length in pages.
    pub fn pages(self) -> usize {
        1 << self.order()
    }

    /// Length in bytes.
    pub fn bytes(self) -> usize {
        self.pages() * PAGE
    }

    /// Offset of the first byte from the start of the arena.
    pub fn offset(self) -> usize {
        self.page() as usize * PAGE
    }

    /// The extent that contains the block.
    pub fn extent_no(self) -> ExtentNo {
        ExtentNo((self.page() / PAGES_PER_EXTENT as u64) as u32)
    }

    /// First page of the block, counted from the start of its extent.
    pub fn page_in_extent(self) -> usize {
        (self.page() % PAGES_PER_EXTENT as u64) as usize
    }

    /// Whether the block is a whole extent.
    pub fn is_huge(self) -> bool {
        self.order() == 9
    }
}

/// Location of one sector in a store. The store defines the meaning of the number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Loc(pub u32);

impl Loc {
    /// Bits of a `Loc` that a single store may use; the upper ones name the store in a chain.
    pub const STORE_BITS: u32 = 30;
}

/// A point in time or a span, in whole nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// A span of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Nanos(ms * 1_000_000)
    }

    /// A span of `us` microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Nanos(us * 1000)
    }

    /// The span since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_id_round_trips() {
        let sector = BlockId::new(512 * 7 + 6, 1);
        assert_eq!((sector.page(), sector.order(), sector.bytes()), (512 * 7 + 6, 1, 8192));
        assert_eq!((sector.extent_no(), sector.page_in_extent()), (ExtentNo(7), 6));
        let huge = BlockId::extent(ExtentNo(7));
        assert!(huge.is_huge() && !sector.is_huge());
        assert_eq!(huge.offset(), 7 * crate::EXTENT);
        let last = BlockId::new(BlockId::PAGES_MAX - 512, 9);
        assert_eq!(
            (last.page(), last.order(), last.extent_no()),
            (BlockId::PAGES_MAX - 512, 9, ExtentNo((1 << 22) - 1))
        );
    }
}
