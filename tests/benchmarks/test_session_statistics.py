"""benchmarks.harness.session_statistics: measured is expected, and both are counted right on small logs by hand."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.harness.session_statistics import PUBLISHED, expected_statistics, measured_statistics
from windrow.comm.errors import DataError
from windrow.recsys.log.synthetic.generate import generate_log
from windrow.recsys.log.synthetic.options import FeatureGroup, SessionFeature, SessionLogOptions, recd
from windrow.recsys.log.synthetic.sessions import popularity

IDS_PER_FEATURE = 15.8
"""Ids of a sample in each feature of Meta's traces, and how often an id occurs among so many samples."""
REUSE, REUSE_SAMPLES = 6.9, 65_536


def test_by_hand(tmp_path):
    # Session 8 is unchanged, moves on by one, is drawn anew; session 9 is empty twice. Rows are in no order.
    rows = [
        (8, 2, [9, 1, 7], 5),
        (9, 0, [], 1),
        (8, 0, [4, 9, 1], 5),
        (8, 3, [5, 5], 6),
        (9, 1, [], 1),
        (8, 1, [4, 9, 1], 4),
    ]
    columns = dict(zip(("session", "time", "list", "one"), zip(*rows, strict=True), strict=True))
    table = pa.table({name: list(values) for name, values in columns.items()})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = measured_statistics(tmp_path / "a.parquet", ["list", "one"])
    assert found.samples_per_session == 3
    assert found.samples_per_session_in_batch is None
    assert found.mean_length == {"list": pytest.approx(11 / 6), "one": 1}
    assert found.unchanged == {"list": pytest.approx(2 / 4), "one": pytest.approx(1 / 4)}
    assert found.unchanged_share == pytest.approx(3 / 8)
    # Compared: lists of 3, 3, 2 and 0 ids, of which 3 are unchanged, and 2 more moved on; and 4 single ids.
    assert found.unchanged_id_share == pytest.approx((3 + 1) / (8 + 4))
    assert found.repeated_id_share == pytest.approx((3 + 2 + 1) / (8 + 4))


def test_samples_of_a_session_in_a_batch(tmp_path):
    # The first batch holds each session twice, the second four times, the rest is no batch.
    sessions = np.concatenate([np.arange(4096) // 2, np.arange(4096) // 4, np.zeros(100, np.int64)])
    table = pa.table({"visit": sessions, "at": np.arange(sessions.size), "x": sessions})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    found = measured_statistics(tmp_path / "a.parquet", ["x"], session="visit", time="at")
    assert found.samples_per_session_in_batch == pytest.approx(2 * 4096 / (2048 + 1024))


def test_generated_logs_have_what_is_expected(tmp_path):
    options = recd(length_scale=0.3)
    path = tmp_path / "a.parquet"
    generate_log(path, options, samples=40_000)
    measured = measured_statistics(path, [feature.name for feature in options.features])
    expected = expected_statistics(options)
    assert measured.samples_per_session == pytest.approx(expected.samples_per_session, rel=0.05)
    for name, share in expected.unchanged.items():
        assert measured.unchanged[name] == pytest.approx(share, abs=0.02), name
        assert measured.mean_length[name] == pytest.approx(expected.mean_length[name], rel=0.1), name
    for name in ("unchanged_share", "unchanged_id_share", "repeated_id_share"):
        assert getattr(measured, name) == pytest.approx(getattr(expected, name), abs=0.01), name


@pytest.mark.parametrize("mean_length", [None, 1.0, 2.0])
def test_small_tables_repeat_by_chance(tmp_path, mean_length):
    shifted = 0.0 if mean_length is None else 0.5
    group = FeatureGroup(
        name="g",
        features=(SessionFeature(name="x", rows=3, skew=1.5),),
        mean_length=mean_length,
        unchanged=0.5,
        shifted=shifted,
    )
    options = SessionLogOptions(groups=(group,))
    generate_log(tmp_path / "a", options, samples=60_000)
    measured = measured_statistics(tmp_path / "a", ["x"]).unchanged["x"]
    # Lists of two and more may repeat as well, a little: of 3 ids.
    assert measured == pytest.approx(
        expected_statistics(options).unchanged["x"], abs=0.01 if mean_length != 2 else 0.06
    )
    assert measured > 0.6


def test_nothing_to_compare(tmp_path):
    parquet.write_table(pa.table({"session": [1, 2], "time": [0, 0], "x": [1, 1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="every session has one sample"):
        measured_statistics(tmp_path / "a.parquet", ["x"])


def test_the_preset_expects_what_is_published():
    expected = expected_statistics(recd())
    assert expected.samples_per_session == PUBLISHED["samples_per_session"]
    for name in ("unchanged_share", "unchanged_id_share", "repeated_id_share"):
        assert getattr(expected, name) == pytest.approx(PUBLISHED[name], abs=0.005), name


def test_users_lists_are_long_and_repeat_and_items_ids_are_single_and_change():
    options = recd()
    expected = expected_statistics(options)
    lists = [f.name for group in options.groups if group.mean_length is not None for f in group.features]
    (item,) = [group for group in options.groups if group.name == "item"]
    assert min(expected.mean_length[name] for name in lists) > 5
    assert min(expected.unchanged[name] for name in lists) > 0.7
    assert item.mean_length is None
    assert max(expected.unchanged[feature.name] for feature in item.features) < 0.05
    assert 450 < options.ids_per_sample() < 550


def test_ids_are_used_again_as_often_as_in_published_traces():
    options = recd()
    lengths = expected_statistics(options).mean_length
    assert sum(lengths.values()) / len(lengths) == pytest.approx(IDS_PER_FEATURE, rel=0.02)
    distinct = 0.0
    for feature in options.features:
        draws = REUSE_SAMPLES * lengths[feature.name]
        distinct += float(-np.expm1(draws * np.log1p(-popularity(feature))).sum())
    reuse = REUSE_SAMPLES * sum(lengths.values()) / distinct
    assert reuse == pytest.approx(REUSE, rel=0.05)
