"""windrow.recsys.log_tables: which tables a recipe and its log make."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from windrow.comm.errors import DataError, RecipeError, StoreError
from windrow.comm.loopback import Loopback
from windrow.comm.world import World
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.partition.tables.planners import plan_with_planner
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore
from windrow.recsys.log_tables import check_store, log_table_specs, plan_tables, sequence_tables, table_configs
from windrow.recsys.sharded.pooled import EmbeddingBagCollection
from windrow.recsys.sharded.tables_of_ranks import table_specs
from windrow.recsys.tables.options import EmbeddingBagConfig, TableOptions

Prepared = tuple[Callable[..., RecommendationRecipe], LogStore]
FEATURES: dict[str, Any] = {
    "item": {"ids": "rows", "rows": 50},
    "past": {"ids": "rows", "rows": 50, "multi_hot": True, "table": "item"},
    "user": {"ids": "rows", "rows": 20},
    "tags": {"ids": "rows", "rows": 9, "multi_hot": True},
}
SEQUENCES = {"sequences": ["past", "tags"], "sequence_query": "item"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, click_recipe: Callable[..., RecommendationRecipe]) -> Prepared:
    """Recipes of a log whose features share a table, and its store."""
    folder = tmp_path_factory.mktemp("log")
    rows = [f"{n % 2},{n % 50},{n % 7}|{n % 5}|{n % 3},{n % 20},{n % 9}" for n in range(200)]
    (folder / "log.csv").write_text("\n".join(["click,item,past,user,tags", *rows]) + "\n")

    def recipe_of(**changes: Any) -> RecommendationRecipe:
        return click_recipe(folder, **{"log": {"dense": [], "features": FEATURES}, **changes})

    recipe = recipe_of()
    return recipe_of, prepare_log(recipe.store, recipe.log, recipe.split)


def test_every_feature_is_pooled_by_default(prepared: Prepared) -> None:
    recipe_of, store = prepared
    recipe = recipe_of()
    tables = [(table.name, table.num_embeddings, table.feature_names) for table in table_configs(recipe, store)[0]]
    assert tables == [("item", 50, ["item", "past"]), ("user", 20, ["user"]), ("tags", 9, ["tags"])]
    assert table_configs(recipe, store)[1] == []
    lookups = {spec.name: spec.lookups_per_sample for spec in log_table_specs(recipe, store)}
    assert lookups == {"item": 4.0, "user": 1.0, "tags": 1.0}
    check_store(recipe, store)


def test_a_table_that_is_pooled_and_not_has_rows_for_both(prepared: Prepared) -> None:
    recipe_of, store = prepared
    recipe = recipe_of(model=SEQUENCES | {"top": [8]})
    assert [(table.name, table.feature_names) for table in table_configs(recipe, store)[0]] == [
        ("item", ["item"]),
        ("user", ["user"]),
    ]
    assert [(table.name, table.feature_names) for table in table_configs(recipe, store)[1]] == [
        ("item_sequence", ["past"]),
        ("tags", ["tags"]),
    ]
    assert sequence_tables(recipe) == {"item_sequence", "tags"}
    plan = plan_tables(recipe, store, 2)
    parts = [plan.only({table.name for table in configs}) for configs in table_configs(recipe, store)]
    assert {shard.table for shard in parts[0].shards} == {"item", "user"}
    assert {shard.table for shard in parts[1].shards} == {"item_sequence", "tags"}


def test_sections_of_single_tables(prepared: Prepared) -> None:
    recipe_of, store = prepared
    given = {"dim": 8, "item": {"dim": 16, "precision": "fp16"}, "tags": {"optimizer": "sgd"}}
    recipe = recipe_of(tables=given)
    assert recipe.settings()["tables"]["item"] == {"dim": 16, "precision": "fp16"}
    assert make_recommendation_recipe(recipe.settings(), source="r.toml", base=recipe.store.parent) == recipe
    assert [(table.name, table.embedding_dim) for table in table_configs(recipe, store)[0]] == [
        ("item", 16),
        ("user", 8),
        ("tags", 8),
    ]
    memory = {spec.name: spec.num_bytes for spec in log_table_specs(recipe, store)}
    assert memory == {"item": 50 * (16 * 2 + 4), "user": 20 * (8 * 4 + 4), "tags": 9 * 8 * 4}
    for tables, said in (
        ({"usr": {"dim": 8}}, r"tables.usr: there is no such table. Did you mean 'user'\?"),
        ({"user": {"dmi": 8}}, r"\[tables.user\] has no key 'dmi'. Did you mean 'dim'"),
        ({"usr": 3}, r"\[tables\] has no key 'usr'"),
        ({"user": {"dim": 0}}, r"\[tables.user\] dim = 0 must be an integer of at least 1"),
    ):
        with pytest.raises(RecipeError, match=said):
            log_table_specs(recipe_of(tables=tables), store)


def test_a_store_of_another_log_is_refused(prepared: Prepared) -> None:
    recipe_of, store = prepared
    with pytest.raises(StoreError, match=r"features .*'tags'.*recipe has \['item', 'user'\].*prepare again"):
        check_store(recipe_of(log={"dense": []}), store)
    with pytest.raises(StoreError, match=r"dense columns \[\], but the recipe has \['age'\]"):
        check_store(recipe_of(log={"features": FEATURES}), store)


def test_a_store_of_other_settings_is_refused(prepared: Prepared) -> None:
    recipe_of, store = prepared
    more_users = FEATURES | {"user": {"ids": "rows", "rows": 30}}
    with pytest.raises(StoreError, match=r"prepared with features = .*run windrow prepare again"):
        check_store(recipe_of(log={"dense": [], "features": more_users}), store)
    other_split = {"by": "hash", "fractions": [0.5, 0.25, 0.25]}
    with pytest.raises(StoreError, match=r"prepared with fractions = \[0.6, 0.2, 0.2\], but the recipe has"):
        check_store(recipe_of(split=other_split), store)
    moved = {"dense": [], "features": FEATURES, "paths": ["elsewhere/log.csv"]}
    check_store(recipe_of(log=moved), store)
    with pytest.raises(StoreError, match="prepared with cluster = False, but the recipe has True"):
        check_store(recipe_of(deduplication={"cluster": True}), store)
    origin = {section: value for section, value in store.manifest.origin.items() if section != "deduplication"}
    older = replace(store, manifest=replace(store.manifest, origin=origin))
    check_store(recipe_of(), older)
    with pytest.raises(StoreError, match="prepared with shard = False, but the recipe has True"):
        check_store(recipe_of(deduplication={"shard": True}), older)


TABLES = [
    EmbeddingBagConfig(num_embeddings=10, embedding_dim=8, name="item", feature_names=["item"]),
    EmbeddingBagConfig(num_embeddings=6, embedding_dim=8, name="user", feature_names=["user"]),
]
SPECS = table_specs(TABLES, TableOptions(dim=8))


@pytest.mark.parametrize("planner", ["row_wise", "column_wise", "replicated"])
def test_pretrained_rows_come_to_whoever_holds_them(tmp_path: Path, planner: Any) -> None:
    rows = np.arange(80, dtype=np.float32).reshape(10, 8)
    np.save(tmp_path / "item.npy", rows)

    def body(world: World) -> list[tuple[str, bool]]:
        plan = plan_with_planner(planner, SPECS, world.size)
        options = TableOptions(dim=8, pretrained={"item": tmp_path / "item.npy"})
        bags = EmbeddingBagCollection(TABLES, world=world, plan=plan, optimizer=options)
        return [
            (
                part.piece.name,
                torch.equal(part.tensor, torch.from_numpy(rows[slice(*part.piece.rows), slice(*part.piece.columns)])),
            )
            for batch in bags.local_tables()
            for part in batch.state()
            if part.name == "weight"
        ]

    found = [table for tables in Loopback.run(2, body) for table in tables]
    assert sorted(set(found)) == [("item", True), ("user", False)]


def test_pretrained_rows_that_fit_no_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"tables.pretrained.itm: there is no such table. Did you mean 'item'"):
        EmbeddingBagCollection(TABLES, optimizer=TableOptions(dim=8, pretrained={"itm": tmp_path / "item.npy"}))
    np.save(tmp_path / "item.npy", np.zeros((9, 8), dtype=np.float32))
    with pytest.raises(DataError, match=r"item.npy"):
        EmbeddingBagCollection(TABLES, optimizer=TableOptions(dim=8, pretrained={"item": tmp_path / "item.npy"}))
