"""Partition and train as a recipe says, from Python: all that the two commands do.

    python -P examples/train_from_recipe.py examples/minesweeper.toml
    mpirun -n 2 python -P examples/train_from_recipe.py examples/minesweeper.toml

What follows the recipe's name is changed in it: training.epochs=5, for example.
"""

import sys
from pathlib import Path

from windrow.comm.connect import connect
from windrow.gnn.partitioning import partition_to_store
from windrow.launch.recipe import load_recipe
from windrow.launch.training import train

if __name__ == "__main__":
    with connect() as world:  # one process partitions, the others wait for it
        recipe = load_recipe(Path(sys.argv[1]), [*sys.argv[2:], f"partition.num_parts={world.size}"])
        if world.rank == 0:
            partition_to_store(recipe, overwrite=True)
        world.barrier(stage="partition")
    result = train(recipe)
    if world.rank == 0:
        print(f"test {result.metric} {result.test:.4f} at epoch {result.best_epoch}: {result.run_folder}")
