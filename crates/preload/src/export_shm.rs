//! System V shared memory at an address that the program chooses: `shmat` and `shmdt`.
//!
//! Contract: C's. Shared memory is not managed. Where it is to lie in the arena, it takes the place
//! of what was managed there, as a shared `mmap` with `MAP_FIXED` does.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use hiroma_far::Pager;
use hiroma_units::PAGE;

use crate::export_mmap::{CallResult, answer, do_munmap, inside, managed, must_be_free, status};
use crate::sys::{self, Errno, Lock};

/// Attachments in the arena, as start and length; 0: free. More than these are not remembered, and
/// their addresses stay unmanaged after the end of the attachment.
static ATTACHED: Lock<[(usize, usize); 256]> = Lock::new([(0, 0); 256]);

fn kernel(id: c_int, addr: usize, flags: c_int) -> CallResult<usize> {
    // SAFETY: the program requested this call, at its own risk.
    unsafe { sys::call(libc::SYS_shmat, [id as usize, addr, flags as usize, 0, 0, 0]) }
}

/// Length of the memory in whole pages.
fn len_of(id: c_int) -> CallResult<usize> {
    let mut info = MaybeUninit::<libc::shmid_ds>::zeroed();
    let arguments = [id as usize, libc::IPC_STAT as usize, info.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: there is room for the answer, which is zero until then.
    let info = unsafe {
        sys::call(libc::SYS_shmctl, arguments)?;
        info.assume_init()
    };
    Ok(info.shm_segsz.next_multiple_of(PAGE))
}

pub fn do_shmat(id: c_int, addr: usize, flags: c_int) -> CallResult<usize> {
    let start = if flags & libc::SHM_RND != 0 { addr & !(PAGE - 1) } else { addr };
    if start == 0 || managed(start & !(PAGE - 1), PAGE).is_none() {
        return kernel(id, addr, flags);
    }
    let len = len_of(id)?;
    let Some(split) = managed(start, len) else { return kernel(id, addr, flags) };
    if flags & libc::SHM_REMAP == 0 {
        must_be_free(&split).map_err(|_| Errno(libc::EINVAL))?;
    }
    // Nothing is released for memory that may not be attached.
    let elsewhere = kernel(id, 0, flags & !(libc::SHM_REMAP | libc::SHM_RND))?;
    // SAFETY: attached by the last call, and known to nobody else.
    unsafe { sys::call(libc::SYS_shmdt, [elsewhere, 0, 0, 0, 0, 0])? };
    inside(&split, Pager::release)?;
    let at = kernel(id, start, flags | libc::SHM_REMAP)?;
    let mut attached = ATTACHED.lock();
    if let Some(place) = attached.iter_mut().find(|(_, len)| *len == 0) {
        *place = (at, len);
    }
    Ok(at)
}

pub fn do_shmdt(addr: usize) -> CallResult<()> {
    let known = {
        let mut attached = ATTACHED.lock();
        let place = attached.iter_mut().find(|(start, len)| *len > 0 && *start == addr);
        place.map(std::mem::take)
    };
    match known {
        // Its end detaches it, and its addresses can be managed again.
        Some((start, len)) => do_munmap(start, len),
        // SAFETY: the program requested this call, at its own risk.
        None => unsafe { sys::call(libc::SYS_shmdt, [addr, 0, 0, 0, 0, 0]).map(drop) },
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    answer(do_shmat(id, addr as usize, flags)) as *mut c_void
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(addr: *const c_void) -> c_int {
    status(do_shmdt(addr as usize))
}
