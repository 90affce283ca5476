//! One node's part in global page placement: events and the time go in, commands come out.
//!
//! The shell around it (simulator or live node) carries messages and keeps the frames. The object
//! knows about others only what messages told it. Pages are numbers that the shell assigns.

use std::sync::Arc;

use super::Rng;
use super::choice::{AnyChoice, Choice};
use super::config::{InformationKind, PlacementConfig, ReservationKind, ScopeKind};
use super::failure::{Arrival, without_frame};
use super::gradient::Gradient;
use super::information::{AnyInformation, Bids, Information, OnChange, Periodic, Watermarks};
use super::reservation::{InAdvance, OnDemand, Promises};
use super::view::{Avoid, Neighbourhood, Peer, View};

/// A page on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaving {
    /// The shell's number for it.
    pub page: u64,
    /// How often it was sent already.
    pub attempts: u32,
    /// Peers that it must not go to.
    pub avoid: Avoid,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// This node has this many free frames, without promised ones ([`Placer::promised`]).
    Free(u32),
    /// A page has to leave: from a frame, or on arrival because it cannot stay.
    PageLeaves(Leaving),
    /// A peer reported its free frames, or its proximity (gradient).
    Told {
        /// The peer.
        peer: Peer,
        /// Frames; hops.
        value: u32,
    },
    /// A node, named `node` by the shell, has lost its memory.
    Restarted {
        /// The node.
        node: u32,
    },
    /// A page was returned because the peer had no frame, or cannot be reached.
    Refused {
        /// The peer that returned it.
        peer: Peer,
        /// The page; `attempts` counts all attempts so far.
        page: Leaving,
    },
    /// A node requests a bid.
    BidAsked {
        /// The shell's name for the node.
        node: u32,
    },
    /// A bid.
    Bid {
        /// The bidder.
        peer: Peer,
        /// Free frames; 0 also for a peer that cannot be reached.
        free: u32,
    },
    /// A node requests the reservation of a frame.
    ReservationAsked {
        /// The shell's name for the node.
        node: u32,
    },
    /// The answer to a reservation.
    ReservationAnswered {
        /// The peer that answered.
        peer: Peer,
        /// Whether a frame is reserved; false also for a peer that cannot be reached.
        granted: bool,
    },
    /// A reservation is released.
    ReservationReleased {
        /// The shell's name for the node.
        node: u32,
    },
    /// The time that [`Placer::deadline_ns`] returned may have come.
    Tick,
}

/// What the shell is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Tell all peers this number: free frames, or proximity.
    Tell(u32),
    /// Request bids from all peers.
    AskBids,
    /// Answer a node that requested a bid.
    AnswerBid {
        /// The shell's name for the node.
        node: u32,
        /// Free frames.
        free: u32,
    },
    /// Request a reservation from a peer.
    AskReservation(Peer),
    /// Answer a node that requested a reservation; with a grant the shell has one free frame less.
    AnswerReservation {
        /// The shell's name for the node.
        node: u32,
        /// Whether a frame is reserved.
        granted: bool,
    },
    /// Release a reservation.
    ReleaseReservation(Peer),
    /// Send a page.
    Send {
        /// The page; `attempts` includes this one.
        page: Leaving,
        /// The destination.
        to: Peer,
        /// Whether a frame is reserved for it there.
        reserved: bool,
    },
    /// Send a page to disk.
    SendToDisk(Leaving),
}

/// Frames that a node never promises to others: without them it could not work at all.
const OWN_FRAMES_MIN: u32 = 2;

/// What the placers of all nodes of one kind share.
#[derive(Clone, Debug)]
pub struct Shared {
    config: PlacementConfig,
    around: Arc<Neighbourhood>,
    marks: Arc<Watermarks>,
    frames: u32,
    diameter: u16,
}

impl Shared {
    /// Nodes with `frames` frames, in a machine of `diameter` hops. `hops` are the distances of the
    /// peers, nearest first; for the gradient the peers are the neighbours.
    pub fn new(config: PlacementConfig, hops: Box<[u16]>, frames: u32, diameter: u16) -> Self {
        let marks = Arc::new(Watermarks::new(&config.high_permille, &config.low_permille, frames));
        Shared {
            around: Arc::new(Neighbourhood::new(hops, frames)),
            marks,
            frames,
            diameter,
            config,
        }
    }

    /// Number of peers.
    pub fn peers(&self) -> u16 {
        self.around.hops.len() as u16
    }
}

/// State that only some policies need, and only on active nodes.
#[derive(Clone, Debug, Default)]
struct Dealings {
    bids: Bids,
    /// Pages that wait for the end of a round of bids.
    bidding: Vec<Leaving>,
    on_demand: OnDemand,
    in_advance: InAdvance,
    promises: Promises,
}

/// One node's part.
#[derive(Clone, Debug)]
pub struct Placer {
    shared: Arc<Shared>,
    rng: Rng,
    view: View,
    choice: AnyChoice,
    information: AnyInformation,
    gradient: Option<Box<Gradient>>,
    dealings: Option<Box<Dealings>>,
    free: u32,
}

