"""What the compatibility suite is made of: cases, how one is run natively and under `hiroma run`, and what is said about it."""

import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

from processes import KEPT, busy, descendants, end_all, left_behind, where

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
JOBS = HERE / "jobs"
BEHAVIOURS = HERE / "behaviours"
VENV = pathlib.Path("/var/tmp/hiroma-strangers-venv")
MIB = 1 << 20
# The part of its native memory that a program gets, and the least that `hiroma run` takes.
SHARE = 0.25
LOCAL_MIN_BYTES = 16 * MIB
# What the limit may be passed by: buffers of the pager that are in use.
SLACK_BYTES = 16 * MIB
# Exit code of `hiroma run` where it does not start a program because something cannot work.
REFUSED = 2
# That, or what it ends with where it finds out only when the program has been executed.
REFUSALS = (REFUSED, 75)
# Exit code by which a behaviour says that this machine does not let it be tried; what it printed says why.
NOT_HERE = 77
# How long the processes of a run may take to go after it.
LEAVE_S = 20
# Distributions' programs come before stand-ins and whatever a user has built.
PATH = ":".join([*sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True), "/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin",
                 "/usr/local/sbin", "/usr/local/go/bin", "/usr/games", os.path.expanduser("~/.cargo/bin")])
PYTHON = "/usr/bin/python3"
# Who runs what refuses to be root.
NOBODY = "nobody"
# What namespaces of one's own come to where the store is a server.
NO_WAY_BACK = "a child in a user namespace of its own may not go back to its parent's network, and ends with exit code 75"


class Skip(Exception):
    """Something is missing here; the message says what to install."""


class Broken(Exception):
    """A run did not do what it does natively, or did nothing in time."""


@dataclasses.dataclass
class Plan:
    """What is run, the same on each side."""

    argv: list
    # Commands before `hiroma run`: the surroundings that it is started in.
    outer: list = dataclasses.field(default_factory=list)
    env: dict = dataclasses.field(default_factory=dict)
    # Options of `hiroma run`.
    options: list = dataclasses.field(default_factory=list)
    # Files that the program makes, compared too.
    files: list = dataclasses.field(default_factory=list)
    stdin: str = os.devnull


@dataclasses.dataclass
class Case:
    """A row of the table.

    `prepare(place)` makes what is read, once, and returns the Plan (or just the arguments); `drive(side, plan)`, for what needs more
    than being run to its end, returns the bytes to compare.
    """

    name: str
    prepare: object
    packages: tuple = ()
    kind: str = "program"
    quick: bool = False
    pypi: tuple = ()
    drive: object = None
    # Exit code wanted natively: negative for a signal.
    code: int = 0
    # What may come of it: "right", "refused".
    expect: tuple = ("right",)
    # The output is compared, or only the exit code.
    output: bool = True
    # Why its memory does not go far, or is more than the limit, where that is known.
    limit: str = ""
    # How it differs from a native run, where that is known and written down.
    known: str = ""
    # The same, for one of the stores only.
    known_over: dict = dataclasses.field(default_factory=dict)
    # Not installed by --install, and run only if it is there.
    optional: bool = False
    title: str = ""


@dataclasses.dataclass
class Outcome:
    """What a side did."""

    code: int = 0
    output: bytes = b""
    errors: str = ""
    files: dict = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    rss_bytes: int = 0
    stats: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Verdict:
    """What is said about one side, or about the whole case."""

    word: str
    text: str = ""
    passed: bool = True

    def __str__(self):
        return f"{self.word}: {self.text}" if self.text else self.word


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def find(program):
    return shutil.which(program, path=PATH)


def usual_signals():
    """In a child: what starts the suite in the background may ignore some, and what is started would too."""
    for number in [signal.SIGINT, signal.SIGQUIT, signal.SIGHUP]:
        signal.signal(number, signal.SIG_DFL)


