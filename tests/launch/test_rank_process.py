"""windrow.launch.rank_process: options of a run, joining a job."""

import pytest
import torch

from windrow.comm.errors import RecipeError
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match="finds no GPU"), joined_job(RunOptions(device="cuda")):
        pass
