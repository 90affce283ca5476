#!/usr/bin/env bash
# test.sh all|lint: runs what is tested, quick things first, and ends with one line that sums up:
# `N passed, N failed, N skipped`. A stage that fails does not keep the others from running.
# HIROMA_TEST_VM=1 runs the virtual machines too.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH="$HOME/.cargo/bin:$PATH"
cargo=${CARGO:-cargo}

passed=0 failed=0 skipped=0 shown=0
log=$(mktemp) skips=$(mktemp)
trap 'rm -f "$log" "$skips"' EXIT
# Tests write there what they skip, and why (crates/testkit).
export HIROMA_SKIPS=$skips

begin() {
	printf '\n== %s\n' "$1"
	stage=$1 started=$SECONDS
}

done_in() { printf -- '-- %s: %s s\n' "$stage" $((SECONDS - started)); }

# A check that is one test in itself.
single() { # NAME COMMAND...
	begin "$1"
	shift
	if "$@"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "FAILED: $stage"
	fi
	done_in
}

skip() {
	begin "$1"
	echo "skipped: $2"
	skipped=$((skipped + 1))
}

# Adds up lines on standard input of the form `N passed, N failed, N skipped` or cargo's `N passed; N failed; N ignored`.
add_up() {
	sed -nE 's/^(test result:.* )?([0-9]+) passed[;,] ([0-9]+) failed[;,] ([0-9]+) (skipped|ignored).*/\2 \3 \4/p'
}

# What one suite and everything together may take, in seconds: what hangs is ended, named, and failed.
suite_seconds=2400
seconds=${HIROMA_TEST_SECONDS:-5100}

