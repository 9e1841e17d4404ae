"""Dot products of all pairs against two plain loops."""

import pytest
import torch
from torch import Tensor

from windrow.comm.errors import DataError
from windrow.recsys.models.click_models import PairwiseDots


def slow_dots(vectors: Tensor) -> Tensor:
    columns = [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(vectors.shape[1]) for j in range(i)]
    return torch.stack(columns, 1) if columns else vectors.new_zeros(len(vectors), 0)


@pytest.mark.parametrize("num_samples", [0, 1, 5])
@pytest.mark.parametrize("num_vectors", [1, 2, 3, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "batched"])
def test_values_and_gradients(num_samples: int, num_vectors: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (num_samples, num_vectors, 4)
    vectors = torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
    dots = PairwiseDots(num_vectors)
    result, expected = dots(vectors), slow_dots(vectors)
    assert result.shape == (num_samples, dots.num_pairs)
    torch.testing.assert_close(result, expected)
    upstream = torch.randn(result.shape, generator=generator, dtype=dtype)
    (mine,) = torch.autograd.grad(result, vectors, upstream)
    (slow,) = torch.autograd.grad((expected * upstream).sum() + 0 * vectors.sum(), vectors)
    torch.testing.assert_close(mine, slow)


def test_is_no_part_of_a_state_dict() -> None:
    assert not PairwiseDots(4).state_dict()


def test_refuses_other_features_than_it_was_made_for() -> None:
    with pytest.raises(DataError, match="4 vectors of each sample, but the model was made for 3"):
        PairwiseDots(3)(torch.zeros(2, 4, 8))
