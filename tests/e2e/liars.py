"""Members that lie: bytes that are not those that were sent, older ones, errors, memory that is not there. With copies the program gets the
right bytes from others, and a member that goes on like that is left out. What is between stays
there: connections do not go on in shared memory."""

import functools
import time

from copies import STALL_MAX_S, Servers, Stalls, said
from failures import Sweep
from harness import MIB, STORE_FAILED, Skip, compile_job, want, wait_for
from wire import Between, Boasts, Broken, Errors, Garbage, Old

LEFT_OUT = "is not used for the next 10 minutes"


def option(ports):
    return "tcp://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def lies(bench, liar, options=("--copies", "2", "--seal", "on"), count=3, from_the_start=False):
    """One server lies: it is left out, and nothing else happens."""
    servers = Servers(bench, count)
    between = Between(servers.ports[1], liar if from_the_start else None)
    ports = [between.port if at == 1 else port for at, port in enumerate(servers.ports)]
    sweep = Sweep(bench, 128, 48, ["--store", option(ports), "--transport", "tcp", *options]).filled()
    if from_the_start:
        # All places have been written to again.
        fetched = sweep.counters()["fetched_bytes"]
        wait_for(lambda: sweep.alive() or sweep.counters()["fetched_bytes"] > fetched + 512 * MIB, 120, "the program goes round")
        liar.is_lying = True
    else:
        between.liar = liar
        between.cut()
    stalls = Stalls(sweep)
    stalls.watch(2)
    said(sweep, f":{between.port}", LEFT_OUT)
    said(sweep, "everything has")
    stalls.watch(2)
    sweep.ends_right()
    between.close()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


def garbage(bench, **how):
    return lies(bench, Garbage(), **how)


def old(bench):
    liar = Old()
    told = lies(bench, liar, from_the_start=True)
    want(liar.told > 0, "nothing old was told")
    return f"{liar.told} old pages were told; {told}"


def errors(bench, **how):
    return lies(bench, Errors(), **how)


def boasts(bench):
    """A server with little memory claims a terabyte: what it cannot take goes to others, at once."""
    small, large = Servers(bench, 1, memory="32M"), Servers(bench, 2)
    between = Between(small.ports[0], Boasts())
    sweep = Sweep(bench, 192, 48, ["--store", option([between.port, *large.ports]), "--transport", "tcp", "--copies", "2"]).filled()
    stalls = Stalls(sweep)
    stalls.watch(5)
    wait_for(lambda: sweep.alive() or sweep.counters()["copies_missing_bytes"] == 0, 30, "everything has its copies")
    # So much that the two others are needed for nearly everything.
    small.kill(0)
    stalls.watch(2)
    sweep.ends_right()
    between.close()
    want(stalls.longest < STALL_MAX_S, f"nothing was fetched for {stalls.longest:.2f} s")
    return f"longest stall {stalls.longest * 1000:.0f} ms"


def broken_page(bench):
    """A server is lost, and another one cannot read some of the blocks that have no other copy: all others are made again."""
    servers = Servers(bench, 2)
    liar = Errors(one_in=0)
    between = Between(servers.ports[1], liar)
    ports = [servers.ports[0], between.port]
    sweep = Sweep(bench, 128, 48, ["--store", option(ports), "--transport", "tcp", "--copies", "2"]).filled()
    sweep.rests()
    liar.one_in = 64
    servers.kill(0)
    servers.restart(0)
    said(sweep, f":{ports[0]}", "is back, empty")
    missing = lambda: sweep.counters()["copies_missing_bytes"]
    most = missing()
    # How many cannot be read is chance.
    wait_for(lambda: sweep.alive() or missing() < 128 * MIB / 64 * 2, 60, "what can be read is made again")
    left = missing()
    want(left > 0 and liar.told > 0, f"{left} bytes are left, {liar.told} errors were told")
    # The server's disk, or whatever it was, works again: nothing was given up.
    liar.one_in = 0
    wait_for(lambda: sweep.alive() or missing() == 0, 60, "everything is made again")
    sweep.idle_file.unlink()
    servers.kill(1)
    time.sleep(1)
    sweep.ends_right()
    between.close()
    return f"{left / MIB:.1f} of {most / MIB:.0f} MiB could not be read for a while"


def broken_neighbours(bench, options=(), count=1):
    """Pages that the program does not touch cannot be read: it gets what is beside them, and ends only when it touches one."""
    if bench.native_only:
        raise Skip("has no native half")
    servers = Servers(bench, count)
    liars = [Broken() for _ in servers.ports]
    betweens = [Between(port, liar) for port, liar in zip(servers.ports, liars)]
    store = ["--store", option([between.port for between in betweens]), "--transport", "tcp", *options]
    skips = compile_job(bench, "skips.c", "-O2")
    run = lambda last: bench.native(bench.run_command(32 * MIB, [skips, 96, 2, last], bench.fresh("stats.json"), store))
    right = run(4)
    want(right.code == 0 and b"skips: right" in right.output, f"exit code {right.code}: {right.output[-300:]} {right.errors[-800:]}")
    told = sum(liar.told for liar in liars)
    want(told > 0, "nothing was read together with what is broken")
    ended = run(3)
    want(ended.code == STORE_FAILED and b"skips: right" in ended.output, f"exit code {ended.code}: {ended.output[-300:]} {ended.errors[-800:]}")
    for between in betweens:
        between.close()
    return f"{told} reads of more than was needed failed"


TESTS = {
    "liar-garbage": garbage,
    "liar-garbage-parity": functools.partial(garbage, options=["--parity", "2+1", "--seal", "on"], count=4),
    "liar-old": old,
    "liar-errors": errors,
    "liar-errors-parity": functools.partial(errors, options=["--parity", "2+1"], count=4),
    "liar-boasts": boasts,
    "liar-broken-page": broken_page,
    "liar-broken-neighbours": broken_neighbours,
    "liar-broken-neighbours-copies": functools.partial(broken_neighbours, options=["--copies", "2"], count=2),
}
