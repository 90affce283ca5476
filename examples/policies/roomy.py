"""A placement policy with a state: a node avoids the peer that it chose last.

An object of the class belongs to one node of the simulated machine.
"""


class Policy:
    def __init__(self):
        self.last = None

    def choose(self, peers, random):
        candidates = [peer for peer in peers if peer.free > 0 and not peer.avoid]
        others = [peer for peer in candidates if peer.number != self.last] or candidates
        if not others:
            return None  # to disk
        # Free frames and distance together, as a share of the peer's memory.
        best = max(others, key=lambda peer: (peer.free / peer.capacity / peer.hops, -peer.number))
        self.last = best.number
        return best
