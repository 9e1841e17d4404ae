"""Debug mode on different operations; that all ranks get the same text is tested in test_world."""

import pytest
import torch

from windrow.comm.errors import CollectiveMismatchError
from windrow.comm.loopback import Loopback


def test_different_operations_are_told_apart():
    def body(world):
        if world.rank == 0:
            world.barrier(stage="end of step")
        else:
            world.all_reduce(torch.ones(4), stage="gradients")

    with pytest.raises(CollectiveMismatchError) as caught:
        Loopback.run(3, body, debug=True)
    message = str(caught.value)
    assert "rank 0: all_to_all(stage=end of step" in message
    assert "rank 2: all_reduce(stage=gradients, shape=(4,), dtype=torch.float32, op=sum)" in message
    assert "look for a branch that depends on the rank" in message


def test_agreeing_calls_pass_and_are_not_metered():
    from windrow.comm.meter import Meter

    def body(world):
        world.meter = Meter()
        world.all_to_all(torch.ones(2, 3), [1, 1], [1, 1], stage="rows")
        return world.meter.totals().rows_sent

    assert Loopback.run(2, body, debug=True) == [1, 1]
