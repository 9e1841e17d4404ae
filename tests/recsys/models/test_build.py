from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.batches.jagged import Deduplicated, Jagged
from windrow.recsys.embeddings import Embeddings, PooledRows
from windrow.recsys.models.build import build_model
from windrow.recsys.models.click_models import DCN, DLRM
from windrow.recsys.models.options import ModelOptions
from windrow.recsys.models.self_attention import SelfAttentionPooling
from windrow.recsys.models.towers import FeatureMLPModel, SequenceModel

DIMS = {"user": 4, "item": 4}


def test_options_arrive() -> None:
    """Towers in front of feature MLPs in front of the model."""
    options = ModelOptions(
        sequences=("seen",), sequence_pooling="self", sequence_layers=3, sequence_heads=2, sequence_hidden=(7,),
        sequence_positions=9, feature_mlp=(5,), bottom=(7,), top=(9, 5), embeddings_in_top=True,
    )  # fmt: skip
    outer = build_model(options, num_dense=3, pooled_dims=DIMS, sequence_dims={"seen": 4}, seed=0)
    assert isinstance(outer, SequenceModel)
    (tower,) = outer.poolings
    assert isinstance(tower, SelfAttentionPooling)
    assert len(tower.layers) == 3
    assert tower.positions.shape == (9, 4)
    assert isinstance(outer.model, FeatureMLPModel)
    assert [output.out_features for output in outer.model.outputs] == [4, 4, 4]
    model = outer.model.model
    assert isinstance(model, DLRM)
    assert model.bottom is not None
    assert [layer.out_features for layer in model.bottom.layers] == [7, 4]
    assert [layer.out_features for layer in model.top.layers] == [9, 5]
    assert model.top.layers[0].in_features == 6 + 4 * 4
    dcn = build_model(
        ModelOptions(kind="dcn", structure="parallel", cross_layers=2, low_rank=3, deep=(6,)),
        num_dense=3,
        pooled_dims=DIMS,
        seed=0,
    )
    assert isinstance(dcn, DCN)
    assert [layer.out_features for layer in dcn.cross.narrow] == [3, 3]
    assert dcn.logit.in_features == 11 + 6


@pytest.mark.parametrize(
    ("options", "sequence_dims", "message"),
    [
        ({"sequence_query": "shop"}, {"seen": 4}, r'"shop" is no pooled feature: choose one of user, item'),
        ({"kind": "dcn", "sequence_query": "item"}, {"seen": 8}, "'seen', 8 columns, with 'item', 4"),
        ({"sequences": ()}, {"seen": 4}, r"sequences = \[\], but the unpooled features are \['seen'\]"),
        ({"sequences": ("user",), "sequence_pooling": "self"}, {"user": 4}, "user: both pooled and unpooled"),
        ({"kind": "two_tower", "sequences": ()}, {}, "learns from interactions"),
    ],
)
def test_refuses_features_that_do_not_fit(options: dict[str, Any], sequence_dims: dict[str, int], message: str) -> None:
    given = ModelOptions(**{"sequences": ("seen",), **options})
    with pytest.raises(RecipeError, match=message):
        build_model(given, num_dense=0, pooled_dims=DIMS, sequence_dims=sequence_dims, seed=0)


def test_large_seeds_work() -> None:
    model = build_model(ModelOptions(), num_dense=0, pooled_dims=DIMS, seed=2**70)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


SHAPES = [
    ModelOptions(bottom=(6,), top=(8,), feature_mlp=(5,), embeddings_in_top=True),
    ModelOptions(top=(8,), sequences=("seen", "bought"), sequence_query="item"),
    ModelOptions(top=(8,), sequences=("seen", "bought"), sequence_query="user", feature_mlp=(3, 2)),
    ModelOptions(kind="dcn", deep=(8,), sequences=("seen", "bought"), sequence_pooling="self"),
    ModelOptions(kind="dcn", deep=(8,), sequences=("seen", "bought"), sequence_pooling="self", feature_mlp=(3,)),
]
WAYS = [
    DeduplicationOptions(),
    DeduplicationOptions(compute=False),
    DeduplicationOptions(compute=False, expand_jagged=False),
]


