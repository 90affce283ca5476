#!/usr/bin/env python3
"""A hot file, a stream larger than memory and much memory held, without and with `hiroma quiet serve`.

Reports for each run how often kswapd ran, direct stalls, pages swapped out, what was read again, and
the speed of the stream. Fails only if the daemon fails. Needs root. Usage: quiet.py HIROMA [SECONDS]
"""

import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 1 << 20


def memory_bytes():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def counters():
    return {name: int(value) for name, value in (line.split() for line in Path("/proc/vmstat").read_text().splitlines())}


def read(path):
    total = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(MIB):
            total += len(piece)
    return total


def make(path, size):
    block = os.urandom(16 * MIB)
    with open(path, "wb") as file:
        for _ in range(size // len(block)):
            file.write(block)


def scene(hot, stream):
    """One run: the hot file is read every two seconds while the stream is read once."""
    read(hot), read(hot)
    before, began = counters(), time.monotonic()
    child = os.fork()
    if child == 0:
        read(stream)
        os._exit(0)
    slowest = 0.0
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        start = time.monotonic()
        read(hot)
        slowest = max(slowest, time.monotonic() - start)
        while time.monotonic() < start + 2 and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.02)
    after = counters()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    return {
        "kswapd runs": grown["pageoutrun"],
        "direct stalls": sum(value for name, value in grown.items() if name.startswith("allocstall")),
        "swapped out": grown["pswpout"],
        "came back": grown["workingset_activate_file"],
        "GB/s": os.path.getsize(stream) / 1e9 / (time.monotonic() - began),
        "hot file s": slowest,
    }


class Daemon:
    def __init__(self, hiroma, directory):
        self.log = open(f"{directory}/quiet.log", "w")
        command = [hiroma, "quiet", "serve", "--state", f"{directory}/state"]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log)
        time.sleep(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        code = self.process.wait(20)
        if code != 0:
            raise SystemExit(f"hiroma quiet serve ended with {code}: {Path(self.log.name).read_text()}")


def main():
    hiroma, duration = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3600
    end = time.monotonic() + duration
    whole = memory_bytes()
    runs = {"without": [], "with": []}
    with tempfile.TemporaryDirectory(prefix="hiroma-soak-", dir="/var/tmp") as directory:
        hot, stream = f"{directory}/hot", f"{directory}/stream"
        make(hot, whole // 24 // (16 * MIB) * 16 * MIB)
        make(stream, whole * 5 // 8 // (16 * MIB) * 16 * MIB)
        held = mmap.mmap(-1, whole // 2)
        for at in range(0, len(held), mmap.PAGESIZE):
            held[at] = 1
        while time.monotonic() < end or not runs["with"]:
            for arm in ("without", "with"):
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("1")
                if arm == "with":
                    with Daemon(hiroma, directory):
                        found = scene(hot, stream)
                else:
                    found = scene(hot, stream)
                runs[arm].append(found)
                print(f"{arm:8}" + "".join(f"{name} {value:.2f}  " if isinstance(value, float) else f"{name} {value}  " for name, value in found.items()), flush=True)
    print()
    for arm, found in runs.items():
        medians = {name: statistics.median(run[name] for run in found) for name in found[0]}
        worst = {name: max(run[name] for run in found) for name in found[0]}
        print(f"{arm:8} {len(found)} runs, median (most): " + ", ".join(f"{name} {medians[name]:.4g} ({worst[name]:.4g})" for name in medians))


if __name__ == "__main__":
    main()
