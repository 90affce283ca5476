#!/bin/bash
#SBATCH --job-name=hiroma-sweep
#SBATCH --array=1-@TASKS@
#SBATCH --cpus-per-task=1
# Runs a sweep of `hiroma sim` as a job array, and merges its results. Written by
# `hiroma sim sweep --on slurm`. All nodes need the paths below (a shared file system).
#
#   bash @NAME@ submit [OPTIONS OF sbatch...]   submits the array, and the merge after it
#   sbatch @NAME@                               submits the array only
#   bash @NAME@ merge                           merges what there is
#
# It may be submitted again: what is stored already is not run again.
set -euo pipefail

hiroma=@HIROMA@
sweep=@SWEEP@
out=@OUT@
shards=@SHARDS@
# Slurm refuses arrays of more than 1000 tasks unless it is configured otherwise: tasks run several shards.
tasks=@TASKS@
seeds=@SEEDS@

case ${1:-} in
submit)
	shift
	script=$(realpath "$0")
	# In names of logs, % stands for something else.
	logs=${out//%/%%}
	job=$(sbatch --parsable --output="$logs/slurm-%A_%a.log" "$@" "$script")
	job=${job%%;*}
	printf -v again 'bash %q merge' "$script"
	merge=$(sbatch --parsable --job-name=hiroma-merge --dependency="afterany:$job" --output="$logs/slurm-%j.log" "$@" --wrap "$again")
	echo "job $job runs the $shards shards, job ${merge%%;*} merges them; results in $out"
	;;
merge)
	exec "$hiroma" sim merge "$out" --csv "$out/merged.csv" --json "$out/merged.json" --html "$out/merged.html"
	;;
"")
	: "${SLURM_ARRAY_TASK_ID:?is not set: submit the script with sbatch, or run it with submit}"
	for ((shard = SLURM_ARRAY_TASK_ID; shard <= shards; shard += tasks)); do
		"$hiroma" sim sweep "$sweep" --out "$out" --shard "$shard/$shards" --jobs "${SLURM_CPUS_PER_TASK:-1}" ${seeds:+--seeds "$seeds"}
	done
	;;
*)
	echo "$0: there is no $1: use submit or merge" >&2
	exit 2
	;;
esac
