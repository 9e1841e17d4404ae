"""Models from options."""

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.models.build import build_model
from windrow.recsys.models.dcn import DCN
from windrow.recsys.models.dlrm import DLRM
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.models.sequence_tower import SequenceModel

DIMS = {"user": 4, "item": 4}


def test_options_arrive() -> None:
    model = build_model(
        ModelOptions(bottom=(7,), top=(9, 5), embeddings_in_top=True), num_dense=3, pooled_dims=DIMS, seed=0
    )
    assert isinstance(model, DLRM)
    assert model.bottom is not None
    assert [layer.out_features for layer in model.bottom.layers] == [7, 4]
    assert [layer.out_features for layer in model.top.layers] == [9, 5]
    assert model.top.layers[0].in_features == 3 + 3 * 4
    dcn = build_model(
        ModelOptions(kind="dcn", structure="parallel", cross_layers=2, low_rank=3, deep=(6,)),
        num_dense=3,
        pooled_dims=DIMS,
        seed=0,
    )
    assert isinstance(dcn, DCN)
    assert [layer.out_features for layer in dcn.cross.narrow] == [3, 3]
    assert dcn.logit.in_features == 11 + 6


def test_sequences_stand_in_front() -> None:
    options = ModelOptions(sequences=("seen",), sequence_query="item", sequence_hidden=(5,))
    model = build_model(options, num_dense=0, pooled_dims=DIMS, sequence_dims={"seen": 4}, seed=0)
    assert isinstance(model, SequenceModel)
    assert isinstance(model.model, DLRM)
    assert model.model.dots.num_pairs == 3


def test_refuses_features_that_are_not_there() -> None:
    with pytest.raises(RecipeError, match=r"sequences = \[\], but the unpooled features are \['seen'\]"):
        build_model(ModelOptions(), num_dense=0, pooled_dims=DIMS, sequence_dims={"seen": 4}, seed=0)


def test_two_towers_are_no_model_of_clicks() -> None:
    with pytest.raises(RecipeError, match="learns from interactions"):
        build_model(ModelOptions(kind="two_tower"), num_dense=0, pooled_dims=DIMS, seed=0)


def test_large_seeds_work() -> None:
    model = build_model(ModelOptions(), num_dense=0, pooled_dims=DIMS, seed=2**70)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
