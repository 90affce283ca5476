#!/usr/bin/env python3
"""`hiroma hot serve` and `hiroma quiet serve` in bad places: little memory, other file systems, many and dying processes.

In each place programs run beside both daemons. They have to end as without them, with what they
wrote; the daemons have to go on, and to end well when told. Settings are restored. Needs root.
Usage: places.py HIROMA [--gentle | PLACE...]. --gentle: none in which the whole machine runs short.
"""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
MIB = 1 << 20
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
RULES = '[[rule]]\nname = "soak-load"\nresident_min = "4M"\n'


class Skipped(Exception):
    """This machine cannot make the place."""


class Daemons:
    """Both daemons. They must live until they are told to end, and then end with 0."""

    def __init__(self, hiroma, directory):
        policy = Path(directory, "hot.toml")
        policy.write_text(RULES)
        self.log = open(Path(directory, "daemons.log"), "w+")
        commands = [
            [hiroma, "hot", "serve", "--budget", "90%", "--policy", str(policy), "--socket", f"{directory}/hot.socket"],
            [hiroma, "quiet", "serve"],
        ]
        self.processes = [subprocess.Popen(command, stdout=self.log, stderr=self.log) for command in commands]
        time.sleep(1)

    def check(self):
        for process in self.processes:
            if process.poll() is not None:
                raise AssertionError(f"{' '.join(process.args[1:3])} ended with {process.returncode}:\n{self.said()}")

    def said(self):
        self.log.seek(0)
        return self.log.read()[-3000:]

    def end(self):
        self.check()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            code = process.wait(30)
            if code != 0:
                raise AssertionError(f"{' '.join(process.args[1:3])} ended with {code}:\n{self.said()}")

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Place:
    """What a case needs: the program that checks its memory, a directory, the daemons."""

    def __init__(self, hiroma, directory):
        self.hiroma, self.directory, self.program = hiroma, Path(directory), f"{directory}/soak-load"
        self.undo = contextlib.ExitStack()
        self.running = []

    def load(self, pattern, mib, seconds, **options):
        child = subprocess.Popen([self.program, pattern, str(mib), str(seconds)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)
        self.running.append(child)
        return child

    def well(self, *children, timeout=120):
        for child in children:
            _, said = child.communicate(timeout=timeout)
            assert child.returncode == 0, f"{' '.join(child.args[1:])} ended with {child.returncode}: {said}"

    def set(self, path, value):
        path = Path(path)
        text = path.read_text().strip()
        before = text.split("[")[1].split("]")[0] if "[" in text else text
        self.undo.callback(path.write_text, before)
        path.write_text(value)

    def run(self, *command, **options):
        return subprocess.run(command, check=True, capture_output=True, text=True, **options)

    def cgroup(self, limit_bytes):
        """A memory control group of either version; returns what a child does to join it."""
        one = Path("/sys/fs/cgroup/memory")
        group = (one if one.is_dir() else Path("/sys/fs/cgroup")) / f"hiroma-places-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            raise Skipped(f"no control group: {error}")
        self.undo.callback(group.rmdir)
        file = group / ("memory.limit_in_bytes" if one.is_dir() else "memory.max")
        if not file.exists():
            raise Skipped("no memory controller")
        file.write_text(str(limit_bytes))
        return lambda: (group / "cgroup.procs").write_text("0")

    def close(self):
        for child in self.running:
            if child.poll() is None:
                child.kill()
            child.wait()
        self.undo.close()


def meminfo_bytes(name):
    return int(next(line.split()[1] for line in open("/proc/meminfo") if line.startswith(f"{name}:"))) * 1024


def available_bytes():
    return meminfo_bytes("MemAvailable")


def swap_free_bytes():
    return meminfo_bytes("SwapFree")


def cgroup_of_1_gib(place):
    join = place.cgroup(1 << 30)
    place.well(place.load("random", 600, 8, preexec_fn=join), place.load("fork", 64, 6, preexec_fn=join))


def memory_95_percent_used(place):
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total > 64 << 30:
        raise Skipped("it would take too long to fill")
    left = max(total // 20, 1200 * MIB)
    filler = place.load("churn", max((available_bytes() - left) // MIB, 1), 40)
    until = time.monotonic() + 60
    while available_bytes() > left + 300 * MIB and filler.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    place.well(place.load("random", 400, 8), place.load("churn", 16, 5))
    filler.kill()


def swap_full(place):
    control = Path("/sys/class/zram-control")
    if not control.is_dir():
        raise Skipped("no zram")
    device = int((control / "hot_add").read_text())
    place.undo.callback((control / "hot_remove").write_text, str(device))
    Path(f"/sys/block/zram{device}/disksize").write_text("96M")
    node = f"/dev/zram{device}"
    if not os.path.exists(node):
        os.mknod(node, 0o600 | 0o060000, os.makedev(*map(int, Path(f"/sys/block/zram{device}/dev").read_text().split(":"))))
        place.undo.callback(os.unlink, node)
    place.run("mkswap", node)
    place.run("swapon", "-p", "100", node)
    place.undo.callback(place.run, "swapoff", node)
    join = place.cgroup(300 * MIB)
    # Its memory is swapped out until the area is full; that it may be killed then is not our doing.
    filler = place.load("stride", 390, 25, preexec_fn=join)
    until = time.monotonic() + 20
    while swap_free_bytes() > 8 * MIB and filler.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    if swap_free_bytes() > 32 * MIB:
        raise Skipped("the swap area does not fill")
    place.well(place.load("random", 300, 8), place.load("fork", 64, 5))
    filler.kill()
    filler.wait()


def thp_always(place):
    place.set(THP, "always")
    place.well(place.load("random", 400, 8), place.load("fork", 64, 6))


def thp_never(place):
    place.set(THP, "never")
    place.well(place.load("random", 400, 8), place.load("churn", 64, 6))


def processes_200(place):
    place.well(*[place.load(("random", "stride", "churn")[number % 3], 24, 8) for number in range(200)], timeout=300)


def targets_that_die(place):
    dice = random.Random(3)
    until = time.monotonic() + 15
    while time.monotonic() < until:
        children = [place.load("random", 160, 20) for _ in range(4)]
        time.sleep(dice.uniform(0.3, 2.5))
        for child in children:
            child.kill()
            child.wait()
    place.well(place.load("random", 160, 4))


def targets_that_exec(place):
    shell = "for i in 1 2 3 4 5 6; do \"$0\" random 160 1 >&2 || exit 9; done; exec \"$0\" stride 160 3"
    children = [subprocess.Popen(["bash", "-c", shell, place.program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    place.running += children
    place.well(*children)


def fork_storm(place):
    place.well(*[place.load("fork", 200, 10) for _ in range(6)])


def huge_pages_exhausted(place):
    left = 2 << 30
    count = (available_bytes() - left) // (2 * MIB)
    place.set(HUGE_PAGES, str(int(HUGE_PAGES.read_text()) + max(count, 0)))
    place.well(place.load("random", 700, 10), place.load("fork", 64, 6))


def stopped_target(place):
    stopped, other = place.load("random", 400, 14), place.load("random", 400, 10)
    time.sleep(2)
    stopped.send_signal(signal.SIGSTOP)
    for command in [["show"], ["manage", "--once"]]:
        said = subprocess.run([place.hiroma, "hot", *command, "--pid", str(stopped.pid)], capture_output=True, text=True, timeout=30)
        # 2: it is managed by the daemon already.
        assert said.returncode in (0, 1, 2), f"hot {command[0]} ended with {said.returncode}: {said.stderr}"
    time.sleep(5)
    place.well(other)
    stopped.send_signal(signal.SIGCONT)
    place.well(stopped)


def on(place, mount):
    """A file on another file system is written, streamed with and without `quiet run`, and mapped."""
    file, size = mount / "stream", 256 * MIB
    wanted = hashlib.sha256()
    with open(file, "wb") as out:
        for number in range(size // MIB):
            block = random.Random(number).randbytes(MIB)
            wanted.update(block)
            out.write(block)
    for command in [["sha256sum", str(file)], [place.hiroma, "quiet", "run", "--cache", "64M", "--", "sha256sum", str(file)]]:
        got = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert got.returncode == 0, f"{' '.join(command)} ended with {got.returncode}: {got.stderr}"
        assert got.stdout.split()[0] == wanted.hexdigest(), f"{' '.join(command)} read something else"
    program = mount / "soak-load"
    place.run("cp", place.program, str(program))
    copy = Place(place.hiroma, place.directory)
    copy.program = str(program)
    place.undo.callback(copy.close)
    copy.well(copy.load("random", 200, 5))
    file.unlink(), program.unlink()


def disk_image(place, kind):
    maker = f"mkfs.{kind}"
    if not any(Path(directory, maker).exists() for directory in ["/sbin", "/usr/sbin"]):
        raise Skipped(f"{maker} is not installed")
    image, mount = place.directory / f"{kind}.img", place.directory / f"on-{kind}"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(768 * MIB)
    place.run(maker, str(image))
    made = subprocess.run(["mount", "-o", "loop", str(image), str(mount)], capture_output=True, text=True)
    if made.returncode != 0:
        raise Skipped(f"{kind} cannot be mounted: {made.stderr.strip()}")
    place.undo.callback(place.run, "umount", str(mount))
    on(place, mount)


def xfs(place):
    disk_image(place, "xfs")


def btrfs(place):
    disk_image(place, "btrfs")


def tmpfs(place):
    mount = place.directory / "on-tmpfs"
    mount.mkdir()
    place.run("mount", "-t", "tmpfs", "none", str(mount))
    place.undo.callback(place.run, "umount", str(mount))
    on(place, mount)


def overlay(place):
    base = place.directory / "on-overlay"
    base.mkdir()
    place.run("mount", "-t", "tmpfs", "none", str(base))
    place.undo.callback(place.run, "umount", str(base))
    for part in ["lower", "upper", "work", "mount"]:
        (base / part).mkdir()
    options = ",".join(f"{name}dir={base}/{name}" for name in ["lower", "upper", "work"])
    made = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(base / "mount")], capture_output=True, text=True)
    if made.returncode != 0:
        raise Skipped(f"overlay cannot be mounted: {made.stderr.strip()}")
    place.undo.callback(place.run, "umount", str(base / "mount"))
    on(place, base / "mount")


PLACES = [
    thp_always, thp_never, cgroup_of_1_gib, swap_full, stopped_target, targets_that_die, targets_that_exec, fork_storm, processes_200,
    tmpfs, overlay, xfs, btrfs, huge_pages_exhausted, memory_95_percent_used,
]


GENTLE = [case for case in PLACES if case not in (swap_full, huge_pages_exhausted, memory_95_percent_used)]


def visit(hiroma, case):
    with tempfile.TemporaryDirectory(prefix="hiroma-places-", dir="/var/tmp") as directory:
        place = Place(hiroma, directory)
        subprocess.run(["cc", "-O2", "-o", place.program, HERE / "load.c"], check=True)
        daemons = Daemons(hiroma, directory)
        try:
            case(place)
            daemons.end()
        finally:
            daemons.kill()
            place.close()


def main():
    hiroma, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    if wanted == ["--gentle"]:
        wanted = [case.__name__ for case in GENTLE]
    unknown = set(wanted) - {case.__name__ for case in PLACES}
    if unknown:
        raise SystemExit(f"no such place: {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        print("both daemons need root here\n0 passed, 0 failed, 1 skipped")
        return
    passed, failed, skipped = [], [], []
    for case in PLACES:
        if wanted and case.__name__ not in wanted:
            continue
        began, verdict = time.monotonic(), "right"
        try:
            visit(hiroma, case)
            passed.append(case.__name__)
        except Skipped as reason:
            verdict = f"skipped: {reason}"
            skipped.append(case.__name__)
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            verdict = f"FAILED: {error}"
            failed.append(case.__name__)
        print(f"{case.__name__:24} {time.monotonic() - began:5.0f} s  {verdict}", flush=True)
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} skipped")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
