"""Far memory with two copies in several servers, of which some are killed, stopped, filled or started again: the program does not notice,
as long as one copy of everything lives."""

import functools
import json
import os
import signal
import time

from failures import Sweep
from harness import MIB, Failure, compile_job, want, wait_for

# No request of the program may wait longer.
STALL_MAX_S = 1.0


class Servers:
    """Servers on loopback, and the option that names them."""

    def __init__(self, bench, count, memory="512M", pool=False, labels=()):
        self.bench, self.memory = bench, memory
        self.processes, self.ports = [], []
        for number in range(count):
            # Each finds the others by the first one.
            join = ["--join", f"127.0.0.1:{self.ports[0]}"] if pool and self.ports else []
            label = ["--label", labels[number]] if labels else []
            process, store = bench.serve(memory=memory, options=join + label)
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
    for port in servers.ports:
        wait_for(lambda: too_few(bench, port) == 0, 10, "the pool shows that no block has too few copies")
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


def forking(bench, options):
    """A program that forks, a function that counts its rounds and checks that they are right, its output and errors."""
    out, err = bench.file("forks.out"), bench.file("forks.err")
    program = [compile_job(bench, "forks.c", "-O2"), 64, 10]
    with open(out, "wb") as to, open(err, "wb") as errors:
        process = bench.start(bench.run_command(32 * MIB, program, bench.file("stats.json"), options), stdout=to, stderr=errors)

    def rounds():
        code = process.poll()
        text = out.read_text(errors="replace")
        want(code in (None, 0) and "WRONG" not in text, f"exit code {code}: {text[-300:]} {err.read_text(errors='replace')[-800:]}")
        return text.count("round")

    return process, rounds, out, err


def forks(bench, count=4, keep=("--copies", "2")):
    """Servers die while the program forks, and while its children run."""
    servers = Servers(bench, count, memory="1G")
    process, rounds, out, err = forking(bench, ["--store", servers.option(), *keep])
    wait_for(lambda: rounds() >= 2, 120, "the program has forked")
    servers.kill(0)
    wait_for(lambda: rounds() >= 4, 120, "the program goes on forking")
    servers.stop(1)
    wait_for(lambda: rounds() >= 6, 120, "the program goes on forking")
    servers.go_on(1)
    wait_for(lambda: "forks: right" in out.read_text() or rounds() < 0, 200, "the program ends")
    wait_for(lambda: process.poll() is not None, 60, "the program ends")
    want(process.returncode == 0, f"exit code {process.returncode}: {err.read_text(errors='replace')[-800:]}")


def forks_and_pause(bench):
    """A server that is silent for two seconds while the program forks is waited for: it has lost nothing."""
    servers = Servers(bench, 3, memory="1G")
    out, err = bench.file("forks.out"), bench.file("forks.err")
    with open(out, "wb") as to, open(err, "wb") as errors:
        process = bench.start(bench.run_command(32 * MIB, [compile_job(bench, "forks.c", "-O2"), 64, 8], bench.file("stats.json"),
                                                ["--store", servers.option(), "--copies", "2"]), stdout=to, stderr=errors)
    wait_for(lambda: out.read_text().count("round") >= 2 or process.poll() is not None, 120, "the program has forked")
    servers.stop(1)
    time.sleep(2)
    servers.go_on(1)
    wait_for(lambda: process.poll() is not None, 200, "the program ends")
    said_so = err.read_text(errors="replace")
    want(process.returncode == 0 and "forks: right" in out.read_text(), f"exit code {process.returncode}: {said_so[-800:]}")
    want(f"127.0.0.1:{servers.ports[1]} is back" in said_so, f"a server that paused counts as lost for good: {said_so[-800:]}")


def drained(bench, count, keep, by_pool=False):
    """A server is emptied before it is stopped, and the next one with what was moved: the program only hears of it."""
    servers = Servers(bench, count, pool=True)
    where = ["--pool", f"127.0.0.1:{servers.ports[0]}"] if by_pool else ["--store", servers.option()]
    if by_pool:
        wait_for(lambda: known(bench, servers) == count, 60, "the members know each other")
    sweep = Sweep(bench, 192, 48, [*where, *keep]).filled()
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
    want("being made again" not in sweep.errors() and "copied again" not in sweep.errors(), f"there was something left in a drained server: {sweep.errors()[-600:]}")
    sweep.ends_right()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


