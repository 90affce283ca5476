#!/bin/busybox sh
# The tests inside the machine. Prints `VM ok|FAIL|skip NAME` for each, and `VM done PASSED FAILED SKIPPED` last.
# /etc/smoke.conf says which paths this kernel must give (the best one first) and which of our binaries are here.
. /etc/smoke.conf
BEST=${PATHS%% *}
PORT=7070
passed=0
failed=0
skipped=0
only=$(sed -n 's/.*\bsmoke=\([^ ]*\).*/\1/p' /proc/cmdline)

# check NAME COMMAND...: one test; what it prints is shown only if it fails.
check() {
	local name=$1 began now
	shift
	# --test NAME: that one, or all that begin so.
	case $name in
	"$only"*) ;;
	*) [ "$only" = all ] || return 0 ;;
	esac
	read -r began _ </proc/uptime
	if timeout 600 "$@" >/tmp/output 2>&1; then
		read -r now _ </proc/uptime
		passed=$((passed + 1))
		echo "VM ok $name ($((${now%.*} - ${began%.*})) s)"
	else
		local code=$?
		failed=$((failed + 1))
		echo "VM FAIL $name (exit code $code)"
		tail -n 40 /tmp/output
		dmesg -c | grep -E 'segfault|trap|general protection|BUG|WARNING|Out of memory|hung' | tail -n 5
		# The machine is ours: whatever a broken test has left running would disturb the next ones.
		killall -q -9 hiroma pattern forks discards syscalls sort checker
	fi
}

skip() {
	skipped=$((skipped + 1))
	echo "VM skip $1: $2"
}

# The largest value of a counter among the processes of a run (each has a limit of its own, so sums would say nothing).
number() {
	sed -n "/\"total\": /q; s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p" "$2" | sort -n | tail -n 1
}

# far LOCAL_MIB OPTIONS... -- PROGRAM...: runs it, and wants that memory really went far and that the limit held.
far() {
	local limit=$1
	shift
	rm -f /tmp/stats
	hiroma run --local "${limit}M" --stats /tmp/stats "$@" || return $?
	local most fetched
	most=$(number local_bytes_max /tmp/stats)
	fetched=$(number fetched_bytes /tmp/stats)
	if [ -z "$most" ] || [ "$most" -gt $(((limit + 16) << 20)) ]; then
		echo "local_bytes_max is '$most', the limit $((limit << 20))"
		return 1
	fi
	if [ -z "$fetched" ] || [ "$fetched" -eq 0 ]; then
		echo "nothing was fetched: the program did not run far"
		return 1
	fi
}

chooses() {
	hiroma doctor | grep "allowed: $1 path" || return 1
	far 16 --verbose -- /test/pattern 64 10 2>/tmp/said
	local code=$?
	cat /tmp/said
	[ $code -eq 0 ] || return $code
	case $1 in
	fallback) grep -q "fallback path" /tmp/said ;;
	full) ! grep -q "fallback path" /tmp/said ;;
	esac
}

refuses_full() {
	hiroma run --local 16M --path full -- /test/pattern 32 10
	local code=$?
	[ $code -ne 0 ] && [ $code -ne 1 ] && return 0
	echo "the full path was not refused on a kernel that lacks UFFDIO_MOVE"
	return 1
}

# A server for one test.
served() {
	hiroma serve --listen 127.0.0.1:$PORT --memory 512M >/tmp/server 2>&1 &
	local server=$! tries=0 code
	until grep -q "ready on" /tmp/server; do
		tries=$((tries + 1))
		if [ $tries -gt 300 ]; then
			echo "the server does not become ready:"
			cat /tmp/server
			kill $server
			return 1
		fi
		usleep 100000
	done
	"$@"
	code=$?
	kill $server
	wait $server
	cat /tmp/server
	return $code
}

