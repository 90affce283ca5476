"""Leases, quotas and shares: what a client had in servers is freed soon after it is gone, however it went; one that is only cut off for a
moment or stopped keeps it; and nobody takes what is another's."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

from copies import Servers
from failures import Sweep
from harness import MIB, Failure, Skip, compile_job, session, wait_for, want

# From the death of a process until its memory is free at every member.
FREED_MAX_S = 2.0
# What looking costs on a busy machine.
LOOK_S = 0.3


def pool(bench, address, options=()):
    told = subprocess.run([bench.hiroma, "pool", "--json", "--pool", address, *options], capture_output=True, timeout=60)
    want(told.returncode == 0, f"hiroma pool failed: {told.stderr.decode(errors='replace')}")
    return json.loads(told.stdout)["members"]


def taken(members):
    """Bytes that clients have, or that are set aside for them, and clients, at each member."""
    return [(member["lent_bytes"] - member["free_bytes"], len(member["clients"] or [])) for member in members]


def until_freed(look, since, most=FREED_MAX_S):
    """Members say how full they are twice a second; clients are asked for."""
    def freed():
        return all(clients == 0 for _, clients in taken(look()))

    wait_for(freed, 30, "the client's memory is freed")
    took = time.monotonic() - since
    wait_for(lambda: all(used == 0 for used, _ in taken(look())), 30, "all memory is free again")
    want(took < most + LOOK_S, f"freed only after {took:.2f} s")
    return took


def killed(bench):
    """The program, its helper and `hiroma run` are killed at once: nobody can say goodbye."""
    servers = Servers(bench, 3, pool=True)
    address = f"127.0.0.1:{servers.ports[0]}"
    sweep = Sweep(bench, 192, 48, ["--store", servers.option(), "--copies", "2"]).filled()
    # The pager's threads are a process of their own, in the same session.
    pids = list(session(sweep.process.pid))
    want(len(pids) >= 3, f"program, helper and hiroma run: {pids}")
    want(all(clients == 1 for _, clients in taken(pool(bench, address))), "the program is a client of all members")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    since = time.monotonic()
    took = until_freed(lambda: pool(bench, address), since)
    return f"freed at all members after {took:.2f} s"


def stopped(bench):
    """A client that is stopped (Ctrl-Z) for longer than its lease keeps what it has: its kernel gives the signs of life."""
    servers = Servers(bench, 1)
    sweep = Sweep(bench, 192, 48, ["--store", servers.option()]).filled()
    pids = list(session(sweep.process.pid))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(7)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    sweep.ends_right()


def server_stopped(bench):
    """The time in which a server is stopped does not count as its clients'."""
    servers = Servers(bench, 1)
    sweep = Sweep(bench, 192, 48, ["--store", servers.option()]).filled()
    servers.stop(0)
    time.sleep(6)
    servers.go_on(0)
    sweep.ends_right()


