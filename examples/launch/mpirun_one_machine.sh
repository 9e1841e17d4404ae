#!/usr/bin/env bash
# Train on one machine: RANKS processes that share its cores.
#
#   examples/launch/mpirun_one_machine.sh examples/tolokers.toml        2 ranks
#   RANKS=4 examples/launch/mpirun_one_machine.sh examples/tolokers.toml
#
# What follows the recipe goes to `windrow train`, for example --set training.epochs=5.
set -euo pipefail
recipe=${1:?"usage: $0 RECIPE [OPTIONS OF windrow train]"}
shift

# One rank per memory domain (socket) is a good start on CPUs, one per GPU on GPUs. Each rank uses a fair share of the
# cores by itself; to fix the number of threads, set run.threads in the recipe.
ranks=${RANKS:-2}

# A Python started in the checkout must not take its folders for other packages of the same names.
export PYTHONSAFEPATH=1

# One part of the graph per rank. This is done once: later runs on the same number of ranks open the same store.
store=stores/$(basename "$recipe" .toml)-$ranks
if [[ ! -d $store ]]; then
    windrow partition "$recipe" --parts "$ranks" --out "$store"
fi

# With Open MPI add --oversubscribe where there are more ranks than cores.
mpirun -n "$ranks" windrow train "$recipe" --set "store=\"$PWD/$store\"" "$@"
