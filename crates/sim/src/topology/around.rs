//! Domains where nodes differ: the nearest nodes of each, from all distances.

use hiroma_policy::placement::Peer;

/// No peer.
const NOBODY: u16 = u16::MAX;

/// The domain of each node.
#[derive(Debug)]
pub struct Around {
    /// Peers of each node, nearest first, with their distances.
    peers: Vec<Box<[(u16, u32)]>>,
    /// By node and other node: the place among its peers.
    places: Vec<u16>,
}

impl Around {
    /// Domains of `nodes` nodes of at most `radius` hops and `most` peers. Whoever has a peer is
    /// one of that peer's: with a limit of peers, pairs of which one does not have the other are
    /// left out.
    pub fn new(nodes: u32, radius: u32, most: usize, distance: impl Fn(u32, u32) -> u32) -> Self {
        let nearest = |node: u32| {
            let others = (0..nodes).filter(|&other| other != node);
            let mut all: Vec<(u16, u32)> = others
                .map(|other| (distance(node, other), other))
                .filter(|&(hops, _)| hops <= radius)
                .map(|(hops, other)| (hops.min(u16::MAX.into()) as u16, other))
                .collect();
            // Of those that are equally far, every node begins with another one.
            all.sort_by_key(|&(hops, other)| {
                let ahead = (other + nodes - node) % nodes;
                (hops, ahead.min(nodes - ahead), ahead)
            });
            all.truncate(most);
            all
        };
        let all: Vec<Vec<(u16, u32)>> = (0..nodes).map(nearest).collect();
        let mut around =
            Around { peers: Vec::new(), places: vec![NOBODY; (nodes * nodes) as usize] };
        let at = |node: u32, other: u32| (node * nodes + other) as usize;
        for (node, peers) in (0..).zip(&all) {
            peers.iter().for_each(|&(_, other)| around.places[at(node, other)] = 0);
        }
        for (node, peers) in (0..).zip(all) {
            let mutual = |&(_, other): &(u16, u32)| around.places[at(other, node)] != NOBODY;
            around.peers.push(peers.into_iter().filter(mutual).collect());
        }
        around.places.fill(NOBODY);
        for (node, peers) in (0..).zip(&around.peers) {
            for (place, &(_, other)) in (0..).zip(peers) {
                around.places[at(node, other)] = place;
            }
        }
        around
    }

    pub(super) fn peer_hops(&self, node: u32) -> Box<[u16]> {
        self.peers[node as usize].iter().map(|&(hops, _)| hops).collect()
    }

    pub(super) fn peer(&self, node: u32, peer: Peer) -> u32 {
        self.peers[node as usize][usize::from(peer.0)].1
    }

    pub(super) fn peer_of(&self, node: u32, other: u32) -> Option<Peer> {
        let place = self.places[node as usize * self.peers.len() + other as usize];
        (place != NOBODY).then_some(Peer(place))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.peers.iter().map(|peers| 16 + peers.len() * 8).sum::<usize>()
            + self.places.capacity() * 2
    }
}
