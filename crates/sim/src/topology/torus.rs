//! Torus in two or three dimensions. Messages travel along the first dimension, then the second,
//! then the third, in the shorter direction.

use hiroma_policy::placement::Peer;

use super::FANOUT_MAX;

/// Entry of `places` for an offset without a peer.
const NOBODY: u16 = u16::MAX;

/// The offset of one node from another: steps in each dimension.
type Offset = [i32; 3];

/// Torus and domain.
#[derive(Debug)]
pub struct Torus {
    dims: [u32; 3],
    /// Dimensions: 2 or 3.
    axes: usize,
    /// Difference of the numbers of adjacent nodes along each dimension.
    strides: [u32; 3],
    coordinates: Vec<[u16; 3]>,
    /// Offsets of the peers of any node, nearest first.
    offsets: Vec<Offset>,
    /// Radius of `places` in each dimension.
    reach: [i32; 3],
    /// Peers by offset.
    places: Vec<u16>,
    /// Where a message for the whole domain is forwarded, by offset from its source: a bit for each
    /// link of a node, numbered as in `link`.
    onward: Vec<u8>,
}

fn steps(offset: Offset) -> u32 {
    offset.iter().map(|step| step.unsigned_abs()).sum()
}

impl Torus {
    /// A torus of `dims` (the third is 1 with two axes) whose domains have a radius of `radius`
    /// hops and at most `most` peers.
    pub fn new(dims: [u32; 3], axes: usize, radius: u32, most: usize) -> Self {
        let strides = [1, dims[0], dims[0] * dims[1]];
        let nodes = dims.iter().product::<u32>();
        let coordinates = (0..nodes)
            .map(|node| {
                [
                    (node % dims[0]) as u16,
                    (node / dims[0] % dims[1]) as u16,
                    (node / dims[0] / dims[1]) as u16,
                ]
            })
            .collect();
        let radius = radius as i32;
        // Each node once: if both directions are equally long, the forward one.
        let range = |axis: usize| {
            let dim = dims[axis] as i32;
            (-((dim - 1) / 2)).max(-radius)..=(dim / 2).min(radius)
        };
        let mut offsets: Vec<Offset> = Vec::new();
        for z in range(2) {
            for y in range(1) {
                offsets.extend(
                    range(0)
                        .map(|x| [x, y, z])
                        .filter(|&offset| (1..=radius as u32).contains(&steps(offset))),
                );
            }
        }
        offsets.sort_by_key(|&offset| steps(offset));
        offsets.truncate(most);
        let reach = [0, 1, 2].map(|axis| radius.min(dims[axis] as i32 / 2));
        let mut torus = Torus {
            dims,
            axes,
            strides,
            coordinates,
            offsets,
            reach,
            places: Vec::new(),
            onward: Vec::new(),
        };
        torus.places = vec![NOBODY; reach.iter().map(|&reach| (2 * reach + 1) as usize).product()];
        for place in 0..torus.offsets.len() {
            if let Some(index) = torus.index(torus.offsets[place]) {
                torus.places[index] = place as u16;
            }
        }
        torus.onward = vec![0; torus.places.len()];
        for offset in torus.offsets.iter().copied().chain([[0; 3]]) {
            if let Some(index) = torus.index(offset) {
                torus.onward[index] = torus.onward_from(offset);
            }
        }
        torus
    }

    /// Forward along the last dimension that was used, and out along all later ones.
    fn onward_from(&self, offset: Offset) -> u8 {
        let last = (0..self.axes).rev().find(|&axis| offset[axis] != 0);
        let mut ways = 0;
        for axis in last.unwrap_or(0)..self.axes {
            for forward in [true, false] {
                if last == Some(axis) && (offset[axis] > 0) != forward {
                    continue;
                }
                let mut next = offset;
                next[axis] += if forward { 1 } else { -1 };
                if self.index(next).is_some_and(|index| self.places[index] != NOBODY) {
                    ways |= 1 << self.link(0, axis, forward);
                }
            }
        }
        ways
    }

    /// Index of an offset in `places`.
    #[inline]
    fn index(&self, offset: Offset) -> Option<usize> {
        let [x, y, z] = offset;
        let [rx, ry, rz] = self.reach;
        if x.abs() > rx || y.abs() > ry || z.abs() > rz {
            return None;
        }
        Some((((z + rz) * (2 * ry + 1) + y + ry) * (2 * rx + 1) + x + rx) as usize)
    }

    /// The offset of `to` from `from`, in the shorter direction; forward if both are equally long.
    #[inline]
    fn offset(&self, from: u32, to: u32) -> Offset {
        let (from, to) = (self.coordinates[from as usize], self.coordinates[to as usize]);
        let mut offset = [0; 3];
        for axis in 0..self.axes {
            let dim = self.dims[axis] as i32;
            let mut step = i32::from(to[axis]) - i32::from(from[axis]);
            if step > dim / 2 {
                step -= dim;
            } else if step < -((dim - 1) / 2) {
                step += dim;
            }
            offset[axis] = step;
        }
        offset
    }

    /// The node one step from `node`.
    #[inline]
    fn step(&self, node: u32, axis: usize, forward: bool) -> u32 {
        let (at, dim, stride) =
            (u32::from(self.coordinates[node as usize][axis]), self.dims[axis], self.strides[axis]);
        match (forward, at) {
            (true, at) if at + 1 == dim => node - at * stride,
            (true, _) => node + stride,
            (false, 0) => node + (dim - 1) * stride,
            (false, _) => node - stride,
        }
    }

