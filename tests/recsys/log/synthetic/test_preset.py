"""windrow.recsys.log.synthetic.options: the preset has the published statistics, before anything is generated."""

import numpy as np
import pytest

from windrow.comm.errors import RecipeError
from windrow.recsys.log.synthetic.options import (
    PUBLISHED_IDS_PER_FEATURE,
    PUBLISHED_REUSE,
    PUBLISHED_REUSE_SAMPLES,
    published_statistics,
    recd,
)
from windrow.recsys.log.synthetic.sessions import popularity
from windrow.recsys.log.synthetic.statistics import expected_statistics


def test_the_preset_expects_what_is_published():
    expected, published = expected_statistics(recd()), published_statistics()
    assert expected.samples_per_session == published["samples_per_session"]
    for name in ("unchanged_share", "unchanged_id_share", "repeated_id_share"):
        assert getattr(expected, name) == pytest.approx(published[name], abs=0.005), name


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
    assert sum(lengths.values()) / len(lengths) == pytest.approx(PUBLISHED_IDS_PER_FEATURE, rel=0.02)
    distinct = 0.0
    for feature in options.features:
        draws = PUBLISHED_REUSE_SAMPLES * lengths[feature.name]
        distinct += float(-np.expm1(draws * np.log1p(-popularity(feature))).sum())
    reuse = PUBLISHED_REUSE_SAMPLES * sum(lengths.values()) / distinct
    assert reuse == pytest.approx(PUBLISHED_REUSE, rel=0.05)


def test_tables_go_over_orders_of_magnitude():
    rows = sorted(feature.rows for feature in recd().features)
    assert rows[0] <= 100
    assert rows[-1] >= 1_000_000


def test_scales():
    small = recd(length_scale=0.1, rows_scale=0.001)
    assert small.ids_per_sample() < 75
    assert max(feature.rows for feature in small.features) == 3_000
    assert min(feature.rows for feature in small.features) == 4
    with pytest.raises(RecipeError, match="rows_scale = 0"):
        recd(rows_scale=0)