def drained_without_copies(bench, count, options=(), behind=False):
    """A member is drained and stopped below a program without copies: what was there is in other members, or on the disk behind them."""
    servers = Servers(bench, count, pool=True)
    store = servers.option() + (f",file:{bench.dir}" if behind else "")
    sweep = Sweep(bench, 192, 48, ["--store", store, "--allocation", "round-robin", *options]).filled()
    stalls = Stalls(sweep)
    stalls.watch(1)
    at = f"127.0.0.1:{servers.ports[0]}"
    began = time.monotonic()
    drain = drained_at(bench, servers, 0)
    while drain.poll() is None:
        want(time.monotonic() < began + 90, f"{at} is not empty after 90 s: {sweep.errors()[-600:]}")
        stalls.watch(0.2)
    took = time.monotonic() - began
    servers.kill(0)
    stalls.watch(3)
    said(sweep, at, "was emptied, and is done without")
    sweep.ends_right()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"empty after {took:.1f} s, longest stall {stalls.longest * 1000:.0f} ms"


def drained_at(bench, servers, at, way=None):
    """`hiroma pool drain`, running."""
    way = servers.ports[-1 if at == 0 else 0] if way is None else servers.ports[way]
    out = bench.fresh("drain")
    with open(out, "wb") as stdout:
        return bench.start([bench.hiroma, "pool", "drain", f"127.0.0.1:{servers.ports[at]}", "--pool", f"127.0.0.1:{way}"], stdout=stdout, stderr=stdout)


def drained_below_forks(bench, by_pool=False):
    """The same while the program forks, and after the member is gone."""
    servers = Servers(bench, 2, memory="1G", pool=True)
    options = ["--store", servers.option(), "--allocation", "round-robin"]
    if by_pool:
        wait_for(lambda: known(bench, servers) == 2, 60, "the members know each other")
        options = ["--pool", f"127.0.0.1:{servers.ports[0]}", "--store", "compressed"]
    process, rounds, out, err = forking(bench, options)
    wait_for(lambda: rounds() >= 2, 120, "the program has forked")
    drain = drained_at(bench, servers, 0)
    wait_for(lambda: drain.poll() is not None or rounds() < 0, 120, "the member is empty")
    before = rounds()
    servers.kill(0)
    wait_for(lambda: process.poll() is not None or rounds() < 0, 200, "the program ends")
    want(process.returncode == 0 and "forks: right" in out.read_text(), f"exit code {process.returncode}: {err.read_text(errors='replace')[-800:]}")
    return f"{rounds() - before} rounds of forks without the member"


def drained_to_disk(bench):
    """With copies, a member is drained and no other one has room: the disk behind them has."""
    servers = Servers(bench, 2, memory="256M", pool=True)
    sweep = Sweep(bench, 192, 48, ["--store", f"{servers.option()},file:{bench.dir}", "--copies", "2"]).filled()
    drain = drained_at(bench, servers, 1)
    wait_for(lambda: sweep.alive() or drain.poll() is not None, 90, "the member is empty")
    servers.kill(1)
    time.sleep(2)
    sweep.ends_right()


def known(bench, servers):
    """How many members the first one knows."""
    told = bench.native([bench.hiroma, "pool", "--json", "--pool", f"127.0.0.1:{servers.ports[0]}"])
    return len(json.loads(told.output)["members"]) if told.code == 0 else 0


def too_few(bench, port):
    """How many blocks of the only client of a server have too few copies."""
    told = bench.native([bench.hiroma, "pool", "--json", "--pool", f"127.0.0.1:{port}"])
    members = [member for member in json.loads(told.output)["members"] if member["address"].endswith(f":{port}")]
    client, = members[0]["clients"]
    return client["short_blocks"]


def racks_apart(bench):
    """The two copies of a block are in different racks, of which one fails as a whole."""
    servers = Servers(bench, 4, pool=True, labels=["rack=r1", "rack=r1", "rack=r2", "rack=r2"])
    wait_for(lambda: known(bench, servers) == 4, 60, "the members know each other")
    pool = ["--pool", f"127.0.0.1:{servers.ports[3]}", "--copies", "2", "--apart"]
    sweep = Sweep(bench, 192, 48, [*pool, "rack"]).filled()
    for at in [0, 1]:
        servers.kill(at)
    time.sleep(2)
    sweep.ends_right()
    unknown = Sweep(bench, 192, 48, [*pool, "row"], rounds=1)
    want(unknown.ends(60) == 2 and "--label row=" in unknown.errors(), f"a label that nobody has: {unknown.errors()[-400:]}")


