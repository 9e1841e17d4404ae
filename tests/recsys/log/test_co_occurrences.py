"""windrow.recsys.log.co_occurrences: which ids occur together, counted one sample after another."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import RecipeError
from windrow.launch.recommendation_recipe import make_recommendation_recipe
from windrow.recsys.log.co_occurrences import co_occurrences
from windrow.recsys.log.prepare import prepare_log

SAMPLES = 300


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A prepared log in several row groups, and its columns. Users have a vocabulary, of which one is too rare."""
    folder = tmp_path_factory.mktemp("log")
    draw = np.random.default_rng(5)
    columns = {
        "label": draw.integers(0, 2, SAMPLES),
        "user": [f"u{number}" for number in draw.integers(0, 9, SAMPLES)],
        "item": draw.integers(0, 6, SAMPLES),
        "cart": [draw.integers(0, 5, draw.integers(0, 4)).tolist() for _ in range(SAMPLES)],
        "other": draw.integers(0, 6, SAMPLES),
    }
    columns["user"][0] = "once"
    columns["place"] = [None if number % 5 == 0 else f"p{number % 7}" for number in range(SAMPLES)]
    parquet.write_table(pa.table(columns), folder / "log.parquet")
    values = {
        "name": "log",
        "store": "store",
        "log": {
            "paths": ["log.parquet"],
            "format": "parquet",
            "features": {
                "user": {"min_count": 2},
                "item": {"ids": "rows", "rows": 6},
                "cart": {"ids": "rows", "rows": 5, "multi_hot": True},
                "place": {"ids": "hash", "rows": 1000},
                "other": {"ids": "rows", "rows": 6, "table": "item"},
            },
        },
        "split": {"by": "files"},
    }
    recipe = make_recommendation_recipe(values, source="log.toml", base=folder)
    return prepare_log(recipe.store, recipe.log, recipe.split), columns


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("features", [("user", "item", "cart", "other"), ("user", "cart"), ("item", "other", "cart")])
def test_pairs_are_those_of_the_samples(log, features, positive):
    store, columns = log
    found = co_occurrences(store, features, positive=positive)
    rows_of_users = dict(zip(*store.vocabulary("user").select(["value", "id"]).to_pydict().values(), strict=True))
    table_of = {"other": "item"}
    expected = Counter()
    for number in range(SAMPLES):
        if positive and not columns["label"][number]:
            continue
        vertices = []
        for name in features:
            value = columns[name][number]
            ids = value if name == "cart" else [value]
            if name == "user":
                ids = [rows_of_users[user] for user in ids if user in rows_of_users]
            vertices.append([found.vertices[table_of.get(name, name)][0] + id_ for id_ in ids])
        for one, other in combinations(vertices, 2):
            expected.update(tuple(sorted(pair)) for pair in product(one, other) if pair[0] != pair[1])
    pairs = list(zip(*found.pairs.tolist(), strict=True))
    assert dict(zip(pairs, found.counts.tolist(), strict=True)) == dict(expected)
    assert len(set(pairs)) == len(pairs)
    assert found.num_vertices == sum(rows for table, rows in store.table_rows().items() if table in found.vertices)


def test_values_that_are_missing_occur_with_nothing(log):
    store, columns = log
    found = co_occurrences(store, ("place", "item"), positive=False)
    assert found.pairs[0].min() > found.vertices["place"][0]
    assert found.counts.sum() == sum(place is not None for place in columns["place"])
    assert set(co_occurrences(store).vertices) == {"user", "item", "cart", "place"}


def test_what_is_refused(log):
    with pytest.raises(RecipeError, match=r"has no 'itm'\. Did you mean 'item'"):
        co_occurrences(log[0], ("itm", "user"))
    with pytest.raises(RecipeError, match="ids of two at least"):
        co_occurrences(log[0], ("user",))
