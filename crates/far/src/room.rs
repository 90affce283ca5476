//! Room in local memory: how much there is, what has to give some up, and what happens if nothing
//! can.

use std::sync::atomic::Ordering;

use hiroma_policy::duplication::Held;
use hiroma_policy::sharing::Seen;
use hiroma_units::{BlockId, Bytes, EXTENT, PAGE};

use crate::config::LOCAL_MIN;
use crate::control::Counter;
use crate::core::{Core, ahead_pages};
use crate::frames::Frame;
use crate::store::Balance;

/// How much compressed memory and tables may grow before that is accounted for.
const MARGIN: usize = 1 << 20;

/// Clean blocks are dropped in batches of this many bytes.
const CLEAN_BATCH: usize = 128 << 10;

/// After this many small blocks in a row, no room for huge ones is reserved: it would be an eighth
/// of a small limit.
const SMALL_IN_A_ROW: u32 = 512;

impl Core {
    /// Changes the local limit.
    pub fn set_limit(&mut self, bytes: usize) {
        if bytes != self.limit {
            self.limit = bytes;
            self.store.set_local_limit(bytes as u64);
            self.prefetcher.set_ahead_max_pages(ahead_pages(bytes));
            self.live.page.set(Counter::LimitBytes, bytes as u64);
            self.live.evict_bell.ring();
        }
    }

    /// Gives compressed memory a larger or a smaller share of the limit, according to what faults
    /// waited for. `rescues`: number of staged blocks that were touched so far.
    pub fn share_out(&mut self, rescues: u64) {
        let Some(Balance { near_bytes, packed_bytes, is_full }) = self.store.balance() else {
            return;
        };
        let (near, behind, staged_bytes) = (self.near, self.behind, self.staged_bytes as u64);
        let limit_bytes = self.limit as u64;
        let seen = Seen {
            near,
            behind,
            rescues,
            staged_bytes,
            near_bytes,
            packed_bytes,
            absent_bytes: self.absent_bytes(),
            limit_bytes,
            is_full,
            growth: self.accessed.working_set.growth(self.resident_bytes as u64 + staged_bytes),
        };
        self.tend_departures(near_bytes);
        let held = Held {
            resident_bytes: self.resident_bytes as u64,
            staged_bytes,
            near_bytes,
            packed_bytes,
        };
        self.duplication.observe(rescues, near.count, &held);
        // During the change from one share to another, the numbers are representative of neither.
        if !self.is_draining() {
            if let Some(parts) = self.sharing.observe(&seen) {
                self.store.set_share(parts);
            }
        }
    }

    /// How many bytes may be local: the limit, unless held blocks take nearly all of it.
    ///
    /// Compressed memory, tables and the pager's own heap are parts of the limit, and so is what
    /// the next operations may add before it is accounted for (`MARGIN`).
    pub fn room(&self) -> usize {
        #[cfg(any(test, feature = "model"))]
        if let Some(room) = self.room_of_test {
            // The limit yields to blocks that have to stay: on the fallback path, blocks with parts
            // that the program may not read cannot be copied; shared pages that the kernel may drop
            // are not touched; a sector over a part of which the program has mapped something else is
            // not divided. There is no other reason.
            let stays = |block: &&BlockId| {
                let (start, end) = (self.addr(**block), self.addr(**block) + block.bytes());
                self.live.path == crate::live::Path::Fallback
                    || self.coming.may_drop(start, end)
                    || self.addresses.foreign.touches(start, end)
            };
            return room + self.held.iter().filter(stays).map(|block| block.bytes()).sum::<usize>();
        }
        let beside =
            self.store.local_bytes() as usize + self.tables_bytes.min(self.limit / 8) + MARGIN;
        let working = (self.limit / 8).max(LOCAL_MIN.0 as usize / 2);
        // Held blocks are not room for others. Blocks left to the kernel are usually gone already;
        // while a fault waits for room, that is not checked.
        let left_to_kernel = if self.wanted_bytes > 0 { self.coming.waiting_bytes() } else { 0 };
        let lent = self.live.lent_bytes.load(Ordering::Relaxed);
        self.limit.saturating_sub(beside).max(working + self.held_bytes + left_to_kernel) + lent
    }

    /// The block cannot be evicted now. If too much cannot, the limit yields, and the user is
    /// warned.
    pub fn hold(&mut self, block: BlockId) {
        self.count(Counter::UnevictableBytes, block.bytes());
        if self.held.insert(block) {
            self.held_bytes += block.bytes();
            self.live.page.set_held_bytes(self.held_bytes);
        }
        let room = self.room();
        if self.held_bytes <= self.limit / 2 || room <= self.limit {
            return;
        }
        let why = format!(
            "{} of local memory cannot leave: it is locked (mlock), in use by the kernel, or not to be moved",
            Bytes(self.held_bytes as u64)
        );
        if self.hard_limit {
            crate::fatal::die(&format!(
                "{why}; with --hard-limit {} the program was ended",
                Bytes(self.limit as u64)
            ));
        }
        if self.yielded == 0 || room > self.yielded * 2 {
            self.yielded = room;
            crate::fatal::warn(&format!(
                "{why}, so the limit of {} yields (--hard-limit ends the program instead)",
                Bytes(self.limit as u64)
            ));
        }
    }

