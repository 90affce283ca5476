#!/usr/bin/env bash
# fuzz.sh [SECONDS]: feeds the decoder of frames with what libFuzzer thinks of, guided by coverage. The stable compiler will do: it can
# count coverage, and only lacks the sanitizers, which look for errors that code without `unsafe` does not have.
# What was found interesting is kept in target/fuzz/corpus for the next time; input that crashes it, in target/fuzz/crashes.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"
seconds=${1:-60} out=$PWD/target/fuzz host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Ccodegen-units=1 -Cdebug-assertions"
for argument in level=4 inline-8bit-counters pc-table trace-compares; do
	coverage+=" -Cllvm-args=-sanitizer-coverage-$argument"
done
mkdir -p "$out/corpus" "$out/crashes"
# With --target the flags do not reach build scripts.
CARGO_TARGET_DIR=$out RUSTFLAGS="--cfg fuzzing $coverage" "${CARGO:-cargo}" build -q --locked --release --target "$host" \
	--manifest-path fuzz/Cargo.toml
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "$out/$host/release/frames" -max_total_time="$seconds" -artifact_prefix="$out/crashes/" "$out/corpus" >"$log" 2>&1; then
	tail -n 40 "$log"
	exit 1
fi
tail -n 1 "$log"
