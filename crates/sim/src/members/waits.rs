//! The longest that each wait of a thread may last, from the deadlines, leases and numbers of
//! repetitions of the protocol.

use hiroma_policy::placement::member::{REPEAT_ANSWERS_MAX, TRIES, WAIT_ANSWERS};
use hiroma_policy::placement::{InformationKind, ReservationKind};

use super::Engine;
use super::node::Doing;
use crate::config::Config;

/// Longest waits, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits {
    /// For a frame: until a page is confirmed elsewhere, or on disk.
    frame_ns: u64,
    /// For a frame of a node that is being emptied: until the owner of a guest has taken it home.
    drained_ns: u64,
    /// For a page, with a frame for it: until it is here, or given up.
    page_ns: u64,
    /// Longer for each node that failed meanwhile: what it had begun to keep is placed again.
    failure_ns: u64,
}

impl Waits {
    /// Those of a valid configuration.
    pub fn new(config: &Config) -> Self {
        let policy = &config.policy;
        let (answer_ns, queue_ns) = (policy.answer_ns, config.queue_ns());
        // An attempt that nobody answers: each repetition after twice the time.
        let tries_ns = answer_ns * ((1 << TRIES) - 1);
        let bids_ns = match policy.information {
            InformationKind::OnDemand => answer_ns,
            InformationKind::OnChange | InformationKind::Periodic => 0,
        };
        let reserving_ns = match policy.reservation {
            ReservationKind::None => 0,
            // Each peer may refuse.
            ReservationKind::OnDemand => {
                answer_ns * (1 + u64::from(policy.peers_max).min(config.nodes()))
            }
            ReservationKind::InAdvance => answer_ns * WAIT_ANSWERS,
        };
        // Pieces are chosen for one after the other, and sent together.
        let choices = u64::from(policy.pieces().1);
        let attempt_ns = (bids_ns + reserving_ns) * choices + tries_ns;
        let out_ns = attempt_ns * (u64::from(policy.attempts_max) + 2) + queue_ns;
        // The host of a guest asks its owner, and then writes it to its disk.
        let displaced_ns = tries_ns + queue_ns;
        // The page that leaves may be used again, or replaced, when it is nearly gone: then another.
        let frame_ns = 2 * out_ns.max(displaced_ns);
        let partitions = config.faults.partitions.iter().map(|part| part.until_ns - part.from_ns);
        let again_ns = 2 * REPEAT_ANSWERS_MAX * answer_ns + partitions.sum::<u64>();
        Waits {
            frame_ns,
            drained_ns: frame_ns + again_ns + policy.give_up_ns + policy.lease_ns,
            page_ns: policy.give_up_ns.max(queue_ns) + queue_ns,
            failure_ns: out_ns,
        }
    }
}

impl Engine<'_> {
    /// A wait of the thread of a node is over, or looked at: no wait lasts longer than deadlines allow.
    /// What waits for a link that does not work is not counted.
    pub(super) fn check_wait(&mut self, number: u32) {
        if self.config.run.check {
            self.out.checks += 1;
            if let Some(what) = self.overdue(number) {
                self.wrong(what);
            }
        }
    }

    fn overdue(&self, number: u32) -> Option<String> {
        let thread = self.nodes[number as usize].thread.as_deref()?;
        let (since_ns, most_ns, what) = match thread.doing {
            Doing::Running => return None,
            Doing::WaitsForFrame if self.drains(number) => {
                (thread.fault_ns, self.waits.drained_ns, "a frame")
            }
            Doing::WaitsForFrame => (thread.fault_ns, self.waits.frame_ns, "a frame"),
            Doing::WaitsForPage => {
                let near_ns = self.specs.of(number).tier_ns;
                (thread.asked_ns, self.waits.page_ns.max(near_ns), "its page")
            }
        };
        if self.outages.has_failed_links() {
            return None;
        }
        let waited_ns = self.now_ns - since_ns.max(self.outages.links_up_ns()).min(self.now_ns);
        let failures = self.crashes - thread.crashes;
        let most_ns = most_ns.saturating_add(failures.saturating_mul(self.waits.failure_ns));
        (waited_ns > most_ns).then(|| {
            format!(
                "node {number} has waited for {what} for {waited_ns} ns, longer than the {most_ns} ns \
                 that deadlines allow (page {:?})",
                thread.pending
            )
        })
    }

    /// Whether a node is emptied at any time.
    fn drains(&self, number: u32) -> bool {
        self.config.faults.drains.iter().any(|drain| drain.node == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_sums_of_deadlines() {
        const MS: u64 = 1_000_000;
        let mut config = Config::default();
        // The disk and the network take no time.
        (config.disk.bytes_per_s, config.network.bytes_per_s) = (1 << 50, 1 << 50);
        (config.network.hop_overhead_ns, config.network.handler_ns) = (0, 0);
        (config.network.page_handler_ns, config.network.message_bytes) = (0, 1);
        let queue_ns = config.queue_ns();
        assert!(queue_ns < 3 * MS, "{queue_ns}");
        let policy = &mut config.policy;
        (policy.answer_ns, policy.attempts_max) = (10 * MS, 2);
        (policy.give_up_ns, policy.lease_ns) = (700 * MS, 300 * MS);
        let waits = Waits::new(&config);
        // Four attempts of 10 + 20 + 40 + 80 ms, and twice that.
        assert_eq!(waits.failure_ns, 600 * MS + queue_ns);
        assert_eq!(waits.frame_ns, 2 * waits.failure_ns);
        assert_eq!(waits.page_ns, 700 * MS + queue_ns);
        assert_eq!(waits.drained_ns, waits.frame_ns + (1_280 + 700 + 300) * MS);
        // Two pieces wait for a round of bids each.
        (config.policy.copies, config.policy.information) = (2, InformationKind::OnDemand);
        assert_eq!(Waits::new(&config).failure_ns, (600 + 4 * 20) * MS + queue_ns);
    }
}