class Machine:
    """A network namespace that stands for another machine, with a cable that can be pulled."""

    count = 0

    def __init__(self, bench):
        if os.geteuid() != 0 or subprocess.run(["ip", "netns", "list"], capture_output=True).returncode != 0:
            raise Skip("needs root and network namespaces (ip netns)")
        Machine.count += 1
        self.bench = bench
        self.name = f"hiroma{os.getpid() % 10000}x{Machine.count}"
        self.near, self.far = self.name + "a", self.name + "b"
        net = f"10.213.{os.getpid() % 250}"
        self.here, self.there = f"{net}.{4 * Machine.count + 1}", f"{net}.{4 * Machine.count + 2}"
        try:
            self.ip("netns", "add", self.name)
            self.ip("link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.name)
            self.ip("addr", "add", f"{self.here}/30", "dev", self.near)
            self.ip("link", "set", self.near, "up")
            self.inside("addr", "add", f"{self.there}/30", "dev", self.far)
            self.inside("link", "set", self.far, "up")
            self.inside("link", "set", "lo", "up")
        except Failure as failure:
            self.remove()
            raise Skip(f"no network namespaces here: {failure}") from None
        self.key = bench.file("key")
        self.key.write_text("0123456789abcdef0123456789abcdef\n")

    def ip(self, *words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
        want(done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}")

    def inside(self, *words):
        self.ip("-n", self.name, *words)

    def pull(self):
        self.ip("link", "set", self.near, "down")

    def plug(self):
        self.ip("link", "set", self.near, "up")

    def remove(self):
        for words in [["link", "del", self.near], ["netns", "del", self.name]]:
            subprocess.run(["ip", *words], capture_output=True)

    def serve(self, options=()):
        """A server here, which the other machine reaches; its address."""
        log = self.bench.fresh("serve.log")
        command = [self.bench.hiroma, "serve", "--listen", f"{self.here}:0", "--memory", "512M", "--key-file", self.key, *options]
        with open(log, "wb") as out:
            process = self.bench.start(command, stdout=out, stderr=out)

        def ready():
            want(process.poll() is None, f"the server ended: {log.read_text()[-500:]}")
            return [line.split()[4].rstrip(",") for line in log.read_text().splitlines() if "ready on" in line]

        return wait_for(ready, 60, "the server is ready")[0], log

    def sweep(self, store, options=()):
        class There(Sweep):
            def counters(self):
                raise NotImplementedError

        machine = self.bench.hiroma
        # All of the client runs on the other machine.
        self.bench.hiroma = "ip"
        command = self.bench.run_command
        self.bench.run_command = lambda *args: ["ip", "netns", "exec", self.name, machine, *command(*args)[1:]]
        try:
            return There(self.bench, 192, 48, ["--store", f"tcp://{store}", "--key-file", self.key, "--seal", "off", *options])
        finally:
            self.bench.hiroma, self.bench.run_command = machine, command


@contextlib.contextmanager
def machine_of(bench):
    machine = Machine(bench)
    try:
        yield machine
    finally:
        machine.remove()


def machine_gone(bench):
    """The client's machine vanishes without a word; what it had is freed, and when it returns after all, it is refused in words."""
    with machine_of(bench) as machine:
        address, log = machine.serve(["--lease", "2s"])
        sweep = machine.sweep(address).filled()
        look = lambda: pool(bench, address, ["--key-file", machine.key])
        # Members say how full they are twice a second.
        wait_for(lambda: taken(look())[0][0] > 100 * MIB, 5, "the program has memory there")
        machine.pull()
        took = until_freed(look, time.monotonic())
        want("no sign of life" in log.read_text(), f"the server says why: {log.read_text()[-500:]}")
        time.sleep(1)
        machine.plug()
        sweep.ends_with_store_failure(60, "lease")
        return f"freed after {took:.2f} s"


def cut_off_for_a_moment(bench):
    """The network fails for less than the lease: the program goes on with what it had."""
    with machine_of(bench) as machine:
        address, _ = machine.serve(["--lease", "2s"])
        sweep = machine.sweep(address).filled()
        for _ in range(3):
            machine.pull()
            time.sleep(0.8)
            machine.plug()
            time.sleep(3)
        sweep.ends_right()


def longer_failure(bench):
    """A machine that is silent for some seconds keeps what it has."""
    with machine_of(bench) as machine:
        address, _ = machine.serve()
        sweep = machine.sweep(address).filled()
        machine.pull()
        time.sleep(20)
        machine.plug()
        sweep.ends_right()


def member_elsewhere(bench):
    """A server that joins a pool on another machine listens where that one reaches it, without being told where."""
    with machine_of(bench) as machine:
        address, _ = machine.serve(["--name", "here"])
        log = bench.fresh("there.log")
        command = ["ip", "netns", "exec", machine.name, bench.hiroma, "serve", "--memory", "64M", "--key-file", machine.key, "--join", address, "--name", "there"]
        with open(log, "wb") as out:
            process = bench.start(command, stdout=out, stderr=out)

        def members():
            want(process.poll() is None, f"the server ended: {log.read_text()[-500:]}")
            told = pool(bench, address, ["--key-file", machine.key])
            return {member["name"]: member["address"] for member in told if member["health"] == "alive" and member["sequence"] > 0}

        wait_for(lambda: len(members()) == 2, 30, "both are members")
        want(members()["there"] == f"{machine.there}:7070", f"its address: {members()}")
        # Longer than it takes until a member that does not answer is believed dead.
        time.sleep(12)
        want(len(members()) == 2, f"they hear each other: {log.read_text()[-500:]}")


def quota(bench):
    """A tenant never has more than its quota; what is beyond it goes to the next store, or the program is told whose quota it was."""
    process, store = bench.serve(memory="1G", options=["--quota", "small=64M", "--quota", "900M"])
    address = store.removeprefix("tcp://")
    sweep = Sweep(bench, 192, 48, ["--store", f"{store},file:/var/tmp", "--tenant", "small"])
    most = 0

    def filled():
        nonlocal most
        sweep.alive()
        for client in pool(bench, address)[0]["clients"]:
            want(client["name"] == "small" and client["quota_bytes"] == 64 * MIB, f"name and quota are shown: {client}")
            most = max(most, client["tenant_bytes"])
        return "filled" in sweep.output()

    wait_for(filled, 120, "the memory is filled")
    # Another one is not held up by that.
    other = Sweep(bench_dir(bench), 192, 48, ["--store", store, "--tenant", "other"]).filled()
    other.ends_right()
    sweep.ends_right()
    want(60 * MIB <= most <= 64 * MIB, f"{most / MIB:.1f} MiB of a quota of 64 MiB")
    failing = Sweep(bench_dir(bench), 192, 48, ["--store", store, "--tenant", "small"])
    failing.ends_with_store_failure(120, "quota of tenant small")
    return f"at most {most / MIB:.1f} MiB of 64 MiB"


class bench_dir:
    """The same test with a directory of its own, for a second program."""

    def __init__(self, bench):
        self.bench, self.dir = bench, bench.fresh("dir")
        self.dir.mkdir()

    def __getattr__(self, name):
        return getattr(self.bench, name)

    def file(self, name):
        return self.dir / name


TESTS = {
    "tenants-killed": killed,
    "tenants-stopped": stopped,
    "tenants-server-stopped": server_stopped,
    "tenants-machine-gone": machine_gone,
    "tenants-cut-off": cut_off_for_a_moment,
    "tenants-longer-failure": longer_failure,
    "tenants-member-elsewhere": member_elsewhere,
    "tenants-quota": quota,
}
