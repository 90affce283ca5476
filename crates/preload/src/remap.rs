//! `mremap`, of managed memory and beside it.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ops::Range;

use hiroma_far::{Owner, PagerError};
use hiroma_units::PAGE;
use libc::{MREMAP_DONTUNMAP, MREMAP_FIXED, MREMAP_MAYMOVE, PROT_READ, PROT_WRITE};

use crate::classify::{self, MANAGED_MIN, RemapCall, RemapPlan, Split};
use crate::export_mmap::{
    CallResult, arena, do_mmap, do_mprotect, do_munmap, errno_of, far_or_unreachable, inside,
    is_in_nursery,
};
use crate::small::SMALL;
use crate::sys::{self, Errno};
use crate::{nursery, runtime};

pub fn do_mremap(call: RemapCall) -> CallResult<usize> {
    let RemapCall { old, old_len, new_len, flags, new } = call;
    // SAFETY: the program requested this call.
    let kernel = || unsafe { kernel_remap(old, old_len, new_len, flags, new) };
    if is_in_nursery(old, old_len.max(1)) {
        if let Some(outcome) = nursery::resizes(call) {
            return outcome;
        }
        nursery::start_now();
    }
    if is_in_nursery(new, new_len) {
        nursery::start_now();
    }
    if flags & !MREMAP_MAYMOVE == 0 && SMALL.take(old, old_len) {
        return resize_small(call).inspect_err(|_| SMALL.put_back(old, old_len));
    }
    let arena = arena();
    if arena.is_empty() {
        SMALL.changed(old, old_len);
        return kernel();
    }
    let plan = classify::remap(call, &arena);
    // Where a mapping is resized, the pager finds out itself: some programs do nothing else.
    if matches!(plan, RemapPlan::Copy { .. } | RemapPlan::Empty { .. }) {
        if let Some(outcome) = not_whole(call, &arena) {
            return outcome;
        }
    }
    match plan {
        RemapPlan::PassThrough => {
            SMALL.changed(old, old_len);
            kernel()
        }
        RemapPlan::Refuse(errno) => Err(Errno(errno)),
        RemapPlan::Resize { old_len, new_len, may_move } => {
            let resized = runtime::far(|pager| pager.resize(old, old_len, new_len, may_move))
                .unwrap_or_else(|| unreachable!("there is an arena"));
            match resized {
                Err(PagerError::NotWhole { .. }) => {
                    not_whole(call, &arena).unwrap_or(Err(Errno(libc::EFAULT)))
                }
                outcome => outcome.map_err(errno_of),
            }
        }
        RemapPlan::Replace(split) => replace(call, &split),
        RemapPlan::Copy { old_len, new_len } => {
            copy_to_fixed(RemapCall { old_len, new_len, ..call })?;
            do_munmap(old, old_len)?;
            Ok(new)
        }
        RemapPlan::Empty { len, fixed: true } => {
            copy_to_fixed(call)?;
            far_or_unreachable(|pager| pager.discard(old, len).map(|()| new))
        }
        RemapPlan::Empty { len, fixed: false } => far_or_unreachable(|pager| {
            let new = pager.map(len, PAGE)?;
            let copied = pager.copy_over(old, len, new, len);
            copied.and_then(|()| pager.discard(old, len)).map(|()| new).inspect_err(|_| {
                let _ = pager.unmap(new, len);
            })
        }),
    }
}

/// Resizes a short mapping, which the kernel made. If it becomes long, it is managed from then on.
fn resize_small(call: RemapCall) -> CallResult<usize> {
    let RemapCall { old, old_len, new_len, flags, .. } = call;
    if new_len < MANAGED_MIN || flags & MREMAP_MAYMOVE == 0 {
        // SAFETY: the program requested this call.
        let new = unsafe { kernel_remap(old, old_len, new_len, flags, 0) }?;
        if new_len < MANAGED_MIN {
            SMALL.put_back(new, new_len);
        }
        return Ok(new);
    }
    let new = do_mmap(
        0,
        new_len,
        PROT_READ | PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
        0,
    )?;
    // SAFETY: both are mappings for reading and writing, and the program gives up the old one.
    unsafe {
        // Whole pages, as the kernel moves them.
        let len = old_len.next_multiple_of(PAGE);
        std::ptr::copy_nonoverlapping(old as *const u8, new as *mut u8, len);
        sys::munmap(old, old_len)?;
    }
    Ok(new)
}

