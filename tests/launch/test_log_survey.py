"""windrow.launch.log_survey: the log of a recipe, in the batches of its training."""

import pytest

from windrow.comm.errors import RecipeError, StoreError
from windrow.launch.log_survey import groups_for, open_and_survey
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.recsys.batches.batch_reader import BatchReader


@pytest.fixture(scope="module")
def recipe_file(planted_store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    planted_store(folder)
    return folder / "planted.toml"


def test_batches_are_those_of_training(recipe_file):
    recipe = load_recommendation_recipe(recipe_file, ["training.batch_size=300", "run.seed=5"])
    store, found = open_and_survey(recipe, ranks=2)
    reader = BatchReader(store, "train", rank=0, size=2, batch_size=300, lanes=4, seed=5)
    with reader.batches(0) as batches:
        first = next(batches)
    lengths = first.sparse["history"].lengths()
    assert found.as_read.batches[0].lengths["history"].tolist() == lengths.clamp(max=30).tolist()
    assert len(found.as_read.batches) == 4
    assert {batch.num_samples for batch in found.as_read.batches} == {150}
    assert (found.batch_size, found.pieces) == (150, 2)


def test_groups_are_those_that_are_planted(recipe_file):
    recipe = load_recommendation_recipe(recipe_file)
    _, found = open_and_survey(recipe, ranks=1, max_rows=2000)
    assert found.num_samples < 2500
    assert groups_for(recipe, found) == (("user",), ("cart", "sellers"), ("history",), ("tags",))


def test_a_batch_of_the_whole_log(recipe_file):
    _, found = open_and_survey(load_recommendation_recipe(recipe_file, ["training.batch_size=9999"]), ranks=1)
    assert found.batch_size == found.split_samples == found.as_read.num_samples


def test_what_is_refused(recipe_file, planted_store, tmp_path):
    recipe = load_recommendation_recipe(recipe_file)
    with pytest.raises(RecipeError, match="--ranks 0: expected at least 1"):
        open_and_survey(recipe, ranks=0)
    with pytest.raises(RecipeError, match="--rows 0: expected at least 1"):
        open_and_survey(recipe, ranks=1, max_rows=0)
    with pytest.raises(RecipeError, match="5 ranks share 4 lanes"):
        open_and_survey(recipe, ranks=5)
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
