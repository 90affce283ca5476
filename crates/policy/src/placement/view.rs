//! What a node knows about the other nodes of its domain: only what messages told it.

use std::sync::Arc;

/// A node of the domain, by its index in the list of peers. Those that are there from the beginning
/// are listed nearest first; the index of a peer never changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer(pub u16);

/// Most peers that a page avoids at the same time.
const AVOID_MAX: usize = super::config::PIECES_MAX as usize + 2;

/// Peers that a page must not go to: its sender, its owner, and those that have a piece of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Avoid {
    peers: [Peer; AVOID_MAX],
    count: u8,
}

impl Default for Avoid {
    fn default() -> Self {
        Avoid { peers: [Peer(u16::MAX); AVOID_MAX], count: 0 }
    }
}

impl Avoid {
    /// These peers; what exceeds the number that can be avoided is ignored.
    pub fn new(peers: impl IntoIterator<Item = Option<Peer>>) -> Self {
        let mut avoid = Avoid::default();
        for peer in peers.into_iter().flatten() {
            avoid.add(peer);
        }
        avoid
    }

    /// One more peer.
    pub fn add(&mut self, peer: Peer) {
        if usize::from(self.count) < AVOID_MAX && !self.has(peer) {
            self.peers[usize::from(self.count)] = peer;
            self.count += 1;
        }
    }

    /// The peers to avoid.
    pub fn iter(&self) -> impl Iterator<Item = Peer> + '_ {
        self.peers[..usize::from(self.count)].iter().copied()
    }

    /// Whether `peer` is to be avoided.
    #[inline]
    pub fn has(&self, peer: Peer) -> bool {
        self.peers[..usize::from(self.count)].contains(&peer)
    }
}

/// What a peer is, apart from how much it has free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerKind {
    /// Hops to it.
    pub hops: u16,
    /// All of its frames.
    pub frames: u32,
    /// Its speed: the time in which it takes a page, or gives one back, when nothing else waits
    /// there, ns; 0 if nobody knows.
    pub page_ns: u32,
}

/// The speeds of peers, as in [`PeerKind::page_ns`].
#[derive(Clone, PartialEq, Eq, Debug)]
enum Speeds {
    Alike(u32),
    Each(Box<[u32]>),
}

impl Speeds {
    fn new(speeds: Vec<u32>) -> Self {
        match speeds.first() {
            Some(first) if speeds.iter().any(|speed| speed != first) => Speeds::Each(speeds.into()),
            first => Speeds::Alike(first.copied().unwrap_or(0)),
        }
    }

    #[inline]
    fn of(&self, place: usize) -> u32 {
        match self {
            Speeds::Alike(speed) => *speed,
            Speeds::Each(speeds) => speeds[place],
        }
    }
}

/// A domain as seen from its centre: the distance of each peer, and what to assume about a peer
/// before its first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbourhood {
    /// Hops to each peer.
    pub hops: Box<[u16]>,
    /// The peers nearest first, where the list is in another order.
    order: Option<Box<[u16]>>,
    /// Free frames assumed for each peer before its first message.
    unheard: Box<[u32]>,
    /// All frames of each peer.
    capacities: Box<[u32]>,
    speeds: Speeds,
}

impl Neighbourhood {
    /// A domain whose peers are `hops` away (nearest first) and have `capacities` frames.
    pub fn new(hops: Box<[u16]>, capacities: Box<[u32]>) -> Self {
        assert!(hops.windows(2).all(|pair| pair[0] <= pair[1]), "peers are listed nearest first");
        assert!(hops.len() < usize::from(u16::MAX), "a domain has fewer than 65535 peers");
        assert_eq!(hops.len(), capacities.len(), "each peer has frames");
        let speeds = Speeds::Alike(0);
        Neighbourhood { hops, order: None, unheard: capacities.clone(), capacities, speeds }
    }

    /// The same peers, each with its [`PeerKind::page_ns`].
    #[must_use]
    pub fn with_speeds(self, page_ns: Vec<u32>) -> Self {
        assert_eq!(self.hops.len(), page_ns.len(), "each peer has a speed");
        Neighbourhood { speeds: Speeds::new(page_ns), ..self }
    }

    /// The same where all peers have `frames` frames.
    pub fn alike(hops: Box<[u16]>, frames: u32) -> Self {
        let capacities = vec![frames; hops.len()].into();
        Neighbourhood::new(hops, capacities)
    }

    /// The same peers, none of which has a free frame before its first message.
    pub fn unknown(&self) -> Self {
        Neighbourhood { unheard: vec![0; self.hops.len()].into(), ..self.clone() }
    }

