from collections import Counter
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import RecipeError, StoreError
from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.batches.deduplication.survey import LogSurvey, choose_sessions, cut_batches, read_rows, survey_log
from windrow.recsys.batches.transforms import TransformOptions, Transforms

BATCH, LANES = 256, 2


def survey(store, **changes):
    return survey_log(store, **{"batch_size": BATCH, "reader_shards": LANES, "size": 1} | changes)


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
def test_the_formula_holds_for_clustered_batches(stores, order):
    found = survey(stores[order])
    # Empty lists, as carts often are, are found equal in other sessions too.
    for group in (["user"], ["history"], ["item"]):
        assert found.counted_factor(group) == pytest.approx(found.predicted_factor(group), rel=0.1)
        assert found.predicted_rows(group) == pytest.approx(found.batch_size / found.predicted_factor(group))
    # One id each, so as many as rows.
    assert found.predicted_ids("item", ["item"]) == pytest.approx(found.predicted_rows(["item"]))


def test_shares_of_ids(stores):
    found = survey(stores["time"])
    ids = np.array([one for sample in slow_samples(stores["time"]) for one in sample["history"]])
    for rows in ((0, 1 << 18), (1 << 18, 1 << 20), (0, 0), (0, 1 << 20)):
        share = np.mean((ids >= rows[0]) & (ids < rows[1]))
        assert found.id_share("history", rows) == pytest.approx(share, abs=0.02)
    assert found.id_share("history", (0, 1 << 20)) == 1


def test_ids_of_a_batch_counted_once(stores):
    store = stores["sessions"]
    found, samples = survey(store), slow_samples(store)
    sets = [{number for place in places for number in samples[place]["history"]} for places in found.batches]
    assert found.distinct_ids("history") == np.mean([len(each) for each in sets])
    half = np.mean([number < 1 << 19 for each in sets for number in each])
    assert found.id_share("history", (0, 1 << 19), distinct=True) == pytest.approx(half)


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
    assert found.distinct(["cart"]) == (1, {"cart": 0})


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
    assert found.mean_length("history") == np.mean([len(sample["history"]) > 0 for sample in samples])
    assert found.id_share("cart", (0, 1)) == 1


def test_fewer_samples_of_a_larger_log(stores):
    whole, part = survey(stores["time"]), survey(stores["time"], max_rows=1000)
    assert part.num_samples < 1500 < whole.num_samples == part.split_samples
    assert part.samples_per_session == pytest.approx(whole.samples_per_session, rel=0.1)


def coded(features: dict[str, np.ndarray], lengths: dict[str, np.ndarray], batches) -> LogSurvey:
    return LogSurvey(
        num_samples=1,
        num_sessions=1,
        split_samples=1,
        is_clustered=True,
        batch_size=1,
        pieces=1,
        codes=features,
        lengths=lengths,
        repeated={},
        ids={},
        batch_ids={},
        batches=batches,
    )