sorts() {
	awk 'BEGIN { srand(7); for (i = 0; i < 400000; i++) printf "%d\n", rand() * 4000000000 }' >/tmp/lines
	LC_ALL=C /test/sort --parallel=1 -S 64M /tmp/lines -o /tmp/native || return 1
	export LC_ALL=C
	far 16 "$@" -- /test/sort --parallel=1 -S 64M /tmp/lines -o /tmp/far || return $?
	cmp /tmp/native /tmp/far
}

# As on a machine where nobody has opened userfaultfd: an ordinary user must get a reason, not a crash.
unprivileged() {
	chmod 1777 /tmp
	su nobody -s /bin/sh -c '/hiroma/hiroma run --local 16M -- /test/pattern 32 10' >/tmp/refusal 2>&1
	local code=$?
	cat /tmp/refusal
	[ $code -eq 0 ] && [ "$(cat /proc/sys/vm/unprivileged_userfaultfd)" = 1 ] && return 0
	[ $code -ne 0 ] && [ $code -lt 128 ] && grep -q userfaultfd /tmp/refusal
}

allowed() {
	echo 1 >/proc/sys/vm/unprivileged_userfaultfd
	su nobody -s /bin/sh -c '/hiroma/hiroma run --local 16M -- /test/pattern 64 10'
	local code=$?
	echo 0 >/proc/sys/vm/unprivileged_userfaultfd
	return $code
}

# Who takes time is seen through BPF, in this kernel's layout; a busy shell beside it is among them.
quiet_measure() {
	(while :; do :; done) &
	local busy=$!
	hiroma quiet measure --seconds 5 --quantum-us 20000 >/tmp/shown
	local code=$?
	kill $busy
	cat /tmp/shown
	[ $code -eq 0 ] && grep -q 'by BPF, for each gap' /tmp/shown && grep -q 'other programs' /tmp/shown
}

# reserve MIB: leaves so much memory to everything else, and touches none: as on a machine that has no more.
reserve() {
	sync
	echo 1 >/proc/sys/vm/drop_caches
	awk -v left="$1" '/^MemFree:/ { print int(($2 / 1024 - left) / 2) }' /proc/meminfo >/proc/sys/vm/nr_hugepages
	awk '/^MemFree:/ { printf "%d MiB are left\n", $2 / 1024 }' /proc/meminfo
}

# daemon OPTIONS...: `hiroma quiet serve`, ready; its journal is /tmp/journal.
daemon() {
	rm -rf /tmp/journal /tmp/ready /tmp/state
	hiroma quiet serve --state /tmp/state "$@" >/tmp/ready 2>/tmp/journal &
	DAEMON=$!
	until grep -q ready /tmp/ready; do
		kill -0 $DAEMON || {
			cat /tmp/journal
			return 1
		}
		usleep 100000
	done
}

# Asks the daemon to end, and wants that it did so well.
daemon_ends() {
	kill $DAEMON
	wait $DAEMON
	local code=$?
	cat /tmp/journal
	[ $code -eq 0 ] && grep -q 'stopped; everything is as it was' /tmp/journal
}

counter() { sed -n "s/^$1 //p" /proc/vmstat; }

# cache FILE MIB: reads a sparse file from end to end, so that it fills the cache without a disk, and drops it.
cache() {
	: >"$1"
	truncate -s "$2M" "$1"
	cat "$1" >/dev/null
}

# Beside the daemon, with 400 MiB: a loop that makes and drops cache, a reader that only makes it, and a program that takes memory and checks
# it. Bounded by rounds. Nothing is killed, swapped out in a storm, or wrong; the daemon has reclaimed, and is there to the end.
soak() {
	local killed swapped round=0 code=0 loop
	daemon || return 1
	killed=$(counter oom_kill) swapped=$(counter pswpout)
	(while :; do cache "$SCRATCH/dropped" 300; done) &
	loop=$!
	while [ $round -lt 20 ] && [ $code -eq 0 ]; do
		round=$((round + 1))
		cache "$SCRATCH/kept" 500 || code=1
		/test/pattern 96 500 || code=1
		kill -0 $DAEMON || code=1
		[ $round -ge 4 ] && grep -q reclaimed /tmp/journal && break
	done
	kill $loop
	wait $loop
	rm -f "$SCRATCH/dropped" "$SCRATCH/kept"
	killed=$(($(counter oom_kill) - killed)) swapped=$((($(counter pswpout) - swapped) / 256))
	echo "$round rounds, $killed killed, $swapped MiB swapped out"
	daemon_ends || return 1
	[ $code -eq 0 ] && [ "$killed" -eq 0 ] && [ $swapped -le 256 ] && grep -q 'reclaimed .* batches' /tmp/journal
}