    /// Adds a peer, of which it is not known how many frames are free.
    fn add(&mut self, kind: PeerKind) {
        let speeds = (0..self.hops.len()).map(|place| self.speeds.of(place));
        self.speeds = Speeds::new(speeds.chain([kind.page_ns]).collect());
        self.hops = self.hops.iter().copied().chain([kind.hops]).collect();
        self.capacities = self.capacities.iter().copied().chain([kind.frames]).collect();
        self.unheard = vec![0; self.hops.len()].into();
        self.sort();
    }

    fn change(&mut self, place: usize, kind: PeerKind) {
        let mut speeds: Vec<u32> = (0..self.hops.len()).map(|at| self.speeds.of(at)).collect();
        speeds[place] = kind.page_ns;
        self.speeds = Speeds::new(speeds);
        (self.hops[place], self.capacities[place]) = (kind.hops, kind.frames);
        self.sort();
    }

    /// Orders the peers by their distance.
    fn sort(&mut self) {
        let mut order: Vec<u16> = (0..self.hops.len() as u16).collect();
        order.sort_by_key(|&place| self.hops[usize::from(place)]);
        self.order = (!order.is_sorted()).then(|| order.into());
    }
}

/// Free frames of the peers, as far as known.
#[derive(Clone, Debug)]
pub struct View {
    around: Arc<Neighbourhood>,
    /// Allocated at the first message of a peer: most nodes of a large machine are idle.
    heard: Option<Box<[u32]>>,
}

impl View {
    /// A view before the first message.
    pub fn new(around: Arc<Neighbourhood>) -> Self {
        View { around, heard: None }
    }

    /// Number of peers.
    pub fn len(&self) -> usize {
        self.around.hops.len()
    }

    /// Whether there are no peers.
    pub fn is_empty(&self) -> bool {
        self.around.hops.is_empty()
    }

    /// Free frames by peer.
    #[inline]
    pub fn frees(&self) -> &[u32] {
        self.heard.as_deref().unwrap_or(&self.around.unheard)
    }

    /// Hops by peer.
    #[inline]
    pub fn hops(&self) -> &[u16] {
        &self.around.hops
    }

    /// All frames of `peer`.
    #[inline]
    pub fn capacity(&self, peer: Peer) -> u32 {
        self.around.capacities[usize::from(peer.0)]
    }

    /// The time in which `peer` takes a page or gives one back, ns; 0 if nobody knows.
    #[inline]
    pub fn page_ns(&self, peer: Peer) -> u32 {
        self.around.speeds.of(usize::from(peer.0))
    }

    /// The same to compare peers by: less is faster, and a peer of unknown speed is slow.
    #[inline]
    pub fn slowness(&self, peer: Peer) -> u32 {
        // 0 becomes the greatest number.
        self.page_ns(peer).wrapping_sub(1)
    }

    /// Free frames of `peer`.
    #[inline]
    pub fn free(&self, peer: Peer) -> u32 {
        self.frees()[usize::from(peer.0)]
    }

    /// Records that `peer` has `free` frames.
    #[inline]
    pub fn set(&mut self, peer: Peer, free: u32) {
        let around = &self.around;
        self.heard.get_or_insert_with(|| around.unheard.clone())[usize::from(peer.0)] = free;
    }

    /// All peers, nearest first.
    #[inline]
    pub fn nearest_first(&self) -> impl Iterator<Item = Peer> + '_ {
        let order = self.around.order.as_deref();
        (0..self.len()).map(move |at| Peer(order.map_or(at as u16, |order| order[at])))
    }

    /// Peers with a free frame that are not to be avoided, nearest first, with their free frames.
    #[inline]
    pub fn candidates(&self, avoid: Avoid) -> impl Iterator<Item = (Peer, u32)> + '_ {
        let frees = self.frees();
        let peers = self.nearest_first().map(|peer| (peer, frees[usize::from(peer.0)]));
        peers.filter(move |&(peer, free)| free > 0 && !avoid.has(peer))
    }

    /// Adds a peer, with no free frame as far as known.
    pub fn add(&mut self, kind: PeerKind) -> Peer {
        let frees: Vec<u32> = self.frees().iter().copied().chain([0]).collect();
        Arc::make_mut(&mut self.around).add(kind);
        self.heard = Some(frees.into());
        Peer(self.len() as u16 - 1)
    }

    /// Changes the distance of a peer, the number of its frames, and its speed.
    pub fn change(&mut self, peer: Peer, kind: PeerKind) {
        Arc::make_mut(&mut self.around).change(usize::from(peer.0), kind);
    }

    /// Heap memory of this view, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.heard.as_ref().map_or(0, |heard| heard.len() * 4)
    }
}
