"""Redis as the store of far memory: the right result, refusals in words, an end with code 75, and nothing left in the server."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time

from failures import Sweep
from harness import MIB, Skip, free_port, need, session, want, wait_for
from programs import numbers_file, same_file, summary
from redis_test import Client


class Server:
    """A server of our own on loopback, with nothing on disk."""

    def __init__(self, bench, *options, password=None):
        if bench.native_only:
            raise Skip("has no native half")
        program = need("redis-server", "redis-server")
        self.port, self.password = free_port(), password
        login = ["--requirepass", password] if password else []
        log = open(bench.fresh("redis.log"), "wb")
        self.process = bench.start([program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *login,
                                    *options], stdout=log, stderr=log)
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}"

        def ready():
            with contextlib.suppress(OSError):
                return Client(self.port)

        wait_for(ready, 60, "redis-server is ready")

    def keys(self):
        client = Client(self.port)
        if self.password:
            client.one("AUTH", self.password)
        return client.one("DBSIZE")


def sort(bench, password):
    server = Server(bench, password=password)
    program = need("sort", "coreutils")
    lines = numbers_file(bench, 2_000_000, 1 << 33)
    command = lambda result: [program, "--parallel=1", "-S", "1G", lines, "-o", bench.file(result)]
    native = bench.expected(command("native"))
    far = bench.far(native, command("far"), options=["--store", server.url])
    want(same_file(bench.file("native"), bench.file("far")), "the outputs differ")
    want(server.keys() == 0, f"{server.keys()} keys are left")
    want("sesame" not in far.errors, "a message shows the password")
    return summary(native, far)


def killed(bench):
    server = Server(bench)
    sweep = Sweep(bench, 192, 48, ["--store", server.url, "--store-timeout", "5s"]).filled()
    server.process.kill()
    server.process.wait()
    began = time.monotonic()
    sweep.ends_with_store_failure(60, server.url, "redis-server")
    return f"ended {time.monotonic() - began:.1f} s after the server, with 5 s of patience"


def hangs(bench):
    server = Server(bench)
    sweep = Sweep(bench, 192, 48, ["--store", server.url, "--store-timeout", "5s"]).filled()
    os.kill(server.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    sweep.ends_with_store_failure(60, server.url, "no answer for 5s")
    return f"ended after {time.monotonic() - began:.1f} s, with 5 s of patience"


def pauses(bench):
    """A server that stops for a while and goes on."""
    server = Server(bench)
    sweep = Sweep(bench, 192, 48, ["--store", server.url]).filled()
    os.kill(server.process.pid, signal.SIGSTOP)
    time.sleep(2)
    sweep.alive()
    os.kill(server.process.pid, signal.SIGCONT)
    fetched = sweep.counters()["fetched_bytes"]
    wait_for(lambda: sweep.counters()["fetched_bytes"] > fetched + 64 * MIB, 60, "the program goes on when the server does")
    sweep.ends_right()


def busy(bench):
    """A script of somebody else keeps the server busy: it answers BUSY meanwhile."""
    server = Server(bench, "--lua-time-limit", "50")
    sweep = Sweep(bench, 192, 48, ["--store", server.url]).filled()
    runner, killer = Client(server.port), Client(server.port)
    runner.socket.sendall(b"*3\r\n$4\r\nEVAL\r\n$17\r\nwhile true do end\r\n$1\r\n0\r\n")
    time.sleep(4)
    sweep.alive()
    killer.one("SCRIPT", "KILL")
    fetched = sweep.counters()["fetched_bytes"]
    wait_for(lambda: sweep.counters()["fetched_bytes"] > fetched + 64 * MIB, 60, "the program goes on when the script has ended")
    sweep.ends_right()


def flushed(bench):
    """Somebody deletes everything: that is missed, not read as zeros."""
    server = Server(bench)
    sweep = Sweep(bench, 192, 48, ["--store", server.url]).filled()
    Client(server.port).one("FLUSHALL")
    sweep.ends_with_store_failure(60, server.url, "keys of this program are gone")


def refused(bench, options, address, words):
    server = Server(bench, *options, password="open-sesame" if "wrong" in address else None)
    store = address.replace("PORT", str(server.port))
    outcome = bench.native(bench.run_command(64 * MIB, ["true"], bench.file("stats.json"), ["--store", store]))
    want(outcome.code == 2, f"exit code {outcome.code}, not 2: {outcome.errors}")
    want(all(word in outcome.errors for word in words), f"no message with {words}: {outcome.errors}")


def client_killed(bench):
    """kill -9 of everything on the client's side: the server forgets it after the expiry."""
    server = Server(bench)
    sweep = Sweep(bench, 192, 48, ["--store", f"{server.url}?ttl=3s"]).filled()
    time.sleep(5)
    sweep.alive()
    held = server.keys()
    want(held >= 2 * 140 // 2, f"only {held} keys hold more than 140 MiB")
    pids = {sweep.pid(), sweep.process.pid, *session(sweep.process.pid)}
    # The pager is a process of its own beside the program, in a session of its own.
    pids |= {int(entry.name) for entry in helpers(sweep.pid())}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    wait_for(lambda: server.keys() == 0, 5, "the keys expire")
    return f"{held} keys were gone {time.monotonic() - began:.1f} s after the client"


def helpers(pid):
    """The processes that share the program's memory: the pager's threads."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            names = {(task / "comm").read_text().strip() for task in (entry / "task").glob("*")}
            if any(name.startswith("hiroma-") for name in names) and maps_of(entry) == maps_of(pathlib.Path(f"/proc/{pid}")):
                yield entry


def maps_of(entry):
    """Where the program's heap and stack are: the same only in the same memory."""
    return [line.split()[0] for line in (entry / "maps").read_text().splitlines() if line.endswith(("[heap]", "[stack]", "[vdso]"))]


def full_then_file(bench):
    """A server that has reached its maxmemory refuses writes, and the next store takes them."""
    server = Server(bench, "--maxmemory", "64mb")
    sweep = Sweep(bench, 256, 48, ["--store", f"{server.url},file:{bench.dir}"]).filled()
    wait_for(lambda: sweep.counters()["fetched_bytes"] > 512 * MIB, 120, "the program sweeps over its memory")
    sweep.ends_right()


def full(bench):
    server = Server(bench)
    sweep = Sweep(bench, 256, 48, ["--store", f"{server.url}?size=64M"], rounds=3)
    sweep.ends_with_store_failure(120, "full")


def forks(bench):
    """The children read what their parent had, while both write."""
    server = Server(bench)
    program = need("python3", "python3")
    script = """
import hashlib, os
blocks = [bytearray(hashlib.shake_128(b"%d" % n).digest(65536)) for n in range(1500)]
right = lambda word: all(block[100:] == hashlib.shake_128(b"%d" % n).digest(65536)[100:] and (word is None or block[:4] == word)
                         for n, block in enumerate(blocks))
pids = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        for block in blocks:
            block[:4] = b"%4d" % child
        os._exit(0 if right(b"%4d" % child) else 9)
    pids.append(pid)
for block in blocks:
    block[:4] = b"MINE"
assert right(b"MINE")
for pid in pids:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("right")
"""
    options = ["--store", f"{server.url}?ttl=2s"]
    outcome = bench.native(bench.run_command(24 * MIB, [program, "-c", script], bench.file("stats.json"), options))
    want(outcome.code == 0 and outcome.output == b"right\n", f"exit code {outcome.code}: {outcome.output} {outcome.errors[-800:]}")
    wait_for(lambda: server.keys() == 0, 4, "nothing is left after the expiry")


def over_tls(bench):
    """Certificates on both sides, and a server that answers over TLS."""
    openssl = need("openssl", "openssl")
    place = bench.file("certificates")
    place.mkdir()

    def made(*arguments):
        subprocess.run([openssl, *arguments], cwd=place, check=True, capture_output=True, timeout=60)

    made("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    (place / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ["server", "client"]:
        made("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        made("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names",
             "-out", f"{name}.pem")
    port = free_port()
    server = Server(bench, "--tls-port", str(port), "--tls-cert-file", place / "server.pem", "--tls-key-file", place / "server.key",
                    "--tls-ca-cert-file", place / "ca.pem", "--tls-auth-clients", "yes")
    files = f"ca={place}/ca.pem&cert={place}/client.pem&key={place}/client.key"
    Sweep(bench, 192, 48, ["--store", f"rediss://127.0.0.1:{port}?{files}"], rounds=3).ends_right()
    want(server.keys() == 0, f"{server.keys()} keys are left")


REFUSED = {
    "policy": (["--maxmemory-policy", "allkeys-lru"], "redis://127.0.0.1:PORT", ["allkeys-lru", "noeviction"]),
    "password": ([], "redis://:wrong@127.0.0.1:PORT", ["password is wrong"]),
    "nobody": ([], "redis://127.0.0.1:1", ["cannot connect", "redis-server"]),
    "tls": ([], "rediss://127.0.0.1:PORT", ["with TLS at this port"]),
}

TESTS = {
    "redis-store-sort": lambda bench: sort(bench, None),
    "redis-store-sort-password": lambda bench: sort(bench, "open-sesame"),
    "redis-store-tls": over_tls,
    "redis-store-killed": killed,
    "redis-store-hangs": hangs,
    "redis-store-pauses": pauses,
    "redis-store-busy": busy,
    "redis-store-flushed": flushed,
    **{f"redis-store-refused-{name}": (lambda bench, case=case: refused(bench, *case)) for name, case in REFUSED.items()},
    "redis-store-client-killed": client_killed,
    "redis-store-full-then-file": full_then_file,
    "redis-store-full": full,
    "redis-store-forks": forks,
}