quiet_soak() {
	reserve 400
	soak
	local code=$?
	echo 0 >/proc/sys/vm/nr_hugepages
	return $code
}

# The same with swap that is full: what programs keep in memory cannot leave any more.
quiet_soak_swap() {
	local code
	dd if=/dev/zero of="$SCRATCH/swap" bs=1M count=32 && mkswap "$SCRATCH/swap" && swapon "$SCRATCH/swap" || return 1
	dd if=/dev/urandom of=/dev/shm/swapped bs=1M count=80 || return 1
	echo "60M swappiness=200" >/sys/fs/cgroup/memory.reclaim
	grep Swap /proc/meminfo
	code=1
	if [ "$(awk '/^SwapFree:/ { print int($2 / 1024) }' /proc/meminfo)" -le 4 ]; then
		reserve 400
		soak
		code=$?
	fi
	echo 0 >/proc/sys/vm/nr_hugepages
	rm -f /dev/shm/swapped
	swapoff "$SCRATCH/swap"
	rm -f "$SCRATCH/swap"
	return $code
}

# With nodes of unequal size: what fills the smaller one is seen as its own, and is reclaimed.
quiet_nodes() {
	local code=0 round=0
	daemon --metrics 127.0.0.1:9464 || return 1
	while [ $round -lt 20 ]; do
		round=$((round + 1))
		taskset 2 sh /smoke.sh cache "$SCRATCH/filled" 900
		wget -q -O /tmp/metrics http://127.0.0.1:9464/metrics || code=1
		grep -q 'reclaimed_bytes_total{node="1"} [1-9]' /tmp/metrics && break
	done
	grep 'node="' /tmp/metrics
	rm -f "$SCRATCH/filled"
	daemon_ends || code=1
	grep -q 'reclaimed_bytes_total{node="1"} [1-9]' /tmp/metrics && grep -q 'verdicts_total{node="0"' /tmp/metrics || code=1
	return $code
}

# The bound on a job's cache, in a control group of version 2; for a static program too.
quiet_bound() {
	local before after
	truncate -s 300M "$SCRATCH/bounded"
	echo 1 >/proc/sys/vm/drop_caches
	before=$(counter nr_file_pages)
	hiroma quiet run --cache 16M -- /bin/busybox cat "$SCRATCH/bounded" >/dev/null || return 1
	after=$(counter nr_file_pages)
	rm -f "$SCRATCH/bounded"
	echo "$(((after - before) / 256)) MiB of 300 are cached"
	[ $(((after - before) / 256)) -le 150 ] && ! ls -d /sys/fs/cgroup/hiroma-quiet-*
}

