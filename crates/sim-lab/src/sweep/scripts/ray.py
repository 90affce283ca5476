#!/usr/bin/env python3
"""Runs a sweep of `hiroma sim` on Ray, and merges its results.

Written by `hiroma sim sweep --on ray`. All nodes need the paths below (a shared file system).
`python3 @NAME@` uses the cluster of RAY_ADDRESS, or this machine. It may be run again: what is
stored already is not run again.
"""
import subprocess
import sys

import ray

HIROMA = @HIROMA@
SWEEP = @SWEEP@
OUT = @OUT@
SHARDS = @SHARDS@
SEEDS = @SEEDS@


@ray.remote(num_cpus=1, max_retries=2)
def run_shard(number):
    """Runs a shard. Returns its exit code and what it wrote."""
    command = [HIROMA, "sim", "sweep", SWEEP, "--out", OUT, "--shard", f"{number}/{SHARDS}", "--jobs", "1"]
    command += ["--seeds", SEEDS] if SEEDS else []
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout.strip()


def main():
    ray.init()
    pending = {run_shard.remote(number): number for number in range(1, SHARDS + 1)}
    failed = 0
    while pending:
        (task,), _ = ray.wait(list(pending), num_returns=1)
        number = pending.pop(task)
        try:
            code, text = ray.get(task)
        except ray.exceptions.RayError as error:
            code, text = 1, str(error)
        failed += code != 0
        state = f"failed with exit code {code}" if code else "done"
        print(f"shard {number}/{SHARDS} {state}: {text}", flush=True)
    ray.shutdown()
    merge = [HIROMA, "sim", "merge", OUT]
    for kind in ["csv", "json", "html"]:
        merge += [f"--{kind}", f"{OUT}/merged.{kind}"]
    merged = subprocess.run(merge).returncode
    if failed:
        print(f"{failed} of {SHARDS} shards failed; run this again when the reason is gone", file=sys.stderr)
    return 1 if failed else merged


if __name__ == "__main__":
    sys.exit(main())
