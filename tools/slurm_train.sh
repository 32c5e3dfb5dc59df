#!/usr/bin/env bash
# Train on a Slurm cluster; GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS come from the environment.
#     GPUS=16 tools/slurm_train.sh PARTITION JOB_NAME CONFIG [options of tools/train.py]
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,3s/^# *//p' "$0" >&2
    exit 2
fi
partition=$1 job=$2 config=$3
shift 3
gpus=${GPUS:-8}
per_node=${GPUS_PER_NODE:-8}
[ "$gpus" -ge "$per_node" ] || per_node=$gpus
# SRUN_ARGS is meant to be split into words.
# shellcheck disable=SC2086
exec srun -p "$partition" --job-name "$job" --gres "gpu:$per_node" --ntasks "$gpus" --ntasks-per-node "$per_node" \
    --cpus-per-task "${CPUS_PER_TASK:-8}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$config" --launcher slurm "$@"