# An NFS server of the kernel and a mount of it, without the programs that usually talk to it (exportfs, mountd, mount.nfs): its tables of who
# may mount what are filled in advance (net/sunrpc/cache.c, fs/nfsd/export.c). Only version 4, which needs no rpcbind.
nfs_up() {
	local never=2147483647
	mkdir -p "$SCRATCH/export" /tmp/nfs
	mount -t nfsd nfsd /proc/fs/nfsd || return 1
	echo 10 >/proc/fs/nfsd/nfsv4leasetime
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	echo "-3 +4 +4.1 +4.2" >/proc/fs/nfsd/versions
	cat /proc/fs/nfsd/versions
	echo "nfsd 127.0.0.1 $never here" >/proc/net/rpc/auth.unix.ip/channel || return 1
	echo "0 $never 0" >/proc/net/rpc/auth.unix.gid/channel || return 1
	# Insecure port, asynchronous, no subtree check, named by a number: 0, the root of what version 4 shows.
	echo "here $SCRATCH/export $never $((0x2 | 0x10 | 0x400 | 0x2000)) 65534 65534 0" >/proc/net/rpc/nfsd.export/channel || return 1
	echo "here 1 \\x00000000 $never $SCRATCH/export" >/proc/net/rpc/nfsd.fh/channel || return 1
	echo "tcp 2049" >/proc/fs/nfsd/portlist || return 1
	echo 2 >/proc/fs/nfsd/threads || return 1
	echo Y >/proc/fs/nfsd/v4_end_grace
	timeout 120 mount -t nfs4 -o addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.1,sec=sys 127.0.0.1:/ /tmp/nfs || {
		dmesg | tail -n 20
		return 1
	}
	grep nfs4 /proc/mounts
}

# What comes over NFS is attributed to its mount, and counts as what fills the cache.
quiet_nfs() {
	local code=0 reader
	nfs_up || return 1
	dd if=/dev/urandom of="$SCRATCH/export/file" bs=1M count=64 && sync || return 1
	cmp "$SCRATCH/export/file" /tmp/nfs/file || code=1
	(while :; do
		echo 1 >/proc/sys/vm/drop_caches
		cat /tmp/nfs/file >/dev/null
	done) &
	reader=$!
	hiroma quiet advise --seconds 10 >/tmp/shown || code=1
	kill $reader
	wait $reader
	cat /tmp/shown
	grep -q '127.0.0.1:/ on /tmp/nfs moves [1-9][0-9]* MiB/s over the network: up to [1-9]' /tmp/shown || code=1
	# And the daemon reclaims for it, when nothing else fills the cache.
	reserve 300
	daemon || return 1
	local round=0
	while [ $round -lt 40 ]; do
		round=$((round + 1))
		# No new name is cached from before.
		dd if=/dev/zero of="$SCRATCH/export/big$round" bs=1M count=1 seek=299 2>/dev/null
		cat "/tmp/nfs/big$round" >/dev/null || code=1
		rm -f "$SCRATCH/export/big$round"
		grep -q reclaimed /tmp/journal && break
	done
	daemon_ends || code=1
	echo 0 >/proc/sys/vm/nr_hugepages
	grep -q 'reclaimed .* batches' /tmp/journal || code=1
	umount /tmp/nfs || code=1
	echo 0 >/proc/fs/nfsd/threads
	rm -rf "$SCRATCH/export"
	nfs_bench || code=1
	return $code
}

# The bench makes a server and a mount of its own, compares with and without the daemon, and leaves nothing behind.
nfs_bench() {
	local code=0 arm
	hiroma bench noise --quick --only nfs --dir "$SCRATCH" --cache 300M --nfs-rate 2M --json /tmp/noise.json >/tmp/shown 2>&1 || code=1
	cat /tmp/shown
	# Whether the reader kept its rate is no matter on emulated processors.
	grep -q '"results"' /tmp/noise.json || code=1
	for arm in "quiet, again" "file over NFS, kswapd on the application's core" "the same, daemon"; do
		grep -q "^$arm  *[01] of 1 " /tmp/shown || code=1
		! grep -q "$arm: " /tmp/shown || code=1
	done
	grep -q 'over the loopback' /tmp/shown || code=1
	! grep -q 'hiroma-bench' /proc/mounts && ! ls -d "$SCRATCH"/hiroma-bench-* /run/hiroma-bench 2>/dev/null || code=1
	[ "$(cat /proc/fs/nfsd/threads)" = 0 ] || code=1
	return $code
}

