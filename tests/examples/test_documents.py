"""The Python, TOML and commands of the documents are right: programs run, recipes are accepted, logs are prepared."""

import json
import re
import shlex
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from windrow.comm.loopback import Loopback
from windrow.gnn.synthetic import community_graph
from windrow.launch.cli import build_parser, main
from windrow.launch.recipe import make_recipe
from windrow.launch.recommendation_recipe import make_recommendation_recipe
from windrow.launch.settings import read_toml, write_toml
from windrow.launch.training import make_trainer
from windrow.partition.tables import Plan, Replica, check_plan
from windrow.recsys.batches.deduplication.options import DeduplicationOptions
from windrow.recsys.log.store import LogStore

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs"


def blocks(document: str, language: str) -> list[str]:
    """What the document has between ``` marks in this language."""
    text = (DOCUMENTS / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(program: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a program of a document; gives the names that it has set, to hand to the next one."""
    names = {} if names is None else names
    # DGL, PyG and TorchRec warn when they are imported; TorchRec draws first values from torch's global generator.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        exec(compile(program, "document", "exec"), names)  # the document's own program
    return names


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: "recipes", with "stores" beside it."""
    for name in ("recipes", "stores"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "recipes")
    return tmp_path / "recipes"


# ------------------------------------------------------------------------------------------------------ full-graph.md


def test_the_whole_graph_is_trained_on(recipes: Path) -> None:
    (section,) = blocks("full-graph.md", "toml")
    made = make_recipe(
        {"name": "mine", **tomllib.loads(ARCHIVE), **tomllib.loads(section)}, source="full-graph.md", base=recipes
    )
    assert made.full_graph.enabled
    (program,) = blocks("full-graph.md", "python")
    run(program, {"graph": community_graph(60, 3, seed=1)})
    assert (recipes / "runs" / "full-graph").is_dir()


# ----------------------------------------------------------------------------------------------------------- howto.md

ARCHIVE, TABLES, TYPED = blocks("howto.md", "toml")
WRITE_ARCHIVE, WRITE_DGL, WRITE_STORE, OWN_MODEL, TYPED_MODEL, ROWS, LINKS, LIGHTGCN, CLUSTERS = blocks(
    "howto.md", "python"
)


@pytest.mark.parametrize("recipe", [ARCHIVE, TABLES, TYPED])
def test_recipes_of_graphs_are_accepted(recipe: str, tmp_path: Path) -> None:
    make_recipe({"name": "mine", **tomllib.loads(recipe)}, source="howto.md", base=tmp_path)


def test_the_archive_becomes_a_store(recipes: Path) -> None:
    run(WRITE_ARCHIVE)
    Path("mine.toml").write_text(ARCHIVE)
    assert main(["partition", "mine.toml", "--method", "random"]) == 0
    assert (recipes.parent / "stores" / "mine-2" / "manifest.json").is_file()


def test_tables_become_a_store(recipes: Path) -> None:
    Path("friends.csv").write_text("from,to,strength\nanna,bert,1\nbert,carl,2\ncarl,dora,.5\n")
    Path("people.csv").write_text(
        "id,age,income,group,split\nbert,3,1.5,1,train\nanna,7,.2,0,train\ncarl,5,1,1,validation\ndora,1,2,0,test\n"
    )
    Path("people.toml").write_text(TABLES)
    assert main(["partition", "people.toml", "--method", "random"]) == 0
    assert (recipes.parent / "stores" / "people-2" / "manifest.json").is_file()


def test_files_of_types_become_a_store(recipes: Path) -> None:
    for folder in ("vertices", "edges"):
        (recipes / "mag" / folder).mkdir(parents=True)
    parquet.write_table(
        pa.table(
            {"id": list("pqrs"), "year": [1.0, 2, 3, 4], "field": [0, 1, 0, 1], "split": ["train"] * 2 + ["test"] * 2}
        ),
        "mag/vertices/paper.parquet",
    )
    parquet.write_table(pa.table({"id": ["anna", "bert"], "age": [1.0, 2]}), "mag/vertices/author.parquet")
    parquet.write_table(
        pa.table({"who": ["anna", "bert", "anna"], "what": list("pqr")}), "mag/edges/author__writes__paper.parquet"
    )
    parquet.write_table(pa.table({"from": list("qr"), "to": list("pp")}), "mag/edges/paper__cites__paper.parquet")
    Path("mag.toml").write_text(TYPED)
    assert main(["partition", "mag.toml", "--method", "random"]) == 0
    manifest = json.loads((recipes.parent / "stores" / "mag-2" / "manifest.json").read_text())
    assert manifest["metadata"]["types"]["edges"][-1] == ["paper", "rev_writes", "author"]


@pytest.mark.parametrize(
    ("program", "made"),
    [
        (WRITE_DGL, "mine.dgl"),
        (WRITE_STORE, "stores/mine-2"),
        (OWN_MODEL, "runs/own-model/summary.json"),
        (TYPED_MODEL, "runs/hetero/summary.json"),
        (ROWS, "runs/rows/summary.json"),
        (LINKS, "runs/links/summary.json"),
        (LIGHTGCN, "runs/lightgcn/summary.json"),
        (CLUSTERS, "clusters.npy"),
    ],
    ids=["dgl", "store", "model", "types", "rows", "links", "lightgcn", "clusters"],
)
def test_programs_for_graphs_run(recipes: Path, program: str, made: str) -> None:
    run(program)
    assert Path(made).exists()


# -------------------------------------------------------------------------------------------------------- planning.md


def test_plans_by_predicted_costs(tmp_path: Path) -> None:
    (section,) = blocks("planning.md", "toml")
    recipe = {"name": "mine", **merged(RECIPE, tomllib.loads(section))}
    assert make_recommendation_recipe(recipe, source="planning.md", base=tmp_path).plan.planner == "neuroshard"
    (program,) = blocks("planning.md", "python")
    plan = run(program)["plan"]
    assert check_plan(plan, run(program)["specs"], 4, 2**30) is None
    for line in "".join(blocks("planning.md", "bash")).splitlines():
        build_parser().parse_args(shlex.split(line.removeprefix("mpirun -n 4 "))[1:])


# -------------------------------------------------------------------------------------------------- recommendation.md

RECIPE, LIBFM, SEQUENCES, SELF_ATTENTION, TRANSFORMS, TABLE, PLAN_FILE, PLAN_SECTION, LABELS, DAILY, PRETRAINED = (
    tomllib.loads(text) for text in blocks("recommendation.md", "toml")
)
WRITE_LOG, MOVE, SERVE, READ_SAFETENSORS, LOAD_IN_TORCHREC, WRITE_ROWS, SAVE_MODEL = blocks(
    "recommendation.md", "python"
)


def merged(recipe: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the sections of another in the place of its own."""
    return {**recipe, **{name: {**recipe.get(name, {}), **section} for name, section in change.items()}}


@pytest.fixture
def prepared(recipes: Path) -> Path:
    """The current folder: the document's log and recipe, prepared."""
    run(WRITE_LOG)
    write_toml(Path("mine.toml"), RECIPE)
    assert main(["prepare", "mine.toml"]) == 0
    return recipes


def train(recipe: dict[str, Any], run_folder: str) -> None:
    write_toml(Path("recipe.toml"), merged(recipe, {"run": {"threads": 1, "tensorboard": False}}))
    assert main(["train", "recipe.toml", "--run-folder", run_folder]) == 0


@pytest.mark.parametrize(
    "change", [{}, LIBFM, SEQUENCES, SELF_ATTENTION, TRANSFORMS, TABLE, PLAN_SECTION, LABELS, DAILY, PRETRAINED]
)
def test_recipes_of_logs_are_accepted(change: dict[str, Any], tmp_path: Path) -> None:
    values = {"name": "mine", **merged(RECIPE, change)}
    make_recommendation_recipe(values, source="recommendation.md", base=tmp_path)


def test_a_model_with_tables_is_saved_and_loaded(recipes: Path) -> None:
    run(SAVE_MODEL)
    assert torch.load("model.pt")["bags.embedding_bags.item.weight"].shape == (100, 10)


def test_the_plan_fits(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_toml(Path("plan.toml"), PLAN_FILE)
    write_toml(Path("planned.toml"), merged(RECIPE, PLAN_SECTION))
    assert main(["plan", "planned.toml", "--ranks", "2"]) == 0
    assert re.search(r"user .* partly replicated .*\n.*item .* partly replicated", capsys.readouterr().out)


def test_tables_move_in_the_middle_of_a_run(prepared: Path) -> None:
    recipe = make_recommendation_recipe({"name": "mine", **RECIPE}, source="recommendation.md", base=prepared)
    with make_trainer(Loopback.single(), recipe, torch.device("cpu")) as trainer:
        recommender = trainer.model
        plan = Plan((), tuple(Replica(spec.name, (0, spec.rows)) for spec in recommender.bags.specs))
        assert recommender.bags.plan != plan
        run(MOVE, {"trainer": trainer, "recommender": recommender, "plan": plan})
        assert recommender.bags.plan == plan


def test_tables_come_out_and_go_in(prepared: Path) -> None:
    train(RECIPE, "runs/mine-1")
    assert main(["export", "runs/mine-1", "--out", "runs/tables.safetensors"]) == 0
    assert main(["export", "runs/mine-1", "--format", "torchrec", "--out", "runs/tables.pt"]) == 0
    assert main(["export", "runs/mine-1", "--format", "model", "--out", "runs/served"]) == 0
    assert run(SERVE)["probabilities"].shape == (2,)
    first_values = run(READ_SAFETENSORS)["first_values"]
    names = run(LOAD_IN_TORCHREC)
    item = names["collection"].embedding_bags["item"].weight
    assert set(names["collection"].embedding_bags) == {"user", "item"}
    assert first_values.equal(item[2:5])
    run(WRITE_ROWS)
    train(merged(RECIPE, PRETRAINED), "runs/mine-2")


ANEW = {"plan": {"planner": "oper", "replan_every_steps": 2}}


@pytest.mark.parametrize("change", [SEQUENCES, SELF_ATTENTION, TRANSFORMS, TABLE, ANEW])
def test_it_trains_so_too(prepared: Path, change: dict[str, Any]) -> None:
    train(merged(RECIPE, change), "runs/mine-1")
    assert (prepared / "runs" / "mine-1" / "summary.json").is_file()


# ------------------------------------------------------------------------------- clustered-logs, session-recommendation


def test_a_log_is_clustered_and_prepared(recipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = "clustered-logs.md"
    (program,), (command,), (recipe,) = (blocks(document, kind) for kind in ("python", "bash", "toml"))
    run(program)
    assert main(shlex.split(command)[1:]) == 0
    assert "6000 rows of 400 sessions, 15.00 rows to a session" in capsys.readouterr().out
    before, after = Path("clicks.parquet"), Path("clustered/clicks/part-00000.parquet")
    assert parquet.read_schema(before) == parquet.read_schema(after)
    assert after.stat().st_size < before.stat().st_size
    write_toml(Path("clicks.toml"), tomllib.loads(recipe))
    assert main(["prepare", "clicks.toml"]) == 0
    store = LogStore.open(recipes.parent / "stores" / "clicks", verify=True)
    assert store.manifest.order == "sessions"
    assert store.split("train").rows == 4800


def test_the_programs_for_sessions_run_one_after_the_other() -> None:
    names: dict[str, Any] = {}
    for program in blocks("session-recommendation.md", "python"):
        run(program, names)
    assert names["loss"].item() > 0


# ------------------------------------------------------------------------------------ deduplication.md, session-logs.md


def commands(document: str) -> list[list[str]]:
    """The words after ``windrow``, without mpirun: one rank does the same."""
    lines = "".join(blocks(document, "bash")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index("windrow") + 1 :] for line in words if "windrow" in line]


def with_fewer_samples(command: list[str]) -> list[str]:
    """Large logs take long."""
    if command[0] == "train":
        small = ("model.bottom=[8]", "model.top=[8]", "tables.dim=4", "run.tensorboard=false")
        return [*command, *(word for setting in small for word in ("--set", setting))]
    if command[0] != "generate-log":
        return command
    place = command.index("--samples") + 1
    scales = ["--length-scale", "0.1", "--rows-scale", "0.001"]
    return [*command[:place], "3000", *command[place + 1 :], *scales]


@pytest.fixture
def beside_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: one that has a folder "stores"."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stores").mkdir()
    return tmp_path


def test_what_the_guide_does(beside_stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = [command[0] for command in commands("deduplication.md")]
    assert done == ["generate-log", "prepare", "groups", "explain", "prepare", "train"]
    for command in commands("deduplication.md"):
        assert main(with_fewer_samples(command)) == 0
        if command[0] == "groups":
            assert "groups = [[" in capsys.readouterr().out
    assert LogStore.open(beside_stores / "stores" / "visits").manifest.order == "sessions"


def test_what_the_page_of_generated_logs_does(beside_stores: Path) -> None:
    first = commands("session-logs.md")[:3]
    assert [command[0] for command in first] == ["generate-log", "prepare", "train"]
    for command in first:
        assert main(with_fewer_samples(command)) == 0
    assert read_toml(beside_stores / "stores" / "generated.toml")["deduplication"]["groups"]


def test_lines_of_the_recipe_of_deduplication(tmp_path: Path) -> None:
    (text,) = blocks("deduplication.md", "toml")
    write_toml(tmp_path / "r.toml", tomllib.loads(text))
    values = tomllib.loads(text)["deduplication"]
    groups = tuple(tuple(group) for group in values["groups"])
    assert DeduplicationOptions(groups=groups, cluster=values["cluster"]).read_groups() == groups


def test_the_program_of_deduplication_runs() -> None:
    (program,) = blocks("deduplication.md", "python")
    run(program)
