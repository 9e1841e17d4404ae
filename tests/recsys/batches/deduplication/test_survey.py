from collections import Counter
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from windrow.comm.errors import RecipeError, StoreError
from windrow.recsys.batches.batch import Batch
from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.batches.deduplication.survey import batches_as_read, batches_of_neighbours, survey_log
from windrow.recsys.batches.deduplication.survey_sample import (
    CodedSamples,
    StorageScales,
    choose_sessions,
    code_batch,
    code_lists,
    read_rows,
)
from windrow.recsys.batches.transforms import TransformOptions, Transforms
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log

BATCH, LANES = 256, 2


def survey(store, **changes):
    reader = BatchReader(store, "train", rank=0, size=1, batch_size=BATCH, lanes=LANES, shuffle="none")
    with reader.batches(0) as batches:
        read = list(batches)[:2]
    return survey_log(store, read, **{"batch_size": BATCH, "lanes": LANES, "size": 1} | changes)


def slow_samples(store):
    """Every sample as a dictionary, session after session in order of time."""
    table = pa.concat_tables([parquet.read_table(file) for file in store.split("train").files])
    return sorted(table.to_pylist(), key=lambda sample: (sample["session"], sample["time"]))


@pytest.fixture(scope="module")
def stores(planted_store, tmp_path_factory):
    kinds = {"time": {}, "sessions": {"order": "sessions"}, "no times": {"order": "sessions", "time": False}}
    return {kind: planted_store(tmp_path_factory.mktemp(kind), **options) for kind, options in kinds.items()}


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_against_a_slow_reader(stores, order):
    found = survey(stores[order])
    samples = slow_samples(stores[order])
    assert found.num_samples == found.split_samples == len(samples)
    assert found.num_sessions == len({sample["session"] for sample in samples})
    assert found.samples_per_session == found.num_samples / found.num_sessions
    assert found.is_clustered == (order == "sessions")
    assert (found.batch_size, found.pieces) == (BATCH, LANES)
    pairs = [(before, after) for before, after in pairwise(samples) if before["session"] == after["session"]]
    for group in [[name] for name in found.features] + [["cart", "sellers"], ["history", "cart", "tags"]]:
        unchanged = [all(before[name] == after[name] for name in group) for before, after in pairs]
        assert found.unchanged(group) == np.mean(unchanged)
    for name in ("cart", "history", "tags"):
        assert found.mean_length(name) == np.mean([len(sample[name]) for sample in samples])
    assert found.mean_length("item") == 1
    repeated = sum(
        len(after["history"])
        for before, after in pairs
        if (before["history"], before["cart"]) == (after["history"], after["cart"])
    )
    num_ids = sum(len(sample["history"]) for sample in samples)
    left = LANES + (BATCH - LANES) * (1 - repeated / num_ids)
    expected = pytest.approx(num_ids / len(samples) * left)
    assert found.predicted_ids("history", ["history", "cart"]) == expected


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_the_formula_holds_for_clustered_batches_and_not_for_interleaved_ones(stores, order):
    found = survey(stores[order])
    # Empty lists, as carts often are, are found equal in other sessions too.
    for group in (["user"], ["history"], ["item"]):
        assert found.clustered.factor(group) == pytest.approx(found.predicted_factor(group), rel=0.1)
        assert found.predicted_rows(group) == pytest.approx(found.batch_size / found.predicted_factor(group))
    # One id each, so as many as rows.
    assert found.predicted_ids("item", ["item"]) == pytest.approx(found.predicted_rows(["item"]))
    assert found.clustered.factor(["user"]) == pytest.approx(found.clustered.samples_per_session, rel=0.01)
    assert found.as_read.factor(["user"]) == pytest.approx(found.as_read.samples_per_session, rel=0.01)
    if order == "time":
        assert found.as_read.factor(["user"]) < 0.6 * found.clustered.factor(["user"])
    else:
        assert found.as_read.factor(["user"]) == pytest.approx(found.clustered.factor(["user"]), rel=0.1)


def test_shares_of_ids(stores):
    found = survey(stores["time"])
    ids = np.array([one for sample in slow_samples(stores["time"]) for one in sample["history"]])
    for rows in ((0, 1 << 18), (1 << 18, 1 << 20), (0, 0), (0, 1 << 20)):
        share = np.mean((ids >= rows[0]) & (ids < rows[1]))
        assert found.id_share("history", rows) == pytest.approx(share, abs=0.02)
    assert found.id_share("history", (0, 1 << 20)) == 1


