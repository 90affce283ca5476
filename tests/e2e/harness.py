"""What the end-to-end tests share: running programs natively and under `hiroma run`, servers, clean-up, the count."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
JOBS = HERE / "jobs"
MIB = 1 << 20
# Debian's own interpreter: the one that its NumPy belongs to.
PYTHON = "/usr/bin/python3"
# The part of its memory that a job gets, and the least that `hiroma run` takes.
SHARE = 0.25
LOCAL_MIN_BYTES = 16 * MIB
# What the limit may be passed by: buffers of the pager that are in use.
SLACK_BYTES = 16 * MIB
# Ends runs that hang; far from what any of them takes, on a busy machine too.
PATIENCE_S = 600
# A job is worth running far only if it natively needs so many times its limit: then most of it has to leave and to come back.
NEED_MIN = 2
# Exit code of a program whose store failed for good.
STORE_FAILED = 75


class Failure(AssertionError):
    """A test's verdict, in words."""


class Skip(Exception):
    """Something is missing here; the message says what to install."""


def want(condition, message):
    if not condition:
        raise Failure(message)


@dataclasses.dataclass
class Outcome:
    """How a program ended."""

    code: int
    output: bytes
    errors: str
    seconds: float
    rss_bytes: int = 0
    stats: dict = dataclasses.field(default_factory=dict)


def counter(stats, name):
    """A statistic of each process of a run."""
    return [process[name] for process in stats["processes"]]


def need(program, package):
    path = shutil.which(program)
    if path is None:
        raise Skip(f"{program} is missing: sudo apt-get install {package}")
    return path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, seconds, what):
    """Polls; the bound is there to end a broken run, not to measure."""
    until = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        want(time.monotonic() < until, f"{what}: not after {seconds} s")
        time.sleep(0.05)


def session(leader):
    """The processes of a session that are alive."""
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = entry.read_text().rpartition(")")[2].split()[:4]
            if int(of) == leader and state != "Z":
                yield int(entry.parent.name)


def where(leader):
    """What every thread of a session waits for: the kernel function that it sleeps in."""
    lines = []
    for pid in session(leader):
        for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                lines.append(f"     {pid} {(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text() or 'running'}")
    return "\n".join(lines)


