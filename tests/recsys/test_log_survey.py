"""windrow.recsys.log_survey: the log of a recipe in the batches of its training, counted one by one; its tables."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.recsys.batches.batch_reader import BatchReader
from windrow.recsys.log.options import FeatureOptions, LogOptions, LogSplitOptions
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log_survey import StepCounter, groups_for, log_summary, open_and_survey


@pytest.fixture
def recipe_file(planted_recipes):
    return planted_recipes["time"]


def test_batches_are_those_of_training(recipe_file):
    recipe = load_recommendation_recipe(recipe_file, ["training.batch_size=300", "run.seed=5"])
    store, found = open_and_survey(recipe, ranks=2, seed=recipe.run.seed)
    reader = BatchReader(store, "train", rank=0, size=2, batch_size=300, reader_shards=4, seed=5)
    with reader.batches(0) as batches:
        first = next(batches)
    lengths = first.sparse["history"].lengths()
    assert found.as_read.batches[0].lengths["history"].tolist() == lengths.clamp(max=30).tolist()
    assert len(found.as_read.batches) == 4
    assert {batch.num_samples for batch in found.as_read.batches} == {150}
    assert (found.batch_size, found.pieces) == (150, 2)
    recipe = load_recommendation_recipe(recipe_file, ["training.batch_size=9999"])
    _, found = open_and_survey(recipe, ranks=1, seed=5)
    assert found.batch_size == found.split_samples == found.as_read.num_samples


def test_groups_are_those_that_are_planted(recipe_file):
    recipe = load_recommendation_recipe(recipe_file)
    _, found = open_and_survey(recipe, ranks=1, seed=recipe.run.seed, max_rows=2000)
    assert found.num_samples < 2500
    assert groups_for(recipe, found) == (("user",), ("cart", "sellers"), ("history",), ("tags",))


def test_what_is_refused(recipe_file, planted_store, tmp_path):
    recipe = load_recommendation_recipe(recipe_file)
    for options, words in (
        ({"ranks": 0}, "--ranks 0: expected at least 1"),
        ({"ranks": 1, "max_rows": 0}, "--rows 0: expected at least 1"),
        ({"ranks": 5}, "5 ranks share 4 shards"),
    ):
        with pytest.raises(RecipeError, match=words):
            open_and_survey(recipe, **options, seed=0)
    with pytest.raises(StoreError, match="windrow prepare"):
        open_and_survey(load_recommendation_recipe(recipe_file, ["log.dense=[]"]), ranks=1, seed=0)
    with pytest.raises(StoreError, match="no prepared log"):
        open_and_survey(load_recommendation_recipe(recipe_file, ["store=elsewhere"]), ranks=1, seed=recipe.run.seed)
    planted_store(tmp_path, session=False)
    with pytest.raises(StoreError, match=r"has no sessions.*session = "):
        open_and_survey(load_recommendation_recipe(tmp_path / "planted.toml"), ranks=1, seed=recipe.run.seed)
    (tmp_path / "places.toml").write_text(
        '[log]\npaths = ["a.npz"]\nformat = "interactions"\n[model]\nkind = "two_tower"\n'
    )
    with pytest.raises(RecipeError, match=r"interactions.*no sessions"):
        open_and_survey(load_recommendation_recipe(tmp_path / "places.toml"), ranks=1, seed=recipe.run.seed)


GROUPS = (("cart", "sellers"), ("history",))
POOLED, SEQUENCES = ("item", "user", "cart", "tags", "sellers"), ("history",)
MULTI_HOT = ("cart", "sellers", "history", "tags")
VECTOR_BYTES = 4 * 16


@pytest.fixture
def recipe(planted_recipes):
    return load_recommendation_recipe(planted_recipes["sessions"])


def means(batches, group):
    """Distinct rows of the mean batch, and ids in them, by Python's sets."""
    rows, ids = 0, dict.fromkeys(group, 0)
    for batch in batches.batches:
        columns = [batch.codes[name].tolist() for name in group]
        first = {}
        for place, key in enumerate(zip(*columns, strict=True)):
            first.setdefault(key, place)
        rows += len(first)
        for name in group:
            ids[name] += int(batch.lengths[name][list(first.values())].sum())
    count = len(batches.batches)
    return rows / count, {name: number / count for name, number in ids.items()}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("deduplicated", [False, True])
def test_against_counting(recipe, ranks, deduplicated):
    store, found = open_and_survey(recipe, ranks=ranks, seed=recipe.run.seed)
    counts = StepCounter(recipe, store, found, ranks=ranks, groups=GROUPS).count(
        found.clustered, deduplicated=deduplicated
    )
    size = found.clustered.num_samples
    rows = dict.fromkeys(found.features, size)
    ids = {name: found.clustered.num_ids(name) for name in found.features}
    group_rows = size * len(GROUPS)
    if deduplicated:
        group_rows = 0
        for group in GROUPS:
            distinct, of_distinct = means(found.clustered, group)
            group_rows += distinct
            rows |= dict.fromkeys(group, distinct)
            ids |= of_distinct
    inverses = 8 * size * len(GROUPS) * deduplicated
    assert counts.held_bytes == pytest.approx(ranks * (8 * sum(ids.values()) + 8 * sum(rows.values()) + inverses))
    stored = found.num_stored["history"] / found.sample.num_ids("history")
    assert stored > 1.05, "30 of up to 40 ids are kept"
    assert counts.list_values == pytest.approx(ranks * ids["history"] * stored)
    assert counts.lookups == pytest.approx(ranks * sum(ids.values()))
    assert counts.items == pytest.approx(ranks * ids["history"])
    assert counts.group_rows == pytest.approx(ranks * group_rows)
    assert counts.jagged_bytes == pytest.approx(ranks * found.clustered.num_ids("history") * VECTOR_BYTES)
    longest = found.clustered.longest("history")
    assert counts.padded_bytes == pytest.approx(ranks * size * longest * VECTOR_BYTES)
    # Whole tables: each is on one rank, to which all others send.
    others = ranks - 1
    vectors = sum(rows[name] for name in POOLED) + sum(ids[name] for name in SEQUENCES)
    assert counts.vector_bytes == pytest.approx(others * vectors * VECTOR_BYTES)
    lengths = sum(rows[name] for name in POOLED if name in MULTI_HOT)
    headers = 8 * ranks * (2 + len(found.features) + deduplicated * 2)
    expected = others * (4 * sum(ids.values()) + 4 * lengths + (headers if others else 0))
    assert counts.id_bytes == pytest.approx(expected, abs=8 * ranks * 8)


def test_what_is_in_no_group_is_no_part_of_it(recipe):
    store, found = open_and_survey(recipe, ranks=1, seed=recipe.run.seed)
    counts = StepCounter(recipe, store, found, ranks=1, groups=()).count(found.clustered, deduplicated=True)
    assert (counts.list_values, counts.items, counts.group_rows, counts.padded_bytes) == (0, 0, 0, 0)
    assert counts.lookups == pytest.approx(sum(found.clustered.num_ids(name) for name in found.features))


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
