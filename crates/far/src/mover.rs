//! Moves blocks between the program and frames. This is the only code that changes what is mapped
//! into the program.

use std::io;
use std::time::Duration;

use hiroma_sys::uffd::{Message, Outcome, Stop};
use hiroma_sys::vm;
use hiroma_units::{BlockId, EXTENT, PAGE};

use crate::canary;
use crate::core::Core;
use crate::extent::flag;
use crate::fatal;
use crate::frames::Frame;
use crate::live::Path;
use crate::pager::PROT_RW;

/// Result of putting a block into the program. The frame is given back in each case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutIn {
    Done,
    /// The program no longer has anything mapped there.
    Gone,
}

/// What was already tried for the page that did not move.
#[derive(Default)]
struct Unsharing {
    page: usize,
    is_split: bool,
}

/// Result of taking a block out of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOut {
    Done,
    /// Pinned, locked or not ours to move; nothing has changed.
    Unmovable,
    /// It spans several mappings: it can only be moved piece by piece.
    Mixed,
    /// The program no longer has anything mapped there.
    Gone,
    /// Not now: the kernel is using these pages for another operation.
    Later,
}

/// This many EAGAIN in a row from the kernel are usual.
const REFUSALS_QUICK: u32 = 16;

/// Memory that is made writable for a move is also made executable if that is allowed. No program
/// uses this combination, so an mprotect of the program can be detected.
const PROT_MARK: i32 = PROT_RW | libc::PROT_EXEC;

/// The original protection of memory that is writable for a move.
struct Lent {
    /// To be restored.
    prot: i32,
    as_lent: i32,
    /// Protection of the page before and of the page after the range when it was lent.
    around: [Option<i32>; 2],
}

impl Core {
    /// Maps the content of `frame` at the block's address. Waiting threads are woken after the lock
    /// is released. The caller updates the state, except for the memory behind frames.
    pub fn put_in(&mut self, block: BlockId, frame: Frame) -> PutIn {
        let (dst, src, len) = (self.addr(block), self.frames.addr(frame), block.bytes());
        let mut at = 0;
        self.refusals = 0;
        self.recorder.note("put_in", block.page(), self.frames.addr(frame), block.pages());
        self.wakes.push((dst, len));
        // Small blocks that come from a store are copied: that is as fast as moving them, and the
        // frame remains usable.
        let moves =
            self.live.path == Path::Full && (block.is_huge() || self.frames.is_strange(frame));
        let was_huge = moves && block.is_huge() && self.live.memory.is_huge(src);
        while moves && !self.extent(block).has(flag::MIXED) {
            let Outcome { done, stop } =
                self.live.memory.move_in(dst + at, src + at, len - at, false);
            at += done;
            match stop {
                None => {
                    if block.is_huge() {
                        self.mind_page_tables(block, frame, was_huge);
                    }
                    self.frames.lost(frame);
                    self.frames.put_empty(frame);
                    return PutIn::Done;
                }
                Some(Stop::Again) if done > 0 => {}
                Some(Stop::Again) => {
                    self.drain();
                    self.zero_discarded(dst + at, src + at, len - at);
                }
                Some(_) => break,
            }
        }
        self.recorder.note("put_in copies from", block.page(), at, 0);
        // The frame stays as a spare one only if there is room for both it and the copy.
        let stays = at == 0 && self.keeping_mode(block, |core| core.room_beside(len));
        let end = self.copy_in(dst + at, src + at, len - at);
        if stays {
            self.frames.put_full(frame);
        } else {
            self.drop_frame(frame);
        }
        end
    }

    /// An extent has moved into the program from `frame`. If its pages moved one by one, both sides
    /// have a page table now, and as long as they have, each move takes ten times as long and
    /// splits a huge page.
    fn mind_page_tables(&mut self, block: BlockId, frame: Frame, was_huge: bool) {
        if self.live.memory.is_huge(self.addr(block)) {
            return;
        }
        // Otherwise there are no huge pages at all, and freeing the page table gains nothing.
        if was_huge {
            self.extent_mut(block).set(flag::PAGE_TABLE, true);
        }
        self.frames.scrub(frame);
    }