impl Placer {
    /// A node whose frames are all free. Periodic information begins within one period of `now_ns`.
    pub fn new(shared: Arc<Shared>, seed: u64, now_ns: u64) -> Self {
        let (config, mut rng) = (&shared.config, Rng::new(seed));
        let information = match (config.scope, config.information) {
            (ScopeKind::Domain, InformationKind::Periodic) => {
                let first_ns = now_ns + rng.next_u64() % config.period_ns.max(1);
                AnyInformation::Periodic(Periodic::new(config.period_ns, first_ns))
            }
            (ScopeKind::Domain, InformationKind::OnChange) => {
                AnyInformation::OnChange(OnChange::new(shared.marks.clone(), shared.frames))
            }
            _ => AnyInformation::OnDemand,
        };
        let neighbours = shared.around.hops.len();
        let gradient = (config.scope == ScopeKind::Gradient)
            .then(|| Box::new(Gradient::new(neighbours as u8, shared.diameter)));
        let (view, choice) = (View::new(shared.around.clone()), AnyChoice::new(config.placement));
        Placer {
            rng,
            view,
            choice,
            information,
            gradient,
            dealings: None,
            free: shared.frames,
            shared,
        }
    }

    /// Free frames that are promised to others.
    #[inline]
    pub fn promised(&self) -> u32 {
        self.dealings.as_ref().map_or(0, |dealings| dealings.promises.count())
    }

