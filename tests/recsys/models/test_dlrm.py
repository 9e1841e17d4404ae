"""DLRM against its formula, and what it refuses."""

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.click_models import DLRM


def make(num_dense: int, dims: dict[str, int], *, embeddings_in_top: bool = False) -> DLRM:
    generator = torch.Generator().manual_seed(0)
    return DLRM(
        num_dense=num_dense,
        pooled_dims=dims,
        bottom=(6,),
        top=(8,),
        embeddings_in_top=embeddings_in_top,
        generator=generator,
    )


@pytest.mark.parametrize("embeddings_in_top", [False, True])
@pytest.mark.parametrize("num_dense", [0, 3])
def test_formula(num_dense: int, *, embeddings_in_top: bool) -> None:
    model = make(num_dense, {"a": 4, "b": 4}, embeddings_in_top=embeddings_in_top)
    generator = torch.Generator().manual_seed(1)
    dense, a, b = (torch.randn(5, columns, generator=generator) for columns in (num_dense, 4, 4))
    dots = [(b * a).sum(1)]
    parts = [a, b] if embeddings_in_top else []
    if model.bottom is not None:
        v = model.bottom(dense)
        dots = [(a * v).sum(1), (b * v).sum(1), *dots]
        parts = [v, *parts]
    expected = model.logit(model.top(torch.cat([*parts, torch.stack(dots, 1)], 1)))[:, 0]
    torch.testing.assert_close(model(dense, Embeddings.of(torch.cat([a, b], 1), {"a": 4, "b": 4})), expected)


def test_dense_work_is_done_before_embeddings_come() -> None:
    model = make(3, {"a": 4, "b": 4})
    dense = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    begun = model.begin(dense)
    assert begun.shape == (5, 4)
    pooled = Embeddings.of(torch.ones(5, 8), {"a": 4, "b": 4})
    assert torch.equal(model.finish(begun, pooled), model(dense, pooled))


def test_one_feature_alone_needs_itself_in_the_top() -> None:
    with pytest.raises(RecipeError, match=r"only the feature 'a'.*embeddings_in_top"):
        make(0, {"a": 4})
    one = Embeddings.of(torch.ones(2, 4), {"a": 4})
    assert make(0, {"a": 4}, embeddings_in_top=True)(torch.ones(2, 0), one).shape == (2,)
    assert make(2, {"a": 4})(torch.ones(2, 2), one).shape == (2,)


def test_refuses_embeddings_that_cannot_be_multiplied() -> None:
    with pytest.raises(RecipeError, match="'a' has 4 columns and 'b' 8"):
        make(0, {"a": 4, "b": 8})
    with pytest.raises(RecipeError, match="no features"):
        make(3, {})