    /// Copies, page by page where necessary: over protections, and around pages that are already
    /// there. The caller wakes the waiting threads.
    fn copy_in(&mut self, dst: usize, src: usize, len: usize) -> PutIn {
        let (mut at, mut by_page, mut gone) = (0, false, true);
        while at < len {
            // The kernel refuses a range that spans several mappings; a single page is always
            // within one.
            let step = if by_page { PAGE } else { len - at };
            let Outcome { done, stop } = self.live.memory.copy_in(dst + at, src + at, step);
            at += done;
            gone &= done == 0;
            match stop {
                None => {}
                Some(Stop::Exists) => {
                    self.recorder.note(
                        "copy_in exists",
                        ((dst + at - self.arena.base()) / PAGE) as u64,
                        at,
                        0,
                    );
                    at += PAGE;
                    gone = false;
                }
                Some(Stop::Again) if done > 0 => {}
                Some(Stop::Again) => {
                    self.drain();
                    self.zero_discarded(dst + at, src + at, len - at);
                }
                Some(Stop::NoMemory) => std::thread::yield_now(),
                Some(Stop::NotThere | Stop::Invalid) if !by_page => by_page = true,
                Some(stop @ (Stop::NotThere | Stop::Invalid | Stop::Dead)) => {
                    self.recorder.note(
                        if stop == Stop::NotThere {
                            "copy_in not there"
                        } else {
                            "copy_in invalid"
                        },
                        ((dst + at - self.arena.base()) / PAGE) as u64,
                        at,
                        0,
                    );
                    at += PAGE
                }
                Some(stop) => fatal_move("UFFDIO_COPY", dst + at, stop),
            }
        }
        if gone { PutIn::Gone } else { PutIn::Done }
    }

    /// Maps zeros at an address range of the program that has no pages yet, and wakes the waiting
    /// threads.
    ///
    /// It uses pages of their own instead of the kernel's zero page: fork does not copy a mapping
    /// that has only zero pages, and the child would lack pages that are resident according to the
    /// state.
    pub fn put_zeros(&mut self, dst: usize, len: usize) -> PutIn {
        self.wakes.push((dst, len));
        self.recorder.note("put_zeros", ((dst - self.arena.base()) / PAGE) as u64, len, 0);
        self.copy_in(dst, self.zeros.base(), len)
    }

    /// Pages that the program discarded while their content was being put in must be zeros. Nothing
    /// else has to be done about them: from here on they may contain new writes, so the rest of the
    /// event applies to the other pages only.
    fn zero_discarded(&mut self, dst: usize, src: usize, len: usize) {
        // Canary "discarded on its way in": the old content is put in all the same.
        if canary::is_broken("discarded on its way in") {
            return;
        }
        let mut at = 0;
        while at < self.pending.len() {
            let (from, to) = match self.pending[at] {
                Message::Remove { start, end } => (start.max(dst), end.min(dst + len)),
                _ => (0, 0),
            };
            if from >= to {
                at += 1;
                continue;
            }
            let Message::Remove { start, end } = self.pending.remove(at) else {
                unreachable!("looked just now")
            };
            if !self.zeros.contains(src) {
                vm::zero(src + (from - dst), to - from);
            }
            self.extents[(dst - self.arena.base()) / EXTENT].set(flag::HOLES, true);
            self.coming.let_drop(from, to);
            let parts = [(start, from), (to, end)].into_iter().filter(|(from, to)| from < to);
            for (start, end) in parts {
                self.pending.insert(at, Message::Remove { start, end });
                at += 1;
            }
        }
    }

    /// The kernel refuses while an event of the address space is waiting to be read. Reads the
    /// queued messages, for the fault thread to act on, so that the thread that raised the event
    /// continues.
    pub fn drain(&mut self) {
        let live = self.live.clone();
        self.read_pending();
        // They are acted on at the end of the current operation: see `Core::take_work`.
        if !self.pending.is_empty() {
            live.wake_fault_thread();
        }
        self.refusals += 1;
        if fatal::is_model() {
            return;
        }
        if self.refusals <= REFUSALS_QUICK {
            live.yielding.pause();
        } else {
            // Another thread has a lock that the kernel only tries to take (after a fork, one that
            // all related processes share). That thread has to run in order to release it.
            let times = (self.refusals - REFUSALS_QUICK).min(20);
            std::thread::sleep(Duration::from_micros(50) * times);
        }
    }

    /// Whether the kernel has refused so often that other work should be done first.
    fn is_refused(&self) -> bool {
        self.refusals > REFUSALS_QUICK
    }

    /// Whether a removal in this range was read and not yet acted on. The content that would be
    /// moved out could be what the program has written since, or what the kernel has yet to drop;
    /// the two cannot be distinguished.
    pub fn has_unsettled(&self, start: usize, len: usize) -> bool {
        // Canary "nothing moves out of what was removed": the check is skipped.
        !canary::is_broken("nothing moves out of what was removed")
            && self.has_read_removal(start, len)
    }

