"""Blocks of two groups with rows of their own number, against positions worked out by hand."""

import numpy as np
import torch

from windrow.partition.tables.plan import Plan, Replica, Shard
from windrow.recsys.sharded.layout import make_layout
from windrow.recsys.sharded.pooled_blocks import Buffers, PooledBlocks, copy_bands, count_rows
from windrow.recsys.tables.options import EmbeddingBagConfig

CPU = torch.device("cpu")
TABLES = [
    EmbeddingBagConfig(name="mixed", num_embeddings=50, embedding_dim=4, feature_names=["a", "b"]),
    EmbeddingBagConfig(name="copied", num_embeddings=50, embedding_dim=4, feature_names=["c"]),
]
ROWS = np.array([[3, 2], [4, 1]])
"""Of each rank in group 0 and in the group of b."""


def blocks(rank):
    plan = Plan((Shard("mixed", 0, (0, 50), (0, 4)),), (Replica("copied", (0, 50)),))
    layout = make_layout(TABLES, plan, 2, [["b"]])
    return PooledBlocks(layout, rank, ROWS, buffers=Buffers(CPU), device=CPU)


def test_bands_of_ranks_lie_in_the_outputs_without_their_padding():
    found = blocks(0)
    ((bags, width),) = found.output_shapes()
    assert (bags, width) == (7, 8)  # 3 + 4 bags; b has fewer rows, and empty bags at its end
    output = torch.arange(56.0).view(7, 8)
    (first_a, first_b), (second_a, second_b) = found.of_ranks([output])
    assert torch.equal(first_a, output[:3, :4])
    assert torch.equal(first_b, output[:2, 4:])
    assert torch.equal(second_a, output[3:, :4])
    assert torch.equal(second_b, output[3:4, 4:])
    assert first_a.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    assert blocks(1).of_ranks([]) == [[], []]
    assert count_rows(found.of_ranks([output])) == [5, 5]


def test_what_one_rank_sends_another_awaits():
    _, sent, _ = blocks(0).borrow_for_ranks()
    _, awaited, _ = blocks(1).borrow_for_home()
    assert [len(message) for message in sent] == [0, 4 * 4 + 1 * 4]
    assert [len(message) for message in awaited] == [20, 0]
    _, nothing, bands = blocks(1).borrow_for_ranks()
    assert [len(message) for message in nothing] == [0, 0]
    assert bands == [[], []]


def test_bands_are_copied_into_one_message_after_the_other():
    found = blocks(0)
    output = torch.arange(56.0).view(7, 8)
    views = found.of_ranks([output])
    assert found.in_one_message(views) is None
    _, (_, message), copies = found.borrow_for_ranks()
    copy_bands(views, copies)
    assert message.tolist() == [*output[3:, :4].flatten().tolist(), *output[3, 4:].tolist()]
    (empty, whole) = blocks(1).in_one_message([[], [output]])
    assert len(empty) == 0
    assert whole is output


def test_at_home_are_rows_of_this_rank():
    found = blocks(1)
    assert found.replicated_shapes() == [(4, 4)]
    output = torch.ones(4, 4)
    (band,) = found.at_home([output])
    assert torch.equal(band, output)
    assert [tuple(matrix.shape) for matrix in found.matrices([6, 2])] == [(4, 6), (1, 2)]
    assert [tuple(matrix.shape) for matrix in found.matrices([6, 0])] == [(4, 6), (0, 0)]
