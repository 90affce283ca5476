//! Moves blocks between the program and frames. The only place that changes what the program has
//! mapped.

use std::time::Duration;

use hiroma_kernel::uffd::{Message, Outcome, Stop};
use hiroma_kernel::vm;
use hiroma_units::{BlockId, EXTENT, PAGE};

use crate::canary;
use crate::core::Core;
use crate::extent::flag;
use crate::fatal;
use crate::frames::Frame;
use crate::live::Path;
use crate::pager::PROT_RW;

/// How putting a block into the program ended. The frame is given back in each case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutIn {
    Done,
    /// The program has nothing mapped there any more.
    Gone,
}

/// What was done for the page that did not move.
#[derive(Default)]
struct Unsharing {
    page: usize,
    is_split: bool,
}

/// How taking a block out of the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOut {
    Done,
    /// Pinned, locked or not ours to move; nothing changed.
    Unmovable,
    /// Several mappings lie in it: it can only go piece by piece.
    Mixed,
    /// The program has nothing mapped there any more.
    Gone,
    /// Not now: the kernel is busy with these pages for somebody else.
    Later,
}

/// "Again" from the kernel so often in a row is usual.
const REFUSALS_QUICK: u32 = 16;

/// What is made writable for a move is made executable, too, where that is allowed: no program asks
/// for both, so its own mprotect shows.
const PROT_MARK: i32 = PROT_RW | libc::PROT_EXEC;

/// The protection of memory that is writable for a move.
struct Lent {
    /// To be put back.
    prot: i32,
    as_lent: i32,
    /// Of the pages before and after it, when it was lent.
    around: [Option<i32>; 2],
}

