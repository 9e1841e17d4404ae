"""windrow.recsys.batches.deduplication.survey: against a slow reader of the log, one sample after another."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.batches.deduplication.survey import survey_log
from windrow.recsys.batches.transforms import TransformOptions, Transforms

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
    return {
        order: planted_store(tmp_path_factory.mktemp(order), order=order) for order in ("time", "sessions")
    }


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


def test_the_plants_are_found(stores):
    found = survey(stores["time"])
    expected = {"item": 0.0, "user": 1.0, "cart": 0.9, "history": 0.8, "tags": 0.5}
    for name, unchanged in expected.items():
        assert found.unchanged([name]) == pytest.approx(unchanged, abs=0.03)
    assert found.unchanged(["cart", "sellers"]) == found.unchanged(["cart"])
    assert found.unchanged(["cart", "history"]) == pytest.approx(0.72, abs=0.04)


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
