//! Plain Rust compiled for the vector instructions that the processor has.
//!
//! Contract: instructions that only some processors have are executed only after a check that this
//! one has them.
#![allow(unsafe_code)]

/// Work that benefits from wide vectors.
pub trait Wide {
    /// Its result.
    type Result;

    /// Does the work. Must be `#[inline(always)]`, as must be all of its callees that matter: only
    /// inlined code is compiled for wider vectors.
    fn work(self) -> Self::Result;
}

/// Does `work` with AVX2 and POPCNT if the processor has both. The result is the same without them.
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
    fn vector_and_scalar_results_agree() {
        let words: Vec<u64> =
            (0..1000u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        assert_eq!(widest(Ones(&words)), Ones(&words).work());
    }
}
