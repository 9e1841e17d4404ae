#!/usr/bin/env bash
# Train on several machines that reach each other by ssh without a password.
#
#   examples/launch/mpirun_many_machines.sh hosts.txt examples/tolokers.toml
#
# hosts.txt has one line per machine: its name, a colon, and how many ranks run there (MPICH's form):
#
#   node1:2
#   node2:2
#
# The checkout, its .venv, the recipe and the store must be at the same path on every machine: use a shared file system,
# or copy them there (each rank reads only its own part of the features).
set -euo pipefail
hosts=${1:?"usage: $0 HOST_FILE RECIPE [OPTIONS OF windrow train]"}
recipe=${2:?"usage: $0 HOST_FILE RECIPE [OPTIONS OF windrow train]"}
shift 2

export PYTHONSAFEPATH=1

ranks=$(awk -F: 'NF { total += ($2 ? $2 : 1) } END { print total }' "$hosts")
store=stores/$(basename "$recipe" .toml)-$ranks
if [[ ! -d $store ]]; then
    windrow partition "$recipe" --parts "$ranks" --out "$store"
fi

# Change here, if you must:
#  - A machine with several networks: name the fast one by adding -iface ib0 (Open MPI: --mca btl_tcp_if_include ib0).
#  - Open MPI writes the host file as "node1 slots=2", takes it by --hostfile, and passes variables on by
#    -x PYTHONSAFEPATH -x PATH; MPICH passes the whole environment on.
#  - Same MPI everywhere: mpirun must belong to the MPI that mpi4py finds (python -m mpi4py --mpi-lib-version).
mpirun -f "$hosts" -n "$ranks" windrow train "$recipe" --set "store=\"$PWD/$store\"" "$@"
