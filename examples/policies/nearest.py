"""A placement policy for `hiroma sim`: the nearest peer with a free frame, ties broken at random.

It decides as the built-in `nearest` does. docs/guide/own-policies.md describes what a file defines.
"""


def choose(peers, random):
    candidates = [peer for peer in peers if peer.free > 0 and not peer.avoid]
    chosen = None
    ties = 0
    # Peers come nearest first: the ties follow the first candidate.
    for peer in candidates:
        if peer.hops > candidates[0].hops:
            break
        ties += 1
        if ties == 1 or random.below(ties) == 0:
            chosen = peer
    return chosen