class Running:
    """A started program, its output in files."""

    def __init__(self, side, argv, plan, name):
        self.side, self.argv = side, argv
        self.out, self.err = side.dir / f"{name}.out", side.dir / f"{name}.err"
        env = {key: value for key, value in {**side.env, **plan.env}.items() if value is not None}
        self.began = time.monotonic()
        with open(self.out, "wb") as out, open(self.err, "wb") as err, open(plan.stdin, "rb") as given:
            self.process = subprocess.Popen([str(part) for part in argv], stdin=given, stdout=out, stderr=err, env=env, cwd=side.work,
                                            start_new_session=True, preexec_fn=usual_signals)
        self.pid = self.process.pid
        self.rss_bytes = 0
        self.seconds = 0.0

    def poll(self):
        if self.process.returncode is None:
            try:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Ended as one of those that a case has left.
                self.process.returncode = -signal.SIGKILL
                return self.process.returncode
            if pid:
                self.seconds = time.monotonic() - self.began
                self.process.returncode = os.waitstatus_to_exitcode(status)
                measured = self.out.with_suffix(".rss")
                self.rss_bytes = int(measured.read_text()) if measured.exists() else usage.ru_maxrss * 1024
        return self.process.returncode

    def errors(self):
        return self.err.read_text(errors="replace")

    def wait(self, seconds=None):
        until = time.monotonic() + (seconds or self.side.patience)
        while self.poll() is None:
            if time.monotonic() > until:
                self.side.hung = where(descendants(os.getpid()))
                raise Broken(f"not finished after {seconds or self.side.patience:.0f} s ({busy()})")
            time.sleep(0.005)
        return self.process.returncode

    def stop(self, number=signal.SIGTERM, seconds=60):
        """Asks the program (through `hiroma run`) to end."""
        if self.poll() is None:
            os.kill(self.pid, number)
        return self.wait(seconds)


