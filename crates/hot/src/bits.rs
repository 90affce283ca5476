//! One bit for each page of a 2 MiB range.
//!
//! Plain loops, which the compiler turns into vectors wherever they are inlined.

pub use hiroma_kernel::hot::pagemap::PageBits;

/// None of the pages.
pub const NONE: PageBits = [0; 8];
/// All of the pages.
pub const ALL: PageBits = [u64::MAX; 8];

/// How many pages.
#[inline(always)]
pub fn count(bits: &PageBits) -> u16 {
    let mut ones = 0;
    for word in bits {
        ones += word.count_ones();
    }
    ones as u16
}

/// Those of `a` that are also in `b`.
#[inline(always)]
pub fn and(a: &PageBits, b: &PageBits) -> PageBits {
    let mut out = NONE;
    for at in 0..out.len() {
        out[at] = a[at] & b[at];
    }
    out
}

/// Those of either.
#[inline(always)]
pub fn or(a: &PageBits, b: &PageBits) -> PageBits {
    let mut out = NONE;
    for at in 0..out.len() {
        out[at] = a[at] | b[at];
    }
    out
}

/// Those of `a` that are not in `b`.
#[inline(always)]
pub fn without(a: &PageBits, b: &PageBits) -> PageBits {
    let mut out = NONE;
    for at in 0..out.len() {
        out[at] = a[at] & !b[at];
    }
    out
}

/// Whether there is none.
#[inline(always)]
pub fn is_empty(bits: &PageBits) -> bool {
    let mut any = 0;
    for word in bits {
        any |= word;
    }
    any == 0
}
