//! Who gets how much of what a server lends: quotas, and shares by weight.

/// Of what is lent, the part that only tenants below their share get, while there are several.
const KEPT: u64 = 16;

/// What a tenant has. All amounts are in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// In use or set aside for it.
    pub held: u64,
    /// What it may have at most.
    pub quota: Option<u64>,
    /// Its weight; not zero.
    pub weight: u32,
}

/// What a server lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Altogether.
    pub total: u64,
    /// Neither in use nor set aside.
    pub left: u64,
    /// Sum of the weights of all tenants that are there, with the one that asks.
    pub weights: u64,
}

/// The answer to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// So many chunks, at least one.
    Chunks(u64),
    /// Its quota is used up.
    Quota,
    /// Nothing is left for it.
    Full,
}

/// A tenant's share by weight.
pub fn fair_share(weight: u32, lent: &Lent) -> u64 {
    lent.total * u64::from(weight) / lent.weights.max(u64::from(weight)).max(1)
}

/// How much of `asked` a tenant gets: at most half of what is left, so that others get some too.
/// The last sixteenth is for tenants that have less than their share, while there are several.
pub fn grant(asked: u64, tenant: &Holding, lent: &Lent) -> Grant {
    let under_quota = tenant.quota.map_or(u64::MAX, |quota| quota.saturating_sub(tenant.held));
    if under_quota == 0 {
        return Grant::Quota;
    }
    let has_others = lent.weights > u64::from(tenant.weight);
    let is_above = tenant.held >= fair_share(tenant.weight, lent);
    let kept = if has_others && is_above { lent.total / KEPT } else { 0 };
    let left = lent.left.saturating_sub(kept);
    match asked.min(under_quota).min(left.div_ceil(2)) {
        0 => Grant::Full,
        chunks => Grant::Chunks(chunks),
    }
}

/// In how many threads a tenant copies at a time, while others do too: its share of the processors
/// by weight, and one at least.
pub fn threads(processors: usize, weight: u32, weights: u64) -> usize {
    let weights = weights.max(u64::from(weight)).max(1);
    usize::try_from(processors as u64 * u64::from(weight) / weights).unwrap_or(processors).max(1)
}

/// Chunks that a tenant gets beyond what it has, at least, while memory is short.
const SLACK_MIN: u64 = 32;
/// The same as a part of what it has.
const SLACK: u64 = 8;

/// How much of `asked` a tenant gets while the machine needs its memory and there is a disk.
/// `held_then` is what it had when that began. One that rewrites what it has needs a little more at
/// times, and would fail without it; nobody gets more than that.
pub fn grant_while_short(asked: u64, tenant: &Holding, held_then: u64) -> Grant {
    let under_quota = tenant.quota.map_or(u64::MAX, |quota| quota.saturating_sub(tenant.held));
    if under_quota == 0 {
        return Grant::Quota;
    }
    let slack = if held_then > 0 { SLACK_MIN.max(held_then / SLACK) } else { 0 };
    let left = (held_then + slack).saturating_sub(tenant.held);
    match asked.min(under_quota).min(left.div_ceil(2)) {
        0 => Grant::Full,
        chunks => Grant::Chunks(chunks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENT: Lent = Lent { total: 160, left: 160, weights: 1 };

    fn holding(held: u64, quota: Option<u64>) -> Holding {
        Holding { held, quota, weight: 1 }
    }

    #[test]
    fn quota_is_never_passed() {
        assert_eq!(grant(64, &holding(0, Some(10)), &LENT), Grant::Chunks(10));
        assert_eq!(grant(64, &holding(9, Some(10)), &LENT), Grant::Chunks(1));
        assert_eq!(grant(1, &holding(10, Some(10)), &LENT), Grant::Quota);
        assert_eq!(grant(1, &holding(11, Some(10)), &LENT), Grant::Quota);
        let full = Lent { left: 0, ..LENT };
        assert_eq!(grant(1, &holding(10, Some(10)), &full), Grant::Quota, "the nearer reason");
        assert_eq!(grant(1, &holding(5, Some(10)), &full), Grant::Full);
    }

    #[test]
    fn one_alone_gets_everything_in_halves() {
        let mut lent = LENT;
        let mut held = 0;
        while let Grant::Chunks(chunks) = grant(64, &holding(held, None), &lent) {
            assert!(chunks <= lent.left.div_ceil(2));
            (held, lent.left) = (held + chunks, lent.left - chunks);
        }
        assert_eq!((held, lent.left), (160, 0));
    }

    #[test]
    fn processors_are_shared_by_weight() {
        assert_eq!((threads(2, 1, 2), threads(2, 1, 100), threads(2, 1, 1)), (1, 1, 2));
        assert_eq!((threads(16, 3, 4), threads(16, 1, 4)), (12, 4));
        assert_eq!(threads(4, 1, 0), 4);
    }

    #[test]
    fn only_who_has_something_gets_a_little_more_while_memory_is_short() {
        assert_eq!(grant_while_short(64, &holding(0, None), 0), Grant::Full);
        let mut held = 800;
        while let Grant::Chunks(chunks) = grant_while_short(64, &holding(held, None), 800) {
            held += chunks;
        }
        assert_eq!(held, 900);
        assert_eq!(grant_while_short(64, &holding(900, Some(900)), 900), Grant::Quota);
        assert_eq!(grant_while_short(64, &holding(10, None), 10), Grant::Chunks(16));
        // What it has freed in the meantime it may have again.
        assert_eq!(grant_while_short(64, &holding(700, None), 800), Grant::Chunks(64));
    }

    #[test]
    fn greedy_one_leaves_some_to_who_has_less_than_its_share() {
        let mut lent = Lent { weights: 2, ..LENT };
        let mut held = 0;
        while let Grant::Chunks(chunks) = grant(64, &holding(held, None), &lent) {
            (held, lent.left) = (held + chunks, lent.left - chunks);
        }
        assert_eq!((held, lent.left), (150, 10));
        assert_eq!(grant(64, &holding(0, None), &lent), Grant::Chunks(5));
        // Who has a greater weight has a greater share.
        let heavy = Holding { held: 100, quota: None, weight: 3 };
        let lent = Lent { total: 160, left: 8, weights: 4 };
        assert_eq!(fair_share(3, &lent), 120);
        assert_eq!(grant(64, &heavy, &lent), Grant::Chunks(4));
        assert_eq!(grant(64, &holding(100, None), &lent), Grant::Full);
    }
}
