//! Chooses the item that is requested next.

use rand::Rng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

/// Distribution of the requests over the items.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Rank r is requested in proportion to r to the power of minus `exponent`; ranks are scattered
    /// over the items.
    Zipf { exponent: f64 },
    /// All items alike.
    Uniform,
    /// `requests_percent` of the requests are for `items_percent` of the items, those that were
    /// stored first; both parts are uniform (as YCSB's hotspot distribution).
    Hotspot { items_percent: u32, requests_percent: u32 },
}

/// Draws item numbers.
pub struct Keys {
    items: u64,
    kind: Kind,
}

enum Kind {
    Zipf(Zipf<f64>),
    Uniform,
    Hotspot { hot_items: u64, requests_percent: u32 },
}

impl Keys {
    /// Draws numbers from 0 to `items` (exclusive; at least 1 item).
    pub fn new(items: u64, distribution: Distribution) -> Result<Keys, String> {
        if items == 0 {
            return Err("there has to be at least one item".to_owned());
        }
        let kind = match distribution {
            Distribution::Uniform => Kind::Uniform,
            Distribution::Zipf { exponent } => Kind::Zipf(
                Zipf::new(items as f64, exponent)
                    .map_err(|error| format!("zipf exponent {exponent}: {error}"))?,
            ),
            Distribution::Hotspot { items_percent, requests_percent } => {
                let hot_items = u128::from(items) * u128::from(items_percent) / 100;
                match u64::try_from(hot_items) {
                    Ok(hot_items @ 1..) if hot_items < items && requests_percent <= 100 => {
                        Kind::Hotspot { hot_items, requests_percent }
                    }
                    _ => {
                        return Err(format!(
                            "{requests_percent} % of the requests for {items_percent} % of {items} items: both parts need an item, and a share is 0 to 100 %"
                        ));
                    }
                }
            }
        };
        Ok(Keys { items, kind })
    }

    /// Draws the next number.
    pub fn draw(&self, rng: &mut SmallRng) -> u64 {
        match &self.kind {
            Kind::Uniform => rng.random_range(0..self.items),
            Kind::Zipf(zipf) => scatter(zipf.sample(rng) as u64 - 1) % self.items,
            Kind::Hotspot { hot_items, requests_percent } => {
                match rng.random_range(0..100) < *requests_percent {
                    true => rng.random_range(0..*hot_items),
                    false => rng.random_range(*hot_items..self.items),
                }
            }
        }
    }
}

/// Fowler-Noll-Vo, 64 bits: separates popular ranks from each other (as YCSB's scrambled zipfian
/// does).
fn scatter(rank: u64) -> u64 {
    rank.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The key of an item: `user` and a number, 24 bytes, like YCSB's.
pub fn key_of(item: u64) -> String {
    format!("user{:020}", scatter(item))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use rand::SeedableRng;

    fn counts_by_item(distribution: Distribution) -> BTreeMap<u64, u32> {
        let keys = Keys::new(1000, distribution).unwrap();
        let mut rng = SmallRng::seed_from_u64(7);
        let mut counts = BTreeMap::new();
        for _ in 0..100_000 {
            *counts.entry(keys.draw(&mut rng)).or_insert(0u32) += 1;
        }
        assert!(counts.keys().all(|&item| item < 1000));
        counts
    }

    fn counts(distribution: Distribution) -> Vec<u32> {
        let counts = counts_by_item(distribution);
        let mut counts: Vec<u32> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn zipf_is_skewed_and_uniform_is_even() {
        let zipf = counts(Distribution::Zipf { exponent: 0.99 });
        let uniform = counts(Distribution::Uniform);
        // The first rank has 1 / sum(r^-0.99) = 13 % of the requests; a uniform item about 0.1 %.
        assert!((11_000..16_000).contains(&zipf[0]), "{}", zipf[0]);
        assert!(uniform[0] < 200 && uniform.len() == 1000, "{}", uniform[0]);
    }

    #[test]
    fn hot_spot_has_configured_items_and_requests() {
        let counts =
            counts_by_item(Distribution::Hotspot { items_percent: 33, requests_percent: 95 });
        let hot: u32 = counts.range(..330).map(|(_, count)| count).sum();
        assert!((94_000..96_000).contains(&hot) && counts.len() > 900, "{hot}");
        for (items_percent, requests_percent) in [(0, 95), (100, 95), (33, 101)] {
            assert!(
                Keys::new(10, Distribution::Hotspot { items_percent, requests_percent }).is_err()
            );
        }
    }

    #[test]
    fn keys_have_one_length_and_differ() {
        let keys: std::collections::BTreeSet<String> = (0..10_000).map(key_of).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(keys.iter().all(|key| key.len() == 24));
    }

    #[test]
    fn invalid_distributions_are_refused() {
        assert!(Keys::new(0, Distribution::Uniform).is_err());
        assert!(Keys::new(10, Distribution::Zipf { exponent: -1.0 }).is_err());
        assert!(Keys::new(10, Distribution::Zipf { exponent: f64::NAN }).is_err());
    }
}
