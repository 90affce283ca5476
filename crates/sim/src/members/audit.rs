//! The checks: they look at all nodes at once, which no node can.

use std::collections::BTreeSet;

use super::Engine;
use super::node::{Doing, Kept, Medium, State};
use crate::error::{RunError, Stuck, Violation};
use crate::script;

impl Engine<'_> {
    /// Records a broken rule; the first one counts.
    pub(super) fn wrong(&mut self, what: String) {
        let (now_ns, event) = (self.now_ns, self.events);
        if self.config.run.check {
            self.violation.get_or_insert(Violation { now_ns, event, what });
        }
    }

    /// How often a page was written.
    fn written(&self, number: u32, token: u64) -> Option<u32> {
        let thread = self.nodes[number as usize].thread.as_ref()?;
        Some(thread.written[thread.page(token)? as usize])
    }

    /// A page is given up at its owner because it is kept elsewhere: what is there is the page.
    pub(super) fn check_placed(&mut self, number: u32, token: u64) {
        self.out.checks += 1;
        let Some(written) = self.written(number, token) else { return };
        let Some(member) = &self.nodes[number as usize].member else { return };
        for (host, _) in member.places(token) {
            let content = self.nodes[host as usize].guest(number, token);
            if let Some((content, _)) = content.filter(|&(content, _)| content != written) {
                self.wrong(format!(
                    "node {number} gives up page {token:#x}, written {written} times, but node {host} has content {content}"
                ));
                return;
            }
        }
    }

    /// Whether a partition lasts so long that what is lost by it cannot be told from what is lost.
    fn is_cut_for_long(&self) -> bool {
        let run = &self.config.run;
        let of_links_ns = self.outages.of_links_ns(run.warmup_ns + run.duration_ns);
        let longest_ns = self.faults.longest_ns().max(of_links_ns);
        longest_ns * 2 >= self.policy.lease_ns.min(self.policy.give_up_ns)
    }

    /// A host frees a guest: its owner must not believe it to be there.
    pub(super) fn check_not_relied_on(&mut self, host: u32, owner: u32, token: u64) {
        self.out.checks += 1;
        let Some(member) = &self.nodes[owner as usize].member else { return };
        if member.places(token).iter().any(|&(node, _)| node == host) && !self.is_cut_for_long() {
            self.wrong(format!(
                "node {host} frees page {token:#x} of node {owner}, which believes it to be there"
            ));
        }
    }

    /// Remembers which pieces an owner has accepted as kept by a host.
    pub(super) fn note_accepted(&mut self, owner: u32, reported: Option<(u32, Vec<(u64, u64)>)>) {
        let Some((host, pieces)) = reported else { return };
        let Some(member) = &self.nodes[owner as usize].member else { return };
        for (token, attempt) in pieces {
            if member.places(token).contains(&(host, attempt)) {
                self.accepted.insert((owner, token, host, attempt));
            }
        }
    }

    /// A host does not keep a piece any longer, or its owner has discarded it.
    pub(super) fn forget_accepted(&mut self, host: u32, owner: u32, token: u64, attempt: u64) {
        let range = (owner, token, host, 0)..=(owner, token, host, attempt);
        let old: Vec<_> = self.accepted.range(range).copied().collect();
        for piece in &old {
            self.accepted.remove(piece);
        }
    }

    /// An owner declares a page lost: so few pieces of it are left that nobody could read it.
    pub(super) fn check_lost(&mut self, number: u32, token: u64, version: u64) {
        self.out.checks += 1;
        let Some(written) = self.written(number, token) else { return };
        let pieces: BTreeSet<u8> = (0..)
            .zip(&self.nodes)
            .filter(|(_, node)| {
                node.guest(number, token).is_some_and(|(content, _)| content == written)
            })
            .filter_map(|(host, node)| Some((host, node.member.as_ref()?.guest(number, token)?)))
            // Attempts of this page-out have greater numbers than it. Others, and copies of which the
            // owner never heard, are left-overs that are about to be discarded.
            .filter(|&(host, (_, attempt))| {
                attempt > version && self.accepted.contains(&(number, token, host, attempt))
            })
            .map(|(_, (name, _))| name.piece)
            .collect();
        if pieces.len() >= self.pieces() as usize && !self.is_cut_for_long() {
            self.wrong(format!(
                "node {number} gives up page {token:#x} as lost, but pieces {pieces:?} of it are kept"
            ));
        }
    }

    /// What holds between any two events.
    pub(super) fn audit(&mut self) {
        for number in 0..self.nodes.len() as u32 {
            if let Some(what) = self.audit_node(number).or_else(|| self.audit_tier(number)) {
                self.wrong(format!("node {number} {what}"));
                return;
            }
            self.check_wait(number);
        }
    }

    fn audit_node(&mut self, number: u32) -> Option<String> {
        let (pieces, frames) = (self.pieces(), self.specs.of(number).frames);
        let node = &self.nodes[number as usize];
        let member = node.member.as_ref()?;
        self.out.checks += node.slots.len() as u64 + 1;
        let used = node.used(pieces);
        if used > frames {
            return Some(format!("has {used} frames in use, of {frames}"));
        }
        let waits =
            |thread: &super::node::Thread| thread.doing == Doing::WaitsForPage && !thread.replays;
        let framed = node.thread.as_ref().is_some_and(|thread| waits(thread));
        let own = node.kept().filter(|kept| matches!(kept, Kept::Own(_))).count() as u32;
        if own + u32::from(framed) != node.own_frames {
            return Some(format!("has {} own frames in use for {own} pages", node.own_frames));
        }
        let guests = node.kept().count() as u32 - own;
        if guests != node.guest_slots {
            return Some(format!("has {} slots in use for {guests} guests", node.guest_slots));
        }
        let claimed: BTreeSet<(u32, u64)> =
            member.guests().map(|(name, _)| (name.owner, name.page)).collect();
        if let Some(key) = claimed.iter().find(|key| !node.guests.contains_key(key)) {
            return Some(format!("says that it keeps {key:x?}, and does not have it"));
        }
        if let Some((key, _)) = node.guests.iter().find(|(key, _)| !claimed.contains(key)) {
            return Some(format!("has {key:x?} without keeping it"));
        }
        None
    }

    /// A thread that has waited too long, with all links working; with 0, one that waits at all.
    pub(super) fn find_stuck(&self, after_ns: u64) -> Result<(), RunError> {
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(thread) = node.thread.as_ref() else { continue };
            let since_ns = thread.fault_ns.max(self.outages.links_up_ns());
            if thread.doing != Doing::Running && self.now_ns - since_ns >= after_ns {
                let what = format!(
                    "node {number} has waited for page {:?} since {} ns ({:?}), which is {:?}",
                    thread.pending,
                    thread.fault_ns,
                    thread.doing,
                    thread.pending.map(|(page, _)| thread.pages[page as usize]),
                );
                let (now_ns, event) = (self.now_ns, self.events);
                return Err(RunError::Stuck(Stuck { now_ns, event, what }));
            }
        }
        Ok(())
    }

    /// What holds when nothing has happened for some leases.
    pub(super) fn rest(&mut self) {
        self.audit();
        for number in 0..self.nodes.len() as u32 {
            let what = self.rest_of_owner(number).or_else(|| self.rest_of_host(number));
            if let Some(what) = what {
                self.wrong(format!("node {number} {what}, and nothing is under way"));
                return;
            }
        }
    }

    fn rest_of_owner(&mut self, number: u32) -> Option<String> {
        let node = &self.nodes[number as usize];
        let member = node.member.as_ref()?;
        if member.under_way() > 0 {
            let pages = member.busy();
            return Some(format!("is still placing {} pages: {pages}", member.under_way()));
        }
        if !node.held.is_empty() || !node.carried.is_empty() || node.evicting > 0 {
            return Some(format!(
                "holds {} pages, carries {}, and evicts {}",
                node.held.len(),
                node.carried.len(),
                node.evicting
            ));
        }
        let thread = node.thread.as_ref();
        let out: BTreeSet<u64> = thread
            .iter()
            .flat_map(|thread| {
                (0..).zip(&thread.pages).map(|(page, state)| (thread.token(page), state))
            })
            .filter(|(_, state)| **state == State::Out)
            .map(|(token, _)| token)
            .collect();
        let known: BTreeSet<u64> = member.pages_out().collect();
        if let Some(token) = out.symmetric_difference(&known).next() {
            return Some(format!("does not know whether page {token:#x} is out"));
        }
        let all = usize::from(self.policy.pieces().1);
        for &token in &known {
            self.out.checks += 1;
            let places = member.places(token);
            let nodes: BTreeSet<u32> = places.iter().map(|&(host, _)| host).collect();
            // None: on disk, or lost. Else whole.
            let is_whole = places.len() == all && nodes.len() == all;
            if !places.is_empty() && !is_whole && !self.was_lost() {
                return Some(format!("has pieces of page {token:#x} at {places:?} only"));
            }
            let written = self.written(number, token);
            for (host, attempt) in places {
                let there = &self.nodes[host as usize];
                let guest = there.member.as_ref().and_then(|member| member.guest(number, token));
                if guest.map(|(_, attempt)| attempt) != Some(attempt) {
                    return Some(format!("believes page {token:#x} to be at node {host}"));
                }
                if there.guest(number, token).map(|(content, _)| content) != written {
                    return Some(format!("has an old version of page {token:#x} at node {host}"));
                }
            }
        }
        None
    }

    /// Whether pages may have been lost with nodes, so that some can never be made whole.
    fn was_lost(&self) -> bool {
        self.config.failures.mean_between_ns > 0
            || !self.config.faults.crashes.is_empty()
            || script::nodes_fail(self.config)
    }

    fn rest_of_host(&mut self, number: u32) -> Option<String> {
        let node = &self.nodes[number as usize];
        let member = node.member.as_ref()?;
        for (name, attempt) in member.guests() {
            self.out.checks += 1;
            let owner = self.nodes[name.owner as usize].member.as_ref();
            let places = owner.map_or_else(Vec::new, |owner| owner.places(name.page));
            if !places.contains(&(number, attempt)) {
                return Some(format!(
                    "keeps page {:#x} of node {}, which has it at {places:?}",
                    name.page, name.owner
                ));
            }
        }
        let on_disk = node.guests.values().filter(|medium| matches!(medium, Medium::Disk(_)));
        self.out.checks += on_disk.count() as u64;
        let promised = member.promised();
        let members = self.nodes.iter().filter_map(|node| node.member.as_ref());
        let reserved = members.flat_map(|member| member.reserved());
        let reserved = reserved.filter(|&host| host == number).count() as u32;
        let moving = self.reservations_under_way();
        if promised.abs_diff(reserved) > moving {
            return Some(format!(
                "has promised {promised} frames, and others have reserved {reserved}"
            ));
        }
        None
    }
}
