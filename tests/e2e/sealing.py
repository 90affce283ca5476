"""What servers hold of a program: with --seal, nothing that can be read, and the program works as without."""

import os
import pathlib
import re
import signal
import sys

from copies import STALL_MAX_S, Servers, Stalls, repaired, start
from harness import MIB, compile_job, want, wait_for

# As the program spells it in memory, which is not how it is written here.
MARK = b"what the " + b"program knows "
PROGRAM = """
import time
mark = b"what the " + b"program knows "
kept = [b"%s%010d" % (mark, i) * 170 for i in range(24000)]
assert all(kept[i].startswith(b"%s%010d" % (mark, i)) for i in range(24000))
print("ready", flush=True)
time.sleep(1000)
"""


def occurrences(pid, what):
    """In the anonymous memory of a process, and in memory that it maps from files without a name."""
    count = 0
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end, rights = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            at, end = int(start, 16), int(end, 16)
            while "r" in rights and at < end:
                size = min(end - at, 16 * MIB)
                try:
                    memory.seek(at)
                    count += memory.read(size).count(what)
                except (OSError, ValueError):
                    pass
                at += size
    return count


def server_knows(bench):
    """Without sealing the server's memory shows what the program has; with it, it does not."""
    server, store = bench.serve(memory="256M")
    counts = {}
    for seal in ["off", "on"]:
        out = bench.fresh("out")
        with open(out, "wb") as stdout:
            command = [bench.hiroma, "run", "--local", "32M", "--store", store, "--seal", seal, "--", sys.executable, "-c", PROGRAM]
            process = bench.start(command, stdout=stdout, stderr=stdout)
        wait_for(lambda: process.poll() is not None or "ready" in out.read_text(), 100, "the program has all its memory")
        want(process.poll() is None, f"the program ended: {out.read_text()[-600:]}")
        counts[seal] = occurrences(server.pid, MARK)
        os.kill(process.pid, signal.SIGTERM)
        process.wait()
    want(counts["off"] > 100_000, f"without sealing the server shows {counts['off']} marks: this test finds nothing")
    want(counts["on"] == 0, f"with sealing the server shows {counts['on']} marks")


def sealed_forks(bench):
    """Children read what the parent sealed, and seal under keys of their own."""
    _, store = bench.serve(memory="1G")
    program = [compile_job(bench, "forks.c", "-O2"), 64, 10]
    done = bench.native([bench.hiroma, "run", "--local", "24M", "--store", store, "--seal", "on", "--", *program], seconds=200)
    want(done.code == 0 and b"forks: right" in done.output, f"exit code {done.code}: {done.output[-200:]} {done.errors[-600:]}")


def sealed_copies(bench):
    """A server is killed, and what it had is made again from sealed copies."""
    servers = Servers(bench, 3)
    sweep = start(bench, servers, options=["--seal", "on"])
    stalls = Stalls(sweep)
    stalls.watch(1)
    servers.kill(1)
    stalls.watch(3)
    repaired(sweep)
    servers.kill(0)
    stalls.watch(2)
    sweep.ends_right()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")


MIXED = """
a = [bytes([i % 251]) * 1000 + i.to_bytes(8, "big") for i in range(100000)]
for _ in range(3):
    assert all(a[i][-8:] == i.to_bytes(8, "big") for i in range(100000))
del a
print("right")
"""


def sealed_behind(bench):
    """Blocks of which some sectors are in compressed memory and others in servers, read in one piece."""
    stores = [bench.serve(memory="1G")[1] for _ in range(2)]
    both = ",".join(stores).replace(",tcp://", ",")
    for store, option in [(stores[0], []), (both, ["--copies", "2"])]:
        for _ in range(3):
            command = [bench.hiroma, "run", "--local", "64M", "--store", f"compressed:1M,{store}", *option, "--seal", "on", "--", sys.executable, "-c", MIXED]
            done = bench.native(command, seconds=200)
            want(done.code == 0 and done.output == b"right\n", f"{option}: exit code {done.code}: {done.errors[-600:]}")


TESTS = {
    "seal-behind": sealed_behind,
    "seal-server-knows": server_knows,
    "seal-forks": sealed_forks,
    "seal-copies": sealed_copies,
}
