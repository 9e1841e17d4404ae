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
    copied_octaves,
    draw_rows,
    expected_distinct,
    expected_reuse,
    find_hot,
    first_octaves,
    is_frequent_first,
    octave_bounds,
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


@pytest.mark.parametrize("frequent_first", [True, False])
@pytest.mark.parametrize("known", [(), tuple(range(50, 1073))])
def test_copies_take_lookups_of_their_rows(frequent_first: bool, known: tuple[int, ...]) -> None:
    access = zipf_shares(20_000, 1.1) if known else ()
    spec = table(20_000, access, frequent_first=frequent_first, hot=() if frequent_first else known)
    ids = (*range(50, 305), 19_000)
    copied = copied_octaves(spec, ids)
    copies, rest = steps_of(spec, copied=copied, are_copies=True), steps_of(spec, copied=copied)
    assert float(copies[0].sum()) == 256
    assert float(copies[1].sum() + rest[1].sum()) == pytest.approx(1)
    if known:
        # Where they stand in order, or as far as it is known which ones they are.
        of_each = np.repeat(np.array(access) / np.diff(octave_bounds(20_000)), np.diff(octave_bounds(20_000)))
        hot = of_each[50:305].sum() + of_each[-1] if frequent_first else of_each[:255].sum() + of_each[-1]
        assert float(copies[1].sum()) == pytest.approx(hot)
    assert float(steps_of(spec, (0, 20_000), copied=copied)[1].sum()) == pytest.approx(float(rest[1].sum()))
    # A list that only has copied ids travels no more, though its table is in one piece.
    assert asked(spec, (0, 20_000), 100)[1] == 100
    assert asked(spec, (0, 20_000), 100, copied=copied)[1] == pytest.approx(100 * float(rest[1].sum()))


def test_so_many_of_the_most_frequent_rows() -> None:
    spec = table(20, (0.2,) * 5, frequent_first=False, hot=(7, 3, 9))
    assert first_octaves(spec, 3) == copied_octaves(spec, (9, 7, 3)) == (1, 2, 0, 0, 0)
    assert copied_octaves(spec, (3, 11, 12)) == (0, 1, 0, 0, 2)


def test_rows_that_nothing_distinguishes_do_not_look_hot() -> None:
    counts = np.bincount(np.random.default_rng(0).integers(0, 20_000, 100_000), minlength=20_000)
    shares, hot = find_hot(np.arange(20_000), counts, 20_000)
    assert shares == pytest.approx(np.diff(octave_bounds(20_000)) / 20_000, abs=0.01)
    assert len(hot) <= 10_000
    counts[123] += 50_000
    shares, hot = find_hot(np.arange(20_000), counts, 20_000)
    assert (hot[0], shares[0]) == (123, pytest.approx(1 / 3, abs=0.01))
    assert find_hot(np.arange(3), np.array([0, 0, 1]), 3) in {((), ()), ((1 / 3, 2 / 3), ())}
    assert find_hot(np.arange(3), np.zeros(3, np.int64), 3) == ((), ())


@pytest.mark.parametrize("frequent_first", [True, False])
def test_hot_rows_are_found_in_what_was_counted(frequent_first: bool) -> None:
    spec = table(20_000, zipf_shares(20_000, 1.2), frequent_first=frequent_first)
    one, other = (AccessCounts([spec], kept=2000) for _ in range(2))
    for seed in range(16):
        drawn = draw_rows(spec, 4000, np.random.default_rng(seed))
        (one, other)[seed % 2].add("t", drawn, 4000)
        (one, other)[seed % 2].samples += 4000
    counts = one + other
    hot = counts.hot_rows()
    assert counts.out_of_order(hot) == (set() if frequent_first else {"t"})
    (standing,), (found,) = (counts.measured([spec], listed) for listed in ({}, hot))
    assert (standing.frequent_first, standing.hot) == (True, ())
    assert not found.frequent_first
    np.testing.assert_allclose(found.access[:6], spec.access[:6], atol=0.02)
    assert found.hot[0] == 0
    if not frequent_first:
        assert standing.access[-1] > found.access[-1]


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
