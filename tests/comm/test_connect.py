"""Environments of launchers; joining a job, and what happens to others when a rank fails: real jobs under mpirun."""

import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
import torch

from windrow.comm.connect import connect
from windrow.comm.errors import DataError, RecipeError
from windrow.comm.launcher import launched_by_torchrun, launched_local_rank, launched_rank, launched_size, listen
from windrow.comm.process import usable_cores

FAILING_JOB = """
import time
from windrow.comm.connect import connect
from windrow.comm.errors import DataError
with connect({backend!r}, deadline_s=60) as world:
    world.barrier(stage="start")
    if world.rank in {failing}:
        raise {error}
    world.barrier(stage="never reached by all")
"""


def run_job(ranks: int, source: str) -> tuple[subprocess.CompletedProcess[str], float]:
    started = time.monotonic()
    command = [shutil.which("mpirun"), "-n", str(ranks), sys.executable, "-P", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    return done, time.monotonic() - started


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_one_failing_rank_prints_its_traceback_once_and_ends_all(backend):
    source = FAILING_JOB.format(backend=backend, failing=[1], error="KeyError('the cause')")
    done, seconds = run_job(3, source)
    assert done.returncode != 0
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "rank 1 of 3 failed" in done.stderr
    assert "KeyError: 'the cause'" in done.stderr
    assert seconds < 40, "the others did not wait for the deadline"


def test_an_error_on_all_ranks_is_printed_once_and_without_traceback_if_it_is_the_users():
    error = "DataError('feature 3 is NaN')"
    done, _ = run_job(2, FAILING_JOB.format(backend="mpi", failing=[0, 1], error=error))
    assert done.returncode == 2
    assert done.stderr.count("feature 3 is NaN") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [("SystemExit('no more work')", 1, "no more work"), ("SystemExit(7)", 7, ""), ("KeyboardInterrupt()", 130, "")],
)
def test_an_exit_that_was_asked_for_keeps_its_status_and_words(error, status, said):
    done, _ = run_job(2, FAILING_JOB.format(backend="mpi", failing=[1], error=error))
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


SETTINGS = """
import os
import torch
from windrow.comm.connect import connect
os.environ.pop("OMP_NUM_THREADS", None)
def says(**options):
    with connect("mpi", deadline_s=60, **options) as world:
        found = (torch.get_num_threads(), os.environ.get("LRU_CACHE_CAPACITY"))
        everyone = world.all_gather_object(found, stage="found")
    if world.rank == 0:
        print(everyone)
says(keep_memory=False, threads=3)
says()
"""


