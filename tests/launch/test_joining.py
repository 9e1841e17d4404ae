"""windrow.launch.rank_process: the device, the world and the cores of a rank."""

import threading

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.launch import rank_process as joining
from windrow.launch.rank_process import RunOptions, joined_job


def test_a_process_alone_is_a_job_of_one_rank() -> None:
    before = torch.get_num_threads()
    try:
        with joined_job(RunOptions(threads=1, backend="loopback")) as (world, device):
            assert (world.rank, world.size, device.type) == (0, 1, "cpu")
            assert world.meter is not None
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_cores_are_shared_by_the_ranks_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    own = threading.local()
    monkeypatch.setattr(joining, "kernel_id", lambda: own.kernel)

    def body(world: World) -> int:
        own.kernel = "abbb"[world.rank]
        return joining._ranks_on_this_machine(world)

    assert Loopback.run(4, body, deadline_s=60) == [1, 3, 3, 3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match="finds no GPU"), joined_job(RunOptions(device="cuda")):
        pass
