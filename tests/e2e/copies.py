"""Far memory with two copies in several servers, of which some are killed, stopped, filled or started again: the program does not notice,
as long as one copy of everything lives."""

import os
import random
import signal
import time

from failures import Sweep
from harness import MIB, Failure, compile_job, want, wait_for

# No request of the program may wait longer.
STALL_MAX_S = 1.0


class Servers:
    """Servers on loopback, and the option that names them."""

    def __init__(self, bench, count, memory="512M", pool=False):
        self.bench, self.memory = bench, memory
        self.processes, self.ports = [], []
        for _ in range(count):
            # Each finds the others by the first one.
            join = ["--join", f"127.0.0.1:{self.ports[0]}"] if pool and self.ports else []
            process, store = bench.serve(memory=memory, options=join)
            self.processes.append(process)
            self.ports.append(int(store.rsplit(":", 1)[1]))

    def option(self):
        return "tcp://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def kill(self, at):
        self.processes[at].kill()
        self.processes[at].wait()

    def restart(self, at):
        self.processes[at] = self.bench.serve(memory=self.memory, port=self.ports[at])[0]

    def stop(self, at):
        os.kill(self.processes[at].pid, signal.SIGSTOP)

    def go_on(self, at):
        os.kill(self.processes[at].pid, signal.SIGCONT)


class Stalls:
    """The longest time in which a running sweep fetched nothing."""

    def __init__(self, sweep):
        self.sweep, self.longest = sweep, 0.0

    def watch(self, seconds):
        end, seen, since = time.monotonic() + seconds, None, time.monotonic()
        while time.monotonic() < end:
            self.sweep.alive()
            now, fetched = time.monotonic(), self.sweep.counters()["fetched_bytes"]
            if fetched != seen:
                seen, since = fetched, now
            self.longest = max(self.longest, now - since)
            time.sleep(0.02)


def start(bench, servers, mib=192, options=()):
    return Sweep(bench, mib, 48, ["--store", servers.option(), "--copies", "2", *options]).filled()


def repaired(sweep):
    """What a server had is elsewhere: copied again, or written again by the program before that was necessary."""
    said(sweep, "everything has 2 copies")


def said(sweep, *words):
    try:
        wait_for(lambda: sweep.alive() or any(all(word in line for word in words) for line in sweep.errors().splitlines()), 60, f"a line with {words}")
    except Failure as failure:
        raise Failure(f"{failure}; what was said: {sweep.errors()[-1000:]}") from None


def server_killed(bench):
    servers = Servers(bench, 3)
    sweep = start(bench, servers)
    stalls = Stalls(sweep)
    stalls.watch(1)
    servers.kill(1)
    stalls.watch(4)
    said(sweep, f":{servers.ports[1]}", "lost")
    repaired(sweep)
    # Another one may die now.
    servers.kill(0)
    stalls.watch(3)
    sweep.ends_right()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    lost = [line for line in sweep.errors().splitlines() if "lost" in line]
    want(len(lost) == 2, f"one line for each loss: {lost}")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


def server_stopped(bench):
    servers = Servers(bench, 3)
    sweep = start(bench, servers)
    stalls = Stalls(sweep)
    servers.stop(2)
    stalls.watch(10)
    servers.go_on(2)
    said(sweep, f":{servers.ports[2]}", "is back")
    stalls.watch(3)
    sweep.ends_right()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


def server_restarted(bench):
    servers = Servers(bench, 2)
    sweep = start(bench, servers)
    servers.kill(0)
    servers.restart(0)
    said(sweep, f":{servers.ports[0]}", "is back, empty")
    repaired(sweep)
    servers.kill(1)
    time.sleep(2)
    sweep.ends_right()


def both_killed(bench):
    servers = Servers(bench, 2)
    sweep = start(bench, servers, options=["--store-timeout", "5s"])
    servers.kill(0)
    servers.kill(1)
    began = time.monotonic()
    sweep.ends_with_store_failure(60, "no copy of a needed block is left")
    return f"ended {time.monotonic() - began:.1f} s after the servers, with 5 s of patience"


def one_full(bench):
    small, large = Servers(bench, 1, memory="32M"), Servers(bench, 2)
    large.ports.append(small.ports[0])
    sweep = start(bench, large)
    time.sleep(2)
    sweep.ends_right()


