#!/usr/bin/env bash
# ray.sh: runs the test of sweeps on Ray with a stock Ray, from an environment in target/ray that is made at first.
set -euo pipefail
cd "$(dirname "$0")/.."

package=ray==2.49.2
venv=$PWD/target/ray
if ! "$venv/bin/python" -c 'import ray' 2>/dev/null; then
	echo "installing $package into $venv" >&2
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q --disable-pip-version-check "$package"
fi
# The test runs the first python3 of PATH.
PATH=$venv/bin:$PATH exec "${CARGO:-cargo}" test -q -p hiroma-cli --test sim ray_runs_shards
