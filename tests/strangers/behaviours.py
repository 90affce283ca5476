"""Behaviours: small C programs, one for each thing that programs do and that far memory could break."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import time

from harness import BEHAVIOURS, NO_WAY_BACK, PYTHON, ROOT, Broken, Case, Plan, Skip
from processes import left_behind, where


def built(place, source, *flags):
    return place.compiled(source, *flags)


def head(source):
    """What the first line of a behaviour's file says."""
    mark = "# " if source.endswith((".py", ".sh")) else "// "
    for line in (BEHAVIOURS / source).read_text().splitlines():
        if line.startswith(mark):
            return line[len(mark):].partition(" usage:")[0]
    return ""


def compiled(name, source, *arguments, flags=(), packages=("gcc",), options=(), outer=(), env=None, **rest):
    """A case that is one C file with arguments."""

    def prepare(place):
        return Plan([built(place, source, *flags), *arguments], options=list(options), outer=surroundings(place, outer), env=env or {})

    return Case(name, prepare, kind="behaviour", quick=rest.pop("quick", True), packages=packages, title=head(source), **rest)


def surroundings(place, outer):
    """Commands that something is started by; they must work here."""
    if outer in (READ_ONLY_TMP, SMALL_TMP) and ROOT.is_relative_to("/tmp"):
        raise Skip(f"{ROOT} is in /tmp, which this hides")
    if outer and subprocess.run([*outer, "true"], capture_output=True, check=False, cwd=place.dir).returncode != 0:
        raise Skip(f"{' '.join(outer)[:100]} does not work here")
    return list(outer)


def script(name, file, *command, env=None, **rest):
    """A case that is a script."""
    return Case(name, lambda place: Plan([*command, BEHAVIOURS / file], env=env or {}), kind="behaviour", quick=True, title=head(file), **rest)


def shell(name, title, line, source="plain.c", arguments=(), flags=(), packages=("gcc",), **rest):
    """A case that a shell inside `hiroma run` starts; {} is the program."""

    def prepare(place):
        return ["/bin/sh", "-c", line, "sh", built(place, source, *flags), *arguments]

    return Case(name, prepare, kind="behaviour", quick=True, title=title, packages=packages, **rest)


def started(name, title, outer, source="plain.c", **rest):
    """A plain program under `hiroma run` in special surroundings."""
    case = compiled(name, source, outer=outer, **rest)
    case.title = title
    return case


def child(name, title, flags, bare=False, **rest):
    """A large program that starts one which far memory cannot reach, or reaches only through the environment."""

    def prepare(place):
        program = place.dir / "child"
        source = BEHAVIOURS / "small.c"
        if subprocess.run(["gcc", "-O1", *flags, "-o", program, source], capture_output=True, check=False, cwd=place.dir).returncode != 0:
            raise Skip(f"gcc {' '.join(flags)} does not work: apt-get install {case.packages[-1]}")
        return [built(place, "parent.c"), *(["-"] if bare else []), program]

    case = Case(name, prepare, kind="behaviour", quick=True, title=title, packages=rest.pop("packages", ("gcc",)), **rest)
    return case


def daemon(side, plan):
    """The daemon outlives the program that was started; what it writes tells that it is done."""
    running = side.start(plan)
    side.ready(Always(running), (side.work / "result").exists, seconds=side.patience, what="the daemon has written its file")
    running.wait()
    return (side.work / "result").read_bytes()


class Always:
    """A run whose end does not end the wait for what it left in the background."""

    def __init__(self, running):
        self.running = running

    def poll(self):
        self.running.poll()

    def errors(self):
        return self.running.errors()


