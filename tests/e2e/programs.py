"""Real programs with a quarter of the memory that they use natively, and their results compared."""

import functools
import os
import random

from harness import JOBS, MIB, PYTHON, Skip, compile_job, need, want


def summary(native, far):
    """Both times and what moved, for the line that is printed."""
    return f"native {native.seconds:.1f} s, far {far.seconds:.1f} s, {native.rss_bytes / MIB:.0f} MiB natively, {far.stats['far_bytes_max'] / MIB:.0f} MiB far"


def compared(bench, command, options=(), env=None, needs_output=True):
    """Natively, then far: the same output."""
    native = bench.expected(command, env=env)
    want(native.output or not needs_output, "the native run printed nothing to compare")
    if bench.native_only:
        return f"native only: {native.seconds:.1f} s, {native.rss_bytes / MIB:.0f} MiB"
    far = bench.far(native, command, options=options, env=env)
    want(far.output == native.output, f"other output than natively: {first_difference(native.output, far.output)}")
    return summary(native, far)


def first_difference(native, far):
    for number, (left, right) in enumerate(zip(native.splitlines(), far.splitlines()), 1):
        if left != right:
            return f"line {number} is {right[:80]!r}, natively {left[:80]!r}"
    return f"{len(far)} bytes, natively {len(native)}"


def same_file(left, right):
    with open(left, "rb") as one, open(right, "rb") as two:
        while True:
            first, second = one.read(MIB), two.read(MIB)
            if first != second:
                return False
            if not first:
                return True


# GNU sort -----------------------------------------------------------------------------------------------------------

def numbers_file(bench, count, below):
    """Random numbers, one per line; the same in every run."""
    numbers = random.Random(20240607)
    lines = bench.file("lines")
    with open(lines, "w") as out:
        for _ in range(count // 100_000):
            out.write("".join(f"{number}\n" for number in numbers.choices(range(below), k=100_000)))
    return lines


def sort(bench, store):
    program = need("sort", "coreutils")
    lines = numbers_file(bench, 2_000_000, 1 << 33)
    command = lambda result: [program, "--parallel=1", "-S", "1G", lines, "-o", bench.file(result)]
    native = bench.expected(command("native"))
    if bench.native_only:
        return f"native only: {native.seconds:.1f} s, {native.rss_bytes / MIB:.0f} MiB"
    options = []
    if store == "tcp":
        options = ["--store", bench.serve()[1]]
    elif store == "file":
        options = ["--store", f"file:{bench.dir}"]
    elif store == "compressed":
        options = ["--store", "compressed:1G"]
    far = bench.far(native, command("far"), options=options)
    want(same_file(bench.file("native"), bench.file("far")), "the outputs differ")
    return summary(native, far)


# Others -------------------------------------------------------------------------------------------------------------

def numpy(bench):
    probe = bench.native([PYTHON, "-c", "import numpy"]) if os.path.exists(PYTHON) else None
    if probe is None or probe.code != 0:
        raise Skip("NumPy is missing: sudo apt-get install python3-numpy")
    # One thread: then even sums of floats have one order.
    return compared(bench, [PYTHON, JOBS / "arrays.py", "320"], env={"OPENBLAS_NUM_THREADS": "1"})


def sqlite(bench):
    return compared(bench, [need(PYTHON, "python3"), JOBS / "tables.py", "150000"])


def java(bench):
    """Reserves address space and looks around for a good place before it takes what it gets. Its heap has to be managed all the same."""
    classes = bench.file("classes")
    native = bench.expected([need("javac", "default-jdk-headless"), "-d", classes, JOBS / "Lists.java"])
    native = bench.expected([need("java", "default-jdk-headless"), "-XX:+UseSerialGC", "-Xmx300m", "-cp", classes, "Lists"])
    if bench.native_only:
        return f"native only: {native.seconds:.1f} s, {native.rss_bytes / MIB:.0f} MiB"
    far = bench.far(native, ["java", "-XX:+UseSerialGC", "-Xmx300m", "-cp", classes, "Lists"])
    want(far.output == native.output, f"other output than natively: {first_difference(native.output, far.output)}")
    return summary(native, far)


def maps(bench):
    return compared(bench, [compile_job(bench, "maps.cc", "-O1"), "120"])


def pool(bench):
    return compared(bench, [need(PYTHON, "python3"), JOBS / "pool.py", "96"])


def pipeline(bench):
    """Several programs at once, started by a shell; each has a limit of its own, a quarter of what the largest needs."""
    lines = numbers_file(bench, 1_000_000, 1 << 18)
    counts = bench.file("counts")
    script = f"sort -S 64M {lines} | uniq -c | sort -S 64M -k1,1nr -k2,2 > {counts}; head -n 50 {counts}; sha256sum < {counts}"
    return compared(bench, [need("sh", "dash"), "-c", script])


def compiler(bench):
    """GCC brings an allocator of its own; the object file must be the same, byte for byte."""
    source, target = JOBS / "maps.cc", bench.file("maps.o")
    command = [need("g++", "g++"), "-O2", "-c", "-o", target, source]
    native = bench.expected(command)
    expected = target.read_bytes()
    target.unlink()
    if bench.native_only:
        return f"native only: {native.seconds:.1f} s, {native.rss_bytes / MIB:.0f} MiB"
    far = bench.far(native, command)
    want(target.read_bytes() == expected, "another object file than natively")
    return summary(native, far)


def xz(bench):
    program = need("xz", "xz-utils")
    text, packed = bench.file("text"), bench.file("packed.xz")
    source = random.Random(5)
    words = [bytes(source.choices(b"abcdefghijklmnopqrstuvwxyz", k=source.randint(2, 9))) for _ in range(4000)]
    with open(text, "wb") as out:
        for block in range(48):
            out.write(b" ".join(source.choices(words, k=130_000)))
            out.write(source.randbytes(256 << 10))
    # A small dictionary and large blocks: the blocks are what does not fit. (With dictionaries that do not fit, each byte costs a
    # random access to far memory: that works too, for hours.)
    compress = [program, "-T2", "--lzma2=preset=0,dict=1MiB", "--block-size=16MiB", "-k", "-c", text]
    native = bench.expected(compress)
    if bench.native_only:
        return f"native only: {native.seconds:.1f} s, {native.rss_bytes / MIB:.0f} MiB"
    far = bench.far(native, compress)
    want(far.output == native.output, "compressed differently")
    packed.write_bytes(far.output)
    restore = [program, "-T2", "-d", "-k", "-c", packed]
    unpacked = bench.expected(restore)
    want(unpacked.output == text.read_bytes(), "what was compressed far does not unpack natively to the text")
    back = bench.far(unpacked, restore)
    want(back.output == unpacked.output, "unpacked differently")
    return summary(native, far)


TESTS = {
    **{f"sort-{store}": functools.partial(sort, store=store) for store in ["default", "compressed", "file", "tcp"]},
    "numpy": numpy,
    "sqlite": sqlite,
    "java": java,
    "xz": xz,
    "maps": maps,
    "compiler": compiler,
    "pipeline": pipeline,
    "forked-workers": pool,
}
