import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.batches.batch_reader import BatchReader, Lanes, permutation, windows_of
from windrow.recsys.batches.deduplication import distinct_lists
from windrow.recsys.batches.deduplication.ikjt import deduplicate
from windrow.recsys.batches.transforms import TransformOptions, Transforms

NUM_DENSE = 3


def columns(num_rows):
    """Arrow columns of two features of one id, a multi-hot one and a weighted multi-hot one."""
    pa = pytest.importorskip("pyarrow")
    rows = np.arange(num_rows)
    lengths = rows % 4
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    num_ids = int(lengths.sum())
    return {
        "label": pa.array((rows % 3 == 0).astype(np.float32)),
        "dense": pa.FixedSizeListArray.from_arrays(
            pa.array(np.arange(num_rows * NUM_DENSE, dtype=np.float32)), NUM_DENSE
        ),
        "item": pa.array(rows * 7),
        "history": pa.ListArray.from_arrays(offsets, pa.array(np.arange(num_ids))),
        "basket": pa.ListArray.from_arrays(offsets, pa.array(np.arange(num_ids) + 100)),
        "basket.weights": pa.ListArray.from_arrays(offsets, pa.array(np.arange(num_ids, dtype=np.float32) / 2)),
        "user": pa.array(rows * 11),
    }


@dataclass
class Expected:
    """What a batch of some rows holds, put together one sample at a time."""

    rows: list[int]

    def __post_init__(self):
        self.ids, self.lengths, self.weights = [], [], []
        for name in ("item", "history", "basket", "user"):
            for row in self.rows:
                before = sum(earlier % 4 for earlier in range(row))
                ids = {
                    "item": [row * 7],
                    "user": [row * 11],
                    "history": list(range(before, before + row % 4)),
                    "basket": list(range(before + 100, before + 100 + row % 4)),
                }[name]
                self.ids += ids
                self.lengths.append(len(ids))
                self.weights += [(number - 100) / 2 if name == "basket" else 1.0 for number in ids]

    def check(self, batch):
        assert batch.row_ids.tolist() == self.rows
        assert batch.labels.tolist() == [float(row % 3 == 0) for row in self.rows]
        assert batch.dense.shape == (len(self.rows), NUM_DENSE)
        assert batch.dense[:, 0].tolist() == [float(row * NUM_DENSE) for row in self.rows]
        assert batch.sparse.keys() == ["item", "history", "basket", "user"]
        assert batch.sparse.stride() == len(self.rows)
        assert batch.sparse.values().tolist() == self.ids
        assert batch.sparse.lengths().tolist() == self.lengths
        assert batch.sparse.weights().tolist() == self.weights
        assert batch.sparse.values().dtype == torch.int64


def order_of_lane(lanes, lane, window_rows, seed, epoch):
    """Rows of a lane in the order of an epoch, or of the log where there is no seed."""
    windows = windows_of(lane, lanes.rows(lane), window_rows, seed=seed, epoch=epoch)
    if seed is None:
        return [row for window in windows for row in range(window.start, window.stop)]
    return [
        window.start + place
        for window in windows
        for place in permutation(stream_key(seed, Stream.SHUFFLE, epoch, lane, window.start), len(window)).tolist()
    ]


@dataclass(frozen=True)
class Case:
    num_rows: int
    batch_size: int
    lanes: int
    shuffle: str
    shuffle_rows: int
    row_group_rows: int
    memory_bytes: int


cases = st.builds(
    Case,
    num_rows=st.integers(0, 60),
    batch_size=st.integers(1, 20),
    lanes=st.integers(4, 9),
    shuffle=st.sampled_from(["window", "none"]),
    shuffle_rows=st.integers(1, 25),
    row_group_rows=st.integers(1, 20),
    memory_bytes=st.sampled_from([0, 500, 1 << 20]),
)


def read(reader, epoch, first_step=0):
    with reader.batches(epoch, first_step) as batches:
        return list(batches)


def open_reader(store, case, rank, size):
    return BatchReader(
        store,
        "train",
        rank=rank,
        size=size,
        batch_size=case.batch_size,
        lanes=case.lanes,
        shuffle=case.shuffle,
        shuffle_rows=case.shuffle_rows,
        seed=5,
        memory_bytes=case.memory_bytes,
    )


