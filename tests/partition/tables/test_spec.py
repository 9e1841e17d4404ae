"""windrow.partition.tables.plan: what a table weighs."""

import pytest

from windrow.comm.errors import PlanError
from windrow.partition.tables.plan import TableSpec, rectangle_bytes, specs_by_name


def make(**changes) -> TableSpec:
    return TableSpec(**{"name": "item", "rows": 10, "dim": 16, "features": ("item",), **changes})


def test_weights_and_state_are_counted() -> None:
    assert make().num_bytes == 10 * 16 * 4
    assert make(bytes_per_value=2, optimizer_bytes_per_row=4).num_bytes == 10 * (16 * 2 + 4)
    assert make(optimizer_bytes_per_row=0.25).num_bytes == 10 * 16 * 4 + 3, "rounded up"


@pytest.mark.parametrize(
    ("per_row", "expected"),
    [(0, 0), (4, 5 * 4), (16 * 4, 5 * 4 * 4), (16 * 8, 5 * 4 * 8)],
    ids=["sgd", "row-wise adagrad: once for each piece", "adagrad", "adam"],
)
def test_state_of_a_piece(per_row: int, expected: int) -> None:
    assert rectangle_bytes(make(optimizer_bytes_per_row=per_row), 5, 4) == 5 * 4 * 4 + expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "empty name"),
        ({"rows": 0}, "table 'item': rows = 0: expected at least 1"),
        ({"dim": -1}, "dim = -1"),
        ({"bytes_per_value": 0}, "bytes_per_value = 0"),
        ({"lookups_per_sample": float("nan")}, "lookups_per_sample = nan"),
        ({"optimizer_bytes_per_row": -1.0}, "optimizer_bytes_per_row = -1.0: expected 0 or more"),
    ],
)
def test_nonsense_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make(**changes)


def test_names_are_unique() -> None:
    assert list(specs_by_name([make(name="b"), make(name="a")])) == ["b", "a"]
    with pytest.raises(PlanError, match="two tables are named 'item'"):
        specs_by_name([make(), make()])
