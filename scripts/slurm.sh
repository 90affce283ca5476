#!/usr/bin/env bash
# slurm.sh: runs the test of sweeps on Slurm on a real cluster of this machine alone: controller, node and munge, with all their files in a directory
# that is removed afterwards. Other clusters of the machine are not touched: sockets and ports are its own.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
for program in munged slurmctld slurmd sbatch; do
	PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing+=("$program")
done
if [ ${#missing[@]} != 0 ]; then
	echo "skipped: sweeps on Slurm: not installed: ${missing[*]} (apt-get install slurmctld slurmd slurm-client munge)"
	exit 0
fi
if [ "$(id -u)" != 0 ]; then
	echo "skipped: sweeps on Slurm: slurmd starts jobs as root only"
	exit 0
fi

export PATH=$PATH:/usr/sbin
dir=$(mktemp -d)
started=()
clean_up() {
	local pid
	for pid in "${started[@]}"; do
		kill "$pid" 2>/dev/null || true
	done
	wait
	rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 1' INT TERM
chmod 755 "$dir"
mkdir "$dir/state" "$dir/spool"
(umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")
host=$(hostname -s)
cat >"$dir/slurm.conf" <<CONF
ClusterName=hiroma-test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$dir/slurm.conf

start() { # PROGRAM ARGUMENTS...
	"$@" >>"$dir/started.log" 2>&1 &
	started+=($!)
}
start munged --force --foreground --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
	--log-file="$dir/munged.log" --seed-file="$dir/munged.seed"
for _ in {1..100}; do
	[ ! -S "$dir/munge.socket" ] || break
	sleep 0.1
done
start slurmctld -D -c
start slurmd -D
for _ in {1..300}; do
	[ "$(sinfo -h -o %t 2>/dev/null)" != idle ] || break
	sleep 0.1
done
if [ "$(sinfo -h -o %t)" != idle ]; then
	echo "slurm.sh: the node did not become idle:" >&2
	tail -n 20 "$dir"/*.log >&2
	exit 1
fi
HIROMA_TEST_SLURM=1 "${CARGO:-cargo}" test -q -p hiroma-cli --test sim a_slurm_cluster
