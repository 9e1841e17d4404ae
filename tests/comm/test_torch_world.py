"""What is special about torch.distributed; the rest is in test_world."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch

from windrow.comm.launcher import Rendezvous
from windrow.comm.torch_world import GROUP_PATIENCE, TorchWorld


def test_a_world_of_one_without_any_launcher():
    meeting = Rendezvous(rank=0, size=1, host="127.0.0.1", port=0)
    world = TorchWorld("gloo", meeting, deadline_s=10)
    assert world.all_reduce(torch.ones(2), stage="test").tolist() == [1, 1]
    assert world.all_to_all(torch.ones(3, 2), [3], [3], stage="test").shape == (3, 2)
    world.close()


@pytest.mark.parallel(2)
def test_a_lost_peer_is_named():
    from windrow.comm.errors import CommunicationError
    from windrow.comm.mpi_world import mpi_rendezvous

    world = TorchWorld("gloo", mpi_rendezvous(), deadline_s=10)
    if world.rank == 0:
        with pytest.raises(CommunicationError, match="rank"):
            world.start_exchange([torch.empty(0)] * 2, [torch.empty(0), torch.empty(5)], stage="never sent").wait()
    world.close()


@pytest.mark.parallel(2)
def test_a_message_that_never_comes_names_its_sender_at_the_deadline():
    from windrow.comm.errors import DeadlineError
    from windrow.comm.mpi_world import MPIWorld, mpi_rendezvous

    guard = MPIWorld(deadline_s=60)
    world = TorchWorld("gloo", mpi_rendezvous(), deadline_s=60)
    world.deadline_s = 0.5  # But ranks had time to meet.
    if world.rank == 0:
        with pytest.raises(DeadlineError, match=r"stage 'meeting': still waiting for rank\(s\) 1 after"):
            world.barrier(stage="meeting")
    guard.barrier(stage="rank 0 has seen it")
    world.close()
    guard.close()


@pytest.mark.parallel(2)
@pytest.mark.parametrize("wait_late", [False, True])
def test_a_reduction_that_a_rank_does_not_join_is_an_error(wait_late):
    from windrow.comm.errors import CommunicationError, DeadlineError
    from windrow.comm.mpi_world import MPIWorld, mpi_rendezvous

    guard = MPIWorld(deadline_s=60)
    world = TorchWorld("gloo", mpi_rendezvous(), deadline_s=3 if wait_late else 60)
    late_s = GROUP_PATIENCE * world.deadline_s + 1
    world.deadline_s = 0.5
    if world.rank == 0:
        pending = world.start_all_reduce(torch.ones(3), stage="never joined")
        if wait_late:
            time.sleep(late_s)
        with pytest.raises(CommunicationError if wait_late else DeadlineError) as caught:
            pending.wait()
        assert wait_late or "stage 'never joined': still waiting for rank(s) 0, 1" in str(caught.value)
    guard.barrier(stage="rank 0 has seen it")
    world.close()
    guard.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nccl_moves_cuda_and_cpu_tensors():
    meeting = Rendezvous(rank=0, size=1, host="127.0.0.1", port=0)
    world = TorchWorld("nccl", meeting, deadline_s=60)
    assert world.all_reduce(torch.ones(2, device="cuda"), stage="test").tolist() == [1, 1]
    assert world.all_reduce(torch.ones(2), stage="test").device.type == "cpu"
    world.close()


def test_torchrun_environment_is_read(monkeypatch):
    set_by_it = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "node7", "MASTER_PORT": "1234"}
    for name, value in set_by_it.items():
        monkeypatch.setitem(os.environ, name, value)
    meeting = Rendezvous.from_torchrun()
    assert (meeting.rank, meeting.size, meeting.host, meeting.port) == (1, 3, "node7", 1234)


@pytest.mark.parallel(2)
def test_finished_sums_keep_an_owner_when_the_group_is_closed():
    """Gloo's threads must never be the last to let go: they may do so when the interpreter has begun to end."""
    from windrow.comm.mpi_world import mpi_rendezvous

    world = TorchWorld("gloo", mpi_rendezvous(), deadline_s=60)
    world.all_reduce(torch.ones(3), stage="test")
    (work,) = world._latest_works
    owners = sys.getrefcount(work)
    world.close()
    assert sys.getrefcount(work) == owners + 1
    # A later world takes its place: what is kept keeps threads of its group as well.
    after = TorchWorld("gloo", Rendezvous(rank=0, size=1, host="127.0.0.1", port=0))
    after.close()
    assert sys.getrefcount(work) == owners - 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc/self/task")
def test_worlds_that_are_closed_leave_the_threads_of_one_behind_at_most():
    def count() -> int:
        names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
        return sum(name.startswith("gloo") for name in names)

    for _ in range(4):
        meeting = Rendezvous(rank=0, size=1, host="127.0.0.1", port=0)
        world = TorchWorld("gloo", meeting, deadline_s=10)
        world.all_reduce(torch.ones(2), stage="test")
        world.close()
        del world
    # A group's threads end when they next wake up, some time after it was let go of.
    patience = time.monotonic() + 60
    while count() > 1 and time.monotonic() < patience:
        time.sleep(0.01)
    assert count() <= 1
