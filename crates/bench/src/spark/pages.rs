//! The huge pages of an executor, inspected from outside.

use std::collections::BTreeSet;
use std::io;

use hiroma_memload::server;
use hiroma_sys::hot::maps;
use hiroma_sys::hot::pagemap::Pagemap;
use hiroma_units::EXTENT;
use serde::Deserialize;

const RANGE: u64 = EXTENT as u64;
/// Minimum size in bytes of mappings that are inspected: a heap, an arena.
const LARGE: u64 = 64 << 20;

/// An executor, as described by itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Executor {
    pub pid: u32,
    /// The policy that the plugin applies; empty without the plugin.
    pub policy: String,
    pub gc_ms: u64,
    /// First address and length of each run of cached data, alternately.
    runs: Vec<u64>,
}

/// Amounts of memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    pub cached: u64,
    /// The part of the cached bytes that is on huge pages.
    pub cached_huge: u64,
    /// All memory on huge pages.
    pub huge: u64,
    pub resident: u64,
}

impl Pages {
    /// Memory of one executor.
    pub fn of(executor: &Executor) -> io::Result<Pages> {
        let memory = server::memory(executor.pid)?;
        let pagemap = Pagemap::open(executor.pid)?;
        let mut last = (u64::MAX, false);
        let cached_huge = bytes_in(executor.runs(), |range| {
            if last.0 != range {
                last = (range, pagemap.huge(range, range + 1)?);
            }
            Ok::<bool, io::Error>(last.1)
        })?;
        Ok(Pages {
            cached: executor.runs().map(|(_, len)| len).sum(),
            cached_huge,
            huge: memory.huge_bytes,
            resident: memory.resident_bytes,
        })
    }

    /// Memory of all executors.
    pub fn of_all(executors: &[Executor]) -> io::Result<Pages> {
        executors.iter().try_fold(Pages::default(), |sum, executor| Ok(sum + Pages::of(executor)?))
    }

    /// Percentage of the cached bytes that is on huge pages.
    pub fn cached_huge_percent(&self) -> f64 {
        percent(self.cached_huge, self.cached)
    }

    /// Percentage of the huge pages that is not cached data; 0 if there are none.
    pub fn other_percent(&self) -> f64 {
        percent(self.huge.saturating_sub(self.cached_huge), self.huge)
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { f64::NAN } else { 100.0 * part as f64 / whole as f64 }
}

impl std::ops::Add for Pages {
    type Output = Pages;

    fn add(self, other: Pages) -> Pages {
        Pages {
            cached: self.cached + other.cached,
            cached_huge: self.cached_huge + other.cached_huge,
            huge: self.huge + other.huge,
            resident: self.resident + other.resident,
        }
    }
}

impl Executor {
    /// First address and length of each run of cached data.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.chunks_exact(2).map(|run| (run[0], run[1]))
    }

    /// The 2 MiB ranges that contain cached data.
    pub fn cached_ranges(&self) -> BTreeSet<u64> {
        self.runs()
            .filter(|&(_, len)| len > 0)
            .flat_map(|(start, len)| start / RANGE..=(start + len - 1) / RANGE)
            .collect()
    }
}

/// Number of bytes of `runs` in ranges for which `holds` returns true.
fn bytes_in<E>(
    runs: impl Iterator<Item = (u64, u64)>,
    mut holds: impl FnMut(u64) -> Result<bool, E>,
) -> Result<u64, E> {
    let mut bytes = 0;
    for (start, len) in runs {
        let mut at = start;
        while at < start + len {
            let end = (start + len).min((at / RANGE + 1) * RANGE);
            bytes += if holds(at / RANGE)? { end - at } else { 0 };
            at = end;
        }
    }
    Ok(bytes)
}

/// The whole 2 MiB ranges of the large private mappings of process `pid`.
pub fn large_ranges(pid: u32) -> io::Result<Vec<u64>> {
    let large = |vma: &maps::Vma| {
        vma.writable && vma.anonymous && !vma.shared && vma.end - vma.start >= LARGE
    };
    let vmas = maps::of(pid)?;
    Ok(vmas
        .iter()
        .filter(|vma| large(vma))
        .flat_map(|vma| vma.start.div_ceil(RANGE)..vma.end / RANGE)
        .collect())
}

/// The ranges of `ranges` that are on huge pages.
pub fn huge_of(pid: u32, ranges: &[u64]) -> io::Result<BTreeSet<u64>> {
    let pagemap = Pagemap::open(pid)?;
    let mut huge = BTreeSet::new();
    for &range in ranges {
        if pagemap.huge(range, range + 1)? {
            huge.insert(range);
        }
    }
    Ok(huge)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn executor(runs: &[u64]) -> Executor {
        Executor { pid: 1, policy: String::new(), gc_ms: 0, runs: runs.to_vec() }
    }

    #[test]
    fn run_counts_only_bytes_in_huge_ranges() {
        let odd = |range: u64| Ok::<bool, Infallible>(range % 2 == 1);
        let Ok(inside) = bytes_in([(RANGE + 10, 20)].into_iter(), odd);
        let Ok(across) = bytes_in([(RANGE - 10, RANGE + 30)].into_iter(), odd);
        let Ok(none) = bytes_in([(2 * RANGE, 100), (RANGE, 0)].into_iter(), odd);
        assert_eq!((inside, across, none), (20, RANGE, 0));
    }

    #[test]
    fn ranges_of_runs_are_those_that_they_touch() {
        let ranges: Vec<u64> = executor(&[RANGE - 1, 2, 5 * RANGE, RANGE, 9 * RANGE, 0])
            .cached_ranges()
            .into_iter()
            .collect();
        assert_eq!(ranges, [0, 1, 5]);
    }

    #[test]
    fn shares_of_zero_are_not_numbers() {
        assert!(
            Pages::default().other_percent().is_nan()
                && Pages::default().cached_huge_percent().is_nan()
        );
        let pages = Pages { cached: 100, cached_huge: 90, huge: 100, resident: 300 };
        assert_eq!((pages.cached_huge_percent(), pages.other_percent()), (90.0, 10.0));
    }

    #[test]
    fn this_process_can_be_observed() {
        let pid = std::process::id();
        let memory = hiroma_sys::workload::Region::map(LARGE as usize + EXTENT).unwrap();
        memory.write(0, &[1]);
        match large_ranges(pid).and_then(|ranges| Ok((huge_of(pid, &ranges)?.len(), ranges.len())))
        {
            Ok((huge, all)) => assert!(all >= 32 && huge <= all),
            Err(error) => hiroma_testkit::skip!(
                Machine,
                "{error} (Linux 6.7, and the right to look at this process)"
            ),
        }
    }
}
