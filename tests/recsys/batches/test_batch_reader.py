import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.random import Stream, stream_key
from windrow.recsys.batches.batch_reader import BatchReader, Shards, permutation, windows_of
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


def check(batch, samples, rows):
    """Does a batch hold these rows of the samples, which are rows of a table as dictionaries?"""
    expected = [samples[row] for row in rows]
    assert batch.row_ids.tolist() == rows
    assert batch.labels.tolist() == [sample["label"] for sample in expected]
    assert batch.dense.shape == (len(rows), NUM_DENSE)
    assert batch.dense.tolist() == [sample["dense"] for sample in expected]
    assert batch.sparse.keys() == ["item", "history", "basket", "user"]
    assert batch.sparse.stride() == len(rows)
    lists = [[sample["item"]] for sample in expected]
    lists += [sample[name] for name in ("history", "basket") for sample in expected]
    lists += [[sample["user"]] for sample in expected]
    assert batch.sparse.values().tolist() == [one for ids in lists for one in ids]
    assert batch.sparse.lengths().tolist() == [len(ids) for ids in lists]
    before, after = ([1.0] * sum(map(len, part)) for part in (lists[: 2 * len(rows)], lists[3 * len(rows) :]))
    of_basket = [weight for sample in expected for weight in sample["basket.weights"]]
    assert batch.sparse.weights().tolist() == [*before, *of_basket, *after]
    assert batch.sparse.values().dtype == torch.int64


def order_of_shard(shards, shard, window_rows, seed, epoch):
    """Rows of a shard in the order of an epoch, or of the log where there is no seed."""
    windows = windows_of(shard, shards.rows(shard), window_rows, seed=seed, epoch=epoch)
    if seed is None:
        return [row for window in windows for row in range(window.start, window.stop)]
    return [
        window.start + place
        for window in windows
        for place in permutation(stream_key(seed, Stream.SHUFFLE, epoch, shard, window.start), len(window)).tolist()
    ]


def options_of_readers(shuffles, shards):
    return st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 25),
            "reader_shards": shards,
            "shuffle": st.sampled_from(shuffles),
            "shuffle_rows": st.integers(1, 30),
            "memory_bytes": st.sampled_from([0, 500, 1 << 20]),
        }
    )


def read(reader, epoch, first_step=0):
    with reader.batches(epoch, first_step) as batches:
        return list(batches)


@settings(max_examples=15)
@given(
    options=options_of_readers(["window", "none"], st.integers(4, 9)),
    num_rows=st.integers(0, 60),
    row_group_rows=st.integers(1, 20),
    epoch=st.integers(0, 2),
    data=st.data(),
)
def test_ranks_together_read_the_global_minibatch(write_log, options, num_rows, row_group_rows, epoch, data):
    pa = pytest.importorskip("pyarrow")
    shards = Shards(num_rows, options["batch_size"], options["reader_shards"])
    first_step = data.draw(st.integers(0, shards.steps_per_epoch))
    cut = data.draw(st.integers(0, num_rows))
    file_rows = [cut, num_rows - cut]
    log = columns(num_rows)
    samples = pa.table(log).to_pylist()
    with tempfile.TemporaryDirectory() as folder:
        store = write_log(
            Path(folder) / "log", log, num_dense=NUM_DENSE, row_group_rows=row_group_rows, file_rows=file_rows
        )
        seed = 5 if options["shuffle"] == "window" else None
        orders = [
            order_of_shard(shards, shard, options["shuffle_rows"], seed, epoch) for shard in range(shards.num_shards)
        ]
        for size in (1, 2, 4):
            readers = [BatchReader(store, "train", rank=rank, size=size, seed=5, **options) for rank in range(size)]
            assert {reader.steps_per_epoch for reader in readers} == {shards.steps_per_epoch}
            assert {reader.samples_per_epoch for reader in readers} == {num_rows}
            of_ranks = [read(reader, epoch, first_step) for reader in readers]
            assert {len(batches) for batches in of_ranks} == {shards.steps_per_epoch - first_step}
            for step, batches in enumerate(zip(*of_ranks, strict=True), first_step):
                assert sum(batch.num_samples for batch in batches) == readers[0].global_batch_size(epoch, step)
                for rank, batch in enumerate(batches):
                    of_shards = [
                        orders[shard][slice(*shards.places(shard, step))] for shard in shards.of_rank(rank, size)
                    ]
                    check(batch, samples, [row for rows in of_shards for row in rows])


