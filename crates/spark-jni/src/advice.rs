//! Advice on pages (`madvise(2)`).
//!
//! Contract: only such advice is given as changes which pages back the memory, never its content.
#![allow(unsafe_code)]

use std::{io, ptr};

/// The kinds of advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Huge pages at the first touch, where the kernel has them (`MADV_HUGEPAGE`).
    Huge,
    /// No huge pages (`MADV_NOHUGEPAGE`).
    Small,
    /// A huge page now, with the present content (`MADV_COLLAPSE`, Linux 6.1).
    Collapse,
}

impl Advice {
    /// The numbers that `Native.java` uses.
    pub fn from_number(number: i32) -> Option<Advice> {
        match number {
            0 => Some(Advice::Huge),
            1 => Some(Advice::Small),
            2 => Some(Advice::Collapse),
            _ => None,
        }
    }
}

/// Advises on `len` bytes at `address`. The kernel refuses ranges that are not mapped (`ENOMEM`).
pub fn advise(address: usize, len: usize, advice: Advice) -> io::Result<()> {
    let advice = match advice {
        Advice::Huge => libc::MADV_HUGEPAGE,
        Advice::Small => libc::MADV_NOHUGEPAGE,
        Advice::Collapse => libc::MADV_COLLAPSE,
    };
    // SAFETY: none of the three changes content, regardless of what is at the address.
    let done = unsafe { libc::madvise(ptr::with_exposed_provenance_mut(address), len, advice) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_range_is_refused() {
        for advice in (0..3).filter_map(Advice::from_number) {
            assert_eq!(
                advise(0, 2 << 20, advice).unwrap_err().raw_os_error(),
                Some(libc::ENOMEM),
                "{advice:?}"
            );
        }
        assert_eq!(Advice::from_number(3), None);
    }
}
