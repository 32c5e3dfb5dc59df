#!/usr/bin/env bash
# Train on the GPUs of one machine, or with NNODES, NODE_RANK, MASTER_ADDR and PORT set on each of several.
#     tools/dist_train.sh CONFIG 8 [options of tools/train.py]
set -euo pipefail
if [ $# -lt 2 ]; then
    sed -n '2,3s/^# *//p' "$0" >&2
    exit 2
fi
config=$1 gpus=$2
shift 2
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" --nproc-per-node "$gpus" \
    --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${PORT:-29500}" \
    "$(dirname "$0")/train.py" "$config" --launcher pytorch "$@"
