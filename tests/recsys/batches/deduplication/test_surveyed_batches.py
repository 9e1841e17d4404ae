"""windrow.recsys.batches.deduplication.survey: batches against the reader's, counts against sets."""

import numpy as np
import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.batches.deduplication.survey import batches_as_read, batches_of_neighbours
from windrow.recsys.batches.deduplication.survey_sample import CodedSamples, choose_sessions


def numbered(count: int) -> CodedSamples:
    """Samples that differ in "number" and are one of three in "kind", of as many ids."""
    numbers = np.arange(count, dtype=np.int32)
    return CodedSamples(
        {"number": numbers, "kind": numbers % 3}, {"number": np.ones_like(numbers), "kind": numbers % 3}
    )


def test_batches_are_cut_as_the_reader_cuts_a_log(planted_store, tmp_path):
    store = planted_store(tmp_path, order="sessions")
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


def test_batches_of_the_training_reader(planted_store, tmp_path):
    store = planted_store(tmp_path)
    reader = BatchReader(store, "train", rank=1, size=2, batch_size=200, lanes=2, seed=7)
    with reader.batches(0) as batches:
        found = batches_as_read(store.split("train"), batches)
    with reader.batches(0) as batches:
        read = list(batches)
    assert len(found.batches) == reader.steps_per_epoch
    chosen = choose_sessions(store, "train")
    session_of = dict(zip(chosen.rows.tolist(), chosen.sessions.tolist(), strict=True))
    distinct = 0
    for coded, batch in zip(found.batches, read, strict=True):
        lists = [tuple(one.tolist()) for one in batch.sparse["cart"].to_dense()]
        assert coded.distinct(["cart"]).rows == len(set(lists))
        assert coded.num_ids("cart") == sum(map(len, lists))
        distinct += len({session_of[row] for row in batch.row_ids.tolist()})
    assert found.samples_per_session == sum(batch.num_samples for batch in read) / distinct
