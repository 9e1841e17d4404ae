#!/usr/bin/env bash
# Train without MPI: torchrun starts the ranks, and they talk through gloo, or through NCCL on GPUs.
#
#   examples/launch/torchrun.sh examples/tolokers.toml
#   RANKS=4 examples/launch/torchrun.sh examples/tolokers.toml --set run.backend=\"nccl\" --set run.device=\"cuda\"
set -euo pipefail
recipe=${1:?"usage: $0 RECIPE [OPTIONS OF windrow train]"}
shift

# On one machine: the number of ranks, one per GPU where there are GPUs.
ranks=${RANKS:-2}

export PYTHONSAFEPATH=1
# Each rank's share of the cores; torchrun sets this to 1 otherwise, with a warning.
cores=$(nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > ranks ? cores / ranks : 1))}

store=stores/$(basename "$recipe" .toml)-$ranks
if [[ ! -d $store ]]; then
    windrow partition "$recipe" --parts "$ranks" --out "$store"
fi

# On several machines start this on each of them with, instead of --standalone:
#   --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=NAME_OF_THE_FIRST_MACHINE:29500
# and with --parts above set to the number of ranks on all machines together.
torchrun --standalone --nproc-per-node="$ranks" -m windrow.launch train "$recipe" --set "store=\"$PWD/$store\"" "$@"
