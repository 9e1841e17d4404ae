"""windrow.recsys.log_survey: the log of a recipe in the batches of its training, counted one by one; its tables."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log_survey import groups_for, log_summary, open_and_survey
from windrow.recsys.log_tables import count_table_rows


@pytest.fixture
def recipe_file(planted_recipes):
    return planted_recipes["time"]


def test_batches_are_those_of_training(recipe_file):
    recipe = load_recommendation_recipe(recipe_file, ["training.batch_size=300"])
    _, found = open_and_survey(recipe, ranks=2)
    assert {len(places) for places in found.batches} == {150}
    assert (found.batch_size, found.pieces) == (150, 2)
    assert found.lengths["history"].max() == 30, "after transforms"
    recipe = load_recommendation_recipe(recipe_file, ["training.batch_size=9999"])
    _, found = open_and_survey(recipe, ranks=1)
    assert found.batch_size == found.split_samples == found.counted_samples()


def test_groups_are_those_that_are_planted(recipe_file):
    recipe = load_recommendation_recipe(recipe_file)
    _, found = open_and_survey(recipe, ranks=1, max_rows=2000)
    assert found.num_samples < 2500
    assert groups_for(recipe, found) == (("user",), ("cart", "sellers"), ("history",), ("tags",))


def test_rows_are_counted_where_repeats_are_left_out_too(tmp_path):
    draw = np.random.default_rng(1)
    sessions = np.repeat(np.arange(50), 6)
    lists = [draw.integers(0, 9, draw.integers(0, 4)).tolist() for _ in range(50)]
    items = draw.integers(0, 20, 300)
    columns = {
        "label": draw.integers(0, 2, 300),
        "session": sessions,
        "time": np.arange(300),
        "item": items,
        "cart": [lists[session] for session in sessions],
    }
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    rows = {"ids": "rows", "rows": 20}
    log = LogOptions(
        paths=[tmp_path / "log.parquet"],
        format="parquet",
        label="label",
        session="session",
        time="time",
        features={"item": FeatureOptions(**rows), "cart": FeatureOptions(**rows, multi_hot=True, table="item")},
    )
    split = LogSplitOptions(by="files")
    for leaves_out in (False, True):
        folder = tmp_path / f"store_{leaves_out}"
        store = prepare_log(folder, log, split, cluster=leaves_out, leave_out_repeats=leaves_out)
        counts = count_table_rows(store)
        in_lists = [number for session in sessions for number in lists[session]]
        assert counts["item"].tolist() == np.bincount([*items, *in_lists], minlength=20).tolist()


def test_what_is_refused(recipe_file, planted_store, tmp_path):
    recipe = load_recommendation_recipe(recipe_file)
    for options, words in (
        ({"ranks": 0}, "--ranks 0: expected at least 1"),
        ({"ranks": 1, "max_rows": 0}, "--rows 0: expected at least 1"),
        ({"ranks": 5}, "5 ranks share 4 shards"),
    ):
        with pytest.raises(RecipeError, match=words):
            open_and_survey(recipe, **options)
    with pytest.raises(StoreError, match="windrow prepare"):
        open_and_survey(load_recommendation_recipe(recipe_file, ["log.dense=[]"]), ranks=1)
    with pytest.raises(StoreError, match="no prepared log"):
        open_and_survey(load_recommendation_recipe(recipe_file, ["store=elsewhere"]), ranks=1)
    planted_store(tmp_path, session=False)
    with pytest.raises(StoreError, match=r"has no sessions.*session = "):
        open_and_survey(load_recommendation_recipe(tmp_path / "planted.toml"), ranks=1)
    (tmp_path / "places.toml").write_text(
        '[log]\npaths = ["a.npz"]\nformat = "interactions"\n[model]\nkind = "two_tower"\n'
    )
    with pytest.raises(RecipeError, match=r"interactions.*no sessions"):
        open_and_survey(load_recommendation_recipe(tmp_path / "places.toml"), ranks=1)


def test_summary(tmp_path: Path) -> None:
    words, tags = ["x", "y", "x", None], [[1, 2], [3], [], [4]]
    columns = pa.table({"label": [0, 1, 0, 0], "word": words, "tags": tags, "p": [1.0, None] * 2})
    parquet.write_table(columns, tmp_path / "log.parquet")
    log = LogOptions(
        paths=(tmp_path / "log.parquet",),
        format="parquet",
        dense=("p",),
        features={"word": FeatureOptions(min_count=2), "tags": FeatureOptions(ids="hash", rows=1000, multi_hot=True)},
    )
    store = prepare_log(tmp_path / "store", log, LogSplitOptions(fractions=(1.0, 0.0, 0.0)))
    cells = [line.split() for line in log_summary(store)]
    assert cells[0] == ["split", "samples", "positives", "base", "rate", "files"]
    assert cells[2] == ["train", "4", "1", "0.2500", "1"]
    assert cells[4] == ["feature", "ids", "rows", "distinct", "missing", "unseen", "ids", "per", "sample"]
    assert cells[6] == ["word", "vocabulary", "3", "1", "1", "1", "1.00"]
    assert cells[7] == ["tags", "hash", "1,000", "-", "1", "-", "1.00"]
    assert cells[8] == ["missing", "dense", "values,", "now", "0:", "p", "2"]
    assert cells[9][2:] == ["in", str(store.path)]
