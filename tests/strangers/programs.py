"""Programs as they come from Debian and PyPI: each does something that needs much of its memory and prints what came out."""

import glob
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time

from harness import JOBS, NO_WAY_BACK, PYTHON, Broken, Case, Plan, Skip, as_nobody, find, free_port

# Packages whose programs may be here from elsewhere, by those programs.
ELSEWHERE = {"rustc": "rustc", "golang-go": "go", "nodejs": "node", "openjdk-17-jdk-headless": "javac"}
SHARED = "what it uses is shared between processes, or files, and stays where it is"
STATIC = ("refused",)


def simple(name, package, program, *arguments, **rest):
    """A program with arguments; those that begin with jobs: are files of ours, in:NAME files that `prepare_input` made."""
    made = rest.pop("made", None)
    env = rest.pop("env", {})
    files = rest.pop("files", [])
    stdin = rest.pop("stdin", None)
    packages = (package, *rest.pop("more", ()))

    def prepare(place):
        if made:
            made(place)

        def resolved(argument):
            if argument.startswith("jobs:"):
                return JOBS / argument[5:]
            if argument.startswith("in:"):
                return place.dir / argument[3:]
            return argument.replace("{in}", str(place.dir)).replace("{jobs}", str(JOBS))

        return Plan([place.need(program), *map(resolved, arguments)], env=env, files=files, stdin=str(resolved(stdin)) if stdin else os.devnull)

    return Case(name, prepare, packages=packages, **rest)


def pypi(name, modules, *arguments, **rest):
    """A script with packages of PyPI."""
    env = rest.pop("env", {})
    script, *others = arguments
    return Case(name, lambda place: Plan([place.venv(), JOBS / script, *others], env=env), packages=("python3-venv",), pypi=tuple(modules), **rest)


# What is read -------------------------------------------------------------------------------------------------------

def text(place, name="text", mib=90):
    """Words, of which some come often, and some noise; the same in every run."""
    source = random.Random(5)
    words = [bytes(source.choices(b"abcdefghijklmnopqrstuvwxyz", k=source.randint(2, 9))) for _ in range(4000)]
    with open(place.dir / name, "wb") as out:
        while out.tell() < mib << 20:
            out.write(b" ".join(source.choices(words, k=65536)) + b"\n")
            out.write(source.randbytes(64 << 10))


