"""windrow.recsys.deduplication.storage_bytes: what the store's own writer makes of samples."""

import numpy as np
import pyarrow as pa
import pytest

from windrow.recsys.deduplication.session_sample import choose_sessions
from windrow.recsys.deduplication.storage_bytes import StorageScales, stored_bytes


def test_neighbours_that_repeat_take_less():
    draw = np.random.default_rng(0)
    lists = draw.integers(0, 1 << 40, (500, 32))
    clustered = pa.table({"cart": pa.array(list(lists.repeat(16, 0)))})
    shuffled = clustered.take(pa.array(draw.permutation(8000)))
    small, large = stored_bytes(clustered, clustered=True), stored_bytes(shuffled, clustered=False)
    assert 500 * 32 * 5 < small < large / 2
    assert stored_bytes(shuffled, clustered=False) == large


@pytest.mark.parametrize("order", ["time", "sessions"])
def test_each_order_is_weighed(planted_store, tmp_path, order):
    store = planted_store(tmp_path, order=order)
    chosen = choose_sessions(store, "train")
    scales = StorageScales(store.split("train"), chosen, 3)
    table = scales.add(["history"])
    assert table.num_rows == len(chosen.rows)
    sizes = scales.sizes()
    assert sizes.clustered == stored_bytes(table, clustered=True) / len(chosen.rows)
    assert sizes.clustered < 0.9 * sizes.as_logged
    assert sizes.sharded != sizes.as_logged
    scales.add(["user"])
    assert scales.sizes().clustered > sizes.clustered


def test_one_file_is_the_log_as_it_was(planted_store, tmp_path):
    store = planted_store(tmp_path)
    scales = StorageScales(store.split("train"), choose_sessions(store, "train"), 1)
    scales.add(["cart"])
    assert scales.sizes().sharded == scales.sizes().as_logged


def test_an_order_that_is_not_known(planted_store, tmp_path):
    store = planted_store(tmp_path, order="sessions", time=False)
    scales = StorageScales(store.split("train"), choose_sessions(store, "train"), 2)
    scales.add(["cart"])
    assert scales.sizes().as_logged is None
    assert scales.sizes().sharded is None
    assert scales.sizes().clustered > 0
