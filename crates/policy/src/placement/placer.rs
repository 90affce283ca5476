//! One node's part in global page placement: events and the time go in, commands come out.
//!
//! The shell around it (simulator or live node) carries messages and keeps the frames. The object
//! knows about others only what messages told it. Pages are numbers that the shell assigns.

use std::sync::Arc;

use super::Rng;
use super::choice::{AnyChoice, Choice, Fill};
use super::config::{InformationKind, PlacementConfig, PlacementKind, ReservationKind, ScopeKind};
use super::custom::{CustomRun, PolicyError};
use super::failure::{Arrival, without_frame};
use super::gradient::Gradient;
use super::hearing::Hearing;
use super::information::{AnyInformation, Bids, Information, OnChange, Periodic, Watermarks};
use super::reservation::{InAdvance, OnDemand, Promises, Reserved};
use super::view::{Avoid, Neighbourhood, Peer, PeerKind, View};

mod asking;
mod events;

pub use events::{Command, Event, Leaving};

/// With `confirm`, silence for so many refreshes makes a peer unknown.
const SILENT_REFRESHES: u64 = 4;
/// With `confirm`, a page waits for a frame reserved in advance for so many times `answer_ns`.
pub const WAIT_ANSWERS: u64 = 8;

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
    custom: Option<Arc<CustomRun>>,
}

impl Shared {
    /// Nodes with `frames` frames and the peers `around` them, in a machine of `diameter` hops; for
    /// the gradient the peers are the neighbours.
    pub fn new(config: PlacementConfig, around: Neighbourhood, frames: u32, diameter: u16) -> Self {
        let marks = Arc::new(Watermarks::new(&config.high_permille, &config.low_permille, frames));
        let custom = match &config.placement {
            PlacementKind::Custom(placement) if config.scope == ScopeKind::Domain => {
                Some(Arc::new(CustomRun::start(placement)))
            }
            _ => None,
        };
        Shared { around: Arc::new(around), marks, frames, diameter, custom, config }
    }

    /// Other nodes of the same machine: with `frames` frames, and other peers.
    pub fn for_others(&self, around: Neighbourhood, frames: u32) -> Self {
        let config = &self.config;
        let marks = Arc::new(Watermarks::new(&config.high_permille, &config.low_permille, frames));
        Shared { around: Arc::new(around), marks, frames, ..self.clone() }
    }

    /// The choices.
    pub fn config(&self) -> &PlacementConfig {
        &self.config
    }

