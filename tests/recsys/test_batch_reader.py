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
from windrow.recsys.batch_reader import BatchReader
from windrow.recsys.lanes import Lanes, permutation, shuffled_windows, windows_in_order

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
        "basket.weights": pa.ListArray.from_arrays(
            offsets, pa.array(np.arange(num_ids, dtype=np.float32) / 2)
        ),
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
    if seed is None:
        windows = windows_in_order(lane, lanes.rows(lane), window_rows)
        return [row for window in windows for row in range(window.start, window.stop)]
    return [
        window.start + place
        for window in shuffled_windows(lane, lanes.rows(lane), window_rows, seed=seed, epoch=epoch)
        for place in permutation(
            stream_key(seed, Stream.SHUFFLE, epoch, lane, window.start), len(window)
        ).tolist()
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
    return write_log(
        tmp_path / "log", columns(40), num_dense=NUM_DENSE, row_group_rows=10, file_rows=[20, 20]
    )


def reader_of(store, **options):
    return BatchReader(store, "train", **{"rank": 0, "size": 1, "batch_size": 4, **options})


def test_every_row_once_and_in_another_order_in_every_epoch(store):
    reader = reader_of(store)
    epochs = [[row for batch in read(reader, epoch) for row in batch.row_ids.tolist()] for epoch in range(3)]
    assert all(sorted(rows) == list(range(40)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 3


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
