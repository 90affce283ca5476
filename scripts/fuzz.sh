#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: feeds each target of fuzz/fuzz_targets (or those named) for SECONDS with what libFuzzer thinks of, guided
# by coverage. The stable compiler will do: it can count coverage, and only lacks the sanitizers, which look for errors that code without
# `unsafe` does not have. What was found interesting is kept in target/fuzz/corpus/TARGET for the next time; input that crashes it, in
# target/fuzz/crashes.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"
seconds=${1:-60} out=$PWD/target/fuzz host=$(rustc -vV | sed -n 's/^host: //p')
shift || true
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
	mapfile -t targets < <(sed -n 's/^name = "\([a-z]*\)"$/\1/p' fuzz/Cargo.toml)
fi
coverage="-Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions"
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
	coverage+=" -Cllvm-args=-sanitizer-coverage-$argument"
done
mkdir -p "$out/crashes"
# With --target the flags do not reach build scripts.
CARGO_TARGET_DIR=$out RUSTFLAGS="--cfg fuzzing $coverage" "${CARGO:-cargo}" build -q --locked --release --target "$host" \
	--manifest-path fuzz/Cargo.toml
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0
for target in "${targets[@]}"; do
	mkdir -p "$out/corpus/$target"
	if "$out/$host/release/$target" -max_total_time="$seconds" -rss_limit_mb=4096 -artifact_prefix="$out/crashes/$target-" \
		"$out/corpus/$target" >"$log" 2>&1; then
		echo "ok   $target: $(tail -n 1 "$log")"
		passed=$((passed + 1))
	else
		echo "FAIL $target"
		tail -n 40 "$log"
		failed=$((failed + 1))
	fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
