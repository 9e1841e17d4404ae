from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.batch_reader import Shards, permutation, permutation_of_runs, windows_of

dealings = st.builds(Shards, num_rows=st.integers(0, 200), batch_size=st.integers(1, 40), num_shards=st.integers(1, 12))
sizes = st.integers(1, 6)


def deal(shards: Shards) -> list[list[list[int]]]:
    """Rows of each step and shard, dealt one by one."""
    left = [list(range(*shards.rows(shard))) for shard in range(shards.num_shards)]
    assert [row for rows in left for row in rows] == list(range(shards.num_rows))
    steps = []
    for position in range(shards.num_rows):
        if position % shards.batch_size == 0:
            steps.append([[] for _ in left])
        shard = position % shards.num_shards
        steps[-1][shard].append(left[shard].pop(0))
    assert not any(left)
    return steps


@given(dealings)
def test_is_what_dealing_all_rows_one_by_one_gives(shards):
    steps = deal(shards)
    assert shards.steps_per_epoch == len(steps)
    for step, of_shards in enumerate(steps):
        assert shards.global_batch_size(step) == sum(map(len, of_shards))
        for shard, rows in enumerate(of_shards):
            first, _ = shards.rows(shard)
            start, stop = shards.places(shard, step)
            assert list(range(first + start, first + stop)) == rows
            assert all(shards.step_of(shard, place) == step for place in range(start, stop))


@given(dealings, sizes)
def test_ranks_share_the_lanes_in_order(shards, size):
    if size > shards.num_shards:
        with pytest.raises(RecipeError, match=rf"{size} ranks share {shards.num_shards} shards.*multiple of {size}"):
            shards.of_rank(0, size)
        return
    shares = [shards.of_rank(rank, size) for rank in range(size)]
    assert [shard for share in shares for shard in share] == list(range(shards.num_shards))
    assert all(len(share) >= 1 for share in shares)


@given(st.integers(0, 300), st.integers(0, 100), st.integers(1, 50), st.integers(0, 3))
def test_windows_tile_the_shard(start, length, window_rows, epoch):
    rows = (start, start + length)
    in_order = windows_of(3, rows, window_rows)
    shuffled = windows_of(3, rows, window_rows, seed=7, epoch=epoch)
    covered = [row for window in in_order for row in range(window.start, window.stop)]
    assert covered == list(range(*rows))
    assert sorted((window.start, window.stop) for window in shuffled) == [
        (window.start, window.stop) for window in in_order
    ]
    for windows in (in_order, shuffled):
        assert [window.first_place for window in windows] == [
            sum(len(before) for before in windows[:index]) for index in range(len(windows))
        ]
        assert all(window.start // window_rows == (window.stop - 1) // window_rows for window in windows)


def test_windows_are_in_another_order_in_every_epoch_and_shard():
    orders = {
        tuple(window.start for window in windows_of(shard, (0, 1000), 10, seed=0, epoch=epoch))
        for shard in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


@given(st.integers(0, 2**64 - 1), st.integers(0, 70))
def test_permutation_holds_everything_once(key, length):
    order = permutation(key, length)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(length))
    assert order.tolist() == permutation(key, length).tolist()


def test_permutations_are_uniform():
    counts = np.zeros((6, 6))
    for key in range(6000):
        counts[np.arange(6), permutation(key, 6)] += 1
    # Each count is binomial, 6000 draws with probability 1/6: standard deviation 29.
    assert abs(counts - 1000).max() < 5 * 29


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 2**63))
def test_runs_stay_together_and_in_order(sessions, key):
    order = permutation_of_runs(key, np.array(sessions, np.int64)).tolist()
    starts = [row for row in range(len(sessions)) if row == 0 or sessions[row] != sessions[row - 1]]
    runs = [list(range(*bounds)) for bounds in pairwise([*starts, len(sessions)])]
    drawn = permutation(key, len(runs)).tolist()
    assert order == [row for run in drawn for row in runs[run]]