def lines(place, name="lines", count=2_000_000, below=1 << 33):
    numbers = random.Random(20240607)
    with open(place.dir / name, "w") as out:
        for _ in range(count // 100_000):
            out.write("".join(f"{number} w{number % 7919}\n" for number in numbers.choices(range(below), k=100_000)))


def documents(place):
    with open(place.dir / "documents", "w") as out:
        out.write("[" + ",\n".join(f'{{"id": {i}, "group": "g{i * 31 % 503}", "value": {i * 7919 % 100003}, "tags": ["a{i % 7}", "b{i % 11}"]}}' for i in range(250_000)) + "]")


def xml(place):
    with open(place.dir / "big.xml", "w") as out:
        out.write("<all>" + "".join(f'<item id="{i}"><name>name {i * 31 % 503}</name><value>{i * 7919 % 100003}</value></item>\n' for i in range(300_000)) + "</all>")


def tree(place):
    """Many files, as of a source tree."""
    source = random.Random(3)
    words = ["".join(source.choices("abcdefghij", k=6)) for _ in range(1000)]
    for folder in range(40):
        (place.dir / "tree" / f"d{folder}").mkdir(parents=True)
        for file in range(50):
            (place.dir / "tree" / f"d{folder}" / f"f{file}").write_text(" ".join(source.choices(words, k=3000)))


def repository(place):
    """A repository with a history of large files that change a little."""
    source = random.Random(9)
    where = place.dir / "repo"
    where.mkdir()
    git = place.need("git")
    env = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000", "GIT_CONFIG_GLOBAL": os.devnull}
    place.make(git, "init", "-q", "-b", "main", cwd=where)
    files = {f"f{k}": [f"{source.random()} {source.random()}" for _ in range(12_000)] for k in range(20)}
    for commit in range(12):
        for name, content in files.items():
            for _ in range(60):
                content[source.randrange(len(content))] = f"{source.random()} {commit}"
            (where / name).write_text("\n".join(content))
        place.make(git, "add", ".", cwd=where)
        place.make(git, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", f"{commit}", cwd=where, env=env)


def generated(script, *arguments, name):
    return lambda place: place.make(PYTHON, JOBS / script, *arguments, output=place.dir / name)


# Databases and other servers ----------------------------------------------------------------------------------------

POSTGRES = """
set max_parallel_workers_per_gather = 0; set work_mem = '300MB'; set enable_hashjoin = on;
create table t as select i, (i * 7919::bigint) % 1000003 k, 'name ' || ((i * 31) % 5003) n, repeat('x', (i % 40)::int) b from generate_series(1, 900000) i;
select count(*), sum(k), sum(length(b)) from t;
select n, count(*), sum(k) from t group by n order by 3 desc, 1 limit 5;
select i, k from t order by k, i, b offset 800000 limit 3;
select count(*), sum(b.i) from t a join t b on b.k = a.k + 1;
create index on t (k);
vacuum full t;
select count(*) from t where k between 5000 and 900000;
"""


def postgres(side, plan):
    """initdb, the server, queries that sort and join in the memory of one connection."""
    port = free_port()
    programs, inside = plan.env["PROGRAMS"], plan.argv
    data = side.work / "data"
    initdb = side.start(plan, [*inside, f"{programs}/initdb", "-D", data, "--no-sync", "-A", "trust", "-U", "postgres", "--locale=C"])
    if initdb.wait():
        raise Broken(f"initdb ends with {initdb.poll()}: {initdb.errors()[-300:]}")
    server = side.start(plan, [*inside, f"{programs}/postgres", "-D", data, "-k", side.work, "-p", str(port), "-c", "listen_addresses=", "-c", "fsync=off",
                               "-c", "shared_buffers=64MB", "-c", "autovacuum=off", "-c", "max_wal_size=4GB", "-c", "maintenance_work_mem=300MB"])
    client = [f"{programs}/psql", "-h", str(side.work), "-p", str(port), "-U", "postgres", "-d", "postgres", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
    env = {**side.env, "PGCONNECT_TIMEOUT": "10"}
    # A server that is starting answers with an error.
    side.ready(server, lambda: subprocess.run([*client, "-c", "select 1"], capture_output=True, env=env, check=False).returncode == 0)
    done = subprocess.run(client, input=POSTGRES.encode(), capture_output=True, env=env, timeout=side.patience, check=False)
    code = server.stop(signal.SIGINT)
    return done.stdout + done.stderr + f"exit code {code}\n".encode()


def prepare_postgres(place, dropped=False):
    programs = next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)), None)
    if programs is None or not os.path.exists(f"{programs}/psql"):
        raise Skip("postgres is missing: apt-get install postgresql postgresql-client")
    outer = as_nobody(place)
    # As it is started by many init scripts: by root, and it becomes another user on the way.
    inside = [*outer[:outer.index("--clear-groups") + 1], "--"] if dropped and outer else []
    return Plan(inside, outer=[] if dropped else outer, env={"PROGRAMS": programs})


MARIADB = """
create database d; use d; set session max_heap_table_size = 500000000; set session tmp_table_size = 500000000;
create table t (i int primary key, k int, n varchar(40), b varchar(100)) engine=innodb;
insert into t select seq, seq * 7919 % 1000003, concat('name ', seq * 31 % 5003), repeat('x', seq % 90) from seq_1_to_400000;
select count(*), sum(k), sum(length(b)) from t;
select n, count(*), sum(k) from t group by n order by 3 desc, 1 limit 5;
create table m engine=memory as select i, k, n from t;
select count(*), sum(b.i) from t a join t b on b.i = a.k where a.i % 3 = 0;
alter table t add index (k), add index (n);
select count(*), sum(crc32(n)) from m; checksum table t; checksum table m;
"""


def mariadb(side, plan):
    data = side.work / "data"
    made = subprocess.run(["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--auth-root-authentication-method=normal"], capture_output=True,
                          env=side.env, cwd=side.work, timeout=side.patience, check=False)
    if made.returncode:
        raise Broken(f"mariadb-install-db: {made.stderr.decode()[-300:]}")
    server = side.start(plan, [*plan.argv, f"--datadir={data}", f"--socket={side.work}/s", f"--pid-file={side.work}/pid", f"--tmpdir={side.work}"])
    client = ["mariadb", "--no-defaults", f"--socket={side.work}/s", "-u", "root", "-N"]
    side.ready(server, lambda: subprocess.run([*client, "-e", "select 1"], capture_output=True, env=side.env, check=False).returncode == 0)
    done = subprocess.run(client, input=MARIADB.encode(), capture_output=True, env=side.env, timeout=side.patience, check=False)
    code = server.stop()
    return done.stdout + done.stderr + f"exit code {code}\n".encode()


