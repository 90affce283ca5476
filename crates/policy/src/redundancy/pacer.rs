//! How fast blocks are made again: as fast as possible while the program asks for nothing, and
//! otherwise only so fast that the program's own reads stay about as quick as they were.

use super::quantile::Mean;

/// Bounds of the rate.
const RATE_MIN: u64 = 8 << 20;
const RATE_MAX: u64 = 1 << 30;
/// What is added while reads are not slower than before.
const RATE_STEP: u64 = 8 << 20;
/// While the program has read nothing for this long, only the servers limit the rate.
const IDLE_NS: u64 = 50_000_000;
/// Interval of adjustments.
const ADJUST_NS: u64 = 20_000_000;

/// See the module documentation. `spend` and `next_ns` are a token bucket whose rate follows the
/// latency of reads.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: u64,
    /// Latency of reads while nothing is made again, and while something is.
    calm: Mean,
    meanwhile: Mean,
    last_read_ns: u64,
    adjusted_ns: u64,
    free_at_ns: u64,
    is_working: bool,
}

impl Default for Pacer {
    fn default() -> Self {
        Pacer {
            rate: 64 << 20,
            calm: Mean::default(),
            meanwhile: Mean::default(),
            last_read_ns: 0,
            adjusted_ns: 0,
            free_at_ns: 0,
            is_working: false,
        }
    }
}

impl Pacer {
    /// A read of the program took `waited_ns`. Only small reads are told.
    pub fn read(&mut self, now_ns: u64, waited_ns: u64) {
        self.last_read_ns = now_ns;
        if !self.is_working {
            self.calm.observe(waited_ns);
            return;
        }
        self.meanwhile.observe(waited_ns);
        if now_ns.saturating_sub(self.adjusted_ns) < ADJUST_NS {
            return;
        }
        self.adjusted_ns = now_ns;
        let calm = self.calm.value();
        if calm > 0 && self.meanwhile.value() > calm + calm / 2 {
            self.rate = (self.rate / 2).max(RATE_MIN);
        } else {
            self.rate = (self.rate + RATE_STEP).min(RATE_MAX);
        }
    }

    /// Making blocks again begins or ends.
    pub fn works(&mut self, is_working: bool) {
        if is_working && !self.is_working {
            self.meanwhile = Mean::default();
        }
        self.is_working = is_working;
    }

    /// `bytes` were copied.
    pub fn spend(&mut self, now_ns: u64, bytes: u64) {
        let rate =
            if now_ns.saturating_sub(self.last_read_ns) > IDLE_NS { RATE_MAX } else { self.rate };
        let takes_ns = (u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64;
        self.free_at_ns = self.free_at_ns.max(now_ns) + takes_ns;
    }

    /// The earliest time for the next copy.
    pub fn next_ns(&self) -> u64 {
        self.free_at_ns
    }

    /// Bytes in a second while the program reads.
    pub fn rate(&self) -> u64 {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_reads_halve_the_rate_and_equal_ones_raise_it() {
        let mut pacer = Pacer::default();
        (0..100).for_each(|at| pacer.read(at * 1_000_000, 50_000));
        pacer.works(true);
        let before = pacer.rate();
        (100..200).for_each(|at| pacer.read(at * 1_000_000, 200_000));
        assert!(pacer.rate() < before / 4 && pacer.rate() >= RATE_MIN, "{}", pacer.rate());
        (200..600).for_each(|at| pacer.read(at * 1_000_000, 50_000));
        assert!(pacer.rate() > before, "{}", pacer.rate());
    }

    #[test]
    fn the_rate_holds_while_the_program_reads() {
        let mut pacer = Pacer::default();
        pacer.works(true);
        let (mut now, mut copied) = (1_000_000_000, 0u64);
        let start = now;
        while now < start + 1_000_000_000 {
            pacer.last_read_ns = now;
            pacer.spend(now, 256 << 10);
            copied += 256 << 10;
            now = pacer.next_ns();
        }
        assert!(copied <= (64 << 20) + (256 << 10), "{copied}");
        pacer.spend(now + 10 * IDLE_NS, 1 << 20);
        assert!(pacer.next_ns() < now + 10 * IDLE_NS + 2_000_000);
    }
}
