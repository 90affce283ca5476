"""Limits that change, servers and disks that stop, die, come back empty, are full or damaged, a pager that dies: the right result, or a
clear end (code 75 where the store is to blame)."""

import contextlib
import ctypes
import functools
import json
import os
import pathlib
import signal
import subprocess
import time

from harness import JOBS, MIB, PYTHON, SLACK_BYTES, STORE_FAILED, Failure, check_limit, compile_job, counter, need, want, wait_for, Skip


class Sweep:
    """A program that verifies its memory again and again, under `hiroma run`, in the background."""

    def __init__(self, bench, mib, local_mib, options=(), rounds=0):
        if bench.native_only:
            raise Skip("has no native half")
        self.bench = bench
        self.stop_file, self.idle_file, self.stats = bench.file("stop"), bench.file("idle"), bench.file("stats.json")
        self.out, self.err = bench.file("sweep.out"), bench.file("sweep.err")
        program = [compile_job(bench, "sweep.c", "-O2"), mib, rounds, *([] if rounds else [self.stop_file, self.idle_file])]
        command = bench.run_command(local_mib * MIB, program, self.stats, options)
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = bench.start(command, stdout=out, stderr=err)

    def rests(self):
        """Waits until the program touches no memory any more."""
        self.idle_file.touch()
        wait_for(lambda: self.alive() or "idle" in self.output(), 120, "the program rests")

    def output(self):
        return self.out.read_text(errors="replace")

    def errors(self):
        return self.err.read_text(errors="replace")

    def alive(self):
        code = self.process.poll()
        want(code is None, f"the program ended with code {code}: {self.output()[-300:]} {self.errors()[-800:]}")

    def filled(self):
        """Waits until all of its memory has content, most of it far."""
        def full():
            if "filled" not in self.output():
                self.alive()
            return "filled" in self.output()

        wait_for(full, 120, "the program has filled its memory")
        return self

    def ends(self, seconds):
        wait_for(lambda: self.process.poll() is not None, seconds, "the program ends")
        want("WRONG" not in self.output(), f"wrong content: {self.output()[-300:]}")
        return self.process.returncode

    def ends_right(self, seconds=120):
        self.stop_file.touch()
        code = self.ends(seconds)
        want(code == 0 and "sweep: right" in self.output(), f"exit code {code}: {self.output()[-300:]} {self.errors()[-800:]}")
        return json.loads(self.stats.read_text())

    def ends_with_store_failure(self, seconds, *words):
        code = self.ends(seconds)
        want(code == STORE_FAILED, f"exit code {code}, not {STORE_FAILED}: {self.errors()[-800:]}")
        want("sweep: right" not in self.output(), "the program claims to have finished")
        said = [line for line in self.errors().splitlines() if line.startswith("hiroma:")]
        want(any(all(word in line for word in words) for line in said), f"no message with {words}: {self.errors()[-800:]}")

    def counters(self):
        """What `hiroma ctl` says of the running program."""
        told = subprocess.run([self.bench.hiroma, "ctl", str(self.process.pid), "--json"], capture_output=True, timeout=60)
        want(told.returncode == 0, f"hiroma ctl failed: {told.stderr.decode(errors='replace')}")
        processes = json.loads(told.stdout)
        want(len(processes) == 1, f"hiroma ctl shows {len(processes)} processes instead of one")
        return processes[0]

    def pid(self):
        """The process that runs the program."""
        return self.counters()["pid"]

    def set_limit(self, mib):
        told = subprocess.run([self.bench.hiroma, "ctl", str(self.process.pid), "--local", f"{mib}M"], capture_output=True, timeout=60)
        want(told.returncode == 0, f"hiroma ctl --local failed: {told.stderr.decode(errors='replace')}")


def limit_changes(bench):
    sweep = Sweep(bench, 256, 128).filled()
    wait_for(lambda: sweep.counters()["local_bytes"] > 96 * MIB, 60, "the program uses what it may")
    sweep.set_limit(32)

    def small():
        sweep.alive()
        return sweep.counters()["local_bytes"] <= 32 * MIB + SLACK_BYTES

    began = time.monotonic()
    wait_for(small, 60, "local memory goes below the new limit")
    took = time.monotonic() - began
    for _ in range(20):
        want(small(), "local memory passed the new limit again")
        time.sleep(0.05)
    sweep.set_limit(192)
    wait_for(lambda: sweep.counters()["local_bytes"] > 160 * MIB, 60, "the program uses the larger limit")
    stats = sweep.ends_right()
    check_limit(stats, 192 * MIB)
    return f"below the new limit after {took:.1f} s"