    #[inline]
    fn link(&self, node: u32, axis: usize, forward: bool) -> u32 {
        node * 2 * self.axes as u32 + 2 * axis as u32 + u32::from(!forward)
    }

    pub(super) fn links_between(&self, from: u32, to: u32) -> Vec<u32> {
        let ways = (0..self.axes).flat_map(|axis| [(axis, true), (axis, false)]);
        ways.filter(|&(axis, forward)| from < self.nodes() && self.step(from, axis, forward) == to)
            .map(|(axis, forward)| self.link(from, axis, forward))
            .collect()
    }

    /// Channel 1 from the link on that closes the ring of a dimension, channel 0 before.
    pub(super) fn channels(&self, route: &[u32], channels: &mut Vec<u8>) {
        let mut closed = [false; 3];
        let ways = 2 * self.axes as u32;
        for &link in route {
            let (node, axis, forward) = (link / ways, (link % ways / 2) as usize, link % 2 == 0);
            let at = u32::from(self.coordinates[node as usize][axis]);
            closed[axis] |= if forward { at + 1 == self.dims[axis] } else { at == 0 };
            channels.push(closed[axis].into());
        }
    }

    pub(super) fn nodes(&self) -> u32 {
        self.coordinates.len() as u32
    }

    pub(super) fn links(&self) -> u32 {
        self.nodes() * 2 * self.axes as u32
    }

    #[inline]
    pub(super) fn next(&self, at: u32, source: u32, target: u32) -> Option<(u32, u32)> {
        if at == target {
            return None;
        }
        let (here, there) = (self.coordinates[at as usize], self.coordinates[target as usize]);
        for axis in 0..self.axes {
            let (from, to, dim) = (u32::from(here[axis]), u32::from(there[axis]), self.dims[axis]);
            if from == to {
                continue;
            }
            let ahead = if to > from { to - from } else { to + dim - from };
            // Exactly half way round: half of the nodes use one direction, half the other.
            let forward = 2 * ahead < dim || 2 * ahead == dim && source % 2 == 0;
            return Some((self.link(at, axis, forward), self.step(at, axis, forward)));
        }
        None
    }

    pub(super) fn distance(&self, a: u32, b: u32) -> u32 {
        steps(self.offset(a, b))
    }

    pub(super) fn peer_hops(&self) -> Box<[u16]> {
        self.offsets.iter().map(|&offset| steps(offset) as u16).collect()
    }

    #[inline]
    pub(super) fn peer(&self, node: u32, peer: Peer) -> u32 {
        let (offset, at) = (self.offsets[usize::from(peer.0)], self.coordinates[node as usize]);
        let mut found = 0;
        for axis in 0..self.axes {
            let dim = self.dims[axis] as i32;
            let mut place = i32::from(at[axis]) + offset[axis];
            if place >= dim {
                place -= dim;
            } else if place < 0 {
                place += dim;
            }
            found += place as u32 * self.strides[axis];
        }
        found
    }

    #[inline]
    pub(super) fn peer_of(&self, node: u32, other: u32) -> Option<Peer> {
        let place = self.places[self.index(self.offset(node, other))?];
        (place != NOBODY).then_some(Peer(place))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.coordinates.capacity() * size_of::<[u16; 3]>()
            + self.offsets.capacity() * size_of::<Offset>()
            + self.places.capacity() * 2
            + self.onward.capacity()
    }

    #[inline]
    pub(super) fn spread(&self, source: u32, at: u32) -> ([(u32, u32); FANOUT_MAX], usize) {
        let (mut ways, mut count) = ([(0, 0); FANOUT_MAX], 0);
        let mut onward = self.index(self.offset(source, at)).map_or(0, |index| self.onward[index]);
        while onward != 0 {
            let (axis, forward) =
                (onward.trailing_zeros() as usize / 2, onward.trailing_zeros() % 2 == 0);
            ways[count] = (self.link(at, axis, forward), self.step(at, axis, forward));
            count += 1;
            onward &= onward - 1;
        }
        (ways, count)
    }

    /// Disks in the middle of equal sub-meshes, as square as possible; none if the machine cannot
    /// be divided into that many.
    pub(super) fn disks(&self, disks: u32) -> Option<(Vec<u32>, Vec<u32>)> {
        let [width, height, depth] = self.dims;
        let cuts = |dim: u32| (1..=dim).filter(move |cut| dim % cut == 0);
        let mut best: Option<(u32, [u32; 3])> = None;
        for x in cuts(width).filter(|x| disks % x == 0) {
            for y in cuts(height).filter(|y| disks / x % y == 0) {
                let z = disks / x / y;
                let longest = (width / x).max(height / y).max(depth / z.max(1));
                if z > 0 && depth % z == 0 && best.is_none_or(|(least, _)| longest < least) {
                    best = Some((longest, [x, y, z]));
                }
            }
        }
        let (_, cut) = best?;
        let size = [0, 1, 2].map(|axis| self.dims[axis] / cut[axis]);
        let disk_of = |at: [u16; 3]| {
            let [x, y, z] = [0, 1, 2].map(|axis| u32::from(at[axis]) / size[axis]);
            (z * cut[1] + y) * cut[0] + x
        };
        let of_node = self.coordinates.iter().map(|&at| disk_of(at)).collect();
        let middle = |disk: u32| {
            let part = [disk % cut[0], disk / cut[0] % cut[1], disk / cut[0] / cut[1]];
            [0, 1, 2]
                .into_iter()
                .map(|axis| (part[axis] * size[axis] + size[axis] / 2) * self.strides[axis])
                .sum()
        };
        Some(((0..disks).map(middle).collect(), of_node))
    }
}
