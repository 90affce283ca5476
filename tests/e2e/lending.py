"""Servers that lend what their machine can spare (`--memory auto`): a program there that suddenly takes memory gets it, and the clients'
bytes stay right. The machine is a control group with a limit, in which the kernel ends a process when memory is exhausted."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from copies import Servers, Stalls
from failures import Sweep
from harness import MIB, Skip, wait_for, want
from tenants import pool

GROUP_MIB = 768
# Takes memory at this rate and keeps it for a while.
HOG = """
import sys, time
mib, rate, seconds = map(float, sys.argv[1:])
taken, began = [], time.monotonic()
while len(taken) * 4 < mib:
    taken.append(bytearray(b"x") * (4 << 20))
    time.sleep(max(0, began + len(taken) * 4 / rate - time.monotonic()))
print("took", time.monotonic() - began, flush=True)
time.sleep(seconds)
print("hog: done", flush=True)
"""
# What the program takes, and how fast.
HOG_MIB, HOG_MIB_S = 440, 900


class Group:
    """A memory control group, of version 1 or 2."""

    def __init__(self, mib):
        self.first = pathlib.Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
        root = pathlib.Path("/sys/fs/cgroup/memory" if self.first else "/sys/fs/cgroup")
        self.dir = root / f"hiroma-e2e-{os.getpid()}"
        try:
            self.dir.mkdir()
            (self.dir / ("memory.limit_in_bytes" if self.first else "memory.max")).write_text(str(mib * MIB))
        except OSError as error:
            with contextlib.suppress(OSError):
                self.dir.rmdir()
            raise Skip(f"needs the right to make a memory control group: {error}") from None

    def enter(self):
        (self.dir / "cgroup.procs").write_text(str(os.getpid()))

    def kills(self):
        text = (self.dir / ("memory.oom_control" if self.first else "memory.events")).read_text()
        return int(re.search(r"oom_kill (\d+)", text).group(1))

    def failures(self):
        return int((self.dir / "memory.failcnt").read_text()) if self.first else None

    def remove(self):
        for pid in (self.dir / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.dir.rmdir()
                return
            time.sleep(0.05)


@contextlib.contextmanager
def group_of(mib):
    group = Group(mib)
    try:
        yield group
    finally:
        group.remove()


def serve_in(bench, group, options=()):
    """A server in the group that lends what is to spare; (process, address, log)."""
    log = bench.fresh("serve.log")
    command = [bench.hiroma, "serve", "--listen", "127.0.0.1:0", "--memory", "auto", *options]
    with open(log, "wb") as out:
        process = bench.start(command, stdout=out, stderr=out, preexec_fn=group.enter)

    def ready():
        want(process.poll() is None, f"the server ended: {log.read_text()[-500:]}")
        return re.search(r"ready on (\S+),", log.read_text())

    return process, wait_for(ready, 60, "the server is ready").group(1), log


def hog_in(bench, group, mib=HOG_MIB, rate=HOG_MIB_S, seconds=4):
    out = bench.fresh("hog.out")
    command = [sys.executable, "-I", "-c", HOG, str(mib), str(rate), str(seconds)]
    with open(out, "wb") as to:
        process = bench.start(command, stdout=to, stderr=to, preexec_fn=group.enter)
    return process, out


def disk_mib_s(directory):
    """How fast the disk takes what a server writes to it, now: others may be writing too."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        piece, began = os.urandom(4 * MIB), time.monotonic()
        for _ in range(32):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        return 128 / (time.monotonic() - began)


def member(bench, address):
    return next(member for member in pool(bench, address) if member["address"] == address)


def ends(bench, process, *programs):
    for part in (process, *programs):
        if part.poll() is None:
            part.terminate()
        part.wait(timeout=30)


def own_program(bench):
    with group_of(GROUP_MIB) as group:
        server, address, log = serve_in(bench, group, ["--spill", "/var/tmp"])
        lent = member(bench, address)["lent_bytes"]
        want(500 * MIB < lent < GROUP_MIB * MIB * 7 // 8, f"{lent / MIB:.0f} MiB are lent in a group of {GROUP_MIB} MiB")
        sweep = Sweep(bench, 384, 48, ["--store", f"tcp://{address}"]).filled()
        # What the disk does not take cannot be given back sooner.
        hog, out = hog_in(bench, group, rate=min(HOG_MIB_S, disk_mib_s("/var/tmp")))
        wait_for(lambda: sweep.alive() or "took" in out.read_text() or hog.poll() is not None, 60, "the program has its memory")
        want(hog.poll() is None, f"the program ended with {hog.returncode}: {out.read_text()}; {log.read_text()[-800:]}")
        took = float(re.search(r"took (\S+)", out.read_text()).group(1))
        wait_for(lambda: sweep.alive() or member(bench, address)["spilled_bytes"] > 100 * MIB, 20, "blocks are on the disk")
        want(member(bench, address)["refusing"], "the member says that it is short of memory")
        wait_for(lambda: sweep.alive() or hog.poll() is not None, 60, "the program ends")
        want(hog.returncode == 0 and "hog: done" in out.read_text(), f"exit code {hog.returncode}: {out.read_text()}")
        want(group.kills() == 0, "the kernel has ended a process for want of memory")
        wait_for(lambda: sweep.alive() or member(bench, address)["spilled_bytes"] == 0, 60, "blocks are in memory again")
        wait_for(lambda: sweep.alive() or not member(bench, address)["refusing"], 60, "memory is lent again")
        sweep.ends_right()
        ends(bench, server)
        given = re.search(r"lending .*; (\S+?)([MG]iB) were given back in (\S+) s", log.read_text())
        want(given, f"the server says what it gave back: {log.read_text()[-800:]}")
        mib = float(given.group(1)) * (1024 if given.group(2) == "GiB" else 1)
        want(server.returncode == 0, f"exit code {server.returncode}")
        return f"{HOG_MIB} MiB taken in {took:.2f} s; {mib:.0f} MiB given back at {mib / float(given.group(3)) / 1024:.2f} GiB/s"


def copies_move(bench):
    """Programs with copies move away; nothing goes to the disk."""
    with group_of(GROUP_MIB) as group:
        others = Servers(bench, 2, memory="600M")
        server, address, log = serve_in(bench, group, ["--spill", "none"])
        option = f"tcp://{address}," + others.option().removeprefix("tcp://")
        sweep = Sweep(bench, 384, 48, ["--store", option, "--copies", "2"]).filled()
        stalls = Stalls(sweep)
        # Not faster than blocks are copied beside the program's own requests.
        hog, out = hog_in(bench, group, mib=380, rate=40, seconds=1)
        while hog.poll() is None:
            stalls.watch(0.5)
        want(hog.returncode == 0, f"exit code {hog.returncode}: {out.read_text()}; {log.read_text()[-800:]}")
        want(group.kills() == 0, "the kernel has ended a process for want of memory")
        want("is asked to move away" in log.read_text(), f"the client was asked: {log.read_text()[-800:]}")
        want("is to be emptied" in sweep.errors(), f"the client has moved: {sweep.errors()[-500:]}")
        sweep.ends_right()
        want("lost" not in sweep.errors(), f"no member was lost: {sweep.errors()[-500:]}")
        ends(bench, server)
        return f"longest stall {stalls.longest * 1000:.0f} ms"


TESTS = {"lending-own-program": own_program, "lending-copies-move": copies_move}