@settings(max_examples=15)
@given(cases, st.data())
def test_ranks_together_read_the_global_minibatch(write_log, case, data):
    lanes = Lanes(case.num_rows, case.batch_size, case.lanes)
    epoch = data.draw(st.integers(0, 2))
    first_step = data.draw(st.integers(0, lanes.steps_per_epoch))
    cut = data.draw(st.integers(0, case.num_rows))
    with tempfile.TemporaryDirectory() as folder:
        store = write_log(
            Path(folder) / "log",
            columns(case.num_rows),
            num_dense=NUM_DENSE,
            row_group_rows=case.row_group_rows,
            file_rows=[cut, case.num_rows - cut],
        )
        seed = 5 if case.shuffle == "window" else None
        orders = [order_of_lane(lanes, lane, case.shuffle_rows, seed, epoch) for lane in range(case.lanes)]
        for size in (1, 2, 4):
            readers = [open_reader(store, case, rank, size) for rank in range(size)]
            assert {reader.steps_per_epoch for reader in readers} == {lanes.steps_per_epoch}
            assert {reader.samples_per_epoch for reader in readers} == {case.num_rows}
            of_ranks = [read(reader, epoch, first_step) for reader in readers]
            assert {len(batches) for batches in of_ranks} == {lanes.steps_per_epoch - first_step}
            for step, batches in enumerate(zip(*of_ranks, strict=True), first_step):
                total = sum(batch.num_samples for batch in batches)
                assert total == readers[0].global_batch_size(epoch, step)
                for reader_rank, batch in enumerate(batches):
                    Expected(
                        [
                            row
                            for lane in lanes.of_rank(reader_rank, size)
                            for row in orders[lane][slice(*lanes.places(lane, step))]
                        ]
                    ).check(batch)


@pytest.fixture
def store(tmp_path, write_log):
    return write_log(tmp_path / "log", columns(40), num_dense=NUM_DENSE, row_group_rows=10, file_rows=[20, 20])


def reader_of(store, **options):
    return BatchReader(store, "train", **{"rank": 0, "size": 1, "batch_size": 4, **options})


def test_every_row_once_and_in_another_order_in_every_epoch(store):
    reader = reader_of(store)
    epochs = [[row for batch in read(reader, epoch) for row in batch.row_ids.tolist()] for epoch in range(3)]
    assert all(sorted(rows) == list(range(40)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 3


@pytest.mark.parametrize("groups", [(), (("history",), ("item", "user")), (("basket",), ("item",))])
def test_batches_have_memory_of_their_own(store, groups):
    """Row groups are kept, and give the same once more."""
    reader = reader_of(store, shuffle="none", groups=groups)
    for _ in range(2):
        for batch in read(reader, 0):
            whole = batch.expanded()
            assert whole.sparse["item"].values().tolist() == [row * 7 for row in whole.row_ids.tolist()]
            assert whole.dense[:, 0].tolist() == [row * NUM_DENSE for row in whole.row_ids.tolist()]
            for tensor in (batch.dense, batch.labels, batch.sparse.values(), batch.sparse.weights_or_none()):
                if tensor is not None:
                    tensor.fill_(77)
            for group in batch.deduplicated:
                group.unique.values().fill_(77)


def test_counts_the_wait(store):
    reader = reader_of(store)
    assert reader.waited_s == 0
    read(reader, 0)
    assert reader.waited_s > 0


def test_a_store_of_labels_alone(tmp_path, write_log):
    batches = read(reader_of(write_log(tmp_path / "log", {"label": columns(5)["label"]}), shuffle="none"), 0)
    assert [batch.num_samples for batch in batches] == [4, 1]
    assert [batch.sparse.stride() for batch in batches] == [4, 1]
    assert batches[0].dense.shape == (4, 0)


def threads():
    return {thread for thread in threading.enumerate() if thread.name == "prefetch"}


def test_closing_early_ends_the_threads(store):
    with reader_of(store, batch_size=1).batches(0) as batches:
        next(batches)
        assert threads()
    assert not threads()


def test_a_file_cut_off_is_named_where_its_samples_would_come(store):
    reader = reader_of(store, shuffle="none", lanes=1, memory_bytes=0)
    damaged = store.split("train").files[1]
    os.truncate(damaged, 100)
    with reader.batches(0, first_step=5) as batches, pytest.raises(StoreError, match=damaged.name):
        list(batches)
    assert not threads()


def test_a_file_cut_off_before_is_named_at_once(store):
    damaged = store.split("train").files[1]
    os.truncate(damaged, 100)
    with pytest.raises(StoreError, match=damaged.name):
        reader_of(store)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle_rows": 0}, "shuffle_rows = 0"),
        ({"memory_bytes": -1}, "memory_bytes = -1"),
        ({"prefetch_steps": 0}, "prefetch_steps = 0"),
        ({"shuffle": "full"}, "shuffle = 'full'"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"size": 9}, "9 ranks share 8 lanes"),
    ],
)
def test_refuses_options_out_of_range(store, options, message):
    with pytest.raises(RecipeError, match=message):
        reader_of(store, **options)


