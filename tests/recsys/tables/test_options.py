"""Options of tables: ranges, and what goes together."""

import pytest
import torch

from windrow.comm.errors import RecipeError
from windrow.recsys.tables.options import TableOptions


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"dim": 6}, "tables.dim = 6: must be a multiple of 4"),
        ({"dim": 0}, "tables.dim = 0"),
        ({"optimizer": "lamb"}, 'tables.optimizer = "lamb": expected one of rowwise_adagrad'),
        ({"precision": "fp8"}, 'tables.precision = "fp8": expected one of fp32, fp16'),
        ({"learning_rate": 0.0}, "tables.learning_rate = 0.0: must be above 0"),
        ({"learning_rate": float("nan")}, "tables.learning_rate = nan"),
        ({"eps": 0.0}, "tables.eps = 0.0"),
        ({"initial_scale": -1.0}, "tables.initial_scale = -1.0"),
        ({"betas": (0.9, 1.0)}, r"tables.betas = \[0.9, 1.0\]: each must be at least 0 and below 1"),
        ({"weight_decay": -0.1}, "tables.weight_decay = -0.1: must be 0 or above"),
        ({"weight_decay": 0.1, "precision": "fp16"}, "weight_decay = 0.1, which need dense fp32"),
        ({"optimizer": "adam", "precision": "fp16"}, 'does not go with optimizer = "adam"'),
    ],
)
def test_refusals_name_field_value_and_cure(values, said):
    with pytest.raises(RecipeError, match=said):
        TableOptions(**values)


def test_what_follows_from_the_options():
    assert TableOptions().dtype == torch.float32
    assert TableOptions(precision="fp16").dtype == torch.float16
    assert TableOptions().can_fuse
    assert not TableOptions(optimizer="adam").can_fuse
    assert not TableOptions(weight_decay=0.1).can_fuse


@pytest.mark.parametrize(
    ("optimizer", "expected"), [("sgd", 0), ("rowwise_adagrad", 4), ("adagrad", 32), ("adam", 64)]
)
def test_optimizer_bytes_per_row(optimizer, expected):
    assert TableOptions(optimizer=optimizer).optimizer_bytes_per_row(8) == expected
