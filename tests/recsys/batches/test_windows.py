import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.recsys.batches.jagged import Jagged
from windrow.recsys.batches.row_groups import RowGroup, SharedGroups, distinct_rows
from windrow.recsys.batches.windows import (
    GroupBatches,
    Piece,
    batch_of_pieces,
    read_window,
    read_window_groups,
)
from windrow.recsys.log.store import FeatureEntry

pytest.importorskip("torchrec")


# (cart, sellers, history) of a sample; cart and sellers are a group.
sample = st.tuples(*[st.lists(st.integers(0, 2), max_size=3)] * 3)
row_groups = st.lists(st.lists(sample, min_size=1, max_size=8), min_size=1, max_size=3)


def id_lists(lists, *, weighted=False):
    ids = np.array([number for numbers in lists for number in numbers], np.int64)
    return Jagged(ids, np.cumsum([0, *map(len, lists)]), (ids % 2).astype(np.float32) if weighted else None)


def shared(samples, *, colliding, weighted):
    cart, sellers, history = ([taken[index] for taken in samples] for index in range(3))
    groups = [
        distinct_rows([id_lists(cart, weighted=weighted), id_lists(sellers)]),
        distinct_rows([id_lists(history)]),
    ]
    rows = tuple(
        found._replace(hashes=np.full_like(found.hashes, 5)) if colliding else found for found, _ in groups
    )
    return SharedGroups(rows, np.array([inverse for _, inverse in groups], np.int32))


def rows_of_group(jagged):
    """Of each row the lists of all features."""
    of_features = [
        [ids.tolist() for ids in jagged[key].values().split(jagged[key].lengths().tolist())]
        for key in jagged.keys()  # noqa: SIM118 - a method of KeyedJaggedTensor, which is no mapping
    ]
    return list(zip(*of_features, strict=True)) if jagged.stride() else []


@given(row_groups, st.booleans(), st.booleans(), st.data())
def test_batches_hold_what_their_samples_have(samples_of_groups, colliding, weighted, data):
    """Windows over row groups, batches of pieces of windows, equal rows in several row groups, colliding hashes."""
    sources = [shared(samples, colliding=colliding, weighted=weighted) for samples in samples_of_groups]
    batches = GroupBatches([["cart", "sellers"], ["history"]], [weighted, False])
    windows = []
    for _ in range(2):
        parts, chosen = [], []
        for source, samples in zip(sources, samples_of_groups, strict=True):
            start = data.draw(st.integers(0, len(samples) - 1))
            stop = data.draw(st.integers(start + 1, len(samples)))
            parts.append((source, start, stop))
            chosen += samples[start:stop]
        order = data.draw(st.none() | st.permutations(range(len(chosen))))
        window = read_window_groups(parts, None if order is None else np.array(order))
        windows.append((window, chosen if order is None else [chosen[place] for place in order]))
    # A second batch, so that it shows where the first left something behind.
    for _ in range(2):
        pieces, wanted = [], []
        for window, samples in windows:
            start = data.draw(st.integers(0, len(samples)))
            stop = data.draw(st.integers(start, len(samples)))
            pieces.append((window, start, stop))
            wanted += samples[start:stop]
        carts, histories = batches.batch(pieces)
        for group, expected in (
            (carts, [(cart, sellers) for cart, sellers, _ in wanted]),
            (histories, [(history,) for _, _, history in wanted]),
        ):
            rows = rows_of_group(group.unique)
            assert [rows[row] for row in group.inverse.tolist()] == expected
            assert [tuple(map(tuple, row)) for row in rows] == list(
                dict.fromkeys(tuple(map(tuple, row)) for row in expected)
            )
        assert (carts.unique.weights_or_none() is not None) == weighted
        assert histories.unique.weights_or_none() is None
        if weighted:
            ids = carts.unique["cart"].values()
            assert carts.unique["cart"].weights().tolist() == (ids % 2).tolist()
            assert set(carts.unique["sellers"].weights().tolist()) <= {1.0}


def test_equal_ids_of_other_weights_stay_apart():
    """Two row groups that differ in a weight alone, under one hash."""
    sources = []
    for weight in (0.5, 0.25):
        rows, inverse = distinct_rows(
            [Jagged(np.array([7]), np.array([0, 1]), np.array([weight], np.float32))]
        )
        rows = rows._replace(hashes=np.zeros(1, np.uint64))
        sources.append((SharedGroups((rows,), inverse[None].astype(np.int32)), 0, 1))
    (found,) = GroupBatches([["cart"]], [True]).batch([(read_window_groups(sources, None), 0, 2)])
    assert found.inverse.tolist() == [0, 1]
    assert found.unique.weights().tolist() == [0.5, 0.25]


def test_a_batch_does_not_share_memory_with_its_window():
    item = FeatureEntry(
        name="item", table="item", rows=9, multi_hot=False, weighted=False, ids="rows", counts={}
    )
    numbers = np.arange(2)
    group = RowGroup(
        labels=numbers.astype(np.float32),
        dense=numbers.astype(np.float32)[:, None],
        single=(numbers,),
        lists=(),
        groups=SharedGroups((), np.zeros((0, 2), np.int32)),
    )
    window = read_window([(group, 0, 2)], 0, None)
    batch = batch_of_pieces([Piece(window, 0, 2)], [item], GroupBatches([], []))
    window.single[:] = 77
    window.dense[:] = 77
    assert batch.sparse["item"].values().tolist() == [0, 1]
    assert batch.dense[:, 0].tolist() == [0, 1]
