//! Blocks in frames: fetched, staged, being written.

use hiroma_units::BlockId;

use super::{Block, Core, Phase};
use crate::control::Counter;
use crate::extent::Mode;
use crate::frames::Frame;

impl Core {
    /// Records a block that has been put into a frame.
    pub fn enter(&mut self, block: BlockId, frame: Frame, phase: Phase) -> u32 {
        assert_ne!(self.extent(block).mode, Mode::Away, "{block:?} has no mode");
        self.recorder.note("enter: phase, pages", block.page(), phase as usize, block.pages());
        self.settle_size(block);
        self.stamp = self.stamp.wrapping_add(1);
        let entry = Block {
            frame,
            phase,
            stamp: self.stamp,
            clean: false,
            prefetched: false,
            map_when_ready: false,
            left: false,
            doomed: false,
            stream: false,
            drains: false,
            written: false,
        };
        let before = self.blocks.insert(block, entry);
        debug_assert!(before.is_none(), "{block:?} is in two frames");
        self.extent_mut(block).in_frames += 1;
        if phase == Phase::Staged {
            self.staged_bytes += block.bytes();
        }
        self.stamp
    }

    /// Removes the record of a block in a frame. The caller owns the frame then.
    pub fn leave(&mut self, block: BlockId) -> Block {
        let entry = self.blocks.remove(&block).expect("only blocks in frames leave");
        let flags = usize::from(entry.clean)
            | usize::from(entry.left) << 1
            | usize::from(entry.doomed) << 2;
        self.recorder.note("leave: phase, flags", block.page(), entry.phase as usize, flags);
        self.extent_mut(block).in_frames -= 1;
        if entry.phase == Phase::Staged {
            self.staged_bytes -= block.bytes();
            if entry.clean {
                self.clean_bytes -= block.bytes();
            }
        }
        entry
    }

    /// Marks a staged block as identical to its far copy.
    pub fn mark_clean(&mut self, block: BlockId) {
        let entry = self.blocks.get_mut(&block).expect("only blocks in frames are clean");
        debug_assert!(entry.phase == Phase::Staged && !entry.clean);
        entry.clean = true;
        let stamp = entry.stamp;
        self.recorder.note("clean", block.page(), stamp as usize, 0);
        self.clean_bytes += block.bytes();
        self.clean.push_back((block, stamp));
    }

    /// Drops the oldest clean staged block, whose frame becomes a spare one. Returns false if there
    /// is none.
    pub fn drop_clean(&mut self) -> bool {
        while let Some((block, stamp)) = self.clean.pop_front() {
            let Some(entry) = self.blocks.get(&block) else { continue };
            if entry.stamp != stamp || entry.phase != Phase::Staged || !entry.clean {
                continue;
            }
            let entry = self.leave(block);
            if entry.prefetched {
                self.prefetcher.wasted(block.page());
                self.count(Counter::PrefetchesWasted, 1);
            }
            self.frames.put_full(entry.frame);
            if !entry.written {
                self.count(Counter::CleanBytes, block.bytes());
            }
            self.trace_dropped(block);
            self.note_left(block);
            self.note_departure(block);
            self.gone_away(block);
            return true;
        }
        false
    }
}