# The processes that hold the log open: all that a suite started, whatever session they moved to.
holders() {
	local fd pid
	for fd in /proc/[0-9]*/fd/*; do
		[ "$fd" -ef "$log" ] || continue
		pid=${fd#/proc/}
		echo "${pid%%/*}"
	done 2>/dev/null | sort -un | grep -vx -e $$ -e "$shown"
}

# Ends what still holds the log, and says what it was and where it waited. Fails where there was something.
end_holders() {
	local pid any=1
	for pid in $(holders); do
		any=0
		echo "left behind: $(ps -o pid=,ppid=,etimes=,stat=,wchan:32=,args= -p "$pid" | cut -c -300)"
		for thread in /proc/"$pid"/task/*; do
			echo "    $(cat "$thread"/comm "$thread"/wchan "$thread"/syscall 2>/dev/null | tr '\n' ' ')"
		done
		kill -KILL "$pid" 2>/dev/null
	done
	return $any
}

# A suite that counts for itself. A process that it leaves behind does not keep the next one waiting.
suite() { # NAME COMMAND...
	begin "$1"
	shift
	: >"$log"
	"$@" >"$log" 2>&1 </dev/null &
	local child=$! code=0 before=$failed any=0 p f s ended=0
	local last=$((SECONDS + suite_seconds < seconds ? SECONDS + suite_seconds : seconds))
	tail -n +1 -s 0.2 -f --pid=$child "$log" &
	shown=$!
	while kill -0 $child 2>/dev/null; do
		if [ $SECONDS -ge $last ]; then
			ended=1
			sleep 1
			echo "it has not ended after $((SECONDS - started)) s:"
			end_holders
			kill -KILL $child 2>/dev/null
			break
		fi
		sleep 0.2
	done
	wait $child || code=$?
	wait $shown
	while read -r p f s; do
		any=1 passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	done < <(add_up <"$log")
	# What is ending has a moment for it.
	[ -z "$(holders)" ] || sleep 5
	if end_holders; then
		failed=$((failed + 1))
		echo "FAILED: $stage left processes behind"
	fi
	if [ "$code" != 0 ] && [ "$failed" = "$before" ]; then
		echo "FAILED: $stage ended with code $code"
		failed=$((failed + 1))
	elif [ "$any" = 0 ] && [ $ended = 0 ]; then
		# It had nothing to count: it said why.
		skipped=$((skipped + 1))
	fi
	done_in
}

# Of SECONDS what leaves the suites after it their time, where a slow machine has used it up.
part() { # SECONDS
	local left=$((seconds - SECONDS - 1200))
	echo $((left < 60 ? 60 : left < $1 ? left : $1))
}

# The fuzzers are a workspace of their own, whose lock file no other build looks at.
locked() { "$cargo" metadata -q --locked --format-version 1 --manifest-path "$1" >/dev/null; }

lint() {
	single "lock file of the workspace" locked Cargo.toml
	single "lock file of the fuzzers" locked fuzz/Cargo.toml
	single "format" "$cargo" fmt --all --check
	single "clippy" "$cargo" clippy -q --workspace --all-targets -- -D warnings
	# As the fuzzers build it: with the model, without what is only there for tests.
	single "model without tests" "$cargo" check -q --lib -p hiroma-far --features model
	if "$cargo" deny --version >/dev/null 2>&1; then
		single "licences, bans and sources of dependencies" "$cargo" deny --log-level error check licenses bans sources
		# The database of advisories comes from the network.
		if timeout 60 "$cargo" deny fetch db >/dev/null 2>&1; then
			single "advisories on dependencies" "$cargo" deny --offline --log-level error check advisories
		else
			skip "advisories on dependencies" "the database cannot be fetched from here"
		fi
	else
		skip "licences and advisories of dependencies" "cargo-deny is not installed (cargo install --locked cargo-deny)"
	fi
	if command -v python3 >/dev/null 2>&1; then
		single "links and paths in documents" scripts/links.py
	else
		skip "links and paths in documents" "python3 is not installed"
	fi
	if command -v shellcheck >/dev/null 2>&1; then
		single "shell scripts" shellcheck -x scripts/*.sh .ci/run spark/common.sh spark/test spark/demo spark/publish spark/cross spark/bench/build
	fi
}

# What the builds and the largest test take, in GiB: a full disk fails tests in ways that do not say so.
disk_needed=8

room() {
	local dir free
	for dir in . "${TMPDIR:-/tmp}"; do
		free=$(df --output=avail -BG "$dir" | sed -n '2s/[^0-9]//gp')
		if [ "$free" -lt $disk_needed ]; then
			echo "test: $(realpath "$dir") has $free GiB of free disk; the tests need about $disk_needed GiB" >&2
			exit 1
		fi
	done
}

# The pager's state against a model of the kernel.
schedules() { "$cargo" test -q --release -p hiroma-far --lib model::; }

# The placer where messages are lost and nodes fail. Without optimization a tenth of them is run.
placements() { "$cargo" test -q --release -p hiroma-sim --test faults schedules_with; }

# The lock and the bell with the threads in every order, by loom, which wants a build of its own.
models() {
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom "$cargo" test -q --release -p hiroma-sys --lib lock::models
}

everything() {
	room
	lint
	single "release build" "$cargo" build -q --release --workspace
	# The command's tests run programs with the libraries of the release.
	local release=$PWD/target/release
	HIROMA_PRELOAD="$release/libhiroma_preload.so" HIROMA_QUIET_PRELOAD="$release/libhiroma_quiet_preload.so" \
		HIROMA_BENCH="$release/hiroma-bench" suite "unit and integration tests" "$cargo" test -q --workspace --no-fail-fast
	HIROMA_SCHEDULES=100000 suite "100,000 schedules of the pager's state, and broken rules" schedules
	suite "20,000 schedules of the placer with faults" placements
	suite "every order of threads at the lock and the bell" models
	if command -v c++ >/dev/null 2>&1; then
		suite "fuzzed for 10 s each: frames, options, files, policies, events of the state" scripts/fuzz.sh 10
	else
		skip "fuzzers" "there is no C++ compiler for libFuzzer: sudo apt-get install g++"
	fi
	if [ -x target/release/hiroma ]; then
		# Each commit has its own order, so that all have their turn where time is short.
		local seed
		seed=$(git rev-parse HEAD 2>/dev/null)
		suite "end to end: real programs, a quarter of their memory" tests/e2e/run --within "$(part 420)" --seed "$seed"
		# Not what takes long, and one store: make test-strangers runs everything.
		suite "behaviours of programs, natively and far" tests/strangers/run --quick --kind behaviour --stores default \
			--within "$(part 600)" --seed "$seed"
		# Not where the whole machine runs short of memory: make test-places runs everything.
		suite "hot and quiet in bad places" tests/soak/places.py target/release/hiroma --gentle
	else
		skip "end to end" "there is no release build"
	fi
	suite "the Spark plugin, with a stock Spark" spark/test
	# Emulated processors take a quarter of an hour for each kernel: `make test-vm`, or HIROMA_TEST_VM=1 here.
	if [ "${HIROMA_TEST_VM:-0}" = 0 ]; then
		skip "kernels in virtual machines" "they take long; make test-vm runs them"
	elif [ -x target/release/hiroma ]; then
		suite "kernels in virtual machines" tests/vm/run
	fi
}

case ${1:-all} in
all) everything ;;
lint) lint ;;
*)
	echo "usage: $0 all|lint" >&2
	exit 2
	;;
esac

if [ -s "$skips" ]; then
	begin "skipped tests, or parts of them, and what they lack"
	sort -u "$skips"
	skipped=$((skipped + $(sort -u "$skips" | wc -l)))
fi
printf '\n%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