    fn has_read_removal(&self, start: usize, len: usize) -> bool {
        self.pending.iter().any(|message| match *message {
            Message::Remove { start: from, end } | Message::Unmap { start: from, end } => {
                from < start + len && start < end
            }
            _ => false,
        })
    }

    /// Whether the kernel may currently be removing a page from the program. Touching it would
    /// cause a fault that waits for our own lock.
    fn is_being_removed(&self, page: usize) -> bool {
        // Canary "not touched while it may be dropped": it is touched, once the kernel has had
        // time.
        let may_drop = !canary::is_broken("not touched while it may be dropped")
            && self.coming.may_drop(page, page + PAGE);
        may_drop || self.coming.touches(page, page + PAGE) || self.has_read_removal(page, PAGE)
    }

    /// After a fork, pages are shared until they are unshared or written. If the child has ended by
    /// then, they remain parts of a huge page, which the kernel moves only if its first page is
    /// exclusive to this process: the huge page is split. Pinned pages are never shared: they
    /// remain busy and in place. Returns false if nothing more can be done for the page.
    fn unshare(&self, page: usize, unsharing: &mut Unsharing) -> bool {
        // Canary "unshared after a fork": shared pages stay in place.
        let is_forked = self.forked && !canary::is_broken("unshared after a fork");
        if !is_forked || self.is_being_removed(page) {
            return false;
        }
        if unsharing.page != page {
            *unsharing = Unsharing { page, is_split: false };
            self.live.memory.unshare(page);
            return true;
        }
        let splits = !std::mem::replace(&mut unsharing.is_split, true);
        if splits {
            self.live.memory.split(page);
        }
        splits
    }

    fn drop_frame(&mut self, frame: Frame) {
        let addr = self.frames.addr(frame);
        self.frames.discard(addr, frame);
    }

    /// Moves the block out of the program into `frame`, which has no memory yet.
    pub fn take_out(&mut self, block: BlockId, frame: Frame) -> TakeOut {
        let (start, end) = (self.addr(block), self.addr(block) + block.bytes());
        if self.addresses.foreign.covers(start, end) {
            self.forget_copies(block);
            return TakeOut::Gone;
        }
        if self.addresses.foreign.touches(start, end) && !canary::is_broken("foreign memory stays")
        {
            return TakeOut::Mixed;
        }
        match self.live.path {
            Path::Full => self.move_out(block, frame),
            Path::Fallback => self.copy_out(block, frame),
        }
    }

    /// Moves pages of the program to `dst`. All that leaves the program leaves here.
    ///
    /// What the program has mapped over managed memory is its own and stays: the kernel would move
    /// it, for it asks only of the destination whether that is managed.
    pub fn move_pages_out(&self, dst: usize, src: usize, len: usize) -> Outcome {
        // Canary "foreign memory stays": it is moved out.
        if self.addresses.foreign.touches(src, src + len)
            && !canary::is_broken("foreign memory stays")
        {
            return Outcome { done: 0, stop: Some(Stop::Invalid) };
        }
        self.live.memory.move_out(dst, src, len)
    }

