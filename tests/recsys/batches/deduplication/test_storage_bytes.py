"""windrow.recsys.batches.deduplication.storage_bytes: what the store's own writer makes of samples."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.recsys.batches.deduplication.storage_bytes import StorageScales, stored_bytes
from windrow.recsys.batches.deduplication.survey_sample import choose_sessions
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log


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
    scales = StorageScales(store.split("train"), choose_sessions(store, "train"), 1)
    for columns_of in (["label"], ["session"]):
        scales.add(columns_of)
    scales.add(["cart", "cart.weights"], of_feature=True)
    written = sum(file.stat().st_size for file in store.split("train").files)
    assert scales.sizes().clustered * rows == pytest.approx(written, rel=0.02)


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
