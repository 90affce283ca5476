#!/usr/bin/env bash
# Checks the patched memcached (build.sh makes it): memcached's own tests, and items that are moved under load while every value is
# verified. `check.sh quick` leaves out memcached's own tests. As root; ends what it started.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
work=$root/build/memcached
target=${CARGO_TARGET_DIR:-$root/target}
profile=${HIROMA_PROFILE:-release}
export PATH="$HOME/.cargo/bin:$PATH"

say() { echo "memcached check: $*"; }
[ -x "$work/memcached-debug" ] || ./build.sh
if [ "$profile" = release ]; then
	(cd "$root" && cargo build -q --release -p hiroma-cli -p hiroma-memload)
fi
hiroma=$target/$profile/hiroma memload=$target/$profile/hiroma-memload

passed=0 failed=0 skipped=0
verdict() { # NAME CODE
	if [ "$2" = 0 ]; then passed=$((passed + 1)); else
		failed=$((failed + 1))
		say "FAILED: $1"
	fi
}

dir=$(mktemp -d)
pids=()
finish() {
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	wait 2>/dev/null || true
	rm -rf "$dir"
}
trap finish EXIT

wait_for() { # SECONDS COMMAND...
	local until=$((SECONDS + $1))
	shift
	while ! "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $until ] || return 1
		sleep 0.05
	done
}

if [ "${1:-all}" != quick ]; then
	# Their own tests, as far as they do not sleep for minutes or need modules that Debian does not have; with assertions.
	src=$(dirname "$(readlink -f "$work/memcached")")
	tests=(00-startup binary-get bogus-commands cas chunked-items evictions flags flush-all getset incrdecr issue_22 issue_61 issue_67 item_size_max
		lru-crawler lru metaget multiversioning noreply refhang slabhang slabs-reassign-chunked slabs-reassign2 slabs_reassign stats touch unixsocket)
	files=()
	for name in "${tests[@]}"; do [ -e "$src/t/$name.t" ] && files+=("t/$name.t"); done
	say "memcached's own tests: ${#files[@]} files"
	code=0
	(cd "$src" && PARALLEL=1 timeout -s KILL 900 prove "${files[@]}") || code=$?
	verdict "memcached's own tests" $code
fi

# Load on the build with assertions, while hot items are moved: scattered hot items (sparse ranges), reads and writes.
start_daemon() {
	"$hiroma" hot serve --socket "$dir/hot.sock" --cpu 20% >"$dir/serve.out" 2>"$dir/serve.log" &
	pids+=($!)
	daemon=$!
	wait_for 60 grep -q ready "$dir/serve.out"
}
HIROMA_HOT_SOCKET=$dir/hot.sock "$work/memcached-debug" -u root -s "$dir/mc.sock" -m 256 -t 2 -o hiroma,hiroma_arena=32 2>"$dir/mc.log" &
pids+=($!)
server=$!
load() { timeout -s KILL 300 "$memload" --server "unix:$dir/mc.sock" --items 200000 --pid "$server" "$@"; }
stat_of() { load --no-fill --operations 16 --may-miss | sed -n "s/^$1: //p"; }
# Sends commands, one a line, and shows the answers.
tell() {
	timeout -s KILL 60 perl -MIO::Socket::UNIX -e 'my $s = IO::Socket::UNIX->new(Peer => shift) or die "no connection\n";
		print $s map { "$_\r\n" } @ARGV, "quit"; print while <$s>' "$dir/mc.sock" "$@"
}
has_moved() { [ "$(stat_of hiroma_items_moved)" -gt 0 ]; }
wait_for 60 test -S "$dir/mc.sock"
# All slab pages are in one mapping of 256 MiB, which begins where a huge page can.
code=1
while read -r range _; do
	begin=$((16#${range%-*})) end=$((16#${range#*-}))
	[ $((end - begin)) -ge $((256 << 20)) ] && [ $((begin % (2 << 20))) = 0 ] && code=0
done <"/proc/$server/maps"
verdict "slab pages begin where huge pages can" $code
# The daemon comes later than memcached.
code=0
load --operations 400000 || code=$?
verdict "every value right before there is a daemon" $code
if ! start_daemon; then
	say "skipped: the daemon does not start here: $(cat "$dir/serve.log")"
	skipped=$((skipped + 1))
elif ! wait_for 60 grep -q 'registered\|refused' "$dir/serve.log" || grep -q refused "$dir/serve.log"; then
	say "skipped: memcached cannot be tracked here: $(tail -n 1 "$dir/serve.log")"
	skipped=$((skipped + 1))
else
	code=0
	# Few hot items, far apart: an exponent of 1.5 leaves most pages cold. Reads at first, then writes too.
	for turn in 1 2 3 4 5 6 7 8 9 10; do
		load --no-fill --exponent 1.5 --seed "$turn" --seconds 3 >"$dir/load.out" || code=$?
		has_moved && break
	done
	load --no-fill --exponent 1.5 --write 20 --seed 99 --seconds 5 >"$dir/load.out" || code=$?
	cat "$dir/load.out"
	verdict "every value right while items move" $code
	code=0
	has_moved || code=1
	verdict "hot items of sparse ranges were moved together" $code
	# One slab page of the arena is filled before another is taken: 1747 chunks of 600 bytes each.
	code=0
	[ "$(stat_of hiroma_arena_used_bytes)" -le $((($(stat_of hiroma_items_moved) / 1747 + 2) << 20)) ] || code=1
	verdict "moved items lie close together" $code
	# The daemon dies and comes back: memcached goes on, and finds it.
	kill -KILL "$daemon"
	code=0
	load --no-fill --operations 100000 >/dev/null || code=$?
	start_daemon || code=1
	wait_for 60 grep -q registered "$dir/serve.log" || code=1
	load --no-fill --operations 100000 >/dev/null || code=$?
	kill -0 "$server" || code=1
	verdict "the daemon dies and comes back" $code
fi
# Memory beyond a smaller limit goes back slab page by slab page, and serves again when the limit is as before.
resident_kib() { awk '$1 == "VmRSS:" { print $2 }' "/proc/$server/status"; }
before=$(resident_kib)
shrinks() {
	tell "slabs reassign -1 0"
	[ "$(resident_kib)" -lt $((before - 8192)) ]
}
code=0
tell "cache_memlimit 64" >/dev/null || code=$?
wait_for 60 shrinks || code=1
tell "cache_memlimit 256" >/dev/null || code=$?
load --operations 400000 >"$dir/load.out" || code=$?
verdict "memory goes back when the limit is lowered, and serves again" $code
# The hash table grows from 512 KiB to 4 MiB: from malloc's memory to mappings of its own, of which the first is unmapped.
code=0
timeout -s KILL 300 "$memload" --server "unix:$dir/mc.sock" --items 450000 --value-bytes 16 --operations 400000 >"$dir/load.out" || code=$?
grown() { tell stats | grep -q 'hash_power_level 19' && tell stats | grep -q 'hash_is_expanding 0'; }
wait_for 60 grown || code=1
verdict "every value right while the hash table grows" $code
say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
