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
    /// Small pages again, with the present content: `MADV_COLD` (Linux 5.4) on one page of a huge
    /// one, which the kernel takes apart for that (`madvise_cold_or_pageout_pte_range`).
    Split,
}

/// Bytes of a small page.
const PAGE_BYTES: usize = 4096;

impl Advice {
    /// The numbers that `Native.java` uses.
    pub fn from_number(number: i32) -> Option<Advice> {
        match number {
            0 => Some(Advice::Huge),
            1 => Some(Advice::Small),
            2 => Some(Advice::Collapse),
            3 => Some(Advice::Split),
            _ => None,
        }
    }
}

/// Advises on `len` bytes at `address`; `Split` only on one huge page, or one of less. The kernel refuses ranges that are not mapped (`ENOMEM`).
pub fn advise(address: usize, len: usize, advice: Advice) -> io::Result<()> {
    let (advice, len) = match advice {
        Advice::Huge => (libc::MADV_HUGEPAGE, len),
        Advice::Small => (libc::MADV_NOHUGEPAGE, len),
        Advice::Collapse => (libc::MADV_COLLAPSE, len),
        Advice::Split => (libc::MADV_COLD, len.min(PAGE_BYTES)),
    };
    // SAFETY: none of the four changes content, regardless of what is at the address.
    let done = unsafe { libc::madvise(ptr::with_exposed_provenance_mut(address), len, advice) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_range_is_refused() {
        for advice in (0..4).filter_map(Advice::from_number) {
            assert_eq!(
                advise(0, 2 << 20, advice).unwrap_err().raw_os_error(),
                Some(libc::ENOMEM),
                "{advice:?}"
            );
        }
        assert_eq!(Advice::from_number(4), None);
    }
}
