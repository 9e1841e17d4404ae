"""windrow.recsys.recommendation by recipe: training on a click log, and the parts of a recommender."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet

from windrow import recsys
from windrow.comm.errors import RecipeError, StoreError
from windrow.comm.launcher import launched_rank
from windrow.comm.loopback import Loopback
from windrow.comm.meter import Meter
from windrow.comm.random import hash_ids
from windrow.comm.world import World
from windrow.launch.cli import main
from windrow.launch.recommendation_recipe import RecommendationRecipe, make_recommendation_recipe
from windrow.launch.settings import write_toml
from windrow.launch.training import make_trainer, train
from windrow.recsys.log.prepare import prepare_log
from windrow.recsys.log.store import LogStore
from windrow.recsys.recommendation import recommendation
from windrow.recsys.tables.import_export import load_pretrained
from windrow.training.checkpoint import load_checkpoint, tables_folder
from windrow.training.journal import read_rank_records, read_records
from windrow.training.trainer import Trainer

Make = Callable[..., RecommendationRecipe]


class Killed(BaseException):
    """What stands in for a kill."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, prepare_clicks: Callable[[Path], None]) -> Path:
    """A folder with log and store, made once."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare_clicks(folder)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(prepared, tmp_path / "work"))


def killed_run(folder: Path, recipe: RecommendationRecipe, *, epoch: int, step: int) -> Path:
    """Train until just before a step."""
    whole = Trainer._learn

    def learn(trainer: Trainer, minibatch: Any, at_epoch: int, at_step: int) -> float:
        if (at_epoch, at_step) == (epoch, step):
            raise Killed
        return whole(trainer, minibatch, at_epoch, at_step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_learn", learn)
        with pytest.raises(Killed):
            train(recipe, run_folder=folder / "run")
    return folder / "run"


def assert_same_end(first: Path, second: Path) -> None:
    """Two runs ended with the same weights, tables and optimiser states, bit for bit."""
    ends = [load_checkpoint(run / "checkpoints") for run in (first, second)]
    # Checksums of the table shards are in the header.
    assert ends[0].header == ends[1].header
    assert ends[0].header.table_files
    one, other = (end.state["trainer"] for end in ends)
    assert str(one) == str(other)
    assert all(value.equal(other["model"][name]) for name, value in one["model"].items())
    losses = [[record.loss for record in read_records(run / "metrics.jsonl")] for run in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_run_learns_and_says_how_well(folder: Path, click_recipe: Make, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(click_recipe(folder, training={"epochs": 6}), run_folder=folder / "run")
    assert result.metric == "auc"
    assert (result.test or 0) > 0.75
    assert result.figures["test normalised entropy"] < 0.95
    assert result.figures["samples per second"] > 0
    assert "test NE" in capsys.readouterr().out
    best = load_checkpoint(folder / "run" / "checkpoints", "best")
    assert best.header.epoch == result.best_epoch
    assert [path.name for path in tables_folder(best.path).iterdir()] == ["rank-00000.safetensors"]


def test_a_recipe_may_ask_torchrec_for_its_plan(folder: Path, click_recipe: Make) -> None:
    recipe = click_recipe(folder, plan={"planner": "torchrec"}, training={"epochs": 1})
    assert (train(recipe, run_folder=folder / "run").validation or 0) > 0.5
    held = json.loads((folder / "run" / "placement.json").read_text())
    assert {table["name"]: table["plan"] for table in held["tables"]} == dict.fromkeys(("item", "user"), "table-wise")


def test_the_best_epoch_may_be_the_one_of_least_entropy(folder: Path, click_recipe: Make) -> None:
    recipe = click_recipe(folder, evaluation={"metric": "normalised_entropy"})
    result = train(recipe, run_folder=folder / "run")
    records = read_records(folder / "run" / "metrics.jsonl")
    assert not records[0].higher_is_better
    assert result.validation == min(record.validation or 9 for record in records)
    assert "test auc" in records[0].figures


@pytest.mark.parametrize(
    ("optimizer", "epoch", "step"),
    [("rowwise_adagrad", 1, 0), ("rowwise_adagrad", 0, 5), ("adam", 1, 2), ("adam", 2, 6)],
)
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(
    folder: Path, click_recipe: Make, epoch: int, step: int, optimizer: str
) -> None:
    recipe = click_recipe(folder, tables={"optimizer": optimizer}, run={"checkpoint_every_steps": 2})
    train(recipe, run_folder=folder / "whole")
    run = killed_run(folder, recipe, epoch=epoch, step=step)
    assert load_checkpoint(run / "checkpoints").header.position == (epoch, step - step % 2)
    train(recipe, resume=run)
    assert_same_end(run, folder / "whole")


COMPRESSED: dict[str, Any] = {
    "form": "robe",
    "compression": 3,
    "robe_block": 4,
    "hot_share": 0.2,
    "hot_counted": True,
    "hot_every": 3,
    "optimizer": "adagrad",
}


SHARDED = {"form": "robe", "compression": 3, "robe_block": 4, "robe_sharded": True}


@pytest.mark.parametrize("tables", [COMPRESSED, SHARDED, {"form": "int8"}], ids=["robe", "robe, sharded", "int8"])
def test_compressed_tables_go_on_are_evaluated_and_served(
    folder: Path, click_recipe: Make, tables: dict[str, Any]
) -> None:
    recipe = click_recipe(folder, tables=tables, run={"checkpoint_every_steps": 2})
    result = train(recipe, run_folder=folder / "whole")
    assert (result.test or 0) > 0.7
    run = killed_run(folder, recipe, epoch=1, step=3)
    train(recipe, resume=run)
    assert_same_end(run, folder / "whole")
    # Which rows are hot comes with the weights.
    with make_trainer(Loopback.single(), recipe, torch.device("cpu")) as trainer:
        trainer.load_weights(folder / "whole")
        assert trainer.evaluate("test")["test"]["auc"] == pytest.approx(result.test, abs=1e-6)
        expected = trainer.predict("test")
    assert main(["export", str(folder / "whole"), "--format", "model", "--out", str(folder / "served")]) == 0
    served = recsys.load(folder / "served")
    samples = LogStore.open(recipe.store).split("test").rows
    assert len(expected) == samples
    stored = sum(path.stat().st_size for path in (folder / "served").glob("*.safetensors"))
    assert stored < 4 * 8 * (64 + 14)
    assert served.vectors("item", torch.tensor([2, 3])).shape == (2, 8)


@pytest.mark.parametrize("form", ["robe", "narrow"])
def test_compressed_tables_start_from_dense_ones(folder: Path, click_recipe: Make, form: str) -> None:
    dense = train(click_recipe(folder, training={"epochs": 6}), run_folder=folder / "dense")
    file = folder / "tables.safetensors"
    assert main(["export", str(dense.run_folder), "--format", "safetensors", "--out", str(file)]) == 0
    pretrained = {"item": str(file), "user": str(file)}
    tables = {"form": form, "compression": 1.8, "robe_block": 4}
    found = {}
    begun = click_recipe(folder, tables=tables | {"pretrained": pretrained}, training={"epochs": 1})
    for name, more in (("from dense", {"pretrained": pretrained}), ("anew", {})):
        recipe = click_recipe(folder, tables=tables | more)
        with make_trainer(Loopback.single(), recipe, torch.device("cpu")) as trainer:
            whole = {table: trainer.model.bags.whole_table(table) for table in ("item", "user")}
        rows = {
            table: load_pretrained(file, table, (0, len(values)), (0, 8), shape=(len(values), 8))
            for table, values in whole.items()
        }
        found[name] = sum(float((whole[table] - rows[table]).square().sum()) for table in whole)
    assert found["from dense"] < 0.7 * found["anew"]
    # Files of first values may be gone once there is a checkpoint, and epochs may follow.
    train(begun, run_folder=folder / "run")
    file.unlink()
    for epochs in (2, 3):
        again = click_recipe(folder, tables=tables | {"pretrained": pretrained}, training={"epochs": epochs})
        with_auto: dict[str, Any] = {"resume": "auto", "run_folder": folder / "run"}
        assert train(again, **({"resume": folder / "run"} if epochs == 2 else with_auto)).epochs == epochs
    for command in ("predict", "evaluate"):
        assert main([command, str(folder / "run")]) == 0
    # The plan of a run on two ranks is none of the process that exports.
    planned = click_recipe(folder, tables=tables | {"pretrained": pretrained}, plan={"replica_groups": 2})
    write_toml(folder / "run" / "recipe.toml", planned.settings())
    assert main(["export", str(folder / "run"), "--format", "model", "--out", str(folder / "served")]) == 0


def test_what_compressed_tables_cannot_do_is_refused(
    folder: Path, click_recipe: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    train(click_recipe(folder, tables=COMPRESSED, training={"epochs": 1}), run_folder=folder / "run")
    capsys.readouterr()
    assert main(["export", str(folder / "run"), "--format", "torchrec", "--out", str(folder / "tables.pt")]) != 0
    assert "table 'item' is stored as robe, which TorchRec does not know" in capsys.readouterr().err
    smaller = click_recipe(folder, tables=COMPRESSED | {"compression": 5}, run={"init_from": folder / "run"})
    with pytest.raises(StoreError, match=r"table 'item.array' has \d+ rows in the checkpoint and \d+ now: what compr"):
        train(smaller, run_folder=folder / "other")
    train(click_recipe(folder, training={"epochs": 1}), run_folder=folder / "dense")
    for tables in (COMPRESSED, SHARDED):
        from_dense = click_recipe(folder, tables=tables, run={"init_from": folder / "dense"})
        with pytest.raises(StoreError, match="table 'item' is dense in the checkpoint and compressed now"):
            train(from_dense, run_folder=folder / "other")


def test_shards_that_are_damaged_are_passed_over(
    folder: Path, click_recipe: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = click_recipe(folder)
    train(recipe, run_folder=folder / "whole")
    run = killed_run(folder, recipe, epoch=2, step=3)
    shard = tables_folder(load_checkpoint(run / "checkpoints").path) / "rank-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x99")
    train(recipe, resume=run)
    said = capsys.readouterr().out
    assert "skipped a damaged checkpoint" in said
    assert "resuming after epoch 1" in said
    assert_same_end(run, folder / "whole")


def test_another_log_and_another_recipe_are_refused(
    folder: Path, click_recipe: Make, prepare_clicks: Callable[[Path], None]
) -> None:
    run = killed_run(folder, click_recipe(folder), epoch=1, step=0)
    with pytest.raises(StoreError, match=r"another recipe: tables\.learning_rate was 0\.1 and is 0\.5"):
        train(click_recipe(folder, tables={"learning_rate": 0.5}), resume=run)
    with pytest.raises(StoreError, match=r"prepared with the features \['item', 'user'\]"):
        train(click_recipe(folder, log={"features": {"item": {}}}), resume=run)
    manifest = folder / "clicks" / "manifest.json"
    fingerprint = load_checkpoint(run / "checkpoints").header.data_fingerprint
    manifest.write_text(manifest.read_text().replace(fingerprint, "0" * 64))
    with pytest.raises(StoreError, match="another log"):
        train(click_recipe(folder), resume=run)


@pytest.mark.parallel(2)
def test_two_ranks_train_as_one_and_go_on_under_another_plan(
    shared_tmp_path: Path, click_recipe: Make, prepare_clicks: Callable[[Path], None]
) -> None:
    if launched_rank() == 0:
        prepare_clicks(shared_tmp_path)
    file = shared_tmp_path / "plan.toml"
    file.write_text("[item]\nrank = 0\ncopied = [9, 4]\n[user]\nrank = 1\ncopied = [7, 2, 5, 1]\n")
    # One job for all: its start takes longer than these runs.
    for name, plan, kind in (
        ("round_robin", {"planner": "round_robin"}, "table-wise"),
        ("row_wise", {"planner": "row_wise"}, "row-wise"),
        ("copied", {"file": str(file)}, "partly replicated"),
    ):
        check_two_ranks(shared_tmp_path, click_recipe, name, plan, kind)
    # Whatever a search finds, rank 0 finds it for both, and it learns as any other plan does; so do two groups.
    ways = ({"planner": "neuroshard"}, {"planner": "oper"}, {"replica_groups": 2})
    for run, plan in zip(("searched", "rows", "groups"), ways, strict=True):
        result = train(click_recipe(shared_tmp_path, plan=plan), run_folder=shared_tmp_path / run)
        losses = [read_records(shared_tmp_path / path / "metrics.jsonl")[0].loss for path in (run, "round_robin")]
        assert losses[0] == pytest.approx(losses[1], rel=0.01)
        assert (result.test or 0) > 0.6
    records = read_records(shared_tmp_path / "groups" / "metrics.jsonl")
    assert records[0].figures["share of local rows"] == 1.0
    assert len(load_checkpoint(shared_tmp_path / "groups" / "checkpoints").header.table_files) == 1


def check_two_ranks(folder: Path, click_recipe: Make, name: str, plan: dict[str, str], kind: str) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    world.Barrier()
    run = folder / name
    recipe = click_recipe(folder, plan=plan)
    result = train(recipe, run_folder=run)
    assert len(set(world.allgather(result))) == 1
    records = read_records(run / "metrics.jsonl")
    held = json.loads((run / "placement.json").read_text())
    assert held["world_size"] == 2
    assert all(record.rows_fetched > 0 for record in records)
    assert {table["name"]: table["plan"] for table in held["tables"]} == {"item": kind, "user": kind}
    assert len(load_checkpoint(run / "checkpoints").header.table_files) == 2
    world.Barrier()
    if launched_rank() == 0:
        # Epochs 2 and 3 once more, on this rank alone and with a plan for one.
        for epoch in (2, 3):
            (run / "checkpoints" / f"epoch-0000{epoch}-step-000000.ckpt").unlink()
        train(click_recipe(folder, run={"backend": "loopback"}), resume=run)
        again = read_records(run / "metrics.jsonl")
        assert again[0] == records[0]
        counted = read_rank_records(run / "ranks.jsonl")
        assert [len(record.ranks) for record in counted] == [2, 1, 1]
        assert json.loads((run / "placement.json").read_text())["world_size"] == 1
        # Two features of one id each: whatever the plan, each sample needs two rows.
        needed = {sum(rank.rows_local + rank.rows_remote for rank in record.ranks) for record in counted}
        samples = LogStore.open(recipe.store).split("train").rows
        assert needed == {2 * samples}
        assert again[1].figures["share of local rows"] == 1.0
        assert "hit rate of the cache" not in again[0].figures
        assert 0 < again[0].figures["share of local rows"] < 1
        assert [one.loss for one in again] == pytest.approx([one.loss for one in records], rel=1e-5)
    world.Barrier()


def test_a_two_tower_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users, items = np.repeat(np.arange(40), 12), np.tile(np.arange(12), 40)
    items = items * 2 + users % 2  # Two kinds of users, each with its own items.
    held_out = hash_ids(1, np.arange(len(users))) % 4 == 0
    for name, chosen in (("train", ~held_out), ("test", held_out)):
        lines = [f"{user},{item}" for user, item in zip(users[chosen], items[chosen], strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    recipe = make_recommendation_recipe(
        {
            "name": "towers",
            "log": {"paths": ["train.csv"], "format": "interactions"},
            "split": {"by": "files", "test_paths": ["test.csv"]},
            "interactions": {"validation_fraction": 0.2, "num_negatives": 16, "max_history": 5},
            "tables": {"dim": 8, "learning_rate": 0.1},
            "model": {"kind": "two_tower"},
            "training": {"epochs": 4, "batch_size": 32},
            "evaluation": {"k": 12},
            "run": {"tensorboard": False, "threads": 1},
        },
        source="r.toml",
        base=tmp_path,
    )
    result = train(recipe, run_folder=tmp_path / "run")
    assert result.metric == "recall@12"
    assert (result.test or 0) > 0.7
    assert 0 < result.figures["test ndcg@12"] <= 1
    assert "test ndcg" in capsys.readouterr().out
    (tmp_path / "wanted.csv").write_text("user\n7\n0\n")
    assert main(["recommend", str(tmp_path / "run"), "--k", "5", "--users", str(tmp_path / "wanted.csv")]) == 0
    found = parquet.read_table(tmp_path / "run" / "recommendations.parquet").to_pydict()
    assert found["user"] == [7, 0]
    taken = set(items[users == 7].tolist())
    assert not taken & set(found["items"][0])
    assert found["scores"][0] == sorted(found["scores"][0], reverse=True)
    assert main(["predict", str(tmp_path / "run")]) == 2
    assert "see windrow recommend" in capsys.readouterr().err


def test_all_features_may_be_sequences(tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]) -> None:
    features = {
        "past": {"ids": "rows", "rows": 50, "multi_hot": True},
        "seen": {"ids": "rows", "rows": 9, "multi_hot": True},
    }
    rows = [f"{n % 2},{n % 7}|{n % 5},{n % 9}" for n in range(200)]
    (tmp_path / "log.csv").write_text("\n".join(["click,past,seen", *rows]) + "\n")
    recipe = click_recipe(
        tmp_path,
        log={"dense": [], "features": features},
        model={"top": [8], "sequences": ["past", "seen"], "sequence_pooling": "self"},
    )
    prepare_log(recipe.store, recipe.log, recipe.split)
    with make_trainer(Loopback.single(), recipe, torch.device("cpu")) as trainer:
        first, *_, last = [trainer.train_epoch(epoch) for epoch in range(4)]
        assert last < first
        assert set(trainer.evaluate()) == {"validation", "test"}


def test_sequences_have_tables_of_their_own(tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]) -> None:
    features = {
        "item": {"ids": "rows", "rows": 50},
        "past": {"ids": "rows", "rows": 50, "multi_hot": True, "table": "item"},
    }
    rows = [f"{n % 2},{n % 50},{n % 7}|{n % 5}" for n in range(200)]
    (tmp_path / "log.csv").write_text("\n".join(["click,item,past", *rows]) + "\n")
    recipe = click_recipe(
        tmp_path,
        log={"dense": [], "features": features},
        model={"top": [8], "sequences": ["past"], "sequence_query": "item"},
    )
    prepare_log(recipe.store, recipe.log, recipe.split)
    with make_trainer(Loopback.single(), recipe, torch.device("cpu")) as trainer:
        parts = [part.piece for table in trainer.task.local_tables() or () for part in table.state()]
        assert {(piece.name, piece.num_rows) for piece in parts} == {("item", 50), ("item_sequence", 50)}
        assert set(trainer.evaluate()) == {"validation", "test"}

    def losses(*, index_dedup: bool) -> list[tuple[list[float], int]]:
        settings = recipe.settings() | {"deduplication": {"index_dedup": index_dedup}}
        changed = make_recommendation_recipe(settings, source="r.toml", base=tmp_path)

        def body(world: World) -> tuple[list[float], int]:
            world.meter = Meter()
            with make_trainer(world, changed, torch.device("cpu")) as trainer:
                found = [trainer.train_epoch(epoch) for epoch in range(2)]
                return found, world.meter.totals("embedding rows: vectors").bytes_sent

        return Loopback.run(2, body)

    each, once = losses(index_dedup=False), losses(index_dedup=True)
    assert once[0][0] == pytest.approx(each[0][0], rel=1e-5)
    assert sum(sent for _, sent in once) < sum(sent for _, sent in each)


def test_tables_of_different_dims(tmp_path: Path, click_recipe: Callable[..., RecommendationRecipe]) -> None:
    """dcn takes them; dlrm, which multiplies embeddings with one another, says what to do."""
    features = {name: {"ids": "rows", "rows": 50} for name in ("item", "user")}
    (tmp_path / "log.csv").write_text(
        "\n".join(["click,item,user", *(f"{n % 2},{n % 50},{n % 7}" for n in range(200))])
    )
    tables = {"dim": 8, "user": {"dim": 4, "optimizer": "sgd", "learning_rate": 0.5}}
    recipe = click_recipe(tmp_path, log={"dense": [], "features": features}, tables=tables, model={"top": [8]})
    prepare_log(recipe.store, recipe.log, recipe.split)
    with pytest.raises(RecipeError, match="'item' has 8 columns and 'user' 4: give their tables the same dim"):
        recommendation(Loopback.single(), recipe, torch.device("cpu"), seed=0)
    settings = recipe.settings() | {"model": {"kind": "dcn", "deep": [8]}}
    recipe = make_recommendation_recipe(settings, source="r.toml", base=tmp_path)
    with make_trainer(Loopback.single(), recipe, torch.device("cpu")) as trainer:
        assert set(trainer.evaluate()) == {"validation", "test"}
