"""Copies beside computing: on a GPU a stream of their own, on a CPU nothing."""

import pytest
import torch

from windrow.gnn.pipeline import DeviceCopy


def test_a_cpu_needs_nothing():
    copies = DeviceCopy(torch.device("cpu"))
    assert not copies.overlaps
    with copies.queue():
        rows = torch.arange(3).to("cpu", non_blocking=True)
        done = copies.mark()
    assert done is None
    copies.hand_over(done, [rows])
    assert rows.tolist() == [0, 1, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_a_gpu_computes_with_has_arrived():
    device = torch.device("cuda")
    copies = DeviceCopy(device)
    assert copies.overlaps
    for value in range(20):
        source = torch.full((1 << 20,), float(value)).pin_memory()
        with copies.queue():
            assert torch.cuda.current_stream(device) != torch.cuda.default_stream(device)
            arrived = source.to(device, non_blocking=True)
            done = copies.mark()
        copies.hand_over(done, [arrived, source])
        assert float((arrived * 2).sum()) == 2 * value * len(source)
