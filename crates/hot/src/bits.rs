//! One bit for each page of a 2 MiB range.
//!
//! The loops are plain so that the compiler vectorizes them wherever they are inlined.

pub use hiroma_sys::hot::pagemap::PageBits;

/// No page.
pub const NONE: PageBits = [0; 8];
/// Every page.
pub const ALL: PageBits = [u64::MAX; 8];

/// The number of pages in the set.
#[inline(always)]
pub fn count(bits: &PageBits) -> u16 {
    let mut ones = 0;
    for word in bits {
        ones += word.count_ones();
    }
    ones as u16
}

/// Intersection: the pages of `a` that are also in `b`.
#[inline(always)]
pub fn and(a: &PageBits, b: &PageBits) -> PageBits {
    let mut out = NONE;
    for at in 0..out.len() {
        out[at] = a[at] & b[at];
    }
    out
}

/// Union: the pages in `a` or `b`.
#[inline(always)]
pub fn or(a: &PageBits, b: &PageBits) -> PageBits {
    let mut out = NONE;
    for at in 0..out.len() {
        out[at] = a[at] | b[at];
    }
    out
}

/// Difference: the pages of `a` that are not in `b`.
#[inline(always)]
pub fn without(a: &PageBits, b: &PageBits) -> PageBits {
    let mut out = NONE;
    for at in 0..out.len() {
        out[at] = a[at] & !b[at];
    }
    out
}

/// Whether the set is empty.
#[inline(always)]
pub fn is_empty(bits: &PageBits) -> bool {
    let mut any = 0;
    for word in bits {
        any |= word;
    }
    any == 0
}