@pytest.fixture
def store(tmp_path, write_log):
    return write_log(tmp_path / "log", columns(40), num_dense=NUM_DENSE, row_group_rows=10, file_rows=[20, 20])


def reader_of(store, **options):
    return BatchReader(store, "train", **{"rank": 0, "size": 1, "batch_size": 4, **options})


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
    reader = reader_of(store, shuffle="none", reader_shards=1, memory_bytes=0)
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
        ({"groups": [["history"], ["hat"]]}, "'hat', which is no feature"),
        ({"shuffle_rows": 0}, "shuffle_rows = 0"),
        ({"memory_bytes": -1}, "memory_bytes = -1"),
        ({"prefetch_steps": 0}, "prefetch_steps = 0"),
        ({"shuffle": "full"}, "shuffle = 'full'"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"reader_shards": 0}, "reader_shards = 0"),
        ({"size": 9}, "9 ranks share 8 shards"),
    ],
)
def test_refuses_options_out_of_range(store, options, message):
    with pytest.raises(RecipeError, match=message):
        reader_of(store, **options)


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


STEPS = {
    "history": TransformOptions(keep_last=1, clip=(1, 4)),
    "user": TransformOptions(hash_rows=3),
    "item": TransformOptions(clip=(0, 20)),
    "band": TransformOptions(dense="dense_0", bucketise=(5.0, 30.0)),
}


@settings(max_examples=40)
@given(
    options=options_of_readers(["window", "sessions", "none"], st.integers(2, 5)),
    sessions=st.lists(st.integers(0, 5), max_size=60),
    row_group_rows=st.integers(1, 30),
    rank=st.integers(0, 1),
    transform_once=st.booleans(),
    transformed=st.booleans(),
    colliding=st.booleans(),
    data=st.data(),
)
def test_groups_hold_what_plain_batches_hold(
    write_log, options, sessions, row_group_rows, rank, transform_once, transformed, colliding, data
):
    """Bit for bit what deduplicating the plain batches gives, on any rank, from any step on, transforms included."""
    log = repeating_columns(sessions)
    with tempfile.TemporaryDirectory() as folder:
        store, left_out = (
            write_log(Path(folder) / str(flag), log, num_dense=1, row_group_rows=row_group_rows, leave_out_repeats=flag)
            for flag in (False, True)
        )
        transforms = Transforms(STEPS, store.features, store.dense) if transformed else None
        options |= {"rank": rank, "size": 2, "transforms": transforms}
        plain = BatchReader(store, "train", **options)
        source = data.draw(st.sampled_from([store, left_out]))
        shared = BatchReader(source, "train", groups=GROUPS, transform_once=transform_once, **options)
        filled = BatchReader(left_out, "train", transform_once=transform_once, **options)
        names = ["item", "history", "basket", "user"] + ["band"] * transformed
        assert [feature.name for feature in shared.features] == names
        first_step = data.draw(st.integers(0, plain.steps_per_epoch))
        with pytest.MonkeyPatch.context() as patch:
            if colliding:
                patch.setattr(distinct_lists, "hash_lists", same_hash_for_all)
            of_readers = [read(reader, 1, first_step) for reader in (plain, shared, filled)]
        for one, other, again in zip(*of_readers, strict=True):
            for part in ("values", "lengths", "weights"):
                assert torch.equal(getattr(one.sparse, part)(), getattr(again.sparse, part)())
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
    (batch,) = read(reader_of(store, groups=[["basket"]], shuffle="none", reader_shards=1), 0)
    assert batch.deduplicated[0].inverse.tolist() == [0, 1]
    assert batch.deduplicated[0].unique.weights().tolist() == [0.5, 0.25]


def test_sessions_stay_together_and_come_in_another_order_in_every_epoch(tmp_path, write_log):
    sessions = [row // 5 for row in range(60)]
    store = write_log(tmp_path / "log", repeating_columns(sessions), num_dense=1, row_group_rows=30)
    reader = reader_of(store, shuffle="sessions", shuffle_rows=30, reader_shards=1, batch_size=20)
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