    /// Drops pages of the program, on the path where that raises no event.
    ///
    /// What the program has mapped over managed memory stays. A thread that does so continues only
    /// after its event was read, and that needs the lock.
    pub fn drop_pages(&self, start: usize, len: usize) -> io::Result<()> {
        let is_replaced =
            self.addresses.foreign.touches(start, start + len) || self.has_read_removal(start, len);
        // Canary "foreign memory stays": it is dropped.
        if is_replaced && !canary::is_broken("foreign memory stays") {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.live.memory.discard(start, len)
    }

    fn move_out(&mut self, block: BlockId, frame: Frame) -> TakeOut {
        let (src, dst, len) = (self.addr(block), self.frames.addr(frame), block.bytes());
        let (mut at, mut unsharing, mut by_page) = (0, Unsharing::default(), false);
        self.recorder.note("move_out", block.page(), self.frames.addr(frame), block.pages());
        self.refusals = 0;
        loop {
            let step = if by_page { PAGE } else { len - at };
            let unsettled = Outcome { done: 0, stop: Some(Stop::Again) };
            let is_unsettled = self.has_unsettled(src, len);
            let Outcome { done, stop } = if is_unsettled {
                unsettled
            } else {
                self.move_pages_out(dst + at, src + at, step)
            };
            at += done;
            let end = match stop {
                None if at < len => continue,
                None => {
                    self.frames.moved_in(frame);
                    return TakeOut::Done;
                }
                Some(Stop::Again) if done > 0 => continue,
                Some(Stop::Again) if !is_unsettled && !self.is_refused() => {
                    self.drain();
                    continue;
                }
                Some(Stop::Again) => TakeOut::Later,
                Some(Stop::Busy) if self.unshare(src + at, &mut unsharing) => continue,
                // Adjacent mappings can be separate although they look the same (after a fork, for
                // example); each page is within one.
                Some(Stop::Invalid) if !by_page && !block.is_huge() => {
                    by_page = true;
                    continue;
                }
                Some(Stop::Invalid) => {
                    match self.move_protected(src + at, dst + at, len - at, block.is_huge()) {
                        0 => TakeOut::Mixed,
                        moved => {
                            at += moved;
                            if at < len {
                                continue;
                            }
                            self.frames.moved_in(frame);
                            return TakeOut::Done;
                        }
                    }
                }
                Some(Stop::NotThere | Stop::Dead) => TakeOut::Gone,
                Some(Stop::Busy | Stop::NoMemory | Stop::Exists | Stop::Other(_)) => {
                    TakeOut::Unmovable
                }
            };
            self.recorder.note("move_out failed", block.page(), at, end as usize);
            if at > 0 {
                self.undo_move(src, dst, at, len, frame);
                return if end == TakeOut::Gone { TakeOut::Unmovable } else { end };
            }
            return end;
        }
    }

    /// Moves pages out of memory that the program may not write: the kernel only moves between
    /// writable mappings. While the mapping is writable for a moment, userfaultfd write-protects
    /// the pages: a thread that writes waits, and gets its signal when it retries. Returns the
    /// number of bytes moved. With `whole`, nothing is moved unless one mapping covers the whole
    /// range.
    fn move_protected(&mut self, src: usize, dst: usize, len: usize, whole: bool) -> usize {
        let live = self.live.clone();
        let Some((end, _)) =
            live.memory.protection(src).filter(|(_, prot)| prot & libc::PROT_WRITE == 0)
        else {
            return 0;
        };
        if whole && end - src < len {
            return 0;
        }
        let len = len.min(end - src);
        if self.write_protect(src, len).is_err() {
            return 0;
        }
        let (mut at, mut unsharing) = (0, Unsharing::default());
        if let Some(lent) = self.lend_writable(src, dst, len) {
            while at < len {
                let Outcome { done, stop } = self.move_pages_out(dst + at, src + at, len - at);
                at += done;
                match stop {
                    None => {}
                    Some(Stop::Again) if done > 0 => {}
                    Some(Stop::Again) => {
                        self.drain();
                        if self.has_unsettled(src, len) {
                            break;
                        }
                    }
                    Some(Stop::Busy) if self.unshare(src + at, &mut unsharing) => {}
                    Some(_) => break,
                }
            }
            self.put_back(src, len, &lent);
            self.make_frames_plain(dst, len);
        }
        self.lift_protection(src, len);
        at
    }

    /// Write-protects a range of the program, or nothing of it.
    fn write_protect(&mut self, start: usize, len: usize) -> Result<(), Stop> {
        loop {
            match self.live.memory.write_protect(start, len, true) {
                Err(Stop::Again) => self.drain(),
                Err(stop) => {
                    // The kernel goes from mapping to mapping, and stops at the first one that is
                    // not managed.
                    self.lift_protection(start, len);
                    return Err(stop);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    fn lift_protection(&mut self, start: usize, len: usize) {
        let (mut at, mut step) = (start, len);
        while at < start + len {
            match self.live.memory.write_protect(at, step, false) {
                Err(Stop::Again) => self.drain(),
                // The kernel stopped at a mapping that is not managed.
                Err(_) if step > PAGE => step = PAGE,
                Ok(()) | Err(_) => at += step,
            }
        }
    }

    /// The protection of the pages before and after a range. If it changes, the program has changed
    /// the protection of a larger range.
    fn around(&self, start: usize, len: usize) -> [Option<i32>; 2] {
        [start - PAGE, start + len]
            .map(|page| self.live.memory.protection(page).map(|(_, prot)| prot))
    }

    /// Makes the source and the destination of a move writable, and marks them if that is allowed.
    /// Returns None if the program has made the memory writable itself, or if a single mapping no
    /// longer covers the range.
    fn lend_writable(&self, src: usize, dst: usize, len: usize) -> Option<Lent> {
        let memory = &self.live.memory;
        let around = self.around(src, len);
        let lent = [PROT_MARK, PROT_RW].into_iter().find_map(|as_lent| {
            self.frames.protect(dst, len, as_lent).ok()?;
            // As late as possible: a change by the program after this check can only be detected
            // from the pages around the range.
            let (_, prot) = memory
                .protection(src)
                .filter(|&(end, prot)| prot & libc::PROT_WRITE == 0 && end >= src + len)?;
            memory.protect(src, len, as_lent).ok()?;
            Some(Lent { prot, as_lent, around })
        });
        if lent.is_none() {
            self.make_frames_plain(dst, len);
        }
        lent
    }

    fn make_frames_plain(&self, dst: usize, len: usize) {
        if let Err(error) = self.frames.protect(dst, len, PROT_RW) {
            crate::fatal::die(&format!(
                "the protection of the staging area cannot be put back: {error}"
            ));
        }
    }

    /// Restores the protection of the parts that still have the lent one. The program has changed
    /// the other parts meanwhile, by an mprotect system call that bypassed the C library, and they
    /// stay as they are. If the pages around the range have become writable, that is in doubt, and
    /// the range becomes writable too.
    fn put_back(&self, start: usize, len: usize, lent: &Lent) {
        let memory = &self.live.memory;
        let became_writable =
            |(then, now): (Option<i32>, Option<i32>)| then != now && now == Some(PROT_RW);
        let is_writable = lent.around.into_iter().zip(self.around(start, len)).any(became_writable);
        let prot = if is_writable { PROT_RW } else { lent.prot };
        let mut at = start;
        while at < start + len {
            let Some((end, now)) = memory.protection(at) else { return };
            let end = end.min(start + len);
            if now == lent.as_lent {
                if let Err(error) = memory.protect(at, end - at, prot) {
                    if memory.protection(at).is_some_and(|(_, now)| now == lent.as_lent) {
                        crate::fatal::die(&format!(
                            "the protection of {at:#x} cannot be put back: {error}"
                        ));
                    }
                }
            }
            at = end;
        }
    }

    /// Moves the first `done` bytes back to where they came from. No thread can have filled these
    /// pages meanwhile, because faults wait for the lock.
    fn undo_move(&mut self, home: usize, frame_addr: usize, done: usize, len: usize, frame: Frame) {
        let mut at = 0;
        self.zero_discarded(home, frame_addr, done);
        // Canary "undo of a move": what has been moved out is not moved back.
        while at < done && !canary::is_broken("undo of a move") {
            let Outcome { done: moved, stop } =
                self.live.memory.move_in(home + at, frame_addr + at, done - at, true);
            at += moved;
            match stop {
                None => break,
                Some(Stop::Again) if moved > 0 => {}
                Some(Stop::Again) => {
                    self.drain();
                    self.zero_discarded(home + at, frame_addr + at, done - at);
                }
                Some(_) => {
                    let _ = self.copy_in(home + at, frame_addr + at, done - at);
                    break;
                }
            }
        }
        self.wakes.push((home, len));
        self.frames.scrub(frame);
    }

    fn copy_out(&mut self, block: BlockId, frame: Frame) -> TakeOut {
        let (src, dst, len) = (self.addr(block), self.frames.addr(frame), block.bytes());
        if !self.addresses.mapped.touches(src, src + len) {
            // It was fetched as part of an extent of which only another part is mapped. The program
            // does not use it, and it may be inaccessible.
            if self.drop_pages(src, len).is_err() {
                return TakeOut::Unmovable;
            }
            // Written back while it was being given up, the copies may be out of date.
            self.forget_copies(block);
            return TakeOut::Gone;
        }
        if self.addresses.special.touches(src, src + len) {
            return TakeOut::Mixed;
        }
        match self.write_protect(src, len) {
            Ok(()) => {}
            Err(Stop::NotThere) => return TakeOut::Mixed,
            Err(_) => return TakeOut::Unmovable,
        }
        // No thread can write now. Pages that the program has dropped by a system call of its own
        // must not be touched, because that fault would wait for our lock. They are zeros.
        for at in (0..len).step_by(PAGE) {
            while self.live.memory.copy_page_out(dst + at, src + at).is_err() {
                self.drain();
            }
        }
        self.frames.gained(frame);
        match self.drop_pages(src, len) {
            Ok(()) => TakeOut::Done,
            Err(_) => {
                self.lift_protection(src, len);
                self.drop_frame(frame);
                TakeOut::Unmovable
            }
        }
    }
}

/// Ends the program after a kernel result that no manual page documents, for memory of the program:
/// going on could mean wrong data.
pub fn fatal_move(doing: &str, addr: usize, stop: Stop) -> ! {
    crate::fatal::die(&format!(
        "{doing} at {addr:#x} failed in a way that it should not: {stop:?}; please report this"
    ))
}