    /// The peers with a frame that is reserved for pages of this node, once for each.
    pub fn reserved(&self) -> impl Iterator<Item = Peer> + '_ {
        self.dealings.iter().flat_map(|dealings| dealings.in_advance.ready())
    }

    /// When [`Event::Tick`] next has something to do, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.information.deadline_ns()
    }

    /// The view of the peers.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Pages that wait here for bids or reservations.
    pub fn waiting(&self) -> usize {
        self.dealings
            .as_ref()
            .map_or(0, |d| d.bidding.len() + d.on_demand.waiting() + d.in_advance.waiting())
    }

    /// Heap memory of this object, bytes, without what nodes share.
    pub fn heap_bytes(&self) -> usize {
        let dealings = self
            .dealings
            .as_ref()
            .map_or(0, |dealings| size_of::<Dealings>() + dealings.promises.heap_bytes());
        self.view.heap_bytes()
            + dealings
            + self.gradient.as_ref().map_or(0, |_| size_of::<Gradient>())
    }

    /// What happens to a page that `node` (the shell's name) sent here. `attempts` counts how often
    /// it was sent, this time included.
    pub fn arrival(&mut self, node: u32, attempts: u32, reserved: bool) -> Arrival {
        if reserved && self.dealings().promises.take(node) || self.free > 0 {
            return Arrival::Keep;
        }
        let config = &self.shared.config;
        if config.scope == ScopeKind::Gradient {
            return if attempts > config.attempts_max { Arrival::Disk } else { Arrival::SendOn };
        }
        without_frame(config.on_failure, attempts, config.attempts_max)
    }

    /// Processes an event and appends the commands to `commands`.
    pub fn handle(&mut self, now_ns: u64, event: Event, commands: &mut Vec<Command>) {
        match event {
            Event::Free(free) => self.free_changed(free, commands),
            Event::PageLeaves(page) => self.place(page, commands),
            Event::Told { peer, value } => self.told(peer, value, commands),
            Event::Restarted { node } => {
                if let Some(dealings) = &mut self.dealings {
                    dealings.promises.forget(node);
                }
            }
            Event::Refused { peer, page } => {
                self.told(peer, if self.gradient.is_some() { u32::MAX } else { 0 }, commands);
                self.place(page, commands);
            }
            Event::BidAsked { node } => commands.push(Command::AnswerBid { node, free: self.free }),
            Event::Bid { peer, free } => self.bid(peer, free, commands),
            Event::ReservationAsked { node } => {
                let free = self.free.saturating_sub(OWN_FRAMES_MIN);
                let granted = self.dealings().promises.ask(node, free);
                commands.push(Command::AnswerReservation { node, granted });
            }
            Event::ReservationAnswered { peer, granted } => {
                self.reservation_answered(peer, granted, commands)
            }
            Event::ReservationReleased { node } => {
                self.dealings().promises.take(node);
            }
            Event::Tick => {
                if self.information.tick(now_ns) {
                    commands.push(Command::Tell(self.free));
                }
            }
        }
    }

    fn dealings(&mut self) -> &mut Dealings {
        self.dealings.get_or_insert_default()
    }

    fn free_changed(&mut self, free: u32, commands: &mut Vec<Command>) {
        if let Some(gradient) = &mut self.gradient {
            if gradient.room_changed(free > 0) {
                commands.push(Command::Tell(gradient.proximity().into()));
            }
        } else if self.information.free_changed(free) {
            commands.push(Command::Tell(free));
        }
        let before = std::mem::replace(&mut self.free, free);
        let config = &self.shared.config;
        if config.reservation == ReservationKind::InAdvance
            && config.scope == ScopeKind::Domain
            && before != free
        {
            // Frames are reserved while they may be needed: when at least half of the memory is in
            // use.
            let half = self.shared.frames / 2;
            if free <= half {
                self.reserve(commands);
            } else if before <= half {
                commands
                    .extend(self.dealings().in_advance.release().map(Command::ReleaseReservation));
            }
        }
    }

    fn told(&mut self, peer: Peer, value: u32, commands: &mut Vec<Command>) {
        match &mut self.gradient {
            Some(gradient) => {
                if gradient.told(peer, value.min(u16::MAX.into()) as u16) {
                    commands.push(Command::Tell(gradient.proximity().into()));
                }
            }
            None => self.view.set(peer, value),
        }
    }

    /// Decides where a page goes, or asks peers first.
    fn place(&mut self, page: Leaving, commands: &mut Vec<Command>) {
        let config = &self.shared.config;
        if page.attempts > config.attempts_max || config.scope == ScopeKind::Disk {
            commands.push(Command::SendToDisk(page));
        } else if let Some(gradient) = &self.gradient {
            match gradient.next(page.avoid, &mut self.rng) {
                Some(peer) => commands.push(send(page, peer, false)),
                None => commands.push(Command::SendToDisk(page)),
            }
        } else if config.information == InformationKind::OnDemand {
            let peers = self.view.len() as u32;
            let dealings = self.dealings();
            dealings.bidding.push(page);
            if !dealings.bids.under_way() {
                dealings.bids.ask(peers);
                commands.push(Command::AskBids);
            }
        } else {
            self.place_known(page, commands);
        }
    }

    /// Decides where a page goes, from what is known.
    fn place_known(&mut self, page: Leaving, commands: &mut Vec<Command>) {
        if self.shared.config.reservation == ReservationKind::InAdvance {
            match self.dealings().in_advance.take() {
                Some(peer) => commands.push(send(page, peer, true)),
                None => self.dealings().in_advance.wait(page),
            }
            self.reserve(commands);
            return;
        }
        let Some(peer) = self.choice.choose(&self.view, page.avoid, &mut self.rng) else {
            commands.push(Command::SendToDisk(page));
            return;
        };
        if self.shared.config.reservation == ReservationKind::OnDemand {
            self.dealings().on_demand.wait(peer, page);
            commands.push(Command::AskReservation(peer));
        } else {
            self.count_send(peer);
            commands.push(send(page, peer, false));
        }
    }

    fn count_send(&mut self, peer: Peer) {
        if self.shared.config.count_own_sends {
            self.view.set(peer, self.view.free(peer).saturating_sub(1));
        }
    }

    /// Requests as many frames as should be reserved. If there is no peer to ask, waiting pages go
    /// to disk.
    fn reserve(&mut self, commands: &mut Vec<Command>) {
        let wanted = self.shared.config.reserve_frames;
        while self.dealings().in_advance.missing(wanted) > 0 {
            let Some(peer) = self.choice.choose(&self.view, Avoid::default(), &mut self.rng) else {
                while let Some(page) = self.dealings().in_advance.give_up() {
                    commands.push(Command::SendToDisk(page));
                }
                return;
            };
            self.dealings().in_advance.asked();
            commands.push(Command::AskReservation(peer));
        }
    }

    fn reservation_answered(&mut self, peer: Peer, granted: bool, commands: &mut Vec<Command>) {
        if granted {
            self.count_send(peer);
        } else {
            self.view.set(peer, 0);
        }
        if self.shared.config.reservation == ReservationKind::InAdvance {
            let half = self.shared.frames / 2;
            if !granted {
                self.dealings().in_advance.refused();
                // A frame that is no longer needed is not requested again.
                if self.free <= half || self.dealings().in_advance.waiting() > 0 {
                    self.reserve(commands);
                }
            } else if let Some(page) = self.dealings().in_advance.granted(peer) {
                commands.push(send(page, peer, true));
                self.reserve(commands);
            }
            return;
        }
        match self.dealings().on_demand.answered(peer) {
            Some(page) if granted => commands.push(send(page, peer, true)),
            Some(page) => self.place_known(page, commands),
            None => {
                if granted {
                    commands.push(Command::ReleaseReservation(peer));
                }
            }
        }
    }

    fn bid(&mut self, peer: Peer, free: u32, commands: &mut Vec<Command>) {
        self.view.set(peer, free);
        if self.dealings().bids.answered() {
            for page in std::mem::take(&mut self.dealings().bidding) {
                self.place_known(page, commands);
                // The next page of the round takes this one into account.
                if let Some(Command::Send { to, .. } | Command::AskReservation(to)) =
                    commands.last()
                {
                    let to = *to;
                    self.view.set(to, self.view.free(to).saturating_sub(1));
                }
            }
        }
    }
}

fn send(page: Leaving, to: Peer, reserved: bool) -> Command {
    Command::Send { page: Leaving { attempts: page.attempts + 1, ..page }, to, reserved }
}

#[cfg(test)]
mod tests;