impl Core {
    /// Maps the content of `frame` at the block's address; who waits for it is woken once the lock
    /// is free. The books are the caller's affair, except for the memory behind frames.
    pub fn put_in(&mut self, block: BlockId, frame: Frame) -> PutIn {
        let (dst, src, len) = (self.addr(block), self.frames.addr(frame), block.bytes());
        let mut at = 0;
        self.refusals = 0;
        self.recorder.note("put_in", block.page(), self.frames.addr(frame), block.pages());
        self.wakes.push((dst, len));
        // Small blocks that come from a store are copied: as quick as moving them, and the frame
        // stays ours.
        let moves =
            self.live.path == Path::Full && (block.is_huge() || self.frames.is_strange(frame));
        while moves && !self.extent(block).has(flag::MIXED) {
            let Outcome { done, stop } =
                self.live.memory.move_in(dst + at, src + at, len - at, false);
            at += done;
            match stop {
                None => {
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
        // The frame stays as a spare one only if both it and the copy may be local.
        let stays = at == 0 && self.keeping_mode(block, |core| core.room_beside(len));
        let end = self.copy_in(dst + at, src + at, len - at);
        if stays {
            self.frames.put_full(frame);
        } else {
            self.drop_frame(frame);
        }
        end
    }

    /// Copies, page by page where it must be: over protections, around pages that are there
    /// already. Whom to wake is the caller's affair.
    fn copy_in(&mut self, dst: usize, src: usize, len: usize) -> PutIn {
        let (mut at, mut by_page, mut gone) = (0, false, true);
        while at < len {
            // Mixed mappings refuse a range that spans several; one page always lies in one.
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

    /// Maps zeros at an address range of the program, where nothing is yet, and wakes who waits.
    ///
    /// Pages of their own, not the kernel's zero page: a mapping that has nothing but zero pages is
    /// not copied by fork, and the child would find pages missing that the books say are there.
    pub fn put_zeros(&mut self, dst: usize, len: usize) -> PutIn {
        self.wakes.push((dst, len));
        self.recorder.note("put_zeros", ((dst - self.arena.base()) / PAGE) as u64, len, 0);
        self.copy_in(dst, self.zeros.base(), len)
    }

    /// Pages that the program discarded while their content was on its way in must come as zeros.
    /// That is all there is to do about them: from here on they may hold new writes, so the event
    /// means the other pages only.
    fn zero_discarded(&mut self, dst: usize, src: usize, len: usize) {
        // Canary "discarded on its way in": the old content goes on its way.
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

    /// The kernel refuses while an event of the address space waits to be read: reads what there
    /// is, for the fault thread to act on, and lets the thread that raised it go on.
    pub fn drain(&mut self) {
        let live = self.live.clone();
        if live.memory.read(&mut self.pending).is_err() {
            crate::fatal::die("reading from userfaultfd failed; please report this");
        }
        // Acted on at the end of the operation that is under way: see `Core::take_work`.
        if !self.pending.is_empty() {
            live.wake_fault_thread();
        }
        self.refusals += 1;
        if fatal::is_model() {
            return;
        }
        if self.refusals <= REFUSALS_QUICK {
            live.quiet.pause();
        } else {
            // Another thread has a lock that the kernel only tries: after a fork, one for all
            // relatives. It has to run to let it go.
            let times = (self.refusals - REFUSALS_QUICK).min(20);
            std::thread::sleep(Duration::from_micros(50) * times);
        }
    }

    /// Whether the kernel has refused so often that something else is better done first.
    fn is_refused(&self) -> bool {
        self.refusals > REFUSALS_QUICK
    }

    /// Whether a removal in this range was read and is not acted on yet. What is moved out there
    /// may be what the program has written since, or what the kernel has yet to drop: nobody could
    /// tell.
    fn has_unsettled(&self, start: usize, len: usize) -> bool {
        // Canary "nothing moves out of what was removed": it does.
        !canary::is_broken("nothing moves out of what was removed")
            && self.has_read_removal(start, len)
    }

    fn has_read_removal(&self, start: usize, len: usize) -> bool {
        self.pending.iter().any(|message| matches!(*message, Message::Remove { start: from, end } if from < start + len && start < end))
    }

    /// Whether the kernel may be taking a page out of the program just now. To touch it would be a
    /// fault that waits for our lock.
    fn is_being_removed(&self, page: usize) -> bool {
        // Canary "not touched while it may be dropped": it is, once the kernel had time.
        let may_drop = !canary::is_broken("not touched while it may be dropped")
            && self.coming.may_drop(page, page + PAGE);
        may_drop || self.coming.touches(page, page + PAGE) || self.has_read_removal(page, PAGE)
    }

    /// After a fork pages are shared until they are unshared or written. If the child has ended by
    /// then, they stay parts of a huge page, which the kernel moves only if its first page is ours
    /// alone: it is split. Pinned pages are never shared: they stay busy, and where they are.
    /// False: nothing more can be done for the page.
    fn unshare(&self, page: usize, unsharing: &mut Unsharing) -> bool {
        // Canary "unshared after a fork": what is shared stays where it is.
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
        match self.live.path {
            Path::Full => self.move_out(block, frame),
            Path::Fallback => self.copy_out(block, frame),
        }
    }

    fn move_out(&mut self, block: BlockId, frame: Frame) -> TakeOut {
        let (src, dst, len) = (self.addr(block), self.frames.addr(frame), block.bytes());
        let live = self.live.clone();
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
                live.memory.move_out(dst + at, src + at, step)
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
                // Mappings can lie apart that look the same (after a fork, for one): each page lies
                // in one.
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

    /// Moves pages out of memory that the program may not write: the kernel moves between writable
    /// mappings only. While the mapping is writable for a moment, the pages are protected by
    /// userfaultfd: whoever writes waits, and gets his signal when he tries again. Returns how many
    /// bytes have moved. `whole`: none, unless one mapping holds them all.
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
        loop {
            match live.memory.write_protect(src, len, true) {
                Ok(()) => break,
                Err(Stop::Again) => self.drain(),
                Err(_) => return 0,
            }
        }
        let (mut at, mut unsharing) = (0, Unsharing::default());
        if let Some(lent) = self.lend_writable(src, dst, len) {
            while at < len {
                let Outcome { done, stop } = live.memory.move_out(dst + at, src + at, len - at);
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
        while live.memory.write_protect(src, len, false) == Err(Stop::Again) {
            self.drain();
        }
        at
    }

    /// The protection of the pages before and after a range: if it has changed, a larger one was
    /// given another protection.
    fn around(&self, start: usize, len: usize) -> [Option<i32>; 2] {
        [start - PAGE, start + len]
            .map(|page| self.live.memory.protection(page).map(|(_, prot)| prot))
    }

    /// Makes both ends of a move writable, and marks them if that is allowed. None: the program has
    /// made the memory writable itself, or only a part of it is one mapping now.
    fn lend_writable(&self, src: usize, dst: usize, len: usize) -> Option<Lent> {
        let memory = &self.live.memory;
        let around = self.around(src, len);
        let lent = [PROT_MARK, PROT_RW].into_iter().find_map(|as_lent| {
            self.frames.protect(dst, len, as_lent).ok()?;
            // As late as possible: what the program changes after this look is seen by what lies
            // around only.
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

    /// Gives back the protection of what is still as it was lent. What is not has been changed by
    /// the program meanwhile, by an mprotect past the C library, and is as it wants it. Where what
    /// lies around has become writable, this is in doubt, and becomes writable too.
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

    /// Moves the first `done` bytes back where they came from. Nobody else can have filled them:
    /// faults wait for the lock.
    fn undo_move(&mut self, home: usize, frame_addr: usize, done: usize, len: usize, frame: Frame) {
        let mut at = 0;
        self.zero_discarded(home, frame_addr, done);
        // Canary "undo of a move": what has left stays away.
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
            // It came with an extent of which a part is mapped. Nobody has a use for it, and it may
            // be out of reach.
            if self.live.memory.discard(src, len).is_err() {
                return TakeOut::Unmovable;
            }
            // Written while it was given up, they may be of before.
            self.forget_copies(block);
            return TakeOut::Gone;
        }
        if self.addresses.foreign.touches(src, src + len)
            || self.addresses.special.touches(src, src + len)
        {
            return TakeOut::Mixed;
        }
        loop {
            match self.live.memory.write_protect(src, len, true) {
                Ok(()) => break,
                Err(Stop::Again) => self.drain(),
                Err(Stop::NotThere) => return TakeOut::Mixed,
                Err(_) => return TakeOut::Unmovable,
            }
        }
        // Nobody can write now. Pages that the program has dropped by a system call of its own are
        // not to be touched: that fault would wait for our lock. They are zeros.
        for at in (0..len).step_by(PAGE) {
            while self.live.memory.copy_page_out(dst + at, src + at).is_err() {
                self.drain();
            }
        }
        self.frames.gained(frame);
        match self.live.memory.discard(src, len) {
            Ok(()) => TakeOut::Done,
            Err(_) => {
                let _ = self.live.memory.write_protect(src, len, false);
                self.drop_frame(frame);
                TakeOut::Unmovable
            }
        }
    }
}

/// An answer of the kernel that no manual page promises, for memory of the program: going on could
/// mean wrong bytes.
pub fn fatal_move(doing: &str, addr: usize, stop: Stop) -> ! {
    crate::fatal::die(&format!(
        "{doing} at {addr:#x} failed in a way that it should not: {stop:?}; please report this"
    ))
}
