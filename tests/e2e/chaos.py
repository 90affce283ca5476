"""Servers below a program that checks every byte are killed, started again, stopped and let go at random, so that enough of everything
lives. CHAOS_KILLS is the number of kills (default 4), CHAOS_SEED the seed (default 1; `any` for another one each time)."""

import functools
import os
import random
import time

from copies import Servers
from failures import Sweep
from harness import Failure, wait_for

# Lines about a loss after which pieces are made again, and lines that say that all are there.
SHORT = ("copied again to", "being made again at", "too few for")
WHOLE = (" again", " elsewhere")


class Chaos:
    """A program over some servers, of which `borne` may be away at a time."""

    def __init__(self, bench, option, count, borne, luck):
        self.luck, self.borne = luck, borne
        self.servers = Servers(bench, count, memory="256M")
        self.sweep = Sweep(bench, 96, 32, ["--store", self.servers.option(), *option, "--store-timeout", "60s"]).filled()
        self.events, self.kills = [], 0

    def lines(self):
        self.sweep.alive()
        return self.sweep.errors().splitlines()

    def losses(self):
        """Lines about servers that are lost or gone."""
        return sum("it is lost for now" in line or "is gone" in line for line in self.lines())

    def whole(self):
        """Whether everything has all of its pieces, as far as was said."""
        lines = self.lines()
        last = lambda words, must="": max((at for at, line in enumerate(lines) if must in line and any(word in line for word in words)), default=-1)
        return last(WHOLE, "everything has") >= last(SHORT)

    def settles(self):
        wait_for(self.whole, 90, "all pieces are there again")
        # What is noticed late is said after that.
        time.sleep(0.3)
        wait_for(self.whole, 90, "all pieces are there again")

    def kill(self, victims, at_once):
        before, back = self.losses(), sum("is back, empty" in line for line in self.lines())
        for at in victims:
            self.servers.kill(at)
            self.kills += 1
            if at_once:
                self.servers.restart(at)
        wait_for(lambda: self.losses() > before, 60, "the loss is noticed")
        if not at_once:
            self.settles()
            for at in victims:
                self.servers.restart(at)
        wait_for(lambda: sum("is back, empty" in line for line in self.lines()) >= back + len(victims), 60, "they are used again")
        self.settles()

    def stop(self, victims, seconds):
        for at in victims:
            self.servers.stop(at)
        time.sleep(seconds)
        for at in victims:
            self.servers.go_on(at)
        time.sleep(0.5)
        self.settles()

    def event(self):
        event = self.luck.choice(["kill", "kill", "restart", "stop", "blink"])
        victims = self.luck.sample(range(len(self.servers.processes)), self.luck.randint(1, self.borne))
        self.events.append((event, *victims))
        if event in ("kill", "restart"):
            self.kill(victims, event == "restart")
        else:
            self.stop(victims, self.luck.random() * (3 if event == "stop" else 0.3))


def chaos(bench, option, count, borne):
    kills = int(os.environ.get("CHAOS_KILLS", "4"))
    seed = os.environ.get("CHAOS_SEED", "1")
    seed = random.randrange(1 << 30) if seed == "any" else int(seed)
    chaos = Chaos(bench, option, count, borne, random.Random(seed))
    try:
        while chaos.kills < kills:
            chaos.event()
        chaos.sweep.ends_right()
    except Failure as failure:
        raise Failure(f"seed {seed}, {len(chaos.events)} events, {chaos.kills} kills, {chaos.events[-6:]}: {failure}; {chaos.sweep.errors()[-1500:]}") from failure
    return f"{len(chaos.events)} events, {chaos.kills} of them kills, seed {seed}"


TESTS = {
    "chaos-copies": functools.partial(chaos, option=["--copies", "2"], count=4, borne=1),
    "chaos-parity": functools.partial(chaos, option=["--parity", "4+1"], count=6, borne=1),
    "chaos-parity-two": functools.partial(chaos, option=["--parity", "3+2", "--seal", "on"], count=7, borne=2),
}