@dataclass(frozen=True)
class SharedCase(Case):
    transform_once: bool


shared_cases = st.builds(
    SharedCase,
    num_rows=st.integers(0, 60),
    batch_size=st.integers(1, 30),
    lanes=st.integers(2, 5),
    shuffle=st.sampled_from(["window", "sessions", "none"]),
    shuffle_rows=st.integers(1, 40),
    row_group_rows=st.integers(1, 30),
    memory_bytes=st.sampled_from([0, 500, 1 << 20]),
    transform_once=st.booleans(),
)
GROUPS = (("basket", "user"), ("history",))


def repeating_columns(sessions):
    """Columns of samples that repeat what others of their session have, now and then."""
    pa = pytest.importorskip("pyarrow")
    rows = range(len(sessions))
    lists = [[session, session + 1, row % 3 // 2][: session % 4] for row, session in enumerate(sessions)]
    return {
        "label": pa.array(np.zeros(len(sessions), np.float32)),
        "dense": pa.array([[float(row)] for row in rows], pa.list_(pa.float32(), 1)),
        "item": pa.array(np.arange(len(sessions))),
        "history": pa.array(lists, pa.list_(pa.int64())),
        "basket": pa.array(lists[::-1], pa.list_(pa.int64())),
        "basket.weights": pa.array(
            [[0.5 + row % 2] * len(ids) for row, ids in enumerate(lists[::-1])], pa.list_(pa.float32())
        ),
        "user": pa.array(np.array(sessions, np.int64) // 2),
        "session": pa.array(np.array(sessions, np.int64)),
    }


def same_hash_for_all(columns, rows):
    return np.full(len(rows), 5, np.uint64)


@settings(max_examples=40)
@given(shared_cases, st.booleans(), st.booleans(), st.data())
def test_groups_hold_what_plain_batches_hold(write_log, case, transformed, colliding, data):
    """Bit for bit what deduplicating the plain batches gives, on any rank, from any step on, transforms included."""
    sessions = data.draw(st.lists(st.integers(0, 5), min_size=case.num_rows, max_size=case.num_rows))
    rank = data.draw(st.integers(0, 1))
    with tempfile.TemporaryDirectory() as folder:
        store = write_log(
            Path(folder) / "log", repeating_columns(sessions), num_dense=1, row_group_rows=case.row_group_rows
        )
        steps = {
            "history": TransformOptions(keep_last=1, clip=(1, 4)),
            "user": TransformOptions(hash_rows=3),
            "item": TransformOptions(clip=(0, 20)),
            "band": TransformOptions(dense="dense_0", bucketise=(5.0, 30.0)),
        }
        left_out = write_log(
            Path(folder) / "left out",
            repeating_columns(sessions),
            num_dense=1,
            row_group_rows=case.row_group_rows,
            leave_out_repeats=True,
        )
        options = {
            "rank": rank,
            "size": 2,
            "batch_size": case.batch_size,
            "lanes": case.lanes,
            "shuffle": case.shuffle,
            "shuffle_rows": case.shuffle_rows,
            "memory_bytes": case.memory_bytes,
            "transforms": Transforms(steps, store.features, store.dense) if transformed else None,
        }
        plain = BatchReader(store, "train", **options)
        source = data.draw(st.sampled_from([store, left_out]))
        shared = BatchReader(source, "train", groups=GROUPS, transform_once=case.transform_once, **options)
        filled = BatchReader(left_out, "train", transform_once=case.transform_once, **options)
        names = ["item", "history", "basket", "user"] + ["band"] * transformed
        assert [feature.name for feature in shared.features] == names
        first_step = data.draw(st.integers(0, plain.steps_per_epoch))
        with pytest.MonkeyPatch.context() as patch:
            if colliding:
                patch.setattr(distinct_lists, "hash_lists", same_hash_for_all)
            of_readers = [read(reader, 1, first_step) for reader in (plain, shared, filled)]
        for one, other, again in zip(*of_readers, strict=True):
            assert torch.equal(one.sparse.values(), again.sparse.values())
            assert torch.equal(one.sparse.lengths(), again.sparse.lengths())
            assert torch.equal(one.sparse.weights(), again.sparse.weights())
            assert one.sparse.keys() == names
            assert other.sparse.keys() == ["item"] + ["band"] * transformed
            assert one.deduplicated == ()
            for left, right in (
                (one.row_ids, other.row_ids),
                (one.labels, other.labels),
                (one.dense, other.dense),
                (one.sparse["item"].values(), other.sparse["item"].values()),
            ):
                assert torch.equal(left, right)
            for group, found in zip(GROUPS, other.deduplicated, strict=True):
                check_group(deduplicate(one.sparse, group), found)


def check_group(wanted, found):
    assert found.keys == wanted.keys
    assert torch.equal(found.inverse, wanted.inverse)
    assert torch.equal(found.unique.values(), wanted.unique.values())
    assert torch.equal(found.unique.lengths(), wanted.unique.lengths())
    assert found.unique.stride() == wanted.unique.stride()
    if "basket" in found.keys:  # Plain batches have weights of 1 for the others.
        assert torch.equal(found.unique.weights(), wanted.unique.weights())
    else:
        assert found.unique.weights_or_none() is None


def test_equal_ids_of_other_weights_stay_apart(tmp_path, write_log, monkeypatch):
    """In two row groups, and under one hash."""
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(distinct_lists, "hash_lists", same_hash_for_all)
    ids, weights = pa.array([[7], [7]]), pa.array([[0.5], [0.25]], pa.list_(pa.float32()))
    log = {"label": columns(2)["label"], "basket": ids, "basket.weights": weights}
    store = write_log(tmp_path / "log", log, row_group_rows=1)
    (batch,) = read(reader_of(store, groups=[["basket"]], shuffle="none", lanes=1), 0)
    assert batch.deduplicated[0].inverse.tolist() == [0, 1]
    assert batch.deduplicated[0].unique.weights().tolist() == [0.5, 0.25]


def test_sessions_stay_together_and_come_in_another_order_in_every_epoch(tmp_path, write_log):
    sessions = [row // 5 for row in range(60)]
    store = write_log(tmp_path / "log", repeating_columns(sessions), num_dense=1, row_group_rows=30)
    reader = reader_of(store, shuffle="sessions", shuffle_rows=30, lanes=1, batch_size=20)
    orders = []
    for epoch in range(3):
        rows = [row for batch in read(reader, epoch) for row in batch.row_ids.tolist()]
        runs = [rows[start : start + 5] for start in range(0, 60, 5)]
        assert sorted(runs) == [list(range(start, start + 5)) for start in range(0, 60, 5)]
        orders.append(tuple(run[0] for run in runs))
    assert len(set(orders)) == 3


def test_refuses_to_shuffle_sessions_that_there_are_not(store):
    with pytest.raises(StoreError, match="has no sessions to shuffle: set session in"):
        reader_of(store, shuffle="sessions")


def test_refuses_a_group_of_an_unknown_feature(store):
    with pytest.raises(RecipeError, match="'hat', which is no feature"):
        reader_of(store, groups=[["history"], ["hat"]])
