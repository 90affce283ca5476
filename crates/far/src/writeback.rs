//! One staged block that is compared with its far copies and written back.

use std::sync::Arc;

use hiroma_sys::vm;
use hiroma_units::{BlockId, Loc};

use crate::canary;
use crate::content;
use crate::control::Counter;
use crate::core::{Core, Phase};
use crate::extent::Copy;
use crate::frames::Frame;
use crate::store::Tier;
use crate::trace::Moved;

/// One block that is being written back. The buffers are reused for later blocks.
#[derive(Default)]
pub struct Job {
    pub block: Option<BlockId>,
    pub stamp: u32,
    pub addr: usize,
    /// The recorded far copies; after `compare`, the new ones.
    pub copies: Vec<Copy>,
    /// Which of these are new.
    pub changed: Vec<bool>,
    /// The tier to write to, even if the content is unchanged.
    pub tier: Option<Tier>,
    pub pending: usize,
    pub written: usize,
    key: Option<Arc<content::Key>>,
    pub pattern: usize,
}

impl Job {
    pub fn prepare(&mut self, core: &Core, block: BlockId, stamp: u32, addr: usize) {
        let (first, count) = core.sector_range(block);
        let extent = core.extent(block);
        (self.block, self.stamp, self.addr) = (Some(block), stamp, addr);
        (self.pending, self.written, self.pattern, self.tier) = (0, 0, 0, None);
        self.key.get_or_insert_with(|| core.key.clone());
        self.copies.clear();
        self.copies.extend((first..first + count).map(|sector| extent.copy(sector)));
        self.changed.clear();
        self.changed.resize(count, false);
    }

    /// Determines which sectors differ from the far copies. The content cannot change meanwhile,
    /// because it is not mapped into the program.
    pub fn compare(&mut self) {
        let key = self.key.as_ref().expect("a job in use has a key");
        let block = self.block.expect("a job in use has a block");
        let buf = vm::lend(self.addr, block.bytes());
        let sector_bytes = block.bytes() / self.copies.len();
        for (at, bytes) in buf.bytes().chunks_exact(sector_bytes).enumerate() {
            let now = match content::repeated_word(bytes) {
                Some(0) if self.copies[at] == Copy::None => Copy::None,
                Some(word) => Copy::Pattern(word),
                None => {
                    let sum = content::checksum_cold(key, bytes);
                    match self.copies[at] {
                        Copy::Stored { loc, sum: before } if before == sum => {
                            Copy::Stored { loc, sum }
                        }
                        _ => Copy::Stored { loc: Loc(0), sum },
                    }
                }
            };
            self.changed[at] = match (now, self.copies[at]) {
                // Canary "clean by content": a sector with a far copy counts as unchanged.
                (Copy::Stored { .. }, Copy::Stored { .. })
                    if canary::is_broken("clean by content") =>
                {
                    false
                }
                (Copy::Stored { sum, .. }, Copy::Stored { sum: before, .. }) => sum != before,
                (now, before) => now != before,
            };
            if matches!(now, Copy::Pattern(_) | Copy::None) {
                self.pattern += sector_bytes;
            }
            self.copies[at] = now;
        }
    }

    /// The next run of sectors to write, from sector `at` on: those that differ, or with `moves` all
    /// that have content.
    pub fn next_to_write(&self, at: usize, moves: bool) -> Option<(usize, usize)> {
        let is_due = |&at: &usize| {
            (moves || self.changed[at]) && matches!(self.copies[at], Copy::Stored { .. })
        };
        let from = (at..self.copies.len()).find(is_due)?;
        Some((from, from + (from..self.copies.len()).take_while(is_due).count()))
    }

    /// The sectors from `from` on are at these locations now.
    pub fn wrote(&mut self, from: usize, locs: &[Loc]) {
        for (at, &new) in (from..).zip(locs) {
            if let Copy::Stored { loc, .. } = &mut self.copies[at] {
                *loc = new;
            }
            self.changed[at] = true;
        }
    }

    /// Records the new far copies, and decides what becomes of the block.
    pub fn commit(&mut self, core: &mut Core, freed: &mut Vec<Loc>) {
        let block = self.block.take().expect("a job in use has a block");
        let entry = core.blocks[&block];
        debug_assert_eq!((entry.stamp, entry.phase), (self.stamp, Phase::Writing));
        core.recorder.note(
            "commit",
            block.page(),
            entry.left as usize | (entry.doomed as usize) << 1,
            self.written,
        );
        let (first, _) = core.sector_range(block);
        if !block.is_huge() && !entry.doomed {
            core.note_compared(block, self.changed[0]);
        }
        for (at, &copy) in self.copies.iter().enumerate().filter(|&(at, _)| self.changed[at]) {
            if entry.doomed {
                freed.extend(match copy {
                    Copy::Stored { loc, .. } => Some(loc),
                    _ => None,
                });
            } else {
                core.set_copy(block, first + at, copy, freed);
            }
        }
        if block.is_huge() && self.changed.iter().all(|&changed| changed) {
            core.compact_places(block);
        }
        core.count(Counter::WrittenBytes, self.written);
        let written = self
            .copies
            .iter()
            .zip(&self.changed)
            .map(|(copy, &changed)| changed && matches!(copy, Copy::Stored { .. }));
        core.trace(
            Moved::Out,
            block,
            written.enumerate().filter_map(|(at, written)| written.then_some(at)),
        );
        core.count(Counter::PatternBytes, self.pattern);
        if self.tier == Some(Tier::Near) {
            core.drain.offered(self.changed.contains(&true));
        }
        let drains = self.tier == Some(Tier::Behind);
        if entry.doomed || entry.left || drains {
            let entry = core.leave(block);
            core.frames.put_full(entry.frame);
            if drains && !self.changed.contains(&true) {
                core.drain.refused();
                core.note_departure(block);
            }
            core.settle(block.extent_no().0 as usize);
            core.wake_after(block);
            core.live.wake_fault_thread();
            return;
        }
        let entry = core.blocks.get_mut(&block).expect("on the books");
        entry.phase = Phase::Staged;
        entry.written = self.changed.contains(&true);
        core.staged_bytes += block.bytes();
        core.mark_clean(block);
        if core.local() > core.room() {
            core.drop_clean();
            core.frames.drop_spare(core.local().saturating_sub(core.room()), None);
        }
    }

    /// The store did not accept the block: the evictor tries others.
    pub fn give_back(&mut self, core: &mut Core, freed: &mut Vec<Loc>) {
        self.changed.fill(false);
        let block = self.block.expect("a job in use has a block");
        let entry = core.blocks.get_mut(&block).expect("on the books");
        if entry.doomed || entry.left {
            return self.commit(core, freed);
        }
        self.block = None;
        entry.phase = Phase::Staged;
        core.staged_bytes += block.bytes();
        core.differing.push_back((block, self.stamp));
        core.live.evict_bell.ring();
    }
}

impl Core {
    /// Takes a staged block to compare and write it, if it still waits for that. Returns its frame
    /// and whether it drains.
    pub fn take_for_writing(&mut self, block: BlockId, stamp: u32) -> Option<(Frame, bool)> {
        let entry = self.awaiting_write(block, stamp)?;
        entry.phase = Phase::Writing;
        let taken = (entry.frame, entry.drains);
        self.staged_bytes -= block.bytes();
        self.in_flight += 1;
        Some(taken)
    }
}
