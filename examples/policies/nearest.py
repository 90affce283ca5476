"""A placement policy for `hiroma sim`: the nearest peer with a free frame, of equally near ones the
fastest, ties broken at random.

It decides as the built-in `nearest` does. docs/guide/own-policies.md describes what a file defines.
"""


def slowness(peer):
    return peer.page_ns or float("inf")  # 0: nobody knows


def choose(peers, random):
    candidates = [peer for peer in peers if peer.free > 0 and not peer.avoid]
    chosen = None
    ties = 0
    # Peers come nearest first: those that are as near follow the first candidate.
    for peer in candidates:
        if peer.hops > candidates[0].hops:
            break
        if chosen is None or slowness(peer) < slowness(chosen):
            chosen, ties = peer, 1
        elif slowness(peer) == slowness(chosen):
            ties += 1
            if random.below(ties) == 0:
                chosen = peer
    return chosen