def forks(bench):
    """Servers die while the program forks, and while its children run."""
    servers = Servers(bench, 4, memory="1G")
    out, err = bench.file("forks.out"), bench.file("forks.err")
    program = [compile_job(bench, "forks.c", "-O2"), 64, 10]
    options = ["--store", servers.option(), "--copies", "2"]
    with open(out, "wb") as to, open(err, "wb") as errors:
        process = bench.start(bench.run_command(32 * MIB, program, bench.file("stats.json"), options), stdout=to, stderr=errors)

    def rounds():
        code = process.poll()
        text = out.read_text(errors="replace")
        want(code in (None, 0) and "WRONG" not in text, f"exit code {code}: {text[-300:]} {err.read_text(errors='replace')[-800:]}")
        return text.count("round")

    wait_for(lambda: rounds() >= 2, 120, "the program has forked")
    servers.kill(0)
    wait_for(lambda: rounds() >= 4, 120, "the program goes on forking")
    servers.stop(1)
    wait_for(lambda: rounds() >= 6, 120, "the program goes on forking")
    servers.go_on(1)
    wait_for(lambda: "forks: right" in out.read_text() or rounds() < 0, 200, "the program ends")
    wait_for(lambda: process.poll() is not None, 60, "the program ends")
    want(process.returncode == 0, f"exit code {process.returncode}: {err.read_text(errors='replace')[-800:]}")


def at_random(bench):
    """Servers are killed, started again, stopped and let go at random, so that one copy of everything lives (COPIES_SECONDS, COPIES_SEED)."""
    seconds, seed = float(os.environ.get("COPIES_SECONDS", "20")), int(os.environ.get("COPIES_SEED", str(random.randrange(1 << 30))))
    luck = random.Random(seed)
    servers = Servers(bench, 4, memory="1G")
    sweep = start(bench, servers, mib=128)
    end, events = time.monotonic() + seconds, []

    def whole():
        """Whether everything has all copies again: the next server may die."""
        marks = [at for at, line in enumerate(sweep.errors().splitlines()) if "copies again" in line or "copies elsewhere" in line]
        losses = [at for at, line in enumerate(sweep.errors().splitlines()) if "copied again to" in line]
        sweep.alive()
        return not losses or (bool(marks) and marks[-1] > losses[-1])

    try:
        while time.monotonic() < end:
            at, event = luck.randrange(4), luck.choice(["kill", "restart", "stop", "blink"])
            events.append((event, at))
            if event in ("kill", "restart"):
                losses = sum("lost" in line or "gone" in line for line in sweep.errors().splitlines())
                servers.kill(at)
                if event == "restart":
                    time.sleep(luck.random())
                    servers.restart(at)
                wait_for(lambda n=losses: sweep.alive() or sum("lost" in l or "gone" in l for l in sweep.errors().splitlines()) > n, 60, "the loss is noticed")
                wait_for(whole, 60, "all copies are there again")
                if event == "kill":
                    servers.restart(at)
                back = sum("is back, empty" in line for line in sweep.errors().splitlines())
                said(sweep, f":{servers.ports[at]}", "back, empty")
                del back
                time.sleep(1.5)
                wait_for(whole, 60, "all copies are there again")
            else:
                servers.stop(at)
                time.sleep(luck.random() * (3 if event == "stop" else 0.3))
                servers.go_on(at)
                time.sleep(1)
                wait_for(whole, 60, "all copies are there again")
        sweep.ends_right()
    except Failure as failure:
        raise Failure(f"seed {seed}, {events[-6:]}: {failure}; {sweep.errors()[-1500:]}") from failure
    return f"{len(events)} events, seed {seed}"


def server_drained(bench):
    """A server is emptied before it is stopped, and the next one with what was moved: the program only hears of it."""
    servers = Servers(bench, 4, pool=True)
    sweep = start(bench, servers)
    stalls = Stalls(sweep)
    stalls.watch(1)
    for drained in [1, 2]:
        at = f"127.0.0.1:{servers.ports[drained]}"
        out = bench.file(f"drain-{drained}")
        with open(out, "wb") as stdout:
            drain = bench.start([bench.hiroma, "pool", "drain", at, "--pool", f"127.0.0.1:{servers.ports[0]}"], stdout=stdout, stderr=stdout)
        began = time.monotonic()
        while drain.poll() is None:
            want(time.monotonic() < began + 60, f"{at} is not empty after a minute: {out.read_text()[-400:]}\n{sweep.errors()[-600:]}")
            stalls.watch(0.2)
        want(drain.returncode == 0, f"exit code {drain.returncode}: {out.read_text()}")
        said(sweep, at, "is to be emptied")
        servers.kill(drained)
        stalls.watch(2)
    want("at least 1 copy" not in sweep.errors(), f"there was something left in a drained server: {sweep.errors()[-600:]}")
    sweep.ends_right()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


TESTS = {
    "copies-server-killed": server_killed,
    "copies-server-stopped": server_stopped,
    "copies-server-restarted": server_restarted,
    "copies-drained": server_drained,
    "copies-both-killed": both_killed,
    "copies-one-full": one_full,
    "copies-forks": forks,
    "copies-random": at_random,
}
# Not part of the default run: servers can be full of what dead children left, while two of four are away.
BY_CHANCE = {"copies-random", "copies-forks"}
