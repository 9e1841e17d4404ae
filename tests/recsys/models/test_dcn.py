"""DCN-v2 against its formula, and what it refuses."""

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.embeddings import Embeddings
from windrow.recsys.models.click_models import DCN, Structure


@pytest.mark.parametrize("low_rank", [None, 2])
@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_formula(structure: Structure, low_rank: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    model = DCN(
        num_dense=2,
        pooled_dims={"a": 4, "b": 3},
        structure=structure,
        cross_layers=2,
        low_rank=low_rank,
        deep=(6,),
        generator=generator,
    )
    dense, pooled = torch.randn(5, 2, generator=generator), torch.randn(5, 7, generator=generator)
    x0 = torch.cat([dense, pooled], 1)
    if structure == "stacked":
        expected = model.logit(model.deep(model.cross(x0)))
    else:
        expected = model.logit(torch.cat([model.cross(x0), model.deep(x0)], 1))
    torch.testing.assert_close(model(dense, Embeddings.of(pooled, {"a": 4, "b": 3})), expected[:, 0])


def test_refuses_to_compute_from_nothing() -> None:
    with pytest.raises(RecipeError, match="neither dense columns nor features"):
        DCN(num_dense=0, pooled_dims={}, generator=torch.Generator().manual_seed(0))
