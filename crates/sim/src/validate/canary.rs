//! A canary that cannot act proves nothing.

use hiroma_policy::placement::{ReservationKind, ScopeKind};

use super::Problems;
use crate::config::{Canary, Config};

impl Config {
    pub(super) fn check_canary(&self, problems: &mut Problems) {
        // Pages are discarded when their program ends: in a recording none does.
        let needs_programs = [Canary::KeepGuestFrame, Canary::DropDiscard];
        if self.load.trace.is_some() && needs_programs.contains(&self.run.canary) {
            let message = format!("{:?} cannot act while a recording is replayed", self.run.canary);
            problems.add("run.canary", message);
        }
        let between_nodes = !matches!(
            self.run.canary,
            Canary::None | Canary::StaleContent | Canary::LeakFrame | Canary::KeepReservation
        );
        if self.policy.scope == ScopeKind::Disk && between_nodes && !self.confirms() {
            let message = format!(
                "{:?} cannot act where pages go to disks only; set another policy.scope",
                self.run.canary
            );
            problems.add("run.canary", message);
        }
        let reserves = self.policy.scope == ScopeKind::Domain
            && self.policy.reservation != ReservationKind::None;
        if self.run.canary == Canary::KeepReservation && !reserves {
            let message = "KeepReservation cannot act without reservations; set policy.reservation";
            problems.add("run.canary", message.to_owned());
        }
        let with_confirm = match self.run.canary {
            Canary::None | Canary::LosePage | Canary::OverfillNode | Canary::StaleContent => return,
            Canary::ForgetEarly
            | Canary::KeepOrphans
            | Canary::BelieveOld
            | Canary::NeverRepeat
            | Canary::DenyPage
            | Canary::SameEpoch
            | Canary::LateDeadline
            | Canary::KeepVersion => true,
            _ => false,
        };
        if with_confirm != self.confirms() {
            let needed = if with_confirm { "true" } else { "false, without faults" };
            problems.add(
                "run.canary",
                format!("{:?} can only be found with policy.confirm = {needed}", self.run.canary),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use hiroma_policy::placement::{ReservationKind, ScopeKind};

    use crate::config::Canary;
    use crate::validate::tests::problems;

    #[test]
    fn canaries_that_cannot_act_are_refused() {
        let told = |canary, scope, reservation| {
            problems(|config| {
                config.run.canary = canary;
                (config.policy.scope, config.policy.reservation) = (scope, reservation);
            })
        };
        let (domain, disk) = (ScopeKind::Domain, ScopeKind::Disk);
        for canary in Canary::TRUSTING {
            assert_eq!(told(canary, domain, ReservationKind::InAdvance), Vec::<String>::new());
        }
        let refused = told(Canary::KeepReservation, domain, ReservationKind::None);
        assert!(
            refused[0].ends_with("without reservations; set policy.reservation"),
            "{refused:?}"
        );
        let refused = told(Canary::DropDiscard, disk, ReservationKind::None);
        assert!(
            refused[0].contains("DropDiscard cannot act where pages go to disks"),
            "{refused:?}"
        );
        for canary in [Canary::StaleContent, Canary::LeakFrame] {
            assert_eq!(told(canary, disk, ReservationKind::None), Vec::<String>::new());
        }
    }
}
