"""Shares of items, sums in one order and the refusal of what is no number."""

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError
from windrow.recsys.ranking_metrics import check_finite, gather_item_vectors, sum_of_chunks


@pytest.mark.parametrize("last_item", [4, 5, 12])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_every_rank_has_all_items_and_looks_up_as_often_as_the_others(spmd, last_item, batch_size):
    def body(world):
        calls = []

        def look_up(items):
            assert len(items) <= max(1, batch_size // world.size)
            # Collective, as a lookup is: hangs where a rank looks up more often than another.
            counts = world.all_gather(torch.tensor([len(items)]), stage="lookup")
            calls.append(sum(int(count) for count in counts))
            return torch.from_numpy(items).double()[:, None] * torch.tensor([1.0, 10.0])

        found = gather_item_vectors(world, look_up, 3, last_item, batch_size=batch_size)
        expected = np.arange(3, last_item)[:, None] * np.array([1.0, 10.0])
        np.testing.assert_array_equal(found.numpy(), expected)
        assert sum(calls) == last_item - 3

    spmd(body)


def test_sums_are_those_of_one_rank_bit_by_bit(spmd):
    chunks = torch.rand(11, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 3

    def body(world):
        mine = chunks.tensor_split(world.size)[world.rank]
        assert sum_of_chunks(world, mine) == chunks.cumsum(dim=0)[-1].tolist()

    spmd(body)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value):
    check_finite(torch.zeros(2, 2), "an item")
    check_finite(torch.zeros(0, 2), "an item")
    with pytest.raises(DataError, match="vector of an item is NaN or infinite: lower the learning rates"):
        check_finite(torch.tensor([[0.0, value]]), "an item")
