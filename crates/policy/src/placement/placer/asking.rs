//! Questions to peers: bids and reservations, and what becomes of those that nobody answers.

use super::{Command, Dealings, Leaving, Placer, SILENT_REFRESHES, send};
use crate::placement::choice::Choice;
use crate::placement::config::ReservationKind;
use crate::placement::reservation::Reserved;
use crate::placement::view::{Avoid, Peer};

impl Placer {
    /// Ends what has waited too long, and reports again what a peer may not have received.
    pub(super) fn expire(&mut self, now_ns: u64, commands: &mut Vec<Command>) {
        self.dealings().promises.expire(now_ns);
        if let Some(silent) = self.dealings().bids.expire(now_ns) {
            silent.into_iter().for_each(|peer| self.unknown(now_ns, peer, commands));
            self.place_bidding(now_ns, commands);
        }
        while let Some((id, peer, page)) = self.dealings().on_demand.expired(now_ns) {
            commands.push(Command::ReleaseReservation { peer, id });
            self.unknown(now_ns, peer, commands);
            self.place(now_ns, Leaving { attempts: page.attempts + 1, ..page }, commands);
        }
        let mut again = false;
        while let Some(Reserved { id, peer, .. }) = self.dealings().in_advance.expired(now_ns) {
            commands.push(Command::ReleaseReservation { peer, id });
            self.unknown(now_ns, peer, commands);
            again = true;
        }
        while let Some(page) = self.dealings().in_advance.overdue(now_ns) {
            commands.push(Command::SendToDisk(page));
        }
        if again && self.wants_frames() {
            self.reserve(now_ns, commands);
        }
        if self.dealings().refresh_ns <= now_ns {
            let limit_ns = self.shared.config.refresh_ns * SILENT_REFRESHES;
            let silent: Vec<Peer> =
                self.dealings().hearing.silent(now_ns.saturating_sub(limit_ns)).collect();
            silent.into_iter().for_each(|peer| self.unknown(now_ns, peer, commands));
            self.tell(now_ns, commands);
        }
    }

    pub(super) fn ask_bids(&mut self, now_ns: u64, commands: &mut Vec<Command>) {
        if self.dealings().bids.under_way() {
            return;
        }
        let confirm = self.shared.config.confirm;
        let deadline_ns = confirm.then_some(self.answer_until_ns(now_ns));
        let id = self.next_id();
        let all = self.view.len() as u16;
        let Dealings { bids, left, .. } = self.dealings();
        bids.ask(id, (0..all).map(|peer| !left.contains(&Peer(peer))), deadline_ns);
        commands.push(Command::AskBids { id });
    }

    /// Whether frames are to be reserved: one that is no longer needed is not requested again.
    pub(super) fn wants_frames(&mut self) -> bool {
        self.free <= self.shared.frames / 2 || self.dealings().in_advance.waiting() > 0
    }

    /// Requests as many frames as should be reserved. If there is no peer to ask, waiting pages go
    /// to disk.
    pub(super) fn reserve(&mut self, now_ns: u64, commands: &mut Vec<Command>) {
        let wanted = self.shared.config.reserve_frames;
        while self.dealings().in_advance.missing(wanted) > 0 {
            let Some(peer) = self.choice.choose(&self.view, Avoid::default(), &mut self.rng) else {
                while let Some(page) = self.dealings().in_advance.give_up() {
                    commands.push(Command::SendToDisk(page));
                }
                return;
            };
            let (id, until_ns) = (self.next_id(), self.answer_until_ns(now_ns));
            self.dealings().in_advance.asked(Reserved { id, peer, until_ns });
            commands.push(Command::AskReservation { peer, id });
        }
    }

    pub(super) fn reservation_answered(
        &mut self,
        now_ns: u64,
        peer: Peer,
        id: u64,
        granted: bool,
        commands: &mut Vec<Command>,
    ) {
        if granted {
            self.count_send(peer);
        } else {
            self.view.set(peer, 0);
        }
        if self.shared.config.reservation == ReservationKind::InAdvance {
            self.advance_answered(now_ns, peer, id, granted, commands);
            return;
        }
        match self.dealings().on_demand.answered(id) {
            Some(page) if granted => commands.push(send(page, peer, Some(id))),
            Some(page) => self.place_known(now_ns, page, commands),
            None if granted => commands.push(Command::ReleaseReservation { peer, id }),
            None => (),
        }
    }

    fn advance_answered(
        &mut self,
        now_ns: u64,
        peer: Peer,
        id: u64,
        granted: bool,
        commands: &mut Vec<Command>,
    ) {
        if !granted {
            let was_under_way = self.dealings().in_advance.refused(id);
            if was_under_way && self.wants_frames() {
                self.reserve(now_ns, commands);
            }
            return;
        }
        // The lender counts from its answer, so that the frame is certain for half of the lease.
        let config = &self.shared.clone().config;
        let more_ns = (config.lease_ns / 2).saturating_sub(config.answer_ns);
        match self.dealings().in_advance.granted(id, more_ns) {
            None => {
                // A repeated answer must not release a frame that is in use.
                if !self.dealings().in_advance.has(id) {
                    commands.push(Command::ReleaseReservation { peer, id });
                }
            }
            Some(Some(page)) if config.confirm && page.avoid.has(peer) => {
                commands.push(Command::ReleaseReservation { peer, id });
                commands.push(Command::SendToDisk(page));
            }
            Some(Some(page)) => {
                commands.push(send(page, peer, Some(id)));
                self.reserve(now_ns, commands);
            }
            Some(None) => (),
        }
    }

    pub(super) fn bid(
        &mut self,
        now_ns: u64,
        peer: Peer,
        id: u64,
        free: u32,
        commands: &mut Vec<Command>,
    ) {
        let confirm = self.shared.config.confirm;
        if confirm && !self.dealings().bids.expects(id, peer) {
            return;
        }
        self.view.set(peer, free);
        if self.dealings().bids.answered(id, peer) {
            self.place_bidding(now_ns, commands);
        }
    }

    /// Places the pages that waited for a round of bids.
    pub(super) fn place_bidding(&mut self, now_ns: u64, commands: &mut Vec<Command>) {
        for page in std::mem::take(&mut self.dealings().bidding) {
            self.place_known(now_ns, page, commands);
            // The next page of the round takes this one into account.
            if let Some(Command::Send { to, .. } | Command::AskReservation { peer: to, .. }) =
                commands.last()
            {
                let to = *to;
                self.view.set(to, self.view.free(to).saturating_sub(1));
            }
        }
    }
}