def members_that_join(bench):
    """Members that joined after the program began take the places of those that die."""
    servers = Servers(bench, 2, pool=True)
    sweep = Sweep(bench, 192, 48, ["--pool", f"127.0.0.1:{servers.ports[0]}", "--copies", "2"]).filled()
    for number in [2, 3]:
        process, store = bench.serve(memory="512M", options=["--join", f"127.0.0.1:{servers.ports[number - 1]}"])
        servers.processes.append(process)
        servers.ports.append(int(store.rsplit(":", 1)[1]))
        said(sweep, f":{servers.ports[number]}", "has joined the pool")
        servers.kill(number - 2)
        said(sweep, f":{servers.ports[number - 2]}", "lost")
        repaired(sweep)
    # Only those that came later are left.
    time.sleep(1)
    sweep.ends_right()


def held_bytes(bench, servers, way, at):
    """How much a member has of the programs that use it."""
    told = bench.native([bench.hiroma, "pool", "--json", "--pool", f"127.0.0.1:{servers.ports[way]}"])
    member, = [member for member in json.loads(told.output)["members"] if member["address"].endswith(f":{servers.ports[at]}")]
    return sum(client["used_bytes"] for client in member["clients"])


def joined_without_copies(bench):
    """Without copies, too, members that joined after the program began are used: those before them are drained and stopped, one by one."""
    servers = Servers(bench, 2, pool=True)
    wait_for(lambda: known(bench, servers) == 2, 60, "the members know each other")
    sweep = Sweep(bench, 192, 48, ["--pool", f"127.0.0.1:{servers.ports[0]}", "--store", "compressed"]).filled()
    stalls = Stalls(sweep)
    for number in [2, 3]:
        process, store = bench.serve(memory="512M", options=["--join", f"127.0.0.1:{servers.ports[number - 1]}"])
        servers.processes.append(process)
        servers.ports.append(int(store.rsplit(":", 1)[1]))
        said(sweep, f":{servers.ports[number]}", "has joined the pool")
        want(held_bytes(bench, servers, number, number - 2) > 16 * MIB, f"member {number - 2} has next to nothing")
        drain = drained_at(bench, servers, number - 2, way=number)
        began = time.monotonic()
        while drain.poll() is None:
            want(time.monotonic() < began + 90, f"member {number - 2} is not empty after 90 s: {sweep.errors()[-600:]}")
            stalls.watch(0.2)
        want(drain.returncode == 0, f"draining ended with {drain.returncode}: {sweep.errors()[-600:]}")
        servers.kill(number - 2)
    stalls.watch(2)
    sweep.ends_right()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


def killed_without_copies(bench):
    """A member that dies takes the blocks of programs without copies along: such a program ends, and says why."""
    servers = Servers(bench, 2, pool=True)
    wait_for(lambda: known(bench, servers) == 2, 60, "the members know each other")
    sweep = Sweep(bench, 192, 48, ["--pool", f"127.0.0.1:{servers.ports[0]}", "--store", "compressed", "--store-timeout", "5s"]).filled()
    want("the program ends if a member dies" in sweep.errors(), f"a pool without copies is used without a note: {sweep.errors()[-400:]}")
    servers.kill(1)
    began = time.monotonic()
    sweep.ends_with_store_failure(60, "no copy of a needed block is left")
    return f"ended {time.monotonic() - began:.1f} s after the member, with 5 s of patience"


def stopped_without_copies(bench):
    """A program without copies waits for a member that pauses: it has lost nothing."""
    servers = Servers(bench, 2, pool=True)
    wait_for(lambda: known(bench, servers) == 2, 60, "the members know each other")
    sweep = Sweep(bench, 192, 48, ["--pool", f"127.0.0.1:{servers.ports[0]}", "--store", "compressed"]).filled()
    servers.stop(1)
    time.sleep(8)
    servers.go_on(1)
    sweep.ends_right()


