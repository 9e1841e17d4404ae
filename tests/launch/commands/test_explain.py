"""windrow.launch.commands.explain: on a real graph and on a log, without training."""

import json
from pathlib import Path

import pytest

from windrow.comm.errors import RecipeError, StoreError
from windrow.gnn.cache_choice import count_accesses, rank_part, seed_order
from windrow.gnn.partitioned import PartitionedGraph
from windrow.gnn.partitioning import partition_to_store
from windrow.gnn.sampler import NeighborSampler
from windrow.launch.cli import build_parser
from windrow.launch.recipe import Recipe, load_recipe
from windrow.launch.recommendation_recipe import load_recommendation_recipe
from windrow.recsys.log.store import LogStore
from windrow.recsys.log_tables import log_table_specs

PARTS = 3


def explain_with(*arguments: object) -> int:
    parsed = build_parser().parse_args(["explain", *map(str, arguments)])
    return int(parsed.run(parsed))


@pytest.fixture(scope="module")
def store(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An override that names a store of tolokers."""
    path = tmp_path_factory.mktemp("stores") / "tolokers"
    overrides = ["partition.method=fennel", f"partition.num_parts={PARTS}", f"store={path}"]
    partition_to_store(load_recipe(repository / "examples" / "tolokers.toml", overrides))
    return f"store={path}"


@pytest.fixture
def nobody_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's links are not known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def recipe(repository: Path) -> Path:
    return repository / "examples" / "tolokers.toml"


def measured_rows(asked: Recipe, alpha: float, epochs: int) -> float:
    """Remote rows that are not kept, in one epoch of sampling as training does it."""
    rows = 0
    for part in range(PARTS):
        graph = PartitionedGraph.open(asked.store, rank=part, size=PARTS)
        sampler = NeighborSampler(
            graph.indptr, graph.indices, asked.sampler.fanouts, seed=asked.run.seed, original_ids=graph.original_ids
        )
        counts = count_accesses(sampler, seed_order(graph, part, asked.sampling), range(epochs))
        counts[slice(*graph.own_range)] = 0
        counts[rank_part(graph, part, asked.sampling).kept(int(alpha * graph.num_vertices / PARTS))] = 0
        rows += int(counts.sum())
    return rows / epochs


@pytest.mark.usefixtures("nobody_measured")
def test_what_is_predicted_is_what_training_asks_for(
    recipe: Path, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "explain.json"
    learnt = ("--set", "model.embedding=true", "--set", "tables.dim=16")
    assert explain_with(recipe, "--set", store, *learnt, "--alphas", "0,0.2,1", "--json", out) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"tolokers: 11,758 vertices in {PARTS} parts; 6 steps an epoch")
    assert f"mpirun -n {PARTS} windrow network" in printed
    assert f"wrote {out}" in printed
    sizes = {size["alpha"]: size for size in json.loads(out.read_text())["sizes"]}
    asked = load_recipe(recipe, [store])
    for alpha in (0, 0.2, 1):
        assert sizes[alpha]["remote_rows"] == pytest.approx(measured_rows(asked, alpha, epochs=3), rel=0.03)
    assert f"do not count them: {sizes[0]['remote_rows']:,.0f} an epoch and as many gradients" in printed


def test_with_a_network_there_are_times_and_a_picture(
    recipe: Path, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, picture = tmp_path / "network.toml", tmp_path / "explain.png"
    network.write_text(f'nodes = {PARTS}\nrate = "1mbit"\n')
    shared = ("--network", network, "--ranks-per-machine", 3)
    assert explain_with(recipe, "--set", store, *shared, "--plot", picture, "--alphas", "0,1") == 0
    printed = capsys.readouterr().out
    assert "no pipeline s" in printed
    assert "for 3 ranks" in printed
    assert "fp8" in printed
    assert "pays" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_travels_in_full_graph_training(
    recipe: Path, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, out = tmp_path / "network.toml", tmp_path / "explain.json"
    network.write_text(f'nodes = {PARTS}\nrate = "1mbit"\n')
    whole = ("--set", store, "--set", "full_graph.enabled=true", "--network", network)
    assert explain_with(recipe, *whole, "--set", "full_graph.messages=adaptive", "--json", out) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"tolokers: 11,758 vertices in {PARTS} parts, at most ")
    assert "adaptive messages are between int2 and int8" in printed
    seconds = [one["seconds"] for one in json.loads(out.read_text())["formats"]]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] > 0


@pytest.mark.usefixtures("nobody_measured")
def test_what_cannot_be_explained(recipe: Path, store: str, repository: Path, tmp_path: Path) -> None:
    network = tmp_path / "network.toml"
    network.write_text("nodes = 5\n")
    with pytest.raises(RecipeError, match=r"network of 5 ranks, but 3 would train"):
        explain_with(recipe, "--set", store, "--network", network)
    with pytest.raises(RecipeError, match=r"--alphas says nothing about full-graph training"):
        explain_with(recipe, "--set", store, "--set", "full_graph.enabled=true", "--alphas", 0)
    network.write_text("nodes = 3\n")
    with pytest.raises(RecipeError, match=r"--ranks-per-machine 0"):
        explain_with(recipe, "--set", store, "--network", network, "--ranks-per-machine", 0)
    with pytest.raises(StoreError, match=r"windrow partition"):
        explain_with(recipe, "--set", f"store={tmp_path / 'nothing'}")
    with pytest.raises(RecipeError, match=r"--ranks says nothing about the recipe of a graph"):
        explain_with(recipe, "--ranks", 2)
    with pytest.raises(RecipeError, match=r"--alphas says nothing about the recipe of a log"):
        explain_with(repository / "examples" / "parquet_log.toml", "--alphas", 0)
    with pytest.raises(StoreError, match=r"there is no folder .*choose another --json"):
        explain_with(recipe, "--set", store, "--json", tmp_path / "no" / "folder.json")
    alone = [f"store={tmp_path / 'alone'}", "partition.num_parts=1", "partition.method=random"]
    partition_to_store(load_recipe(recipe, alone))
    with pytest.raises(RecipeError, match=r"one part.*--parts 4"):
        explain_with(recipe, "--set", alone[0])


@pytest.mark.parametrize("text", ["a", "0,-1", "nan", "0,,1"])
def test_alphas_are_numbers(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["explain", "r.toml", f"--alphas={text}"])
    assert "numbers" in capsys.readouterr().err


def test_tables_in_a_budget(
    planted_recipes: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed for the recipe makes a recipe whose tables fit."""
    recipe, out = planted_recipes["time"], tmp_path / "forms.json"
    assert explain_with(recipe, "--table-bytes", 3_000_000, "--json", out) == 0
    printed = capsys.readouterr().out
    assert "tables in 2,9" in printed
    chosen = json.loads(out.read_text())
    assert {one["form"] for one in chosen} == {"robe"}
    assert sum(one["num_bytes"] for one in chosen) <= 3_000_000
    sections = printed.partition("For the recipe:")[2].partition("wrote ")[0]
    changed = recipe.with_name("changed.toml")
    changed.write_text(f"{recipe.read_text()}\n{sections}")
    loaded = load_recommendation_recipe(changed)
    specs = log_table_specs(loaded, LogStore.open(loaded.store))
    assert [spec.num_bytes for spec in specs] == [one["num_bytes"] for one in chosen]
    for form in ("hashed", "codes"):
        assert explain_with(recipe, "--table-bytes", 3_000_000, "--table-form", form, "--json", out) == 0
        chosen = json.loads(out.read_text())
        assert form in {one["form"] for one in chosen}
        assert sum(one["num_bytes"] for one in chosen) <= 3_000_000
    with pytest.raises(RecipeError, match="--table-bytes 0: expected at least 1"):
        explain_with(recipe, "--table-bytes", 0)
    with pytest.raises(RecipeError, match="--table-form says nothing without --table-bytes"):
        explain_with(recipe, "--table-form", "hashed")
    with pytest.raises(RecipeError, match="900 bytes are too few for 6 tables"):
        explain_with(recipe, "--table-bytes", 900, "--table-form", "tensor_train")


def test_a_log(planted_recipes: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = planted_recipes["time"], tmp_path / "explain.json"
    assert explain_with(recipe, "--ranks", 2, "--json", out) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("planted: ")
    assert "an epoch saves" in printed
    assert f"wrote {out}" in printed
    explained = json.loads(out.read_text())
    assert ["cart", "sellers"] in explained["groups"]
    assert {saving["step"] for saving in explained["savings"]} == {"O3", "O4", "O5", "O7"}
    network = tmp_path / "network.toml"
    network.write_text('nodes = 2\nrate = "1mbit"\n')
    options = ("--set", "wire.gradients=int4", "--network", network, "--json", out)
    assert explain_with(recipe, "--ranks", 2, *options) == 0
    assert "pays, recipe" in capsys.readouterr().out
    formats = json.loads(out.read_text())["formats"]
    assert {one["setting"] for one in formats} == {"vectors", "gradients", "sums"}
    assert explain_with(recipe, "--rows", 500) == 0
    assert "one rank sends nothing" in capsys.readouterr().out
    with pytest.raises(RecipeError, match="--ranks 0: expected at least 1"):
        explain_with(recipe, "--ranks", 0)


def test_other_numbers_of_ranks(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a graph that nobody has partitioned."""
    described, measured, out = tmp_path / "network.toml", tmp_path / "links.json", tmp_path / "scale.json"
    described.write_text(
        'nodes = 2\nranks_per_node = 2\nrate = "1gbit"\nnode_rates = { 1 = "5gbit" }\n', encoding="utf-8"
    )
    measured.write_text("{}", encoding="utf-8")
    nowhere = ("--set", f"store={tmp_path / 'nowhere'}", "--set", "partition.method=random")
    asked = (recipe, *nowhere, "--network", described, "--scale", "2,8", "--json", out)
    assert explain_with(*asked) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tolokers: 11,758 vertices; 512 seeds of each rank in a step; network: ")
    found = json.loads(out.read_text("utf-8"))
    assert [one["ranks"] for one in found] == [2, 8]
    assert found[0]["steps"] > found[1]["steps"]
    # Two ranks are on one machine.
    assert found[0]["time"]["reduction_s"] / found[0]["steps"] < found[1]["time"]["reduction_s"] / found[1]["steps"]
    with pytest.raises(RecipeError, match="expected a description of a network"):
        explain_with(recipe, *nowhere, "--network", measured, "--scale", "2")
    with pytest.raises(RecipeError, match="--scale wants a description of the network"):
        explain_with(recipe, *nowhere, "--scale", "2")
    with pytest.raises(RecipeError, match="--scale is for minibatches"):
        explain_with(recipe, *nowhere, "--set", "full_graph.enabled=true", "--network", described, "--scale", "2")
    for wrong in ("2,x", "0"):
        with pytest.raises(SystemExit):
            explain_with(recipe, "--scale", wrong)
