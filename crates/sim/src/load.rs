//! The load of the paper (section 3): processes that arrive at random, threads that run to
//! completion one at a time on a node, and page accesses in phases, each around a middle of its
//! own.

use hiroma_policy::placement::Rng;

use crate::config::{LoadConfig, Spread, ThreadPlacement};
use crate::random::{Normal, exponential};

/// Fraction bits of a position in pages.
const FRACTION_BITS: u32 = 16;

/// A thread that has been created, and has not started.
#[derive(Clone, Copy, Debug)]
pub struct ThreadPlan {
    /// Its process.
    pub process: u32,
    /// Pages of its program.
    pub pages: u32,
    /// Seed of its accesses.
    pub seed: u64,
}

/// Draws processes. A seed gives the same processes under all policies.
#[derive(Debug)]
pub struct Arrivals {
    rng: Rng,
    seed: u64,
    mean_ns: f64,
    count: u64,
}

impl Arrivals {
    /// The processes of `seed`.
    pub fn new(config: &LoadConfig, seed: u64) -> Self {
        Arrivals { rng: Rng::part(seed, 1), seed, mean_ns: 1e9 / config.arrivals_per_s, count: 0 }
    }

    /// Time from one process to the next, ns.
    pub fn gap_ns(&mut self) -> u64 {
        exponential(&mut self.rng, self.mean_ns).min(1 << 46)
    }

    /// The threads of the next process, `process`: node and plan of each.
    pub fn process(
        &mut self,
        config: &LoadConfig,
        normal: &Normal,
        nodes: u32,
        process: u32,
        threads: &mut Vec<(u32, ThreadPlan)>,
    ) {
        self.count += 1;
        let mut rng = Rng::part(self.seed, self.count << 8 | 2);
        let count =
            normal.draw(&mut rng, config.threads_mean.into(), config.threads_sd.into()).max(1);
        let first = rng.below(nodes);
        for thread in 0..count as u32 {
            let node = match config.threads_on {
                ThreadPlacement::Random => rng.below(nodes),
                ThreadPlacement::Together => (first + thread) % nodes,
            };
            let (least, most) = (config.virtual_pages_min, config.virtual_pages_max);
            let pages = match config.virtual_spread {
                Spread::Uniform => least + rng.below(most - least + 1),
                Spread::Normal => {
                    let (middle, sd) = (
                        (i64::from(least) + i64::from(most)) / 2,
                        (i64::from(most) - i64::from(least)) / 6,
                    );
                    normal.draw(&mut rng, middle, sd).clamp(least.into(), most.into()) as u32
                }
            };
            threads.push((node, ThreadPlan { process, pages, seed: rng.next_u64() }));
        }
    }
}

/// The accesses of one thread.
#[derive(Clone, Debug)]
pub struct Accesses {
    rng: Rng,
    pages: u32,
    /// Remaining accesses.
    pub left: u32,
    /// Accesses until a phase ends and another begins.
    phase_left: u32,
    phase_length: u32,
    next_phase: u32,
    /// Middle of each phase that the thread is in, in pages with a fraction.
    middles: Middles,
    /// Standard deviation around the middle, in pages with a fraction.
    spread: i64,
    reads_per_write: u64,
}

/// One phase is the usual case, and needs no allocation.
#[derive(Clone, Debug)]
enum Middles {
    One(i64),
    Several(Box<[i64]>),
}

impl Accesses {
    /// The accesses of the thread `plan`.
    pub fn new(config: &LoadConfig, plan: &ThreadPlan) -> Self {
        let mut rng = Rng::new(plan.seed);
        let mut middle = || draw_middle(&mut rng, plan.pages);
        let middles = match config.phases_at_once {
            1 => Middles::One(middle()),
            several => Middles::Several((0..several).map(|_| middle()).collect()),
        };
        let phase_length = (config.phase_accesses / config.phases_at_once).max(1);
        Accesses {
            rng,
            pages: plan.pages,
            left: config.accesses,
            phase_left: phase_length,
            phase_length,
            next_phase: 0,
            middles,
            spread: (i64::from(plan.pages) << FRACTION_BITS) * i64::from(config.locality_permille)
                / 1000,
            reads_per_write: config.reads_per_write.into(),
        }
    }

    /// The next access: page, and whether it is a write.
    #[inline]
    pub fn draw(&mut self, normal: &Normal) -> (u32, bool) {
        if self.phase_left == 0 {
            self.new_phase();
        }
        self.phase_left -= 1;
        self.left -= 1;
        let bits = self.rng.next_u64();
        let middle = match &self.middles {
            Middles::One(middle) => *middle,
            Middles::Several(middles) => middles[(bits as usize & 0xff) % middles.len()],
        };
        let place = middle + ((normal.quantile((bits >> 36) as u32) * self.spread) >> 16);
        // A position outside of the program is reflected into it.
        let end = i64::from(self.pages) << FRACTION_BITS;
        let mut place = if place < 0 { -place - 1 } else { place };
        if place >= end {
            place = (2 * end - place - 1).rem_euclid(end);
        }
        let write = ((bits >> 8 & 0xff_ffff) * (self.reads_per_write + 1)) >> 24 == 0;
        ((place >> FRACTION_BITS) as u32, write)
    }

