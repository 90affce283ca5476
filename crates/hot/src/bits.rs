//! One bit for each page of a 2 MiB range.

pub use hiroma_kernel::hot::pagemap::PageBits;

/// None of the pages.
pub const NONE: PageBits = [0; 8];
/// All of the pages.
pub const ALL: PageBits = [u64::MAX; 8];

/// How many pages.
pub fn count(bits: &PageBits) -> u16 {
    bits.iter().map(|word| word.count_ones() as u16).sum()
}

/// Those of `a` that are also in `b`.
pub fn and(a: &PageBits, b: &PageBits) -> PageBits {
    std::array::from_fn(|at| a[at] & b[at])
}

/// Those of either.
pub fn or(a: &PageBits, b: &PageBits) -> PageBits {
    std::array::from_fn(|at| a[at] | b[at])
}

/// Those of `a` that are not in `b`.
pub fn without(a: &PageBits, b: &PageBits) -> PageBits {
    std::array::from_fn(|at| a[at] & !b[at])
}

/// Whether there is none.
pub fn is_empty(bits: &PageBits) -> bool {
    bits.iter().all(|&word| word == 0)
}