def value(number):
    return hashlib.sha256(b"%d" % number).hexdigest().encode() * (8 + number % 16)


def memcached(side, plan):
    server = side.start(plan)
    path = side.work / "socket"

    def connect():
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(side.patience)
        client.connect(str(path))
        return client

    client = side.ready(server, connect)
    stream = client.makefile("rwb")
    count, bad = 120_000, 0
    for first in range(0, count, 1000):
        for number in range(first, first + 1000):
            body = value(number)
            stream.write(b"set k%d %d 0 %d\r\n%s\r\n" % (number, number & 0xffff, len(body), body))
        stream.flush()
        bad += sum(stream.readline() != b"STORED\r\n" for _ in range(1000))
    seen = hashlib.sha256()
    order = list(range(count))
    random.Random(1).shuffle(order)
    for first in range(0, 40_000, 500):
        part = order[first:first + 500]
        stream.write(b"".join(b"get k%d\r\n" % number for number in part))
        stream.flush()
        for number in part:
            stream.readline()
            body = stream.read(len(value(number)) + 2)[:-2]
            bad += body != value(number)
            seen.update(body)
            stream.readline()
    client.close()
    code = server.stop()
    return f"{bad} bad, {seen.hexdigest()}, exit code {code}\n".encode()


class Redis:
    def __init__(self, path, patience):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(patience)
        self.socket.connect(str(path))
        self.stream = self.socket.makefile("rwb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.stream.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def answer(self):
        self.stream.flush()
        line = self.stream.readline()
        if not line:
            raise EOFError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        return rest

    def ask(self, *words):
        self.send(*words)
        return self.answer()


def redis(side, plan):
    """Fills, saves in a forked child while values change, is stopped, loads, and has everything."""
    path = side.work / "socket"
    server = side.start(plan)

    def connect():
        client = Redis(path, side.patience)
        if not client.ask("ping").startswith(b"PONG"):
            raise OSError("not ready")
        return client

    client = side.ready(server, connect)
    for first in range(0, 120_000, 1000):
        for number in range(first, first + 1000):
            client.send("set", f"k{number}", value(number))
        if any(client.answer() != b"OK" for _ in range(1000)):
            raise Broken("a value was not set")
    for number in range(2000):
        client.send("hset", f"h{number % 50}", f"f{number}", value(number))
        client.send("zadd", "z", number * 7919 % 1003, f"m{number}")
    for number in range(4000):
        client.answer()
    rewrite = "--appendonly" in plan.argv
    text = [client.ask("bgrewriteaof" if rewrite else "bgsave")]
    for number in range(0, 30_000):
        client.send("append", f"k{number}", "more")
        if number % 1000 == 999:
            for _ in range(1000):
                client.answer()
    field, until = (b"aof_rewrite_in_progress:0" if rewrite else b"rdb_bgsave_in_progress:0"), time.monotonic() + side.patience
    while field not in client.ask("info", "persistence"):
        if time.monotonic() > until:
            raise Broken("the child that saves does not end")
        time.sleep(0.05)
    status = client.ask("info", "persistence").decode()
    text += re.findall(r"(?:rdb_last_bgsave_status|aof_last_bgrewrite_status):\w+", status)
    text.append(client.ask("debug", "digest"))
    client.send("shutdown")
    client.stream.flush()
    text.append(server.wait())
    server = side.start(plan)
    client = side.ready(server, connect, seconds=side.patience)
    text += [client.ask("debug", "digest"), client.ask("dbsize")]
    text.append(sum(client.ask("get", f"k{number}") != value(number) + (b"more" if number < 30_000 else b"") for number in range(0, 120_000, 41)))
    client.send("shutdown", "nosave")
    client.stream.flush()
    text.append(server.wait())
    return repr(text).encode()


# Java ---------------------------------------------------------------------------------------------------------------

def java(name, collector, *options, **rest):
    def prepare(place):
        place.make(place.need("javac"), "-d", place.dir, JOBS / "Heap.java")
        program = place.need("java")
        switches = ["-Xmx600m", collector, *options]
        if subprocess.run([program, *switches, "-version"], capture_output=True, check=False).returncode:
            raise Skip(f"this JVM does not take {collector}")
        return [program, *switches, "-cp", place.dir, "Heap"]

    return Case(name, prepare, packages=("openjdk-17-jdk-headless",), **rest)


# Others -------------------------------------------------------------------------------------------------------------

def preloaded(name, package, library, variable="LD_PRELOAD"):
    """An allocator that the user has put in front of the C library's."""
    def prepare(place):
        return Plan([PYTHON, JOBS / "objects.py"], env={variable: place.library(library), "PYTHONMALLOC": "malloc"})

    return Case(name, prepare, packages=(package, "python3"))


def compiles(name, package, compiler, script, arguments, source, *options, result="result.o", **rest):
    """A compiler with a large file; what it makes is compared."""
    return simple(name, package, compiler, *options, "in:" + source, made=generated(script, *arguments, name=source), files=[result], **rest)


def built(name, package, compiler, *options, **rest):
    """A program of ours in a language that is compiled: compiled natively, run far."""
    source = rest.pop("source")

    def prepare(place):
        compiler_path = place.need(compiler)
        shutil.copy(JOBS / source, place.dir / source)
        place.make(compiler_path, *[option.replace("{in}", str(place.dir)) for option in options], env={"HOME": str(place.dir), "GOCACHE": str(place.dir / "cache"), "GO111MODULE": "off"})
        return Plan([place.dir / "job"])

    return Case(name, prepare, packages=(package,), **rest)


def erlang(place):
    place.make(place.need("erlc", "erlang-base"), JOBS / "job.erl")
    return [place.need("erl", "erlang-base"), "-noshell", "-pa", place.dir, "-s", "job", "main"]


def chromium(place):
    page = place.file("page.html", "<p id=a></p><script>let m = new Map(); for (let i = 0; i < 300000; i++) m.set('k' + i * 7919 % 1000003, [i, 'v' + i]); let s = 0;"
                      " for (let v of m.values()) s = (s * 31 + v[0]) % 1000000007; document.getElementById('a').textContent = m.size + ' ' + s;</script>")
    program = find("chromium") or place.need("google-chrome", "chromium")
    return [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=profile", "--dump-dom", f"file://{page}"]


def bwrap(*options):
    def prepare(place):
        command = [place.need("bwrap", "bubblewrap"), "--ro-bind", "/", "/", "--dev", "/dev", *options, PYTHON, JOBS / "objects.py"]
        done = subprocess.run([*command[:-2], "true"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skip(f"bwrap does not work here: {done.stderr.strip()}")
        return command

    return prepare


def repack(side, plan):
    shutil.copytree(plan.env["INPUT"], side.work / "repo")
    side.start(plan).wait()
    # Packs are compared by what is in them: their objects, sorted.
    done = subprocess.run(["git", "-C", str(side.work / "repo"), "fsck", "--full", "--strict"], capture_output=True, env=side.env, check=False)
    listed = subprocess.run("git -C repo cat-file --batch-all-objects --batch-check && git -C repo count-objects -v | grep -E '^(count|in-pack|packs)'", shell=True, capture_output=True,
                            env=side.env, cwd=side.work, check=False)
    return listed.stdout + done.stdout + done.stderr + f"{done.returncode}\n".encode()


def prepare_repack(place):
    repository(place)
    return Plan([place.need("git"), "-C", "repo", "-c", "pack.threads=1", "repack", "-adfq", "--window=50", "--depth=50"],
                env={"INPUT": str(place.dir / "repo"), "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"})



def makefile(place):
    generated("functions.py", "c", "400", name="many.c")(place)
    place.file("Makefile", "all: a.o b.o c.o d.o\n\tcat a.o b.o c.o d.o | sha256sum\n%.o: " + str(place.dir / "many.c") + "\n\tgcc -O1 -w -c -o $@ $<\n")


def pipeline(place):
    lines(place, count=1_000_000, below=1 << 18)


SHELL = "declare -A h; for ((i = 0; i < 250000; i++)); do h[$((i * 7919 % 1000003))]=$i; done; s=0; for ((i = 0; i < 1000003; i += 3)); do v=${h[$i]}; [ -n \"$v\" ] && s=$(((s * 31 + v) % 1000000007)); done; echo ${#h[@]} $s; echo ${h[7919]} | cat; (exit 3); echo $?"
AWK = '{ count[$2]++; sum[$2] += $1; last[NR] = $1 " " $2 } END { for (w in count) n++; print n, count["w17"], sum["w17"]; for (i = 1; i <= NR; i += 7) t += length(last[i]); print t }'
ONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

CASES = [
    # Databases and servers.
    Case("postgresql", prepare_postgres, packages=("postgresql-15", "postgresql-client-15", "util-linux"), drive=postgres),
    Case("postgresql-dropped", lambda place: prepare_postgres(place, dropped=True), packages=("postgresql-15", "postgresql-client-15", "util-linux"), drive=postgres, expect=("right", "refused")),
    simple("mariadb", "mariadb-server", "mariadbd", "--no-defaults", "--user=root", "--skip-networking", "--skip-grant-tables", "--innodb-buffer-pool-size=200M",
           "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", drive=mariadb, more=("mariadb-client",)),
    simple("memcached", "memcached", "memcached", "-u", "root", "-s", "socket", "-m", "400", "-t", "2", drive=memcached),
    simple("redis", "redis-server", "redis-server", "--port", "0", "--unixsocket", "socket", "--save", "", "--dbfilename", "dump.rdb", "--enable-debug-command", "yes", drive=redis),
    simple("redis-aof", "redis-server", "redis-server", "--port", "0", "--unixsocket", "socket", "--save", "", "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0", "--enable-debug-command", "yes", drive=redis),
    simple("sqlite-memory", "python3", PYTHON, "jobs:sqlite_memory.py"),
    simple("sqlite-file", "python3", PYTHON, "jobs:sqlite_file.py"),
    pypi("duckdb", ["duckdb"], "duck.py", "1"),
    pypi("duckdb-2-threads", ["duckdb"], "duck.py", "2"),
    # Numbers and tables.
    pypi("polars", ["polars"], "frames_polars.py", env={"POLARS_MAX_THREADS": "2"}),
    pypi("pandas", ["pandas", "numpy"], "frames_pandas.py"),
    pypi("numpy", ["numpy"], "arrays.py"),
    pypi("scikit-learn", ["scikit-learn", "numpy"], "learn.py"),
    pypi("pytorch", ["torch"], "torch_job.py", optional=True),
    simple("r", "r-base-core", "Rscript", "jobs:job.R", env=ONE),
    simple("octave", "octave", "octave-cli", "--no-init-file", "jobs:job.m", env=ONE),
    simple("gnuplot", "gnuplot-nox", "gnuplot", "-e", "set terminal svg; set samples 300000; set dummy x; plot [0:1000] sin(x) * x, cos(x * 1.1) * x"),
    # Languages.
    simple("node", "nodejs", "node", "jobs:job.js"),
    simple("node-workers", "nodejs", "node", "jobs:workers.js"),
    java("java-serial", "-XX:+UseSerialGC"),
    java("java-parallel", "-XX:+UseParallelGC"),
    java("java-g1", "-XX:+UseG1GC"),
    java("java-z", "-XX:+UseZGC"),
    java("java-shenandoah", "-XX:+UseShenandoahGC"),
    java("java-touched", "-XX:+UseSerialGC", "-Xms300m", "-XX:+AlwaysPreTouch"),
    simple("perl", "perl", "perl", "jobs:job.pl"),
    simple("ruby", "ruby", "ruby", "jobs:job.rb"),
    simple("php", "php-cli", "php", "jobs:job.php"),
    Case("erlang", erlang, packages=("erlang-base",)),
    simple("lua", "lua5.4", "lua5.4", "jobs:job.lua"),
    simple("luajit", "luajit", "luajit", "jobs:job.lua"),
    simple("guile", "guile-3.0", "guile", "--no-auto-compile", "jobs:job.scm"),
    simple("sbcl", "sbcl", "sbcl", "--dynamic-space-size", "2GB", "--script", "jobs:job.lisp"),
    simple("tcl", "tcl", "tclsh", "jobs:job.tcl"),
    simple("pypy", "pypy3", "pypy3", "jobs:objects.py"),
    built("ocaml", "ocaml-nox", "ocamlopt", "-o", "{in}/job", "{in}/job.ml", source="job.ml"),
    built("haskell", "ghc", "ghc", "-O1", "-o", "{in}/job", "{in}/job.hs", source="job.hs"),
    built("go-static", "golang-go", "go", "build", "-o", "{in}/job", "{in}/job.go", source="job.go", expect=STATIC),
    simple("python-objects", "python3", PYTHON, "jobs:objects.py"),
    simple("python-fork-pool", "python3", PYTHON, "jobs:pool.py"),
    pypi("python-numpy-pool", ["numpy"], "pool_numpy.py"),
    simple("python-spawn-pool", "python3", PYTHON, "jobs:spawnpool.py"),
    simple("python-subprocess", "python3", PYTHON, "jobs:processes.py"),
    simple("python-asyncio", "python3", PYTHON, "jobs:aio.py"),
    preloaded("jemalloc", "libjemalloc2", "libjemalloc.so.2"),
    preloaded("tcmalloc", "libtcmalloc-minimal4", "libtcmalloc_minimal.so.4"),
    preloaded("mimalloc", "libmimalloc2.0", "libmimalloc.so.2"),
    # Compilers and what goes with them.
    compiles("gcc", "gcc", "gcc", "functions.py", ["c", "900"], "many.c", "-O2", "-w", "-c", "-o", "result.o"),
    compiles("g++", "g++", "g++", "templates.py", ["30"], "many.cc", "-O1", "-c", "-o", "result.o"),
    compiles("clang", "clang", "clang", "functions.py", ["c", "900"], "many.c", "-O2", "-w", "-c", "-o", "result.o"),
    compiles("clang++", "clang", "clang++", "templates.py", ["30"], "many.cc", "-O1", "-c", "-o", "result.o"),
    compiles("rustc", "rustc", "rustc", "functions.py", ["rust", "150"], "many.rs", "--edition", "2021", "--crate-name", "many", "--emit", "obj", "-C", "codegen-units=1",
             "-A", "warnings", "-o", "result.o", env={"RUSTUP_HOME": os.environ.get("RUSTUP_HOME", os.path.expanduser("~/.rustup")),
                                                                        "CARGO_HOME": os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo"))}),
    simple("javac", "openjdk-17-jdk-headless", "javac", "-J-XX:+UseSerialGC", "-d", ".", "jobs:Heap.java", files=["Heap.class"]),
    simple("make", "make", "make", "-s", "-j2", "-f", "in:Makefile", made=makefile, more=("gcc",)),
    simple("valgrind", "valgrind", "valgrind", "-q", PYTHON, "-c", "print(sum(range(10)))", expect=("refused", "right")),
    built("gcc-asan", "gcc", "gcc", "-fsanitize=address", "-g", "-o", "{in}/job", "{in}/asan.c", source="asan.c", expect=("refused", "right")),
    simple("strace", "strace", "strace", "-f", "-o", "trace", "-e", "trace=execve", PYTHON, "jobs:objects.py"),
    simple("gdb", "gdb", "gdb", "-q", "-batch", "-ex", "run", "--args", PYTHON, "jobs:objects.py", output=False),
    # Files.
    Case("git-gc", prepare_repack, packages=("git",), drive=repack),
    simple("xz", "xz-utils", "xz", "-T2", "--lzma2=preset=0,dict=1MiB", "--block-size=16MiB", "-k", "-c", "in:text", made=text),
    simple("xz-back", "xz-utils", "sh", "-c", "xz -T2 -d -c {in}/text.xz | sha256sum", made=lambda place: (text(place), place.make("xz", "-T2", "-0", "-k", place.dir / "text"))),
    simple("zstd", "zstd", "zstd", "-q", "--long=27", "-19", "-c", "in:text", made=lambda place: text(place, mib=9)),
    simple("gzip", "gzip", "gzip", "-n", "-c", "in:text", made=text, quick=True),
    simple("bzip2", "bzip2", "bzip2", "-c", "in:text", made=lambda place: text(place, mib=20)),
    simple("brotli", "brotli", "brotli", "-q", "9", "--lgwin=24", "-c", "in:text", made=lambda place: text(place, mib=12)),
    simple("7z", "p7zip-full", "7z", "a", "-bd", "-bso0", "-mx=5", "-mmt=1", "-md=16m", "-so", "-an", "-txz", "-si", stdin="in:text", made=lambda place: text(place, mib=7)),
    simple("tar", "tar", "tar", "-C", "{in}", "--sort=name", "-cf", "-", "tree", made=tree, quick=True),
    simple("rsync", "rsync", "sh", "-c", "rsync -a --checksum {in}/tree/ copy && rsync -a --checksum --stats {in}/tree/ copy | grep transferred && tar --sort=name -cf - copy | wc -c", made=tree),
    simple("sort", "coreutils", "sort", "--parallel=2", "-S", "1G", "in:lines", made=lines),
    simple("pipeline", "coreutils", "sh", "-c", "sort -S 64M {in}/lines | uniq -c | sort -S 64M -k1,1nr -k2,2 | head -n 1000 | sha256sum", made=pipeline),
    simple("gawk", "gawk", "gawk", AWK, "in:lines", made=lines),
    simple("mawk", "mawk", "mawk", AWK, "in:lines", made=lines),
    simple("sed", "sed", "sed", "-n", "H;${x;s/\\n/,/g;s/w1\\([0-9]*\\)/<\\1>/g;p}", "in:lines", made=lambda place: lines(place, count=1_000_000)),
    simple("bc", "bc", "sh", "-c", "echo 'scale=0; a=3^400000; b=7^300000; (a*b)%(10^60); for (i=0;i<1000000;i++) x[i%60000]=i; x[777]' | bc", quick=True),
    simple("bash", "bash", "bash", "-c", SHELL),
    simple("jq", "jq", "jq", "-c", "group_by(.group) | map({g: .[0].group, n: length, s: (map(.value) | add)}) | .[:20]", "in:documents", made=documents),
    simple("xmllint", "libxml2-utils", "xmllint", "--xpath", "sum(//item[@id mod 3 = 0]/value)", "--huge", "in:big.xml", made=xml),
    simple("ffmpeg", "ffmpeg", "ffmpeg", "-v", "error", "-threads", "2", "-f", "lavfi", "-i", "testsrc2=size=1920x1080:rate=25:duration=2", "-vf", "reverse,scale=1280:720",
           "-pix_fmt", "yuv420p", "-f", "md5", "-"),
    simple("ffmpeg-x264", "ffmpeg", "ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=1280x720:rate=25:duration=3", "-c:v", "libx264", "-threads", "2", "-preset", "medium",
           "-f", "md5", "-"),
    simple("imagemagick", "imagemagick", "convert", "-limit", "memory", "2GiB", "-limit", "map", "2GiB", "-limit", "thread", "1", "-size", "4000x4000", "gradient:red-blue", "-swirl", "60",
           "-blur", "0x2", "-rotate", "90", "-depth", "8", "rgb:-"),
    # The rest.
    Case("chromium", chromium, packages=("chromium",), optional=True),
    Case("bwrap", bwrap(), packages=("bubblewrap", "python3")),
    Case("bwrap-unshare-all", bwrap("--unshare-all", "--die-with-parent", "--proc", "/proc"), packages=("bubblewrap", "python3"),
         known_over={"tcp": NO_WAY_BACK}),
    *(simple(f"stress-ng-{name}", "stress-ng", "stress-ng", "--quiet", *options, output=False) for name, options in {
        "vm": ["--vm", "1", "--vm-bytes", "256M", "--vm-method", "write64", "--verify", "--vm-ops", "500"],
        "vm-keep": ["--vm", "1", "--vm-bytes", "128M", "--vm-keep", "--vm-method", "incdec", "--verify", "--vm-ops", "300000"],
        "malloc": ["--malloc", "1", "--malloc-bytes", "256M", "--verify", "--malloc-ops", "20000"],
        "mmap": ["--mmap", "1", "--mmap-bytes", "64M", "--verify", "--mmap-ops", "10"],
        "mremap": ["--mremap", "1", "--mremap-bytes", "64M", "--verify", "--mremap-ops", "30"],
        "bigheap": ["--bigheap", "1", "--bigheap-growth", "1M", "--verify", "--bigheap-ops", "300"],
        "madvise": ["--madvise", "1", "--verify", "--madvise-ops", "10"],
        "fork": ["--fork", "1", "--fork-ops", "200"],
        "memrate": ["--memcpy", "1", "--memcpy-ops", "50", "--stream", "1", "--stream-ops", "2"],
    }.items()),
    simple("busybox-static", "busybox-static", "busybox", "sh", "-c", "echo hi", expect=STATIC),
]