class Shared:
    """Random embeddings in float64: users and one list are shared by a pattern, the other list by another."""

    def __init__(self, num_rows: int, inverse: list[int]) -> None:
        generator = torch.Generator().manual_seed(0)

        def draw(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator, dtype=torch.float64).requires_grad_()

        num_samples = len(inverse)
        self.inverse = torch.tensor(inverse, dtype=torch.int64)
        # One list that all samples have.
        self.other = torch.zeros(num_samples, dtype=torch.int64)
        self.lengths = torch.randint(0, 4, (num_rows,), generator=generator)
        self.other_lengths = torch.tensor([3] if num_samples else [], dtype=torch.int64)
        self.dense = draw(num_samples, 2)
        self.user, self.item = draw(num_rows, 4), draw(num_samples, 4)
        self.seen, self.bought = draw(int(self.lengths.sum()), 4), draw(int(self.other_lengths.sum()), 4)

    def once(self) -> Embeddings:
        return Embeddings(
            [PooledRows(("item",), (4,), self.item, None), PooledRows(("user",), (4,), self.user, self.inverse)],
            ("user", "item"),
            {
                "seen": Deduplicated(Jagged.of_lengths(self.seen, self.lengths), self.inverse),
                "bought": Deduplicated(Jagged.of_lengths(self.bought, self.other_lengths), self.other),
            },
        )

    def for_each_sample(self) -> Embeddings:
        pooled = torch.cat([self.user.index_select(0, self.inverse), self.item], 1)
        return Embeddings(
            [PooledRows(("user", "item"), (4, 4), pooled, None)],
            ("user", "item"),
            {
                "seen": _of_samples(self.seen, self.lengths, self.inverse),
                "bought": _of_samples(self.bought, self.other_lengths, self.other),
            },
        )


def _of_samples(items: Tensor, lengths: Tensor, inverse: Tensor) -> Deduplicated[Tensor]:
    lists = items.split(lengths.tolist()) if len(lengths) else ()
    chosen = [lists[row] for row in inverse.tolist()]
    return Deduplicated(Jagged.of_lengths(torch.cat([items[:0], *chosen]), lengths[inverse]))


@pytest.mark.parametrize("options", SHAPES, ids=lambda options: f"{options.kind}-{SHAPES.index(options)}")
@given(num_rows=st.integers(1, 5), picks=st.lists(st.integers(0, 4), max_size=7))
def test_shared_rows_change_neither_logits_nor_gradients(
    options: ModelOptions, num_rows: int, picks: list[int]
) -> None:
    shared = Shared(num_rows if picks else 0, [pick % num_rows for pick in picks])
    results = []
    for way in (None, *WAYS):
        model = build_model(
            options,
            num_dense=2,
            pooled_dims=DIMS,
            sequence_dims=dict.fromkeys(options.sequences, 4),
            seed=0,
            deduplication=way,
        ).double()
        embeddings = shared.for_each_sample() if way is None else shared.once()
        logits = model(shared.dense, embeddings)
        assert logits.shape == (len(picks),)
        leaves = [shared.user, shared.item, *model.parameters()]
        leaves += [shared.seen, shared.bought] if options.sequences else []
        results.append([logits, *torch.autograd.grad(logits.sum() + 0 * shared.dense.sum(), leaves)])
    expected, *others = results
    for other in others:
        for mine, slow in zip(other, expected, strict=True):
            torch.testing.assert_close(mine, slow, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sequences": ("seen",)}, "give both, or neither"),
        ({"sequence_query": "item"}, "give both, or neither"),
        ({"sequence_pooling": "self"}, "needs model.sequences"),
        (
            {"sequence_pooling": "self", "sequences": ("seen",), "sequence_query": "item"},
            'sequence_query is for sequence_pooling = "target", but model.sequence_pooling = "self"',
        ),
        (
            {"sequences": ("seen",), "sequence_query": "item", "sequence_heads": 2},
            'model.sequence_heads is for sequence_pooling = "self"',
        ),
        ({"kind": "two_tower", "feature_mlp": (4,)}, 'model.feature_mlp is for kind = "dlrm or dcn"'),
        ({"kind": "dcn", "top": (8,)}, 'model.top is for kind = "dlrm", but model.kind = "dcn"'),
        ({"low_rank": 8}, 'model.low_rank is for kind = "dcn", but model.kind = "dlrm"'),
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
