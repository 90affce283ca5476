#!/usr/bin/env bash
# pyspark.sh PROGRAM ARGUMENTS...: runs a Python program with a stock PySpark, from an environment in target/pyspark that is made at first.
# HIROMA_PYSPARK is another version of it, in an environment of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

stock=3.5.6
version=${HIROMA_PYSPARK:-$stock}
packages=("pyspark==$version" numpy pandas pyarrow)
venv=target/pyspark
[ "$version" = $stock ] || venv=target/pyspark-$version
if ! "$venv/bin/python" -c 'import pyspark, numpy, pandas, pyarrow' 2>/dev/null; then
	echo "installing ${packages[*]} into $venv" >&2
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q --disable-pip-version-check "${packages[@]}"
fi
exec "$venv/bin/python" "$@"
