//! Copies of local blocks in compressed memory are given up where they take room within the limit
//! that the program can use better.

use hiroma_policy::duplication::Duplication;
use hiroma_units::{BlockId, Loc};

use crate::core::Core;
use crate::extent::{Copy, Mode};

/// Extents whose copies are dropped, and extents that are looked at, under one hold of the lock.
const EXTENTS_MAX: usize = 4;
const LOOKS_MAX: usize = 4096;

/// Which local blocks have lost their copies.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    /// Copies were dropped at the last look.
    dropped: bool,
    /// The extent to visit next, while those of blocks that are already local are dropped.
    next: Option<usize>,
}

impl Core {
    fn drops_copy_of(&self, block: BlockId) -> bool {
        self.sharing.drops_copies()
            || !self.duplication.keeps() && !Duplication::samples(block.page())
    }

    /// Frees the far copies of a small block that has been mapped, if they are not to be kept.
    pub fn give_up_copies(&mut self, block: BlockId) {
        if block.is_huge() || !self.drops_copy_of(block) || !self.is_resident(block) {
            return;
        }
        let mut freed = Vec::new();
        self.drop_near_copies(block, &mut freed);
        self.store.free(&freed);
    }

    fn drop_near_copies(&mut self, block: BlockId, freed: &mut Vec<Loc>) {
        let (first, count) = self.sector_range(block);
        for sector in first..first + count {
            if let Copy::Stored { loc, .. } = self.extent(block).copy(sector) {
                if self.store.is_within_limit(loc) {
                    self.set_copy(block, sector, Copy::None, freed);
                }
            }
        }
    }

    /// A small block that is evicted has been compared with its copy.
    pub fn note_compared(&mut self, block: BlockId, changed: bool) {
        let (first, _) = self.sector_range(block);
        if let Copy::Stored { loc, .. } = self.extent(block).copy(first) {
            if self.store.is_within_limit(loc) {
                self.duplication.left(changed);
            }
        }
    }

    /// After the decision to drop copies: frees those of blocks that have been local since before.
    /// Returns false if there is nothing to do.
    pub fn give_up_some(&mut self) -> bool {
        let drops = !self.duplication.keeps();
        if drops != self.copies.dropped {
            self.copies = Copies { dropped: drops, next: drops.then_some(0) };
        }
        let Some(first) = self.copies.next else { return false };
        let end = (first + LOOKS_MAX).min(self.extents.len());
        let (mut freed, mut visited) = (Vec::new(), 0);
        let mut number = first;
        while number < end && visited < EXTENTS_MAX {
            visited += usize::from(self.give_up_in(number, &mut freed));
            number += 1;
        }
        self.store.free(&freed);
        self.copies.next = (number < self.extents.len()).then_some(number);
        true
    }

    /// Returns false if no small block of the extent has a copy.
    fn give_up_in(&mut self, number: usize, freed: &mut Vec<Loc>) -> bool {
        let extent = &self.extents[number];
        if extent.mode != Mode::Small || extent.far_sectors() == 0 {
            return false;
        }
        let mut at = 0;
        while let Some(block) = self.next_small(number, &mut at) {
            if self.drops_copy_of(block) && self.is_resident(block) {
                self.drop_near_copies(block, freed);
            }
        }
        true
    }
}