def stopped_from_outside(side, plan):
    """The program is stopped and continued from outside, as by a shell's job control; signals go to `hiroma run`."""
    running = side.start(plan)
    for _ in range(10):
        time.sleep(0.05)
        if running.poll() is None:
            os.kill(running.pid, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(running.pid, signal.SIGCONT)
    running.wait()
    return running.out.read_bytes()


FORK_KILLS = 8
# How long the processes of a killed program may take to go.
FORK_KILL_LEAVE_S = 10


def killed_in_forks(side, plan):
    """The program is killed while it forks, at another moment each time; not a process may stay of it, of its child and of their pagers."""
    for number in range(FORK_KILLS):
        running = side.start(plan)
        side.ready(running, lambda: running.out.read_bytes().endswith(b"\n"), what="the program says that it forks")
        time.sleep(0.2 + number * 0.037)
        os.kill(int(running.out.read_bytes()), signal.SIGKILL)
        running.wait()
        if alive := left_behind(FORK_KILL_LEAVE_S):
            side.hung = where(alive)
            raise Broken(f"leaves processes behind after {FORK_KILL_LEAVE_S} s: {', '.join(sorted(set(alive.values())))}")
    # The process ids are not the same.
    return b""


# The program and the most children that it has at a time.
RECLAIMED_PROCESSES = 9
# A request takes 1 ms.
SLOW_REQUESTS_A_SECOND = 1000


def natively(side, plan):
    side.start(plan).wait()
    return side.started[0].out.read_bytes()


@contextlib.contextmanager
def grouped(controller):
    """A control group of one controller, and how something is started in it."""
    group = controller / f"hiroma-strangers-{os.getpid()}"
    group.mkdir()
    try:
        yield group, ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        remove_group(group)


def reclaimed(side, plan):
    """In a memory cgroup with little more than the program and its children take, beside somebody who fills it with file cache: the kernel
    reclaims all the time."""
    if side.native:
        return natively(side, plan)
    cached = side.work / "cached"
    with open(cached, "wb") as out:
        out.truncate(1 << 30)
    with grouped(MEMORY_CGROUPS) as (group, inside):
        (group / "memory.limit_in_bytes").write_text(str(RECLAIMED_PROCESSES * side.local_bytes + (96 << 20)))
        running = side.start(dataclasses.replace(plan, outer=[*inside, *plan.outer]))
        reader = subprocess.Popen([*inside, "sh", "-c", f"while cat {cached}; do :; done"], stdout=subprocess.DEVNULL)
        try:
            running.wait()
        finally:
            reader.kill()
            reader.wait()
        return running.out.read_bytes()


def slowed(side, plan):
    """On a disk that is slow for this program: what it and its pager read and write without the page cache stays under way for long."""
    if side.native:
        return natively(side, plan)
    device = os.stat(side.work).st_dev
    with grouped(BLOCK_CGROUPS) as (group, inside):
        for direction in ("read", "write"):
            limit = f"{os.major(device)}:{os.minor(device)} {SLOW_REQUESTS_A_SECOND}"
            (group / f"blkio.throttle.{direction}_iops_device").write_text(limit)
        running = side.start(dataclasses.replace(plan, outer=[*inside, *plan.outer]))
        running.wait()
        return running.out.read_bytes()


def remove_group(group):
    """The last processes leave a moment after their end."""
    for _ in range(200):
        try:
            return group.rmdir()
        except OSError:
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
    group.rmdir()


def prepare_slowed(place):
    if not os.access(BLOCK_CGROUPS / "blkio.throttle.read_iops_device", os.R_OK):
        raise Skip("no block cgroup (v1) may be made here")
    if os.major(os.stat(place.dir).st_dev) == 0:
        raise Skip("the test's files lie on no disk")
    return [built(place, "mixture.c"), "9", "100", "only=direct,read,write,discard,readonly,shared,move,heap"]


def prepare_reclaimed(place):
    if not os.access(MEMORY_CGROUPS / "memory.limit_in_bytes", os.W_OK):
        raise Skip("no memory cgroup (v1) may be made here")
    return [built(place, "mixture.c"), "5", "300"]


def prepare_deepbind(place):
    library = place.compiled("deepbind.c", "-DLIBRARY", "-shared", "-fPIC", name="deepbind.so")
    return [place.compiled("deepbind.c"), library]


def prepare_linker(place):
    library = place.compiled("nursery_linker.c", "-DLIBRARY", "-shared", "-fPIC", name="nursery_linker.so")
    return [place.compiled("nursery_linker.c"), library]


MEMORY_CGROUPS = pathlib.Path("/sys/fs/cgroup/memory")
BLOCK_CGROUPS = pathlib.Path("/sys/fs/cgroup/blkio")
UTF8 = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
READ_ONLY_TMP = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o ro none /tmp && exec "$@"', "sh"]
SMALL_TMP = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1M none /tmp && exec "$@"', "sh"]
RAW = "a raw system call past the C library is not seen"
PEEKED = "far pages of others cannot be read by ptrace and /proc/PID/mem (EIO); process_vm_readv can"
NO_DESCRIPTOR = "a pager has no descriptor left for a child, which ends with exit code 75, and says so"
UNSEEN = "arguments that the program has moved into far memory are empty in /proc/PID/cmdline while they are far"
CLEAN = "what is far has no soft-dirty bit"
OUTSIDE = "is not reached: the environment that leads to the child is gone"

CASES = [
    compiled("closefds", "closefds.c", "0"),
    compiled("closefds-reopened", "closefds.c", "1"),
    compiled("dup2", "dup2.c", quick=False),
    script("exec3", "exec3.sh", "/bin/bash", limit="it is a shell"),
    compiled("ownstack", "ownstack.c", quick=False),
    compiled("ownstack-coroutine", "ownstack.c", "c", quick=False),
    compiled("readonly", "readonly1.c"),
    *(compiled(f"readonly-{how}", "readonly2.c", str(how)) for how in range(1, 5)),
    compiled("locked", "locked.c"),
    compiled("vmsplice", "vmsplice.c", "64", "r", quick=False),
    compiled("rawdrop", "rawdrop.c", quick=False),
    compiled("rawdrop-fallback", "rawdrop.c", options=["--path", "fallback"], quick=False),
    *(compiled(f"collide-{number}", "collide.c") for number in range(1, 6)),
    *(compiled(f"mainexit-{how}", "mainexit.c", str(how), code=5 if how in (0, 3) else 0) for how in range(4)),
    script("utf8fork", "utf8fork.py", PYTHON, env=UTF8),
    # Memory.
    compiled("mlock", "mlock.c"),
    compiled("mlockall", "mlockall.c", "current"),
    compiled("mlockall-future", "mlockall.c", "future"),
    compiled("barriers", "barriers.c"),
    compiled("guard", "guard.c", known="what was unmapped gives SEGV_ACCERR, not SEGV_MAPERR"),
    compiled("heap", "heap.c"),
    compiled("contiguous", "contiguous.c", flags=["-no-pie"], limit="its heap continues its own data"),
    compiled("contiguous-own", "contiguous.c", flags=["-no-pie", "-DOWN"], limit="its heap continues its own data"),
    *(compiled(f"mremap-{how}", "mremap.c", how) for how in ["grow", "shrink", "fixed", "dontunmap", "part", "many"]),
    compiled("early", "early.c"),
    compiled("earlyaccess", "earlyaccess.c"),
    compiled("earlyaccess-fallback", "earlyaccess.c", options=["--path", "fallback"]),
    compiled("earlyholes", "earlyholes.c", options=["--local", "2G"]),
    *(compiled(f"small-{how}", "small.c", how) for how in ["heap", "grow", "threads", "fork", "mixed"]),
    *(compiled(f"advice-{way}-{what}", "advice.c", way, what, known=RAW if way == "raw" and what in ["wipe", "nofork"] else "") for way in ["lib", "raw"]
      for what in ["dontneed", "free", "wipe", "nofork", "populate", "cold", "huge", "remove"]),
    compiled("advice-fallback", "advice.c", "raw", "dontneed", options=["--path", "fallback"],
             known="without UFFDIO_MOVE (before Linux 6.8) a raw MADV_DONTNEED past the C library is not seen: far pages keep their content"),
    compiled("overmap", "overmap.c"),
    compiled("wrongplace", "wrongplace.c"),
    compiled("lowhint", "lowhint.c", limit="what it asks for by address stays local"),
    compiled("rawover", "rawover.c"),
    compiled("rawover-fallback", "rawover.c", options=["--path", "fallback"]),
    compiled("protnone", "protnone.c"),
    *(compiled(f"shared-{what}", "shared.c", what) for what in ["anonymous", "memfd", "sysv", "posix"]),
    *(compiled(f"attach-{what}", "attach.c", what) for what in ["kept", "fork", "freed"]),
    compiled("detach", "detach.c"),
    *(compiled(f"holes-{what}", "holes.c", what) for what in ["unmap", "map"]),
    compiled("reserves", "reserves.c"),
    compiled("filemap", "filemap.c"),
    compiled("mincore", "mincore.c"),
    compiled("sparse", "sparse.c"),
    *(compiled(f"corners-{call}", "corners.c", call) for call in ["fixed", "remap", "onfault", "remove", "limit"]),
    compiled("manymaps", "manymaps.c"),
    compiled("allocs", "allocs.c"),
    Case("deepbind", prepare_deepbind, kind="behaviour", quick=True, packages=("gcc",), title=head("deepbind.c")),
    compiled("pkeys", "pkeys.c", known="managed memory gets no protection key: pkey_mprotect with one fails with EINVAL"),
    compiled("userfault", "userfault.c"),
    *(compiled(f"nursery-{place}", "nursery.c", place)
      for place in ["malloc", "coroutine", "handler", "vfork", "fork", "threads", "mappings", "zeros", "user", "root"]),
    *(compiled(f"nursery-{case}", "nursery_late.c", case)
      for case in ["streams", "descriptors", "upfront", "mainexit", "slack", "clock", "nice", "files", "forked", "subreaper", "threads",
                   "stderr", "fewthreads", "tight"]),
    Case("nursery-linker", prepare_linker, kind="behaviour", quick=True, packages=("gcc",), title=head("nursery_linker.c")),
    # Stacks and threads.
    compiled("threadstacks", "threadstacks.c"),
    compiled("coroutines", "coroutines.c"),
    compiled("sigstack", "sigstack.c"),
    *(compiled(f"threads-{what}", "threads.c", what, quick=what != "malloc") for what in ["churn", "cancel", "fork", "malloc"]),
    compiled("futexes", "futexes.c"),
    compiled("futexwords", "futexwords.c"),
    # Processes.
    compiled("vfork", "vfork.c"),
    compiled("spawn", "spawn.c"),
    *(compiled(f"clone-{how}", "clone.c", how) for how in ["vm", "copy", "three", "vfork"]),
    *(compiled(f"forkfirst-{how}", "forkfirst.c", how) for how in ["clone", "raw", "three", "threads"]),
    *(compiled(f"forkargs-{what}", "forkargs.c", what) for what in ["parent", "raw", "pidfd", "three", "straddle", "settid"]),
    compiled("tightstack", "tightstack.c"),
    compiled("forkstorm", "forkstorm.c"),
    compiled("sharers", "sharers.c"),
    compiled("generations", "generations.c", "wait"),
    *(compiled("-".join(["lineage", *how]), "lineage.c", generations, options=["--store", store] if store else [])
      for how, generations, store in [([], "2", ""), (["file"], "2", "file:/var/tmp"), (["deep"], "80", "file:/var/tmp")]),
    compiled("specific", "specific.c"),
    compiled("memfile", "memfile.c"),
    compiled("remapped-parts", "remapped_parts.c"),
    compiled("hiddenmove", "hiddenmove.c"),
    compiled("generations-orphans", "generations.c", "orphans", quick=False),
    compiled("daemon", "daemon.c", drive=daemon),
    compiled("threadexec", "threadexec.c", "5"),
    compiled("reexec", "reexec.c", "5"),
    compiled("atfork", "atfork.c"),
    compiled("ownatfork", "ownatfork.c", flags=["-rdynamic"]),
    compiled("kills", "kills.c"),
    compiled("forkkill", "forkkill.c", code=-signal.SIGKILL, drive=killed_in_forks, quick=False),
    compiled("subreaper", "subreaper.c", known="a program that takes orphans over (PR_SET_CHILD_SUBREAPER) gets its children's pagers too"),
    child("child-bare", "A large program starts one without an environment", [], bare=True),
    child("child-static", "A large program starts a static one", ["-static"], packages=("gcc", "libc6-dev")),
    shell("child-sanitized", "A shell starts a program that is built with AddressSanitizer", 'ASAN_OPTIONS=detect_leaks=0 "$@"; echo $?',
          flags=["-fsanitize=address"], limit="it runs without far memory"),
    *(shell(f"child-go{name}", "A shell starts a program that is Go's", '"$@"; echo $?', "golang.c", flags=flags, limit="it runs without far memory")
      for name, flags in [("", ["-rdynamic"]), ("-buildid", ["-DBUILD_ID"])]),
    child("child-musl", "A large program starts one of musl", ["-specs", "/usr/lib/x86_64-linux-musl/musl-gcc.specs"], packages=("gcc", "musl-tools")),
    child("child-32-bit", "A large program starts one of 32 bits", ["-m32"], packages=("gcc", "gcc-multilib")),
    shell("env-i", "A shell starts a program by env -i", 'exec env -i "$@"', limit=OUTSIDE),
    # Limits and surroundings.
    *(compiled(f"limit-{what}", "limits.c", what) for what in ["nofile", "as", "data", "fsize"]),
    shell("ulimit-nofile", "ulimit -n 16 before the program starts", 'ulimit -n 16; exec "$@"', "limits.c"),
    shell("ulimit-siblings", "ulimit -n 16, and seven children at the same time", 'ulimit -n 16; exec "$@"', "siblings.c"),
    shell("ulimit-fork", "ulimit -n 12, and a child", 'ulimit -n 12; exec "$@"', "limits.c", known=NO_DESCRIPTOR),
    shell("ulimit-as", "ulimit -v 4 GiB before the program starts", 'ulimit -v 4194304; exec "$@"', "limits.c"),
    shell("ulimit-data", "ulimit -d 1 GiB before the program starts", 'ulimit -d 1048576; exec "$@"', "limits.c"),
    shell("ulimit-fsize", "ulimit -f 1 MiB before the program starts", 'ulimit -f 1024; exec "$@"', "limits.c"),
    shell("ulimit-stack", "An unlimited stack, and with it another layout", 'ulimit -s unlimited; exec "$@"'),
    shell("setarch", "No randomised addresses", 'exec setarch -R "$@"'),
    shell("affinity", "One processor, and the lowest priority", 'exec taskset -c 0 nice -n 19 "$@"'),
    shell("closed-files", "Standard input, output and errors are closed", 'exec "$@" <&- >&- 2>&-'),
    shell("mount-inside", "A read-only /tmp in a mount namespace of its own, inside", f"exec {' '.join(READ_ONLY_TMP[:4])} '{READ_ONLY_TMP[4]}' sh \"$@\""),
    shell("cwd-gone", "The directory that it works in is removed", 'mkdir gone; cd gone; rmdir ../gone; "$@"; :'),
    started("outer-as", "`hiroma run` itself under ulimit -v 4 GiB", ["sh", "-c", 'ulimit -v 4194304; exec "$@"', "sh"], expect=("right", "refused")),
    started("outer-nofile", "`hiroma run` itself under ulimit -n 16", ["sh", "-c", 'ulimit -n 16; exec "$@"', "sh"], source="limits.c", expect=("right", "refused")),
    started("outer-fsize", "`hiroma run` itself under ulimit -f 1 MiB", ["sh", "-c", 'ulimit -f 1024; exec "$@"', "sh"], expect=("right", "refused")),
    started("outer-full", head("fullplace.c"), SMALL_TMP, source="fullplace.c"),
    started("outer-tmp", "/tmp is read-only", READ_ONLY_TMP, expect=("right", "refused")),
    started("outer-stack", "`hiroma run` itself under ulimit -s 64 KiB", ["sh", "-c", 'ulimit -s 64; exec "$@"', "sh"]),
    started("outer-proc", "/proc shows processes only",
            ["unshare", "-mpf", "sh", "-c", 'mount -t proc -o subset=pid proc /proc && exec "$@"', "sh"]),
    started("outer-home", "HOME, USER and PATH are not set", ["env", "-u", "HOME", "-u", "USER", "-u", "LOGNAME", "-u", "TMPDIR", "-u", "PATH"]),
    started("outer-empty", "An empty environment", ["env", "-i"]),
    started("outer-stopped", "Stopped and continued from outside", [], drive=stopped_from_outside),
    *(compiled(f"identity-{how}", "identity.c", how) for how in ["effective", "real", "threads"]),
    compiled("chroot", "chroot.c"),
    *(compiled(f"namespace-{what}", "namespaces.c", what) for what in ["user", "pid", "mount", "net"]),
    compiled("pidspace", "pidspace.c"),
    shell("killall", head("killall.c"), 'exec unshare -pf --mount-proc "$@"', "killall.c"),
    shell("namespace-proc", "The first process of a namespace that has a /proc of its own", 'exec unshare -pf --mount-proc "$@"'),
    shell("namespace-noproc", "A program that is executed where there is no /proc", 'exec unshare -m sh -c \'umount -l /proc; exec "$@"\' sh "$@"'),
    compiled("namespace-all", "namespaces.c", "all", known_over={"tcp": NO_WAY_BACK}),
    *(compiled(f"seccomp-{how}", "seccomp.c", how) for how in ["strict", "errno", "kill"]),
    compiled("prctls", "prctls.c"),
    compiled("ttys", "ttys.c", flags=["-lutil"]),
    # Signals.
    compiled("stops", "stops.c"),
    compiled("groupstops", "groupstops.c"),
    compiled("latechildren", "latechildren.c"),
    compiled("landlock", "landlock.c"),
    compiled("landlock-early", "landlock.c", "early"),
    compiled("alarms", "alarms.c"),
    compiled("ignored", "ignored.c"),
    compiled("jumps", "jumps.c"),
    # The kernel and other processes touch memory.
    compiled("pipes", "pipes.c"),
    compiled("direct", "direct.c"),
    compiled("uring", "uring.c", flags=["-luring"], packages=("gcc", "liburing-dev")),
    compiled("uring-fixed", "uring.c", "fixed", flags=["-luring"], packages=("gcc", "liburing-dev")),
    *(compiled(f"zerocopy-{how}", "zerocopy.c", how, options=["--block", "2M"]) for how in ["send", "ring"]),
    *(compiled(f"peek-{how}", "peek.c", how, known=PEEKED if how in ("ptrace", "mem") else "") for how in ["vm", "ptrace", "mem", "self"]),
    # Many at once.
    *(compiled(f"mixture-{number}", "mixture.c", str(number), "300") for number in range(1, 4)),
    compiled("mixture-memory", "mixture.c", "4", "400", "only=read,write,shared,readonly,discard,free,advice,move,rawmap,overmap,heap,lock,stack,timer"),
    *(compiled(f"mixture-{number}", "mixture.c", str(number), "2000", quick=False) for number in range(11, 15)),
    compiled("mixture-registered", "mixture.c", "6", "300", "only=registered,uring,direct,read,write,discard,readonly,fork"),
    *(compiled(f"mixture-fault-threads-{number}", "mixture.c", str(number), "300", options=["--fault-threads", "4"]) for number in (7, 8)),
    Case("mixture-reclaimed", prepare_reclaimed, kind="behaviour", quick=False, packages=("gcc",), drive=reclaimed,
         title="The same in a memory cgroup that the kernel reclaims from all the time."),
    Case("mixture-slow-device", prepare_slowed, kind="behaviour", quick=False, packages=("gcc",), drive=slowed,
         title="With O_DIRECT, on a disk that takes 1 ms for a request."),
    # What further programs do.
    *(compiled(name, f"{name}.c") for name in ["named", "remapped", "ondemand", "jit", "aio", "afalg", "robust", "rseqs", "timers", "arguments", "ringmemory",
                                               "prlimits", "crowd", "growsdown"]),
    compiled("ringmemory-poll", "ringmemory.c", "poll"),
    *(compiled(f"answers-{size}", "answers.c", size) for size in ["small", "large"]),
    *(compiled(f"failedmove-{size}", "failedmove.c", size) for size in ["small", "large"]),
    *(compiled(f"dirty-{how}", "dirty.c", how, known=CLEAN if how == "soft" else "") for how in ["sync", "async", "soft"]),
    *(compiled(f"manyareas-{what}", "manyareas.c", what) for what in ["mapped", "protected"]),
    compiled("scanner", "scanner.c", "small"),
    compiled("cputime", "cputime.c", "self"),
    compiled("waits", "waits.c"),
    compiled("compact", "compact.c"),
    *(compiled(name, f"{name}.c") for name in ["spawnlimits", "codespace", "busyfile", "tracer", "doubled", "pastend", "farargs", "pimutexes", "exiting", "tees",
                                               "mainstack", "nullchecks", "unbegun"]),
    compiled("titles", "titles.c", known=UNSEEN),
    compiled("corefile", "corefile.c", known="a core file has what was local only: the kernel does not let a dump wait for a userfaultfd"),
    # Ends.
    *(compiled(f"exit-{code}", "ending.c", "exit", str(code), code=code) for code in [0, 1, 2, 42, 75, 126, 127, 128, 255]),
    compiled("exit-_exit", "ending.c", "_exit", "3", code=3),
    compiled("exit-quick", "ending.c", "quick", "4", code=4),
    compiled("exit-thread", "ending.c", "thread", "6", code=6),
    compiled("exit-return", "ending.c", "return", "7", code=7),
    compiled("exit-atexit", "ending.c", "atexit"),
    compiled("death-segv", "ending.c", "segv", code=-signal.SIGSEGV),
    compiled("death-abort", "ending.c", "abort", code=-signal.SIGABRT),
    *(compiled(f"death-{number.name[3:].lower()}", "ending.c", "signal", str(int(number)), code=-number)
      for number in [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGBUS, signal.SIGUSR1]),
]
