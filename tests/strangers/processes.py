"""The processes of a case: those that it has left, what they wait for, and their end."""

import contextlib
import ctypes
import glob
import os
import pathlib
import signal
import time


def become_subreaper():
    """Whatever a case leaves behind becomes a child of this process, so that it is found and ended."""
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def stat(pid):
    """(parent, state, name) of a process, or None."""
    with contextlib.suppress(OSError):
        head, _, rest = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        state, parent = rest.split()[:2]
        return int(parent), state, head.partition("(")[2]
    return None


def threads_alive(pid):
    """A process whose first thread is a zombie may have others."""
    for task in glob.glob(f"/proc/{pid}/task/*/stat"):
        with contextlib.suppress(OSError):
            if pathlib.Path(task).read_text().rpartition(")")[2].split()[0] not in "ZX":
                return True
    return False


def descendants(root):
    """Processes below this one, those of the suite's own servers left out."""
    children, names = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := stat(int(entry))):
            children.setdefault(found[0], []).append(int(entry))
            names[int(entry)] = found
    todo, seen = [root], []
    while todo:
        for pid in children.get(todo.pop(), []):
            if pid not in KEPT:
                seen.append(pid)
                todo.append(pid)
    return {pid: names[pid] for pid in seen}


# Processes of the suite itself.
KEPT = set()


def reap(pid):
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def left_behind(seconds):
    """Waits until all processes of a case are gone; those that are not, by name."""
    until = time.monotonic() + seconds
    while True:
        alive = {}
        for pid, (parent, state, name) in descendants(os.getpid()).items():
            if state == "Z" and parent == os.getpid():
                reap(pid)
            if threads_alive(pid):
                alive[pid] = name
        if not alive or time.monotonic() > until:
            return alive
        time.sleep(0.02)


def end_all():
    """Ends what a case has left: each was found as a descendant of this process."""
    for _ in range(20):
        alive = left_behind(0)
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGCONT)
        if not left_behind(0.5):
            return True
    return False


def where(pids):
    """What every thread waits for: the kernel function that it sleeps in."""
    lines = []
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    lines.append(f"{pid} {(task / 'comm').read_text().strip()}: {state} {(task / 'wchan').read_text()}")
    return "\n".join(lines)


def busy(seconds=3):
    """Whether what does not end still works: a hang and slowness are different things."""
    def used():
        ticks = {}
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError, ValueError):
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks[pid] = int(fields[11]) + int(fields[12])
        return ticks

    before = used()
    time.sleep(seconds)
    # What has ended meanwhile used something too, and is not seen any more.
    after = used()
    part = sum(after[pid] - before.get(pid, 0) for pid in after) / os.sysconf("SC_CLK_TCK") / seconds
    return f"slow: still working, {part * 100:.0f} % of a processor" if part >= 0.05 else f"hangs: nothing moves, {part * 100:.0f} % of a processor"
