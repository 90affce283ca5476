#!/usr/bin/env bash
# YCSB (core from Maven Central, our binding) against a memcached: loads 800,000 records of 512 bytes and reads them, zipfian, as in the
# paper, and checks what it reads. `run.sh HOST PORT [RECORDS] [OPERATIONS]`.
set -euo pipefail
cd "$(dirname "$0")"
host=${1:-127.0.0.1} port=${2:-11211} records=${3:-800000} operations=${4:-800000}
built=$(cd ../../.. && pwd)/build/ycsb
command -v mvn >/dev/null 2>&1 || {
	echo "skipped: Maven is not installed (sudo apt-get install maven)"
	exit 0
}
if [ ! -e "$built/lib" ] || [ src -nt "$built/lib" ]; then
	mvn -q -B package >"/tmp/ycsb-maven.$$" 2>&1 || {
		if grep -q 'Could not transfer\|Unknown host\|offline' "/tmp/ycsb-maven.$$"; then
			echo "skipped: Maven Central cannot be reached from here"
			rm "/tmp/ycsb-maven.$$"
			exit 0
		fi
		cat "/tmp/ycsb-maven.$$"
		exit 1
	}
	rm -f "/tmp/ycsb-maven.$$"
fi
ycsb() {
	java -cp "$built/classes:$built/lib/*" site.ycsb.Client -db hiroma.ycsb.Memcached -threads 4 \
		-p workload=site.ycsb.workloads.CoreWorkload -p "recordcount=$records" -p "operationcount=$operations" \
		-p fieldcount=1 -p fieldlength=512 -p dataintegrity=true -p readallfields=true \
		-p readproportion=1 -p updateproportion=0 -p scanproportion=0 -p insertproportion=0 -p requestdistribution=zipfian \
		-p "memcached.host=$host" -p "memcached.port=$port" "$@"
}
ycsb -load >"$built/load.txt"
ycsb -t | tee "$built/run.txt" | grep -E '^\[(OVERALL|READ|VERIFY)\]'
# Wrong values are counted as UNEXPECTED_STATE by YCSB.
if grep -qE 'Return=(UNEXPECTED_STATE|ERROR|NOT_FOUND)' "$built/load.txt" "$built/run.txt"; then
	echo "ycsb: WRONG OR MISSING VALUES, see $built/run.txt"
	exit 1
fi
