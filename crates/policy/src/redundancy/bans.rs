//! Servers that returned other bytes than were sent there are not used for a while, and for longer
//! each time: what is wrong with one is rarely gone a second later.

/// How long after the first time, and at most.
const FIRST_NS: u64 = 600_000_000_000;
const LONGEST_NS: u64 = 86_400_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Ban {
    server: usize,
    times: u32,
    until_ns: u64,
}

/// The servers, by number, and until when each is left out.
#[derive(Clone, Debug, Default)]
pub struct Bans(Vec<Ban>);

impl Bans {
    /// Leaves a server out from now on. Returns for how long.
    pub fn add(&mut self, server: usize, now_ns: u64) -> u64 {
        let times = self.0.iter().find(|ban| ban.server == server).map_or(0, |ban| ban.times);
        self.forget(server);
        let lasts_ns = FIRST_NS.saturating_mul(1 << times.min(16)).min(LONGEST_NS);
        let until_ns = now_ns.saturating_add(lasts_ns);
        self.0.push(Ban { server, times: times + 1, until_ns });
        lasts_ns
    }

    /// Whether a server is left out now.
    pub fn has(&self, server: usize, now_ns: u64) -> bool {
        self.0.iter().any(|ban| ban.server == server && now_ns < ban.until_ns)
    }

    /// Another server has this number.
    pub fn forget(&mut self, server: usize) {
        self.0.retain(|ban| ban.server != server);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_twice_as_long_until_it_is_a_day() {
        let mut bans = Bans::default();
        assert!(!bans.has(3, 1));
        assert_eq!(bans.add(3, 1_000), FIRST_NS);
        assert!(bans.has(3, 2_000) && !bans.has(4, 2_000));
        assert!(bans.has(3, 999 + FIRST_NS) && !bans.has(3, 1_000 + FIRST_NS));
        assert_eq!(bans.add(3, FIRST_NS), 2 * FIRST_NS);
        assert_eq!(bans.add(3, FIRST_NS), 4 * FIRST_NS);
        assert_eq!((0..40).map(|_| bans.add(3, u64::MAX)).last(), Some(LONGEST_NS));
        bans.forget(3);
        assert!(!bans.has(3, 2_000));
        assert_eq!(bans.add(3, 1_000), FIRST_NS, "it is another server");
    }
}
