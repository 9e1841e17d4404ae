"""windrow.partition.tables.access: octaves tell of single rows what minibatches need."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import PlanError
from windrow.partition.tables import TableSpec
from windrow.partition.tables.access import (
    REUSE_BINS,
    AccessCounts,
    asked,
    draw_rows,
    expected_distinct,
    expected_reuse,
    is_frequent_first,
    most_frequent,
    octave_shares,
    steps_of,
    zipf_shares,
)


def table(rows: int, access: tuple[float, ...] = (), **changes) -> TableSpec:
    return TableSpec(name="t", rows=rows, dim=4, features=("f",), access=access, **changes)


def test_octaves_of_counts() -> None:
    assert octave_shares([1, 2, 10, 3, 0, 4]) == pytest.approx((10 / 20, 7 / 20, 3 / 20))
    assert octave_shares([5]) == (1.0,)
    assert octave_shares([0, 0]) == ()


@given(rows=st.integers(1, 5000), exponent=st.floats(0.3, 2))
def test_ranges_of_rows_add_up(rows: int, exponent: float) -> None:
    spec = table(rows, zipf_shares(rows, exponent))
    assert sum(spec.access) == pytest.approx(1)
    middle = rows // 3
    parts = [steps_of(spec, part) for part in ((0, middle), (middle, rows))]
    assert sum(float(shares.sum()) for _, shares in parts) == pytest.approx(1)
    assert sum(float(held.sum()) for held, _ in parts) == pytest.approx(rows)
    assert sum(expected_distinct(part, 1000) for part in parts) == pytest.approx(
        expected_distinct(steps_of(spec), 1000)
    )
    # In any other order a range has its part of every octave.
    anywhere = steps_of(table(rows, spec.access, frequent_first=False), (0, middle))
    assert float(anywhere[1].sum()) == pytest.approx(middle / rows)


@pytest.mark.parametrize("access", [(), zipf_shares(20_000, 1.1)], ids=["uniform", "zipf"])
@pytest.mark.parametrize("frequent_first", [True, False])
def test_expectations_are_those_of_drawn_rows(access: tuple[float, ...], frequent_first: bool) -> None:
    spec, lookups = table(20_000, access, frequent_first=frequent_first), 30_000
    drawn = draw_rows(spec, lookups, np.random.default_rng(0))
    assert drawn.min() >= 0
    assert drawn.max() < spec.rows
    rows, times = np.unique(drawn, return_counts=True)
    assert expected_distinct(steps_of(spec), lookups) == pytest.approx(len(rows), rel=0.02)
    edges = [0.5, 1.5, *(2.0**k + 0.5 for k in range(1, REUSE_BINS - 1)), np.inf]
    found = np.histogram(times, edges)[0] / len(rows)
    np.testing.assert_allclose(expected_reuse(steps_of(spec), lookups), found, atol=0.01)
    assert is_frequent_first(np.bincount(drawn, minlength=spec.rows)) == (frequent_first and bool(access))


@pytest.mark.parametrize("rows", [(0, 20_000), (31, 500)])
def test_ids_that_a_rank_asks_for_once(rows: tuple[int, int]) -> None:
    spec = table(20_000, zipf_shares(20_000, 1.1), lookups_per_sample=6, pooled=False)
    spec, chance = replace(spec, features=("f", "g")), np.random.default_rng(0)
    drawn = [draw_rows(spec, 3000, chance) for _ in spec.features]
    inside = [ids[(rows[0] <= ids) & (ids < rows[1])] for ids in drawn]
    assert asked(spec, rows, 1000) == pytest.approx([sum(map(len, inside))] * 2, rel=0.05)
    once = replace(spec, index_dedup=True)
    assert asked(once, rows, 1000) == pytest.approx([sum(len(np.unique(ids)) for ids in inside)] * 2, rel=0.05)


def test_a_part_of_the_rows_is_drawn_by_the_shares_of_the_table() -> None:
    spec = table(1000, zipf_shares(1000, 1.0))
    drawn = draw_rows(spec, 20_000, np.random.default_rng(0), (7, 31))
    assert drawn.max() < 24
    _, shares = steps_of(spec, (7, 31))
    # Rows 7 to 14 are an octave, rows 15 to 30 the next one.
    assert np.mean(drawn < 8) == pytest.approx(shares[3] / shares.sum(), abs=0.01)


def test_copies_take_the_lookups_of_the_most_frequent_rows() -> None:
    spec = table(20_000, zipf_shares(20_000, 1.1), frequent_first=False, hot=tuple(range(50, 1073)))
    copies, rest = steps_of(spec, (0, 255), hot=255, copied=True), steps_of(spec, hot=255)
    assert float(copies[0].sum()) == 255
    assert float(copies[1].sum()) == pytest.approx(sum(spec.access[:8]))
    assert float(copies[1].sum() + rest[1].sum()) == pytest.approx(1)
    assert float(steps_of(spec, (0, 5000), hot=255)[1].sum()) == pytest.approx(float(rest[1].sum()) / 4)
    # A list that only has copied ids travels no more, though its table is in one piece.
    assert asked(spec, (0, 20_000), 100)[1] == 100
    assert asked(spec, (0, 20_000), 100, hot=255)[1] == pytest.approx(100 * float(rest[1].sum()))


def test_the_most_frequent_rows() -> None:
    counts = np.zeros(100, np.int64)
    counts[[90, 3, 40, 41]] = 9, 5, 2, 1
    assert most_frequent(counts) == (90, 3, 40)
    assert most_frequent(np.ones(100)) == ()
    assert len(most_frequent(np.full(100, 2))) == 31


@pytest.mark.parametrize("frequent_first", [True, False])
def test_hot_rows_are_found_in_what_was_counted(frequent_first: bool) -> None:
    spec = table(20_000, zipf_shares(20_000, 1.2), frequent_first=frequent_first)
    counts = AccessCounts([spec])
    for seed in range(8):
        drawn = draw_rows(spec, 4000, np.random.default_rng(seed))
        counts.add("t", drawn, 4000)
        counts.samples += 4000
    (found,) = counts.measured([spec])
    assert found.frequent_first == frequent_first
    np.testing.assert_allclose(found.access[:6], spec.access[:6], atol=0.02)
    if frequent_first:
        assert found.hot == ()
        return
    hottest = draw_rows(replace(spec, access=(1.0,) + (0.0,) * 14), 1, np.random.default_rng(0))
    assert found.hot[0] == hottest[0]
    # Rows that were hot once and are no more have what they have now.
    (before,) = counts.measured([spec], {"t": tuple(range(1, 8))})
    assert before.hot == tuple(range(1, 8))
    assert sum(before.access[:3]) < 0.2 * sum(found.access[:3])


def test_nothing_is_expected_of_no_lookup() -> None:
    steps = steps_of(table(10))
    assert expected_distinct(steps, 0) == 0
    assert not expected_reuse(steps, 0).any()


def test_shares_that_are_none() -> None:
    for access in ((0.5, 0.5), (1.0, -1.0, 1.0), (0.0, 0.0, 0.0)):
        with pytest.raises(PlanError, match=r"table 't': access = .*expected 3 shares"):
            table(7, access)
    with pytest.raises(PlanError, match="hot rows go with access, and with frequent_first = False"):
        table(7, (0.5, 0.3, 0.2), hot=(1,))