# One processor only: reclaim has no other one to run on, and that is said.
quiet_one_processor() {
	echo 0 >/sys/devices/system/cpu/cpu1/online || return 1
	daemon && daemon_ends && grep -q 'one processor only' /tmp/journal
	local code=$?
	hiroma bench noise --quick >/tmp/refused 2>&1 && code=1
	cat /tmp/refused
	grep -q 'one processor only' /tmp/refused || code=1
	echo 1 >/sys/devices/system/cpu/cpu1/online
	return $code
}

# hot_load MIB PATTERN: starts a process that touches its memory over and over; its number is in $LOAD.
hot_load() {
	# Debian's setting is always: everything would be huge from the start.
	echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
	rm -f /tmp/load.in /tmp/load.out
	mkfifo /tmp/load.in
	hiroma-bench huge-load "{\"bytes\":$(($1 << 20)),\"pattern\":\"$2\",\"pages\":\"default\"}" </tmp/load.in >/tmp/load.out &
	LOAD=$!
	exec 9>/tmp/load.in
	while [ ! -s /tmp/load.out ]; do
		kill -0 $LOAD || return 1
		sleep 0.2
	done
	echo loop >&9
}

# hot_crowd: has the load share its processor with another process, whose number is in $OTHER. Where translations are not flushed an emulated
# processor keeps them for ever, but for changes between processes (nopcid).
hot_crowd() {
	taskset -p 1 $LOAD
	taskset 1 sh -c 'while :; do :; done' &
	OTHER=$!
}

# hot_walk BACKEND: all pages are seen, and that a third of them is touched.
hot_walk() {
	hot_load 16 scattered || return 1
	OTHER=
	[ "$1" = bpf ] || hot_crowd
	local first hot=0 seen=0 start end count
	first=$(sed -n 's/.*"base":\([0-9]*\).*/\1/p' /tmp/load.out)
	hiroma hot show --pid $LOAD --for 1ms --window 3s --backend "$1" >/tmp/shown || return 1
	head -n 1 /tmp/shown
	tr ':-' '  ' </tmp/shown | grep -v '^#' >/tmp/runs
	while read -r start end count; do
		start=$((0x$start)) end=$((0x$end)) count=${count%% *}
		[ $start -lt "$first" ] && start=$first
		[ $end -gt $((first + (16 << 20))) ] && end=$((first + (16 << 20)))
		[ $start -lt $end ] || continue
		seen=$((seen + (end - start) / 4096))
		[ "$count" -gt 0 ] && hot=$((hot + (end - start) / 4096))
	done </tmp/runs
	kill $LOAD $OTHER
	echo "$hot of $seen pages hot"
	[ $seen -eq 4096 ] && [ $hot -gt 1100 ] && [ $hot -lt 1640 ]
}

# Hot ranges become huge, the others do not, and all of it can be taken back.
hot_manage() {
	hot_load 64 skewed || return 1
	local huge=0 tries=0
	while [ "$huge" -eq 0 ] && [ $tries -lt 10 ]; do
		hiroma hot manage --once --pid $LOAD --cpu 90% --stall 100s --window 1s || return 1
		huge=$(sed -n 's/^AnonHugePages: *\([0-9]*\) kB/\1/p' /proc/$LOAD/smaps_rollup)
		tries=$((tries + 1))
	done
	hiroma hot explain --pid $LOAD
	hiroma hot undo --pid $LOAD || return 1
	local left
	left=$(sed -n 's/^AnonHugePages: *\([0-9]*\) kB/\1/p' /proc/$LOAD/smaps_rollup)
	kill $LOAD
	echo "$huge KiB of 65536 were huge, $left after undo"
	[ "$huge" -gt 0 ] && [ "$huge" -lt 40000 ] && [ "$left" -eq 0 ]
}

