#!/bin/sh
# Five members on this machine, a sort with most of its data in them, one of them killed in the
# middle (if this hiroma keeps copies), and a table. Needs about two minutes and 2 GiB of memory.
set -eu

hiroma=${1:-target/release/hiroma}
lines=${LINES_OF_TEXT:-3500000}
work=$(mktemp -d /var/tmp/hiroma-demo-pool.XXXXXX)
members=""

# shellcheck disable=SC2317  # The trap calls it.
finish() {
    for pid in $members; do kill "$pid" 2>/dev/null || true; done
    for pid in $members; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

seconds() { awk -v from="$1" -v to="$2" 'BEGIN { printf "%.1f", to - from }'; }
now() { date +%s.%N; }

# A member: $1 is its number. Sets `address` and appends its process to `members`.
start_member() {
    join=""
    [ "$1" = 1 ] || join="--join $first"
    # shellcheck disable=SC2086
    "$hiroma" serve --listen 127.0.0.1:0 --memory 512M --name "member-$1" --label "rack=r$1" $join \
        >"$work/out$1" 2>"$work/err$1" &
    pid=$!
    members="$members $pid"
    tries=0
    until grep -q "ready on" "$work/out$1"; do
        tries=$((tries + 1))
        if [ $tries -gt 100 ] || ! kill -0 $pid 2>/dev/null; then
            echo "demo-pool: member $1 does not start:" >&2
            cat "$work/err$1" >&2
            exit 1
        fi
        sleep 0.1
    done
    address=$(sed -n 's/.*ready on \([^,]*\),.*/\1/p' "$work/out$1")
}

echo "Five members, each of which knows only the first one at its start:"
start_member 1
first=$address
for number in 2 3 4 5; do start_member $number; done
last=$address
tries=0
until "$hiroma" pool --pool "$last" | grep -q '^5 members'; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "demo-pool: the members do not find each other" >&2; exit 1; }
    sleep 0.1
done
"$hiroma" pool --pool "$last"

echo
echo "A text of $lines lines is sorted, natively and with 48M of local memory, 30 % of what it needs:"
head -c "$((lines * 8))" /dev/urandom | base64 -w 10 | head -n "$lines" >"$work/text"
export LC_ALL=C
began=$(now)
sort -S 2G --parallel=1 "$work/text" -o "$work/native"
native=$(seconds "$began" "$(now)")

copies=""
if "$hiroma" run --help | grep -q -- '--copies'; then copies="--copies 2"; fi

# The sort in the pool. $1: kill the first member that holds something of it.
pooled() {
    began=$(now)
    # shellcheck disable=SC2086
    "$hiroma" run --local 48M --pool "$first" $copies -- \
        sort -S 2G --parallel=1 "$work/text" -o "$work/pooled" 2>"$work/said" &
    run=$!
    killed=""
    while [ "$1" = kill ] && [ -z "$killed" ] && kill -0 $run 2>/dev/null; do
        sleep 1
        victim=$("$hiroma" pool --json --pool "$last" 2>/dev/null |
            python3 -c 'import json, sys
for row in json.load(sys.stdin)["members"]:
    used = sum(client["used_bytes"] for client in row["clients"] or [])
    if used > 32 << 20 and not row["name"].endswith("5"):
        print(row["name"][-1], used >> 20)
        break' || true)
        [ -n "$victim" ] || continue
        number=${victim% *}
        pid=$(echo "$members" | cut -d' ' -f$((number + 1)))
        kill -KILL "$pid"
        killed="member-$number, which had ${victim#* }MiB of it, was killed after $(seconds "$began" "$(now)") s"
    done
    result=0
    wait $run || result=$?
    took=$(seconds "$began" "$(now)")
    same=no
    cmp -s "$work/native" "$work/pooled" && same=yes
    rm -f "$work/pooled"
    if [ $result != 0 ]; then cat "$work/said" >&2; fi
}

row() { printf '%-34s %8s  %-6s %s\n' "$1" "$2" "$3" "$4"; }
pooled quiet
calm_took=$took calm_same=$same calm_result=$result
failed=0
[ "$calm_result" = 0 ] && [ "$calm_same" = yes ] || failed=1
[ -z "$copies" ] || pooled kill

echo
row "sort" "seconds" "right" ""
row "native" "$native" "-" ""
row "in the pool${copies:+, 2 copies}" "$calm_took" "$calm_same" ""
if [ -n "$copies" ]; then
    row "the same, a member killed" "$took" "$same" "${killed:-it was over before a member could be killed}"
    [ "$result" = 0 ] && [ "$same" = yes ] && [ -n "$killed" ] || failed=1
    sleep 6
    echo
    "$hiroma" pool --pool "$last"
else
    echo "This hiroma keeps one copy of each block: no member is killed."
fi
exit $failed
