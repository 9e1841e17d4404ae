"""Random splits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import DataError, RecipeError
from windrow.gnn.vertex_data import SplitOptions, VertexSplit, random_split, split_from_masks


def everyone(split: VertexSplit) -> list[int]:
    return torch.cat([split.train_ids, split.validation_ids, split.test_ids]).tolist()


@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=60),
    st.floats(0.01, 0.6),
    st.floats(0, 0.4),
    st.integers(0, 2**63),
)
def test_fractions_cover_every_labelled_vertex_once(
    labels: list[int], train: float, validation: float, seed: int
) -> None:
    options = SplitOptions(kind="fractions", train_fraction=train, validation_fraction=validation)
    split = random_split(torch.tensor(labels), options, seed=seed)
    labelled = [vertex for vertex, label in enumerate(labels) if label >= 0]
    assert sorted(everyone(split)) == labelled
    assert len(split.train_ids) == round(len(labelled) * train)


def test_per_class_takes_so_many_of_each() -> None:
    labels = torch.arange(300) % 3
    labels[::10] = -1
    options = SplitOptions(train_per_class=20, validation_per_class=30)
    split = random_split(labels, options, seed=1)
    assert torch.bincount(labels[split.train_ids]).tolist() == [20, 20, 20]
    assert torch.bincount(labels[split.validation_ids]).tolist() == [30, 30, 30]
    assert sorted(everyone(split)) == (labels >= 0).nonzero().flatten().tolist()


@pytest.mark.parametrize("kind", ["per-class", "fractions"])
def test_the_seed_alone_decides(kind: str) -> None:
    labels = torch.arange(300) % 3
    options = SplitOptions(kind=kind)
    first = random_split(labels, options, seed=1)
    assert everyone(random_split(labels, options, seed=1)) == everyone(first)
    assert everyone(random_split(labels, options, seed=2)) != everyone(first)
    assert torch.equal(first.train_ids, first.train_ids.sort().values)


def test_several_labels_per_vertex_split_by_fractions_only() -> None:
    labels = torch.ones(8, 2)
    assert sorted(everyone(random_split(labels, SplitOptions(kind="fractions"), seed=0))) == list(range(8))
    with pytest.raises(
        RecipeError, match=r"kind 'per-class' needs one class per vertex, but .* multi-label; use kind"
    ):
        random_split(labels, SplitOptions(), seed=0)


def test_a_class_that_is_too_small_is_named() -> None:
    labels = torch.tensor([0] * 60 + [2] * 49)
    with pytest.raises(
        DataError, match=r"class 2 has 49 labelled vertices, but the split takes 50 of each class \(20"
    ):
        random_split(labels, SplitOptions(), seed=0)


def test_masks_become_ids() -> None:
    masks = torch.eye(3, dtype=torch.bool)
    split = split_from_masks(masks[2], masks[0], masks[1])
    assert everyone(split) == [2, 0, 1]
    assert everyone(VertexSplit.empty()) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "random"}, "kind is 'random'; use 'per-class' or 'fractions'"),
        ({"train_per_class": 0}, "train_per_class is 0 and validation_per_class 30; use at least 1"),
        ({"train_fraction": 0.9}, "train_fraction is 0.9 and validation_fraction 0.25; use a share above 0"),
        ({"train_fraction": float("nan")}, "train_fraction is nan"),
    ],
)
def test_options_out_of_range_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        SplitOptions(**fields)
    assert message in str(caught.value)