def test_a_feature_without_ids_and_sessions_of_one_sample(write_log, tmp_path):
    numbers = np.arange(12)
    store = write_log(
        tmp_path / "store",
        {
            "label": pa.array(numbers % 2, pa.float32()),
            "item": pa.array(numbers),
            "cart": pa.array([[]] * 12, pa.list_(pa.int64())),
            "session": pa.array(numbers),
        },
    )
    found = survey(store)
    assert found.samples_per_session == 1
    assert found.unchanged(["cart"]) == 0
    assert found.predicted_factor(["cart"]) == 1
    assert found.mean_length("cart") == 0
    assert found.id_share("cart", (0, 10)) == 0
    assert found.clustered.distinct(["cart"]) == (1, {"cart": 0})


def test_lists_are_compared_after_transforms(stores):
    store = stores["time"]
    options = {
        "history": TransformOptions(keep_last=1),
        "cart": TransformOptions(clip=(0, 0)),
        "cheap": TransformOptions(dense="price", bucketise=(0.0,)),
    }
    found = survey(store, transforms=Transforms(options, store.features, store.dense))
    samples = slow_samples(store)
    pairs = [(a, b) for a, b in pairwise(samples) if a["session"] == b["session"]]
    expected = {
        "history": np.mean([a["history"][-1:] == b["history"][-1:] for a, b in pairs]),
        "cart": np.mean([len(a["cart"]) == len(b["cart"]) for a, b in pairs]),
        "cheap": np.mean([(a["dense"][0] < 0) == (b["dense"][0] < 0) for a, b in pairs]),
    }
    assert {name: found.unchanged([name]) for name in expected} == expected
    assert found.features[-1] == "cheap"
    assert found.num_stored["history"] == sum(len(sample["history"]) for sample in samples)
    assert found.mean_length("history") == np.mean([len(sample["history"]) > 0 for sample in samples])
    assert found.id_share("cart", (0, 1)) == 1


def test_fewer_samples_of_a_larger_log(stores):
    whole, part = survey(stores["time"]), survey(stores["time"], max_rows=1000)
    assert part.num_samples < 1500 < whole.num_samples == part.split_samples
    assert part.samples_per_session == pytest.approx(whole.samples_per_session, rel=0.1)
    assert part.storage.as_logged == pytest.approx(whole.storage.as_logged, rel=0.5)


def numbered(count: int) -> CodedSamples:
    """Samples that differ in "number" and are one of three in "kind", of as many ids."""
    numbers = np.arange(count, dtype=np.int32)
    return CodedSamples(
        {"number": numbers, "kind": numbers % 3}, {"number": np.ones_like(numbers), "kind": numbers % 3}
    )