# DAMON on a process: ranges that are touched count more than those that are not.
hot_damon() {
	hot_load 64 skewed || return 1
	local first
	first=$(sed -n 's/.*"base":\([0-9]*\).*/\1/p' /tmp/load.out)
	hot_crowd
	hiroma hot show --pid $LOAD --for 8s --window 100ms --cpu 90% --slowdown 100% --backend damon >/tmp/shown
	local code=$?
	kill $OTHER
	[ $code -eq 0 ] || return 1
	head -n 1 /tmp/shown
	# Everything is given back.
	[ "$(cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds)" = 0 ] || return 1
	# Full ranges are the hot ones (of the others every tenth page is there).
	tr ':-' '  ' </tmp/shown | grep -v '^#' >/tmp/runs
	local start end count hot=0 hot_sum=0 cold=0 cold_sum=0
	while read -r start end count; do
		start=$((0x$start)) end=$((0x$end)) count=${count%% *}
		[ $start -ge "$first" ] && [ $end -le $((first + (64 << 20))) ] || continue
		if [ $((end - start)) -gt 4096 ]; then
			hot=$((hot + (end - start) / 4096)) hot_sum=$((hot_sum + count * (end - start) / 4096))
		else
			cold=$((cold + 1)) cold_sum=$((cold_sum + count))
		fi
	done </tmp/runs
	kill $LOAD
	echo "hot pages: $hot with a sum of counts of $hot_sum; others: $cold with $cold_sum"
	[ $hot -gt 0 ] && [ $cold -gt 0 ] && [ $((hot_sum / hot)) -gt $((2 * cold_sum / cold)) ]
}

# Without BPF, the idle page bitmap is what is taken; with it hot ranges become huge, and all of it can be taken back.
idle_manage() {
	hot_load 64 skewed || return 1
	hot_crowd
	local huge=0 tries=0
	while [ "$huge" -eq 0 ] && [ $tries -lt 10 ]; do
		hiroma hot manage --once --pid $LOAD --cpu 90% --stall 100s --window 1s >/tmp/managed 2>&1 || return 1
		cat /tmp/managed
		grep -q 'tracked with idle-bitmap' /tmp/managed || return 1
		huge=$(sed -n 's/^AnonHugePages: *\([0-9]*\) kB/\1/p' /proc/$LOAD/smaps_rollup)
		tries=$((tries + 1))
	done
	hiroma hot explain --pid $LOAD
	hiroma hot undo --pid $LOAD || return 1
	local left
	left=$(sed -n 's/^AnonHugePages: *\([0-9]*\) kB/\1/p' /proc/$LOAD/smaps_rollup)
	kill $LOAD $OTHER
	echo "$huge KiB of 65536 were huge, $left after undo"
	[ "$huge" -gt 0 ] && [ "$huge" -lt 40000 ] && [ "$left" -eq 0 ]
}

# In a kernel that is locked down BPF may not read: it is said so, and the next way of tracking is taken.
hot_lockdown() {
	hot_load 16 sequential || return 1
	hiroma hot show --pid $LOAD --for 1ms --window 1s >/tmp/shown || return 1
	head -n 1 /tmp/shown
	grep -q 'tracked with bpf' /tmp/shown && return 1
	# Without securityfs, as it is in containers; and with it.
	hiroma hot show --pid $LOAD --for 1ms --backend bpf 2>&1 | grep 'locked down (/proc/cmdline' || return 1
	mount -t securityfs securityfs /sys/kernel/security || return 1
	cat /sys/kernel/security/lockdown
	grep -q '\[confidentiality\]' /sys/kernel/security/lockdown || return 1
	hiroma hot show --pid $LOAD --for 1ms --backend bpf >/tmp/said 2>&1
	local code=$?
	cat /tmp/said
	[ $code -eq 2 ] && grep -q 'locked down' /tmp/said && grep -q 'lockdown=integrity' /tmp/said || return 1
	hiroma hot manage --once --pid $LOAD --cpu 90% --stall 100s --window 1s >/tmp/said 2>&1
	code=$?
	cat /tmp/said
	kill -0 $LOAD || return 1
	kill $LOAD
	[ $code -eq 0 ] && grep -Eq 'tracked with (damon|smaps)' /tmp/said
}

