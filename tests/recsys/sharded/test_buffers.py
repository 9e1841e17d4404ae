"""Memory comes back, and is never in two hands."""

import torch

from windrow.recsys.sharded.pooled_blocks import Buffers


def test_memory_is_used_again_where_it_is_large_enough():
    buffers = Buffers(torch.device("cpu"))
    first, matrices = buffers.take([(3, 4), (0, 7), (5, 2)])
    assert [tuple(matrix.shape) for matrix in matrices] == [(3, 4), (0, 7), (5, 2)]
    for number, matrix in enumerate(matrices):
        matrix.fill_(number)
    assert first.tolist() == [0.0] * 12 + [2.0] * 10
    second, _ = buffers.take([(2, 2)])
    assert second.data_ptr() != first.data_ptr()
    buffers.give(first)
    buffers.give(second)
    assert buffers.take([(2, 2)])[0] is second
    again, (small,) = buffers.take([(1, 5)])
    assert again is first
    assert small.shape == (1, 5)


def test_what_is_too_small_is_replaced():
    buffers = Buffers(torch.device("cpu"))
    for rows in range(1, 9):
        buffer, _ = buffers.take([(rows, 4)])
        buffers.give(buffer)
    assert len(buffers._free) == 1


def test_memory_of_inference_mode_serves_training_too():
    buffers = Buffers(torch.device("cpu"))
    with torch.inference_mode():
        buffer, _ = buffers.take([(2, 3)])
    buffers.give(buffer)
    _, (matrix,) = buffers.take([(2, 3)])
    matrix.copy_(torch.ones(2, 3))  # torch refuses this of a tensor that inference mode made
