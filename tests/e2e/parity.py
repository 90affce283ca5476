"""Far memory cut into pieces in several servers: as many as there is parity may die, stop or be emptied, and the program does not notice."""

import os
import time

from copies import STALL_MAX_S, Servers, Stalls, drained, forks, said
from failures import Sweep
from harness import Failure, need, share, want, wait_for
from programs import numbers_file, same_file


def start(bench, servers, scheme, mib=192, options=()):
    return Sweep(bench, mib, 48, ["--store", servers.option(), "--parity", scheme, *options]).filled()


def server_killed(bench):
    servers = Servers(bench, 6)
    sweep = start(bench, servers, "4+1")
    stalls = Stalls(sweep)
    stalls.watch(1)
    servers.kill(1)
    stalls.watch(4)
    said(sweep, f":{servers.ports[1]}", "lost")
    said(sweep, "everything has all 5 pieces")
    # Another one may die now, though nobody can take the place of its pieces.
    servers.kill(0)
    stalls.watch(3)
    said(sweep, "4 other servers are too few for all 5 pieces")
    sweep.ends_right()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


def two_killed(bench):
    """Two deaths at once are one more than 4+1 bears."""
    servers = Servers(bench, 5)
    sweep = start(bench, servers, "4+1", options=["--store-timeout", "5s"])
    servers.kill(0)
    servers.kill(3)
    began = time.monotonic()
    sweep.ends_with_store_failure(60, "too few pieces of a needed block are left")
    return f"ended {time.monotonic() - began:.1f} s after the servers, with 5 s of patience"


def two_of_five_killed(bench):
    servers = Servers(bench, 5)
    sweep = start(bench, servers, "3+2")
    servers.kill(0)
    servers.kill(3)
    time.sleep(3)
    sweep.ends_right()


def two_stopped(bench):
    """Fewer pieces than are needed answer for a while: the program waits."""
    servers = Servers(bench, 5)
    sweep = start(bench, servers, "4+1")
    servers.stop(1)
    servers.stop(2)
    time.sleep(4)
    sweep.alive()
    servers.go_on(1)
    time.sleep(1)
    servers.go_on(2)
    time.sleep(1)
    sweep.ends_right()


def sort_with(bench, options, disturb):
    """Sorts with 30 % of the memory that it takes, on five servers, and compares the result; `disturb` gets the servers in the middle."""
    program = need("sort", "coreutils")
    lines = numbers_file(bench, 1_000_000, 1 << 33)
    command = lambda result: [program, "--parallel=1", "-S", "1G", lines, "-o", bench.file(result)]
    native = bench.expected(command("native"))
    servers = Servers(bench, 5, memory="256M")
    before = settled_rss(servers)
    local = max(int(native.rss_bytes * 0.3), share(native) // 2)
    err = bench.file("sort.err")
    with open(err, "wb") as errors:
        sorting = bench.start(bench.run_command(local, command("far"), bench.file("stats.json"), ["--store", servers.option(), *options]),
                              stderr=errors, env={**os.environ, "LC_ALL": "C"})

    def under_way():
        want(sorting.poll() is None, f"it ended before the middle: {sorting.poll()} {err.read_text()[-500:]}")
        return rss(servers) - before > native.rss_bytes * 0.4

    wait_for(under_way, 300, "the sort has much in the servers")
    disturb(servers)
    wait_for(lambda: sorting.poll() is not None, 300, "the sort ends")
    want(sorting.returncode == 0, f"exit code {sorting.returncode}: {err.read_text()[-800:]}")
    want(same_file(bench.file("native"), bench.file("far")), "the outputs differ")


def rss(servers):
    """Bytes of memory that the servers have in use."""
    pages = 0
    for process in servers.processes:
        with open(f"/proc/{process.pid}/statm", encoding="ascii") as statm:
            pages += int(statm.read().split()[1])
    return pages * 4096


def settled_rss(servers):
    """The same once they have touched what they lend first, which they do after they are ready."""
    last = [0]

    def is_settled():
        last.append(rss(servers))
        time.sleep(0.3)
        return last[-1] == last[-2]

    wait_for(is_settled, 60, "the servers have touched their first memory")
    return last[-1]


def sort_killed(bench):
    sort_with(bench, ["--parity", "4+1", "--seal", "on"], lambda servers: servers.kill(2))


def sort_stopped(bench):
    def stop(servers):
        servers.stop(2)
        time.sleep(5)
        servers.go_on(2)

    sort_with(bench, ["--parity", "4+1"], stop)


def server_drained(bench):
    """By any member of the pool, which has no need to be named otherwise."""
    return drained(bench, 7, ["--parity", "4+1"], by_pool=True)


def forks_cut(bench):
    return forks(bench, 6, ["--parity", "4+1"])


def refused(bench):
    servers = Servers(bench, 2, memory="64M")
    for options, words in [
        (["--parity", "0+1"], "at least one piece"),
        (["--parity", "4+0"], "at least one piece"),
        (["--parity", "four"], "is not K+M"),
        (["--parity", "12+5"], "at most 16 pieces"),
        (["--parity", "4+1", "--store", servers.option()], "--parity 4+1 needs 5 servers, and 2 are named"),
        (["--parity", "4+1", "--copies", "2", "--store", servers.option()], "leave one of the two out"),
        (["--parity", "4+1"], "--parity 4+1 is about servers, and none is named"),
    ]:
        ended = bench.native([bench.hiroma, "run", *options, "--", "true"])
        if ended.code != 2 or words not in ended.errors:
            raise Failure(f"{options}: exit code {ended.code}: {ended.errors[-500:]}")


TESTS = {
    "parity-refused": refused,
    "parity-server-killed": server_killed,
    "parity-two-killed": two_killed,
    "parity-two-of-five-killed": two_of_five_killed,
    "parity-two-stopped": two_stopped,
    "parity-sort-killed": sort_killed,
    "parity-sort-stopped": sort_stopped,
    "parity-drained": server_drained,
    "parity-forks": forks_cut,
}
# See copies.BY_CHANCE.
BY_CHANCE = {"parity-forks"}
