"""windrow.recsys.log.synthetic.sessions: every sample on its own, labels that depend on the features."""

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from windrow.recsys.log.synthetic.options import FeatureGroup, SessionFeature, SessionLogOptions
from windrow.recsys.log.synthetic.sessions import Samples, draw_samples, popularity, sample_blocks

OPTIONS = SessionLogOptions(
    groups=(
        FeatureGroup(
            name="history",
            features=(
                SessionFeature(name="items", rows=1000),
                SessionFeature(name="shops", rows=100, effect=0.5),
            ),
            mean_length=5,
            unchanged=0.8,
            shifted=0.5,
            empty=0.1,
        ),
        FeatureGroup(name="user", features=(SessionFeature(name="user", rows=10_000),), unchanged=1.0),
        FeatureGroup(
            name="item",
            features=(SessionFeature(name="item", rows=50, effect=1.0),),
            dense=("price", "age"),
            dense_effect=0.5,
        ),
    ),
    samples_per_session=4,
    concurrent_sessions=10,
    seed=3,
)


def samples(count=200, order="time"):
    return Samples.joined(list(sample_blocks(OPTIONS, range(count), order=order, block_rows=100)))


def lists(values, name):
    offsets = values.offsets[name]
    return [values.ids[name][a:b].tolist() for a, b in itertools.pairwise(offsets)]


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_a_sample_does_not_depend_on_the_others():
    chosen = samples()
    whole = draw_samples(OPTIONS, chosen)
    backwards = draw_samples(OPTIONS, chosen.take(np.arange(chosen.times.size)[::-1]))
    np.testing.assert_array_equal(whole.labels, backwards.labels[::-1])
    np.testing.assert_array_equal(whole.sessions, backwards.sessions[::-1])
    assert lists(whole, "items") == lists(backwards, "items")[::-1]
    for name in ("user", "item"):
        np.testing.assert_array_equal(whole.ids[name], backwards.ids[name][::-1])
    for name in ("price", "age"):
        np.testing.assert_array_equal(whole.dense[name], backwards.dense[name][::-1])


def test_threads_do_not_matter():
    chosen = samples()
    alone = draw_samples(OPTIONS, chosen)
    with ThreadPoolExecutor(3) as pool:
        together = draw_samples(OPTIONS, chosen, pool.map)
    assert_same(vars(alone)["ids"], vars(together)["ids"])
    np.testing.assert_array_equal(alone.labels, together.labels)


def test_seeds_give_other_logs():
    chosen = samples()
    other = draw_samples(dataclasses.replace(OPTIONS, seed=4), chosen)
    assert (draw_samples(OPTIONS, chosen).ids["user"] != other.ids["user"]).mean() > 0.9


def test_features_of_a_group_have_lists_of_one_length_and_change_together():
    chosen = samples(order="sessions")
    values = draw_samples(OPTIONS, chosen)
    items, shops = lists(values, "items"), lists(values, "shops")
    assert [len(ids) for ids in items] == [len(ids) for ids in shops]
    same = np.diff(chosen.sessions) == 0
    changed = np.array([a != b for a, b in itertools.pairwise(items)])
    other = np.array([a != b for a, b in itertools.pairwise(shops)])
    # A new id of a small table may be the old one, never the other way round.
    assert not (other & ~changed & same).any()
    assert (other & changed & same).sum() > 0.7 * (changed & same).sum() > 10


def test_empty_lists_are_of_whole_sessions():
    chosen = samples(2000)
    lengths = np.diff(draw_samples(OPTIONS, chosen).offsets["items"])
    empty = np.unique(chosen.sessions[lengths == 0])
    assert not np.isin(chosen.sessions[lengths > 0], empty).any()
    assert empty.size / 2000 == pytest.approx(0.1, abs=0.03)
    assert lengths[lengths > 0].mean() == pytest.approx(5, abs=0.3)


def test_session_ids_are_different_and_hide_their_order():
    chosen = samples(2000, "sessions")
    ids = draw_samples(OPTIONS, chosen).sessions
    firsts = ids[np.unique(chosen.sessions, return_index=True)[1]]
    assert np.unique(firsts).size == 2000
    assert (firsts >= 0).all()
    assert 0.3 < (np.diff(firsts) > 0).mean() < 0.7


def test_clicks_depend_on_the_features():
    chosen = samples(20_000)
    values = draw_samples(OPTIONS, chosen)
    assert values.labels.mean() == pytest.approx(OPTIONS.click_share, abs=0.015)
    # Rates of items, learnt from one half, put the other half into order.
    half = chosen.times.size // 2
    items, clicked = values.ids["item"], values.labels.astype(float)
    shown = np.bincount(items[:half], minlength=50) + 1
    rates = (np.bincount(items[:half], clicked[:half], minlength=50) + 0.2) / shown
    assert np.corrcoef(rates[items[half:]], clicked[half:])[0, 1] > 0.25
    assert np.corrcoef(values.dense["price"], clicked)[0, 1] > 0.1
    assert np.corrcoef(values.dense["age"], clicked)[0, 1] < -0.1


@pytest.mark.parametrize("skew", [40.0, 52.0, 60.0, 300.0])
def test_an_id_that_is_nearly_all_there_is_says_nothing_about_clicks(skew):
    feature = SessionFeature(name="item", rows=1000, skew=skew, effect=0.1)
    options = SessionLogOptions(groups=(FeatureGroup(name="item", features=(feature,)),))
    assert draw_samples(options, samples(20_000)).labels.mean() == pytest.approx(0.2, abs=0.01)


def test_popularity_of_the_head_is_that_of_all():
    feature = SessionFeature(name="a", rows=500)
    np.testing.assert_array_equal(popularity(feature)[:20], popularity(feature, 20))
    assert (np.diff(popularity(feature)) < 0).all()
