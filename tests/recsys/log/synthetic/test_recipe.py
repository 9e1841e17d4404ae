"""windrow.recsys.log.synthetic.generate: the recipe that goes with a log."""

from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.log.options import FeatureOptions
from windrow.recsys.log.synthetic.generate import recipe_features, recipe_groups, session_log_recipe
from windrow.recsys.log.synthetic.options import FeatureGroup, SessionFeature, SessionLogOptions, recd


def group(name, unchanged, **settings):
    features = tuple(SessionFeature(name=f"{name}_{number}", rows=1_000_000) for number in range(2))
    return FeatureGroup(name=name, features=features, unchanged=unchanged, **settings)


def test_features_are_rows_of_tables():
    options = SessionLogOptions(groups=(group("a", 0.9, mean_length=3), group("b", 0.1)))
    features = recipe_features(options)
    assert features == {
        "a_0": {"ids": "rows", "rows": 1_000_000, "multi_hot": True},
        "a_1": {"ids": "rows", "rows": 1_000_000, "multi_hot": True},
        "b_0": {"ids": "rows", "rows": 1_000_000},
        "b_1": {"ids": "rows", "rows": 1_000_000},
    }
    for settings in features.values():
        FeatureOptions(**settings)


def test_groups_that_hardly_repeat_are_left_out():
    # With 16.5 samples a session, 1.5 times as many samples as distinct ones need 35 % unchanged.
    options = SessionLogOptions(
        groups=(group("a", 0.37), group("b", 0.33), FeatureGroup(name="c", dense=("d",)))
    )
    assert recipe_groups(options) == [["a_0", "a_1"]]


def test_the_preset_groups_what_is_on_the_users_side():
    groups = recipe_groups(recd())
    DeduplicationOptions(groups=tuple(tuple(names) for names in groups))
    named = {name for names in groups for name in names}
    assert {feature.name for feature in recd().features} - named == {"item", "seller", "brand", "category"}


def test_a_whole_recipe_names_log_and_store():
    recipe = session_log_recipe(recd(), log="a.parquet", store="stores/a")
    assert recipe["store"] == "stores/a"
    assert recipe["log"]["paths"] == ["a.parquet"]
    assert len(recipe["log"]["features"]) == 31