def disk_behind_pool(bench):
    """What the members of a pool have no room for goes to the disk: no block has one copy alone. When one of them dies, all goes there."""
    servers = Servers(bench, 2, memory="64M", pool=True)
    wait_for(lambda: known(bench, servers) == 2, 60, "the members know each other")
    sweep = Sweep(bench, 192, 48, ["--pool", f"127.0.0.1:{servers.ports[0]}", "--copies", "2"]).filled()
    missing = sweep.counters()["copies_missing_bytes"]
    want(missing == 0, f"{missing} bytes have too few copies")
    servers.kill(1)
    said(sweep, f":{servers.ports[1]}", "lost")
    stalls = Stalls(sweep)
    stalls.watch(4)
    wait_for(lambda: sweep.alive() or sweep.counters()["copies_missing_bytes"] == 0, 60, "what lost a copy is on the disk")
    sweep.ends_right()
    want("waits for room" not in sweep.errors(), f"the disk could take it: {sweep.errors()[-600:]}")
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


def disk_behind_parity(bench):
    """Fewer servers than a block has pieces, and a disk behind them."""
    servers = Servers(bench, 3)
    store = f"{servers.option()},file:{bench.dir}"
    sweep = Sweep(bench, 192, 48, ["--store", store, "--parity", "2+1"]).filled()
    stalls = Stalls(sweep)
    for event in [servers.stop, servers.go_on, servers.kill]:
        event(2)
        stalls.watch(3)
    sweep.ends_right()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


def all_full(bench):
    """Servers and the disk behind them are full: that ends the program after a while, and it says which of them are, and why."""
    servers = Servers(bench, 2, memory="64M")
    store = f"{servers.option()},file:{bench.dir}:32M"
    sweep = Sweep(bench, 256, 48, ["--store", store, "--copies", "2"])
    sweep.ends_with_store_failure(120, "tcp://", f"file:{bench.dir}: 32MiB of 32MiB", "is full", "give it more room")
    want("Waiting up to" in sweep.errors(), f"it is told before: {sweep.errors()[-600:]}")


def few_copies(bench):
    """Where the servers have no room for all copies, and nothing follows, that is told and counted."""
    servers = Servers(bench, 1)
    process, store = bench.serve(memory="64M")
    servers.processes.append(process)
    servers.ports.append(int(store.rsplit(":", 1)[1]))
    sweep = start(bench, servers)
    wait_for(lambda: sweep.counters()["copies_missing_bytes"] > 32 * MIB, 20, "what has too few copies is counted")
    said(sweep, "have only 1 of 2 copies")
    wait_for(lambda: too_few(bench, servers.ports[0]) > 1000, 10, "the pool shows how many blocks")
    table = bench.native([bench.hiroma, "pool", "--pool", f"127.0.0.1:{servers.ports[0]}"]).output.decode()
    want("TOO FEW" in table, f"as a column: {table}")
    stats = sweep.ends_right()
    missing = stats["copies_missing_bytes_max"]
    # A full server takes nothing for a while: meanwhile all blocks may have been written anew.
    want(32 * MIB < missing < 200 * MIB, f"at most {missing / MIB:.1f} MiB had too few copies")
    said_last = sweep.errors().splitlines()[-1]
    want("with too few copies" in said_last, f"the summary says so: {said_last}")


def server_drained(bench):
    return drained(bench, 4, ["--copies", "2"])


TESTS = {
    "drained-without-copies": functools.partial(drained_without_copies, count=3),
    "drained-huge-blocks": functools.partial(drained_without_copies, count=2, options=["--block", "2M"]),
    "drained-sealed-to-disk": functools.partial(drained_without_copies, count=1, options=["--seal", "on"], behind=True),
    "drained-below-forks": drained_below_forks,
    "copies-none-forks": lambda bench: drained_below_forks(bench, by_pool=True),
    "drained-copies-to-disk": drained_to_disk,
    "copies-server-killed": server_killed,
    "copies-server-stopped": server_stopped,
    "copies-server-restarted": server_restarted,
    "copies-drained": server_drained,
    "copies-apart": racks_apart,
    "copies-joined": members_that_join,
    "copies-none-joined": joined_without_copies,
    "copies-none-killed": killed_without_copies,
    "copies-none-stopped": stopped_without_copies,
    "copies-disk-behind-pool": disk_behind_pool,
    "copies-disk-behind-parity": disk_behind_parity,
    "copies-all-full": all_full,
    "copies-too-few": few_copies,
    "copies-both-killed": both_killed,
    "copies-one-full": one_full,
    "copies-forks": forks,
    "copies-forks-pause": forks_and_pause,
}
# Not part of the default run: servers can be full of what dead children left, while two of four are away.
BY_CHANCE = {"copies-forks"}
