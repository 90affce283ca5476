# Runs a placement policy for `hiroma sim`: a line of JSON in, a line of JSON out.
# docs/guide/own-policies.md documents what a policy's file has to define.
import collections
import json
import os
import signal
import sys
import traceback

Peer = collections.namedtuple("Peer", "number free capacity hops avoid page_ns")


class Random:
    """The node's generator (splitmix64), which all policies draw from."""

    def __init__(self, state=0):
        self.state = state

    def next_u64(self):
        """64 random bits."""
        mask = 0xFFFFFFFFFFFFFFFF
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def below(self, bound):
        """A number from 0 to bound - 1."""
        if bound <= 0:
            raise ValueError(f"below({bound}): there is no number below it")
        return ((self.next_u64() >> 32) * bound) >> 32

    def random(self):
        """A number from 0 to 1, without 1."""
        return (self.next_u64() >> 11) / (1 << 53)

    def choice(self, items):
        """One of a list."""
        return items[self.below(len(items))]


def describe(error, path):
    """The error, with the line of the policy's file where it came up."""
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == path]
    if isinstance(error, SyntaxError):
        lines.append(error.lineno)
    place = f"{path}:{lines[-1]}: " if lines else ""
    return f"failed: {place}{type(error).__name__}: {error}"


def make_policies(source, path):
    """A function that makes the policy of one node."""
    space = {"__name__": "hiroma_policy", "__file__": path, "Peer": Peer}
    exec(compile(source, path, "exec"), space)
    policy, choose = space.get("Policy"), space.get("choose")
    if callable(getattr(policy, "choose", None)):
        return lambda: policy().choose
    if callable(choose):
        return lambda: choose
    raise LookupError("it defines neither choose(peers, random) nor a class Policy with choose(self, peers, random)")


def answer(question, nodes, make, random):
    number = question["node"]
    if "hops" in question:
        # What changes only when a node joins.
        choose = nodes[number][0] if number in nodes else make()
        hops = question["hops"]
        nearest = sorted(range(len(hops)), key=hops.__getitem__)
        nodes[number] = (choose, nearest, hops, question["capacity"], question["page_ns"])
    choose, nearest, hops, capacity, page_ns = nodes[number]
    avoid = question["avoid"]
    free = question["free"]
    peers = [Peer(at, free[at], capacity[at], hops[at], at in avoid, page_ns[at]) for at in nearest]
    random.state = question["rng"]
    chosen = choose(peers, random)
    if isinstance(chosen, Peer):
        chosen = chosen.number
    # numpy's integers are numbers too, and have an index.
    if chosen is not None:
        chosen = chosen.__index__() if hasattr(chosen, "__index__") else chosen
        if not isinstance(chosen, int) or isinstance(chosen, bool):
            raise TypeError(f"choose returned {chosen!r}: return the number of a peer, or None for disk")
    return {"peer": chosen, "rng": random.state}


def main():
    # The terminal's interrupt is for `hiroma`, which closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w")
    # What the policy prints goes where messages go.
    os.dup2(2, 1)
    path = sys.argv[1]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    nodes, make, random = {}, None, Random()
    for line in sys.stdin:
        try:
            question = json.loads(line)
            if make is None:
                make, reply = make_policies(question, path), {}
            else:
                reply = answer(question, nodes, make, random)
        except Exception as error:
            reply = {"error": describe(error, path)}
        out.write(json.dumps(reply) + "\n")
        out.flush()


main()