/// The kernel's `mremap`.
///
/// # Safety
/// As in C.
unsafe fn kernel_remap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
) -> CallResult<usize> {
    // SAFETY: as required.
    unsafe { sys::call(libc::SYS_mremap, [old, old_len, new_len, flags as usize, new, 0]) }
}

/// Carries out a call for a range that is not managed as a whole. `None`: it is.
fn not_whole(call: RemapCall, arena: &Range<usize>) -> Option<CallResult<usize>> {
    let owner = runtime::far(|pager| pager.owner(call.old, call.old_len))?;
    match owner.map_err(errno_of) {
        Ok(Owner::Pager) => None,
        Ok(Owner::Foreign) => Some(move_foreign(call, arena)),
        // One mapping at a time, like the kernel.
        Ok(Owner::Mixed) => Some(Err(Errno(libc::EFAULT))),
        Err(errno) => Some(Err(errno)),
    }
}

/// Moves a mapping of the kernel's onto managed memory, which is released when nothing of the call can
/// fail any more but for lack of memory: what was released does not come back.
fn replace(call: RemapCall, target: &Split) -> CallResult<usize> {
    let RemapCall { old, old_len, new_len, flags, new } = call;
    let pages = old_len.next_multiple_of(PAGE);
    let overlaps = new < old.saturating_add(pages) && old < new.saturating_add(new_len);
    let stays = flags & MREMAP_DONTUNMAP != 0;
    let known = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    if flags & MREMAP_MAYMOVE == 0
        || flags & !known != 0
        || overlaps
        || stays && pages != new_len.next_multiple_of(PAGE)
    {
        return Err(Errno(libc::EINVAL));
    }
    // Where the kernel likes it: in place, if the length is the same.
    // SAFETY: the program requested that it moves.
    let resized = unsafe { kernel_remap(old, old_len, new_len, MREMAP_MAYMOVE, 0) }?;
    place(resized, new_len, flags & MREMAP_DONTUNMAP, target).inspect_err(|_| {
        // SAFETY: as it was.
        unsafe {
            if old_len == 0 {
                let _ = sys::munmap(resized, new_len);
            } else {
                move_back(resized, new_len, old, old_len);
            }
        }
    })
}

/// Gives a mapping the place and the length that it had.
///
/// # Safety
/// Nothing else may have been mapped at that place.
unsafe fn move_back(now: usize, len: usize, old: usize, old_len: usize) {
    let (flags, to) = if now == old { (0, 0) } else { (MREMAP_MAYMOVE | MREMAP_FIXED, old) };
    // SAFETY: guaranteed by the caller.
    let _ = unsafe { kernel_remap(now, len, old_len, flags, to) };
}

/// Moves a mapping of the kernel's, unchanged, to the start of managed memory, which it replaces.
fn place(start: usize, len: usize, flags: c_int, target: &Split) -> CallResult<usize> {
    let new = target.before.start;
    inside(target, |pager, start, len| pager.release(start, len))?;
    // SAFETY: the program requested it.
    unsafe { kernel_remap(start, len, len, MREMAP_MAYMOVE | MREMAP_FIXED | flags, new) }
}

