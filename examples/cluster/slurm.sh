#!/usr/bin/env bash
# One run on two machines of a SLURM cluster, four processes on each:
#
#   sbatch examples/cluster/slurm.sh examples/digits.py:job
#
# srun starts the processes, and hasten reads from it which of them each is. The folder has to be on storage that all
# machines see. SLURM sends SIGTERM before it takes the machines away: the run is saved. The same command, given again,
# resumes it.
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@60
#SBATCH --requeue
set -euo pipefail

job="$1"
runs="${RUNS:-$PWD/runs}"

export OMP_NUM_THREADS="$SLURM_CPUS_PER_TASK"
srun --kill-on-bad-exit=1 hasten train "$job" --run-dir "$runs/$SLURM_JOB_NAME" --resume --grace 50
