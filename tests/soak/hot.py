#!/usr/bin/env python3
"""A changing mix of programs, each without and with `hiroma hot serve`, for as long as asked.

Fails if a program fails, reads something wrong, or has more memory than without the daemon; speed is
reported, not judged. Needs root. Usage: hot.py HIROMA [SECONDS]
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
# Pattern, MiB, seconds of one run.
LOADS = [
    ("random", 2048, 15),
    ("stride", 2048, 10),
    ("chase", 1024, 10),
    ("moving", 3072, 20),
    ("fork", 128, 8),
    ("churn", 64, 8),
    ("random", 128, 8),
]
RULES = '[[rule]]\nname = "soak-load"\nresident_min = "16M"\n'
# What a process may have more than without the daemon, in parts of its memory.
GROWTH_MAX = 0.01


def peak_rss(child):
    """Waits for a process and returns its exit code and its largest resident memory in bytes."""
    _, status, usage = os.wait4(child.pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024


def run(program, load):
    pattern, mib, seconds = load
    child = subprocess.Popen([program, pattern, str(mib), str(seconds)], stdout=subprocess.PIPE, text=True)
    said = child.stdout.read()
    code, rss = peak_rss(child)
    if code != 0:
        raise SystemExit(f"{pattern} {mib} MiB ended with {code}: {said}")
    return [float(word) for word in said.split()], rss


class Daemon:
    """`hiroma hot serve` that manages the loads."""

    def __init__(self, hiroma, directory):
        policy = Path(directory, "hot.toml")
        policy.write_text(RULES)
        command = [hiroma, "hot", "serve", "--quiet", "--budget", "90%", "--policy", str(policy), "--socket", f"{directory}/socket"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if "ready" not in self.process.stdout.readline():
            raise SystemExit("hiroma hot serve does not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        if self.process.wait(20) != 0:
            raise SystemExit(f"hiroma hot serve ended with {self.process.returncode}")


def main():
    hiroma, duration = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3600
    end = time.monotonic() + duration
    found = {}
    with tempfile.TemporaryDirectory(prefix="hiroma-soak-") as directory:
        program = f"{directory}/soak-load"
        subprocess.run(["cc", "-O2", "-o", program, HERE / "load.c"], check=True)
        mix = random.Random(7)
        while time.monotonic() < end or not found:
            load = mix.choice(LOADS)
            results = {}
            for arm in mix.sample(["off", "hot"], 2):
                if arm == "off":
                    results[arm] = run(program, load)
                else:
                    with Daemon(hiroma, directory):
                        results[arm] = run(program, load)
            (off, off_rss), (hot, hot_rss) = results["off"], results["hot"]
            if hot_rss > off_rss * (1 + GROWTH_MAX) + (4 << 20):
                raise SystemExit(f"{load}: {hot_rss >> 20} MiB resident, {off_rss >> 20} without the daemon")
            third = max(len(off) // 3, 1)
            pairs = [new / old for new, old in zip(hot, off) if old > 0]
            late = statistics.mean(hot[-third:]) / statistics.mean(off[-third:])
            found.setdefault(load, []).append((late, min(pairs)))
            print(f"{load[0]:7} {load[1]:5} MiB: last third {late:.2f} of off, worst second {min(pairs):.2f}", flush=True)
    print("\nprogram         runs  last third, median  worst second, median")
    for (pattern, mib, _), runs in found.items():
        late, worst = (statistics.median(column) for column in zip(*runs))
        print(f"{pattern:7} {mib:5} M  {len(runs):4}  {late:18.2f}  {worst:20.2f}")


if __name__ == "__main__":
    main()