/// Moves or grows what the program has mapped over managed memory (a file, shared memory): that is
/// the kernel's. (It is shrunk as any other mapping.) The addresses that it leaves stay the arena's.
fn move_foreign(call: RemapCall, arena: &Range<usize>) -> CallResult<usize> {
    let RemapCall { old, old_len, new_len, flags, new } = call;
    let old_len = old_len.next_multiple_of(PAGE);
    if flags & MREMAP_MAYMOVE == 0 {
        // What follows is the arena's.
        return Err(Errno(libc::ENOMEM));
    }
    let is_fixed = flags & MREMAP_FIXED != 0;
    let target = classify::split(new, new_len, arena).filter(|_| is_fixed);
    // SAFETY: the program requested it. Until it is unmapped, the old place stays mapped and empty:
    // nothing else can be mapped there in between.
    unsafe {
        if flags & MREMAP_DONTUNMAP != 0 && target.is_none() {
            return kernel_remap(old, old_len, new_len, flags, new);
        }
        let moved = kernel_remap(old, old_len, old_len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0)?;
        let placed = match &target {
            None => kernel_remap(moved, old_len, new_len, flags, new),
            Some(target) => {
                kernel_remap(moved, old_len, new_len, MREMAP_MAYMOVE, 0).and_then(|resized| {
                    let placed = place(resized, new_len, 0, target);
                    placed.inspect_err(|_| move_back(resized, new_len, moved, old_len))
                })
            }
        };
        let placed = placed.inspect_err(|_| move_back(moved, old_len, old, old_len))?;
        if flags & MREMAP_DONTUNMAP == 0 {
            do_munmap(old, old_len)?;
        }
        Ok(placed)
    }
}

/// The part of managed memory that begins at `start`, with one protection, and that protection.
fn part_at(start: usize, end: usize) -> CallResult<(Range<usize>, c_int)> {
    let area = far_or_unreachable(|pager| pager.area(start))?;
    let part = start..(area / PAGE * PAGE).clamp(start + PAGE, end);
    Ok((part, (area % PAGE) as c_int))
}

/// Copies managed memory to an address that the program chose.
fn copy_to_fixed(call: RemapCall) -> CallResult<()> {
    let RemapCall { old, flags, new, .. } = call;
    let old_len = call.old_len.next_multiple_of(PAGE);
    let new_len = call.new_len.next_multiple_of(PAGE);
    let (first, prot) = part_at(old, old + old_len)?;
    // Several mappings may move, but no such mapping changes its length or stays.
    if first.end < old + old_len && (old_len != new_len || flags & MREMAP_DONTUNMAP != 0) {
        let mut at = first.end;
        while at < old + old_len {
            let (part, other) = part_at(at, old + old_len)?;
            if other != prot {
                return Err(Errno(libc::EFAULT));
            }
            at = part.end;
        }
    }
    do_mmap(
        new,
        new_len,
        PROT_READ | PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
        -1,
        0,
    )?;
    let _ = far_or_unreachable(|pager| pager.inherit(old, new, new_len).map(|()| new));
    let end = old + old_len.min(new_len);
    let mut at = old;
    while at < end {
        let (part, prot) = part_at(at, end)?;
        copy_part(&part, new + (at - old), prot)?;
        at = part.end;
        let is_last = at == end;
        if prot != PROT_READ | PROT_WRITE {
            let to = new + (part.start - old);
            let until = if is_last { new + new_len } else { to + part.len() };
            do_mprotect(to, until - to, prot)?;
        }
    }
    Ok(())
}

/// Copies memory that has one protection. What cannot be read has content, too.
fn copy_part(part: &Range<usize>, to: usize, prot: c_int) -> CallResult<()> {
    let is_hidden = prot & PROT_READ == 0;
    if is_hidden {
        do_mprotect(part.start, part.len(), PROT_READ)?;
    }
    let mut done = 0;
    while done < part.len() {
        // SAFETY: the destination was just mapped for this.
        match unsafe { sys::copy_readable(part.start + done, to + done, part.len() - done) } {
            // Another thread has hidden it again.
            0 => done = (done + PAGE).next_multiple_of(PAGE),
            copied => done += copied,
        }
    }
    if is_hidden { do_mprotect(part.start, part.len(), prot) } else { Ok(()) }
}