def test_batches_are_cut_as_the_reader_cuts_a_log(stores):
    store = stores["sessions"]
    split = store.split("train")
    reader = BatchReader(store, "train", rank=0, size=2, batch_size=split.rows // 3, reader_shards=4, shuffle="none")
    with reader.batches(0) as batches:
        expected = [batch.row_ids.tolist() for batch in batches][:3]
    found = cut_batches(split.rows, batch_size=split.rows // 3, reader_shards=4, size=2)
    assert [places.tolist() for places in found] == expected


def test_means_over_batches():
    numbers = np.arange(40, dtype=np.int32)
    batches = cut_batches(40, batch_size=8, reader_shards=1, size=1)
    assert [places[0] for places in batches] == [0, 8, 16, 24, 32]
    found = coded(
        {"number": numbers, "kind": numbers % 3}, {"number": np.ones_like(numbers), "kind": numbers % 3}, batches
    )
    assert found.counted_samples() == 8
    assert found.counted_ids("number") == 8
    assert found.counted_ids("kind") == pytest.approx(np.mean([n % 3 for n in range(40)]) * 8)
    assert found.distinct(["kind"]) == (3, {"kind": 3})
    assert found.counted_factor(["kind"]) == pytest.approx(8 / 3)
    assert found.counted_factor(["kind", "number"]) == 1


def test_a_log_shorter_than_a_batch_is_one():
    found = cut_batches(5, batch_size=100, reader_shards=2, size=1)
    assert [sorted(places) for places in found] == [[0, 1, 2, 3, 4]]
    with pytest.raises(RecipeError, match="3 ranks share 2 shards"):
        cut_batches(5, batch_size=100, reader_shards=2, size=3)


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_distinct_rows_and_their_ids(stores, order):
    found = survey(stores[order], reader_shards=1)
    chosen, _, _ = choose_sessions(stores[order])
    split = stores[order].split("train")
    table = pa.concat_tables([parquet.read_table(file) for file in split.files]).to_pylist()
    samples = [table[row] for row in chosen]
    for group in (["cart"], ["history", "cart"], ["tags", "item", "sellers"]):
        rows, ids = 0, dict.fromkeys(group, 0)
        for places in found.batches:
            distinct = {tuple(str(samples[place][name]) for name in group): samples[place] for place in places}
            rows += len(distinct)
            for name in group:
                ids[name] += sum(len(np.atleast_1d(sample[name])) for sample in distinct.values())
        count = len(found.batches)
        assert found.distinct(group) == (rows / count, {name: number / count for name, number in ids.items()})


def test_many_features_of_many_values_do_not_overflow():
    draw = np.random.default_rng(0)
    codes = {name: draw.permutation(100_000).astype(np.int32) for name in "abcdefgh"}
    found = coded(codes, {name: np.ones(100_000, np.int32) for name in codes}, [np.arange(100_000)])
    assert found.distinct("abcdefgh")[0] == 100_000


def test_lists_with_weights(write_log, tmp_path):
    columns = {
        "label": pa.array([0.0] * 4, pa.float32()),
        "item": pa.array([7, 2, 7, 7]),
        "cart": pa.array([[4, 1], [], [4, 1], []]),
        "cart.weights": pa.array([[0.5, 1.0], [], [0.25, 1.0], []], pa.list_(pa.float32())),
        "session": pa.array([0] * 4),
    }
    found = survey(write_log(tmp_path / "store", columns), batch_size=4)
    assert found.codes["item"].tolist() == [0, 1, 0, 0]
    assert found.codes["cart"].tolist() == [0, 1, 2, 1]
    assert found.lengths["cart"].tolist() == [2, 0, 2, 0]


def column(store, name):
    return np.concatenate([parquet.read_table(file)[name].to_numpy() for file in store.split("train").files])


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_all_of_a_small_split(stores, order):
    store = stores[order]
    chosen, sessions, is_clustered = choose_sessions(store)
    assert sorted(chosen) == list(range(store.split("train").rows))
    assert is_clustered == (order == "sessions")
    assert np.array_equal(sessions, column(store, "session")[chosen])
    assert len(list(groupby(sessions.tolist()))) == 400, "each session is one run"
    times = column(store, "time")[chosen]
    assert (np.diff(times)[np.diff(sessions) == 0] >= 0).all()


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_chosen_sessions_are_whole(stores, order):
    store = stores[order]
    everything = Counter(column(store, "session").tolist())
    chosen, sessions, _ = choose_sessions(store, max_rows=600)
    assert 300 < len(chosen) < 900
    assert all(everything[session] == number for session, number in Counter(sessions.tolist()).items())


def test_only_a_span_in_the_middle_is_looked_at(stores):
    chosen, _, _ = choose_sessions(stores["time"], max_rows=30)
    middle = stores["time"].split("train").rows // 2
    assert chosen.min() >= middle - 15 * 16 - 1
    assert chosen.max() <= middle + 15 * 16 + 1
    assert len(choose_sessions(stores["time"], max_rows=1)[0]) >= 1


def test_a_clustered_log_without_times_keeps_its_order(stores):
    chosen, _, is_clustered = choose_sessions(stores["no times"])
    assert is_clustered
    assert np.array_equal(chosen, np.arange(len(chosen)))


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