def test_ranks_share_the_cores_and_keep_freed_memory_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("LRU_CACHE_CAPACITY", raising=False)
    done, _ = run_job(2, SETTINGS)
    share = max(1, usable_cores() // 2)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [str([(3, None)] * 2), str([(share, "64")] * 2)]


def test_a_process_alone_computes_with_as_many_threads_as_before():
    before = torch.get_num_threads()
    try:
        with connect("loopback", threads=before + 1, keep_memory=False):
            assert torch.get_num_threads() == before + 1
        with connect("loopback", keep_memory=False):
            assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_a_rank_that_cannot_join_ends_all():
    source = """
from windrow.comm import torch_world
from windrow.comm.connect import connect
from windrow.comm.launcher import launched_rank
if launched_rank() == 1:
    def refuse(*args, **kwargs):
        raise OSError("no route to host")
    torch_world.TCPStore = refuse
with connect("gloo", deadline_s=60):
    print("joined")
"""
    done, seconds = run_job(2, source)
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "rank 1 of 2 failed" in done.stderr
    assert "no route to host" in done.stderr
    assert seconds < 40, "the other did not wait for the deadline, nor the failed one for the other"


@pytest.mark.parametrize("failing", [[1], [0, 1]], ids=str)
def test_an_error_before_the_ranks_meet_is_printed_once_and_ends_all(failing):
    source = f"""
from windrow.comm.connect import connect, ending_all_ranks
from windrow.comm.errors import DataError
from windrow.comm.launcher import launched_rank
with ending_all_ranks():
    if launched_rank() in {failing}:
        raise DataError("no such recipe")
with connect("mpi", deadline_s=60) as world:
    world.barrier(stage="never reached by all")
"""
    done, _ = run_job(2, source)
    assert done.returncode == 2
    assert done.stderr.count("no such recipe") == 1


def test_a_missing_mpi4py_is_said_with_the_cure(monkeypatch):
    monkeypatch.setattr("windrow.comm.connect.find_spec", lambda _: None)
    missing = pytest.raises(RecipeError, match=r"'mpi' meets through MPI, but .* install windrow\[mpi\]")
    with missing, connect("mpi"):
        pass


@pytest.mark.parallel(1)
def test_a_world_of_one_is_closed_after_an_error():
    import torch.distributed as dist

    with pytest.raises(DataError, match="wrong"), connect("gloo"):
        raise DataError("wrong")
    assert not dist.is_initialized()


def test_without_a_launcher_the_world_is_this_process_and_errors_are_simply_raised(capsys):
    with connect() as world:
        assert (world.rank, world.size) == (0, 1)
        assert world.all_gather_object("me", stage="test") == ["me"]
    with pytest.raises(DataError, match="wrong"), connect("loopback"):
        raise DataError("wrong")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("environment", "rank", "size", "by_torchrun"),
    [
        pytest.param({}, 0, 1, False, id="none"),
        pytest.param({"PMI_RANK": "2", "PMI_SIZE": "4"}, 2, 4, False, id="mpich"),
        pytest.param({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, 1, 3, False, id="openmpi"),
        pytest.param({"PMIX_RANK": "5", "SLURM_STEP_NUM_TASKS": "8"}, 5, 8, False, id="slurm pmix"),
        pytest.param({"RANK": "1", "WORLD_SIZE": "2"}, 1, 2, True, id="torchrun"),
        pytest.param({"PMI_RANK": "0", "PMI_SIZE": "2", "RANK": "7", "WORLD_SIZE": "9"}, 0, 2, False, id="both"),
        pytest.param({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0, 1, False, id="inside sbatch, not srun"),
    ],
)
def test_rank_and_size_are_read_from_the_launchers_environment(environment, rank, size, by_torchrun):
    assert launched_rank(environment) == rank
    assert launched_size(environment) == size
    assert launched_by_torchrun(environment) == by_torchrun


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK"])
def test_the_place_on_the_machine_is_read_too(name):
    torchrun = {"RANK": "5", "WORLD_SIZE": "8"} if name == "LOCAL_RANK" else {}
    assert launched_local_rank({name: "3", **torchrun}) == 3
    assert launched_local_rank({}) == 0


def test_workers_of_torchrun_inside_a_slurm_job_have_places_of_their_own():
    of_srun = {"SLURM_LOCALID": "0", "PMI_RANK": "0", "PMI_SIZE": "2"}
    worker = of_srun | {"TORCHELASTIC_RUN_ID": "none", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    assert (launched_rank(worker), launched_size(worker), launched_local_rank(worker)) == (5, 8, 1)


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_that_is_listened_at_can_be_reached_at_once(host):
    listener, port = listen(host)
    socket.create_connection(("127.0.0.1", port), timeout=60).close()
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))
    os.close(listener)


def test_aborting_ends_the_process_with_its_status():
    source = (
        "from windrow.comm.launcher import Rendezvous\n"
        "print('before', flush=False)\n"
        "Rendezvous(rank=0, size=1, host='h', port=1).abort(5)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stdout == "before\n"


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_world_shares_memory_or_not(shared_memory):
    with connect("loopback", shared_memory=shared_memory) as world:
        assert world.shares_memory == shared_memory
        assert world.split([[0]]).shares_memory == shared_memory
