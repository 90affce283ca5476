//! Decodes the entries of a page table, 512 at a time.
//!
//! Contract: instructions that only some processors have are executed only after a check that this
//! one has them.
#![allow(unsafe_code)]

use hiroma_units::PAGES_PER_EXTENT;

use super::pagemap::PageBits;

/// Number of entries in a page table.
pub const ENTRIES: usize = PAGES_PER_EXTENT;

/// A page table, or a page.
pub type Table = [u64; ENTRIES];

/// Bits of page table entries (Intel SDM volume 3, section 5.5).
pub const PRESENT: u64 = 1;
/// The processor has used it.
pub const ACCESSED: u64 = 1 << 5;
/// Linux: present, but not accessible (`PROT_NONE`).
pub const PROT_NONE: u64 = 1 << 8;

/// Linux: not an ordinary page (`_PAGE_SPECIAL`). In private memory without a file that is the
/// shared zero page, which a page that was only read maps: it takes no memory of its own.
pub const SPECIAL: u64 = 1 << 9;

/// Pages that are present and the process's own, and those of them that were accessed.
pub fn bits_of(table: &Table) -> (PageBits, PageBits) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { bits_of_avx2(table) };
    }
    bits_of_any(table)
}

fn bits_of_any(table: &Table) -> (PageBits, PageBits) {
    let mut present = PageBits::default();
    let mut accessed = PageBits::default();
    for (word, entries) in table.chunks_exact(64).enumerate() {
        let (mut there, mut touched) = (0u64, 0u64);
        for (bit, &entry) in entries.iter().enumerate() {
            there |= u64::from(entry & (PRESENT | PROT_NONE) != 0 && entry & SPECIAL == 0) << bit;
            touched |= u64::from(entry & ACCESSED != 0) << bit;
        }
        (present[word], accessed[word]) = (there, touched & there);
    }
    (present, accessed)
}

/// The same, 32 entries at a time: all bits of interest are in the lowest ones, so entries are
/// packed to 16 bits each, and the bit of interest is shifted to where `movemask` reads it.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn bits_of_avx2(table: &Table) -> (PageBits, PageBits) {
    use std::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_andnot_si256, _mm256_castps_si256, _mm256_castsi256_ps,
        _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_packs_epi16,
        _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi32, _mm256_shuffle_ps,
        _mm256_slli_epi16, _mm256_srli_epi16,
    };
    // Packing alternates between its arguments every eight bytes of each half; this restores the
    // order.
    const IN_ORDER: i32 = 0b11_01_10_00;
    const LOW_HALVES: i32 = 0b10_00_10_00;
    let mut present = PageBits::default();
    let mut accessed = PageBits::default();
    for (word, entries) in table.chunks_exact(64).enumerate() {
        let (mut there, mut touched) = (0u64, 0u64);
        for (half, entries) in entries.chunks_exact(32).enumerate() {
            // SAFETY: 32 entries are eight times 32 bytes; loads need no alignment. The rest is
            // arithmetic, for which the caller guarantees AVX2.
            let (p, a) = unsafe {
                let wanted = _mm256_set1_epi32((PRESENT | ACCESSED | PROT_NONE | SPECIAL) as i32);
                let four = |at: usize| {
                    _mm256_castsi256_ps(_mm256_loadu_si256(
                        entries.as_ptr().add(4 * at).cast::<__m256i>(),
                    ))
                };
                let eight = |at: usize| {
                    let low = _mm256_castps_si256(_mm256_shuffle_ps::<LOW_HALVES>(
                        four(at),
                        four(at + 1),
                    ));
                    _mm256_permute4x64_epi64::<IN_ORDER>(_mm256_and_si256(low, wanted))
                };
                let sixteen = |at: usize| {
                    _mm256_permute4x64_epi64::<IN_ORDER>(_mm256_packus_epi32(
                        eight(at),
                        eight(at + 2),
                    ))
                };
                let (low, high) = (sixteen(0), sixteen(4));
                let either = |pages: __m256i| {
                    let there = _mm256_slli_epi16::<15>(_mm256_or_si256(
                        pages,
                        _mm256_srli_epi16::<8>(pages),
                    ));
                    _mm256_andnot_si256(_mm256_slli_epi16::<6>(pages), there)
                };
                let mask = |low: __m256i, high: __m256i| {
                    _mm256_movemask_epi8(_mm256_permute4x64_epi64::<IN_ORDER>(_mm256_packs_epi16(
                        low, high,
                    ))) as u32
                };
                // Bits 0 and 8 (present, PROT_NONE) without bit 9 (special), and bit 5 (accessed),
                // to the sign bit.
                (
                    mask(either(low), either(high)),
                    mask(_mm256_slli_epi16::<10>(low), _mm256_slli_epi16::<10>(high)),
                )
            };
            there |= u64::from(p) << (32 * half);
            touched |= u64::from(a) << (32 * half);
        }
        (present[word], accessed[word]) = (there, touched & there);
    }
    (present, accessed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_report_present_and_accessed_bits() {
        let mut table = [0u64; ENTRIES];
        // All other bits of an entry are set.
        let others = !(PRESENT | ACCESSED | PROT_NONE | SPECIAL);
        for (at, entry) in table.iter_mut().enumerate() {
            *entry = others
                | if at % 3 == 0 { PRESENT } else { 0 }
                | if at % 7 == 0 { PROT_NONE } else { 0 };
            *entry |=
                if at % 5 == 0 { ACCESSED } else { 0 } | if at % 11 == 0 { SPECIAL } else { 0 };
        }
        for (present, accessed) in [bits_of(&table), bits_of_any(&table)] {
            for at in 0..ENTRIES {
                let bit = |bits: &PageBits| bits[at / 64] >> (at % 64) & 1 == 1;
                let there = (at % 3 == 0 || at % 7 == 0) && at % 11 != 0;
                assert_eq!((bit(&present), bit(&accessed)), (there, there && at % 5 == 0), "{at}");
            }
        }
    }

    #[test]
    fn vectorised_and_scalar_reads_agree() {
        let mut random = hiroma_units::Rng::new(1);
        for _ in 0..200 {
            let table: Table = std::array::from_fn(|_| random.next_u64() >> 23);
            assert_eq!(bits_of(&table), bits_of_any(&table));
        }
    }
}
