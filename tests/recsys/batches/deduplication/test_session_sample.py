"""windrow.recsys.batches.deduplication.survey_sample: whole sessions, and rows in any order."""

from collections import Counter
from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import StoreError
from windrow.recsys.batches.deduplication.survey_sample import choose_sessions, read_rows


def column(store, name):
    return np.concatenate([parquet.read_table(file)[name].to_numpy() for file in store.split("train").files])


@pytest.fixture(scope="module")
def stores(planted_store, tmp_path_factory):
    return {
        order: planted_store(tmp_path_factory.mktemp(order), order=order) for order in ("time", "sessions")
    }


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_all_of_a_small_split(stores, order):
    store = stores[order]
    chosen = choose_sessions(store, "train")
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


def test_chosen_sessions_are_whole(stores):
    for store in stores.values():
        everything = Counter(column(store, "session").tolist())
        chosen = choose_sessions(store, "train", max_rows=600)
        found = Counter(chosen.sessions.tolist())
        assert 300 < len(chosen.rows) < 900
        assert all(everything[session] == number for session, number in found.items())
        assert len(chosen.as_logged) == (600 if not chosen.is_clustered else len(chosen.rows))


def test_only_a_span_in_the_middle_is_looked_at(stores):
    chosen = choose_sessions(stores["time"], "train", max_rows=30)
    middle = stores["time"].split("train").rows // 2
    assert chosen.rows.min() >= middle - 15 * 16 - 1
    assert chosen.rows.max() <= middle + 15 * 16 + 1
    assert np.array_equal(chosen.as_logged, np.arange(30) + chosen.as_logged[0])
    assert len(choose_sessions(stores["time"], "train", max_rows=1).rows) >= 1


def test_files_of_sessions(stores):
    chosen = choose_sessions(stores["time"], "train")
    dealt = column(stores["time"], "session")[chosen.sharded(3)]
    assert sorted(chosen.sharded(3)) == sorted(chosen.as_logged)
    places = {session: np.flatnonzero(dealt == session) for session in np.unique(dealt)}
    times = column(stores["time"], "time")[chosen.sharded(3)]
    starts = [0, *(np.flatnonzero(np.diff(times) < 0) + 1).tolist(), len(times)]
    assert len(starts) == 4, "three files, each in order of time"
    assert all(np.searchsorted(starts, place, "right").std() == 0 for place in places.values())
    assert np.array_equal(chosen.sharded(1), chosen.as_logged)


def test_a_clustered_log_without_times_has_lost_its_order(planted_store, tmp_path):
    chosen = choose_sessions(planted_store(tmp_path, order="sessions", time=False), "train")
    assert chosen.is_clustered
    assert chosen.as_logged is None
    assert chosen.sharded(2) is None
    assert np.array_equal(chosen.rows, np.arange(len(chosen.rows)))


def test_without_sessions(planted_store, tmp_path):
    with pytest.raises(StoreError, match=r"no sessions.*session = .*windrow prepare"):
        choose_sessions(planted_store(tmp_path, session=False), "train")


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
