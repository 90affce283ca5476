//! What a node knows about the other nodes of its domain: only what messages told it.

use std::sync::Arc;

/// A node of the domain, by its index in the list of peers (nearest first).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer(pub u16);

/// Peers that a page must not go to: its sender, and its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Avoid(pub [Option<Peer>; 2]);

impl Avoid {
    /// Whether `peer` is to be avoided.
    #[inline]
    pub fn has(self, peer: Peer) -> bool {
        self.0[0] == Some(peer) || self.0[1] == Some(peer)
    }
}

/// A domain as seen from its centre: the distance of each peer, and what to assume about a peer
/// before its first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbourhood {
    /// Hops to each peer, nearest first.
    pub hops: Box<[u16]>,
    /// Free frames assumed for each peer before its first message.
    unheard: Box<[u32]>,
}

impl Neighbourhood {
    /// A domain whose peers are `hops` away (nearest first) and have `frames` each.
    pub fn new(hops: Box<[u16]>, frames: u32) -> Self {
        assert!(hops.windows(2).all(|pair| pair[0] <= pair[1]), "peers are listed nearest first");
        assert!(hops.len() < usize::from(u16::MAX), "a domain has fewer than 65535 peers");
        let unheard = vec![frames; hops.len()].into();
        Neighbourhood { hops, unheard }
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

    /// Peers with a free frame that are not to be avoided, nearest first, with their free frames.
    #[inline]
    pub fn candidates(&self, avoid: Avoid) -> impl Iterator<Item = (Peer, u32)> + '_ {
        let peers =
            self.frees().iter().enumerate().map(|(place, &free)| (Peer(place as u16), free));
        peers.filter(move |&(peer, free)| free > 0 && !avoid.has(peer))
    }

    /// Heap memory of this view, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.heard.as_ref().map_or(0, |heard| heard.len() * 4)
    }
}