class Side:
    """One way to run a case: natively, or far over one of the stores."""

    def __init__(self, name, directory, patience, hiroma=None, store=(), local_bytes=0):
        self.name, self.dir, self.patience = name, directory, patience
        self.hiroma, self.store, self.local_bytes = hiroma, list(store), local_bytes
        self.work = directory / "work"
        self.work.mkdir(parents=True)
        # Some programs refuse to be root, and run as nobody.
        self.work.chmod(0o777)
        self.started = []
        self.hung = ""
        self.env = {"PATH": PATH, "LC_ALL": "C", "HOME": str(self.work), "TMPDIR": str(self.work), "TERM": "dumb",
                    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "USER": "root", "LOGNAME": "root"}

    @property
    def native(self):
        return self.hiroma is None

    def start(self, plan, argv=None):
        argv = list(argv or plan.argv)
        name = f"{len(self.started)}"
        if not self.native:
            limit = [] if "--local" in plan.options else ["--local", str(self.local_bytes)]
            argv = [self.hiroma, "run", *limit, "--stats", self.work / f"{name}.stats.json", *self.store, *plan.options, "--", *argv]
        argv = [*plan.outer, *argv]
        if self.native:
            argv = [sys.executable, "-I", HERE / "measured.py", self.dir / f"{name}.rss", *argv]
        running = Running(self, argv, plan, name)
        self.started.append(running)
        return running

    def ready(self, running, condition, seconds=None, what="the server answers"):
        """Polls until a server is up."""
        until = time.monotonic() + (seconds or min(self.patience, 60))
        while True:
            with contextlib.suppress(OSError):
                if result := condition():
                    return result
            if running.poll() is not None:
                raise Broken(f"ended with exit code {running.poll()} before {what}: {last_line(running.errors())}")
            if time.monotonic() > until:
                self.hung = where(descendants(os.getpid()))
                raise Broken(f"not in time: {what} ({busy()})")
            time.sleep(0.02)

    def outcome(self, plan, output=None):
        """What has happened since the side was made."""
        result = Outcome()
        for running in self.started:
            result.code = result.code or running.process.returncode or 0
            result.rss_bytes = max(result.rss_bytes, running.rss_bytes)
            result.seconds += running.seconds
            result.errors += running.errors()
            if output is None:
                result.output += running.out.read_bytes()
        if output is not None:
            result.output = output
        for name in plan.files:
            path = self.work / name
            result.files[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "missing"
        processes = []
        for file in sorted(self.work.glob("*.stats.json")):
            with contextlib.suppress(OSError, ValueError):
                processes += json.loads(file.read_text())["processes"]
        result.stats = {"processes": processes}
        return result


class Place:
    """Where a case's files are, and what it may ask for."""

    def __init__(self, case, directory):
        self.case, self.dir = case, directory
        self.dir.mkdir(parents=True, exist_ok=True)

    def need(self, program, package=None):
        path = find(program)
        if path is None:
            package = package or (self.case.packages[0] if self.case.packages else program)
            raise Skip(f"{program} is missing: apt-get install {package}")
        return path

    def library(self, pattern):
        found = sorted(glob.glob(f"/usr/lib/x86_64-linux-gnu/{pattern}"))
        if not found:
            raise Skip(f"{pattern} is missing: apt-get install {self.case.packages[0]}")
        return found[0]

    def venv(self):
        """The interpreter that has the packages of PyPI."""
        python = VENV / "bin" / "python"
        for package in self.case.pypi:
            module = {"scikit-learn": "sklearn"}.get(package, package)
            done = python.exists() and subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False, cwd=self.dir)
            if not done or done.returncode != 0:
                raise Skip(f"{package} (PyPI) is missing: tests/strangers/run --install")
        return python

    def make(self, *argv, env=None, cwd=None, output=None):
        """Runs something natively that the case needs, a compiler mostly."""
        with open(output or os.devnull, "wb") as out:
            done = subprocess.run([str(part) for part in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, check=False,
                                  cwd=cwd or self.dir, env={**os.environ, "PATH": PATH, "LC_ALL": "C", **(env or {})})
        if done.returncode != 0:
            raise Broken(f"{argv[0]} fails: {done.stderr.decode(errors='replace')[-600:]}")

    def file(self, name, text=""):
        path = self.dir / name
        path.write_text(text)
        return path

    def compiled(self, source, *flags, name=None, compiler="gcc"):
        """A program of ours, from jobs/ or behaviours/."""
        source = next(path for path in [BEHAVIOURS / source, JOBS / source] if path.exists())
        program = self.dir / (name or source.stem)
        self.make(self.need(compiler), "-O1", "-w", "-pthread", "-o", program, source, *flags)
        return program


def as_nobody(place):
    """What starts a program as a user that is not root but may use userfaultfd; nothing where the suite is not root."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(NOBODY)
    for path in [place.dir, *place.dir.parents]:
        if not path.stat().st_mode & 0o001:
            raise Skip(f"{NOBODY} cannot reach {path}")
    rights = [] if pathlib.Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "1" else [
        "--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"]
    return [place.need("setpriv", "util-linux"), "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups", *rights, "--"]


# Verdicts -----------------------------------------------------------------------------------------------------------

SUMMARY = re.compile(r"^hiroma: [0-9.]+ \w+, (local \S+ max \(limit|no managed memory)")


def notes(errors):
    """What hiroma said, without its closing line."""
    return [line[len("hiroma: "):] for line in errors.splitlines() if line.startswith("hiroma: ") and not SUMMARY.match(line)]


def last_line(errors):
    said = notes(errors)
    lines = [line for line in errors.splitlines() if line.strip() and not SUMMARY.match(line)]
    return (said or lines or [""])[-1][:200]


def first_difference(native, far):
    for number, (left, right) in enumerate(zip(native.splitlines(), far.splitlines()), 1):
        if left != right:
            return f"line {number} is {right[:80]!r}, natively {left[:80]!r}"
    return f"{len(far)} bytes of output, natively {len(native)}"


def judge(case, native, far, local_bytes):
    """One far run beside the native one."""
    verdict = compare(case, native, far, local_bytes)
    if case.known and verdict.word == "WRONG":
        return Verdict("differs", case.known)
    if case.known and verdict.word == "right":
        return Verdict("right", f"but it is said to differ: {case.known}", False)
    return verdict


def compare(case, native, far, local_bytes):
    """What is the same, and what is not."""
    said = notes(far.errors)
    if far.code == REFUSED and native.code != REFUSED and said:
        return Verdict("refused", said[-1][:300], "refused" in case.expect)
    if far.code != native.code:
        why = last_line(far.errors) or (far.output.splitlines() or [b""])[-1].decode(errors="replace")[:160]
        return Verdict("WRONG", f"exit code {far.code}, natively {native.code}: {why}", False)
    if case.output and far.output != native.output:
        return Verdict("WRONG", first_difference(native.output, far.output), False)
    for name, digest in native.files.items():
        if far.files[name] != digest:
            return Verdict("WRONG", f"file {name} is {'missing' if far.files[name] == 'missing' else 'another than natively'}", False)
    processes = far.stats["processes"]
    most = max((process["local_bytes_max"] for process in processes), default=0)
    # Pages of one pattern leave without taking any room.
    gone = max((process["far_bytes_max"] + process["pattern_bytes"] for process in processes), default=0)
    if most > local_bytes + SLACK_BYTES:
        why = case.limit or " ".join(said[-1:]) or "and hiroma says nothing about it"
        return Verdict("limit not kept", f"{most / MIB:.0f} MiB local, limit {local_bytes / MIB:.0f} MiB: {why[:240]}", bool(case.limit or said))
    if gone == 0 and native.rss_bytes > 2 * local_bytes:
        why = case.limit or " ".join(said[-1:]) or "and hiroma says nothing about it"
        return Verdict("limit not kept", f"nothing went far of {native.rss_bytes / MIB:.0f} MiB: {why[:240]}", bool(case.limit or said))
    return Verdict("right", "", "right" in case.expect)


class Suite:
    """Runs cases one after the other and counts."""

    def __init__(self, hiroma, work, patience, native_only=False, stores=("default", "tcp"), keep=False):
        self.hiroma, self.work, self.patience, self.native_only, self.keep = hiroma, work, patience, native_only, keep
        self.store_names = stores
        self.passed = self.failed = self.skipped = 0
        self.results = []
        self.server = self.port = None

    def options(self, store):
        """Of `hiroma run`, for one of the stores."""
        match store:
            case "tcp":
                return ["--store", self.serve()]
            # What a user of a server on another machine has, with a block's sectors on both sides.
            case "sealed":
                return ["--store", f"compressed:8M,{self.serve()}", "--seal", "on"]
            case _:
                return []

    def serve(self):
        """The memory server on loopback; started again if a case has ended it."""
        if self.server is None or self.server.poll() is not None:
            self.port = free_port()
            log = self.work / "serve.log"
            with open(log, "wb") as out:
                self.server = subprocess.Popen([self.hiroma, "serve", "--memory", "4G", "--listen", f"127.0.0.1:{self.port}"], stdout=out,
                                               stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
            KEPT.add(self.server.pid)
            until = time.monotonic() + 60
            while b"ready on" not in log.read_bytes():
                if self.server.poll() is not None or time.monotonic() > until:
                    raise Broken(f"the memory server does not start: {log.read_text(errors='replace')[-400:]}")
                time.sleep(0.02)
        return f"tcp://127.0.0.1:{self.port}"

    def close(self):
        end_all()
        if self.server is not None and self.server.poll() is None:
            self.server.terminate()
            try:
                self.server.wait(20)
            except subprocess.TimeoutExpired:
                self.server.kill()

    def once(self, case, plan, side):
        """One side, to its end; (outcome, verdict or None)."""
        output = None
        broken = None
        try:
            if case.drive:
                output = case.drive(side, plan)
            else:
                side.start(plan).wait()
        except (Broken, OSError, ValueError, EOFError, subprocess.SubprocessError) as error:
            text = str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"[:200]
            if isinstance(error, (subprocess.TimeoutExpired, TimeoutError)):
                text, side.hung = f"no answer after {side.patience:.0f} s ({busy()})", where(descendants(os.getpid()))
            # What hiroma or the program said tells more than a client that lost its server.
            for running in side.started:
                if said := notes(running.errors()):
                    text += f" ({said[-1][:160]})"
            broken = Verdict("WRONG", text, False)
            if "refused" in case.expect and any(running.poll() in REFUSALS and notes(running.errors()) for running in side.started):
                broken = Verdict("refused", text)
        alive = left_behind(LEAVE_S if broken is None else 0)
        if broken is None and alive and not side.native:
            side.hung = where(alive)
            broken = Verdict("WRONG", f"leaves processes behind: {', '.join(sorted(set(alive.values())))}", False)
        for running in side.started:
            if running.poll() is None:
                with contextlib.suppress(OSError):
                    os.kill(running.pid, signal.SIGKILL)
        gone = end_all()
        for running in side.started:
            with contextlib.suppress(ChildProcessError):
                running.poll()
        if not gone:
            broken = Verdict("WRONG", f"{broken.text + '; ' if broken else ''}processes that SIGKILL does not end", False)
        return side.outcome(plan, output), broken

    def run(self, case):
        began = time.monotonic()
        verdicts, native, seconds = {}, None, {}
        # Short: sockets are made below it, and their names have room for 108 bytes.
        directory = pathlib.Path(tempfile.mkdtemp(prefix="", dir=self.work))
        directory.chmod(0o755)
        far = {}
        try:
            place = Place(case, directory / "input")
            plan = case.prepare(place)
            if not isinstance(plan, Plan):
                plan = Plan(plan)
            side = Side("native", directory / "native", self.patience)
            native, broken = self.once(case, plan, side)
            if native.code == NOT_HERE and case.code != NOT_HERE:
                raise Skip(native.output.decode(errors="replace").strip()[-200:] or "not possible here")
            if broken or native.code != case.code:
                raise Broken(broken.text if broken else f"exit code {native.code}, not {case.code}: {last_line(native.errors) or last_line(native.output.decode(errors='replace'))}")
            seconds["native"] = native.seconds
            local_bytes = max(LOCAL_MIN_BYTES, int(native.rss_bytes * SHARE))
            for store in ["native"] if self.native_only else self.store_names:
                if store == "native":
                    side = Side("again", directory / "again", self.patience)
                    again, broken = self.once(case, plan, side)
                    again.stats = {"processes": [{"local_bytes_max": 0, "far_bytes_max": 1, "pattern_bytes": 0}]}
                    verdicts["native"], far[store] = broken or judge(dataclasses.replace(case, expect=("right",)), native, again, local_bytes), again
                    continue
                option = self.options(store)
                side = Side(store, directory / store, self.patience, self.hiroma, option, local_bytes)
                outcome, broken = self.once(case, plan, side)
                far[store] = outcome
                seconds[store] = outcome.seconds
                known = case.known_over.get("tcp" if store == "sealed" else store, case.known)
                verdicts[store] = broken or judge(dataclasses.replace(case, known=known), native, outcome, local_bytes)
                if side.hung:
                    verdicts[store].text += "\n" + "\n".join("       " + line for line in side.hung.splitlines()[:40])
        except Skip as reason:
            verdicts = {"all": Verdict("skipped", str(reason))}
        except (Broken, OSError, ValueError, subprocess.SubprocessError) as error:
            text = str(error) if isinstance(error, Broken) else traceback.format_exc()
            verdicts = {"all": Verdict("WRONG", f"natively: {text}", False)}
        finally:
            if self.keep:
                print(f"     {directory}", flush=True)
            else:
                shutil.rmtree(directory, ignore_errors=True)
        self.record(case, verdicts, native, far, seconds, time.monotonic() - began)

    def record(self, case, verdicts, native, far, seconds, took):
        skipped = any(verdict.word == "skipped" for verdict in verdicts.values())
        failed = not all(verdict.passed for verdict in verdicts.values())
        self.skipped += skipped
        self.failed += failed and not skipped
        self.passed += not failed and not skipped
        texts = [str(verdict) for verdict in verdicts.values()]
        text = texts[0] if len(set(texts)) == 1 else "; ".join(f"{store}: {verdict}" for store, verdict in verdicts.items())
        figures = ""
        if native is not None:
            figures = f"{native.rss_bytes / MIB:4.0f} MiB  " + " / ".join(f"{value:.1f}" for value in seconds.values()) + " s  "
        mark = "skip" if skipped else "FAIL" if failed else "ok"
        print(f"{mark:4} {case.name:26} {took:5.1f} s  {figures}{text}", flush=True)
        self.results.append({
            "name": case.name, "kind": case.kind, "title": case.title or case.name, "version": version(case) if not skipped else "",
            "quick": case.quick, "mark": mark, "seconds": seconds, "native_rss_bytes": native.rss_bytes if native else 0,
            "verdicts": {store: str(verdict) for store, verdict in verdicts.items()},
            "far_bytes_max": {store: max((process["far_bytes_max"] for process in outcome.stats["processes"]), default=0)
                              for store, outcome in far.items()},
            "hiroma_said": {store: notes(outcome.errors) for store, outcome in far.items()},
        })

    def markdown(self):
        """The table for the documentation."""
        return table(self.results)


def cell(row, store):
    """What is said of a case over one store: how it came out, and what it took."""
    text = (row["verdicts"].get(store) or row["verdicts"].get("all") or "not run").splitlines()[0].replace("|", "\\|")
    native, far = row["seconds"].get("native", 0), row["seconds"].get(store, 0)
    if late := re.search(r"(?:not finished|no answer) after (\d+) s \(slow", text):
        return f"slow: more than {late[1]} s, natively {native:.1f} s"
    return f"right, {far:.1f} s (natively {native:.1f} s)" if text == "right" and row["kind"] == "program" else text


def noted(text, notes):
    """A cell of the table: a long reason becomes the number of a note below it."""
    word, _, reason = text.partition(": ")
    if not reason or len(text) <= 40:
        return text
    if reason not in notes:
        notes.append(reason)
    return f"{word} ({notes.index(reason) + 1})"


def table(results):
    """Results as Markdown, programs first, each table followed by its notes."""
    lines = []
    for kind, head in [("program", "| Program | Version | Default store | TCP |"), ("behaviour", "| Behaviour | | Default store | TCP |")]:
        rows = [row for row in results if row["kind"] == kind]
        if rows:
            lines += ["", head, "|---|---|---|---|"]
        notes = []
        for row in rows:
            second = row["version"] if kind == "program" else row["title"].replace("|", "\\|")
            lines.append("| " + " | ".join([row["name"], second or "-", *(noted(cell(row, store), notes) for store in ["default", "tcp"])]) + " |")
        if notes:
            lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
    return "\n".join(lines[1:]) + "\n"


def version(case):
    """The version of the package that brings a program."""
    for package in case.pypi:
        metadata = sorted(VENV.glob(f"lib/python3*/site-packages/{package.replace('-', '_')}-*.dist-info"))
        if metadata:
            return metadata[0].name.split("-")[1]
    for package in case.packages[:1]:
        done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout:
            return re.sub(r"^\d+:", "", done.stdout).split("-")[0].split("+")[0]
        if program := find(package):
            done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
            if found := re.search(r"\d+(\.\d+)+", done.stdout):
                return found.group()
    return ""
