#!/usr/bin/env bash
# pyspark.sh PROGRAM ARGUMENTS...: runs a Python program with a stock PySpark, from an environment in target/pyspark that is made at first.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(pyspark==3.5.6 numpy pandas pyarrow)
venv=target/pyspark
if ! "$venv/bin/python" -c 'import pyspark, numpy, pandas, pyarrow' 2>/dev/null; then
	echo "installing ${packages[*]} into $venv" >&2
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q --disable-pip-version-check "${packages[@]}"
fi
exec "$venv/bin/python" "$@"