    /// The first error of a custom placement policy: what the nodes do after it means nothing.
    #[inline]
    pub fn policy_failure(&self) -> Option<&PolicyError> {
        self.custom.as_ref()?.failure()
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
    /// Peers that have left for good.
    left: Vec<Peer>,
    on_demand: OnDemand,
    in_advance: InAdvance,
    promises: Promises,
    /// The last request or round.
    id: u64,
    hearing: Hearing,
    /// The number of the last report, and when the next one is due at the latest, ns.
    sequence: u32,
    refresh_ns: u64,
    is_draining: bool,
}

/// One node's part.
#[derive(Debug)]
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
            .then(|| Box::new(Gradient::new(neighbours, shared.diameter)));
        let around = match config.confirm {
            true => Arc::new(shared.around.unknown()),
            false => shared.around.clone(),
        };
        let dealings = config.confirm.then(|| {
            // Nodes that start together do not all report at the same time.
            let refresh_ns = now_ns + 1 + rng.next_u64() % (config.refresh_ns / 8).max(1);
            Box::new(Dealings { refresh_ns, ..Dealings::default() })
        });
        let mut gradient = gradient;
        if let Some(gradient) = gradient.as_mut().filter(|_| config.confirm) {
            for peer in 0..neighbours as u16 {
                gradient.told(Peer(peer), u16::MAX);
            }
        }
        let view = View::new(around);
        let choice = match config.scope {
            ScopeKind::Domain => AnyChoice::new(&config.placement, shared.custom.as_ref()),
            ScopeKind::Disk | ScopeKind::Gradient => AnyChoice::Fill(Fill),
        };
        Placer { rng, view, choice, information, gradient, dealings, free: shared.frames, shared }
    }

    /// The same node in its incarnation `epoch`: its requests have other numbers than those of
    /// earlier ones.
    #[must_use]
    pub fn incarnation(mut self, epoch: u32) -> Self {
        self.dealings().id = u64::from(epoch) << 32;
        self
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
        let information = self.information.deadline_ns();
        let Some(dealings) = self.dealings.as_deref().filter(|_| self.shared.config.confirm) else {
            return information;
        };
        let all = [
            information,
            Some(dealings.refresh_ns),
            dealings.bids.deadline_ns(),
            dealings.on_demand.deadline_ns(),
            dealings.in_advance.deadline_ns(),
            dealings.promises.deadline_ns(),
        ];
        all.into_iter().flatten().min()
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
        let dealings = self.dealings.as_ref().map_or(0, |dealings| {
            size_of::<Dealings>() + dealings.promises.heap_bytes() + dealings.hearing.heap_bytes()
        });
        self.view.heap_bytes()
            + dealings
            + self
                .gradient
                .as_ref()
                .map_or(0, |gradient| size_of::<Gradient>() + gradient.heap_bytes())
    }

    /// What happens to a page that `node` (the shell's name) sent here. `attempts` counts how often
    /// it was sent, this time included; `reserved` is the request by which its frame is promised.
    pub fn arrival(&mut self, node: u32, attempts: u32, reserved: Option<u64>) -> Arrival {
        let remember = self.shared.config.confirm;
        let is_promised =
            reserved.is_some_and(|id| self.dealings().promises.take(node, id, remember));
        if is_promised || self.open_frames() > 0 {
            return Arrival::Keep;
        }
        let config = &self.shared.config;
        if config.scope == ScopeKind::Gradient {
            return if attempts > config.attempts_max { Arrival::Disk } else { Arrival::SendOn };
        }
        without_frame(config.on_failure, attempts, config.attempts_max)
    }

    /// Frames that are free for others.
    fn open_frames(&self) -> u32 {
        let is_draining = self.dealings.as_ref().is_some_and(|dealings| dealings.is_draining);
        if is_draining { 0 } else { self.free }
    }

    /// Adds a peer, or changes one that was a peer before. Its free frames are unknown until it
    /// reports them.
    pub fn join(&mut self, known: Option<Peer>, kind: PeerKind) -> Peer {
        match known {
            Some(peer) => {
                self.dealings().left.retain(|left| *left != peer);
                self.view.change(peer, kind);
                self.view.set(peer, 0);
                peer
            }
            None => {
                if let Some(gradient) = &mut self.gradient {
                    gradient.join();
                }
                self.view.add(kind)
            }
        }
    }

    /// The incarnation in which a peer was last heard; 0 if never.
    pub fn epoch_of(&self, peer: Peer) -> u32 {
        self.dealings.as_ref().map_or(0, |dealings| dealings.hearing.epoch(peer))
    }

    /// Processes an event and appends the commands to `commands`.
    pub fn handle(&mut self, now_ns: u64, event: Event, commands: &mut Vec<Command>) {
        match event {
            Event::Free(free) => self.free_changed(now_ns, free, commands),
            Event::PageLeaves(page) => self.place(now_ns, page, commands),
            Event::Told { peer, stamp, value } => {
                let confirm = self.shared.config.confirm;
                let is_news = !confirm || self.dealings().hearing.told(peer, stamp, now_ns);
                if is_news && !self.has_left(peer) {
                    self.told(now_ns, peer, value, commands);
                }
            }
            Event::Heard { peer, epoch } => {
                if self.dealings().hearing.heard(peer, epoch, now_ns) {
                    self.dealings().in_advance.forget(peer);
                    self.unknown(now_ns, peer, commands);
                }
            }
            Event::Suspected(peer) => self.unknown(now_ns, peer, commands),
            Event::Left(peer) => self.leave(now_ns, peer, commands),
            Event::Cancelled(page) => self.cancel(page, commands),
            Event::Draining(is_draining) => {
                self.dealings().is_draining = is_draining;
                self.tell(now_ns, commands);
            }
            Event::Restarted { node } => {
                if let Some(dealings) = &mut self.dealings {
                    dealings.promises.forget(node);
                }
            }
            Event::Refused { peer, page } => {
                self.unknown(now_ns, peer, commands);
                self.place(now_ns, page, commands);
            }
            Event::BidAsked { node, id } => {
                commands.push(Command::AnswerBid { node, id, free: self.open_frames() })
            }
            Event::Bid { peer, id, free } => self.bid(now_ns, peer, id, free, commands),
            Event::ReservationAsked { node, id } => {
                let free = self.open_frames().saturating_sub(OWN_FRAMES_MIN);
                let until_ns = self.lease_end_ns(now_ns);
                let granted = self.dealings().promises.ask(node, id, free, until_ns);
                commands.push(Command::AnswerReservation { node, id, granted });
            }
            Event::ReservationAnswered { peer, id, granted } => {
                self.reservation_answered(now_ns, peer, id, granted, commands)
            }
            Event::ReservationReleased { node, id } => {
                let until_ns = self.lease_end_ns(now_ns);
                let remember = self.shared.config.confirm.then_some(until_ns);
                self.dealings().promises.release(node, id, remember);
            }
            Event::Tick => self.tick(now_ns, commands),
        }
    }

    fn lease_end_ns(&self, now_ns: u64) -> u64 {
        if self.shared.config.confirm { now_ns + self.shared.config.lease_ns } else { u64::MAX }
    }

    fn answer_until_ns(&self, now_ns: u64) -> u64 {
        if self.shared.config.confirm { now_ns + self.shared.config.answer_ns } else { u64::MAX }
    }

    fn tick(&mut self, now_ns: u64, commands: &mut Vec<Command>) {
        if self.information.tick(now_ns) {
            self.tell(now_ns, commands);
        }
        if self.shared.config.confirm {
            self.expire(now_ns, commands);
        }
    }

    fn tell(&mut self, now_ns: u64, commands: &mut Vec<Command>) {
        let value = match &self.gradient {
            Some(gradient) => gradient.proximity().into(),
            None => self.open_frames(),
        };
        let mut sequence = 0;
        if self.shared.config.confirm {
            let refresh_ns = now_ns + self.shared.config.refresh_ns;
            let dealings = self.dealings();
            dealings.sequence += 1;
            (sequence, dealings.refresh_ns) = (dealings.sequence, refresh_ns);
        }
        commands.push(Command::Tell { sequence, value });
    }

    fn next_id(&mut self) -> u64 {
        let dealings = self.dealings();
        dealings.id += 1;
        dealings.id
    }

    fn dealings(&mut self) -> &mut Dealings {
        self.dealings.get_or_insert_default()
    }

    fn free_changed(&mut self, now_ns: u64, free: u32, commands: &mut Vec<Command>) {
        let before = std::mem::replace(&mut self.free, free);
        let room = self.open_frames() > 0;
        let is_news = match &mut self.gradient {
            Some(gradient) => gradient.room_changed(room),
            None => self.information.free_changed(free),
        };
        if is_news {
            self.tell(now_ns, commands);
        }
        let config = &self.shared.config;
        if config.reservation == ReservationKind::InAdvance
            && config.scope == ScopeKind::Domain
            && before != free
        {
            // Frames are reserved while they may be needed: when at least half of the memory is in
            // use.
            let half = self.shared.frames / 2;
            if free <= half {
                self.reserve(now_ns, commands);
            } else if before <= half {
                let release = |Reserved { id, peer, .. }| Command::ReleaseReservation { peer, id };
                commands.extend(self.dealings().in_advance.release().map(release));
            }
        }
    }

    fn told(&mut self, now_ns: u64, peer: Peer, value: u32, commands: &mut Vec<Command>) {
        match &mut self.gradient {
            Some(gradient) => {
                if gradient.told(peer, value.min(u16::MAX.into()) as u16) {
                    self.tell(now_ns, commands);
                }
            }
            None => self.view.set(peer, value),
        }
    }

    /// A peer has no frame, or it is not known whether it has one.
    fn unknown(&mut self, now_ns: u64, peer: Peer, commands: &mut Vec<Command>) {
        let nothing = if self.gradient.is_some() { u32::MAX } else { 0 };
        self.told(now_ns, peer, nothing, commands);
    }

    fn has_left(&self, peer: Peer) -> bool {
        self.dealings.as_ref().is_some_and(|dealings| dealings.left.contains(&peer))
    }

    fn leave(&mut self, now_ns: u64, peer: Peer, commands: &mut Vec<Command>) {
        self.unknown(now_ns, peer, commands);
        if self.has_left(peer) {
            return;
        }
        let dealings = self.dealings();
        dealings.left.push(peer);
        // Nobody waits for its bid.
        let round = dealings.bids.round();
        if dealings.bids.answered(round, peer) {
            self.place_bidding(now_ns, commands);
        }
    }

    fn cancel(&mut self, page: u64, commands: &mut Vec<Command>) {
        let dealings = self.dealings();
        dealings.bidding.retain(|waiting| waiting.page != page);
        dealings.in_advance.cancel(page);
        if let Some((id, peer)) = dealings.on_demand.cancel(page) {
            commands.push(Command::ReleaseReservation { peer, id });
        }
    }

    /// Decides where a page goes, or asks peers first.
    fn place(&mut self, now_ns: u64, page: Leaving, commands: &mut Vec<Command>) {
        let config = &self.shared.config;
        // Without peers there is nobody whose answer could end a wait.
        let left = self.dealings.as_ref().map_or(0, |dealings| dealings.left.len());
        let alone = config.scope == ScopeKind::Disk || self.view.len() == left;
        if page.attempts > config.attempts_max || alone {
            commands.push(Command::SendToDisk(page));
        } else if let Some(gradient) = &self.gradient {
            match gradient.next(page.avoid, &mut self.rng) {
                Some(peer) => commands.push(send(page, peer, None)),
                None => commands.push(Command::SendToDisk(page)),
            }
        } else if config.information == InformationKind::OnDemand {
            self.dealings().bidding.push(page);
            self.ask_bids(now_ns, commands);
        } else {
            self.place_known(now_ns, page, commands);
        }
    }

    /// Decides where a page goes, from what is known.
    fn place_known(&mut self, now_ns: u64, page: Leaving, commands: &mut Vec<Command>) {
        if self.shared.config.reservation == ReservationKind::InAdvance {
            // In the paper the owner of a page may get it back.
            let avoid = if self.shared.config.confirm { page.avoid } else { Avoid::default() };
            match self.dealings().in_advance.take(avoid) {
                Some(Reserved { peer, id, .. }) => commands.push(send(page, peer, Some(id))),
                None => {
                    let wait_ns = self.shared.config.answer_ns.saturating_mul(WAIT_ANSWERS);
                    let confirm = self.shared.config.confirm;
                    let until_ns = if confirm { now_ns + wait_ns } else { u64::MAX };
                    self.dealings().in_advance.wait(page, until_ns);
                }
            }
            self.reserve(now_ns, commands);
            return;
        }
        let Some(peer) = self.choice.choose(&self.view, page.avoid, &mut self.rng) else {
            commands.push(Command::SendToDisk(page));
            return;
        };
        if self.shared.config.reservation == ReservationKind::OnDemand {
            let (id, until_ns) = (self.next_id(), self.answer_until_ns(now_ns));
            self.dealings().on_demand.wait(id, peer, page, until_ns);
            commands.push(Command::AskReservation { peer, id });
        } else {
            self.count_send(peer);
            commands.push(send(page, peer, None));
        }
    }

    fn count_send(&mut self, peer: Peer) {
        if self.shared.config.count_own_sends {
            self.view.set(peer, self.view.free(peer).saturating_sub(1));
        }
    }
}

fn send(page: Leaving, to: Peer, reserved: Option<u64>) -> Command {
    Command::Send { page: Leaving { attempts: page.attempts + 1, ..page }, to, reserved }
}

#[cfg(test)]
mod tests;