def test_batches_are_cut_as_the_reader_cuts_a_log(stores):
    store = stores["sessions"]
    split = store.split("train")
    reader = BatchReader(store, "train", rank=0, size=2, batch_size=split.rows // 3, lanes=4, shuffle="none")
    with reader.batches(0) as batches:
        expected = [batch.row_ids.tolist() for batch in batches][:3]
    sample = numbered(split.rows)
    sessions = np.arange(split.rows) // 5
    found = batches_of_neighbours(sample, sessions, batch_size=split.rows // 3, lanes=4, size=2)
    assert [batch.codes["number"].tolist() for batch in found.batches] == expected
    distinct = sum(len({row // 5 for row in rows}) for rows in expected)
    assert found.samples_per_session == sum(map(len, expected)) / distinct


def test_means_over_batches():
    found = batches_of_neighbours(numbered(40), np.zeros(40, np.int64), batch_size=8, lanes=1, size=1)
    assert [batch.codes["number"][0] for batch in found.batches] == [0, 8, 16, 24, 32]
    assert found.num_samples == 8
    assert found.samples_per_session == 8
    assert found.num_ids("number") == 8
    assert found.num_ids("kind") == pytest.approx(np.mean([n % 3 for n in range(40)]) * 8)
    assert found.longest("kind") == 2
    assert found.distinct(["kind"]) == (3, {"kind": 3})
    assert found.factor(["kind"]) == pytest.approx(8 / 3)
    assert found.factor(["kind", "number"]) == 1


def test_a_log_shorter_than_a_batch_is_one():
    found = batches_of_neighbours(numbered(5), np.arange(5), batch_size=100, lanes=2, size=1)
    assert [sorted(batch.codes["number"]) for batch in found.batches] == [[0, 1, 2, 3, 4]]
    with pytest.raises(RecipeError, match="3 ranks share 2 lanes"):
        batches_of_neighbours(numbered(5), np.arange(5), batch_size=100, lanes=2, size=3)


def test_batches_of_the_training_reader(stores):
    store = stores["time"]
    reader = BatchReader(store, "train", rank=1, size=2, batch_size=200, lanes=2, seed=7)
    with reader.batches(0) as batches:
        found = batches_as_read(store.split("train"), batches)
    with reader.batches(0) as batches:
        read = list(batches)
    assert len(found.batches) == reader.steps_per_epoch
    chosen = choose_sessions(store)
    session_of = dict(zip(chosen.rows.tolist(), chosen.sessions.tolist(), strict=True))
    distinct = 0
    for coded, batch in zip(found.batches, read, strict=True):
        lists = [tuple(one.tolist()) for one in batch.sparse["cart"].to_dense()]
        assert coded.distinct(["cart"])[0] == len(set(lists))
        assert coded.num_ids("cart") == sum(map(len, lists))
        distinct += len({session_of[row] for row in batch.row_ids.tolist()})
    assert found.samples_per_session == sum(batch.num_samples for batch in read) / distinct


NAMES = ("cart", "sellers", "tags")

samples_of_lists = st.lists(st.tuples(*(st.lists(st.integers(0, 2), max_size=3) for _ in NAMES)), max_size=20)


def coded(samples: list[tuple[list[int], ...]], lists_from) -> CodedSamples:
    codes, lengths = {}, {}
    for place, name in enumerate(NAMES):
        codes[name], lengths[name] = code_lists(lists_from([sample[place] for sample in samples]))
    return CodedSamples(codes, lengths)


@given(samples_of_lists, st.permutations(NAMES), st.integers(1, 3))
def test_distinct_rows_and_their_ids(lists_from, samples, names, size):
    group = names[:size]
    expected = {tuple(tuple(sample[NAMES.index(name)]) for name in group) for sample in samples}
    ids = {name: sum(len(key[place]) for key in expected) for place, name in enumerate(group)}
    assert coded(samples, lists_from).distinct(group) == (len(expected), ids)


def test_many_features_of_many_values_do_not_overflow():
    draw = np.random.default_rng(0)
    codes = {name: draw.permutation(100_000).astype(np.int32) for name in "abcdefgh"}
    found = CodedSamples(codes, {name: np.ones(100_000, np.int32) for name in codes})
    assert found.distinct("abcdefgh")[0] == 100_000
    assert found.joined("abcdefgh").max() == 99_999


def test_a_batch_with_weights(jagged_of):
    sparse = jagged_of(
        {"item": [[7], [2], [7], [7]], "cart": [[4, 1], [], [4, 1], []]},
        {"item": [[1.0]] * 4, "cart": [[0.5, 1.0], [], [0.25, 1.0], []]},
    )
    found = code_batch(Batch(torch.zeros(4, 0), sparse, torch.zeros(4), torch.arange(4)))
    assert found.codes["item"].tolist() == [0, 1, 0, 0]
    assert found.codes["cart"].tolist() == [0, 1, 2, 1]
    assert found.lengths["cart"].tolist() == [2, 0, 2, 0]
    assert CodedSamples({}, {}).num_samples == 0


def column(store, name):
    return np.concatenate([parquet.read_table(file)[name].to_numpy() for file in store.split("train").files])


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_all_of_a_small_split(stores, order):
    store = stores[order]
    chosen = choose_sessions(store)
    rows = store.split("train").rows
    assert sorted(chosen.rows) == list(range(rows))
    assert chosen.is_clustered == (order == "sessions")
    assert chosen.num_sessions == 400
    assert np.array_equal(chosen.sessions, column(store, "session")[chosen.rows])
    assert len(list(groupby(chosen.sessions.tolist()))) == 400, "each session is one run"
    times = column(store, "time")[chosen.rows]
    same = np.diff(chosen.sessions) == 0
    assert (np.diff(times)[same] >= 0).all()
    logged = column(store, "time")[chosen.as_logged]
    assert (np.diff(logged) >= 0).all()
    assert np.array_equal(chosen.sessions_as_logged, column(store, "session")[chosen.as_logged])


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_chosen_sessions_are_whole(stores, order):
    store = stores[order]
    everything = Counter(column(store, "session").tolist())
    chosen = choose_sessions(store, max_rows=600)
    found = Counter(chosen.sessions.tolist())
    assert 300 < len(chosen.rows) < 900
    assert all(everything[session] == number for session, number in found.items())
    assert len(chosen.as_logged) == (600 if not chosen.is_clustered else len(chosen.rows))


def test_only_a_span_in_the_middle_is_looked_at(stores):
    chosen = choose_sessions(stores["time"], max_rows=30)
    middle = stores["time"].split("train").rows // 2
    assert chosen.rows.min() >= middle - 15 * 16 - 1
    assert chosen.rows.max() <= middle + 15 * 16 + 1
    assert np.array_equal(chosen.as_logged, np.arange(30) + chosen.as_logged[0])
    assert len(choose_sessions(stores["time"], max_rows=1).rows) >= 1


def test_files_of_sessions(stores):
    chosen = choose_sessions(stores["time"])
    dealt = column(stores["time"], "session")[chosen.sharded(3)]
    assert sorted(chosen.sharded(3)) == sorted(chosen.as_logged)
    places = {session: np.flatnonzero(dealt == session) for session in np.unique(dealt)}
    times = column(stores["time"], "time")[chosen.sharded(3)]
    starts = [0, *(np.flatnonzero(np.diff(times) < 0) + 1).tolist(), len(times)]
    assert len(starts) == 4, "three files, each in order of time"
    assert all(np.searchsorted(starts, place, "right").std() == 0 for place in places.values())
    assert np.array_equal(chosen.sharded(1), chosen.as_logged)


def test_a_clustered_log_without_times_has_lost_its_order(stores):
    split = stores["no times"].split("train")
    chosen = choose_sessions(stores["no times"])
    assert chosen.is_clustered
    assert chosen.as_logged is None
    assert chosen.sharded(2) is None
    assert np.array_equal(chosen.rows, np.arange(len(chosen.rows)))
    scales = StorageScales(split, chosen, 2)
    scales.add(["cart"])
    sizes = scales.sizes()
    assert sizes.as_logged is None
    assert sizes.sharded is None
    assert sizes.clustered > 0


def test_without_sessions(planted_store, tmp_path):
    with pytest.raises(StoreError, match=r"no sessions.*session = .*windrow prepare"):
        choose_sessions(planted_store(tmp_path, session=False))


def test_rows_in_any_order(write_log, tmp_path):
    numbers = np.arange(100)
    lists = pa.array([list(range(n % 5)) for n in numbers])
    store = write_log(
        tmp_path / "store",
        {"label": pa.array(numbers, pa.float32()), "item": pa.array(numbers * 7), "cart": lists},
        row_group_rows=8,
        file_rows=[50, 50],
    )
    split = store.split("train")
    for rows in ([3], [99, 0, 50, 49, 51], [5, 5, 4], list(range(100)), list(range(40, 60)), [7, 8, 9][::-1]):
        found = read_rows(split, ["item", "cart"], np.array(rows))
        assert found["item"].to_pylist() == [row * 7 for row in rows]
        assert found["cart"].to_pylist() == [list(range(row % 5)) for row in rows]
        assert found["cart"].num_chunks == 1
    with pytest.raises(StoreError, match="none of the 1 samples"):
        read_rows(split, ["item"], np.array([100]))
    split.files[1].write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"part.*windrow prepare"):
        read_rows(split, ["item"], np.array([80]))


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_each_order_is_weighed(stores, order):
    split, chosen = stores[order].split("train"), choose_sessions(stores[order])
    scales = StorageScales(split, chosen, 3)
    table = scales.add(["history"])
    assert table.num_rows == len(chosen.rows)
    sizes = scales.sizes()
    assert sizes.clustered < 0.9 * sizes.as_logged
    assert sizes.sharded != sizes.as_logged
    scales.add(["user"])
    assert scales.sizes().clustered > sizes.clustered
    one_file = StorageScales(split, chosen, 1)
    one_file.add(["cart"])
    assert one_file.sizes().sharded == one_file.sizes().as_logged


def test_a_clustered_store_leaves_out_repeats(tmp_path):
    """As many bytes as windrow prepare makes of the same samples."""
    rows = 20_000
    draw = np.random.default_rng(1)
    cart = list(draw.integers(0, 1 << 40, (rows // 20, 8)).repeat(20, 0))
    columns = {"label": np.arange(rows) % 2, "session": np.arange(rows) // 20, "cart": cart}
    parquet.write_table(pa.table({**columns, "weight": [[0.5] * 8] * rows}), tmp_path / "log.parquet")
    log = LogOptions(
        paths=(tmp_path / "log.parquet",),
        format="parquet",
        session="session",
        features={"cart": FeatureOptions(ids="rows", rows=1 << 40, multi_hot=True, weights="weight")},
    )
    split = LogSplitOptions(fractions=(1.0, 0.0, 0.0))
    store = prepare_log(tmp_path / "store", log, split, cluster=True, leave_out_repeats=True)
    scales = StorageScales(store.split("train"), choose_sessions(store), 1)
    for columns_of in (["label"], ["session"]):
        scales.add(columns_of)
    scales.add(["cart", "cart.weights"], of_feature=True)
    written = sum(file.stat().st_size for file in store.split("train").files)
    assert scales.sizes().clustered * rows == pytest.approx(written, rel=0.02)
