//! The generator of all random numbers that must be the same on every machine and in every
//! release: recorded runs, content that is verified by its seed, schedules of tests. Library
//! generators do not promise that.

/// splitmix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*, 2014): eight
/// bytes of state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// A generator for part `part` of an object that has `seed`.
    pub fn part(seed: u64, part: u64) -> Self {
        let mut rng = Rng(seed ^ part.wrapping_mul(0xd134_2543_de82_ef95).rotate_left(17));
        let state = rng.next_u64();
        Rng(state ^ part)
    }

    /// Its state: [`Rng::new`] of it goes on where this generator is.
    pub fn state(&self) -> u64 {
        self.0
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (greater than 0), uniform to within 2^-32.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0);
        (((self.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// A number below `bound` (greater than 0), uniform to within `bound` / 2^64.
    #[inline]
    pub fn below_u64(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0);
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_matches_splitmix64() {
        let mut rng = Rng::new(1234567);
        assert_eq!([rng.next_u64(), rng.next_u64()], [6457827717110365317, 3203168211198807973]);
    }

    #[test]
    fn numbers_below_a_bound_come_equally_often() {
        let mut rng = Rng::part(7, 9);
        let mut seen = [[0u32; 7]; 2];
        (0..70_000).for_each(|_| {
            seen[0][rng.below(7) as usize] += 1;
            seen[1][rng.below_u64(7) as usize] += 1;
        });
        assert!(seen.iter().flatten().all(|&count| (9_600..10_400).contains(&count)), "{seen:?}");
    }
}
