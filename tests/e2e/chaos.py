"""Servers below a program that checks every byte are killed, started again, stopped, cut off, slowed down and filled by others at random, so
that enough of everything lives. CHAOS_KILLS is the number of kills (default 4), CHAOS_SEED the seed (default 1; `any` for another one each
time)."""

import functools
import os
import random
import time

from copies import Servers
from failures import Sweep
from harness import Failure, wait_for, where
from wire import Between, Hog


class Chaos:
    """A program over some servers, of which `borne` may be away at a time."""

    def __init__(self, bench, option, count, borne, luck):
        self.luck, self.borne = luck, borne
        self.servers = Servers(bench, count, memory="256M")
        # Connections are through somebody who can hold them up: they must not go on in shared memory.
        self.between = [Between(port) for port in self.servers.ports]
        store = "tcp://" + ",".join(f"127.0.0.1:{between.port}" for between in self.between)
        self.sweep = Sweep(bench, 96, 32, ["--store", store, "--transport", "tcp", *option, "--store-timeout", "60s"]).filled()
        self.events, self.kills = [], 0

    def lines(self):
        self.sweep.alive()
        return self.sweep.errors().splitlines()

    def losses(self):
        """Lines about servers that are lost or gone."""
        return sum("it is lost for now" in line or "is gone" in line for line in self.lines())

    def alive(self):
        self.sweep.alive()
        return True

    def missing(self):
        """Bytes with too few pieces: also those of writes that were completed without a server, of which no line tells."""
        return self.sweep.counters()["copies_missing_bytes"]

    def settles(self):
        try:
            wait_for(lambda: self.alive() and self.missing() == 0, 90, "all pieces are there again")
        except Failure as failure:
            self.sweep.alive()
            missing = self.missing()
            time.sleep(5)
            raise Failure(f"{failure}: {missing} bytes are missing, 5 s later {self.missing()}; {where(self.sweep.process.pid)}") from None
        # What is noticed late is said after that.
        time.sleep(0.3)
        wait_for(lambda: self.alive() and self.missing() == 0, 90, "all pieces are there again")

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

    def cut_off(self, victims, seconds, is_broken):
        """The network holds everything back for a while, and then delivers it or has forgotten the connections."""
        for at in victims:
            self.between[at].is_silent = True
        time.sleep(seconds)
        for at in victims:
            if is_broken:
                self.between[at].cut()
            self.between[at].is_silent = False
        time.sleep(0.5)
        self.settles()

    def slow(self, victims, seconds):
        for at in victims:
            self.between[at].delay_s = self.luck.choice([0.001, 0.01, 0.05])
        time.sleep(seconds)
        for at in victims:
            self.between[at].delay_s = 0.0
        self.settles()

    def fill(self, victims, seconds):
        """Somebody else takes the memory that is left, and a server may be silent for a moment meanwhile."""
        hogs = [Hog(self.servers.ports[at]) for at in victims]
        time.sleep(seconds)
        if self.luck.random() < 0.5:
            at = self.luck.randrange(len(self.between))
            self.events.append(("stop a moment", at))
            self.servers.stop(at)
            time.sleep(self.luck.random())
            self.servers.go_on(at)
        for hog in hogs:
            hog.lets_go()
        self.settles()

    def event(self):
        event = self.luck.choice(["kill", "kill", "restart", "stop", "blink", "cut off", "break", "slow", "fill"])
        victims = self.luck.sample(range(len(self.servers.processes)), self.luck.randint(1, self.borne))
        self.events.append((event, *victims))
        if event in ("kill", "restart"):
            self.kill(victims, event == "restart")
        elif event in ("cut off", "break"):
            self.cut_off(victims, self.luck.choice([0.3, 1.5, 4]) * self.luck.random(), event == "break")
        elif event == "slow":
            self.slow(victims, 2)
        elif event == "fill":
            self.fill(self.luck.sample(range(len(self.between)), self.luck.randint(1, len(self.between))), 1)
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
    finally:
        for between in chaos.between:
            between.close()
    return f"{len(chaos.events)} events, {chaos.kills} of them kills, seed {seed}"


TESTS = {
    "chaos-copies": functools.partial(chaos, option=["--copies", "2"], count=4, borne=1),
    "chaos-parity": functools.partial(chaos, option=["--parity", "4+1"], count=6, borne=1),
    "chaos-parity-two": functools.partial(chaos, option=["--parity", "3+2", "--seal", "on"], count=7, borne=2),
}