    /// Makes held blocks candidates for eviction again.
    pub fn release_held(&mut self) {
        for block in std::mem::take(&mut self.held) {
            self.replacement.put_back(block);
        }
        self.held_bytes = 0;
        self.live.page.set_held_bytes(0);
    }

    /// Periodically retries blocks that could not be evicted. `have_acted`: the threads that were
    /// about to discard memory at the last call have done so.
    pub fn try_again(&mut self, have_acted: bool) {
        self.release_held();
        if have_acted {
            self.coming.age();
        }
        for block in self.coming.take_aside() {
            self.replacement.put_back(block);
        }
    }

    /// Bytes that are available without waiting for anything.
    pub fn reserve(&self) -> isize {
        self.room() as isize - self.local() as isize
            + (self.frames.spare_bytes() + self.clean_bytes) as isize
    }

    /// How many bytes should be available at any time.
    pub fn reserve_target(&self) -> usize {
        let room = self.room();
        let usual = if self.small_since_huge < SMALL_IN_A_ROW {
            (room / 40).clamp((2 * EXTENT).min(room / 8), 64 << 20)
        } else {
            (room / 128).clamp(256 << 10, 16 << 20)
        };
        usual.max(self.wanted_bytes)
    }

    /// A fault waits until there is room for a block.
    pub fn wants_room(&mut self, block: BlockId) {
        self.wanted_bytes = self.wanted_bytes.max(block.bytes());
        self.count(Counter::StallsForRoom, 1);
        self.live.evict_bell.ring();
    }

    /// How much of local memory to keep staged, so that accesses to blocks in use are detected.
    pub fn stage_target(&self) -> usize {
        if self.replacement.gives_second_chances() {
            self.staging.target_bytes(self.room())
        } else {
            self.reserve_target()
        }
    }

    /// A frame with memory for `block`, if one is available immediately. The flag: it is all zero.
    pub fn take_frame_for(&mut self, block: BlockId, zero_wanted: bool) -> Option<(Frame, bool)> {
        self.small_since_huge =
            if block.is_huge() { 0 } else { self.small_since_huge.saturating_add(1) };
        self.keeping_mode(block, |core| core.take_frame(block.order(), zero_wanted))
    }

    fn take_frame(&mut self, order: u8, zero_wanted: bool) -> Option<(Frame, bool)> {
        let bytes = PAGE << order;
        loop {
            if let Some((frame, zero)) = self.frames.take_full(order, zero_wanted) {
                // Canary "fresh is zero": a frame with old content counts as zeros.
                return Some((frame, zero || crate::canary::is_broken("fresh is zero")));
            }
            if self.room_for(bytes, order) {
                let frame = self.frames.take_empty(order)?;
                self.frames.gained(frame);
                // A frame that was never touched has nothing to move; a write to its first word
                // allocates the whole (huge) page.
                hiroma_sys::vm::zero(self.frames.addr(frame), 8);
                return Some((frame, true));
            }
            if !self.drop_some_clean() {
                return None;
            }
        }
    }

    /// Drops several clean blocks, so that the kernel frees their pages in one go. Returns false if
    /// there is none.
    pub fn drop_some_clean(&mut self) -> bool {
        let mut bytes = 0;
        while bytes < CLEAN_BATCH {
            let before = self.clean_bytes;
            if !self.drop_clean() {
                break;
            }
            bytes += before - self.clean_bytes;
        }
        bytes > 0
    }

    /// Whether `bytes` more may be local, after spare frames of other sizes have been dropped for
    /// them.
    pub fn room_for(&mut self, bytes: usize, order: u8) -> bool {
        let over = (self.local() + bytes).saturating_sub(self.room());
        over == 0 || self.frames.drop_spare(over, Some(order)) >= over
    }

    /// Makes room for `bytes` that will be mapped without a frame.
    pub fn make_room(&mut self, bytes: usize) -> bool {
        loop {
            let over = (self.local() + bytes).saturating_sub(self.room());
            if over == 0 || self.frames.drop_spare(over, None) >= over {
                return true;
            }
            if !self.drop_some_clean() {
                return false;
            }
        }
    }

    /// Makes room for a copy of a block beside the frame that it comes from, as far as possible
    /// without waiting.
    pub fn room_beside(&mut self, bytes: usize) -> bool {
        loop {
            if self.local() + bytes <= self.room() {
                return true;
            }
            if self.frames.drop_strange() == 0 && !self.drop_some_clean() {
                return false;
            }
        }
    }

    /// Wakes the evictor if less memory is available than there should be.
    pub fn mind_reserve(&self) {
        let enough = if self.live.yielding.is_on() {
            self.reserve_target() / 2
        } else {
            self.reserve_target()
        };
        if self.reserve() < enough as isize {
            self.live.evict_bell.ring();
        }
    }
}
