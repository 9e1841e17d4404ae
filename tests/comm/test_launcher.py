"""The environments of the launchers."""

import pytest

from windrow.comm.launcher import launched_by_torchrun, launched_local_rank, launched_rank, launched_size


@pytest.mark.parametrize(
    ("environment", "rank", "size", "by_torchrun"),
    [
        ({}, 0, 1, False),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, 2, 4, False),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, 1, 3, False),
        ({"PMIX_RANK": "5", "SLURM_STEP_NUM_TASKS": "8"}, 5, 8, False),
        ({"RANK": "1", "WORLD_SIZE": "2"}, 1, 2, True),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "RANK": "7", "WORLD_SIZE": "9"}, 0, 2, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0, 1, False),
    ],
    ids=[
        "none",
        "mpich",
        "openmpi",
        "slurm pmix",
        "torchrun",
        "mpirun inside torchrun",
        "inside sbatch, not srun",
    ],
)
def test_rank_and_size_are_read_from_the_launchers_environment(environment, rank, size, by_torchrun):
    assert launched_rank(environment) == rank
    assert launched_size(environment) == size
    assert launched_by_torchrun(environment) == by_torchrun


@pytest.mark.parametrize(
    "name", ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK"]
)
def test_the_place_on_the_machine_is_read_too(name):
    assert launched_local_rank({name: "3"}) == 3
    assert launched_local_rank({}) == 0