def total_is_kept(bench):
    """Four processes of 64 MiB, and a total of 128: their limits add up to it while it moves between them, and nothing is mixed up."""
    if bench.native_only:
        raise Skip("has no native half")
    total, out = 128 * MIB, bench.file("together.out")
    command = [bench.hiroma, "run", "--total", str(total), "--", need(PYTHON, "python3"), JOBS / "together.py", "4", "64", "8"]
    with open(out, "wb") as writes:
        process = bench.start(command, stdout=writes, stderr=subprocess.STDOUT)
    seen, most, moved = [], 0, set()
    while process.poll() is None:
        told = subprocess.run([bench.hiroma, "ctl", str(process.pid), "--json"], capture_output=True, timeout=60)
        processes = json.loads(told.stdout) if told.returncode == 0 else []
        if len(processes) == 4:
            seen.append(sum(each["limit_bytes"] for each in processes))
            most = max(most, sum(each["local_bytes"] for each in processes))
            moved.update(each["limit_bytes"] for each in processes)
        time.sleep(0.1)
    want(process.returncode == 0 and out.read_text().splitlines()[0] == "right 0", f"exit code {process.returncode}: {out.read_text()[-800:]}")
    want(len(seen) > 20, f"four processes were seen together {len(seen)} times")
    # A process begins with the limit of all, until it is seen.
    kept = sum(each <= total for each in seen)
    want(kept > len(seen) * 3 // 4, f"the limits were within the total {kept} of {len(seen)} times")
    want(seen[-1] <= total and len(moved) > 4, f"limits at last {seen[-1]}, {len(moved)} different ones")
    return f"within the total {kept} of {len(seen)} times, at most {most / MIB:.0f} MiB local"


# What a program in C has in anonymous memory of its own: stack, data of libraries.
OUTSIDE_BYTES = 512 << 10


def limit_is_hard(bench, store):
    """As the kernel counts it, each 10 ms: anonymous memory of the process, compressed bytes, tables and buffers included, keeps to the limit."""
    limit = 128 * MIB
    options = {"default": [], "file": ["--store", "file:/var/tmp"]}.get(store)
    if options is None:
        options = ["--store", bench.serve()[1]]
    sweep = Sweep(bench, 384, 128, options)
    most, samples = 0, 0
    pid = []

    def sample():
        nonlocal most, samples
        code = sweep.process.poll()
        with contextlib.suppress(OSError, Failure, ValueError, StopIteration):
            pid[:] = pid or [sweep.counters()["pid"]]
            with open(f"/proc/{pid[0]}/status") as status:
                most = max(most, next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon")))
            samples += 1
        return code is not None

    filled = None
    while not sample():
        if filled is None and "filled" in sweep.output():
            filled = time.monotonic()
        if filled is not None and time.monotonic() - filled > 5:
            break
        time.sleep(0.01)
    stats = sweep.ends_right()
    check_limit(stats, limit)
    bound = limit + max(MIB, limit // 200) + OUTSIDE_BYTES
    want(samples > 100, f"the program's memory was seen {samples} times")
    want(most <= bound, f"{most / MIB:.2f} MiB of anonymous memory, the bound is {bound / MIB:.2f} MiB")
    return f"{most / MIB:.2f} MiB of anonymous memory at most, in {samples} samples"


def server_killed(bench):
    server, store = bench.serve()
    sweep = Sweep(bench, 192, 48, ["--store", store, "--store-timeout", "10s"]).filled()
    server.kill()
    server.wait()
    began = time.monotonic()
    sweep.ends_with_store_failure(60, store)
    return f"ended {time.monotonic() - began:.1f} s after the server, with 10 s of patience"


def server_replaced(bench):
    """A server that comes back has lost its blocks: they must be missed, not read as zeros."""
    server, store = bench.serve()
    sweep = Sweep(bench, 192, 48, ["--store", store, "--store-timeout", "20s"]).filled()
    server.kill()
    server.wait()
    bench.serve(port=int(store.rsplit(":", 1)[1]))
    sweep.ends_with_store_failure(90, store)


def server_stopped(bench):
    server, store = bench.serve()
    sweep = Sweep(bench, 192, 48, ["--store", store]).filled()
    for _ in range(2):
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(2)
        sweep.alive()
        os.kill(server.pid, signal.SIGCONT)
        fetched = sweep.counters()["fetched_bytes"]
        wait_for(lambda: sweep.counters()["fetched_bytes"] > fetched + 64 * MIB, 60, "the program goes on when the server does")
    sweep.ends_right()


def store_full(bench, kind):
    store, word = {"server": (lambda: bench.serve(memory="64M")[1], "full"),
                   "compressed": (lambda: "compressed:32M", "full"),
                   "file": (lambda: f"file:{bench.dir}:64M", "full")}[kind]
    sweep = Sweep(bench, 256, 48, ["--store", store()], rounds=3)
    sweep.ends_with_store_failure(120, word)


def full_until_another_ends(bench):
    """A server that is full has room again when another program is killed: nobody fails who waits a moment."""
    _, store = bench.serve(memory="256M")
    first = Sweep(bench, 208, 48, ["--store", store]).filled()
    second = Sweep(bench, 208, 48, ["--store", store])
    wait_for(lambda: second.alive() or "Waiting up to" in second.errors(), 60, "the second program waits for room")
    os.kill(first.pid(), signal.SIGKILL)
    second.filled().ends_right()


def one_of_two_killed(bench):
    """Half of the memory is on a server that dies: the other one cannot make up for it."""
    (_, stays), (dies, lost) = bench.serve(), bench.serve()
    store = f"{stays},{lost.removeprefix('tcp://')}"
    sweep = Sweep(bench, 192, 48, ["--store", store, "--allocation", "round-robin", "--store-timeout", "10s"]).filled()
    dies.kill()
    dies.wait()
    sweep.ends_with_store_failure(120, lost)


def idle_server_killed(bench):
    """A program that touches nothing far does not wait for ever for a server that is gone."""
    server, store = bench.serve()
    sweep = Sweep(bench, 192, 48, ["--store", store, "--store-timeout", "10s"]).filled()
    sweep.rests()
    server.kill()
    server.wait()
    sweep.ends_with_store_failure(120, store)


def store_file(pid, directory):
    """The file store's file, which has no name any more."""
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(entry).startswith(str(directory)) and os.readlink(entry).endswith("(deleted)") and entry.stat().st_size > MIB:
                return entry
    raise Failure("the file store's file is not among the pager's descriptors")


def pager_of(pid):
    """The process that is the program's pager: it has the program's memory, and so its auxiliary vector."""
    memory = pathlib.Path(f"/proc/{pid}/auxv").read_bytes()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "comm").read_text().strip() == "hiroma-pager" and (process / "auxv").read_bytes() == memory:
                return int(process.name)
    raise Failure(f"process {pid} has no pager")


def damaged_file(bench):
    """Somebody writes into the file store's file: the checksums have to find that, and nothing of it may be believed."""
    sweep = Sweep(bench, 192, 48, ["--store", f"file:{bench.dir}"]).filled()
    file = store_file(pager_of(sweep.pid()), bench.dir)
    with open(file, "r+b") as out:
        for at in range(0, os.fstat(out.fileno()).st_size, MIB):
            out.seek(at + 512)
            out.write(b"damaged!" * 8)
    sweep.ends_with_store_failure(120, "checksum")


def far_bytes(sweep):
    """None before the pager has started."""
    try:
        return sweep.counters()["far_bytes"]
    except Failure:
        return 0


def disk_full(bench):
    """The file system fills up while the program runs, by another's file."""
    if os.geteuid() != 0:
        raise Skip("needs root, for a file system of its own")
    if bench.native_only:
        raise Skip("has no native half")
    disk = bench.file("disk")
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "hiroma-e2e", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        raise Skip(f"cannot mount here: {mounted.stderr.strip()}")
    try:
        with open(disk / "another", "wb") as out:
            sweep = Sweep(bench, 256, 48, ["--store", f"file:{disk}"], rounds=3)
            wait_for(lambda: sweep.alive() or far_bytes(sweep) > 32 * MIB, 60, "memory goes far")
            with contextlib.suppress(OSError):
                while True:
                    out.write(bytes(MIB))
                    out.flush()
        sweep.ends_with_store_failure(120, "full")
    finally:
        # The program is gone, or is ended here; then nothing is in use there any more.
        sweep.process.kill()
        sweep.process.wait()
        subprocess.run(["umount", "-l", disk], check=True)


def thread_of(pid, name):
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    raise Failure(f"process {pid} has no thread {name}")


def crash(thread):
    """Lets a thread jump to address 0."""
    if os.uname().machine != "x86_64":
        raise Skip("needs x86_64")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long

    def ptrace(request, data=None):
        if libc.ptrace(request, thread, None, data) != 0:
            error = ctypes.get_errno()
            if request == PTRACE_SEIZE:
                raise Skip(f"ptrace is not allowed here: {os.strerror(error)}")
            raise OSError(error, os.strerror(error))

    PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WAIT_ALL = 12, 13, 17, 0x4206, 0x4207, 0x40000000
    ptrace(PTRACE_SEIZE)
    ptrace(PTRACE_INTERRUPT)
    os.waitpid(thread, WAIT_ALL)
    registers = (ctypes.c_uint64 * 27)()
    ptrace(PTRACE_GETREGS, ctypes.byref(registers))
    # Not in a system call that would be started again; then: where to go on.
    registers[15], registers[16] = 2**64 - 1, 0
    ptrace(PTRACE_SETREGS, ctypes.byref(registers))
    ptrace(PTRACE_DETACH)


def pager_dies(bench, thread):
    """Without its pager a program would wait for memory for ever; it has to end, and not as if it had been right."""
    sweep = Sweep(bench, 192, 48).filled()
    crash(thread_of(pager_of(sweep.pid()), thread))
    sweep.ends_with_store_failure(60, "the pager of process")
    want("sweep: right" not in sweep.output(), "the program claims to have finished")


def pager_killed(bench):
    """The same by the signal that nobody can catch."""
    sweep = Sweep(bench, 192, 48).filled()
    os.kill(pager_of(sweep.pid()), signal.SIGKILL)
    sweep.ends_with_store_failure(60, "the pager of process")
    want("sweep: right" not in sweep.output(), "the program claims to have finished")


def frozen_file_system(bench):
    """The file system of the store is frozen again and again, as for snapshots, while the program writes its far memory to it: the freeze
    waits for that write, and the write for room in local memory."""
    if os.geteuid() != 0:
        raise Skip("needs root, for a file system of its own")
    if bench.native_only:
        raise Skip("has no native half")
    image, disk = bench.file("image"), bench.file("disk")
    disk.mkdir()
    with open(image, "wb") as out:
        out.truncate(1 << 30)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True, text=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True, text=True)
    if made.returncode != 0 or mounted.returncode != 0:
        raise Skip(f"cannot mount here: {(made.stderr + mounted.stderr).strip()}")
    try:
        out, err = bench.file("frozen.out"), bench.file("frozen.err")
        program = [PYTHON, JOBS / "writer.py", disk / "data", 12]
        with open(out, "wb") as to, open(err, "wb") as errors:
            process = bench.start(bench.run_command(32 * MIB, program, bench.file("stats.json"), ["--store", f"file:{disk}"]), stdout=to, stderr=errors)
        wait_for(lambda: process.poll() is not None or "writes" in out.read_text(), 60, "the program writes")
        freezes = 0
        while process.poll() is None:
            subprocess.run(["fsfreeze", "-f", disk], check=True, timeout=60)
            time.sleep(0.1)
            subprocess.run(["fsfreeze", "-u", disk], check=True, timeout=60)
            time.sleep(0.2)
            freezes += 1
        said = err.read_text(errors="replace")
        want(process.returncode == 0 and "right" in out.read_text(), f"exit code {process.returncode}: {said[-800:]}")
        return f"{freezes} freezes, {said.count('nothing has left local memory')} times that memory was lent"
    finally:
        subprocess.run(["fsfreeze", "-u", disk], capture_output=True)
        process.kill()
        process.wait()
        subprocess.run(["umount", "-l", disk], check=True)


def chain_overflows(bench):
    """Three stores, each too small alone."""
    _, server = bench.serve(memory="96M")
    sweep = Sweep(bench, 256, 48, ["--store", f"compressed:32M,{server},file:{bench.dir}"], rounds=4)
    stats = sweep.ends_right()
    check_limit(stats, 48 * MIB)
    return f"{stats['far_bytes_max'] / MIB:.0f} MiB far"


TESTS = {
    "ctl-limit": limit_changes,
    "total": total_is_kept,
    **{f"limit-hard-{store}": functools.partial(limit_is_hard, store=store) for store in ["default", "file", "tcp"]},
    "server-killed": server_killed,
    "server-replaced": server_replaced,
    "server-stopped": server_stopped,
    **{f"full-{kind}": functools.partial(store_full, kind=kind) for kind in ["server", "compressed", "file"]},
    "full-until-another-ends": full_until_another_ends,
    "full-disk": disk_full,
    "frozen-disk": frozen_file_system,
    "chain": chain_overflows,
    "one-of-two-killed": one_of_two_killed,
    "idle-server-killed": idle_server_killed,
    "damaged-file": damaged_file,
    "pager-killed": pager_killed,
    **{f"pager-dies-{part}": functools.partial(pager_dies, thread=f"hiroma-{part}") for part in ["fault", "evict"]},
}
