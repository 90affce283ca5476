//! Pages whose accessed bits were found set.

use std::collections::VecDeque;

use hiroma_units::{BlockId, ExtentNo, PAGES_PER_EXTENT};
use rustc_hash::{FxHashMap, FxHashSet};

use super::PageBits;

/// A block is in use if at least one of this many of its pages was accessed. Of an extent with
/// fewer, it is cheaper to keep the pages than the whole.
const USED_SHARE: usize = 4;
/// Maximum of extents that wait to be mapped by small pages.
const BLURRED_MAX: usize = 64;

/// Accessed pages by extent. Bits accumulate until a block with enough of them is passed over.
#[derive(Default)]
pub struct Used {
    extents: FxHashMap<ExtentNo, PageBits>,
    /// Extents that were passed over with all bits set.
    blurred: VecDeque<ExtentNo>,
}

impl Used {
    /// Adds the pages of `extent` that were accessed.
    pub fn add(&mut self, extent: ExtentNo, pages: &PageBits) {
        if pages.iter().all(|&word| word == 0) {
            return;
        }
        let known = self.extents.entry(extent).or_default();
        known.iter_mut().zip(pages).for_each(|(known, new)| *known |= new);
    }

    /// Number of pages of `block` that were accessed.
    pub fn count(&self, block: BlockId) -> usize {
        let Some(known) = self.extents.get(&block.extent_no()) else { return 0 };
        words_of(block).map(|(word, mask)| (known[word] & mask).count_ones() as usize).sum()
    }

    /// Whether `block` is in use. If so, its bits are cleared: it is passed over once for them.
    pub fn take(&mut self, block: BlockId) -> bool {
        let count = self.count(block);
        if count == 0 || count * USED_SHARE < block.pages() {
            return false;
        }
        if count == PAGES_PER_EXTENT && self.blurred.len() < BLURRED_MAX {
            self.blurred.push_back(block.extent_no());
        }
        self.forget(block);
        true
    }

    /// An extent that was passed over with all bits set.
    pub fn blurred(&mut self) -> Option<ExtentNo> {
        self.blurred.pop_front()
    }

    /// Clears the bits of `block`.
    pub fn forget(&mut self, block: BlockId) {
        if let Some(known) = self.extents.get_mut(&block.extent_no()) {
            words_of(block).for_each(|(word, mask)| known[word] &= !mask);
        }
    }

    /// Drops all extents except these.
    pub fn retain(&mut self, extents: &FxHashSet<ExtentNo>) {
        self.extents.retain(|extent, _| extents.contains(extent));
    }

    pub fn metadata_bytes(&self) -> usize {
        self.extents.capacity() * (size_of::<(ExtentNo, PageBits)>() + 1)
    }
}

/// The words of an extent's bits that contain those of `block`, with the block's bits in each.
pub(crate) fn words_of(block: BlockId) -> impl Iterator<Item = (usize, u64)> {
    let (first, pages) = (block.page_in_extent(), block.pages());
    let mask = if pages >= 64 { u64::MAX } else { ((1 << pages) - 1) << (first % 64) };
    (first / 64..(first + pages).div_ceil(64)).map(move |word| (word, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(pages: &[usize]) -> PageBits {
        let mut bits = PageBits::default();
        pages.iter().for_each(|page| bits[page / 64] |= 1 << (page % 64));
        bits
    }

    #[test]
    fn accessed_bit_is_consumed_once() {
        let mut used = Used::default();
        used.add(ExtentNo(3), &bits(&[0, 63, 64, 511]));
        for page in [0, 63, 64, 511] {
            let block = BlockId::new(3 * 512 + page, 0);
            assert!(used.take(block) && !used.take(block), "page {page}");
        }
        assert!(!used.take(BlockId::new(3 * 512 + 1, 0)) && !used.take(BlockId::new(4 * 512, 0)));
    }

    #[test]
    fn a_block_needs_a_quarter_of_its_pages() {
        let mut used = Used::default();
        let (extent, quarter) = (BlockId::extent(ExtentNo(0)), Vec::from_iter(0..128));
        used.add(ExtentNo(0), &bits(&quarter[1..]));
        assert!(!used.take(extent));
        assert_eq!(used.count(extent), 127, "what is too little stays known");
        used.add(ExtentNo(0), &bits(&quarter[..1]));
        assert!(used.take(extent));
        assert_eq!(used.count(extent), 0);
        used.add(ExtentNo(0), &bits(&[16, 40]));
        let block = BlockId::new(16, 4);
        assert_eq!((used.count(block), used.take(block)), (1, false));
    }

    #[test]
    fn extents_that_are_not_retained_are_forgotten() {
        let mut used = Used::default();
        used.add(ExtentNo(0), &bits(&[6]));
        used.add(ExtentNo(1), &bits(&[5]));
        used.retain(&FxHashSet::from_iter([ExtentNo(0)]));
        assert!(used.take(BlockId::new(6, 0)) && !used.take(BlockId::new(512 + 5, 0)));
    }
}
