"""Vectors of users, items and what else there is from the graph of a log, then a click model that starts from them.

    python -P examples/graph_of_log.py examples/open_bandit.toml
    mpirun -n 2 python -P examples/graph_of_log.py examples/frappe.toml --epochs 10

Ids that occur together in a training sample that was clicked are joined. Rows of all of them are learnt so that joined
ones can be told from others, each with those of its neighbours; each rank owns a part of the graph and its rows. Their
vectors become the first rows of the recipe's tables, which each rank of the click model reads its part of.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import windrow as wr
from windrow import gnn, recsys
from windrow.comm.world import World
from windrow.launch.recommendation_recipe import RecommendationRecipe, load_recommendation_recipe
from windrow.launch.training import train
from windrow.recsys.log.prepare import prepare_log


def vectors_of_graph(
    world: World, pairs: NDArray[np.int64], num_vertices: int, *, dim: int, epochs: int, seed: int, folder: Path
) -> NDArray[np.float32]:
    """A vector for each vertex, learnt from which are joined: [vertices, dim]. Collective."""
    graph, links = gnn.split_links(gnn.assemble_graph(pairs[0], pairs[1], num_vertices), test_fraction=0, seed=seed)
    part = gnn.partition(graph, world)
    rows = recsys.EmbeddingCollection(
        [recsys.EmbeddingConfig(part.num_vertices, dim, "vertex")],
        world=world,
        plan=part.plan_of_rows("vertex", dim),
        optimizer=recsys.TableOptions(learning_rate=0.1, initial_scale=0.1),
        row_ids=part.original_ids,
        seed=seed,
    )
    task = gnn.LinkTask(part, links, fanouts=(20,), num_negatives=20, embedding=rows)
    model = gnn.build_model(gnn.ModelOptions(num_layers=1), in_features=dim, out_features=dim, seed=seed)
    with wr.Trainer(world, model, task, epochs=epochs, batch_size=1024, learning_rate=0.01, seed=seed) as trainer:
        trainer.fit(run_folder=folder)
        vectors: NDArray[np.float32] = trainer.predict().numpy()
    return vectors


def as_large_as(rows: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
    """The same, as large on the whole as uniform numbers in [-scale, scale)."""
    return rows * np.float32(scale / np.sqrt(3 * np.mean(np.square(rows))))


def first_rows(world: World, recipe: RecommendationRecipe, folder: Path, epochs: int) -> dict[str, Path]:
    """Files of first rows for the recipe's tables, from the graph of its log. Collective."""
    found = recsys.co_occurrences(recsys.LogStore.open(recipe.store))
    dims = {recipe.tables.of(table).dim for table in found.vertices}
    if len(dims) > 1:
        raise SystemExit(f"tables have {sorted(dims)} columns, and the vectors of one graph have one length")
    size = {"dim": dims.pop(), "epochs": epochs, "seed": recipe.run.seed}
    vectors = vectors_of_graph(world, found.pairs, found.num_vertices, folder=folder / "graph", **size)
    files = {table: folder / f"{table}.npy" for table in found.vertices}
    if world.rank == 0:
        for table, (start, stop) in found.vertices.items():
            # What the table would start from.
            scale = recipe.tables.of(table).initial_scale or (stop - start) ** -0.5
            np.save(files[table], as_large_as(vectors[start:stop], scale))
    world.barrier(stage="vectors")
    return files


def main(path: Path, folder: Path, epochs: int) -> None:
    """Every rank runs this."""
    recipe = load_recommendation_recipe(path)
    with wr.connect() as world:
        if world.rank == 0:
            folder.mkdir(parents=True)
            if not recipe.store.exists():
                prepare_log(recipe.store, recipe.log, recipe.split)
        world.barrier(stage="prepare")
        files = first_rows(world, recipe, folder, epochs)
    from_graph = replace(recipe, tables=replace(recipe.tables, pretrained=files))
    for name, asked in (("random", recipe), ("from_graph", from_graph)):
        result = train(asked, run_folder=folder / name)
        if world.rank == 0:
            print(f"first rows {name}: test {result.metric} {result.test:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs/graph_of_log"), help="a new one")
    parser.add_argument("--epochs", type=int, default=5, help="of training on the graph")
    given = parser.parse_args()
    main(given.recipe, given.folder, given.epochs)
