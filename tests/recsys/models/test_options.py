"""What the recipe's section [model] takes and refuses."""

from typing import Any

import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.models.build import ModelOptions


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "fm"}, 'model.kind = "fm": expected one of dlrm, dcn, two_tower'),
        ({"kind": "dcn", "structure": "both"}, "expected one of stacked, parallel"),
        ({"dropout": 1.0}, "model.dropout = 1.0"),
        ({"kind": "dcn", "cross_layers": 0}, "cross_layers = 0: must be at least 1"),
        ({"kind": "dcn", "low_rank": 0}, 'low_rank = 0: must be at least 1, or "none"'),
        ({"top": (8, 0)}, r"model.top = \[8, 0\]: each layer"),
        ({"sequences": ("seen",)}, "give both, or neither"),
        ({"sequence_query": "item"}, "give both, or neither"),
        ({"sequence_pooling": "own"}, "expected one of target, self"),
        ({"sequence_pooling": "self"}, "needs model.sequences"),
        (
            {"sequence_pooling": "self", "sequences": ("seen",), "sequence_query": "item"},
            'sequence_query = "item" is for sequence_pooling = "target"',
        ),
        (
            {"sequences": ("seen",), "sequence_query": "item", "sequence_heads": 2},
            'model.sequence_heads is for sequence_pooling = "self"',
        ),
        (
            {"sequence_pooling": "self", "sequences": ("seen",), "sequence_layers": 0},
            "sequence_layers = 0: must be at least 1",
        ),
        ({"feature_mlp": (0,)}, r"model.feature_mlp = \[0\]: each layer"),
        ({"kind": "two_tower", "feature_mlp": (4,)}, 'model.feature_mlp is for kind = "dlrm or dcn"'),
        ({"kind": "dcn", "top": (8,)}, 'model.top is for kind = "dlrm", but model.kind = "dcn"'),
        ({"low_rank": 8}, 'model.low_rank is for kind = "dcn", but model.kind = "dlrm"'),
        ({"kind": "two_tower", "temperature": 0.0}, "temperature = 0.0: must be above 0"),
        ({"temperature": 0.2}, 'model.temperature is for kind = "two_tower", but model.kind = "dlrm"'),
        ({"kind": "two_tower", "dropout": 0.5}, 'model.dropout is for kind = "dlrm or dcn"'),
    ],
)
def test_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        ModelOptions(**values)


def test_takes_what_belongs_together() -> None:
    ModelOptions(kind="dcn", low_rank=4, deep=(), sequences=("seen",), sequence_query="item", dropout=0.5)
    ModelOptions(kind="dlrm", bottom=(), top=(), embeddings_in_top=True)
    ModelOptions(kind="two_tower", temperature=0.2)
    ModelOptions(sequences=("seen",), sequence_pooling="self", sequence_layers=2, sequence_heads=1)
    ModelOptions(feature_mlp=(8, 4))
