#!/usr/bin/env python3
"""UMap against `hiroma run` on UMap's sort: the same resident memory, alternately.

usage: run.py --umap PREFIX --hiroma FILE [--mib 512] [--local 256,128] [--threads 1,2] [--repetitions 3] [--json FILE]

PREFIX is where UMap was installed (`cmake -DCMAKE_INSTALL_PREFIX=PREFIX ..; make install` in its sources).
UMap has a buffer of that many bytes, and a file that it reads and writes directly; `hiroma run` has a file alone
(`file`), and its defaults (`default`: compressed memory within the limit, and a file). Files are in /var/tmp.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

PAGES = [4096, 65536]
HERE = pathlib.Path(__file__).parent
PATIENCE_S = 300


def built(prefix, directory):
    program = directory / "sort"
    subprocess.run(["c++", "-O2", "-fopenmp", f"-I{prefix}/include", HERE / "sort.cpp", "-o", program,
                    f"{prefix}/lib/libumap.a", "-lpthread", "-lrt"], check=True)
    return program


def run(command, environment):
    """Seconds of the three parts together, or None where it takes too long, and the largest resident size."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=subprocess.DEVNULL,
                                 start_new_session=True)
        try:
            child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, 9)
            child.wait()
            return None
        if child.returncode != 0:
            sys.exit(f"{command} ended with {child.returncode}")
        output.seek(0)
        seconds = json.loads(output.read().splitlines()[-1])
        return sum(value for name, value in seconds.items() if name.endswith("_s"))


def arms(program, hiroma, mib, local, threads, directory):
    numbers = [str(mib), str(threads)]
    yield "native", [program, "memory", *numbers], {}
    for page in PAGES:
        environment = {"UMAP_PAGESIZE": str(page), "UMAP_BUFSIZE": str((local << 20) // page),
                       "UMAP_PAGE_FILLERS": "2", "UMAP_PAGE_EVICTORS": "2"}
        yield f"umap-{page >> 10}K", [program, "umap", *numbers, directory / "file"], environment
    run = [hiroma, "run", "--quiet", "--local", f"{local}M"]
    yield "file", [*run, "--store", "file:/var/tmp", "--", program, "memory", *numbers], {}
    yield "default", [*run, "--", program, "memory", *numbers], {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--umap", required=True, type=pathlib.Path)
    parser.add_argument("--hiroma", required=True, type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--local", default="256,128")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = pathlib.Path(name)
        program = built(options.umap, directory)
        for local in map(int, options.local.split(",")):
            for threads in map(int, options.threads.split(",")):
                seconds = {}
                for _ in range(options.repetitions):
                    for arm, command, environment in arms(program, options.hiroma.resolve(), options.mib, local,
                                                          threads, directory):
                        seconds.setdefault(arm, []).append(run(command, environment))
                medians = {arm: statistics.median(PATIENCE_S if one is None else one for one in all_of)
                           for arm, all_of in seconds.items()}
                best = min(value for arm, value in medians.items() if arm.startswith("umap"))
                line = ", ".join(f"{arm} {value:.2f} s" for arm, value in medians.items())
                print(f"{options.mib} MiB, {local} MiB local, {threads} threads: {line}", flush=True)
                where = f"umap_sort_{local}m_t{threads}"
                for arm, value in medians.items():
                    results.append({"name": f"{where}_{arm.replace('-', '_').lower()}", "value": value, "unit": "s",
                                    "paper": None, "must": None, "aim": None, "met": None})
                for arm in ("file", "default"):
                    ratio = medians[arm] / best
                    results.append({"name": f"{where}_{arm}_vs_umap", "value": ratio, "unit": "", "paper": None,
                                    "must": 1.0, "aim": 0.5, "met": ratio <= 1.0})
    if options.json:
        machine = {"kernel": platform.release(), "cores": os.cpu_count()}
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