class Bench:
    """One test's processes and files; all of them are gone when it ends."""

    def __init__(self, hiroma, work, native_only):
        self.hiroma, self.native_only = hiroma, native_only
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="hiroma-e2e-", dir=work))
        self.running = []
        self.counter = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            # Each was started as the leader of a session of its own, so this finds what it left behind, and nothing else.
            for pid in session(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if process.returncode is None:
                process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def file(self, name):
        return self.dir / name

    def fresh(self, name):
        self.counter += 1
        return self.dir / f"{self.counter}-{name}"

    def start(self, command, **kwargs):
        """A process in the background, ended with the test at the latest."""
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, start_new_session=True,
                                   cwd=self.dir, **kwargs)
        self.running.append(process)
        return process

    def native(self, command, seconds=PATIENCE_S, env=None):
        """Runs to the end; output goes through files, so that a pipe never holds a program up."""
        out, err = self.fresh("out"), self.fresh("err")
        began = time.monotonic()
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            process = self.start(command, stdout=stdout, stderr=stderr, env={**os.environ, "LC_ALL": "C", **(env or {})})
            self.wait(process, seconds, command)
        outcome = Outcome(process.returncode, out.read_bytes(), err.read_text(errors="replace"), time.monotonic() - began)
        out.unlink()
        err.unlink()
        return outcome

    def wait(self, process, seconds, command):
        until = time.monotonic() + seconds
        while process.poll() is None:
            if time.monotonic() > until:
                raise Failure(f"{' '.join(map(str, command))[:200]}: not finished after {seconds} s\n{where(process.pid)}")
            time.sleep(0.01)

    def expected(self, command, **kwargs):
        """A native run that must work: what the far run is measured by."""
        rss = self.fresh("rss")
        outcome = self.native([sys.executable, "-I", HERE / "measured.py", rss, *command], **kwargs)
        want(outcome.code == 0, f"natively: exit code {outcome.code}: {outcome.errors[-600:]}")
        outcome.rss_bytes = int(rss.read_text())
        return outcome

    def run_command(self, local_bytes, command, stats, options=()):
        return [self.hiroma, "run", "--local", str(int(local_bytes)), "--stats", stats, *options, "--", *command]

    def far(self, native, command, options=(), code=0, env=None, seconds=PATIENCE_S):
        """Runs under `hiroma run` with a share of what it needed natively; wants the exit code, a limit that held, and memory that
        really went far and came back."""
        local_bytes = share(native)
        stats_file = self.fresh("stats.json")
        outcome = self.native(self.run_command(local_bytes, command, stats_file, options), seconds=seconds, env=env)
        want(outcome.code == code, f"exit code {outcome.code}, not {code}: {outcome.errors[-1000:]}")
        if code == 0:
            outcome.stats = json.loads(stats_file.read_text())
            check_limit(outcome.stats, local_bytes)
            fetched, far = (max(counter(outcome.stats, name)) for name in ["fetched_bytes", "far_bytes_max"])
            want(fetched > 0, f"nothing was fetched: {native.rss_bytes / MIB:.1f} MiB natively, a limit of {local_bytes / MIB:.1f} MiB,"
                 f" {far / MIB:.1f} MiB far at most")
        return outcome

    def serve(self, memory="2G", port=0, options=()):
        """A memory server on loopback; (process, store option)."""
        if self.native_only:
            raise Skip("has no native half")
        log = self.fresh("serve.log")
        with open(log, "wb") as out:
            process = self.start([self.hiroma, "serve", "--listen", f"127.0.0.1:{port}", "--memory", memory, *options], stdout=out, stderr=out)

        def ready():
            text = log.read_text(errors="replace")
            want(process.poll() is None, f"the memory server ended with code {process.poll()}: {text[-500:]}")
            return re.search(r"ready on 127\.0\.0\.1:(\d+)", text)

        found = wait_for(ready, 60, "the memory server is ready")
        return process, f"tcp://127.0.0.1:{found.group(1)}"


def share(native):
    """The limit for a job that was run natively."""
    local_bytes = max(int(native.rss_bytes * SHARE), LOCAL_MIN_BYTES)
    want(native.rss_bytes >= NEED_MIN * local_bytes,
         f"the job is too small: it needs {native.rss_bytes / MIB:.1f} MiB, the limit would be {local_bytes / MIB:.1f} MiB")
    return local_bytes


def check_limit(stats, local_bytes):
    """The limit is for each process, and hard."""
    most = counter(stats, "local_bytes_max")
    want(most, "no process had managed memory")
    want(max(most) <= local_bytes + SLACK_BYTES, f"{max(most) / MIB:.1f} MiB were local, the limit is {local_bytes / MIB:.1f} MiB")


def compile_job(bench, name, *flags):
    source = JOBS / name
    compiler = need("g++", "g++") if source.suffix == ".cc" else need(os.environ.get("CC", "cc"), "gcc")
    program = bench.file(source.stem)
    done = bench.native([compiler, *flags, "-pthread", "-o", program, source])
    want(done.code == 0, f"{name} does not compile: {done.errors[-1000:]}")
    return program


class Suite:
    """Runs tests one after the other and counts."""

    def __init__(self, hiroma, work, native_only):
        self.hiroma, self.work, self.native_only = hiroma, work, native_only
        self.passed = self.failed = self.skipped = 0

    def run(self, name, test):
        began = time.monotonic()
        verdict, text = "ok", ""
        try:
            with Bench(self.hiroma, self.work, self.native_only) as bench:
                text = test(bench) or ""
            self.passed += 1
        except Skip as reason:
            verdict, text = "skip", str(reason)
            self.skipped += 1
        except (Failure, OSError, ValueError) as error:
            verdict, text = "FAIL", str(error) if isinstance(error, Failure) else traceback.format_exc()
            self.failed += 1
        print(f"{verdict:4} {name:24} {time.monotonic() - began:5.1f} s  {text}", flush=True)
