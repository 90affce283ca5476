"""Redis with a quarter of its memory: every value read back, and a snapshot taken by a forked child while under pressure."""

import hashlib
import json
import socket

from harness import MIB, check_limit, counter, free_port, need, wait_for, want

KEYS = 40_000
BATCH = 500


def value(number, version):
    """A few KiB that Redis cannot share, computed from the key; half of it does not compress."""
    seed = hashlib.sha256(b"%d/%d" % (number, version)).digest()
    return (seed * (16 + number % 128) + hashlib.shake_128(seed).digest(2000 + number % 1000))


class Client:
    """Just enough of the protocol to send many commands at once and read the answers."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.reader = self.socket.makefile("rb")

    def close(self):
        self.reader.close()
        self.socket.close()

    def many(self, commands):
        parts = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in command]
        self.socket.sendall(b"".join(parts))
        return [self.answer() for _ in commands]

    def one(self, *words):
        return self.many([[word if isinstance(word, bytes) else str(word).encode() for word in words]])[0]

    def answer(self):
        line = self.reader.readline()
        want(line.endswith(b"\r\n"), "Redis closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.reader.read(int(rest) + 2)[:-2]
        want(kind != b"-", f"Redis says {rest.decode(errors='replace')}")
        return int(rest) if kind == b":" else rest

    def info(self, section):
        lines = self.one("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


def server(bench, directory, wrapper=()):
    program = need("redis-server", "redis-server")
    directory.mkdir(exist_ok=True)
    port = free_port()
    log = directory / "redis.log"
    command = [*wrapper, program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", directory,
               "--logfile", log, "--enable-debug-command", "yes", "--rdbcompression", "no", "--daemonize", "no"]
    errors = open(directory / "stderr", "wb")
    process = bench.start(command, stdout=errors, stderr=errors)
    errors.close()

    def ready():
        want(process.poll() is None, f"redis-server ended with code {process.poll()}: "
             + (directory / "stderr").read_text(errors="replace")[-800:])
        try:
            client = Client(port)
            client.one("PING")
            return client
        except (OSError, AssertionError):
            return None

    return process, wait_for(ready, 60, "redis-server answers")


def stop(process, client):
    client.socket.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
    client.close()
    wait_for(lambda: process.poll() is not None, 60, "redis-server ends")
    return process.returncode


def load(client, numbers, version):
    for at in range(0, len(numbers), BATCH):
        batch = numbers[at : at + BATCH]
        answers = client.many([[b"SET", b"key:%d" % number, value(number, version)] for number in batch])
        want(answers == [b"OK"] * len(batch), "Redis did not take a value")


def verify(client, numbers, version, what):
    for at in range(0, len(numbers), BATCH):
        batch = numbers[at : at + BATCH]
        for number, found in zip(batch, client.many([[b"GET", b"key:%d" % number] for number in batch])):
            want(found == value(number, version), f"{what}: key:{number} has a wrong value")


def redis(bench):
    everything, changed = range(KEYS), range(0, KEYS, 4)
    native_process, native = server(bench, bench.file("native"))
    load(native, everything, 0)
    used = int(native.info("memory")["used_memory_rss"])
    native_digest = native.one("DEBUG", "DIGEST")
    want(stop(native_process, native) == 0, "the native server did not end well")

    wrapper, stats = [], bench.file("stats.json")
    limit = used // 4
    if not bench.native_only:
        wrapper = bench.run_command(limit, [], stats)
    directory = bench.file("far")
    process, client = server(bench, directory, wrapper)
    load(client, everything, 0)
    verify(client, everything, 0, "first reading")
    want(client.one("DEBUG", "DIGEST") == native_digest, "DEBUG DIGEST differs from the native server's")

    # The child writes what was there at the fork, while the parent changes a quarter of it.
    client.one("BGSAVE")
    try:
        load(client, changed, 1)
    except OSError as error:
        want(False, f"the server went away ({error}): " + (directory / "stderr").read_text(errors="replace")[-800:])
    wait_for(lambda: client.info("persistence")["rdb_bgsave_in_progress"] == "0", 180, "BGSAVE ends")
    want(client.info("persistence")["rdb_last_bgsave_status"] == "ok", "BGSAVE failed: " + (directory / "redis.log").read_text()[-600:])
    verify(client, changed, 1, "values changed during BGSAVE")
    unchanged = [number for number in everything if number % 4]
    verify(client, unchanged, 0, "values not changed during BGSAVE")
    want(stop(process, client) == 0, "the server did not end well: " + (directory / "stderr").read_text(errors="replace")[-800:])

    restored_process, restored = server(bench, move_dump(bench, directory / "dump.rdb"))
    want(restored.one("DBSIZE") == KEYS, "the dump has another number of keys")
    want(restored.one("DEBUG", "DIGEST") == native_digest, "the dump, loaded natively, differs from what was there at the fork")
    stop(restored_process, restored)
    if bench.native_only:
        return f"native only: {used / MIB:.0f} MiB"
    figures = json.loads(stats.read_text())
    check_limit(figures, limit)
    want(sum(counter(figures, "fetched_bytes")) > 0, "nothing was fetched: Redis did not run far")
    return f"{used / MIB:.0f} MiB natively, {figures['far_bytes_max'] / MIB:.0f} MiB far"


def move_dump(bench, dump):
    directory = bench.file("restored")
    directory.mkdir()
    dump.rename(directory / "dump.rdb")
    return directory


TESTS = {"redis": redis}
