//! What the network does to a message, and when nodes fail, drawn from the seed of the run.

use hiroma_policy::placement::Rng;

use crate::config::FaultConfig;
use crate::random::exponential;

/// What happens to one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// It does not arrive.
    pub lost: bool,
    /// Additional time, ns.
    pub later_ns: u64,
    /// It arrives once more, so much later, ns.
    pub again_ns: Option<u64>,
}

/// The faults of one run.
#[derive(Debug)]
pub struct Faults {
    config: FaultConfig,
    /// The group of each node in each partition; others are in group 0.
    groups: Vec<Vec<u16>>,
    rng: Rng,
}

impl Faults {
    /// The faults of `seed` among `nodes` nodes.
    pub fn new(config: &FaultConfig, nodes: u32, seed: u64) -> Self {
        let groups_of = |groups: &[Vec<u32>]| {
            let mut of_node = vec![0; nodes as usize];
            for (number, group) in (1..).zip(groups) {
                group.iter().for_each(|&node| of_node[node as usize] = number);
            }
            of_node
        };
        let groups = config.partitions.iter().map(|part| groups_of(&part.groups)).collect();
        Faults { config: config.clone(), groups, rng: Rng::part(seed, 0xfa17) }
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && ((self.rng.next_u64() >> 11) as f64) < share * (1u64 << 53) as f64
    }

    /// What happens to a message that is sent now.
    pub fn fate(&mut self) -> Fate {
        let (loss, duplicate) = (self.config.loss, self.config.duplicate);
        let (reorder, delay) = (self.config.reorder, self.config.delay);
        let lost = self.happens(loss);
        let mut later_ns = 0;
        if self.happens(reorder) {
            later_ns += self.rng.below_u64(self.config.reorder_ns) + 1;
        }
        if self.happens(delay) {
            later_ns += self.exponential_ns(self.config.delay_ns);
        }
        let again_ns = self.happens(duplicate).then(|| self.exponential_ns(self.config.reorder_ns));
        Fate { lost, later_ns, again_ns }
    }

    /// An exponential time, ns.
    pub fn exponential_ns(&mut self, mean_ns: u64) -> u64 {
        exponential(&mut self.rng, mean_ns as f64).min(1 << 40)
    }

    /// Any node.
    pub fn node(&mut self, nodes: u32) -> u32 {
        self.rng.below(nodes)
    }

    /// Whether two nodes cannot reach each other.
    pub fn are_apart(&self, now_ns: u64, a: u32, b: u32) -> bool {
        self.config.partitions.iter().zip(&self.groups).any(|(part, groups)| {
            (part.from_ns..part.until_ns).contains(&now_ns)
                && groups[a as usize] != groups[b as usize]
        })
    }

    /// The longest partition, ns.
    pub fn longest_ns(&self) -> u64 {
        let times = self.config.partitions.iter().map(|part| part.until_ns - part.from_ns);
        times.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PartitionConfig;

    #[test]
    fn shares_are_as_configured_and_a_seed_repeats_them() {
        let config =
            FaultConfig { loss: 0.1, duplicate: 0.2, delay: 0.05, ..FaultConfig::default() };
        let draw = |seed| {
            let mut faults = Faults::new(&config, 4, seed);
            (0..20_000).map(|_| faults.fate()).collect::<Vec<_>>()
        };
        let fates = draw(3);
        assert_eq!(fates, draw(3));
        assert_ne!(fates, draw(4));
        let share = |is: fn(&Fate) -> bool| {
            fates.iter().filter(|fate| is(fate)).count() as f64 / fates.len() as f64
        };
        assert!((share(|fate| fate.lost) - 0.1).abs() < 0.01);
        assert!((share(|fate| fate.again_ns.is_some()) - 0.2).abs() < 0.01);
        assert!((share(|fate| fate.later_ns > 0) - 0.05).abs() < 0.01);
    }

    #[test]
    fn partitions_separate_groups_while_they_last() {
        let part = PartitionConfig { from_ns: 10, until_ns: 20, groups: vec![vec![0, 1], vec![2]] };
        let config = FaultConfig { partitions: vec![part], ..FaultConfig::default() };
        let faults = Faults::new(&config, 5, 1);
        assert!(!faults.are_apart(15, 0, 1) && !faults.are_apart(15, 3, 4));
        assert!(faults.are_apart(15, 1, 2) && faults.are_apart(15, 2, 4));
        assert!(!faults.are_apart(9, 1, 2) && !faults.are_apart(20, 1, 2));
        assert_eq!(faults.longest_ns(), 10);
    }
}
