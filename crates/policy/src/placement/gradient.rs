//! The gradient model (section 2.1; Willebeek-LeMair and Reeves 1993): pages move one hop at a time
//! towards the nearest free frame.

use super::Rng;
use super::view::{Avoid, Peer};

/// Distance to the nearest free frame, as far as the neighbours reported. A neighbour counts as
/// having room until its first message.
#[derive(Clone, Debug)]
pub struct Gradient {
    neighbours: Vec<u16>,
    own: u16,
    /// Distance that means "nowhere": greater than that of any node of the machine.
    nowhere: u16,
}

impl Gradient {
    /// A node with room and `count` neighbours in a machine of `diameter` hops.
    pub fn new(count: usize, diameter: u16) -> Self {
        Gradient { neighbours: vec![0; count], own: 0, nowhere: diameter.saturating_add(1) }
    }

    /// One more neighbour, which counts as having no room until its first message.
    pub fn join(&mut self) {
        self.neighbours.push(self.nowhere);
    }

    /// Heap memory of this object, bytes.
    pub fn heap_bytes(&self) -> usize {
        self.neighbours.capacity() * size_of::<u16>()
    }

    /// Hops to the nearest free frame; 0 if it is here.
    pub fn proximity(&self) -> u16 {
        self.own
    }

    fn renew(&mut self, has_room: bool) -> bool {
        let least = self.neighbours.iter().min().copied().unwrap_or(self.nowhere);
        let own = if has_room { 0 } else { (least + 1).min(self.nowhere) };
        std::mem::replace(&mut self.own, own) != own
    }

    /// Whether this node has a free frame now. Returns whether its proximity changed, so that the
    /// neighbours must be told.
    pub fn room_changed(&mut self, has_room: bool) -> bool {
        (self.own == 0) != has_room && self.renew(has_room)
    }

    /// Takes a neighbour's proximity. Returns whether this node's own changed, so that the
    /// neighbours must be told.
    pub fn told(&mut self, peer: Peer, proximity: u16) -> bool {
        self.neighbours[usize::from(peer.0)] = proximity.min(self.nowhere);
        self.own > 0 && self.renew(false)
    }

    /// The neighbour that a page goes to next; none if no free frame is known. Ties are broken at
    /// random.
    pub fn next(&self, avoid: Avoid, rng: &mut Rng) -> Option<Peer> {
        let (mut chosen, mut least, mut ties) = (None, self.nowhere, 1);
        for (place, &proximity) in self.neighbours.iter().enumerate() {
            let peer = Peer(place as u16);
            if proximity > least || proximity >= self.nowhere || avoid.has(peer) {
                continue;
            }
            ties = if proximity < least { 1 } else { ties + 1 };
            least = proximity;
            if ties == 1 || rng.below(ties) == 0 {
                chosen = Some(peer);
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Rng;
    use proptest::prelude::*;

    /// Nodes in a ring; messages arrive in order, one at a time, until nothing changes.
    fn settle(rooms: &[bool]) -> Vec<u16> {
        let nodes = rooms.len();
        let mut ring = vec![Gradient::new(2, (nodes / 2) as u16); nodes];
        let mut news: std::collections::VecDeque<usize> =
            (0..nodes).filter(|&node| ring[node].room_changed(rooms[node])).collect();
        while let Some(node) = news.pop_front() {
            let proximity = ring[node].proximity();
            for (neighbour, side) in [((node + 1) % nodes, 0), ((node + nodes - 1) % nodes, 1)] {
                if ring[neighbour].told(Peer(side), proximity) {
                    news.push_back(neighbour);
                }
            }
        }
        ring.iter().map(Gradient::proximity).collect()
    }

    proptest! {
        #[test]
        fn proximities_converge_to_distance_of_nearest_room(rooms in prop::collection::vec(prop::bool::weighted(0.2), 3..40)) {
            let nodes = rooms.len();
            let naive: Vec<u16> = (0..nodes)
                .map(|node| {
                    let far = (0..nodes).filter(|&other| rooms[other]).map(|other| node.abs_diff(other).min(nodes - node.abs_diff(other))).min();
                    far.unwrap_or(nodes / 2 + 1) as u16
                })
                .collect();
            prop_assert_eq!(settle(&rooms), naive);
        }
    }

    #[test]
    fn page_descends_gradient_or_stays() {
        let mut gradient = Gradient::new(4, 8);
        let mut rng = Rng::new(3);
        for (peer, proximity) in [3, 1, 1, 2].into_iter().enumerate() {
            gradient.told(Peer(peer as u16), proximity);
        }
        for _ in 0..50 {
            assert!(matches!(gradient.next(Avoid::default(), &mut rng), Some(Peer(1 | 2))));
        }
        assert_eq!(
            gradient.next(Avoid::new([Some(Peer(1)), Some(Peer(2))]), &mut rng),
            Some(Peer(3))
        );
        for peer in 0..4 {
            gradient.told(Peer(peer), 9);
        }
        assert_eq!(gradient.next(Avoid::default(), &mut rng), None);
        // One that joins may be any in number.
        (0..4).for_each(|_| gradient.join());
        assert_eq!(gradient.next(Avoid::default(), &mut rng), None);
        gradient.told(Peer(7), 0);
        assert_eq!(gradient.next(Avoid::default(), &mut rng), Some(Peer(7)));
    }
}
