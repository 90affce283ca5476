//! Plain Rust compiled for the vectors that the processor has.
//!
//! Contract: instructions that only some processors have are executed after the processor was asked
//! for them.
#![allow(unsafe_code)]

/// Work that gains from wide vectors.
pub trait Wide {
    /// What comes of it.
    type Result;

    /// Does it. To be `#[inline(always)]`, and all that matters of what it calls: only what is
    /// inlined is compiled for wider vectors.
    fn work(self) -> Self::Result;
}

/// Does `work` with AVX2 and POPCNT where the processor has both. The result is the same without
/// them.
pub fn widest<W: Wide>(work: W) -> W::Result {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor has both.
        return unsafe { with_avx2(work) };
    }
    work.work()
}

/// # Safety
/// The processor has AVX2 and POPCNT.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt")]
unsafe fn with_avx2<W: Wide>(work: W) -> W::Result {
    work.work()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ones<'a>(&'a [u64]);

    impl Wide for Ones<'_> {
        type Result = u32;

        #[inline(always)]
        fn work(self) -> u32 {
            self.0.iter().map(|word| word.count_ones()).sum()
        }
    }

    #[test]
    fn what_is_computed_is_the_same() {
        let words: Vec<u64> =
            (0..1000u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        assert_eq!(widest(Ones(&words)), Ones(&words).work());
    }
}