    fn new_phase(&mut self) {
        self.phase_left = self.phase_length;
        let middle = draw_middle(&mut self.rng, self.pages);
        match &mut self.middles {
            Middles::One(old) => *old = middle,
            Middles::Several(middles) => {
                let count = middles.len();
                middles[self.next_phase as usize % count] = middle;
                self.next_phase += 1;
            }
        }
    }
}

fn draw_middle(rng: &mut Rng, pages: u32) -> i64 {
    let bits = rng.next_u64() >> 24;
    ((u128::from(bits) * (u128::from(pages) << FRACTION_BITS)) >> 40) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn accesses(pages: u32, change: impl FnOnce(&mut LoadConfig)) -> Vec<(u32, bool)> {
        let mut config = LoadConfig::default();
        change(&mut config);
        let (normal, mut accesses) =
            (Normal::new(), Accesses::new(&config, &ThreadPlan { process: 0, pages, seed: 11 }));
        std::iter::from_fn(|| (accesses.left > 0).then(|| accesses.draw(&normal))).collect()
    }

    #[test]
    fn a_thread_makes_its_accesses_within_its_program() {
        for pages in [1, 2, 3, 64, 1000] {
            for locality in [1, 100, 10_000] {
                let all = accesses(pages, |config| config.locality_permille = locality);
                assert_eq!(all.len(), 3600);
                assert!(
                    all.iter().all(|&(page, _)| page < pages),
                    "{pages} pages, locality {locality}"
                );
            }
        }
    }

    #[test]
    fn one_access_in_eleven_is_a_write() {
        let writes = accesses(64, |config| config.accesses = 110_000)
            .iter()
            .filter(|(_, write)| *write)
            .count();
        assert!((9_600..10_400).contains(&writes), "{writes}");
        assert!(accesses(64, |config| config.reads_per_write = 0).iter().all(|(_, write)| *write));
    }

    #[test]
    fn phases_are_local_and_cover_the_program() {
        let all = accesses(1000, |config| config.accesses = 60_000);
        let spread = |part: &[(u32, bool)]| {
            let mean =
                part.iter().map(|&(page, _)| f64::from(page)).sum::<f64>() / part.len() as f64;
            (part.iter().map(|&(page, _)| (f64::from(page) - mean).powi(2)).sum::<f64>()
                / part.len() as f64)
                .sqrt()
        };
        let within: Vec<f64> = all.chunks(60).map(spread).collect();
        let mean = within.iter().sum::<f64>() / within.len() as f64;
        assert!(
            (80.0..101.0).contains(&mean),
            "about 100 inside, less where the borders reflect: {mean}"
        );
        assert!(spread(&all) > 250.0, "{}", spread(&all));
    }

    #[test]
    fn several_phases_at_once_take_turns() {
        let one = accesses(1000, |config| {
            (config.accesses, config.phase_accesses, config.locality_permille) = (600, 600, 1)
        });
        let four = accesses(1000, |config| {
            (
                config.accesses,
                config.phase_accesses,
                config.locality_permille,
                config.phases_at_once,
            ) = (150, 600, 1, 4);
        });
        let groups = |all: &[(u32, bool)]| {
            all.iter().map(|&(page, _)| page / 20).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert!(
            groups(&one) <= 2 && (3..=8).contains(&groups(&four)),
            "{} {}",
            groups(&one),
            groups(&four)
        );
    }

    #[test]
    fn process_sizes_and_thread_counts_match_configuration() {
        let (config, normal) = (LoadConfig::default(), Normal::new());
        let mut arrivals = Arrivals::new(&config, 5);
        let mut threads = Vec::new();
        (0..2000)
            .for_each(|process| arrivals.process(&config, &normal, 256, process, &mut threads));
        let mut by_process = BTreeMap::<u32, u32>::new();
        threads.iter().for_each(|(_, plan)| *by_process.entry(plan.process).or_default() += 1);
        assert!((8.8..9.2).contains(&(threads.len() as f64 / 2000.0)), "{}", threads.len());
        assert_eq!(by_process.len(), 2000);
        let mean = threads.iter().map(|(_, plan)| f64::from(plan.pages)).sum::<f64>()
            / threads.len() as f64;
        assert!((63.5..65.5).contains(&mean), "{mean}");
        assert!(threads.iter().all(|(node, plan)| *node < 256 && (1..=128).contains(&plan.pages)));
    }
}
