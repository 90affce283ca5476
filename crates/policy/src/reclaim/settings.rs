//! What users may set, and within which limits.

use super::pages;

/// Settings of the controller. All can be changed while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Time between observations. The paper: 1 s.
    pub poll_ns: u64,
    /// Minimum fill rate of the cache, in bytes per second; below it reclaim is left to the kernel.
    /// The paper counts requests (1,500/s), whose size differs by a factor of ten between programs.
    pub fill_bytes_s_min: u64,
    /// Minimum share of file cache in what takes memory, in thousandths.
    pub cause_permille: u64,
    /// What must be free above the high watermarks, whatever the fill rate, in bytes: the paper's
    /// first threshold (1 GB).
    pub free_bytes_min: u64,
    /// Minimum amount that is reclaimed once there is a need, in bytes: the paper's second
    /// threshold (4 GB). Large amounts have no advantage here: the cost is linear in the amount.
    pub reclaim_bytes: u64,
    /// Amount of one request to the kernel, in bytes.
    pub batch_bytes: u64,
    /// Share of the file cache that must stay inactive, in thousandths: reclaiming the last of it
    /// would reach pages in use.
    pub keep_permille: u64,
    /// Share of one processor that reclaiming may take, in millionths.
    pub cpu_ppm: u64,
    /// Whether to request reclaim from the kernel: 0 or 1. Without it, dropping behind streams is
    /// the only mechanism.
    pub early_reclaim: u64,
    /// When to drop behind streams: one of the `BEHIND_` constants.
    pub drop_behind: u64,
}

/// Never.
pub const BEHIND_NEVER: u64 = 0;
/// Where reclaim does not help.
pub const BEHIND_NEEDED: u64 = 1;
/// Also wherever the cache fills in large blocks: a stream leaves such blocks behind, while reclaim
/// takes the oldest pages, whatever the size of their blocks.
pub const BEHIND_LARGE: u64 = 2;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            poll_ns: 100_000_000,
            fill_bytes_s_min: 32 << 20,
            cause_permille: 750,
            free_bytes_min: 0,
            reclaim_bytes: 64 << 20,
            batch_bytes: 32 << 20,
            keep_permille: 50,
            cpu_ppm: 600_000,
            early_reclaim: 1,
            drop_behind: BEHIND_LARGE,
        }
    }
}

/// A value out of range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfRange {
    pub key: &'static str,
    pub value: u64,
    pub min: u64,
    pub max: u64,
}

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

impl Settings {
    /// Every setting with its value and its limits.
    pub fn all(&self) -> [(&'static str, u64, u64, u64); 10] {
        [
            ("poll_ns", self.poll_ns, 10_000_000, 10_000_000_000),
            ("fill_bytes_s_min", self.fill_bytes_s_min, 1, TIB),
            ("cause_permille", self.cause_permille, 501, 1000),
            ("free_bytes_min", self.free_bytes_min, 0, TIB),
            ("reclaim_bytes", self.reclaim_bytes, MIB, TIB),
            ("batch_bytes", self.batch_bytes, 16 * MIB, 64 * MIB),
            ("keep_permille", self.keep_permille, 0, 1000),
            ("cpu_ppm", self.cpu_ppm, 1000, 1_000_000),
            ("early_reclaim", self.early_reclaim, 0, 1),
            ("drop_behind", self.drop_behind, BEHIND_NEVER, BEHIND_LARGE),
        ]
    }

    /// Changes one setting. None: there is no setting of that name.
    pub fn set(&mut self, key: &str, value: u64) -> Option<Result<(), OutOfRange>> {
        let (key, _, min, max) = self.all().into_iter().find(|(name, ..)| *name == key)?;
        if !(min..=max).contains(&value) {
            return Some(Err(OutOfRange { key, value, min, max }));
        }
        *self.field(key)? = value;
        Some(Ok(()))
    }

    fn field(&mut self, key: &str) -> Option<&mut u64> {
        Some(match key {
            "poll_ns" => &mut self.poll_ns,
            "fill_bytes_s_min" => &mut self.fill_bytes_s_min,
            "cause_permille" => &mut self.cause_permille,
            "free_bytes_min" => &mut self.free_bytes_min,
            "reclaim_bytes" => &mut self.reclaim_bytes,
            "batch_bytes" => &mut self.batch_bytes,
            "keep_permille" => &mut self.keep_permille,
            "cpu_ppm" => &mut self.cpu_ppm,
            "early_reclaim" => &mut self.early_reclaim,
            "drop_behind" => &mut self.drop_behind,
            _ => return None,
        })
    }

    /// Pages of one batch.
    pub fn batch_pages(&self) -> u64 {
        pages(self.batch_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_enforces_its_limits() {
        let mut settings = Settings::default();
        for (key, value, min, max) in Settings::default().all() {
            assert!((min..=max).contains(&value), "{key}");
            for good in [min, max] {
                assert_eq!(settings.set(key, good), Some(Ok(())), "{key}");
                assert!(settings.all().contains(&(key, good, min, max)), "{key}");
            }
            assert_eq!(
                settings.set(key, max + 1),
                Some(Err(OutOfRange { key, value: max + 1, min, max }))
            );
            if min > 0 {
                assert!(settings.set(key, min - 1).is_some_and(|set| set.is_err()), "{key}");
            }
        }
        assert_eq!(settings.set("colour", 1), None);
    }
}