everything() {
	# The kernel hides the flag where it does not use it.
	grep -q la57 /proc/cpuinfo && echo "VM note five levels of page tables"
	if grep -q lockdown=confidentiality /proc/cmdline; then
		check hot-lockdown self hot_lockdown
		sed 's/^/VM note /' /tmp/output
		return
	fi
	case $only in
	idle*)
		check idle-walk self hot_walk idle-bitmap
		check idle-manage self idle_manage
		return
		;;
	esac
	check probe probe
	grep '^probe:' /tmp/output
	check native-pattern /test/pattern 128
	check native-discards /test/discards 64
	check native-forks /test/forks 64 2
	check native-syscalls /test/syscalls 40
	case " $HAVE " in
	*" hiroma "*)
		check hot-walk self hot_walk bpf
		check quiet-measure self quiet_measure
		check quiet-soak self quiet_soak
		if echo "1 swappiness=0" >/sys/fs/cgroup/memory.reclaim; then
			check quiet-soak-swap self quiet_soak_swap
		else
			skip quiet-soak-swap "before Linux 6.9 memory.reclaim would swap programs out, so it is not used where there is swap"
		fi
		if [ -e /sys/devices/system/node/node1 ]; then
			check quiet-nodes self quiet_nodes
		fi
		check quiet-bound self quiet_bound
		if grep -q nfsd /proc/filesystems && grep -q nfs4 /proc/filesystems; then
			check quiet-nfs self quiet_nfs
		else
			skip quiet-nfs "this kernel has no NFS client and server, or their modules are not in this machine"
		fi
		check quiet-one-processor self quiet_one_processor
		check hot-manage self hot_manage
		if [ -e /sys/kernel/mm/damon/admin/kdamonds ]; then
			check hot-damon self hot_damon
		else
			skip hot-damon "this kernel has no DAMON"
		fi
		;;
	esac
	case " $HAVE " in
	*" hiroma libhiroma_preload.so "*) ;;
	*)
		skip hiroma "the release binaries are not in this machine"
		return
		;;
	esac
	check doctor hiroma doctor
	sed 's/^/doctor: /' /tmp/output
	check "best-path" self chooses "$BEST"
	[ "$BEST" = full ] || check "refuses-full" self refuses_full
	for path in $PATHS; do
		check "$path-compressed" self far 32 --path "$path" --store compressed:512M -- /test/pattern 128
		check "$path-file" self far 32 --path "$path" --store "file:$SCRATCH" -- /test/pattern 128
		check "$path-file-tmpfs" self far 16 --path "$path" --store file:/tmp -- /test/pattern 64 1000
		check "$path-tcp" self served self far 32 --path "$path" --store tcp://127.0.0.1:$PORT -- /test/pattern 128
		check "$path-block-4k" self far 16 --path "$path" --block 4K -- /test/pattern 48 500
		check "$path-block-2m" self far 32 --path "$path" --block 2M -- /test/pattern 80 100
		check "$path-sort" self sorts --path "$path"
		check "$path-discards" self far 16 --path "$path" -- /test/discards 40
		check "$path-forks" self far 24 --path "$path" -- /test/forks 64 2
		check "$path-forks-file" self far 24 --path "$path" --store "file:$SCRATCH" -- /test/forks 64 2
		check "$path-syscalls" self far 16 --path "$path" -- /test/syscalls 40
	done
	check unprivileged self unprivileged
	check unprivileged-allowed self allowed
	case " $HAVE " in
	*" checker "*) for path in $PATHS; do check "$path-checker" checker --path "$path" --seconds 20 --region 128M --seed 1; done ;;
	*) skip checker "target/release/examples/checker is not built" ;;
	esac
}

if [ $# -gt 0 ]; then
	"$@"
else
	# `self FUNCTION...` runs a function of this file in a shell of its own, so that `timeout` can end it.
	printf '#!/bin/sh\nexec sh /smoke.sh "$@"\n' >/bin/self
	chmod +x /bin/self
	everything
	echo "VM done $passed $failed $skipped"
fi
